"""Closing from any thread in any phase, Background, signals, forks, the collector and the exit."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import socket
import ssl
import sys
import threading
import time
from contextlib import ExitStack
from functools import partial
from typing import Any, Callable, Iterator

import pytest

import svir
from harness import REQUEST, chunk, sse
from loopback import (
    Peer,
    Reader,
    eventually,
    full_backlog,
    nothing_left,
    open_sockets,
    read_all,
    read_head,
    run_python,
    settle,
)
from phases import LINUX, OPEN_ANSWER, STREAM_HEAD, Asked, ask_in, phases, silent
from svir_ext.testing import MockServer, scripted, text_answer

WAKE = 0.5  # seconds; the rule is 0.05, which a busy machine cannot promise
MAIN = pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals to a thread")


@pytest.fixture(autouse=True)
def tidy() -> Iterator[None]:
    with nothing_left():
        yield


@pytest.fixture
def server() -> Iterator[MockServer]:
    with MockServer() as server:
        yield server


@pytest.fixture
def in_phase(tls: Any) -> Iterator[Callable[[str], Asked]]:
    """`in_phase(name)` gives streams that will wait there."""
    with ExitStack() as stack:
        # A close that wakes nobody is seen as one that took 30 s.
        yield lambda name: ask_in(name, stack, tls, connect_timeout=30.0, idle_timeout=30.0)


# -- A thread that waits, and its limits ---------------------------------------------------------


@pytest.fixture
def kernel_waits(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the kernel keeps a limit, for each that it was asked to keep."""
    asked: list[bool] = []
    ask = svir._let_kernel_wait
    monkeypatch.setattr(
        svir, "_let_kernel_wait", lambda *args: asked.append(ask(*args)) or asked[-1]
    )
    return asked


def in_thread(call: Callable[[], Any]) -> Any:
    """What it returned or raised, and after how many seconds."""
    result: list[Any] = []

    def run() -> None:
        start = time.monotonic()
        try:
            result.append(call())
        except svir.Error as error:
            result.append(error)
        result.append(time.monotonic() - start)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    return result


EVENTS = [sse(chunk({"content": letter}), done=False) for letter in "abcdefgh"]
PACED = [step for event in EVENTS for step in (event, 0.02)]


@pytest.mark.parametrize("tls_too", [False, True])
def test_silence_in_a_thread_is_a_timeout(tls_too: bool, tls: Any, kernel_waits: Any) -> None:
    options = {"cafile": tls.cafile} if tls_too else {}
    with MockServer(tls=tls.server() if tls_too else None) as server:
        server.reply(*PACED, hang=True)
        with svir.Client(server.url, idle_timeout=1.5, **options) as client:
            error, seconds = in_thread(lambda: client.complete(REQUEST))
    assert isinstance(error, svir.Timeout)
    assert "nothing came for 1.5 s" in str(error)
    assert error.partial is not None
    assert error.partial.text == "abcdefgh"
    assert 1.4 < seconds < 20
    assert kernel_waits == [not tls_too and os.name == "posix"]


def test_a_deadline_in_a_thread_is_kept(server: MockServer, kernel_waits: Any) -> None:
    """Each wait has another limit, so the kernel is not asked to keep one."""
    server.reply(*PACED, hang=True)
    with svir.Client(server.url, idle_timeout=30, total_timeout=0.6) as client:
        error, seconds = in_thread(lambda: client.complete(REQUEST))
    assert isinstance(error, svir.Timeout)
    assert "total_timeout" in str(error)
    assert 0.55 < seconds < 10
    assert not any(kernel_waits)


def test_a_limit_that_changes_in_a_thread(server: MockServer, kernel_waits: Any) -> None:
    """What the kernel keeps ends with the limit: a later, shorter one is kept too."""
    server.reply(*PACED, hang=True)
    with svir.Client(server.url, idle_timeout=30) as client:
        stream = client.stream(REQUEST)
        control = stream._control

        def read() -> None:
            for number, _ in enumerate(stream):
                if number == 6:
                    control.idles.append((0.3, "too slow"))

        error, seconds = in_thread(read)
    assert isinstance(error, svir.Timeout)
    assert "too slow" in str(error)
    assert 0.3 < seconds < 10
    assert kernel_waits[0] == (os.name == "posix")


