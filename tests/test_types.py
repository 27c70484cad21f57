"""Values and errors: their dict form (golden/, docs/serialization.md), and how they behave."""

from __future__ import annotations

import copy
import inspect
import json
import math
import pathlib
import pickle
import pydoc
import re
from typing import Any, Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import svir

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = HERE / "golden"
SERIALIZATION = HERE.parent / "docs" / "serialization.md"
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)

# -- One of each ----------------------------------------------------------------------------------

CALL_EXTRA = {"extra_content": {"google": {"thought_signature": "c2ln"}}}
WEATHER_CALL = svir.ToolCall("call-1", "weather", '{"city": "Oslo"}', extra=CALL_EXTRA)
TIMING = svir.Timing(first_token=0.25, last_token=1.5, pieces=5, tokens=8)
USAGE = svir.Usage(12, 8, 20, reasoning_tokens=3)

# The value that each file of golden/ is the dict form of.
VALUES: dict[str, Any] = {
    "image-path": svir.Image("before.png"),
    "image-data": svir.Image(data=b"\x89PNG", media_type="image/png"),
    "text-file-path": svir.TextFile("notes.md", escaped_len=12),
    "text-file-memory": svir.TextFile("a.py", text="x = 1\n"),
    "text-file-full": svir.TextFile("a.py", text="x = 1\n", escaped_len=7),
    "user-text": svir.User("Why is the sky blue?"),
    "user-parts": svir.User(
        "What changed?",
        svir.Image(pathlib.Path("before.png")),
        svir.Image(data=b"\x89PNG", media_type="image/png"),
        svir.TextFile("notes.md"),
        svir.TextFile("a.py", text="x = 1"),
    ),
    "assistant-minimal": svir.Assistant(),
    "assistant-full": svir.Assistant(
        "Let me see.",
        tool_calls=[WEATHER_CALL],
        reasoning=[svir.Reasoning("Oslo it is.", "reasoning", extra={"signature": "abc"})],
        extra={"reasoning_details": [{"type": "reasoning.text", "text": "Oslo it is."}]},
    ),
    "tool-result": svir.ToolResult("call-1", "12 C"),
    "tool-result-error": svir.ToolResult("call-1", "no such city", is_error=True),
    "tool-minimal": svir.Tool("now"),
    "tool-full": svir.Tool(
        "weather",
        "Current weather in a city.",
        {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        strict=True,
    ),
    "tool-call-minimal": svir.ToolCall("call-1", "now"),
    "tool-call-full": WEATHER_CALL,
    "named-tool": svir.NamedTool("weather"),
    "json-schema-minimal": svir.JsonSchema("City", {"type": "object"}),
    "json-schema-strict": svir.JsonSchema(
        "City",
        {
            "type": "object",
            "properties": {"name": {"type": "string"}},
            "required": ["name"],
            "additionalProperties": False,
        },
        strict=True,
    ),
    "reasoning-minimal": svir.Reasoning("Hm."),
    "reasoning-full": svir.Reasoning("Hm.", "reasoning", extra={"signature": "abc"}),
    "request-minimal": svir.Request("qwen3-4b", "Hi"),
    "request-full": svir.Request(
        "qwen3-4b",
        [
            svir.User("Weather in Oslo?"),
            svir.Assistant(tool_calls=[svir.ToolCall("call-1", "weather", "{}")]),
            svir.ToolResult("call-1", "12 C"),
        ],
        system="Answer in one sentence.",
        tools=[svir.Tool("weather", "Current weather in a city.")],
        tool_choice=svir.NamedTool("weather"),
        response_format=svir.JsonSchema("City", {"type": "object"}, strict=True),
        reasoning_effort="none",
        max_tokens=200,
        temperature=0.5,
        top_p=0.9,
        stop=["\n\n", "END"],
        seed=7,
        send_reasoning=True,
        include_usage=False,
        extra={"min_p": 0.05, "chat_template_kwargs": {"enable_thinking": False}},
    ),
    "request-words": svir.Request(
        "m",
        [],
        system="Go.",
        tool_choice="required",
        response_format="json_object",
        include_usage=True,
    ),
    "completion-minimal": svir.Completion(),
    "completion-full": svir.Completion(
        "It is 12 C.",
        tool_calls=[svir.ToolCall("call-1", "weather", "{}")],
        partial_tool_calls=[svir.ToolCall("call-2", "wea", '{"ci')],
        reasoning=[svir.Reasoning("Oslo it is.", "reasoning")],
        finish_reason="tool_calls",
        usage=USAGE,
        id="chatcmpl-1",
        model="qwen3-4b",
        timing=TIMING,
        quirks=["running-usage", "extra-delta-key"],
        extra={
            "timings": {"predicted_ms": 81.5},
            "delta": {"reasoning_details": [{"text": "Oslo"}]},
        },
    ),
    "completion-partial": svir.Completion(
        "It is",
        partial_tool_calls=[svir.ToolCall("", "wea")],
        reasoning=[svir.Reasoning("Os", "think")],
        model="qwen3-4b",
    ),
    "text-delta": svir.TextDelta("Hel"),
    "reasoning-delta": svir.ReasoningDelta("Hm"),
    "reasoning-delta-source": svir.ReasoningDelta("Hm", "think"),
    "tool-call-delta": svir.ToolCallDelta(1, "call-1", "wea", '{"ci'),
    "tool-call-delta-more": svir.ToolCallDelta(0, arguments='ty"}'),
    "completed": svir.Completed(svir.Completion("Hello", finish_reason="stop")),
    "usage": svir.Usage(12, 8, 20),
    "usage-reasoning": USAGE,
    "timing": TIMING,
    "limits-minimal": svir.Limits(),
    "limits-full": svir.Limits(wire_bytes=8 << 20, event_bytes=65536, tool_calls=4),
    "model-minimal": svir.Model("qwen3-4b"),
    "model-full": svir.Model("qwen3-4b", "Qwen 3 4B"),
}
CLASSES: list[Any] = sorted(
    {type(value) for value in VALUES.values()}, key=lambda cls: cls.__name__
)
MESSAGES = (svir.User, svir.Assistant, svir.ToolResult)
EVENTS = (svir.TextDelta, svir.ReasoningDelta, svir.ToolCallDelta, svir.Completed)

each_value = pytest.mark.parametrize("value", VALUES.values(), ids=list(VALUES))
each_name = pytest.mark.parametrize("name", list(VALUES))
each_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
# An Image has a path or data, so no one image has every field set, nor the defaults alone.
each_but_image = pytest.mark.parametrize(
    "cls", [cls for cls in CLASSES if cls is not svir.Image], ids=lambda cls: cls.__name__
)


def golden(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text("utf-8"))


def full(cls: Any) -> Any:
    """The value of the class with the most fields set."""
    return max((v for v in VALUES.values() if type(v) is cls), key=lambda v: len(v.to_dict()))


def fields(cls: Any) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(cls).parameters)


