"""`svir chat`: a conversation in the terminal, with no tools."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
from typing import Any, Callable

import svir

from . import INTERRUPTED, WHOLE, answers, options
from .terminal import Screen

HELP = """\
/image PATH    add a picture to the next message      /model NAME    ask another model
/file PATH     add a text file to it                  /models        what the server lists
/drop          take what was added away again         /system TEXT   another system prompt
/retry         ask the last question again            /clear         forget the conversation
/save FILE     write the conversation as JSON         /quit          leave; Ctrl-D does too
Ctrl-C stops an answer. A message of several lines is put between lines of three quotes (\"\"\").
A message that begins with a slash is typed with two."""


def chat(arguments: argparse.Namespace, place: options.Server, screen: Screen) -> int:
    """Read lines, show answers, until the end of the input."""
    history = History(arguments.history)
    if history.model and not arguments.model:
        arguments.model = history.model
    if arguments.system is not None:
        history.system, arguments.system = arguments.system, None
    with options.client(arguments, place) as client:
        model = options.chosen_model(arguments, client)
        talk = Chat(arguments, place, screen, client, history, model)
        return talk.run()


class History:
    """The conversation, and the file it is kept in: JSON, with messages in svir's own form.

    An answer that was stopped or broke off has `"partial": true` there. Pictures and files are
    paths. No key and no URL is in it.
    """

    def __init__(self, path: str | None) -> None:
        self.path, self.model = path, ""
        self.system: str | None = None
        self.messages: list[Any] = []
        self.partial: list[svir.Assistant] = []  # those of the messages, by identity
        if path is not None and os.path.exists(path):
            self._load(path)

    def _load(self, path: str) -> None:
        value = answers.read_json(path, "the history")
        try:
            self.model, self.system = str(value.get("model", "")), value.get("system")
            for each in value["messages"]:
                self.messages.append(svir.message_from_dict(each))
                if each.get("partial") is True:
                    self.partial.append(self.messages[-1])
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise options.Usage(f"{path} is not a history of svir chat: {error!r}") from None

    def save(self, path: str) -> None:
        """Whole or not at all, and for its owner only. Raises OSError."""
        path = os.path.realpath(path)
        data = json.dumps(self._plain(), indent=1, ensure_ascii=False).encode("utf-8") + b"\n"
        handle, written = tempfile.mkstemp(prefix=".svir-", dir=os.path.dirname(path))
        try:
            with open(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if os.path.exists(path):
                shutil.copymode(path, written)
            os.replace(written, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(written)
            raise

    def _plain(self) -> dict[str, Any]:
        messages = []
        for message in self.messages:
            plain = message.to_dict()
            if any(message is each for each in self.partial):
                plain["partial"] = True
            messages.append(plain)
        return {"model": self.model, "system": self.system, "messages": messages}


class Chat:
    """One conversation on a screen."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        place: options.Server,
        screen: Screen,
        client: svir.Client,
        history: History,
        model: str,
    ) -> None:
        self.arguments, self.place, self.screen, self.client = arguments, place, screen, client
        self.history, self.model = history, model
        self.images = [os.path.abspath(path) for path in arguments.image]
        self.files = [os.path.abspath(path) for path in arguments.file]
        self.last: svir.User | None = None
        self._reasons = False
        self._code = WHOLE
        self.commands: dict[str, Callable[[str], object]] = {
            "/image": self.add_image, "/file": self.add_file, "/drop": self.drop,
            "/model": self.use_model, "/models": self.list_models, "/system": self.use_system,
            "/retry": self.retry, "/clear": self.clear, "/save": self.save, "/help": self.help,
        }  # fmt: skip

    def run(self) -> int:
        """Until the input ends; the exit code is that of the last answer."""
        _prepare_input(self.screen)
        self.screen.note(f"{self.model} at {self.client.base_url}. /help lists what can be done.")
        if self.history.messages:
            self.screen.note(f"going on from {len(self.history.messages)} messages")
        interrupted = False
        while True:
            try:
                line = self._read_message()
                interrupted = False
                if line is None or line.split(None, 1)[:1] == ["/quit"]:
                    return self._code
                self._do(line)
            except KeyboardInterrupt:
                if interrupted:
                    return INTERRUPTED
                interrupted = True
                self.screen.note("\n/quit or Ctrl-D leaves; so does Ctrl-C once more")

    # Input

    def _read_message(self) -> str | None:
        """The next message; None at the end of the input."""
        line = self._read_line("> ")
        if line is None or line.strip() != '"""':
            return line
        lines: list[str] = []
        while True:
            line = self._read_line(". ")
            if line is None or line.strip() == '"""':
                return "\n".join(lines)
            lines.append(line)

    def _read_line(self, prompt: str) -> str | None:
        try:
            # A lone surrogate stands for a byte that was not UTF-8, and nothing can send it.
            line = input(prompt if self.screen.out_is_terminal else "")
            return line.encode("utf-8", "replace").decode("utf-8")
        except EOFError:
            if self.screen.out_is_terminal:
                self.screen.line()
            return None

    def _do(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if not line.startswith("/") or line.startswith("//"):
            text = line[1:] if line.startswith("//") else line
            if text.strip() or self.images or self.files:
                self.ask(text.strip("\n"))
        elif word in self.commands:
            self.commands[word](rest.strip())
        else:
            self.screen.note(
                f"there is no {word}: /help lists what there is; // begins with a slash"
            )

    # Asking

    def ask(self, text: str) -> None:
        """Ask with what was added. The question stays only if something came."""
        try:
            parts = options.parts(text, self.images, self.files)
            self._answer(svir.User(*parts), self.history.messages)
        except svir.ConfigError as error:
            self.screen.note(f"svir: {error}")

    def _answer(self, question: svir.User, before: list[Any]) -> None:
        self.last = question
        asked = [*before, question]
        more: Any = {} if self.history.system is None else {"system": self.history.system}
        request = options.request(self.arguments, self.model, asked, **more)
        completion, error = answers.read(self.client.stream(request), self._show)
        self._end_reasoning("\n")
        self.screen.end_line()
        self._code = answers.exit_code(completion, error)
        for line in answers.told(completion, error, self.place):
            self.screen.note(f"svir: {line}")
        if completion is not None:
            self.screen.note(f"[{answers.measured(completion)}]")
            self._keep(asked, completion.message, partial=completion.finish_reason != "stop")
        elif error is not None and error.partial is not None and answers.has_come(error):
            self._keep(asked, error.partial.message, partial=True)
        else:
            self.screen.note("the question is not kept: /retry asks it again")

    def _show(self, event: svir.Event) -> None:
        if event.type == "reasoning":
            self._reasons = True
            if self.screen.out_is_terminal:
                self.screen.raw(self.screen.dimmed(event.text))
        elif event.type == "text":
            self._end_reasoning("\n\n")
            self.screen.answer(event.text)

    def _end_reasoning(self, space: str) -> None:
        if self._reasons and self.screen.out_is_terminal:
            self.screen.raw(space)
        self._reasons = False

    def _keep(self, asked: list[Any], answer: svir.Assistant, *, partial: bool) -> None:
        # Calls are not run here, and a call without its result is refused by servers.
        answer = svir.Assistant(answer.text)
        self.history.messages = [*asked, answer]
        if partial:
            self.history.partial.append(answer)
        self.images, self.files = [], []
        if self.history.path is not None:
            self._save(self.history.path)

    def _save(self, path: str) -> None:
        self.history.model = self.model
        try:
            self.history.save(path)
        except OSError as error:
            self.screen.note(f"svir: cannot write {path}: {error.strerror or error}")

    # What a line may begin with

    def add_image(self, path: str) -> None:
        self._add(path, self.images)

    def add_file(self, path: str) -> None:
        self._add(path, self.files)

    def _add(self, path: str, added: list[str]) -> None:
        path = os.path.abspath(os.path.expanduser(path.strip("\"'")))
        if not os.path.isfile(path):
            self.screen.note(f"{path} is not a file")
            return
        added.append(path)
        self.screen.note(f"added to the next message: {path}")

    def drop(self, _: str) -> None:
        self.images, self.files = [], []
        self.screen.note("nothing is added to the next message")

    def use_model(self, name: str) -> None:
        self.model = name or self.model
        self.screen.note(f"the model is {self.model}")

    def list_models(self, _: str) -> None:
        try:
            names = [model.id for model in self.client.list_models()]
        except svir.Error as error:
            answers.report(error, self.screen, self.place)
        else:
            self.screen.note("\n".join(names) or "the server lists no model")

    def use_system(self, text: str) -> None:
        self.history.system = text or None
        self.screen.note("the system prompt is set" if text else "there is no system prompt")

    def retry(self, _: str) -> None:
        before, last = self.history.messages, self.last
        if len(before) >= 2 and (last is None or before[-2] is last):
            *before, last, _answer = before  # it stays until another one comes
        if isinstance(last, svir.User):
            self._answer(last, before)
        else:
            self.screen.note("nothing was asked yet")

    def clear(self, _: str) -> None:
        self.history.messages, self.history.partial, self.last = [], [], None
        self.images, self.files = [], []
        self.screen.note("the conversation is forgotten")

    def save(self, path: str) -> None:
        if not path:
            self.screen.note("/save FILE")
            return
        self._save(os.path.expanduser(path))

    def help(self, _: str) -> None:
        self.screen.note(HELP)


def _prepare_input(screen: Screen) -> None:
    if sys.stdin is None:
        raise options.Usage("there is no stdin to chat on")
    reconfigure = getattr(sys.stdin, "reconfigure", None)
    if reconfigure is not None:  # a byte that is no text must not end the chat
        reconfigure(errors="surrogateescape")
    if screen.out_is_terminal:
        with contextlib.suppress(ImportError):  # Windows' Python has none; its console edits lines
            import readline  # noqa: F401
