"""The comparison itself: an expectation with anything changed in it must not fit."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import harness
from harness import Case, Mode

CASES = [*harness.cases(".sse")]
RUNS = [(case, mode) for case in CASES for mode in case.modes()]


def changed(key: str, value: Any) -> Any:
    """A value that differs in one place, of the same type."""
    if key == "usage":
        return {**value, "completion_tokens": value["completion_tokens"] + 1}
    if key in ("tool_calls", "partial_tool_calls"):
        return [{**value[0], "name": value[0]["name"] + "x"}, *value[1:]]
    if key in ("quirks", "extra_lacks"):
        return value[:-1]
    if key == "reasoning":
        return [[value[0][0], value[0][1] + "x"], *value[1:]]
    if key == "extra":
        return {name: [content, "x"] for name, content in value.items()}
    if key == "message_contains":
        return [*harness.listed(value), "no such words"]
    if key == "message_lacks":
        return [*harness.listed(value), ""]  # which every message has
    return f"{value}x"


def expectations(expected: harness.Outcome) -> list[harness.Outcome]:
    wrong = []
    for key, value in expected.items():
        if key in ("late_quirks", "extra_lacks") or not value:
            continue
        wrong.append({**copy.deepcopy(expected), key: changed(key, value)})
        defaults = ("text", "usage", "reasoning", "quirks", "tool_calls", "partial_tool_calls")
        if key in defaults and value:  # what is not told has to be empty
            wrong.append({name: told for name, told in expected.items() if name != key})
    for key, value in [("quirks", "no-such-quirk"), ("reasoning", ["reasoning", "x"])]:
        wrong.append({**expected, key: [*expected.get(key, []), value]})
    if expected["outcome"] == "completed":
        call = {"id": "k9", "name": "x", "arguments": ""}
        for key in ("tool_calls", "partial_tool_calls"):
            wrong.append({**expected, key: [*expected.get(key, []), call]})
        wrong += [{**expected, "id": "x"}, {**expected, "model": "x"}]
        wrong += [{**expected, "extra": {"no such key": None}}]
    else:
        wrong += [{**expected, "status": 400}, {**expected, "retry_after": 1.0}]
        wrong += [{**expected, "retryable": True}, {**expected, "server_message": "x"}]
        wrong += [{**expected, "unsent": True}, {**expected, "kind": ["config", "attachment"]}]
    return wrong


@pytest.mark.parametrize(
    ("case", "mode"), RUNS, ids=[f"{case.name}-{mode.name}" for case, mode in RUNS]
)
def test_a_changed_expectation_does_not_fit(case: Case, mode: Mode) -> None:
    got = harness.outcome(harness.decode([case.data], **mode.options))
    assert harness.differences(got, mode.expected) == []
    wrong = expectations(mode.expected)
    assert len(wrong) > 6
    for expected in wrong:
        assert harness.differences(got, expected), expected


def test_what_must_not_be_there() -> None:
    (case,) = [case for case in CASES if case.name.startswith("261-")]
    got = harness.outcome(harness.decode([case.data]))
    present = next(iter(got["extra"]))
    expected = {**case.spec["strict"], "extra_lacks": [present]}
    assert harness.differences(got, expected) == [f"extra has {present!r} (of {got!r})"]


def test_long_arguments_are_told_by_their_sum() -> None:
    (case,) = [case for case in CASES if case.name.startswith("105-")]
    got = harness.outcome(harness.decode([case.data]))
    for key, value in [("length", 5007), ("sha256", "0" * 64)]:
        expected = copy.deepcopy(case.spec["strict"])
        expected["tool_calls"][0]["arguments"][key] = value
        assert harness.differences(got, expected)


def test_the_order_of_quirks() -> None:
    (case,) = [case for case in CASES if case.name.startswith("463-")]
    got = harness.outcome(harness.decode([case.data]))
    expected = dict(case.spec["strict"], quirks=case.spec["strict"]["quirks"][::-1])
    assert harness.differences(got, expected) == []
    assert harness.differences(got, expected, in_order=True)


def test_unknown_keys_are_no_expectation() -> None:
    got = harness.outcome(harness.decode([CASES[0].data]))
    with pytest.raises(AssertionError, match="keys no test reads"):
        harness.differences(got, {**CASES[0].spec["strict"], "txt": "Hi"})
