"""The built-in backend: its pool, framing, early answers, limits, compression, TLS and proxies."""

from __future__ import annotations

import base64
import contextlib
import gzip
import os
import re
import socket
import ssl
import sys
import threading
import time
import tracemalloc
import zlib
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator

import pytest

import svir
from harness import REQUEST, Run, ask, receive, single_bytes
from loopback import (
    Peer,
    Reader,
    eventually,
    full_backlog,
    nothing_left,
    read_all,
    read_head,
    run_python,
    timed,
    until_the_end,
)
from svir_ext.testing import DONE, MockServer, Reply, sse, text_answer

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
BIG = svir.Request("m", "x" * (16 << 20))  # more than the buffers of two sockets hold
SLOW = 5.0  # seconds more than a limit that a call may take, on a busy machine

STREAM = "Content-Type: text/event-stream"
BODY = b"".join(text_answer("a", "b"))
OPEN_BODY = b"".join(text_answer("a", finish_reason=None)[:-1])


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
LENGTH = head(STREAM, f"Content-Length: {len(BODY)}") + BODY


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
    "connection-close": head(STREAM, "Content-Length: %d" % len(BODY), "Connection: close") + BODY,
    "close-among-others": head(STREAM, "Content-Length: %d" % len(BODY), "Connection: x, Close")
    + BODY,
    "http-1.0": head(STREAM, "Content-Length: %d" % len(BODY), status="HTTP/1.0 200 OK") + BODY,
    "no-framing": head(STREAM) + BODY,
    "surplus-after-a-length": LENGTH + b"x",
    "surplus-after-the-last-chunk": CHUNKED + b"x",
    "a-second-answer": CHUNKED + CHUNKED.replace(b'"a"', b'"z"'),
    "a-second-answer-by-length": LENGTH + LENGTH.replace(b'"a"', b'"z"'),
    "no-last-chunk": CHUNKED[: -len(LAST)],
    "half-a-last-chunk": CHUNKED[:-2],
    "more-chunks-after-done": CHUNKED[: -len(LAST)] + chunks(b": more\n\n") + LAST,
    "a-broken-chunk-after-done": CHUNKED[: -len(LAST)] + b"zz\r\n",
    "length-too-long": head(STREAM, "Content-Length: %d" % (len(BODY) + 5)) + BODY,
}


@pytest.mark.parametrize("name", NOT_KEPT)
def test_a_connection_that_is_not_kept(server: MockServer, client: svir.Client, name: str) -> None:
    """Each answer is whole at [DONE], and what may follow it is nobody else's answer."""
    server.reply(NOT_KEPT[name], raw=True, hang=True)
    server.reply(text_answer("c"))
    assert client.complete(REQUEST).text == "ab"
    server.wait_until(lambda: server.open_connections == 0)
    assert client.complete(REQUEST).text == "c"
    assert connections_used(server) == [1, 2]


def test_http_1_0_may_ask_to_be_kept(server: MockServer, client: svir.Client) -> None:
    def talk(conn: Any) -> None:
        while receive(conn) is not None:
            lines = (STREAM, f"Content-Length: {len(BODY)}", "Connection: Keep-Alive")
            conn.sendall(head(*lines, status="HTTP/1.0 200 OK") + BODY)

    with Peer(talk) as peer, svir.Client(peer.url) as client:
        assert [client.complete(REQUEST).text for _ in range(3)] == ["ab"] * 3
        assert peer.connections == 1


def test_a_last_chunk_that_comes_late(server: MockServer, client: svir.Client) -> None:
    """E4: the answer is given at [DONE] without waiting, and the connection is closed."""
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
    "100-headers": head(*["A: b"] * 99, "Content-Length: 5") + b"hello",
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
            assert stream.result().text == "ab"  # S9: the line counts without its end
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
        with pytest.raises(svir.Disconnected, match="before the end of an answer's headers"):
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
    first = [CONTINUE, 0.05] if then == "continues-first" else []
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
        left = bytes(BIG) if False else svir.encode(BIG.replace(include_usage=True)).length
        while left:
            left -= len(conn.recv(1 << 20))
        conn.sendall(LENGTH)

    with Peer(talk) as peer, svir.Client(peer.url) as client:
        assert client.complete(BIG).text == "ab"


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
