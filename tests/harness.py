"""What the data-driven tests share: cases, outcomes as in cases/CASES.md, and a raw server."""

from __future__ import annotations

import hashlib
import json
import pathlib
import socket
import threading
import time
from typing import Any, Dict, Iterable, NamedTuple, Sequence

import svir

HERE = pathlib.Path(__file__).resolve().parent
CASES = HERE / "cases"
RECORDINGS = HERE / "recordings"

Outcome = Dict[str, Any]

# -- Cases ----------------------------------------------------------------------------------------

CASE_KEYS = {
    "accept", "harness", "lenient", "limits", "note", "parse", "quirks_in_order", "requests",
    "resend", "scenes", "strict", "think",
}  # fmt: skip
COMPLETED_KEYS = {
    "extra", "extra_lacks", "finish_reason", "id", "model", "outcome", "partial_tool_calls",
    "quirks", "reasoning", "text", "tool_calls", "usage",
}  # fmt: skip
ERROR_KEYS = {
    "kind", "late_quirks", "message_contains", "message_lacks", "outcome", "quirks", "reasoning",
    "retry_after", "retryable", "server_message", "status", "text", "unsent",
}  # fmt: skip


class Mode(NamedTuple):
    """One way to run a case: options for the decoder or the client, and what must come out."""

    name: str
    options: dict[str, Any]
    expected: Outcome


class Case(NamedTuple):
    name: str
    data: bytes
    spec: dict[str, Any]

    def modes(self) -> list[Mode]:
        base: dict[str, Any] = {}
        if "limits" in self.spec:
            base["limits"] = svir.Limits(**self.spec["limits"])
        strict = self.spec["strict"]
        modes = [
            Mode("strict", base, strict),
            Mode("lenient", dict(base, strict=False), self.spec.get("lenient", strict)),
        ]
        for name, expected in self.spec.get("accept", {}).items():
            modes.append(Mode("accept-" + name, dict(base, accept={name}), expected))
        for name, expected in self.spec.get("think", {}).items():
            modes.append(Mode("think-" + name, dict(base, think=name), expected))
        return modes


def load_case(path: pathlib.Path) -> Case:
    spec = json.loads((path.parent / (path.stem + ".expected.json")).read_text("utf-8"))
    unknown = set(spec) - CASE_KEYS
    assert not unknown, f"{path.name}: keys no test reads: {sorted(unknown)}"
    return Case(path.stem, path.read_bytes(), spec)


def cases(suffix: str) -> list[Case]:
    found = [load_case(path) for path in sorted(CASES.glob("*" + suffix))]
    assert found, f"no {suffix} case in {CASES}"
    return found


def table(number: int) -> dict[str, Any]:
    """The one table of that number in tests/cases."""
    (path,) = CASES.glob(f"{number}-*.json")
    value: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return value


