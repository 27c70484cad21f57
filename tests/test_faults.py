"""Faults on the wire, as tables: where an answer breaks off, how, and on which route.

Each fault has one right kind of error, gives out what had arrived, asks nothing twice, is over
within its limit, and leaves a client that works. tests/test_transport.py has more of framing,
heads, early answers and certificates; tests/phases.py every place in which a call can wait.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import socket
import ssl
import struct
import sys
import threading
import time
import zlib
from functools import partial
from typing import Any, Callable, Iterator, NamedTuple

import pytest

import svir
from fuzz.targets import FakeBackend
from harness import REQUEST, receive, single_bytes
from loopback import (
    Peer,
    Reader,
    nothing_left,
    read_all,
    read_head,
    run_python,
    settle,
    timed,
    until_the_end,
)
from phases import BIG
from svir_ext.testing import MockServer, Reply, text_answer

SLOW = 5.0  # seconds more than a limit that a call may take, on a busy machine
SILENCE = 1.0  # seconds: the limit of a stall; every stall of a test is waited out at once
LONG = 20.0  # seconds: a limit that must not be what ends a call
WAKE = 0.5  # seconds that a close may take to wake a reader, on a busy machine


@pytest.fixture(autouse=True)
def tidy() -> Iterator[None]:
    with nothing_left():
        yield


# -- Answers --------------------------------------------------------------------------------------

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
ROLE, A, B, FINISH, DONE = text_answer("a", "b")
BODY = ROLE + A + B + FINISH + DONE


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


CODED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
UP_TO_A = CODED + chunk(ROLE + A)
UP_TO_DONE = UP_TO_A + chunk(B + FINISH + DONE)
CHUNKED = UP_TO_DONE + b"0\r\n\r\n"
SIZED = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY)
LENGTH = SIZED + BODY
OPEN = HEAD + b"Connection: close\r\n\r\n"  # to the end of the connection
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"


def squeezed() -> bytes:
    """Half of a gzip body, up to the event with "a"."""
    packer = zlib.compressobj(wbits=31)
    data = packer.compress(ROLE + A) + packer.flush(zlib.Z_SYNC_FLUSH)
    return HEAD + b"Content-Encoding: gzip\r\nContent-Length: 9999\r\n\r\n" + data


class Place(NamedTuple):
    """Where an answer breaks off: what was sent by then, and what of it is text.

    `whole` says that the stream is complete there, and `raw_whole` that a raw stream is if the
    connection closes.
    """

    sent: bytes
    text: str = ""
    whole: bool = False
    raw_whole: bool = False
    rest: bytes = b""  # what would have made it an answer


def place(answer: bytes, size: int, text: str = "", **more: Any) -> Place:
    return Place(answer[:size], text, rest=answer[size:], **more)


PLACES = {
    "before-the-headers": place(CHUNKED, 0),
    "inside-the-status-line": place(CHUNKED, 9),
    "inside-a-header": place(CHUNKED, len(HEAD) - 9),
    "inside-the-blank-line": place(CHUNKED, len(CODED) - 1),
    "before-the-body": place(CHUNKED, len(CODED)),
    "inside-a-chunk-size": place(CHUNKED, len(CODED) + 1),
    "inside-the-first-event": place(CHUNKED, len(CODED) + 12),
    "before-the-end-of-a-chunk": place(CHUNKED, len(UP_TO_A) - 2, "a"),
    "between-chunks": place(CHUNKED, len(UP_TO_A), "a"),
    "inside-a-chunk": place(CHUNKED, len(UP_TO_A) + 20, "a"),
    "inside-an-event-of-a-whole-chunk": Place(
        UP_TO_A + chunk(B[:25]), "a", rest=chunk(B[25:] + FINISH + DONE) + b"0\r\n\r\n"
    ),
    "before-the-finish": Place(UP_TO_A + chunk(B), "ab", rest=chunk(FINISH + DONE) + b"0\r\n\r\n"),
    "before-done": Place(UP_TO_A + chunk(B + FINISH), "ab", rest=chunk(DONE) + b"0\r\n\r\n"),
    "inside-done": place(CHUNKED, len(UP_TO_DONE) - 6, "ab"),
    "before-the-last-chunk": place(CHUNKED, len(UP_TO_DONE), "ab", whole=True),
    "inside-the-last-chunk": place(CHUNKED, len(CHUNKED) - 3, "ab", whole=True),
    "inside-a-trailer": Place(UP_TO_DONE + b"0\r\nA: ", "ab", True, rest=b"b\r\n\r\n"),
    "inside-a-length": place(LENGTH, len(SIZED + ROLE + A), "a"),
    "before-done-of-a-length": place(LENGTH, len(LENGTH) - len(DONE), "ab"),
    "before-the-end-of-a-length": Place(
        HEAD + b"Content-Length: %d\r\n\r\n" % (len(BODY) + 2) + BODY, "ab", True, rest=b"\n\n"
    ),
    "without-framing": place(OPEN + BODY, len(OPEN + ROLE + A), "a", raw_whole=True),
    "without-framing-after-done": Place(OPEN + BODY, "ab", True, True),
    "inside-gzip": Place(squeezed(), "a"),
}


# -- Servers --------------------------------------------------------------------------------------

ROUTES = ("plain", "tls", "proxy", "tunnel")
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n"
Talk = Callable[[Any, int], object]  # with the connection, and its number from 1


def reset(conn: Any) -> None:
    """Have close() reset the connection: to linger for 0 s. The fields are shorts on Windows."""
    linger = struct.pack("hh" if os.name == "nt" else "ii", 1, 0)
    conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


def half_close(conn: Any) -> None:
    """Close our side, without a word of TLS, and read on until the client leaves."""
    socket.socket.shutdown(conn, socket.SHUT_WR)
    until_the_end(conn)


class Wire:
    """A server at the end of a route, which runs `talk` on each connection, and a client for it.

    On "proxy" and "tunnel" the peer plays the proxy as well: it stands for both ends.
    """

    def __init__(self, route: str, tls: Any, talk: Talk, **settings: Any) -> None:
        self.secure, self.tunnel = route in ("tls", "tunnel"), route == "tunnel"
        self.context = tls.server() if self.secure else None
        self.talk = talk
        self.numbers = itertools.count(1)
        self.peer = Peer(self._serve)
        url = self.peer.tls_url if self.secure else self.peer.url
        if route in ("proxy", "tunnel"):
            # The certificate names localhost; no proxy goes there by itself.
            url = "https://localhost:9" if self.secure else "http://localhost:9"
            settings["proxy"] = self.peer.url
        if self.secure:
            settings["ssl_context"] = ssl.create_default_context(cafile=tls.cafile)
        limits: dict[str, Any] = {"idle_timeout": LONG, "connect_timeout": LONG}
        self.client = svir.Client(url, **{**limits, **settings})

    def __enter__(self) -> Wire:
        self.peer.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.client.close()
        self.peer.__exit__(*error)

    def _serve(self, conn: Any) -> None:
        number = next(self.numbers)
        if self.tunnel:
            assert read_head(conn).startswith(b"CONNECT localhost:9 ")
            conn.sendall(ESTABLISHED)
        if self.context is None:
            self.talk(conn, number)
            return
        with self.context.wrap_socket(conn, server_side=True) as secure:
            self.talk(secure, number)


class Script:
    """Breaks the first answer off at a place, in a way, and answers all others in full.

    It breaks off once the client has given out the text that was sent, so what is lost is lost by
    the client.
    """

    def __init__(self, place: Place, how: str) -> None:
        self.place, self.how = place, how
        self.sent, self.seen = threading.Event(), threading.Event()
        self.asked, self.secure = 0, False

    def __call__(self, conn: Any, number: int) -> None:
        if number > 1:
            while receive(conn) is not None:
                conn.sendall(CHUNKED)
            return
        assert receive(conn) is not None
        self.asked += 1
        self.secure = isinstance(conn, ssl.SSLSocket)
        conn.sendall(self.place.sent)
        self.sent.set()
        if self.place.text:
            assert self.seen.wait(10), "the client did not give out what it was sent"
        getattr(self, self.how)(conn)

    def close(self, conn: Any) -> None:
        pass

    def half(self, conn: Any) -> None:
        half_close(conn)

    def reset(self, conn: Any) -> None:
        reset(conn)

    def stall(self, conn: Any) -> None:
        until_the_end(conn)

    def drip(self, conn: Any) -> None:
        """A few bytes one at a time, slowly, then the rest."""
        pause = threading.Event().wait
        for byte in single_bytes(self.place.rest[:8]):
            conn.sendall(byte)
            pause(0.02)
        conn.sendall(self.place.rest[8:])

    def read_stream(self, client: svir.Client) -> tuple[str, svir.Error | None]:
        """The text that came out, and the error at its end."""
        text = ""
        try:
            with client.stream(REQUEST) as stream:
                for piece in stream.text():
                    text += piece
                    if text == self.place.text:
                        self.seen.set()
                assert stream.completion.text == text
        except svir.Error as error:
            return text, error
        return text, None

    def read_raw(self, client: svir.Client) -> tuple[bytes, svir.Error | None]:
        data = b""
        try:
            with client.send(REQUEST) as raw:
                for piece in raw:
                    data += piece
                    if not self.place.text or len(data) >= self.body_size():
                        self.seen.set()
        except svir.Error as error:
            return data, error
        return data, None

    def body_size(self) -> int:
        """Bytes of the body that surely arrived: without their framing."""
        body = self.place.sent.partition(b"\r\n\r\n")[2]
        return len(body) if b"gzip" in self.place.sent else 1


# -- An answer breaks off -------------------------------------------------------------------------

LEAVES = ("close", "half", "reset")


def has_headers(place: Place) -> bool:
    return b"\r\n\r\n" in place.sent


def kind_of(place: Place, how: str, raw: bool = False) -> str | None:
    """The kind of error that a fault must give; None for a whole answer."""
    if how == "drip" or (place.whole and not raw):
        return None
    if how == "stall":
        return "timeout"
    if how == "reset" or not has_headers(place):
        return "disconnected"
    return None if raw and place.raw_whole else "truncated"


def check_kind(error: svir.Error | None, script: Script, raw: bool = False) -> None:
    """The one right kind. Some versions of OpenSSL show a reset as an end: then it is that."""
    kinds = {kind_of(script.place, script.how, raw)}
    if script.how == "reset" and script.secure:
        kinds.add(kind_of(script.place, "close", raw))
    kind = None if error is None else error.kind
    assert kind in kinds, repr(error)
    assert script.asked == 1, "asked again"
    if error is None:
        return
    assert not error.unsent, "the server had the request"
    assert error.retryable is (kind != "truncated")
    if script.how != "reset" or script.place.text:  # a reset may overtake what was sent before it
        assert error.in_stream is has_headers(script.place)
    assert "POST http" in str(error), "it does not say where"


def check_works(wire: Wire, connections: int = 2) -> None:
    """The client is as good as new: its next call has a connection of its own."""
    assert wire.client.complete(REQUEST).text == "ab"
    assert wire.peer.connections == connections


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("how", LEAVES)
@pytest.mark.parametrize("name", PLACES)
def test_a_server_that_leaves(name: str, how: str, route: str, tls: Any) -> None:
    script = Script(PLACES[name], how)
    with Wire(route, tls, script) as wire:
        started = time.monotonic()
        text, error = script.read_stream(wire.client)
        assert time.monotonic() - started < SLOW
        check_stream(script, text, error)
        check_works(wire)


def check_stream(script: Script, text: str, error: svir.Error | None) -> None:
    check_kind(error, script)
    assert text == ("ab" if error is None else script.place.text)
    if error is not None and error.in_stream:
        assert error.partial is not None
        assert error.partial.text == text
        assert error.partial.finish_reason is None


@pytest.mark.parametrize("route", ["plain", "tls"])
@pytest.mark.parametrize("how", LEAVES)
@pytest.mark.parametrize("name", PLACES)
def test_a_raw_stream_that_breaks_off(name: str, how: str, route: str, tls: Any) -> None:
    script = Script(PLACES[name], how)
    with Wire(route, tls, script) as wire:
        started = time.monotonic()
        data, error = script.read_raw(wire.client)
        assert time.monotonic() - started < SLOW
        check_raw(script, data, error)
        check_works(wire)


def check_raw(script: Script, data: bytes, error: svir.Error | None) -> None:
    check_kind(error, script, raw=True)
    if script.place is PLACES["inside-gzip"]:
        assert data == squeezed().partition(b"\r\n\r\n")[2], "svir does not touch the body"
    else:
        assert (BODY + b"\n\n").startswith(data)
        assert script.place.text == "" or ROLE + A[:-2] in data


# -- A server falls silent ------------------------------------------------------------------------


class Stalls:
    """Every place at once, each with a server, a client and a reader of its own."""

    def __init__(self, stack: contextlib.ExitStack, route: str, tls: Any, **settings: Any) -> None:
        self.scripts = {name: Script(place, "stall") for name, place in PLACES.items()}
        self.wires = {
            name: stack.enter_context(Wire(route, tls, script, **settings))
            for name, script in self.scripts.items()
        }

    def read(self, how: str) -> dict[str, tuple[Any, svir.Error | None, float]]:
        """By place: what came out, the error, and the seconds that it took."""
        started = time.monotonic()
        readers = {
            name: Reader(partial(getattr(script, how), self.wires[name].client))
            for name, script in self.scripts.items()
        }
        found = {}
        for name, reader in readers.items():
            assert reader.join(SILENCE + SLOW), f"{name} hangs"
            assert reader.error is None, (name, reader.error)
            found[name] = (*reader.value, reader.ended_at - started)
        return found


@pytest.mark.parametrize("route", ["plain", "tls"])
@pytest.mark.parametrize("limit", ["idle_timeout", "total_timeout"])
@pytest.mark.parametrize("how", ["read_stream", "read_raw"])
def test_a_server_that_stalls(how: str, limit: str, route: str, tls: Any) -> None:
    """One wait each, and its limit named. A whole answer is given at [DONE], without a wait."""
    check = check_raw if how == "read_raw" else check_stream
    with contextlib.ExitStack() as stack:
        stalls = Stalls(stack, route, tls, **{limit: SILENCE})
        for name, (given, error, took) in stalls.read(how).items():
            script = stalls.scripts[name]
            check(script, given, error)
            if error is None:
                assert took < SILENCE, f"{name}: the end was waited for"
            else:
                assert f"{limit}=" in str(error)
                assert took > SILENCE * 0.9, name
            if limit == "idle_timeout":
                check_works(stalls.wires[name])


@pytest.mark.parametrize("route", ["plain", "tls"])
def test_a_close_wakes_each_stall(route: str, tls: Any) -> None:
    with contextlib.ExitStack() as stack:
        stalls = Stalls(stack, route, tls)
        for name, script in stalls.scripts.items():
            if script.place.whole:
                continue
            stream = stalls.wires[name].client.stream(REQUEST)
            reader = Reader(partial(collect, stream, script))
            assert script.sent.wait(10)
            if script.place.text:
                assert script.seen.wait(10)
            settle(reader.thread)
            closed_at = time.monotonic()
            stream.close()
            assert reader.join(), f"{name}: close() woke nobody"
            assert reader.ended_at - closed_at < WAKE, name
            error = reader.error
            assert isinstance(error, svir.Cancelled), name
            assert error.in_stream is has_headers(script.place), name
            assert error.partial is None or error.partial.text == script.place.text, name


def collect(stream: svir.Stream, script: Script) -> None:
    text = ""
    for piece in stream.text():
        text += piece
        if text == script.place.text:
            script.seen.set()


@pytest.mark.parametrize("route", ROUTES)
def test_a_server_that_drips(route: str, tls: Any) -> None:
    """A byte now and then, from each place on: idle_timeout is for silence only."""
    with contextlib.ExitStack() as stack:
        scripts = {name: Script(place, "drip") for name, place in PLACES.items() if place.rest}
        readers = {}
        for name, script in scripts.items():
            wire = stack.enter_context(Wire(route, tls, script, idle_timeout=SILENCE))
            readers[name] = Reader(partial(script.read_stream, wire.client))
        for name, reader in readers.items():
            assert reader.join(SLOW * 2), f"{name} hangs"
            assert reader.value == ("ab", None), name


# -- Heads in pieces ------------------------------------------------------------------------------

FIELDS = b"".join(b"X-%d: 1\r\n" % number for number in range(98))
HEADS = {  # with what comes of them: a text, or a kind of error
    "100-headers": (HEAD + FIELDS + b"Transfer-Encoding: chunked\r\n\r\n", "ab"),
    "101-headers": (HEAD + FIELDS + b"X: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "protocol"),
    "a-value-on-the-next-line": (HEAD + b"Transfer-Encoding:\r\n chunked\r\n\r\n", "ab"),
    "a-value-after-two-lines": (HEAD + b"Transfer-Encoding:\r\n \r\n\tchunked\r\n\r\n", "ab"),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_head_is_the_same_however_it_is_cut(name: str) -> None:
    """In the last line, before the blank line, and inside it."""
    head, expected = HEADS[name]
    for cut in range(len(head) - 30, len(head) + 1):
        backend = FakeBackend([head[:cut], head[cut:] + CHUNKED[len(CODED) :]], False)
        with svir.Client("http://localhost", backend=backend) as client:
            try:
                got = client.complete(REQUEST).text
            except svir.Error as error:
                got = error.kind
        assert got == expected, head[:cut]


# -- No connection --------------------------------------------------------------------------------

HELLO = b"\x16\x03\x03\x00\x7a\x02\x00\x00\x76\x03\x03"  # how a server's TLS begins


def after(*steps: Any) -> Callable[[Any], None]:
    """Reads what comes first, then sends the bytes and runs the functions."""

    def talk(conn: Any) -> None:
        conn.recv(65536)
        for step in steps:
            conn.sendall(step) if isinstance(step, bytes) else step(conn)

    return talk


def drips(data: bytes) -> Callable[[Any], None]:
    def talk(conn: Any) -> None:
        pause = threading.Event().wait
        for byte in single_bytes(data):
            conn.sendall(byte)
            pause(0.02)

    return talk


def without_end(data: bytes) -> Callable[[Any], None]:
    def talk(conn: Any) -> None:
        while True:
            conn.sendall(data)

    return talk


def next_read(conn: Any) -> None:
    conn.recv(65536)


# What a TLS server or a proxy does in the place of letting anything through; whether only the
# limit ends that; and words of the error.
HANDSHAKES: dict[str, tuple[Callable[[Any], object], bool, str]] = {
    "closes-at-once": (lambda conn: None, False, "TLS"),
    "closes-at-the-hello": (after(), False, "Is it an https server?"),
    "resets-at-the-hello": (after(reset), False, "Is it an https server?"),
    "closes-inside-its-hello": (after(HELLO), False, "Is it an https server?"),
    "resets-inside-its-hello": (after(HELLO, reset), False, "Is it an https server?"),
    "half-closes": (after(half_close), False, "Is it an https server?"),
    "alert": (after(b"\x15\x03\x03\x00\x02\x02\x28"), False, "Is it an https server?"),
    "garbage": (after(b"\x00" * 500), False, "Is it an https server?"),
    "plain-http": (after(LENGTH), False, "Is it an https server?"),
    "stalls": (until_the_end, True, "within connect_timeout="),
    "stalls-inside-its-hello": (after(HELLO, until_the_end), True, "within connect_timeout="),
    "drips": (after(drips(HELLO + b"\0" * 9999)), True, "within connect_timeout="),
}
TUNNELS: dict[str, tuple[Callable[[Any], object], bool, str]] = {
    "closes-at-once": (lambda conn: None, False, "did not answer CONNECT"),
    "closes-at-the-request": (after(), False, "did not answer CONNECT"),
    "resets-at-the-request": (after(reset), False, "did not answer CONNECT"),
    "half-closes": (after(half_close), False, "did not answer CONNECT"),
    "closes-inside-its-answer": (after(ESTABLISHED[:-2]), False, "did not answer CONNECT"),
    "gigantic-header": (
        after(ESTABLISHED[:-2] + b"A: " + b"b" * 70000, until_the_end), False, "not HTTP",
    ),
    "101-headers": (after(ESTABLISHED[:-2] + b"A: b\r\n" * 101, until_the_end), False, "not HTTP"),
    "closes-when-connected": (after(ESTABLISHED), False, "TLS"),
    "resets-when-connected": (after(ESTABLISHED, next_read, reset), False, "TLS"),
    "garbage-when-connected": (after(ESTABLISHED, next_read, b"\x00" * 500), False, "TLS"),
    "stalls": (until_the_end, True, "did not answer CONNECT"),
    "stalls-inside-its-answer": (after(ESTABLISHED[:20], until_the_end), True, "did not answer"),
    "stalls-when-connected": (after(ESTABLISHED, until_the_end), True, "within connect_timeout="),
    "drips": (after(drips(ESTABLISHED[:-2] + b"A: b\r\n" * 99)), True, "did not answer CONNECT"),
}  # fmt: skip


@pytest.mark.parametrize("limit", ["connect_timeout", "total_timeout"])
@pytest.mark.parametrize("table", [HANDSHAKES, TUNNELS], ids=["tls", "proxy"])
def test_what_never_connects(table: Any, limit: str, tls: Any) -> None:
    """ConnectError: nothing was sent, and one limit holds for all of it, not for each byte."""
    context = ssl.create_default_context(cafile=tls.cafile)
    with contextlib.ExitStack() as stack:
        readers = {}
        started = time.monotonic()
        for name, (talk, _, _) in table.items():
            peer = stack.enter_context(Peer(talk))
            settings: dict[str, Any] = {"ssl_context": context, limit: SILENCE}
            if table is TUNNELS:
                settings["proxy"] = peer.url
            url = "https://host.example" if table is TUNNELS else peer.tls_url
            client = svir.Client(url, **settings)
            readers[name] = Reader(client.stream(REQUEST).result)
        for name, (_, waits, words) in table.items():
            assert readers[name].join(SILENCE + SLOW), f"{name} hangs"
            error = readers[name].error
            assert isinstance(error, svir.Error), (name, error)
            late = waits and limit == "total_timeout"
            assert error.kind == ("timeout" if late else "connect"), (name, error)
            assert (limit + "=" if late else words) in str(error), name
            assert (error.unsent, error.retryable, error.in_stream) == (True, True, False), name
            assert readers[name].ended_at - started < SILENCE + SLOW, name
            assert not waits or readers[name].ended_at - started > SILENCE * 0.9, name


def test_a_proxy_with_1xx_without_end() -> None:
    """They are always there to be read, and so no read is ever late."""
    flood = after(without_end(b"HTTP/1.1 103 x\r\n\r\n" * 60000))
    with Peer(flood) as peer:
        client = svir.Client("https://host.example", proxy=peer.url, connect_timeout=SILENCE / 2)
        reader = Reader(client.stream(REQUEST).result)
        ended = reader.join(SILENCE * 2)
    assert ended, "it hangs"
    assert isinstance(reader.error, svir.ConnectError)


@pytest.mark.parametrize("place", ["127.0.0.1:{}", "255.255.255.255:9", "localhost:{}"])
def test_what_refuses_or_cannot_be_reached(place: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    url = "http://" + place.format(port)
    _, error = timed(svir.Client(url, allow_http=True).stream(REQUEST).result)
    assert type(error) is svir.ConnectError
    assert (error.unsent, error.retryable, error.in_stream) == (True, True, False)
    assert f"cannot connect to {place.format(port)}" in str(error)
    assert ("Is the server running?" in str(error)) is ("{" in place)


def shake_hands_slowly(conn: Any, context: ssl.SSLContext) -> None:
    """A whole TLS exchange, each byte of ours in a packet of its own."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    secure = context.wrap_bio(incoming, outgoing, server_side=True)

    def run(step: Callable[..., Any], *args: Any) -> Any:
        while True:
            try:
                return step(*args)
            except ssl.SSLWantReadError:
                send()
                incoming.write(conn.recv(65536))

    def send() -> None:
        for byte in single_bytes(outgoing.read()):
            conn.sendall(byte)

    run(secure.do_handshake)
    while not run(secure.read, 65536).endswith(b"}"):
        pass
    secure.write(LENGTH)
    send()
    until_the_end(conn)


