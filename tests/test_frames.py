"""Events read by their frame have the same outcome as events decoded in full (see _Frames)."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

import svir

TEXTS = st.one_of(
    st.sampled_from(
        [
            "",
            " tok",
            "a\nb",
            '"',
            "\\",
            "\\u00e9",
            "é",
            "<",
            "<th",
            "ink>",
            "</think>",
            "😀",
            "\x00",
            "\u2028",
            "\x7f",
            "\xa0",
            "�",
            "�",
            '","content":"',
            "data: x",
            "\t",
            "{}",
            "[DONE]",
        ]
    ),
    st.text(max_size=6),
)
FINISHES = st.sampled_from([None] * 12 + ["stop", "length", "tool_calls", "content_filter", "odd"])


def chunk(delta, finish=None, **more):
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c1", "model": "m", "created": 1, "choices": [choice], **more}


def call(index, text, **more):
    return {"tool_calls": [{"index": index, "function": {"arguments": text}, **more}]}


def renewed(index, text):
    function = {"name": "g", "arguments": text}
    return {"tool_calls": [{"index": index, "id": f"new{index}", "function": function}]}


DELTAS = st.one_of(
    TEXTS.map(lambda text: {"content": text}),
    TEXTS.map(lambda text: {"role": "assistant", "content": text}),
    TEXTS.map(lambda text: {"content": text, "refusal": None}),
    TEXTS.map(lambda text: {"reasoning_content": text}),
    TEXTS.map(lambda text: {"reasoning": text, "reasoning_content": text}),
    TEXTS.map(lambda text: {"reasoning": text, "content": ""}),
    st.builds(call, st.integers(0, 1), TEXTS),
    st.builds(call, st.integers(0, 1), TEXTS, type=st.just("function")),
    st.builds(lambda i, text: call(i, text, id=f"k{i}"), st.integers(0, 1), TEXTS),
    st.builds(renewed, st.integers(0, 1), TEXTS),  # a new call on an index in use (T2)
    TEXTS.map(lambda text: {"tool_calls": [{"function": {"arguments": text}}]}),
    st.sampled_from([{"content": "x\ud83d"}, {"content": "\ude00y"}]),
    TEXTS.map(lambda text: {"refusal": text}),
    TEXTS.map(lambda text: {"content": text, "annotations": [text]}),
    st.just({}),
)
MORE = st.sampled_from(
    [{}] * 6
    + [{"usage": None}, {"usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}}]
    + [
        {"created": 2},
        {"id": "c2"},
        {"obfuscation": "ab"},
        {"obfuscation": 'c"\\'},
        {"obfuscation": ""},
    ]
    + [{"error": "x"}, {"timings": {"n": 1}}, {"timings": {"n": 2}}]
)
OPENING = chunk(
    {"tool_calls": [{"index": i, "id": f"k{i}", "function": {"name": "f"}} for i in (0, 1)]}
)


@st.composite
def lines(draw):
    found = [b"data: " + json.dumps(OPENING).encode() + b"\n\n"] if draw(st.booleans()) else []
    end = draw(st.sampled_from([b"\n\n", b"\n\n", b"\r\n\r\n", b"\n: comment\n\n", b"\n"]))
    dump = draw(st.sampled_from([{}, {"ensure_ascii": False}, {"separators": (",", ":")}]))
    for _ in range(draw(st.integers(1, 4))):  # runs, as servers send them
        delta, more = draw(st.lists(DELTAS, min_size=1, max_size=6)), draw(MORE)
        for piece in delta * draw(st.integers(1, 3)):
            text = json.dumps(chunk(piece, draw(FINISHES), **more), **dump)
            start = draw(st.sampled_from(["data: "] * 6 + ["event: message\ndata: ", "data:"]))
            if draw(st.integers(0, 9)) == 0:
                text = text.replace(", ", ",\ndata: ", 1)  # one event over two data lines
            found.append((start + text).encode("utf-8", "surrogatepass") + end)
    return b"".join(found) + b"data: [DONE]\n\n"


def outcome(pieces, frames, **options):
    decoder = svir.Decoder(clock=lambda: 0.0, **options)
    if not frames:
        decoder._frames.stop()
    events = []
    try:
        for piece in pieces:
            events += decoder.feed(piece)
        events += decoder.finish()
    except svir.Error as error:
        return events, error.kind, str(error), error.partial, error.quirks
    return events, "completed", decoder.completion, decoder.completion.timing, None


@settings(max_examples=300, deadline=None)
@given(
    lines(),
    st.integers(1, 400),
    st.booleans(),
    st.sampled_from(["split", "keep", "open"]),
    st.sampled_from([(), ("changing-id",), ("any-choice-index",)]),
)
def test_the_outcome_is_that_of_decoding_in_full(data, size, strict, think, accept):
    options = {"strict": strict, "think": think, "accept": accept}
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    in_full = outcome([data], False, **options)
    assert outcome([data], True, **options) == in_full
    assert outcome(pieces, True, **options) == in_full


def test_frames_are_used():
    stream = b"".join(
        b"data: " + json.dumps(chunk({"content": f"w{i}"}, obfuscation=padding)).encode() + b"\n\n"
        for i in range(20)
        for padding in ("", "x" * i)
    )
    decoder = svir.Decoder()
    assert len(list(decoder.feed(stream))) == 40
    assert len(decoder._frames.frames) >= 2
    assert decoder._frames.hits > 0
