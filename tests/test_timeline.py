"""svir_ext.timeline: the numbers, and the picture read back as XML."""

from __future__ import annotations

import itertools
import pathlib
import re
import xml.etree.ElementTree as ET
from typing import Any, Iterable, Iterator, List, Tuple

import pytest

import svir
from svir_ext.record import Recorder, load
from svir_ext.testing import CUT, MockServer, scripted, text_answer
from svir_ext.timeline import Timeline, svg

Pairs = List[Tuple[float, svir.Event]]
SVG = "{http://www.w3.org/2000/svg}"
REASONING, TEXT = svir.ReasoningDelta("r"), svir.TextDelta("t")
CALL = svir.ToolCallDelta(0, "id", "weather", "{}")
LEFT, RIGHT = 56.0, 784.0  # of the plot, in a picture of 800


# -- Help -----------------------------------------------------------------------------------------


def done(tokens: int | None = None, model: str = "qwen3-4b") -> svir.Completed:
    usage = None if tokens is None else svir.Usage(5, tokens, 5 + tokens)
    return svir.Completed(svir.Completion("t", finish_reason="stop", usage=usage, model=model))


def steady(number: int, kind: svir.Event = TEXT, start: float = 1.0, step: float = 0.05) -> Pairs:
    return [(start + step * place, kind) for place in range(number)]


def failing(pairs: Pairs, error: svir.Error) -> Iterator[tuple[float, svir.Event]]:
    yield from pairs
    raise error


class Picture:
    def __init__(self, source: Any, **options: Any) -> None:
        self.text = svg(source, **options)
        self.root = ET.fromstring(self.text)
        _, _, self.width, self.height = map(float, self.root.attrib["viewBox"].split())

    def all(self, tag: str, kind: str | None = None) -> list[Any]:
        found = self.root.iter(SVG + tag)
        return [each for each in found if kind in (None, each.get("class"))]

    def words(self, kind: str | None = None) -> list[str]:
        return [each.text or "" for each in self.all("text", kind)]

    def boxes(self, kind: str) -> list[tuple[float, float, float, float]]:
        names = ("x", "y", "width", "height")
        found = [
            tuple(float(each.attrib[name]) for name in names) for each in self.all("rect", kind)
        ]
        return found  # type: ignore[return-value]

    def bars(self, kind: str) -> list[tuple[float, float, float, float]]:
        """Those of the rate: its bottom is the middle grid of the three lines."""
        zero = max(float(line.attrib["y1"]) for line in self.all("line", "grid")[:3])
        return [box for box in self.boxes(kind) if box[1] > 30 and box[1] + box[3] <= zero + 0.1]

    def ticks(self, kind: str) -> list[tuple[float, float, float, float]]:
        return [box for box in self.boxes(kind) if box[2] == 1.5]


def extent(text: Any) -> tuple[float, float, float, float]:
    """Where a text is, by a font that is as wide as usual ones: left, top, right, bottom."""
    size = float(text.get("font-size", "12"))
    wide = 0.56 * size * len(text.text or "")
    x, y = float(text.attrib["x"]), float(text.attrib["y"])
    left = x - {"middle": wide / 2, "end": wide}.get(text.get("text-anchor", ""), 0.0)
    return left, y - 0.75 * size, left + wide, y + 0.2 * size


def check(picture: Picture) -> None:
    """What holds for every picture: all is inside, and no text lies on another or on a bar."""
    texts = [(each, extent(each)) for each in picture.all("text")]
    for each, (left, top, right, bottom) in texts:
        inside = (
            left >= -1 and right <= picture.width + 1 and top >= 0 and bottom <= picture.height
        )
        assert inside, f"{each.text!r} is outside"
    for (one, a), (two, b) in itertools.combinations(texts, 2):
        apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
        assert apart, f"{one.text!r} lies on {two.text!r}"
    for kind in ("reasoning", "text", "tool_call"):
        assert all(x + wide <= picture.width - 16 for x, _, wide, _ in picture.ticks(kind))
        for x, y, wide, high in picture.boxes(kind):
            assert 0 <= x <= x + wide <= picture.width
            assert 0 <= y <= y + high <= picture.height
            for each, (left, top, right, bottom) in texts:
                apart = x + wide <= left or right <= x or y + high <= top or bottom <= y
                assert apart, f"{each.text!r} lies on a bar"


