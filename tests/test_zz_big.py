"""svir_ext.schema: schemas from types, and values back; the property tests are at the end."""

# ruff: noqa: UP006, UP045
# The annotations here are read while the tests run, also on Python 3.8.

from __future__ import annotations

import collections
import datetime
import enum
import json
import pathlib
import pickle
import re
import sys
import types
import typing
import uuid
from dataclasses import dataclass, field, make_dataclass
from decimal import Decimal
from typing import (
    TYPE_CHECKING,
    Any,
    Dict,
    List,
    Literal,
    Mapping,
    NamedTuple,
    NewType,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
    Union,
)

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import svir
from svir_ext import schema
from svir_ext.schema import Mismatch, NoAnswer, format_of, reader, schema_of, to_json_value
from svir_ext.testing import scripted

# Before these versions a caller has them from typing_extensions, as the tests do.
if sys.version_info >= (3, 11):
    from typing import Annotated, NotRequired, Required, TypedDict
else:
    from typing_extensions import Annotated, NotRequired, Required, TypedDict

if TYPE_CHECKING:
    from typing import Callable

    from typing_extensions import assert_type


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class City:
    """A city.

    Not for the model.
    """

    name: Annotated[str, "in English"]
    population: int = field(metadata={"description": "of the whole area"})
    color: Color = Color.RED
    twin: Optional[City] = None
    tags: List[str] = field(default_factory=list)


class Point(NamedTuple):
    x: float
    y: float = 0.0


class Loose(TypedDict, total=False):
    must: Required[int]
    may: Annotated[str, "words"]


class Tight(TypedDict):
    must: int
    may: NotRequired[str]


@dataclass
class Branch:
    leaves: List[Leaf]


@dataclass
class Leaf:
    owner: Optional[Branch] = None


CITY = {
    "type": "object",
    "description": "A city.",
    "properties": {
        "name": {"type": "string", "description": "in English"},
        "population": {"type": "integer", "description": "of the whole area"},
        "color": {"type": "string", "enum": ["red", "blue"], "default": "red"},
        "twin": {"anyOf": [{"$ref": "#/$defs/City"}, {"type": "null"}], "default": None},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "population"],
    "additionalProperties": False,
}


def fails(kind: Any, value: Any) -> str:
    """The message of the reader."""
    with pytest.raises(Mismatch) as caught:
        reader(kind)(value)
    return str(caught.value)


def run(code: str, space: dict[str, Any]) -> None:
    """Run code as a file of its own: without this one's `from __future__`."""
    exec(compile(code, "<test>", "exec", dont_inherit=True), space)


def has_no_schema(kind: Any, strict: bool = False) -> str:
    with pytest.raises(TypeError) as caught:
        schema_of(kind, strict)
    return str(caught.value)


# -- Schemas --------------------------------------------------------------------------------------


