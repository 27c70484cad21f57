"""Test an application that talks to a model: with a scripted server, or with no server at all.

`MockServer` is a real HTTP/1.1 server on the loopback interface. It sends what the test queued and
nothing else, on plain sockets, so that it can also do everything wrong: cut, reset, stall, answer
early, send any bytes. `text_answer` and its neighbours build the steps of one answer.

    with MockServer() as server:
        server.reply(status=429, headers={"retry-after": "0"})
        server.reply(text_answer("Hel", 0.5, "lo"))
        client = svir.Client(server.url)

`recorded` replays what a real server sent; `CUT`, `RESET`, `STALL` and `GARBAGE` are steps that go
wrong at their place. `scripted` is a layer that answers in place of a server. With pytest,
`pytest_plugins = ["svir_ext.pytest_plugin"]` in conftest.py gives the fixture `mock_server`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import socket
import struct
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, Iterator, Union

import svir

if TYPE_CHECKING:
    import ssl
    from typing import BinaryIO, Mapping

__all__ = [
    "CUT", "DONE", "GARBAGE", "RESET", "STALL", "Fault", "MockRequest", "MockServer", "Reply",
    "error_event", "every_split", "recorded", "refusal_answer", "scripted", "scripted_turns",
    "sse", "text_answer", "tool_answer",
]  # fmt: skip

DONE = b"data: [DONE]\n\n"


class Fault:
    """A step where an answer breaks off: `CUT`, `RESET` or `STALL`. No step after it is sent."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


CUT = Fault("CUT")
"""The connection is closed here, in the middle of the body."""
RESET = Fault("RESET")
"""The connection is reset here: the client sees it break."""
STALL = Fault("STALL")
"""Nothing comes from here on, and the connection stays open."""
GARBAGE = b"data: {\xff\xfe not JSON, not even UTF-8\n\n"
"""An event that nobody can read. Any other bytes are a step as well."""

# What a reply is made of; `Reply` says what each means.
Step = Union[bytes, str, float, threading.Event, Fault, Dict[str, Any], Iterable[Any]]


# -- Answers, as the bytes a server sends ---------------------------------------------------------


def sse(data: object, *, event: str | None = None) -> bytes:
    """One SSE event: text as it is, anything else as JSON, in raw UTF-8 that a split can hit."""
    if not isinstance(data, str):
        data = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    head = "" if event is None else f"event: {event}\n"
    return (head + "".join(f"data: {line}\n" for line in data.split("\n")) + "\n").encode()


def error_event(message: str, *, event: str | None = None, **fields: object) -> bytes:
    """An error inside the stream; `event="error"` is LM Studio's way. `fields`: `code`, ..."""
    return sse({"error": {"message": message, **fields}}, event=event)


def text_answer(
    *texts: str | float | bytes | threading.Event | Fault,
    finish_reason: str | None = "stop",
    reasoning: str | None = None,
    **rest: Any,
) -> list[Any]:
    """A streamed answer, one event for each text, `[DONE]` included.

    Between the texts may be seconds to pause, bytes to send as they are, a `threading.Event` to
    wait for, or a `Fault`: `text_answer("Hel", CUT, "lo")`. `finish_reason=None` leaves the finish
    out. `rest` is `usage` as (prompt tokens, completion tokens), `model` and `id`.
    """
    deltas: list[Any] = [{"role": "assistant", "content": ""}]
    if reasoning is not None:
        deltas.append({"reasoning_content": reasoning})
    deltas += [{"content": text} if isinstance(text, str) else text for text in texts]
    return _answer(deltas, finish_reason, **rest)