def held(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in fields(type(value))}


def test_the_table_has_every_public_value() -> None:
    public = {getattr(svir, name) for name in svir.__all__}
    with_dict_form = {c for c in public if isinstance(c, type) and hasattr(c, "from_dict")}
    assert with_dict_form == set(CLASSES)


@each_class
def test_the_table_sets_every_field(cls: Any) -> None:
    of_class = [value for value in VALUES.values() if type(value) is cls]
    set_somewhere = {name for value in of_class for name in value.to_dict()}
    assert set(fields(cls)) <= set_somewhere


# -- The dict form --------------------------------------------------------------------------------

FREE_FORM = ("extra", "parameters", "schema")  # dicts of the caller's or the server's own


def with_unknown_keys(data: Any) -> Any:
    """A later version's dict form: a key more in every dict that is svir's own."""
    if isinstance(data, list):
        return [with_unknown_keys(item) for item in data]
    if isinstance(data, dict):
        known = {k: v if k in FREE_FORM else with_unknown_keys(v) for k, v in data.items()}
        return {**known, "added_in_a_later_version": {"a": [1]}}
    return data


def test_every_golden_file_is_read() -> None:
    assert {path.stem for path in GOLDEN.glob("*")} == set(VALUES)


@each_name
def test_golden(name: str) -> None:
    value, data = VALUES[name], golden(name)
    assert value.to_dict() == data
    assert type(value).from_dict(data) == value
    assert json.loads(json.dumps(value.to_dict())) == data, "not plain JSON types"


@each_name
def test_unknown_keys_are_ignored(name: str) -> None:
    value = VALUES[name]
    assert type(value).from_dict(with_unknown_keys(golden(name))) == value


@each_but_image
def test_defaults_are_left_out(cls: Any) -> None:
    """Whether a field was left out or given its default does not show."""
    data = full(cls).to_dict()
    for name, parameter in fields(cls).items():
        if parameter.default is not parameter.empty:
            assert name in data, "the full value sets it"
            assert name not in full(cls).replace(**{name: parameter.default}).to_dict()
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            without = {key: value for key, value in data.items() if key != name}
            with pytest.raises(svir.ConfigError):
                cls.from_dict(without)


def test_a_user_without_parts_is_no_dict_form() -> None:
    with pytest.raises(svir.ConfigError):
        svir.User.from_dict({"role": "user"})
    assert svir.User.from_dict(svir.User().to_dict()) == svir.User()


@pytest.mark.parametrize("name", [n for n, v in VALUES.items() if isinstance(v, MESSAGES)])
def test_message_from_dict(name: str) -> None:
    assert svir.message_from_dict(golden(name)) == VALUES[name]


@pytest.mark.parametrize("name", [n for n, v in VALUES.items() if isinstance(v, EVENTS)])
def test_event_from_dict(name: str) -> None:
    event = svir.event_from_dict(golden(name))
    assert event == VALUES[name]
    assert event.type == golden(name)["type"]


TAGGED = [cls for cls in CLASSES if {"role", "type"} & set(full(cls).to_dict())]


@pytest.mark.parametrize("cls", TAGGED, ids=lambda cls: cls.__name__)
def test_another_kind_is_refused(cls: Any) -> None:
    """Nothing is read as what it is not, and so silently loses its fields."""
    data = full(cls).to_dict()
    tag = "role" if "role" in data else "type"
    for word in ("assistant", "tool", "user", "image", "text_file", "text", "completed", 1, None):
        if word != data[tag]:
            with pytest.raises(svir.ConfigError):
                cls.from_dict({**data, tag: word})


@pytest.mark.parametrize("read", [svir.message_from_dict, svir.event_from_dict])
@pytest.mark.parametrize(
    "data", [None, 1, "user", [], {}, {"role": "system"}, {"type": "done"}, {"role": 1, "type": 1}]
)
def test_no_message_and_no_event(read: Callable[[Any], Any], data: Any) -> None:
    with pytest.raises(svir.ConfigError):
        read(data)


@pytest.mark.parametrize("role", ["user", "assistant", "system", "tool", "developer"])
def test_openais_messages_are_refused(role: str) -> None:
    """Read as svir's own, one would lose its text without a word."""
    with pytest.raises(svir.ConfigError):
        svir.message_from_dict({"role": role, "content": "Hi"})


