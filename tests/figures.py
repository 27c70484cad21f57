"""What the tests try, counted from their own tables: the figures of docs/reliability.md.

python3 tests/run.py --setup                  # prints a Python that has what this needs
PYTHON tests/figures.py                       # prints the table
PYTHON tests/figures.py --write               # writes it into the page
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, Iterable, Iterator

if __name__ == "__main__":
    FOLDER = Path(__file__).resolve().parent
    sys.path[:0] = [str(FOLDER.parent), str(FOLDER), str(FOLDER / "servers")]

import harness
import phases
import test_decoder_cases as decoder
import test_faults as faults
import test_http_cases as http
import test_transport as transport

PAGE = harness.HERE.parent / "docs" / "reliability.md"
BEGIN, END = "<!-- figures -->\n", "<!-- /figures -->\n"


def size(*tables: Iterable[Any]) -> int:
    return sum(len(list(table)) for table in tables)


# -- Counts ---------------------------------------------------------------------------------------


def splits(every: bool = False) -> int:
    """Decodings of a stream in another cut: in two, in bytes, and in bytes that are read late."""
    return sum(
        2 + (len(case.data) - 1 if every else len(decoder.offsets(case.data, step(case, mode))))
        for case, mode in decoder.RUNS
    )


def step(case: harness.Case, mode: harness.Mode) -> int:
    """As test_any_cut_gives_the_same has it."""
    return 3 if mode.name == "lenient" and "lenient" not in case.spec else 1


def cuts() -> int:
    """Decodings of a stream that ends early, as test_cut_short_never_completes has it."""
    count = 0
    for case, mode in decoder.RUNS:
        every = 1 if mode.name == "strict" else 7
        ends = {0, len(case.data), *decoder.offsets(case.data, every)}
        count += sum(1 for end in ends if end < decoder.needed(case, mode))
    return count


def cut_answers() -> int:
    """Whole answers ended at each byte, by a close and by a reset."""
    answers = (transport.CHUNKED, transport.LENGTH, transport.head(transport.STREAM))
    bodies = (0, 0, len(transport.BODY))
    return 2 * sum(len(answer) + body + 1 for answer, body in zip(answers, bodies))


def tables() -> int:
    paths = [p for p in harness.CASES.glob("*.json") if not p.name.endswith(".expected.json")]
    return sum(len(json.loads(path.read_text("utf-8")).get("rows", ())) for path in paths)


def recordings(suffix: str) -> int:
    return size(harness.RECORDINGS.glob("*/*" + suffix))


def broken_off() -> int:
    """Places x ways to leave x routes, of a stream and of a raw one; stalls; drips."""
    places, ways = len(faults.PLACES), len(faults.LEAVES)
    leaves = places * ways * (len(faults.ROUTES) + 2)
    stalls = places * (2 * 2 * 2)
    drips = len(faults.ROUTES) * size(p for p in faults.PLACES.values() if p.rest)
    return leaves + stalls + drips


def rows() -> Iterator[tuple[str, int]]:
    yield "streams with an expected outcome (`tests/cases/*.sse`)", size(decoder.CASES)
    yield "the same in each mode: strict, lenient, each `accept`, each `think`", size(decoder.RUNS)
    yield "decodings of these in another cut: in two at each offset, and byte by byte", splits()
    yield "the same with `SVIR_ALL_SPLITS=1`: no offset left out", splits(every=True)
    yield "decodings of these that end early, none of which may look whole", cuts()
    yield "whole HTTP responses with an expected outcome (`tests/cases/*.http`)", size(http.CASES)
    yield "rows of tables: URLs, keys, statuses, words of errors (`tests/cases/*.json`)", tables()
    yield "streams recorded from real servers (`tests/recordings`)", recordings(".sse")
    yield "other answers recorded from them: errors, answers in one piece", recordings(".body")
    framing = size(transport.WHOLE, transport.BROKEN, transport.HEADS)
    yield "framings and heads of HTTP, right and wrong", framing
    yield "answers cut at each byte, by a close or a reset, through a client", cut_answers()
    yield "places where an answer may break off", len(faults.PLACES)
    yield "these x close, half-close, reset, stall, drip x plain, TLS, proxy, tunnel", broken_off()
    handshakes = 2 * size(faults.HANDSHAKES, faults.TUNNELS)
    yield "TLS handshakes and proxies' answers that go wrong, under each limit", handshakes
    yield "ends of a kept connection: x close, reset x route x age", 12 * len(faults.STALE)
    yield "things that follow `[DONE]`, at each pace", 3 * len(faults.AFTER_DONE)
    corpus = [path for path in (harness.HERE / "fuzz" / "corpus").rglob("*") if path.is_file()]
    yield "inputs that fuzzers found (`tests/fuzz/corpus`)", size(corpus)
    yield (
        "waits of a call, each with its limits, a close, a signal, an interrupt",
        size(phases.PHASES),
    )


# -- The page -------------------------------------------------------------------------------------


def table() -> str:
    lines = [f"| {count:,} | {what} |\n" for what, count in rows()]
    return "".join(["| Count | Of |\n", "| ---: | --- |\n", *lines])


def claims(page: str) -> dict[str, int]:
    """The counts that the page has, by what they count."""
    part = page.partition(BEGIN)[2].partition(END)[0]
    found = re.findall(r"^\| ([\d,]+) \| (.+) \|$", part, re.MULTILINE)
    return {what: int(count.replace(",", "")) for count, what in found}


def write() -> None:
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + table() + END + after, "utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        write()
    else:
        print(table(), end="")
