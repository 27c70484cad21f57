"""A chunk that repeats an earlier one's text around a new string gives what it gives anywhere.

The decoder reads such chunks without decoding them again. So long streams of few shapes, with
something odd now and then, are written twice: plainly, and with a `retry:` line in each event,
which means nothing, but makes no two events alike. Both have to give the same.
"""

from __future__ import annotations

import json
import random
from typing import Any, Callable

import pytest

import harness
import svir

WORDS = [
    "Hi", " there", "a", "", " ", "<", "<think>", "<thi", "nk>", "</think>", ">", "x<y",
    "\n", "\t\x00", '"', "\\", "\\u", "é", "😀", "\u2028", "\ud83d", "\ude00", "\ud83d\ude00",
    "\x7f", "{}", '"}]}', "[DONE]", "data: ", "y" * 300,
]  # fmt: skip
# What may stand between the quotes of a string, or break out of it: put there as it is.
RAW = [
    b"a\tb", b"\x00", b"\x7f", b"a\xffb", b"\xc3", b'a"b', b"a\\qb", b"a\\", b"a\\u0041b",
    b"a\\ud83d", b"\\ud83d\\ude00", b"\\/", b'a","x":"b', b'","content":"b', b"\xe2\x80\xa8",
    b"\\u00e", b"\xc2\x85", b"a\r", b'x"}}]}\n\ndata: {"error":"y',
    b'x"}}]}\ndata: {"choices":[{"y":"z',
]  # fmt: skip
MARK = "QXQ"
HAS_FRAMES = None not in (svir._scanstring, svir._scan_json)
PLAIN = [word for word in WORDS if word.isalpha()]


def of(delta: Any, **more: Any) -> dict[str, Any]:
    """A chunk with one choice; keys of the choice and the top level by their names."""
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    top = {"id": "c1", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}
    for key in ("index", "finish_reason", "message", "logprobs", "content_filter_results"):
        if key in more:
            choice[key] = more.pop(key)
    return {**top, **more}


def piece(index: Any, text: Any, **more: Any) -> dict[str, Any]:
    return of({"tool_calls": [{"index": index, "function": {"arguments": text}, **more}]})


Shape = Callable[[str], Any]
# Shapes that a stream repeats...
COMMON: list[Shape] = [
    lambda word: of({"content": word}),
    lambda word: of({"role": "assistant", "content": word}, logprobs=None, usage=None),
    lambda word: of({"content": word, "reasoning_content": None, "tool_calls": []}),
    lambda word: of({"reasoning_content": word}),
    lambda word: of({"content": None, "reasoning": word}),
    lambda word: of({"reasoning_text": word}),
    lambda word: of({"content": word}, obfuscation="Ab" * (len(word) % 5)),
    lambda word: {"obfuscation": "x" + word[:3], **of({"content": word})},
    lambda word: piece(0, word),
    lambda word: piece(1, word, type="function"),
    lambda word: of({"content": word}, note='"content":"no"', service_tier="s"),
    lambda word: of({"content": word}, error=None, content_filter_results={}),
    lambda word: of({"content": word}, created=1741569952 + len(word)),
    lambda word: {"created": len(word) / 2, **of({"reasoning": word}, logprobs=[word])},
    lambda word: of({"content": word}, created=len(word), obfuscation="x" * len(word)),
    lambda word: of({"content": word}, tier=len(word) % 2),
    lambda word: of({"content": word}, index=1),
    lambda word: piece(0, word, id="k1", extra_content={"a": 1}),
    lambda word: f'{{"choices":[{{"delta":{{"content":{json.dumps(word)},"content":"b"}}}}]}}',
    lambda word: f'{{"choices":[{{"delta":{{"content":"b","content":{json.dumps(word)}}}}}]}}',
    lambda word: f'{{"choices":[{{"delta":{{"content":{json.dumps(word)}}}}}],"choices":[]}}',
]
# ... and what comes between: some of it fails the stream, in one mode or in both.
ODD: list[Shape] = [
    lambda word: of({"reasoning": word, "reasoning_content": word}),
    lambda word: of({"content": word, "reasoning": word}),
    lambda word: of({"refusal": word}),
    lambda word: of({"content": word}, id="c2"),
    lambda word: of({"content": word}, id=None, model=""),
    lambda word: of({"content": word}, index=1),
    lambda word: of({"content": word}, message={"content": word}),
    lambda word: of({"content": word}, finish_reason="stop"),
    lambda word: of({}, finish_reason="tool_calls"),
    lambda word: of({"content": word}, usage={"prompt_tokens": 1, "completion_tokens": 2}),
    lambda word: of({"content": word}, error={"message": word}),
    lambda word: of({"content": word}, content_filter_results={"hate": {"filtered": True}}),
    lambda word: of({"content": word}, citations=[word]),
    lambda word: of({"content": word, "audio": word}),
    lambda word: of({"content": [{"type": "text", "text": word}]}),
    lambda word: of({"content": 5}),
    lambda word: of({"content": word, "reasoning_details": [word]}),
    lambda word: piece(1, word, id="k2"),
    lambda word: piece(1, "", id="k3", type="function"),
    lambda word: piece(0, {"a": word}),
    lambda word: piece(0, word, extra_content=word),
    lambda word: {"id": "c9", "choices": []},
    lambda word: b'data: {"choices":[{"index":0,"delta":{"content":"a","content":"b"}}]}\n\n',
    lambda word: b'data: {"choices":[{"index":0,"delta":{"content":"a\tb"}}]}\n\n',
    lambda word: b'data: {"choices":[{"index":0,"delta":{"content":"a\xff"}}]}\n\n',
    lambda word: b"data: {\n\n",
    lambda word: b": comment\n\n",
    lambda word: b"event: ping\ndata: {}\n\n",
    lambda word: b"event: note\n",
    lambda word: b"foo: bar\n",
    lambda word: b"data:\n\n",
    lambda word: b"data: null\n",
    lambda word: b"data: [DONE]\n\n",
]
START = of({"role": "assistant", "content": ""})
CALLS = [
    piece(0, "", id="k1", type="function"),
    of({"tool_calls": [{"index": 0, "function": {"name": "look"}}]}),
    of({"tool_calls": [{"index": 1, "id": "k2", "function": {"name": "find", "arguments": ""}}]}),
]
MODES: list[dict[str, Any]] = [
    {},
    {"strict": False},
    {"strict": False, "think": "keep"},
    {"think": "open"},
    {"accept": {"changing-id"}},
    {"accept": {"any-choice-index", "end-without-done"}},
]


