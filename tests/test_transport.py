"""The built-in backend: its pool, framing, early answers, limits, compression, TLS and proxies."""

from __future__ import annotations

import base64
import contextlib
import gzip
import os
import re
import select
import socket
import ssl
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest

import svir
from harness import REQUEST, Run, ask, receive, single_bytes
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
    timed,
    until_the_end,
)
from phases import BIG, LINUX, OPEN_ANSWER, UNIX, Asked, ask_in, phases
from svir_ext.layers import retry
from svir_ext.testing import MockServer, text_answer

SLOW = 5.0  # seconds more than a limit that a call may take, on a busy machine

STREAM = "Content-Type: text/event-stream"
BODY = b"".join(text_answer("a", "b"))
OPEN_BODY = b"".join(OPEN_ANSWER)


@pytest.fixture(autouse=True)
def tidy() -> Iterator[None]:
    with nothing_left():
        yield


@pytest.fixture
def server() -> Iterator[MockServer]:
    with MockServer() as server:
        yield server


@pytest.fixture
def client(server: MockServer) -> Iterator[svir.Client]:
    with svir.Client(server.url) as client:
        yield client


# -- Help -----------------------------------------------------------------------------------------


def head(*lines: str, status: str = "HTTP/1.1 200 OK") -> bytes:
    return "\r\n".join([status, *lines, "", ""]).encode("latin-1")


def chunks(*pieces: bytes) -> bytes:
    """The pieces as HTTP chunks, without the last one."""
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


LAST = b"0\r\n\r\n"
CHUNKED = head(STREAM, "Transfer-Encoding: chunked") + chunks(*text_answer("a", "b")) + LAST
SIZE = f"Content-Length: {len(BODY)}"
LENGTH = head(STREAM, SIZE) + BODY


def text(run: Run) -> str:
    assert run.error is None, run.error
    last = run.events[-1]
    assert isinstance(last, svir.Completed)
    return last.completion.text


def failure(run: Run) -> svir.Error:
    assert run.error is not None, run.events
    return run.error


def raw_body(client: svir.Client, request: svir.Request = REQUEST) -> bytes:
    """The body as it is read by its framing, whatever it holds."""
    whole: bytes = read_all(client.send(request))
    return whole


def connections_used(server: MockServer) -> list[int]:
    return [request.connection for request in server.requests]


# -- Connections that are kept --------------------------------------------------------------------


def test_a_connection_is_used_again(server: MockServer, client: svir.Client) -> None:
    server.default(text_answer("a"))
    server.reply(text_answer("b"), framing="length")
    assert [client.complete(REQUEST).text for _ in range(3)] == ["b", "a", "a"]
    assert [model.id for model in client.list_models()] == ["mock"]
    assert raw_body(client) == b"".join(text_answer("a"))
    assert client.complete(REQUEST).text == "a"
    assert connections_used(server) == [1] * 6
    assert "connection" not in server.requests[0].headers


def open_at_once(client: svir.Client, count: int) -> list[svir.Stream]:
    """Streams that all wait in the middle of their answer."""
    streams = [client.stream(REQUEST) for _ in range(count)]
    for stream in streams:
        assert next(stream) == svir.TextDelta("a")
    return streams


def test_the_newest_connection_is_taken_first(server: MockServer, client: svir.Client) -> None:
    gate = threading.Event()
    server.default(text_answer("a", gate, "b"))
    streams = open_at_once(client, 3)
    gate.set()
    for index in (2, 0, 1):
        streams[index].result()
    assert connections_used(server) == [1, 2, 3]
    client.complete(REQUEST)
    again = open_at_once(client, 3)
    for stream in again:
        stream.result()
    assert connections_used(server) == [1, 2, 3, 2, 2, 1, 3]


def test_sixteen_connections_are_kept(server: MockServer, client: svir.Client) -> None:
    gate = threading.Event()
    server.default(text_answer("a", gate, "b"))
    streams = open_at_once(client, 20)
    gate.set()
    assert [stream.result().text for stream in streams] == ["ab"] * 20
    server.wait_until(lambda: server.open_connections <= 16)
    assert server.open_connections == 16
    assert server.connections == 20
    client.complete(REQUEST)
    assert connections_used(server)[-1] == 20
    client.close()
    server.wait_until(lambda: server.open_connections == 0)


class Later:
    """The time module, with a monotonic clock that the test moves on."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    clock = Later()
    monkeypatch.setattr(svir, "time", clock)
    return clock


@pytest.mark.parametrize(
    ("header", "kept", "dropped"),
    [
        (None, 3.5, 4.5),  # api.md 11: 4 s
        ("timeout=5", 3.5, 4.5),  # less a second
        ("timeout=60", 58, 60),
        ("max=100, timeout = 20", 18, 20),
        ("TIMEOUT=2", 0.5, 1.5),
        ("max=100", 3.5, 4.5),
        ("timeout=1", None, 0),  # none is left
        ("timeout=0", None, 0),
        ("timeout=x", 3.5, 4.5),
    ],
)
def test_an_idle_connection_has_an_age(
    server: MockServer,
    client: svir.Client,
    later: Later,
    header: str | None,
    kept: float | None,
    dropped: float,
) -> None:
    server.default(text_answer("a"), headers={"keep-alive": header})
    client.complete(REQUEST)
    if kept is not None:
        later.ahead += kept
        client.complete(REQUEST)
        assert server.connections == 1
    later.ahead += dropped
    client.complete(REQUEST)
    assert server.connections == 2


NOT_KEPT: dict[str, bytes] = {
    "connection-close": head(STREAM, SIZE, "Connection: close") + BODY,
    "close-among-others": head(STREAM, SIZE, "Connection: x, Close") + BODY,
    "http-1.0": head(STREAM, SIZE, status="HTTP/1.0 200 OK") + BODY,
    "no-framing": head(STREAM) + BODY,
    "surplus-after-a-length": LENGTH + b"x",
    "surplus-after-the-last-chunk": CHUNKED + b"x",
    "a-second-answer": CHUNKED + CHUNKED.replace(b'"a"', b'"z"'),
    "a-second-answer-by-length": LENGTH + LENGTH.replace(b'"a"', b'"z"'),
    "no-last-chunk": CHUNKED[: -len(LAST)],
    "half-a-last-chunk": CHUNKED[:-2],
    "a-broken-chunk-after-done": CHUNKED[: -len(LAST)] + b"zz\r\n",
    "length-too-long": head(STREAM, f"Content-Length: {len(BODY) + 5}") + BODY,
}


@pytest.mark.parametrize("name", NOT_KEPT)
def test_a_connection_that_is_not_kept(server: MockServer, client: svir.Client, name: str) -> None:
    """Each answer is whole at [DONE], and what may follow it is nobody else's answer."""
    server.reply(NOT_KEPT[name], raw=True, hang=True)
    server.reply(text_answer("c"))
    assert client.complete(REQUEST).text == "ab"
    # Where the body's end may still come, it is looked for at the next use.
    open_until_then = name in ("no-last-chunk", "half-a-last-chunk", "length-too-long")
    server.wait_until(lambda: server.open_connections == open_until_then)
    assert client.complete(REQUEST).text == "c"
    assert connections_used(server) == [1, 2]


def test_http_1_0_may_ask_to_be_kept(server: MockServer, client: svir.Client) -> None:
    def talk(conn: Any) -> None:
        while receive(conn) is not None:
            lines = (STREAM, SIZE, "Connection: Keep-Alive")
            conn.sendall(head(*lines, status="HTTP/1.0 200 OK") + BODY)

    with Peer(talk) as peer, svir.Client(peer.url) as client:
        assert [client.complete(REQUEST).text for _ in range(3)] == ["ab"] * 3
        assert peer.connections == 1


def test_a_last_chunk_that_comes_late(server: MockServer, client: svir.Client) -> None:
    """E4: the answer is given at [DONE] without waiting, and a call that comes before the chunk
    takes another connection."""
    gate = threading.Event()
    server.reply(text_answer("a"), gate)
    server.reply(text_answer("b"))
    assert client.complete(REQUEST).text == "a"
    assert client.complete(REQUEST).text == "b"
    assert connections_used(server) == [1, 2]
    gate.set()


def test_bytes_that_come_while_idle(client: svir.Client) -> None:
    """Nothing is due on an idle connection: it is not used again when there is something."""
    go_on, sent = threading.Event(), threading.Event()

    def talk(conn: Any) -> None:
        if receive(conn) is None:
            return
        conn.sendall(CHUNKED)
        if go_on.wait(10) and not sent.is_set():
            conn.sendall(CHUNKED.replace(b'"a"', b'"z"'))
            sent.set()
        until_the_end(conn)

    with Peer(talk) as peer, svir.Client(peer.url) as client:
        assert client.complete(REQUEST).text == "ab"
        go_on.set()
        assert sent.wait(10)
        assert client.complete(REQUEST).text == "ab"
        assert peer.connections == 2


def test_a_connection_that_was_closed_while_idle(server: MockServer, client: svir.Client) -> None:
    server.reply(CHUNKED, raw=True)  # it does not say so, and closes
    server.reply(text_answer("c"))
    assert client.complete(REQUEST).text == "ab"
    server.wait_until(lambda: server.open_connections == 0)
    assert client.complete(REQUEST).text == "c"
    assert connections_used(server) == [1, 2]


@pytest.mark.parametrize("reset", [False, True])
def test_a_reused_connection_that_breaks_is_not_tried_again(
    server: MockServer, client: svir.Client, reset: bool
) -> None:
    """P4: the request may have reached the server. The next call has a connection of its own."""
    server.reply(text_answer("a"))
    server.reply(raw=True, reset=reset)
    server.reply(text_answer("c"))
    assert client.complete(REQUEST).text == "a"
    with pytest.raises(svir.Disconnected) as caught:
        client.complete(REQUEST)
    assert (caught.value.unsent, caught.value.retryable) == (False, True)
    assert connections_used(server) == [1, 1]
    assert client.complete(REQUEST).text == "c"
    assert connections_used(server) == [1, 1, 2]


