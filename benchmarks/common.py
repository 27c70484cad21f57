"""What the benchmarks share: answers to serve, a server in its own process, a fair comparison.

Every figure is a ratio of two things that were measured in turns in one run, so that a busy or a
slow machine moves both. What is compared is the processor time of the client's process; where a
person waits, it is the wall's.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Iterator, TypeVar

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

_T = TypeVar("_T")
MIB = 1 << 20
WORDS = (
    "The",
    " quick",
    " brown",
    " fox",
    " jumps",
    " over",
    " the",
    " lazy",
    " dog",
    ".",
    " It",
    " is",
    "\n\n",
)


def _chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    chunk = {
        "id": "chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT",
        "object": "chat.completion.chunk",
        "created": 1741569952,
        "model": "gpt-4o-mini-2024-07-18",
        "service_tier": "default",
        "system_fingerprint": "fp_06737a9306",
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}],
        **more,
    }
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


def _content(n: int) -> Iterator[bytes]:
    yield _chunk({"role": "assistant", "content": ""})
    for i in range(n):
        yield _chunk({"content": WORDS[i % len(WORDS)]})
    yield _chunk({}, "stop")


def _reasoning(n: int) -> Iterator[bytes]:
    yield _chunk({"role": "assistant", "content": ""})
    for i in range(n):
        yield _chunk({"reasoning_content": WORDS[i % len(WORDS)]})
    yield _chunk({"content": "Yes."})
    yield _chunk({}, "stop")


def _tools(n: int) -> Iterator[bytes]:
    """One call whose arguments are a long text: real ones have escaped quotes and line breaks."""
    function: dict[str, Any] = {"name": "write_file", "arguments": ""}
    call = {
        "index": 0,
        "id": "call_DdmO9pD3xa9XTPNJ32zg2hcA",
        "type": "function",
        "function": function,
    }
    yield _chunk({"role": "assistant", "content": None, "tool_calls": [call]})
    pieces = [
        '{"',
        "text",
        '":"',
        *(json.dumps(WORDS[i % len(WORDS)])[1:-1] for i in range(n - 4)),
        '"}',
    ]
    for piece in pieces:
        yield _chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
    yield _chunk({}, "tool_calls")


def _azure(n: int) -> Iterator[bytes]:
    """Azure's chunks hold the results of its filter, and padding of a random length."""
    severity = {"filtered": False, "severity": "safe"}
    results = dict.fromkeys(("hate", "self_harm", "sexual", "violence"), severity)
    for i in range(n):
        line = json.loads(_chunk({"content": WORDS[i % len(WORDS)]})[6:])
        line["choices"][0]["content_filter_results"] = results
        line["obfuscation"] = "aB3dE5fG7hJ9"[: 1 + i * 7 % 12]
        yield b"data: " + json.dumps(line, separators=(",", ":")).encode() + b"\n\n"
    yield _chunk({}, "stop")


def _varied(n: int) -> Iterator[bytes]:
    """No frame repeats: every chunk has a time of its own, and logprobs."""
    for i in range(n):
        line = json.loads(_chunk({"content": WORDS[i % len(WORDS)]})[6:])
        line["created"] += i
        line["choices"][0]["logprobs"] = {"content": [{"token": "x", "logprob": -i / 7}]}
        yield b"data: " + json.dumps(line, separators=(",", ":")).encode() + b"\n\n"
    yield _chunk({}, "stop")


KINDS: dict[str, Callable[[int], Iterator[bytes]]] = {
    "content": _content,
    "reasoning": _reasoning,
    "tools": _tools,
    "azure": _azure,
    "varied": _varied,
}


def events(kind: str, count: int) -> list[bytes]:
    """A whole stream of ``count`` pieces, event by event."""
    return [*KINDS[kind](count), b"data: [DONE]\n\n"]


_clients: list[Any] = []


def kept(client: _T) -> _T:
    """The same client, which is closed with the server."""
    _clients.append(client)
    return client