class Writer:
    """Events written in one style throughout, plainly or with a line that means nothing."""

    def __init__(self, dice: random.Random) -> None:
        self.ascii = dice.random() < 0.5
        self.separators = dice.choice([(",", ":"), (", ", ": ")])
        self.end = dice.choice([b"\n", b"\n", b"\r\n"])
        self.raw = b""  # what is written for MARK

    def write(self, chunks: list[Any], between: bytes) -> bytes:
        return b"".join(self.event(chunk, between) for chunk in chunks)

    def text(self, chunk: Any) -> str:
        """JSON; only an escape can carry half of a surrogate pair."""
        if isinstance(chunk, str):
            return chunk
        text = json.dumps(chunk, ensure_ascii=self.ascii, separators=self.separators)
        if any("\ud800" <= character <= "\udfff" for character in text):
            text = json.dumps(chunk, separators=self.separators)
        return text

    def event(self, chunk: Any, between: bytes) -> bytes:
        if isinstance(chunk, bytes):
            return chunk
        data = self.text(chunk).encode("utf-8", "surrogatepass").replace(MARK.encode(), self.raw)
        return b"data: " + data + self.end + (between and between + self.end) + self.end


def random_stream(dice: random.Random) -> list[Any]:
    """Some shapes of one stream, each for a while, and rarely something odd."""
    calls = dice.random() < 0.4
    shapes = dice.sample(COMMON, 3)
    chunks: list[Any] = [START, *(CALLS if calls else [])]
    odds, strange = dice.choice([0.0, 0.0, 0.1]), dice.choice([0.0, 0.2])
    for _ in range(dice.randrange(5, 60)):
        if dice.random() < odds:
            chunks.append(dice.choice(ODD)(dice.choice(WORDS)))
        shape = shapes[0] if dice.random() < 0.8 else dice.choice(shapes)
        chunks.append(shape(dice.choice(WORDS if dice.random() < strange else PLAIN)))
    finish = dice.choice(["stop", "stop", "tool_calls" if calls else "length", None])
    chunks.append(of({}, finish_reason=finish))
    if dice.random() < 0.8:
        chunks.append(b"data: [DONE]\n\n")
    return chunks


