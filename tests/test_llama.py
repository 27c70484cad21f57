"""The core against the real llama-server, over TCP and over its UNIX socket."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest

import llama_server
import svir
from harness import check_bytes_that_are_not_utf8
from llama_server import LlamaServer

WEATHER = svir.Tool(
    "get_weather",
    "The weather in a city.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
TIME = svir.Tool("get_time", "", {"type": "object", "properties": {"tz": {"type": "string"}}})


@pytest.fixture(scope="module", params=["tcp", "unix"])
def client(request: pytest.FixtureRequest, tiny_model: str) -> Iterator[svir.Client]:
    """A client of a server with room for 8,192 tokens: the scripted model takes one a letter."""
    unix = request.param == "unix"
    if unix and sys.platform == "win32":
        pytest.skip("Windows has no UNIX sockets here")
    with LlamaServer(["-c", "8192"], model=tiny_model, unix_socket=unix) as server:
        options: Any = {"unix_socket": server.socket_path} if unix else {}
        with svir.Client("http://localhost" if unix else server.base_url, **options) as client:
            yield client


def ask(text: str, **fields: Any) -> svir.Request:
    return svir.Request("tiny", text, **fields)


def test_events_as_they_come(client: svir.Client) -> None:
    with client.stream(ask("[[hello]]", system="Be brief.")) as stream:
        events = list(stream)
    assert "".join(event.text for event in events if event.type == "text") == "Hello, world!"
    assert len([event for event in events if event.type == "text"]) > 1
    completion = stream.completion
    assert events[-1] == svir.Completed(completion)
    assert completion.text == "Hello, world!"
    assert (completion.finish_reason, completion.model, completion.quirks) == ("stop", "tiny", ())
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 5
    assert completion.timing is not None
    assert completion.timing.first_token > 0
    assert "timings" in completion.extra


def test_models(client: svir.Client) -> None:
    assert [model.id for model in client.list_models()] == ["tiny"]


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("utf8", "Grüsse 😀 end8"),
        (
            "escapes",
            'q"uote back\\slash tab\tnl\ncr\r\n ls\u2028ps\u2029nel\x85 soh\x01ff\x0c <b>&amp;',
        ),
        ("sse", 'data: [DONE]\n\ndata: {"x":1}\n\n: comment\nevent: error\n\n'),
        ("long", "".join(f"w{i:02d} " for i in range(40))),
        ("empty", ""),
    ],
)
def test_text_survives(client: svir.Client, script: str, text: str) -> None:
    completion = client.complete(ask(f"[[{script}]]"))
    assert (completion.text, completion.finish_reason) == (text, "stop")


def test_a_conversation(client: svir.Client) -> None:
    messages: list[svir.Message] = [svir.User("[[think]] Name a number.")]
    first = client.complete(ask("").replace(messages=messages))
    assert first.text == "The answer is 42."
    assert [(piece.source, piece.text) for piece in first.reasoning] == [
        ("reasoning_content", "Let me think.\n")
    ]
    messages += [first.message, svir.User("[[hello]]")]
    short = client.complete(ask("").replace(messages=messages))
    long = client.complete(ask("").replace(messages=messages, send_reasoning=True))
    assert short.text == long.text == "Hello, world!"
    assert short.usage is not None
    assert long.usage is not None
    assert long.usage.prompt_tokens > short.usage.prompt_tokens  # the reasoning went back


@pytest.mark.parametrize(
    ("script", "calls"),
    [
        ("tool", [("get_weather", {"city": "Paris"})]),
        ("tools2", [("get_weather", {"city": "Oslo"}), ("get_time", {"tz": "CET"})]),
        ("thinktool", [("get_weather", {"city": "Rome"})]),
    ],
)
def test_a_tool_round_trip(client: svir.Client, script: str, calls: list[Any]) -> None:
    request = ask(f"[[{script}]]", tools=[WEATHER, TIME])
    completion = client.complete(request)
    assert completion.finish_reason == "tool_calls"
    assert [(call.name, call.parse()) for call in completion.tool_calls] == calls
    results = [svir.ToolResult(call.id, "12 C [[utf8]]") for call in completion.tool_calls]
    messages = [*request.messages, completion.message, *results]
    # The model reads the last message: the second answer shows that the result went back.
    assert client.complete(request.replace(messages=messages)).text == "Grüsse 😀 end8"


def test_a_call_that_must_be_made(client: svir.Client) -> None:
    completion = client.complete(ask("[[hello]]", tools=[WEATHER], tool_choice="required"))
    assert [call.name for call in completion.tool_calls] == ["get_weather"]


def test_an_answer_cut_by_the_limit(client: svir.Client) -> None:
    completion = client.complete(ask("[[tool]]", tools=[WEATHER], max_tokens=4))
    assert completion.finish_reason == "length"
    assert completion.tool_calls == ()
    assert client.complete(ask("[[long]]", max_tokens=3)).text == "w00 w01 w02 "


def test_a_structured_answer(client: svir.Client) -> None:
    person = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    form = svir.JsonSchema("Person", person, strict=True)
    completion = client.complete(ask("[[json]]", response_format=form))
    assert completion.parse() == {"name": "Ada", "age": 36}
    assert completion.parse(lambda value: value["age"] + 1) == 37


def test_an_image_is_told_to_be_unsupported(client: svir.Client, tmp_path: Path) -> None:
    # The scripted model has no eyes. The server decodes the base64 and checks the picture first,
    # so its refusal proves that the body was whole.
    (tmp_path / "dot.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(300_000))
    request = ask("").replace(messages=[svir.User("[[hello]]", svir.Image(tmp_path / "dot.png"))])
    with pytest.raises(svir.Error) as caught:
        client.complete(request)
    assert caught.value.kind in ("unsupported", "unavailable")
    assert "image" in (caught.value.server_message or "")


def test_a_large_text_file(client: svir.Client, tmp_path: Path) -> None:
    text = 'line "quoted" \\ tab\t é 😀\n' * 120
    (tmp_path / "notes.md").write_bytes(text.encode("utf-8"))
    message = svir.User(svir.TextFile(tmp_path / "notes.md"), "[[hello]]")
    completion = client.complete(ask("").replace(messages=[message]))
    assert completion.text == "Hello, world!"
    assert completion.usage is not None
    assert completion.usage.prompt_tokens > 3_000


def test_a_file_too_large_for_the_context(client: svir.Client, tmp_path: Path) -> None:
    (tmp_path / "big.txt").write_text("word " * 5_000, encoding="utf-8")
    message = svir.User(svir.TextFile(tmp_path / "big.txt"))
    with pytest.raises(svir.ContextOverflow) as caught:
        client.complete(ask("").replace(messages=[message]))
    assert caught.value.status == 400
    assert "context size" in (caught.value.server_message or "")


def test_an_error_inside_the_stream(client: svir.Client) -> None:
    check_bytes_that_are_not_utf8(client, ask("[[badutf8]]"))


def test_stopped_from_another_thread(client: svir.Client) -> None:
    stream = client.stream(ask("[[loop]]"))
    pieces: list[str] = []

    def read() -> None:
        for text in stream.text():
            pieces.append(text)
            if len(pieces) == 20:
                threading.Thread(target=stream.close).start()

    with pytest.raises(svir.Cancelled) as caught:
        read()
    assert caught.value.partial is not None
    assert caught.value.partial.text == "".join(pieces)
    assert client.complete(ask("[[hello]]")).text == "Hello, world!"  # its one slot is free again


def test_the_bytes_unchanged(client: svir.Client) -> None:
    decoder = svir.Decoder()
    with client.send(ask("[[hello]]")) as raw:
        assert raw.headers["content-type"] == "text/event-stream"
        data = b"".join(raw)
    for _ in [*decoder.feed(data), *decoder.finish()]:
        pass
    assert decoder.completion is not None
    assert decoder.completion.text == "Hello, world!"


def test_fields_svir_does_not_know(client: svir.Client) -> None:
    extra = {"min_p": 0.05, "chat_template_kwargs": {"enable_thinking": False}}
    assert client.complete(ask("[[hello]]", extra=extra, seed=1)).text == "Hello, world!"


def test_inline_thinking(start_llama: Callable[..., LlamaServer]) -> None:
    server = start_llama("--reasoning-format", "none")
    request = ask("[[think]]")
    with svir.Client(server.base_url) as split, svir.Client(server.base_url, think="keep") as keep:
        completion = split.complete(request)
        assert [piece.source for piece in completion.reasoning] == ["think"]
        assert completion.text == "\n\nThe answer is 42."
        kept = keep.complete(request)
        assert kept.text == "<think>\nLet me think.\n</think>\n\nThe answer is 42."


def test_keys(start_llama: Callable[..., LlamaServer]) -> None:
    server = start_llama("--api-key", "sekret")
    with svir.Client(server.base_url, api_key="sekret") as client:
        assert client.complete(ask("[[hello]]")).text == "Hello, world!"
    large = ask("").replace(messages=[svir.User("x" * 20_000_000)])
    for key in (None, "wrong"):
        with svir.Client(server.base_url, api_key=key) as client:
            for request in (ask("hi"), large):  # the server answers before it has read the upload
                with pytest.raises(svir.Unauthorized) as caught:
                    client.complete(request)
                assert caught.value.status == 401
                assert caught.value.server_message == "Invalid API Key"
                assert not caught.value.retryable


@pytest.mark.usefixtures("tiny_model")
def test_503_while_the_model_loads() -> None:
    with llama_server.still_loading() as url, svir.Client(url) as client:
        for call in (lambda: client.complete(ask("[[hello]]")), client.list_models):
            with pytest.raises(svir.Unavailable) as caught:
                call()
            error = caught.value
            assert (error.status, error.server_message) == (503, "Loading model")
            assert (error.retryable, error.retry_after, error.in_stream) == (True, None, False)


def test_a_model_that_still_loads(tiny_model: str) -> None:
    """Whatever the server says while it starts is a retryable error, and then it answers."""
    with LlamaServer(model=tiny_model) as server, svir.Client(server.base_url) as client:
        end = time.monotonic() + 30
        while True:
            try:
                completion = client.complete(ask("[[hello]]"))
                break
            except svir.Error as error:
                if not error.retryable or time.monotonic() > end:
                    raise
                time.sleep(0.02)
    assert completion.text == "Hello, world!"


def test_stored_and_read_again(client: svir.Client) -> None:
    completion = client.complete(ask("[[thinktool]]", tools=[WEATHER]))
    assert svir.Completion.from_dict(json.loads(json.dumps(completion.to_dict()))) == completion
