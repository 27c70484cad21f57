"""Ask: a model's answer streams into a new view; Escape there, or "Ask: Stop", ends it.

    cp -r examples/sublime/Ask PACKAGES/            (Preferences > Browse Packages...)
    mkdir PACKAGES/Ask/lib && cp svir.py PACKAGES/Ask/lib/

The copy is Ask.lib.svir, so a plugin with another copy is not in the way. It is in a folder as
Sublime runs every file beside this one as a plugin, a second time. `.python-version` asks for
Python 3.8. "url" and "model" are set in Packages/User/Ask.sublime-settings; a key is taken from
the environment variable ASK_API_KEY. Text that is selected is sent along.

A plugin must not wait, so a thread reads, and Sublime's timer takes what has arrived.
"""

# The modules of the host, and the copy of svir.py, are only there when it runs in the host.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import os
from typing import Any

import sublime_plugin

import sublime

from .lib import svir

INTERVAL = 50  # milliseconds

_answers: list[Answer] = []


class Answer:
    """One answer on its way into a view."""

    def __init__(self, view: Any, question: str) -> None:
        settings = sublime.load_settings("Ask.sublime-settings")
        key = svir.Secret.from_env("ASK_API_KEY") if os.environ.get("ASK_API_KEY") else None
        client = svir.Client(settings.get("url", "http://localhost:1234"), api_key=key)
        request = svir.Request(settings.get("model", "default"), question)
        self.view, self.work = view, svir.Background(client.stream(request))
        _answers.append(self)
        view.settings().set("ask_running", True)  # Escape is bound while it is set
        self.tick()

    def tick(self) -> None:
        """Append everything that has arrived, until the end."""
        if self not in _answers:  # the plugin was unloaded
            return
        text = "".join(event.text for event in self.work.poll() if event.type == "text")
        if not self.view.is_valid():  # its tab was closed
            self.work.cancel()
            _answers.remove(self)
        elif self.work.done:
            append(self.view, text + ending(self.work))
            self.view.settings().erase("ask_running")
            _answers.remove(self)
        else:
            append(self.view, text)
            sublime.set_timeout(self.tick, INTERVAL)


def ending(work: Any) -> str:
    """What to say at the end: nothing after a whole answer."""
    if isinstance(work.error, svir.Error):
        return "\n" + told(work.error)
    finish = work.result().finish_reason  # raises what no server can have caused
    return "" if finish == "stop" else f"\n[{finish}]"


def told(error: Any) -> str:
    """An error, with the server's own words: they are often the only reason."""
    if isinstance(error, svir.Cancelled):
        return "[stopped]"
    words = f"\n{error.server_message}" if error.server_message else ""
    return f"[{error.kind}: {error}{words}]"


def append(view: Any, text: str) -> None:
    if text:
        view.run_command("append", {"characters": text, "force": True, "scroll_to_end": True})


class QuestionInputHandler(sublime_plugin.TextInputHandler):
    def placeholder(self) -> str:
        return "A question"


class AskCommand(sublime_plugin.WindowCommand):
    def input(self, args: Any) -> Any:
        return QuestionInputHandler()

    def run(self, question: str) -> None:
        asked = self.window.active_view()
        marked = [asked.substr(region) for region in asked.sel()] if asked else []
        view = self.window.new_file()
        view.set_name(question)
        view.set_scratch(True)
        try:
            Answer(view, "\n\n".join([question, *filter(None, marked)]))
        except svir.Error as error:
            append(view, told(error))


class AskStopCommand(sublime_plugin.ApplicationCommand):
    """Never waits: the last tick says that it was stopped."""

    def run(self) -> None:
        for answer in _answers:
            answer.work.cancel()

    def is_enabled(self) -> bool:
        return bool(_answers)


def plugin_unloaded() -> None:
    """Leave no thread behind. A look-up of a host name cannot be interrupted: it is not awaited
    for long, and its thread is a daemon."""
    left, _answers[:] = _answers[:], []
    for answer in left:
        answer.work.cancel()
    for answer in left:
        answer.work.join(1)
