"""A soak: many short calls of every kind through one client, and what the process holds meanwhile.

python tests/soak.py --calls 100000           # prints a line now and then; fails if it grows
python tests/soak.py --calls 100000 --trace   # with tracemalloc: slower, and exact
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, NamedTuple, Sequence

if __name__ == "__main__":
    HERE = Path(__file__).resolve().parent
    sys.path[:0] = [str(HERE.parent), str(HERE), str(HERE / "servers")]

import svir
from load_server import LoadServer, texts

KIB, MIB = 1024, 1 << 20

# -- The calls ------------------------------------------------------------------------------------


def ask(words: str) -> svir.Request:
    return svir.Request("m", words)


def complete(client: svir.Client, name: str) -> None:
    assert client.complete(ask(name)).text == "".join(texts(name))


def read_events(client: svir.Client, name: str) -> None:
    with client.stream(ask(name)) as stream:
        assert list(stream.text()) == texts(name)


def raw(client: svir.Client, name: str) -> None:
    with client.send(ask(name)) as stream:
        data = b"".join(stream)
    assert data.count(f'"id":"{name}"'.encode()) == len(texts(name)) + 1


def background(client: svir.Client, name: str) -> None:
    assert svir.Background(client.stream(ask(name))).result().text == "".join(texts(name))


def closed(client: svir.Client, name: str) -> None:
    stream = client.stream(ask(name))
    next(stream)
    stream.close()
    with contextlib.suppress(svir.Cancelled):
        stream.result()


def abandoned(client: svir.Client, name: str) -> None:
    next(client.stream(ask(name)))


def models(client: svir.Client, name: str) -> None:
    assert [model.id for model in client.list_models()] == ["m"]


def fails(fault: str, kind: str) -> Callable[[svir.Client, str], None]:
    def call(client: svir.Client, name: str) -> None:
        ended = "an answer"
        try:
            client.complete(ask(f"{fault} {name}"))
        except svir.Error as error:
            ended = error.kind
        assert ended == kind, f"{fault} gave {ended}"

    return call


CALLS: Sequence[Callable[[svir.Client, str], None]] = (
    complete, complete, complete, read_events, read_events, raw, models, background, closed,
    abandoned, fails("refuse", "unauthorized"), fails("cut", "truncated"),
    fails("garbage", "protocol"),
)  # fmt: skip

# -- What the process holds -----------------------------------------------------------------------


class Sample(NamedTuple):
    """After so many calls: bytes of memory (None: not known here), threads, open files."""

    calls: int
    seconds: float
    rss: int | None
    traced: int | None
    threads: int
    descriptors: int

    def row(self) -> str:
        rss = "?" if self.rss is None else f"{self.rss / MIB:.1f}"
        traced = "?" if self.traced is None else f"{self.traced / KIB:.1f}"
        return (
            f"{self.calls:>7} calls {self.seconds:7.1f} s   rss {rss:>6} MiB   traced"
            f" {traced:>7} KiB   {self.threads} threads   {self.descriptors} descriptors"
        )


def descriptors() -> int:
    """The open files and sockets of this process; 0 where the system does not tell."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


def resident() -> int | None:
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def tracemalloc() -> Any:
    """PyPy has none."""
    return importlib.import_module("tracemalloc")


def sample(calls: int, started: float, trace: bool) -> Sample:
    gc.collect()
    traced = tracemalloc().get_traced_memory()[0] if trace else None
    seconds = time.monotonic() - started
    return Sample(calls, seconds, resident(), traced, threading.active_count(), descriptors())


def run(
    client: svir.Client,
    calls: int,
    *,
    steps: int = 10,
    trace: bool = False,
    show: Callable[[Sample], Any] = lambda sample: None,
) -> list[Sample]:
    """So many calls, and a sample after each step of them. The first step is the warming up."""
    if trace:
        tracemalloc().start()
    started, samples = time.monotonic(), []
    try:
        for number in range(1, calls + 1):
            CALLS[number % len(CALLS)](client, f"n-{number}")
            if number % (calls // steps) == 0 or number == calls:
                samples.append(sample(number, started, trace))
                show(samples[-1])
    finally:
        if trace:
            tracemalloc().stop()
    return samples


def check(samples: Sequence[Sample]) -> None:
    """Nothing grows after the first step: with the calls, it would grow by far more than this."""
    first, last = samples[0], samples[-1]
    assert last.calls - first.calls >= 1000, "too few calls to tell"
    if first.traced is not None and last.traced is not None:
        grown = last.traced - first.traced
        assert grown < 64 * KIB, f"{grown} bytes more are held after the last call"
    if first.rss is not None and last.rss is not None:
        grown = last.rss - first.rss
        assert grown < 8 * MIB, f"the process has grown by {grown} bytes"
    assert last.threads <= first.threads
    assert last.descriptors <= first.descriptors + 2, "the pool's, which come and go"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Many short calls, and flat memory.")
    parser.add_argument("--calls", type=int, default=100000)
    parser.add_argument("--steps", type=int, default=10, help="samples")
    parser.add_argument("--trace", action="store_true", help="with tracemalloc")
    given = parser.parse_args(arguments)

    def show(sample: Sample) -> None:
        print(sample.row(), flush=True)

    with LoadServer() as server, svir.Client(server.url) as client:
        samples = run(client, given.calls, steps=given.steps, trace=given.trace, show=show)
    check(samples)
    print("flat")
    return 0


if __name__ == "__main__":
    sys.exit(main())
