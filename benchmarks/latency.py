"""From an event on the wire to the body of the loop, and what an event costs at a model's pace.

    python benchmarks/latency.py [--json]

The server writes into each event when it sends it, on the clock that all processes of a machine
share. Against a bare socket whose lines are decoded; the processor's time against urllib3.
"""

from __future__ import annotations

import json
import random
import socket
import statistics
import time
from typing import Any, Callable, Iterator

from common import Report, kept, ratio, server
from streams import deltas, lines_of

import svir

COUNT = 200
RATE = 200
ROUNDS = 15


def with_svir(base_url: str) -> Callable[[], Iterator[str]]:
    client = kept(svir.Client(base_url))
    request = svir.Request(model(), "Go")

    def read() -> Iterator[str]:
        for event in client.stream(request):
            if isinstance(event, svir.TextDelta):
                yield event.text

    return read


def model() -> str:
    return f"timed-{COUNT}@{RATE}"


def body(model: str) -> bytes:
    messages = [{"role": "user", "content": "Go"}]
    return json.dumps({"model": model, "stream": True, "messages": messages}).encode()


def bare_socket(base_url: str, model: str) -> Callable[[], Iterator[str]]:
    host, port = base_url.split("/")[2].split(":")
    sent = body(model)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(sent)}"

    def read() -> Iterator[str]:
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(head.encode() + b"\r\n\r\n" + sent)
            blocks = iter(lambda: sock.recv(16384), b"")
            yield from deltas(lines_of(blocks))  # lines of chunk sizes are no data lines

    return read


def by_hand_urllib3(base_url: str) -> Callable[[], Iterator[str]]:
    import urllib3

    pool = urllib3.PoolManager()
    sent = body(model())

    def read() -> Iterator[str]:
        url = base_url + "/chat/completions"
        response: Any = pool.request("POST", url, body=sent, preload_content=False)
        try:
            yield from deltas(lines_of(response.stream()))
        finally:
            response.release_conn()

    return read


def run(read: Callable[[], Iterator[str]]) -> dict[str, float]:
    """Microseconds: the median and the 99th percentile of the waits, and the CPU of an event."""
    waits = []
    start = time.process_time()
    for text in read():
        if text:
            waits.append(time.monotonic_ns() - int(text))
    cpu = (time.process_time() - start) / len(waits)
    assert len(waits) == COUNT
    waits.sort()
    last = waits[len(waits) * 99 // 100]
    return {"p50": statistics.median(waits) / 1e3, "p99": last / 1e3, "CPU": cpu * 1e6}


def measure() -> Report:
    report = Report(f"An event on its way, {RATE} a second: the wait for it, and its CPU")
    with server() as base_url:
        readers = {"a bare socket": bare_socket(base_url, model()), "svir": with_svir(base_url)}
        try:
            readers["urllib3, a loop by hand"] = by_hand_urllib3(base_url)
        except ImportError:
            pass
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in readers}
        for number in range(ROUNDS + 1):
            for name, read in random.sample([*readers.items()], len(readers)):
                figures = run(read)
                if number:  # not what only the first costs
                    rounds[name].append(figures)
    compare(report, rounds, "p50", "a bare socket", 1.2)
    compare(report, rounds, "p99", "a bare socket", 1.2)
    if len(readers) == 3:
        compare(report, rounds, "CPU", "urllib3, a loop by hand", 0.6)
    return report


def compare(report: Report, rounds: Any, figure: str, base: str, target: float) -> None:
    bases = [each[figure] for each in rounds[base]]
    for name in rounds:
        own = [each[figure] for each in rounds[name]]
        limit = target if name == "svir" else None
        report.row(f"{figure}: {name}", statistics.median(own), "us", ratio(own, bases), limit)


if __name__ == "__main__":
    measure().finish()