def tool_answer(
    *calls: tuple[str, dict[str, Any] | str],
    pieces: int = 2,
    finish_reason: str | None = "tool_calls",
    **rest: Any,
) -> list[Any]:
    """A streamed answer of calls: (name, arguments as a dict or raw text), with ids call-1, ...

    An event names the call, then its arguments follow in at most `pieces` events. `rest` is as in
    `text_answer`.
    """
    deltas: list[Any] = [{"role": "assistant", "content": None}]
    for index, (name, given) in enumerate(calls):
        raw = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        function = {"name": name, "arguments": ""}
        call = {"index": index, "id": f"call-{index + 1}", "type": "function"}
        deltas.append({"tool_calls": [{**call, "function": function}]})
        size = max(1, -(-len(raw) // pieces))
        for at in range(0, len(raw), size):
            function = {"arguments": raw[at : at + size]}
            deltas.append({"tool_calls": [{"index": index, "function": function}]})
    return _answer(deltas, finish_reason, **rest)


def refusal_answer(*texts: str, **rest: Any) -> list[Any]:
    """A streamed refusal, in OpenAI's form. `rest` is as in `text_answer`."""
    refusals = [{"refusal": text} for text in texts]
    return _answer([{"role": "assistant", "content": None}, *refusals], "stop", **rest)


def _answer(
    deltas: list[Any],
    finish_reason: str | None,
    usage: tuple[int, int] | None = None,
    model: str = "mock",
    id: str = "mock-1",
) -> list[Any]:
    head = {"id": id, "object": "chat.completion.chunk", "created": 0, "model": model}

    def chunk(delta: object, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return sse({**head, "choices": [choice]})

    steps = [chunk(delta) if isinstance(delta, dict) else delta for delta in deltas]
    if finish_reason is not None:
        steps.append(chunk({}, finish_reason))
    if usage is not None:
        names = ("prompt_tokens", "completion_tokens", "total_tokens")
        counts = dict(zip(names, (*usage, sum(usage))))
        steps.append(sse({**head, "choices": [], "usage": counts}))
    return [*steps, DONE]


def recorded(
    path: str | os.PathLike[str], *, piece: int | None = None, pause: float = 0.0
) -> list[Any]:
    """What a server sent, from a file: the body of a stream, byte for byte.

    One step is one event, or `piece` bytes, with `pause` seconds between two. Record one with
    `curl -N`, or with the bytes of `client.send(request)`.
    """
    with open(path, "rb") as file:
        data = file.read()
    if piece is None:
        pieces = re.findall(rb"(?s).+?(?:\r\n\r\n|\n\n|\Z)", data)
    else:
        pieces = [data[at : at + piece] for at in range(0, len(data), piece)]
    steps = [step for each in pieces for step in (pause, each)] if pause else pieces
    return steps[1:] if pause else steps


def every_split(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Every way to cut `data` in two, the two with an empty half included."""
    return ((data[:at], data[at:]) for at in range(len(data) + 1))


# -- Layers that answer ---------------------------------------------------------------------------


def scripted(
    *steps: Any,
    finish_reason: svir.FinishReason | None = None,
    usage: tuple[int, int] | svir.Usage | None = None,
    **fields: Any,
) -> svir.Layer:
    """A layer that answers every request itself: no server, and `call` is never run.

    A step is text, an event, a whole `svir.ToolCall`, seconds to pause, an exception to raise, or
    a `Fault`: `CUT` and `RESET` raise what a client would, `STALL` waits for `close()` or a
    deadline. The completion is put together from the steps, unless one of them is a
    `svir.Completed`. `finish_reason` is by default what a server would say: "tool_calls" when
    there are calls, else "stop". `usage` may be (prompt tokens, completion tokens); `fields` join
    the completion.
    """
    if isinstance(usage, tuple):
        usage = svir.Usage(usage[0], usage[1], sum(usage))

    def layer(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
        seen: list[Any] = []
        for event in _events(steps, call):
            yield event
            if isinstance(event, svir.Completed):
                return
            seen.append(event)
        made = {"model": request.model, "id": "mock-1", "usage": usage, **_collected(seen)}
        if finish_reason is not None:
            made["finish_reason"] = finish_reason
        yield svir.Completed(svir.Completion(**{**made, **fields}))

    return layer


def scripted_turns(*turns: Iterable[Any]) -> svir.Layer:
    """A layer that answers each request with the next turn, an iterable of `scripted`'s steps.

    A request after the last turn raises AssertionError.
    """
    # A deque, because requests may come from several threads and its popleft() is atomic.
    layers = deque(scripted(*turn) for turn in turns)

    def layer(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
        try:
            turn = layers.popleft()
        except IndexError:
            raise AssertionError(f"a request after the last of {len(turns)} turns") from None
        return turn(request, call)

    return layer


def _events(steps: Iterable[Any], call: svir.Call) -> Iterator[svir.Event]:
    calls = 0
    for step in steps:
        if isinstance(step, BaseException):
            raise step
        if step is STALL:
            step = threading.TIMEOUT_MAX
        elif isinstance(step, Fault):
            raise _broken_off(step)
        if isinstance(step, (int, float)):
            call.sleep(step)
            continue
        if isinstance(step, str):
            step = svir.TextDelta(step)
        elif isinstance(step, svir.ToolCall):
            step = svir.ToolCallDelta(calls, step.id, step.name, step.arguments)
        if isinstance(step, svir.ToolCallDelta):
            calls = max(calls, step.index + 1)
        yield step


def _broken_off(fault: Fault) -> svir.Error:
    broken = svir.Truncated if fault is CUT else svir.Disconnected
    error = broken(f"the script has {fault} here")
    error.in_stream = True
    return error


def _collected(events: list[Any]) -> dict[str, Any]:
    """The completion's fields that the events add up to."""
    text = ""
    reasoning: dict[str, str] = {}
    calls: dict[int, tuple[str, str, str]] = {}
    for event in events:
        if event.type == "text":
            text += event.text
        elif event.type == "reasoning":
            reasoning[event.source] = reasoning.get(event.source, "") + event.text
        else:
            # The id comes once; name and arguments add up.
            id, name, arguments = calls.get(event.index, ("", "", ""))
            whole = (id or event.id, name + event.name, arguments + event.arguments)
            calls[event.index] = whole
    return {
        "text": text,
        "reasoning": [svir.Reasoning(text, source) for source, text in reasoning.items()],
        "tool_calls": [svir.ToolCall(*calls[index]) for index in sorted(calls)],
        "finish_reason": "tool_calls" if calls else "stop",
    }


# -- Requests and replies of the server -----------------------------------------------------------


class MockRequest:
    """One request as received. Header names are lower-case; `connection` counts from 1."""

    def __init__(self, method: str, path: str, headers: dict[str, str], connection: int) -> None:
        self.method, self.path, self.headers = method, path, headers
        self.connection, self.body = connection, b""

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lists_models(self) -> bool:
        return self.method == "GET" and self.path.partition("?")[0].endswith("/models")

    def __repr__(self) -> str:
        return f"<MockRequest {self.method} {self.path}, {len(self.body)} bytes>"


class Reply:
    """One answer: its steps, and what to get wrong.

    A step is bytes (one HTTP chunk), text, seconds to pause, a `threading.Event` to wait for, a
    dict (sent as JSON), a `Fault`, or an iterable of these, such as `text_answer(...)`. The end of
    the body leaves with the last bytes, unless a pause comes after them.

    - `headers`: replace the server's own by name; None leaves one out.
    - `content_type`: by default an event stream for a 200 without a dict, else JSON.
    - `framing`: "chunked" (the default for a 200), "length" (for the others) or "close".
    - `delay`: seconds before the first byte.
    - `hang`: after the steps the body stays open, until the client leaves or the server closes.
    - `cut`: after the steps the connection is closed, in the middle of the body.
    - `reset`: the same with a TCP reset: the client sees a broken connection and not an end.
    - `raw`: the steps are every byte, status line included. Then the connection is closed, or
      hangs. With no steps that is a server which takes a request and says nothing.
    - `read_body=False`: answer before the request's body is read, then close, as some servers do
      to an upload they refuse. Only a queued reply is that early. With `hang`, never read it.
    - `path`: answer only requests whose path, without its query, ends so. By default: all, except
      that of the model list.
    """

    def __init__(
        self,
        *steps: Step,
        status: int = 200,
        headers: Mapping[str, str | None] | None = None,
        content_type: str | None = None,
        framing: str | None = None,
        delay: float = 0.0,
        hang: bool = False,
        cut: bool = False,
        reset: bool = False,
        raw: bool = False,
        read_body: bool = True,
        path: str | None = None,
    ) -> None:
        self.framing = framing or ("chunked" if status == 200 else "length")
        if self.framing not in ("chunked", "length", "close"):
            raise ValueError(f"framing is chunked, length or close, not {framing!r}")
        stream = status == 200 and not any(isinstance(step, dict) for step in steps)
        self.content_type = content_type or ("text/event-stream" if stream else "application/json")
        self.steps: list[Any] = list(_flat(steps))
        fault = next((step for step in self.steps if isinstance(step, Fault)), None)
        if fault is not None:
            del self.steps[self.steps.index(fault) :]
            hang, cut, reset = hang or fault is STALL, cut or fault is CUT, reset or fault is RESET
        self.status, self.delay, self.path, self.read_body = status, delay, path, read_body
        self.hang, self.reset, self.raw = hang, reset, raw
        self.short = hang or cut or reset
        self.headers = {name.lower(): value for name, value in (headers or {}).items()}

    def matches(self, request: MockRequest) -> bool:
        if self.path is None:
            return not request.lists_models
        return request.path.partition("?")[0].endswith(self.path)

    def head(self, keep_alive: bool) -> dict[str, str]:
        """The headers to send, `keep_alive` being the client's wish. Not for a raw reply."""
        head: dict[str, str | None] = {"content-type": self.content_type}
        if self.framing == "chunked":
            head["transfer-encoding"] = "chunked"
        elif self.framing == "length":
            size = sum(len(step) for step in self.steps if isinstance(step, bytes))
            # A body that stops short has to promise more than it brings.
            head["content-length"] = str(size + self.short)
        if not keep_alive or self.framing == "close" or not self.read_body:
            head["connection"] = "close"
        head.update(self.headers)
        return {name: value for name, value in head.items() if value is not None}

    def parts(self) -> list[Any]:
        """The steps as they are sent, framed."""
        if self.raw or self.framing != "chunked":
            return self.steps
        parts: list[Any] = [
            _chunk(step) if isinstance(step, bytes) else step for step in self.steps
        ]
        if not self.short:
            # The end leaves with the last bytes. A client that is content with `[DONE]` has then
            # read it, so whether it can use the connection again does not depend on luck.
            last = parts.pop() if parts and isinstance(parts[-1], bytes) else b""
            parts.append(last + b"0\r\n\r\n")
        return parts


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""  # an empty one would be the last


def _flat(steps: Iterable[Any]) -> Iterator[bytes | float | threading.Event | Fault]:
    for step in steps:
        if isinstance(step, (str, dict)):
            yield (step if isinstance(step, str) else json.dumps(step)).encode()
        elif isinstance(step, (bytes, int, float, threading.Event, Fault)):
            yield step
        else:
            yield from _flat(step)  # raises TypeError for what is no step at all


def _scripted_reply(steps: tuple[Step, ...], options: dict[str, Any]) -> Reply:
    """A Reply, unless it would send bare text as an event stream: an answer was meant."""
    reply = Reply(*steps, **options)
    texts = [step for step in steps if isinstance(step, str)]
    sent = [step for step in steps if not isinstance(step, (int, float, threading.Event, Fault))]
    chosen = options.get("content_type") or "content-type" in reply.headers or reply.raw
    if texts and texts == sent and reply.content_type == "text/event-stream" and not chosen:
        shown = json.dumps([text[:40] for text in texts[:3]], ensure_ascii=False)[1:-1]
        raise TypeError(f"a str is not an answer: text_answer({shown})")
    return reply


# -- The server -----------------------------------------------------------------------------------


class MockServer:
    """A scripted server at a free port of 127.0.0.1, while its `with` block runs.

    A GET of `.../models` lists one model, "mock", unless a reply is queued for that path. Any
    other request takes the next queued reply; without one, what `on_request(request)` returns;
    without that, the default; without that, a 500 that says so, and `check()` raises.

    `requests` holds what was received, in order; `connections` counts those accepted. An exception
    in a server thread, such as one of `on_request`, is raised again when the block ends; a client
    that leaves early is no error. `tls` is a server-side context; `unix` is the path of a UNIX
    socket to listen on instead of a port.
    """

    def __init__(
        self, *, tls: ssl.SSLContext | None = None, unix: str | os.PathLike[str] | None = None
    ) -> None:
        self.url = ""  # known once the block is entered
        self.requests: list[MockRequest] = []
        self.connections = 0
        self.on_request: Callable[[MockRequest], Reply | None] | None = None
        self._tls, self._unix = tls, None if unix is None else os.fspath(unix)
        self._queue: list[Reply] = []
        self._default: Reply | None = None
        self._models: list[Any] = []
        self.model_list(["mock"])
        self._unscripted: list[MockRequest] = []
        self._failures: list[BaseException] = []
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()  # also the lock of the lists and of the set
        self._closing = threading.Event()

    def reply(self, *steps: Step, **options: Any) -> None:
        """Queue one answer; steps and options are those of `Reply`.

        Raises TypeError for bare text as an event stream, which nobody could read.
        """
        reply = _scripted_reply(steps, options)
        with self._changed:
            self._queue.append(reply)

    def default(self, *steps: Step, **options: Any) -> None:
        """Set the answer to every request that no queued reply is left for; else as `reply`."""
        self._default = _scripted_reply(steps, options)

    def model_list(self, models: Iterable[str | dict[str, Any]]) -> None:
        """Set the models listed, each an id or the whole object."""
        self._models = [{"id": model} if isinstance(model, str) else model for model in models]

    @property
    def pending(self) -> int:
        """Queued replies that no request has taken yet."""
        return len(self._queue)

    @property
    def open_connections(self) -> int:
        """Connections that neither side has closed."""
        return len(self._open)

    def wait_until(self, condition: Callable[[], object], timeout: float = 5.0) -> None:
        """Wait until `condition()`, asked again for each connection opened or closed and request.

        Raises AssertionError after `timeout` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(condition, timeout):
                raise AssertionError(f"not within {timeout} s: {self!r}")

    def check(self) -> None:
        """Raise what failed in a server thread, or AssertionError for requests without a reply."""
        if self._failures:
            raise self._failures[0]
        if self._unscripted:
            raise AssertionError(f"MockServer had no reply for {self._unscripted}")

    def __repr__(self) -> str:
        counts = f"{len(self.requests)} requests, {self.pending} replies pending"
        return f"<MockServer {self.url}, {counts}, {self.open_connections} connections open>"

    def __enter__(self) -> MockServer:
        scheme = "http" if self._tls is None else "https"
        if self._unix is not None:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(self._unix)
            self._listener.listen(128)
            self.url = f"{scheme}://localhost"
        else:
            self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
            self.url = f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        self._acceptor = threading.Thread(target=self._accept, name="MockServer", daemon=True)
        self._acceptor.start()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self._closing.set()
        self._stop_accepting()
        with self._changed:
            for conn in self._open:
                # SSLSocket.shutdown() would drop the TLS layer while the thread reads through it.
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(conn, socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        # An error of the block stays as the context: the client's is often a result of ours.
        if self._failures and (error is None or isinstance(error, Exception)):
            raise self._failures[0]

    def _stop_accepting(self) -> None:
        # accept() wakes on shutdown (Linux) or on one more connection (macOS, Windows).
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError), socket.socket(self._listener.family) as last:
            last.settimeout(1)
            last.connect(self._listener.getsockname())
        self._acceptor.join()
        self._listener.close()
        if self._unix is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._unix)

    def _accept(self) -> None:
        while True:
            try:
                conn, _ = self._listener.accept()
            except ConnectionError:  # it left before it was accepted
                continue
            except OSError as error:
                if not self._closing.is_set():
                    self._failures.append(error)
                return
            if self._closing.is_set():
                conn.close()
                return
            try:
                self._start(conn)
            except OSError:  # it has left since
                conn.close()

    def _start(self, conn: socket.socket) -> None:
        if self._unix is None:
            # A chunk goes out at once. Nagle would hold it until the last one was acknowledged.
            conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            # The handshake waits for the client, so it is the thread's.
            conn = self._tls.wrap_socket(conn, server_side=True, do_handshake_on_connect=False)
        with self._changed:
            self.connections += 1
            self._open.add(conn)
            self._changed.notify_all()
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        args = (conn, self.connections)
        thread = threading.Thread(target=self._serve, args=args, name="MockServer", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _serve(self, conn: Any, number: int) -> None:
        # A failure is noted before the client can see the end: the test may ask for it at once.
        with conn, conn.makefile("rb") as reader:
            try:
                if self._tls is not None:
                    conn.do_handshake()
                while self._exchange(conn, reader, number):
                    pass
            except OSError:
                pass  # the client left, or __exit__ ended the connection
            except BaseException as error:
                self._failures.append(error)
        with self._changed:
            self._open.discard(conn)
            self._changed.notify_all()

    def _exchange(self, conn: socket.socket, reader: BinaryIO, number: int) -> bool:
        """Answer one request. True when the connection can take another."""
        request = _read_head(reader, number)
        if request is None:
            return False
        reply = self._queued(request, early=True)
        if reply is None and not _read_body(reader, request):
            return False
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()
        reply = reply or self._queued(request) or self._unqueued(request)
        return self._send(conn, reader, reply, request.headers.get("connection") != "close")

    def _queued(self, request: MockRequest, early: bool = False) -> Reply | None:
        """Take the next reply for this request; when `early`, only if it wants no body first."""
        with self._changed:
            found = next((reply for reply in self._queue if reply.matches(request)), None)
            if found is None or (early and found.read_body):
                return None
            self._queue.remove(found)
            return found

    def _unqueued(self, request: MockRequest) -> Reply:
        try:
            reply = self.on_request(request) if self.on_request is not None else None
        except BaseException as error:  # pytest.fail() is no Exception
            self._failures.append(error)
            return Reply({"error": {"message": f"on_request failed: {error!r}"}}, status=500)
        if reply is not None:
            return reply
        if request.lists_models:
            return Reply({"object": "list", "data": self._models})
        if self._default is not None:
            return self._default
        self._unscripted.append(request)
        message = f"no reply for {request.method} {request.path}: queue one with server.reply(...)"
        return Reply({"error": {"message": f"MockServer has {message}"}}, status=500)

    def _send(self, conn: Any, reader: BinaryIO, reply: Reply, keep_alive: bool) -> bool:
        self._pause(reply.delay)
        if not reply.raw:
            head = reply.head(keep_alive)
            keep_alive = head.get("connection", "").lower() != "close"
            conn.sendall(_encoded(reply.status, head))
        for part in reply.parts():
            if isinstance(part, bytes):
                conn.sendall(part)
            else:
                self._pause(part)
        if reply.hang:
            self._hang(reader, reply)
        if reply.reset:
            # To linger for 0 s is to reset on close. The two fields are shorts on Windows.
            linger = struct.pack("hh" if os.name == "nt" else "ii", 1, 0)
            conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        return keep_alive and not reply.short and not reply.raw

    def _pause(self, step: float | threading.Event) -> None:
        if isinstance(step, threading.Event):
            while not step.wait(0.02) and not self._closing.is_set():
                pass
        elif step > 0:
            self._closing.wait(step)
        if self._closing.is_set():
            raise ConnectionAbortedError("the MockServer is closing")

    def _hang(self, reader: BinaryIO, reply: Reply) -> None:
        if not reply.read_body:
            self._closing.wait()  # to watch for the client's end would be to read the body
        else:
            while reader.read(1):
                pass


# -- HTTP -----------------------------------------------------------------------------------------


def _read_head(reader: BinaryIO, number: int) -> MockRequest | None:
    """Request line and headers; None when the client left. Raises ValueError if it is not HTTP."""
    lines = []
    for line in iter(reader.readline, b"\r\n"):
        if not line.endswith(b"\n"):
            return None
        lines.append(line.decode("latin-1").rstrip("\r\n"))
    if not lines or lines[0].count(" ") != 2:
        raise ValueError(f"MockServer got no HTTP request, but {lines}")
    method, path, _ = lines[0].split(" ")
    headers: dict[str, str] = {}
    for field in lines[1:]:
        name, _, value = field.partition(":")
        known = headers.get(name.lower())
        headers[name.lower()] = value.strip() if known is None else f"{known}, {value.strip()}"
    return MockRequest(method, path, headers, number)


def _read_body(reader: BinaryIO, request: MockRequest) -> bool:
    """Set the request's body. False when the client left in the middle of it."""
    if "transfer-encoding" in request.headers:
        raise ValueError("MockServer reads a request's body by its content-length only")
    length = int(request.headers.get("content-length", "0"))
    request.body = reader.read(length)
    return len(request.body) == length


def _encoded(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {http.client.responses.get(status, '')}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
