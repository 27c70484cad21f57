"""Keys, passwords and headers show nowhere, and no field can split a request."""

from __future__ import annotations

import base64
import contextlib
import copy
import io
import json
import logging
import os
import pathlib
import pickle
import socket
import threading
import traceback
from typing import Any, Callable, Iterator

import pytest

import svir
from svir_ext.testing import MockServer, Reply, scripted, text_answer

CORE = "V3rySecretW0rd"
KEY = f"sk-{CORE}"
PASSWORD = f"pw-{CORE}"
HEADER = f"token {CORE}"
CREDENTIALS = f"user:{PASSWORD}"
ENV = "SVIR_TEST_KEY"
# The core as it is and inside base64, which has three forms by where it starts.
NEEDLES = [CORE] + [
    base64.b64encode(b"x" * shift + CORE.encode())[4 : len(CORE) // 3 * 4].decode()
    for shift in range(3)
]
URL = "http://127.0.0.1:9"
REQUEST = svir.Request("m", "Hi")


# -- What is looked at ----------------------------------------------------------------------------


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and all behind it, what `from None` hides included: debuggers show that too."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def logged(error: BaseException) -> str:
    out = io.StringIO()
    logger = logging.Logger("a host's own")
    logger.addHandler(logging.StreamHandler(out))
    logger.error("failed: %s %r", error, error, exc_info=error)
    return out.getvalue()


def shown_by(error: BaseException) -> Iterator[tuple[str, str]]:
    for link in chain(error):
        yield "str", str(link)
        yield "repr", repr(link)
        yield "args", repr(link.args)
        yield "attributes", repr(vars(link))
        yield "log", logged(link)
        yield (
            "traceback",
            "".join(traceback.format_exception(type(link), link, link.__traceback__)),
        )
        yield "locals", locals_shown(link)
        if isinstance(link, svir.Error):
            yield "pickle", repr(pickle.dumps(link, 0))
            yield "copy", repr(vars(copy.copy(link)))


def locals_shown(error: BaseException) -> str:
    """What a traceback with locals shows of every frame but those of these tests."""
    trace = traceback.TracebackException.from_exception(error, capture_locals=True)
    frames = [frame for frame in trace.stack if frame.filename != __file__]
    return "\n".join(f"{frame.filename} {frame.name} {frame.locals}" for frame in frames)


def check_nothing_shown(error: BaseException) -> None:
    for where, text in shown_by(error):
        for needle in NEEDLES:
            assert needle not in text, f"{where}: {text}"


def check_repr(*values: object) -> None:
    for value in values:
        text = f"{value} {value!r} {getattr(value, '__dict__', '')!r}"
        assert not any(needle in text for needle in NEEDLES), text


def test_these_checks_find_what_they_look_for() -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads(KEY)  # json keeps it in a local, and in an attribute
    assert "loads" in locals_shown(caught.value)
    with pytest.raises(AssertionError):
        check_nothing_shown(caught.value)
    caught.value.doc = ""
    with pytest.raises(AssertionError, match=r"^locals: "):
        check_nothing_shown(caught.value)
    for text in (KEY, base64.b64encode(CREDENTIALS.encode()).decode(), f"Basic {HEADER}"):
        with pytest.raises(AssertionError):
            check_repr(text)
    with pytest.raises(svir.ConfigError) as own:
        svir.Client(URL, api_key=KEY + "\n")
    assert "__init__" in locals_shown(own.value)


# -- Secret ---------------------------------------------------------------------------------------


@pytest.fixture
def from_env(monkeypatch: pytest.MonkeyPatch) -> svir.Secret:
    monkeypatch.setenv(ENV, KEY)
    return svir.Secret.from_env(ENV)


@pytest.fixture
def key_file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "key.txt"
    path.write_text(KEY + "\n", encoding="utf-8")
    return path


def test_secret(from_env: svir.Secret, key_file: pathlib.Path) -> None:
    literal, from_file = svir.Secret(KEY), svir.Secret.from_file(key_file)
    for secret in (literal, from_env, from_file):
        assert secret.reveal() == KEY
        assert secret == svir.Secret(KEY)
        assert hash(secret) == hash(svir.Secret(KEY))
        assert secret != svir.Secret(PASSWORD)
        assert secret != KEY
        check_repr(secret, [secret], {"key": secret})
        for copied in (copy.copy(secret), copy.deepcopy(secret)):
            assert copied == secret
        for name in ("_value", "value", "_origin"):
            with pytest.raises(AttributeError):
                setattr(secret, name, "other")
            with pytest.raises(AttributeError):
                delattr(secret, name)
        with pytest.raises(TypeError):
            json.dumps(secret)
    assert repr(literal) == "Secret(***)"
    assert repr(from_env) == f"Secret.from_env({ENV!r})"
    assert repr(from_file) == f"Secret.from_file({str(key_file)!r})"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_secret_pickles_as_where_it_came_from(
    from_env: svir.Secret, key_file: pathlib.Path, monkeypatch: pytest.MonkeyPatch, protocol: int
) -> None:
    secrets = [from_env, svir.Secret.from_file(key_file)]
    data = pickle.dumps(secrets, protocol)
    assert CORE.encode() not in data
    monkeypatch.setenv(ENV, "another")
    assert [secret.reveal() for secret in pickle.loads(data)] == ["another", KEY]
    with pytest.raises(TypeError, match="from_env") as caught:
        pickle.dumps(svir.Secret(KEY), protocol)
    check_nothing_shown(caught.value)


@pytest.mark.parametrize("text", ["\ufeffKEY\r\n", "  KEY\t\n\n", "KEY"])
def test_edges_are_trimmed(
    text: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV, text.replace("KEY", KEY))
    (tmp_path / "key").write_text(text.replace("KEY", KEY), encoding="utf-8")
    assert svir.Secret.from_env(ENV).reveal() == KEY
    assert svir.Secret.from_file(tmp_path / "key").reveal() == KEY


@pytest.mark.parametrize("value", [HEADER, f"Bearer {KEY}", f"{KEY}=="])
def test_a_header_from_outside(
    value: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A header's value may be of two words, as no key is."""
    monkeypatch.setenv(ENV, value)
    (tmp_path / "header").write_text(value + "\n", encoding="utf-8")
    headers = {"x-a": svir.Secret.from_env(ENV), "x-b": svir.Secret.from_file(tmp_path / "header")}
    with MockServer() as server:
        server.reply(text_answer("ok"))
        pickle.loads(pickle.dumps(svir.Client(server.url, headers=headers))).complete(REQUEST)
        (seen,) = server.requests
    assert (seen.headers["x-a"], seen.headers["x-b"]) == (value, value)


# -- Errors of construction -----------------------------------------------------------------------

BAD_KEYS: dict[str, Callable[[], Any]] = {
    "a line break at the end": lambda: KEY + "\n",
    "a line break inside": lambda: f"{KEY}\r\nx-evil: 1",
    "a blank at the edge": lambda: f" {KEY}",
    "not ASCII": lambda: f"{KEY}é",
    "a control character": lambda: f"{KEY}\x00{KEY}",
    "a surrogate": lambda: f"{KEY}\ud800",
    "bytes": lambda: KEY.encode(),
    "a bytearray": lambda: bytearray(KEY.encode()),
    "a list": lambda: [KEY],
    "a dict": lambda: {"key": KEY},
}


@pytest.mark.parametrize("name", BAD_KEYS)
def test_a_bad_key(name: str) -> None:
    with pytest.raises(svir.ConfigError, match="api_key") as caught:
        svir.Client(URL, api_key=BAD_KEYS[name]())
    check_nothing_shown(caught.value)
    if not name.startswith("a blank"):  # which a header's value may have
        with pytest.raises(svir.ConfigError, match="x-key") as caught:
            svir.Client(URL, headers={"x-key": BAD_KEYS[name]()})
        check_nothing_shown(caught.value)


@pytest.mark.parametrize("name", ["bytes", "a bytearray", "a list", "a dict"])
def test_a_secret_of_no_text(name: str) -> None:
    with pytest.raises(svir.ConfigError, match="str") as caught:
        svir.Secret(BAD_KEYS[name]())
    check_nothing_shown(caught.value)


@pytest.mark.parametrize("inside", ["\n", "\r\n", "é", "\x7f", "\ufeff"])
def test_a_bad_key_from_outside(
    inside: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV, KEY + inside + KEY)
    with pytest.raises(svir.ConfigError, match=ENV) as caught:
        svir.Secret.from_env(ENV)
    check_nothing_shown(caught.value)
    path = tmp_path / "key.txt"
    path.write_bytes((KEY + inside + KEY).encode())
    with pytest.raises(svir.ConfigError, match=r"key\.txt") as caught:
        svir.Secret.from_file(path)
    check_nothing_shown(caught.value)


BAD_KEY_FILES = [KEY.encode() * 10_000, b"\xff" + KEY.encode(), KEY.encode("utf-16"), b"", b" \n"]


@pytest.mark.parametrize(
    "data", BAD_KEY_FILES, ids=["long", "no UTF-8", "UTF-16", "empty", "blank"]
)
def test_a_bad_key_file(data: bytes, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "key.txt"
    path.write_bytes(data)
    with pytest.raises(svir.ConfigError, match=r"key\.txt") as caught:
        svir.Secret.from_file(path)
    check_nothing_shown(caught.value)


def test_a_key_in_the_place_of_a_name() -> None:
    with pytest.raises(svir.ConfigError, match="NAME") as caught:
        svir.Secret.from_env(KEY)
    check_nothing_shown(caught.value)


PROXIES = [
    "http://{}@host:abc",
    "http://{}@host:99999",
    "http://{}@ho st:3128",
    "http://{}@host:3128/path",
    "http://{}@[::1:3128",
    "https://{}@host:3128",
    "socks5://{}@host:1080",
    "{}@host:3128",
    "//{}@host:3128",
    "http:/{}@host:3128",
    "http://{}\n@host:3128",
    "http://{}@",
    "http://{}",
]


@pytest.mark.parametrize("form", PROXIES)
def test_a_bad_proxy(form: str) -> None:
    for make in (
        lambda: svir.Client(URL, proxy=form.format(CREDENTIALS)),
        lambda: svir.HttpBackend(proxy=form.format(CREDENTIALS)),
        lambda: svir.HttpBackend(proxy=svir.Secret(form.format(CREDENTIALS))),
        lambda: svir.HttpBackend(proxy=form.format(CREDENTIALS).encode()),  # type: ignore[arg-type]
    ):
        with pytest.raises(svir.ConfigError, match="proxy") as caught:
            make()
        check_nothing_shown(caught.value)


BASE_URLS = [
    "http://{}@localhost:1234",
    "https://{}@llm.example/v1",
    " http://{}@localhost ",
    "ftp://{}@localhost",
    "{}@localhost:1234",
    "//{}@localhost",
    "http:/{}@localhost",
    "http:\\\\{}@localhost",
    "http://{}@localhost:99999",
    "http://localhost?key={}",
    "https://llm.example/v1?key={}&x=y",
    "localhost/v1?key={}",
    "http://localhost#{}",
    "http://localhost:1234/v1/#/{}@x",
]


@pytest.mark.parametrize("form", BASE_URLS)
def test_a_password_in_the_base_url(form: str) -> None:
    with pytest.raises(svir.ConfigError, match="base URL") as caught:
        svir.Client(form.format(CREDENTIALS))
    check_nothing_shown(caught.value)


OTHER_FAULTS: dict[str, dict[str, Any]] = {
    "think": {"think": "typo"},
    "accept": {"accept": {"typo"}},
    "limits": {"limits": 5},
    "idle_timeout": {"idle_timeout": -1},
    "layers": {"layers": [1]},
    "layer": {"layers": scripted("x")},
    "query": {"query": [("a", "b")]},
    "query value": {"query": {"a": 1}},
    "header": {"headers": {"x-key": HEADER, "bad name": "x"}},
    "own header": {"headers": {"Authorization": f"Bearer {KEY}"}},
    "host header": {"headers": {"x-key": HEADER, "host": "x"}},
    "cafile": {"cafile": "/no/such/file"},
    "unix and proxy": {"unix_socket": "/tmp/x"},
    "backend and proxy": {"backend": svir.HttpBackend()},
    "strict": {"strict": 1},
    "context_size": {"context_size": "8k"},
    "url": {"base_url": "http://192.168.1.1"},
    "headers as a list": {"headers": [("x-key", HEADER)]},
    "headers as text": {"headers": f"x-key: {HEADER}"},
    "headers as a set": {"headers": {f"x-key: {HEADER}"}},
}


@pytest.mark.parametrize("name", OTHER_FAULTS)
def test_another_fault_beside_the_secrets(name: str) -> None:
    options = {
        "base_url": URL,
        "api_key": KEY,
        "headers": {"x-key": HEADER},
        "proxy": f"http://{CREDENTIALS}@host:3128",
        **OTHER_FAULTS[name],
    }
    with pytest.raises(svir.ConfigError) as caught:
        svir.Client(**options)
    assert "__init__" in locals_shown(caught.value)
    check_nothing_shown(caught.value)


# -- Errors of a call -----------------------------------------------------------------------------


def key_function() -> str:
    return KEY


def secret_function() -> svir.Secret:
    return svir.Secret(KEY)


@pytest.fixture(params=["literal", "secret", "env", "file", "function", "secret function"])
def api_key(request: pytest.FixtureRequest, from_env: Any, key_file: Any) -> Any:
    keys = {
        "literal": KEY,
        "secret": svir.Secret(KEY),
        "env": from_env,
        "file": svir.Secret.from_file(key_file),
        "function": key_function,
        "secret function": secret_function,
    }
    return keys[request.param]


def make_client(url: str, api_key: Any = KEY, **options: Any) -> svir.Client:
    return svir.Client(url, api_key=api_key, headers={"X-Team-Token": HEADER}, **options)


CALLS: dict[str, Callable[[svir.Client], Any]] = {
    "complete": lambda client: client.complete(REQUEST),
    "events": lambda client: list(client.stream(REQUEST)),
    "send": lambda client: exhaust(client.send(REQUEST)),
    "list_models": lambda client: client.list_models(),
}
each_call = pytest.mark.parametrize("call", CALLS)


def exhaust(raw: svir.RawStream) -> bytes:
    with raw:
        return b"".join(raw)


def fail(
    call: str, url: str, kind: type[BaseException] = svir.Error, **options: Any
) -> BaseException:
    """The error of a call, after looking at it, at the client, and at what else there is."""
    with make_client(url, **options) as client:
        with pytest.raises(kind) as caught:
            CALLS[call](client)
        check_nothing_shown(caught.value)
        check_repr(client)
    return caught.value


REPLIES: dict[str, dict[str, Any]] = {
    "401": {"status": 401},
    "403": {"status": 403},
    "400": {"status": 400},
    "404": {"status": 404},
    "429": {"status": 429, "headers": {"retry-after": "1"}},
    "500": {"status": 500},
    "302": {"status": 302, "headers": {"location": "http://elsewhere.example/"}},
    "418": {"status": 418},
    "compressed": {"headers": {"content-encoding": "br"}},
    "cut": {"cut": True},
    "reset": {"reset": True},
}


@each_call
@pytest.mark.parametrize("name", REPLIES)
def test_a_failing_server(name: str, call: str, api_key: Any) -> None:
    if name == "compressed" and call == "send":
        return  # passed on as it is
    with MockServer() as server:
        for _ in range(2):  # a 400 is asked again without the optional fields
            server.reply(b"not what was asked", path="", **REPLIES[name])
        fail(call, server.url, api_key=api_key)
    seen = server.requests[-1]
    assert seen.headers["authorization"] == f"Bearer {KEY}", "or nothing was tested"
    assert seen.headers["x-team-token"] == HEADER


RAW_ANSWERS = {
    "nothing": b"",
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "half a head": b"HTTP/1.1 200 OK\r\ncontent-type: text/eve",
    "a bad length": b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
    "a bad chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
    "switching": b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    "HTML": b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n<html>",
}


@pytest.mark.parametrize("call", ["complete", "list_models"])
@pytest.mark.parametrize("name", RAW_ANSWERS)
def test_a_server_that_speaks_otherwise(name: str, call: str) -> None:
    with MockServer() as server:
        server.reply(RAW_ANSWERS[name], raw=True, path="")
        fail(call, server.url)


@each_call
def test_no_server(call: str, api_key: Any) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        error = fail(call, f"http://127.0.0.1:{unused.getsockname()[1]}", api_key=api_key)
    assert isinstance(error, svir.ConnectError)


@each_call
def test_no_such_host(call: str) -> None:
    fail(call, "http://no-such-host.invalid", svir.ConnectError, allow_http=True)


@each_call
def test_no_answer_in_time(call: str) -> None:
    with MockServer() as server:
        server.default(raw=True, hang=True)
        server.reply(raw=True, hang=True, path="/models")
        fail(call, server.url, svir.Timeout, idle_timeout=0.05)


@contextlib.contextmanager
def no_tls_server() -> Iterator[str]:
    """A plain server, under an https URL."""

    def answer() -> None:
        conn, _ = listener.accept()
        with conn:
            conn.recv(65536)
            conn.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(5)


@each_call
def test_tls_that_fails(call: str, tls: Any) -> None:
    with no_tls_server() as url:
        assert "Is it an https server?" in str(fail(call, url, svir.ConnectError))
    with MockServer(tls=tls.server()) as server:
        fail(call, server.url, svir.ConnectError)
    with MockServer(tls=tls.server("elsewhere")) as server:
        fail(call, server.url, svir.ConnectError, cafile=tls.cafile)


@pytest.mark.parametrize("when", ["before", "waiting", "inside"])
def test_cancelled(when: str) -> None:
    with MockServer() as server, make_client(server.url) as client:
        if when == "waiting":
            server.reply(raw=True, hang=True)
        else:
            server.reply(text_answer("x", finish_reason=None)[:2], hang=True)
        stream = client.stream(REQUEST)
        if when == "before":
            stream.close()
        else:
            threading.Timer(0.1, stream.close).start()
        with pytest.raises(svir.Cancelled) as caught:
            list(stream)
        check_nothing_shown(caught.value)
        check_repr(client, stream)


def through_proxy(place: str, **options: Any) -> dict[str, Any]:
    return {"proxy": f"http://{CREDENTIALS}@{place}", "allow_http": True, **options}


PROXY_ANSWERS = [b"HTTP/1.1 407 No\r\n\r\n", b"HTTP/1.1 502 No\r\n\r\n", b"", b"x"]


@each_call
@pytest.mark.parametrize("answer", PROXY_ANSWERS)
@pytest.mark.parametrize("url", ["https://llm.example", "http://llm.example"])
def test_a_proxy_that_fails(call: str, answer: bytes, url: str) -> None:
    with MockServer() as proxy:
        proxy.on_request = lambda request: Reply(answer, raw=True)
        error = fail(call, url, **through_proxy(proxy.url.partition("//")[2]))
    assert isinstance(error, svir.ConnectError) or url.startswith("http:")
    assert "proxy-authorization" in proxy.requests[0].headers


@each_call
def test_no_proxy_there(call: str) -> None:
    fail(call, "https://llm.example", svir.ConnectError, **through_proxy("127.0.0.1:9"))


def test_a_proxy_gets_its_password_and_the_server_does_not() -> None:
    with MockServer() as proxy:
        proxy.reply(text_answer("ok"))
        options = through_proxy(proxy.url.partition("//")[2])
        with make_client("http://llm.example", **options) as client:
            assert client.complete(REQUEST).text == "ok"
            check_repr(client)
        (seen,) = proxy.requests
    basic = base64.b64encode(CREDENTIALS.encode()).decode()
    assert seen.headers["proxy-authorization"] == f"Basic {basic}"
    assert seen.path == "http://llm.example/v1/chat/completions"


def raises() -> str:
    raise RuntimeError("the vault is closed")


JUNK_KEYS: dict[str, Callable[[], Any]] = {
    **BAD_KEYS,
    "empty": lambda: "",
    "a number": lambda: 5,
    "a bad Secret": lambda: svir.Secret(KEY + "\n"),
}


@each_call
@pytest.mark.parametrize("name", JUNK_KEYS)
def test_a_function_that_returns_junk(name: str, call: str) -> None:
    with MockServer() as server:
        error = fail(call, server.url, svir.ConfigError, api_key=JUNK_KEYS[name])
        assert "key" in str(error)
    assert server.requests == []


@each_call
def test_a_function_that_raises(call: str) -> None:
    with MockServer() as server:
        error = fail(call, server.url, RuntimeError, api_key=raises)
    assert str(error) == "the vault is closed"
    assert server.requests == []


def test_a_function_is_asked_before_every_request() -> None:
    keys: Iterator[Any] = iter(["first", "second", None])
    with MockServer() as server:
        server.default(text_answer("ok"))
        client = svir.Client(server.url, api_key=lambda: next(keys))
        for _ in range(3):
            client.complete(REQUEST)
    sent = [request.headers.get("authorization") for request in server.requests]
    assert sent == ["Bearer first", "Bearer second", None]


@each_call
def test_the_query_is_not_told(call: str) -> None:
    """It is no secret to svir, but services take keys in it."""
    with MockServer() as server:
        server.reply(status=500, path="")
        client = svir.Client(server.url, query={"key": KEY})
        with pytest.raises(svir.Unavailable) as caught:
            CALLS[call](client)
    (seen,) = server.requests
    assert seen.path.endswith(f"?key={KEY}")
    for text in (str(caught.value), repr(caught.value), logged(caught.value), repr(client)):
        assert CORE not in text


@each_call
def test_a_server_that_echoes_the_key(call: str) -> None:
    with MockServer() as server:
        server.reply({"error": {"message": f"bad key {KEY}"}}, status=401, path="")
        with make_client(server.url) as client, pytest.raises(svir.Unauthorized) as caught:
            CALLS[call](client)
    error = caught.value
    assert error.server_message == f"bad key {KEY}"
    for text in (str(error), repr(error), logged(error), *map(str, chain(error))):
        assert CORE not in text


def test_a_backend_sees_the_headers_and_its_log_does_not() -> None:
    asked: list[svir.HttpRequest] = []

    class Keeping(svir.HttpBackend):
        def send(self, request: svir.HttpRequest) -> svir.HttpResponse:
            asked.append(request)
            return super().send(request)

    with MockServer() as server:
        server.reply(text_answer("ok"))
        make_client(server.url, backend=Keeping(), query={"key": KEY}).complete(REQUEST)
    (request,) = asked
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["x-team-token"] == HEADER
    for shown in (repr(request), str(request), repr(request.headers), str(request.headers)):
        assert CORE not in shown
        assert "'authorization': '***'" in shown


# -- Splitting a request --------------------------------------------------------------------------

EVIL = "\r\nx-evil: 1\r\n\r\nGET /evil HTTP/1.1\r\n\r\n"
BREAKS = [
    "\r\n",
    "\n",
    "\r",
    "\x00",
    "\x0b",
    "\x0c",
    "\x1f",
    "\x7f",
    "\x85",
    "\u2028",
    "\u010a",
    EVIL,
]
each_break = pytest.mark.parametrize("evil", BREAKS, ids=ascii)


@each_break
@pytest.mark.parametrize(
    "options",
    [
        {"api_key": "a{}b"},
        {"api_key": "a{}"},
        {"headers": {"x-a": "b{}c"}},
        {"headers": {"x-a": "b{}"}},
        {"headers": {"x-a{}": "b"}},
        {"headers": {"x{}a": "b"}},
        {"base_url": "{url}/a{}b"},
        {"base_url": "{url}{}"},
        {"base_url": "{url}/v1{}"},
        {"proxy": "{url}{}"},
    ],
    ids=str,
)
def test_what_would_split_a_request_is_refused(options: dict[str, Any], evil: str) -> None:
    def fill(value: Any) -> Any:
        if isinstance(value, dict):
            return {fill(key): fill(item) for key, item in value.items()}
        return value.replace("{url}", server.url).replace("{}", evil)

    with MockServer() as server:
        given = fill(options)
        url = given.pop("base_url", server.url)
        try:
            client = svir.Client(url, **given)
        except svir.ConfigError:
            return
        # Line breaks around a base URL or a proxy are trimmed: then nothing of them may be left.
        assert evil.strip() == ""
        server.default(text_answer("ok"))
        assert client.complete(REQUEST).text == "ok"
        check_one_plain_request(server)


def check_one_plain_request(server: MockServer) -> Any:
    (seen,) = server.requests
    names = {"host", "user-agent", "accept", "accept-encoding", "content-type", "content-length"}
    assert set(seen.headers) <= names | {"x-a"}
    assert not any(ord(char) < 0x21 or ord(char) > 0x7E for char in seen.path)
    assert seen.method == "POST"
    return seen


@each_break
def test_what_is_encoded_cannot_split(evil: str) -> None:
    request = svir.Request(
        f"m{evil}",
        [
            svir.User(f"a{evil}", svir.TextFile(f"b{evil}".replace("\x00", ""), text=evil)),
            svir.Assistant(evil, tool_calls=[svir.ToolCall(evil, evil, evil)]),
            svir.ToolResult(evil, evil),
        ],
        system=evil,
        stop=evil,
        tools=[svir.Tool(f"t{evil}", evil)],
        extra={f"x{evil}": evil},
    )
    with MockServer() as server:
        server.reply(text_answer("ok"))
        client = svir.Client(server.url, query={f"q{evil}": f"v{evil}&a=b#c d"})
        assert client.complete(request).text == "ok"
        seen = check_one_plain_request(server)
    assert seen.json()["model"] == f"m{evil}"
    assert seen.json()["stop"] == [evil]
    path, _, query = seen.path.partition("?")
    assert path == "/v1/chat/completions"
    assert query.count("=") == 1
    assert "&" not in query


@each_break
def test_a_function_cannot_split(evil: str) -> None:
    with MockServer() as server:
        client = svir.Client(server.url, api_key=lambda: f"a{evil}b")
        with pytest.raises(svir.ConfigError, match="key"):
            client.complete(REQUEST)
    assert server.requests == []


@each_break
def test_a_media_type_cannot_split(evil: str) -> None:
    with pytest.raises(svir.ConfigError, match="media_type"):
        svir.Image(data=b"x", media_type=f"image/png{evil}")


SPLIT = "a\r\nx-evil: 1\r\n\r\nb"


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("POST", "/v1", {"x-a": SPLIT}),
        ("POST", "/v1", {SPLIT: "a"}),
        ("POST", "/v1", {"x-a": "\u010a"}),
        ("POST", "/v1", {"x-a": "a\n"}),
        ("POST", SPLIT, {}),
        ("POST", "/v1 HTTP/1.1", {}),
        (SPLIT, "/v1", {}),
        ("POST /v1 HTTP/1.1\r\nx:", "/v1", {}),
    ],
)
def test_a_backend_splits_nothing(method: str, path: str, headers: dict[str, str]) -> None:
    """Nothing that a caller or a plugin hands to the seam itself, past the client's own checks."""
    with MockServer() as server, contextlib.closing(svir.HttpBackend()) as backend:
        with pytest.raises(svir.ConfigError) as caught:
            backend.send(svir.HttpRequest(method, server.url + path, headers))
        assert "x-evil" not in str(caught.value)
    assert server.requests == []


def test_a_wire_splits_nothing() -> None:
    class Odd(svir.ChatCompletions):
        def headers(self, key: str | None) -> dict[str, str]:
            return {"x-api-key": f"{key}\r\nx-evil: 1"}

    with MockServer() as server, svir.Client(server.url, api_key=KEY, wire=Odd()) as client:
        with pytest.raises(svir.ConfigError, match="x-api-key") as caught:
            client.complete(REQUEST)
        check_nothing_shown(caught.value)
    assert server.requests == []


# -- Where nothing is sent ------------------------------------------------------------------------


@each_call
@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
def test_no_redirect_is_followed(status: int, call: str) -> None:
    with MockServer() as elsewhere, MockServer() as server:
        elsewhere.default(text_answer("stolen"))
        place = elsewhere.url.replace("//", f"//{CREDENTIALS}@") + f"/v1/x?key={KEY}"
        server.reply(status=status, headers={"location": place}, path="")
        error = fail(call, server.url, svir.ProtocolError)
        assert elsewhere.connections == 0
        assert len(server.requests) == 1
    assert f"{status}" in str(error)
    assert elsewhere.url + "/v1/x" in str(error)


@pytest.fixture
def proxies_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[MockServer]:
    with MockServer() as proxy:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
            for spelled in (name, name.lower()):
                monkeypatch.setenv(spelled, "" if "NO" in name else proxy.url)
        yield proxy


@each_call
def test_proxies_of_the_environment_are_not_asked(
    call: str, proxies_in_the_environment: MockServer, tls: Any
) -> None:
    for context, options in ((None, {}), (tls.server(), {"cafile": tls.cafile})):
        with MockServer(tls=context) as server, make_client(server.url, **options) as client:
            server.default(text_answer("ok"))
            CALLS[call](client)
            assert len(server.requests) == 1
    assert proxies_in_the_environment.connections == 0


def test_nothing_else_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "API_KEY", "SVIR_API_KEY", "OPENAI_BASE_URL", "OPENAI_ORG_ID"):
        monkeypatch.setenv(name, KEY)
    with MockServer() as server:
        server.reply(text_answer("ok"))
        svir.Client(server.url).complete(REQUEST)
        (seen,) = server.requests
    assert CORE not in repr(seen.headers) + seen.path + repr(seen.body)
    assert "authorization" not in seen.headers


