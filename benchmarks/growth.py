"""The cost of an event as its stream grows to a million events, and the memory it leaves.

    python benchmarks/growth.py [--json]

Nothing is sent: ``svir.Decoder`` reads blocks from memory. The streams grow beforehand; then a
piece of each is read in turns, so that a slow moment of the machine slows all of them.
"""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Callable, Iterator

from common import Report, apart, events, in_turns, ratio, rss

import svir

LENGTHS = (1000, 10_000, 100_000, 1_000_000)
KINDS = ("content", "tools")
PIECE = 500  # events
ROUNDS = 21
BLOCK = 16384
FLAT = 1.15  # the most that an event may cost late in the stream, beside one early in it


class Growing:
    """A decoder, and how to make its stream longer by a number of events."""

    def __init__(self, kind: str) -> None:
        self.decoder = svir.Decoder(limits=svir.Limits(wire_bytes=1 << 32))
        body = events(kind, 1000)
        self.read(b"".join(body[:5]))  # what opens the answer
        self.more = itertools.cycle(body[5:900])

    def read(self, data: bytes) -> int:
        """The bytes of text in that data."""
        size = 0
        for start in range(0, len(data), BLOCK):
            for event in self.decoder.feed(data[start : start + BLOCK]):
                size += len(text_of(event))
        return size

    def grow(self, count: int) -> int:
        return self.read(b"".join(itertools.islice(self.more, count)))

    def grow_to(self, count: int) -> int:
        return sum(self.grow(step) for step in steps(count))


def text_of(event: svir.Event) -> str:
    if isinstance(event, svir.ToolCallDelta):
        return event.arguments
    return event.text if isinstance(event, svir.TextDelta) else ""


def steps(count: int) -> Iterator[int]:
    """The input is made in steps: all of it would be much memory."""
    for start in range(0, count, 10_000):
        yield min(10_000, count - start)


def next_piece(growing: Growing) -> Callable[[], object]:
    return lambda: growing.grow(PIECE)


def memory(kind: str, early: int, late: int) -> tuple[int, int]:
    """Bytes of memory, and of text, that the events after the first ``early`` added."""
    growing = Growing(kind)
    growing.grow_to(early)
    before = rss()
    text = growing.grow_to(late - early)
    return rss() - before, text


def measure() -> Report:
    report = Report("CPU per event of a stream that grows, against its first thousand; memory")
    for kind in KINDS:
        tasks, whole = {}, 0.0
        for length in LENGTHS:
            growing, start = Growing(kind), time.process_time()
            growing.grow_to(length)
            whole = (time.process_time() - start) / length * 1e6
            tasks[f"{kind}: an event after {length:,}"] = next_piece(growing)
        times = in_turns(ROUNDS, tasks)
        first = next(iter(times.values()))
        for name, seconds in times.items():
            flat = FLAT if seconds is not first else None
            cost = statistics.median(seconds) / PIECE * 1e6
            report.row(name, cost, "us", ratio(seconds, first), flat)
        report.row(f"{kind}: each of all {LENGTHS[-1]:,}", whole, "us")
        grown, text = apart("growth", "memory", kind, LENGTHS[1], LENGTHS[-1])
        report.row(f"{kind}: memory of it, against its text", grown / 1e6, "MB", grown / text, 2.1)
    return report


if __name__ == "__main__":
    measure().finish()
