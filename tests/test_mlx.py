"""The core against the real mlx_lm.server, which speaks HTTP/1.0: a body ends as it closes."""

from __future__ import annotations

from typing import Any, Iterator

import pytest

import mlx_server
import svir
from loopback import nothing_left
from mlx_server import MlxServer

WHY_NOT = mlx_server.why_not()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))

WEATHER = svir.Tool("get_weather", "", {"type": "object"})
TIME = svir.Tool("get_time", "", {"type": "object"})


@pytest.fixture(scope="module")
def server() -> Iterator[MlxServer]:
    with MlxServer() as server:
        yield server


@pytest.fixture
def client(server: MlxServer) -> Iterator[svir.Client]:
    with nothing_left(), svir.Client(server.base_url) as client:
        yield client


def ask(script: str, **fields: Any) -> svir.Request:
    return svir.Request("default_model", f"[[{script}]]", **fields)


def refused(client: svir.Client, request: svir.Request) -> tuple[Any, ...]:
    with pytest.raises(svir.Error) as caught:
        client.complete(request)
    error = caught.value
    return error.kind, error.status, error.retryable, error.server_message


def test_events_as_they_come(client: svir.Client) -> None:
    with client.stream(ask("hello")) as stream:
        events = list(stream)
    whole = stream.completion
    assert events == [
        *(svir.TextDelta(text) for text in ("Hello", ",", " world", "!")),
        svir.Completed(whole),
    ]
    assert (whole.text, whole.finish_reason, whole.quirks) == ("Hello, world!", "stop", ())
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (29, 5)
    assert whole.model == "default_model"
    assert (whole.id or "").startswith("chatcmpl-")


def test_the_form_of_the_answer(client: svir.Client) -> None:
    """What makes this server worth a test: comments to keep alive, and no framing."""
    with client.send(ask("think")) as raw:
        headers, data = raw.headers, b"".join(raw)
    assert data.startswith(b": keepalive ")
    assert data.endswith(b"data: [DONE]\n\n")
    assert not {"connection", "content-length", "transfer-encoding"} & set(headers)


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("utf8", "Grüsse 😀 end8"),
        ("sse", 'data: [DONE]\n\ndata: {"x":1}\n\n: comment\nevent: error\n\n'),
        ("badutf8", "bad \ufffd tail"),
        ("empty", ""),
    ],
)
def test_text_survives(client: svir.Client, script: str, text: str) -> None:
    whole = client.complete(ask(script))
    assert (whole.text, whole.finish_reason, whole.quirks) == (text, "stop", ())


def test_the_end_by_length(client: svir.Client) -> None:
    whole = client.complete(ask("long", max_tokens=3))
    assert (whole.text, whole.finish_reason) == ("w00 w01 w02 ", "length")
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 3
    thought = client.complete(ask("think", max_tokens=3))
    assert (thought.text, thought.finish_reason) == ("", "length")
    assert thought.reasoning == (svir.Reasoning("\nLet me", "reasoning"),)


def test_reasoning(client: svir.Client) -> None:
    """Under `reasoning`: the server splits it off, and takes it in a history."""
    request = ask("think")
    whole = client.complete(request)
    assert whole.text == "\n\nThe answer is 42."
    assert whole.reasoning == (svir.Reasoning("\nLet me think.\n", "reasoning"),)
    messages = [*request.messages, whole.message, svir.User("[[hello]]")]
    again = request.replace(messages=messages, send_reasoning=True)
    assert client.complete(again).text == "Hello, world!"


@pytest.mark.parametrize(
    ("script", "calls"),
    [
        ("tool", [("get_weather", {"city": "Paris"})]),
        ("tools2", [("get_weather", {"city": "Oslo"}), ("get_time", {"tz": "CET"})]),
        ("thinktool", [("get_weather", {"city": "Rome"})]),
    ],
)
def test_tools(client: svir.Client, script: str, calls: list[Any]) -> None:
    request = ask(script, tools=[WEATHER, TIME])
    whole = client.complete(request)
    assert whole.finish_reason == "tool_calls"
    assert [(call.name, call.parse()) for call in whole.tool_calls] == calls
    results = [svir.ToolResult(call.id, "12 C [[utf8]]") for call in whole.tool_calls]
    messages = [*request.messages, whole.message, *results]
    assert client.complete(request.replace(messages=messages)).text == "Grüsse 😀 end8"


def test_a_call_the_server_cannot_read(client: svir.Client) -> None:
    """It says tool_calls all the same, and leaves the call out."""
    told = refused(client, ask("badtool", tools=[WEATHER]))
    assert told == ("protocol", None, False, None)


def test_models(server: MlxServer, client: svir.Client) -> None:
    assert client.list_models() == [svir.Model(server.model)]
    # Without a folder for models it fails after its 200, and the body is empty.
    server.cache.rename(server.cache.with_name("elsewhere"))
    try:
        with pytest.raises(svir.ProtocolError, match="not a list of models"):
            client.list_models()
    finally:
        server.cache.with_name("elsewhere").rename(server.cache)


def test_bad_requests(client: svir.Client) -> None:
    """Its errors are plain strings; a model it cannot load is a 404."""
    bad = {
        "max_tokens must be at least 1": ask("hello", max_tokens=0),
        "temperature must be at least 0": ask("hello", temperature=-1.0),
        "top_k must be of type int": ask("hello", extra={"top_k": "x"}),
    }
    for words, request in bad.items():
        assert refused(client, request) == ("unsupported", 400, False, words)
    kind, status, retryable, words = refused(client, svir.Request("no/such-model", "hi"))
    assert (kind, status, retryable) == ("protocol", 404, False)
    assert "snapshot" in words
    image = svir.User(svir.Image(data=b"\x89PNG\r\n\x1a\n", media_type="image/png"))
    told = refused(client, svir.Request("default_model", [image]))
    assert told == ("protocol", 404, False, "Only 'text' content type is supported.")


def test_a_wrong_base_url(server: MlxServer) -> None:
    with svir.Client(server.base_url + "/api") as client:
        assert refused(client, ask("hello")) == ("protocol", 404, False, "Not Found")


def test_stopped(client: svir.Client) -> None:
    stream = client.stream(ask("loop", max_tokens=100_000))
    assert [next(stream) for _ in range(3)] == [svir.TextDelta(t) for t in ("la ", "lu ", "li ")]
    stream.close()
    with pytest.raises(svir.Cancelled) as caught:
        next(stream)
    assert caught.value.partial is not None
    assert caught.value.partial.text == "la lu li "
    assert client.complete(ask("hello")).text == "Hello, world!"


def test_killed_in_mid_stream() -> None:
    """Nothing in HTTP/1.0 tells this end from that of a whole body: only [DONE] does."""
    with nothing_left(), MlxServer() as server, svir.Client(server.base_url) as client:
        stream = client.stream(ask("loop", max_tokens=100_000))
        assert next(stream) == svir.TextDelta("la ")
        assert server.process is not None
        server.process.kill()
        with pytest.raises((svir.Truncated, svir.Disconnected)) as caught:
            stream.result()
        assert caught.value.in_stream
        assert caught.value.partial is not None
        assert caught.value.partial.text.startswith("la ")
        assert caught.value.partial.finish_reason is None
        server.process.wait(30)  # until then its socket may take a connection
        with pytest.raises(svir.ConnectError):
            client.complete(ask("hello"))