def test_a_dataclass() -> None:
    assert schema_of(City) == {**CITY, "$defs": {"City": CITY}}
    value = reader(City)({"name": "Oslo", "population": 700_000, "twin": None, "tags": ["fjord"]})
    assert value == City("Oslo", 700_000, tags=["fjord"])


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (None, {"type": "null"}),
        (type(None), {"type": "null"}),
        (Any, {}),
        (object, {}),
        (list, {"type": "array", "items": {}}),
        (List, {"type": "array", "items": {}}),
        (List[int], {"type": "array", "items": {"type": "integer"}}),
        (Sequence[int], {"type": "array", "items": {"type": "integer"}}),
        (typing.Iterable[int], {"type": "array", "items": {"type": "integer"}}),
        (Tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (tuple, {"type": "array", "items": {}}),
        (Tuple, {"type": "array", "items": {}}),
        (Tuple[()], {"type": "array", "minItems": 0, "maxItems": 0}),
        (
            Tuple[int, int],
            {"type": "array", "minItems": 2, "maxItems": 2, "items": {"type": "integer"}},
        ),
        (
            Tuple[int, str],
            {
                "type": "array",
                "minItems": 2,
                "maxItems": 2,
                "prefixItems": [{"type": "integer"}, {"type": "string"}],
            },
        ),
        (dict, {"type": "object", "additionalProperties": {}}),
        (Dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (Mapping[str, Any], {"type": "object", "additionalProperties": {}}),
        (
            Dict[Color, int],
            {
                "type": "object",
                "additionalProperties": {"type": "integer"},
                "propertyNames": {"type": "string", "enum": ["red", "blue"]},
            },
        ),
        (Union[int, str], {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Literal["c", "f"], {"type": "string", "enum": ["c", "f"]}),
        (Literal[Color.RED], {"type": "string", "enum": ["red"]}),
        (Literal["auto", 2, None],
            {"anyOf": [{"type": "string", "enum": ["auto"]}, {"type": "integer", "enum": [2]},
                       {"type": "null"}]}),
        (Level, {"type": "integer", "enum": [1, 2]}),
        (datetime.datetime, {"type": "string", "format": "date-time"}),
        (datetime.date, {"type": "string", "format": "date"}),
        (datetime.time, {"type": "string", "format": "time"}),
        (uuid.UUID, {"type": "string", "format": "uuid"}),
        (pathlib.Path, {"type": "string", "format": "path"}),
        (NewType("Id", int), {"type": "integer"}),
        (Annotated[int, object(), "how many"], {"type": "integer", "description": "how many"}),
        (Annotated[int, []], {"type": "integer"}),
    ],
    ids=str,
)  # fmt: skip
def test_the_schema_of(kind: Any, wanted: dict[str, Any]) -> None:
    assert schema_of(kind) == wanted
    jsonschema.Draft202012Validator.check_schema(wanted)


def test_named_tuples_and_typed_dicts() -> None:
    assert schema_of(Point) == {
        "type": "object",
        "properties": {"x": {"type": "number"}, "y": {"type": "number", "default": 0.0}},
        "required": ["x"],
        "additionalProperties": False,
    }
    assert reader(Point)({"x": 1}) == Point(1.0)
    plain = collections.namedtuple("plain", "a b")
    assert schema_of(plain)["properties"] == {"a": {}, "b": {}}
    for kind in (Loose, Tight):
        assert schema_of(kind)["required"] == ["must"]
        assert reader(kind)({"must": 1}) == {"must": 1}
        assert reader(kind)({"must": 1, "may": "x"}) == {"must": 1, "may": "x"}
        assert fails(kind, {"may": "x"}) == 'at $: "must" is missing'
    assert schema_of(Loose)["properties"]["may"] == {"type": "string", "description": "words"}


def test_classes_used_once_are_inline_and_others_are_definitions() -> None:
    @dataclass
    class Pair:
        one: Point
        two: Point

    assert schema_of(List[Point])["items"]["type"] == "object"
    pair = schema_of(Pair)
    assert pair["properties"] == {
        "one": {"$ref": "#/$defs/Point"},
        "two": {"$ref": "#/$defs/Point"},
    }
    assert list(pair["$defs"]) == ["Point"]
    assert reader(Pair)({"one": {"x": 1}, "two": {"x": 2}}) == Pair(Point(1), Point(2))
    branch = schema_of(Branch)
    assert set(branch["$defs"]) == {"Branch"}
    value = Branch([Leaf(Branch([])), Leaf()])
    assert reader(Branch)(to_json_value(value)) == value


def test_two_classes_of_one_name_are_two_definitions() -> None:
    def make(kind: type) -> Any:
        return make_dataclass("Same", [("value", kind)])

    one, two = make(int), make(str)
    both = make_dataclass("Both", [("a", one), ("b", one), ("c", two), ("d", two)])
    written = schema_of(both)
    assert set(written["$defs"]) == {"Same", "Same_2"}
    assert len({written["properties"][name]["$ref"] for name in "abcd"}) == 2
    value = {"a": {"value": 1}, "b": {"value": 1}, "c": {"value": "x"}, "d": {"value": "x"}}
    assert jsonschema.Draft202012Validator(written).is_valid(value)


def test_a_default_that_json_cannot_say_is_not_told() -> None:
    @dataclass
    class Odd:
        where: Any = object
        number: float = float("nan")
        wrong: int = "not one"  # type: ignore[assignment]
        none: int = None  # type: ignore[assignment]

    properties = schema_of(Odd)["properties"]
    assert [name for name, body in properties.items() if "default" in body] == ["none"]
    assert properties["none"]["anyOf"] == [{"type": "integer"}, {"type": "null"}]
    assert reader(Odd)({"none": None, "wrong": 3}).wrong == 3
    assert "required" not in schema_of(Odd)


def test_fields_the_constructor_does_not_take() -> None:
    @dataclass
    class Box:
        unit: typing.ClassVar[str] = "cm"
        side: int
        area: int = field(init=False)

        def __post_init__(self) -> None:
            if self.side < 0:
                raise ValueError("a side is not negative")
            self.area = self.side**2

    assert list(schema_of(Box)["properties"]) == ["side"]
    assert to_json_value(Box(2)) == {"side": 2}
    assert reader(Box)({"side": 2}).area == 4
    assert fails(List[Box], [{"side": -1}]) == "at $[0]: a side is not negative"


def test_types_without_a_schema() -> None:
    assert has_no_schema(typing.Set[int]) == "Set[int]: Set[int] has no schema: use list"
    assert has_no_schema(List[bytes]) == "List[bytes][]: bytes has no schema: use str, as base64"
    assert "has no schema" in has_no_schema(typing.Callable[[], int])
    assert "has no schema" in has_no_schema(complex)
    assert "has no schema" in has_no_schema(enum.IntFlag("Bits", "A B"))
    assert "keys" in has_no_schema(Dict[int, int])
    assert "only a name" in has_no_schema(List["City"])
    assert "is not a type" in has_no_schema([int])
    assert "is no value of a JSON enum" in has_no_schema(enum.Enum("Odd", {"A": (1, 2)}))
    item = TypeVar("item")
    box = make_dataclass("Box", [("item", item)], bases=(typing.Generic[item],))  # type: ignore
    assert has_no_schema(box) == "Box.item: ~item is generic: name a class with its own types"
    assert "is generic" in has_no_schema(box[int])  # type: ignore[index]


def test_where_a_type_fails() -> None:
    inner = make_dataclass("Inner", [("data", List[bytes])])
    outer = make_dataclass("Outer", [("inner", inner)])
    assert has_no_schema(outer).startswith("Inner.data[]: bytes")


# -- Annotations that are text --------------------------------------------------------------------


def test_types_of_the_function_around_it() -> None:
    @dataclass
    class Node:
        value: int
        next: Optional[Node] = None

    class Row(TypedDict):
        nodes: List[Node]

    def ask_for(node: Node, rows: List[Row]) -> None:
        """A tool."""

    value = {"value": 1, "next": {"value": 2}}
    assert reader(Node)(value) == Node(1, Node(2))
    assert reader(Row)({"nodes": [value]}) == {"nodes": [Node(1, Node(2))]}
    _, read = schema.parameters_of(ask_for)
    assert read({"node": value, "rows": []}) == {"node": Node(1, Node(2)), "rows": []}


def test_a_type_whose_function_has_returned() -> None:
    def make() -> Any:
        @dataclass
        class Inner:
            value: int

        @dataclass
        class Outer:
            inner: Inner
            again: Optional[Outer] = None

        return Outer

    with pytest.raises(TypeError, match=r"make.<locals>.Outer: .* cannot be read: .*'Inner'"):
        schema_of(make())


def test_modules_that_are_not_in_sys_modules() -> None:
    code = (
        "from typing import NamedTuple, List\n"
        "from svir_ext import schema\n"
        "class Leaf(NamedTuple):\n    value: int\n"
        "class Tree(NamedTuple):\n    leaves: List['Leaf']\n"
        "def read(value): return schema.reader(Tree)(value)\n"
    )
    space: dict[str, Any] = {"__name__": "nowhere_to_be_found"}
    run(code, space)
    assert space["read"]({"leaves": [{"value": 1}]}) == space["Tree"]([space["Leaf"](1)])
    with pytest.raises(TypeError, match=r"Tree: its annotations cannot be read: .*'Leaf'"):
        schema_of(space["Tree"])


def test_each_base_has_the_names_of_its_own_module() -> None:
    module = types.ModuleType("svir_test_base")
    sys.modules[module.__name__] = module
    try:
        run(
            "from __future__ import annotations\nimport dataclasses, decimal as Number\n"
            "@dataclasses.dataclass\nclass Base:\n    price: Number.Decimal\n",
            vars(module),
        )

        @dataclass
        class Child(module.Base):  # type: ignore[name-defined,misc]
            Number: City

        assert schema_of(Child)["properties"]["price"]["format"] == "decimal"
    finally:
        del sys.modules[module.__name__]


@pytest.mark.skipif(sys.version_info < (3, 10), reason="X | Y needs Python 3.10")
def test_unions_with_a_bar() -> None:
    @dataclass
    class New:
        value: int | None
        items: list[int | str]

    assert reader(New)({"value": None, "items": [1, "a"]}) == New(None, [1, "a"])


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type X = ... needs Python 3.12")
def test_aliases_that_name_themselves() -> None:
    space: dict[str, Any] = {}
    run("type Json = int | list[Json] | dict[str, Json]", space)
    written = schema_of(space["Json"])
    assert list(written["$defs"]) == ["Json"]
    assert written["anyOf"][1] == {"type": "array", "items": {"$ref": "#/$defs/Json"}}
    value = {"a": [1, [2], {}]}
    assert reader(space["Json"])(value) == value
    jsonschema.validate(value, written)
    assert fails(space["Json"], {"a": ["x"]}).startswith("at $.a[0]: expected")


# -- Values ---------------------------------------------------------------------------------------


def test_errors_name_the_path() -> None:
    city = {"name": "Oslo", "population": 1}
    assert fails(City, 3) == "at $: expected an object, not a number"
    assert fails(List[City], [city, {**city, "population": "1"}]) == (
        "at $[1].population: expected an integer, not a string"
    )
    assert fails(City, {**city, "twin": {**city, "tags": [None]}}) == (
        "at $.twin.tags[0]: expected a string, not null"
    )
    assert (
        fails(City, {**city, "twin": 1}) == "at $.twin: expected an object or null, not a number"
    )
    assert fails(City, {**city, "color": "green"}) == 'at $.color: expected one of "red", "blue"'
    assert fails(City, {"name": "x"}) == 'at $: "population" is missing'
    assert fails(Point, {"x": 1, "z": 1}) == 'at $: "z" is not one of its names: "x", "y"'
    assert fails(Dict[str, int], {"a b": ""}) == 'at $["a b"]: expected an integer, not a string'
    assert fails(Tuple[int, int], [1]) == "at $: expected a list of 2, not of 1"
    assert fails(Union[Point, City], {"x": "1"}) == (
        "at $: fits none of its types: at $.x: expected a number, not a string;"
        ' at $: "x" is not one of its names: "name", "population", "color", "twin", "tags"'
    )
    assert fails(Dict[str, int], {"k" * 999: ""}) == (
        f'at $["{"k" * 39}…"]: expected an integer, not a string'
    )
    error = pickle.loads(pickle.dumps(Mismatch("expected a list, not null", "$.a")))
    assert (error.problem, error.path, str(error)) == (
        "expected a list, not null", "$.a", "at $.a: expected a list, not null"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, True), (int, 1.5), (int, "1"), (int, float("inf")), (float, True),
        (float, float("inf")), (float, float("nan")), (float, 10**400), (bool, 1), (str, None),
        (None, False), (Literal[1], True), (Literal[False], 0), (Literal["a"], 1), (Level, 3),
        (Level, True), (List[int], "1"), (List[int], {}), (Dict[str, int], []),
        (datetime.date, "2024-02-30"), (datetime.date, "20240201"),
        (datetime.date, "2024-02-01T00:00:00"), (datetime.datetime, "2024-02-01"),
        (datetime.datetime, "2024-02-01T24:00:00Z"), (datetime.time, "12:00:00+24:00"),
        (datetime.time, "1:00"), (datetime.time, "noon"), (uuid.UUID, "{" + "0" * 32 + "}"),
        (Decimal, "about 5"), (Decimal, "NaN"), (Decimal, 1), (Decimal, "\u0661"),
        (pathlib.Path, 1),
    ],
    ids=repr,
)  # fmt: skip
def test_what_does_not_fit(kind: Any, value: Any) -> None:
    assert fails(kind, value).startswith("at $: expected ")


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        (int, 3.0, 3),
        (float, 3, 3.0),
        (Literal[1], 1.0, 1),
        (Decimal, "-1.50e3", Decimal("-1500")),
        (datetime.time, "09:30", datetime.time(9, 30)),
        (datetime.time, "09:30:01.5", datetime.time(9, 30, 1, 500_000)),
        (datetime.time, "09:30:01.1234567Z",
            datetime.time(9, 30, 1, 123_456, datetime.timezone.utc)),
        (datetime.datetime, "2024-02-01t09:30:00-01:30",
            datetime.datetime(2024, 2, 1, 11, 0, tzinfo=datetime.timezone.utc)),
        (datetime.datetime, "2024-02-01 09:30:00", datetime.datetime(2024, 2, 1, 9, 30)),
        (pathlib.PurePosixPath, "/tmp/x", pathlib.PurePosixPath("/tmp/x")),
        (Union[int, str], "1", "1"),
        (Dict[Color, int], {"red": 1}, {Color.RED: 1}),
        (Tuple[()], [], ()),
    ],
    ids=repr,
)  # fmt: skip
def test_what_fits(kind: Any, value: Any, wanted: Any) -> None:
    found = reader(kind)(value)
    assert (found, type(found)) == (wanted, type(wanted))