def test_another_process_has_connections_of_its_own(
    server: MockServer, client: svir.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a fork; tests/test_threads.py forks. Here the copies are the connections."""
    server.default(text_answer("a"))
    assert client.complete(REQUEST).text == "a"
    half = client.stream(REQUEST)
    next(half)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert client.complete(REQUEST).text == "a"
    assert connections_used(server) == [1, 1, 2]
    half.close()
    assert client.complete(REQUEST).text == "a"
    assert connections_used(server) == [1, 1, 2, 2], "what was copied is never pooled"


@pytest.mark.parametrize("status", [400, 401, 429, 500])
def test_a_connection_that_carried_an_error_is_not_kept(
    server: MockServer, client: svir.Client, status: int
) -> None:
    server.reply({"error": {"message": "no"}}, status=status)
    server.reply(text_answer("a"))
    with pytest.raises(svir.Error) as caught:
        client.complete(REQUEST.replace(include_usage=False))
    assert caught.value.status == status
    assert client.complete(REQUEST).text == "a"
    assert connections_used(server) == [1, 2]


def test_keep_alive_turned_off(server: MockServer) -> None:
    server.default(text_answer("a"))
    with svir.Client(server.url, keep_alive=False) as client:
        for _ in range(2):
            assert client.complete(REQUEST).text == "a"
    assert connections_used(server) == [1, 2]
    assert [request.headers["connection"] for request in server.requests] == ["close"] * 2


def test_a_closed_client_can_still_be_used(server: MockServer, client: svir.Client) -> None:
    server.default(text_answer("a"))
    for _ in range(2):
        with client:
            assert client.complete(REQUEST).text == "a"
        server.wait_until(lambda: server.open_connections == 0)
    client.close()
    client.close()
    assert connections_used(server) == [1, 2]


def test_a_pool_is_shared_by_server(server: MockServer) -> None:
    """One backend for two servers: each request goes where it belongs."""
    backend = svir.HttpBackend()
    with MockServer() as other:
        server.default(text_answer("a"))
        other.default(text_answer("b"))
        one = svir.Client(server.url, backend=backend)
        two = svir.Client(other.url, backend=backend)
        with one, two:
            texts = [each.complete(REQUEST).text for each in (one, two, one, two)]
        assert texts == ["a", "b", "a", "b"]
        assert (server.connections, other.connections) == (1, 1)


# -- Framing --------------------------------------------------------------------------------------

PLAIN = "Content-Type: text/plain"
CODED = "Transfer-Encoding: chunked"

WHOLE: dict[str, bytes] = {
    "chunked": head(PLAIN, CODED) + chunks(b"hel", b"lo") + LAST,
    "chunked-in-capitals": head(PLAIN, "TRANSFER-ENCODING: Chunked") + chunks(b"hello") + LAST,
    "one-byte-chunks": head(PLAIN, CODED) + chunks(*single_bytes(b"hello")) + LAST,
    "extensions": head(PLAIN, CODED) + b'3;a=b;c="d e"\r\nhel\r\n2 ; x\r\nlo\r\n0;last\r\n\r\n',
    "the-same-size-with-another-extension": head(PLAIN, CODED)
    + b"1;a\r\nh\r\n1;b\r\ne\r\n1\r\nl\r\n1;a\r\nl\r\n1\r\no\r\n0\r\n\r\n",
    "trailers": head(PLAIN, CODED) + chunks(b"hello") + b"0\r\nA: b\r\nC: d\r\n\r\n",
    "zeros-and-capitals": head(PLAIN, CODED) + b"0000005\r\nhello\r\n000\r\n\r\n",
    "blanks-around-a-size": head(PLAIN, CODED) + b" 5 \t\r\nhello\r\n0 \r\n\r\n",
    "lf-only": head(PLAIN, CODED) + b"5\nhello\n0\n\n",
    "line-ends-inside-a-chunk": head(PLAIN, CODED) + chunks(b"hello") + LAST,
    "length": head(PLAIN, "Content-Length: 5") + b"hello",
    "length-twice-alike": head(PLAIN, "Content-Length: 5", "Content-Length: 5") + b"hello",
    "length-listed-alike": head(PLAIN, "Content-Length: 5, 5") + b"hello",
    "length-and-more": head(PLAIN, "Content-Length: 5") + b"hello, and more",
    "length-and-identity": head(PLAIN, "Transfer-Encoding: identity", "Content-Length: 5")
    + b"hello",
    "both-framings": head(PLAIN, "Content-Length: 3", CODED) + chunks(b"hello") + LAST,
    "both-framings-turned": head(PLAIN, CODED, "Content-Length: 99") + chunks(b"hello") + LAST,
    "neither": head(PLAIN) + b"hello",
    "no-reason": head(PLAIN, "Content-Length: 5", status="HTTP/1.1 200") + b"hello",
    "an-empty-reason": head(PLAIN, "Content-Length: 5", status="HTTP/1.1 200 ") + b"hello",
    "an-odd-reason": head(PLAIN, "Content-Length: 5", status="HTTP/1.1 200 \xe9 : 9") + b"hello",
    "http-1.0": head(PLAIN, status="HTTP/1.0 200 OK") + b"hello",
    "no-blank-after-colons": b"HTTP/1.1 200 OK\r\na:b\r\ncontent-length:5\r\n\r\nhello",
    "lf-only-headers": b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello",
    "99-headers": head(*["A: b"] * 98, "Content-Length: 5") + b"hello",
    "a-long-header": head("A: " + "b" * 60000, "Content-Length: 5") + b"hello",
    "100-before": head(status="HTTP/1.1 100 Continue")
    + head(PLAIN, "Content-Length: 5")
    + b"hello",
    "several-1xx-before": head(status="HTTP/1.1 100 Continue")
    + head("Link: </a>", "Link: </b>", status="HTTP/1.1 103 Early Hints") * 3
    + head(status="HTTP/1.1 102 Processing")
    + head(status="HTTP/1.1 100 Continue") * 2
    + head(PLAIN, "Content-Length: 5")
    + b"hello",
    "1xx-with-a-framing": head("Content-Length: 3", CODED, status="HTTP/1.1 103 Early")
    + head(PLAIN, "Content-Length: 5")
    + b"hello",
}


@pytest.mark.parametrize("pace", ["at once", "one byte a time"])
@pytest.mark.parametrize("name", WHOLE)
def test_a_body_is_read_by_its_framing(
    server: MockServer, client: svir.Client, name: str, pace: str
) -> None:
    data = WHOLE[name]
    if pace == "at once":
        server.reply(data, raw=True)
    elif len(data) > 5000:
        pytest.skip("too long for that")
    else:
        server.reply(single_bytes(data), raw=True)
    assert raw_body(client) == b"hello"


def chunk_line(line: bytes) -> bytes:
    return head(PLAIN, CODED) + chunks(b"hello") + line + b"\r\n12345678\r\n" + LAST


BROKEN: dict[str, tuple[bytes, type[svir.Error], str]] = {
    "size-is-a-word": (chunk_line(b"five"), svir.ProtocolError, "chunk size"),
    "size-is-negative": (chunk_line(b"-5"), svir.ProtocolError, "chunk size"),
    "size-has-a-sign": (chunk_line(b"+5"), svir.ProtocolError, "chunk size"),
    "size-has-a-prefix": (chunk_line(b"0x5"), svir.ProtocolError, "chunk size"),
    "size-has-an-underscore": (chunk_line(b"1_0"), svir.ProtocolError, "chunk size"),
    "size-is-empty": (chunk_line(b""), svir.ProtocolError, "chunk size"),
    "size-is-blank": (chunk_line(b" ;a"), svir.ProtocolError, "chunk size"),
    "size-is-two": (chunk_line(b"5 5"), svir.ProtocolError, "chunk size"),
    "size-is-huge": (chunk_line(b"1" * 17), svir.ProtocolError, "chunk size"),
    "size-is-not-ascii": (chunk_line(b"\xef\xbc\x95"), svir.ProtocolError, "chunk size"),
    "extension-too-long": (chunk_line(b"5;" + b"x" * 9000), svir.ProtocolError, "too long"),
    "size-line-without-end": (
        head(PLAIN, CODED) + b"5" * 9000,
        svir.ProtocolError,
        "too long",
    ),
    "chunk-too-long": (
        head(PLAIN, CODED) + b"3\r\nhello\r\n" + LAST,
        svir.ProtocolError,
        "longer than its size",
    ),
    "trailers-too-long": (
        head(PLAIN, CODED) + chunks(b"hello") + b"0\r\n" + b"A: bcdef\r\n" * 2000 + b"\r\n",
        svir.ProtocolError,
        "too long",
    ),
    "trailer-without-end": (
        head(PLAIN, CODED) + chunks(b"hello") + b"0\r\nA: " + b"b" * 9000,
        svir.ProtocolError,
        "too long",
    ),
    "chunk-cut": (head(PLAIN, CODED) + b"5\r\nhel", svir.Truncated, "cut short"),
    "no-last-chunk": (head(PLAIN, CODED) + chunks(b"hello"), svir.Truncated, "cut short"),
    "trailers-cut": (
        head(PLAIN, CODED) + chunks(b"hello") + b"0\r\nA: b\r\n",
        svir.Truncated,
        "cut short",
    ),
    "no-chunk-at-all": (head(PLAIN, CODED), svir.Truncated, "cut short"),
    "length-cut": (head(PLAIN, "Content-Length: 9") + b"hello", svir.Truncated, "cut short"),
    "length-and-nothing": (head(PLAIN, "Content-Length: 9"), svir.Truncated, "cut short"),
    **{
        f"transfer-encoding-{name}": (
            head(PLAIN, f"Transfer-Encoding: {name}", "Content-Length: 5") + b"hello",
            svir.ProtocolError,
            f"transfer encoding svir does not read: '{name}",
        )
        for name in ("gzip", "gzip, chunked", "chunked, gzip", "chunked, chunked", "x")
    },
    **{
        f"content-length-{length or 'of-two'}": (
            head(PLAIN, *([f"Content-Length: {length}"] if length else TWO_LENGTHS)) + b"hello",
            svir.ProtocolError,
            "no single Content-Length",
        )
        for TWO_LENGTHS in [["Content-Length: 5", "content-length: 6"]]
        for length in (
            "", "-5", "+5", "5x", "0x5", "1_0", "5.0", "five", "5, 6", "5,", "5 5", "9" * 19,
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("pace", ["at once", "one byte a time"])
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_framing(server: MockServer, client: svir.Client, name: str, pace: str) -> None:
    data, kind, words = BROKEN[name]
    if pace != "at once" and len(data) > 2000:
        pytest.skip("too long for that")
    server.reply(data if pace == "at once" else single_bytes(data), raw=True)
    _, error = timed(lambda: raw_body(client))
    assert type(error) is kind
    assert words in str(error)


def test_no_content(server: MockServer, client: svir.Client) -> None:
    """204 has no body, whatever its headers say, and is no answer."""
    server.reply(head("Content-Length: 9", status="HTTP/1.1 204 No Content"), raw=True, hang=True)
    server.reply(head(status="HTTP/1.1 204 No Content"), raw=True, hang=True)
    assert raw_body(client) == b""
    with pytest.raises(svir.Truncated, match="sent nothing"):
        client.complete(REQUEST)


HEADS: dict[str, tuple[bytes, str]] = {
    "nothing-known": (b"\x00\x01\x02\xff\r\n\r\n", "not HTTP"),
    "a-banner": (b"SSH-2.0-OpenSSH_9.6\r\n", "not HTTP"),
    "a-page": (b"<!doctype html>\n<title>502</title>\n", "not HTTP"),
    "an-empty-line": (b"\r\n" + LENGTH, "not HTTP"),
    "another-protocol": (head(PLAIN, status="ICY 200 OK"), "not HTTP"),
    "another-version": (head(PLAIN, status="HTTP/2 200"), "not HTTP"),
    "status-of-two-digits": (head(PLAIN, status="HTTP/1.1 99 Low"), "not HTTP"),
    "status-of-four-digits": (head(PLAIN, status="HTTP/1.1 1000 High"), "not HTTP"),
    "status-is-a-word": (head(PLAIN, status="HTTP/1.1 OK 200"), "not HTTP"),
    "no-status": (head(PLAIN, status="HTTP/1.1"), "not HTTP"),
    "a-long-status-line": (b"HTTP/1.1 200 " + b"x" * 70000 + b"\r\n\r\n", "not HTTP"),
    "a-long-header": (head(STREAM, "A: " + "b" * 70000), "not HTTP"),
    "a-header-without-end": (head(STREAM)[:-2] + b"A: " + b"b" * 70000, "not HTTP"),
    "101-headers": (head(STREAM, *["A: b"] * 100), "headers"),
    "headers-without-end": (head(STREAM)[:-2] + b"A: b\r\n" * 5000, "headers"),
    "a-header-without-colon": (
        head("what is this", STREAM, f"Content-Length: {len(BODY)}") + BODY,
        "without a colon",
    ),
    "switching-protocols": (head("Upgrade: h2c", status="HTTP/1.1 101 Switching"), "switches"),
}


@pytest.mark.parametrize("name", HEADS)
def test_what_is_not_http(server: MockServer, client: svir.Client, name: str) -> None:
    """H10: ProtocolError, never an exception of http.client; the server need not close for it."""
    data, words = HEADS[name]
    server.reply(data, raw=True, hang=True)
    _, error = timed(lambda: client.complete(REQUEST))
    assert type(error) is svir.ProtocolError
    assert words in str(error)
    assert str(error).isascii()
    assert len(str(error)) < 300
    server.wait_until(lambda: server.open_connections == 0)


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("name", ["chunked", "length", "close"])
def test_every_cut(server: MockServer, client: svir.Client, name: str, reset: bool) -> None:
    """A cut answer is Truncated or Disconnected, and never looks whole; at [DONE] it is."""
    data = {"chunked": CHUNKED, "length": LENGTH, "close": head(STREAM) + BODY}[name]
    body_at = data.index(b"\r\n\r\n") + 4
    done_at = data.index(b"data: [DONE]\n") + len(b"data: [DONE]\n")
    for at in range(len(data) + 1):
        server.reply(data[:at], raw=True, reset=reset)
        stream, shown = client.stream(REQUEST), f"{data[max(0, at - 20) : at]!r} and then the cut"
        if at >= done_at:
            assert stream.result().text == "ab", shown
            continue
        if at == done_at - 1 and name == "close" and not reset:
            assert stream.result().text == "ab", "S9: the line counts without its end"
            continue
        _, error = timed(stream.result)
        kinds = [svir.Truncated, svir.Disconnected][at < body_at :]
        assert type(error) in kinds, f"{error!r} at {shown}"
        assert not error.unsent
        assert error.in_stream is (at >= body_at)
        assert len(server.requests) == at + 1


def test_a_peer_that_only_closes_its_side(client: svir.Client) -> None:
    """Half-closed: what was sent counts, and the client's request still goes through."""
    answers = [head(STREAM) + BODY, head(STREAM) + OPEN_BODY, b""]

    def talk(conn: Any) -> None:
        receive(conn)
        conn.sendall(answers.pop(0))
        conn.shutdown(socket.SHUT_WR)
        until_the_end(conn)

    with Peer(talk) as peer, svir.Client(peer.url) as client:
        assert client.complete(REQUEST).text == "ab"
        with pytest.raises(svir.Truncated) as caught:
            client.complete(REQUEST)
        assert caught.value.partial is not None
        assert caught.value.partial.text == "a"
        with pytest.raises(
            svir.Disconnected, match=r"before (it answered|the end of an answer's headers)"
        ):
            client.complete(REQUEST)


RESETS = {
    "before-the-headers": (b"", svir.Disconnected),
    "inside-the-headers": (CHUNKED[:30], svir.Disconnected),
    "before-the-body": (CHUNKED[: CHUNKED.index(b"\r\n\r\n") + 4], svir.Disconnected),
    "between-events": (head(STREAM, CODED) + chunks(OPEN_BODY), svir.Disconnected),
}


@pytest.mark.parametrize("name", RESETS)
def test_a_reset(server: MockServer, client: svir.Client, name: str) -> None:
    data, kind = RESETS[name]
    gate = threading.Event()
    server.reply(data, gate, raw=True, reset=True)
    reader = Reader(lambda: client.complete(REQUEST))
    server.wait_until(lambda: server.requests)
    gate.set()
    assert reader.join()
    error = reader.error
    assert isinstance(error, kind)
    assert (error.unsent, error.retryable) == (False, True)
    assert len(server.requests) == 1
    if name == "between-events":
        assert error.in_stream
        assert error.partial is not None
        assert error.partial.text == "a"


# -- Answers that come early ----------------------------------------------------------------------

EARLY = {
    401: svir.Unauthorized,
    404: svir.Unsupported,
    413: svir.Unsupported,
    429: svir.RateLimited,
    503: svir.Unavailable,
}
CONTINUE = head(status="HTTP/1.1 100 Continue")
BIG_LENGTH = svir.encode(BIG.replace(include_usage=True)).length


def early_answer(status: int) -> bytes:
    body = b'{"error": {"message": "too much of it"}}'
    line = f"HTTP/1.1 {status} Early"
    return (
        head("Content-Type: application/json", f"Content-Length: {len(body)}", status=line) + body
    )


@pytest.mark.parametrize("then", ["stays", "closes", "resets", "continues-first"])
@pytest.mark.parametrize("status", EARLY)
def test_an_answer_before_the_request_was_read(
    server: MockServer, client: svir.Client, status: int, then: str
) -> None:
    """H12: an upload is refused, by a server that reads nothing of it; the status counts."""
    first: list[Any] = [CONTINUE, 0.05] if then == "continues-first" else []
    server.reply(
        *first,
        early_answer(status),
        raw=True,
        read_body=False,
        hang=then in ("stays", "continues-first"),
        reset=then == "resets",
    )
    seconds, error = timed(lambda: client.complete(BIG))
    assert seconds < SLOW
    if sys.platform != "linux" and then == "resets" and isinstance(error, svir.Disconnected):
        return  # a reset throws away what was not read yet
    assert type(error) is EARLY[status]
    assert (error.status, error.server_message) == (status, "too much of it")
    assert not error.unsent
    assert len(server.requests) == 1


@pytest.mark.parametrize("pieces", [1, 7])
def test_a_1xx_in_the_middle_of_an_upload(server: MockServer, pieces: int) -> None:
    """It is taken out of the way, however it is cut, and the upload goes on."""
    cut = [CONTINUE[at : at + pieces] for at in range(0, len(CONTINUE), pieces)]

    def talk(conn: Any) -> None:
        read_head(conn)
        for piece in [*cut, head("Link: x", status="HTTP/1.1 103 Early Hints"), *cut]:
            conn.sendall(piece)
        take(conn, BIG_LENGTH)
        conn.sendall(LENGTH)

    with Peer(talk) as peer, svir.Client(peer.url) as client:
        assert client.complete(BIG).text == "ab"


def test_a_1xx_in_two_halves_while_the_upload_stands_still() -> None:
    """Half a 1xx can be read and nothing can be sent: the rest is waited for."""
    still = threading.Event()

    def talk(conn: Any) -> None:
        read_head(conn)
        still.wait(10)
        conn.sendall(CONTINUE[:11])
        threading.Event().wait(0.05)
        conn.sendall(CONTINUE[11:])
        take(conn, BIG_LENGTH)
        conn.sendall(LENGTH)

    with Peer(talk) as peer, svir.Client(peer.url) as client:
        reader = Reader(lambda: client.complete(BIG))
        settle(reader.thread)
        still.set()
        assert reader.join(30)
        assert reader.value.text == "ab"


def test_half_a_1xx_and_no_more() -> None:
    def talk(conn: Any) -> None:
        conn.sendall(CONTINUE[:11])
        left.wait(10)

    left = threading.Event()
    with Peer(talk) as peer:
        seconds, error = timed(svir.Client(peer.url, idle_timeout=0.2).stream(BIG).result)
        left.set()
    assert type(error) is svir.Timeout
    assert seconds < SLOW


def test_a_stream_before_the_request_was_read(server: MockServer, client: svir.Client) -> None:
    """The answer is read as it comes. The connection, with half a request on it, is not kept."""
    server.reply(text_answer("a", 0.01, "b"), read_body=False, headers={"connection": None})
    server.reply(text_answer("c"))
    assert client.complete(BIG).text == "ab"
    assert client.complete(REQUEST).text == "c"
    assert connections_used(server) == [1, 2]


def test_a_server_that_answers_early_and_never_reads(
    server: MockServer, client: svir.Client
) -> None:
    server.reply(CHUNKED, raw=True, read_body=False, hang=True)
    seconds, _ = time.monotonic(), client.complete(BIG)
    assert time.monotonic() - seconds < SLOW


@pytest.mark.parametrize("reset", [False, True])
def test_an_upload_that_breaks_without_an_answer(
    server: MockServer, client: svir.Client, reset: bool
) -> None:
    server.reply(raw=True, read_body=False, reset=reset)
    _, error = timed(lambda: client.complete(BIG))
    assert type(error) is svir.Disconnected
    assert not error.unsent
    assert "answered" not in str(error)


@pytest.mark.parametrize("then", ["closes", "resets"])
@pytest.mark.parametrize("status", [401, 413])
def test_an_early_answer_over_tls(tls: Any, status: int, then: str) -> None:
    with MockServer(tls=tls.server()) as server:
        server.reply(early_answer(status), raw=True, read_body=False, reset=then == "resets")
        with svir.Client(server.url, cafile=tls.cafile) as client:
            _, error = timed(lambda: client.complete(BIG))
    if sys.platform != "linux" and isinstance(error, svir.Disconnected):
        return
    assert type(error) is EARLY[status]
    assert error.server_message == "too much of it"


# -- No connection --------------------------------------------------------------------------------


def test_a_refused_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    error = failure(ask(f"http://127.0.0.1:{port}"))
    assert type(error) is svir.ConnectError
    assert (error.unsent, error.retryable, error.in_stream) == (True, True, False)
    assert f"cannot connect to 127.0.0.1:{port}" in str(error)
    assert "Is the server running?" in str(error)


def test_an_unknown_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: Any, **options: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    too_long = "a" * 70 + ".example"
    long_error = failure(ask(f"http://{too_long}", allow_http=True))
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    error = failure(ask("http://nowhere.example", allow_http=True))
    for each, host in ((error, "nowhere.example"), (long_error, too_long)):
        assert type(each) is svir.ConnectError
        assert each.unsent
        assert f"cannot find the host {host}" in str(each)
    assert "Name or service not known" in str(error)


def resolves_to(monkeypatch: pytest.MonkeyPatch, *found: Any) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: list(found))


