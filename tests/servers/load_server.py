"""A server for tests of load: in one thread, each answer its question's own, all interleaved.

`python load_server.py` prints its port and ends with its standard input. What it is asked is the
name of an answer, such as "7-12", or a fault and a name, such as "cut 7-12":

- a name alone: a stream of `texts(name)`, an event each, with the name as its id;
- "cut": the connection closes after the first texts;
- "garbage": an event that nobody can read after the first texts;
- "refuse": 401.

A GET of `/stats` tells the open connections (its own among them), the most of them, and the
requests so far; any other GET lists one model.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import selectors
import socket
import subprocess
import sys
import zlib
from collections import deque
from typing import Any

# -- What is said ---------------------------------------------------------------------------------


def texts(name: str) -> list[str]:
    """The pieces of an answer: no other answer has any of them, and none has one of them twice."""
    return [f"{name}.{number} " for number in range(3 + zlib.crc32(name.encode()) % 8)]


CHUNK = (
    b'data: {"id":"%b","object":"chat.completion.chunk","created":0,"model":"m",'
    b'"choices":[{"index":0,"delta":%b,"finish_reason":%b}]}\n\n'
)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
REFUSAL = b'{"error":{"message":"no"}}'


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def stream(name: str) -> list[bytes]:
    """The parts of an answer, each to be sent by itself."""
    id = name.encode()
    deltas = [b'{"content":"%b"}' % text.encode() for text in texts(name)]
    parts = [framed(CHUNK % (id, delta, b"null")) for delta in deltas]
    end = framed(CHUNK % (id, b"{}", b'"stop"') + b"data: [DONE]\n\n")
    return [HEAD, *parts, end + b"0\r\n\r\n"]


def whole(status: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (status, len(body)) + body


# -- The server -----------------------------------------------------------------------------------


class Conn:
    """A connection: what came of a request, and the parts of answers still to be sent."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.came = sock, b""
        self.parts: deque[bytes] = deque()
        self.ends = False  # after the parts

    def request(self) -> tuple[bytes, bytes] | None:
        """The head and the body of a whole request."""
        head, blank, rest = self.came.partition(b"\r\n\r\n")
        _, _, length = head.lower().partition(b"content-length: ")
        size = int(length.partition(b"\r")[0] or b"0")
        if not blank or len(rest) < size:
            return None
        self.came = rest[size:]
        return head, rest[:size]


class Server:
    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.listener.setblocking(False)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.selector.register(sys.stdin.buffer, selectors.EVENT_READ)
        self.open = self.peak = self.requests = 0

    def run(self) -> None:
        print(self.listener.getsockname()[1], flush=True)
        while True:
            for key, events in self.selector.select():
                if key.fileobj is sys.stdin.buffer:
                    return
                if key.data is None:
                    self.accept()
                    continue
                try:
                    self.serve(key.data, events)
                except OSError:  # it left
                    self.close(key.data)

    def accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                sock, _ = self.listener.accept()
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.selector.register(sock, selectors.EVENT_READ, Conn(sock))
                self.open += 1
                self.peak = max(self.peak, self.open)

    def close(self, conn: Conn) -> None:
        self.selector.unregister(conn.sock)
        conn.sock.close()
        self.open -= 1

    def serve(self, conn: Conn, events: int) -> None:
        if events & selectors.EVENT_READ:
            data = conn.sock.recv(65536)
            if not data:
                raise ConnectionError("it left")
            conn.came += data
            request = conn.request()
            if request is not None:
                self.requests += 1
                conn.parts.extend(self.answer(conn, *request))
                self.selector.modify(conn.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, conn)
        elif conn.parts:  # one part in each turn: all answers go on at once
            part = conn.parts.popleft()
            sent = conn.sock.send(part)
            if sent < len(part):
                conn.parts.appendleft(part[sent:])
        if not conn.parts and events & selectors.EVENT_WRITE:
            if conn.ends:
                raise ConnectionError("ours to end")
            self.selector.modify(conn.sock, selectors.EVENT_READ, conn)

    def answer(self, conn: Conn, head: bytes, body: bytes) -> list[bytes]:
        if head.startswith(b"GET /stats "):
            stats = {"open": self.open, "peak": self.peak, "requests": self.requests}
            return [whole(b"200 OK", json.dumps(stats).encode())]
        if head.startswith(b"GET "):
            return [whole(b"200 OK", b'{"data":[{"id":"m"}]}')]
        fault, _, name = json.loads(body)["messages"][-1]["content"].rpartition(" ")
        if fault == "refuse":
            return [whole(b"401 No", REFUSAL)]
        parts = stream(name)
        if fault:
            conn.ends = fault == "cut"
            del parts[3:]
        if fault == "garbage":
            parts.append(framed(b"data: {\xff\n\n") + b"0\r\n\r\n")
        return parts


# -- From a test ----------------------------------------------------------------------------------


class LoadServer:
    """The server in a process of its own, while the `with` block runs."""

    def __enter__(self) -> LoadServer:
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    def __exit__(self, *error: Any) -> None:
        with self.process:  # closes its input, and waits for it
            pass
        assert error[0] is not None or self.process.returncode == 0, "the server failed"

    def stats(self) -> dict[str, int]:
        """`open` connections beside this one, their `peak` with it, and `requests` before it."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port)) as asking:
            asking.request("GET", "/stats")
            found: dict[str, int] = json.loads(asking.getresponse().read())
        return {**found, "open": found["open"] - 1, "requests": found["requests"] - 1}


if __name__ == "__main__":
    Server().run()