def test_tls_a_byte_at_a_time(tls: Any) -> None:
    context = ssl.create_default_context(cafile=tls.cafile)
    request = REQUEST.replace(include_usage=False)
    with Peer(lambda conn: shake_hands_slowly(conn, tls.server())) as peer, svir.Client(
        peer.tls_url, ssl_context=context
    ) as client:
        assert client.complete(request).text == "ab"


class Resolver:
    """A name service that takes its time over each name, and finds this machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.real, self.seconds, self.asked = socket.getaddrinfo, seconds, threading.Event()
        monkeypatch.setattr(socket, "getaddrinfo", self)

    def __call__(self, host: Any, port: Any, *args: Any) -> Any:
        self.asked.set()
        threading.Event().wait(self.seconds)
        return self.real("127.0.0.1", port, *args)


@pytest.mark.parametrize("limit", ["connect_timeout", "total_timeout"])
def test_a_name_that_is_found_too_late(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's resolver cannot be interrupted; but nothing is sent after the limit."""
    Resolver(monkeypatch, 0.4)
    with Peer(until_the_end) as peer:
        url = f"http://host.example:{peer.port}"
        settings: dict[str, Any] = {"idle_timeout": SILENCE, limit: 0.2}
        client = svir.Client(url, allow_http=True, **settings)
        seconds, error = timed(client.stream(REQUEST).result)
        assert seconds < 0.4 + SLOW
        assert error.kind == ("connect" if limit == "connect_timeout" else "timeout")
        assert error.unsent
        assert f"{limit}=" in str(error)
        assert peer.connections == 0


