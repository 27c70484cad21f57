"""What plugin/ask.vim calls. Vim has `python3/` of every plugin on its path (:help python3-path).

Vim does not interrupt a read on Ctrl-C, and draws nothing while it waits. So a thread reads, and
Vim's timer takes what has arrived: Vim's own things are touched in its main thread only.
"""

# The modules of the host, and the copy of svir.py, are only there when it runs in the host.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportMissingModuleSource=false
from __future__ import annotations

import os
import re
from typing import Any

import vim

try:
    from . import svir  # a copy beside this file
except ImportError:
    folder = os.path.dirname(os.path.abspath(__file__))
    if os.path.exists(os.path.join(folder, "svir.py")):
        raise
    raise ImportError(f"copy svir.py to {folder}") from None

NOT_CHAT = re.compile(r"embed|rerank|\bbge\b|whisper|\btts\b", re.IGNORECASE)

_answers: dict[int, Any] = {}  # each svir.Background, by the number of its buffer


def ask(number: int, question: str, lines: list[str]) -> None:
    """Start an answer for a buffer, which `tick` then fills."""
    try:
        _answers[number] = svir.Background(_client().stream(_request(question, lines)))
    except svir.Error as error:
        _append(vim.buffers[number], _told(error))


def _client() -> Any:
    key = svir.Secret.from_env("ASK_API_KEY") if os.environ.get("ASK_API_KEY") else None
    url = _setting("ask_url", "http://localhost:1234")
    # Where no model is set, one is looked up by a layer, since that runs in the thread.
    layers = [] if _setting("ask_model", "") else [_first_model(url, key)]
    return svir.Client(url, api_key=key, layers=layers)


def _first_model(url: str, key: Any) -> Any:
    def layer(request: Any, call: Any) -> Any:
        models = svir.Client(url, api_key=key, idle_timeout=5).list_models()
        chat = [model.id for model in models if not NOT_CHAT.search(model.id)]
        if not chat:
            raise svir.Unsupported("the server lists no chat model: set g:ask_model")
        return call(request.replace(model=chat[0]))

    return layer


def _request(question: str, lines: list[str]) -> Any:
    text = "\n".join([question, "", *lines]) if lines else question
    return svir.Request(_setting("ask_model", "") or "the first", text)


def _setting(name: str, default: str) -> str:
    value = vim.vars.get(name, default)
    return value.decode() if isinstance(value, bytes) else value


def tick(number: int) -> bool:
    """Append everything that has arrived; whether that was all."""
    work = _answers.get(number)
    if work is None:
        return True
    text = "".join(event.text for event in work.poll() if event.type == "text")
    try:
        buffer = vim.buffers[number]
    except KeyError:  # it was wiped out
        work.cancel()
        del _answers[number]
        return True
    if work.done:
        del _answers[number]
        text += _ending(work)
    if text:
        _append(buffer, text)
    return work.done


def _ending(work: Any) -> str:
    """What to say at the end: nothing after a whole answer."""
    if isinstance(work.error, svir.Error):
        return "\n" + _told(work.error)
    finish = work.result().finish_reason  # raises what no server can have caused
    return "" if finish == "stop" else f"\n[{finish}]"


def _told(error: Any) -> str:
    """An error, with the server's own words: they are often the only reason."""
    if isinstance(error, svir.Cancelled):
        return "[stopped]"
    words = f"\n{error.server_message}" if error.server_message else ""
    return f"[{error.kind}: {error}{words}]"


def _append(buffer: Any, text: str) -> None:
    encoding = vim.options["encoding"].decode()  # latin1 where the locale says nothing
    first, *rest = text.encode(encoding, "replace").decode(encoding).split("\n")
    buffer[-1] += first
    buffer.append(rest)


def stop() -> None:
    """Stop every answer. Never waits: the last tick says that it was stopped."""
    for work in _answers.values():
        work.cancel()


def unload() -> None:
    """Leave no thread behind. A look-up of a host name cannot be interrupted: it is not awaited
    for long, and its thread is a daemon, so that Vim can go."""
    stop()
    for work in _answers.values():
        work.join(1)
    _answers.clear()
