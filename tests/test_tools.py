"""svir_ext.tools: what a model is told of a function, and how its calls are answered."""

# ruff: noqa: UP006, UP045
# The annotations here are read while the tests run, also on Python 3.8.

from __future__ import annotations

import datetime
import enum
import functools
import json
import logging
import runpy
import signal
import sys
import threading
import time
import types
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Literal, Optional

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import svir
from svir_ext import schema
from svir_ext.testing import MockServer, text_answer, tool_answer
from svir_ext.tools import Toolbox, Tools, call_all

ROOT = Path(__file__).resolve().parent.parent


def weather(city: str, unit: Literal["c", "f"] = "c", days: Optional[int] = None) -> str:
    """Current weather
    in a city.

    Not for the model.
    """
    return f"12 {unit} in {city}"


WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"type": "string", "enum": ["c", "f"], "default": "c"},
        "days": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
    },
    "required": ["city"],
    "additionalProperties": False,
}


def run(tools: Toolbox, name: str, **arguments: Any) -> svir.ToolResult:
    return tools.call(svir.ToolCall("c1", name, json.dumps(arguments)))


def content(tools: Toolbox, name: str, **arguments: Any) -> str:
    """The content of a result that is no error."""
    result = run(tools, name, **arguments)
    assert result == svir.ToolResult("c1", result.content)
    return result.content


def error(tools: Toolbox, name: str, **arguments: Any) -> str:
    result = run(tools, name, **arguments)
    assert result == svir.ToolResult("c1", result.content, is_error=True)
    return result.content


# -- What the model is told -----------------------------------------------------------------------


def test_a_function() -> None:
    assert list(Tools(weather)) == [svir.Tool("weather", "Current weather in a city.", WEATHER)]
    assert content(Tools(weather), "weather", city="Oslo", unit="f") == "12 f in Oslo"
    jsonschema.Draft202012Validator.check_schema(WEATHER)


def test_what_is_told_can_be_set() -> None:
    tools = Tools()
    assert tools.add(weather, name="w", description="", parameters={"type": "object"}) is weather
    assert list(tools) == [svir.Tool("w", "", {"type": "object"})]
    assert error(tools, "w", city=1) == (
        "the arguments do not fit: at $.city: expected a string, not a number"
    )


def test_add_is_a_decorator() -> None:
    tools = Tools()

    @tools.add
    def one(a: int) -> int:
        return a

    @tools.add(name="two", description="Twice.")
    def other(a: int) -> int:
        return 2 * a

    assert one(1) + other(1) == 3
    assert [(tool.name, tool.description) for tool in tools] == [("one", ""), ("two", "Twice.")]
    assert repr(tools) == "Tools(one, two)"
    assert content(tools, "two", a=4) == "8"


def test_a_later_tool_of_the_same_name_replaces() -> None:
    tools = Tools(weather)
    before = iter(tools)
    tools.add(lambda city: "sun", name="weather")
    assert content(tools, "weather", city="Oslo") == "sun"
    assert len(list(tools)) == 1
    assert next(before).description == "Current weather in a city."
    assert [tool.name for tool in Tools()] == []


class Shop:
    def __init__(self, stock: int) -> None:
        self.stock = stock

    def left(self, item: str) -> int:
        """How many are left."""
        return self.stock

    @staticmethod
    def name() -> str:
        return "shop"

    @classmethod
    def kind(cls, *, loud: bool = False) -> str:
        return cls.__name__.upper() if loud else cls.__name__

    def __call__(self, item: str) -> str:
        """Buy one."""
        return f"bought {item}"


def test_every_kind_of_function() -> None:
    shop = Shop(3)
    tools = Tools(shop.left, Shop.name, Shop.kind, functools.partial(weather, unit="f"))
    tools.add(shop, name="buy")
    tools.add(lambda a, b=2: [a, b], name="pair")
    assert [tool.name for tool in tools] == ["left", "name", "kind", "weather", "buy", "pair"]
    assert content(tools, "left", item="x") == "3"
    assert content(tools, "name") == "shop"
    assert content(tools, "kind", loud=True) == "SHOP"
    assert content(tools, "buy", item="x") == "bought x"
    assert content(tools, "pair", a="any") == '["any", 2]'
    told = {tool.name: tool for tool in tools}
    assert told["left"].description == "How many are left."
    assert told["buy"].description == "Buy one."
    assert told["left"].parameters["required"] == ["item"]
    assert told["pair"].parameters["properties"] == {"a": {}, "b": {"default": 2}}


