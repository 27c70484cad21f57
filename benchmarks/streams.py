"""The cost of an event, from the socket to the loop's body, against ``json.loads`` of the lines.

    python benchmarks/streams.py [--json]

The server is another process on this machine, and sends as fast as it is read. What else is
installed of openai, httpx-sse and urllib3 takes part.
"""

from __future__ import annotations

import json
import statistics
import sys
from typing import Any, Callable

from common import Report, events, in_turns, kept, ratio, server

import svir
from svir_ext.layers import retry, timeout, trace

COUNT = 2000
ROUNDS = 40
TARGETS = {"content": 0.45, "reasoning": 0.6, "tools": 0.6, "azure": 0.7, "varied": 1.25}


def bare_json(kind: str) -> Callable[[], object]:
    lines = [event[6:-2].decode() for event in events(kind, COUNT)[:-1]]

    def parse() -> None:
        for line in lines:
            json.loads(line)

    return parse


def with_svir(
    base_url: str, kind: str, layers: tuple[svir.Layer, ...] = ()
) -> Callable[[], object]:
    client = kept(svir.Client(base_url, layers=layers))
    request = svir.Request(f"{kind}-{COUNT}", [svir.User("Go")])

    def read() -> None:
        for event in client.stream(request):  # noqa: B007
            pass
        assert event.type == "completed"

    return read


LAYERS = (trace(), timeout(first_token=60, idle=60), retry(2))


def by_hand_urllib(base_url: str) -> Callable[[], object]:
    import urllib.request

    body = json.dumps({"model": f"content-{COUNT}", "stream": True, "messages": []}).encode()

    def read() -> str:
        request = urllib.request.Request(base_url + "/chat/completions", body)
        with urllib.request.urlopen(request) as response:
            return "".join(deltas(response))

    return read


def by_hand_urllib3(base_url: str) -> Callable[[], object]:
    import urllib3

    pool = urllib3.PoolManager()
    body = json.dumps({"model": f"content-{COUNT}", "stream": True, "messages": []}).encode()

    def read() -> str:
        response = pool.request(
            "POST", base_url + "/chat/completions", body=body, preload_content=False
        )
        try:
            return "".join(deltas(lines_of(response.stream(16384))))
        finally:
            response.release_conn()

    return read


def lines_of(blocks: Any) -> Any:
    rest = b""
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        yield from lines


def deltas(lines: Any) -> Any:
    for line in lines:
        if line.startswith(b"data: "):
            if line.startswith(b"data: [DONE]"):
                return
            yield json.loads(line[6:])["choices"][0]["delta"].get("content") or ""


def openai_sdk(base_url: str) -> Callable[[], object]:
    import openai

    client = openai.OpenAI(base_url=base_url, api_key="none")

    def read() -> str:
        stream = client.chat.completions.create(
            model=f"content-{COUNT}", messages=[{"role": "user", "content": "Go"}], stream=True
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)

    return read


def httpx_sse(base_url: str) -> Callable[[], object]:
    import httpx
    from httpx_sse import connect_sse

    client = httpx.Client()
    body = {"model": f"content-{COUNT}", "stream": True, "messages": []}

    def read() -> str:
        with connect_sse(client, "POST", base_url + "/chat/completions", json=body) as source:
            return "".join(
                json.loads(event.data)["choices"][0]["delta"].get("content") or ""
                for event in source.iter_sse()
                if event.data != "[DONE]"
            )

    return read


PEERS = {
    "urllib.request, a loop by hand": by_hand_urllib,
    "urllib3, a loop by hand": by_hand_urllib3,
    "httpx-sse": httpx_sse,
    "openai": openai_sdk,
}


def measure() -> Report:
    report = Report("CPU of the client per event, in microseconds, and against json.loads")
    with server() as base_url:
        for kind, target in TARGETS.items():
            tasks = {"json.loads": bare_json(kind), "svir": with_svir(base_url, kind)}
            if kind == "content":
                tasks["svir with three layers"] = with_svir(base_url, kind, LAYERS)
            limits = {"svir": target, "svir with three layers": target + 0.15}
            compare(report, kind, in_turns(ROUNDS, tasks), limits)
        # Last, as what they import makes all that comes after them a little slower.
        tasks = {"json.loads": bare_json("content"), **peers(base_url)}
        compare(report, "content", in_turns(ROUNDS, tasks), {})
    return report


def compare(
    report: Report, kind: str, times: dict[str, list[float]], limits: dict[str, float]
) -> None:
    for name, seconds in times.items():
        if name == "json.loads" and not limits:
            continue
        cost, share = statistics.median(seconds) / COUNT * 1e6, ratio(seconds, times["json.loads"])
        report.row(f"{kind}: {name}", cost, "us", share, limits.get(name))


def peers(base_url: str) -> dict[str, Callable[[], object]]:
    found: dict[str, Callable[[], object]] = {}
    for name, make in PEERS.items():
        try:
            found[name] = make(base_url)
        except ImportError:
            print(f"not installed: {name}", file=sys.stderr)
    return found


if __name__ == "__main__":
    measure().finish()
