"""Where a command writes: text that any console can show, and nothing that steers it."""

from __future__ import annotations

import errno
import os
import re
import sys
from typing import Any

# What a terminal obeys instead of showing: the C0 and C1 controls but for line break and tab, and
# the marks that reorder text (Unicode Technical Report 36, 2.3). One character each, so a sequence
# that is cut between two pieces is caught as well.
_STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """The text with every character that a terminal would obey written as an escape."""
    return _STEERS.sub(_escape, text.replace("\r\n", "\n"))


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


class Screen:
    """stdout for the answer, stderr for the words about it.

    An answer goes to a terminal as `visible` shows it, and to a pipe or a file as it came. Words
    are always made visible. What the encoding of a stream cannot hold is written as an escape.
    """

    def __init__(self) -> None:
        self.out, self.err = sys.stdout, sys.stderr
        for stream in (self.out, self.err):
            reconfigure = getattr(stream, "reconfigure", None)
            if reconfigure is not None:  # cp437, ascii: no letter may end the command
                reconfigure(errors="backslashreplace")
        self.out_is_terminal, self.err_is_terminal = map(_is_terminal, (self.out, self.err))
        self._plain = not _takes_colour()
        self._at_line_start = True

    def answer(self, text: str) -> None:
        """A piece of the answer, at once."""
        if text and self.out is not None:
            self._at_line_start = text.endswith("\n")
            self.out.write(visible(text) if self.out_is_terminal else text)
            self.out.flush()

    def line(self, text: str = "") -> None:
        """A line of our own on stdout."""
        if self.out is not None:
            self._at_line_start = True
            self.out.write(visible(text) + "\n")
            self.out.flush()

    def end_line(self) -> None:
        """Begin a new line on stdout, unless one has begun."""
        if not self._at_line_start:
            self.line()

    def note(self, text: str) -> None:
        """A line on stderr, dimmed on a terminal."""
        self.aside(text + "\n")

    def aside(self, text: str) -> None:
        """A piece of text on stderr, dimmed on a terminal."""
        if self.err is None:
            return
        text = visible(text)
        if self.err_is_terminal and not self._plain:
            text = re.sub(r"[^\n]+", lambda match: f"\x1b[2m{match.group()}\x1b[0m", text)
        try:
            self.err.write(text)
            self.err.flush()
        except OSError:  # nobody listens there; the exit code still tells
            pass

    def dimmed(self, text: str) -> str:
        """A piece of a line on stdout, dimmed where stdout is a terminal that can."""
        text = visible(text)
        return text if self._plain or not self.out_is_terminal else f"\x1b[2m{text}\x1b[0m"

    def raw(self, text: str) -> None:
        """What is made of `dimmed` and `visible` pieces already, on stdout."""
        if self.out is not None and text:
            self._at_line_start = text.endswith("\n")
            self.out.write(text)
            self.out.flush()


def _is_terminal(stream: Any) -> bool:
    try:
        return stream is not None and bool(stream.isatty())
    except ValueError:  # closed
        return False


def _takes_colour() -> bool:
    """NO_COLOR (no-color.org) and TERM=dumb say no; an old Windows console shows the escapes."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return os.name != "nt" or bool(os.environ.get("WT_SESSION") or os.environ.get("TERM"))


def is_gone(error: OSError) -> bool:
    """Whether the reader of a pipe has left: EPIPE, and EINVAL on Windows."""
    return isinstance(error, BrokenPipeError) or (os.name == "nt" and error.errno == errno.EINVAL)


def silence_stdout() -> None:
    """Else Python tries to write what is left when it ends, and complains."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError, AttributeError):
        pass
