"""JSON Schema from the types of Python, and values of those types back from JSON.

    @dataclass
    class City:
        name: str
        population: int

    city, completion = schema.ask(client, request, City)

Types: str, int, float, bool, None, Any, Optional and Union (`X | Y` too), Literal, Enum, list and
Sequence, tuple, dict and Mapping with keys that are text, dataclass, TypedDict, NamedTuple;
datetime, date, time, UUID, Path and Decimal, which are text in JSON; and pydantic models, where
the caller has pydantic. They nest, and classes may be recursive. `Annotated[int, "words"]`
describes a value to the model, as does `field(metadata={"description": "words"})`.

The reader takes what the schema allows and no more, but for one habit of models: null for what may
be left out is read as left out. Of several types in a union, the first that fits is taken.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import functools
import json
import math
import pathlib
import re
import sys
import threading
import types
import typing
import uuid
from collections import abc
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterable,
    Mapping,
    Sequence,
    TypeVar,
    overload,
)

import svir

if TYPE_CHECKING:
    import inspect

__all__ = [
    "Mismatch", "NoAnswer", "ask", "format_of", "parameters_of", "reader", "schema_of",
    "to_json_value",
]  # fmt: skip

_T = TypeVar("_T")
Json = Dict[str, Any]

# -- What to call ---------------------------------------------------------------------------------


class Mismatch(ValueError):
    """JSON that a type does not fit: the `problem`, and the `path` to it, like `$.items[2].name`.

    It holds names and kinds, but no value (unless the words of a class's own check do).
    """

    def __init__(self, problem: str, path: str = "$") -> None:
        super().__init__(problem, path)
        self.problem, self.path = problem, path

    def __str__(self) -> str:
        return f"at {self.path}: {self.problem}"


class NoAnswer(ValueError):
    """The model answered, but not with a value of the type. `completion` is what it did say.

    `completion.finish_reason` tells an answer that was cut off ("length"), filtered or refused;
    with "stop" the JSON did not fit, and `__cause__` is the Mismatch.
    """

    def __init__(self, message: str, completion: svir.Completion) -> None:
        super().__init__(message)
        self.completion = completion

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.completion)


def schema_of(type: Any, strict: bool = False) -> Json:
    """The JSON Schema (2020-12) of a type.

    A class that is used more than once, or in itself, is under "$defs". `strict` writes what
    OpenAI's strict mode asks for: every property required, and nullable if it may be left out; no
    other keys; none of the keywords that it does not know.
    Raises: TypeError, saying why, for a type that has no schema or, with `strict`, cannot be so.
    """
    document = _document(_Builder().shape(type, _name(type)), strict)
    return _strict_root(document, _name(type)) if strict else document


def format_of(type: Any, *, name: str | None = None, strict: bool = False) -> svir.JsonSchema:
    """The response format that asks for a value of the type; it is named after the type.

    Raises: TypeError, as `schema_of` does.
    """
    name = name or re.sub(r"[^A-Za-z0-9_-]+", "_", _name(type)).strip("_")[:64]
    return svir.JsonSchema(name or "answer", schema_of(type, strict), strict=strict)


@overload
def reader(type: type[_T]) -> Callable[[Any], _T]: ...
@overload
def reader(type: Any) -> Callable[[Any], Any]: ...
def reader(type: Any) -> Callable[[Any], Any]:
    """A function from JSON, as `json.loads` gives it, to a value of the type.

    `completion.parse(reader(City))`. It raises `Mismatch`, a ValueError, for what does not fit.
    Raises: TypeError for a type that has no schema.
    """
    return functools.partial(_read, _Builder().shape(type, _name(type)))


@overload
def ask(
    client: svir.Client,
    request: svir.Request,
    type: type[_T],
    *,
    name: str | None = None,
    strict: bool = False,
) -> tuple[_T, svir.Completion]: ...
@overload
def ask(
    client: svir.Client,
    request: svir.Request,
    type: Any,
    *,
    name: str | None = None,
    strict: bool = False,
) -> tuple[Any, svir.Completion]: ...
def ask(
    client: svir.Client,
    request: svir.Request,
    type: Any,
    *,
    name: str | None = None,
    strict: bool = False,
) -> tuple[Any, svir.Completion]:
    """Ask for a value of the type: the value, and the completion with its usage.

    Raises: `NoAnswer`, whose completion tells the rest, for an answer that is not such a value;
    svir.ConfigError for a request that sets another format; svir.Error as `client.complete` does.
    """
    form, read = format_of(type, name=name, strict=strict), reader(type)
    if request.response_format not in ("text", form):
        raise svir.ConfigError("the request sets another response_format: leave it to ask()")
    completion = client.complete(request.replace(response_format=form))
    try:
        return completion.parse(read), completion
    except ValueError as error:
        raise NoAnswer(_why_not(completion, error), completion) from error


def _why_not(completion: svir.Completion, error: ValueError) -> str:
    words = {
        "length": "the answer was cut off: raise max_tokens, or ask for less",
        "content_filter": "the server's filter held the answer back",
        "refusal": "the model refused, in the words of completion.text",
        "tool_calls": "the model called tools: it has not answered yet",
    }
    if completion.finish_reason in words:
        return words[completion.finish_reason]
    if completion.reasoning and not completion.text.strip():
        return 'the model only reasoned: try reasoning_effort="none" in the request'
    return f"the answer is not what was asked for: {error}"


def to_json_value(value: Any) -> Any:
    """A value of any of the types as JSON: what `json.dumps` takes and `reader` reads back.

    Raises: TypeError for what has no JSON form, ValueError for a number that is not finite.
    """
    if isinstance(value, enum.Enum):
        return to_json_value(value.value)
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, (float, decimal.Decimal)):
        if not (math.isfinite(value) if isinstance(value, float) else value.is_finite()):
            raise ValueError("JSON has no number that is not finite")
        return value if isinstance(value, float) else str(value)
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (uuid.UUID, pathlib.PurePath)):
        return str(value)
    if _is_model(type(value)):
        return value.model_dump(mode="json", by_alias=True)
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return [to_json_value(item) for item in value]
    return {_to_key(key): to_json_value(item) for key, item in _items(value)}


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    """Keys and values of what is an object in JSON."""
    if isinstance(value, abc.Mapping):
        return value.items()
    if isinstance(value, tuple):
        return zip(value._fields, value)  # type: ignore[attr-defined]
    if hasattr(type(value), "__dataclass_fields__"):
        # The others are computed: the constructor does not take them back.
        return [(f.name, getattr(value, f.name)) for f in _dataclass_fields(value) if f.init]
    raise TypeError(f"{_name(type(value))} has no JSON form")


def _to_key(key: Any) -> str:
    name = to_json_value(key)
    if not isinstance(name, str):
        raise TypeError(f"a key of a JSON object is text, not {_name(type(key))}")
    return name


def parameters_of(function: Callable[..., Any]) -> tuple[Json, Callable[[Any], Json]]:
    """The JSON Schema of a function's arguments, and a reader of them into keyword arguments.

    What has no annotation takes any JSON; `**rest` takes other names. Arguments that a
    `functools.partial` has set are left out: they are not the model's.
    Raises: TypeError for `*args`, arguments by place only, and types that have no schema.
    """
    record = _Builder().parameters(function)
    return _document(record, strict=False), functools.partial(_read, record)


# -- Shapes: each writes its schema, and reads its JSON -------------------------------------------


class _Shape:
    """A type, as far as JSON goes. Two ways to use one: its schema, and reading a value.

    `said` is the type in words: "expected {said}". `parts` are the shapes inside.
    """

    said = "JSON"
    parts: Sequence[_Shape] = ()

    def schema(self, defs: _Defs) -> Json:
        return {}

    def read(self, value: Any, path: str) -> Any:
        """The value. Raises: Mismatch."""
        return value

    def wrong(self, value: Any, path: str) -> Mismatch:
        return Mismatch(f"expected {self.said}, not {_kind(value)}", path)

    def takes_null(self) -> bool:
        try:
            self.read(None, "")
        except Mismatch:
            return False
        return True


class _Plain(_Shape):
    """null, a boolean, a number or a string, each as itself."""

    def __init__(self, json_type: str, said: str, take: Callable[[Any], Any]) -> None:
        self.json_type, self.said, self.take = json_type, said, take

    def schema(self, defs: _Defs) -> Json:
        return {"type": self.json_type}

    def read(self, value: Any, path: str) -> Any:
        taken = self.take(value)
        if taken is _NOTHING:
            raise self.wrong(value, path)
        return taken


class _Text(_Shape):
    """A string in a form of its own. `take` raises ValueError for another."""

    def __init__(self, schema: Json, said: str, take: Callable[[str], Any]) -> None:
        self.form, self.said, self.take = {"type": "string", **schema}, said, take

    def schema(self, defs: _Defs) -> Json:
        return dict(self.form)

    def read(self, value: Any, path: str) -> Any:
        if not isinstance(value, str):
            raise self.wrong(value, path)
        try:
            return self.take(value)
        except (ValueError, ArithmeticError):
            raise Mismatch(f"expected {self.said}", path) from None


class _Choice(_Shape):
    """A Literal or an Enum: pairs of the JSON and what it stands for."""

    def __init__(self, choices: Iterable[tuple[Any, Any]]) -> None:
        self.choices = list(choices)
        words = [json.dumps(given, ensure_ascii=False) for given, _ in self.choices]
        self.said = words[0] if len(words) == 1 else f"one of {', '.join(words)}"

    def schema(self, defs: _Defs) -> Json:
        # By type: strict servers want a type beside every enum.
        groups: dict[str, list[Any]] = {}
        for given, _ in self.choices:
            groups.setdefault(_JSON_TYPES.get(type(given), "null"), []).append(given)
        return _any_of(
            {"type": kind} if kind == "null" else {"type": kind, "enum": values}
            for kind, values in groups.items()
        )

    def read(self, value: Any, path: str) -> Any:
        for given, meant in self.choices:
            # True is 1 in Python, but not in JSON.
            if given == value and isinstance(given, bool) == isinstance(value, bool):
                return meant
        if any(type(given) is type(value) for given, _ in self.choices):
            raise Mismatch(f"expected {self.said}", path)
        raise self.wrong(value, path)


class _List(_Shape):
    said = "a list"

    def __init__(self, item: _Shape) -> None:
        self.item, self.parts = item, (item,)

    def schema(self, defs: _Defs) -> Json:
        return {"type": "array", "items": defs.use(self.item)}

    def read(self, value: Any, path: str) -> Any:
        if not isinstance(value, list):
            raise self.wrong(value, path)
        return [self.item.read(item, f"{path}[{place}]") for place, item in enumerate(value)]


class _ManyTuple(_List):
    """`tuple[X, ...]`"""

    def read(self, value: Any, path: str) -> Any:
        return tuple(super().read(value, path))


class _Tuple(_Shape):
    def __init__(self, items: Sequence[_Shape]) -> None:
        self.parts = items
        self.said = f"a list of {len(items)}"

    def schema(self, defs: _Defs) -> Json:
        items = [defs.use(item) for item in self.parts]
        schema: Json = {"type": "array", "minItems": len(items), "maxItems": len(items)}
        if items and all(item == items[0] for item in items):
            schema["items"] = items[0]
        elif items:
            # Without "items": false, which llama.cpp takes for the schema of every item.
            schema["prefixItems"] = items
        return schema

    def read(self, value: Any, path: str) -> Any:
        if not isinstance(value, list):
            raise self.wrong(value, path)
        if len(value) != len(self.parts):
            raise Mismatch(f"expected {self.said}, not of {len(value)}", path)
        pairs = enumerate(zip(self.parts, value))
        return tuple(shape.read(item, f"{path}[{place}]") for place, (shape, item) in pairs)


class _Dict(_Shape):
    said = "an object"

    def __init__(self, key: _Shape, item: _Shape) -> None:
        self.key, self.item, self.parts = key, item, (key, item)

    def schema(self, defs: _Defs) -> Json:
        schema: Json = {"type": "object", "additionalProperties": defs.use(self.item)}
        names = defs.use(self.key)
        if names != {"type": "string"}:
            schema["propertyNames"] = names
        return schema

    def read(self, value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise self.wrong(value, path)
        return {
            self.key.read(key, _inside(path, key)): self.item.read(item, _inside(path, key))
            for key, item in value.items()
        }


_reading = threading.local()  # what the unions of this reading could not read


class _Union(_Shape):
    """The first type that fits is taken."""

    def __init__(self, parts: Sequence[_Shape]) -> None:
        self.parts = parts
        self.said = " or ".join(part.said for part in parts)

    def schema(self, defs: _Defs) -> Json:
        return _any_of(defs.use(part) for part in self.parts)

    def read(self, value: Any, path: str) -> Any:
        # What failed once is not tried again: a union within itself would double its work at
        # every level.
        outermost = getattr(_reading, "failed", None) is None
        if outermost:
            _reading.failed = {}
        try:
            key = (id(self), id(value), path)
            if key in _reading.failed:
                raise Mismatch(*_reading.failed[key])
            try:
                return self.first_that_fits(value, path)
            except Mismatch as problem:
                _reading.failed[key] = (problem.problem, problem.path)
                raise
        finally:
            if outermost:
                _reading.failed = None

    def first_that_fits(self, value: Any, path: str) -> Any:
        problems = []
        for part in self.parts:
            try:
                return part.read(value, path)
            except Mismatch as problem:
                # Another kind of value says nothing; anything else is about a type that was meant.
                if str(problem) != str(part.wrong(value, path)):
                    problems.append(problem)
        if len(problems) == 1:
            raise problems[0]
        if problems:
            told = "; ".join(str(problem)[:200] for problem in problems[:4])
            raise Mismatch(f"fits none of its types: {told}", path)
        raise self.wrong(value, path)


class _Described(_Shape):
    def __init__(self, shape: _Shape, words: str) -> None:
        self.shape, self.words, self.parts = shape, words, (shape,)
        self.said = shape.said

    def schema(self, defs: _Defs) -> Json:
        return _with(defs.use(self.shape), description=self.words)

    def read(self, value: Any, path: str) -> Any:
        return self.shape.read(value, path)


class _Alias(_Shape):
    """A `type X = ...`, which may name itself: the shape is filled in later."""

    def __init__(self, name: str) -> None:
        self.name = self.said = name

    def schema(self, defs: _Defs) -> Json:
        return defs.use(self.parts[0])

    def read(self, value: Any, path: str) -> Any:
        return self.parts[0].read(value, path)


class _Field:
    """A name of a record. `default` may be unknown though the field may be left out."""

    def __init__(
        self,
        shape: _Shape,
        required: bool = True,
        default: Any = None,
        has_default: bool = False,
        words: str | None = None,
    ) -> None:
        self.shape = shape if words is None else _Described(shape, words)
        self.required, self.default, self.has_default = required, default, has_default

    def schema(self, defs: _Defs) -> Json:
        schema = defs.use(self.shape)
        may_be_null = defs.strict and not self.required
        if may_be_null or (self.has_default and self.default is None):
            schema = schema if self.shape.takes_null() else _nullable(schema)
        if self.has_default:
            schema = self.with_default(schema)
        return schema

    def with_default(self, schema: Json) -> Json:
        try:
            value = to_json_value(self.default)
            if value is not None:
                self.shape.read(value, "")
        except (TypeError, ValueError):
            return schema  # it is Python's only
        return _with(schema, default=value)

    def read(self, value: Any, path: str) -> Any:
        try:
            return self.shape.read(value, path)
        except Mismatch:
            if value is None and not self.required:
                return _NOTHING
            raise


class _Record(_Shape):
    """A class with fields, or a function with arguments. `rest` is what other keys may hold."""

    said = "an object"

    def __init__(self, name: str, words: str, make: Callable[..., Any]) -> None:
        self.name, self.words, self.make = name, words, make
        self.fields: dict[str, _Field] = {}
        self.rest: _Shape | None = None

    def fill(self, fields: dict[str, _Field], rest: _Shape | None = None) -> None:
        # After the shape is known to the builder: a field may be of this class again.
        self.fields, self.rest = fields, rest
        self.parts = [field.shape for field in fields.values()] + ([rest] if rest else [])

    def schema(self, defs: _Defs) -> Json:
        schema: Json = {"type": "object"}
        if self.words:
            schema["description"] = self.words
        schema["properties"] = {n: field.schema(defs) for n, field in self.fields.items()}
        required = [n for n, field in self.fields.items() if field.required or defs.strict]
        if required:
            schema["required"] = required
        schema["additionalProperties"] = defs.use(self.rest) if self.rest else False
        return schema

    def read(self, value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise self.wrong(value, path)
        values = {}
        for name, item in value.items():
            taken = self.read_item(name, item, path)
            if taken is not _NOTHING:
                values[name] = taken
        for name, field in self.fields.items():
            if field.required and name not in values:
                raise Mismatch(f"{_shown(name)} is missing", path)
        try:
            return self.make(**values)
        except ValueError as error:  # the class's own check
            raise Mismatch(str(error), path) from error

    def read_item(self, name: str, item: Any, path: str) -> Any:
        if name in self.fields:
            return self.fields[name].read(item, _inside(path, name))
        if self.rest is None:
            known = ", ".join(map(_shown, self.fields)) or "none"
            raise Mismatch(f"{_shown(name)} is not one of its names: {known}", path)
        return self.rest.read(item, _inside(path, name))


class _Model(_Shape):
    """A pydantic model: it has a schema and checks of its own."""

    said = "an object"

    def __init__(self, cls: Any) -> None:
        self.cls, self.name = cls, cls.__name__

    def schema(self, defs: _Defs) -> Json:
        # Its own definitions get names that no class of ours has.
        prefix = f"{defs.name_for(self)}."
        schema: Json = self.cls.model_json_schema(ref_template=f"#/$defs/{prefix}{{model}}")
        for name, body in schema.pop("$defs", {}).items():
            defs.bodies[prefix + name] = body
        return schema

    def read(self, value: Any, path: str) -> Any:
        try:
            return self.cls.model_validate(value)
        except ValueError as error:
            raise _model_problem(error, path) from None


def _model_problem(error: Any, path: str) -> Mismatch:
    """A ValidationError without the values that its own words show."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    for key in problems[0]["loc"]:
        path = f"{path}[{key}]" if isinstance(key, int) else _inside(path, key)
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return Mismatch(problems[0]["msg"] + more, path)


_NOTHING = object()
_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


def _kind(value: Any) -> str:
    """What a value is in JSON, in words."""
    if value is None:
        return "null"
    words = {bool: "a boolean", int: "a number", float: "a number", str: "a string"}
    words.update({list: "a list", dict: "an object"})
    return words.get(type(value), _name(type(value)))


def _shown(key: str) -> str:
    """A key for a message. It may be the model's own, so it is kept short."""
    return json.dumps(key if len(key) <= 40 else key[:39] + "…", ensure_ascii=False)


def _inside(path: str, key: Any) -> str:
    key = str(key)
    return f"{path}.{key}" if key.isidentifier() and len(key) <= 40 else f"{path}[{_shown(key)}]"


def _read(shape: _Shape, value: Any) -> Any:
    try:
        return shape.read(value, "$")
    except RecursionError:
        raise Mismatch("nested too deep") from None


# -- Reading what is plain ------------------------------------------------------------------------


def _take(*types: type) -> Callable[[Any], Any]:
    return lambda value: value if type(value) in types else _NOTHING


def _take_int(value: Any) -> Any:
    # 3.0 is an integer in JSON Schema, and some models write it.
    if type(value) is float and value.is_integer():
        return int(value)
    return value if type(value) is int else _NOTHING


def _take_float(value: Any) -> Any:
    if type(value) not in (int, float):
        return _NOTHING
    try:
        return float(value) if math.isfinite(value) else _NOTHING
    except OverflowError:
        return _NOTHING


# RFC 3339, and the form without an offset, which Python's values often have. fromisoformat() takes
# other forms in every version.
_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
_TIME = re.compile(
    r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d+))?)?(?:([Zz])|([+-])(\d\d):(\d\d)(?::(\d\d))?)?", re.ASCII
)
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)
_DECIMAL = r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?"


