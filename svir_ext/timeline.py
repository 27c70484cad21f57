"""The picture of a stream: when what arrived, as an SVG for a report or a page.

    with client.stream(request) as stream:
        timeline = Timeline(stream)
        for event in timeline: ...
    Path("answer.svg").write_text(svg(timeline), "utf-8")

    svg(load("bug.jsonl"))                    # a recording of svir_ext.record
    svg([(0.4, svir.TextDelta("Hel")), ...])  # seconds and events

Above the tokens a second, below a line for each moment in which something arrived, by what it was:
reasoning, content or tool calls. The wait for the first token and stalls are shaded; the end is a
line, red when it was an error. It is drawn for light and dark pages (prefers-color-scheme), and
holds no text of the answer, only its model's name and the kind of an error.
"""

from __future__ import annotations

import math
import re
import time
from typing import Any, Iterable, Iterator
from xml.sax.saxutils import escape

import svir

__all__ = ["Timeline", "svg"]


# -- What is measured -----------------------------------------------------------------------------


class Timeline:
    """A stream that is passed on, with the seconds of each event since the first was asked for.

    - `events`: (seconds, event), as far as they have come
    - `error`: what the stream ended with, if that was an error; it is raised as well
    - `end`: seconds of the last that happened
    - `first_token`, `gaps`, `tokens_per_second`: None or empty while there is nothing to tell
    """

    def __init__(self, stream: Iterable[svir.Event] = ()) -> None:
        self._stream = iter(stream)
        self._start: float | None = None
        self.events: list[tuple[float, svir.Event]] = []
        self.error: svir.Error | None = None
        self.end = 0.0

    def __iter__(self) -> Iterator[svir.Event]:
        return self

    def __next__(self) -> svir.Event:
        if self._start is None:
            self._start = time.monotonic()
        try:
            event = next(self._stream)
        except svir.Error as error:
            self.end = time.monotonic() - self._start
            # Without the traceback, whose frames would hold this.
            self.error = type(error)(*error.args)
            raise
        self.end = time.monotonic() - self._start
        self.events.append((self.end, event))
        return event

    @classmethod
    def of(cls, pairs: Iterable[tuple[float, svir.Event]], end: float | None = None) -> Timeline:
        """From seconds and events, such as `recording.events()`: an error of `svir` ends them.

        `end` is when it ended, by default the last event's seconds. Raises `svir.ConfigError` for
        seconds that are none, or that go back.
        """
        made = cls()
        try:
            for seconds, event in pairs:
                if not made.end <= seconds < 1e9:
                    raise svir.ConfigError("seconds begin at 0 and never go back")
                made.events.append((float(seconds), event))
                made.end = float(seconds)
        except svir.ConfigError:
            raise
        except svir.Error as error:
            made.error = type(error)(*error.args)
        made.end = max(made.end, 0.0 if end is None else end)
        return made

    @property
    def completion(self) -> svir.Completion | None:
        """The answer, when it is whole."""
        last = self.events[-1][1] if self.events else None
        return last.completion if isinstance(last, svir.Completed) else None

    @property
    def first_token(self) -> float | None:
        """Seconds until the first text, reasoning or call."""
        return next((seconds for seconds, _ in self._pieces()), None)

    @property
    def gaps(self) -> list[tuple[float, float]]:
        """From and to, in seconds, between each two events that showed something."""
        times = [seconds for seconds, _ in self._pieces()]
        return list(zip(times, times[1:]))

    @property
    def tokens_per_second(self) -> float | None:
        """From the first to the last token; pieces, where the server counted no tokens."""
        times = [seconds for seconds, _ in self._pieces()]
        if len(times) < 2 or times[-1] - times[0] < 0.05:
            return None
        # The first piece arrived at the window's start, so it is not part of what it took.
        return (len(times) - 1) * self._tokens_a_piece() / (times[-1] - times[0])

    def _pieces(self) -> Iterator[tuple[float, str]]:
        """Seconds and kind of each event that showed something."""
        for seconds, event in self.events:
            if not isinstance(event, svir.Completed):
                yield seconds, event.type

    def _tokens(self) -> int | None:
        completion = self.completion
        usage = None if completion is None else completion.usage
        return None if usage is None else usage.completion_tokens

    def _tokens_a_piece(self) -> float:
        tokens, pieces = self._tokens(), sum(1 for _ in self._pieces())
        return 1.0 if not tokens or not pieces else tokens / pieces


