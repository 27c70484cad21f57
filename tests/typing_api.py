"""What type checkers make of the API. Never run: mypy and pyright read it.

`assert_type` states what users rely on. Where a line must be refused, it says so: mypy reports an
ignore that was not needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Iterator, List, Literal, Tuple

from typing_extensions import assert_never, assert_type

import svir


class City:
    name: str

    @classmethod
    def read(cls, value: Any) -> City:
        return cls()


def key() -> str:
    return "sk-1"


client = svir.Client("http://localhost:1234")
request = svir.Request("m", "Hi", system="Be brief.", max_tokens=5, stop="END")

# -- Events narrow, by class and by tag -----------------------------------------------------------


def by_class(event: svir.Event) -> str:
    if isinstance(event, svir.TextDelta):
        assert_type(event.type, Literal["text"])
        return event.text
    if isinstance(event, svir.ReasoningDelta):
        return event.text + event.source
    if isinstance(event, svir.ToolCallDelta):
        return str(event.index + 1) + event.id + event.name + event.arguments
    assert_type(event, svir.Completed)
    return event.completion.text


def by_tag(event: svir.Event) -> None:
    if event.type == "text":
        assert_type(event, svir.TextDelta)
    elif event.type == "reasoning":
        assert_type(event, svir.ReasoningDelta)
    elif event.type == "tool_call":
        assert_type(event, svir.ToolCallDelta)
    elif event.type == "completed":
        assert_type(event, svir.Completed)
    else:
        assert_never(event)


def by_role(message: svir.Message) -> str:
    if isinstance(message, svir.User):
        assert_type(list(message.parts), List[svir.Part])
        return ""
    if isinstance(message, svir.Assistant):
        return message.text
    assert_type(message, svir.ToolResult)
    return message.content


def by_part(part: svir.Part) -> None:
    if isinstance(part, str):
        assert_type(part, str)
    elif isinstance(part, svir.Image):
        assert_type(part.data, "bytes | None")
    else:
        assert_type(part, svir.TextFile)


# -- Calls ----------------------------------------------------------------------------------------


def calls() -> None:
    assert_type(client.complete(request), svir.Completion)
    with client.stream(request) as stream:
        assert_type(stream, svir.Stream)
        assert_type(stream.text(), Iterator[str])
        for event in stream:
            assert_type(event, svir.Event)
        assert_type(stream.completion, svir.Completion)
        assert_type(stream.result(), svir.Completion)
    with client.send(request) as raw:
        for data in raw:
            assert_type(data, bytes)
        assert_type(raw.status, int)
        assert_type(raw.headers["content-type"], str)
    for model in client.list_models():
        assert_type(model.name, "str | None")
    work = svir.Background(client.stream(request))
    assert_type(work.poll(), List[svir.Event])
    assert_type(work.result(), svir.Completion)
    with client as again:
        assert_type(again, svir.Client)
    client.stream("Hi")  # type: ignore[arg-type]
    client.complete(model="m", messages=[])  # type: ignore[call-arg]


def answers(completion: svir.Completion, call: svir.ToolCall) -> None:
    if completion.usage is not None:
        assert_type(completion.usage.total_tokens, int)
        assert_type(completion.usage.reasoning_tokens, "int | None")
    if completion.timing is not None:
        assert_type(completion.timing.tokens_per_second, "float | None")
    assert_type(completion.message, svir.Assistant)
    assert_type(completion.parse(City.read), City)
    assert_type(completion.parse(), Any)
    assert_type(call.parse(City.read), City)
    assert_type(call.parse(dict), Dict[Any, Any])
    for each in completion.tool_calls:
        assert_type(each, svir.ToolCall)
    if completion.finish_reason == "stop":
        pass
    if completion.finish_reason == "end_turn":  # type: ignore[comparison-overlap]
        pass
    completion.text = "other"  # type: ignore[misc]


def errors(error: svir.Error) -> None:
    assert_type(error.kind, str)
    assert_type(error.retryable, bool)
    assert_type(error.status, "int | None")
    assert_type(error.retry_after, "float | None")
    assert_type(error.server_message, "str | None")
    assert_type(error.partial, "svir.Completion | None")
    assert_type(error.quirks, Tuple[str, ...])
    raise svir.Timeout("late", retryable=False)


# -- Values ---------------------------------------------------------------------------------------


def requests(messages: list[svir.Message]) -> None:
    svir.Request("m", messages)
    svir.Request("m", [svir.User("a"), svir.Assistant("b")])
    svir.Request("m", svir.User("a"), tools=[svir.Tool("t")], tool_choice=svir.NamedTool("t"))
    svir.Request("m", (message for message in messages), response_format="json_object")
    svir.Request("m", [{"role": "user"}])  # type: ignore[list-item]
    svir.Request("m")  # type: ignore[call-arg]
    svir.Request("m", "a", "system")  # type: ignore[call-arg, arg-type]
    svir.Request("m", "a", max_token=5)  # type: ignore[call-arg]
    svir.Request("m", "a", temperature="warm")  # type: ignore[arg-type]
    svir.Request("m", "a", tool_choice="weather")  # type: ignore[arg-type]
    svir.Request("m", "a", reasoning_effort="max")  # type: ignore[arg-type]


def replaced() -> None:
    assert_type(request.replace(max_tokens=200), svir.Request)
    request.replace(messages="Hi", stop=["a"], extra={"min_p": 0.1})
    request.replace(mesages=[])  # type: ignore[call-arg]
    request.replace(max_tokens="200")  # type: ignore[arg-type]
    request.replace(reasoning_effort="max")  # type: ignore[arg-type]
    assert_type(svir.Tool("t").replace(name="u"), svir.Tool)
    assert_type(svir.User("a").replace(parts=["b"]), svir.User)
    request.max_tokens = 5  # type: ignore[misc]


def made() -> None:
    svir.User("a", svir.Image("a.png"), svir.TextFile(Path("b.txt"), escaped_len=3))
    svir.Image(data=b"", media_type="image/png")
    svir.ToolResult("id", "content", is_error=True)
    svir.Limits(wire_bytes=1)
    svir.JsonSchema("a", {}, strict=True)
    svir.User(5)  # type: ignore[arg-type]
    svir.TextFile("a", txt="b")  # type: ignore[call-arg]
    svir.TextDelta(5)  # type: ignore[arg-type]
    svir.Usage("1", 2, 3)  # type: ignore[arg-type]


def dict_forms() -> None:
    assert_type(request.to_dict(), Dict[str, Any])
    assert_type(svir.Request.from_dict({}), svir.Request)
    assert_type(svir.Completion.from_dict({}), svir.Completion)
    assert_type(svir.message_from_dict({}), svir.Message)
    assert_type(svir.event_from_dict({}), svir.Event)


# -- Clients, layers, seams -----------------------------------------------------------------------


def clients() -> None:
    svir.Client("u", api_key="sk-1", headers={"x": "y"}, query={"a": "b"}, accept={"changing-id"})
    svir.Client("u", api_key=svir.Secret.from_env("KEY"), headers={"x": svir.Secret("y")})
    svir.Client("u", api_key=key, idle_timeout=None, limits=svir.Limits(), think="keep")
    svir.Client("u", layers=[brief, shout], cafile=Path("root.pem"))
    svir.Client("u", backend=svir.HttpBackend(proxy="http://proxy:3128"))
    svir.Client("u", backend=OwnBackend(), wire=svir.ChatCompletions(empty_content=None))
    svir.Client("u", "sk-1")  # type: ignore[call-arg]
    svir.Client("u", think="spilt")  # type: ignore[arg-type]
    svir.Client("u", timeout=5)  # type: ignore[call-arg]
    svir.Client("u", layers=[no_layer])  # type: ignore[list-item]
    svir.Client("u", backend=key)  # type: ignore[arg-type]


def brief(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
    call.sleep(0.1)
    with call.deadline(5, "late") as deadline:
        deadline.clear()
    return call(request.replace(max_tokens=200))


def shout(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
    for event in call(request):
        yield svir.TextDelta(event.text.upper()) if event.type == "text" else event


def no_layer(request: svir.Request) -> Iterator[svir.Event]:
    yield svir.TextDelta("a")


class OwnResponse:
    """Nothing to inherit: the shape is enough."""

    status = 200

    def __init__(self) -> None:
        self.headers = {"content-type": "text/event-stream"}

    def read(self, size: int, timeout: float | None) -> bytes:
        return b""

    def close(self) -> None:
        pass


class OwnBackend:
    def send(self, request: svir.HttpRequest) -> OwnResponse:
        request.on_cancel(self.send)  # type: ignore[arg-type]
        assert_type(request.timeout, "float | None")
        assert_type(request.headers, Dict[str, str])
        if request.body is not None:
            assert_type(request.body.length, int)
            assert_type(bytes(request.body), bytes)
            assert_type(next(iter(request.body)), bytes)
        return OwnResponse()


def codec() -> None:
    decoder = svir.Decoder(accept={"end-without-done"}, limits=svir.Limits())
    for event in decoder.feed(b""):
        assert_type(event, svir.Event)
    for event in decoder.finish(clean=False):
        by_tag(event)
    assert_type(decoder.completion, "svir.Completion | None")
    assert_type(decoder.partial, svir.Completion)
    assert_type(svir.encode(request), svir.Body)
    assert_type(svir.escaped_len(b""), int)
    stream = svir.Stream([svir.TextDelta("a"), svir.Completed(svir.Completion("a"))])
    assert_type(stream.result().text, str)
    backend: svir.Backend = svir.HttpBackend()
    wire: svir.Wire = svir.ChatCompletions()
    print(backend, wire)
