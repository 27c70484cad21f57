"""Wrong use that a person would try first: each is told in words that say what to do."""

from __future__ import annotations

import json
import pathlib
import re
import socket
import sys
import threading
from typing import Any, Callable, Iterator

import pytest

import svir
from svir_ext.testing import MockServer, Reply, sse, text_answer, tool_answer

wrong: Any = svir  # type checkers would catch much of this
URL = "http://localhost:1234"
TOOL = svir.Tool("weather")
REQUEST = svir.Request("m", "Hi")


def ask(**fields: Any) -> svir.Request:
    return svir.Request("m", "Hi", **fields)


# -- Told at once ---------------------------------------------------------------------------------

# What was tried, and what the message of the ConfigError must say.
URLS: dict[str, Any] = {
    "no scheme": (lambda: wrong.Client("localhost:1234"), ["http://localhost:1234"]),
    "no scheme, a name only": (lambda: wrong.Client("llm.example"), ["http://", "https://"]),
    "nothing": (lambda: wrong.Client(""), ["http://"]),
    "None": (lambda: wrong.Client(None), ["base_url", "str"]),
    "v1 twice": (lambda: wrong.Client(f"{URL}/v1/v1"), ["twice", "exact_url=True"]),
    "a port of letters": (lambda: wrong.Client("http://localhost:abc"), ["port"]),
    "a port too large": (lambda: wrong.Client("http://localhost:99999"), ["port"]),
    "no host": (lambda: wrong.Client("http:///v1"), ["host"]),
    "a blank inside": (lambda: wrong.Client("http://local host"), ["http://local host"]),
    "websocket": (lambda: wrong.Client("ws://localhost:1234"), ["http://", "https://"]),
    "a password": (lambda: wrong.Client("http://me:pw@localhost"), ["password", "api_key="]),
    "a query": (lambda: wrong.Client(f"{URL}?api-version=1"), ["query={"]),
    "where a server listens": (lambda: wrong.Client("http://0.0.0.0:8000"), ["127.0.0.1"]),
    "plain http elsewhere": (lambda: wrong.Client("http://192.168.1.20"), ["allow_http=True"]),
}

OPTIONS: dict[str, Any] = {
    "a key with a line break": ({"api_key": "sk-1\n"}, ["api_key", "line break"]),
    "an empty key": ({"api_key": ""}, ["api_key", "None"]),
    "a key with its Bearer": ({"api_key": "Bearer sk-1"}, ["api_key", "Bearer"]),
    "a key that is a number": ({"api_key": 5}, ["api_key", "str"]),
    "the key as a header": ({"headers": {"Authorization": "Bearer x"}}, ["api_key="]),
    "a header svir writes": ({"headers": {"Content-Type": "text/plain"}}, ["Content-Type"]),
    "headers as a list": ({"headers": [("a", "b")]}, ["headers", "dict", "list"]),
    "a header's name": ({"headers": {"x team": "a"}}, ["x team", "header name"]),
    "a header's value": ({"headers": {"x-team": "a\nb"}}, ["x-team", "control"]),
    "a header of no text": ({"headers": {"x-team": 5}}, ["x-team", "str"]),
    "query as text": ({"query": "a=b"}, ["query", "dict", "str"]),
    "a number in the query": ({"query": {"a": 1}}, ["query['a']", "str"]),
    "one layer": ({"layers": lambda request, call: call(request)}, ["layers=["]),
    "a layer that is none": ({"layers": [5]}, ["layer", "function"]),
    "accept misspelt": (
        {"accept": {"end-without-done!"}},
        ["accept", "any-content-type, changing-id", "'end-without-done!'"],
    ),
    "accept of no text": ({"accept": 5}, ["accept", "list"]),
    "think misspelt": ({"think": "spilt"}, ["think", "split, keep, open", "spilt"]),
    "a negative timeout": ({"idle_timeout": -1}, ["idle_timeout", "more than 0", "None"]),
    "no time at all": ({"connect_timeout": 0}, ["connect_timeout", "more than 0", "None"]),
    "a timeout as text": ({"total_timeout": "10"}, ["total_timeout", "float", "str"]),
    "an endless timeout": ({"idle_timeout": float("inf")}, ["idle_timeout", "finite", "None"]),
    "strict as text": ({"strict": "no"}, ["strict", "bool", "str"]),
    "limits as a dict": ({"limits": {"wire_bytes": 1}}, ["limits", "Limits", "dict"]),
    "a context size as text": ({"context_size": "8k"}, ["context_size", "int", "str"]),
    "a proxy without a scheme": ({"proxy": "localhost:3128"}, ["proxy", "http://host:3128"]),
    "a SOCKS proxy": ({"proxy": "socks5://localhost:1080"}, ["proxy", "http://host:3128"]),
    "certificates that are not there": ({"cafile": "missing.pem"}, ["cafile", "missing.pem"]),
    "two ways out": (
        {"proxy": "http://localhost:1", "unix_socket": "/tmp/s"},
        ["proxy", "unix_socket", "not both"],
    ),
    "a backend and its settings": (
        {"backend": svir.HttpBackend(), "cafile": __file__},
        ["cafile", "on the backend"],
    ),
    "a wire and its settings": (
        {"wire": svir.ChatCompletions(), "empty_content": None},
        ["empty_content", "on the wire"],
    ),
}

