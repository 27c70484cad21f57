"""Every table of tests/cases (NNN-name.json), through the public API."""

from __future__ import annotations

import json
import mimetypes
import pathlib
import pickle
import re
import socket
import ssl
import time
import traceback
from typing import Any, Iterator

import pytest

import harness
import svir
from harness import GOOD_ANSWER, GOOD_BODY, RawServer, chunk, http_answer, sse, table, table_rows


def each_row(number: int) -> pytest.MarkDecorator:
    rows = table_rows(number)
    names = [f"{number}-{position}" for position in range(len(rows))]
    return pytest.mark.parametrize("row", rows, ids=names)


def only(row: dict[str, Any], *known: str) -> None:
    """A key that no test reads is a hole in the test."""
    assert set(row) <= set(known), sorted(set(row) - set(known))


def test_every_table_is_read() -> None:
    numbers = {
        int(path.name[:3]) for path in harness.CASES.glob("*.json") if path.suffixes == [".json"]
    }
    source = pathlib.Path(__file__).read_text("utf-8")
    read = {int(number) for number in re.findall(r"(?:each_row|table)\((\d{3})\)", source)}
    assert numbers == read


class Recorder:
    """A backend that keeps what it is asked, and answers well."""

    def __init__(self) -> None:
        self.asked: list[svir.HttpRequest] = []

    def send(self, request: svir.HttpRequest) -> Recorder.Response:
        self.asked.append(request)
        return self.Response()

    class Response:
        status = 200

        def __init__(self) -> None:
            self.headers = {"content-type": "text/event-stream"}
            self._left = GOOD_BODY

        def read(self, size: int, timeout: float | None) -> bytes:
            piece, self._left = self._left[:size], self._left[size:]
            return piece

        def close(self) -> None:
            pass


def body_of(request: svir.Request, **settings: Any) -> dict[str, Any]:
    """The body that a client sends for the request."""
    with RawServer(GOOD_ANSWER) as server:
        run = harness.ask(server.url, request, **settings)
        assert run.error is None, run.error
    (received,) = server.requests
    body: dict[str, Any] = received.json()
    if not settings:  # include_usage is the client's (D21)
        encoded = json.loads(bytes(svir.encode(request)))
        assert body == {**encoded, "stream_options": {"include_usage": True}}
    return body


def decoded(body: bytes, **options: Any) -> svir.Completion:
    run = harness.decode([body], **options)
    assert run.error is None, run.error
    last = run.events[-1]
    assert isinstance(last, svir.Completed)
    return last.completion


# -- Addresses ------------------------------------------------------------------------------------


@each_row(147)
def test_base_url(row: dict[str, Any]) -> None:
    only(row, "base_url", "chat_url", "exact_url", "error")
    backend = Recorder()
    settings: dict[str, Any] = {"backend": backend}
    if "exact_url" in row:
        settings["exact_url"] = row["exact_url"]
    if row.get("error") == "config":
        with pytest.raises(svir.ConfigError) as caught:
            svir.Client(row["base_url"], **settings)
        assert caught.value.kind == "config"
        assert "pw" not in str(caught.value)
        return
    assert harness.ask(row["base_url"], **settings).error is None
    assert [(asked.method, asked.url) for asked in backend.asked] == [("POST", row["chat_url"])]


@each_row(159)
def test_plain_http(row: dict[str, Any]) -> None:
    only(row, "base_url", "allow_http", "must", "error", "message_contains")
    settings = {"allow_http": row["allow_http"]} if "allow_http" in row else {}
    if "error" in row:
        with pytest.raises(svir.ConfigError, match=re.escape(row["message_contains"])) as caught:
            svir.Client(row["base_url"], **settings)
        assert caught.value.kind == row["error"]
    else:
        assert row["must"] == "accepted"
        backend = Recorder()
        assert harness.ask(row["base_url"], backend=backend, **settings).error is None
        assert backend.asked


def loopback_v6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.fixture
def both_loopbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """`localhost` is ::1 first, then 127.0.0.1, as it is on most systems."""
    real = socket.getaddrinfo

    def resolve(host: Any, port: Any, family: int = 0, *args: Any, **kwargs: Any) -> Any:
        if host != "localhost":
            return real(host, port, family, *args, **kwargs)
        found: list[Any] = [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", int(port), 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", int(port))),
        ]
        return [entry for entry in found if family in (0, entry[0])]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


def localhost_url(port: int) -> str:
    url: str = table(157)["base_url"]
    return url.replace("PORT", str(port))


