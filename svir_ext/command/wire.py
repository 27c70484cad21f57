"""What a recorded stream shows of its server, and how it has to be read."""

from __future__ import annotations

import html
import itertools
import json
import re
import zlib
from typing import TYPE_CHECKING, Any, Iterator, Mapping, NamedTuple

import svir

from .answers import count

if TYPE_CHECKING:
    from svir_ext.record import Decoded, Recording

# docs/decoding.md has the rule behind each name.
QUIRKS = {
    "empty-data": "events without data, as keep-alives",
    "joined-events": "events that only one line break parts",
    "no-choices": "chunks with no choice in them",
    "missing-choice-index": "choices without an index",
    "message-beside-delta": "a whole message beside the deltas",
    "extra-delta-key": "keys of its own in the deltas",
    "content-parts": "text as a list of parts",
    "lone-surrogate": "half a character",
    "empty-finish": 'a finish reason of "" or "null"',
    "finish-alias": "another word for stop or length",
    "repeated-finish": "the finish reason twice",
    "running-usage": "usage more than once",
    "odd-usage": "a token count that is none",
    "incomplete-usage": "usage without its counts",
    "usage-total": "usage without a total",
    "usage-elsewhere": "usage in a place of its own",
    "missing-index": "pieces of tool calls without an index",
    "reused-index": "one index for several tool calls",
    "index-offset": "indices of tool calls that do not begin at 0",
    "empty-id": "a tool call with an empty id",
    "repeated-name": "the name of a tool call again",
    "arguments-object": "arguments of a tool call as an object",
    "unasked-encoding": "compressed, though nobody asked for that",
    "end-without-done": "no [DONE] at the end",
    "done-without-finish": "no finish reason",
    "changing-id": "another id or model in the middle",
    "any-choice-index": "a choice's index other than 0",
    "any-content-type": "an event stream under another content type, or none",
    "unknown-field": "an SSE field that there is not",
    "unknown-event": "an event type that there is not",
    "unparseable-data": "data that is not JSON",
    "invalid-utf8": "bytes that are not UTF-8",
    "extra-choice": "a second choice",
    "skipped-delta-key": "a delta key that svir does not know",
    "unexpected-role": "another role than the assistant's",
    "skipped-part": "a part of the content that is no text",
    "skipped-reasoning": "reasoning that is no text",
    "not-streamed": "the whole answer at once, not streamed",
}

# What each name of `accept=` makes svir do (docs/decoding.md).
TAKES = {
    "any-choice-index": "a single choice of any index for the answer",
    "any-content-type": "any content type for an event stream, also none",
    "changing-id": "chunks of another id or model for the same answer",
    "done-without-finish": "[DONE] for the end, without a finish reason",
    "end-without-done": "the finish reason for the end, without [DONE]",
}

PAGE = 65536  # bytes of a web page in which its title is looked for

# -- How it has to be read ------------------------------------------------------------------------


class Reading(NamedTuple):
    """The least that reads a recording: `decoded.completion` is None when nothing does."""

    strict: bool
    accept: frozenset[str]
    decoded: Decoded


def least(recording: Recording, think: svir.ThinkMode) -> Reading:
    """The strictest way that reads it to its end, with as few accepted names as can be."""
    first: Reading | None = None
    for strict in (True, False):
        for names in _subsets(sorted(svir.ACCEPT)):
            decoded = recording.decode(strict=strict, accept=names, think=think)
            reading = Reading(strict, frozenset(names), decoded)
            first = first or reading
            if decoded.completion is not None:
                return reading
            if not names and not isinstance(
                decoded.error, (svir.ProtocolError, svir.Truncated, svir.Unsupported)
            ):
                break  # an error of the server's own: no reading mends it
    assert first is not None
    return first


def _subsets(names: list[str]) -> Iterator[tuple[str, ...]]:
    for size in range(len(names) + 1):
        yield from itertools.combinations(names, size)


def dialects_with(names: frozenset[str]) -> list[str]:
    """The dialects that have all these names, as "dialects.TGI"."""
    from svir_ext import dialects

    having = [name for name in dialects.__all__ if getattr(dialects, name) >= names]
    return [f"dialects.{name}" for name in having]


# -- Web pages ------------------------------------------------------------------------------------


def is_page(headers: Mapping[str, str]) -> bool:
    """Whether the content type is that of a web page."""
    return headers.get("content-type", "").partition(";")[0].strip().lower() in (
        "text/html",
        "application/xhtml+xml",
    )


