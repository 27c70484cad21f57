"""Rules of the decoder that the shared cases leave out, each by its number in decoding.md."""

from __future__ import annotations

import json
from typing import Any

import pytest

import harness
import svir
from harness import chunk, sse

STOP = chunk(finish="stop")
DONE = b"data: [DONE]\n\n"


def ok(text: str = "Hi", finish: str = "stop", **more: Any) -> harness.Outcome:
    return {"outcome": "completed", "text": text, "finish_reason": finish, **more}


def no(kind: str, text: str = "Hi", **more: Any) -> harness.Outcome:
    return {"outcome": "error", "kind": kind, "text": text, **more}


def parts(*found: Any) -> dict[str, Any]:
    return chunk({"content": list(found)})


def calls(*pieces: Any) -> dict[str, Any]:
    return chunk({"tool_calls": list(pieces)})


def call(name: str, arguments: str = "{}", id: str = "k1", **more: Any) -> dict[str, Any]:
    return {"index": 0, "id": id, "function": {"name": name, "arguments": arguments}, **more}


def plain(name: str, arguments: str = "{}", id: str = "k1") -> dict[str, Any]:
    return {"id": id, "name": name, "arguments": arguments}


HI = chunk({"content": "Hi"})
GOOD = sse(HI, STOP)
THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "Th"}, {"text": "ink"}]}
EXTRA_KEYS = {
    "reasoning_details": [{"text": "x"}], "annotations": [1], "provider_specific_fields": {"a": 1},
    "thinking_blocks": [2], "reasoning_opaque": "o", "token_id": 7, "type": "text",
    "content_list": ["x"], "extra_content": {"google": 1},
}  # fmt: skip

