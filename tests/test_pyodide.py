"""examples/pyodide in a real Pyodide: under Node, and in a browser."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any, Iterator

import pytest

import svir
from svir_ext.testing import CUT, STALL, MockRequest, MockServer, Reply, error_event, text_answer

FOLDER = Path(__file__).parent.parent / "examples" / "pyodide"
PACKAGE = FOLDER / "node_modules" / "pyodide"
NODE, CHROMIUM = shutil.which("node"), shutil.which("chromium")

if NODE is None or not PACKAGE.is_dir():
    pytest.skip(
        "*** npm's pyodide is not installed (npm install in examples/pyodide): NOT TESTED there",
        allow_module_level=True,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example with svir.py in it, as its commands make it."""
    folder = tmp_path_factory.mktemp("pyodide")
    for path in FOLDER.iterdir():
        if path.is_file():
            shutil.copy(path, folder)
    shutil.copy(svir.__file__, folder / "svir.py")
    (folder / "node_modules").symlink_to(PACKAGE.parent.resolve())
    return folder


def command(folder: Path, *args: str, jspi: bool = True) -> list[str]:
    """What `npm start` runs; without JSPI as Node 20 is without its flag."""
    script = json.loads((folder / "package.json").read_text("utf-8"))["scripts"]["start"].split()
    assert script[1].startswith("--experimental"), script
    return [str(NODE), *(script[1:2] if jspi else off()), *script[2:], *args]


def off() -> list[str]:
    """Newer than Node 22 it is on by default."""
    known = subprocess.check_output([str(NODE), "--v8-options"], encoding="utf-8")
    return ["--no-experimental-wasm-jspi"] if "--experimental-wasm-jspi" in known else []


def run(folder: Path, *args: str, jspi: bool = True) -> str:
    done = subprocess.run(
        command(folder, *args, jspi=jspi), cwd=folder, capture_output=True, timeout=60
    )
    assert (done.returncode, done.stderr.decode()) == (0, "")
    return done.stdout.decode()


