"""Under load: 200 threads with 20 streams each through one client, and a soak of short calls.

`SVIR_SOAK=100000` in the environment makes the soak that long; tests/soak.py runs it alone.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
from collections import Counter
from functools import partial
from typing import Any, Iterator, NamedTuple

import pytest

import soak
import svir
from load_server import LoadServer, texts
from loopback import Reader, eventually, nothing_left, read_all

THREADS, STREAMS = 200, 20
CALLS = int(os.environ.get("SVIR_SOAK", "3000"))


@pytest.fixture
def server() -> Iterator[LoadServer]:
    with LoadServer() as server:
        yield server


def descriptors_of(server: LoadServer) -> int:
    """How many more a process may open, as far as the system tells."""
    try:
        import resource
    except ImportError:
        return 1 << 20
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (1 << 20) if soft == resource.RLIM_INFINITY else soft


# -- Many threads, one client ---------------------------------------------------------------------


class Fate(NamedTuple):
    """What becomes of a stream: `how`, once `pieces` of its text were read."""

    how: str
    pieces: int


# One in so many of 20.
FATES = (
    *["whole"] * 10, *["raw"] * 2, *["background"] * 2,
    *["closed"] * 2, *["closed-elsewhere"] * 2, *["abandoned"] * 2,
)  # fmt: skip


class Opened:
    """One stream of the load: read piece by piece, and checked to be its own."""

    def __init__(self, client: svir.Client, name: str, fate: Fate) -> None:
        self.name, self.fate = name, fate
        self.expected, self.read = texts(name), 0
        request = svir.Request("m", name)
        self.raw = client.send(request) if fate.how == "raw" else None
        self.stream: Any = None if self.raw is not None else client.stream(request)
        self.work = svir.Background(self.stream) if fate.how == "background" else None

    def begin(self) -> None:
        """Have the request sent, unless the stream is to end before that."""
        if self.raw is not None:
            self.raw.__enter__()
        elif self.work is None and (self.fate.pieces or self.fate.how == "whole"):
            assert self.step() is None

    def step(self) -> str | None:
        """Read on; what came of the stream, at its end."""
        if self.raw is not None:
            return self.whole_raw(read_all(self.raw))
        if self.work is not None:
            return self.whole(self.work.result())
        if self.read == self.fate.pieces and self.fate.how != "whole":
            return self.end()
        event = next(self.stream)
        if isinstance(event, svir.TextDelta):
            assert event.text == self.expected[self.read], f"another's: {event} in {self.name}"
            self.read += 1
            return None
        return self.whole(event.completion)

    def whole(self, completion: svir.Completion) -> str:
        assert (completion.text, completion.id) == ("".join(self.expected), self.name)
        assert completion.finish_reason == "stop"
        return "whole"

    def whole_raw(self, data: bytes) -> str:
        decoder = svir.Decoder()
        list(decoder.feed(data))
        assert decoder.completion is not None
        return self.whole(decoder.completion)

    def end(self) -> str:
        stream, self.stream = self.stream, None
        if self.fate.how == "abandoned":
            return "abandoned"  # and so the stream goes, half read
        if self.fate.how == "closed":
            stream.close()
            return self.cancelled(stream)
        closer = Reader(stream.close)  # meanwhile it is read on
        try:
            return self.cancelled(stream)
        finally:
            assert closer.join()

    def cancelled(self, stream: svir.Stream) -> str:
        """A closed stream is Cancelled, with what was read; or it was whole before that."""
        try:
            return self.whole(stream.result())
        except svir.Cancelled as error:
            given = "" if error.partial is None else error.partial.text
            assert "".join(self.expected).startswith(given)
            return "cancelled"


class Load:
    """Threads that each read streams of one client, one after another or all of theirs at once."""

    def __init__(self, client: svir.Client, at_once: bool) -> None:
        self.client, self.size = client, STREAMS if at_once else 1
        self.outcomes: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.start = threading.Barrier(THREADS)
        self.opened = threading.Barrier(THREADS if at_once else 1)

    def run(self) -> None:
        readers = [Reader(partial(self.work, number)) for number in range(THREADS)]
        for reader in readers:
            assert reader.join(300), "a thread hangs"
        errors = [reader.error for reader in readers if reader.error is not None]
        for error in sorted(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
            raise error

    def work(self, thread: int) -> None:
        chance = random.Random(thread)
        fates = chance.sample(FATES, STREAMS)
        self.start.wait(60)
        ends: Counter[str] = Counter()
        for first in range(0, STREAMS, self.size):
            group = []
            for number in range(first, first + self.size):
                fate = Fate(fates[number], chance.randrange(3))
                group.append(Opened(self.client, f"{thread}-{number}", fate))
            for opened in group:
                opened.begin()
            self.opened.wait(120)
            while group:  # a piece of each in turn
                for opened in tuple(group):
                    end = opened.step()
                    if end is not None:
                        ends[end] += 1
                        group.remove(opened)
        with self.lock:
            self.outcomes.update(ends)


def svir_objects() -> Counter[str]:
    """Everything of svir's that is alive but for its classes and functions, by kind."""
    gc.collect()
    kinds = (type(thing) for thing in gc.get_objects())
    return Counter(kind.__name__ for kind in kinds if kind.__module__ == "svir")


def collect_on_pypy() -> None:
    """It closes what was abandoned when it collects, and then pools what is still of use."""
    for _ in range(0 if hasattr(sys, "getrefcount") else 3):
        gc.collect()


def is_left_alone(server: LoadServer) -> bool:
    collect_on_pypy()
    return server.stats()["open"] == 0


@pytest.mark.parametrize("way", ["one-after-another", "at-once"])
def test_200_threads_with_20_streams_each(server: LoadServer, way: str) -> None:
    """Every answer whole and its own; and after it nothing is left."""
    needed = THREADS * STREAMS + 200
    if way == "at-once" and descriptors_of(server) < needed:
        pytest.skip(f"*** this system lets a process have fewer than {needed} descriptors")
    before = svir_objects()
    files = soak.descriptors()
    with nothing_left():
        with svir.Client(server.url, idle_timeout=120.0, connect_timeout=120.0) as client:
            load = Load(client, at_once=way == "at-once")
            load.run()
            collect_on_pypy()
        eventually(lambda: is_left_alone(server))
    stats = server.stats()
    print(f"{way}: {dict(load.outcomes)}, {stats}")
    assert stats["peak"] > (3000 if way == "at-once" else 1)
    assert sum(load.outcomes.values()) == THREADS * STREAMS
    per_fate = THREADS * 2  # what has no choice
    assert load.outcomes["whole"] >= 7 * per_fate
    assert load.outcomes["abandoned"] == per_fate
    assert load.outcomes["cancelled"] >= per_fate
    assert THREADS * STREAMS - 2 * per_fate < stats["requests"] <= THREADS * STREAMS + 100
    del load, client
    assert soak.descriptors() <= files
    if hasattr(sys, "getrefcount"):
        assert svir_objects() == before, "objects are left"


# -- Many calls -----------------------------------------------------------------------------------


def test_a_soak_leaves_memory_flat(server: LoadServer) -> None:
    """The first calls fill caches and pools; from then on nothing grows."""
    with nothing_left(), svir.Client(server.url) as client:
        samples = soak.run(client, CALLS, steps=6, trace=hasattr(sys, "getrefcount"))
    for sample in samples:
        print(sample.row())
    assert sum(sample.calls for sample in samples[-1:]) == CALLS
    soak.check(samples)
    eventually(lambda: is_left_alone(server))