# -- The picture ----------------------------------------------------------------------------------

# By type of event: what the legend says, and its colours on light and on dark.
_KINDS = {
    "reasoning": ("reasoning", "#8250df", "#c297ff"),
    "text": ("content", "#0969da", "#58a6ff"),
    "tool_call": ("tool calls", "#bc4c00", "#f0883e"),
}
# By class: light and dark. The light ones are attributes as well, for viewers without CSS.
_COLOURS = {
    "page": ("#ffffff", "#0d1117"),
    "ink": ("#1f2328", "#e6edf3"),
    "dim": ("#59636e", "#9198a1"),
    "grid": ("#d1d9e0", "#3d444d"),
    "wait": ("#eaeef2", "#21262d"),
    "stall": ("#fff1c2", "#332808"),
    "fault": ("#cf222e", "#ff7b72"),
    **{kind: (light, dark) for kind, (_, light, dark) in _KINDS.items()},
}
_LEFT, _RIGHT = 56, 16
_SIZE = 12  # of the text
_RATE, _STRIP, _APART = 110, 34, 14  # heights


def svg(source: Any, *, title: str | None = None, width: int = 800) -> str:
    """A stream's picture, as the text of an SVG file.

    `source` is a `Timeline`, a recording, or (seconds, event) pairs. `title` is by default the
    model's name. `width` is in pixels, 320 or more; it scales with its page.
    """
    if width < 320:
        raise svir.ConfigError("a timeline is 320 pixels wide or more")
    return _Picture(_timeline(source), title, width).text()


def _timeline(source: Any) -> Timeline:
    if isinstance(source, Timeline):
        return source
    if hasattr(source, "events") and hasattr(source, "seconds"):  # of svir_ext.record
        return Timeline.of(source.events(), source.seconds)
    return Timeline.of(source)


