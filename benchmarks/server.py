"""The server of the benchmarks: it answers with streams made beforehand, as fast as it can.

The model of the request says what is served: ``KIND-COUNT``, as content-1000; with ``@RATE`` the
events come one by one at that many a second. The text of each event of ``timed-COUNT@RATE`` is the
time it was sent at, ``time.monotonic_ns()``; ``connections-1`` says how many were accepted so far.
A body is read and dropped. Prints its base URL; ends when its input does.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import re
import socket
import ssl
import sys
import threading
import time
from typing import Any, Iterable, Iterator

from common import HERE, events

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


END = b"0\r\n\r\n"
accepted = 0  # connections


def framed(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)


def said(text: str) -> list[bytes]:
    """The events of an answer with that text."""
    first, middle, *last = events("content", 1)
    return [first, middle.replace(b'"The"', b'"%b"' % text.encode()), *last]


@functools.lru_cache(maxsize=None)
def pieces(kind: str, count: int) -> tuple[bytes, ...]:
    return (*map(framed, events(kind, count)), END)


@functools.lru_cache(maxsize=None)
def whole(kind: str, count: int) -> bytes:
    return HEAD + b"".join(pieces(kind, count))


def read_request(reader) -> bytes | None:
    """The start of the request's body, where the model is named; the rest is read and dropped."""
    length = 0
    for line in iter(reader.readline, b"\r\n"):
        if not line:
            return None
        if line.lower().startswith(b"content-length:"):
            length = int(line[15:])
    start = reader.read(min(length, 4096))
    length -= len(start)
    while length:
        length -= len(reader.read(min(length, 1 << 20)))
    return start


def answer(sock: socket.socket, pacer: Pacer) -> None:
    with sock, sock.makefile("rb") as reader:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            start = read_request(reader)
            found = re.search(rb'"model":\s*"(\w+)-(\d+)(?:@(\d+))?"', start or b"")
            if found is None:
                return
            kind, count, rate = found.group(1).decode(), int(found.group(2)), found.group(3)
            if kind == "connections":
                sock.sendall(HEAD + b"".join(map(framed, said(f"{accepted}"))) + END)
            elif rate is None:
                sock.sendall(whole(kind, count))
            else:
                sock.sendall(HEAD)
                pacer.send(
                    sock, timed(count) if kind == "timed" else pieces(kind, count), int(rate)
                )


def timed(count: int) -> Iterator[bytes]:
    first, middle, *last = said("TIME")
    yield framed(first)
    for _ in range(count):
        yield framed(middle.replace(b"TIME", b"%d" % time.monotonic_ns()))
    yield b"".join(map(framed, last)) + END


class Pacer:
    """One thread that sends the events of every paced answer when each is due."""

    def __init__(self) -> None:
        self.queue: list[tuple[float, int, float, socket.socket, Iterator[bytes], Any]] = []
        self.changed = threading.Condition()
        self.numbers = itertools.count()
        threading.Thread(target=self.run, daemon=True).start()

    def send(self, sock: socket.socket, answer: Iterable[bytes], rate: int) -> None:
        """Returns when all of the answer is sent."""
        done = threading.Event()
        self.put(time.monotonic(), 1 / rate, sock, iter(answer), done)
        done.wait()

    def put(self, due: float, *what: Any) -> None:
        with self.changed:
            heapq.heappush(self.queue, (due, next(self.numbers), *what))
            self.changed.notify()

    def next(self) -> Any:
        with self.changed:
            while not self.queue or self.queue[0][0] > time.monotonic():
                self.changed.wait(self.queue[0][0] - time.monotonic() if self.queue else None)
            return heapq.heappop(self.queue)

    def run(self) -> None:
        while True:
            due, _, pause, sock, answer, done = self.next()
            try:
                sock.sendall(next(answer))
            except (StopIteration, OSError):  # it is whole, or the client is gone
                done.set()
            else:
                self.put(due + pause, pause, sock, answer, done)


def guarded(sock: socket.socket, context: ssl.SSLContext | None, pacer: Pacer) -> None:
    try:
        answer(sock if context is None else context.wrap_socket(sock, server_side=True), pacer)
    except OSError:  # the client is gone
        sock.close()


def main() -> None:
    context = None
    if "--tls" in sys.argv:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificates = HERE.parent / "tests" / "tls"
        context.load_cert_chain(str(certificates / "localhost.pem"))  # PyPy takes no Path
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    scheme, port = "http" if context is None else "https", listener.getsockname()[1]
    print(f"{scheme}://127.0.0.1:{port}/v1", flush=True)
    threading.Thread(target=serve, args=(listener, context), daemon=True).start()
    sys.stdin.read()


def serve(listener: socket.socket, context: ssl.SSLContext | None) -> None:
    global accepted
    pacer = Pacer()
    while True:
        sock, _ = listener.accept()
        accepted += 1
        threading.Thread(target=guarded, args=(sock, context, pacer), daemon=True).start()


if __name__ == "__main__":
    main()
