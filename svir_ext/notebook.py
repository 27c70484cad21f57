"""A stream that shows itself in a notebook as it arrives.

    from svir_ext.notebook import show

    answer = show(client.stream(request))          # the cell shows it, and ends with it
    answer.completion.usage

    answer = show(client.stream(request), wait=False)   # the cell ends at once; answer.stop()

In Jupyter and its kin: Markdown, with the reasoning folded, calls of tools as code, and at the
end the tokens, the seconds and the rate. With `wait=False` and ipywidgets there is a Stop button.
Elsewhere the text goes to `sys.stdout`, with what a terminal would act on left out.
IPython is not imported, only used where it runs already.

Interrupting the kernel (Ctrl-C) closes the stream: what had arrived stays on the screen and in
`answer`. To have `answer` then, make it first: `answer = Live(stream)`, and then `answer.show()`.

Whoever wrote into the prompt may have had a hand in the answer. So nothing of it can run: no HTML,
no link but http, https and mailto, no image is fetched (it becomes a link), and no diagram.
"""

from __future__ import annotations

import importlib
import re
import sys
import threading
import time
from typing import Any, Iterator

import svir

__all__ = ["Live", "markdown", "show"]

_POLL = 0.05  # seconds


def show(stream: svir.Stream, *, wait: bool = True, every: float = 0.1) -> Live:
    """Show a stream as it arrives, redrawn every `every` seconds at most; see `Live`."""
    return Live(stream, every=every).show(wait=wait)


class Live:
    """An answer on the screen. Long ones are redrawn less often, so that no front end drowns.

    - `text`, `reasoning`: what has arrived
    - `completion`: the answer once it is whole, else None
    - `error`: why it is not: `svir.Cancelled` when it was stopped
    - `done`, and `seconds` since `show()`, or until the end
    """

    def __init__(self, stream: svir.Stream, *, every: float = 0.1) -> None:
        if not isinstance(stream, svir.Stream):
            raise svir.ConfigError("Live shows a svir.Stream: client.stream(request)")
        self._stream, self._every = stream, every
        self._parts: dict[str, list[str]] = {"text": [], "reasoning": []}
        self._calls: dict[int, tuple[str, str]] = {}  # name and arguments
        self.completion: svir.Completion | None = None
        self.error: BaseException | None = None
        self.done = False
        self._version = 0
        self._start: float | None = None
        self._end = 0.0
        self._screen: Any = None
        self._thread: threading.Thread | None = None
        self._cell: object = None

    @property
    def text(self) -> str:
        return "".join(self._parts["text"])

    @property
    def reasoning(self) -> str:
        return "".join(self._parts["reasoning"])

    @property
    def seconds(self) -> float:
        if self._start is None:
            return 0.0
        return (self._end if self.done else time.monotonic()) - self._start

    def show(self, *, wait: bool = True) -> Live:
        """Read the stream and draw it, once; gives back `self`.

        With `wait` until its end: raises the error of a stream that failed, but none for one that
        was stopped. Else in a thread, and only `result()` raises.
        """
        if self._start is not None:
            raise RuntimeError("it is shown already")
        self._start = time.monotonic()
        self._cell, self._screen = _cell(), _screen(self, wait)
        self._draw()
        if not wait:
            self._thread = threading.Thread(target=self._run, name="svir-show", daemon=True)
            self._thread.start()
            return self
        self._run()
        if self.error is not None and not isinstance(self.error, svir.Cancelled):
            raise _bare(self.error)
        return self

    def stop(self) -> None:
        """End the stream, from any thread; what has arrived stays. Never waits."""
        self._stream.close()

    def result(self) -> svir.Completion:
        """Wait for the end; the answer, or raises the stream's error."""
        if self._thread is not None:
            self._thread.join()
        if self.completion is None:
            raise RuntimeError("not shown yet") if self.error is None else _bare(self.error)
        return self.completion

    def __repr__(self) -> str:
        state = "stopped" if isinstance(self.error, svir.Cancelled) else "failed"
        if self.completion is not None:
            state = "whole"
        elif not self.done:
            state = "arriving" if self._start is not None else "not shown"
        return f"<Live {state}, {len(self.text)} characters>"

    def _ipython_display_(self) -> None:
        """As the last value of a cell; the cell that shows it already does not show it twice."""
        if self._start is None or self._cell is None or self._cell != _cell():
            _display(self._bundle(), raw=True)

    # Reading

    def _run(self) -> None:
        try:
            for events in self._batches():
                for event in events:
                    self._take(event)
                self._draw()
        except svir.Error as error:
            self.error = _bare(error)
        except BaseException as error:  # an interrupt, or a mistake in a layer
            self._stream.close()
            bad = isinstance(error, Exception)
            self.error = error if bad else svir.Cancelled("interrupted")
            if self._thread is None:
                raise
        finally:
            self.done, self._end = True, time.monotonic()
            self._draw()
            self._screen.end()

    def _batches(self) -> Iterator[list[svir.Event]]:
        """What has arrived, again and again: also when nothing comes, the last piece is drawn."""
        try:
            work = svir.Background(self._stream)
        except RuntimeError:  # a Python without threads, in a browser
            for event in self._stream:
                yield [event]
            return
        try:
            while not work.done:
                yield work.poll()
                work.join(_POLL)
            work.result()
        finally:
            work.cancel()

    def _take(self, event: svir.Event) -> None:
        self._version += 1
        if isinstance(event, svir.Completed):
            self.completion = event.completion
        elif isinstance(event, svir.ToolCallDelta):
            name, arguments = self._calls.setdefault(event.index, ("", ""))
            self._calls[event.index] = name + event.name, arguments + event.arguments
        else:
            self._parts[event.type].append(event.text)

    # Drawing

    def _draw(self) -> None:
        self._screen.draw(self)

    def _said_calls(self) -> list[str]:
        return [f"{name}({arguments})" for name, arguments in self._calls.values()]

    def _figures(self) -> str:
        """Tokens, seconds, rate: what is known of them."""
        done = self.completion
        said = [f"{self.seconds:.1f} s"]
        if done is not None and done.usage is not None:
            usage = done.usage
            said.insert(0, f"{usage.prompt_tokens} tokens in, {usage.completion_tokens} out")
        if done is not None and done.timing is not None:
            said.append(f"first after {done.timing.first_token:.2f} s")
            rate = done.timing.tokens_per_second
            said += [] if rate is None else [f"{rate:.1f} tokens/s"]
        if done is not None and done.finish_reason != "stop":
            said.insert(0, str(done.finish_reason))
        return ", ".join(said)

    def _failure(self) -> tuple[str, str] | None:
        """The kind of an error, and words for it."""
        error = self.error
        if error is None:
            return None
        if isinstance(error, svir.Cancelled):
            return "stopped", "the answer is not whole"
        told = getattr(error, "server_message", None)
        return getattr(error, "kind", "error"), f"{error}" + (f": {told}" if told else "")

    def _bundle(self) -> dict[str, str]:
        return {"text/markdown": self._markdown(), "text/plain": _clean(self._plain())}

    def _markdown(self) -> str:
        parts: list[str] = []
        if self.reasoning:
            # Open while there is nothing else to read.
            state = "" if self.text or self.done else " open"
            head = f"<details{state}><summary>Reasoning</summary>"
            parts += [head, markdown(self.reasoning), "</details>"]
        parts.append(markdown(self.text))
        parts += [_fenced(call, "") for call in self._said_calls()]
        failure = self._failure()
        if failure is not None:
            parts.append(f"**{_literal(failure[0])}**: {_literal(failure[1])}")
        parts.append(f"*{_literal(self._figures())}*" if self.done else "…")
        return "\n\n".join(part for part in parts if part)

    def _plain(self) -> str:
        parts = [self.text, *self._said_calls()]
        failure = self._failure()
        if failure is not None:
            parts.append(f"{failure[0]}: {failure[1]}")
        if self.done:
            parts.append(f"[{self._figures()}]")
        return "\n\n".join(part for part in parts if part)