@contextlib.contextmanager
def server(*, tls: bool = False) -> Iterator[str]:
    """The base URL of benchmarks/server.py, running in a process of its own."""
    command = [sys.executable, str(HERE / "server.py"), *(["--tls"] if tls else [])]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            while _clients:
                _clients.pop().close()
            process.kill()


def in_turns(
    rounds: int,
    tasks: dict[str, Callable[[], object]],
    clock: Callable[[], float] = time.process_time,
) -> dict[str, list[float]]:
    """The seconds of each task, round by round, with all of them run in turns."""
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for task in tasks.values():
        task()  # what only the first run costs
    for _ in range(rounds):
        for name, task in tasks.items():
            gc.collect()
            start = clock()
            task()
            times[name].append(clock() - start)
    return times


def ratio(times: list[float], base: list[float]) -> float:
    """The median of what each round says: a slow moment of the machine slows both sides of it."""
    return statistics.median(a / b for a, b in zip(times, base))


def difference(times: list[float], base: list[float]) -> float:
    """The median of what each round took longer than its base."""
    return statistics.median(a - b for a, b in zip(times, base))


@contextlib.contextmanager
def compiled() -> Iterator[dict[str, str]]:
    """The environment of processes that keep what they compile, in a directory of their own."""
    with tempfile.TemporaryDirectory() as directory:
        own = {"PYTHONPATH": str(HERE.parent), "PYTHONPYCACHEPREFIX": directory}
        environment = {**os.environ, **own}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        yield environment


def apart(module: str, function: str, *arguments: Any) -> Any:
    """What a function of a benchmark returns in a process of its own; all of it passes as JSON."""
    code = f"import json, sys; sys.path.insert(0, {str(HERE)!r}); import {module} as module\n"
    call = f"print(json.dumps(module.{function}(*json.loads(sys.argv[1]))))"
    with compiled() as environment:
        run = functools.partial(subprocess.run, env=environment, check=True)
        run([sys.executable, "-c", code])  # compiling takes memory, which the next would reuse
        command = [sys.executable, "-c", code + call, json.dumps(arguments)]
        return json.loads(run(command, stdout=subprocess.PIPE).stdout)


def rss() -> int:
    """The memory of this process now, in bytes (Linux)."""
    return _status("VmRSS")


def peak_of(task: Callable[[], object]) -> int:
    """The most memory that a task takes at once, in bytes, over what there is now (Linux)."""
    gc.collect()
    before = rss()
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts anew
    except OSError:  # not on this kernel: over the peak so far
        before = _status("VmHWM")
    task()
    return max(0, _status("VmHWM") - before)


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {name}")


class Report:
    """Rows of a table, with the target of each, for people and as JSON.

    A target is the most the ratio may be, or the value where there is no ratio.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.rows: list[dict[str, Any]] = []

    def row(
        self,
        what: str,
        value: float,
        unit: str,
        ratio: float | None = None,
        target: float | None = None,
    ) -> None:
        row = {"what": what, "value": value, "unit": unit, "ratio": ratio, "target": target}
        self.rows.append(row)

    def finish(self) -> None:
        """Print it: a table, or with --json one object."""
        parser = argparse.ArgumentParser(description=self.title)
        parser.add_argument("--json", action="store_true", help="one JSON object, not a table")
        table = {"title": self.title, "machine": machine(), "rows": self.rows}
        if parser.parse_args().json:
            print(json.dumps(table))
        else:
            show(table)


def show(table: dict[str, Any]) -> None:
    """Print what ``Report.finish`` gives as JSON, for people."""
    print(f"{table['title']} ({table['machine']})")
    for row in table["rows"]:
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        target = "" if row["target"] is None else f"target {row['target']}"
        missed = " MISSED" if is_missed(row) else ""
        figure = f"{row['value']:>9.2f} {row['unit']:<6} {ratio:>7}"
        print(f"  {row['what']:<56} {figure}  {target}{missed}".rstrip())


def is_missed(row: dict[str, Any]) -> bool:
    measured = row["value"] if row["ratio"] is None else row["ratio"]
    return row["target"] is not None and measured > row["target"]


def machine() -> str:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{python}, {platform.machine()}, {os.cpu_count()} cores"
