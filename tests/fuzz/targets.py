"""What is fuzzed: a target takes any bytes, and raises when what has to hold does not.

The first bytes choose the settings, so a fuzzer reaches all of them; the rest is the input. No
socket, no clock, no file: the same bytes always do the same. `run.py` drives the targets with
atheris, and tests/test_fuzz_corpus.py runs the committed corpus through them on every Python.
"""

from __future__ import annotations

import functools
import itertools
import json
import pickle
import random
import re
import zlib
from typing import Any, Callable, Iterator, Mapping

import harness
import svir

THINK: list[Any] = ["split", "keep", "open", "split"]
ACCEPT = sorted(svir.ACCEPT)
SMALL = svir.Limits(wire_bytes=2000, event_bytes=400, tool_calls=3)
KEY = "sk-V3rySecretW0rd"
REQUEST = svir.Request("m", "Hi", reasoning_effort="low", max_tokens=9)


def cut(data: bytes, seed: int) -> list[bytes]:
    """The bytes in pieces, by a seed: 0 leaves them whole, 1 takes a few one by one."""
    if seed == 0 or len(data) < 2:
        return [data]
    if seed == 1 and len(data) < 400:
        return harness.single_bytes(data)
    dice = random.Random(seed)
    cuts = sorted(dice.randrange(len(data)) for _ in range(dice.randrange(1, 9)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)])]


def ticking() -> Callable[[], float]:
    """A clock that is a second later each time, so that an answer takes its time."""
    return functools.partial(next, itertools.count(0.0, 1.0))


# -- What holds for every value -------------------------------------------------------------------


def check_value(value: Any) -> None:
    """It can be shown, hashed, pickled, and written as JSON and read again."""
    repr(value)
    assert pickle.loads(pickle.dumps(value)) == value
    text = json.dumps(value.to_dict(), allow_nan=False)
    again = type(value).from_dict(json.loads(text))
    assert again == value
    assert hash(again) == hash(value)
    assert json.dumps(again.to_dict(), allow_nan=False) == text


def check_completion(completion: svir.Completion) -> None:
    check_value(completion)
    json.dumps(completion.to_dict(), ensure_ascii=False).encode("utf-8")
    if completion.timing is not None:
        rate = completion.timing.tokens_per_second
        assert rate is None or rate >= 0
    check_value(completion.message)
    for call in (*completion.tool_calls, *completion.partial_tool_calls, completion):
        try:
            call.parse()
        except ValueError:
            pass
    if completion.finish_reason is not None:  # it can be the next turn
        body = svir.encode(svir.Request("m", [completion.message], send_reasoning=True))
        check_body(body)


def check_body(body: svir.Body) -> None:
    data = bytes(body)
    assert len(data) == body.length
    json.loads(data.decode("utf-8"))


def check_error(error: svir.Error) -> None:
    """What may be logged holds nothing a server chose but printable ASCII, and no key."""
    assert str(error).isascii()
    assert str(error).isprintable()
    shown = f"{error!r} {error.server_message} {vars(error)!r}"
    assert KEY not in shown
    assert error.server_message is None or len(error.server_message) <= 4096
    (error.server_message or "").encode("utf-8")
    assert error.retry_after is None or 0 <= error.retry_after < float("inf")
    if error.partial is not None:
        assert error.partial.finish_reason is None
        check_value(error.partial)
    again = pickle.loads(pickle.dumps(error))
    assert vars(again) == vars(error)


# -- decoder --------------------------------------------------------------------------------------


def decoder(data: bytes) -> None:
    """The bytes of an answer: three bytes of settings, then the body."""
    if len(data) < 3:
        return
    flags, names, seed, body = data[0], data[1], data[2], data[3:]
    options = {
        "strict": not flags & 1,
        "think": THINK[flags >> 1 & 3],
        "limits": SMALL if flags & 8 else None,
        "accept": {name for bit, name in enumerate(ACCEPT) if names >> bit & 1},
        "clock": ticking(),
    }
    clean = not flags & 16
    pieces = cut(body, seed)
    run = harness.decode(pieces, clean=clean, **options)
    check_run(run, body)
    again = harness.decode_late if seed % 4 == 3 else harness.decode
    assert again([body], clean=clean, **options).key() == run.key(), pieces
    assert decode_plainly(body, clean, options).key() == run.key()