@pytest.mark.parametrize("jspi", [True, False], ids=["blocking", "async"])
def test_an_answer_is_shown_while_it_arrives(folder: Path, jspi: bool) -> None:
    go, answer = threading.Event(), text_answer("Hel", "lø", usage=(5, 2))
    with MockServer() as server:
        server.reply(answer[:2], go, answer[2:])
        asked = command(folder, server.url, "mock", "Hi", jspi=jspi)
        with subprocess.Popen(asked, cwd=folder, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.read(3) == b"Hel"
            go.set()
            assert process.stdout.read().decode() == "lø\n(stop)\n"
        body = server.requests[0].json()
    assert body["messages"] == [{"role": "user", "content": "Hi"}]


# What goes wrong, one after the other in one Pyodide. `tell` gives a line to the test.
SCENES = """
import json, time
from fetch_backend import FetchBackend, events
from js import AbortController, setTimeout
from pyodide.ffi import create_once_callable
import svir

request = svir.Request(model, "Hi")

def tell(error):
    text = error.partial.text if error.partial else ""
    print(json.dumps([error.kind, text, error.status, error.retry_after]))

def blocking(stop_after=None, **options):
    stream = svir.Client(url, backend=FetchBackend(), **options).stream(request)
    if stop_after is not None:
        setTimeout(create_once_callable(stream.close), stop_after)
    try:
        for event in stream:
            pass
    except svir.Error as error:
        tell(error)
    else:
        print(json.dumps(["completed", stream.completion.text, None, None]))

async def asynchronous(stop_after=None):
    stop = AbortController.new()
    if stop_after is not None:
        setTimeout(create_once_callable(stop.abort), stop_after)
    try:
        async for event in events(url, request, key="sk-lab", stop=stop):
            if event.type == "completed":
                print(json.dumps(["completed", event.completion.text, None, None]))
    except svir.Error as error:
        tell(error)

"""


def scenes(folder: Path, server: MockServer, calls: str, **options: Any) -> list[list[Any]]:
    (folder / "scenes.py").write_text(SCENES + calls, encoding="utf-8")
    lines = run(folder, server.url, "mock", "Hi", "scenes.py", **options)
    return [json.loads(line) for line in lines.splitlines()]


def script(server: MockServer) -> list[list[Any]]:
    """Queue one reply for each call of CALLS; what each must tell."""
    hel = text_answer("Hel")[:2]
    busy = {"error": {"message": "busy"}}
    server.reply(text_answer("Hel", "lø"))
    server.reply(busy, status=429, headers={"retry-after": "7"})
    server.reply(hel, 0.2, CUT)
    server.reply(hel, error_event("out of memory"))
    server.reply(hel, STALL)
    server.reply(raw=True, hang=True)
    server.reply(status=307, headers={"location": "/elsewhere"})
    return [
        ["completed", "Hellø", None, None],
        ["rate_limited", "", 429, 7],
        ["disconnected", "Hel", None, None],
        ["server", "Hel", None, None],
        ["cancelled", "Hel", None, None],
        ["cancelled", "", None, None],
        ["protocol", "", 307, None],
    ]


def test_what_goes_wrong(folder: Path) -> None:
    with MockServer() as server:
        told = script(server)
        server.reply(text_answer("Hel")[:2], STALL)
        told.append(["timeout", "Hel", None, None])
        calls = "blocking()\n" * 4 + "blocking(300)\n" * 2
        calls += "blocking()\nblocking(idle_timeout=0.3)\n"
        assert scenes(folder, server, calls) == told
        server.wait_until(lambda: server.open_connections == 0)
        assert [request.path for request in server.requests] == ["/v1/chat/completions"] * 8


def test_what_goes_wrong_without_blocking(folder: Path) -> None:
    with MockServer() as server:
        told = script(server)
        calls = "await asynchronous()\n" * 4 + "await asynchronous(300)\n" * 2
        calls += "await asynchronous()\n"
        assert scenes(folder, server, calls, jspi=False) == told
        assert server.requests[0].headers["authorization"] == "Bearer sk-lab"


# -- The page -------------------------------------------------------------------------------------

CORS = {"access-control-allow-origin": "*", "access-control-allow-headers": "*"}


class Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    handler = functools.partial(Files, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_in_a_browser(folder: Path) -> None:
    sync_api = pytest.importorskip(
        "playwright.sync_api",
        reason="*** playwright is not installed: Pyodide is NOT TESTED in a browser",
    )
    if CHROMIUM is None:
        pytest.skip("*** there is no chromium: Pyodide is NOT TESTED in a browser")
    go, answer = threading.Event(), text_answer("Hel", "lø")
    queued = [
        Reply(answer[:2], go, answer[2:], headers=CORS),
        Reply(answer[:2], STALL, headers=CORS),
    ]

    def reply(request: MockRequest) -> Reply:
        return Reply(status=204, headers=CORS) if request.method == "OPTIONS" else queued.pop(0)

    with MockServer() as server, served(folder) as url, sync_api.sync_playwright() as playwright:
        server.on_request = reply
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"{url}/?url={server.url}&model=mock")

        def ask_and_see(text: str) -> None:
            page.click("#ask")  # once Pyodide is there
            page.wait_for_function(
                "text => document.getElementById('answer').textContent === text", arg=text
            )

        ask_and_see("Hel")
        go.set()
        page.wait_for_selector("#ask:enabled")
        assert page.text_content("#answer") == "Hellø\n(stop)\n"
        ask_and_see("Hel")
        page.click("#stop")
        page.wait_for_selector("#ask:enabled")
        assert page.text_content("#answer").startswith("Hel\n(cancelled: ")
        server.wait_until(lambda: server.open_connections == 0)
        browser.close()
