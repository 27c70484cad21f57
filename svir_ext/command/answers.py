"""One answer: `ask`, `models`, `replay`; and what every command says of how an answer ended."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from typing import Any, Callable

import svir

from . import BROKEN, INTERRUPTED, NO_ANSWER, NO_FIT, STOPPED, WHOLE, WITHHELD, WRONG_USE, options
from .terminal import Screen

TICK = 0.02  # seconds between two looks at what has arrived; nobody sees less

# -- Commands -------------------------------------------------------------------------------------


def ask(arguments: argparse.Namespace, place: options.Server, screen: Screen) -> int:
    """One answer on stdout."""
    schema = None if arguments.schema is None else _schema(arguments)
    message = options.parts(_prompt(arguments), arguments.image, arguments.file)
    if not message:
        raise options.Usage("nothing to ask: give words, or a file, or text on stdin")
    with options.client(arguments, place) as client:
        more = {} if schema is None else {"response_format": schema}
        model = options.chosen_model(arguments, client)
        request = options.request(arguments, model, [svir.User(*message)], **more)
        printed = _Printed(screen, arguments, quiet=arguments.json or schema is not None)
        completion, error = read(client.stream(request), printed.show)
    return printed.end(completion, error, place, schema)


def models(arguments: argparse.Namespace, place: options.Server, screen: Screen) -> int:
    """One model a line."""
    with options.client(arguments, place) as client:
        listed = client.list_models()
    if arguments.chat:
        from svir_ext.models import chat_models

        listed = chat_models(listed)
    if arguments.json:
        screen.line(to_json([model.to_dict() for model in listed]))
        return WHOLE
    for model in listed:
        screen.line(model.id if model.name in (None, model.id) else f"{model.id}  {model.name}")
    if not listed:
        screen.note("svir: the server lists no model")
    return WHOLE


def replay(arguments: argparse.Namespace, place: None, screen: Screen) -> int:
    """A recording as lines, or as the answer it holds."""
    from svir_ext import record

    recording = record.load(arguments.file)
    if arguments.svg:
        draw(recording, arguments.svg)
    how: Any = {"strict": not arguments.lenient, "accept": options.accepted(arguments)}
    if not (arguments.text or arguments.json):
        for line in record.lines(recording, **how):
            screen.line(line)
        decoded = recording.decode(**how)
        return exit_code(decoded.completion, decoded.error)
    backend = record.Replay(recording, speed=arguments.speed)
    with svir.Client("http://localhost", backend=backend, **how) as client:
        # Asks for nothing optional: a refusal is then the answer, and not tried again.
        stream = client.stream(svir.Request("recorded", "?", include_usage=False))
        printed = _Printed(screen, arguments, quiet=arguments.json)
        completion, error = read(stream, printed.show)
    return printed.end(completion, error, place)


def draw(recording: Any, path: str) -> None:
    """Draw when the pieces of a recorded answer came. Raises `Usage`."""
    from svir_ext import timeline

    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(timeline.svg(recording))
    except OSError as error:
        raise options.Usage(f"cannot write {path}: {error.strerror or error}") from None


def _prompt(arguments: argparse.Namespace) -> str:
    words = " ".join(arguments.prompt)
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        return words
    try:
        typed = sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise options.Usage(f"stdin is not UTF-8 (byte {error.start})") from None
    return "\n\n".join(text for text in (words, typed) if text.strip())


def _schema(arguments: argparse.Namespace) -> svir.JsonSchema:
    value = read_json(arguments.schema, "the schema")
    if not isinstance(value, dict):
        raise options.Usage(f"{arguments.schema} holds no JSON Schema: that is an object")
    return svir.JsonSchema("answer", value, strict=arguments.strict_schema)


def read_json(path: str, what: str) -> Any:
    """What a JSON file holds. Raises `Usage`."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            return json.load(file)
    except OSError as error:
        raise options.Usage(f"cannot read {what} {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise options.Usage(f"{what} {path} is not JSON in UTF-8: {error}") from None


# -- Reading --------------------------------------------------------------------------------------


def read(
    stream: svir.Stream, show: Callable[[svir.Event], object]
) -> tuple[svir.Completion | None, svir.Error | None]:
    """Show the events as they come. The whole answer, or the error with what had arrived.

    A thread reads and this one waits in short sleeps, so that Ctrl-C ends the wait on Windows too,
    where it does not wake a read from a socket. The error is then `Cancelled`.
    """
    work = svir.Background(stream)
    try:
        while not work.done:
            for event in work.poll():
                show(event)
            time.sleep(TICK)
    except BaseException as error:
        work.cancel()
        work.join(5)
        if not isinstance(error, KeyboardInterrupt):
            raise
        for event in work.poll():
            show(event)
    try:
        return work.result(), None
    except svir.Error as error:
        return None, error


class _Printed:
    """An answer on the screen, as it comes and at its end."""

    def __init__(self, screen: Screen, arguments: argparse.Namespace, *, quiet: bool) -> None:
        self.screen, self.quiet = screen, quiet
        self.json, self.stats = arguments.json, arguments.stats
        self.reasoning, self.reasons = arguments.reasoning, False

    def show(self, event: svir.Event) -> None:
        if event.type == "reasoning" and self.reasoning:
            self.reasons = True
            self.screen.aside(event.text)
        elif event.type == "text":
            if self.reasons:
                self.reasons = False
                self.screen.aside("\n\n")
            if not self.quiet:
                self.screen.answer(event.text)

    def end(
        self,
        completion: svir.Completion | None,
        error: svir.Error | None,
        place: options.Server | None,
        schema: svir.JsonSchema | None = None,
    ) -> int:
        """What is still to be printed, and the exit code."""
        if self.reasons:
            self.screen.aside("\n")
        self.screen.end_line()
        code, why = exit_code(completion, error), told(completion, error, place)
        if completion is not None and schema is not None and code == WHOLE:
            code, why = self._fitted(completion, schema)
        elif schema is not None and not self.json:
            self.screen.note((completion or _partial(error)).text)
        if self.json:
            self.screen.line(to_json(as_plain(completion, error, place)))
        if self.stats and completion is not None:
            self.screen.note(measured(completion))
        for line in why:
            self.screen.note(f"svir: {line}")
        return code

    def _fitted(
        self, completion: svir.Completion, schema: svir.JsonSchema
    ) -> tuple[int, list[str]]:
        try:
            completion.parse(lambda value: _validate(value, schema.schema))
        except ValueError as error:
            if not self.json:  # nothing that came is lost, and no program takes it for the answer
                self.screen.note(completion.text)
            return NO_FIT, [f"the answer does not fit the schema: {error}"]
        if not self.json:
            self.screen.answer(completion.text)
            self.screen.end_line()
        return WHOLE, []


def _validate(value: Any, schema: dict[str, Any]) -> None:
    """Against the whole schema where `jsonschema` is installed, else that it is JSON at all."""
    try:
        jsonschema: Any = importlib.import_module("jsonschema")
    except ImportError:
        return
    try:
        jsonschema.validate(value, schema)
    except jsonschema.ValidationError as error:
        path = "".join(f"[{step!r}]" for step in error.absolute_path)
        raise ValueError(f"at ${path}: {error.message}") from None
    except jsonschema.SchemaError as error:
        raise ValueError(f"the schema itself is wrong: {error.message}") from None


# -- How it ended ---------------------------------------------------------------------------------


def exit_code(completion: svir.Completion | None, error: svir.Error | None) -> int:
    """What the exit codes say of an answer."""
    if completion is not None:
        reason = completion.finish_reason or ""
        early = {"length": STOPPED, "tool_calls": STOPPED}
        return {**early, "content_filter": WITHHELD, "refusal": WITHHELD}.get(reason, WHOLE)
    if isinstance(error, svir.Cancelled):
        return INTERRUPTED
    if isinstance(error, (svir.ConfigError, svir.AttachmentError)):
        return WRONG_USE
    if isinstance(error, svir.ContentFiltered):
        return WITHHELD
    return BROKEN if error is not None and has_come(error) else NO_ANSWER


def has_come(error: svir.Error) -> bool:
    """Whether anything of an answer had arrived."""
    partial = _partial(error)
    return bool(partial.text or partial.reasoning or partial.partial_tool_calls)


def _partial(error: svir.Error | None) -> svir.Completion:
    partial = None if error is None else error.partial
    return svir.Completion() if partial is None else partial


ENDS = {
    "length": "the answer was cut at its limit of tokens (--max-tokens, or the server's own)",
    "tool_calls": "the model wants to call a tool, and this command runs none",
    "content_filter": "a content filter cut the answer",
    "refusal": "the model refused",
}


def told(
    completion: svir.Completion | None, error: svir.Error | None, place: options.Server | None
) -> list[str]:
    """What to say of an answer that is not whole: what happened, and the server's own words."""
    if completion is not None:
        return [ENDS[completion.finish_reason]] if completion.finish_reason in ENDS else []
    if error is None:
        return []
    came = has_come(error)
    if isinstance(error, svir.Cancelled):
        return ["stopped: the answer is partial" if came else "stopped before anything came"]
    lines = [str(error)]
    if error.server_message:
        words = error.server_message if place is None else place.hide(error.server_message)
        lines.append(f"the server says: {words}")
    if error.kind == "unauthorized" and place is not None and place.key is None:
        lines.append(f"no key was sent: {place.key_note}")
    return [*lines, "the answer is partial"] if came else lines


def report(error: svir.Error, screen: Screen, place: options.Server | None) -> int:
    """Say what happened, give the exit code."""
    for line in told(None, error, place):
        screen.note(f"svir: {line}")
    return exit_code(None, error)


def measured(completion: svir.Completion) -> str:
    """Tokens and seconds, as far as they are known."""
    said = []
    if completion.usage is not None:
        said.append(count(completion.usage.completion_tokens, "token"))
    timing = completion.timing
    if timing is not None and timing.tokens_per_second is not None:
        said.append(f"{timing.tokens_per_second:.1f} tokens/s")
    if timing is not None:
        said.append(f"first after {timing.first_token:.2f} s")
    return ", ".join(said) or "no token came"


def count(number: int, what: str) -> str:
    """ "1 token", "2 tokens"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def as_plain(
    completion: svir.Completion | None, error: svir.Error | None, place: options.Server | None
) -> dict[str, Any]:
    """The completion as a plain dict; of a failure, what happened and what had arrived."""
    if completion is not None:
        return completion.to_dict()
    if error is None:
        return {}
    plain = {"kind": error.kind, "message": str(error), **_flags(error)}
    if error.server_message:
        words = error.server_message
        plain["server_message"] = words if place is None else place.hide(words)
    return {"error": plain, "partial": _partial(error).to_dict()}


def _flags(error: svir.Error) -> dict[str, Any]:
    names = "status retryable retry_after unsent in_stream".split()
    return {name: getattr(error, name) for name in names}


def to_json(value: Any) -> str:
    """ASCII, so that no console and no code page can change it."""
    return json.dumps(value, indent=2, allow_nan=False)