def decode_plainly(body: bytes, clean: bool, options: dict[str, Any]) -> harness.Run:
    """Without the fast path for repeated chunks."""
    plain = svir.Decoder(**options)
    plain._frames.stop()
    events: list[svir.Event] = []
    error = harness.drain(plain.feed(body), events)
    if error is None:
        error = harness.drain(plain.finish(clean=clean), events)
    return harness.Run(events, error, plain.quirks)


def check_run(run: harness.Run, body: bytes) -> None:
    harness.outcome(run)  # and so it agrees with itself
    if run.error is not None:
        check_error(run.error)
        return
    completion = run.events[-1].completion  # type: ignore[union-attr]
    check_completion(completion)
    check_end(completion, body)


def check_end(completion: svir.Completion, body: bytes) -> None:
    """An answer is whole only after a finish and [DONE], or by the name of what replaces them."""
    quirks = completion.quirks
    assert b"[DONE]" in body or "end-without-done" in quirks or "not-streamed" in quirks
    # JSON may spell a key with escapes; a filter's block is a finish of its own (C6b, D35).
    told = b"finish_reason" in body or b"\\u" in body or b"filtered" in body
    assert told or "done-without-finish" in quirks


# -- errors ---------------------------------------------------------------------------------------


class Answer:
    """An `HttpResponse` that gives its pieces, then ends as it was told to."""

    def __init__(
        self, status: int, headers: Mapping[str, str], pieces: list[bytes], end: int
    ) -> None:
        self.status, self.headers, self.end = status, headers, end
        self.pieces = [piece for piece in pieces if piece]

    def read(self, size: int, timeout: float | None) -> bytes:
        if self.pieces:
            return self.pieces.pop(0)
        if self.end == 1:
            raise svir.Truncated("the connection ended inside the body")
        if self.end == 2:
            raise svir.Disconnected("the connection broke inside the answer: reset")
        if self.end == 3:
            raise svir.Timeout("nothing came in time")
        return b""

    def close(self) -> None:
        pass


class Stub:
    """A `Backend` that always answers the same."""

    def __init__(self, make: Callable[[], Answer]) -> None:
        self.make, self.asked = make, 0

    def send(self, request: svir.HttpRequest) -> svir.HttpResponse:
        self.asked += 1
        assert self.asked <= 3, "a refusal is answered twice, at most (D11, Q5)"
        if request.body is not None:
            check_body(request.body)
        return self.make()


def errors(data: bytes) -> None:
    """Any status and headers: four bytes of settings, headers by lines, a NUL, the body."""
    if len(data) < 4:
        return
    flags, seed = data[0], data[3]
    status = 200 + (data[1] << 8 | data[2]) % 400
    head, _, body = data[4:].partition(b"\0")
    headers = dict(header_lines(head))
    if flags & 32:
        headers["content-encoding"] = "gzip" if flags & 64 else "deflate"
        packer = zlib.compressobj(6, zlib.DEFLATED, 31 if flags & 64 else 15)
        body = packer.compress(body) + packer.flush()
    end = flags >> 3 & 3

    def outcome(pieces: list[bytes]) -> Any:
        backend = Stub(lambda: Answer(status, headers, list(pieces), end))
        return call_client(backend, flags)

    whole, split = outcome([body]), outcome(cut(body, seed))
    # zlib gives nothing of the piece that is broken: of such a body the cuts decide what is lost.
    if flags & 32 or "content-encoding" not in headers:
        assert whole == split, (whole, split)


def header_lines(head: bytes) -> Iterator[tuple[str, str]]:
    for line in head.decode("iso-8859-1").split("\n"):
        name, _, value = line.partition(":")
        yield name.strip().lower(), value.strip()


def call_client(backend: svir.Backend, flags: int) -> Any:
    """What a call came to, in words that can be compared."""
    options: dict[str, Any] = {"strict": not flags & 4}
    if flags & 128:
        options["accept"] = {"any-content-type"}
    client = svir.Client("http://localhost", api_key=KEY, backend=backend, **options)
    try:
        if flags & 3 == 0:
            models = client.list_models()
            for model in models:
                check_value(model)
            return models
        if flags & 3 == 1:
            with client.send(REQUEST) as raw:
                return raw.status, dict(raw.headers), b"".join(raw)
        completion = client.complete(REQUEST)
        check_completion(completion)
        return completion
    except svir.Error as error:
        check_error(error)
        return told(error)


def told(error: svir.Error) -> Any:
    """What the cuts may not change. What is no stream, or no HTTP, is told by its first bytes."""
    words = error.server_message if error.status is not None else None
    said = "no HTTP" if re.search("is not HTTP|speaks TLS", str(error)) else str(error)
    return error.kind, said, error.status, words, error.quirks