REQUESTS: dict[str, Any] = {
    "OpenAI's dicts": (
        lambda: wrong.Request("m", [{"role": "user", "content": "Hi"}]),
        ["messages[0]", "dict", "svir.User("],
    ),
    "plain texts": (lambda: wrong.Request("m", ["Hi"]), ["messages[0]", "User", "str"]),
    "a completion": (
        lambda: wrong.Request("m", [wrong.User("Hi"), wrong.Completion("x")]),
        ["messages[1]", "Completion", "completion.message"],
    ),
    "no messages given": (lambda: wrong.Request("m", None), ["messages", "list"]),
    "no model": (lambda: wrong.Request("", "Hi"), ["model", "list_models()"]),
    "a model that is None": (lambda: wrong.Request(None, "Hi"), ["model", "str", "NoneType"]),
    "temperature as text": (lambda: ask(temperature="0.5"), ["temperature", "float", "str"]),
    "negative tokens": (lambda: ask(max_tokens=-1), ["max_tokens", "negative"]),
    "half a token": (lambda: ask(max_tokens=1.5), ["max_tokens", "int", "float"]),
    "stop of a number": (lambda: ask(stop=[5]), ["stop[0]", "str", "int"]),
    "one tool": (lambda: ask(tools=TOOL), ["tools", "list", "Tool"]),
    "a function as a tool": (lambda: ask(tools=[print]), ["tools[0]", "Tool", "svir_ext.tools"]),
    "OpenAI's tool dict": (
        lambda: ask(tools=[{"type": "function"}]),
        ["tools[0]", "Tool", "dict"],
    ),
    "a tool choice by name": (
        lambda: ask(tools=[TOOL], tool_choice="weather"),
        ["tool_choice", "auto, none, required", "NamedTool("],
    ),
    "OpenAI's tool choice": (
        lambda: ask(tools=[TOOL], tool_choice={"type": "function"}),
        ["tool_choice", "NamedTool", "dict"],
    ),
    "a format misspelt": (lambda: ask(response_format="json"), ["text, json_object", "'json'"]),
    "OpenAI's format": (
        lambda: ask(response_format={"type": "json_object"}),
        ["response_format", "JsonSchema", "dict"],
    ),
    "an effort misspelt": (lambda: ask(reasoning_effort="max"), ["none, minimal, low", "'max'"]),
    "an effort of False": (lambda: ask(reasoning_effort=False), ["reasoning_effort", "none"]),
    "max_tokens in extra": (
        lambda: ask(extra={"max_tokens": 5}),
        ["'max_tokens'", "use max_tokens"],
    ),
    "stream in extra": (lambda: ask(extra={"stream": False}), ["'stream'", "always streams"]),
    "n in extra": (lambda: ask(extra={"n": 2}), ["'n'", "one answer a call"]),
    "usage in extra": (lambda: ask(extra={"stream_options": {}}), ["use include_usage"]),
    "extra as a list": (lambda: ask(extra=["min_p"]), ["extra", "dict", "list"]),
    "a schema's name": (lambda: wrong.JsonSchema("my schema", {}), ["name", "A-Z a-z 0-9 _ -"]),
    "a tool without a name": (lambda: wrong.Tool(""), ["Tool", "name"]),
    "parts in a list": (lambda: wrong.User(["Look:", "x"]), ["parts[0]", "list", "User(*parts)"]),
    "bytes as text": (lambda: wrong.User(b"Hi"), ["parts[0]", "str", "bytes"]),
    "an image's bytes by place": (lambda: wrong.Image(b"\x89PNG"), ["data=", "bytes"]),
    "an image's address": (lambda: wrong.Image("https://x.example/a.png"), ["URL", "data="]),
    "an image as a data URL": (lambda: wrong.Image("data:image/png;base64,AA"), ["URL", "data="]),
    "an image of nothing": (lambda: wrong.Image(), ["path", "data="]),
    "a media type": (lambda: wrong.Image("a", media_type="png"), ["media_type", "image/png"]),
    "a call in the place of its id": (
        lambda: wrong.ToolResult(wrong.ToolCall("1", "a"), "x"),
        ["call_id", "str", "ToolCall"],
    ),
    "a result that is no text": (
        lambda: wrong.ToolResult("1", {"t": 12}),
        ["content", "str", "dict", "json.dumps"],
    ),
    "an environment variable": (lambda: wrong.Secret.from_env("NOT_SET"), ["NOT_SET", "not set"]),
    "a key file": (lambda: wrong.Secret.from_file("no.txt"), ["no.txt", "No such file"]),
}