# A class, what is wrong in its dict form, and what the message names.
WRONG = [
    (svir.Request, {"model": 1, "messages": []}, "Request.model must be str, not int"),
    (svir.Request, {"model": "", "messages": []}, "model"),
    (svir.Request, {"model": "m"}, "messages"),
    (svir.Request, {"model": "m", "messages": {}}, "Request.messages must be list, not dict"),
    (svir.Request, {"model": "m", "messages": [{"role": "system"}]}, "role"),
    (svir.Request, {"model": "m", "messages": ["x"]}, "role"),
    (svir.Request, {"model": "m", "messages": [], "max_tokens": -1}, "max_tokens"),
    (svir.Request, {"model": "m", "messages": [], "max_tokens": 1.0}, "max_tokens"),
    (svir.Request, {"model": "m", "messages": [], "max_tokens": True}, "max_tokens"),
    (svir.Request, {"model": "m", "messages": [], "temperature": "1"}, "temperature"),
    (svir.Request, {"model": "m", "messages": [], "temperature": math.nan}, "temperature"),
    (svir.Request, {"model": "m", "messages": [], "top_p": math.inf}, "top_p"),
    (svir.Request, {"model": "m", "messages": [], "top_p": True}, "top_p"),
    (svir.Request, {"model": "m", "messages": [], "seed": 1.5}, "seed"),
    (svir.Request, {"model": "m", "messages": [], "stop": ["a", 1]}, "stop[1]"),
    (svir.Request, {"model": "m", "messages": [], "stop": "a"}, "stop"),
    (svir.Request, {"model": "m", "messages": [], "tools": [{"name": 1}]}, "Tool.name"),
    (svir.Request, {"model": "m", "messages": [], "tools": [{}]}, "name"),
    (svir.Request, {"model": "m", "messages": [], "tool_choice": "weather"}, "tool_choice"),
    (svir.Request, {"model": "m", "messages": [], "tool_choice": {}}, "name"),
    (svir.Request, {"model": "m", "messages": [], "response_format": "json"}, "response_format"),
    (svir.Request, {"model": "m", "messages": [], "reasoning_effort": "max"}, "reasoning_effort"),
    (svir.Request, {"model": "m", "messages": [], "send_reasoning": 1}, "send_reasoning"),
    (svir.Request, {"model": "m", "messages": [], "include_usage": "no"}, "include_usage"),
    (svir.Request, {"model": "m", "messages": [], "extra": []}, "extra"),
    (svir.Request, {"model": "m", "messages": [], "extra": {"stream": False}}, "stream"),
    (svir.User, {"role": "user", "parts": "x"}, "parts"),
    (svir.User, {"role": "user", "parts": [1]}, "type"),
    (svir.User, {"role": "user", "parts": [{"type": "audio"}]}, "audio"),
    (svir.Assistant, {"role": "assistant", "text": None}, "text"),
    (svir.Assistant, {"role": "assistant", "tool_calls": [{"id": "a"}]}, "name"),
    (svir.Assistant, {"role": "assistant", "reasoning": ["x"]}, "Reasoning"),
    (svir.ToolResult, {"role": "tool", "call_id": "a"}, "content"),
    (svir.ToolResult, {"role": "tool", "call_id": 1, "content": ""}, "call_id"),
    (svir.ToolResult, {"role": "tool", "call_id": "a", "content": "", "is_error": 0}, "is_error"),
    (svir.Image, {"type": "image"}, "Image"),
    (svir.Image, {"type": "image", "path": "a", "data": ""}, "Image"),
    (svir.Image, {"type": "image", "path": 1}, "path"),
    (svir.Image, {"type": "image", "data": "%%%"}, "base64"),
    (svir.Image, {"type": "image", "data": "YWJj!ZGVm"}, "base64"),
    (svir.Image, {"type": "image", "data": "YWJ"}, "base64"),
    (svir.Image, {"type": "image", "data": "YWJj\n"}, "base64"),
    (svir.Image, {"type": "image", "data": "b\u00e4se"}, "base64"),
    (svir.Image, {"type": "image", "data": 1}, "data"),
    (svir.Image, {"type": "image", "path": "a", "media_type": "text/plain"}, "media_type"),
    (svir.Image, {"type": "image", "path": "a", "media_type": "image/png\r\nx: y"}, "media_type"),
    (svir.TextFile, {"type": "text_file"}, "path"),
    (svir.TextFile, {"type": "text_file", "path": "a", "text": 1}, "text"),
    (svir.TextFile, {"type": "text_file", "path": "a", "escaped_len": -1}, "escaped_len"),
    (svir.Tool, {"name": ""}, "name"),
    (svir.Tool, {"name": "a", "parameters": []}, "parameters"),
    (svir.NamedTool, {}, "name"),
    (svir.JsonSchema, {"name": "a b", "schema": {}}, "name"),
    (svir.JsonSchema, {"name": "a" * 65, "schema": {}}, "name"),
    (svir.JsonSchema, {"name": "a\n", "schema": {}}, "name"),
    (svir.JsonSchema, {"name": "a", "schema": None}, "schema"),
    (svir.Completion, {"finish_reason": "end"}, "finish_reason"),
    (svir.Completion, {"usage": {"prompt_tokens": 1}}, "completion_tokens"),
    (svir.Completion, {"timing": {"first_token": "0"}}, "first_token"),
    (svir.Completion, {"quirks": [None]}, "quirks[0]"),
    (svir.Completed, {"type": "completed"}, "completion"),
    (svir.Completed, {"type": "completed", "completion": []}, "Completion"),
    (svir.TextDelta, {"type": "text", "text": 1}, "text"),
    (svir.ToolCallDelta, {"type": "tool_call", "index": -1}, "index"),
    (svir.ToolCallDelta, {"type": "tool_call"}, "index"),
    (svir.Usage, {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": -2}, "total_tokens"),
    (svir.Limits, {"wire_bytes": "1"}, "wire_bytes"),
    (svir.Limits, {"tool_calls": None}, "tool_calls"),
    (svir.Model, {"id": None}, "id"),
]


@pytest.mark.parametrize(("cls", "data", "words"), WRONG)
def test_wrong_dict_form(cls: Any, data: Any, words: str) -> None:
    with pytest.raises(svir.ConfigError, match=re.escape(words)) as caught:
        cls.from_dict(data)
    assert isinstance(caught.value, ValueError)


WRONG_TYPES = [None, True, 0, -1, 1.5, "x", [], [1], {}, {"a": 1}, "\ud800", 10**400]


def read_or_refuse(cls: Any, data: Any) -> None:
    """Reading gives a value whose dict form is stable, or ConfigError, and nothing else."""
    try:
        value = cls.from_dict(data)
    except svir.ConfigError:
        return
    assert type(value) is cls
    assert cls.from_dict(value.to_dict()) == value


@each_name
def test_every_field_of_every_wrong_type(name: str) -> None:
    cls, data = type(VALUES[name]), golden(name)
    for key in [*fields(cls), "type", "role"]:
        for wrong in WRONG_TYPES:
            read_or_refuse(cls, {**data, key: wrong})


@each_class
@pytest.mark.parametrize("data", [None, 1, "x", [], [{}], b"{}", True], ids=repr)
def test_no_dict(cls: Any, data: Any) -> None:
    with pytest.raises(svir.ConfigError, match=cls.__name__):
        cls.from_dict(data)


texts = st.text(max_size=8)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
FIELD_NAMES = sorted({name for cls in CLASSES for name in fields(cls)} | {"type", "role"})
TAG_WORDS = ["user", "assistant", "tool", "image", "text_file", "text", "tool_call", "completed"]
# Likely keys with likely and unlikely values, nested as real dict forms are.
likely_json = st.recursive(
    json_values | st.sampled_from([*TAG_WORDS, math.nan, math.inf, "stop", "auto", "YWJj"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(FIELD_NAMES), inner, max_size=5)
    ),
    max_leaves=20,
)


@given(st.sampled_from(CLASSES), likely_json)
@settings(deadline=None, max_examples=120)
def test_any_json_is_read_or_refused(cls: Any, data: Any) -> None:
    read_or_refuse(cls, data)


@given(st.data())
@settings(deadline=None, max_examples=120)
def test_a_damaged_dict_form_is_read_or_refused(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(VALUES)))
    cls, form = type(VALUES[name]), golden(name)
    for _ in range(data.draw(st.integers(1, 3))):
        damage(form, data.draw)
    read_or_refuse(cls, form)


def damage(form: Any, draw: Callable[[Any], Any]) -> None:
    """Drop a key, or put anything in the place of a value, at any depth."""
    places = [place for place in dicts_in(form) if place]
    if not places:
        form[draw(st.sampled_from(FIELD_NAMES))] = draw(likely_json)
        return
    place = draw(st.sampled_from(places))
    key = draw(st.sampled_from(sorted(place)))
    if draw(st.booleans()):
        del place[key]
    else:
        place[key] = draw(likely_json)


def dicts_in(form: Any) -> Iterator[dict[str, Any]]:
    if isinstance(form, dict):
        yield form
    for item in form.values() if isinstance(form, dict) else form:
        if isinstance(item, (dict, list)):
            yield from dicts_in(item)


# -- The document ---------------------------------------------------------------------------------


def documented() -> list[tuple[str, str, str]]:
    """For each section that names a value: the name, the fields' table, the example."""
    text = SERIALIZATION.read_text("utf-8")
    form = r"^### `(\w+)`\n(.*?)^```json\n(.*?)^```$"
    return re.findall(form, text, re.MULTILINE | re.DOTALL)


def test_the_document_has_every_value() -> None:
    assert sorted(name for name, _, _ in documented()) == [cls.__name__ for cls in CLASSES]
    assert SERIALIZATION.read_text("utf-8").count("```json") == len(CLASSES)


@pytest.mark.parametrize(
    ("name", "prose", "example"), documented(), ids=[name for name, _, _ in documented()]
)
def test_document(name: str, prose: str, example: str) -> None:
    cls, data = getattr(svir, name), json.loads(example)
    assert cls.from_dict(data).to_dict() == data
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|", prose, re.MULTILINE)
    told = {field: default for field, _, default in rows if field not in ("type", "role")}
    assert list(told) == list(fields(cls)), "the table is the fields, in order"
    for field, parameter in fields(cls).items():
        needed = parameter.default is parameter.empty
        wanted = "needed" if needed else json.dumps(plain(parameter.default))
        assert told[field].strip("`") == wanted, field
        assert not needed or field in data


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


# -- Values ---------------------------------------------------------------------------------------


@each_value
def test_immutable(value: Any) -> None:
    for name in [*fields(type(value)), "brand_new"]:
        with pytest.raises(AttributeError, match="immutable"):
            setattr(value, name, None)
        with pytest.raises(AttributeError, match="immutable"):
            delattr(value, name)
    assert value == type(value).from_dict(value.to_dict())


def test_the_way_out_is_told() -> None:
    with pytest.raises(AttributeError, match=r"replace\(max_tokens="):
        VALUES["request-full"].max_tokens = 5


@each_value
def test_compare(value: Any) -> None:
    same = type(value).from_dict(value.to_dict())
    assert value == same
    assert (value != same) is False
    assert hash(value) == hash(same)
    assert len({value, same}) == 1
    for other in (None, 1, tuple(held(value).values()), value.to_dict(), object()):
        assert value != other


def test_values_differ_by_class() -> None:
    assert svir.NamedTool("a") != svir.Tool("a")
    assert svir.TextDelta("a") != svir.ReasoningDelta("a")
    assert svir.TextDelta("a") != ("a",)


@each_but_image
def test_every_field_counts(cls: Any) -> None:
    """A change of one field makes another value; only the timing is outside equality."""
    for name, parameter in fields(cls).items():
        value = full(cls)
        changed = value.replace(**{name: other_than(getattr(value, name), parameter.default)})
        if (cls, name) == (svir.Completion, "timing"):
            assert changed == value
            assert hash(changed) == hash(value)
            assert changed.timing != value.timing
        else:
            assert changed != value, name


def other_than(value: Any, default: Any) -> Any:
    if default is not inspect.Parameter.empty and value != default:
        return default
    if isinstance(value, (str, tuple)):
        return value[:0] if isinstance(value, tuple) else value + "x"
    if isinstance(value, dict):
        return {"other": 1}
    if isinstance(value, (int, float)):
        return value + 1
    return svir.Completion("other")


def test_every_field_of_an_image_counts() -> None:
    images = [
        svir.Image("a"),
        svir.Image("b"),
        svir.Image("a", media_type="image/png"),
        svir.Image(data=b"a"),
        svir.Image(data=b"b"),
        svir.Image(data=b"a", media_type="image/png"),
    ]
    assert len(set(images)) == len(images)
    assert str(inspect.signature(svir.Image)) == "(path=None, *, data=None, media_type=None)"
    with pytest.raises(svir.ConfigError):
        images[0].replace(data=b"a")


def test_hash_with_dicts() -> None:
    one = svir.Request("m", "x", extra={"a": [1, {"b": [2]}], "c": None})
    two = svir.Request("m", "x", extra={"c": None, "a": [1, {"b": [2]}]})
    assert one == two
    assert hash(one) == hash(two)
    assert hash(svir.Tool("a", parameters={"x": {"y": {}}})) == hash(
        svir.Tool("a", parameters={"x": {"y": {}}})
    )


@each_value
def test_repr(value: Any) -> None:
    shown = repr(value)
    assert shown.startswith(type(value).__name__ + "(")
    assert "object at 0x" not in shown
    assert eval_repr(value) == value


def eval_repr(value: Any) -> Any:
    """A repr reads as the call that makes the value; images in memory show their size only."""
    names = {name: getattr(svir, name) for name in svir.__all__}
    shown = repr(value)
    found = re.search(r"<\d+ bytes>", shown)
    if found is None:
        return eval(shown, names)
    assert found.group() == "<4 bytes>"
    return eval(shown.replace("<4 bytes>", r"b'\x89PNG'"), names)


def test_repr_leaves_out_what_is_not_set() -> None:
    assert repr(svir.Request("m", "Hi")) == "Request(model='m', messages=(User('Hi'),))"
    assert repr(svir.Limits()) == "Limits()"
    assert len(repr(svir.Image(data=bytes(10**6), media_type="image/png"))) < 80


def copies_of(value: Any) -> Iterator[Any]:
    yield copy.copy(value)
    yield copy.deepcopy(value)
    for protocol in PROTOCOLS:
        yield pickle.loads(pickle.dumps(value, protocol))
    yield value.replace()


@each_value
def test_copies(value: Any) -> None:
    for copied in copies_of(value):
        assert type(copied) is type(value)
        assert copied == value
        assert hash(copied) == hash(value)
        assert repr(copied) == repr(value)
        assert held(copied) == held(value)  # the timing too
        with pytest.raises(AttributeError):
            copied.brand_new = 1


def test_a_value_is_apart_from_what_it_was_made_of() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {}}}
    messages: list[svir.Message] = [svir.User("x")]
    request = svir.Request("m", messages, tools=[svir.Tool("t", parameters=schema)])
    data = request.to_dict()
    before = copy.deepcopy(data)
    again = svir.Request.from_dict(data)
    messages.append(svir.User("y"))
    schema["properties"]["b"] = {}
    data["tools"][0]["parameters"]["properties"]["c"] = {}
    copy.deepcopy(request).tools[0].parameters["properties"]["d"] = {}
    assert request.to_dict() == before
    assert again.to_dict() == before