def test_an_address_that_cannot_be_used(
    server: MockServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A family or route that this system lacks: the next address is tried."""
    port = int(server.url.rpartition(":")[2])
    lost: list[Any] = [
        (9999, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port)),
        (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("255.255.255.255", port)),
    ]
    server.default(text_answer("a"))
    resolves_to(monkeypatch, *lost)
    error = failure(ask("http://host.example", allow_http=True))
    assert type(error) is svir.ConnectError
    assert error.unsent
    usable = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port))
    resolves_to(monkeypatch, *lost, usable)
    assert text(ask("http://host.example", allow_http=True)) == "a"
    resolves_to(monkeypatch)
    assert type(failure(ask("http://host.example", allow_http=True))) is svir.ConnectError


@LINUX
def test_an_address_that_does_not_answer(
    server: MockServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next address is tried before the first one's time is over (Q11)."""
    server.default(text_answer("a"))
    ports = [int(server.url.rpartition(":")[2])]
    with full_backlog() as url:
        ports.insert(0, int(url.rpartition(":")[2]))
        places = [("127.0.0.1", port) for port in ports]
        resolves_to(monkeypatch, *[(socket.AF_INET, socket.SOCK_STREAM, 0, "", p) for p in places])
        started = time.monotonic()
        assert text(ask("http://host.example", allow_http=True, connect_timeout=30.0)) == "a"
        assert time.monotonic() - started < SLOW


@pytest.mark.parametrize("found", [[], ["::1"]])
def test_localhost_that_is_resolved_to_one_family(
    server: MockServer, monkeypatch: pytest.MonkeyPatch, found: list[str]
) -> None:
    """A hosts file may list one loopback address only, and the server listen on the other."""
    port = int(server.url.rpartition(":")[2])
    known = [(socket.AF_INET6, socket.SOCK_STREAM, 0, "", (host, port, 0, 0)) for host in found]
    resolves_to(monkeypatch, *known)
    server.default(text_answer("a"))
    assert text(ask(f"http://localhost:{port}")) == "a"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_localhost_with_one_family_listening(host: str) -> None:
    try:
        peer = Peer(lambda conn: receive(conn) and conn.sendall(LENGTH), host=host)
    except OSError:
        pytest.skip(f"no {host} here")
    with peer:
        started = time.monotonic()
        assert text(ask(f"http://localhost:{peer.port}")) == "ab"
        assert text(ask(peer.url)) == "ab"
        assert time.monotonic() - started < SLOW


# -- Limits of time -------------------------------------------------------------------------------


@pytest.fixture
def in_phase(tls: Any) -> Iterator[Callable[..., Asked]]:
    with contextlib.ExitStack() as stack:
        yield lambda name, **settings: ask_in(name, stack, tls, **settings)


CONNECTING = ("connecting", "tls-handshake", "connect-by-proxy")


@phases("asleep-in-a-layer")
@pytest.mark.parametrize("how", ["stream", "send"])
def test_the_limit_of_each_wait(phase: str, how: str, in_phase: Any) -> None:
    """connect_timeout or idle_timeout ends each wait, with one kind of error."""
    short = {"connect_timeout": 0.1} if phase in CONNECTING else {"idle_timeout": 0.1}
    opened = in_phase(phase, **{"connect_timeout": 60.0, "idle_timeout": 60.0, **short}).open(how)
    seconds, error = timed(lambda: read_all(opened))
    assert 0.08 < seconds < SLOW
    if phase in CONNECTING:
        assert type(error) is svir.ConnectError
        assert (error.unsent, error.retryable) == (True, True)
        assert phase == "connect-by-proxy" or "connect_timeout=" in str(error)
    elif phase == "body-of-an-error":
        assert (type(error), error.status) == (svir.Unsupported, 400)
    else:
        assert type(error) is svir.Timeout
        assert (error.unsent, error.retryable) == (False, True)
        assert "nothing came for 0.1 s: idle_timeout= sets the limit" in str(error)
    with pytest.raises(type(error)):
        read_all(opened)


def bounded(seconds: float) -> svir.Layer:
    def layer(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
        with call.deadline(60, "not this one"), call.deadline(seconds, "the layer's own words"):
            yield from call(request)

    return layer


@phases()
@pytest.mark.parametrize("limit", ["total_timeout", "deadline"])
def test_the_limit_of_the_whole(phase: str, limit: str, in_phase: Any) -> None:
    """total_timeout and a layer's deadline bound every wait, and both say so."""
    most = 0.5 if phase.startswith("upload") else 0.1  # a large body takes a moment to write
    settings: dict[str, Any] = {"connect_timeout": 60.0, "idle_timeout": 60.0}
    if limit == "total_timeout":
        settings["total_timeout"] = most
        words = f"not done after {most} s: total_timeout= sets the limit"
    else:
        settings["layers"] = [bounded(most)]
        words = "the layer's own words"
    asked = in_phase(phase, **settings)
    seconds, error = timed(asked.stream().result)
    assert 0.08 < seconds < SLOW
    if phase == "body-of-an-error":
        assert (type(error), error.status) == (svir.Unsupported, 400)
        return
    assert type(error) is svir.Timeout
    assert words in str(error)
    assert error.unsent is (phase in CONNECTING)


@pytest.mark.parametrize("where", ["key", "context"])
def test_a_limit_that_passes_before_anything_is_sent(
    server: MockServer, later: Later, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Making the request took all the time there was: nothing is sent any more."""
    make_context = ssl.create_default_context

    def slow_context() -> ssl.SSLContext:
        later.ahead += 60
        return make_context()

    def slow_key() -> str:
        later.ahead += 60
        return "sk-late"

    monkeypatch.setattr(ssl, "create_default_context", slow_context)
    url = server.url if where == "key" else server.url.replace("http:", "https:")
    key = slow_key if where == "key" else None
    error = failure(ask(url, total_timeout=30.0, api_key=key))
    assert type(error) is svir.Timeout
    assert "total_timeout=" in str(error)
    assert error.unsent
    assert server.requests == []


@phases("asleep-in-a-layer", "body-of-an-error")
def test_the_limit_of_the_whole_of_a_raw_stream(phase: str, in_phase: Any) -> None:
    asked = in_phase(phase, connect_timeout=60.0, idle_timeout=60.0, total_timeout=0.1)
    seconds, error = timed(lambda: read_all(asked.open("send")))
    assert 0.08 < seconds < SLOW
    assert type(error) is svir.Timeout
    assert "total_timeout=" in str(error)


@pytest.mark.parametrize("limit", ["idle_timeout", "total_timeout"])
def test_the_limits_of_a_listing(server: MockServer, limit: str) -> None:
    server.reply(b'{"data":', path="/models", hang=True)
    settings: dict[str, Any] = {"idle_timeout": 60.0, limit: 0.2}
    seconds, error = timed(svir.Client(server.url, **settings).list_models)
    assert seconds < SLOW
    assert type(error) is svir.Timeout
    assert f"{limit}=" in str(error)


def drip(conn: Any, data: bytes, pause: float) -> None:
    """Send a byte at a time for as long as the client stays."""
    done = threading.Event()
    for byte in single_bytes(data):
        conn.sendall(byte)
        done.wait(pause)


DRIPS = {
    "headers": (head("A: " + "b" * 5000), 0.02),
    "headers-fast": (head("A: " + "b" * 60000), 0.00005),  # what may come at most never does
    "1xx": (head(status="HTTP/1.1 103 Early Hints") * 100, 0.02),
    "chunk-extension": (head(STREAM, CODED) + b"1;" + b"x" * 5000, 0.02),
    "comments": (head(STREAM) + b": x\n" * 5000, 0.02),
}


@pytest.mark.parametrize("name", DRIPS)
def test_a_server_that_drips_does_not_pass_the_limit_of_the_whole(name: str) -> None:
    """Every byte comes in time, and still the whole has a limit."""
    data, pause = DRIPS[name]

    def talk(conn: Any) -> None:
        receive(conn)
        drip(conn, data, pause)

    with Peer(talk) as peer:
        seconds, error = timed(svir.Client(peer.url, total_timeout=0.4).stream(REQUEST).result)
    assert 0.3 < seconds < SLOW
    assert type(error) is svir.Timeout
    assert "total_timeout=" in str(error)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 x\r\n\r\n"])
def test_1xx_without_end(answer: bytes) -> None:
    """They come as fast as they are read."""

    def talk(conn: Any) -> None:
        receive(conn)
        while True:
            conn.sendall(answer * 100)

    with Peer(talk) as peer:
        seconds, error = timed(svir.Client(peer.url, total_timeout=0.4).stream(REQUEST).result)
        assert 0.3 < seconds < SLOW
        assert type(error) is svir.Timeout
        stream = svir.Client(peer.url).stream(REQUEST)
        reader = Reader(stream.result)
        eventually(lambda: peer.connections == 2)
        stream.close()
        assert reader.join()
        assert isinstance(reader.error, svir.Cancelled)


@pytest.mark.parametrize("part", ["headers", "body"])
def test_a_slow_server_is_waited_for(part: str) -> None:
    """idle_timeout is for silence: some bytes now and then are enough."""
    first = LENGTH.index(b"\r\n\r\n") if part == "headers" else LENGTH.index(b"data:")
    at = range(first, first + 10)

    def talk(conn: Any) -> None:
        receive(conn)
        conn.sendall(LENGTH[: at[0]])
        for place in at:
            pause(0.15)
            conn.sendall(LENGTH[place : place + 1])
        conn.sendall(LENGTH[at[-1] + 1 :])

    pause = threading.Event().wait
    with Peer(talk) as peer:
        started = time.monotonic()
        assert text(ask(peer.url, idle_timeout=1.0)) == "ab"
        assert time.monotonic() - started > 1.4


def take(conn: Any, size: int) -> None:
    """Read so many bytes, and forget them."""
    while size:
        data = conn.recv(min(size, 65536))
        if not data:
            raise ConnectionError("the client left")
        size -= len(data)


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("limit", ["idle_timeout", "total_timeout"])
def test_a_slow_upload(tls: Any, limit: str, secure: bool) -> None:
    """A server that takes a little now and then keeps idle_timeout away, not total_timeout."""
    context = tls.server()

    def talk(conn: Any) -> None:
        if secure:
            conn = context.wrap_socket(conn, server_side=True)
        with conn:
            read_head(conn)
            for _ in range(20):
                pause(0.06)
                take(conn, 1 << 18)
            take(conn, BIG_LENGTH - 20 * (1 << 18))
            conn.sendall(LENGTH)

    pause = threading.Event().wait
    settings: dict[str, Any] = {limit: 1.0, "cafile": tls.cafile if secure else None}
    with Peer(talk) as peer, svir.Client(
        peer.tls_url if secure else peer.url, **settings
    ) as client:
        started = time.monotonic()
        if limit == "idle_timeout":
            assert client.complete(BIG).text == "ab"
            assert time.monotonic() - started > 1.0, "the server was not slow"
            return
        seconds, error = timed(lambda: client.complete(BIG))
    assert type(error) is svir.Timeout
    assert "total_timeout=" in str(error)
    assert 0.9 < seconds < 1.0 + SLOW


def test_a_deadline_that_was_met_bounds_nothing_more(
    server: MockServer, client: svir.Client, later: Later
) -> None:
    def first_token(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
        with call.deadline(20.0, "no first token") as deadline:
            for event in call(request):
                deadline.clear()
                yield event

    gate = threading.Event()
    server.reply(text_answer("a", gate, "b"))
    with svir.Client(server.url, layers=[first_token]) as client:
        stream = client.stream(REQUEST)
        assert next(stream) == svir.TextDelta("a")
        later.ahead += 60
        gate.set()
        assert stream.result().text == "ab"


# -- Compression ----------------------------------------------------------------------------------


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


PACKERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("X-GZip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "deflate-raw": ("deflate", raw_deflate),
    "gzip-members": ("gzip", lambda data: gzip.compress(data[:50]) + gzip.compress(data[50:])),
    "gzip-empty-member": ("gzip", lambda data: gzip.compress(b"") + gzip.compress(data)),
}


@pytest.mark.parametrize("pace", ["at once", "one byte a time"])
@pytest.mark.parametrize("name", PACKERS)
def test_a_compressed_answer(
    server: MockServer, client: svir.Client, name: str, pace: str
) -> None:
    """H8: identity was asked for; it is read all the same, with a quirk."""
    coding, pack = PACKERS[name]
    packed = pack(BODY)
    headers = {"content-encoding": coding}
    server.reply(packed if pace == "at once" else single_bytes(packed), headers=headers)
    completion = client.complete(REQUEST)
    assert (completion.text, completion.quirks) == ("ab", ("unasked-encoding",))
    assert server.requests[0].headers["accept-encoding"] == "identity"
    server.reply(packed, headers=headers)
    assert raw_body(client) == packed, "a raw stream stays compressed"
    server.reply(pack(b'{"error": {"message": "no"}}'), headers=headers, status=500)
    with pytest.raises(svir.Unavailable) as caught:
        client.complete(REQUEST)
    assert caught.value.server_message == "no"
    server.reply(pack(b'{"data": [{"id": "m"}]}'), headers=headers, path="/models")
    assert [model.id for model in client.list_models()] == ["m"]


@pytest.mark.parametrize("name", ["flushed", "members"])
def test_a_compressed_answer_streams(server: MockServer, client: svir.Client, name: str) -> None:
    """What can be read of it is given out at once, not with the next bytes."""
    gate, packer = threading.Event(), zlib.compressobj(wbits=31)

    def pack(part: bytes) -> bytes:
        if name == "members":
            return gzip.compress(part)
        return packer.compress(part) + packer.flush(zlib.Z_SYNC_FLUSH)

    role, first, *rest = text_answer("a", "b")
    # The pause is to have each received by itself; without it, that is a matter of luck.
    steps = [pack(role), 0.05, pack(first), gate, *[pack(part) for part in rest]]
    server.reply(steps, b"" if name == "members" else packer.flush(), **GZIP)
    with client.stream(REQUEST) as stream:
        reader = Reader(lambda: next(stream))
        assert reader.join(5), "the event was held back"
        assert reader.value == svir.TextDelta("a")
        gate.set()
        assert stream.result().text == "ab"


GZIP: dict[str, Any] = {"headers": {"content-encoding": "gzip"}}


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, br", "gzip;q=1", "compress", "é"])
def test_an_encoding_that_is_not_read(
    server: MockServer, client: svir.Client, coding: str
) -> None:
    server.default(BODY, headers={"content-encoding": coding})
    _, error = timed(lambda: client.complete(REQUEST))
    assert type(error) is svir.ProtocolError
    assert "encoding that was not asked for" in str(error)
    assert ascii(coding) in str(error)
    assert raw_body(client) == BODY


def test_identity_is_no_encoding(server: MockServer, client: svir.Client) -> None:
    server.default(BODY, headers={"content-encoding": "Identity"})
    completion = client.complete(REQUEST)
    assert (completion.text, completion.quirks) == ("ab", ())


@pytest.mark.parametrize("name", ["gzip", "deflate", "deflate-raw"])
def test_every_broken_or_cut_compression(
    server: MockServer, client: svir.Client, name: str
) -> None:
    """Never an answer that looks whole, unless all of it had come; never a stray exception."""
    coding, pack = PACKERS[name]
    packed = pack(BODY)
    headers = {"content-encoding": coding}
    kinds = {svir.ProtocolError, svir.Truncated, svir.Unsupported}
    for at in range(0, len(packed), 2):
        server.reply(packed[:at], headers=headers)
        flipped = bytes([packed[at] ^ 0x55])
        server.reply(packed[:at] + flipped + packed[at + 1 :], headers=headers)
        cut = ask(server.url)
        assert type(cut.error) is svir.Truncated or text(cut) == "ab", f"cut at {at}"
        broken = ask(server.url)
        assert type(broken.error) in kinds or text(broken) == "ab", f"broken at {at}"


@pytest.fixture(scope="module")
def bomb() -> bytes:
    """128 MiB of comments, in 128 KiB."""
    packer, line = zlib.compressobj(9, wbits=31), b": " + b"x" * 65533 + b"\n"
    return b"".join(packer.compress(line) for _ in range(2048)) + packer.flush()


def peak_of(call: Callable[[], object]) -> int:
    """The most memory that was in use during the call, in bytes, more than before it."""
    import tracemalloc  # PyPy has none

    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.skipif(not hasattr(sys, "getrefcount"), reason="no tracemalloc on PyPy")
def test_a_bomb_is_stopped_by_the_limit(server: MockServer, bomb: bytes) -> None:
    """wire_bytes counts what was decoded, and no more than a block of it is held."""
    server.reply(bomb, **GZIP)
    stream = svir.Client(server.url, limits=svir.Limits(wire_bytes=8 << 20)).stream(REQUEST)
    errors: list[svir.Error] = []
    peak = peak_of(lambda: errors.append(timed(stream.result)[1]))
    assert type(errors[0]) is svir.LimitExceeded
    assert peak < 3 << 20


@pytest.mark.skipif(not hasattr(sys, "getrefcount"), reason="no tracemalloc on PyPy")
def test_a_bomb_elsewhere(server: MockServer, client: svir.Client, bomb: bytes) -> None:
    """In an error's body, in a list of models, and beyond the end of an answer."""
    errors: list[svir.Error] = []
    server.reply(bomb, status=500, **GZIP)
    assert peak_of(lambda: errors.append(timed(lambda: client.complete(REQUEST))[1])) < 3 << 20
    server.reply(bomb, path="/models", **GZIP)
    assert peak_of(lambda: errors.append(timed(client.list_models)[1])) < 20 << 20
    assert [type(error) for error in errors] == [svir.Unavailable, svir.LimitExceeded]
    server.reply(gzip.compress(BODY), bomb, **GZIP)
    assert client.complete(REQUEST).text == "ab"


# -- TLS ------------------------------------------------------------------------------------------


@pytest.fixture
def secure(tls: Any) -> Iterator[MockServer]:
    with MockServer(tls=tls.server()) as server:
        server.default(text_answer("a"))
        yield server


@pytest.mark.parametrize("how", ["cafile", "cafile-path", "ssl_context", "backend"])
def test_a_private_root(secure: MockServer, tls: Any, how: str) -> None:
    context = ssl.create_default_context(cafile=tls.cafile)
    settings: dict[str, dict[str, Any]] = {
        "cafile": {"cafile": tls.cafile},
        "cafile-path": {"cafile": Path(tls.cafile)},
        "ssl_context": {"ssl_context": context},
        "backend": {"backend": svir.HttpBackend(ssl_context=context)},
    }
    for host in ("127.0.0.1", "localhost"):
        with svir.Client(secure.url.replace("127.0.0.1", host), **settings[how]) as client:
            assert [client.complete(REQUEST).text for _ in range(2)] == ["a", "a"]
            assert raw_body(client) == b"".join(text_answer("a"))
    assert connections_used(secure) == [1, 1, 1, 2, 2, 2], "TLS connections are kept as well"


def refused(url: str, **settings: Any) -> svir.Error:
    error = failure(ask(url, **settings))
    assert type(error) is svir.ConnectError
    assert error.unsent
    said_no = re.search("proxy answered 4|certificate of", str(error)) is not None
    assert error.retryable is not said_no
    return error


def test_an_unknown_root(secure: MockServer, tls: Any) -> None:
    """Q10: what was trusted is named, and what to pass."""
    error = refused(secure.url)
    paths = ssl.get_default_verify_paths()
    assert (paths.cafile or paths.openssl_cafile) in str(error)
    assert (paths.capath or paths.openssl_capath) in str(error)
    certifi = pytest.importorskip("certifi")
    assert certifi.where() in str(error)
    assert "cafile=" in str(error)
    own = refused(secure.url, cafile=certifi.where())
    assert certifi.where() in str(own)
    given = refused(secure.url, ssl_context=ssl.create_default_context(cafile=certifi.where()))
    assert "what the caller's ssl_context holds" in str(given)
    assert secure.requests == []


@pytest.mark.parametrize(("name", "words"), [("elsewhere", "127.0.0.1"), ("expired", "expired")])
def test_a_wrong_certificate(tls: Any, name: str, words: str) -> None:
    with MockServer(tls=tls.server(name)) as server:
        error = refused(server.url, cafile=tls.cafile)
        assert "the certificate of 127.0.0.1 was not accepted" in str(error)
        assert words in str(error).partition("not accepted")[2].lower()
        assert server.requests == []


def test_a_refused_certificate_is_not_asked_again(tls: Any) -> None:
    """It will be the same one."""
    context = tls.server("expired")

    def talk(conn: Any) -> None:
        context.wrap_socket(conn, server_side=True).close()

    layers = [retry(2, backoff=0)]
    with Peer(talk) as peer, svir.Client(peer.tls_url, cafile=tls.cafile, layers=layers) as client:
        _, error = timed(lambda: client.complete(REQUEST))
    assert type(error) is svir.ConnectError
    assert (error.retryable, error.unsent) == (False, True)
    assert peer.connections == 1


def test_a_ca_file_that_is_none(tmp_path: Path, secure: MockServer) -> None:
    with pytest.raises(svir.ConfigError, match="is not a file"):
        svir.Client("https://localhost", cafile=tmp_path / "missing.pem")
    (tmp_path / "empty.pem").write_text("no certificate")
    error = failure(ask(secure.url, cafile=tmp_path / "empty.pem"))
    assert type(error) is svir.ConfigError
    assert "empty.pem" in str(error)
    with pytest.raises(svir.ConfigError, match="not both"):
        svir.Client(
            "https://localhost",
            cafile=tmp_path / "empty.pem",
            ssl_context=ssl.create_default_context(),
        )


class NotAContext:
    """What a host puts in the place of ssl.SSLContext (hosts.md 7): it only can wrap."""

    def __init__(self, context: ssl.SSLContext, **more: Any) -> None:
        self._context, self._more = context, more

    def wrap_socket(self, sock: socket.socket, **options: Any) -> ssl.SSLSocket:
        return self._context.wrap_socket(sock, **options, **self._more)

    def cert_store_stats(self) -> None:
        raise NotImplementedError


def test_an_object_in_the_place_of_a_context(secure: MockServer, tls: Any) -> None:
    context: Any = NotAContext(ssl.create_default_context(cafile=tls.cafile))
    assert text(ask(secure.url, ssl_context=context)) == "a"
    nothing_known: Any = NotAContext(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    assert "what the caller's ssl_context holds" in str(
        refused(secure.url, ssl_context=nothing_known)
    )


@pytest.mark.parametrize("kind", [ValueError, OSError])
def test_a_context_that_cannot_wrap(secure: MockServer, kind: Any) -> None:
    def fails(*args: Any, **options: Any) -> Any:
        raise kind("check_hostname needs a name")

    context: Any = NotAContext(ssl.create_default_context())
    context.wrap_socket = fails
    assert "check_hostname needs a name" in str(refused(secure.url, ssl_context=context))


def test_without_certifi(secure: MockServer, monkeypatch: pytest.MonkeyPatch, tls: Any) -> None:
    monkeypatch.setitem(sys.modules, "certifi", None)
    assert "cacert.pem" not in str(refused(secure.url))
    assert text(ask(secure.url, cafile=tls.cafile)) == "a"


TLS_ENDS = {
    "chunked": (CHUNKED, "ab"),
    "length": (LENGTH, "ab"),
    "close": (head(STREAM) + BODY, "ab"),
    "close-and-cut": (head(STREAM) + OPEN_BODY, svir.Truncated),
    "chunked-and-cut": (head(STREAM, CODED) + chunks(OPEN_BODY), svir.Truncated),
    "length-and-cut": (head(STREAM, "Content-Length: 9999") + OPEN_BODY, svir.Truncated),
    "before-the-body": (head(STREAM, CODED), svir.Truncated),
    "inside-the-headers": (head(STREAM, CODED)[:40], svir.Disconnected),
    "no-answer": (b"", svir.Disconnected),
}


@pytest.mark.parametrize("end", ["notified", "ragged", "ragged-and-told"])
@pytest.mark.parametrize("name", TLS_ENDS)
def test_the_end_of_a_tls_connection(tls: Any, name: str, end: str) -> None:
    """H13: with close_notify or without one, the framing decides whether it was whole."""
    data, expected = TLS_ENDS[name]
    context = tls.server()
    # The ssl module hides an end without close_notify, unless it is told not to.
    told = {"suppress_ragged_eofs": False} if end == "ragged-and-told" else {}
    own: Any = NotAContext(ssl.create_default_context(cafile=tls.cafile), **told)

    def talk(conn: Any) -> None:
        with context.wrap_socket(conn, server_side=True) as wrapped:
            receive(wrapped)
            wrapped.sendall(data)
            if end == "notified":
                wrapped.unwrap()

    with Peer(talk) as peer:
        run = ask(peer.tls_url, ssl_context=own)
    if isinstance(expected, str):
        assert text(run) == expected
    else:
        error = failure(run)
        assert type(error) is expected
        assert not error.unsent


def test_a_plain_server_behind_an_https_url(server: MockServer) -> None:
    with Peer(lambda conn: conn.sendall(LENGTH)) as peer:
        error = refused(peer.tls_url)
    assert "the TLS handshake with 127.0.0.1 failed" in str(error)
    assert "Is it an https server?" in str(error)
    with Peer(lambda conn: conn.recv(100)) as peer:  # it hangs up on the ClientHello
        assert "Is it an https server?" in str(refused(peer.tls_url))


def test_an_https_server_behind_an_http_url(tls: Any) -> None:
    """With luck it answers with an alert; some just hang up. All are told alike."""
    context = tls.server()

    def talk(conn: Any) -> None:
        context.wrap_socket(conn, server_side=True).close()

    def hangs_up(conn: Any) -> None:
        receive(conn)

    def resets(conn: Any) -> None:
        conn.recv(5)  # what is left unread makes its close a reset

    def alerts(conn: Any) -> None:
        receive(conn)
        conn.sendall(b"\x15\x03\x01\x00\x02\x02\x46")

    with MockServer(tls=context) as server:
        check_hint(server.url.replace("https:", "http:"), svir.Disconnected, svir.ProtocolError)
    for act in (talk, hangs_up, resets):
        with Peer(act) as peer:
            kinds = (svir.ProtocolError,) if act is talk else ()  # it depends on its OpenSSL
            check_hint(peer.url, svir.Disconnected, *kinds)
    with Peer(alerts) as peer:
        check_hint(peer.url, svir.ProtocolError)


def check_hint(url: str, *kinds: type[svir.Error]) -> None:
    error = failure(ask(url))
    assert type(error) in kinds
    assert not error.unsent
    said = str(error).replace(f" (POST {url}/v1/chat/completions)", "")
    assert said.endswith(": is it an https server?"), error


# -- Proxies --------------------------------------------------------------------------------------


class Proxy:
    """A small HTTP proxy: CONNECT to one server, whatever its name; other requests it answers."""

    def __init__(self, server: MockServer | None = None, refusal: bytes = b"") -> None:
        self.server, self.refusal = server, refusal
        self.heads: list[str] = []

    def __enter__(self) -> Proxy:
        self.peer = Peer(self.talk).__enter__()
        self.url = self.peer.url
        return self

    def __exit__(self, *error: Any) -> None:
        self.peer.__exit__(*error)

    def url_with(self, credentials: str) -> str:
        return self.url.replace("//", f"//{credentials}@")

    def talk(self, conn: Any) -> None:
        while True:
            head = read_head(conn).decode("latin-1")
            self.heads.append(head)
            if self.refusal:
                conn.sendall(self.refusal)
                return
            if head.startswith("CONNECT "):
                self.tunnel(conn)
                return
            length = re.search(r"(?i)content-length: (\d+)", head)
            take(conn, int(length.group(1)) if length else 0)
            conn.sendall(LENGTH)

    def tunnel(self, conn: Any) -> None:
        assert self.server is not None
        port = int(self.server.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), 10) as out:
            out.settimeout(None)
            conn.sendall(head("Via: test", status="HTTP/1.1 200 Connection established"))
            back = threading.Thread(target=pump, args=(out, conn), name="Proxy")
            back.start()
            try:
                pump(conn, out)
            finally:
                back.join()


def pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        for data in iter(lambda: source.recv(65536), b""):
            sink.sendall(data)
    for sock in (source, sink):
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


CREDENTIALS = "user:p%40ss%20word"
BASIC = "Basic " + base64.b64encode(b"user:p@ss word").decode("ascii")
KEY = "sk-not-for-proxies"


@pytest.mark.parametrize("credentials", ["", CREDENTIALS])
def test_https_through_a_proxy(secure: MockServer, tls: Any, credentials: str) -> None:
    """The proxy connects, and sees neither the key nor the request; the name is checked."""
    with Proxy(secure) as proxy:
        url = proxy.url_with(credentials) if credentials else proxy.url
        with svir.Client("https://localhost", proxy=url, cafile=tls.cafile, api_key=KEY) as client:
            assert [client.complete(REQUEST).text for _ in range(2)] == ["a", "a"]
        wrong = refused("https://host.example:8443/v1", proxy=url, cafile=tls.cafile, api_key=KEY)
        assert "the certificate of host.example was not accepted" in str(wrong)
        first, other = proxy.heads
    assert first.startswith("CONNECT localhost:443 HTTP/1.1\r\nhost: localhost:443\r\n")
    assert other.startswith("CONNECT host.example:8443 HTTP/1.1\r\n")
    assert KEY not in first + other
    assert (f"proxy-authorization: {BASIC}" in first) is bool(credentials)
    assert ("proxy-authorization" in first) is bool(credentials)
    for request in secure.requests:
        assert request.headers["authorization"] == f"Bearer {KEY}"
        assert request.headers["host"] == "localhost"
        assert request.path == "/v1/chat/completions"
        assert "proxy-authorization" not in request.headers
    assert connections_used(secure) == [1, 1], "a tunnel is kept"


def test_the_host_of_a_tunnel_may_be_an_address(tls: Any, secure: MockServer) -> None:
    with Proxy(secure) as proxy:
        assert text(ask("https://[::1]:9", proxy=proxy.url, cafile=tls.cafile)) == "a"
        assert proxy.heads[0].startswith("CONNECT [::1]:9 HTTP/1.1\r\nhost: [::1]:9\r\n")


@pytest.mark.parametrize("credentials", ["", CREDENTIALS])
def test_http_through_a_proxy(credentials: str) -> None:
    with Proxy() as proxy:
        url = proxy.url_with(credentials) if credentials else proxy.url
        with svir.Client("http://localhost:9", proxy=url, api_key=KEY) as client:
            assert [client.complete(REQUEST).text for _ in range(2)] == ["ab", "ab"]
        assert proxy.peer.connections == 1
    for got in proxy.heads:
        assert got.startswith("POST http://localhost:9/v1/chat/completions HTTP/1.1\r\n")
        assert "host: localhost:9\r\n" in got
        assert f"authorization: Bearer {KEY}\r\n" in got
        assert (f"proxy-authorization: {BASIC}\r\n" in got) is bool(credentials)


REFUSALS = {
    "password": (head(status="HTTP/1.1 407 Proxy Authentication Required"), 'proxy="http://user:'),
    "forbidden": (head(status="HTTP/1.1 403 Forbidden"), "answered 403 to CONNECT"),
    "gateway": (head("Content-Length: 2", status="HTTP/1.1 502 No") + b"no", "answered 502"),
    "redirect": (head("Location: /", status="HTTP/1.1 302 Found"), "answered 302"),
    "1xx-first": (
        head(status="HTTP/1.1 103 x") + head(status="HTTP/1.1 407 Password"),
        "answered 407",
    ),
    "garbage": (b"220 smtp.example ESMTP\r\n", "did not answer CONNECT"),
    "cut": (b"HTTP/1.1 200 Connection est", "did not answer CONNECT"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_proxy_that_refuses(name: str) -> None:
    data, words = REFUSALS[name]
    with Proxy(refusal=data) as proxy:
        url = proxy.url_with(CREDENTIALS)
        error = refused("https://host.example", proxy=url, api_key=KEY)
        assert words in str(error)
        assert "p%40ss" not in str(error)
        assert len(proxy.heads) == 1


def test_a_proxy_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for url in ("https://host.example", "http://localhost:9"):
        error = refused(url, proxy=f"http://{CREDENTIALS}@127.0.0.1:{port}")
        assert f"127.0.0.1:{port}" in str(error)
        assert "p%40ss" not in str(error)


def test_the_environment_names_no_proxy(
    server: MockServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q9: proxies are given by name."""
    server.default(text_answer("a"))
    with Proxy() as proxy:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.setenv("no_proxy", "")
        assert text(ask(server.url)) == "a"
        assert proxy.heads == []
        assert proxy.peer.connections == 0


# -- Sockets of other kinds -----------------------------------------------------------------------


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for the path of a socket."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@UNIX
def test_a_unix_socket(folder: Path) -> None:
    with MockServer(unix=folder / "s") as server:
        server.default(text_answer("a"))
        # The URL's host goes into the Host header, and is not looked up.
        with svir.Client("http://host.example/v1", unix_socket=folder / "s") as client:
            assert [client.complete(REQUEST).text for _ in range(2)] == ["a", "a"]
            assert [model.id for model in client.list_models()] == ["mock"]
        assert connections_used(server) == [1, 1, 1]
        assert server.requests[0].headers["host"] == "host.example"


@UNIX
def test_a_unix_socket_that_cannot_be_used(folder: Path) -> None:
    (folder / "file").write_text("no socket")
    for path in (folder / "missing", folder / "file", folder / ("x" * 200)):
        error = refused("http://localhost", unix_socket=path)
        assert str(path) in str(error)
    with socket.socket(socket.AF_UNIX) as full, contextlib.ExitStack() as stack:
        full.bind(str(folder / "full"))
        full.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket(socket.AF_UNIX))
            filler.setblocking(False)
            filler.connect_ex(str(folder / "full"))
        settings: dict[str, Any] = {"unix_socket": folder / "full", "connect_timeout": 0.2}
        seconds, error = timed(svir.Client("http://localhost", **settings).stream(REQUEST).result)
        assert type(error) is svir.ConnectError
        assert seconds < SLOW


@UNIX
def test_an_interrupt_while_a_unix_socket_connects(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    stream = svir.Client("http://localhost", unix_socket=folder / "s").stream(REQUEST)
    monkeypatch.setattr(socket.socket, "connect", interrupted, raising=False)
    before = open_sockets()
    with pytest.raises(KeyboardInterrupt):
        stream.result()
    assert open_sockets() == before


def test_a_unix_socket_has_no_proxy() -> None:
    with pytest.raises(svir.ConfigError, match="proxy or unix_socket, not both"):
        svir.Client("http://localhost", unix_socket="/tmp/s", proxy="http://localhost:1")


def test_a_system_without_unix_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "AF_UNIX", raising=False)
    error = failure(ask("http://localhost", unix_socket="/tmp/s"))
    assert type(error) is svir.ConfigError


@LINUX
def test_descriptors_above_1023(server: MockServer) -> None:
    """select() cannot take them."""
    resource = pytest.importorskip("resource")
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 1200:
        pytest.skip("too few descriptors")
    server.default(text_answer("a"))
    held: list[int] = []
    try:
        while not held or held[-1] < 1024:
            held.append(os.open(os.devnull, os.O_RDONLY))
        with svir.Client(server.url) as client:
            assert [client.complete(REQUEST).text for _ in range(2)] == ["a", "a"]
        assert connections_used(server) == [1, 1]
    finally:
        for descriptor in held:
            os.close(descriptor)


def test_without_poll(server: MockServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has only select()."""
    monkeypatch.delattr(select, "poll", raising=False)
    server.default(text_answer("a"))
    server.reply(early_answer(413), raw=True, read_body=False, hang=True)
    with svir.Client(server.url, idle_timeout=5.0) as client:
        with pytest.raises(svir.Unsupported):
            client.complete(BIG)
        assert [client.complete(request).text for request in (BIG, REQUEST)] == ["a", "a"]
        assert connections_used(server) == [1, 2, 2]
        server.reply(raw=True, hang=True, read_body=False)
        with pytest.raises(svir.Timeout):
            svir.Client(server.url, idle_timeout=0.2).complete(BIG)


CLOSED_STDIO = """
import os, sys
import svir

os.close(0)
with svir.Client(sys.argv[1]) as client:
    for _ in range(2):
        print(client.complete(svir.Request("m", "Hi")).text, [n for n in (0,) if os.fstat(n)])
"""


@pytest.mark.skipif(os.name == "nt", reason="descriptors are not reused so there")
def test_a_socket_may_be_descriptor_0(server: MockServer) -> None:
    """hosts.md 6: stdin is closed, and the next descriptor is 0, which is false."""
    server.default(text_answer("a"))
    assert run_python(CLOSED_STDIO, server.url).split() == ["a", "[0]", "a", "[0]"]
    assert connections_used(server) == [1, 1]


WITHOUT_SSL = """
import sys

sys.modules["ssl"] = sys.modules["_ssl"] = None
import svir

with svir.Client(sys.argv[1]) as client:
    print(client.complete(svir.Request("m", "Hi")).text)
try:
    svir.Client("https://localhost")
except svir.ConfigError as error:
    print(error)
"""


def test_https_without_the_ssl_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ssl", None)
    with pytest.raises(svir.ConfigError, match="needs the ssl module"):
        svir.Client("https://localhost")


def test_http_without_the_ssl_module(server: MockServer) -> None:
    server.default(text_answer("a"))
    first, second = run_python(WITHOUT_SSL, server.url).splitlines()
    assert first == "a"
    assert second == "https needs the ssl module, which this Python does not have"


# -- The seam -------------------------------------------------------------------------------------


def test_the_repr_of_a_request_hides_its_headers() -> None:
    """D38: any header may be a credential."""
    headers = {"authorization": "Bearer sk-1", "x-team": "sk-2", "accept": "text/plain"}
    request = svir.HttpRequest("POST", "https://host.example/v1?key=sk-3#sk-4", headers)
    assert "sk-" not in repr(request) + repr(request.headers) + str(request.headers)
    assert request.headers["authorization"] == "Bearer sk-1"
    for shown in ("POST", "https://host.example/v1", "x-team", "text/plain"):
        assert shown in repr(request)


def test_a_closed_response_gives_nothing_out(server: MockServer) -> None:
    """Nor what had come with the headers."""
    server.reply(text_answer("a"))
    request = svir.HttpRequest("POST", server.url + "/v1", {}, svir.encode(BIG))
    response = svir.HttpBackend().send(request)
    assert response.status == 200
    response.close()
    with pytest.raises(svir.Disconnected, match="was closed"):
        response.read(100, 1.0)


def test_a_chunk_after_others_ends_as_it_says() -> None:
    chunks = svir._Chunks()
    assert chunks.feed(b"5\r\nhello\r\n") == b"hello"
    assert chunks.feed(b"5\r\nhello\r\n") == b"hello"
    assert chunks.feed(b"5\r\nhelloXX") == b"hello"
    with pytest.raises(svir.ProtocolError, match="longer than its size"):
        chunks.feed(b"\r\n")


def test_the_backend_alone(server: MockServer) -> None:
    """HttpBackend and HttpRequest without a client, and the smallest reads."""
    gate = threading.Event()
    server.reply(b"hello", gate, b"you", path="/x")
    server.reply(raw=True, path="/x")
    server.reply(b"half", path="/x", hang=True)
    backend, url = svir.HttpBackend(), server.url + "/x"
    response = backend.send(svir.HttpRequest("GET", url, {"accept": "*/*"}))
    assert (response.status, response.headers["content-type"]) == (200, "text/event-stream")
    body = b""
    while body != b"hello":
        body += response.read(1, 5.0)
    gate.set()
    assert list(iter(lambda: response.read(1, 5.0), b"")) == [b"y", b"o", b"u"]
    assert response.read(1, 5.0) == b""
    response.close()
    response.close()
    with pytest.raises(svir.Disconnected):
        backend.send(svir.HttpRequest("GET", url, {}))
    assert connections_used(server) == [1, 1]
    half = backend.send(svir.HttpRequest("GET", url, {}))
    assert half.read(100, 5.0) == b"half"
    half.close()
    with pytest.raises(svir.Disconnected, match="was closed"):
        half.read(100, 5.0)
    assert repr(backend) == "HttpBackend()"
    backend.close()


class FakeBackend:
    """The seam of api.md 11, with nothing under it: it tells what it was asked."""

    def __init__(self, *parts: bytes, status: int = 200) -> None:
        self.parts, self.status, self.closed = list(parts), status, 0
        self.headers = {"Content-Type": "text/event-stream"}
        self.asked: list[svir.HttpRequest] = []
        self.timeouts: list[tuple[float | None, float | None]] = []

    def send(self, request: svir.HttpRequest) -> svir.HttpResponse:
        self.asked.append(request)
        self.timeouts.append((request.connect_timeout, request.timeout))
        assert request.body is not None
        assert len(bytes(request.body)) == request.body.length
        return self

    def read(self, size: int, timeout: float | None) -> bytes:
        assert size > 0
        assert timeout is not None
        assert 0 < timeout <= 7.0
        return self.parts.pop(0) if self.parts else b""

    def close(self) -> None:
        self.closed += 1


def test_a_backend_of_the_caller() -> None:
    backend = FakeBackend(*text_answer("a", "b"))
    client = svir.Client(
        "http://localhost:9",
        backend=backend,
        api_key=KEY,
        connect_timeout=3.0,
        idle_timeout=7.0,
    )
    assert client.complete(REQUEST).text == "ab"
    (request,) = backend.asked
    assert (request.method, request.url) == ("POST", "http://localhost:9/v1/chat/completions")
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert "content-length" not in request.headers
    assert backend.timeouts == [(3.0, 7.0)]
    assert backend.closed == 1
    for status, kind in ((401, svir.Unauthorized), (503, svir.Unavailable)):
        backend = FakeBackend(b'{"error": "no"}', status=status)
        with pytest.raises(kind) as caught:
            svir.Client("http://localhost:9", backend=backend, idle_timeout=7.0).complete(REQUEST)
        assert caught.value.server_message == "no"
        assert backend.closed == 1


@pytest.mark.parametrize("secure_too", [False, True])
def test_the_urllib3_backend_of_the_docs(tls: Any, secure_too: bool) -> None:
    """api.md 11, as it is printed there."""
    urllib3 = pytest.importorskip("urllib3", minversion="2.3")

    class Urllib3Backend:
        def __init__(self, pool: Any) -> None:
            self.pool = pool

        def send(self, request: svir.HttpRequest) -> svir.HttpResponse:
            headers = dict(request.headers)
            if request.body is not None:
                headers["content-length"] = str(request.body.length)
            try:
                response = self.pool.urlopen(
                    request.method,
                    request.url,
                    body=request.body,
                    headers=headers,
                    preload_content=False,
                    retries=False,
                    redirect=False,
                    timeout=urllib3.Timeout(request.connect_timeout, request.timeout),
                )
            except urllib3.exceptions.NewConnectionError as error:
                raise svir.ConnectError(str(error), unsent=True) from error
            except urllib3.exceptions.HTTPError as error:
                raise svir.Disconnected(str(error)) from error
            request.on_cancel(response.shutdown)
            return Urllib3Response(response)

    class Urllib3Response:
        def __init__(self, response: Any) -> None:
            self.response, self.status = response, response.status
            self.headers = {k.lower(): v for k, v in response.headers.items()}

        def read(self, size: int, timeout: float | None) -> bytes:
            try:
                data: bytes = self.response.read1(size)
            except urllib3.exceptions.HTTPError as error:
                raise svir.Disconnected(str(error)) from error
            return data

        def close(self) -> None:
            self.response.close()

    pool = urllib3.PoolManager(ca_certs=tls.cafile)
    with MockServer(tls=tls.server() if secure_too else None) as server:
        server.reply(text_answer("a", "b"))
        server.reply({"error": {"message": "no"}}, status=401)
        server.reply(OPEN_BODY, cut=True)
        server.reply(OPEN_BODY, hang=True)
        client = svir.Client(server.url, backend=Urllib3Backend(pool))
        assert client.complete(REQUEST).text == "ab"
        with pytest.raises(svir.Unauthorized):
            client.complete(REQUEST)
        with pytest.raises(svir.Disconnected):
            client.complete(REQUEST)
        stream = client.stream(REQUEST)
        next(stream)
        reader = Reader(stream.result)
        settle(reader.thread)
        stream.close()
        assert reader.join()
        assert isinstance(reader.error, svir.Cancelled)
    error = failure(ask("http://127.0.0.1:1", backend=Urllib3Backend(pool)))
    assert (type(error), error.unsent) == (svir.ConnectError, True)
    pool.clear()