def test_what_a_partial_has_set_is_not_the_models() -> None:
    tools = Tools(functools.partial(weather, unit="f"))
    (tool,) = tools
    assert set(tool.parameters["properties"]) == {"city", "days"}
    assert content(tools, "weather", city="Oslo") == "12 f in Oslo"
    assert "is not one of its names" in error(tools, "weather", city="Oslo", unit="c")
    placed = Tools(functools.partial(weather, "Oslo"))
    assert content(placed, "weather", days=1) == "12 c in Oslo"


def test_a_wrapped_function() -> None:
    @functools.wraps(weather)
    def logged(*args: Any, **kwargs: Any) -> str:
        return "logged " + weather(*args, **kwargs)

    (tool,) = tools = Tools(logged)
    assert tool.parameters == WEATHER
    assert content(tools, "weather", city="Oslo") == "logged 12 c in Oslo"


def test_other_names_go_to_the_rest() -> None:
    tools = Tools()

    @tools.add
    def tag(item: str, **rest: int) -> Dict[str, int]:
        return rest

    (tool,) = tools
    assert tool.parameters["additionalProperties"] == {"type": "integer"}
    assert content(tools, "tag", item="x", a=1) == '{"a": 1}'
    assert error(tools, "tag", item="x", a="1").endswith("$.a: expected an integer, not a string")


class Texts:
    async def later(self) -> None: ...


