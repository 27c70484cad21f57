"""/ask QUESTION streams a model's answer into the buffer "ask"; /ask -stop ends it.

    cp examples/weechat/ask.py ~/.local/share/weechat/python/
    cp svir.py ~/.local/share/weechat/python/ask_svir.py
    ln -s ../ask.py ~/.local/share/weechat/python/autoload/

That folder is on sys.path, and shared: hence the copy's own name. Each script has an interpreter
of its own. What is typed in the buffer is asked as well. The options url and model are set with
/set plugins.var.python.ask.*; a key is taken from the environment variable ASK_API_KEY.

WeeChat must not wait, so a thread reads, and a timer takes what has arrived. When a script is
unloaded with a thread still there, WeeChat aborts: unload() cancels and joins.
"""

# The modules of the host, and the copy of svir.py, are only there when it runs in the host.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportMissingModuleSource=false
from __future__ import annotations

import os
from typing import Any

import ask_svir as svir

import weechat

INTERVAL, LENT = 50, 0.01  # milliseconds between two ticks; seconds that one gives to the thread
SETTINGS = {
    "url": ("http://localhost:1234", "the model server"),
    "model": ("default", "the model, as the server lists it"),
}


class Answer:
    """One answer on its way into the buffer, a line at a time, the last one as it grows."""

    def __init__(self, question: str) -> None:
        self.line = ""
        key = svir.Secret.from_env("ASK_API_KEY") if os.environ.get("ASK_API_KEY") else None
        client = svir.Client(weechat.config_get_plugin("url"), api_key=key)
        request = svir.Request(weechat.config_get_plugin("model"), question)
        self.work = svir.Background(client.stream(request))
        show("")

    def tick(self) -> bool:
        """Show everything that has arrived; whether that was all."""
        # WeeChat keeps Python's lock between two callbacks: the thread only runs while one waits.
        self.work.join(LENT)
        text = "".join(event.text for event in self.work.poll() if event.type == "text")
        if not weechat.buffer_search("python", "ask"):  # it was closed
            self.work.cancel()
        elif self.work.done:
            self.add(text + self.ending())
        elif text:
            self.add(text)
        return self.work.done

    def ending(self) -> str:
        if isinstance(self.work.error, svir.Error):
            return "\n" + told(self.work.error)
        finish = self.work.result().finish_reason  # raises what no server can have caused
        return "" if finish == "stop" else f"\n[{finish}]"

    def add(self, text: str) -> None:
        first, *rest = text.split("\n")
        self.line += first
        replace(self.line)
        for line in rest:
            self.line = line
            show(line)


def told(error: Any) -> str:
    """An error, with the server's own words: they are often the only reason."""
    if isinstance(error, svir.Cancelled):
        return "[stopped]"
    words = f"\n{error.server_message}" if error.server_message else ""
    return f"[{error.kind}: {error}{words}]"


def plain(line: str) -> str:
    """Without WeeChat's colour codes, and without tabs, which end the prefix of a line."""
    return "".join(c for c in line.replace("\t", "    ") if c.isprintable())


def show(line: str, prefix: str = " \t") -> None:
    weechat.prnt(buffer(), prefix + plain(line))


def replace(line: str) -> None:
    """Write the last line of the buffer anew."""
    lines = weechat.hdata_pointer(weechat.hdata_get("buffer"), buffer(), "own_lines")
    last = weechat.hdata_pointer(weechat.hdata_get("lines"), lines, "last_line")
    data = weechat.hdata_pointer(weechat.hdata_get("line"), last, "data")
    weechat.hdata_update(weechat.hdata_get("line_data"), data, {"message": plain(line)})


def buffer() -> str:
    """The buffer, made when it is not there."""
    found = weechat.buffer_search("python", "ask")
    return found or weechat.buffer_new("ask", "typed", "", "", "")


# -- What WeeChat calls --

answer: Answer | None = None
timer = ""


def command(data: str, current: str, arguments: str) -> int:
    if arguments == "-stop":
        stop()
    elif arguments:
        weechat.buffer_set(buffer(), "display", "1")
        start(arguments)
    return weechat.WEECHAT_RC_OK


def typed(data: str, current: str, line: str) -> int:
    start(line)
    return weechat.WEECHAT_RC_OK


def start(question: str) -> None:
    global answer, timer
    if answer is not None:
        # Not in its buffer: there the last line is the answer's.
        weechat.prnt("", "ask: an answer is on its way; /ask -stop ends it")
        return
    show(question, "you\t")
    try:
        answer = Answer(question)
        timer = weechat.hook_timer(INTERVAL, 0, 0, "tick", "")
    except svir.Error as error:
        show(f"{error.kind}: {error}", weechat.prefix("error"))


def tick(data: str, left: int) -> int:
    global answer
    if answer is not None and answer.tick():
        answer = None
        weechat.unhook(timer)
    return weechat.WEECHAT_RC_OK


def stop() -> None:
    """Never waits: the last tick says that it was stopped."""
    if answer is not None:
        answer.work.cancel()


def unload() -> int:
    """Also at /quit. The thread has to be gone, however long a look-up of a host name takes."""
    if answer is not None:
        answer.work.cancel()
        answer.work.join()
    return weechat.WEECHAT_RC_OK


if weechat.register("ask", "svir", "1", "MIT", "Ask a model", "unload", ""):
    for name, (value, about) in SETTINGS.items():
        if not weechat.config_is_set_plugin(name):
            weechat.config_set_plugin(name, value)
        weechat.config_set_desc_plugin(name, about)
    weechat.hook_command("ask", "Ask a model.", "question || -stop", "", "-stop", "command", "")