# -- Pickling a client ----------------------------------------------------------------------------


def module_key() -> str:
    return KEY


def module_layer(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
    return call(request.replace(max_tokens=7))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("origin", ["none", "env", "file", "function"])
def test_a_client_pickles(
    origin: str, protocol: int, from_env: svir.Secret, key_file: pathlib.Path
) -> None:
    keys = {
        "none": None,
        "env": from_env,
        "file": svir.Secret.from_file(key_file),
        "function": module_key,
    }
    with MockServer() as server:
        server.default(text_answer("ok"))
        client = svir.Client(
            server.url,
            api_key=keys[origin],
            headers={"x-team-token": from_env},
            query={"api-version": "1"},
            layers=[module_layer],
            include_usage=False,
            think="keep",
            accept={"changing-id"},
            limits=svir.Limits(tool_calls=2),
            idle_timeout=None,
            keep_alive=False,
        )
        data = pickle.dumps(client, protocol)
        assert CORE.encode() not in data
        again = pickle.loads(data)
        assert pickle.dumps(again, protocol) == data
        assert repr(again) == repr(client)
        for each in (client, again):
            assert each.complete(REQUEST).text == "ok"
    one, two = server.requests
    assert one.headers == two.headers
    assert (one.path, one.body) == (two.path, two.body)
    assert two.headers.get("authorization") == (None if origin == "none" else f"Bearer {KEY}")
    assert two.headers["x-team-token"] == KEY
    assert two.json()["max_tokens"] == 7


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("https://llm.example", {}),
        ("https://llm.example", {"exact_url": True}),
        ("https://llm.example/openai/v1/", {}),
        ("https://llm.example/models", {"exact_url": True}),
        ("https://llm.example/models/chat/completions", {}),
        ("https://llm.example/chat/completions/models", {}),
    ],
)
def test_a_pickled_client_asks_the_same_url(url: str, options: dict[str, Any]) -> None:
    client = svir.Client(url, **options)
    for again in (pickle.loads(pickle.dumps(client)), copy.copy(client), copy.deepcopy(client)):
        assert again.base_url == client.base_url


