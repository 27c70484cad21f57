"""svir_ext.testing: the server seen by http.client and bare sockets, then both through svir."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Iterator
from urllib.parse import urlsplit

import pytest

import svir
from svir_ext import testing
from svir_ext.testing import (
    CUT,
    DONE,
    GARBAGE,
    RESET,
    STALL,
    MockServer,
    Reply,
    error_event,
    every_split,
    recorded,
    refusal_answer,
    scripted,
    scripted_turns,
    sse,
    text_answer,
    tool_answer,
)

CHAT = "/v1/chat/completions"


# -- Help -----------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[MockServer]:
    with MockServer() as server:
        yield server


@pytest.fixture
def http_client(server: MockServer) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=5)
    yield connection
    connection.close()


def ask(
    connection: http.client.HTTPConnection, path: str = CHAT, body: bytes | None = b"{}"
) -> tuple[int, dict[str, str], bytes]:
    """One exchange: status, headers with lower-case names, body."""
    connection.request("GET" if body is None else "POST", path, body)
    with connection.getresponse() as response:
        headers = {name.lower(): value for name, value in response.getheaders()}
        return response.status, headers, response.read()


def raw_exchange(server: MockServer, *, then: Callable[[], object] = lambda: None) -> bytes:
    """Every byte the server sends for one request, up to its end. `then` runs in between."""
    with dial(server) as sock:
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
        then()
        return read_to_end(sock)


def dial(server: MockServer) -> socket.socket:
    address = urlsplit(server.url)
    return socket.create_connection((str(address.hostname), address.port or 0), timeout=5)


def read_to_end(sock: socket.socket) -> bytes:
    return b"".join(iter(lambda: sock.recv(65536), b""))


def events(steps: list[Any]) -> list[Any]:
    """The JSON of each step that holds one, `[DONE]` as text."""
    payloads = [step.decode().partition("data: ")[2].rstrip("\n") for step in steps]
    return [payload if payload == "[DONE]" else json.loads(payload) for payload in payloads]


def deltas(steps: list[Any]) -> list[Any]:
    return [event["choices"][0]["delta"] for event in events(steps[:-1]) if event["choices"]]


# -- What the server receives ---------------------------------------------------------------------


def test_a_request_is_recorded_whole(server: MockServer) -> None:
    server.reply()
    with dial(server) as sock:
        head = f"POST {CHAT}?a=1&b HTTP/1.1\r\nX-Twice: one\r\nX-twice:two \r\n"
        sock.sendall(head.encode() + b"Content-Length: 15\r\n\r\n" + b'{"model": "m"}\n')
        assert sock.recv(17) == b"HTTP/1.1 200 OK\r\n"
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", CHAT + "?a=1&b")
    assert request.headers == {"x-twice": "one, two", "content-length": "15"}
    assert request.body == b'{"model": "m"}\n'
    assert request.json() == {"model": "m"}
    assert repr(request) == f"<MockRequest POST {CHAT}?a=1&b, 15 bytes>"


def test_requests_share_a_connection(
    server: MockServer, http_client: http.client.HTTPConnection
) -> None:
    server.reply(b"one")
    server.reply(b"two", framing="length")
    server.reply(status=429)
    server.reply(b"three")
    assert [ask(http_client)[2] for _ in range(4)] == [b"one", b"two", b"", b"three"]
    assert server.connections == 1
    assert [request.connection for request in server.requests] == [1, 1, 1, 1]


def test_a_client_may_ask_for_close(server: MockServer) -> None:
    server.default(b"whole")
    head = b"POST / HTTP/1.1\r\nConnection: close\r\n\r\n"
    with dial(server) as sock:
        sock.sendall(head)
        answer = read_to_end(sock)
    assert b"connection: close\r\n" in answer
    assert answer.endswith(b"\r\n\r\n5\r\nwhole\r\n0\r\n\r\n")


@pytest.mark.parametrize("header", ["close", "Close"])
def test_a_reply_may_ask_for_close(server: MockServer, header: str) -> None:
    server.reply(b"whole", headers={"Connection": header})
    assert raw_exchange(server).endswith(b"0\r\n\r\n")


def test_many_connections_at_once(server: MockServer) -> None:
    server.default(b"a", 0.02, b"b")
    answers: list[bytes] = []

    def work() -> None:
        connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=10)
        answers.extend(ask(connection)[2] for _ in range(3))
        connection.close()

    threads = [threading.Thread(target=work) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [b"ab"] * 120
    assert server.connections == 40
    assert len(server.requests) == 120
    server.wait_until(lambda: server.open_connections == 0)


def test_wait_until(server: MockServer) -> None:
    server.reply(raw=True, hang=True)
    with dial(server) as sock:
        sock.sendall(b"GET /slow HTTP/1.1\r\n\r\n")
        server.wait_until(lambda: server.requests)
        assert server.requests[0].path == "/slow"
        assert server.open_connections == 1
    server.wait_until(lambda: server.open_connections == 0)
    with pytest.raises(AssertionError, match="1 requests, 0 replies pending"):
        server.wait_until(lambda: False, timeout=0.01)


def test_a_request_cut_short_takes_no_reply(
    server: MockServer, http_client: http.client.HTTPConnection
) -> None:
    server.reply(b"ok")
    for part in (
        b"POST / HT",
        b"POST / HTTP/1.1\r\nA: b",
        b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n{",
    ):
        with dial(server) as sock:
            sock.sendall(part)
    assert ask(http_client)[2] == b"ok"
    assert len(server.requests) == 1


# -- Which reply goes out -------------------------------------------------------------------------


def test_replies_go_out_in_order_and_then_there_are_none(
    server: MockServer, http_client: http.client.HTTPConnection
) -> None:
    server.reply(b"one")
    server.reply(b"two")
    assert server.pending == 2
    assert [ask(http_client)[2] for _ in range(2)] == [b"one", b"two"]
    assert server.pending == 0
    server.check()
    status, headers, body = ask(http_client)
    assert (status, headers["content-type"]) == (500, "application/json")
    assert f"MockServer has no reply for POST {CHAT}" in json.loads(body)["error"]["message"]
    with pytest.raises(AssertionError, match=r"no reply for \[<MockRequest POST"):
        server.check()


def test_models_are_listed_without_a_script(
    server: MockServer, http_client: http.client.HTTPConnection
) -> None:
    server.reply(b"for the chat")
    assert models_of(http_client) == [{"id": "mock"}]
    server.model_list(["a", {"id": "b", "name": "B"}])
    assert models_of(http_client) == [{"id": "a"}, {"id": "b", "name": "B"}]
    server.reply(status=401, path="/models")
    assert ask(http_client, "/v1/models", None)[0] == 401
    assert ask(http_client)[2] == b"for the chat"


def models_of(connection: http.client.HTTPConnection) -> Any:
    status, headers, body = ask(connection, "/v1/models?x=1", None)
    assert (status, headers["content-type"]) == (200, "application/json")
    return json.loads(body)["data"]


def test_a_path_picks_its_reply(
    server: MockServer, http_client: http.client.HTTPConnection
) -> None:
    server.reply(b"b", path="/b")
    server.reply(b"any")
    assert ask(http_client, "/a")[2] == b"any"
    assert ask(http_client, "/v1/b?query")[2] == b"b"


def test_queue_then_hook_then_default(
    server: MockServer, http_client: http.client.HTTPConnection
) -> None:
    server.default(b"default")
    server.on_request = lambda got: Reply(b"hook " + got.body) if got.body == b"x" else None
    server.reply(b"queued")
    assert [ask(http_client, body=b"x")[2] for _ in range(2)] == [b"queued", b"hook x"]
    assert ask(http_client, body=b"y")[2] == b"default"


# -- How it goes out ------------------------------------------------------------------------------


def test_each_bytes_step_is_one_chunk(server: MockServer) -> None:
    server.reply(b"\xc3", [b"\xa9", "é", b""], 0.01, {"a": 1}, headers={"connection": "close"})
    head, _, body = raw_exchange(server).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\ntransfer-encoding: chunked" in head
    assert body == b'1\r\n\xc3\r\n1\r\n\xa9\r\n2\r\n\xc3\xa9\r\n8\r\n{"a": 1}\r\n0\r\n\r\n'


def test_the_end_of_the_body_leaves_with_the_last_bytes() -> None:
    end = b"0\r\n\r\n"
    assert Reply(b"a", b"b").parts() == [b"1\r\na\r\n", b"1\r\nb\r\n" + end]
    assert Reply(b"a", 0.0).parts() == [b"1\r\na\r\n", 0.0, end]
    assert Reply().parts() == [end]
    assert Reply(b"a", cut=True).parts() == [b"1\r\na\r\n"]
    assert Reply(b"a", b"", framing="length").parts() == [b"a", b""]


def test_framing(server: MockServer, http_client: http.client.HTTPConnection) -> None:
    for framing in ("length", "close"):
        server.reply(b"ab", "c", framing=framing)
        headers, body = ask(http_client)[1:]
        assert body == b"abc"
        assert headers.get("content-length") == ("3" if framing == "length" else None)
        assert headers.get("connection") == ("close" if framing == "close" else None)
        assert "transfer-encoding" not in headers
    with pytest.raises(ValueError, match="not 'none'"):
        server.reply(framing="none")


def test_content_type_and_headers(
    server: MockServer, http_client: http.client.HTTPConnection
) -> None:
    server.reply(b"data: 1\n\n")
    server.reply({"error": "no"}, status=400)
    server.reply({"data": []})
    server.reply(b"x", content_type="text/html", headers={"Retry-After": "2"})
    server.reply(b"x", headers={"Content-Type": None})
    sent = [ask(http_client)[1] for _ in range(5)]
    types = ["text/event-stream", "application/json", "application/json", "text/html", None]
    assert [headers.get("content-type") for headers in sent] == types
    assert [headers.get("retry-after") for headers in sent] == [None, None, None, "2", None]


def test_any_status(server: MockServer, http_client: http.client.HTTPConnection) -> None:
    for status in (204, 304, 429, 529, 999):
        server.reply(status=status)
        assert ask(http_client)[0] == status
    assert server.connections == 1


def test_pauses(server: MockServer, http_client: http.client.HTTPConnection) -> None:
    gate = threading.Event()
    server.reply(b"a", 0.1, b"b", gate, b"c", delay=0.1)
    started = time.monotonic()
    http_client.request("POST", CHAT, b"{}")
    with http_client.getresponse() as response:
        assert time.monotonic() - started >= 0.1
        assert response.read(2) == b"ab"
        assert time.monotonic() - started >= 0.2
        gate.set()
        assert response.read() == b"c"


def test_raw_bytes(server: MockServer) -> None:
    server.reply(b"HTTP/9 what", 0.01, "ever\r\n", raw=True)
    assert raw_exchange(server) == b"HTTP/9 whatever\r\n"
    server.reply(raw=True)
    assert raw_exchange(server) == b""


@pytest.mark.parametrize("framing", ["chunked", "length"])
def test_a_cut_body_looks_cut(
    server: MockServer, http_client: http.client.HTTPConnection, framing: str
) -> None:
    server.reply(b"part", framing=framing, cut=True)
    http_client.request("POST", CHAT, b"{}")
    with http_client.getresponse() as response, pytest.raises(
        http.client.IncompleteRead
    ) as caught:
        response.read()
    assert caught.value.partial == b"part"


@pytest.mark.parametrize("raw", [False, True])
def test_a_reset_is_an_error_for_the_client(server: MockServer, raw: bool) -> None:
    gate = threading.Event()
    server.reply(b"part", gate, reset=True, raw=raw)
    with dial(server) as sock:
        sock.sendall(b"POST / HTTP/1.1\r\n\r\n")
        received = b""
        while b"part" not in received:
            received += sock.recv(65536)
        gate.set()
        with pytest.raises(ConnectionResetError):
            read_to_end(sock)


@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
def test_a_hanging_body_ends_with_the_client(server: MockServer, framing: str) -> None:
    server.reply(b"part", hang=True, framing=framing)
    with dial(server) as sock:
        sock.sendall(b"POST / HTTP/1.1\r\n\r\n")
        received = b""
        while b"part" not in received:
            received += sock.recv(65536)
        sock.settimeout(0.1)
        with pytest.raises(socket.timeout):
            sock.recv(65536)
        assert server.open_connections == 1
    server.wait_until(lambda: server.open_connections == 0)


def test_an_early_answer_leaves_the_body_unread(server: MockServer) -> None:
    server.reply({"error": "too large"}, status=413, read_body=False)
    size = 32 << 20  # more than the sockets' buffers hold
    with dial(server) as sock:
        sock.sendall(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % size)
        with pytest.raises(ConnectionError):
            sock.sendall(bytes(size))
        received = sock.recv(65536)
    assert received.startswith(b"HTTP/1.1 413 ")
    assert received.endswith(b'\r\n\r\n{"error": "too large"}')
    assert b"\r\nconnection: close\r\n" in received
    assert server.requests[0].body == b""


def test_only_the_reply_at_the_head_of_the_queue_is_early(
    server: MockServer, http_client: http.client.HTTPConnection
) -> None:
    server.reply(b"first")
    server.reply(b"second", read_body=False)
    assert ask(http_client, body=b"abc")[2] == b"first"
    assert ask(http_client, body=b"abc")[2] == b"second"
    assert [request.body for request in server.requests] == [b"abc", b""]


# -- How it ends ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"hang": True},
        {"hang": True, "read_body": False},
        {"hang": True, "raw": True},
        {"delay": 60.0},
        {"steps": [60.0]},
        {"steps": [threading.Event()]},
        {"steps": [b"x" * (64 << 20)]},
    ],
    ids=["hang", "unread", "silent", "delay", "pause", "gate", "client-not-reading"],
)
def test_the_end_of_the_block_ends_everything(options: dict[str, Any]) -> None:
    before = threading.active_count()
    server = MockServer()
    with server:
        server.reply(options.pop("steps", []), **options)
        idle, busy = dial(server), dial(server)
        busy.sendall(b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
        server.wait_until(lambda: server.requests and server.connections == 2)
        started = time.monotonic()
    assert time.monotonic() - started < 1
    assert threading.active_count() == before
    assert server.open_connections == 0
    for sock in (idle, busy):
        with sock:
            try:
                while sock.recv(1 << 20):
                    pass
            except ConnectionError:
                pass
    with pytest.raises(ConnectionError):
        dial(server)


def test_a_client_that_leaves_early_is_no_error() -> None:
    with MockServer() as server:
        server.reply([b"x" * 65536] * 200)
        with dial(server) as sock:
            sock.sendall(b"POST / HTTP/1.1\r\n\r\n")
            sock.recv(10)
        server.wait_until(lambda: server.open_connections == 0)
        server.check()


def run_block(
    sent: bytes, hook: Callable[[testing.MockRequest], Reply] | None, error: BaseException | None
) -> None:
    """A block whose server gets `sent` and fails, and which then raises `error`."""
    with MockServer() as server:
        server.on_request = hook
        with dial(server) as sock:
            sock.sendall(sent)
            answer = read_to_end(sock)
        assert hook is None or b'{"error": {"message": "on_request failed: ' in answer
        with pytest.raises(BaseException):  # noqa: B017, PT011  any failure at all
            server.check()
        if error is not None:
            raise error


LAST = b"POST / HTTP/1.1\r\nConnection: close\r\n\r\n"


def test_a_failure_in_a_server_thread_reaches_the_test() -> None:
    def refuse(request: testing.MockRequest) -> Reply:
        pytest.fail("not this request")

    with pytest.raises(pytest.fail.Exception, match="not this request"):
        run_block(LAST, refuse, None)


def test_a_failure_outranks_the_error_it_caused_but_no_interrupt() -> None:
    def refuse(request: testing.MockRequest) -> Reply:
        raise KeyError("cause")

    with pytest.raises(KeyError) as caught:
        run_block(LAST, refuse, ValueError("effect"))
    assert isinstance(caught.value.__context__, ValueError)
    with pytest.raises(KeyboardInterrupt):
        run_block(LAST, refuse, KeyboardInterrupt())


@pytest.mark.parametrize(
    "garbage",
    [b"\r\n", b"hello\r\n\r\n", b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"],
)
def test_what_is_no_request_is_a_failure(garbage: bytes) -> None:
    with pytest.raises(ValueError, match=r"^MockServer "):
        run_block(garbage, None, None)


def test_a_step_has_to_be_one() -> None:
    with pytest.raises(TypeError):
        Reply(b"x", [None])
    with pytest.raises(TypeError):
        MockServer().reply(b"x", statsu=200)


@pytest.mark.parametrize("name", ["reply", "default"])
def test_text_is_not_an_answer(name: str) -> None:
    server = MockServer()
    script = getattr(server, name)
    with pytest.raises(TypeError, match=r'^a str is not an answer: text_answer\("Hello"\)$'):
        script("Hello")
    with pytest.raises(TypeError, match=r'text_answer\("Hel", "lo"\)$'):
        script("Hel", 0.5, "lo", CUT)
    assert server.pending == 0
    # Beside bytes, and as the body of something else, text is meant so.
    script(b"data: ", "x\n\n")
    script("no such page", status=404)
    script("<html>", content_type="text/html")
    script("<html>", headers={"Content-Type": "text/html"})
    script("HTTP/1.1 200 OK\r\n\r\n", raw=True)


# -- TLS and UNIX sockets -------------------------------------------------------------------------


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Key and certificate of 127.0.0.1 in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("makes its certificate with the openssl command")
    made = tmp_path_factory.mktemp("tls") / "server.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1"
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(made), "-out", str(made) + ".crt"]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
    made.write_text(made.read_text() + Path(str(made) + ".crt").read_text())
    return made


@pytest.fixture
def tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(str(certificate))
    return context


def test_tls(tls: ssl.SSLContext, certificate: Path) -> None:
    with MockServer(tls=tls) as server:
        assert server.url.startswith("https://127.0.0.1:")
        server.reply(b"one")
        server.reply(b"two", framing="close")
        trusting = ssl.create_default_context(cafile=str(certificate))
        netloc = urlsplit(server.url).netloc
        connection = http.client.HTTPSConnection(netloc, timeout=5, context=trusting)
        assert [ask(connection)[2] for _ in range(2)] == [b"one", b"two"]
        connection.close()


def test_tls_with_a_client_that_does_not_trust_it(tls: ssl.SSLContext) -> None:
    with MockServer(tls=tls) as server:
        netloc = urlsplit(server.url).netloc
        context = ssl.create_default_context()
        connection = http.client.HTTPSConnection(netloc, timeout=5, context=context)
        with pytest.raises(ssl.SSLCertVerificationError):
            connection.request("GET", "/")
        connection.close()
        server.wait_until(lambda: server.open_connections == 0)
        assert not server.requests


@pytest.mark.parametrize("phase", ["handshake", "request", "answer"])
def test_tls_ends_with_the_block(tls: ssl.SSLContext, certificate: Path, phase: str) -> None:
    with MockServer(tls=tls) as server:
        server.reply(b"x" * (64 << 20))
        sock = dial(server)
        if phase != "handshake":
            trusting = ssl.create_default_context(cafile=str(certificate))
            sock = trusting.wrap_socket(sock, server_hostname="127.0.0.1")
        if phase == "answer":
            sock.sendall(b"POST / HTTP/1.1\r\n\r\n")
            sock.recv(10)
        server.wait_until(lambda: server.open_connections == 1)
        started = time.monotonic()
    assert time.monotonic() - started < 1
    sock.close()


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no UNIX sockets here")
def test_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with MockServer(unix=path) as server:
        assert server.url == "http://localhost"
        server.reply(b"ok", headers={"connection": "close"})
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(5)
            sock.connect(str(path))
            sock.sendall(b"POST / HTTP/1.1\r\n\r\n")
            answer = read_to_end(sock)
    assert answer.endswith(b"2\r\nok\r\n0\r\n\r\n")
    assert not path.exists()


# -- Answers as bytes -----------------------------------------------------------------------------


def test_sse() -> None:
    assert sse("[DONE]") == DONE
    assert sse({"é": [1]}) == b'data: {"\xc3\xa9":[1]}\n\n'
    assert sse("a\nb", event="error") == b"event: error\ndata: a\ndata: b\n\n"
    assert error_event("no") == b'data: {"error":{"message":"no"}}\n\n'
    assert error_event("no", event="error", code=5).startswith(b"event: error\ndata: ")
    assert events([error_event("no", code=5)]) == [{"error": {"message": "no", "code": 5}}]


def test_text_answer() -> None:
    steps = text_answer("Hel", 0.5, "lo", reasoning="hm", usage=(3, 2), model="m", id="i")
    assert steps.pop(3) == 0.5
    assert steps[-1] == DONE
    assert deltas(steps) == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "hm"},
        {"content": "Hel"},
        {"content": "lo"},
        {},
    ]
    *chunks, finish, usage = events(steps[:-1])
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    assert finish["choices"][0]["finish_reason"] == "stop"
    counts = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert (usage["choices"], usage["usage"]) == ([], counts)
    assert {(chunk["id"], chunk["model"]) for chunk in events(steps[:-1])} == {("i", "m")}
    assert deltas(text_answer(finish_reason=None)) == [{"role": "assistant", "content": ""}]


def test_tool_answer() -> None:
    steps = tool_answer(("look", {"city": "Tromsø"}), ("time", "{}"), ("none", ""), pieces=3)
    pieces = [delta["tool_calls"][0] for delta in deltas(steps) if "tool_calls" in delta]
    assert [piece["index"] for piece in pieces] == [0, 0, 0, 0, 1, 1, 1, 2]
    named = [(piece["id"], piece["function"]["name"]) for piece in pieces if "id" in piece]
    assert named == [("call-1", "look"), ("call-2", "time"), ("call-3", "none")]
    arguments = "".join(p["function"]["arguments"] for p in pieces if p["index"] == 0)
    assert arguments == '{"city": "Tromsø"}'
    assert events(steps)[-2]["choices"][0]["finish_reason"] == "tool_calls"


def test_refusal_answer() -> None:
    steps = refusal_answer("I can", "not.")
    assert [delta.get("refusal") for delta in deltas(steps)] == [None, "I can", "not.", None]
    assert events(steps)[-2]["choices"][0]["finish_reason"] == "stop"


def test_recorded(tmp_path: Path) -> None:
    path = tmp_path / "answer.sse"
    first, second, last = b": hi\n\n", b"data: 1\r\ndata: 2\r\n\r\n", b"data: [DONE]\n"
    path.write_bytes(first + second + last)
    assert recorded(path) == [first, second, last]
    assert recorded(str(path), pause=0.5) == [first, 0.5, second, 0.5, last]
    pieces = recorded(path, piece=10)
    assert {len(piece) for piece in pieces[:-1]} == {10}
    assert b"".join(pieces) == path.read_bytes()
    assert recorded(path, piece=16, pause=1)[1::2] == [1] * (len(path.read_bytes()) // 16)
    path.write_bytes(b"")
    assert recorded(path) == recorded(path, pause=1) == recorded(path, piece=3) == []
    path.write_bytes(b"\n\n\n\ndata: 1\n")
    assert b"".join(recorded(path)) == b"\n\n\n\ndata: 1\n"


def test_faults_end_the_steps() -> None:
    for fault, name in ((CUT, "cut"), (RESET, "reset"), (STALL, "hang")):
        reply = Reply([b"a", [b"b", 0.5, fault]], b"c", fault, b"d")
        assert reply.steps == [b"a", b"b", 0.5]
        assert reply.short
        assert (reply.hang, reply.reset) == (name == "hang", name == "reset")
        assert repr(fault) == name.upper().replace("HANG", "STALL")
    assert not Reply(b"a").short


def test_every_split() -> None:
    assert list(every_split(b"ab")) == [(b"", b"ab"), (b"a", b"b"), (b"ab", b"")]
    assert list(every_split(b"")) == [(b"", b"")]


# -- Through svir ---------------------------------------------------------------------------------


REQUEST = svir.Request("qwen3-4b", "hi")


def asked(*layers: svir.Layer) -> svir.Completion:
    return svir.Client("http://localhost:1", layers=layers).complete(REQUEST)


def seen(*layers: svir.Layer) -> list[svir.Event]:
    return list(svir.Client("http://localhost:1", layers=layers).stream(REQUEST))


def test_scripted_text() -> None:
    completion = asked(scripted("Hel", "lo", usage=(3, 2)))
    assert (completion.text, completion.finish_reason) == ("Hello", "stop")
    assert (completion.model, completion.usage) == ("qwen3-4b", svir.Usage(3, 2, 5))
    other = asked(scripted("Hel", finish_reason="length", model="m", usage=svir.Usage(1, 1, 2)))
    assert (other.finish_reason, other.model) == ("length", "m")
    assert other.usage == svir.Usage(1, 1, 2)


def test_scripted_events() -> None:
    steps = [
        svir.ReasoningDelta("hm", "reasoning_content"),
        svir.ReasoningDelta("m", "reasoning_content"),
        svir.TextDelta("a"),
        svir.ToolCallDelta(0, "c-0", "lo", '{"a":'),
        svir.ToolCallDelta(0, "", "ok", "1}"),
        svir.ToolCall("c-1", "time", "{}"),
    ]
    *before, last = seen(scripted(*steps))
    assert before == [*steps[:5], svir.ToolCallDelta(1, "c-1", "time", "{}")]
    assert isinstance(last, svir.Completed)
    completion = last.completion
    assert completion.reasoning == (svir.Reasoning("hmm", "reasoning_content"),)
    assert completion.finish_reason == "tool_calls"
    calls = (svir.ToolCall("c-0", "look", '{"a":1}'), svir.ToolCall("c-1", "time", "{}"))
    assert completion.tool_calls == calls


def test_scripted_tool_calls_can_be_answered() -> None:
    calls = (svir.ToolCall("c-0", "look", '{"a":1}'), svir.ToolCall("c-1", "time", "{}"))
    assert asked(scripted(*calls)).tool_calls == calls


def test_scripted_completed_is_the_last_word() -> None:
    own = svir.Completed(svir.Completion("mine", finish_reason="length"))
    assert seen(scripted("a", own)) == [svir.TextDelta("a"), own]


def test_scripted_error() -> None:
    client = svir.Client("http://localhost:1", layers=[scripted("a", svir.Timeout("slow"))])
    stream = client.stream(REQUEST)
    assert next(iter(stream)) == svir.TextDelta("a")
    with pytest.raises(svir.Timeout, match="slow"):
        next(iter(stream))


@pytest.mark.parametrize(("fault", "kind"), [(CUT, "truncated"), (RESET, "disconnected")])
def test_scripted_faults(fault: Any, kind: str) -> None:
    for steps in (["a", fault, "never"], [fault]):
        with pytest.raises(svir.Error) as caught:
            asked(scripted(*steps))
        assert (caught.value.kind, caught.value.in_stream) == (kind, True)


def test_scripted_stall_ends_with_close_or_a_deadline() -> None:
    client = svir.Client("http://localhost:1", layers=[scripted("a", STALL)])
    stream = client.stream(REQUEST)
    assert next(stream) == svir.TextDelta("a")
    timer = threading.Timer(0.02, stream.close)
    timer.start()
    with pytest.raises(svir.Cancelled):
        next(stream)
    timer.join()
    limited = svir.Client("http://localhost:1", layers=[scripted(STALL)], total_timeout=0.02)
    with pytest.raises(svir.Timeout):
        limited.complete(REQUEST)


def test_scripted_pause_ends_with_close() -> None:
    stream = svir.Client("http://localhost:1", layers=[scripted("a", 60.0, "b")]).stream(REQUEST)
    timer = threading.Timer(0.05, stream.close)
    timer.start()
    started = time.monotonic()
    with pytest.raises(svir.Cancelled):
        list(stream)
    assert time.monotonic() - started < 5
    timer.join()


def test_scripted_turns() -> None:
    client = svir.Client("http://localhost:1", layers=[scripted_turns(["a"], ["b", "c"])])
    assert [client.complete(REQUEST).text for _ in range(2)] == ["a", "bc"]
    with pytest.raises(AssertionError, match="after the last of 2 turns"):
        client.complete(REQUEST)


def test_answers_read_back(server: MockServer) -> None:
    with svir.Client(server.url) as client:
        server.reply(text_answer("Hel", 0.01, "lo", reasoning="hm", usage=(3, 2)))
        completion = client.complete(REQUEST)
        assert (completion.text, completion.finish_reason) == ("Hello", "stop")
        assert (completion.id, completion.model) == ("mock-1", "mock")
        assert completion.usage == svir.Usage(3, 2, 5)
        assert [part.text for part in completion.reasoning] == ["hm"]
        server.reply(tool_answer(("look", {"a": "é"}), ("time", "{}"), pieces=4))
        calls = client.complete(REQUEST).tool_calls
        assert [(call.id, call.name, call.parse()) for call in calls] == [
            ("call-1", "look", {"a": "é"}),
            ("call-2", "time", {}),
        ]
        server.reply(refusal_answer("No", "."))
        completion = client.complete(REQUEST)
        assert (completion.text, completion.finish_reason) == ("No.", "refusal")
        assert [model.id for model in client.list_models()] == ["mock"]
    assert server.requests[0].json()["model"] == "qwen3-4b"
    assert server.connections == 1
    assert completion.quirks == ()


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no UNIX sockets here")
def test_svir_over_a_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with MockServer(unix=path) as server, svir.Client(server.url, unix_socket=path) as client:
        server.reply(text_answer("hi"))
        assert client.complete(REQUEST).text == "hi"


def test_svir_over_tls(tls: ssl.SSLContext, certificate: Path) -> None:
    with MockServer(tls=tls) as server:
        server.reply(text_answer("hi"))
        with svir.Client(server.url, cafile=str(certificate)) as client:
            assert client.complete(REQUEST).text == "hi"


def test_every_split_of_an_answer_reads_the_same(server: MockServer) -> None:
    data = b"".join(text_answer("é", "€"))
    with svir.Client(server.url) as client:
        for first, second in list(every_split(data))[-120:]:
            server.reply(first, second)
            assert client.complete(REQUEST).text == "é€"


def test_what_goes_wrong_is_told_apart(server: MockServer) -> None:
    begun = text_answer("a")[:2]
    faults: list[tuple[type[svir.Error], list[Any], dict[str, Any]]] = [
        (svir.RateLimited, [], {"status": 429, "headers": {"retry-after": "1"}}),
        (svir.Unavailable, [], {}),
        (svir.ServerError, [begun, error_event("died")], {}),
        (svir.Truncated, [text_answer("a")[:-2]], {}),
        (svir.Disconnected, [begun], {"reset": True}),
        (svir.Disconnected, [], {"raw": True}),
    ]
    with svir.Client(server.url) as client:
        for expected, steps, options in faults:
            if expected is not svir.Unavailable:  # that one is for no reply at all
                server.reply(*steps, **options)
            with pytest.raises(expected):
                client.complete(REQUEST)


def test_faults_inside_an_answer(server: MockServer) -> None:
    faults: list[tuple[type[svir.Error], Any]] = [
        (svir.Truncated, CUT),
        (svir.Disconnected, RESET),
        (svir.Timeout, STALL),
        (svir.ProtocolError, GARBAGE),
        (svir.ProtocolError, sse("no JSON")),
    ]
    with svir.Client(server.url, idle_timeout=0.5) as client:
        for expected, fault in faults:
            server.reply(text_answer("a", fault, "b"))
            with pytest.raises(expected) as caught:
                client.complete(REQUEST)
            assert caught.value.partial is not None
            assert caught.value.partial.text == "a", fault
    server.reply(text_answer("a", GARBAGE, "b"))
    with svir.Client(server.url, strict=False) as client:
        assert client.complete(REQUEST).text == "ab"


def test_a_recording_is_replayed(server: MockServer) -> None:
    """Cut in pieces, slowly, and broken off, it is what the file holds."""
    path = Path(__file__).parent / "recordings" / "llama-server" / "escapes.sse"
    with svir.Client(server.url) as client:
        server.reply(recorded(path))
        whole = client.complete(REQUEST)
        for piece in (1, 7, 1000):
            server.reply(recorded(path, piece=piece))
            assert client.complete(REQUEST) == whole
        server.reply(recorded(path, piece=500, pause=0.001))
        assert client.complete(REQUEST) == whole
        server.reply(recorded(path)[:3], CUT)
        with pytest.raises(svir.Truncated) as caught:
            client.complete(REQUEST)
    assert caught.value.partial is not None
    assert whole.text.startswith(caught.value.partial.text)


def test_the_fixture_for_pytest(tmp_path: Path) -> None:
    conftest = 'pytest_plugins = ["svir_ext.pytest_plugin"]\n'
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_it.py").write_text(
        """if True:
        import svir
        from svir_ext.testing import text_answer

        def test_answer(mock_server):
            mock_server.reply(text_answer("Hel", "lo"))
            with svir.Client(mock_server.url) as client:
                assert client.complete(svir.Request("m", "hi")).text == "Hello"

        def test_no_reply(mock_server):
            with svir.Client(mock_server.url) as client:
                try:
                    client.complete(svir.Request("m", "hi"))
                except svir.Unavailable:
                    pass
        """
    )
    root = str(Path(svir.__file__).parent)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root, "PYTHONWARNINGS": "error"},
        stdout=subprocess.PIPE,
        timeout=60,
    )
    # The second test passes, and its fixture then tells of the request that had no reply.
    assert b"2 passed, 1 error" in ran.stdout, ran.stdout.decode()
    assert b"MockServer had no reply" in ran.stdout


def test_a_cut_body_is_not_an_answer(server: MockServer) -> None:
    server.reply(text_answer("a")[:-1], cut=True)
    with svir.Client(server.url) as client, pytest.raises(svir.Error) as caught:
        client.complete(REQUEST)
    assert caught.value.partial is not None
    assert caught.value.partial.text == "a"


def test_close_while_the_server_is_silent(server: MockServer) -> None:
    server.reply(raw=True, hang=True)
    with svir.Client(server.url) as client:
        stream = client.stream(REQUEST)

        def close() -> None:
            server.wait_until(lambda: server.requests)
            stream.close()

        closer = threading.Thread(target=close)
        closer.start()
        with pytest.raises(svir.Cancelled):
            list(stream)
        closer.join()
    server.wait_until(lambda: server.open_connections == 0)
