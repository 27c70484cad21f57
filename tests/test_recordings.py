"""Answers recorded from real servers, decoded, and sent again through a client."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

import harness
from harness import RECORDINGS, RawServer

OUTCOMES: dict[str, Any] = json.loads((RECORDINGS / "outcomes.json").read_text("ascii"))


def recorded(suffix: str) -> list[Any]:
    paths = sorted(RECORDINGS.glob("*/*" + suffix))
    return [pytest.param(path, id=name_of(path)) for path in paths]


def name_of(path: pathlib.Path) -> str:
    return f"{path.parent.name}/{path.name[: -len(path.suffix)]}"


def expected(path: pathlib.Path, mode: str = "strict") -> harness.Outcome:
    spec = OUTCOMES[name_of(path)]
    found: harness.Outcome = spec.get(mode, spec["strict"])
    return found


def check(run: harness.Run, wanted: harness.Outcome) -> None:
    got = harness.outcome(run)
    harness.check(got, wanted)
    if wanted["outcome"] == "completed":
        assert got["extra"] == wanted["extra"], "exactly what the server sent beside the answer"


def response(path: pathlib.Path) -> bytes:
    """The response as it was on the wire, but for where its chunks and pieces ended."""
    lines = path.with_name(path.name[: -len(path.suffix)] + ".headers").read_bytes().split(b"\n")
    head = [line.rstrip(b"\r") for line in lines if line.strip() and not line.startswith(b"#")]
    body = path.read_bytes()
    if any(line.lower().startswith(b"transfer-encoding: chunked") for line in head):
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def test_each_recording_has_an_outcome() -> None:
    paths = [*RECORDINGS.glob("*/*.sse"), *RECORDINGS.glob("*/*.body")]
    assert sorted(map(name_of, paths)) == sorted(OUTCOMES)
    assert len(paths) > 400


@pytest.mark.parametrize("path", recorded(".sse"))
def test_decoded(path: pathlib.Path) -> None:
    data = path.read_bytes()
    whole = harness.decode([data])
    check(whole, expected(path))
    single = harness.single_bytes(data)
    assert harness.decode(single).key() == whole.key()
    assert harness.decode_late(single).key() == whole.key()
    lenient = harness.decode([data], strict=False)
    check(lenient, expected(path, "lenient"))
    assert harness.decode(single, strict=False).key() == lenient.key()


@pytest.mark.parametrize("path", recorded(".sse"))
def test_cut_short(path: pathlib.Path) -> None:
    """At each event's end and around it; every offset is the business of tests/cases."""
    data = path.read_bytes()
    whole = harness.decode([data])
    done = data.find(b"[DONE]")
    needed = done + len("[DONE]") if done >= 0 else len(data) + 1
    ends = {at + step for at in range(len(data)) if data[at] == 10 for step in (-1, 0, 1, 2, 40)}
    for end in sorted(end for end in {0, *ends} if end < needed):
        run = harness.decode([data[:end]])
        assert run.error is not None, end
        assert run.events == whole.events[: len(run.events)]


@pytest.mark.parametrize("path", recorded(".sse"))
def test_stream_through_a_client(path: pathlib.Path) -> None:
    with RawServer(response(path)) as server:
        check(harness.ask(server.url), expected(path))


@pytest.mark.parametrize("path", recorded(".body"))
def test_body_through_a_client(path: pathlib.Path) -> None:
    with RawServer(response(path)) as server:
        check(harness.ask(server.url, include_usage=False), expected(path))
        if "lenient" in OUTCOMES[name_of(path)]:
            lenient = harness.ask(server.url, include_usage=False, strict=False)
            check(lenient, expected(path, "lenient"))