def test_null_for_what_may_be_left_out() -> None:
    assert reader(Tight)({"must": 1, "may": None}) == {"must": 1}
    assert reader(Point)({"x": 1, "y": None}) == Point(1.0, 0.0)
    assert reader(City)({"name": "a", "population": 1, "tags": None}).tags == []
    assert fails(Point, {"x": None, "y": 1}) == "at $.x: expected a number, not null"


def test_nested_too_deep() -> None:
    value: Any = None
    for _ in range(5000):
        value = {"leaves": [] if value is None else [{"owner": value}]}
    assert fails(Branch, value) == "at $: nested too deep"


def test_values_without_a_json_form() -> None:
    for value in (object(), b"x", {1}, 1j, City, print):
        with pytest.raises(TypeError, match="has no JSON form"):
            to_json_value(value)
    for number in (float("nan"), float("-inf"), Decimal("sNaN"), Decimal("Infinity")):
        with pytest.raises(ValueError, match="not finite"):
            to_json_value([number])
    with pytest.raises(TypeError, match="a key of a JSON object is text, not int"):
        to_json_value({1: 1})
    assert to_json_value({Color.RED: Decimal("1E+5000")}) == {"red": "1E+5000"}


# -- Formats and answers --------------------------------------------------------------------------


def test_the_name_of_a_format() -> None:
    assert format_of(City) == svir.JsonSchema("City", schema_of(City))
    assert format_of(List[City]).name == "List_City"
    assert format_of(City, name="place").name == "place"
    assert format_of(Point, strict=True) == svir.JsonSchema(
        "Point", schema_of(Point, strict=True), strict=True
    )
    assert format_of(make_dataclass("Größe" * 30, [("a", int)])).name == "Gr_e" * 16
    assert format_of(make_dataclass("长", [("a", int)])).name == "answer"