MIXED: Pairs = [
    *steady(40, REASONING, 0.8), *steady(30, TEXT, 5.0), *steady(20, CALL, 6.7), (7.8, done(180)),
]  # fmt: skip
SOURCES: dict[str, Any] = {
    "nothing": list,
    "one": lambda: [(0.42, TEXT), (0.43, done(1))],
    "one-at-once": lambda: [(0.0, TEXT)],
    "one-quickly": lambda: [(0.12, TEXT), (0.13, done(1))],
    "one-in-a-tenth": lambda: [(0.1, TEXT), (0.1, done(1))],
    "only-the-end": lambda: [(3.0, done(0))],
    "ten": lambda: [*steady(10), (1.6, done(10))],
    "ten-without-usage": lambda: [*steady(10), (1.6, done())],
    "two-thousand": lambda: [*steady(2000, TEXT, 1.1, 0.02), (41.2, done(2400))],
    "hours": lambda: [*steady(500, TEXT, 100.0, 60.0), (30100.0, done(500))],
    "days": lambda: [*steady(10, TEXT, 10.0, 1e5), (1e6, done(10))],
    "stall": lambda: [*steady(20), *steady(20, TEXT, 9.0), (10.1, done(40))],
    "mixed": lambda: MIXED,
    "error": lambda: failing(MIXED[:60], svir.Truncated("the body was cut short")),
    "error-at-once": lambda: failing([], svir.ConnectError("nobody there")),
    "fell-silent": lambda: Timeline.of(failing(steady(20), svir.Timeout("nothing came")), 60.0),
    "long-name": lambda: [*steady(10), (2.0, done(10, "中文/" + "model " * 60))],
}


# -- The picture ----------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [320, 800, 1600])
@pytest.mark.parametrize("name", SOURCES)
def test_nothing_lies_on_anything(name: str, width: int) -> None:
    check(Picture(SOURCES[name](), width=width))


def test_figures() -> None:
    said = "first token 0.80 s · longest gap 2.25 s · 26.0 tokens/s · 180 tokens · 7.80 s in all"
    assert Picture(MIXED).words("dim")[0] == said + " · finish stop"
    assert Picture(MIXED).root.find(SVG + "desc").text == (  # type: ignore[union-attr]
        said.replace(" · ", ", ") + ", finish stop"
    )


def test_figures_without_usage() -> None:
    words = Picture([*steady(11), (2.0, done())]).words("dim")
    assert words[0].startswith(
        "first token 1.00 s · longest gap 0.05 s · 20.0 pieces/s · 11 pieces"
    )
    assert "pieces/s" in words


def test_a_tick_is_where_its_event_was() -> None:
    picture = Picture([(2.0, TEXT), (5.0, REASONING), (10.0, done(2))])
    scale = (RIGHT - LEFT) / 10
    assert [box[0] for box in picture.ticks("text")] == [int(LEFT + 2 * scale)]
    assert [box[0] for box in picture.ticks("reasoning")] == [int(LEFT + 5 * scale)]
    (end,) = picture.all("line", "dim")
    assert float(end.attrib["x1"]) == RIGHT


def test_each_kind_has_a_lane() -> None:
    kinds = ("reasoning", "text", "tool_call")
    lanes = [{box[1::2] for box in Picture(MIXED).ticks(kind)} for kind in kinds]
    assert [len(lane) for lane in lanes] == [1, 1, 1]
    (((one, high), (two, _), (three, _))) = [lane.pop() for lane in lanes]
    assert one + high <= two
    assert two + high <= three


def test_the_bars_add_up_to_the_tokens() -> None:
    picture = Picture(MIXED)
    most = max(float(word) for word in picture.words("dim") if re.fullmatch(r"[\d.]+", word)
               and float(word) >= 10)  # fmt: skip
    seconds = 7.8 / 78  # ten bars a second
    tokens = {
        kind: sum(box[3] for box in picture.bars(kind)) / 110 * most * seconds
        for kind in ("reasoning", "text", "tool_call")
    }
    assert tokens == pytest.approx({"reasoning": 80, "text": 60, "tool_call": 40}, rel=0.01)


def test_shades() -> None:
    picture = Picture(SOURCES["stall"]())
    scale = (RIGHT - LEFT) / 10.1
    ((x, _, wide, _),) = picture.boxes("wait")
    assert (x, x + wide) == (LEFT, pytest.approx(LEFT + scale, abs=0.01))
    ((x, _, wide, _),) = picture.boxes("stall")
    assert (x, x + wide) == pytest.approx((LEFT + 1.95 * scale, LEFT + 9 * scale), abs=0.02)
    assert "7.05 s" in picture.words("dim")
    assert "wait 1.00 s" not in picture.words("dim"), "no room for it"
    assert "wait 0.80 s" in Picture(MIXED[:40]).words("dim")
    assert Picture(steady(100)).boxes("stall") == []
    uneven = [*steady(20, step=0.1), *steady(20, start=3.5, step=0.1)]  # six times the usual gap
    assert Picture(uneven).boxes("stall") == []


def test_silence_before_an_error() -> None:
    picture = Picture(SOURCES["fell-silent"]())
    ((x, _, wide, _),) = picture.boxes("stall")
    assert x + wide == RIGHT
    (line,) = picture.all("line", "fault")
    assert float(line.attrib["x1"]) == RIGHT
    assert picture.words("fault") == ["ended in an error: timeout"]


def test_the_legend_has_what_is_there() -> None:
    def legend(source: Any) -> list[str]:
        return Picture(source).words("ink")[:-1]

    assert legend(MIXED) == ["tool calls", "content", "reasoning"]
    assert legend(steady(3)) == ["content"]
    assert legend([]) == []


