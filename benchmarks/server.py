"""The server of the benchmarks: it answers with streams made beforehand, as fast as the socket takes them.

The model of the request says what is served: ``KIND-COUNT``, as content-1000; with ``@RATE`` the events come one by
one at that many a second. A body is read and dropped. Prints its base URL; ends when its input does.
"""

from __future__ import annotations

import functools
import re
import socket
import ssl
import sys
import threading
import time
from pathlib import Path

from common import HERE, events

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@functools.lru_cache(maxsize=None)
def pieces(kind: str, count: int) -> tuple[bytes, ...]:
    framed = [b"%x\r\n%b\r\n" % (len(event), event) for event in events(kind, count)]
    return (*framed, b"0\r\n\r\n")


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


def answer(sock: socket.socket) -> None:
    with sock, sock.makefile("rb") as reader:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            start = read_request(reader)
            found = re.search(rb'"model":\s*"(\w+)-(\d+)(?:@(\d+))?"', start or b"")
            if found is None:
                return
            kind, count, rate = found.group(1).decode(), int(found.group(2)), found.group(3)
            if rate is None:
                sock.sendall(whole(kind, count))
            else:
                paced(sock, pieces(kind, count), 1 / int(rate))


def paced(sock: socket.socket, framed: tuple[bytes, ...], pause: float) -> None:
    sock.sendall(HEAD)
    due = time.monotonic()
    for piece in framed:
        time.sleep(max(0.0, due - time.monotonic()))
        sock.sendall(piece)
        due += pause


def guarded(sock: socket.socket, context: ssl.SSLContext | None) -> None:
    try:
        answer(sock if context is None else context.wrap_socket(sock, server_side=True))
    except OSError:  # the client is gone
        sock.close()


def main() -> None:
    context = None
    if "--tls" in sys.argv:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificates = HERE.parent / "tests" / "tls"
        context.load_cert_chain(certificates / "localhost.pem")
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    scheme, port = "http" if context is None else "https", listener.getsockname()[1]
    print(f"{scheme}://127.0.0.1:{port}/v1", flush=True)
    threading.Thread(target=serve, args=(listener, context), daemon=True).start()
    sys.stdin.read()


def serve(listener: socket.socket, context: ssl.SSLContext | None) -> None:
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=guarded, args=(sock, context), daemon=True).start()


if __name__ == "__main__":
    main()
