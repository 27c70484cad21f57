"""What holds for any input: hypothesis looks for one where it does not.

SVIR_EXAMPLES=5000 python3 tests/run.py tests/test_properties.py goes deeper, and elsewhere each
time. Without it the examples are always the same.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import pickle
import platform
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

import harness
import svir
from fuzz import targets
from fuzz.targets import CLASSES

DEEP = "SVIR_EXAMPLES" in os.environ
DONE = b"data: [DONE]\n\n"


def examples(count: int) -> Any:
    if platform.python_implementation() == "PyPy":  # hypothesis is slow there
        count //= 4
    return settings(
        deadline=None,
        derandomize=not DEEP,
        phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
        max_examples=int(os.environ.get("SVIR_EXAMPLES", count)),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


# -- Inputs ---------------------------------------------------------------------------------------

# Characters that something in between treats in a way of its own, before any other.
ODD = '\x00\n\r\t"\\/<>{}[]: \x7f\x85\u2028\ufeff\ufffd\u20ac\u00e9\U0001f600'
plain = st.text(st.sampled_from(ODD) | st.characters(exclude_categories=["Cs"]), max_size=20)
texts = st.text(st.sampled_from(ODD + "\ud83d\ude00") | st.characters(exclude_categories=[]))
texts = texts.map(lambda text: text[:20])
words = st.sampled_from(["Hi", " there", "<think>", "</think>", "<thi", "nk>", "", "x" * 300])
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
leaves = leaves.filter(lambda value: value not in (float("inf"), -float("inf")))


def nested(leaf: Any, keys: Any) -> Any:
    inner = functools.partial(st.dictionaries, keys, max_size=3)
    return st.recursive(leaf, lambda i: st.lists(i, max_size=3) | inner(i), max_leaves=6)


fixed: Any = st.fixed_dictionaries
json_values = nested(leaves, texts)
KEYS = [
    "id", "model", "choices", "usage", "error", "delta", "index", "content", "reasoning", "role",
    "reasoning_content", "refusal", "tool_calls", "function", "name", "arguments", "type", "text",
    "finish_reason", "message", "content_filter_results", "filtered", "obfuscation", "x_groq",
    "prompt_tokens", "completion_tokens", "total_tokens", "detail", "object", "annotations",
    "content_filter_offsets", "thinking", "extra_content", "audio",
]  # fmt: skip
FINISHES = [None, "stop", "tool_calls", "length", "content_filter", "eos", "", "error", "odd"]
likely = nested(
    leaves | st.sampled_from([*FINISHES, 0, 1, "function", "text"]), st.sampled_from(KEYS)
)
deltas = fixed(
    {},
    optional={
        "role": st.just("assistant"),
        "content": words | texts | likely,
        "reasoning_content": words | likely,
        "refusal": words,
        "tool_calls": st.lists(
            fixed(
                {},
                optional={
                    "index": st.integers(0, 3),
                    "id": st.sampled_from(["", "k1", "k2"]),
                    "type": st.just("function"),
                    "function": fixed(
                        {}, optional={"name": words, "arguments": texts | st.just("{}") | likely}
                    ),
                },
            ),
            max_size=2,
        ),
        "annotations": likely,
    },
)
large = st.sampled_from([10**400, 10**4300 - 1])  # the last has the most digits that JSON may
counts = st.integers(0, 99) | large | st.sampled_from([-1, 1.5, True, "9" * 9])
usages = fixed(
    {}, optional=dict.fromkeys(["prompt_tokens", "completion_tokens", "total_tokens"], counts)
)
choices = fixed(
    {"index": st.just(0) | st.integers(0, 1), "delta": deltas},
    optional={"finish_reason": st.sampled_from(FINISHES), "usage": usages, "message": likely},
)
chunks = fixed(
    {"choices": st.lists(choices, min_size=1, max_size=1) | st.lists(choices, max_size=2)},
    optional={"id": st.sampled_from(["", "c1", "c2"]), "usage": usages, "error": likely},
)
ENDS = [b"\n", b"\r\n", b"\r", b""]
LINES = [
    b"data: [DONE]", b"data:[DONE] ", b"[DONE]", b": ping", b":", b"event: ping", b"event: error",
    b"event: message", b"event: odd", b"retry: 1", b"id", b"data", b"data:", b"data: null",
    b"data: {", b"\xef\xbb\xbf", b"data: \xff", b"odd: x", b"", b"", b'{"error":"x"}', b"[",
    b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}',
]  # fmt: skip


@st.composite
def written(draw: Any, value: Any) -> bytes:
    """A chunk as JSON in one of the ways that servers write it."""
    separators = draw(st.sampled_from([(",", ":"), (", ", ": ")]))
    text = json.dumps(value, ensure_ascii=draw(st.booleans()), separators=separators)
    return text.encode("utf-8", "surrogatepass")


@st.composite
def events(draw: Any, value: Any) -> bytes:
    end = draw(st.sampled_from(ENDS[:2]))
    return b"data: " + draw(written(value)) + end + end


lines = (
    st.sampled_from(LINES) | st.binary(max_size=9) | chunks.flatmap(written).map(b"data: ".__add__)
)
loose = st.lists(st.builds(bytes.__add__, lines, st.sampled_from(ENDS)), max_size=12).map(b"".join)


@st.composite
def streams(draw: Any) -> bytes:
    """Chunks that are mostly right, with something odd among them, and often an end."""
    pieces = draw(
        st.lists(chunks.flatmap(events) | st.sampled_from([DONE, b": ping\n\n"]), max_size=8)
    )
    if draw(st.booleans()):
        pieces.append(draw(events(harness.chunk(finish=draw(st.sampled_from(FINISHES[1:4]))))))
    return b"".join(pieces) + draw(st.sampled_from([DONE, b"data: [DONE]", b""]))


@st.composite
def repeated(draw: Any) -> bytes:
    """A few shapes of chunk, each many times with other words, as a real stream has them."""
    few = st.sampled_from(["a", "Hi", " there", "\u00e9"])
    shapes = draw(st.lists(chunks.flatmap(written), min_size=1, max_size=2))
    shapes += [b'{"choices":[{"index":0,"delta":{"content":"Hi"}}]}']
    pieces = []
    for _ in range(draw(st.integers(3, 15))):
        shape = draw(st.sampled_from(shapes))
        word = json.dumps(draw(few | few | words | texts)).encode()
        pieces.append(b"data: " + shape.replace(b'"Hi"', word) + b"\n\n")
    return b"".join(pieces) + draw(
        st.sampled_from([DONE, harness.sse(harness.chunk(finish="stop"))])
    )


@st.composite
def damaged(draw: Any, bodies: Any) -> bytes:
    """A body with a few bytes dropped, doubled, or put in."""
    body: bytes = draw(bodies)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(body)))
        to = draw(st.integers(at, min(len(body), at + 40)))
        put = draw(
            st.sampled_from([b"", body[at:to] * 2])
            | st.sampled_from(LINES)
            | st.binary(max_size=3)
        )
        body = body[:at] + put + body[to:]
    return body


bodies = st.binary(max_size=60) | loose | damaged(streams()) | damaged(repeated())
modes = fixed(
    {},
    optional={
        "strict": st.booleans(),
        "think": st.sampled_from(["split", "keep", "open"]),
        "accept": st.sets(st.sampled_from(sorted(svir.ACCEPT))),
        "limits": st.builds(
            svir.Limits,
            wire_bytes=st.integers(0, 600),
            event_bytes=st.integers(0, 200),
            tool_calls=st.integers(0, 3),
        ),
    },
)


def cut(body: bytes, places: list[int]) -> list[bytes]:
    cuts = sorted(place % (len(body) + 1) for place in places)
    return [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)])]


places = st.lists(st.integers(0, 10**6), max_size=8)

# -- The decoder ----------------------------------------------------------------------------------


@given(bodies, places, modes, st.booleans())
@examples(200)
def test_any_bytes_cut_anywhere(body: bytes, at: list[int], mode: Any, clean: bool) -> None:
    """P9: the same events and the same end. And an answer has a finish and a [DONE]."""
    options = {"clock": targets.ticking(), **mode}
    run = harness.decode(cut(body, at), clean=clean, **options)
    targets.check_run(run, body)
    for pieces in ([body], harness.single_bytes(body)):
        assert harness.decode(pieces, clean=clean, **options).key() == run.key()
    assert harness.decode_late(cut(body, at), clean=clean, **options).key() == run.key()


@given(repeated(), places, modes)
@examples(150)
def test_the_fast_path_and_the_plain_one(body: bytes, at: list[int], mode: Any) -> None:
    options = {"clock": targets.ticking(), **mode}
    wanted = targets.decode_plainly(body, True, options).key()
    assert harness.decode([body], **options).key() == wanted
    assert harness.decode(cut(body, at), **options).key() == wanted


reports = fixed(
    dict.fromkeys(["prompt_tokens", "completion_tokens"], st.integers(0, 9) | large),
    optional={"total_tokens": counts},
)


@st.composite
def answers(draw: Any) -> tuple[list[Any], dict[str, Any]]:
    """The chunks of a whole answer, and what has to come of it."""
    text = draw(st.lists(plain.filter(bool), max_size=4))
    thoughts = draw(st.lists(plain.filter(bool), max_size=3))
    calls = draw(st.lists(st.lists(plain.filter(bool), max_size=3), max_size=3))
    parts = [harness.chunk({"reasoning": piece}) for piece in thoughts]
    parts += [harness.chunk({"content": piece}) for piece in text]
    for index, pieces in enumerate(calls):
        head = {"index": index, "id": f"k{index}", "function": {"name": f"f{index}"}}
        more = [{"index": index, "function": {"arguments": piece}} for piece in pieces]
        parts += [harness.chunk({"tool_calls": [piece]}) for piece in [head, *more]]
    finish = "tool_calls" if calls else draw(st.sampled_from(["stop", "length", "content_filter"]))
    wanted = {
        "text": "".join(text),
        "reasoning": [["reasoning", "".join(thoughts)]] if thoughts else [],
        "tool_calls": [
            {"id": f"k{n}", "name": f"f{n}", "arguments": "".join(pieces)}
            for n, pieces in enumerate(calls)
        ],
        "finish_reason": finish,
    }
    return [*parts, harness.chunk(finish=finish, usage=draw(reports))], wanted


@given(answers(), st.integers(0, 10**6), places, st.booleans())
@examples(100)
def test_an_answer_and_each_part_of_it(answer: Any, end: int, at: list[int], ascii: bool) -> None:
    """Whole, it is read as it was sent; less than whole, it never completes."""
    sent, wanted = answer
    texts = [json.dumps(chunk, ensure_ascii=ascii) for chunk in sent]
    events = [f"data: {text}\n\n".encode() for text in texts]
    body = b"".join(events) + DONE
    run = harness.decode(cut(body, at), think="keep", clock=targets.ticking())
    targets.check_run(run, body)
    got = harness.outcome(run)
    for call in got["tool_calls"]:
        assert call.pop("extra") == {}
    assert {key: got.get(key) for key in wanted} == wanted
    last = len(body) - len(DONE) + len(b"data: [DONE]")
    for part in (body[: end % last], b"".join(events), b"".join(events[:-1]) + DONE):
        for strict in (True, False):
            error = harness.decode(cut(part, at), think="keep", strict=strict).error
            assert isinstance(error, svir.Truncated)
    accept = {"end-without-done", "done-without-finish"}
    for part in (b"".join(events), b"".join(events[:-1]) + DONE):
        run = harness.decode(cut(part, at), think="keep", accept=accept)
        whole = all(targets_json(call["arguments"]) for call in wanted["tool_calls"])
        assert (run.error is None) == whole


def targets_json(arguments: str) -> bool:
    """Whether the arguments of a call are whole (E1): JSON, or none."""
    try:
        json.loads(arguments or "{}", parse_constant=lambda name: 1 / 0)
        return True
    except (ValueError, ZeroDivisionError):
        return False


@given(plain, places, st.booleans())
@examples(100)
@example("a <think>b</think>c</thi", [3, 5, 9, 14], True)
@example("\U0001f600" * 3, [1, 3], True)
def test_any_text_survives_the_round_trip(text: str, at: list[int], ascii: bool) -> None:
    """Asked, it stands in the body as it is; a server that says it back has it read as it was."""
    asked = json.loads(bytes(svir.encode(svir.Request("m", text))).decode("utf-8"))
    assert asked["messages"] == [{"role": "user", "content": text}]
    # A character outside the first plane may come in two escapes, in two events (C16).
    halves = text.encode("utf-16-le", "surrogatepass")
    pieces = [piece.decode("utf-16-le", "surrogatepass") for piece in cut_halves(halves, at)]
    if not ascii:
        pieces = [text[a:b] for a, b in zip([0, *marks(text, at)], [*marks(text, at), len(text)])]
    sent = [harness.chunk({"content": piece}) for piece in pieces]
    body = harness.sse(*sent, harness.chunk(finish="stop"))
    got = svir.Decoder(think="keep")
    list(got.feed(body))
    assert got.completion is not None
    assert got.completion.text == text
    again = svir.encode(svir.Request("m", [got.completion.message]))
    assert json.loads(bytes(again).decode("utf-8"))["messages"][0]["content"] == text
    check_think(text, body)


def marks(text: str, at: list[int]) -> list[int]:
    return sorted(place % (len(text) + 1) for place in at)


def cut_halves(data: bytes, at: list[int]) -> list[bytes]:
    cuts = sorted(place % (len(data) // 2 + 1) * 2 for place in at)
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)])]


def check_think(text: str, body: bytes) -> None:
    """However the pieces were cut, the markers are found as in the whole text (C17)."""
    parts = re.split("(<think>|</think>)", text)
    inside, said = False, {True: "", False: ""}
    for part in parts:
        if part == ("</think>" if inside else "<think>"):
            inside = not inside
        else:
            said[inside] += part
    decoder = svir.Decoder()
    list(decoder.feed(body))
    assert decoder.completion is not None
    assert decoder.completion.text == said[False]
    assert "".join(piece.text for piece in decoder.completion.reasoning) == said[True]


# -- The values -----------------------------------------------------------------------------------

# A field's annotation says what may be in it, so a new field is tried without a word here.
KINDS: dict[str, Any] = {
    "str": texts,
    "bool": st.booleans(),
    "int": st.integers(-(10**4000), 10**4000) | st.integers(),
    "_Count": st.integers(0, 2**70),
    "float": st.integers(-99, 99) | st.floats(allow_nan=False, allow_infinity=False),
    "bytes": st.binary(max_size=9),
    "FilePath": plain.filter(bool),
    "dict[str, Any]": st.dictionaries(texts, json_values, max_size=3),
    "FinishReason": st.sampled_from(FINISHES[1:5]),
    "ReasoningEffort": st.sampled_from(["none", "minimal", "low", "medium", "high", "xhigh"]),
}
UNIONS = {
    "Part": ["str", "Image", "TextFile"],
    "Message": ["User", "Assistant", "ToolResult"],
    "ToolChoice": ["str", "NamedTool"],
    "ResponseFormat": ["str", "JsonSchema"],
}


def of_kind(kind: str) -> Any:
    if kind.endswith(" | None"):
        return st.none() | of_kind(kind[:-7])
    if kind.startswith("Sequence["):
        return st.lists(of_kind(kind[9:-1]), max_size=3)
    if kind in UNIONS:
        return st.one_of([of_kind(each) for each in UNIONS[kind]])
    return KINDS[kind] if kind in KINDS else st.deferred(lambda: any_of(getattr(svir, kind)))


@functools.lru_cache(maxsize=None)
def any_of(cls: Any) -> Any:
    """Any value of a class: what its own checks refuse is left out."""
    fields = {name: of_kind(kind) for name, kind in cls._fields.items()}
    needed = {name: kind for name, kind in fields.items() if name not in cls._defaults}
    rest = {name: kind for name, kind in fields.items() if name in cls._defaults}
    made = fixed(needed, optional=rest).map(lambda given: make(cls, given))
    return made.filter(lambda value: value is not None)


def make(cls: Any, given: dict[str, Any]) -> Any:
    if cls is svir.JsonSchema:
        given["name"] = "a-1"
    if cls is svir.Image:
        given["media_type"] = None if given.get("media_type") is None else "image/png"
        given["path" if given.get("data") is not None else "data"] = None
        given = {"data": b"\x89PNG"} if not any(given.values()) else given
    if cls is svir.Request:
        for key, word in (("tool_choice", "auto"), ("response_format", "text")):
            given[key] = word if isinstance(given.get(key, ""), str) else given[key]
    try:
        return cls(*given["parts"]) if cls is svir.User else cls(**given)
    except svir.ConfigError:
        return None


values = st.sampled_from(CLASSES).flatmap(any_of)


@given(values)
@examples(150)
def test_any_value_comes_back_from_its_dict_form(value: Any) -> None:
    text = json.dumps(value.to_dict(), allow_nan=False)
    again = type(value).from_dict(json.loads(text))
    assert again == value
    assert hash(again) == hash(value)
    assert json.dumps(again.to_dict()) == text
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(value, protocol)) == value
    repr(value)


# -- The body -------------------------------------------------------------------------------------


REFUSALS = {
    "config": "surrogate|two tools|no messages|media type|must not set|digits",
    "unsupported": "tool",
    "attachment": "not UTF-8|escape",
}


@given(any_of(svir.Request), st.lists(st.binary(max_size=99) | plain.map(str.encode), max_size=3))
@examples(100)
@example(request=svir.Request("m", "x", extra={"\ud800": 1}), files=[])
def test_a_body_has_its_length_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, request: svir.Request, files: list[bytes]
) -> None:
    """Refused are half a character, a file that is no text, tools that do not fit, no more."""
    folder = tmp_path_factory.getbasetemp() / "body"
    folder.mkdir(exist_ok=True)
    request = with_files(request, folder, files)
    try:
        body = svir.encode(request)
    except svir.Error as error:
        refused = error
    else:
        check_sent(request, body)
        return
    assert re.search(REFUSALS[refused.kind], str(refused)), str(refused)


def check_sent(request: svir.Request, body: svir.Body) -> None:
    data = bytes(body)
    assert len(data) == body.length == sum(map(len, body))
    sent = json.loads(data.decode("utf-8"))
    assert {key: sent[key] for key in request.extra} == request.extra
    assert [turn["role"] for turn in sent["messages"]] == roles(request)
    assert images_in(sent) == [data_of(part) for part in parts_of(request, svir.Image)]


def with_files(request: svir.Request, folder: Path, contents: list[bytes]) -> svir.Request:
    """The request with each path in it led to a file that there is, and more of them."""
    made: list[Any] = []
    for number, content in enumerate(contents):
        path = folder / f"{number}.png"
        path.write_bytes(content)
        made += [svir.TextFile(path), svir.Image(path)]
    turns = [led_to(turn, made) for turn in request.messages]
    return request.replace(messages=[*turns, svir.User("", *made)])


def led_to(turn: Any, made: list[Any]) -> Any:
    if not isinstance(turn, svir.User):
        return turn
    return svir.User(*[part for part in turn.parts if not reads_a_file(part)], *made[:1])


def reads_a_file(part: Any) -> bool:
    return getattr(part, "path", None) is not None and getattr(part, "text", None) is None


def roles(request: svir.Request) -> list[str]:
    system = [] if request.system is None else ["system"]
    return system + [turn.to_dict()["role"] for turn in request.messages]


def parts_of(request: svir.Request, kind: Any) -> list[Any]:
    turns = [turn.parts for turn in request.messages if isinstance(turn, svir.User)]
    return [part for parts in turns for part in parts if isinstance(part, kind)]


def data_of(image: svir.Image) -> bytes:
    return Path(image.path).read_bytes() if image.data is None else image.data  # type: ignore[arg-type]


def images_in(sent: Any) -> list[bytes]:
    lists = [m["content"] for m in sent["messages"] if isinstance(m["content"], list)]
    urls = [part["image_url"]["url"] for parts in lists for part in parts if "image_url" in part]
    return [base64.b64decode(url.partition(",")[2], validate=True) for url in urls]