def test_two_thousand_events_are_a_small_file() -> None:
    picture = Picture([*steady(20_000, TEXT, 1.0, 0.001), (21.0, done(20_000))])
    assert len(picture.ticks("text")) <= 730
    assert len(picture.text) < 200_000


def test_light_and_dark() -> None:
    """Every class has a colour for each, and the attribute for viewers without CSS."""
    picture = Picture(SOURCES["error"]())
    style = picture.root.find(SVG + "style")
    assert style is not None
    light, dark = (style.text or "").split("@media (prefers-color-scheme: dark)")
    for each in [*picture.all("rect"), *picture.all("text"), *picture.all("line")]:
        kind, is_line = each.get("class"), each.tag == SVG + "line"
        colour = each.get("stroke" if is_line else "fill")
        rule = f"line.{kind}{{stroke:" if is_line else f"rect.{kind},text.{kind}{{fill:"
        assert f"{rule}{colour}}}" in light
        assert rule in dark
        assert f"{rule}{colour}}}" not in dark


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("which", [0, 1], ids=["light", "dark"])
def test_contrast(which: int) -> None:
    """WCAG 1.4.3 for text, also on the shades, and 1.4.11 for what is drawn."""
    style = Picture([]).root.find(SVG + "style")
    assert style is not None
    rules = re.findall(r"rect\.(\w+),text\.\w+\{fill:(#\w+)\}", style.text or "")
    colours = dict(rules[: len(rules) // 2] if which == 0 else rules[len(rules) // 2 :])

    def contrast(one: str, two: str) -> float:
        high, low = sorted((luminance(colours[one]), luminance(colours[two])), reverse=True)
        return (high + 0.05) / (low + 0.05)

    for text, ground in itertools.product(("ink", "dim"), ("page", "wait", "stall")):
        assert contrast(text, ground) >= 4.5, (text, ground)
    assert contrast("fault", "page") >= 4.5
    for kind in ("reasoning", "text", "tool_call"):
        assert contrast(kind, "page") >= 3


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", "a\"&'<", "\x00\x1b[2J\ud800\uffff"]
)
def test_any_name_is_only_text(name: str) -> None:
    picture = Picture([(1.0, TEXT)], title=name)
    assert picture.all("script") == []
    title = picture.root.find(SVG + "title")
    assert title is not None
    assert (title.text or "").replace("\ufffd", "") == re.sub("[\x00\x1b\ud800\uffff]", "", name)
    picture.text.encode("utf-8")


def test_no_word_of_the_answer() -> None:
    said = "V3rySecret"
    events: Pairs = [(1.0, svir.TextDelta(said)), (2.0, svir.ToolCallDelta(0, said, said, said))]
    assert said not in svg(failing(events, svir.ServerError(said, server_message=said)))


# -- Where events come from -----------------------------------------------------------------------


def test_a_live_stream() -> None:
    layer = scripted("Hel", 0.2, "lo", usage=(5, 2), model="live")
    stream = svir.Client("http://localhost:1", layers=[layer]).stream(svir.Request("m", "Hi"))
    timeline = Timeline(stream)
    assert [event.type for event in timeline] == ["text", "text", "completed"]
    assert timeline.first_token is not None
    assert timeline.first_token < 0.2 <= timeline.end
    assert timeline.tokens_per_second is not None
    assert timeline.tokens_per_second <= 5.01
    assert len(timeline.gaps) == 1
    assert Picture(timeline).words("ink")[-1] == "live"


def test_a_live_error_is_raised_and_kept() -> None:
    client = svir.Client("http://localhost:1", layers=[scripted("Hel", CUT)])
    timeline = Timeline(client.stream(svir.Request("m", "Hi")))
    with pytest.raises(svir.Truncated):
        list(timeline)
    assert timeline.error is not None
    assert timeline.error.__traceback__ is None
    assert Picture(timeline).words("fault") == ["ended in an error: truncated"]


def test_a_recording(tmp_path: pathlib.Path) -> None:
    with MockServer() as server:
        server.reply(text_answer("Hel", 0.15, CUT))
        client = svir.Client(server.url, backend=Recorder(tmp_path / "a.jsonl"))
        with client, pytest.raises(svir.Truncated):
            client.complete(svir.Request("m", "Hi"))
    recording = load(tmp_path / "a.jsonl")
    timeline = Timeline.of(recording.events(), recording.seconds)
    assert timeline.end == recording.seconds >= 0.15
    assert timeline.first_token is not None
    assert svg(recording) == svg(timeline)
    assert Picture(recording).words("fault") == ["ended in an error: truncated"]


WRONG: Iterable[Any] = [
    [(2.0, TEXT), (1.0, TEXT)], [(-1.0, TEXT)], [(float("nan"), TEXT)], [(float("inf"), TEXT)],
]  # fmt: skip


@pytest.mark.parametrize("pairs", WRONG)
def test_seconds_that_are_none(pairs: Any) -> None:
    with pytest.raises(svir.ConfigError, match="never go back"):
        svg(pairs)


def test_too_narrow() -> None:
    with pytest.raises(svir.ConfigError, match="320"):
        svg([], width=100)