def placed(a: int, /) -> None: ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda: None, "has no name: give one"),
        (Shop(1), "has no name: give one"),
        (lambda *args: None, r"\*args has no name for a model to give it by"),
        (placed, "placed: a.* has no name for a model to give it by"),
        (Texts().later, "later is async"),
        (Shop, "a tool is a function"),
        ("weather", "a tool is a function"),
        *([(next, "next: ")] if sys.implementation.name == "cpython" else []),  # PyPy's tells all
    ],
)
def test_what_cannot_be_a_tool(function: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        Tools(function)


def test_an_annotation_without_a_schema() -> None:
    def bad(data: bytes) -> None: ...

    with pytest.raises(TypeError, match=r"bad\(data\): bytes has no schema"):
        Tools(bad)


# -- Calls ----------------------------------------------------------------------------------------


@dataclass
class Order:
    item: str
    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError("count must not be negative")
        self.total = 10 // self.count


def test_arguments_become_values() -> None:
    seen: list[Any] = []
    tools = Tools()

    @tools.add
    def order(orders: List[Order], when: datetime.date) -> None:
        seen.append((orders, when))

    assert content(tools, "order", orders=[{"item": "tea"}], when="2031-05-17") == ""
    assert seen == [([Order("tea")], datetime.date(2031, 5, 17))]


def test_arguments_that_do_not_fit_never_reach_the_handler() -> None:
    tools = Tools()

    @tools.add
    def order(orders: List[Order]) -> None:
        raise AssertionError("called")

    fits = "the arguments do not fit: "
    assert error(tools, "order") == fits + 'at $: "orders" is missing'
    assert error(tools, "order", orders=[{"item": 1}]) == (
        fits + "at $.orders[0].item: expected a string, not a number"
    )
    assert error(tools, "order", orders=[{"item": "x", "count": -1}]) == (
        fits + "at $.orders[0]: count must not be negative"
    )
    assert error(tools, "order", orders=[{"item": "x", "count": 0}]).startswith(
        fits + "ZeroDivisionError: "
    )
    assert error(tools, "order", ordres=[]) == (
        fits + 'at $: "ordres" is not one of its names: "orders"'
    )
    for arguments in ('{"orders": [', "[]", "null", "NaN", "[" * 100_000):
        result = tools.call(svir.ToolCall("c1", "order", arguments))
        assert result.is_error, arguments
        assert result.content.startswith(fits)


def test_null_is_the_default_and_nothing_is_no_arguments() -> None:
    tools = Tools(weather, Shop.name)
    assert content(tools, "weather", city="Oslo", unit=None) == "12 c in Oslo"
    assert tools.call(svir.ToolCall("c1", "name", "")) == svir.ToolResult("c1", "shop")


def test_an_unknown_tool() -> None:
    assert error(Tools(weather), "wether") == "there is no such tool; the tools are: weather"
    assert error(Tools(), "x") == "there is no such tool; the tools are: none"


class Size(str, enum.Enum):
    BIG = "big"


@pytest.mark.parametrize(
    ("result", "wanted"),
    [
        ("text", "text"),
        ("", ""),
        (None, ""),
        (0, "0"),
        (True, "true"),
        (1.5, "1.5"),
        (["ü", None], '["ü", null]'),
        ({"a": Order("x", 2)}, '{"a": {"item": "x", "count": 2}}'),
        (Size.BIG, "big"),
        (datetime.date(2031, 5, 17), "2031-05-17"),
        (svir.ToolResult("other", "mine"), "mine"),
    ],
    ids=str,
)
def test_results(result: Any, wanted: str) -> None:
    tools = Tools()
    tools.add(lambda: result, name="give")
    assert content(tools, "give") == wanted


def test_failures_are_results() -> None:
    tools = Tools()
    results = {
        "odd": lambda: object(),
        "nan": lambda: [float("nan")],
        "key": lambda: {}["k"],
        "bare": lambda: (_ for _ in ()).throw(RuntimeError),
        "flag": lambda: svir.ToolResult("x", "sold out", is_error=True),
    }
    for name, function in results.items():
        tools.add(function, name=name)
    assert error(tools, "odd") == "TypeError: object has no JSON form"
    assert error(tools, "nan") == "ValueError: JSON has no number that is not finite"
    assert error(tools, "key") == "KeyError: 'k'"
    assert error(tools, "bare") == "RuntimeError"
    assert error(tools, "flag") == "sold out"


def test_every_result_can_be_sent() -> None:
    """A file name that is not UTF-8, or a model that writes half a pair, must not end the loop."""
    tools = Tools()
    tools.add(lambda x: x, name="echo")
    tools.add(lambda: (_ for _ in ()).throw(OSError("no \udcff")), name="fail")
    tools.add(lambda: svir.ToolResult("", "\ud800"), name="own")
    calls = [
        svir.ToolCall("1", "echo", '{"x": "\\ud800 \\ud83d\\ude00"}'),
        svir.ToolCall("2", "echo", '{"x": ["\\udfff"]}'),
        svir.ToolCall("3", "echo", '{"\\ud800": 1}'),
        svir.ToolCall("4", "fail"),
        svir.ToolCall("5", "own"),
    ]
    results = tools.call_all(calls)
    assert [result.content for result in results[:2]] == ["\ufffd 😀", '["\ufffd"]']
    for result in results:
        assert "\ufffd" in result.content
        svir.encode(svir.Request("m", [svir.User("hi"), result]))


def test_the_log_tells_no_content(caplog: pytest.LogCaptureFixture) -> None:
    tools = Tools()

    @tools.add
    def look_up(word: str) -> None:
        try:
            raise KeyError(word)
        except KeyError as inner:
            raise ValueError(f"no {word}") from inner

    with caplog.at_level(logging.DEBUG, "svir"):
        assert error(tools, "look_up", word="secret") == "ValueError: no secret"
        error(tools, "look_up", secret="secret")
        error(tools, "secret")
    assert len(caplog.records) == 3
    assert "tool call c1 failed: look_up: ValueError" in caplog.records[0].getMessage()
    assert "look_up" in caplog.records[0].getMessage()  # where it was raised
    assert "secret" not in caplog.text
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}


def test_other_exceptions_are_not_results() -> None:
    tools = Tools()
    tools.add(lambda: sys.exit(3), name="leave")
    for workers in (None, 2):
        with pytest.raises(SystemExit):
            tools.call_all([svir.ToolCall("1", "leave")] * 3, workers)


def test_add_tool() -> None:
    tool = svir.Tool("echo", "Says it again.", {"type": "object"})
    tools = Tools()
    tools.add_tool(tool, lambda call: [call.id, call.name, call.parse()])
    assert list(tools) == [tool]
    assert content(tools, "echo", a=1) == '["c1", "echo", {"a": 1}]'
    bad = tools.call(svir.ToolCall("c1", "echo", "[1]"))
    assert bad == svir.ToolResult(
        "c1", "the arguments do not fit: they must be a JSON object", is_error=True
    )
    other = Tools()
    for each in tools:  # one toolbox offers the tools of another
        other.add_tool(each, tools.call)
    assert content(other, "echo", a=1) == '["c1", "echo", {"a": 1}]'