@pytest.mark.parametrize("at", ["in the answer", "with the answer"])
def test_a_limit_that_ends_in_a_thread(at: str, server: MockServer, kernel_waits: Any) -> None:
    """Neither the rest of the answer nor the next one on the connection meets it again."""
    server.reply(*PACED, 0.6 if at == "in the answer" else 0, sse(chunk({}, "stop")))
    server.reply(0.6, *PACED, sse(chunk({}, "stop")))

    def patient(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
        with call.idle(0.3, "too slow") as limit:
            for number, event in enumerate(call(request)):
                yield event
                if number == 7 and at == "in the answer":
                    limit.clear()

    with svir.Client(server.url, idle_timeout=None, layers=[patient]) as client:
        plain = svir.Client(server.url, idle_timeout=None, backend=client._backend)
        for each in (client, plain):
            completion, _ = in_thread(partial(each.complete, REQUEST))
            assert completion.text == "abcdefgh"
    assert server.connections == 1
    assert any(kernel_waits) == (os.name == "posix")


def test_the_main_thread_waits_itself(server: MockServer, kernel_waits: Any) -> None:
    server.reply(text_answer(*[step for letter in "abcdefgh" for step in (letter, 0.02)]))
    with svir.Client(server.url) as client:
        assert client.complete(REQUEST).text == "abcdefgh"
    assert kernel_waits == [False]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timer")
@pytest.mark.skipif(
    sys.implementation.name != "cpython", reason="PyPy's own waits begin anew, too"
)
def test_the_main_thread_waits_itself_for_what_a_thread_began(server: MockServer) -> None:
    """Signals that come on and on would begin the kernel's limit anew each time."""
    server.reply(*PACED, hang=True)
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        with svir.Client(server.url, idle_timeout=1.0) as client:
            events = iter(client.stream(REQUEST))
            in_thread(lambda: [next(events) for _ in range(5)])
            signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
            start = time.monotonic()
            end = threading.Timer(15, signal.setitimer, (signal.ITIMER_REAL, 0))
            end.start()
            with pytest.raises(svir.Timeout):
                list(events)
            end.cancel()
            end.join()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - start < 10


def test_a_socket_of_another_kind_waits_as_it_does() -> None:
    """One of gevent's is never blocked in the kernel."""

    class Socket(socket.socket):
        pass

    with Socket() as sock:
        allowed, _ = in_thread(lambda: svir._let_kernel_wait(sock, 1.0))
        assert not allowed
        assert sock.gettimeout() is None


# -- A close wakes the reader ---------------------------------------------------------------------


@phases()
@pytest.mark.parametrize("how", ["stream", "send"])
def test_close_wakes_the_reader(phase: str, how: str, in_phase: Any, record_property: Any) -> None:
    """api.md 9: Cancelled, at once, in any phase; close() itself never waits."""
    if (phase, how) == ("asleep-in-a-layer", "send"):
        pytest.skip("send runs no layers")
    opened = in_phase(phase).open(how)
    reader = Reader(lambda: read_all(opened))
    settle(reader.thread)
    closed_at = time.monotonic()
    opened.close()
    took = time.monotonic() - closed_at
    assert reader.join(), "close() did not wake the reader"
    assert isinstance(reader.error, svir.Cancelled), reader.error
    woke = reader.ended_at - closed_at
    record_property("wake_ms", round(woke * 1000, 2))
    print(f"woken in {woke * 1000:.2f} ms, close() took {took * 1000:.2f} ms")
    assert woke < WAKE
    assert took < WAKE


@pytest.mark.parametrize("how", ["stream", "send"])
def test_close_before_the_start_sends_nothing(server: MockServer, how: str) -> None:
    client = svir.Client(server.url)
    opened: Any = client.stream(REQUEST) if how == "stream" else client.send(REQUEST)
    opened.close()
    for _ in range(2):
        with pytest.raises(svir.Cancelled):
            read_all(opened)
    assert server.connections == 0


def test_close_between_two_reads(server: MockServer) -> None:
    server.default(OPEN_ANSWER, hang=True)
    stream = svir.Client(server.url).stream(REQUEST)
    assert next(stream) == svir.TextDelta("a")
    stream.close()
    stream.close()
    server.wait_until(lambda: server.open_connections == 0)
    for _ in range(2):
        with pytest.raises(svir.Cancelled) as caught:
            next(stream)
        assert caught.value.kind == "cancelled"
        assert not caught.value.retryable
    with pytest.raises(RuntimeError):
        _ = stream.completion
    assert len(server.requests) == 1


def test_a_raw_stream_closed_between_two_reads(server: MockServer) -> None:
    server.default(OPEN_ANSWER, hang=True)
    with svir.Client(server.url).send(REQUEST) as raw:
        assert next(raw).startswith(b"data: ")
        raw.close()
        raw.close()
        for _ in range(2):
            with pytest.raises(svir.Cancelled):
                next(raw)
    server.wait_until(lambda: server.open_connections == 0)
    assert len(server.requests) == 1


def test_close_after_the_end_changes_nothing(server: MockServer) -> None:
    server.default(text_answer("a", "b"))
    with svir.Client(server.url) as client:
        stream = client.stream(REQUEST)
        completion = stream.result()
        stream.close()
        stream.close()
        assert stream.completion is completion
        assert list(stream) == []
        with client.send(REQUEST) as raw:
            whole = b"".join(raw)
        raw.close()
        assert list(raw) == []
        assert whole.endswith(b"data: [DONE]\n\n")
        assert client.complete(REQUEST).text == "ab"
    assert server.connections == 1, "a connection that was read to its end is kept"


def test_leaving_the_block_ends_the_answer(server: MockServer) -> None:
    server.default(OPEN_ANSWER, hang=True)
    client = svir.Client(server.url)
    with client.stream(REQUEST) as stream:
        next(stream)
    server.wait_until(lambda: server.open_connections == 0)
    with client.send(REQUEST) as raw:
        next(raw)
    server.wait_until(lambda: server.open_connections == 0)


def test_close_from_the_reading_thread(server: MockServer) -> None:
    """A layer, or whoever is called on the way, closes the stream that it is part of."""

    def closes(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
        for event in call(request):
            stream.close()
            yield event

    server.default(OPEN_ANSWER, hang=True)
    stream = svir.Client(server.url, layers=[closes]).stream(REQUEST)
    reader = Reader(lambda: list(stream))
    assert reader.join()
    assert isinstance(reader.error, svir.Cancelled)


def test_two_readers_of_one_stream(server: MockServer) -> None:
    """The second is told, and disturbs nothing; nor does a layer that reads its own stream."""
    server.default(OPEN_ANSWER, hang=True)
    stream = svir.Client(server.url).stream(REQUEST)
    reader = Reader(lambda: list(stream))
    server.wait_until(lambda: server.open_connections == 1)
    for read in (lambda: list(stream), lambda: next(stream), stream.result):
        with pytest.raises(RuntimeError, match="the stream is being read already"):
            read()
    stream.close()
    assert reader.join()
    assert isinstance(reader.error, svir.Cancelled)


def test_a_failure_is_raised_again_by_every_iterator(server: MockServer) -> None:
    """Also by one that was open before, and by the one that raised it."""
    server.default(sse(chunk({"content": "a"}), chunk({"content": "b"}), done=False))
    stream = svir.Client(server.url).stream(REQUEST)
    outer, inner = iter(stream), iter(stream)
    assert next(outer) == svir.TextDelta("a")
    for iterator in (inner, inner, outer, outer, iter(stream)):
        with pytest.raises(svir.Truncated, match="cut off before"):
            list(iterator)
    with pytest.raises(svir.Truncated, match="cut off before"):
        stream.result()


def test_a_loop_is_gone_on_with_by_the_next(server: MockServer) -> None:
    server.default(sse(*[chunk({"content": letter}) for letter in "abcdef"], chunk({}, "stop")))
    stream = svir.Client(server.url).stream(REQUEST)
    seen = [next(stream)]
    for event in stream:
        seen.append(event)
        break
    for event in stream:
        seen += [event, next(stream)]
        break
    seen += stream
    assert "".join(e.text for e in seen if isinstance(e, svir.TextDelta)) == "abcdef"
    last = seen[-1]
    assert isinstance(last, svir.Completed)
    assert stream.completion is last.completion


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="drops things late")
@pytest.mark.parametrize("fails", [True, False])
def test_a_layer_with_a_plain_for_leaves_nothing_open(server: MockServer, fails: bool) -> None:
    def plain(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
        for event in call(request):
            yield event
            if fails:
                raise KeyError("a layer's own")

    server.default(OPEN_ANSWER, hang=True)
    stream = svir.Client(server.url, layers=[plain]).stream(REQUEST)
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(KeyError):
            for _ in stream:
                if not fails:
                    break
        del stream
        server.wait_until(lambda: server.open_connections == 0)
    finally:
        gc.enable()


def test_one_close_of_many_streams_ends_one(server: MockServer) -> None:
    server.default(OPEN_ANSWER, hang=True)
    client = svir.Client(server.url)
    streams = [client.stream(REQUEST) for _ in range(4)]
    readers = [Reader(stream.result) for stream in streams]
    for reader in readers:
        settle(reader.thread)
    streams[2].close()
    assert readers[2].join()
    assert [reader.thread.is_alive() for reader in readers] == [True, True, False, True]
    for stream in streams:
        stream.close()
    assert all(reader.join() for reader in readers)
    assert {type(reader.error) for reader in readers} == {svir.Cancelled}


def test_a_close_met_by_a_read(server: MockServer) -> None:
    """The reader asks for an event while another thread is at work closing: Cancelled, at once."""
    closing, go_on = threading.Event(), threading.Event()

    def slow_to_end(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
        try:
            yield from call(request)
        finally:
            closing.set()
            go_on.wait(30)

    server.default(OPEN_ANSWER, hang=True)
    stream = svir.Client(server.url, layers=[slow_to_end]).stream(REQUEST)
    next(stream)
    closer = Reader(stream.close)
    assert closing.wait(10)
    reader = Reader(lambda: next(stream))
    assert reader.join(5)
    assert isinstance(reader.error, svir.Cancelled)
    go_on.set()
    assert closer.join()
    assert closer.error is None


def test_a_layer_that_reads_its_own_stream(server: MockServer) -> None:
    """That is wrong, and told; it must not wait for itself."""

    def reads(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
        yield next(stream)

    stream = svir.Client(server.url, layers=[reads]).stream(REQUEST)
    reader = Reader(stream.result)
    assert reader.join(5)
    assert isinstance(reader.error, (ValueError, RuntimeError))
    assert server.connections == 0


class WrapsLate:
    """An ssl_context that runs `act` around its work: what else happens at that moment."""

    def __init__(self, tls: Any, act: Callable[[], object], when: str) -> None:
        self.context = ssl.create_default_context(cafile=tls.cafile)
        self.act, self.when, self.calls = act, when, 0

    def wrap_socket(self, sock: socket.socket, **options: Any) -> ssl.SSLSocket:
        self.calls += 1
        if self.when == "before":
            self.act()
        # A socket that was shut down has an end to read; wrapping it loses the descriptor.
        sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            sock.recv(1, socket.MSG_PEEK)
        wrapped = self.context.wrap_socket(sock, **options)
        if self.when == "after":
            self.act()
        return wrapped


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("proxied", [False, True])
def test_close_while_the_socket_is_wrapped(tls: Any, when: str, proxied: bool) -> None:
    """Neither socket is known to svir at that moment: the close counts all the same."""

    def talk(conn: Any) -> None:
        if proxied:
            read_head(conn)
            conn.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        silent(conn)

    with Peer(talk) as peer:
        context: Any = WrapsLate(tls, lambda: Reader(stream.close).join(), when)
        client = svir.Client(
            "https://localhost" if proxied else peer.tls_url,
            proxy=peer.url if proxied else None,
            ssl_context=context,
            connect_timeout=30.0,
        )
        stream = client.stream(REQUEST)
        reader = Reader(stream.result)
        assert reader.join(5), "close() did not wake the reader"
        assert isinstance(reader.error, svir.Cancelled)


# -- Layers in the way ----------------------------------------------------------------------------


def swallows_cancelled(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
    try:
        yield from call(request)
    except svir.Cancelled:
        pass


def swallows_all(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
    try:
        yield from call(request)
    except BaseException:
        pass


def tries_again(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
    for _ in range(3):
        try:
            yield from call(request)
        except svir.Error:
            pass


def speaks_last(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
    try:
        yield from call(request)
    except BaseException:
        yield svir.TextDelta("one more thing")


def fails_at_the_end(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
    try:
        yield from call(request)
    finally:
        raise KeyError("of the layer")


LAYERS = [swallows_cancelled, swallows_all, tries_again]


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_that_swallows_does_not_hide_a_close(server: MockServer, layer: Any) -> None:
    """The reader gets Cancelled, never a silent end; and nothing is sent again."""
    server.default(OPEN_ANSWER, hang=True)
    stream = svir.Client(server.url, layers=[layer]).stream(REQUEST)
    reader = Reader(lambda: list(stream))
    settle(reader.thread)
    stream.close()
    assert reader.join()
    assert isinstance(reader.error, svir.Cancelled)
    with pytest.raises(svir.Cancelled):
        next(stream)
    assert len(server.requests) == 1


@pytest.mark.parametrize("layer", [*LAYERS, speaks_last, fails_at_the_end])
def test_close_raises_nothing_of_a_layer(server: MockServer, layer: Any) -> None:
    server.default(OPEN_ANSWER, hang=True)
    stream = svir.Client(server.url, layers=[layer]).stream(REQUEST)
    next(stream)
    stream.close()
    with pytest.raises(svir.Cancelled):
        list(stream)
    server.wait_until(lambda: server.open_connections == 0)


def test_close_wakes_the_first_of_two_calls(server: MockServer) -> None:
    """A layer has two answers open, and one has ended: the other is still woken."""

    def both(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
        first = call(request)
        yield next(first)
        for event in call(request):
            if event.type == "text":
                yield event
        yield from first

    server.reply(OPEN_ANSWER, hang=True)
    server.reply(text_answer("b"))
    client = svir.Client(server.url, layers=[both], keep_alive=False)
    stream = client.stream(REQUEST)
    assert [next(stream), next(stream)] == [svir.TextDelta("a"), svir.TextDelta("b")]
    reader = Reader(lambda: next(stream))
    settle(reader.thread)
    stream.close()
    assert reader.join(5), "close() did not wake the reader"
    assert isinstance(reader.error, svir.Cancelled)


def test_close_leaves_a_connection_that_is_another_stream_s_by_now(server: MockServer) -> None:
    """An abort is taken back before its connection goes to the pool."""
    gate, taken = threading.Event(), threading.Event()

    def twice(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
        for event in call(request):
            if event.type == "text":
                yield event
        yield svir.TextDelta("once")
        assert taken.wait(10)
        call.sleep(30)

    backend = svir.HttpBackend()
    server.reply(text_answer("a"))
    server.reply(text_answer("b", gate, "c"))
    with svir.Client(server.url, backend=backend, layers=[twice]) as first, svir.Client(
        server.url, backend=backend
    ) as second:
        stream = first.stream(REQUEST)
        assert [next(stream), next(stream)] == [svir.TextDelta("a"), svir.TextDelta("once")]
        other = second.stream(REQUEST)
        assert next(other) == svir.TextDelta("b")
        assert [request.connection for request in server.requests] == [1, 1]
        taken.set()
        reader = Reader(lambda: next(stream))
        settle(reader.thread)
        stream.close()
        assert reader.join()
        assert isinstance(reader.error, svir.Cancelled)
        gate.set()
        assert other.result().text == "bc"


# -- Signals --------------------------------------------------------------------------------------


@contextlib.contextmanager
def on_alarm(act: Callable[[], object]) -> Iterator[threading.Thread]:
    """Run `act` in a signal handler once this thread, the main one, blocks in the `with` block."""
    main = threading.main_thread()
    assert threading.current_thread() is main

    def send() -> None:
        settle(main)
        signal.pthread_kill(main.ident or 0, signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, lambda number, frame: act())
    sender = threading.Thread(target=send, name="alarm")
    try:
        sender.start()
        yield sender
    finally:
        sender.join()
        signal.signal(signal.SIGALRM, before)


@MAIN
@phases()
def test_close_from_a_signal_handler(phase: str, in_phase: Any) -> None:
    """The handler runs in the thread that reads, in the middle of its wait."""
    stream = in_phase(phase).stream()
    closed_at = []

    def close() -> None:
        closed_at.append(time.monotonic())
        stream.close()

    with on_alarm(close):
        with pytest.raises(svir.Cancelled):
            stream.result()
        woke = time.monotonic() - closed_at[0]
    print(f"woken in {woke * 1000:.2f} ms")
    assert woke < WAKE


@MAIN
@phases()
def test_an_interrupt_leaves_no_socket(phase: str, in_phase: Any) -> None:
    """KeyboardInterrupt in any wait: what was open is closed, and nothing is sent again."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    stream = in_phase(phase).stream()
    before = open_sockets()
    with pytest.raises(KeyboardInterrupt), on_alarm(interrupt):
        stream.result()
    # A server that never reads does not see its client leave: its own socket is there still.
    servers = 1 if phase.startswith("upload") else 0
    eventually(lambda: len(open_sockets() - before) <= servers)
    with pytest.raises(svir.Error):
        next(stream)


class AtLine:
    """Runs `read()` in a thread, and `act()` there before the n-th line that svir runs.

    That is what a signal handler can do, or the collector. `reached` tells where that was, once
    there were so many lines; `count` is how many there were.
    """

    FILES = (svir.__file__, threading.__file__)

    def __init__(self, line: int, read: Callable[[], Any], act: Callable[[], object]) -> None:
        self.line, self.count, self.reached = line, 0, ""
        self._act = act
        self.reader = Reader(lambda: self._traced(read))

    def _traced(self, read: Callable[[], Any]) -> Any:
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            return read()
        finally:
            sys.settrace(before)

    def _trace(self, frame: Any, event: str, arg: Any) -> Any:
        if self.reached or frame.f_code.co_filename not in self.FILES:
            return None
        if event == "line":
            self.count += 1
            if self.count == self.line:
                self.reached = f"{frame.f_code.co_name}, line {frame.f_lineno}"
                self._act()
        return self._trace


@pytest.mark.parametrize(
    ("phase", "lines"),
    [
        ("tls-handshake", 999),
        ("connect-by-proxy", 999),
        ("before-the-headers", 999),
        ("between-events", 150),  # the last ones: those before wait in the phases above
        ("between-events-tls", 150),
        ("asleep-in-a-layer", 999),
    ],
)
def test_a_close_between_any_two_lines(phase: str, lines: int, in_phase: Any) -> None:
    """A handler may come at any moment of the reading thread: no close is lost, none deadlocks."""
    asked = in_phase(phase)
    first = asked.stream()
    at = AtLine(-1, first.result, first.close)
    settle(at.reader.thread)
    blocks_at = at.count
    assert blocks_at > 20
    first.close()
    assert at.reader.join()
    for line in range(max(1, blocks_at - lines), blocks_at + 1):
        stream = asked.stream()
        at = AtLine(line, stream.result, stream.close)
        if not at.reader.join(2):
            assert not at.reached, f"the close before {at.reached} was lost"
            stream.close()  # it blocked a little earlier this time: that was the last line
            assert at.reader.join()
            break
        assert isinstance(at.reader.error, svir.Cancelled), at.reached


def test_no_socket_is_wrapped_after_a_close(tls: Any) -> None:
    """Wherever a handler closes before that; see WrapsLate."""
    context: Any = WrapsLate(tls, int, "never")
    with Peer(silent) as peer:
        client = svir.Client(peer.tls_url, ssl_context=context, connect_timeout=30.0)
        line = 0
        while not context.calls:
            line += 1
            stream = client.stream(REQUEST)
            at = AtLine(line, stream.result, stream.close)
            assert at.reader.join(5), f"the close before {at.reached} was lost"
            assert isinstance(at.reader.error, svir.Cancelled), at.reached
    assert line > 100


# -- At random ------------------------------------------------------------------------------------


def read_in_background(stream: svir.Stream) -> svir.Completion:
    return svir.Background(stream).result()


class Closers:
    """Workers that each read answers and have them closed at random moments by other threads."""

    READS = (read_all, read_all, read_all, read_in_background)

    def __init__(self, clients: list[svir.Client], closes: int) -> None:
        self.clients, self.left, self.lock = clients, closes, threading.Lock()
        self.whole = self.cancelled = 0
        self.wrong: list[Any] = []
        self.span = 0.01  # of the delays, in seconds: it follows how long an answer takes here

    def work(self, seed: int) -> None:
        chance = random.Random(seed)
        while True:
            with self.lock:
                self.left -= 1
                if self.left < 0:
                    return
            self.close_one(chance)

    def close_one(self, chance: random.Random) -> None:
        client = chance.choice(self.clients)
        raw = chance.random() < 0.25
        opened: Any = client.send(REQUEST) if raw else client.stream(REQUEST)
        closer = threading.Timer(max(0.0, chance.uniform(-0.05, 1.0) * self.span), opened.close)
        closer.start()
        try:
            got: Any = (read_all if raw else chance.choice(self.READS))(opened)
            outcome = "whole"
            if not (got.endswith(b"data: [DONE]\n\n") if raw else got.text == "abcd"):
                outcome = f"not whole: {got!r}"
        except svir.Cancelled:
            outcome = "cancelled"
        except BaseException as error:
            outcome = repr(error)
        closer.join()
        self.count(outcome)

    def count(self, outcome: str) -> None:
        with self.lock:
            if outcome == "whole":
                self.whole += 1
                self.span /= 1.02
            elif outcome == "cancelled":
                self.cancelled += 1
                self.span *= 1.01
            else:
                self.wrong.append(outcome)


def test_random_closes(tls: Any) -> None:
    """Only whole answers and Cancelled; the fixture sees to it that nothing is left behind."""
    closes = int(os.environ.get("SVIR_CLOSES", "2000"))
    answer = text_answer("a", 0.002, "b", 0.002, "c", 0.002, "d")
    with MockServer() as server, MockServer(tls=tls.server()) as secure:
        server.default(answer)
        secure.default(answer)
        settings: dict[str, Any] = {"idle_timeout": 20.0, "connect_timeout": 20.0}
        with svir.Client(server.url, **settings) as plain, svir.Client(
            secure.url, cafile=tls.cafile, **settings
        ) as private, svir.Client(server.url, keep_alive=False, **settings) as fresh:
            closers = Closers([plain, plain, fresh, private], closes)
            workers = [Reader(partial(closers.work, seed)) for seed in range(8)]
            assert all(worker.join(600) for worker in workers)
        assert [worker.error for worker in workers] == [None] * 8
        server.wait_until(lambda: server.open_connections == 0)
        secure.wait_until(lambda: secure.open_connections == 0)
    print(f"{closers.whole} whole, {closers.cancelled} cancelled")
    assert closers.wrong == []
    assert closers.whole + closers.cancelled == closes
    assert min(closers.whole, closers.cancelled) > closes // 20


# -- Background -----------------------------------------------------------------------------------


def without_server(*layers: svir.Layer) -> svir.Stream:
    return svir.Client("http://127.0.0.1:1", layers=layers).stream(REQUEST)


def test_background_gives_the_events_as_they_arrive(server: MockServer) -> None:
    gate = threading.Event()
    server.reply(text_answer("a", gate, "b"))
    with svir.Client(server.url) as client:
        work = svir.Background(client.stream(REQUEST))
        events: list[svir.Event] = []

        def arrived() -> bool:
            events.extend(work.poll())
            return bool(events)

        eventually(arrived)
        assert events == [svir.TextDelta("a")]
        assert work.poll() == []
        assert not work.join(0)
        assert (work.done, work.error) == (False, None)
        gate.set()
        assert work.join(10)
        assert not work.done, "not before everything was polled"
        events += work.poll()
        assert work.done
        completion = work.result()
        assert events[1:] == [svir.TextDelta("b"), svir.Completed(completion)]
        assert completion.text == "ab"
        assert (work.poll(), work.error, work.done) == ([], None, True)
        work.cancel()
        assert work.result() is completion, "a cancel after the end changes nothing"


def test_the_loop_of_a_host(server: MockServer) -> None:
    """api.md 9: a tick takes everything there is, until done."""
    server.reply(text_answer("a", 0.01, "b", 0.01, "c"))
    with svir.Client(server.url) as client:
        work, text = svir.Background(client.stream(REQUEST)), ""

        def tick() -> bool:
            nonlocal text
            text += "".join(event.text for event in work.poll() if event.type == "text")
            return work.done

        eventually(tick)
        assert (text, work.result().finish_reason) == ("abc", "stop")


def test_poll_takes_no_more_than_its_limit() -> None:
    work = svir.Background(without_server(scripted("a", "b", "c")))
    assert work.join(10)
    assert work.poll(0) == []
    assert work.poll(2) == [svir.TextDelta("a"), svir.TextDelta("b")]
    assert work.poll(limit=1) == [svir.TextDelta("c")]
    assert not work.done
    assert [event.type for event in work.poll(10)] == ["completed"]
    assert work.done
    assert work.poll(10) == []


def test_polling_from_several_threads_gives_each_event_once() -> None:
    count = 2000
    texts = [str(number) for number in range(count)]
    work = svir.Background(without_server(scripted(*texts)))
    seen: list[list[svir.Event]] = [[], [], [], []]

    def take(mine: list[svir.Event]) -> None:
        while not work.done:
            mine.extend(work.poll(3))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        pollers = [Reader(partial(take, mine)) for mine in seen]
        assert all(poller.join() for poller in pollers)
    finally:
        sys.setswitchinterval(interval)
    assert [poller.error for poller in pollers] == [None] * 4, "poll() never raises"
    got = [event.text for mine in seen for event in mine if event.type == "text"]
    assert sorted(got, key=int) == texts


def test_a_failing_stream_in_the_background(server: MockServer) -> None:
    server.reply(text_answer("a", finish_reason=None)[:-1], cut=True)
    server.reply({"error": {"message": "no"}}, status=500)
    with svir.Client(server.url) as client:
        cut = svir.Background(client.stream(REQUEST))
        assert cut.join(10)
        refused = svir.Background(client.stream(REQUEST))
        assert refused.join(10)
    assert not cut.done
    assert isinstance(cut.error, svir.Truncated)
    assert cut.poll() == [svir.TextDelta("a")]
    assert cut.done
    assert refused.done
    assert refused.poll() == []
    for work, kind in ((cut, svir.Truncated), (refused, svir.Unavailable)):
        for _ in range(2):
            with pytest.raises(kind):
                work.result()
    assert isinstance(refused.error, svir.Unavailable)
    assert refused.error.status == 500
    assert cut.error.partial is not None
    assert cut.error.partial.text == "a"


class Odd(BaseException):
    """Neither an Exception nor svir's."""


@pytest.mark.parametrize(
    "kind", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, Odd]
)
def test_an_odd_exception_in_the_background(kind: Any) -> None:
    """It is kept for result(): a thread that dies of it would only print."""

    def layer(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
        yield svir.TextDelta("a")
        raise kind("odd")

    work = svir.Background(without_server(layer))
    assert work.join(10)
    assert work.poll() == [svir.TextDelta("a")]
    assert work.done
    assert type(work.error) is kind
    for _ in range(2):
        with pytest.raises(kind, match="odd"):
            work.result()


def test_a_layer_that_gives_no_events_fails_in_the_background() -> None:
    def layer(request: svir.Request, call: svir.Call) -> Any:
        return None

    work = svir.Background(without_server(layer))
    with pytest.raises(svir.ConfigError, match="gave no events"):
        work.result()


@phases()
def test_cancel_in_the_background(phase: str, in_phase: Any) -> None:
    """The unload hook of a plugin: cancel(), then join()."""
    work = svir.Background(in_phase(phase).stream())
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "svir")
    assert thread.daemon
    settle(thread)
    work.cancel()
    work.cancel()
    assert work.join(WAKE)
    with pytest.raises(svir.Cancelled):
        work.result()
    work.poll()
    assert work.done


def test_cancel_at_once(server: MockServer) -> None:
    server.default(OPEN_ANSWER, hang=True)
    client = svir.Client(server.url)
    for _ in range(20):
        work = svir.Background(client.stream(REQUEST))
        work.cancel()
        assert work.join(5)
        assert isinstance(work.error, svir.Cancelled)
    closed = client.stream(REQUEST)
    closed.close()
    work = svir.Background(closed)
    with pytest.raises(svir.Cancelled):
        work.result()
    assert (work.poll(), work.done) == ([], True)


def test_only_background_starts_a_thread(server: MockServer) -> None:
    """hosts.md 2."""
    names: set[str] = set()

    def looks(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
        for event in call(request):
            names.update(thread.name for thread in threading.enumerate())
            yield event

    server.default(text_answer("a"))
    before = {thread.name for thread in threading.enumerate()}
    with svir.Client(server.url, layers=[looks]) as client:
        client.complete(REQUEST)
        assert names <= before | {"MockServer"}
        svir.Background(client.stream(REQUEST)).result()
    assert names - before - {"MockServer"} == {"svir"}


def test_where_threads_cannot_be_daemons(monkeypatch: pytest.MonkeyPatch) -> None:
    """An isolated sub-interpreter refuses daemon threads."""

    class Refuses(threading.Thread):
        def __init__(self, *args: Any, daemon: bool | None = None, **options: Any) -> None:
            if daemon:
                raise RuntimeError("daemon threads are disabled in this interpreter")
            super().__init__(*args, daemon=daemon, **options)

    monkeypatch.setattr(threading, "Thread", Refuses)
    gate = threading.Event()

    def layer(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
        gate.wait(10)
        yield from call(request)

    work = svir.Background(without_server(layer, scripted("a")))
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "svir")
    assert not thread.daemon
    gate.set()
    assert work.result().text == "a"
    assert work.join(10)


@pytest.mark.skipif(sys.version_info < (3, 13), reason="3.12 and before crash or have no threads")
def test_in_a_sub_interpreter() -> None:
    code = """
import svir
from svir_ext.testing import scripted
client = svir.Client("http://127.0.0.1:1", layers=[scripted("a", "b")])
work = svir.Background(client.stream(svir.Request("m", "Hi")))
print(work.result().text, work.join(10), flush=True)
"""
    printed = run_python(
        "import _interpreters, sys; inside = _interpreters.create();"
        " failed = _interpreters.exec(inside, sys.argv[1]); assert failed is None, failed;"
        " _interpreters.destroy(inside)",
        code,
    )
    assert printed.split() == ["ab", "True"]


# -- Let go ---------------------------------------------------------------------------------------


def half_read(client: svir.Client, how: str) -> Any:
    if how == "send":
        raw = client.send(REQUEST).__enter__()
        next(raw)
        return raw
    stream = client.stream(REQUEST)
    if how == "text":
        texts = stream.text()
        next(texts)
        return texts
    next(stream)
    if how == "stream":
        return stream
    cycle: list[Any] = [stream]
    cycle.append(cycle)
    return cycle


@pytest.mark.parametrize("how", ["stream", "text", "send", "cycle"])
def test_a_half_read_stream_that_is_dropped_closes_its_socket(
    server: MockServer, how: str
) -> None:
    server.default(OPEN_ANSWER, hang=True)
    opened = half_read(svir.Client(server.url), how)
    assert server.open_connections == 1
    del opened
    if how == "cycle" or not hasattr(sys, "getrefcount"):
        gc.collect()
    server.wait_until(lambda: server.open_connections == 0)


def test_a_client_that_is_dropped_closes_its_idle_connections(server: MockServer) -> None:
    server.default(text_answer("a"))
    client = svir.Client(server.url)
    client.complete(REQUEST)
    assert server.open_connections == 1
    del client
    if not hasattr(sys, "getrefcount"):
        gc.collect()
    server.wait_until(lambda: server.open_connections == 0)


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="only CPython collects at once")
def test_a_stream_collected_at_any_line_of_another_call(server: MockServer) -> None:
    """The collector runs anywhere, inside the pool too, and may put a connection there."""
    server.default(b"".join(text_answer("a", "b")))
    line, reached = 0, "line 0"
    with svir.Client(server.url) as client:
        whole = read_all(client.send(REQUEST))  # there is a connection to take from the pool
        while reached:
            held = [client.stream(REQUEST)]
            next(held[0])  # a whole answer was received: its connection goes to the pool
            line += 1
            at = AtLine(line, lambda: read_all(client.send(REQUEST)), held.clear)
            assert at.reader.join(5), f"a deadlock before {at.reached}"
            assert (at.reader.error, at.reader.value) == (None, whole), at.reached
            reached = at.reached
    assert line > 100


# -- Forks ----------------------------------------------------------------------------------------

FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")

FORK = """
import gc, os, sys
import svir

url, what = sys.argv[1:]
request = svir.Request("m", "Hi")
client = svir.Client(url)


def fork(act):
    sys.stdout.flush()
    child = os.fork()
    if not child:
        act()
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""

FORK_POOLED = (
    FORK
    + """
def act():
    global client
    if what == "ask":
        print("child", client.complete(request).text, client.complete(request).text)
    elif what == "close":
        client.close()
    elif what == "drop":
        del client
        gc.collect()

print("parent", client.complete(request).text)
if what == "exit":
    sys.stdout.flush()
    child = os.fork()
    if not child:
        sys.exit()
    os.waitpid(child, 0)
else:
    fork(act)
print("parent", client.complete(request).text)
"""
)


@FORKS
@pytest.mark.parametrize("what", ["ask", "close", "drop", "exit"])
def test_a_fork_leaves_the_pool_to_the_parent(server: MockServer, what: str) -> None:
    if what == "exit" and sys.version_info < (3, 9):
        pytest.skip("a forked child of 3.8 cannot end with -X dev, whatever it imported")
    server.default(text_answer("a", "b"))
    printed = run_python(FORK_POOLED, server.url, what)
    asked = ["child ab ab"] if what == "ask" else []
    assert printed.splitlines() == ["parent ab", *asked, "parent ab"]
    used = [request.connection for request in server.requests]
    assert used == ([1, 2, 2, 1] if asked else [1, 1]), "each process has its own connections"


FORK_HALF_READ = (
    FORK
    + """
def act():
    global stream
    if what == "close":
        stream.close()
    elif what == "drop":
        del stream
        gc.collect()
    elif what == "ask":
        print("child", [model.id for model in client.list_models()])

stream = client.stream(request)
first = next(stream)
if what != "close":
    client.list_models()  # the server answers when the rest has been sent: there to be taken
fork(act)
if what == "close":
    client.list_models()  # a connection that was shut down gets no rest
print("parent", first.text, stream.result().text)
print("parent", [model.id for model in client.list_models()])
"""
)


@FORKS
@pytest.mark.parametrize("what", ["nothing", "close", "drop", "ask"])
def test_a_fork_leaves_a_half_read_stream_to_the_parent(what: str) -> None:
    """What the child does with its copy neither ends the parent's answer nor takes from it."""
    go_on, sent = threading.Event(), threading.Event()
    role, first, *rest = (
        b"%x\r\n%b\r\n" % (len(part), part) for part in text_answer("a", "b", "c")
    )

    def talk(conn: Any) -> None:
        while True:
            if read_head(conn).startswith(b"GET"):
                go_on.set()
                sent.wait(10)
                conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 22\r\n\r\n")
                conn.sendall(b'{"data":[{"id": "m"}]}')
                continue
            while not conn.recv(65536).endswith(b"}"):
                pass
            conn.sendall(STREAM_HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + role + first)
            go_on.wait(10)
            conn.sendall(b"".join(rest) + b"0\r\n\r\n")
            sent.set()

    with Peer(talk) as peer:
        printed = run_python(FORK_HALF_READ, peer.url, what)
    asked = ["child ['m']"] if what == "ask" else []
    assert printed.splitlines() == [*asked, "parent a abc", "parent ['m']"]


# -- The exit -------------------------------------------------------------------------------------

EXIT = """
import sys, threading, time
import svir

url, what = sys.argv[1:]
request = svir.Request("m", "Hi")
client = svir.Client(url)
if what == "stream":
    stream = client.stream(request)
    next(stream)
elif what == "text":
    text = client.stream(request).text()
    next(text)
elif what == "raw":
    raw = client.send(request).__enter__()
    next(raw)
elif what == "layers":
    def layer(request, call):
        with call.deadline(60, "late"):
            yield from call(request)
    stream = svir.Client(url, layers=[layer, layer], total_timeout=60).stream(request)
    next(stream)
elif what == "pool":
    client.list_models()
elif what == "background":
    works = [svir.Background(client.stream(request)) for _ in range(5)]
    while not works[0].poll():
        time.sleep(0.001)
elif what == "connecting":
    work = svir.Background(client.stream(request))
elif what == "exit":
    stream = client.stream(request)
    next(stream)
    work = svir.Background(client.stream(request))
    sys.exit()
print("end")
"""


@pytest.mark.parametrize("what", ["stream", "text", "raw", "layers", "pool", "background", "exit"])
def test_the_interpreter_exits(server: MockServer, what: str) -> None:
    """With streams half read and readers blocked: at once, and without a word."""
    server.default(OPEN_ANSWER, hang=True)
    printed = run_python(EXIT, server.url, what)
    assert printed.split() == ([] if what == "exit" else ["end"])


@LINUX
def test_the_interpreter_exits_while_a_thread_connects() -> None:
    with full_backlog() as url:
        assert run_python(EXIT, url, "connecting").split() == ["end"]


# -- Other backends -------------------------------------------------------------------------------


class Waits:
    """A backend whose answer, after its first bytes, waits until it is aborted."""

    def __init__(self, *aborts: Callable[[], object]) -> None:
        self.aborts, self.aborted = aborts, threading.Event()
        self.status, self.headers = 200, {"Content-Type": "text/event-stream"}
        self.parts: list[bytes] = list(OPEN_ANSWER)
        self.closed = 0

    def send(self, request: svir.HttpRequest) -> svir.HttpResponse:
        for abort in self.aborts:
            request.on_cancel(abort)
        request.on_cancel(self.aborted.set)
        return self

    def read(self, size: int, timeout: float | None) -> bytes:
        if self.parts:
            return self.parts.pop(0)
        assert self.aborted.wait(10)
        return b""

    def close(self) -> None:
        self.closed += 1


def test_the_aborts_of_a_backend_run_once_and_may_fail() -> None:
    calls: list[str] = []

    def fails() -> None:
        calls.append("fails")
        raise OSError("it does not work")

    backend = Waits(lambda: calls.append("first"), fails)
    stream = svir.Client("http://127.0.0.1:1", backend=backend).stream(REQUEST)
    reader = Reader(stream.result)
    settle(reader.thread)
    stream.close()
    stream.close()
    assert reader.join()
    assert isinstance(reader.error, svir.Cancelled)
    assert sorted(calls) == ["fails", "first"]
    assert backend.closed == 1


def test_no_abort_runs_after_a_normal_end() -> None:
    calls: list[str] = []
    backend = Waits(lambda: calls.append("abort"))
    backend.parts = text_answer("a")
    stream = svir.Client("http://127.0.0.1:1", backend=backend).stream(REQUEST)
    assert stream.result().text == "a"
    stream.close()
    assert (calls, backend.closed) == ([], 1)


def test_an_abort_that_comes_too_late_runs_at_once() -> None:
    """The stream was closed while the backend was connecting: it is told as soon as it asks."""
    backend = Waits()

    class Late:
        def send(self, request: svir.HttpRequest) -> svir.HttpResponse:
            stream.close()
            with pytest.raises(svir.Cancelled):
                request.check()
            return backend.send(request)

    stream = svir.Client("http://127.0.0.1:1", backend=Late()).stream(REQUEST)
    with pytest.raises(svir.Cancelled):
        stream.result()
    assert backend.aborted.is_set()
    assert backend.closed == 1