class _Picture:
    def __init__(self, timeline: Timeline, title: str | None, width: int) -> None:
        self.timeline, self.width = timeline, width
        self.plot = width - _LEFT - _RIGHT
        self.span = timeline.end or 1.0
        # Shorter bars than a tenth of a second would show how the network cut the bytes.
        self.bins = max(1, min(self.plot // 8, int(self.span / 0.1)))
        self.pieces = list(timeline._pieces())
        self.out: list[str] = []
        completion = timeline.completion
        model = "" if completion is None else completion.model
        self.title = title if title is not None else model or "A stream"

    def x(self, seconds: float) -> float:
        return _LEFT + seconds / self.span * self.plot

    def text(self) -> str:
        y = self.head()
        top = y
        strip = top + _RATE + _APART
        bottom = strip + _STRIP
        self.shades(top, bottom)
        self.rate(top)
        self.strip(strip)
        self.axis(bottom)
        self.ending(top, bottom)
        height = bottom + 2 * _SIZE + 12
        return self.whole(height)

    # Text

    def words(self, x: float, y: float, text: str, kind: str = "ink", **more: str) -> None:
        given = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
        place = f'class="{kind}" x="{x:.1f}" y="{y:.1f}" fill="{_COLOURS[kind][0]}"'
        self.out.append(f"<text {place}{given}>{_xml(text)}</text>")

    def box(self, kind: str, x: float, y: float, width: float, height: float) -> None:
        self.out.append(
            f'<rect class="{kind}" x="{x:.2f}" y="{y:.2f}" width="{width:.2f}"'
            f' height="{height:.2f}" fill="{_COLOURS[kind][0]}"/>'
        )

    def head(self) -> float:
        """Title, legend and figures; where the plots begin."""
        y = 24.0
        legend = self.legend(y)
        self.words(_RIGHT, y, _fitted(self.title, legend - 2 * _RIGHT, 15), font_size="15",
                   font_weight="600")  # fmt: skip
        for line in _wrapped(self.figures(), self.width - 2 * _RIGHT):
            y += _SIZE + 7
            self.words(_RIGHT, y, line, "dim")
        if self.timeline.error is not None:
            y += _SIZE + 7
            said = f"ended in an error: {self.timeline.error.kind}"
            self.words(_RIGHT, y, said, "fault", font_weight="600")
        return y + 36

    def legend(self, y: float) -> float:
        """What the colours are, from the right; its left end."""
        right = self.width - float(_RIGHT)
        there = {kind for _, kind in self.pieces}
        for kind, (name, _, _) in reversed(list(_KINDS.items())):
            if kind in there:
                right -= _breadth(name, _SIZE)
                self.words(right, y, name)
                self.box(kind, right - 16, y - 10, 11, 11)
                right -= 32
        return right

    def figures(self) -> list[str]:
        timeline, said = self.timeline, []
        if timeline.first_token is not None:
            said.append(f"first token {_duration(timeline.first_token)}")
        if timeline.gaps:
            start, end = max(timeline.gaps, key=lambda gap: gap[1] - gap[0])
            said.append(f"longest gap {_duration(end - start)}")
        unit = "pieces" if timeline._tokens() is None else "tokens"
        rate = timeline.tokens_per_second
        if rate is not None:
            said.append(f"{rate:.1f} {unit}/s")
        count = timeline._tokens()
        said.append(_counted(len(self.pieces) if count is None else count, unit[:-1]))
        said.append(f"{_duration(timeline.end)} in all")
        completion = timeline.completion
        if completion is not None:
            said.append(f"finish {completion.finish_reason}")
        return said

    # Plots

    def shades(self, top: float, bottom: float) -> None:
        """The wait for the first token, and the stalls after it."""
        first = self.timeline.first_token
        waited = self.timeline.end if first is None else first
        self.shade("wait", 0.0, waited, top, bottom, "wait " + _duration(waited))
        for start, end in _stalls(self.timeline):
            self.shade("stall", start, end, top, bottom, _duration(end - start))

    def shade(
        self, kind: str, start: float, end: float, top: float, bottom: float, said: str
    ) -> None:
        left, right = self.x(start), self.x(end)
        self.box(kind, left, top, right - left, bottom - top)
        # A bar may reach in from either side, by its own width.
        if _breadth(said, _SIZE) / 2 + self.plot / self.bins <= (right - left) / 2:
            self.words((left + right) / 2, top + 15, said, "dim", text_anchor="middle")

    def rate(self, top: float) -> None:
        """Stacked bars: tokens a second, by kind."""
        bins = self.bins
        seconds = self.span / bins
        each = self.timeline._tokens_a_piece() / seconds
        counts: list[dict[str, float]] = [{} for _ in range(bins)]
        for at, kind in self.pieces:
            held = counts[min(bins - 1, int(at / seconds))]
            held[kind] = held.get(kind, 0.0) + each
        most = _nice(max([sum(held.values()) for held in counts] + [0.0]))
        self.scale(top, most)
        for number, held in enumerate(counts):
            y = top + _RATE
            for kind in (kind for kind in _KINDS if kind in held):
                height = held[kind] / most * _RATE
                y -= height
                self.box(kind, self.x(number * seconds) + 0.5, y, self.plot / bins - 1, height)

    def scale(self, top: float, most: float) -> None:
        for share in (0.0, 0.5, 1.0):
            y = top + _RATE * (1 - share)
            self.line("grid", _LEFT, y, _LEFT + self.plot, y)
            self.words(_LEFT - 8, y + 4, f"{most * share:g}", "dim", text_anchor="end")
        unit = "pieces/s" if self.timeline._tokens() is None else "tokens/s"
        self.words(_RIGHT, top - 14, unit, "dim")

    def strip(self, top: float) -> None:
        """A line for each pixel and kind that something arrived in: 2,000 events stay small."""
        lanes = [kind for kind in _KINDS if any(kind == each for _, each in self.pieces)]
        height = _STRIP / max(1, len(lanes))
        columns = sorted({(kind, int(self.x(at))) for at, kind in self.pieces})
        for kind, column in columns:
            # A line at the very end is drawn before it, or half of it would be outside.
            x = min(column, _LEFT + self.plot - 1.5)
            self.box(kind, x, top + lanes.index(kind) * height, 1.5, height - 1)

    def axis(self, y: float) -> None:
        self.line("grid", _LEFT, y, _LEFT + self.plot, y)
        step = _nice(self.span / (self.plot / 90))
        for number in range(int(self.span / step + 1e-9) + 1):
            x = self.x(number * step)
            self.line("grid", x, y, x, y + 5)
            label = f"{number * step:.10g}" + (" s" if number == 0 else "")
            x = min(x, self.width - _breadth(label, _SIZE) / 2)
            self.words(x, y + _SIZE + 8, label, "dim", text_anchor="middle")

    def ending(self, top: float, bottom: float) -> None:
        timeline = self.timeline
        if timeline.error is not None or timeline.completion is not None:
            x = self.x(timeline.end)
            kind = "dim" if timeline.error is None else "fault"
            self.line(kind, x, top - 6, x, bottom, 2 if kind == "fault" else 1)

    def line(
        self, kind: str, x1: float, y1: float, x2: float, y2: float, width: float = 1
    ) -> None:
        self.out.append(
            f'<line class="{kind}" x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}"'
            f' stroke="{_COLOURS[kind][0]}" stroke-width="{width:g}"/>'
        )

    def whole(self, height: float) -> str:
        said = ", ".join(self.figures())
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {height:g}"'
            f' width="{self.width}" height="{height:g}" role="img" font-size="{_SIZE}"'
            ' font-family="system-ui, sans-serif">'
        )
        page = f'<rect class="page" width="100%" height="100%" fill="{_COLOURS["page"][0]}"/>'
        named = [f"<title>{_xml(self.title)}</title>", f"<desc>{_xml(said)}</desc>"]
        return "\n".join([head, *named, _style(), page, *self.out, "</svg>"]) + "\n"


def _style() -> str:
    def rules(which: int) -> str:
        return "".join(
            f"rect.{name},text.{name}{{fill:{both[which]}}}line.{name}{{stroke:{both[which]}}}"
            for name, both in _COLOURS.items()
        )

    return f"<style>{rules(0)}@media (prefers-color-scheme: dark){{{rules(1)}}}</style>"


def _stalls(timeline: Timeline) -> list[tuple[float, float]]:
    """Gaps to look at: far longer than the usual one, and long enough to see."""
    gaps = timeline.gaps
    lengths = sorted(end - start for start, end in gaps)
    usual = lengths[len(lengths) // 2] if lengths else 0.0
    least = max(0.25, 8 * usual, timeline.end / 40)
    found = [gap for gap in gaps if gap[1] - gap[0] >= least]
    last = gaps[-1][1] if gaps else timeline.first_token
    # After the last token: the server, or the network, fell silent.
    if last is not None and timeline.end - last >= least:
        found.append((last, timeline.end))
    return found


def _nice(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, ..., in any magnitude."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(n * power for n in (1, 2, 5, 10, 20) if n * power >= value * (1 - 1e-9))


def _duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _breadth(text: str, size: float) -> float:
    """Pixels, rather too many than too few: no font is at hand to measure. CJK is square."""
    return size * sum(0.6 if ord(letter) < 0x1100 else 1.05 for letter in text)


def _fitted(text: str, breadth: float, size: float) -> str:
    text = " ".join(text.split())
    if _breadth(text, size) <= breadth:
        return text
    while text and _breadth(text + "…", size) > breadth:
        text = text[:-1]
    return text + "…"


def _wrapped(items: list[str], breadth: float) -> list[str]:
    lines: list[str] = []
    for item in items:
        longer = f"{lines[-1]} · {item}" if lines else item
        if lines and _breadth(longer, _SIZE) <= breadth:
            lines[-1] = longer
        else:
            lines.append(item)
    return lines


# What XML cannot hold in any form.
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _xml(text: str) -> str:
    return escape(_NO_XML.sub("\ufffd", text))
