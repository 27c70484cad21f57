"""The command `svir`: chat, ask, models, check, replay. `python -m svir_ext --help` shows them.

It is made for people at a terminal and for scripts; a program calls `svir` itself. Only `main` is
public. What each command prints, its options and its exit codes are in docs/command.md.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
from typing import TYPE_CHECKING, Any, Callable, Sequence

import svir

if TYPE_CHECKING:
    from . import terminal

__all__ = ["main"]

# Exit codes. 1 is Python's own, for a fault of the command itself.
WHOLE, FAULT, WRONG_USE, NO_ANSWER, BROKEN, STOPPED, WITHHELD, NO_FIT = range(8)
INTERRUPTED, NOBODY_READS = 130, 141  # what a shell says of SIGINT and SIGPIPE

EXIT_CODES = """exit codes:
  0    the answer is whole (check: all is well with the options given)
  1    a fault of the command, or its output could not be written
  2    wrong use: an argument, a URL, a key or a file that cannot be used
  3    no answer: no connection, or the server refused or failed
  4    the answer broke off, or could not be read to its end: what had arrived was given
  5    the answer stopped early: at its limit of tokens, or to call a tool
  6    withheld: the model refused, or a content filter cut in
  7    the answer does not fit --schema
  130  interrupted (Ctrl-C)
  141  nobody reads the output any more
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (`sys.argv` without its first), give its exit code.

    Raises SystemExit as argparse does: 0 after --help, 2 for arguments that cannot be used.
    """
    from . import terminal

    screen = terminal.Screen()
    try:
        try:
            return _run(argv, screen)
        finally:  # what is still in a buffer fails here, where it can be told
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        terminal.silence_stdout()
        if terminal.is_gone(error):
            return NOBODY_READS
        screen.note(f"svir: the output cannot be written: {error.strerror or error}")
        return FAULT


def _run(argv: Sequence[str] | None, screen: terminal.Screen) -> int:
    from . import options
    from .answers import report

    arguments, place = parser().parse_args(argv), None
    run: Callable[..., int] = arguments.run
    try:
        if arguments.asks:
            place = options.server(arguments)
        return run(arguments, place, screen)
    except options.Usage as error:
        screen.note(f"svir: {error}")
        return WRONG_USE
    except svir.Error as error:
        return report(error, screen, place)


def parser() -> argparse.ArgumentParser:
    """Of all commands."""
    top = argparse.ArgumentParser(
        prog="svir",
        description="Talk to any server that speaks the OpenAI chat completions API.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"svir {svir.__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in (_add_chat, _add_ask, _add_models, _add_check, _add_replay):
        add(commands)
    return top


def _command(commands: Any, name: str, help: str, about: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help,
        description=about.strip(),
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.set_defaults(run=functools.partial(_call, name), asks=name != "replay")
    return made


def _call(name: str, arguments: argparse.Namespace, place: Any, screen: Any) -> int:
    module = importlib.import_module(f"{__name__}.{MODULES[name]}")
    return int(getattr(module, name)(arguments, place, screen))


# Which module has a command's function; only the one that runs is imported.
MODULES = {
    "ask": "answers",
    "chat": "chat",
    "check": "check",
    "models": "answers",
    "replay": "answers",
}


def _add_chat(commands: Any) -> None:
    from . import options

    made = _command(
        commands,
        "chat",
        "a conversation in the terminal",
        """
A conversation in the terminal. /help there lists what it can do: pictures, files, another model.
Ctrl-C stops an answer and keeps the chat, with what had arrived. Ctrl-D leaves.
""",
    )
    options.add_server(made)
    options.add_request(made)
    made.add_argument(
        "--history",
        metavar="FILE",
        help="go on from this JSON file, and keep the conversation in it; it holds no key",
    )


def _add_ask(commands: Any) -> None:
    from . import options

    made = _command(
        commands,
        "ask",
        "one answer, on stdout",
        """
One answer, on stdout as it arrives. The prompt is the words given, then what stdin holds, unless
stdin is a terminal. All else is said on stderr, and by the exit code.

  svir ask Why is the sky blue?
  git diff | svir ask --system "Review this." --max-tokens 500
""",
    )
    made.add_argument("prompt", metavar="WORD", nargs="*", help="the prompt")
    options.add_server(made)
    options.add_request(made)
    form = made.add_argument_group("what is printed")
    form.add_argument(
        "--json",
        action="store_true",
        help="the completion as JSON, in svir's own form; after a failure an object with `error` "
        "and `partial`",
    )
    form.add_argument(
        "--schema",
        metavar="FILE",
        help="ask for JSON of this JSON Schema, and print it once it is whole",
    )
    form.add_argument("--strict-schema", action="store_true", help="ask the server to enforce it")
    form.add_argument("--reasoning", action="store_true", help="show the reasoning, on stderr")
    form.add_argument("--stats", action="store_true", help="tokens and seconds, on stderr")


def _add_models(commands: Any) -> None:
    from . import options

    made = _command(
        commands, "models", "what the server lists", "The models that the server lists."
    )
    options.add_server(made, positional=True)
    made.add_argument("--chat", action="store_true", help="leave out what does not chat, by name")
    made.add_argument("--json", action="store_true", help="a list of objects with id and name")


def _add_check(commands: Any) -> None:
    from . import options

    made = _command(
        commands,
        "check",
        "what works with a server, step by step, and what to change",
        """
Goes to a server step by step, the way svir does: the URL, the proxy, the address, TLS, HTTP, the
key, the models, one short answer. Says for each what was found, and at the end what to change.
It asks for one short answer and sends the key to this server only.
""",
    )
    options.add_server(made, positional=True)
    options.add_request(made)
    made.add_argument("--json", action="store_true", help="the report as JSON, without secrets")
    made.add_argument("--svg", metavar="FILE", help="draw when the pieces of the answer came")


def _add_replay(commands: Any) -> None:
    from . import options

    made = _command(
        commands,
        "replay",
        "read a recorded exchange again",
        """
Reads a recorded exchange again (of svir_ext.record, or of --record here), and shows what was sent,
what came when, and how it ended. No server is asked.
""",
    )
    made.add_argument("file", metavar="FILE", help="the recording")
    made.add_argument("--text", action="store_true", help="print the answer, as `svir ask` would")
    made.add_argument("--json", action="store_true", help="print the completion as JSON")
    made.add_argument(
        "--speed", metavar="X", type=float, help="with --text: 1 as it came, 2 twice as fast"
    )
    made.add_argument("--svg", metavar="FILE", help="draw when the pieces of the answer came")
    made.add_argument("--reasoning", action="store_true", help="show the reasoning, on stderr")
    made.add_argument("--stats", action="store_true", help="tokens and seconds, on stderr")
    options.add_reading(made)