REQUEST = svir.Request("m", "Which city?")
OSLO = '{"name": "Oslo", "population": 700000}'


def ask(*steps: Any, request: svir.Request = REQUEST, **options: Any) -> Any:
    client = svir.Client("http://localhost:1", layers=[scripted(*steps, **options)])
    return schema.ask(client, request, City)


def test_ask() -> None:
    value, completion = ask(OSLO, usage=(3, 4))
    assert value == City("Oslo", 700_000)
    assert completion.usage.total_tokens == 7


def test_ask_sets_the_format() -> None:
    seen: list[Any] = []

    def look(request: svir.Request, call: svir.Call) -> Any:
        seen.append(request.response_format)
        return call(request)

    client = svir.Client("http://localhost:1", layers=[look, scripted('{"x": 1}')])
    assert schema.ask(client, REQUEST, Point, strict=True, name="spot")[0] == Point(1)
    same = REQUEST.replace(response_format=format_of(Point))
    assert schema.ask(client, same, Point)[0] == Point(1)
    assert seen == [format_of(Point, strict=True, name="spot"), format_of(Point)]
    for other in ("json_object", format_of(City), format_of(Point, strict=True)):
        with pytest.raises(svir.ConfigError, match="another response_format"):
            schema.ask(client, REQUEST.replace(response_format=other), Point)
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("steps", "options", "words"),
    [
        ([OSLO], {"finish_reason": "length"}, "max_tokens"),
        (["Sorry."], {"finish_reason": "refusal"}, "refused"),
        (["..."], {"finish_reason": "content_filter"}, "filter"),
        ([svir.ToolCall("1", "t")], {}, "tools"),
        ([svir.ReasoningDelta(OSLO)], {}, "reasoning_effort"),
        (["Oslo"], {}, "not JSON"),
        (['{"name": "Oslo"}'], {}, 'at $: "population" is missing'),
    ],
    ids="length refusal filter calls reasoning words misfit".split(),
)
def test_no_answer(steps: list[Any], options: Any, words: str) -> None:
    with pytest.raises(NoAnswer, match=re.escape(words)) as caught:
        ask(*steps, usage=(1, 2), **options)
    error = caught.value
    assert isinstance(error, ValueError)
    assert "Oslo" not in str(error) + repr(error)
    again = pickle.loads(pickle.dumps(error))
    for each in (error, again):
        assert str(each) == str(error)
        assert each.completion == error.completion
        assert each.completion.usage == svir.Usage(1, 2, 3)


