"""Writes outcomes.json: what each recorded answer says, by a reader that knows nothing of svir.

It reads a whole body at once, leans on what these three servers were seen to send, and stops with
an AssertionError at anything else, to be reasoned about by hand. Run it after adding a recording:

    python tests/recordings/make_outcomes.py
"""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
OVERFLOW_CODES = {
    "context_length_exceeded", "context_window_exceeded", "exceed_context_size_error",
}  # fmt: skip
OVERFLOW_WORDS = re.compile(
    "context length|context size|context window|context budget|compacted context"
    "|prompt is too long|maximum context",
    re.IGNORECASE,
)
KINDS = {
    307: ("protocol", False), 400: ("unsupported", False), 401: ("unauthorized", False),
    404: ("protocol", False), 405: ("protocol", False), 411: ("protocol", False),
    500: ("unavailable", True),
}  # fmt: skip
KNOWN_TOP = {"id", "model", "choices", "usage", "object", "created", "error"}
KNOWN_CHOICE = {
    "index", "delta", "finish_reason", "logprobs", "stop_reason", "token_ids", "message",
    "routed_experts",
}  # fmt: skip
KNOWN_DELTA = {
    "role", "content", "reasoning_content", "reasoning", "tool_calls", "refusal", "annotations",
    "audio", "function_call",
}  # fmt: skip


def overflows(error: Any) -> bool:
    if isinstance(error, str):
        return bool(OVERFLOW_WORDS.search(error))
    signs = {str(error.get("code")), str(error.get("type"))}
    return bool(signs & OVERFLOW_CODES or OVERFLOW_WORDS.search(error.get("message") or ""))


def stream(body: bytes) -> tuple[list[dict[str, Any]], bool]:
    """The chunks of a body, and whether [DONE] ended it."""
    text = body.decode("utf-8")
    assert "\r" not in text
    chunks: list[dict[str, Any]] = []
    for block in text.split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        assert len(lines) <= 1, "more than one line in an event"
        for line in lines:
            assert line.startswith("data: "), line
            if line == "data: [DONE]":
                return chunks, True
            chunks.append(json.loads(line[len("data: ") :]))
    return chunks, False


