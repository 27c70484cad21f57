"""Every whole response of tests/cases, through a real client against a raw socket."""

from __future__ import annotations

import time
from typing import Any

import pytest

import harness
import svir
from harness import Case, Mode, RawServer

CASES = harness.cases(".http")
RUNS = [
    pytest.param(case, mode, id=f"{case.name}-{mode.name}")
    for case in CASES
    for mode in case.modes()
]
SCENES = [
    pytest.param(case, scene, id=f"{case.name}-scene{number}")
    for case in CASES
    for number, scene in enumerate(case.spec.get("scenes", []))
]
pieces = pytest.mark.parametrize("one_byte", [False, True], ids=["whole", "bytes"])


def server_options(spec: dict[str, Any]) -> dict[str, Any]:
    """The `harness` key of a case in the words of RawServer."""
    names = {"hold_open": "hold_open", "seconds_before_status": "delay"}
    return {names[key]: value for key, value in spec.items()}


def run_case(
    case: Case, settings: dict[str, Any], options: dict[str, Any]
) -> tuple[harness.Run, list[harness.Received]]:
    # An answer that only an idle timeout ends is a failure, and comes soon enough to be seen.
    settings = {"idle_timeout": 8.0, "include_usage": False, **settings}
    with RawServer(case.data, **options) as server:
        run = harness.ask(server.url, **settings)
    return run, server.requests


@pieces
@pytest.mark.parametrize(("case", "mode"), RUNS)
def test_outcome(case: Case, mode: Mode, one_byte: bool) -> None:
    options = server_options(case.spec.get("harness", {}))
    started = time.monotonic()
    run, requests = run_case(case, mode.options, dict(options, one_byte=one_byte))
    harness.check(harness.outcome(run), mode.expected)
    assert len(requests) == case.spec.get("requests", 1), "one request, whatever came back"
    assert time.monotonic() - started < 5, "the answer is given at once"


@pieces
@pytest.mark.parametrize(("case", "scene"), SCENES)
def test_scene(case: Case, scene: dict[str, Any], one_byte: bool) -> None:
    assert set(scene) == {"harness", "client", "strict"}
    options = server_options(scene["harness"])
    run, requests = run_case(case, scene["client"], dict(options, one_byte=one_byte))
    harness.check(harness.outcome(run), scene["strict"])
    assert len(requests) == 1


def test_the_server_closes_without_a_last_chunk() -> None:
    """134 again, as its note asks: the connection is closed instead of held."""
    (case,) = [case for case in CASES if case.name.startswith("134-")]
    run, _ = run_case(case, {}, {"hold_open": False})
    harness.check(harness.outcome(run), case.spec["strict"])


RESENT = [case for case in CASES if "resend" in case.spec]
OPTIONAL = {"reasoning_effort", "stream_options"}
with_resend = pytest.mark.parametrize("case", RESENT, ids=lambda case: case.name)


def resend_expected(case: Case) -> bool:
    words = case.spec["resend"].split()[0]
    return {"never": False, "once,": True}[words]


@with_resend
@pytest.mark.parametrize("effort", [None, "low"])
@pytest.mark.parametrize("usage", [False, True])
def test_what_is_sent_again(case: Case, effort: Any, usage: bool) -> None:
    """D11, D26, D36: once more and lean, if there is anything to leave out and a reason to."""
    request = svir.Request("m", "Hi", reasoning_effort=effort)
    with RawServer(case.data) as server:
        run = harness.ask(server.url, request, include_usage=usage)
    harness.check(harness.outcome(run), case.spec["strict"])
    bodies = [received.json() for received in server.requests]
    sent = {key for key, on in [("reasoning_effort", effort), ("stream_options", usage)] if on}
    assert OPTIONAL & set(bodies[0]) == sent
    again = resend_expected(case) and bool(sent)
    assert len(bodies) == (2 if again else 1)
    if again:
        lean = {key: value for key, value in bodies[0].items() if key not in OPTIONAL}
        assert bodies[1] == lean


def test_a_lean_success_is_learned() -> None:
    """D11: the server that took the lean request gets only such from then on."""
    (case,) = [case for case in RESENT if resend_expected(case)]
    request = svir.Request("m", "Hi", reasoning_effort="low")
    answers = [case.data, harness.GOOD_ANSWER]
    with RawServer(*answers) as server, svir.Client(server.url) as client:
        for _ in range(2):
            assert client.complete(request).text == "Hi there"
    bodies = [received.json() for received in server.requests]
    assert [OPTIONAL & set(body) for body in bodies] == [OPTIONAL, set(), set()]