CALLS: dict[str, Any] = {
    "stream of a text": (lambda: wrong.Client(URL).stream("Hi"), ["svir.Request(", "str"]),
    "complete of a text": (lambda: wrong.Client(URL).complete("Hi"), ["svir.Request(", "str"]),
    "send of a text": (lambda: wrong.Client(URL).send("Hi"), ["svir.Request(", "str"]),
    "complete of messages": (
        lambda: wrong.Client(URL).complete([wrong.User("Hi")]),
        ["svir.Request("],
    ),
    "encode of a text": (lambda: wrong.encode("Hi"), ["svir.Request(", "str"]),
    "no messages": (lambda: wrong.encode(wrong.Request("m", [])), ["no messages"]),
    "two tools of one name": (
        lambda: wrong.encode(ask(tools=[TOOL, TOOL])),
        ["two tools", "weather"],
    ),
    "a decoder's accept": (lambda: wrong.Decoder(accept="done"), ["accept", "end-without-done"]),
    "a decoder fed with text": (lambda: wrong.Decoder().feed("data: {}"), ["bytes", "str"]),
    "extra that is no JSON": (lambda: wrong.encode(ask(extra={"a": {1}})), ["a ", "JSON", "set"]),
}


def with_options(options: dict[str, Any]) -> Callable[[], Any]:
    return lambda: wrong.Client(URL, **options)


CONFIG = {
    **URLS,
    **{f"Client: {name}": (with_options(o), words) for name, (o, words) in OPTIONS.items()},
    **REQUESTS,
    **CALLS,
}


def check(error: BaseException, words: list[str]) -> None:
    for word in words:
        assert word in str(error), f"{error} does not say {word!r}"
    assert re.match(r"[^\n]{10,900}\Z", str(error)), "not one line"
    assert not re.search(r"svir\._| object at 0x|<class", str(error)), "svir's own inside"


