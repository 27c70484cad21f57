"""A short answer on a connection that is open already, by the clock on the wall.

    python benchmarks/short.py [--json]

Against a loop over http.client that keeps its connection, and parses each line.
"""

from __future__ import annotations

import http.client
import json
import ssl
import statistics
import time
from typing import Callable

from common import HERE, Report, in_turns, kept, ratio, server

import svir

COUNT = 16
CALLS = 20  # in each round
ROUNDS = 60
ROOT = HERE.parent / "tests" / "tls" / "root.pem"


def with_svir(client: svir.Client) -> Callable[[], object]:
    request = svir.Request(f"content-{COUNT}", "Go")

    def read() -> None:
        for _ in range(CALLS):
            for _event in client.stream(request):
                pass

    return read


def by_hand(base_url: str) -> Callable[[], object]:
    scheme, _, host, _ = base_url.split("/")
    if scheme == "https:":
        context = ssl.create_default_context(cafile=str(ROOT))
        connection = kept(http.client.HTTPSConnection(host, context=context))
    else:
        connection = kept(http.client.HTTPConnection(host))

    def read() -> None:
        for _ in range(CALLS):
            ask(connection)

    return read


def ask(connection: http.client.HTTPConnection) -> str:
    messages = [{"role": "user", "content": "Go"}]
    body = json.dumps({"model": f"content-{COUNT}", "stream": True, "messages": messages})
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", body, headers)
    text = ""
    for line in connection.getresponse():
        if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
            text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
    return text


def connections(client: svir.Client) -> int:
    return int(client.complete(svir.Request("connections-1", "How many?")).text)


def measure() -> Report:
    report = Report(f"A call with {COUNT} pieces on a warm client, on the wall")
    for name, tls in (("plain", False), ("TLS", True)):
        with server(tls=tls) as base_url:
            client = kept(svir.Client(base_url, cafile=ROOT))
            before = connections(client)
            tasks = {"http.client, by hand": by_hand(base_url), "svir": with_svir(client)}
            times = in_turns(ROUNDS, tasks, time.perf_counter)
            used = connections(client) - before  # the other's is one, and so is the first
        for task, target in (("http.client, by hand", None), ("svir", 1.2)):
            own, base = times[task], times["http.client, by hand"]
            cost = statistics.median(own) / CALLS * 1e6
            report.row(f"{name}: {task}", cost, "us", ratio(own, base), target)
        report.row(f"{name}: connections of {(ROUNDS + 1) * CALLS} calls", used, "", None, 1)
    return report


if __name__ == "__main__":
    measure().finish()