def test_errors_of_the_client_stay_what_they_are() -> None:
    with pytest.raises(svir.RateLimited):
        ask(svir.RateLimited("no"))


if TYPE_CHECKING:  # checked by pyright

    def _types(client: svir.Client, completion: svir.Completion) -> None:
        assert_type(reader(City), Callable[[Any], City])
        assert_type(reader(List[City])([]), List[City])
        assert_type(reader(Tight)({}), Tight)
        assert_type(completion.parse(reader(City)), City)
        assert_type(schema.ask(client, REQUEST, City), Tuple[City, svir.Completion])


# -- Strict mode ----------------------------------------------------------------------------------

KNOWN = {
    "type", "enum", "anyOf", "$ref", "$defs", "description", "properties", "required",
    "additionalProperties", "items", "minItems", "maxItems", "pattern", "format",
}  # fmt: skip


def check_strict(written: dict[str, Any], *more: str) -> None:
    """The rules of OpenAI's guide."""
    assert written["type"] == "object"
    todo = [written, *written.get("$defs", {}).values()]
    while todo:
        part = todo.pop()
        assert set(part) <= {*KNOWN, *more}
        assert part
        assert "$ref" not in part or len(part) == 1
        if part.get("type") == "object":
            assert part["required"] == list(part["properties"])
            assert part["additionalProperties"] is False
        assert part.get("type") != "array" or part["items"]
        todo += [*part.get("properties", {}).values(), *part.get("anyOf", [])]
        todo += [part["items"]] if "items" in part else []


def test_strict() -> None:
    written = schema_of(City, strict=True)
    check_strict(written)
    assert written["properties"]["twin"] == {"anyOf": [{"$ref": "#/$defs/City"}, {"type": "null"}]}
    assert written["properties"]["population"] == CITY["properties"]["population"]  # type: ignore
    assert written["properties"]["color"] == {
        "anyOf": [{"type": "string", "enum": ["red", "blue"]}, {"type": "null"}]
    }
    answer = {"name": "a", "population": 1, "color": None, "twin": None, "tags": None}
    jsonschema.validate(answer, written)
    assert reader(City)(answer) == City("a", 1)
    typed = schema_of(Loose, strict=True)
    assert typed["properties"]["may"] == {
        "anyOf": [{"type": "string"}, {"type": "null"}], "description": "words"
    }  # fmt: skip


def test_strict_keeps_what_it_knows() -> None:
    @dataclass
    class Rich:
        when: datetime.datetime
        price: Decimal
        path: pathlib.Path
        size: Tuple[int, int]
        one: Annotated[Point, "here"]
        two: Point

    written = schema_of(Rich, strict=True)
    check_strict(written)
    properties = written["properties"]
    assert properties["when"] == {"type": "string", "format": "date-time"}
    assert set(properties["price"]) == {"type", "pattern"}
    assert properties["path"] == {"type": "string"}
    assert properties["size"]["maxItems"] == 2
    assert properties["one"] == {"anyOf": [{"$ref": "#/$defs/Point"}], "description": "here"}


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (List[City], "List[City]: strict mode takes an object: put it into a dataclass"),
        (Optional[City], "strict mode takes an object"),
        (Dict[str, City], "use a dataclass"),
        (
            make_dataclass("A", [("b", Dict[str, int])]),
            "A.b: strict mode takes no object with any",
        ),
        (make_dataclass("A", [("b", Tuple[int, str])]), "A.b: strict mode takes no tuple of"),
        (make_dataclass("A", [("b", Any)]), "A.b: strict mode takes no value of any type"),
        (make_dataclass("A", [("b", list)]), "A.b[]: strict mode takes no value of any type"),
    ],
    ids=str,
)
def test_what_strict_mode_cannot(kind: Any, words: str) -> None:
    assert words in has_no_schema(kind, strict=True)
    with pytest.raises(TypeError):
        format_of(kind, strict=True)