def test_a_close_while_a_name_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = Resolver(monkeypatch, 0.2)
    with Peer(until_the_end) as peer:
        stream = svir.Client(f"http://host.example:{peer.port}", allow_http=True).stream(REQUEST)
        reader = Reader(stream.result)
        assert resolver.asked.wait(10)
        stream.close()
        assert reader.join()
        assert isinstance(reader.error, svir.Cancelled)
        threading.Event().wait(0.1)  # for a connection to show
        assert peer.connections == 0


# -- Uploads --------------------------------------------------------------------------------------

REFUSAL = b'{"error": {"message": "too much of it"}}'
REFUSED = (
    b"HTTP/1.1 413 Early\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(REFUSAL), REFUSAL)
)


@pytest.mark.parametrize("route", ROUTES)
def test_an_upload_that_meets_a_closed_side(route: str, tls: Any) -> None:
    """The server will say nothing more, whether it reads on or not (over TLS it has to)."""
    left = threading.Event()

    def talk(conn: Any, number: int) -> None:
        read_head(conn)
        if route in ("tls", "tunnel"):
            half_close(conn)
        else:
            socket.socket.shutdown(conn, socket.SHUT_WR)
            left.wait(SLOW * 2)

    with Wire(route, tls, talk) as wire:
        seconds, error = timed(wire.client.stream(BIG).result)
        left.set()
        assert seconds < SLOW
        assert type(error) is svir.Disconnected
        assert (error.unsent, error.in_stream) == (False, False)
        assert wire.peer.connections == 1