# What it is: the body, the outcome in strict mode, and in lenient mode where that is another.
BODIES: dict[str, tuple[Any, ...]] = {
    "S2 a byte order mark": (b"\xef\xbb\xbf" + GOOD, ok()),
    "S2 a second one is part of its line": (
        b"\xef\xbb\xbf\xef\xbb\xbf" + GOOD,
        no("protocol", ""),
        ok("", quirks=["unknown-field"]),
    ),
    "S2 S11 one before JSON": (
        b'\xef\xbb\xbf \n{"error":"Gone"}',
        no("server", "", server_message="Gone"),
    ),
    "S3 [DONE] under `event: message`": (
        sse(HI, STOP, done=False) + b"event: message\n" + DONE,
        ok(),
    ),
    "S3 [DONE] under `event: ping` is no end": (
        sse(HI, STOP, done=False) + b"event: ping\n" + DONE,
        no("truncated"),
    ),
    "S5 a line `data` without a colon": (b"data\n\n" + GOOD, ok(quirks=["empty-data"])),
    "S7 [DONE] on the next line": (
        sse(HI, STOP, done=False)[:-1] + DONE,
        ok(quirks=["joined-events"]),
    ),
    "S7 a line that is not an object": (
        sse(HI, done=False) + b"data: {}\ndata: 5\n\n" + sse(STOP),
        no("protocol"),
        ok(quirks=["unparseable-data"]),
    ),
    "S9 [DONE] after an empty data line, with its blank line": (
        sse(HI, STOP, done=False) + b"data:\n" + DONE,
        ok(),
    ),
    "S9 [DONE] in other letters": (
        sse(HI, STOP, done=False) + b"data: [done]\n\n",
        no("protocol"),
        no("truncated", quirks=["unparseable-data"]),
    ),
    "S11 JSON that is broken": (
        b'{"choices": [',
        {"outcome": "error", "kind": ["protocol", "truncated"]},
    ),
    "C3 choices null": (sse(HI, chunk(choices=None), STOP), ok(quirks=["no-choices"])),
    "C5 an annotation of another choice": (
        sse(HI, chunk(choices=[{"index": 1, "delta": {}, "finish_reason": "stop"}]), STOP),
        no("unsupported"),
        ok(quirks=["extra-choice"]),
    ),
    "C6 an annotation with a finish of its own": (
        sse(
            HI,
            chunk(choices=[{"index": 0, "content_filter_offsets": {}, "finish_reason": "stop"}]),
        ),
        no("unsupported"),
    ),
    "C12 a key with a value": (
        sse(HI, chunk({"images": [1]}), STOP),
        no("unsupported", message_contains="images"),
        ok(quirks=["skipped-delta-key"]),
    ),
    "C14 Mistral's thinking": (
        sse(parts(THOUGHT), parts({"type": "text", "text": "Hi"}), STOP),
        ok(reasoning=[["content_parts", "Think"]], quirks=["content-parts"]),
    ),
    "C14 a thinking part that is empty": (
        sse(parts({"type": "thinking", "thinking": []}), HI, STOP),
        ok(quirks=["content-parts"]),
    ),
    "C14 a part of another type": (
        sse(HI, parts({"type": "image_url"}), STOP),
        no("unsupported", late_quirks=["content-parts"]),
        ok(quirks=["skipped-part", "content-parts"]),
    ),
    "C14 a text part whose text is a number": (
        sse(HI, parts({"type": "text", "text": 5}), STOP),
        no("protocol", late_quirks=["content-parts"]),
    ),
    "C16 half a character in a name": (
        sse(calls(call("lo\ud83d")), chunk(finish="tool_calls")),
        no("protocol", ""),
        ok(
            "",
            "tool_calls",
            tool_calls=[plain("lo\ufffd")],
            quirks=["lone-surrogate"],
        ),
    ),
    "F4 the same finish again": (sse(HI, STOP, STOP), ok(quirks=["repeated-finish"])),
    "F4 tool_calls after stop, with calls": (
        sse(calls(call("look")), STOP, chunk(finish="tool_calls")),
        ok("", "tool_calls", tool_calls=[plain("look")], quirks=["repeated-finish"]),
    ),
    "F4 tool_calls after stop, without": (
        sse(HI, STOP, chunk(finish="tool_calls")),
        no("protocol"),
    ),
    "F5 reasoning after the finish": (sse(HI, STOP, chunk({"reasoning": "x"})), no("unsupported")),
    "F5 a call after the finish": (sse(HI, STOP, calls(call("look"))), no("unsupported")),
    "F5 a refusal after the finish": (sse(HI, STOP, chunk({"refusal": "x"})), no("unsupported")),
    "F6 a refusal, then text": (sse(chunk({"refusal": "No"}), HI), no("protocol", "No")),
    "F6 a refusal, then a call": (
        sse(chunk({"refusal": "No"}), calls(call("look"))),
        no("protocol", "No"),
    ),
    "F6 a call, then a refusal": (
        sse(calls(call("look")), chunk({"refusal": "No"})),
        no("protocol", ""),
    ),
    "D42 a refusal that the limit cut off": (
        sse(chunk({"refusal": "No"}), chunk(finish="length")),
        ok("No", "refusal"),
    ),
    "D42 a refusal is never split": (
        sse(chunk({"refusal": "<think>No</think>"}), STOP),
        ok("<think>No</think>", "refusal"),
    ),
    "U1 the same report twice": (
        sse(
            HI,
            *[chunk(usage={"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3})] * 2,
            STOP,
        ),
        ok(
            usage={"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
            quirks=["running-usage"],
        ),
    ),
    "T1 neither an index nor an id": (
        sse(calls({"function": {"name": "look"}})),
        no("protocol", "", late_quirks=["missing-index"]),
    ),
    "T4 a call without an id": (
        sse(calls({"index": 0, "function": {"name": "look"}}), chunk(finish="tool_calls")),
        no("protocol", ""),
    ),
    "T5 the name again with other arguments begun": (
        sse(calls(call("look", '{"a"')), calls(call("look", ":1}")), chunk(finish="tool_calls")),
        ok("", "tool_calls", tool_calls=[plain("look", '{"a":1}')], quirks=["repeated-name"]),
    ),
    "T6 an object after text": (
        sse(
            calls(call("look", "{")),
            calls({"index": 0, "function": {"arguments": {"a": 1}}}),
            chunk(finish="tool_calls"),
        ),
        no("protocol", ""),
    ),
    "T7 type null and empty": (
        sse(
            calls(call("look", type=None)),
            calls({"index": 0, "type": ""}),
            chunk(finish="tool_calls"),
        ),
        ok("", "tool_calls", tool_calls=[plain("look")]),
    ),
    "T10 a call that the limit cut off may have no name": (
        sse(calls({"index": 3, "id": "k1"}), chunk(finish="length")),
        ok("", "length", partial_tool_calls=[plain("", "")]),
    ),
}
for key, value in EXTRA_KEYS.items():
    BODIES[f"C10 {key}"] = (
        sse(chunk({"content": "Hi", key: value}), STOP),
        ok(quirks=["extra-delta-key"], extra={"delta": {key: value}}),
    )


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "lenient"])
@pytest.mark.parametrize("name", BODIES)
def test_rule(name: str, strict: bool) -> None:
    body, *expected = BODIES[name]
    wanted = expected[0 if strict else -1]
    runs = [
        harness.decode([body], strict=strict),
        harness.decode(harness.single_bytes(body), strict=strict),
        harness.decode_late(harness.single_bytes(body), strict=strict),
    ]
    for run in runs:
        harness.check(harness.outcome(run), wanted)
        assert run.key() == runs[0].key()


# -- Think ----------------------------------------------------------------------------------------

THOUGHTS: dict[str, tuple[str, list[str], str, str]] = {
    "only a leading tag repeats the prompt's": ("open", ["<think>a</think>b<think>c"], "b", "ac"),
    "a tag later is one": ("open", ["a</think>b", "<think>c</think>d"], "bd", "ac"),
    "a tag inside is text of the reasoning": ("open", ["a<think>b</think>c"], "c", "a<think>b"),
    "less than a tag at the start": ("open", ["<thi", "s</think>a"], "a", "<this"),
    "less than a tag is all": ("open", ["<thi"], "", "<thi"),
    "nothing but the reasoning": ("open", ["a"], "", "a"),
    "an empty segment": ("split", ["<think>", "</think>", "a"], "a", ""),
    "never closed": ("split", ["a<think>b", "</thi"], "a", "b</thi"),
    "two segments": ("split", ["<think>a</think>b<think>c</think>d"], "bd", "ac"),
    "kept": ("keep", ["<think>a</th", "ink>b"], "<think>a</think>b", ""),
}


@pytest.mark.parametrize("name", THOUGHTS)
def test_think(name: str) -> None:
    mode, pieces, text, reasoning = THOUGHTS[name]
    body = sse(*[chunk({"content": piece}) for piece in pieces], STOP)
    run = harness.decode([body], think=mode)
    wanted = ok(text, reasoning=[["think", reasoning]] if reasoning else [])
    harness.check(harness.outcome(run), wanted)
    assert harness.decode(harness.single_bytes(body), think=mode).key() == run.key()


@pytest.mark.parametrize(
    ("mode", "text", "event"),
    [
        ("split", "Hi", svir.TextDelta("Hi")),
        ("split", "a > b", svir.TextDelta("a > b")),
        ("split", "a <b", svir.TextDelta("a <b")),
        ("keep", "<think", svir.TextDelta("<think")),
        ("open", "Hi", svir.ReasoningDelta("Hi", "think")),
        ("open", "a", svir.ReasoningDelta("a", "think")),
    ],
)
def test_what_cannot_be_a_marker_is_given_out_at_once(mode: Any, text: str, event: Any) -> None:
    decoder = svir.Decoder(think=mode)
    assert list(decoder.feed(sse(chunk({"content": text}), done=False))) == [event]


# -- The end, limits, settings --------------------------------------------------------------------


@pytest.mark.parametrize("strict", [True, False])
def test_json_cut_short_of_its_framing_is_no_answer(strict: bool) -> None:
    """E3: the JSON may be whole where it was cut, and is none all the same."""
    choice = {"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}
    body = json.dumps({"id": "c1", "model": "m", "choices": [choice]}).encode("ascii")
    run = harness.decode([body], clean=False, strict=strict)
    assert run.error is not None
    assert run.error.kind in ("truncated", "protocol")
    assert (harness.decode([body], strict=strict).error is None) is not strict
    failed = harness.decode([b'{"error":"Gone"}'], clean=False, strict=strict)
    assert failed.error is not None
    assert (failed.error.kind, failed.error.server_message) == ("server", "Gone")


def test_a_long_json_body_is_not_kept() -> None:
    """S11: 64 KiB in strict mode; lenient mode reads an answer of up to 4 MiB (H6)."""
    choice = {"index": 0, "message": {"content": "x" * 70_000}, "finish_reason": "stop"}
    body = json.dumps({"id": "c1", "model": "m", "choices": [choice]}).encode("ascii")
    strict = harness.decode([body])
    assert strict.error is not None
    assert strict.error.kind == "protocol"
    assert "did not stream" in str(strict.error)
    assert len(harness.outcome(harness.decode([body], strict=False))["text"]) == 70_000


def test_the_default_limits() -> None:
    limits = svir.Limits()
    assert limits.wire_bytes == 64 << 20
    assert limits.event_bytes == 4 << 20
    assert limits.tool_calls == 64


@pytest.mark.parametrize("split", [False, True])
def test_the_wire_limit_to_the_byte(split: bool) -> None:
    end = len(GOOD) - 1  # the line feed of [DONE] is the last byte that is needed
    for limit, kind in ((end, None), (end - 1, "limit_exceeded")):
        pieces = harness.single_bytes(GOOD) if split else [GOOD]
        run = harness.decode(pieces, limits=svir.Limits(wire_bytes=limit))
        assert (run.error.kind if run.error else None) == kind
        assert harness.given_out(run.events)[0] == "Hi"


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("size", [2000, 200_000])
def test_the_event_limit_to_the_byte(split: bool, size: int) -> None:
    event = sse(chunk({"content": "x" * size}), done=False)
    body = event + sse(STOP)
    line = len(event) - 2  # without its line feeds: reading 6
    for limit, kind in ((line, None), (line - 1, "limit_exceeded")):
        pieces = [body[i : i + 7] for i in range(0, len(body), 7)] if split else [body]
        run = harness.decode(pieces, limits=svir.Limits(event_bytes=limit))
        assert (run.error.kind if run.error else None) == kind


@pytest.mark.parametrize("limit", [1, 3])
def test_the_limit_of_calls(limit: int) -> None:
    opened = [calls({**call("look", id=f"k{n}"), "index": n}) for n in range(4)]
    for number in range(1, 5):
        body = sse(*opened[:number], chunk(finish="tool_calls"))
        run = harness.decode([body], limits=svir.Limits(tool_calls=limit))
        assert (run.error is None) == (number <= limit)
        if run.error is not None:
            assert run.error.kind == "limit_exceeded"


def test_accept_takes_only_known_names() -> None:
    with pytest.raises(svir.ConfigError, match="end-without-doen"):
        svir.Decoder(accept={"end-without-doen"})
    with pytest.raises(svir.ConfigError):
        svir.Decoder(think="maybe")  # type: ignore[arg-type]


def test_a_failed_decoder_stays_failed() -> None:
    decoder = svir.Decoder()
    body = sse(HI, {"error": {"message": "Gone"}}, chunk({"content": " there"}))
    events: list[svir.Event] = []
    first = harness.drain(decoder.feed(body), events)
    again = harness.drain(decoder.feed(GOOD), events)
    last = harness.drain(decoder.finish(), events)
    assert events == [svir.TextDelta("Hi")]
    for error in (first, again, last):
        assert error is not None
        assert (error.kind, error.server_message) == ("server", "Gone")
    assert decoder.completion is None


def test_an_iterator_left_half_read_loses_nothing() -> None:
    decoder = svir.Decoder()
    iterator = decoder.feed(sse(*[chunk({"content": word}) for word in "abc"], STOP))
    assert next(iterator) == svir.TextDelta("a")
    rest = [*decoder.feed(b""), *iterator, *decoder.finish()]
    assert [event.type for event in rest] == ["text", "text", "completed"]
    assert decoder.completion is not None
    assert decoder.completion.text == "abc"