class Answer:
    """What the chunks add up to."""

    def __init__(self) -> None:
        self.id: Any = None
        self.model: Any = None
        self.finish: Any = None
        self.usage: Any = None
        self.content = ""
        self.reasoning: dict[str, str] = {}
        self.calls: dict[int, dict[str, str]] = {}
        self.quirks: list[str] = []
        self.extra: dict[str, Any] = {}

    def top(self, chunk: dict[str, Any]) -> None:
        for key in ("id", "model"):
            assert getattr(self, key) in (None, chunk[key]), f"{key} changes"
            setattr(self, key, chunk[key])
        self.extra.update({k: v for k, v in chunk.items() if k not in KNOWN_TOP and v is not None})
        usage = chunk.get("usage")
        if usage:
            if self.usage is not None:
                assert usage["total_tokens"] >= self.usage["total_tokens"]
                self.quirk("running-usage")
            self.usage = {
                key: usage[key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")
            }
            details = usage.get("completion_tokens_details") or {}
            if "reasoning_tokens" in details:
                self.usage["reasoning_tokens"] = details["reasoning_tokens"]
        else:
            assert chunk["choices"], "neither usage nor choices"

    def quirk(self, name: str) -> None:
        if name not in self.quirks:
            self.quirks.append(name)

    def choice(self, choice: dict[str, Any], delta: dict[str, Any]) -> None:
        assert choice["index"] == 0
        assert not [k for k, v in choice.items() if v is not None and k not in KNOWN_CHOICE]
        given = {key: value for key, value in delta.items() if value not in (None, "", [])}
        assert not set(given) - KNOWN_DELTA
        assert not {"refusal", "annotations", "audio", "function_call"} & set(given)
        assert given.pop("role", "assistant") == "assistant"
        assert self.finish is None or not given, "more after the finish"
        self.content += given.get("content", "")
        assert not {"reasoning", "reasoning_content"} <= set(given)
        for key in ("reasoning_content", "reasoning"):
            if key in given:
                self.reasoning[key] = self.reasoning.get(key, "") + given[key]
        for position, piece in enumerate(given.get("tool_calls", [])):
            self.call(piece.get("index", position), piece)
        if choice["finish_reason"] is not None:
            assert self.finish is None, "a second finish"
            self.finish = choice["finish_reason"]

    def call(self, index: int, piece: dict[str, Any]) -> None:
        assert set(piece) <= {"index", "id", "type", "function"}
        assert piece.get("type", "function") == "function"
        call = self.calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
        assert piece.get("id") in (None, call["id"]) or not call["id"]
        call["id"] = piece.get("id") or call["id"]
        name = piece["function"].get("name")
        assert name is None or not call["name"], "the name again"
        call["name"] = name or call["name"]
        call["arguments"] += piece["function"].get("arguments") or ""

    def outcome(self) -> dict[str, Any]:
        thoughts = re.findall("<think>(.*?)(?:</think>|$)", self.content, re.DOTALL)
        text = re.sub("<think>.*?(?:</think>|$)", "", self.content, flags=re.DOTALL)
        reasoning = dict(self.reasoning)
        if "".join(thoughts):
            reasoning["think"] = "".join(thoughts)
        calls = [self.calls[index] for index in sorted(self.calls)]
        assert sorted(self.calls) == list(range(len(calls)))
        assert self.finish in ("stop", "length", "tool_calls"), self.finish
        if self.finish == "tool_calls" and not calls:  # T9: mlx-lm drops a call it cannot read
            return {"outcome": "error", "kind": "protocol", "text": text}
        finish = "tool_calls" if calls and self.finish == "stop" else self.finish
        found: dict[str, Any] = {
            "outcome": "completed", "text": text, "finish_reason": finish, "id": self.id,
            "model": self.model, "extra": self.extra,
        }  # fmt: skip
        if reasoning:
            found["reasoning"] = [[source, text] for source, text in reasoning.items()]
        if calls:
            found["partial_tool_calls" if finish == "length" else "tool_calls"] = calls
        if self.quirks:
            found["quirks"] = self.quirks
        if self.usage:
            found["usage"] = self.usage
        return found


def read_stream(body: bytes) -> dict[str, Any]:
    chunks, done = stream(body)
    indices = [choice["index"] for chunk in chunks for choice in chunk.get("choices", [])]
    if set(indices) == {0, 1}:
        return read_two_choices(chunks, done)
    answer = Answer()
    for chunk in chunks:
        if chunk.get("error"):
            return {
                "outcome": "error",
                "kind": "context_overflow" if overflows(chunk["error"]) else "server",
                "text": answer.content,
                "server_message": chunk["error"]["message"],
                "status": None,
            }
        answer.top(chunk)
        for choice in chunk["choices"]:
            answer.choice(choice, choice["delta"])
    assert done
    return answer.outcome()


def read_two_choices(chunks: list[dict[str, Any]], done: bool) -> dict[str, Any]:
    """C5: refused at the first chunk of the second choice; lenient drops what is not choice 0."""
    assert done
    answer = Answer()
    before = ""
    seen = False
    for chunk in chunks:
        assert len(chunk["choices"]) <= 1
        answer.top(chunk)
        for choice in chunk["choices"]:
            seen = seen or choice["index"] == 1
            if choice["index"] == 0:
                assert not choice["delta"].get("content") or seen
                answer.choice(choice, choice["delta"])
    answer.quirk("extra-choice")
    strict = {"outcome": "error", "kind": "unsupported", "text": before}
    return {"strict": strict, "lenient": answer.outcome()}


def read_json_answer(body: bytes) -> dict[str, Any]:
    """H6: a whole completion where a stream was asked for."""
    value = json.loads(body)
    (choice,) = value["choices"]
    answer = Answer()
    answer.quirk("not-streamed")
    answer.top(value)
    answer.choice(choice, choice["message"])
    strict = {
        "outcome": "error",
        "kind": "protocol",
        "message_contains": "the server did not stream",
    }
    return {"strict": strict, "lenient": answer.outcome()}


def read_error(status: int, body: bytes) -> dict[str, Any]:
    kind, retryable = KINDS[status]
    try:
        value = json.loads(body)
    except ValueError:
        value, message = {}, body.decode("utf-8").strip().split("\n")[0] or None
    else:
        error = value.get("error")
        message = error["message"] if isinstance(error, dict) else error or value.get("detail")
        assert isinstance(message, str)
    assert message is None or len(message) < 4096
    if status == 400 and (overflows(value.get("error") or {}) or overflows(message or "")):
        kind = "context_overflow"
    if status == 404 and isinstance(value.get("error"), dict):
        kind = "unsupported"
    return {
        "outcome": "error", "kind": kind, "status": status, "retryable": retryable,
        "server_message": message,
    }  # fmt: skip


def status_of(path: pathlib.Path) -> int:
    for line in path.with_suffix(".headers").read_text("latin-1").splitlines():
        if line.startswith("HTTP/"):
            return int(line.split()[1])
    raise AssertionError(f"no status in {path}")


def read(path: pathlib.Path) -> dict[str, Any]:
    status, body = status_of(path), path.read_bytes()
    if path.suffix == ".sse":
        assert status == 200
        found = read_stream(body)
    else:
        found = read_json_answer(body) if status == 200 else read_error(status, body)
    return found if "strict" in found else {"strict": found}


def main() -> None:
    paths = sorted([*HERE.glob("*/*.sse"), *HERE.glob("*/*.body")])
    found = {f"{path.parent.name}/{path.stem}": read(path) for path in paths}
    lines = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(found.items())]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    (HERE / "outcomes.json").write_text(text, encoding="ascii", newline=None)


if __name__ == "__main__":
    main()