def _match(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    found = pattern.fullmatch(text)
    if found is None:
        raise ValueError("another form")
    return found


def _take_date(text: str) -> datetime.date:
    return datetime.date(*map(int, _match(_DATE, text).groups()))


def _take_time(text: str) -> datetime.time:
    found = _match(_TIME, text)
    hour, minute, second, fraction, utc, sign, *offset = found.groups()
    zone = datetime.timezone.utc if utc else None
    if sign:
        hours, minutes, seconds = (int(part or 0) for part in offset)
        away = datetime.timedelta(hours=hours, minutes=minutes, seconds=seconds)
        zone = datetime.timezone(-away if sign == "-" else away)
    micro = int((fraction or "0")[:6].ljust(6, "0"))
    return datetime.time(int(hour), int(minute), int(second or 0), micro, zone)


def _take_datetime(text: str) -> datetime.datetime:
    if text[10:11] not in ("T", "t", " "):
        raise ValueError("another form")
    return datetime.datetime.combine(_take_date(text[:10]), _take_time(text[11:]))


def _take_uuid(text: str) -> uuid.UUID:
    return uuid.UUID(_match(_UUID, text).group())


def _take_decimal(text: str) -> decimal.Decimal:
    return decimal.Decimal(_match(re.compile(_DECIMAL), text).group())


_ANY = _Shape()
_NULL = _Plain("null", "null", lambda value: None if value is None else _NOTHING)
_SHAPES: dict[Any, _Shape] = {
    Any: _ANY,
    object: _ANY,
    type(None): _NULL,
    str: _Plain("string", "a string", _take(str)),
    int: _Plain("integer", "an integer", _take_int),
    float: _Plain("number", "a number", _take_float),
    bool: _Plain("boolean", "true or false", _take(bool)),
    datetime.date: _Text({"format": "date"}, "a date like 2031-05-17", _take_date),
    datetime.time: _Text({"format": "time"}, "a time like 09:30:00+02:00", _take_time),
    datetime.datetime: _Text(
        {"format": "date-time"}, "a time like 2031-05-17T09:30:00+02:00", _take_datetime
    ),
    uuid.UUID: _Text({"format": "uuid"}, "a UUID", _take_uuid),
    # Without the pattern a model may write "about 5".
    decimal.Decimal: _Text(
        {"format": "decimal", "pattern": f"^{_DECIMAL}$"}, "a number as text", _take_decimal
    ),
}

# -- Types to shapes ------------------------------------------------------------------------------

_LISTS = (list, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable)
_DICTS = (dict, abc.Mapping, abc.MutableMapping)
_UNIONS = (typing.Union, getattr(types, "UnionType", typing.Union))
_WRAPPERS = ("Required", "NotRequired", "ReadOnly", "Final")
_INSTEAD: dict[Any, str] = dict.fromkeys((set, frozenset, abc.Set), "list")
_INSTEAD.update({bytes: "str, as base64", datetime.timedelta: "float, in seconds"})


class _Builder:
    """Makes shapes. It keeps those of classes, so that a recursive class ends in itself."""

    def __init__(self) -> None:
        self.known: dict[Any, _Shape] = {}

    def shape(self, kind: Any, where: str) -> _Shape:
        """The shape of a type. Raises: TypeError, which tells `where`."""
        if hasattr(kind, "__metadata__"):
            words = next((note for note in kind.__metadata__ if isinstance(note, str)), None)
            inner = self.shape(kind.__origin__, where)
            return inner if words is None else _Described(inner, words)
        if kind is None:
            return _NULL
        try:
            if kind in _SHAPES:
                return _SHAPES[kind]
            if kind in self.known:
                return self.known[kind]
        except TypeError:  # not hashable: not a type
            raise TypeError(f"{where}: {_name(kind)} is not a type") from None
        origin = typing.get_origin(kind)
        if isinstance(kind, type) and origin is None:
            return self.of_class(kind, where)
        return self.of_form(kind, origin, where)

    def of_form(self, kind: Any, origin: Any, where: str) -> _Shape:
        """What is written with brackets, and what typing made."""
        args = typing.get_args(kind)
        form = getattr(origin, "_name", None)
        if origin in _UNIONS:
            return _Union([self.shape(arg, where) for arg in args])
        if form == "Literal":
            return _Choice(_literals(args, where))
        if form in _WRAPPERS:
            return self.shape(args[0], where)
        if origin in _LISTS or origin in _DICTS or origin is tuple:
            return self.of_container(origin, args, where, kind is typing.Tuple)
        if hasattr(kind, "__supertype__"):  # NewType
            return self.shape(kind.__supertype__, where)
        if type(kind).__name__ == "TypeAliasType":
            return self.of_alias(kind, where)
        if isinstance(kind, (str, typing.ForwardRef)):
            raise TypeError(f"{where}: {_name(kind)} is only a name: give the type itself")
        raise _unsupported(kind, origin, where)

    def of_container(self, origin: Any, args: Any, where: str, bare: bool) -> _Shape:
        if origin in _LISTS:
            return _List(self.shape(args[0] if args else Any, f"{where}[]"))
        if origin in _DICTS:
            key, item = args or (str, Any)
            return _Dict(self.key(key, where), self.shape(item, f"{where}[]"))
        if bare or (len(args) == 2 and args[1] is Ellipsis):
            return _ManyTuple(self.shape(Any if bare else args[0], f"{where}[]"))
        # Before 3.11 an empty tuple has one argument, ().
        items = [] if args == ((),) else args
        return _Tuple([self.shape(item, f"{where}[{n}]") for n, item in enumerate(items)])

    def key(self, kind: Any, where: str) -> _Shape:
        shape = self.shape(kind, where)
        if shape.schema(_Defs()).get("type") != "string":
            raise TypeError(f"{where}: the keys of a JSON object are text, not {_name(kind)}")
        return shape

    def of_alias(self, kind: Any, where: str) -> _Shape:
        alias = self.known[kind] = _Alias(kind.__name__)
        alias.parts = [self.shape(kind.__value__, where)]
        return alias

    def of_class(self, cls: Any, where: str) -> _Shape:
        if issubclass(cls, enum.Enum) and not issubclass(cls, enum.Flag):
            return _Choice([(_literal(member.value, where), member) for member in cls])
        if cls in _LISTS or cls in _DICTS or cls is tuple:
            return self.of_container(cls, (), where, cls is tuple)
        if issubclass(cls, pathlib.PurePath):
            return _Text({"format": "path"}, "a path", cls)
        if _is_model(cls):
            shape = self.known[cls] = _Model(cls)
            return shape
        if hasattr(cls, "__total__") and issubclass(cls, dict):
            return self.of_typed_dict(cls)
        if hasattr(cls, "__dataclass_fields__"):
            return self.of_dataclass(cls)
        if issubclass(cls, tuple) and hasattr(cls, "_fields"):
            return self.of_named_tuple(cls)
        raise _unsupported(cls, cls, where)

    def record(self, cls: Any, make: Callable[..., Any]) -> _Record:
        record = self.known[cls] = _Record(cls.__name__, _about(cls), make)
        return record

    def of_dataclass(self, cls: Any) -> _Shape:
        record = self.record(cls, cls)
        given = [field for field in _dataclass_fields(cls) if field.init]
        hints = _class_hints(cls, [field.name for field in given])
        missing = sys.modules["dataclasses"].MISSING
        fields = {}
        for field in given:
            has_default = field.default is not missing
            fields[field.name] = _Field(
                self.shape(hints.get(field.name, Any), f"{cls.__name__}.{field.name}"),
                not has_default and field.default_factory is missing,
                field.default,
                has_default,
                field.metadata.get("description"),
            )
        record.fill(fields)
        return record

    def of_named_tuple(self, cls: Any) -> _Shape:
        record = self.record(cls, cls)
        hints, defaults, fields = _class_hints(cls, cls._fields), cls._field_defaults, {}
        for name in cls._fields:
            shape = self.shape(hints.get(name, Any), f"{cls.__name__}.{name}")
            has_default = name in defaults
            fields[name] = _Field(shape, not has_default, defaults.get(name), has_default)
        record.fill(fields)
        return record

    def of_typed_dict(self, cls: Any) -> _Shape:
        record = self.record(cls, dict)
        hints = _class_hints(cls, cls.__annotations__)
        # Python 3.8's own TypedDict has only `total`. No version looks into annotations that are
        # text, as under `from __future__ import annotations`: the hints have the last word.
        required = getattr(cls, "__required_keys__", hints if cls.__total__ else ())
        fields = {}
        for name, hint in hints.items():
            marked = _required_mark(hint)
            must = name in required if marked is None else marked
            fields[name] = _Field(self.shape(hint, f"{cls.__name__}.{name}"), must)
        record.fill(fields)
        return record

    def parameters(self, function: Callable[..., Any]) -> _Record:
        target = _target(function)
        name = getattr(target, "__name__", _name(type(target)))
        given = _signature(function, name)
        hints = _function_hints(target, given)
        record, fields, rest = _Record(name, "", dict), {}, None
        for parameter in given:
            shape = self.shape(hints.get(parameter.name, Any), f"{name}({parameter.name})")
            if parameter.kind is parameter.VAR_KEYWORD:
                rest = shape
                continue
            has_default = parameter.default is not parameter.empty
            fields[parameter.name] = _Field(shape, not has_default, parameter.default, has_default)
        record.fill(fields, rest)
        return record


def _unsupported(kind: Any, origin: Any, where: str) -> TypeError:
    why = "has no schema"
    if isinstance(kind, TypeVar) or getattr(origin, "__parameters__", False):
        why = "is generic: name a class with its own types"
    elif _INSTEAD.get(origin):
        why = f"has no schema: use {_INSTEAD[origin]}"
    return TypeError(f"{where}: {_name(kind)} {why}")


def _literals(args: Sequence[Any], where: str) -> Iterable[tuple[Any, Any]]:
    for arg in args:
        if typing.get_args(arg):  # before 3.9.1 a Literal in a Literal stays one
            yield from _literals(typing.get_args(arg), where)
        else:
            value = arg.value if isinstance(arg, enum.Enum) else arg
            yield _literal(value, where), arg


def _literal(value: Any, where: str) -> Any:
    if value is None or type(value) in _JSON_TYPES:
        return value
    raise TypeError(f"{where}: {_name(type(value))} is no value of a JSON enum")


def _required_mark(hint: Any) -> bool | None:
    """What Required or NotRequired says, perhaps inside Annotated or ReadOnly."""
    while True:
        form = getattr(typing.get_origin(hint), "_name", None)
        if form in ("Required", "NotRequired"):
            return bool(form == "Required")
        if hasattr(hint, "__metadata__"):
            hint = hint.__origin__
        elif form == "ReadOnly":
            hint = typing.get_args(hint)[0]
        else:
            return None


def _is_model(cls: Any) -> bool:
    return hasattr(cls, "model_json_schema") and hasattr(cls, "model_validate")


def _dataclass_fields(cls: Any) -> Iterable[Any]:
    # The class needed the module, so it is there; whoever has no dataclass does not import it.
    fields: Iterable[Any] = sys.modules["dataclasses"].fields(cls)
    return fields


def _about(cls: Any) -> str:
    """The first paragraph of a class's own docstring; not the one that was made for it."""
    words = cls.__dict__.get("__doc__") or ""
    paragraph = words.strip().partition("\n\n")[0]
    return "" if words.startswith(f"{cls.__name__}(") else " ".join(paragraph.split())


def _name(kind: Any) -> str:
    """A type for a message, or for the name of a format."""
    if isinstance(kind, type) and typing.get_origin(kind) is None:
        return kind.__name__
    return re.sub(r"([a-z_]\w*|<locals>)\.", "", str(kind))


# -- Annotations ----------------------------------------------------------------------------------


def _target(function: Any) -> Any:
    """The function with the annotations: under partials, methods and wrappers."""
    while isinstance(function, functools.partial):
        function = function.func
    if not hasattr(function, "__qualname__"):
        function = type(function).__call__  # an object that is callable
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return getattr(function, "__func__", function)


def _signature(function: Any, name: str) -> list[inspect.Parameter]:
    """The arguments that a model can give, by name."""
    import inspect

    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: its arguments cannot be told: {error}") from None
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise TypeError(f"{name}: {parameter} has no name for a model to give it by")
    preset = getattr(function, "keywords", {}) if isinstance(function, functools.partial) else {}
    return [parameter for parameter in parameters if parameter.name not in preset]


def _function_hints(target: Any, parameters: Iterable[inspect.Parameter]) -> dict[str, Any]:
    notes = {p.name: p.annotation for p in parameters if p.annotation is not p.empty}
    return _evaluate(notes, target, getattr(target, "__globals__", None))


def _class_hints(cls: Any, names: Iterable[str]) -> dict[str, Any]:
    """The annotations of a class and its bases, each as its own module means it."""
    wanted, hints = set(names), {}
    for base in reversed(cls.__mro__):
        # The attribute may be a base's, before 3.10; the entry is not always there, from 3.14.
        own = vars(base).get("__annotations__", {})
        if sys.version_info >= (3, 14):
            own = getattr(base, "__annotations__", {})
        hints.update(_evaluate({n: own[n] for n in own if n in wanted}, base))
    return hints


_EXTRAS: dict[str, Any] = {"include_extras": True} if sys.version_info >= (3, 9) else {}


def _evaluate(notes: Mapping[str, Any], owner: Any, names: Any = None) -> dict[str, Any]:
    """Annotations that are text, as types."""
    if not notes:
        return {}
    names, local = _scope(owner, names)
    # get_type_hints looks the module up by itself, but raises or finds nothing for one that is not
    # in sys.modules; of a stand-in class it asks nothing.
    stand_in = type("_", (), {"__annotations__": dict(notes)})
    try:
        return typing.get_type_hints(stand_in, names, local, **_EXTRAS)
    except Exception as error:
        whose = getattr(owner, "__qualname__", repr(owner))
        raise TypeError(f"{whose}: its annotations cannot be read: {error}") from error


def _scope(owner: Any, names: dict[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The names of the owner's module, and of the functions around it while these run.

    The caller's frames have both, for a module that is not in sys.modules too.
    """
    around = {part.rpartition(".")[2] for part in owner.__qualname__.split(".<locals>")[:-1]}
    local = {owner.__name__: owner} if isinstance(owner, type) else {}
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == owner.__module__:
            names = frame.f_globals if names is None else names
            if frame.f_code.co_name in around:
                local = {**frame.f_locals, **local}  # an inner function's names win
        frame = frame.f_back
    module = vars(sys.modules[owner.__module__]) if owner.__module__ in sys.modules else {}
    return module if names is None else names, local


# -- Schemas as documents -------------------------------------------------------------------------


class _Defs:
    """The definitions of one document. Shapes that are used more than once have a name here."""

    def __init__(self, shared: Iterable[Any] = (), strict: bool = False) -> None:
        self.strict = strict
        self.bodies: dict[str, Json] = {}
        self.names: dict[Any, str] = {}
        self.shared = set(shared)

    def name_for(self, shape: Any) -> str:
        if shape not in self.names:
            name, same = shape.name, 1
            while name in self.names.values():
                same += 1
                name = f"{shape.name}_{same}"
            self.names[shape] = name
        return self.names[shape]

    def use(self, shape: _Shape) -> Json:
        """The schema of a part, or a reference to it."""
        if shape not in self.shared:
            return shape.schema(self)
        name = self.name_for(shape)
        if name not in self.bodies:
            self.bodies[name] = {}  # so that it ends when it comes back to itself
            self.bodies[name] = shape.schema(self)
        return {"$ref": f"#/$defs/{name}"}


def _document(root: _Shape, strict: bool) -> Json:
    defs = _Defs(_shared(root), strict)
    # The root is written out, even if it is a definition too: OpenAI asks for an object there.
    body = root.schema(defs)
    while "$ref" in body:
        body = defs.bodies[body["$ref"][len("#/$defs/") :]]
    return {**body, "$defs": defs.bodies} if defs.bodies else body


def _shared(root: _Shape) -> list[_Shape]:
    """What is used more than once. A recursive class is: from outside, and from inside."""
    uses: dict[_Shape, int] = {}
    todo = [root]
    while todo:
        shape = todo.pop()
        uses[shape] = uses.get(shape, 0) + 1
        if uses[shape] == 1:
            todo.extend(shape.parts)
    return [
        s for s, count in uses.items() if count > 1 and isinstance(s, (_Record, _Model, _Alias))
    ]


def _with(schema: Json, **more: Any) -> Json:
    # Nothing stands beside "$ref" in strict mode, and llama.cpp reads nothing beside it.
    return {"anyOf": [schema], **more} if "$ref" in schema else {**schema, **more}


def _any_of(schemas: Iterable[Json]) -> Json:
    schemas = list(schemas)
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _nullable(schema: Json) -> Json:
    inner = dict(schema)
    words = {"description": inner.pop("description")} if "description" in inner else {}
    parts = inner["anyOf"] if list(inner) == ["anyOf"] else [inner]
    return {"anyOf": [*parts, {"type": "null"}], **words}


# -- OpenAI's strict mode -------------------------------------------------------------------------
# https://platform.openai.com/docs/guides/structured-outputs#supported-schemas

# What says nothing of the value. "discriminator" is pydantic's: the union beside it says the same.
_NOTES = "title default examples deprecated readOnly writeOnly $comment discriminator".split()
_KINDS = ("type", "enum", "const", "anyOf", "$ref")
_KNOWN = {
    *(*_KINDS, "description", "properties", "required", "additionalProperties", "items"),
    *("minItems", "maxItems", "pattern", "format", "multipleOf"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}
_FORMATS = "date-time time date duration email hostname ipv4 ipv6 uuid".split()
_WHY = {
    "prefixItems": "tuple of different types: use a dataclass",
    "additionalProperties": "object with any keys: use a dataclass, or a list of pairs",
}


def _strict_root(document: Json, name: str) -> Json:
    body = {key: value for key, value in document.items() if key != "$defs"}
    if body.get("type") != "object":
        raise TypeError(f"{name}: strict mode takes an object: put it into a dataclass")
    strict = _strict(body, name)
    bodies = document.get("$defs", {})
    if bodies:
        strict["$defs"] = {key: _strict(value, key) for key, value in bodies.items()}
    return strict


def _strict(schema: Any, where: str) -> Json:
    """The schema in strict mode's words. Raises: TypeError when it would say less than before."""
    if not isinstance(schema, dict) or not any(key in schema for key in (*_KINDS, *_MERGED)):
        raise TypeError(f"{where}: strict mode takes no value of any type: name one")
    strict = {key: value for key, value in _merged(schema).items() if key not in _NOTES}
    if strict.get("format") not in _FORMATS:
        strict.pop("format", None)  # a note too; what counts is in the pattern
    for key in strict:
        if key not in _KNOWN or (key == "additionalProperties" and strict[key] is not False):
            raise TypeError(f"{where}: strict mode takes no {_WHY.get(key, key)}")
    if strict.get("type") == "object":
        strict["properties"] = {
            key: _strict(value, f"{where}.{key}")
            for key, value in strict.get("properties", {}).items()
        }
        strict.update(required=list(strict["properties"]), additionalProperties=False)
    if strict.get("type") == "array":
        strict["items"] = _strict(strict.get("items"), f"{where}[]")
    if "anyOf" in strict:
        strict["anyOf"] = [_strict(part, where) for part in strict["anyOf"]]
    if "$ref" in strict and len(strict) > 1:
        return _with({"$ref": strict.pop("$ref")}, **strict)
    return strict


_MERGED = ("oneOf", "allOf")


def _merged(schema: Json) -> Json:
    """pydantic's tagged unions, and its way to describe a reference, as anyOf."""
    if "oneOf" in schema or len(schema.get("allOf", ())) == 1:
        key = "oneOf" if "oneOf" in schema else "allOf"
        return {"anyOf" if name == key else name: value for name, value in schema.items()}
    return schema
