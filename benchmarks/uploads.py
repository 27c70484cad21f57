"""Files that are sent from disk: what they cost, and how much of them is in memory at once.

    python benchmarks/uploads.py [--json]

Images go to a server that drops them, against a loop that does the same with http.client. A text
file is only escaped, against ``json.dumps`` of its text. Memory is the peak of a process of its
own, over that of a small request.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Callable

from common import MIB, Report, apart, in_turns, kept, peak_of, ratio, server

import svir

IMAGES = 8
IMAGE_SIZE = 8 * MIB
TEXT_SIZE = 64 * MIB
ROUNDS = 7
MODEL = "content-16"
LINE = 'It said: "the quick brown fox" jumps \\ over a lazy dog, \u00e6\u00f8\u00e5.\n\tAnd on.\n'


def make_files(directory: str) -> tuple[list[str], str]:
    images = [os.path.join(directory, f"{i}.png") for i in range(IMAGES)]
    for path in images:
        Path(path).write_bytes(b"\x89PNG\r\n\x1a\n" + os.urandom(IMAGE_SIZE - 8))
    text = os.path.join(directory, "long.txt")
    Path(text).write_bytes(LINE.encode() * (TEXT_SIZE // len(LINE.encode())))
    return images, text


# -- Images ---------------------------------------------------------------------------------------


def send_with_svir(base_url: str, images: list[str]) -> Callable[[], object]:
    client = kept(svir.Client(base_url))

    def send() -> None:
        message = svir.User("What is this?", *(svir.Image(path) for path in images))
        client.complete(svir.Request(MODEL, [message]))

    return send


def send_by_hand(base_url: str, images: list[str]) -> Callable[[], object]:
    connection = kept(http.client.HTTPConnection(base_url.split("/")[2]))

    def send() -> None:
        head, tail = around(images)
        size = sum(map(len, head)) + len(tail)
        size += sum((os.path.getsize(path) + 2) // 3 * 4 for path in images)
        connection.putrequest("POST", "/v1/chat/completions")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(size))
        connection.endheaders()
        for start, path in zip(head, images):
            connection.send(start)
            with open(path, "rb") as file:
                for block in iter(lambda: file.read(49152), b""):
                    connection.send(base64.b64encode(block))
        connection.send(tail)
        read_answer(connection.getresponse())

    return send


def around(images: list[str]) -> tuple[list[bytes], bytes]:
    """What stands before each image, and after the last."""
    url = {"url": "data:image/png;base64,HOLE"}
    parts = [{"type": "image_url", "image_url": url} for _ in images]
    text = {"type": "text", "text": "What is this?"}
    message = {"role": "user", "content": [text, *parts]}
    body = {"model": MODEL, "stream": True, "messages": [message]}
    *head, tail = json.dumps(body).encode().split(b"HOLE")
    return head, tail


def read_answer(response: http.client.HTTPResponse) -> str:
    text = ""
    for line in response:
        if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
            text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
    return text


def memory_of_images(base_url: str, images: list[str]) -> int:
    send_with_svir(base_url, [])()
    return peak_of(send_with_svir(base_url, images))


# -- Text -----------------------------------------------------------------------------------------


def escape_with_svir(path: str, escaped_len: int | None = None) -> int:
    """The length that is announced, when as much was given out."""
    file = svir.TextFile(path, escaped_len=escaped_len)
    body = svir.encode(svir.Request(MODEL, [svir.User(file)]))
    assert body.length == sum(map(len, body))
    return body.length


def escape_in_memory(path: str, ensure_ascii: bool) -> int:
    message = {"role": "user", "content": Path(path).read_text(encoding="utf-8")}
    body = {"model": MODEL, "stream": True, "messages": [message]}
    return len(json.dumps(body, ensure_ascii=ensure_ascii).encode())


def memory_of_text(small: str, path: str) -> int:
    escape_with_svir(small)
    return peak_of(lambda: escape_with_svir(path))


# -- The table ------------------------------------------------------------------------------------


def measure() -> Report:
    report = Report("Files sent from disk: CPU, and memory over that of a small request")
    with tempfile.TemporaryDirectory() as directory, server() as base_url:
        images, text = make_files(directory)
        measure_images(report, base_url, images)
        measure_text(report, directory, text)
    return report


def measure_images(report: Report, base_url: str, images: list[str]) -> None:
    tasks: dict[str, Callable[[], object]] = {
        "http.client, a loop by hand": send_by_hand(base_url, images),
        "svir": send_with_svir(base_url, images),
    }
    what = f"{IMAGES} images of {IMAGE_SIZE / MIB:g} MiB"
    compare(report, what, tasks, {"svir": 1.1})
    grown = apart("uploads", "memory_of_images", base_url, images)
    report.row(f"{what}: memory", grown / MIB, "MiB", None, 1)


def measure_text(report: Report, directory: str, path: str) -> None:
    known = svir.escaped_len(Path(path).read_bytes())
    tasks: dict[str, Callable[[], object]] = {
        "json.dumps, UTF-8": lambda: escape_in_memory(path, ensure_ascii=False),
        "json.dumps, ASCII": lambda: escape_in_memory(path, ensure_ascii=True),
        "svir": lambda: escape_with_svir(path),
        "svir, its length declared": lambda: escape_with_svir(path, known),
    }
    what = f"{TEXT_SIZE / MIB:g} MiB of text"
    compare(report, what, tasks, {"svir": 1.0})
    small = Path(directory, "small.txt")
    small.write_text(LINE, encoding="utf-8")
    grown = apart("uploads", "memory_of_text", str(small), path)
    report.row(f"{what}: memory", grown / MIB, "MiB", None, 1)


def compare(
    report: Report, what: str, tasks: dict[str, Callable[[], object]], targets: dict[str, float]
) -> None:
    times = in_turns(ROUNDS, tasks)
    base = next(iter(times.values()))
    for name, seconds in times.items():
        median = statistics.median(seconds) * 1e3
        report.row(f"{what}: {name}", median, "ms", ratio(seconds, base), targets.get(name))


if __name__ == "__main__":
    measure().finish()