def test_a_client_pickles_with_a_proxy() -> None:
    with MockServer() as proxy:
        proxy.default(text_answer("ok"))
        options: list[dict[str, Any]] = [
            {"proxy": proxy.url},
            {"backend": svir.HttpBackend(proxy=proxy.url)},
        ]
        for each in options:
            client = svir.Client("http://llm.example", allow_http=True, **each)
            again = pickle.loads(pickle.dumps(client))
            assert again.complete(REQUEST).text == "ok"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (lambda: {"api_key": KEY}, "key"),
        (lambda: {"api_key": svir.Secret(KEY)}, "key"),
        (lambda: {"headers": {"X-Team-Token": HEADER}}, "header.*x-team-token"),
        (lambda: {"headers": {"x-team-token": svir.Secret(HEADER)}}, "header.*x-team-token"),
        (lambda: {"proxy": f"http://{CREDENTIALS}@host:3128"}, "proxy"),
    ],
)
def test_a_client_refuses_to_write_a_secret_out(options: Any, words: str) -> None:
    client = svir.Client("https://llm.example", **options())
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match=f"(?is){words}.*from_env") as caught:
            pickle.dumps(client, protocol)
        check_nothing_shown(caught.value)


def test_a_copy_of_a_client_keeps_the_key_to_itself() -> None:
    with MockServer() as server:
        server.default(text_answer("ok"))
        client = make_client(server.url)
        for copied in (client, copy.copy(client), copy.deepcopy(client)):
            assert copied.complete(REQUEST).text == "ok"
            check_repr(copied)
    assert [r.headers["authorization"] for r in server.requests] == [f"Bearer {KEY}"] * 3


def test_a_lambda_is_refused_by_pickle_itself() -> None:
    client = svir.Client(URL, api_key=lambda: os.environ[ENV])
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(client)