@each_but_image
def test_no_default_is_shared(cls: Any) -> None:
    needed = {
        name: getattr(full(cls), name)
        for name, parameter in fields(cls).items()
        if parameter.default is parameter.empty
    }
    if cls is svir.User:
        return
    one = cls(**needed)
    before = json.dumps(cls(**needed).to_dict())
    for name, parameter in fields(cls).items():
        if isinstance(parameter.default, dict):
            spoil(getattr(one, name))
    assert json.dumps(cls(**needed).to_dict()) == before


def spoil(value: Any) -> None:
    for inner in value.values():
        if isinstance(inner, dict):
            spoil(inner)
    value["spoiled"] = True


@each_value
def test_replace(value: Any) -> None:
    assert value.replace() == value
    assert value.replace() is not value
    with pytest.raises(TypeError, match="mesages"):
        value.replace(mesages=[])
    for name, held_value in held(value).items():
        assert value.replace(**{name: held_value}) == value


def test_replace_of_a_request() -> None:
    request = svir.Request("m", "x", max_tokens=5)
    assert request.replace(messages="y").messages == (svir.User("y"),)
    assert request.replace(messages=svir.User("y")).messages == (svir.User("y"),)
    assert request.replace(stop="END").stop == ("END",)
    assert request.replace(max_tokens=None) == svir.Request("m", "x")
    assert request == svir.Request("m", "x", max_tokens=5)
    with pytest.raises(svir.ConfigError, match="temperature"):
        request.replace(temperature="warm")  # type: ignore[arg-type]