def test_a_toolbox_of_ones_own() -> None:
    class Box:
        def __iter__(self) -> Any:
            return iter([svir.Tool("x")])

        def call(self, call: svir.ToolCall, /) -> svir.ToolResult:
            return svir.ToolResult(call.id, call.name)

    box: Toolbox = Box()
    calls = [svir.ToolCall(str(n), "x") for n in range(3)]
    assert [result.call_id for result in call_all(box, calls, 2)] == ["0", "1", "2"]
    assert svir.Request("m", "hi", tools=box).tools == (svir.Tool("x"),)


# -- Several calls --------------------------------------------------------------------------------


def numbered(count: int, name: str = "work") -> list[svir.ToolCall]:
    return [svir.ToolCall(f"c{n}", name, json.dumps({"n": n})) for n in range(count)]


def test_calls_in_order_without_threads() -> None:
    seen: list[Any] = []
    tools = Tools()
    tools.add(lambda n: seen.append((n, threading.current_thread())), name="work")
    results = tools.call_all(iter(numbered(4)))
    assert [result.call_id for result in results] == ["c0", "c1", "c2", "c3"]
    assert seen == [(n, threading.current_thread()) for n in range(4)]


def test_calls_in_parallel() -> None:
    before = threading.active_count()
    meet = threading.Barrier(3, timeout=10)
    tools = Tools()

    @tools.add
    def work(n: int) -> int:
        meet.wait()  # so three are running at once
        if n % 3 == 0:
            time.sleep(0.02)
        return n

    results = tools.call_all(numbered(9), workers=3)
    assert [(r.call_id, r.content) for r in results] == [(f"c{n}", str(n)) for n in range(9)]
    assert threading.active_count() == before
    assert tools.call_all([], workers=3) == []
    assert [r.content for r in call_all(Tools(lambda_named("work")), numbered(1), 8)] == ["0"]
    with pytest.raises(ValueError, match="at least 1"):
        tools.call_all([], workers=0)


def lambda_named(name: str) -> Any:
    def function(n: int) -> int:
        return n

    function.__name__ = name
    return function


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_a_failed_call_does_not_stop_the_others(workers: int) -> None:
    tools = Tools()
    tools.add(lambda n: 1 // (n - 1), name="work")
    results = tools.call_all(numbered(4), workers)
    assert [result.is_error for result in results] == [False, True, False, False]


def test_a_toolbox_that_raises() -> None:
    class Box:
        ran = 0

        def __iter__(self) -> Any:
            return iter(())

        def call(self, call: svir.ToolCall, /) -> svir.ToolResult:
            self.ran += 1
            raise IndexError("mine")

    box = Box()
    with pytest.raises(IndexError, match="mine"):
        call_all(box, numbered(50), workers=2)
    assert box.ran <= 2


@pytest.mark.skipif(not hasattr(signal, "raise_signal") or sys.platform == "win32", reason="POSIX")
def test_an_interrupt_waits_for_what_runs_and_starts_nothing() -> None:
    running, ended, ran = threading.Event(), threading.Event(), []
    tools = Tools()

    @tools.add
    def work(n: int) -> None:
        ran.append(n)
        running.set()
        ended.wait(10)

    def interrupt() -> None:
        running.wait(10)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        time.sleep(0.5)  # a busy machine may be slow to tell it
        ended.set()

    before = threading.active_count()
    stopper = threading.Thread(target=interrupt)
    stopper.start()
    with pytest.raises(KeyboardInterrupt):
        tools.call_all(numbered(20), workers=2)
    stopper.join()
    assert ended.is_set()
    assert len(ran) <= 2
    end = time.monotonic() + 10  # a thread that has said its last word may still be counted
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() == before


# -- With a model ---------------------------------------------------------------------------------


def test_a_conversation() -> None:
    tools = Tools(weather)
    with MockServer() as server:
        server.reply(tool_answer(("weather", {"city": "Oslo"}), ("weather", {"town": "Oslo"})))
        server.reply(text_answer("12 degrees."))
        client = svir.Client(server.url)
        request = svir.Request("m", "Weather?", tools=tools)
        first = client.complete(request)
        messages = [*request.messages, first.message, *tools.call_all(first.tool_calls)]
        assert client.complete(request.replace(messages=messages)).text == "12 degrees."
        asked, answered = (each.json() for each in server.requests)
    assert asked["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "description": "Current weather in a city.",
                "parameters": WEATHER,
            },
        }
    ]
    assert [message["content"] for message in answered["messages"][2:]] == [
        "12 c in Oslo",
        'error: the arguments do not fit: at $: "town" is not one of its names:'
        ' "city", "unit", "days"',
    ]


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.text(max_size=3) | ANY_JSON,
        "orders": st.lists(
            st.fixed_dictionaries({}, optional={"item": st.text(max_size=3), "count": ANY_JSON})
        ),
        "unit": st.sampled_from(["c", "f", "k", None]),
        "other": ANY_JSON,
    },
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ARGUMENTS | ANY_JSON)
def test_the_handler_runs_exactly_when_the_schema_allows(arguments: Any) -> None:
    ran: list[Any] = []
    tools = Tools()

    @dataclass
    class Item:
        item: str
        count: int = 1

    @tools.add
    def work(name: str, orders: List[Item], unit: Literal["c", "f", None] = None) -> None:
        ran.append((name, orders, unit))

    (tool,) = tools
    result = tools.call(svir.ToolCall("1", "work", json.dumps(arguments)))
    assert result.is_error != bool(ran)
    counts = (
        [order.get("count", 1) for order in arguments.get("orders", ())]
        if isinstance(arguments, dict) and isinstance(arguments.get("orders", ()), (list, tuple))
        else []
    )
    if None not in counts:  # null is read as left out
        assert jsonschema.Draft202012Validator(tool.parameters).is_valid(arguments) == bool(ran)


