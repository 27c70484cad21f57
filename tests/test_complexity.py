"""Twice the bytes are at most about twice the work, and memory has a limit, whatever is sent.

Work is counted, never timed: the lines of svir.py that ran, and the characters and bytes that it
gave to what runs in C (the JSON parser, the joining of bytes, zlib).
"""

from __future__ import annotations

import contextlib
import gzip
import importlib
import sys
import time
from typing import Any, Callable, Iterable, Iterator

import pytest

import harness
import svir
from fuzz.targets import Answer, FakeBackend, Stub
from harness import chunk, sse

tracemalloc: Any = None
with contextlib.suppress(ImportError):  # PyPy has none
    tracemalloc = importlib.import_module("tracemalloc")

FILE = svir.Decoder.feed.__code__.co_filename
DONE = b"data: [DONE]\n\n"

# -- Counting -------------------------------------------------------------------------------------


class Counter:
    """What a call took: ``lines`` of svir.py, ``parsed`` characters, ``joined`` bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines = self.parsed = self.joined = 0
        parse = svir._parse_json

        def counted_parse(text: str) -> Any:
            self.parsed += len(text)
            return parse(text)

        def counted(scan: Any) -> Callable[..., Any]:
            def counted_scan(text: str, start: int, *more: Any) -> Any:
                try:
                    value, end = scan(text, start, *more)
                except StopIteration as stop:
                    self.parsed += stop.value - start
                    raise
                except ValueError as error:
                    # The error tells the line it is in: its making has read the text up to there.
                    self.parsed += error.pos  # type: ignore[attr-defined]
                    raise
                self.parsed += end - start
                return value, end

            return counted_scan

        def counted_finder(frame: Any) -> Callable[[str, int, int], Any]:
            find = finder(frame)

            def counted_find(text: str, at: int, last: int) -> Any:
                self.parsed += min(last, len(text)) - at
                return find(text, at, last)

            return counted_find

        finder = svir._Frame.finder
        monkeypatch.setattr(svir._Frame, "finder", counted_finder)
        monkeypatch.setattr(svir, "_parse_json", counted_parse)
        for name in ("_scanstring", "_scan_json"):
            scan = getattr(svir, name)
            if scan is not None:
                monkeypatch.setattr(svir, name, counted(scan))

    def count(self, call: Callable[[], object]) -> tuple[int, int, int]:
        self.lines = self.parsed = self.joined = 0
        before = sys.gettrace()
        sys.settrace(self.enter)
        try:
            call()
        finally:
            sys.settrace(before)
        return self.lines, self.parsed, self.joined

    def enter(self, frame: Any, event: str, arg: Any) -> Any:
        return self.line if frame.f_code.co_filename == FILE else None

    def line(self, frame: Any, event: str, arg: Any) -> Any:
        self.lines += event == "line"
        return self.line

    def piece(self, data: bytes) -> bytes:
        """Bytes that count what joining them copies."""
        counter = self

        class Piece(bytes):
            def __radd__(self, before: Any) -> Any:
                if not isinstance(before, bytes):  # a bytearray grows where it is
                    counter.joined += len(self)
                    return NotImplemented
                counter.joined += len(before) + len(self)
                return Piece(bytes(before) + bytes(self))

            def __add__(self, after: Any) -> Any:
                counter.joined += len(self) + len(after)
                return Piece(bytes(self) + bytes(after))

        return Piece(data)


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Counter:
    return Counter(monkeypatch)


def check_linear(counter: Counter, call: Callable[[int], object], size: int) -> None:
    """From once to twice the input, the work grows by no more than from nothing to once."""
    call(1)  # what is done once in a process
    nothing = counter.count(lambda: call(1))
    once, twice = counter.count(lambda: call(size)), counter.count(lambda: call(2 * size))
    assert max(once) > size / 2, f"the input does nothing: {once}"
    # PyPy does not count each line of a loop before it has compiled it. What is quadratic has 3.
    more = 1.3 if sys.implementation.name == "cpython" else 1.8
    for zero, one, two in zip(nothing, once, twice):
        assert two - one <= more * (one - zero) + 200, (nothing, once, twice)


def test_the_count_finds_what_grows_faster(counter: Counter) -> None:
    def pieces(count: int) -> None:
        body = b""
        for _ in range(count):
            body += counter.piece(b"12345678")

    def parsed(count: int) -> None:
        for number in range(count):
            svir._parse_json("1" * (number + 1))

    def lines(count: int) -> None:
        for number in range(count):
            svir._is_shallow([[]] * number)

    for call in (pieces, parsed, lines):
        with pytest.raises(AssertionError):
            check_linear(counter, call, 200)


# -- The decoder ----------------------------------------------------------------------------------

HI, STOP = {"content": "Hi"}, chunk(finish="stop")
GOOD = sse(*[chunk(HI)] * 3, done=False)
BAD = GOOD[: len(GOOD) // 3].replace(b"Hi", b"a\\qb")
MORE = {"index": 0, "function": {"arguments": "1"}}
KEYED = [{"index": 0, "id": "k", "function": {"name": "f", "arguments": ""}}]


def each(delta: Any, count: int) -> bytes:
    return sse(chunk(delta), done=False) * count


def one(text: str) -> bytes:
    return b"data: " + text.encode() + b"\n\n"


def parts(part: str, count: int) -> str:
    return ",".join([part] * count)


def calls(count: int, place: Callable[[int], dict[str, Any]]) -> bytes:
    pieces = [
        {**place(n), "id": f"k{n}", "function": {"name": "f", "arguments": "1"}}
        for n in range(count)
    ]
    return sse(*[chunk({"tool_calls": [piece]}) for piece in pieces], done=False)


LENIENT = {"strict": False}
MANY_CALLS = {"limits": svir.Limits(tool_calls=10**6)}
# What it is: the pieces for a size, and the decoder's options.
STREAMS: dict[str, tuple[Callable[[int], Iterable[bytes]], dict[str, Any]]] = {
    "a line that does not end, in pieces": (lambda n: [b"data: ", *[b"x"] * n], {}),
    "a comment that does not end, in pieces": (lambda n: [b":", *[b"xxx"] * n], {}),
    "events byte by byte": (lambda n: harness.single_bytes(each(HI, n // 9)), {}),
    "events at once": (lambda n: [each(HI, n)], {}),
    "events that do not repeat": (
        lambda n: [sse(*[chunk(HI, **{f"k{i % 7}": i}) for i in range(n)], done=False)],
        {},
    ),
    "empty lines": (lambda n: [GOOD, b"\n" * n], {}),
    "empty lines byte by byte": (lambda n: [GOOD, *[b"\n"] * n], {}),
    "blanks before anything": (lambda n: [b" "] * n, {}),
    "line breaks before anything": (lambda n: [b"\xef\xbb\xbf", *[b"\r\n"] * n], {}),
    "comments": (lambda n: [GOOD, b": ping\n" * n], {}),
    "data lines of one event": (lambda n: [b"data: {}\n" * n + b"\n"], LENIENT),
    "data lines that join to one value": (
        lambda n: [b"data: [\n" + b"data: 1,\n" * n + b"data: 1]\n\n"],
        LENIENT,
    ),
    "empty data lines of one event": (lambda n: [b"data:\n" * n + b"\n"], LENIENT),
    "unknown fields": (lambda n: [b"odd: 1\n" * n], LENIENT),
    "unknown events": (lambda n: [b"event: odd\ndata: {}\n\n" * n], LENIENT),
    "events that are no JSON": (lambda n: [b"data: {no\n\n" * n], LENIENT),
    "bad strings in a frame that repeats": (lambda n: [GOOD + BAD * n], LENIENT),
    "bytes that are not UTF-8": (lambda n: [b"data: \xff\n\n" * n], LENIENT),
    "half a marker, and not the rest": (
        lambda n: [each({"content": "<thi"}, n) + each({"content": "x<"}, n)],
        {},
    ),
    "half a marker in one piece": (lambda n: [each({"content": "<think" * n}, 1)], {}),
    "markers": (lambda n: [each({"content": "<think>a</think>" * n}, 1)], {}),
    "markers, byte by byte": (
        lambda n: harness.single_bytes(each({"content": "<think></think>"}, n // 20)),
        {},
    ),
    "half a character in each piece": (
        lambda n: [(each({"content": "\ud83d"}, 1) + each({"content": "\ude00"}, 1)) * n],
        {},
    ),
    "pieces of arguments": (
        lambda n: [each({"tool_calls": KEYED}, 1), each({"tool_calls": [MORE]}, n)],
        {},
    ),
    "pieces of arguments in one event": (
        lambda n: [
            each({"tool_calls": KEYED + [{"index": 0, "function": {"arguments": "1"}}] * n}, 1)
        ],
        {},
    ),
    "calls": (lambda n: [calls(n, lambda n: {"index": n})], MANY_CALLS),
    "an index that new calls reuse": (lambda n: [calls(n, lambda n: {"index": 0})], MANY_CALLS),
    "pieces without an index": (
        lambda n: [calls(60, lambda n: {}) + each({"tool_calls": [{"id": "k59"}]}, n)],
        {},
    ),
    "pieces of reasoning": (lambda n: [each({"reasoning": "Hi"}, n)], {}),
    "choices": (
        lambda n: [one('{"choices":[{"delta":{}},' + parts('{"index":1,"delta":{}}', n) + "]}")],
        LENIENT,
    ),
    "content parts": (
        lambda n: [each({"content": [{"type": "text", "text": "a"}] * n}, 1)],
        {},
    ),
    "other fields in one event": (
        lambda n: [sse({"choices": [], **{f"k{i}": 1 for i in range(n)}})],
        {},
    ),
    "another field in each event": (lambda n: [sse(*[chunk(HI, tier=i) for i in range(n)])], {}),
    "a field that is a list in each event": (
        lambda n: [each({"content": "Hi", "annotations": [1, 2]}, n)],
        {},
    ),
    "keys of a delta": (
        lambda n: [each({f"k{i}": i + 1 for i in range(n)}, 1)],
        LENIENT,
    ),
    "reports of usage": (
        lambda n: [
            sse(*[chunk(usage={"prompt_tokens": 1, "completion_tokens": i}) for i in range(n)])
        ],
        {},
    ),
    "verdicts of a filter": (
        lambda n: [sse({"choices": [{"delta": {}, "content_filter_results": [[{}]] * n}]})],
        {},
    ),
    "JSON that is wide": (lambda n: [sse({"choices": [], "a": [[[[]]]] * n})], {}),
    "JSON that is deep": (lambda n: [one("[" * n + "]" * n)] * 3, LENIENT),
    "JSON that is no stream, in pieces": (lambda n: [b"[", *[b"1,"] * n], LENIENT),
    "changing ids": (
        lambda n: [sse(*[chunk(HI, id=f"c{i}") for i in range(n)])],
        {"accept": {"changing-id"}},
    ),
}


@pytest.mark.parametrize("name", STREAMS)
def test_the_decoder_is_linear(name: str, counter: Counter) -> None:
    make, options = STREAMS[name]
    bodies = {size: list(make(size)) for size in (1, 300, 600)}
    check_linear(counter, lambda size: harness.decode(bodies[size], **options), 300)


def test_bytes_that_wait_are_read_once(counter: Counter) -> None:
    """Fed first and read later, with an iterator for each piece."""
    pieces = {size: harness.single_bytes(each(HI, size)) for size in (1, 20, 40)}
    check_linear(counter, lambda size: harness.decode_late(pieces[size]), 20)


# -- HTTP -----------------------------------------------------------------------------------------

SENT = svir.Request("m", "Hi")


def ask(status: int, headers: dict[str, str], pieces: list[bytes], call: str) -> None:
    backend = Stub(lambda: Answer(status, headers, list(pieces), 0))
    client = svir.Client("http://localhost", backend=backend)
    try:
        client.list_models() if call == "list" else client.complete(SENT)
    except svir.Error:
        pass


def members(count: int) -> bytes:
    return gzip.compress(b'{"data": [') + gzip.compress(b'{"id": "model"}, ') * count


def blocks(data: bytes) -> list[bytes]:
    return [data[at : at + 16384] for at in range(0, len(data), 16384)]


BODIES: dict[str, tuple[str, int, dict[str, str], Callable[[int], list[bytes]]]] = {
    "a list in pieces": ("list", 200, {}, lambda n: [b"[", *[b'{"id":"m"},'] * n]),
    "a list in members of gzip": (
        "list", 200, {"content-encoding": "gzip"}, lambda n: blocks(members(n))
    ),
    "an answer in members of gzip": (
        "ask", 200, {"content-encoding": "gzip", "content-type": "text/event-stream"},
        lambda n: blocks(gzip.compress(each(HI, 1)) * n),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_a_body_is_linear(name: str, counter: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    call, status, headers, make = BODIES[name]
    inflate = svir._Inflater.inflate

    def counted(self: Any, data: bytes) -> tuple[bytes, bytes]:
        counter.parsed += len(data)
        rest, out = inflate(self, data)
        return rest, counter.piece(out)

    monkeypatch.setattr(svir._Inflater, "inflate", counted)
    pieces = {n: [counter.piece(piece) for piece in make(n)] for n in (1, 1500, 3000)}
    check_linear(counter, lambda n: ask(status, headers, pieces[n], call), 1500)


@pytest.mark.parametrize(("status", "size"), [(200, 16 << 10), (500, 64 << 10)])
def test_what_is_read_ahead_has_an_end(status: int, size: int, counter: Counter) -> None:
    """The start of what may be no stream, and an error's body: each joined up to its limit."""
    piece = counter.piece(b" " * 512)
    counts = [
        counter.count(lambda n=n: ask(status, {}, [piece] * (n * size // 512), "ask"))
        for n in (1, 2, 4)
    ]
    joined = [count[2] for count in counts]
    assert size < joined[0] == joined[1] == joined[2]


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
LAST = b"0\r\n\r\n"
FRAMINGS: dict[str, Callable[[int], list[bytes]]] = {
    "chunks of a byte": lambda n: [HEAD + b"\r\n" + b"1\r\nx\r\n" * n + LAST],
    "chunks of a byte, in pieces of a byte": lambda n: harness.single_bytes(
        HEAD + b"\r\n" + b"1\r\nx\r\n" * n + LAST
    ),
    "chunks of many sizes": lambda n: [
        HEAD + b"\r\n" + b"".join(b"%x;%d\r\nxyz\r\n" % (3, i) for i in range(n)) + LAST
    ],
    "chunks with long extensions": lambda n: [
        HEAD + b"\r\n" + (b"1;%s\r\nx\r\n" % (b"a" * 99)) * n + LAST
    ],
    "one chunk, in pieces of a byte": lambda n: [
        HEAD + b"\r\n%x\r\n" % n, *harness.single_bytes(b"x" * n + b"\r\n" + LAST)
    ],
    "trailers": lambda n: [HEAD + b"\r\n0\r\n" + b"a: b\r\n" * n + b"\r\n"],
    "1xx answers": lambda n: [b"HTTP/1.1 103 Early\r\n\r\n" * n + HEAD + b"\r\n0\r\n\r\n"],
}  # fmt: skip


@pytest.mark.parametrize("name", FRAMINGS)
def test_the_framing_is_linear(name: str, counter: Counter) -> None:
    sent = {n: [counter.piece(piece) for piece in FRAMINGS[name](n)] for n in (1, 300, 600)}

    def read(size: int) -> None:
        backend = FakeBackend(list(sent[size]), False)
        with svir.Client("http://localhost", backend=backend) as client, client.send(SENT) as raw:
            list(raw)

    check_linear(counter, read, 300)


# -- Memory ---------------------------------------------------------------------------------------

needs_tracemalloc = pytest.mark.skipif(
    tracemalloc is None, reason="*** memory is not counted: this Python has no tracemalloc"
)
WIRE = 1 << 18
LIMITS = svir.Limits(wire_bytes=WIRE, event_bytes=WIRE // 8, tool_calls=64)
# What a server may send for ever, and how much is held of it at most, in times of wire_bytes.
# Python's objects take many times the JSON they were read from: `{}` takes 64 bytes.
ENDLESS: dict[str, tuple[Callable[[], Iterator[bytes]], float]] = {
    "one line": (lambda: forever(b"data: ", b"x" * 999), 1),
    "comments": (lambda: forever(b"", b": " + b"x" * 999 + b"\n"), 1),
    "empty lines": (lambda: forever(GOOD, b"\n" * 999), 1),
    "blanks before anything": (lambda: forever(b"", b" " * 999), 8),
    "data lines of one event": (lambda: forever(b"", b"data: x\n" * 99), 4),
    "empty data lines of one event": (lambda: forever(b"", b"data:\n" * 99), 4),
    "text": (lambda: forever(b"", each({"content": "x" * 99}, 9)), 8),
    "text in the smallest pieces": (
        lambda: forever(b"", b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n' * 99), 24
    ),
    "other fields": (lambda: numbered('data: {"choices":[],"k%d":[[],[],[],[],[],[]]}\n\n'), 6),
    "a list of nothing, joined": (
        lambda: forever(b"", each({"content": "a", "annotations": [[]] * 99}, 1)), 12
    ),
    "pieces of calls": (
        lambda: forever(b"", each({"tool_calls": [*KEYED, *[{"index": 0}] * 99]}, 1)), 8
    ),
    "JSON that is no stream": (lambda: forever(b"[", b"[],[],[]," * 99), 4),
}  # fmt: skip


def forever(start: bytes, piece: bytes) -> Iterator[bytes]:
    yield start
    while True:
        yield piece


def numbered(text: str) -> Iterator[bytes]:
    for number in range(10**9):
        yield (text % number).encode()


@needs_tracemalloc
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("name", ENDLESS)
def test_what_never_ends_is_held_within_the_limits(name: str, strict: bool) -> None:
    make, most = ENDLESS[name]
    decoder = svir.Decoder(limits=LIMITS, strict=strict)

    def read() -> str:
        for piece in make():
            for _ in decoder.feed(piece):
                pass
        raise AssertionError  # never: a server that sends for ever is stopped

    peak, error = peak_of(read)
    assert isinstance(error, (svir.LimitExceeded, svir.ProtocolError)), error
    assert peak < (most + 0.5) * WIRE, f"{peak / WIRE:.2f} times"


def peak_of(call: Callable[[], object]) -> tuple[int, svir.Error]:
    tracemalloc.start()
    try:
        with pytest.raises(svir.Error) as caught:
            call()
        return tracemalloc.get_traced_memory()[1], caught.value
    finally:
        tracemalloc.stop()


# A delta with the next word of a long text, and where that text is in the completion.
LONG_TEXTS: dict[str, tuple[Callable[[str], Any], Callable[[svir.Completion], str]]] = {
    "content": (lambda word: {"content": word}, lambda done: done.text),
    "reasoning": (lambda word: {"reasoning_content": word}, lambda done: done.reasoning[0].text),
    "arguments": (
        lambda word: {"tool_calls": [{"index": 0, "function": {"arguments": word}}]},
        lambda done: done.partial_tool_calls[0].arguments,
    ),
}


@needs_tracemalloc
@pytest.mark.parametrize("name", LONG_TEXTS)
def test_a_long_answer_is_held_in_about_its_own_size(name: str) -> None:
    """Not in ten times that: a small string takes 50 bytes more than its characters."""
    delta, text_of = LONG_TEXTS[name]
    words = [f"{number:05d}" for number in range(1000)]
    block = b"".join(each(delta(word), 1) for word in words)
    decoder = svir.Decoder()
    list(decoder.feed(each({"tool_calls": KEYED}, 1) if name == "arguments" else b""))
    done: Any = None
    tracemalloc.start()
    try:
        for _ in range(200):
            for _event in decoder.feed(block):
                pass
        for event in decoder.feed(sse(chunk(finish="length"))):
            done = event
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    text = "".join(words) * 200
    assert text_of(done.completion) == text
    assert peak < 3 * len(text), f"{peak / len(text):.2f} times"


HEADS = {
    "headers of one name": b"a: b\r\n",
    "a header line": b"x" * 999,
    "lines that go on": b" x\r\n",
    "nothing but spaces": b" " * 999,
}


@needs_tracemalloc
@pytest.mark.parametrize("name", HEADS)
def test_a_head_that_never_ends_is_refused(name: str) -> None:
    pieces = [b"HTTP/1.1 200 OK\r\na: b\r\na: ", *[HEADS[name] * 20] * 5000]
    backend = FakeBackend(pieces, False)
    client = svir.Client("http://localhost", backend=backend)
    peak, error = peak_of(lambda: client.complete(SENT))
    assert isinstance(error, svir.ProtocolError), error
    assert peak < 2 << 20, peak


class Endless(Answer):
    """A body that has no end."""

    def read(self, size: int, timeout: float | None) -> bytes:
        return b" " * 16384 if self.status == 200 else b"x" * 16384


@needs_tracemalloc
@pytest.mark.parametrize("status", [200, 400, 401, 404, 500])
@pytest.mark.parametrize("call", ["list", "ask"])
def test_a_body_that_never_ends_is_held_within_the_limits(status: int, call: str) -> None:
    backend = Stub(lambda: Endless(status, {}, [], 0))
    client = svir.Client("http://localhost", backend=backend, limits=LIMITS)
    peak, error = peak_of(
        lambda: client.list_models() if call == "list" else client.complete(SENT)
    )
    assert error.status == status if status != 200 else isinstance(error, svir.LimitExceeded)
    assert peak < (16 << 20 if status == 200 else 1 << 20), peak


def long_ended(letter: bytes, text: bytes = b"x") -> bytes:
    tail = b'"},"z":"' + letter * (8000 // len(letter)) + b'"}]}\n\n'
    return b'data: {"choices":[{"delta":{"content":"' + text + tail


SEARCHED = {
    "short events after long ones that begin alike": [
        b"".join(map(long_ended, (b"a", b"b", b"c", b"d", b"e"))),
        b'data: {"choices":[{"delta":{"content":"x","reasoning":"y"}}]}\n\n' * 20,
        long_ended(b"data:"),
    ],
    "quotes, then a long line of beginnings": [
        *[long_ended(b"a", text) for text in (b"x", b"x", b'\\"', b'\\"', b"x")] * 3,
        b'data: {"choices":[{"delta":{"content":"x"}}],"q":1}\n\n' * 20,
        long_ended(b"data:", b"data:\\n" * 5000),
    ],
    "values that change, before an end that changes": [
        b'data: {"choices":[{"delta":{"content":"x"},"logprobs":[%d,"%b"],"k":%d}]}\n\n'
        % (number, b"y" * 1000, number // 9 if number < 54 else number)
        for number in range(400)
    ],
    "many alike, then one that never ends": [GOOD * 400, long_ended(b"data:") * 4],
}


@pytest.mark.parametrize("name", SEARCHED)
def test_what_is_searched_is_bounded_by_what_comes(name: str, counter: Counter) -> None:
    """A search looks ahead: no further than a few times what it has taken."""
    data = b"".join(SEARCHED[name])
    decoder = svir.Decoder(strict=False)
    _, parsed, _ = counter.count(lambda: [*decoder.feed(data)])
    assert len(data) / 2 < parsed < 4 * len(data)


def test_a_search_tries_no_end_twice() -> None:
    """Digits before what may be anything: a search that tries each length took 22 s for this."""

    def event(number: int, word: str) -> bytes:
        more = f'"created":{number},"obfuscation":"x","choices":[{{"logprobs":{number},'
        return f'data: {{"p":"{"x" * 300}",{more}"delta":{{"content":"{word}"}}}}]}}\n\n'.encode()

    word = "data:" * 80 + "1" * 400 + "data:" * 80 + "1" * 300
    data = event(1, "a") + event(2, "b") + event(3, "c") + event(4, word) * 16
    start = time.process_time()
    assert len([*svir.Decoder(strict=False).feed(data)]) == 19
    assert time.process_time() - start < 5


def test_frames_that_serve_few_events_are_rarely_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is decoded again, and may be compiled to a pattern: that has to pay."""
    made: list[object] = []
    frame = svir._Frame
    monkeypatch.setattr(svir, "_Frame", lambda *args: made.append(args) or frame(*args))
    data = b"".join(
        (b'data: {"choices":[{"delta":{"content":"x"},"k":"%b"}]}\n\n' % (b"y" * n)) * 3
        for n in range(900)
    )
    assert len([*svir.Decoder(strict=False).feed(data)]) == 2700
    assert len(made) < 100