def time_to_first_byte(server: RawServer) -> float:
    """The best of three: a wait that svir makes is there each time, a busy machine's is not."""
    found = []
    for _ in range(3):
        started = time.monotonic()
        run = harness.ask(localhost_url(server.port))
        assert run.error is None, run.error
        found.append(server.requests[-1].at - started)
    assert len(server.requests) == 3
    return min(found)


@pytest.mark.usefixtures("both_loopbacks")
def test_localhost_where_v6_is_refused() -> None:
    with RawServer(GOOD_ANSWER) as server:
        assert time_to_first_byte(server) < 0.5


@pytest.mark.skipif(not loopback_v6(), reason="no ::1 here")
@pytest.mark.usefixtures("both_loopbacks")
def test_localhost_where_v6_is_silent() -> None:
    """A listener on ::1 whose queue is full: what comes next gets no answer at all."""
    with RawServer(GOOD_ANSWER) as server:
        listener = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        fillers = [socket.socket(socket.AF_INET6, socket.SOCK_STREAM) for _ in range(8)]
        try:
            listener.bind(("::1", server.port))
            listener.listen(0)
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(("::1", server.port))
            assert time_to_first_byte(server) < 0.5
        finally:
            for opened in [*fillers, listener]:
                opened.close()


@pytest.mark.skipif(not loopback_v6(), reason="no ::1 here")
@pytest.mark.usefixtures("both_loopbacks")
def test_localhost_on_v6_only() -> None:
    with RawServer(GOOD_ANSWER, host="::1") as server:
        assert time_to_first_byte(server) < 0.5


# -- Keys, agents, proxies, certificates ----------------------------------------------------------

KEY_SOURCE = {"env": "SVIR_TEST_KEY", "file": "key.txt", "argument": "api_key"}