# -- pydantic -------------------------------------------------------------------------------------


@pytest.fixture
def pydantic() -> Any:
    return pytest.importorskip(
        "pydantic", reason="*** pydantic is not installed: its models are NOT TESTED here"
    )


def make_models(pydantic: Any) -> Any:
    space: dict[str, Any] = {"pydantic": pydantic, "Literal": Literal, "Union": Union}
    run(
        "from typing import List, Optional\n"
        "class Inner(pydantic.BaseModel):\n"
        "    number: int = pydantic.Field(ge=0, description='how many')\n"
        "class Tree(pydantic.BaseModel):\n"
        "    inner: Inner\n"
        "    trees: List['Tree'] = []\n"
        "    named: Optional[str] = None\n"
        "Tree.model_rebuild(_types_namespace={'Tree': Tree, 'List': List, 'Inner': Inner})\n"
        "class Cat(pydantic.BaseModel):\n    kind: Literal['cat']\n"
        "class Dog(pydantic.BaseModel):\n    kind: Literal['dog']\n"
        "class Pet(pydantic.BaseModel):\n"
        "    one: Union[Cat, Dog] = pydantic.Field(discriminator='kind')\n"
        "class Short(pydantic.BaseModel):\n    text: str = pydantic.Field(max_length=3)\n"
        "class Open(pydantic.BaseModel, extra='allow'):\n    text: str\n",
        space,
    )
    return types.SimpleNamespace(**space)


def test_pydantic_models(pydantic: Any) -> None:
    models = make_models(pydantic)
    value = models.Tree(inner={"number": 1}, trees=[{"inner": {"number": 2}}])
    for kind, each in ((models.Tree, value), (List[models.Tree], [value])):
        plain = json.loads(json.dumps(to_json_value(each)))
        assert reader(kind)(plain) == each
        jsonschema.validate(plain, schema_of(kind))
    inner = make_dataclass("Inner", [("tree", models.Tree), ("more", List[models.Tree])])
    both = make_dataclass("Both", [("a", inner), ("b", models.Inner)])
    written = schema_of(both)
    jsonschema.Draft202012Validator.check_schema(written)
    plain = {"a": {"tree": to_json_value(value), "more": []}, "b": {"number": 3}}
    jsonschema.validate(plain, written)
    assert to_json_value(reader(both)(plain)) == plain
    plain["a"]["tree"]["trees"][0]["inner"]["number"] = -1
    assert not jsonschema.Draft202012Validator(written).is_valid(plain)
    assert fails(both, plain).startswith("at $.a.tree.trees[0].inner.number: Input should be")


def test_a_pydantic_problem_does_not_show_the_value(pydantic: Any) -> None:
    models = make_models(pydantic)
    message = fails(models.Tree, {"inner": {"number": "secret"}, "named": 1})
    assert "secret" not in message
    assert message.endswith("(and 1 more)")


def test_pydantic_in_strict_mode(pydantic: Any) -> None:
    models = make_models(pydantic)
    written = schema_of(models.Tree, strict=True)
    check_strict(written, "minimum")
    jsonschema.validate({"inner": {"number": 1}, "trees": [], "named": None}, written)
    check_strict(schema_of(models.Pet, strict=True), "const")
    assert "Short.text: strict mode takes no maxLength" in has_no_schema(models.Short, strict=True)
    assert "use a dataclass" in has_no_schema(models.Open, strict=True)
    listed = make_dataclass("Listed", [("trees", List[models.Tree])])
    check_strict(schema_of(listed, strict=True), "minimum")


# -- Properties -----------------------------------------------------------------------------------

# A case is a type, its values, and the kinds of JSON that they are: those of a union must differ.
Case = Tuple[Any, "st.SearchStrategy[Any]", typing.FrozenSet[str]]