# -- Markdown that cannot run ---------------------------------------------------------------------

_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})[ \t]*([A-Za-z0-9_+#.-]*)[^`\n]*\Z")
# Front ends draw these instead of showing them.
_DRAWN = frozenset(("mermaid", "math", "latex", "vega", "vega-lite", "geojson", "topojson", "stl"))


def markdown(text: str) -> str:
    """Markdown of a stranger as Markdown that holds no HTML, no image and only plain links.

    Code between fences stays as it is, but for the fences: they are written anew, each as one that
    no parser can see otherwise. What looks like one elsewhere is shown as text.
    """
    out: list[str] = []
    prose: list[str] = []
    lines = iter(_LINE_BREAK.sub("\n", text).replace("\0", "\ufffd").split("\n"))
    for line in lines:
        fence = _FENCE.match(line)
        if fence is None:
            prose.append(line)
            continue
        out.append(_prose("\n".join(prose)))
        prose = []
        out.append(_fenced("\n".join(_code(lines, fence.group(1))), fence.group(2)))
    out.append(_prose("\n".join(prose)))
    return "\n\n".join(part for part in out if part.strip())


# CommonMark's line endings; the others would be one to us and none to a parser, or the reverse.
_LINE_BREAK = re.compile("\r\n?|[\v\f\x1c-\x1e\x85\u2028\u2029]")


def _code(lines: Iterator[str], fence: str) -> Iterator[str]:
    """The lines up to the closing fence, or to the end."""
    for line in lines:
        bare = line.strip()
        if bare and not bare.strip(fence[0]) and len(bare) >= len(fence):
            return
        yield line


def _fenced(code: str, info: str) -> str:
    ticks = max((len(run) for run in re.findall("`+", code)), default=0)
    fence = "`" * max(3, ticks + 1)
    info = "" if info.lower() in _DRAWN else info
    return f"{fence}{info}\n{code}\n{fence}"


# Whatever else begins with "<" may be a tag, a comment or an autolink. Comparisons stay.
_TAG = re.compile(r"\\?<(?![ \d=])")
_LINK = re.compile(r"\\?\](?=[(:])(?!\(\s*(?:https?://|mailto:)|:[ \t]*(?:https?://|mailto:))")
_IMAGE = re.compile(r"\\?!(?=\[)")
_RUN = re.compile(r"`{3,}|~{3,}|:{3,}")
_SPAN = re.compile(r"(?<!`)(`{1,2})(?!`)([^\n]+?)(?<!`)\1(?!`)")
_MATH = re.compile(r"\$\$[^$]+\$\$|\$(?!\s)[^$\n]+(?<!\s)\$")
# Commands of MathJax that link, style or define.
_COMMAND = re.compile(
    r"\\(?=(?:href|url|html\w*|class|cssId|style|require|unicode|bbox|def|let|csname|\w*newc\w+)"
    r"(?![A-Za-z]))"
)


def _prose(text: str) -> str:
    """Text without fences, in which nothing can run wherever a parser sees its code and math."""
    text = _RUN.sub(lambda match: _literal(match.group()), text)
    out, at = [], 0
    for span in _SPAN.finditer(text):
        out += [_harmless(text[at : span.start()]), _span(span)]
        at = span.end()
    out.append(_harmless(text[at:]))
    return "".join(out).strip("\n")


def _span(span: re.Match[str]) -> str:
    """Code in a line. What could be more, if a parser took it for text, is spelled out."""
    code = span.group(2)
    if not re.search(r"[<\]!\\]", code):
        return span.group()
    return f"<code>{_literal(code)}</code>"


def _harmless(text: str) -> str:
    text = _MATH.sub(lambda match: match.group().replace("<", r"\lt "), text)
    text = _COMMAND.sub("&#92;", text)
    text = _IMAGE.sub("&#33;", text)
    text = _LINK.sub("&#93;", text)
    return _TAG.sub("&lt;", text)


def _literal(text: str) -> str:
    """The text as Markdown that shows it, in one line."""
    text = re.sub(r"[\s\x00-\x1f]+", " ", text)
    return re.sub(r"[!-/:-@\[-`{-~]", lambda match: f"&#{ord(match.group())};", text)


# -- Screens --------------------------------------------------------------------------------------


def _shell() -> Any:
    """IPython's shell where it has a front end that draws, else None."""
    get = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = None if get is None else get()
    names = [kind.__name__ for kind in type(shell).__mro__]
    return None if "TerminalInteractiveShell" in names else shell


def _cell() -> object:
    return getattr(_shell(), "execution_count", None)


def _screen(live: Live, wait: bool) -> Any:
    shell = _shell()
    return _Text() if shell is None else _Front(live, wait)


def _display(*args: Any, **options: Any) -> Any:
    return importlib.import_module("IPython.display").display(*args, **options)


class _Front:
    """A notebook's front end: one output that is drawn again, and perhaps a button."""

    def __init__(self, live: Live, wait: bool) -> None:
        self._output: Any = None
        self._drawn, self._next = -1, 0.0
        self._button: Any = None
        # A click waits until the running cell is over: also where the kernel has subshells, as
        # ipykernel 7.4 sends it to the shell that made the button. The kernel's interrupt stops.
        if not wait:
            self._make_button(live)

    def _make_button(self, live: Live) -> None:
        try:
            ipywidgets = importlib.import_module("ipywidgets")
        except ImportError:
            return
        self._button = ipywidgets.Button(description="Stop", tooltip="End the answer")
        self._button.on_click(lambda _: live.stop())
        self._place: Any = _display(self._button, display_id=True)

    def draw(self, live: Live) -> None:
        now = time.monotonic()
        if not live.done and (now < self._next or live._version == self._drawn):
            return
        bundle = live._bundle()
        # All of it is sent each time, so a long answer is sent less often.
        pause = live._every * max(1.0, len(bundle["text/markdown"]) / 20_000)
        self._drawn, self._next = live._version, now + pause
        if self._output is None:
            self._output = _display(bundle, raw=True, display_id=True)
        else:
            self._output.update(bundle, raw=True)

    def end(self) -> None:
        if self._button is not None:
            self._place.update({"text/plain": "", "text/html": ""}, raw=True)
            self._button.close()


class _Text:
    """Where nothing can be drawn again: the text as it comes, then the rest."""

    def __init__(self) -> None:
        self._written = 0

    def draw(self, live: Live) -> None:
        text = live.text
        self.write(text[self._written :])
        self._written = len(text)
        if live.done:
            self.write(("\n\n" if text else "") + live._plain()[len(text) :].lstrip("\n") + "\n")

    def write(self, text: str) -> None:
        out = sys.stdout
        if out is None or not text:  # a program without a console
            return
        encoding = getattr(out, "encoding", None) or "utf-8"
        out.write(_clean(text).encode(encoding, "replace").decode(encoding))
        out.flush()

    def end(self) -> None:
        pass


# What a terminal obeys instead of showing it.
_STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def _clean(text: str) -> str:
    return _STEERS.sub("", text)


def _bare(error: BaseException) -> BaseException:
    """The error to raise, where it is also kept: what is kept has no traceback, and no cycle."""
    if not isinstance(error, svir.Error):
        return error
    copy = type(error)(*error.args)
    copy.__dict__.update(error.__dict__)
    return copy