# -- The MCP bridge -------------------------------------------------------------------------------


@pytest.fixture
def bridge() -> Any:
    pytest.importorskip(
        "mcp", reason="*** the mcp package is not installed: the MCP bridge is NOT TESTED here"
    )
    return types.SimpleNamespace(**runpy.run_path(str(ROOT / "examples" / "mcp_bridge.py")))


def make_mcp_server() -> Any:
    import mcp.server  # pyright: ignore[reportMissingImports]
    import mcp.types  # pyright: ignore[reportMissingImports]

    server = mcp.server.MCPServer("lab")

    @server.tool()
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool()
    def fail() -> str:
        raise ValueError("not today")

    @server.tool()
    def picture() -> List[Any]:
        return [mcp.types.ImageContent(type="image", data="", mime_type="image/png")]

    return server


def test_the_mcp_bridge(bridge: Any) -> None:
    before = threading.active_count()
    with bridge.McpTools(make_mcp_server()) as box:
        tools = {tool.name: tool for tool in box}
        assert tools["add"].description == "Add two numbers."
        assert set(tools["add"].parameters["properties"]) == {"a", "b"}
        assert content(box, "add", a=2, b=3) == "5"
        assert "fail" in error(box, "fail")
        assert error(box, "picture") == "the tool answered with image, which cannot be shown"
        assert error(box, "add", a="x")
        assert error(box, "nothing")
        results = call_all(box, [svir.ToolCall("1", "add", '{"a": 1, "b": 1}')] * 3, workers=3)
        assert [result.content for result in results] == ["2"] * 3
        mixed = Tools(weather)
        for tool in box:
            mixed.add_tool(tool, box.call)
        assert content(mixed, "add", a=1, b=1) == "2"
    assert threading.active_count() == before
    assert error(box, "add", a=1, b=1)


def test_an_mcp_server_that_cannot_be_reached(bridge: Any) -> None:
    # The SDK says which error it is: a group, by its version.
    with pytest.raises(Exception), bridge.McpTools("http://127.0.0.1:1/mcp"):  # noqa: B017, PT011
        pytest.fail("entered")


if TYPE_CHECKING:  # checked by pyright

    def _types() -> Toolbox:
        tools = Tools()
        number: int = tools.add(len)("x")
        other: str = tools.add(name="other")(weather)("Oslo")
        print(number, other, schema.parameters_of(weather))
        return tools