# -- http -----------------------------------------------------------------------------------------


class FakeSocket:
    """What `_Connection` asks of a socket, over bytes in memory."""

    family = None

    def __init__(self, pieces: list[bytes], broken: bool) -> None:
        self.pieces, self.broken = [piece for piece in pieces if piece], broken

    def gettimeout(self) -> float | None:
        return None

    def settimeout(self, seconds: float | None) -> None:
        pass

    def send(self, data: Any) -> int:
        return len(data)

    def recv(self, size: int, flags: int = 0) -> bytes:
        if not self.pieces:
            if self.broken:
                raise ConnectionResetError(104, "Connection reset by peer")
            return b""
        piece = self.pieces.pop(0)
        if len(piece) > size:
            self.pieces.insert(0, piece[size:])
        return piece[:size]

    def shutdown(self, how: int) -> None:
        pass

    def close(self) -> None:
        self.pieces = []


class FakeBackend(svir.HttpBackend):
    """svir's own HTTP, on a connection that is only bytes."""

    def __init__(self, pieces: list[bytes], broken: bool) -> None:
        super().__init__(keep_alive=False)
        self.sock = FakeSocket(pieces, broken)

    def _connect(self, where: Any, request: Any) -> Any:
        return svir._Connection(self.sock, where, self._pool)  # type: ignore[arg-type]


def http(data: bytes) -> None:
    """All that a server sends on a connection: two bytes of settings, then head and body."""
    if len(data) < 2:
        return
    flags, seed, sent = data[0], data[1], data[2:]
    broken = bool(flags & 16)
    whole = exchange([sent], broken, flags)
    split = exchange(cut(sent, seed), broken, flags)
    if b"content-encoding" not in sent.lower():  # see above
        assert whole == split, (whole, split)


def exchange(pieces: list[bytes], broken: bool, flags: int) -> Any:
    backend = FakeBackend(pieces, broken)
    if flags & 1:
        return call_client(backend, flags | 2)
    with svir.Client("http://localhost", api_key=KEY, backend=backend) as client:
        got = b""
        try:
            with client.send(svir.Request("m", "Hi")) as raw:
                headers, status = dict(raw.headers), raw.status
                for piece in raw:
                    got += piece
        except svir.Error as error:
            check_error(error)
            return got, told(error)
    check_framing(headers, got)
    return status, headers, got


def check_framing(headers: dict[str, str], body: bytes) -> None:
    """A body that ended well has the length that was promised."""
    length = headers.get("content-length", "").partition(",")[0].strip()
    if length and headers.get("transfer-encoding", "").lower() != "chunked":
        assert len(body) in (int(length), 0)  # 0: a status that has no body


# -- dicts ----------------------------------------------------------------------------------------

CLASSES: list[Any] = [
    svir.Request, svir.Completion, svir.User, svir.Assistant, svir.ToolResult, svir.Image,
    svir.TextFile, svir.ToolCall, svir.Reasoning, svir.Tool, svir.NamedTool, svir.JsonSchema,
    svir.Usage, svir.Timing, svir.Limits, svir.Model, svir.TextDelta, svir.ReasoningDelta,
    svir.ToolCallDelta, svir.Completed,
]  # fmt: skip
READERS: list[Callable[[Any], Any]] = [
    svir.message_from_dict, svir.event_from_dict, *(cls.from_dict for cls in CLASSES)
]  # fmt: skip


def dicts(data: bytes) -> None:
    """Any JSON as any dict form: one byte chooses the reader."""
    if not data:
        return
    try:
        form = json.loads(data[1:].decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return
    try:
        value = READERS[data[0] % len(READERS)](form)
    except svir.ConfigError:
        return
    check_value(value)
    if isinstance(value, svir.Request) and not reads_files(value):
        try:
            check_body(svir.encode(value))
        except svir.Error:
            pass


def reads_files(request: svir.Request) -> bool:
    parts = [p for m in request.messages if isinstance(m, svir.User) for p in m.parts]
    return any(
        (isinstance(part, svir.Image) and part.path is not None)
        or (isinstance(part, svir.TextFile) and part.text is None)
        for part in parts
    )


TARGETS: dict[str, Callable[[bytes], None]] = {
    "decoder": decoder,
    "errors": errors,
    "http": http,
    "dicts": dicts,
}
