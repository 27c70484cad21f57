"""Many answers at once: 200 threads read through one client, each at a model's pace.

    python benchmarks/many.py [--json]

Against as many threads with bare sockets, and with a urllib3 pool when that is installed.
"""

from __future__ import annotations

import resource
import statistics
import threading
import time
from typing import Any, Callable, NamedTuple

from common import MIB, Report, apart, kept, peak_of, ratio, server
from latency import bare_socket
from streams import deltas, lines_of

import svir

STREAMS = 200
COUNT = 200  # events of each
RATE = 50
PACE = COUNT / RATE  # seconds
ROUNDS = 3


def with_svir(base_url: str) -> Callable[[], str]:
    client = kept(svir.Client(base_url))
    request = svir.Request(f"content-{COUNT}@{RATE}", "Go")
    return lambda: client.stream(request).result().text


def by_hand_urllib3(base_url: str) -> Callable[[], str]:
    import urllib3

    pool = urllib3.PoolManager(maxsize=STREAMS)
    url = base_url + "/chat/completions"
    body = f'{{"model": "content-{COUNT}@{RATE}", "stream": true, "messages": []}}'

    def read() -> str:
        response: Any = pool.request("POST", url, body=body, preload_content=False)
        try:
            return "".join(deltas(lines_of(response.stream())))
        finally:
            response.release_conn()

    return read


def at_once(read: Callable[[], str]) -> None:
    """Every thread reads one answer; all must be whole, and the same."""
    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(read())) for _ in range(STREAMS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == STREAMS, f"{STREAMS - len(answers)} answers failed"
    assert len(set(answers)) == 1
    assert answers[0].startswith("The quick")


def memory(base_url: str) -> int:
    """What the answers take, over threads that only wait."""
    waiting = threading.Barrier(STREAMS)
    at_once(lambda: f"The quick {waiting.wait() * 0}")
    read = with_svir(base_url)
    read()
    return peak_of(lambda: at_once(read))


class Cost(NamedTuple):
    """Of an event, but for ``wall``."""

    cpu: float  # microseconds
    kernel: float  # of them
    waits: float  # how often a thread gave the processor up: for bytes, or for the interpreter
    wall: float  # seconds until all have ended


def cost(read: Callable[[], str]) -> Cost:
    before, wall = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    at_once(read)
    wall, after = time.perf_counter() - wall, resource.getrusage(resource.RUSAGE_SELF)
    events = STREAMS * COUNT
    kernel = (after.ru_stime - before.ru_stime) / events * 1e6
    user = (after.ru_utime - before.ru_utime) / events * 1e6
    return Cost(user + kernel, kernel, (after.ru_nvcsw - before.ru_nvcsw) / events, wall)


def measure() -> Report:
    report = Report(f"{STREAMS} streams at once, each with {RATE} events a second")
    with server() as base_url:
        bare = bare_socket(base_url, f"content-{COUNT}@{RATE}")
        readers = {"svir": with_svir(base_url), "a bare socket": lambda: "".join(bare())}
        try:
            readers["urllib3, by hand"] = by_hand_urllib3(base_url)
        except ImportError:
            pass
        rounds: dict[str, list[Cost]] = {name: [] for name in readers}
        for _ in range(ROUNDS):
            for name, read in readers.items():
                rounds[name].append(cost(read))
        grown = apart("many", "memory", base_url)
    compare(report, rounds)
    report.row("memory over as many waiting threads", grown / MIB, "MiB", None, 10)
    return report


def compare(report: Report, rounds: dict[str, list[Cost]]) -> None:
    base = [cost.cpu for cost in [*rounds.values()][-1]]
    for name, costs in rounds.items():
        cpu, kernel, waits, wall = map(statistics.median, zip(*costs))
        target = 0.8 if name == "svir" and len(rounds) == 3 else None
        share = ratio([cost.cpu for cost in costs], base)
        report.row(f"CPU of an event: {name}", cpu, "us", share, target)
        report.row(f"of it in the kernel: {name}", kernel, "us")
        report.row(f"waits of an event: {name}", waits, "")
        report.row(f"until all have ended, against the pace: {name}", wall, "s", wall / PACE)


if __name__ == "__main__":
    measure().finish()
