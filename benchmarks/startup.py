"""A process that imports svir, and one that asks a first short question, by the clock on the wall.

    python benchmarks/startup.py [--json]

Each is a fresh process, run in turns with an empty one, whose time is taken off.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from typing import Callable

from common import Report, compiled, difference, in_turns, server

ROUNDS = 40
COUNT = 16

SVIR = """
import svir
client = svir.Client({url!r})
for event in client.stream(svir.Request("content-{count}", "Go")):
    pass
client.close()
assert event.type == "completed"
"""

BY_HAND = """
import http.client, json
connection = http.client.HTTPConnection({host!r})
messages = [{{"role": "user", "content": "Go"}}]
body = {{"model": "content-{count}", "stream": True, "messages": messages}}
headers = {{"Content-Type": "application/json"}}
connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
response = connection.getresponse()
assert response.status == 200
text = ""
for line in response:
    if line.startswith(b"data: [DONE]"):
        break
    if line.startswith(b"data: "):
        text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
connection.close()
assert text
"""


def process(code: str, environment: dict[str, str]) -> Callable[[], object]:
    return lambda: subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def measure() -> Report:
    report = Report("A fresh process, on the wall, less an empty one")
    with server() as url, compiled() as environment:
        fields = {"url": url, "host": url.split("/")[2], "count": COUNT}
        codes = {
            "an empty process": "pass",
            "import json, urllib.request": "import json, urllib.request",
            "import svir": "import svir",
            "http.client, a first call by hand": BY_HAND.format(**fields),
            "svir, import and a first call": SVIR.format(**fields),
        }
        tasks = {name: process(code, environment) for name, code in codes.items()}
        times = in_turns(ROUNDS, tasks, time.perf_counter)
    empty, *others = times
    report.row(empty, statistics.median(times[empty]) * 1e3, "ms")
    for base, name, target in ((*others[:2], 0.5), (*others[2:], 1.1)):
        hand, own = (difference(times[each], times[empty]) for each in (base, name))
        report.row(base, hand * 1e3, "ms", 1.0)
        report.row(name, own * 1e3, "ms", own / hand, target)
    return report


if __name__ == "__main__":
    measure().finish()