def test_replace_of_a_user() -> None:
    user = svir.User("a", "b")
    assert user.replace(parts=["hello"]) == user.replace(parts=("hello",)) == svir.User("hello")
    with pytest.raises(svir.ConfigError, match=r"User\.parts must be a list"):
        user.replace(parts="hello")  # not five parts of a letter each


# What may be given by place. One more is a TypeError, and so is what is needed and not given.
BY_PLACE: dict[Any, list[Any]] = {
    svir.Request: ["m", "x"],
    svir.Image: ["a.png"],
    svir.TextFile: ["a.txt"],
    svir.Assistant: ["x"],
    svir.ToolResult: ["id", "x"],
    svir.Tool: ["a", "b", {}],
    svir.ToolCall: ["id", "a", "{}"],
    svir.NamedTool: ["a"],
    svir.JsonSchema: ["a", {}],
    svir.Reasoning: ["x", "reasoning"],
    svir.Completion: ["x"],
    svir.Usage: [1, 2, 3, 4],
    svir.Timing: [0.0, 1.0, 2, 3],
    svir.Limits: [],
    svir.Model: ["a", "b"],
    svir.TextDelta: ["x"],
    svir.ReasoningDelta: ["x", "think"],
    svir.ToolCallDelta: [0, "id", "a", "{}"],
    svir.Completed: [svir.Completion()],
}


