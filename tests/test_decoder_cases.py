"""Every stream body of tests/cases: in each mode, however the bytes are cut, and cut short."""

from __future__ import annotations

import os

import pytest

import harness
import svir
from harness import Case, Mode

CASES = harness.cases(".sse")
RUNS = [(case, mode) for case in CASES for mode in case.modes()]


def for_runs(runs: list[tuple[Case, Mode]]) -> pytest.MarkDecorator:
    names = [f"{case.name}-{mode.name}" for case, mode in runs]
    return pytest.mark.parametrize(("case", "mode"), runs, ids=names)


each_run = for_runs(RUNS)

# There are 370 runs, and each takes as many decodings as it has bytes. So, unless SVIR_ALL_SPLITS
# is set, offsets are thinned out where the bytes repeat themselves (5,000 digits, 65 calls), and
# where lenient mode has nothing to do that strict mode has not.
ALL = bool(os.environ.get("SVIR_ALL_SPLITS"))
LONG = 2000


def offsets(data: bytes, step: int = 1) -> list[int]:
    """Where to cut: everywhere, but for the middle of a long body; always around a line's end."""
    size, edge = len(data), 300
    found = set(range(1, size, 1 if ALL else step))
    if size > LONG and not ALL:
        found -= {cut for cut in found if edge < cut < size - edge and cut % (size // 99)}
    lines = [at for at in range(size) if data[at : at + 1] == b"\n"][:: 9 if size > LONG else 1]
    found |= {at + near for at in lines for near in (-1, 0, 1, 2) if 0 < at + near < size}
    return sorted(found)


@each_run
def test_outcome(case: Case, mode: Mode) -> None:
    got = harness.outcome(harness.decode([case.data], **mode.options))
    harness.check(got, mode.expected, in_order=bool(case.spec.get("quirks_in_order")))


@each_run
def test_any_cut_gives_the_same(case: Case, mode: Mode) -> None:
    """P9: the events, the error and the quirks are the same wherever the bytes are cut."""
    data = case.data
    whole = harness.decode([data], **mode.options).key()
    single = harness.single_bytes(data)
    assert harness.decode(single, **mode.options).key() == whole, "byte by byte"
    assert harness.decode_late(single, **mode.options).key() == whole, "byte by byte, read late"
    for cut in offsets(data, 3 if mode.name == "lenient" and "lenient" not in case.spec else 1):
        pieces = [data[:cut], data[cut:]]
        decode = harness.decode_late if cut % 5 == 0 else harness.decode
        got = decode(pieces, **mode.options).key()
        if got != whole:
            pytest.fail(f"cut at {cut} of {len(data)}:\n{got!r}\ninstead of\n{whole!r}")


def needed(case: Case, mode: Mode) -> int:
    """How many bytes an answer needs at the least: all up to the bracket that closes [DONE]."""
    if case.name.startswith("021-") and mode.name == "lenient":
        return case.data.index(b"\n")  # no stream: the JSON is all it needs
    done = case.data.find(b"[DONE]")
    return done + len("[DONE]") if done >= 0 else len(case.data) + 1


@each_run
def test_cut_short_never_completes(case: Case, mode: Mode) -> None:
    """A body that ends before its [DONE] fails, after a beginning of what the whole one gives."""
    data = case.data
    whole = harness.decode([data], **mode.options)
    ends = {0, len(data), *offsets(data, 1 if mode.name == "strict" else 7)}
    for end in sorted(end for end in ends if end < needed(case, mode)):
        # With end-without-done an end may be whole, so there the framing has to say it is not.
        clean = mode.name != "accept-end-without-done"
        run = harness.decode([data[:end]], clean=clean, **mode.options)
        if run.error is None:
            pytest.fail(f"cut short at {end} of {len(data)}, and yet: {run.events!r}")
        if run.events != whole.events[: len(run.events)]:
            pytest.fail(f"cut short at {end}: {run.events!r} does not begin {whole.events!r}")


@for_runs([run for run in RUNS if run[1].name == "accept-end-without-done"])
def test_an_accepted_end_has_the_whole_answer(case: Case, mode: Mode) -> None:
    """Where end-without-done takes a clean end, nothing of the answer is missing."""
    texts = set()
    for end in range(len(case.data) + 1):
        run = harness.decode([case.data[:end]], **mode.options)
        if run.error is None:
            done = harness.outcome(run)
            texts.add((done["text"], str(done["tool_calls"]), done["finish_reason"]))
            assert "end-without-done" in done["quirks"]
    assert len(texts) == (0 if case.name[:3] in NEVER_WHOLE else 1)


# No end of these is a whole one: the event with the finish is never closed, or has none.
NEVER_WHOLE = {"208", "413", "442"}


WITH_DONE = [
    (case, mode)
    for case, mode in RUNS
    if b"[DONE]" in case.data and mode.expected["outcome"] == "completed"
]


@for_runs(WITH_DONE)
def test_after_the_end(case: Case, mode: Mode) -> None:
    """Whatever follows a whole answer is not read: not a byte of it counts (P9)."""
    run = harness.decode([case.data], **mode.options)
    assert run.error is None
    data = case.data if case.data.endswith(b"\n") else case.data + b"\n"
    for rest in (b'data: {"error":"late"}\n\n', b"foo: bar\n\n", b"\xff" * 5000):
        assert harness.decode([data + rest], **mode.options).key() == run.key()
        assert harness.decode([data, rest], **mode.options).key() == run.key()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_state_as_it_goes(case: Case) -> None:
    """`completion` is None until the end, and `partial` is what was given out so far."""
    decoder = svir.Decoder(**case.modes()[0].options)
    events: list[svir.Event] = []
    error = None
    for piece in [*harness.single_bytes(case.data), None]:
        before = len(events)
        source = decoder.finish() if piece is None else decoder.feed(piece)
        error = harness.drain(source, events)
        if error is not None:
            break
        if events and isinstance(events[-1], svir.Completed):
            assert decoder.completion == events[-1].completion
            assert decoder.quirks == events[-1].completion.quirks
        else:
            assert decoder.completion is None
        if len(events) != before and decoder.completion is None:
            text, reasoning = harness.given_out(events)
            assert decoder.partial.text == text
            assert [[r.source, r.text] for r in decoder.partial.reasoning] == reasoning
            assert decoder.partial.tool_calls == ()
            assert decoder.partial.finish_reason is None
    assert (error is None) == (decoder.completion is not None)
    assert (error is None) == (case.spec["strict"]["outcome"] == "completed")


@pytest.mark.parametrize(
    "case", [case for case in CASES if "parse" in case.spec], ids=lambda case: case.name
)
def test_parse_of_each_call(case: Case) -> None:
    run = harness.decode([case.data])
    last = run.events[-1]
    assert isinstance(last, svir.Completed)
    calls = last.completion.tool_calls
    assert len(calls) == len(case.spec["parse"])
    for call, wanted in zip(calls, case.spec["parse"]):
        if wanted == "ValueError":
            with pytest.raises(ValueError, match="arguments are"):
                call.parse()
        else:
            assert call.parse() == wanted


def done_line_end(data: bytes) -> int:
    """Where the line of a lone [DONE] ends; -1 when it shares its event with other data."""
    done = data.find(b"[DONE]")
    end = data.find(b"\n", done) + 1
    before = data[:done].replace(b"\r\n", b"\n")
    block = before[before.rfind(b"\n\n") + 1 :]
    return end if done >= 0 and end and block.count(b"\ndata") == 1 else -1


LONE_DONE = [
    case
    for case in CASES
    if done_line_end(case.data) >= 0 and case.spec["strict"]["outcome"] == "completed"
]


@pytest.mark.parametrize("case", LONE_DONE, ids=lambda case: case.name)
def test_the_done_line_is_the_end(case: Case) -> None:
    """S9: the answer is given at the line, not at the blank line after it or the end of input."""
    end = done_line_end(case.data)
    decoder = svir.Decoder(**case.modes()[0].options)
    events: list[svir.Event] = []
    assert harness.drain(decoder.feed(case.data[: end - 1]), events) is None
    assert decoder.completion is None
    assert harness.drain(decoder.feed(case.data[end - 1 : end]), events) is None
    assert decoder.completion is not None
    assert isinstance(events[-1], svir.Completed)