def random_pieces(dice: random.Random, data: bytes) -> list[bytes]:
    cuts = sorted(dice.randrange(len(data)) for _ in range(dice.randrange(1, 12)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)])]


def in_full(pieces: list[bytes], mode: dict[str, Any]) -> harness.Run:
    """As a Python reads them that has not the scanner which frames need."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(svir, "_scan_json", None)
        return harness.decode(pieces, **mode)


def check(
    chunks: list[Any], writer: Writer, dice: random.Random, modes: list[dict[str, Any]] = MODES
) -> int:
    answers = 0
    plain, other = writer.write(chunks, b""), writer.write(chunks, b"retry: 1")
    for mode in modes:
        wanted = in_full([other], mode)
        harness.outcome(wanted)  # and so it agrees with itself
        assert harness.decode([plain], **mode).key() == wanted.key(), (mode, plain)
        pieces = random_pieces(dice, plain)
        assert harness.decode(pieces, **mode).key() == wanted.key(), (mode, pieces)
        answers += wanted.error is None
    return answers


def twice(key: str, one: str, other: str) -> str:
    return f'{{"choices":[{{"delta":{{"{key}":{json.dumps(one)},"{key}":{json.dumps(other)}}}}}]}}'


LATER = of({"tool_calls": [{"index": 0, "id": "k9", "function": {"name": "now"}}]})
BY_HAND: dict[str, list[Any]] = {
    "an index that a second call reuses": [
        *[*CALLS[:2], *[piece(0, "1")] * 6, LATER, *[piece(0, "2")] * 6],
        of({}, finish_reason="tool_calls"),
    ],
    "a refusal after thoughts, then content": [
        *[of({"content": word}) for word in ["<think>", "a", "b", "c", "</think>"]],
        *[of({"refusal": "no"}), of({"content": "d"}), of({}, finish_reason="stop")],
    ],
    "a field that is kept, and goes back and forth": [
        *[of({"content": "a"}, tier=1)] * 6,
        *[of({"content": "a"}, tier=2)] * 6,
        *[of({"content": "a"}, tier=1)] * 2,
        of({}, finish_reason="stop"),
    ],
    "words that are a frame's own marker": [
        *[twice("content", word, svir._MARKER) for word in (svir._MARKER, "a", "b")],
        *[twice("content", svir._MARKER, word) for word in (svir._MARKER, "a", "b")],
        of({}, finish_reason="stop"),
    ],
    "such a marker in a field that is kept": [
        {"x": {"created": x}, "created": created, **of({"content": "a"})}
        for x, created in ("yn", "zn", (svir._MARKER, svir._MARKER), (svir._MARKER, "o"))
    ],
    "a field that is kept, and is gone": [
        *[of({"content": "a"}, tier=1), of({"content": "b"})] * 6,
        of({}, finish_reason="stop"),
    ],
}


@pytest.mark.parametrize("name", BY_HAND)
def test_streams_made_by_hand(name: str) -> None:
    dice = random.Random(name)
    check([START, *BY_HAND[name], b"data: [DONE]\n\n"], Writer(dice), dice)


@pytest.mark.parametrize("seed", range(30))
def test_random_streams(seed: int) -> None:
    dice = random.Random(seed)
    answers = sum(check(random_stream(dice), Writer(dice), dice) for _ in range(10))
    assert answers, "all of the streams failed: they test little"


def among(shape: Shape, odd: Any) -> list[Any]:
    calls = CALLS if "tool_calls" in str(shape("")) else []
    chunks = [START, *calls, *map(shape, "abcdef"), odd, *map(shape, "ghi"), odd, shape("j")]
    return [*chunks, of({}, finish_reason="stop"), b"data: [DONE]\n\n"]


@pytest.mark.parametrize("common", range(len(COMMON)))
def test_each_odd_chunk_among_each_common_one(common: int) -> None:
    """What is odd is met as if nothing had repeated before it, and what follows is read on."""
    dice = random.Random(common)
    for odd in ODD:
        modes = [*MODES[:2], dice.choice(MODES[2:])]
        check(among(COMMON[common], odd("Hi")), Writer(dice), dice, modes)


@pytest.mark.parametrize("word", WORDS, ids=ascii)
@pytest.mark.parametrize("common", range(len(COMMON)))
def test_each_word_in_each_common_chunk(common: int, word: str) -> None:
    shape, dice = COMMON[common], random.Random(common)
    check(among(shape, shape(word)), Writer(dice), dice, MODES[:2])


@pytest.mark.parametrize("raw", RAW, ids=ascii)
@pytest.mark.parametrize("common", range(len(COMMON)))
def test_each_raw_string_in_each_common_chunk(common: int, raw: bytes) -> None:
    shape, dice = COMMON[common], random.Random(common)
    writer = Writer(dice)
    writer.raw = raw
    check(among(shape, shape(MARK)), writer, dice, MODES[:2])


# What may stand where a value is never read, or break out of its place.
VALUES = [
    "0", "01", "-1", "1.5", "1e999", "1" * 400, "1" * 5000, "NaN", "-Infinity", "tru",
    "true", "null",
    '""', '"', '"x', '"\\ud83d"', '"\\u00e"', '"a\tb"', '"\\q"', '"x' + "y" * 300 + '"', "é",
    "", " 1", "1 ", "1\n", "1\r", "1\n\n", '1,"created":2', '1,"error":{"message":"no"}',
    '1,"choices":[]', "[]", "{}", "[1", "[NaN]", '{"a":1,"a":2}', "[1e999]", "[1] ", "[\n1]",
    "[" * 150 + "]" * 150, "[" * 250 + "]" * 250, '{"a":' * 300 + "1" + "}" * 300, "[" * 5000,
    "[" + "[]," * 250 + "1]",
]  # fmt: skip
PLACES = ["created", "logprobs", "obfuscation"]


def with_value(place: str, value: str) -> bytes:
    inner = f',"logprobs":{value}' if place == "logprobs" else ""
    top = "" if inner else f'"{place}":{value},'
    line = f'{{"id":"a",{top}"choices":[{{"index":0,"delta":{{"content":"b"}}{inner}}}]}}'
    return f"data: {line}\n\n".encode()


@pytest.mark.parametrize("value", VALUES, ids=lambda value: ascii(value[:12]))
@pytest.mark.parametrize("place", PLACES)
def test_each_value_where_it_is_never_read(place: str, value: str) -> None:
    """After others in its place that changed with each event, alone and in the middle of many."""
    dice = random.Random(value)
    for word, other in (("17", "18"), ('"x"', '{"a":["b",-0.5]}')):
        before = [with_value(place, each) for each in (other, word, word, word, other, other)]
        stream = [*before * 2, with_value(place, value), *before, STOPPED]
        whole = b"".join(stream)
        for mode in MODES[:2]:
            wanted = in_full(stream, mode).key()
            for pieces in (stream, [whole], random_pieces(dice, whole)):
                assert harness.decode(pieces, **mode).key() == wanted


@pytest.mark.parametrize("place", PLACES)
def test_values_that_are_never_read_may_change(place: str) -> None:
    decoder, stream = svir.Decoder(), [with_value(place, f"{number}7") for number in range(1, 99)]
    assert len(list(decoder.feed(b"".join(stream)))) == 98
    if HAS_FRAMES and place != "obfuscation":  # numbers are no padding
        assert decoder._frames.hits > 90


def test_an_event_is_given_out_before_it_is_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[str] = []
    monkeypatch.setattr(svir._Frames, "learn", lambda self, line, *rest: learned.append(line))
    decoder = svir.Decoder()
    events = decoder.feed(harness.sse(of({"content": "a"}), done=False))
    assert next(events) == svir.TextDelta("a")
    assert learned == []
    assert list(events) == []
    assert len(learned) == 1


def test_repeated_chunks_are_not_decoded_again() -> None:
    """Also with a second string that changes (Azure's padding), and with two shapes in turn."""
    decoder = svir.Decoder()
    for number in range(40):
        more = {"obfuscation": "x" * number} if number % 2 else {}
        event = {**harness.chunk({"content": f"w{number}"}), **more}
        assert len(list(decoder.feed(harness.sse(event, done=False)))) == 1
    assert decoder._frames.hits > 0
    assert len(decoder._frames.frames) == 2


def odd(delta: str, top: str = "", tail: str = "") -> bytes:
    line = f'{{"id":"a",{top}"choices":[{{"index":0,"delta":{delta}}}]{tail}}}'
    return f"data: {line}\n\n".encode()


STOPPED = harness.sse({"id": "a", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
HOSTILE = {
    "an escape no JSON has, after padding": odd('{"content":"a"}', '"obfuscation":"xx",') * 3
    + odd('{"content":"\\q"}', '"obfuscation":"PAD",'),
    "padding no JSON has": odd('{"content":"a"}', tail=',"obfuscation":"x"') * 3
    + odd('{"content":"b"}', tail=',"obfuscation":"\\q"'),
    "a zero that changes and changes back": odd('{"content":"a","token_id":0}') * 3
    + odd('{"content":"b","token_id":5}')
    + odd('{"content":"c","token_id":0}'),
    "1, then true, then 1": odd('{"content":"a"}', '"x":1,') * 3
    + odd('{"content":"b"}', '"x":true,')
    + odd('{"content":"c"}', '"x":1,'),
    "half a pair in a key": odd('{"content":"a"}', '"\\ud800":1,') * 3,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_streams(name: str) -> None:
    data = HOSTILE[name] + STOPPED
    whole, cut = (
        harness.decode([data]),
        harness.decode([data[i : i + 1] for i in range(len(data))]),
    )
    assert (cut.events, repr(cut.error), cut.quirks) == (
        whole.events,
        repr(whole.error),
        whole.quirks,
    )
    assert whole.events


@pytest.mark.parametrize(
    "shape", [COMMON[0], COMMON[3], COMMON[8]], ids=["text", "reasoning", "call"]
)
def test_what_waits_to_be_given_out_is_no_part_of_partial(shape: Shape) -> None:
    """A run of events is read at once; `partial` is what was given out of it, to the character."""
    decoder = svir.Decoder()
    chunks = [START, CALLS[0], CALLS[1], *map(shape, ["one", "two", "three", "four", "five"])]
    given = ""
    for count, event in enumerate(decoder.feed(harness.sse(*chunks, done=False)), 1):
        given += getattr(event, "text", "") or getattr(event, "arguments", "")
        partial = decoder.partial
        calls = "".join(call.arguments for call in partial.partial_tool_calls)
        thoughts = "".join(piece.text for piece in partial.reasoning)
        assert partial.text + thoughts + calls == given
        assert partial.timing is None or partial.timing.pieces == count
    assert given == "onetwothreefourfive"


def test_calls_that_wait_to_be_given_out_are_no_part_of_partial() -> None:
    first = {"index": 0, "id": "a", "function": {"name": "f", "arguments": "x"}}
    more = {"index": 0, "function": {"name": "g", "arguments": "y"}}
    other = {"index": 1, "id": "b", "function": {"name": "h"}}
    decoder = svir.Decoder()
    seen = []
    for _ in decoder.feed(harness.sse(of({"tool_calls": [first, more, other]}), done=False)):
        calls = decoder.partial.partial_tool_calls
        seen.append([(call.id, call.name, call.arguments) for call in calls])
    assert seen == [[("a", "f", "x")], [("a", "fg", "xy")], [("a", "fg", "xy"), ("b", "h", "")]]


AT_ONCE: dict[str, Shape] = {
    "text": COMMON[0],
    "reasoning": COMMON[3],
    "pieces of a call": COMMON[8],
    "a changing padding behind": COMMON[6],
    "a changing padding before": lambda word: {
        "obfuscation": "x" * len(word),
        **of({"content": word}),
    },
    "a clock": lambda word: {"created": 17 + len(word), **of({"content": word})},
    "a clock, and a percent sign behind it": lambda word: {
        "created": 17 + len(word),
        "note": "100%d",
        **of({"content": word}),
    },
    "a clock, and padding": lambda word: {
        **of({"reasoning": word}, created=17 + len(word)),
        "obfuscation": "100%" * len(word),
    },
    "a short frame around long strings": lambda word: {
        "choices": [{"delta": {"content": word * 20}}]
    },
    "quotes": lambda word: of({"content": f'"{word}"\n'}),
}


@pytest.mark.parametrize("name", AT_ONCE)
def test_a_block_is_read_many_events_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    repeated = svir._Answer.repeated

    def counted(answer: Any, carrier: Any, texts: list[str]) -> None:
        runs.append(len(texts))
        repeated(answer, carrier, texts)

    monkeypatch.setattr(svir._Answer, "repeated", counted)
    words = ["Hié"[number % 3] + "x" * (number % 7) for number in range(400)]
    chunks = [START, *CALLS[:2], *map(AT_ONCE[name], words)]
    assert len(list(svir.Decoder().feed(harness.sse(*chunks, done=False)))) == 402
    if HAS_FRAMES:
        assert sum(runs) > 390
        assert len(runs) < 30