@pytest.mark.parametrize("cls", BY_PLACE, ids=lambda cls: cls.__name__)
def test_by_place(cls: Any) -> None:
    given_by_place = BY_PLACE[cls]
    by_name = dict(zip(fields(cls), given_by_place))
    assert cls(*given_by_place) == cls(**by_name)
    with pytest.raises(TypeError):
        cls(*given_by_place, None)
    with pytest.raises(TypeError):
        cls(*given_by_place, unknown=1)
    for name in by_name:
        with pytest.raises(TypeError):
            cls(*given_by_place, **{name: by_name[name]})
    for name, parameter in fields(cls).items():
        if parameter.default is parameter.empty:
            with pytest.raises(TypeError):
                cls(**{other: value for other, value in by_name.items() if other != name})


def test_a_user_takes_parts_by_place() -> None:
    assert set(BY_PLACE) == set(CLASSES) - {svir.User}
    assert svir.User("a", svir.TextFile("b")).parts == ("a", svir.TextFile("b"))
    with pytest.raises(TypeError):
        svir.User(parts=["a"])  # type: ignore[call-arg]
    with pytest.raises(svir.ConfigError, match=re.escape("User.parts[1]")):
        svir.User("a", 1)  # type: ignore[arg-type]


@each_but_image
def test_signature_is_true(cls: Any) -> None:
    """What help() shows is what the constructor takes, however its arguments are given."""
    signature = inspect.signature(cls)
    values = list(held(full(cls)).items())
    if cls is svir.User:
        assert [p.kind for p in signature.parameters.values()] == [
            inspect.Parameter.VAR_POSITIONAL
        ]
        return
    for count in range(len(values) + 1):
        args, kwargs = [value for _, value in values[:count]], dict(values[count:])
        assert takes(cls, args, kwargs) == takes(signature.bind, args, kwargs)
        assert takes(cls, args, {}) == takes(signature.bind, args, {})
    made = cls(**{n: v for n, v in values if signature.parameters[n].default is inspect._empty})
    for name, parameter in signature.parameters.items():
        if parameter.default is not parameter.empty:
            assert getattr(made, name) == parameter.default