@pytest.fixture
def key_maker(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(row: dict[str, Any]) -> Any:
        name = KEY_SOURCE[row["from"]]
        if row["from"] == "argument":
            return row["value"]
        if row["from"] == "env":
            monkeypatch.setenv(name, row["value"])
            return svir.Secret.from_env(name)
        path = tmp_path / name
        path.write_bytes(row["value"].encode("utf-8"))
        return svir.Secret.from_file(path)

    return make


@each_row(149)
def test_key_edges(row: dict[str, Any], key_maker: Any) -> None:
    only(row, "from", "value", "key", "error", "message_lacks")
    with RawServer(GOOD_ANSWER) as server:
        if "key" in row:
            assert harness.ask(server.url, api_key=key_maker(row)).error is None
            (received,) = server.requests
            assert received.headers["authorization"] == "Bearer " + row["key"]
            return
        with pytest.raises(svir.ConfigError) as caught:
            svir.Client(server.url, api_key=key_maker(row)).complete(harness.REQUEST)
        assert server.connections == 0
    error = caught.value
    assert error.kind == row["error"]
    assert KEY_SOURCE[row["from"]] in str(error)
    if "message_lacks" in row:
        shown = traceback.format_exception(type(error), error, error.__traceback__)
        for words in ["".join(shown), repr(error), repr(pickle.dumps(error))]:
            assert row["message_lacks"] not in words


def test_user_agent() -> None:
    assert table(166)["must"].startswith("every request carries `User-Agent: svir/<version>`")
    models = http_answer(200, {"Content-Type": "application/json"}, b'{"data":[{"id":"m"}]}')
    with RawServer(GOOD_ANSWER, models) as server, svir.Client(server.url) as client:
        client.complete(harness.REQUEST)
        assert [model.id for model in client.list_models()] == ["m"]
    agents = [received.headers["user-agent"] for received in server.requests]
    assert agents == ["svir/" + svir.__version__] * 2


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No name but a loopback one is looked up; the names that were are in the list."""
    real, names = socket.getaddrinfo, []

    def resolve(host: Any, *args: Any, **kwargs: Any) -> Any:
        if str(host) in {"127.0.0.1", "localhost", "::1"}:
            return real(host, *args, **kwargs)
        names.append(str(host))
        raise socket.gaierror(socket.EAI_NONAME, "not in a test")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return names


PROXY_VARIABLES = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"]


@each_row(153)
def test_proxy(row: dict[str, Any], offline: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    only(row, "env", "proxy", "base_url", "must")
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    refusal = http_answer(502, {"Content-Type": "text/plain"}, b"no way out")
    answer = GOOD_ANSWER if row["base_url"].startswith("http:") else refusal
    with RawServer(answer) as proxy:
        for name, value in row.get("env", {}).items():
            monkeypatch.setenv(name, value.replace("PORT", str(proxy.port)))
            monkeypatch.setenv(name.lower(), value.replace("PORT", str(proxy.port)))
        by_name = row.get("proxy", "").replace("PORT", str(proxy.port))
        settings = {"proxy": by_name} if by_name else {}
        run = harness.ask(row["base_url"], api_key="sk-test", **settings)
        connections = proxy.connections
    if row["must"] == "nothing connects to the proxy":
        assert connections == 0
        assert offline == ["api.example.com"]
        assert run.error is not None
        assert (run.error.kind, run.error.unsent) == ("connect", True)
        return
    (received,) = proxy.requests
    assert offline == [], "the proxy looks names up"
    if row["must"].startswith("the proxy gets `CONNECT api.example.com:443 HTTP/1.1`"):
        assert received.line == "CONNECT api.example.com:443 HTTP/1.1"
        assert "sk-test" not in repr(received)
        assert run.error is not None
        assert (run.error.kind, run.error.unsent) == ("connect", True)
    else:
        assert row["must"] == "the proxy gets the request, since it was given by name"
        assert received.line == "POST http://localhost:1234/v1/chat/completions HTTP/1.1"
        assert received.headers["host"] == "localhost:1234"
        assert harness.outcome(run)["text"] == "Hi there"


def tried_paths() -> list[str]:
    paths = ssl.get_default_verify_paths()
    named = [paths.cafile, paths.capath, paths.openssl_cafile, paths.openssl_capath]
    return [path for path in named if path]


@each_row(155)
def test_private_root(row: dict[str, Any], tls: Any) -> None:
    only(row, "client", "error", "unsent", "message_contains", "must")
    settings: dict[str, Any] = {}
    for key, value in row["client"].items():
        if key == "cafile":
            assert value == "the root's file"
            settings[key] = tls.cafile
        else:
            assert (key, value) == ("ssl_context", "one that trusts the root")
            settings[key] = ssl.create_default_context(cafile=tls.cafile)
    with RawServer(GOOD_ANSWER, ssl_context=tls.server()) as server:
        run = harness.ask(server.url.replace("http:", "https:"), **settings)
    if "must" in row:
        assert row["must"] == "works"
        assert harness.outcome(run)["text"] == "Hi there"
        return
    error = run.error
    assert error is not None
    assert (error.kind, error.unsent) == (row["error"], row["unsent"])
    assert row["message_contains"] == "the CA paths that were tried"
    assert any(path in str(error) for path in tried_paths())
    assert "cafile" in str(error), "what to pass"
    assert server.requests == []


# -- Requests -------------------------------------------------------------------------------------


@each_row(151)
def test_surrogate_in_a_prompt(row: dict[str, Any]) -> None:
    only(row, "messages", "error", "message_contains")
    assert {message["role"] for message in row["messages"]} == {"user"}
    messages = [svir.User(message["content"]) for message in row["messages"]]
    with RawServer(GOOD_ANSWER) as server:
        with pytest.raises(svir.ConfigError) as caught:
            svir.Client(server.url).complete(svir.Request("m", messages))
        assert server.connections == 0
    assert caught.value.kind == row["error"]
    numbers = re.findall(r"\d+", str(caught.value))
    for number in row["message_contains"]:
        assert number in numbers


def assistant_of(message: dict[str, Any]) -> svir.Assistant:
    calls = [
        svir.ToolCall(id=c["id"], name=c["function"]["name"], arguments=c["function"]["arguments"])
        for c in message["tool_calls"]
    ]
    return svir.Assistant("", tool_calls=calls)


@each_row(160)
def test_calls_without_text(row: dict[str, Any]) -> None:
    only(row, "client", "message")
    turn = assistant_of(row["message"])
    request = svir.Request("m", [svir.User("a"), turn, svir.ToolResult("k1", "b")])
    assert body_of(request, **row["client"])["messages"][1] == row["message"]


def test_extra_of_a_call_goes_back() -> None:
    case = table(162)
    only(case, "rule", "case", "answer", "next_request_has")
    (call,) = case["answer"]["tool_calls"]
    piece = {
        "index": 0,
        "id": call["id"],
        "function": {"name": call["name"], "arguments": call["arguments"]},
        **call["extra"],
    }
    answer = decoded(sse(chunk({"tool_calls": [piece]}), chunk(finish="tool_calls")))
    assert answer.tool_calls == (svir.ToolCall(**call),)
    for turn in (answer.message, svir.Assistant("", tool_calls=answer.tool_calls)):
        request = svir.Request("m", [svir.User("a"), turn, svir.ToolResult("k1", "b")])
        assert body_of(request)["messages"][1] == case["next_request_has"]


@each_row(164)
def test_media_type(
    row: dict[str, Any], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(row, "name", "first_bytes", "given", "media_type", "error")
    for suffix in (".jpg", ".jpeg", ".JPG", ".bin"):  # a registry that lies
        monkeypatch.setitem(mimetypes.types_map, suffix, "image/x-lie")
        monkeypatch.setitem(mimetypes.common_types, suffix, "image/x-lie")
    path = tmp_path / row["name"]
    path.write_bytes(bytes.fromhex(row["first_bytes"]))
    given = {"media_type": row["given"]} if "given" in row else {}
    if "error" in row:
        with pytest.raises(svir.ConfigError) as caught:
            svir.encode(svir.Request("m", [svir.User("a", svir.Image(path, **given))]))
        assert caught.value.kind == row["error"]
        return
    request = svir.Request("m", [svir.User("a", svir.Image(path, **given))])
    (_, part) = body_of(request)["messages"][0]["content"]
    assert part["image_url"]["url"].startswith(f"data:{row['media_type']};base64,")


@each_row(294)
def test_extra_keys_in_the_body(row: dict[str, Any]) -> None:
    only(row, "extra", "body_has", "error")
    if "error" in row:
        with pytest.raises(svir.ConfigError) as caught:
            svir.encode(svir.Request("m", "Hi", extra=row["extra"]))
        assert caught.value.kind == row["error"]
        return
    plain = body_of(svir.Request("m", "Hi"))
    assert body_of(svir.Request("m", "Hi", extra=row["extra"])) == {**plain, **row["body_has"]}


def answer_with(answer: dict[str, Any]) -> svir.Completion:
    """The completion that a stream with these parts gives."""
    only(answer, "text", "reasoning", "extra")
    deltas = []
    for source, text in answer["reasoning"]:
        inline = source == "think"
        deltas.append({"content": f"<think>{text}</think>"} if inline else {source: text})
    deltas[-1].update(answer.get("extra", {}).get("delta", {}))
    deltas.append({"content": answer["text"]})
    done = decoded(sse(*[chunk(delta) for delta in deltas], chunk(finish="stop")))
    assert [[r.source, r.text] for r in done.reasoning] == answer["reasoning"]
    assert dict(done.extra) == answer.get("extra", {})
    return done


@each_row(295)
def test_reasoning_sent_back(row: dict[str, Any]) -> None:
    only(row, "answer", "send_reasoning", "message")
    messages: list[svir.Message] = [
        svir.User("a"),
        answer_with(row["answer"]).message,
        svir.User("b"),
    ]
    request = svir.Request("m", messages, send_reasoning=row.get("send_reasoning", True))
    assert body_of(request)["messages"][1] == row["message"]
    silent = request.replace(send_reasoning=False)
    text = row["message"]["content"]
    assert body_of(silent)["messages"][1] == {"role": "assistant", "content": text}


# -- Statuses -------------------------------------------------------------------------------------


def failure(answer: bytes) -> svir.Error:
    with RawServer(answer) as server:
        run = harness.ask(server.url, include_usage=False)
    assert run.events == []
    assert run.error is not None
    assert len(server.requests) == 1
    return run.error


@each_row(291)
def test_retry_after(row: dict[str, Any]) -> None:
    only(row, "retry-after", "retry-after-ms", "seconds")
    headers = {"Date": "Wed, 21 Oct 2026 07:28:00 GMT", "Content-Type": "text/plain"}
    headers.update({name: value for name, value in row.items() if name != "seconds"})
    error = failure(http_answer(429, headers))
    assert error.kind == "rate_limited"
    if row["seconds"] is None:
        assert error.retry_after is None
    else:
        assert error.retry_after == pytest.approx(row["seconds"], abs=1e-9)


@each_row(292)
def test_status(row: dict[str, Any]) -> None:
    only(row, "status", "kind", "retryable")
    error = failure(http_answer(row["status"], {}))
    assert error.kind == row["kind"]
    assert error.status == row["status"]
    assert error.retryable is row["retryable"]
    assert error.server_message is None
    assert error.unsent is False
    assert error.in_stream is False


def json_answer(status: int, body: Any) -> bytes:
    data = json.dumps(body).encode("ascii")
    return http_answer(status, {"Content-Type": "application/json"}, data)


@each_row(432)
def test_overflow(row: dict[str, Any]) -> None:
    only(row, "error", "overflow")
    body = {"error": row["error"]}
    message = row["error"] if isinstance(row["error"], str) else row["error"]["message"]
    run = harness.decode([sse(chunk({"content": "Hi"}), body)])
    overflow = "context_overflow" if row["overflow"] else None
    harness.check(
        harness.outcome(run),
        {
            "outcome": "error",
            "kind": overflow or "server",
            "text": "Hi",
            "server_message": message,
            "retryable": False,
        },
    )
    for status in (400, 413, 422):
        error = failure(json_answer(status, body))
        assert (error.kind, error.server_message) == (overflow or "unsupported", message)
    error = failure(json_answer(500, body))
    assert (error.kind, error.server_message) == ("unavailable", message)


@each_row(434)
def test_server_message(row: dict[str, Any]) -> None:
    only(row, "body", "text", "server_message")
    if "text" in row:
        answer = http_answer(400, {"Content-Type": "text/plain"}, row["text"].encode("utf-8"))
    else:
        answer = json_answer(400, row["body"])
    error = failure(answer)
    assert error.server_message == row["server_message"]
    if len(row["server_message"] or "") >= 3:  # the server's words are for the user's eyes only
        assert row["server_message"] not in str(error) + repr(error)
    assert error.kind == "unsupported"


# -- The decoder ----------------------------------------------------------------------------------

both_modes = pytest.mark.parametrize("strict", [True, False], ids=["strict", "lenient"])


def every_feeding(body: bytes, **options: Any) -> Iterator[harness.Run]:
    for pieces in ([body], harness.single_bytes(body)):
        yield harness.decode(pieces, **options)


@both_modes
@each_row(431)
def test_finish(row: dict[str, Any], strict: bool) -> None:
    only(row, "finish_reason", "finish", "quirks", "error")
    body = sse(chunk({"content": "Hi"}), chunk(finish=row["finish_reason"]))
    for run in every_feeding(body, strict=strict):
        got = harness.outcome(run)
        assert got["text"] == "Hi"
        if "error" in row:
            assert (got["outcome"], got["kind"]) == ("error", row["error"])
        else:
            assert (got["outcome"], got["finish_reason"]) == ("completed", row["finish"])
            assert got["quirks"] == row.get("quirks", [])


@both_modes
@each_row(433)
def test_wrong_types(row: dict[str, Any], strict: bool) -> None:
    bad = dict({"id": "c1", "model": "m"}, **row)
    only(row, "choices")
    body = sse(chunk({"content": "Hi"}), bad, chunk(finish="stop"))
    for run in every_feeding(body, strict=strict):
        got = harness.outcome(run)
        assert (got["outcome"], got["text"]) == ("error", "Hi")
        assert got["kind"] == "protocol"


@both_modes
@each_row(435)
def test_tool_call_delta_index(row: dict[str, Any], strict: bool) -> None:
    only(row, "pieces", "delta_indices", "call_ids")
    chunks = [chunk({"tool_calls": [piece]}) for piece in row["pieces"]]
    for run in every_feeding(sse(*chunks, chunk(finish="tool_calls")), strict=strict):
        got = harness.outcome(run)
        deltas = [event for event in run.events if isinstance(event, svir.ToolCallDelta)]
        assert [delta.index for delta in deltas] == row["delta_indices"]
        assert [call["id"] for call in got["tool_calls"]] == row["call_ids"]


def arguments_of(row: dict[str, Any]) -> str:
    text: str = row["arguments"]
    repeated = re.fullmatch(r"`(.)` (\d+) times", text)
    return repeated[1] * int(repeated[2]) if repeated else text


@each_row(293)
def test_parse_arguments(row: dict[str, Any]) -> None:
    only(row, "arguments", "value", "error")
    call = svir.ToolCall(id="k1", name="look", arguments=arguments_of(row))
    if "value" in row:
        assert call.parse() == row["value"]
        return
    assert row["error"] == "ValueError"
    with pytest.raises(ValueError, match="arguments are") as caught:  # svir's own
        call.parse()
    assert type(caught.value) is ValueError
    assert len(str(caught.value)) < 1000
