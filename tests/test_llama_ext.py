"""The blocks against the real llama-server: tools are called, answers are read into types."""

# ruff: noqa: UP006, UP007, UP045
# The annotations here are read while the tests run, also on Python 3.8.

from __future__ import annotations

import datetime
import enum
import pathlib
import sys
import uuid
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Callable, Dict, List, Literal, NamedTuple, Optional, Tuple, Union

import pytest

import svir
from llama_server import LlamaServer
from svir_ext import schema
from svir_ext.tools import Tools

# -- Tools ----------------------------------------------------------------------------------------


def get_weather(city: str) -> str:
    """The weather in a city."""
    # The scripted model answers what its last message asks for, so the answer proves that the
    # result went back.
    return f"12 C in {city} [[utf8]]"


def get_time(tz: str, when: Optional[datetime.date] = None) -> Dict[str, str]:
    """The time in a time zone."""
    return {"time": "10:00", "zone": tz}


@pytest.fixture
def roomy(start_llama: Callable[..., LlamaServer]) -> LlamaServer:
    """A server with room for the schemas: its scripted model takes a token for each letter."""
    return start_llama("-c", "4096")


def ask(server: LlamaServer, words: str, tools: Tools, **options: Any) -> Tuple[Any, Any]:
    """Two rounds: the completion with the calls, and the one after their results."""
    with svir.Client(server.base_url) as client:
        request = svir.Request("tiny", words, tools=tools, **options)
        first = client.complete(request)
        results = tools.call_all(first.tool_calls, workers=2)
        messages = [*request.messages, first.message, *results]
        return first, (client.complete(request.replace(messages=messages)), results)


@pytest.mark.parametrize(
    ("words", "cities"), [("[[tool]]", ["Paris"]), ("[[thinktool]]", ["Rome"])]
)
def test_a_function_is_called(roomy: LlamaServer, words: str, cities: List[str]) -> None:
    first, (last, results) = ask(roomy, words, Tools(get_weather, get_time))
    assert first.finish_reason == "tool_calls"
    assert [result.content for result in results] == [f"12 C in {c} [[utf8]]" for c in cities]
    assert not results[0].is_error
    assert last.finish_reason == "stop"
    assert last.text == "Grüsse 😀 end8"


def test_two_functions_are_called(roomy: LlamaServer) -> None:
    first, (last, results) = ask(roomy, "[[tools2]]", Tools(get_weather, get_time))
    assert [call.name for call in first.tool_calls] == ["get_weather", "get_time"]
    assert [result.call_id for result in results] == [call.id for call in first.tool_calls]
    assert [result.content for result in results] == [
        "12 C in Oslo [[utf8]]",
        '{"time": "10:00", "zone": "CET"}',
    ]
    assert last.finish_reason == "stop"


def test_a_failed_call_goes_back_too(roomy: LlamaServer) -> None:
    def get_weather(city: str) -> str:
        raise LookupError(f"no {city} here [[utf8]]")

    _, (last, results) = ask(roomy, "[[tool]]", Tools(get_weather))
    assert results[0].content == "LookupError: no Paris here [[utf8]]"
    assert results[0].is_error
    assert last.text == "Grüsse 😀 end8"


# -- Structured answers ---------------------------------------------------------------------------


@dataclass
class Person:
    """Somebody."""

    name: str
    age: int


@pytest.mark.parametrize("strict", [False, True])
def test_a_dataclass_comes_back(llama: LlamaServer, strict: bool) -> None:
    with svir.Client(llama.base_url) as client:
        request = svir.Request("tiny", "[[json]]")
        value, completion = schema.ask(client, request, Person, strict=strict)
        assert value == Person("Ada", 36)
        assert completion.usage is not None
        form = schema.format_of(Person, strict=strict)
        again = client.complete(request.replace(response_format=form))
        assert again.parse(schema.reader(Person)) == value


def test_an_answer_that_was_cut_off(llama: LlamaServer) -> None:
    with svir.Client(llama.base_url) as client:
        request = svir.Request("tiny", "[[json]]", max_tokens=2)
        with pytest.raises(schema.NoAnswer, match="max_tokens") as caught:
            schema.ask(client, request, Person)
    assert caught.value.completion.finish_reason == "length"


class Color(enum.Enum):
    RED = "red"
    NONE = None


class Point(NamedTuple):
    x: float
    y: float = 0.0


@dataclass
class Node:
    name: str
    children: List[Node] = field(default_factory=list)
    twin: Optional[Node] = None


@dataclass
class Every:
    """Each kind of type, for the server's own reading of a schema."""

    when: datetime.datetime
    day: datetime.date
    hour: datetime.time
    id: uuid.UUID
    path: pathlib.Path
    price: Decimal
    color: Color
    unit: Literal["c", 2, True]
    pair: Tuple[int, str]
    same: Tuple[int, int]
    many: Tuple[int, ...]
    none: Tuple[()]
    names: Dict[str, int]
    colors: Dict[Literal["a", "b"], List[Point]]
    anything: Any
    union: Union[int, Point, List[bool], None]
    tree: Optional[Node] = field(default=None, metadata={"description": "if any"})


@pytest.mark.parametrize(
    "kind", [Every, Node, List[Point], Dict[str, Node], int, Union[Person, Point]], ids=str
)
def test_the_server_takes_every_schema(llama: LlamaServer, kind: Any) -> None:
    """It makes a grammar of it, and refuses one that it cannot read."""
    if kind is Every and sys.implementation.name != "cpython":
        pytest.skip("PyPy cannot read Tuple[()] as text")
    form = schema.format_of(kind)
    with svir.Client(llama.base_url) as client:
        request = svir.Request("tiny", "[[json]]", response_format=form, max_tokens=30)
        completion = client.complete(request)
        assert completion.finish_reason in ("stop", "length")
        if completion.finish_reason == "stop":
            completion.parse(schema.reader(kind))
