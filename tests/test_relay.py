"""examples/relay: over HTTP, under gunicorn, and its page in a browser."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Iterator

import pytest

import svir
from llama_server import LlamaServer
from svir_ext.testing import CUT, RESET, STALL, MockServer, error_event, text_answer

FOLDER = Path(__file__).parent.parent / "examples" / "relay"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ORIGIN = "http://relay.test"
ASKED = [["user", "Hi"]]


def load() -> Any:
    spec = importlib.util.spec_from_file_location("relay", FOLDER / "relay.py")
    assert spec is not None
    module: Any = importlib.util.module_from_spec(spec)
    loader: Any = spec.loader
    loader.exec_module(module)
    return module


relay = load()


class Running:
    """A relay on a free port, and the model server behind it."""

    def __init__(self, upstream: MockServer, server: Any) -> None:
        self.upstream, self.server = upstream, server
        self.port = server.server_address[1]

    def ask(self, body: Any = ASKED, **headers: str) -> http.client.HTTPResponse:
        return ask(self.port, body, 10, **headers)


def ask(
    port: int, body: Any = ASKED, timeout: float = 10, **headers: str
) -> http.client.HTTPResponse:
    """The answer's head; reading it to its end, or closing it, closes the connection."""
    conn = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    with contextlib.closing(conn):  # the response keeps the socket
        conn.request("POST", "/chat", data, {"Origin": ORIGIN, "Connection": "close", **headers})
        return conn.getresponse()


@contextlib.contextmanager
def relaying(upstream: MockServer, **options: Any) -> Iterator[Running]:
    client = svir.Client(upstream.url, api_key=svir.Secret("sk-lab"), idle_timeout=10)
    server = relay.serve(relay.Relay(client, [ORIGIN], model="mock"), port=0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        with client:
            yield Running(upstream, server)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def running() -> Iterator[Running]:
    with MockServer() as upstream, relaying(upstream) as running:
        yield running


# -- The stream -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "steps",
    [
        text_answer("Hel", "lø", usage=(5, 2)),
        [b": a comment\r\n\r\ndata:{}\r\n\r\n", b"event: odd\ndata: \xff\n\ndata: [DONE]"],
        [*text_answer("Hel")[:1], error_event("out of memory")],
    ],
)
def test_the_bytes_are_unchanged(running: Running, steps: list[bytes]) -> None:
    running.upstream.reply(steps, content_type="text/event-stream; charset=utf-8")
    with running.ask() as response:
        assert (response.status, response.read()) == (200, b"".join(steps))
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-store"
    request = running.upstream.requests[0]
    assert request.headers["authorization"] == "Bearer sk-lab"
    assert request.json()["messages"][-1] == {"role": "user", "content": "Hi"}
    assert request.json()["max_tokens"] == relay.MAX_TOKENS


def test_a_real_model_server(llama: LlamaServer) -> None:
    client, decoder = svir.Client(llama.base_url), svir.Decoder()
    with MockServer() as unused, relaying(unused) as running:
        running.server.application.client = client
        with client, running.ask([["user", "Hi [[hello]]"]]) as response:
            events = list(decoder.feed(response.read()))
    assert "".join(e.text for e in events if e.type == "text") == "Hello, world!"
    assert decoder.completion is not None


def test_bytes_are_passed_on_as_they_arrive(running: Running) -> None:
    go, answer = threading.Event(), text_answer("Hel", "lo")
    running.upstream.reply(answer[0], go, answer[1:])
    with running.ask() as response:
        first = response.read(len(answer[0]))
        assert first == answer[0]
        assert not go.is_set()
        go.set()
        assert first + response.read() == b"".join(answer)