@pytest.mark.parametrize("name", CONFIG)
def test_config_error(name: str) -> None:
    use, words = CONFIG[name]
    with pytest.raises(svir.ConfigError) as caught:
        use()
    check(caught.value, words)


OTHER: dict[str, Any] = {
    "a required tool without tools": (
        lambda: wrong.encode(ask(tool_choice="required")),
        svir.Unsupported,
        ["required", "tools"],
    ),
    "a tool that is not offered": (
        lambda: wrong.encode(ask(tools=[TOOL], tool_choice=wrong.NamedTool("wether"))),
        svir.Unsupported,
        ["no tool", "wether"],
    ),
    "an image that is not there": (
        lambda: wrong.encode(wrong.Request("m", [wrong.User(wrong.Image("no.png"))])),
        svir.AttachmentError,
        ["no.png", "No such file"],
    ),
    "a text file that is not there": (
        lambda: wrong.encode(wrong.Request("m", [wrong.User(wrong.TextFile("no.txt"))])),
        svir.AttachmentError,
        ["no.txt", "No such file"],
    ),
    "an image of no known type": (
        lambda: wrong.encode(wrong.Request("m", [wrong.User(wrong.Image(data=b"?"))])),
        svir.ConfigError,
        ['media_type="image/'],
    ),
    "a file that is not text": (
        lambda: wrong.encode(wrong.Request("m", [wrong.User(wrong.TextFile("image.png"))])),
        svir.AttachmentError,
        ["image.png", "UTF-8"],
    ),
    "no messages argument": (lambda: wrong.Request("Hi"), TypeError, ["messages"]),
    "the system by place": (
        lambda: wrong.Request("m", "Hi", "Be brief."),
        TypeError,
        ["Request", "by place", "name"],
    ),
    "an argument misspelt": (lambda: ask(max_token=5), TypeError, ["Request", "max_token"]),
    "a replacement misspelt": (
        lambda: wrong.Request("m", "Hi").replace(mesages=[]),
        TypeError,
        ["mesages"],
    ),
    "a client's option misspelt": (lambda: wrong.Client(URL, apikey="x"), TypeError, ["apikey"]),
    "the key by place": (lambda: wrong.Client(URL, "sk-1"), TypeError, ["positional"]),
    "a file's text by place": (
        lambda: wrong.TextFile("a.py", "x = 1"),
        TypeError,
        ["TextFile", "by place", "name"],
    ),
    "a schema without a schema": (lambda: wrong.JsonSchema("a"), TypeError, ["needs schema"]),
    "loose keywords": (
        lambda: wrong.Client(URL).complete(model="m", messages=[]),
        TypeError,
        ["complete"],
    ),
    "setting a field": (
        lambda: setattr(REQUEST, "max_tokens", 5),
        AttributeError,
        ["immutable", "replace(max_tokens="],
    ),
    "parsing an answer that was cut off": (
        lambda: wrong.Completion("{", finish_reason="length").parse(),
        ValueError,
        ["'stop'", "'length'"],
    ),
    "parsing prose": (
        lambda: wrong.Completion("Sure! {}", finish_reason="stop").parse(),
        ValueError,
        ["not JSON"],
    ),
    "a completion too early": (
        lambda: wrong.Client(URL).stream(REQUEST).completion,
        RuntimeError,
        ["not completed", "result()"],
    ),
    "a raw answer outside of with": (
        lambda: wrong.Client(URL).send(REQUEST).status,
        RuntimeError,
        ["with client.send(request) as raw:"],
    ),
    "a raw answer's headers outside of with": (
        lambda: wrong.Client(URL).send(REQUEST).headers,
        RuntimeError,
        ["with client.send(request) as raw:"],
    ),
}


@pytest.mark.parametrize("name", OTHER)
def test_other_error(name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "image.png").write_bytes(b"\x89PNG")
    use, kind, words = OTHER[name]
    with pytest.raises(kind) as caught:
        use()
    check(caught.value, words)


# -- Told by a call -------------------------------------------------------------------------------