def table_rows(number: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table(number)["rows"]
    return rows


# -- Running the decoder --------------------------------------------------------------------------


class Run(NamedTuple):
    """What came out, in order: the events, then the error if there was one."""

    events: list[svir.Event]
    error: svir.Error | None
    quirks: tuple[str, ...] = ()

    def key(self) -> tuple[Any, ...]:
        """All that may not depend on where the bytes were cut."""
        error = self.error
        if error is None:
            return (self.events, self.quirks)
        what = (error.kind, str(error), error.server_message, error.quirks, error.partial)
        return (self.events, self.quirks, what)


def drain(events: Iterable[svir.Event], into: list[svir.Event]) -> svir.Error | None:
    """Append the events; give back the error they end in. Only svir's own errors may come."""
    try:
        for event in events:
            into.append(event)
    except svir.Error as error:
        return error
    return None


def decode(pieces: Iterable[bytes], *, clean: bool = True, **options: Any) -> Run:
    """Feed piece by piece, reading each returned iterator at once, then finish.

    After the end the rest is fed as well: nothing may come of it (P9).
    """
    decoder = svir.Decoder(**options)
    events: list[svir.Event] = []
    for piece in pieces:
        error = drain(decoder.feed(piece), events)
        if error is not None:
            return Run(events, error, decoder.quirks)
    error = drain(decoder.finish(clean=clean), events)
    return Run(events, error, decoder.quirks)


def decode_late(pieces: Iterable[bytes], *, clean: bool = True, **options: Any) -> Run:
    """Feed everything and call finish() first, and read the returned iterators only then."""
    decoder = svir.Decoder(**options)
    iterators = [decoder.feed(piece) for piece in pieces]
    events: list[svir.Event] = []
    for iterator in iterators:
        error = drain(iterator, events)
        if error is not None:
            return Run(events, error, decoder.quirks)
    error = drain(decoder.finish(clean=clean), events)
    return Run(events, error, decoder.quirks)


def single_bytes(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


# -- Outcomes -------------------------------------------------------------------------------------


def _by_source(pairs: Iterable[tuple[str, str]]) -> list[list[str]]:
    texts: dict[str, str] = {}
    for source, text in pairs:
        texts[source] = texts.get(source, "") + text
    return [[source, text] for source, text in texts.items()]


def _calls(calls: Sequence[svir.ToolCall]) -> list[dict[str, Any]]:
    return [
        {"id": c.id, "name": c.name, "arguments": c.arguments, "extra": dict(c.extra or {})}
        for c in calls
    ]


def _usage(usage: svir.Usage | None) -> dict[str, int] | None:
    if usage is None:
        return None
    counts = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }
    if usage.reasoning_tokens is not None:
        counts["reasoning_tokens"] = usage.reasoning_tokens
    return counts


def given_out(events: Iterable[svir.Event]) -> tuple[str, list[list[str]]]:
    """The text and the reasoning (one text for each source) that the events carried."""
    text = ""
    pairs = []
    for event in events:
        if isinstance(event, svir.TextDelta):
            text += event.text
        elif isinstance(event, svir.ReasoningDelta):
            pairs.append((event.source, event.text))
    return text, _by_source(pairs)


def outcome(run: Run) -> Outcome:
    """A run in the vocabulary of CASES.md, after checking that it agrees with itself."""
    check_events(run.events)
    text, reasoning = given_out(run.events)
    if run.error is not None:
        check_error(run.error, text, reasoning)
        return {
            "outcome": "error",
            "kind": run.error.kind,
            "text": text,
            "reasoning": reasoning,
            "quirks": list(run.error.quirks),
            "message": str(run.error),
            "server_message": run.error.server_message,
            "status": run.error.status,
            "retryable": run.error.retryable,
            "retry_after": run.error.retry_after,
            "unsent": run.error.unsent,
        }
    assert run.events, "neither an event nor an error"
    last = run.events[-1]
    assert isinstance(last, svir.Completed), "neither Completed nor an error"
    check_completion(last.completion, run.events, text, reasoning)
    done = last.completion
    return {
        "outcome": "completed",
        "text": done.text,
        "finish_reason": done.finish_reason,
        "reasoning": reasoning,
        "tool_calls": _calls(done.tool_calls),
        "partial_tool_calls": _calls(done.partial_tool_calls),
        "quirks": list(done.quirks),
        "usage": _usage(done.usage),
        "id": done.id,
        "model": done.model,
        "extra": dict(done.extra),
    }


def check_events(events: Sequence[svir.Event]) -> None:
    """What holds for every stream: no empty piece, only whole characters, Completed only last."""
    seen = 0
    for position, event in enumerate(events):
        if isinstance(event, (svir.TextDelta, svir.ReasoningDelta)):
            assert event.text, f"an empty piece: {event!r}"
            event.text.encode("utf-8")
        elif isinstance(event, svir.ToolCallDelta):
            assert 0 <= event.index <= seen, f"index {event.index} after {seen} calls (T3)"
            seen = max(seen, event.index + 1)
            (event.arguments or "").encode("utf-8")
        else:
            assert isinstance(event, svir.Completed)
            assert position == len(events) - 1, "events after Completed (P9)"


def check_error(error: svir.Error, text: str, reasoning: list[list[str]]) -> None:
    """`partial` holds exactly what was given out, and no call that could be run."""
    partial = error.partial
    if partial is None:
        assert (text, reasoning) == ("", []), "given out, but not in error.partial"
        return
    assert partial.text == text, "error.partial.text is not what was given out"
    kept = _by_source((r.source, r.text) for r in partial.reasoning)
    assert sorted(kept) == sorted(reasoning), "error.partial.reasoning is not what was given out"
    assert partial.finish_reason is None
    assert not partial.tool_calls, "calls are released only on completion (D5)"


def check_completion(
    done: svir.Completion, events: Sequence[svir.Event], text: str, reasoning: list[list[str]]
) -> None:
    """The completion is the sum of the events."""
    assert done.text == text, "the completion's text is not what was given out"
    kept = [[r.source, r.text] for r in done.reasoning]
    assert sorted(kept) == sorted(reasoning), "the completion's reasoning is not that given out"
    pieces: dict[int, str] = {}
    for event in events:
        if isinstance(event, svir.ToolCallDelta):
            pieces[event.index] = pieces.get(event.index, "") + (event.arguments or "")
    calls = [*done.tool_calls, *done.partial_tool_calls]
    assert sorted(pieces.values()) == sorted(c.arguments for c in calls)
    assert not (done.tool_calls and done.partial_tool_calls)
    assert bool(done.tool_calls) == (done.finish_reason == "tool_calls")


# -- Comparing ------------------------------------------------------------------------------------


def differences(got: Outcome, expected: Outcome, *, in_order: bool = False) -> list[str]:
    """What CASES.md's Format section asks of an outcome and does not find. Empty when it fits."""
    if got["outcome"] != expected["outcome"]:
        return [f"outcome: {got!r} instead of {expected['outcome']}"]
    completed = expected["outcome"] == "completed"
    unknown = set(expected) - (COMPLETED_KEYS if completed else ERROR_KEYS)
    assert not unknown, f"keys no test reads: {sorted(unknown)}"
    compare = _completed_differences if completed else _error_differences
    found = compare(got, expected)
    found += _quirk_differences(got, expected, in_order)
    return [f"{what} (of {got!r})" for what in found]


def _exact(got: Outcome, expected: Outcome, defaults: dict[str, Any]) -> list[str]:
    return [
        f"{key}: {got[key]!r} instead of {expected.get(key, default)!r}"
        for key, default in defaults.items()
        if not same(got[key], expected.get(key, default))
    ]


def _given(got: Outcome, expected: Outcome, keys: Iterable[str]) -> list[str]:
    return [
        f"{key}: {got[key]!r} instead of {expected[key]!r}"
        for key in keys
        if key in expected and not same(got[key], expected[key])
    ]


def same(got: Any, expected: Any) -> bool:
    """Equal, and of one type: True is not 1, and 2.0 seconds are 2."""
    if isinstance(got, bool) or isinstance(expected, bool):
        return got is expected
    return bool(got == expected)


def _completed_differences(got: Outcome, expected: Outcome) -> list[str]:
    found = _exact(got, expected, {"text": "", "finish_reason": None, "usage": None})
    found += _given(got, expected, ["id", "model"])
    if sorted(got["reasoning"]) != sorted(_by_source(expected.get("reasoning", []))):
        found.append(f"reasoning: {got['reasoning']!r}")
    for key in ("tool_calls", "partial_tool_calls"):
        wanted = expected.get(key, [])
        if not _calls_fit(got[key], wanted):
            found.append(f"{key}: {got[key]!r} instead of {wanted!r}")
    for key, value in expected.get("extra", {}).items():
        if not (key in got["extra"] and got["extra"][key] == value):
            found.append(f"extra[{key!r}]: {got['extra'].get(key)!r} instead of {value!r}")
    for key in expected.get("extra_lacks", []):
        if key in got["extra"]:
            found.append(f"extra has {key!r}")
    return found


def _calls_fit(got: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> bool:
    if len(got) != len(wanted):
        return False
    for call, want in zip(got, wanted):
        arguments = want["arguments"]
        if isinstance(arguments, dict):
            raw = call["arguments"].encode("utf-8")
            digest = hashlib.sha256(raw).hexdigest()
            if (len(raw), digest) != (arguments["length"], arguments["sha256"]):
                return False
        elif call["arguments"] != arguments:
            return False
        if (call["id"], call["name"]) != (want["id"], want["name"]):
            return False
        if call["extra"] != want.get("extra", {}):
            return False
    return True


def _error_differences(got: Outcome, expected: Outcome) -> list[str]:
    kinds = expected["kind"]
    kinds = kinds if isinstance(kinds, list) else [kinds]
    found = [] if got["kind"] in kinds else [f"kind: {got['kind']} instead of {kinds}"]
    found += _exact(got, expected, {"text": ""})
    if sorted(got["reasoning"]) != sorted(_by_source(expected.get("reasoning", []))):
        found.append(f"reasoning: {got['reasoning']!r}")
    keys = ["server_message", "status", "retryable", "retry_after", "unsent"]
    found += _given(got, expected, keys)
    for words in listed(expected.get("message_contains", [])):
        if words not in got["message"]:
            found.append(f"message lacks {words!r}")
    for words in listed(expected.get("message_lacks", [])):
        if words in got["message"]:
            found.append(f"message has {words!r}")
    return found


def listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _quirk_differences(got: Outcome, expected: Outcome, in_order: bool) -> list[str]:
    quirks, wanted = got["quirks"], expected.get("quirks", [])
    if len(set(quirks)) != len(quirks):
        return [f"a quirk twice: {quirks}"]
    if in_order and quirks != wanted:
        return [f"quirks: {quirks} instead of {wanted}, in this order"]
    late = set(expected.get("late_quirks", []))
    if not set(wanted) <= set(quirks) <= set(wanted) | late:
        return [f"quirks: {quirks} instead of {wanted}, late {sorted(late)}"]
    return []


def check(got: Outcome, expected: Outcome, *, in_order: bool = False) -> None:
    found = differences(got, expected, in_order=in_order)
    assert not found, "\n".join(found)


# -- A raw server ---------------------------------------------------------------------------------


def check_bytes_that_are_not_utf8(client: svir.Client, request: svir.Request) -> None:
    """llama-server has an error inside the stream for them; newer releases say U+FFFD."""
    failure, stream = None, client.stream(request)
    try:
        stream.result()
    except svir.ServerError as error:
        failure = error
    if failure is None:
        assert stream.completion.text == "bad \ufffd tail"
        return
    assert failure.in_stream
    assert failure.partial is not None
    assert failure.partial.text == "bad "
    assert failure.server_message


class Received(NamedTuple):
    """One request as it came."""

    line: str
    headers: dict[str, str]
    body: bytes
    at: float  # time.monotonic() when its first byte was there

    def json(self) -> Any:
        return json.loads(self.body.decode("utf-8"))


class RawServer:
    """Answers every connection on a loopback port with given bytes, and keeps what was asked.

    `one_byte` sends them one at a time, `delay` waits before the first, and `hold_open` keeps the
    connection open until the client ends it.
    """

    def __init__(
        self,
        *answers: bytes,
        one_byte: bool = False,
        delay: float = 0.0,
        hold_open: bool = False,
        host: str = "127.0.0.1",
        ssl_context: Any = None,
    ) -> None:
        self._answers = answers or (b"",)
        self._one_byte, self._delay, self._hold_open = one_byte, delay, hold_open
        self._ssl_context = ssl_context
        self.requests: list[Received] = []
        self.connections = 0
        self._failures: list[BaseException] = []
        self._closing = threading.Event()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind((host, 0))
        self._listener.listen(8)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> RawServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self._closing.set()
        with socket.socket(self._listener.family, socket.SOCK_STREAM) as wake:
            wake.settimeout(5)
            wake.connect(self._listener.getsockname())  # ends accept() on every platform
        self._thread.join(10)
        self._listener.close()
        assert not self._thread.is_alive(), "the server thread did not end"
        assert not self._failures, self._failures

    def _serve(self) -> None:
        while True:
            conn, _ = self._listener.accept()
            with conn:
                if self._closing.is_set():
                    return
                self.connections += 1
                try:
                    self._answer(conn)
                except OSError:  # the client went away: its right
                    pass
                except BaseException as error:  # shown by __exit__
                    self._failures.append(error)

    def _answer(self, conn: socket.socket) -> None:
        conn.settimeout(10)
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._ssl_context is not None:
            with self._ssl_context.wrap_socket(conn, server_side=True) as secure:
                self._exchange(secure)
        else:
            self._exchange(conn)

    def _exchange(self, conn: socket.socket) -> None:
        request = receive(conn)
        if request is None:
            return
        number = len(self.requests)
        self.requests.append(request)
        self._closing.wait(self._delay)
        data = self._answers[min(number, len(self._answers) - 1)]
        for piece in single_bytes(data) if self._one_byte else [data]:
            conn.sendall(piece)
        if self._hold_open:
            self._wait_for_the_client(conn)

    def _wait_for_the_client(self, conn: socket.socket) -> None:
        conn.settimeout(0.05)
        while not self._closing.is_set():
            try:
                if not conn.recv(1024):
                    return
            except socket.timeout:
                continue


def receive(conn: socket.socket) -> Received | None:
    """One request, its body by Content-Length; None when the client closed before it was whole."""
    data, at = b"", 0.0
    while b"\r\n\r\n" not in data:
        piece = conn.recv(65536)
        if not piece:
            return None
        at = at or time.monotonic()
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    line, *fields = head.decode("latin-1").split("\r\n")
    headers = {}
    for field in fields:
        name, _, value = field.partition(":")
        headers[name.strip().lower()] = value.strip()
    while len(body) < int(headers.get("content-length", "0")):
        piece = conn.recv(65536)
        if not piece:
            return None
        body += piece
    return Received(line, headers, body, at)


# -- Running the client ---------------------------------------------------------------------------

REQUEST = svir.Request("m", "Hi")


def ask(url: str, request: svir.Request = REQUEST, **settings: Any) -> Run:
    """One call of a new client, as a run."""
    with svir.Client(url, **settings) as client, client.stream(request) as stream:
        events: list[svir.Event] = []
        error = drain(stream, events)
        return Run(events, error)


def http_answer(
    status: int, headers: dict[str, str], body: bytes = b"", reason: str = "Status"
) -> bytes:
    """A whole response with a Content-Length, unless the headers frame it already."""
    lines = [f"HTTP/1.1 {status} {reason}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if not {"content-length", "transfer-encoding"} & {name.lower() for name in headers}:
        lines.append(f"Content-Length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


def sse(*chunks: Any, done: bool = True) -> bytes:
    """A stream body: each chunk as one event."""
    events = [b"data: " + json.dumps(chunk).encode("ascii") + b"\n\n" for chunk in chunks]
    return b"".join(events) + (b"data: [DONE]\n\n" if done else b"")


def chunk(delta: Any = None, finish: Any = None, **top: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return dict({"id": "c1", "model": "m", "choices": [choice]}, **top)


GOOD_BODY = sse(chunk({"content": "Hi there"}), chunk(finish="stop"))
GOOD_HEADERS = {"Content-Type": "text/event-stream", "Connection": "close"}
GOOD_ANSWER = http_answer(200, GOOD_HEADERS, GOOD_BODY, "OK")