def takes(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> bool:
    try:
        function(*args, **kwargs)
    except TypeError:
        return False
    return True


@each_class
def test_help(cls: Any) -> None:
    shown = pydoc.plain(pydoc.render_doc(cls))
    assert cls.__doc__.splitlines()[0] in shown
    signature = f"{cls.__name__}{inspect.signature(cls)}"
    assert re.sub(r"\s", "", signature) in re.sub(r"[\s|]", "", shown)


# -- Every value, at random -----------------------------------------------------------------------

names = st.text(min_size=1, max_size=8)
extras = st.dictionaries(
    st.text(max_size=8).filter(lambda key: key not in ("model", "messages", "stop", "n", "tools")),
    json_values,
    max_size=3,
)
counts = st.integers(0, 2**70)
numbers = st.integers(-(10**6), 10**6) | st.floats(allow_nan=False, allow_infinity=False)
media_types = st.sampled_from(["image/png", "image/svg+xml"])
paths = st.text("abc/._- \u00e9\u4e2d", min_size=1, max_size=8)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


def several(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(strategy, max_size=3)


calls = st.builds(svir.ToolCall, texts, texts, texts, extra=extras)
reasonings = st.builds(svir.Reasoning, texts, texts, extra=extras)
images = st.builds(svir.Image, path=paths, media_type=maybe(media_types)) | st.builds(
    svir.Image, data=st.binary(max_size=9), media_type=maybe(media_types)
)
text_files = st.builds(svir.TextFile, paths, text=maybe(texts), escaped_len=maybe(counts))
users = st.lists(texts | images | text_files, max_size=3).map(lambda parts: svir.User(*parts))
assistants = st.builds(
    svir.Assistant, texts, tool_calls=several(calls), reasoning=several(reasonings), extra=extras
)
results = st.builds(svir.ToolResult, texts, texts, is_error=st.booleans())
tools = st.builds(svir.Tool, names, texts, extras)
schemas = st.builds(svir.JsonSchema, st.just("a-1_B"), extras, strict=st.booleans())
requests = st.builds(
    svir.Request,
    names,
    several(users | assistants | results),
    system=maybe(texts),
    tools=several(tools),
    tool_choice=st.sampled_from(["auto", "none", "required"]) | st.builds(svir.NamedTool, texts),
    response_format=st.sampled_from(["text", "json_object"]) | schemas,
    reasoning_effort=maybe(st.sampled_from(["none", "minimal", "low", "medium", "high", "xhigh"])),
    max_tokens=maybe(counts),
    temperature=maybe(numbers),
    top_p=maybe(numbers),
    stop=several(texts),
    seed=maybe(st.integers()),
    send_reasoning=st.booleans(),
    include_usage=maybe(st.booleans()),
    extra=extras,
)
usages = st.builds(svir.Usage, counts, counts, counts, reasoning_tokens=maybe(counts))
timings = st.builds(svir.Timing, numbers, numbers, counts, counts)
completions = st.builds(
    svir.Completion,
    texts,
    tool_calls=several(calls),
    partial_tool_calls=several(calls),
    reasoning=several(reasonings),
    finish_reason=maybe(
        st.sampled_from(["stop", "tool_calls", "length", "content_filter", "refusal"])
    ),
    usage=maybe(usages),
    id=texts,
    model=texts,
    timing=maybe(timings),
    quirks=several(texts),
    extra=extras,
)
events = (
    st.builds(svir.TextDelta, texts)
    | st.builds(svir.ReasoningDelta, texts, texts)
    | st.builds(svir.ToolCallDelta, counts, texts, texts, texts)
    | st.builds(svir.Completed, completions)
)
limits = st.builds(svir.Limits, wire_bytes=counts, event_bytes=counts, tool_calls=counts)
models = st.builds(svir.Model, texts, maybe(texts))
values = (
    requests | completions | events | users | assistants | results | images | text_files | tools
    | calls | reasonings | schemas | usages | timings | limits | models
    | st.builds(svir.NamedTool, texts)
)  # fmt: skip


@given(values)
@settings(deadline=None, max_examples=100)
def test_round_trip(value: Any) -> None:
    data = json.loads(json.dumps(value.to_dict()))
    again = type(value).from_dict(data)
    assert again == value
    assert held(again) == held(value)
    assert again.to_dict() == data
    assert hash(again) == hash(value)
    assert type(value).from_dict(with_unknown_keys(data)) == value


@given(values)
@settings(deadline=None, max_examples=75)
def test_copies_at_random(value: Any) -> None:
    for copied in copies_of(value):
        assert copied == value
        assert held(copied) == held(value)
    repr(value)


# -- Completion -----------------------------------------------------------------------------------


def test_a_completion_is_the_next_turn() -> None:
    answer = VALUES["completion-full"]
    assert answer.message == svir.Assistant(
        answer.text,
        tool_calls=answer.tool_calls,
        reasoning=answer.reasoning,
        extra={"reasoning_details": [{"text": "Oslo"}]},
    )
    assert svir.Completion("Hi").message == svir.Assistant("Hi")
    odd = svir.Completion("Hi", extra={"delta": "no dict", "reasoning_details": 1})
    assert odd.message == svir.Assistant("Hi")


@pytest.mark.parametrize(
    ("timing", "rate"),
    [
        (svir.Timing(1.0, 3.0, 5, 8), 3.2),  # the first of five pieces came before the window
        (svir.Timing(1.0, 3.0, 5, 5), 2.0),
        (svir.Timing(0, 0.05, 2, 2), 20.0),
        (svir.Timing(1.0, 1.04, 5, 8), None),
        (svir.Timing(1.0, 3.0, 1, 8), None),
        (svir.Timing(1.0, 1.0, 0, 0), None),
    ],
)
def test_tokens_per_second(timing: svir.Timing, rate: float | None) -> None:
    assert timing.tokens_per_second == (None if rate is None else pytest.approx(rate))


@pytest.mark.parametrize("finish", [None, "tool_calls", "length", "content_filter", "refusal"])
def test_only_a_whole_answer_is_parsed(finish: Any) -> None:
    answer = svir.Completion("1", finish_reason=finish)
    with pytest.raises(ValueError, match=r"stop.*" + re.escape(repr(finish))):
        answer.parse()


def test_parse() -> None:
    answer = svir.Completion(' {"a": [1]}\n', finish_reason="stop")
    assert answer.parse() == {"a": [1]}
    assert answer.parse(lambda value: value["a"]) == [1]
    with pytest.raises(KeyError):  # into's own errors are the caller's
        answer.parse(lambda value: value["b"])


@pytest.mark.parametrize(
    "text", ["", " ", "{", "NaN", "[Infinity]", "[" * 200_000, "1" * 5000, "{}x", "\ufeff{}"]
)
def test_what_is_no_json(text: str) -> None:
    answer = svir.Completion(text, finish_reason="stop")
    with pytest.raises(ValueError, match="answer"):
        answer.parse()
    if text.strip():
        with pytest.raises(ValueError, match="arguments"):
            svir.ToolCall("id", "name", text).parse()


@pytest.mark.parametrize("arguments", ["", "  ", "\n", "{}"])
def test_a_call_without_arguments(arguments: str) -> None:
    assert svir.ToolCall("id", "now", arguments).parse() == {}
    assert svir.ToolCall("id", "now", arguments).parse(dict.keys) == {}.keys()


# -- Errors (api.md 13) ---------------------------------------------------------------------------

ERRORS = {
    svir.ConfigError: ("config", False, (svir.Error, ValueError)),
    svir.AttachmentError: ("attachment", False, (svir.Error,)),
    svir.ConnectError: ("connect", True, (svir.Error,)),
    svir.Disconnected: ("disconnected", True, (svir.Error,)),
    svir.Timeout: ("timeout", True, (svir.Error, TimeoutError)),
    svir.Unauthorized: ("unauthorized", False, (svir.Error,)),
    svir.RateLimited: ("rate_limited", True, (svir.Error,)),
    svir.Unavailable: ("unavailable", True, (svir.Error,)),
    svir.Unsupported: ("unsupported", False, (svir.Error,)),
    svir.ContextOverflow: ("context_overflow", False, (svir.Error,)),
    svir.ContentFiltered: ("content_filtered", False, (svir.Error,)),
    svir.ServerError: ("server", False, (svir.Error,)),
    svir.ProtocolError: ("protocol", False, (svir.Error,)),
    svir.Truncated: ("truncated", False, (svir.Error,)),
    svir.LimitExceeded: ("limit_exceeded", False, (svir.Error,)),
    svir.Cancelled: ("cancelled", False, (svir.Error,)),
}
EVERY_ERROR = [svir.Error, *ERRORS]
each_error = pytest.mark.parametrize("cls", EVERY_ERROR, ids=lambda cls: cls.__name__)
ATTRIBUTES: dict[str, Any] = {
    "retryable": True,
    "status": 429,
    "retry_after": 1.5,
    "unsent": True,
    "in_stream": True,
    "server_message": "the server's own words",
    "where": "POST http://localhost:1234/v1/chat/completions",
    "partial": svir.Completion("It is", reasoning=[svir.Reasoning("Hm")]),
    "quirks": ("running-usage",),
}


def attributes(error: svir.Error) -> dict[str, Any]:
    return {name: getattr(error, name) for name in (*ATTRIBUTES, "kind", "args")}


def test_the_errors_are_these() -> None:
    public = [getattr(svir, name) for name in svir.__all__]
    found = {c for c in public if isinstance(c, type) and issubclass(c, BaseException)}
    assert found == set(EVERY_ERROR)
    assert len({kind for kind, _, _ in ERRORS.values()}) == len(ERRORS) == 16


@pytest.mark.parametrize("cls", ERRORS, ids=lambda cls: cls.__name__)
def test_error_class(cls: type[svir.Error]) -> None:
    kind, retryable, bases = ERRORS[cls]
    assert cls.__bases__ == bases
    assert cls.kind == kind
    error = cls("what happened")
    assert attributes(error) == {
        "kind": kind,
        "retryable": retryable,
        "args": ("what happened",),
        "quirks": (),
        "unsent": False,
        "in_stream": False,
        **dict.fromkeys(("status", "retry_after", "server_message", "where", "partial")),
    }


@each_error
def test_error_options(cls: type[svir.Error]) -> None:
    error = cls(
        "m", retryable=False, status=500, retry_after=0.0, unsent=True, server_message="words"
    )
    told = (error.status, error.retry_after, error.unsent, error.server_message)
    assert told == (500, 0.0, True, "words")
    assert error.retryable is False
    assert cls("m", retryable=True).retryable is True
    assert cls("m").retryable is cls.retryable
    with pytest.raises(TypeError):
        cls()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        cls("m", 500)  # type: ignore[call-arg, arg-type]
    with pytest.raises(TypeError):
        cls("m", reason="x")  # type: ignore[call-arg]


def every_attribute_set(cls: type[svir.Error]) -> svir.Error:
    error = cls("what happened")
    for name, value in ATTRIBUTES.items():
        setattr(error, name, value)
    return error


@each_error
def test_errors_pickle_and_copy(cls: type[svir.Error]) -> None:
    error = every_attribute_set(cls)
    copies = [pickle.loads(pickle.dumps(error, protocol)) for protocol in PROTOCOLS]
    for copied in [*copies, copy.copy(error), copy.deepcopy(error)]:
        assert type(copied) is cls
        assert attributes(copied) == attributes(error)
        assert (str(copied), repr(copied)) == (str(error), repr(error))


@each_error
def test_error_text(cls: type[svir.Error]) -> None:
    error = cls("what happened", server_message="the server's own words")
    assert str(error) == "what happened"
    assert repr(error) == f"{cls.__name__}('what happened')"
    error = every_attribute_set(cls)
    assert str(error) == "what happened (POST http://localhost:1234/v1/chat/completions)"
    for shown in (str(error), repr(error), f"{error} {error!r}"):
        assert "own words" not in shown


def test_errors_of_the_standard_library() -> None:
    with pytest.raises(ValueError, match="model"):
        svir.Request("", "x")
    with pytest.raises(TimeoutError):
        raise svir.Timeout("late")
    assert not issubclass(svir.AttachmentError, ValueError)