zones = st.none() | st.builds(
    lambda minutes: datetime.timezone(datetime.timedelta(minutes=minutes)),
    st.integers(-23 * 60, 23 * 60),
)
numbers = st.floats(allow_nan=False, allow_infinity=False)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
paths = st.text(max_size=9).map(pathlib.PurePosixPath)
STRINGS: list[tuple[Any, Any]] = [
    (str, st.text()),
    (Color, st.sampled_from(Color)),
    (Literal["a", "b"], st.sampled_from(["a", "b"])),
    (datetime.date, st.dates()),
    (datetime.time, st.builds(lambda t, z: t.replace(tzinfo=z, fold=0), st.times(), zones)),
    (
        datetime.datetime,
        st.builds(lambda t, z: t.replace(tzinfo=z, fold=0), st.datetimes(), zones),
    ),
    (uuid.UUID, st.uuids()),
    (pathlib.PurePosixPath, paths),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
]
OTHERS: list[tuple[Any, Any, str]] = [
    (int, st.integers(), "number"),
    (float, numbers, "number"),
    (Level, st.sampled_from(Level), "number"),
    (bool, st.booleans(), "boolean"),
    (None, st.none(), "null"),
    (Any, anything, "string number boolean null array object"),
    (Literal["x", 7, None], st.sampled_from(["x", 7, None]), "string number null"),
]
leaves: list[Case] = [
    *((kind, values, frozenset(["string"])) for kind, values in STRINGS),
    *((kind, values, frozenset(words.split())) for kind, values, words in OTHERS),
]
names: st.SearchStrategy[str] = st.sampled_from("alpha beta gamma delta".split())


def containers(inner: st.SearchStrategy[Case]) -> st.SearchStrategy[Case]:
    array, string = frozenset(["array"]), st.sampled_from(STRINGS)
    return st.one_of(
        inner.map(lambda c: (List[c[0]], st.lists(c[1], max_size=3), array)),
        inner.map(lambda c: (Tuple[c[0], ...], st.lists(c[1], max_size=3).map(tuple), array)),
        st.lists(inner, max_size=3).map(fixed_tuple),
        st.tuples(string, inner).map(dictionary),
        st.lists(inner, min_size=2, max_size=3).map(union),
        a_dataclass(inner),
        st.dictionaries(names, st.tuples(inner, st.booleans()), max_size=3).map(a_typed_dict),
        st.dictionaries(names, inner, max_size=3).map(a_named_tuple),
    )


def fixed_tuple(items: list[Case]) -> Case:
    kind: Any = Tuple[tuple(item[0] for item in items)] if items else Tuple[()]
    return kind, st.tuples(*(item[1] for item in items)), frozenset(["array"])


def dictionary(pair: Any) -> Case:
    (key, keys), (item, values, _) = pair
    return Dict[key, item], st.dictionaries(keys, values, max_size=3), frozenset(["object"])


def union(parts: list[Case]) -> Case:
    """Of those parts that JSON tells apart."""
    chosen: list[Case] = []
    for part in parts:
        if all(part[2].isdisjoint(other[2]) for other in chosen):
            chosen.append(part)
    kinds = tuple(part[0] for part in chosen)
    said: frozenset[str] = frozenset().union(*(part[2] for part in chosen))
    return Union[kinds], st.one_of(*(part[1] for part in chosen)), said


@st.composite
def a_dataclass(draw: Any, inner: st.SearchStrategy[Case]) -> Case:
    parts = draw(st.dictionaries(names, inner, max_size=3))
    late = draw(st.sets(st.sampled_from(sorted(parts)))) if parts else ()
    rows: list[Any] = [(name, case[0]) for name, case in parts.items() if name not in late]
    for name in sorted(late):
        rows.append((name, parts[name][0], default(draw(parts[name][1]))))
    made = make_dataclass("Data", rows)
    values = st.builds(made, **{name: case[1] for name, case in parts.items()})
    return made, values, frozenset(["object"])