def start(recording: Recording) -> bytes:
    """The first bytes of a recorded body, decompressed."""
    return _plain(recording)[:PAGE]


def title(page: bytes) -> str:
    """The title of a web page on one line, "" when it has none, or one of over 1,000 bytes.

    It is not cut: part of a key in it would no longer be known for one.
    """
    found = re.search(rb"(?is)<title[^>]{0,200}>(.{0,1000}?)</title", page[:PAGE])
    words = "" if found is None else html.unescape(found.group(1).decode("utf-8", "replace"))
    return " ".join(words.split())


# -- What it shows --------------------------------------------------------------------------------


def facts(recording: Recording) -> dict[str, Any]:
    """What can be said of the bytes alone."""
    headers = recording.headers
    data = _plain(recording)
    lines = data.split(b"\n")
    chunks = [chunk for line in lines for chunk in _chunk(line)]
    comments = [line for line in lines if line.startswith(b":")]
    times = [seconds for seconds, _ in recording.pieces]
    return {
        "status": recording.status,
        "content_type": headers.get("content-type"),
        "web_page": is_page(headers) and not chunks,
        "framing": _framing(headers),
        "encoding": headers.get("content-encoding"),
        "server": headers.get("server"),
        "bytes": len(data),
        "chunks": len(chunks),
        "comments": len(comments),
        "comment": comments[0][:60].decode("utf-8", "replace").strip() if comments else None,
        "line_ends": _line_ends(data),
        "done": re.search(rb"(?m)^data: ?\[DONE\]\s*$", data) is not None,
        "role": _role(chunks),
        "reasoning": _reasoning(chunks),
        "usage": _usage(chunks),
        "longest_silence": round(max((b - a for a, b in zip(times, times[1:])), default=0.0), 3),
    }


def _plain(recording: Recording) -> bytes:
    data = b"".join(piece for _, piece in recording.pieces)
    if recording.headers.get("content-encoding", "identity") == "identity":
        return data
    try:
        return zlib.decompressobj(47).decompress(data)  # gzip or zlib, by its head
    except zlib.error:
        return b""


def _chunk(line: bytes) -> Iterator[dict[str, Any]]:
    if not line.startswith(b"data:"):
        return
    try:
        value = json.loads(line[5:].decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return
    if isinstance(value, dict):
        yield value


def _framing(headers: Any) -> str:
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return "chunked"
    return "content-length" if "content-length" in headers else "until the connection closes"


def _line_ends(data: bytes) -> str:
    crlf, all = data.count(b"\r\n"), data.count(b"\n")
    return "LF" if not crlf else "CRLF" if crlf == all else "LF and CRLF"


def _deltas(chunks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for chunk in chunks:
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            delta = choice.get("delta") if isinstance(choice, dict) else None
            if isinstance(delta, dict):
                yield delta


def _role(chunks: list[dict[str, Any]]) -> str:
    told = [bool(delta.get("role")) for delta in _deltas(chunks)]
    if not any(told):
        return "never"
    return "in the first delta" if sum(told) == 1 else f"in {sum(told)} of {len(told)} deltas"


def _reasoning(chunks: list[dict[str, Any]]) -> list[str]:
    """The fields of a delta that reasoning was found in."""
    names = ("reasoning_content", "reasoning", "reasoning_text")
    return [name for name in names if any(delta.get(name) for delta in _deltas(chunks))]


def _usage(chunks: list[dict[str, Any]]) -> str:
    having = [chunk for chunk in chunks if chunk.get("usage")]
    if not having:
        return "none"
    if len(having) > 1:
        return f"in {len(having)} chunks"
    return "beside a choice" if having[0].get("choices") else "in a chunk of its own"


def sentences(told: dict[str, Any]) -> list[str]:
    """The facts for people; what is as usual is said in few words."""
    ends = "with [DONE]" if told["done"] else "without [DONE]"
    said = [
        f"ends {ends}; usage {told['usage']}; role {told['role']}; {told['line_ends']} line ends"
    ]
    if told["comments"]:
        said.append(f"{count(told['comments'], 'comment line')}, as {told['comment']!r}")
    if told["reasoning"]:
        said.append(f"reasoning in {', '.join(told['reasoning'])}")
    if told["encoding"]:
        said.append(f"compressed with {told['encoding']}")
    if told["longest_silence"] >= 1:
        said.append(f"silent for {told['longest_silence']:.1f} s at the longest")
    return said