def no_events(request: svir.Request, call: svir.Call) -> Any:
    for event in call(request):
        print(event)


def no_completed(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
    for event in call(request):
        if event.type == "text":
            yield event


NO_MODEL = {"error": {"message": "model 'm' not found", "type": "not_found_error"}}
WHOLE = {"choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}]}

# A reply, options of the client, the class of the error, what its message must say.
SERVERS: dict[str, Any] = {
    "a layer that returns nothing": (
        text_answer("x"),
        {"layers": [lambda request, call: None]},
        svir.ConfigError,
        ["layer", "return or yield"],
    ),
    "a layer that only looks": (
        text_answer("x"),
        {"layers": [no_events]},
        svir.ConfigError,
        ["no_events", "return or yield"],
    ),
    "a layer that drops the end": (
        text_answer("x"),
        {"layers": [no_completed]},
        svir.Truncated,
        ["layer", "Completed"],
    ),
    "a model that does not exist": (
        Reply(NO_MODEL, status=404),
        {},
        svir.Unsupported,
        ["404", "model", "list_models()"],
    ),
    "a path that does not exist": (
        Reply("404 page not found", status=404, content_type="text/plain"),
        {},
        svir.ProtocolError,
        ["404", "base URL", "/v1/chat/completions"],
    ),
    "a key that is wrong": (Reply(status=401), {}, svir.Unauthorized, ["401", "API key"]),
    "a web page": (
        Reply("<!doctype html>", content_type="text/html; charset=utf-8"),
        {},
        svir.ProtocolError,
        ["text/html", "base URL"],
    ),
    "a redirect": (
        Reply(status=308, headers={"location": "https://llm.example/v1/"}),
        {},
        svir.ProtocolError,
        ["308", "https://llm.example/v1/", "base URL"],
    ),
    "a server that does not stream": (
        Reply(WHOLE),
        {},
        svir.ProtocolError,
        ["did not stream", "strict=False"],
    ),
    "a server that ends without [DONE]": (
        text_answer("x")[:-1],
        {},
        svir.Truncated,
        ['accept="end-without-done"'],
    ),
    "another content type": (
        Reply(text_answer("x"), content_type="text/plain"),
        {},
        svir.ProtocolError,
        ["text/plain", 'accept="any-content-type"'],
    ),
    "a stream of /v1/completions": (
        sse({"choices": [{"index": 0, "text": "x"}]}),
        {},
        svir.ProtocolError,
        ["/v1/completions", "/v1/chat/completions"],
    ),
    "a request the server refuses": (
        Reply({"error": {"message": "no"}}, status=400),
        {"include_usage": False},
        svir.Unsupported,
        ["400", "server_message"],
    ),
    "a server that says nothing": (
        Reply(raw=True, hang=True),
        {"idle_timeout": 0.05},
        svir.Timeout,
        ["0.05 s", "idle_timeout="],
    ),
    "an answer that takes too long": (
        [*text_answer("x", finish_reason=None)[:2], 30.0],
        {"total_timeout": 0.1},
        svir.Timeout,
        ["0.1 s", "total_timeout="],
    ),
    "an answer that is too large": (
        text_answer("x" * 500),
        {"limits": svir.Limits(wire_bytes=300)},
        svir.LimitExceeded,
        ["300 bytes", "Limits.wire_bytes"],
    ),
    "too many calls": (
        tool_answer(*[("now", {})] * 3),
        {"limits": svir.Limits(tool_calls=2)},
        svir.LimitExceeded,
        ["2 tool calls", "Limits.tool_calls"],
    ),
    "a context that is too small": (
        text_answer("x"),
        {"context_size": 10},
        svir.ContextOverflow,
        ["context_size=10"],
    ),
}


@pytest.mark.parametrize("name", SERVERS)
def test_a_call(name: str) -> None:
    reply, options, kind, words = SERVERS[name]
    with MockServer() as server, svir.Client(server.url, **options) as client:
        server.on_request = lambda request: reply if isinstance(reply, Reply) else Reply(reply)
        with pytest.raises(kind) as caught:
            client.complete(REQUEST)
    check(caught.value, words)
    where = f"(POST {server.url}/v1/chat/completions)"
    assert where in str(caught.value) or name.startswith("a layer")


def call(url: str, **options: Any) -> None:
    with svir.Client(url, connect_timeout=5, **options) as client:
        client.complete(REQUEST)


def test_a_server_that_is_not_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(svir.ConnectError) as caught:
            call(f"http://localhost:{port}")
    check(caught.value, [f"localhost:{port}", "refused", "Is the server running?"])
    assert caught.value.unsent


def test_a_host_that_is_not_there() -> None:
    with pytest.raises(svir.ConnectError) as caught:
        call("https://no-such-host.invalid")
    check(caught.value, ["cannot find the host no-such-host.invalid"])


def test_a_socket_that_is_not_there(tmp_path: pathlib.Path) -> None:
    with pytest.raises(svir.ConnectError) as caught:
        call("http://localhost", unix_socket=tmp_path / "no.sock")
    check(caught.value, ["no.sock", "No such file"])


def test_https_without_the_certificate(tls: Any) -> None:
    with MockServer(tls=tls.server()) as server, pytest.raises(svir.ConnectError) as caught:
        call(server.url)
    check(caught.value, ["certificate", "Trusted: ", "cafile=", "ssl_context="])


def test_https_to_another_host(tls: Any) -> None:
    server = MockServer(tls=tls.server("elsewhere"))
    with server, pytest.raises(svir.ConnectError) as caught:
        call(server.url, cafile=tls.cafile)
    check(caught.value, ["certificate", "127.0.0.1"])


def test_https_to_a_plain_server() -> None:
    def answer() -> None:
        conn, _ = listener.accept()
        with conn:
            conn.recv(65536)
            conn.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(svir.ConnectError) as caught:
            call(f"https://127.0.0.1:{listener.getsockname()[1]}")
        thread.join(5)
    check(caught.value, ["TLS", "Is it an https server?"])


def test_http_to_a_tls_server() -> None:
    with MockServer() as server:
        server.reply(b"\x15\x03\x03\x00\x02\x02\x46", raw=True)  # OpenSSL's alert
        with pytest.raises(svir.Error) as caught:
            call(server.url)
    check(caught.value, ["https"])


def test_https_without_ssl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ssl", None)
    with pytest.raises(svir.ConfigError) as caught:
        svir.Client("https://llm.example")
    check(caught.value, ["https", "ssl module"])


def test_a_stream_after_its_end() -> None:
    with MockServer() as server, svir.Client(server.url) as client:
        server.reply(text_answer("x"))
        stream = client.stream(REQUEST)
        assert stream.result().text == "x"
        assert list(stream) == []
        assert stream.result().text == "x"
        closed = client.stream(REQUEST)
        closed.close()
        with pytest.raises(svir.Cancelled, match="closed"):
            next(iter(closed))


def test_a_raw_stream_can_be_read_without_with() -> None:
    with MockServer() as server, svir.Client(server.url) as client:
        server.reply(text_answer("x"))
        raw = client.send(REQUEST)
        assert b"".join(raw) == b"".join(text_answer("x"))
        raw.close()


def test_models_from_another_kind_of_server() -> None:
    with MockServer() as server, svir.Client(server.url) as client:
        for body in ("<html>", json.dumps({"models": []})):
            server.reply(body, path="/models", content_type="text/html")
            with pytest.raises(svir.ProtocolError) as caught:
                client.list_models()
            check(caught.value, ["not a list of models", f"GET {server.url}/v1/models"])


def test_a_background_of_no_stream() -> None:
    with pytest.raises((svir.ConfigError, TypeError)) as caught:
        svir.Background(svir.Client(URL))  # type: ignore[arg-type]
    check(caught.value, ["Stream", "client.stream("])