@pytest.mark.parametrize("route", ["plain", "proxy", *("tls", "tunnel")])
def test_a_refusal_by_a_server_that_never_reads(route: str, tls: Any) -> None:
    """It answers, and neither reads on nor leaves: its answer counts."""
    left = threading.Event()

    def talk(conn: Any, number: int) -> None:
        read_head(conn)
        conn.sendall(REFUSED)
        left.wait(SLOW + SILENCE)

    with Wire(route, tls, talk, idle_timeout=SILENCE) as wire:
        seconds, error = timed(wire.client.stream(BIG).result)
        left.set()
        assert seconds < SILENCE + SLOW
        assert (type(error), error.status) == (svir.Unsupported, 413)
        assert error.server_message == "too much of it"


def take_body(conn: Any, left: int) -> None:
    while left:
        data = conn.recv(min(left, 65536))
        assert data, f"{left} bytes of the request did not come"
        left -= len(data)


def test_a_1xx_over_tls_while_the_upload_stands_still(
    tls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no answer, whole or half: the upload goes on."""
    receive_really, seen = svir._receive, threading.Event()

    def receive_and_tell(*args: Any) -> bytes:
        data = receive_really(*args)
        seen.set()
        return data

    def talk(conn: Any, number: int) -> None:
        read_head(conn)
        conn.sendall(CONTINUE + HINTS[:20])
        assert seen.wait(10), "the client does not look for an answer while it cannot send"
        take_body(conn, svir.encode(BIG.replace(include_usage=True)).length)
        conn.sendall(HINTS[20:] + CHUNKED)

    monkeypatch.setattr(svir, "_receive", receive_and_tell)
    with Wire("tls", tls, talk, idle_timeout=SLOW) as wire:
        assert wire.client.complete(BIG).text == "ab"


# -- A connection that is used again --------------------------------------------------------------

TIMED_OUT = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def say(data: bytes) -> Callable[[Any], None]:
    return lambda conn: conn.sendall(data)


def notify(conn: Any) -> None:
    """End TLS politely, where there is TLS."""
    if isinstance(conn, ssl.SSLSocket):
        conn.settimeout(0.05)
        with contextlib.suppress(OSError):
            conn.unwrap()


def on_request(*sent: bytes) -> Callable[[Any], None]:
    """Take one more request, and send the beginning of an answer."""

    def act(conn: Any) -> None:
        assert receive(conn) is not None
        conn.sendall(b"".join(sent))

    return act


# What a kept connection does after its last whole answer, before it closes or resets; with what
# kind of error the next call then ends, and with which text. None: it has a connection of its own.
STALE: dict[str, tuple[Callable[[Any], None], str | None, str]] = {
    "while-idle": (lambda conn: None, None, "ab"),
    "while-idle-with-notice": (notify, None, "ab"),
    "a-timeout-while-idle": (say(TIMED_OUT), None, "ab"),
    "an-answer-while-idle": (say(CHUNKED.replace(b'"a"', b'"z"')), None, "ab"),
    "a-1xx-while-idle": (say(CONTINUE), None, "ab"),
    "garbage-while-idle": (say(b"\0"), None, "ab"),
    "inside-the-request": (lambda conn: conn.recv(9) and None, "disconnected", ""),
    "on-the-request": (on_request(), "disconnected", ""),
    "inside-the-headers": (on_request(HEAD), "disconnected", ""),
    "before-the-body": (on_request(CODED), "truncated", ""),
    "inside-the-body": (on_request(UP_TO_A), "truncated", "a"),
    "after-done": (on_request(UP_TO_DONE), None, "ab"),
}


class Stale:
    """The first connection answers so often, does its act, and ends; all others only answer."""

    def __init__(self, answers: int, act: Callable[[Any], None], how: str) -> None:
        self.answers, self.act, self.how = answers, act, how
        self.idle, self.over = threading.Event(), threading.Event()
        self.asked = 0

    def __call__(self, conn: Any, number: int) -> None:
        while number > 1 or self.answers:
            if receive(conn) is None:
                return
            self.asked += 1
            self.answers -= number == 1
            conn.sendall(CHUNKED)
        assert self.idle.wait(10)
        self.act(conn)
        if self.how == "reset":
            threading.Event().wait(0.05)  # for what was sent: a reset may overtake it
            reset(conn)
        conn.close()
        self.over.set()


@pytest.mark.parametrize("route", ["plain", "tls", "tunnel"])
@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("answers", [1, 2], ids=["used-once", "proven"])
@pytest.mark.parametrize("name", STALE)
def test_a_stale_connection(name: str, answers: int, how: str, route: str, tls: Any) -> None:
    """Never another's answer, never a second sending; and the call after it works."""
    act, kind, text = STALE[name]
    stale = Stale(answers, act, how)
    with Wire(route, tls, stale) as wire:
        for _ in range(answers):
            assert wire.client.complete(REQUEST).text == "ab"
        stale.idle.set()
        if "idle" in name:
            assert stale.over.wait(10)
        given, error = "", None
        try:
            for piece in wire.client.stream(REQUEST).text():
                given += piece
        except svir.Error as failure:
            error = failure
        got = None if error is None else error.kind
        assert given == text
        assert got == kind or (how == "reset" and (got, kind) == ("disconnected", "truncated"))
        if error is not None:
            assert not error.unsent
        fresh = "idle" in name
        assert wire.peer.connections == (2 if fresh else 1)
        assert wire.client.complete(REQUEST).text == "ab"
        assert wire.peer.connections <= 2 + fresh, "of a server that closes soon none is kept"
        assert stale.asked == answers + (2 if fresh else 1)


# -- After the end --------------------------------------------------------------------------------

OTHER = b"".join(text_answer("y", "z"))
ERROR = b'data: {"error": {"message": "late"}}\n\n'
AFTER_DONE = {
    "nothing": b"",
    "blank-lines": b"\n\r\n\n",
    "a-comment": b": bye\n\n",
    "a-second-done": DONE,
    "another-answer": OTHER,
    "an-error": ERROR,
    "an-error-event": b"event: error\n" + ERROR,
    "not-json": b"data: {\n\n",
    "not-sse": b"<html>\xff\xfe\0",
    "a-long-line": b"x" * 100000,
}


@pytest.mark.parametrize("pace", ["at-once", "in-a-chunk", "later"])
@pytest.mark.parametrize("name", AFTER_DONE)
def test_data_after_done(name: str, pace: str, tls: Any) -> None:
    """The stream ends at [DONE]. A raw stream has it all, and the next call has its own answer."""
    rest = AFTER_DONE[name]
    body = chunk(ROLE + A) + chunk(B + FINISH + DONE + rest)
    if pace != "at-once":
        body = chunk(ROLE + A) + chunk(B + FINISH + DONE) + (chunk(rest) if rest else b"")
    sent = CODED + body + b"0\r\n\r\n"
    cut = len(UP_TO_DONE) if pace == "later" else len(sent)

    def talk(conn: Any, number: int) -> None:
        while receive(conn) is not None:
            conn.sendall(sent[:cut])
            threading.Event().wait(0.02 if pace == "later" else 0)
            conn.sendall(sent[cut:])

    with Wire("plain", tls, talk) as wire:
        for _ in range(3):
            assert wire.client.complete(REQUEST).text == "ab"
        assert read_all(wire.client.send(REQUEST)) == BODY + rest
        assert read_all(wire.client.send(REQUEST)) == BODY + rest


@pytest.mark.parametrize("route", ["plain", "tls"])
def test_a_connection_whose_answer_has_a_rest_is_not_used_again(route: str, tls: Any) -> None:
    """A whole stream may have its last chunk still to come: then it is not waited for."""

    def talk(conn: Any, number: int) -> None:
        for answer in [CHUNKED, CHUNKED, UP_TO_DONE] if number == 1 else [CHUNKED]:
            assert receive(conn) is not None
            conn.sendall(answer)
        conn.recv(1)  # the end, or a request that belongs elsewhere
        conn.sendall(b"0\r\n\r\n" + CHUNKED.replace(b'"a"', b'"z"'))
        until_the_end(conn)

    with Wire(route, tls, talk) as wire:
        for connections in (1, 1, 1, 2):
            assert wire.client.complete(REQUEST).text == "ab"
            assert wire.peer.connections == connections


def test_comments_without_end_after_done(tls: Any) -> None:
    def talk(conn: Any, number: int) -> None:
        assert receive(conn) is not None
        conn.sendall(UP_TO_DONE)
        if number == 1:
            without_end(chunk(b": still here\n\n"))(conn)

    with Wire("plain", tls, talk) as wire:
        started = time.monotonic()
        assert wire.client.complete(REQUEST).text == "ab"
        assert time.monotonic() - started < SLOW
        check_works(wire)


@pytest.mark.parametrize("route", ["plain", "tls"])
def test_a_last_chunk_and_then_the_end_of_the_connection(
    route: str, tls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each comes a moment after what was before it: no request is lost in between."""
    monkeypatch.setattr(svir._Pool, "MOMENT", LONG)  # the server's moments are shorter, always

    def talk(conn: Any, number: int) -> None:
        assert receive(conn) is not None
        for part in (UP_TO_DONE, b"0\r\n\r\n"):
            conn.sendall(part)
            threading.Event().wait(0.02)

    with Wire(route, tls, talk) as wire:
        for connections in (1, 2, 3):
            assert wire.client.complete(REQUEST).text == "ab"
            assert wire.peer.connections == connections


@pytest.mark.parametrize("route", ["plain", "tls"])
def test_one_late_end_is_no_habit(route: str, tls: Any) -> None:
    """The connection is not used again. Those after it are kept: none of them closed soon."""
    second = threading.Event()

    def talk(conn: Any, number: int) -> None:
        if number == 1:
            assert receive(conn) is not None
            conn.sendall(UP_TO_DONE)
            assert second.wait(10)
            conn.sendall(b"0\r\n\r\n")
            return
        second.set()
        while receive(conn) is not None:
            conn.sendall(CHUNKED)

    with Wire(route, tls, talk) as wire:
        for connections in (1, 2, 2, 2):
            assert wire.client.complete(REQUEST).text == "ab"
            assert wire.peer.connections == connections


def test_blanks_without_end_after_done(tls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A close looks for the end among what is there, but not for as long as there is more."""

    def talk(conn: Any, number: int) -> None:
        assert receive(conn) is not None
        conn.sendall(UP_TO_DONE + (b"fffffff\r\n" if number == 1 else b"0\r\n\r\n"))
        until_the_end(conn)

    blanks = itertools.repeat(b"\n" * 9999, 50)
    with Wire("plain", tls, talk) as wire:
        stream = wire.client.stream(REQUEST)
        assert isinstance(list(itertools.islice(stream, 3))[-1], svir.Completed)
        with monkeypatch.context() as patch:
            patch.setattr(svir, "_receive", lambda *args: next(blanks))
            stream.close()
        left = len(list(blanks))
        assert 0 < left < 50, "all were read, or none"
        check_works(wire)


# -- Interrupted ----------------------------------------------------------------------------------


class Interrupted(Exception):
    """As KeyboardInterrupt, of a signal that pytest does not know."""


def interrupt(*args: Any) -> None:
    raise Interrupted


def after_seconds(seconds: float, call: Callable[[], Any]) -> Any:
    """What the call gives; None when a signal handler has raised in it, after so long."""
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            return call()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupted:
        return None


def read_half(client: svir.Client) -> str:
    with client.stream(REQUEST) as stream:
        return next(stream.text())


def test_an_interrupt_once_the_answer_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is asked next comes to an end."""
    decoder, body = svir.Decoder(), b"".join(text_answer("a"))
    done = decoder._answer.done

    def interrupted() -> None:
        done()
        raise KeyboardInterrupt

    monkeypatch.setattr(decoder._answer, "done", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(decoder.feed(body * 2))
    assert [event.type for event in decoder.feed(body)] == ["completed"]  # the rest was given out
    assert list(decoder.finish()) == []


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timer that signals")
@pytest.mark.skipif(sys.implementation.name != "cpython", reason="only CPython collects at once")
def test_interrupts_at_random(tls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C at any moment of a call: no deadlock after it, and the next call has its answer."""

    def talk(conn: Any, number: int) -> None:
        while receive(conn) is not None:
            conn.sendall(CHUNKED)

    ignored: list[str] = []  # in finalisers, of what lost its owner half-made
    monkeypatch.setattr(
        sys, "unraisablehook", lambda args: ignored.append(f"{args.exc_value!r} in {args.object}")
    )
    chance, span, ended = random.Random(7), 0.003, {"whole": 0, "interrupted": 0}
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with Wire("plain", tls, talk) as wire:
            calls = [(lambda: wire.client.complete(REQUEST).text, "ab")]
            calls.append((lambda: read_half(wire.client), "a"))
            for number in range(600):
                call, wanted = calls[number % 2]
                got = after_seconds(chance.uniform(1e-6, span), call)
                assert got in (wanted, None)
                ended["interrupted" if got is None else "whole"] += 1
                span *= 1.02 if got is None else 1 / 1.02
                assert after_seconds(10, calls[0][0]) == "ab", "the next call hangs"
    finally:
        signal.signal(signal.SIGALRM, before)
    assert min(ended.values()) > 60, ended
    known = ("Interrupted(", "ResourceWarning(")
    odd = [each for each in ignored if not each.startswith(known)]
    assert [each for each in odd if " in <http.client.HTTPResponse " not in each] == []


FORK_BACKGROUND = """
import os, sys, warnings
import svir

client = svir.Client(sys.argv[1])
work = svir.Background(client.stream(svir.Request("m", "Hi")))
while not work.poll():
    pass
warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 and later, of a fork among threads
child = os.fork()
if not child:
    what, words = sys.argv[2], []
    if what == "cancel":
        work.cancel()
    elif what == "drop":
        del work
    elif what == "result":
        try:
            work.result()
        except RuntimeError as error:
            words.append(type(error).__name__)
    words.append(client.complete(svir.Request("m", "go on")).text)
    print("child", *words, flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print("parent", work.result().text)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("what", ["nothing", "cancel", "drop", "result"])
def test_a_fork_while_a_background_thread_reads(what: str) -> None:
    """The child has no such thread, and waits for none; the parent's answer is not touched."""
    go_on = threading.Event()

    def answer(request: Any) -> Reply:
        if b"go on" not in request.body:
            return Reply(text_answer("a", go_on, "b"))
        go_on.set()
        return Reply(text_answer("c"))

    with MockServer() as server:
        server.on_request = answer
        printed = run_python(FORK_BACKGROUND, server.url, what)
    words = "child RuntimeError c" if what == "result" else "child c"
    assert printed.splitlines() == [words, "parent ab"]