@pytest.mark.parametrize("fault", [CUT, RESET])
def test_a_cut_is_passed_on_as_a_cut(
    running: Running, fault: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    answer = text_answer("Hel", "lo")
    running.upstream.reply(answer[0], fault)
    with running.ask() as response:
        got = response.read()
    assert answer[0].startswith(got)
    assert b"[DONE]" not in got
    running.upstream.wait_until(lambda: running.upstream.open_connections == 0)
    err = capfd.readouterr().err
    assert re.match(r"relay: (truncated|disconnected): .*\n\Z", err), err


@pytest.mark.parametrize("when", ["before the headers", "in the middle"])
def test_when_the_browser_leaves_the_model_is_stopped(
    running: Running, when: str, capfd: pytest.CaptureFixture[str]
) -> None:
    upstream = running.upstream
    if when == "in the middle":
        upstream.reply(text_answer("Hel")[0], STALL)
        with running.ask() as response:
            assert response.read(1) == b"d"
    else:
        upstream.reply(raw=True, hang=True)
        body = json.dumps(ASKED)
        with socket.create_connection(("127.0.0.1", running.port)) as browser:
            browser.sendall(
                f"POST /chat HTTP/1.1\r\nHost: h\r\nOrigin: {ORIGIN}\r\n"
                f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
            )
            upstream.wait_until(lambda: len(upstream.requests) == 1)
    upstream.wait_until(lambda: upstream.open_connections == 0)
    upstream.reply(text_answer("again"))
    with running.ask() as response:
        assert b"again" in response.read()
    assert capfd.readouterr().err == ""


def test_so_many_answers_at_once(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    upstream = running.upstream
    with contextlib.ExitStack() as stack:
        for _ in range(relay.MAX_AT_ONCE):
            upstream.reply(text_answer("Hel")[0], STALL)
            stack.enter_context(running.ask())
        with running.ask() as response:
            assert (response.status, response.headers["retry-after"]) == (503, "5")
            assert json.load(response)["error"]["type"] == "busy"
    upstream.wait_until(lambda: upstream.open_connections == 0)
    upstream.reply(text_answer("again"))
    with running.ask() as response:
        assert b"again" in response.read()


# -- What is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "headers", "status", "kind"),
    [
        (ASKED, {"Origin": "http://elsewhere.test"}, 403, "origin"),
        (ASKED, {"Origin": "null"}, 403, "origin"),
        (b"not json", {}, 400, "json"),
        (b"[" * 9999, {}, 400, "json"),
        ({"model": "other"}, {}, 400, "messages"),
        ([], {}, 400, "messages"),
        ([["system", "Obey."]], {}, 400, "messages"),
        ([["user", {"type": "image_url"}]], {}, 400, "messages"),
        ([["user", "Hi"], ["assistant", "Ho"]], {}, 400, "messages"),
        (b" " * (relay.MAX_BODY + 1), {}, 413, "too_large"),
        (b"", {"Content-Length": "-1"}, 411, "length"),
    ],
)
def test_refused(
    running: Running, body: Any, headers: dict[str, str], status: int, kind: str
) -> None:
    with running.ask(body, **headers) as response:
        assert response.status == status
        assert json.load(response)["error"]["type"] == kind
    assert not running.upstream.requests


def test_another_path(running: Running) -> None:
    conn = http.client.HTTPConnection("127.0.0.1", running.port, timeout=10)
    with contextlib.closing(conn):
        conn.request("GET", "/relay.py")
        assert conn.getresponse().status == 404


@pytest.mark.parametrize(
    ("upstream_status", "status", "kind"),
    [
        (401, 502, "unauthorized"),
        (429, 429, "rate_limited"),
        (503, 503, "unavailable"),
        (404, 502, "unsupported"),
    ],
)
def test_an_error_of_the_server(
    running: Running,
    upstream_status: int,
    status: int,
    kind: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    running.upstream.reply(
        {"error": {"message": "the server's words"}},
        status=upstream_status,
        headers={"retry-after": "7"} if upstream_status == 429 else {},
    )
    with running.ask() as response:
        body = response.read().decode()
    assert (response.status, json.loads(body)["error"]["type"]) == (status, kind)
    assert json.loads(body)["error"]["message"] == "the server's words"
    assert response.headers["retry-after"] == ("7" if status == 429 else None)
    told = body + capfd.readouterr().err
    assert f"relay: {kind}: " in told
    assert "sk-lab" not in told


def test_no_server(capfd: pytest.CaptureFixture[str]) -> None:
    with MockServer() as gone:
        pass
    with relaying(gone) as running, running.ask() as response:
        assert response.status == 502
        body = response.read().decode()
    assert json.loads(body)["error"]["type"] == "connect"
    assert gone.url.rpartition(":")[2] not in body, "where the server is, is not the page's"
    assert gone.url in capfd.readouterr().err


def test_the_first_model_unless_told(running: Running) -> None:
    running.server.application.model = ""
    running.upstream.model_list(["first", "second"])
    running.upstream.reply(text_answer("Hello"))
    with running.ask() as response:
        response.read()
    assert running.upstream.requests[-1].json()["model"] == "first"
    running.upstream.model_list([])
    with running.ask() as response:
        assert json.load(response)["error"]["type"] == "no_model"


# -- gunicorn, with a copy of svir.py beside the relay --------------------------------------------


@contextlib.contextmanager
def gunicorn(folder: Path, upstream: str) -> Iterator[int]:
    """The port of a gunicorn that serves a copy of the example."""
    for path in (FOLDER / "relay.py", FOLDER / "page.html", Path(svir.__file__)):
        shutil.copy(path, folder / ("svir.py" if path.name == "__init__.py" else path.name))
    command = [sys.executable, "-m", "gunicorn", "--bind", "127.0.0.1:0", "--threads", "4"]
    command += ["--no-control-socket", "--chdir", str(folder), "relay"]
    environ = {**os.environ, "RELAY_UPSTREAM": upstream, "RELAY_ORIGINS": ORIGIN}
    process = subprocess.Popen(
        command,
        env={**environ, "RELAY_KEY": "sk-lab", "RELAY_MODEL": "mock"},
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            found = re.search(r"Listening at: http://127\.0\.0\.1:(\d+)", line)
            if found:
                yield int(found.group(1))
                break
        else:
            raise AssertionError("gunicorn did not start")
    finally:
        process.terminate()
        log = process.communicate(timeout=20)[1]
    assert "Traceback" not in log
    assert "sk-lab" not in log


def test_under_gunicorn(tmp_path: Path) -> None:
    pytest.importorskip(
        "gunicorn", reason="*** gunicorn is not installed: the relay is NOT TESTED under it"
    )
    answer = text_answer("Hel", "lo")
    with MockServer() as upstream, gunicorn(tmp_path, upstream.url) as port:
        upstream.reply(answer)
        with ask(port) as response:
            assert response.read() == b"".join(answer)
        assert upstream.requests[0].headers["authorization"] == "Bearer sk-lab"
        upstream.reply(answer[0], CUT)
        response = ask(port)
        with response, pytest.raises(http.client.IncompleteRead):
            response.read()
        for steps, options in (([answer[0], STALL], {}), ([], {"raw": True, "hang": True})):
            seen = len(upstream.requests)
            upstream.reply(steps, **options)
            if steps:
                with ask(port) as response:
                    assert response.read(1) == b"d"
            else:
                with pytest.raises(socket.timeout):
                    ask(port, timeout=0.5)
            upstream.wait_until(lambda: upstream.open_connections == 0)
            assert len(upstream.requests) == seen + 1


# -- The page -------------------------------------------------------------------------------------


def test_the_page(running: Running) -> None:
    conn = http.client.HTTPConnection("127.0.0.1", running.port, timeout=10)
    with contextlib.closing(conn):
        conn.request("GET", "/")
        response = conn.getresponse()
        page = response.read().decode()
    assert response.status == 200
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert "//" not in re.sub(r"^ *//.*|  // .*", "", page, flags=re.M), "it loads nothing"
    assert "innerHTML" not in page


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium; installing playwright's own is not needed."""
    sync_api = pytest.importorskip(
        "playwright.sync_api",
        reason="*** playwright is not installed: the relay's page is NOT TESTED in a browser",
    )
    if CHROMIUM is None:
        pytest.skip("*** there is no chromium: the relay's page is NOT TESTED in a browser")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Any, running: Running) -> Iterator[Any]:
    """The relay's page, asked "Hi" when `ask` is clicked. Its console has to stay empty."""
    url = f"http://127.0.0.1:{running.port}"
    running.server.application.origins = frozenset([url])
    page = browser.new_page()
    page.set_default_timeout(5000)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(url)
    page.fill("#question", "Hi")
    yield page
    page.close()
    assert [text for text in said if not text.startswith("Failed to load resource")] == []


def shows(page: Any, selector: str, text: str) -> None:
    page.wait_for_function(
        "([s, t]) => [...document.querySelectorAll(s)].at(-1)?.textContent === t",
        arg=[selector, text],
    )


def state(page: Any) -> tuple[bool, bool]:
    return page.is_enabled("#ask"), page.is_enabled("#stop")


def test_the_page_shows_an_answer_while_it_arrives(page: Any, running: Running) -> None:
    go, answer = threading.Event(), text_answer("<b>Hel", "lø</b>", reasoning="Hm.")
    running.upstream.reply(answer[:-3], go, answer[-3:])
    page.click("#ask")
    shows(page, "#log .thought", "Hm.")
    shows(page, "#log .answer", "<b>Hel")
    assert state(page) == (False, True)
    go.set()
    shows(page, "#state", "done")
    shows(page, "#log .answer", "<b>Hellø</b>")
    assert state(page) == (True, False)
    running.upstream.reply(text_answer("Ho"))
    page.fill("#question", "And?")
    page.click("#ask")
    shows(page, "#log .answer", "Ho")
    messages = running.upstream.requests[-1].json()["messages"]
    assert [m["content"] for m in messages[1:]] == ["Hi", "<b>Hellø</b>", "And?"]
    assert page.query_selector("#log .cut") is None


@pytest.mark.parametrize("when", ["before the headers", "in the middle"])
def test_the_stop_button(page: Any, running: Running, when: str) -> None:
    if when == "in the middle":
        running.upstream.reply(text_answer("Hel")[:2], STALL)
        page.click("#ask")
        shows(page, "#log .answer", "Hel")
    else:
        running.upstream.reply(raw=True, hang=True)
        page.click("#ask")
        running.upstream.wait_until(lambda: running.upstream.requests)
    page.click("#stop")
    shows(page, "#log .cut small", "Stopped: not whole.")
    running.upstream.wait_until(lambda: running.upstream.open_connections == 0)
    assert state(page) == (True, False)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([CUT], "Cut: The connection ended before the answer did."),
        ([RESET], "Cut: The connection ended before the answer did."),
        ([error_event("out of memory")], "Cut: The model server failed: out of memory"),
        (text_answer("", finish_reason="length"), "Cut: The answer is not whole: length."),
        ([b"data: [DONE]\n\n"], "Cut: The answer is not whole: no finish reason."),
    ],
)
def test_the_page_shows_a_cut_as_a_cut(
    page: Any, running: Running, steps: list[Any], words: str
) -> None:
    running.upstream.reply(text_answer("Hel")[:2], 0.1, steps)
    page.click("#ask")
    shows(page, "#log .cut small", words)
    shows(page, "#log .cut", "Hel" + words)
    shows(page, "#state", "failed")
    running.upstream.reply(text_answer("Ho"))
    page.fill("#question", "And?")
    page.click("#ask")
    shows(page, "#log .answer", "Ho")
    messages = running.upstream.requests[-1].json()["messages"]
    assert [m["content"] for m in messages[1:]] == ["And?"]


def test_the_page_shows_an_error(page: Any, running: Running) -> None:
    running.upstream.reply({"error": {"message": "too many"}}, status=429)
    page.click("#ask")
    shows(page, "#log .cut small", "Cut: too many (rate_limited)")
