"""Where the time of a text event goes: each part of the way alone, against ``json.loads``.

    python benchmarks/parts.py [--json]

The parts are svir's own, so they are reached by private names. A call has the whole way of a short
answer in it; so the parts add up to a little more than the whole.
"""

from __future__ import annotations

import json
import socket
import statistics
from typing import Any, Callable

from common import Report, events, in_turns, kept, ratio, server
from server import END, HEAD, framed
from streams import bare_json, deltas, lines_of

import svir

COUNT = 2000
ROUNDS = 40
READ = 131072  # bytes at a time, as svir reads what comes in blocks


def in_blocks(data: bytes) -> list[bytes]:
    return [data[start : start + READ] for start in range(0, len(data), READ)]


def receiving(base_url: str) -> Callable[[], None]:
    """The bytes alone, on a connection that is kept."""
    host, port = base_url.split("/")[2].split(":")
    sock = kept(socket.create_connection((host, int(port))))
    body = json.dumps({"model": f"content-{COUNT}"}).encode()
    size = len(HEAD) + sum(map(len, PIECES))

    def read() -> None:
        sock.sendall(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        left = size
        while left:
            left -= len(sock.recv(READ))

    return read


def framing() -> None:
    chunks = svir._Chunks()
    for block in FRAMED:
        chunks.feed(block)


def decoding() -> None:
    decoder = svir.Decoder()
    for block in BARE:
        for _ in decoder.feed(block):
            pass


def handing_over() -> None:
    for _ in svir.Stream(GIVEN):
        pass


PIECES = [*map(framed, events("content", COUNT)), END]
GIVEN = [*[svir.TextDelta("Hi")] * COUNT, svir.Completed(svir.Completion(""))]
BARE = in_blocks(b"".join(events("content", COUNT)))
FRAMED = in_blocks(b"".join(PIECES))


# -- One event a read ----------------------------------------------------------------------------


class Socket:
    """One that gives an event at each read, and waits for nothing."""

    def __init__(self) -> None:
        self.reads = iter(PIECES)

    def recv(self, size: int) -> bytes:
        return next(self.reads, b"")

    def gettimeout(self) -> float | None:
        return None

    def settimeout(self, seconds: float | None) -> None:
        pass

    def close(self) -> None:
        pass


class Backend:
    def send(self, request: svir.HttpRequest) -> svir.HttpResponse:
        address = svir._Address("http://localhost")
        connection = svir._Connection(Socket(), address, svir._Pool())  # type: ignore[arg-type]
        return svir._Response(connection, *svir._read_head(lambda: HEAD), False)


def one_by_one() -> None:
    for _ in svir.Client("http://localhost", backend=Backend()).stream(svir.Request("m", "Go")):
        pass


def one_by_one_by_hand() -> None:
    sock = Socket()
    for _ in deltas(lines_of(iter(lambda: sock.recv(READ), b""))):
        pass


def measure() -> Report:
    report = Report("Parts of a text event, in microseconds, and against json.loads")
    with server() as base_url:
        client = kept(svir.Client(base_url))

        def call(count: int) -> Callable[[], Any]:
            request = svir.Request(f"content-{count}", "Go")
            return lambda: client.stream(request).result()

        tasks: dict[str, Callable[[], object]] = {
            "json.loads": bare_json("content"),
            "receiving": receiving(base_url),
            "the chunks of HTTP": framing,
            "the decoder": decoding,
            "the loop over a stream": handing_over,
            "a call of one piece": call(1),
            "svir, all of it": call(COUNT),
            "svir, one event a read, in memory": one_by_one,
            "the same by hand, without limits and checks": one_by_one_by_hand,
        }
        times = in_turns(ROUNDS, tasks)
    for name, seconds in times.items():
        cost = statistics.median(seconds) / COUNT * 1e6
        report.row(name, cost, "us", ratio(seconds, times["json.loads"]))
    return report


if __name__ == "__main__":
    measure().finish()