def default(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return field(default_factory=lambda: value)
    return field(default=value)


def a_typed_dict(parts: dict[str, tuple[Case, bool]]) -> Case:
    marked = {n: NotRequired[case[0]] if late else case[0] for n, (case, late) in parts.items()}
    made = TypedDict("Typed", marked)  # type: ignore[misc]
    values = st.fixed_dictionaries(
        {name: case[1] for name, (case, late) in parts.items() if not late},
        optional={name: case[1] for name, (case, late) in parts.items() if late},
    )
    return made, values, frozenset(["object"])


def a_named_tuple(parts: dict[str, Case]) -> Case:
    made = NamedTuple("Named", [(name, case[0]) for name, case in parts.items()])  # type: ignore
    values = st.builds(made, **{name: case[1] for name, case in parts.items()})
    return made, values, frozenset(["object"])


cases: st.SearchStrategy[Case] = st.recursive(st.sampled_from(leaves), containers, max_leaves=6)


def is_time(text: str) -> bool:
    found = re.match(
        r"([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:[.][0-9]+)?)?"
        r"(?:[Zz]|[+-]([0-9]{2}):([0-9]{2})(?::([0-9]{2}))?)?\Z",
        text,
    )
    if found is None:
        return False
    parts = [int(part or 0) for part in found.groups()]
    return all(part < limit for part, limit in zip(parts, (24, 60, 60, 24, 60, 60)))


def is_date(text: str) -> bool:
    try:
        return bool(re.match(r"[0-9]{4}-", text)) and bool(
            datetime.datetime.strptime(text, "%Y-%m-%d") and len(text) == 10
        )
    except ValueError:
        return False


FORMATS = jsonschema.FormatChecker(formats=())
FORMATS.checkers = {
    "date": (lambda v: not isinstance(v, str) or is_date(v), ()),
    "time": (lambda v: not isinstance(v, str) or is_time(v), ()),
    "date-time": (
        lambda v: (
            not isinstance(v, str)
            or (is_date(v[:10]) and v[10:11] in ("T", "t", " ") and is_time(v[11:]))
        ),
        (),
    ),
    "uuid": (
        lambda v: (
            not isinstance(v, str)
            or bool(re.match(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z", v))
        ),
        (),
    ),
}


def validator(written: dict[str, Any]) -> Any:
    return jsonschema.Draft202012Validator(written, format_checker=FORMATS)


few = settings(
    max_examples=800,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@few
@given(st.data())
def test_a_value_goes_to_json_and_back(data: st.DataObject) -> None:
    kind, values, _ = data.draw(cases)
    value = data.draw(values)
    plain = json.loads(json.dumps(to_json_value(value)))
    again = reader(kind)(plain)
    assert again == value
    assert repr(again) == repr(value)  # True is not 1, nor 1.0
    written = schema_of(kind)
    jsonschema.Draft202012Validator.check_schema(written)
    validator(written).validate(plain)


ODD = [
    "", "a", "2024-02-30", "2024-2-3", "2024-02-03T25:00:00Z", "12:00:60", "12:00:00Z", "1e5",
    "1.", "+1", "\u0661", "0" * 32, 0, 1, -1, 1.5, 7.0, True, False, [], {}, [1], {"alpha": 1},
]  # fmt: skip


@st.composite
def mutated(draw: Any, value: Any, others: st.SearchStrategy[Any]) -> Any:
    """The JSON with one thing changed: a value, a key or an item; added, dropped or replaced."""
    inside = draw(st.booleans())
    if isinstance(value, list) and inside:
        place = draw(st.integers(0, len(value)))
        rest = value[place + 1 :]
        kept = [draw(mutated(item, others)) for item in value[place : place + 1]]
        kept = draw(st.sampled_from([kept, [], [draw(others), *kept]]))
        return [*value[:place], *kept, *rest]
    if isinstance(value, dict) and inside:
        key = draw(st.sampled_from([*value, "alpha", "beta", "other"]))
        if key not in value:
            return {**value, key: draw(others)}
        if draw(st.booleans()):
            return {name: item for name, item in value.items() if name != key}
        return {**value, key: draw(mutated(value[key], others))}
    return draw(others)


def fits(kind: Any, plain: Any) -> bool:
    try:
        reader(kind)(plain)
    except Mismatch:
        return False
    return True


@few
@given(st.data())
def test_the_schema_allows_what_the_reader_takes(data: st.DataObject) -> None:
    kind, values, _ = data.draw(cases)
    plain = json.loads(json.dumps(to_json_value(data.draw(values))))
    odd = data.draw(mutated(plain, st.sampled_from(ODD)))
    assert validator(schema_of(kind)).is_valid(odd) == fits(kind, odd)


@few
@given(st.data())
def test_the_reader_takes_what_the_schema_allows_with_nulls(data: st.DataObject) -> None:
    kind, values, _ = data.draw(cases)
    plain = json.loads(json.dumps(to_json_value(data.draw(values))))
    odd = data.draw(mutated(plain, st.none()))
    if validator(schema_of(kind)).is_valid(odd):
        assert fits(kind, odd)


@few
@given(st.data())
def test_strict_schemas(data: st.DataObject) -> None:
    kind, values, _ = data.draw(a_dataclass(cases))
    written: Any = None
    try:
        written = schema_of(kind, strict=True)
    except TypeError:
        assume(False)
    check_strict(written)
    plain = json.loads(json.dumps(to_json_value(data.draw(values))))
    plain = without_gaps(written, written, plain)
    check = validator(written)
    check.validate(plain)
    # Left out and null are one in strict mode, where both may be.
    again = json.loads(json.dumps(to_json_value(reader(kind)(plain))))
    assert without_gaps(written, written, again) == plain
    odd = data.draw(mutated(plain, st.sampled_from([*ODD, None])))
    if check.is_valid(odd):
        assert fits(kind, odd)


def without_gaps(root: Any, written: Any, plain: Any) -> Any:
    """The JSON as strict mode writes it: null for what was left out."""
    if "$ref" in written:
        return without_gaps(root, root["$defs"][written["$ref"].rpartition("/")[2]], plain)
    for part in written.get("anyOf", ()):
        filled = without_gaps(root, part, plain)
        if validator({**part, "$defs": root.get("$defs", {})}).is_valid(filled):
            return filled
    if isinstance(plain, list) and "items" in written:
        return [without_gaps(root, written["items"], item) for item in plain]
    if isinstance(plain, dict) and "properties" in written:
        return {
            name: without_gaps(root, part, plain.get(name))
            for name, part in written["properties"].items()
        }
    return plain


trees = st.recursive(
    st.builds(Branch, st.just([])),
    lambda inner: st.builds(Branch, st.lists(st.builds(Leaf, st.none() | inner), max_size=3)),
    max_leaves=8,
)


@few
@given(trees)
def test_recursive_values(tree: Branch) -> None:
    plain = json.loads(json.dumps(to_json_value(tree)))
    for strict in (False, True):
        validator(schema_of(Branch, strict)).validate(plain)
    assert reader(Branch)(plain) == tree
