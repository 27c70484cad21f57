"""Corners that no case reaches, so that every branch of svir.py is run by some test."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from typing import Any

import pytest

import harness
import svir
from harness import chunk, sse
from svir_ext.testing import MockServer, text_answer

STOP = chunk(finish="stop")


def run(*chunks: Any, raw: bytes = b"", done: bool = True, **options: Any) -> harness.Run:
    return harness.decode([raw + sse(*chunks, done=done)], **options)


def completion(*chunks: Any, **options: Any) -> svir.Completion:
    result = run(*chunks, **options)
    assert result.error is None, result.error
    last = result.events[-1]
    assert isinstance(last, svir.Completed)
    return last.completion


def failure(*chunks: Any, **options: Any) -> svir.Error:
    error = run(*chunks, **options).error
    assert error is not None
    return error


def call(arguments: Any, **more: Any) -> dict[str, Any]:
    return chunk({"tool_calls": [{"index": 0, "function": {"arguments": arguments}, **more}]})


def opened(name: str = "f") -> dict[str, Any]:
    return chunk({"tool_calls": [{"index": 0, "id": "k", "function": {"name": name}}]})


@pytest.mark.parametrize("depth", [300, 100_000])
def test_json_nested_too_deep_is_unparseable(depth: int) -> None:
    raw = b"data: " + b'{"x":' + b"[" * depth + b"]" * depth + b"}\n\n"
    assert failure(raw=raw).kind == "protocol"
    assert completion(STOP, raw=raw, strict=False).quirks == ("unparseable-data",)


def test_a_flat_event_with_many_brackets_is_read() -> None:
    assert completion(chunk({"content": "a"}, x=[[]] * 500), STOP).extra == {"x": [[]] * 500}


def test_numbers_too_large_for_json() -> None:
    assert failure(raw=b'data: {"x":1e999}\n\n').kind == "protocol"
    with pytest.raises(ValueError, match="too large"):
        svir.ToolCall("k", "f", '{"a":1e999}').parse()


def test_odd_halves_in_other_fields_are_replaced() -> None:
    raw = b'data: {"x":["\\ud800",1],"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    assert completion(STOP, raw=raw).extra == {"x": ["\ufffd", 1]}


def test_repeated_chunks_with_nothing_in_them() -> None:
    texts = [chunk({"content": text}) for text in ("a", "b", "", "c", "")]
    assert completion(*texts, STOP).text == "abc"
    pieces = [call(text) for text in ('{"a"', ":", "", "1}", "")]
    found = completion(opened(), *pieces, chunk(finish="tool_calls"))
    assert found.tool_calls[0].arguments == '{"a":1}'


@pytest.mark.parametrize(
    "odd",
    [
        chunk({"content": "a"}, usage={"prompt_tokens": 1, "completion_tokens": 1}),
        {"choices": [{"index": 0, "delta": {"content": "a"}, "usage": {"prompt_tokens": 1}}]},
        {"choices": [{"index": 0, "delta": {"content": "a"}, "message": {}}]},
        chunk({"content": "a", "annotations": [1]}),
        chunk({"content": [{"type": "text", "text": "a"}]}),
    ],
)
def test_chunks_that_do_more_are_decoded_each_time(odd: Any) -> None:
    assert completion(*[odd] * 4, STOP).text == "aaaa"


def test_two_pieces_in_a_chunk_are_decoded_each_time() -> None:
    piece = {"index": 0, "function": {"arguments": " "}}
    found = completion(
        opened(), *[chunk({"tool_calls": [piece, piece]})] * 3, chunk(finish="stop")
    )
    assert found.tool_calls[0].arguments == " " * 6


def test_a_key_in_escapes_has_no_frame() -> None:
    raw = b'data: {"choices":[{"index":0,"delta":{"cont\\u0065nt":"a"}}]}\n\n'
    assert completion(STOP, raw=raw * 4).text == "aaaa"
    twice = b'data: {"content":"no","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    assert completion(STOP, raw=twice * 4).text == "aaaa"
    padded = b'data: {"obf\\u0075scation":"x","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    assert completion(STOP, raw=padded * 4).text == "aaaa"


def test_any_choice_index_is_read_without_frames() -> None:
    assert (
        completion(*[chunk({"content": "a"})] * 3, STOP, accept={"any-choice-index"}).text == "aaa"
    )


def test_limits_on_what_is_beside_the_answer() -> None:
    limits = svir.Limits(event_bytes=500)
    fields = [chunk({"content": "a"}, **{f"x{n}": "y" * 50}) for n in range(20)]
    assert failure(*fields, STOP, limits=limits).kind == "limit_exceeded"
    lists = [chunk({"content": "a", "annotations": ["y" * 50]})] * 20
    assert failure(*lists, STOP, limits=limits).kind == "limit_exceeded"
    assert failure(opened("f" * 5000)).kind == "limit_exceeded"


def test_usage_elsewhere_that_is_not_whole_says_nothing() -> None:
    found = completion(chunk({"content": "a"}, x_groq={"usage": {"prompt_tokens": 1}}), STOP)
    assert (found.usage, found.quirks) == (None, ())


def test_a_finish_after_a_block() -> None:
    blocked = chunk(finish="content_filter")
    assert completion(chunk({"content": "a"}), blocked, STOP).finish_reason == "content_filter"


def test_a_reasoning_part_without_words() -> None:
    part = {"type": "thinking"}
    assert completion(chunk({"content": [part]}), chunk({"content": "a"}), STOP).text == "a"


def test_half_a_character_alone_in_arguments() -> None:
    raw = sse(opened(), call('{"a":"'), done=False)
    raw += b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":'
    raw += b'{"arguments":"\\ud83d"}}]}}]}\n\n'
    found = completion(chunk(finish="length"), raw=raw)
    assert found.partial_tool_calls[0].arguments == '{"a":"\ufffd'
    assert found.quirks == ("lone-surrogate",)


def test_an_unknown_event_without_data() -> None:
    assert failure(raw=b"event: note\n\n").kind == "protocol"
    raw = sse(chunk({"content": "a"}), STOP, done=False)
    last = b"event: note\ndata:\ndata: [DONE]\n\n"
    result = harness.decode([raw + last], strict=False)
    assert result.error is None
    assert result.quirks == ("unknown-event",)


def test_answers_that_were_not_streamed() -> None:
    whole = {"choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}]}
    body = json.dumps(whole).encode()
    cut = harness.decode([body], strict=False, clean=False)
    assert cut.error is not None
    assert cut.error.kind == "truncated"
    empty = harness.decode([b'{"choices":[{"finish_reason":"stop"}]}'], strict=False)
    assert empty.error is None
    deep = b'{"choices":[],"x":' + b"[" * 300 + b"]" * 300 + b"}"
    assert harness.decode([deep], strict=False).error is not None


def test_half_a_pair_far_inside() -> None:
    extra = {"a": [1, None, ["x", {"b": "caf\ud800"}]]}
    with pytest.raises(svir.ConfigError, match=r"a\[2\]\[1\]\.b holds half .* offset 3"):
        svir.encode(svir.Request("m", "hi", extra=extra))


def test_openai_renamed_the_limit() -> None:
    refusal = {"error": {"code": "unsupported_parameter", "param": "max_tokens", "message": "no"}}
    with MockServer() as server, svir.Client(server.url) as client:
        server.reply(refusal, status=400)
        server.reply(text_answer("a"))
        server.reply(text_answer("b"))
        request = svir.Request("m", "hi", max_tokens=5)
        assert client.complete(request).text == "a"
        assert client.complete(request).text == "b"
        bodies = [sent.json() for sent in server.requests]
    assert [body.get("max_tokens") for body in bodies] == [5, None, None]
    assert [body.get("max_completion_tokens") for body in bodies] == [None, 5, 5]


def test_a_second_try_that_fails_does_not_hide_the_refusal() -> None:
    with MockServer() as server, svir.Client(server.url) as client:
        server.reply({"error": {"message": "bad field"}}, status=400)
        server.reply(status=503)
        with pytest.raises(svir.Unsupported) as caught:
            client.complete(svir.Request("m", "hi"))
    assert caught.value.server_message == "bad field"


@pytest.mark.parametrize(
    "value", ["Wed, 99 Foo 2026 99:99:99 GMT", "Mon, 1 Jan 99999999999 0:0:0 GMT"]
)
def test_dates_that_are_none(value: str) -> None:
    with MockServer() as server, svir.Client(server.url) as client:
        server.reply(status=429, headers={"retry-after": value})
        with pytest.raises(svir.RateLimited) as caught:
            client.complete(svir.Request("m", "hi"))
    assert caught.value.retry_after is None


def test_a_raw_stream_closed_unread() -> None:
    with MockServer() as server, svir.Client(server.url) as client:
        server.default(text_answer("a"), framing="length")
        with client.send(svir.Request("m", "hi")) as raw:
            assert raw.status == 200
        assert client.complete(svir.Request("m", "hi")).text == "a"


def test_a_raw_stream_read_twice_at_once() -> None:
    with MockServer() as server, svir.Client(server.url) as client:
        server.reply(text_answer("a"))
        raw = client.send(svir.Request("m", "hi"))
        with raw._reading:
            with pytest.raises(RuntimeError, match="read already"):
                next(raw)
            raw.close()
            with pytest.raises(svir.Cancelled):
                next(raw)
        server.check()


def test_closing_a_stream_of_plain_events() -> None:
    stream = svir.Stream(iter([svir.TextDelta("a")]))
    stream.close()
    with pytest.raises(RuntimeError, match="before the answer was whole"):
        _ = stream.completion


def test_compressed_without_zlib(monkeypatch: pytest.MonkeyPatch) -> None:
    with MockServer() as server, svir.Client(server.url) as client:
        server.default(text_answer("a"), headers={"content-encoding": "gzip"})
        monkeypatch.setitem(sys.modules, "zlib", None)
        with pytest.raises(svir.ProtocolError, match="no zlib"):
            client.complete(svir.Request("m", "hi"))


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_compressed_bytes_that_give_nothing(coding: str) -> None:
    nothing = (
        gzip.compress(b"") * 100_000 if coding == "gzip" else b"\x00\x00\x00\xff\xff" * 400_000
    )
    with MockServer() as server, svir.Client(server.url) as client:
        server.reply(nothing, headers={"content-encoding": coding})
        with pytest.raises(svir.ProtocolError, match="compression is broken"):
            client.complete(svir.Request("m", "hi"))


def test_more_after_the_end_of_deflate() -> None:
    body = zlib.compress(b"".join(text_answer("a")[:2])) + b"more"
    with MockServer() as server, svir.Client(server.url) as client:
        server.reply(body, headers={"content-encoding": "deflate"})
        with pytest.raises(svir.ProtocolError, match="after its compressed end"):
            client.complete(svir.Request("m", "hi"))


# -- Frames, where they could have told another story than a full reading -------------------------


@pytest.mark.parametrize("cut", [False, True])
def test_nothing_follows_an_answer_that_ended_without_a_finish(cut: bool) -> None:
    """A known frame after [DONE], in the same block or not."""
    data = sse(*(chunk({"content": word}) for word in "ab"), done=True)
    more = sse(chunk({"content": "c"}))
    decoder = svir.Decoder(accept="done-without-finish")
    events = [
        event for part in ([data, more] if cut else [data + more]) for event in decoder.feed(part)
    ]
    assert [event.type for event in events] == ["text", "text", "completed"]


def test_an_iterator_that_is_left_half_read_keeps_the_order() -> None:
    both = chunk({"reasoning_content": "r", "content": "t"})
    data = sse(
        *(chunk({"content": word}) for word in "ab"),
        both,
        chunk({"content": "c"}),
        STOP,
        done=True,
    )
    decoder = svir.Decoder()
    events, event = [], next(decoder.feed(data), None)
    while event is not None:
        events.append(getattr(event, "text", event.type))
        event = next(decoder.feed(b""), None)
    assert events == ["a", "b", "r", "t", "c", "completed"]


@pytest.mark.parametrize("first", [1, 1.0, "no", False, None])
def test_a_verdict_that_equals_the_last_one_is_read(first: Any) -> None:
    """1 == True in Python; only true blocks."""

    def of(filtered: Any, created: int) -> dict[str, Any]:
        piece = chunk({"content": "a"})
        piece["created"] = created
        piece["choices"][0]["content_filter_results"] = {"hate": {"filtered": filtered}}
        return piece

    chunks = [of(first, 1), of(first, 2), of(True, 3), STOP]
    assert completion(*chunks).finish_reason == "content_filter"


def test_an_index_that_equals_0_is_read() -> None:
    odd = chunk({"content": "a"})
    odd["created"], odd["choices"][0]["index"] = 2, False
    assert isinstance(
        failure(chunk({"content": "a"}), chunk({"content": "b"}), odd), svir.ProtocolError
    )


@pytest.mark.parametrize("retry", [b"", b"retry: 1\n"])
def test_a_field_that_every_chunk_repeats_is_counted_once(retry: bytes) -> None:
    words = [
        json.dumps({**chunk({"content": "a"}), "tier": "default"}).encode() for _ in range(40)
    ]
    data = b"".join(retry + b"data: " + word + b"\n\n" for word in words)
    decoder = svir.Decoder(limits=svir.Limits(event_bytes=400))
    assert len(list(decoder.feed(data))) == 40
