"""svir_ext.command: what a person, a script and a bug report get, at a terminal and in a pipe."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Iterator, NamedTuple

import pytest

import svir
import svir_ext
from loopback import ROOT, Peer, full_backlog, read_head
from svir_ext.command import certificate, chat, main, options, probe, wire
from svir_ext.testing import CUT, STALL, MockServer, Reply, error_event, sse, text_answer

KEY = "sk-secret-0123456789"
HELLO = text_answer("Hel", "lo", usage=(3, 2))
ESCAPE = "\x1b[31mred\x9b2J\u202egnp\x07"
SHOWN_ESCAPE = r"\x1b[31mred\x9b2J\u202egnp\x07"

# -- Running it -----------------------------------------------------------------------------------


class Done(NamedTuple):
    code: int
    out: str
    err: str


def environment(**more: str) -> dict[str, str]:
    """This process's without what the command reads, and with the sources to be found."""
    told = ("OPENAI_", "NO_COLOR", "TERM", "PYTHONIOENCODING", "PYTHONUTF8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(told)}
    for name in [name for name in kept if name.lower().endswith("_proxy")]:
        del kept[name]
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **more}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-X", "dev", "-W", "error", "-m", "svir_ext", *arguments]


def svir_command(*arguments: str, stdin: bytes = b"", **variables: str) -> Done:
    done = subprocess.run(
        command(*arguments),
        input=stdin,
        capture_output=True,
        timeout=60,
        env=environment(PYTHONIOENCODING="utf-8", **variables),
    )
    return Done(done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8"))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Callable[..., Done]:
    """Run the command in this process: quicker, and with the same main()."""
    for name in list(os.environ):
        if name.startswith("OPENAI_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)

    def run(*arguments: str, stdin: bytes = b"", **variables: str) -> Done:
        with monkeypatch.context() as patch:
            patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8"))
            for name, value in variables.items():
                patch.setenv(name, value)
            try:
                code = main(arguments)
            except SystemExit as ended:
                code = int(ended.code or 0)
        return Done(code, *capsys.readouterr())

    return run


@pytest.fixture
def server() -> Iterator[MockServer]:
    with MockServer() as server:
        server.default(HELLO)
        yield server


# -- ask ------------------------------------------------------------------------------------------


def test_ask_prints_the_answer_and_nothing_else(server: MockServer, here: Any) -> None:
    assert here("ask", "--base-url", server.url, "Say", "hello") == (0, "Hello\n", "")
    (asked,) = [request.json() for request in server.requests if not request.lists_models]
    assert asked["messages"] == [{"role": "user", "content": "Say hello"}]
    assert asked["model"] == "mock"
    assert "tools" not in asked


def test_the_prompt_is_words_and_stdin(server: MockServer, here: Any) -> None:
    text = "\ufeffa = 1\r\né\n".encode()
    assert here("ask", "Explain:", stdin=text, OPENAI_BASE_URL=server.url).code == 0
    content = server.requests[-1].json()["messages"][0]["content"]
    assert content == "Explain:\n\na = 1\r\né\n"
    done = here("ask", stdin=b"\xff", OPENAI_BASE_URL=server.url)
    assert done == (2, "", "svir: stdin is not UTF-8 (byte 0)\n")
    done = here("ask", OPENAI_BASE_URL=server.url)
    assert done.code == 2
    assert "nothing to ask" in done.err


def test_what_is_asked(server: MockServer, here: Any, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("é", encoding="utf-8")
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    options = (
        "--model m --system S --max-tokens 5 --temperature 0.5 --top-p 0.9 --stop X --seed 7"
        " --reasoning-effort low --header x-team=search --query v=1"
    ).split()
    files = ["--file", str(tmp_path / "a.txt"), "--image", str(tmp_path / "a.png")]
    more = ["--extra", '{"min_p": 0.1}']
    done = here("ask", "hi", *options, *files, *more, "--base-url", server.url)
    assert done == (0, "Hello\n", "")
    (request,) = server.requests  # a model was named: none were listed
    body = request.json()
    assert request.path == "/v1/chat/completions?v=1"
    assert request.headers["x-team"] == "search"
    system, user = body["messages"]
    assert system == {"role": "system", "content": "S"}
    kinds = [part["type"] for part in user["content"]]
    assert kinds[-1] == "image_url"
    assert "é" in json.dumps(user, ensure_ascii=False)
    wanted = {
        "model": "m", "max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "stop": ["X"], "seed": 7,
        "reasoning_effort": "low", "min_p": 0.1,
    }  # fmt: skip
    assert wanted.items() <= body.items()


def test_ask_as_json(server: MockServer, here: Any) -> None:
    server.reply(text_answer("é\x1b[0m", usage=(3, 2)))
    done = here("ask", "hi", "--json", "--base-url", server.url)
    assert done.code == 0
    assert done.out.isascii()
    assert "\x1b" not in done.out
    completion = svir.Completion.from_dict(json.loads(done.out))
    assert completion.text == "é\x1b[0m"
    assert completion.finish_reason == "stop"
    server.reply(text_answer("Hal", CUT))
    done = here("ask", "hi", "--json", "--base-url", server.url)
    told = json.loads(done.out)
    assert done.code == 4
    assert told["partial"]["text"] == "Hal"
    assert told["error"]["kind"] == "truncated"
    assert told["error"]["in_stream"] is True


# What the server does, the exit code, and a part of what is said on stderr.
ENDS: dict[str, tuple[Any, int, str, str]] = {
    "whole": (Reply(HELLO), 0, "Hello\n", ""),
    "cut": (Reply(text_answer("Hal", CUT)), 4, "Hal\n", "the answer is partial"),
    "nothing came": (Reply(CUT), 3, "", "sent nothing"),
    "refused": (Reply({"error": {"message": f"no {KEY}"}}, status=400), 3, "", "no [withheld]"),
    "no key": (Reply({"error": {"message": "who?"}}, status=401), 3, "", "the server says: who?"),
    "busy": (Reply("later", status=503), 3, "", "503"),
    "length": (Reply(text_answer("Hel", finish_reason="length")), 5, "Hel\n", "limit of tokens"),
    "filter": (Reply(text_answer("H", finish_reason="content_filter")), 6, "H\n", "filter"),
    "overflow": (
        Reply({"error": {"message": "the context length is 5"}}, status=400), 3, "", "longer than",
    ),
    "error inside": (Reply(text_answer("H")[:2], error_event("x")), 4, "H\n", "server says: x"),
    "unknown input": (Reply(text_answer("H", b"data: {x\n\n")), 4, "H\n", "is not JSON"),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_the_exit_code_tells_how_it_ended(
    name: str, server: MockServer, here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply, code, out, said = ENDS[name]
    server.on_request = lambda request: None if request.lists_models else reply
    done = here("ask", "hi", "--base-url", server.url, "--key-env", "K", K=KEY)
    assert (done.code, done.out) == (code, out)
    assert said in done.err
    assert KEY not in done.err
    assert bool(said) == bool(done.err)


def test_no_connection(here: Any) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        done = here("models", f"http://127.0.0.1:{held.getsockname()[1]}")
    assert done.code == 3
    assert done.out == ""
    assert "cannot connect" in done.err


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.mark.parametrize(
    ("answer", "code"), [('{"n": 1}', 0), ("one", 7), ('{"n": "x"}', 7), ('{"n": NaN}', 7)]
)
def test_a_schema(answer: str, code: int, server: MockServer, here: Any, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA), encoding="utf-8")
    server.reply(text_answer(answer))
    where = ["--base-url", server.url, "--schema", str(tmp_path / "schema.json")]
    done = here("ask", "hi", *where, "--strict-schema")
    assert done.code == code
    # What does not fit is not lost, and no program takes it for the answer.
    assert (done.out, answer in done.err) == ((f"{answer}\n", False) if code == 0 else ("", True))
    asked = server.requests[-1].json()["response_format"]["json_schema"]
    assert asked["schema"] == SCHEMA
    assert asked["strict"] is True


def test_without_jsonschema_an_answer_is_json_at_least(
    server: MockServer, here: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA), encoding="utf-8")
    for answer, code in (('{"n": "x"}', 0), ("{", 7)):
        server.reply(text_answer(answer))
        where = ["--base-url", server.url, "--schema", str(tmp_path / "schema.json")]
        assert here("ask", "hi", *where).code == code


def test_reasoning_and_numbers_go_to_stderr(server: MockServer, here: Any) -> None:
    server.default(text_answer("42", reasoning="hm", usage=(3, 1)))
    done = here("ask", "hi", "--base-url", server.url)
    assert done == (0, "42\n", "")
    done = here("ask", "hi", "--base-url", server.url, "--reasoning", "--stats")
    assert done.out == "42\n"
    assert re.match(r"hm\n\n1 token, .*first after 0\.\d\d s\n\Z", done.err)


def test_models(server: MockServer, here: Any) -> None:
    server.model_list([{"id": "qwen", "name": "Qwen \x1b[1m"}, {"id": "bge-m3"}])
    done = here("models", server.url)
    assert done == (0, "qwen  Qwen \\x1b[1m\nbge-m3\n", "")
    assert here("models", server.url, "--chat", "--json").out.count('"id"') == 1
    server.model_list([])
    assert here("models", server.url) == (0, "", "svir: the server lists no model\n")
    assert here("ask", "hi", "--base-url", server.url).code == 2


# -- Wrong use, keys ------------------------------------------------------------------------------

WRONG: dict[str, tuple[list[str], str]] = {
    "no server": (["ask", "hi"], "OPENAI_BASE_URL"),
    "no scheme": (["models", "localhost:1"], 'try "http://localhost:1"'),
    "plain http": (["models", "http://llm.example"], "allow_http"),
    "twice": (["models", "http://localhost:1", "--base-url", "http://x"], "once"),
    "key file": (["models", "http://localhost:1", "--key-file", "/no/key"], "/no/key"),
    "key variable": (["models", "http://localhost:1", "--key-env", "NO_KEY"], "NO_KEY"),
    "two keys": (["models", "http://localhost:1", "--key-env", "A", "--key-file", "b"], "both"),
    "a key": (["models", "http://localhost:1", "--api-key", KEY], "--key-file"),
    "also a key": (["models", "http://localhost:1", f"--key={KEY}"], "--key-file"),
    "no pair": (["models", "http://localhost:1", "--header", KEY], "NAME=VALUE"),
    "no object": (["ask", "hi", "--extra", "[1]"], "JSON object"),
    "no JSON": (["ask", "hi", "--extra", "{"], "not JSON"),
    "no such name": (["ask", "hi", "--accept", "all"], "end-without-done"),
    "no such schema": (
        ["ask", "hi", "--base-url", "http://localhost:1", "--schema", "/no.json"],
        "/no.json",
    ),
    "no image": (
        ["ask", "hi", "--base-url", "http://localhost:1", "--model", "m", "--image", "/no.png"],
        "/no.png",
    ),
    "a negative limit": (["models", "http://localhost:1", "--idle-timeout", "-1"], "idle_timeout"),
    "a password": (["models", f"http://user:{KEY}@localhost"], "must not carry"),
    "a bad proxy": (["models", "https://llm.example", "--proxy", f"socks://u:{KEY}@x"], "proxy"),
    "no command": ([], "COMMAND"),
    "no recording": (["replay", "/no/file"], "/no/file"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_use_says_what_to_change(name: str, here: Any) -> None:
    arguments, said = WRONG[name]
    done = here(*arguments)
    assert done.code == 2
    assert done.out == ""
    assert said in done.err
    assert KEY not in done.err


def test_help_is_worth_reading(here: Any) -> None:
    for arguments in ([], ["chat"], ["ask"], ["models"], ["check"], ["replay"]):
        done = here(*arguments, "--help")
        assert done.code == 0
        assert done.err == ""
        assert done.out.isascii()
        for code in (0, 1, 2, 3, 4, 5, 6, 7, 130, 141):
            assert re.search(rf"(?m)^  {code} +\S", done.out)
        assert max(map(len, done.out.splitlines())) <= 100
    assert "other users of the machine can read" in here("ask", "--help").out
    assert here("--version").out == f"svir {svir.__version__}\n"


def sent(server: MockServer) -> str | None:
    return server.requests[-1].headers.get("authorization")


def test_a_key_goes_to_its_server_only(server: MockServer, here: Any, tmp_path: Path) -> None:
    here("models", server.url, OPENAI_API_KEY=KEY)
    assert sent(server) is None  # it is OpenAI's
    here("models", server.url, OPENAI_API_KEY=KEY, OPENAI_BASE_URL="http://127.0.0.1:1/v1")
    assert sent(server) is None  # it is for another port
    for variables in ({"OPENAI_BASE_URL": server.url}, {"OPENAI_BASE_URL": server.url + "/x"}):
        here("models", server.url, OPENAI_API_KEY=KEY, **variables)
        assert sent(server) == f"Bearer {KEY}"
    here("models", server.url, "--key-env", "OPENAI_API_KEY", OPENAI_API_KEY=KEY)
    assert sent(server) == f"Bearer {KEY}"
    (tmp_path / "key").write_text(KEY + "\n", encoding="utf-8")
    here("models", server.url, "--key-file", str(tmp_path / "key"))
    assert sent(server) == f"Bearer {KEY}"
    server.on_request = lambda request: Reply({"error": {"message": "?"}}, status=401)
    done = here("models", server.url, OPENAI_API_KEY=KEY)
    assert "no key was sent: OPENAI_API_KEY is set, but for https://api.openai.com" in done.err


ORIGINS = [
    ("https://A.example/v1", "https://a.example:443/v2", True),
    ("http://a.example", "https://a.example", False),
    ("https://a.example", "https://a.example.evil", False),
    ("https://a.example@evil.example/v1", "https://a.example", False),
    ("https://a.example:8443", "https://a.example", False),
]


@pytest.mark.parametrize(("one", "other", "same"), ORIGINS)
def test_the_same_server(one: str, other: str, same: bool) -> None:
    assert (options._origin(one) == options._origin(other)) is same


# -- Alone ----------------------------------------------------------------------------------------

# Found late, if at all: a command that fails should fail quickly.
HEAVY = ["ssl", "http.client", "asyncio", "subprocess", "dataclasses", "inspect", "tempfile"]


def test_it_works_with_svir_py_and_nothing_else(server: MockServer, tmp_path: Path) -> None:
    shutil.copy(str(svir.__file__), tmp_path / "svir.py")
    package = str(Path(svir_ext.__path__[0]))
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(package, str(tmp_path / "svir_ext"), ignore=ignored)
    code = (
        "import sys\nsys.path.insert(0, sys.argv[1])\nfrom svir_ext.command import main\n"
        f"assert not [name for name in {HEAVY!r} if name in sys.modules]\n"
        "sys.exit(max(main([name, sys.argv[2]]) for name in ('models', 'check')))\n"
    )
    flags = ["-I", "-S", "-X", "dev", "-W", "error"]
    done = subprocess.run(
        [sys.executable, *flags, "-c", code, str(tmp_path), server.url],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_installed_command_is_main() -> None:
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    (place,) = re.findall(r'(?m)^svir = "(.*)"$', project)
    module, _, name = place.partition(":")
    assert getattr(importlib.import_module(module), name) is main


# -- Consoles, pipes ------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["ascii", "cp437", "utf-8", "latin-1:strict"])
def test_every_console_can_show_it(encoding: str, server: MockServer) -> None:
    text = "caf\u00e9 \u6f22 \U0001f600"
    server.default(text_answer(text))
    done = subprocess.run(
        command("ask", "hi", "--base-url", server.url),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        env=environment(PYTHONIOENCODING=encoding),
    )
    shown = text.encode(encoding.partition(":")[0], "backslashreplace")
    line_end = os.linesep.encode()
    assert (done.returncode, done.stdout, done.stderr) == (0, shown + line_end, b"")


def test_a_pipe_gets_the_answer_as_it_came(server: MockServer) -> None:
    server.default(text_answer(ESCAPE))
    assert svir_command("ask", "hi", "--base-url", server.url).out == ESCAPE + "\n"


def test_words_are_always_made_visible(server: MockServer) -> None:
    server.default({"error": {"message": ESCAPE}}, status=400)
    done = svir_command("ask", "hi", "--base-url", server.url)
    assert SHOWN_ESCAPE in done.err
    assert "\x1b" not in done.err


@pytest.mark.parametrize("arguments", [["ask", "hi"], ["models"], ["check"]])
def test_nobody_reads_stdout(arguments: list[str], server: MockServer) -> None:
    server.default(text_answer(*["x" * 4096] * 64))
    server.model_list(["m" * 4096] * 64)
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            command(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=60,
            env=environment(OPENAI_BASE_URL=server.url),
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="*** no /dev/full on this system")
def test_a_full_disk_is_told(server: MockServer) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command("ask", "hi", "--base-url", server.url),
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
            env=environment(),
        )
    assert done.returncode == 1
    assert b"the output cannot be written: No space" in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="*** a shell closes the streams")
def test_closed_streams(server: MockServer) -> None:
    line = f"'{sys.executable}' -m svir_ext ask hi --base-url {server.url} <&- >&- 2>&-"
    assert subprocess.run(line, shell=True, env=environment(), timeout=60).returncode == 0
    line = f"'{sys.executable}' -m svir_ext chat --base-url {server.url} <&-"
    done = subprocess.run(line, shell=True, env=environment(), timeout=60, capture_output=True)
    assert done.returncode == 2
    assert b"no stdin" in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="*** SIGINT is sent to a process only on POSIX")
def test_ctrl_c_keeps_what_had_come(server: MockServer) -> None:
    server.default(text_answer("Hal", STALL))
    process = subprocess.Popen(
        command("ask", "hi", "--json", "--base-url", server.url),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    with process:
        try:
            server.wait_until(lambda: len(server.requests) == 2, 30)
            time.sleep(0.3)  # until the first piece is read: nothing tells that from outside
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130, err
    told = json.loads(out)
    assert told["error"]["kind"] == "cancelled"
    assert told["partial"]["text"] == "Hal"
    assert b"the answer is partial" in err


# -- chat, at a terminal --------------------------------------------------------------------------

# PyPy's readline is a program of its own, which draws lines anew; a dumb terminal is left alone.
TERM = "dumb" if sys.implementation.name == "pypy" else "xterm"
needs_terminals = pytest.mark.skipif(
    not hasattr(os, "openpty"), reason="*** no pseudo-terminals on this system"
)
PROMPT = "> "


class Terminal:
    """The command on a pseudo-terminal; it is killed when the block ends."""

    def __init__(self, *arguments: str, **variables: str) -> None:
        self.command, self.variables = command(*arguments), {"TERM": TERM, **variables}
        self.seen = ""

    def __enter__(self) -> Terminal:
        main_end, terminal = os.openpty()
        self.fd = main_end
        self.process = subprocess.Popen(
            self.command,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env=environment(PYTHONIOENCODING="utf-8", **self.variables),
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(terminal)
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait(10)
        os.close(self.fd)

    def read(self, word: str) -> str:
        """What comes up to this word; fails after a while without it."""
        end, got = time.monotonic() + 20, ""
        while word not in got:
            ready = select.select([self.fd], [], [], max(0.0, end - time.monotonic()))[0]
            assert ready, f"no {word!r} in {got!r}, after {self.seen!r}"
            got += os.read(self.fd, 65536).decode("utf-8")
        self.seen += got
        return got

    def type(self, text: str, then: str = "\n" + PROMPT) -> str:
        """Type it, read up to `then`; line breaks as a program writes them."""
        os.write(self.fd, text.encode("utf-8"))
        return self.read(then.replace("\n", "\r\n")).replace("\r\n", "\n")

    def interrupt(self, then: str = "\n" + PROMPT) -> str:
        """Type Ctrl-C once it waits: readline misses a signal between its prompt and its wait."""
        self.settle()
        return self.type("\x03", then)

    def settle(self) -> None:
        """Wait until it sleeps, where the system tells; else a moment."""
        stat, asleep = Path(f"/proc/{self.process.pid}/stat"), 0
        for _ in range(500):
            time.sleep(0.01)
            try:
                state = stat.read_text("utf-8").rpartition(")")[2].split()[0]
            except OSError:
                state = "S"
            asleep = asleep + 1 if state == "S" else 0
            if asleep == 20:
                return
        raise AssertionError("it does not come to rest")

    def end(self, text: str = "\x04") -> int:
        os.write(self.fd, text.encode("utf-8"))
        with contextlib.suppress(OSError):  # EIO: nobody is at the other end
            self.read("\0")
        return self.process.wait(30)


def _take_terminal() -> None:
    """So that Ctrl-C reaches the command."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def turns(server: MockServer) -> list[list[str]]:
    """What each request asked, the texts of its messages."""
    asked = [request.json() for request in server.requests if not request.lists_models]
    return [[message["content"] for message in each["messages"]] for each in asked]


@needs_terminals
def test_a_conversation(server: MockServer) -> None:
    with Terminal("chat", "--base-url", server.url) as seen:
        assert f"mock at {server.url}/v1" in seen.read(PROMPT)
        shown = seen.type("hi\n")
        assert "\nHello\n" in shown
        assert "[2 tokens, " in shown
        assert "/image PATH" in seen.type("/help\n")
        assert "there is no /usr" in seen.type("/usr\n")
        seen.type("//usr\n")
        seen.type('"""\n', ". ")
        seen.type("a\n", ". ")
        seen.type("b\n", ". ")
        seen.type('"""\n')
        assert seen.end() == 0
    assert turns(server) == [
        ["hi"],
        ["hi", "Hello", "/usr"],
        ["hi", "Hello", "/usr", "Hello", "a\nb"],
    ]


@needs_terminals
def test_ctrl_c_stops_the_answer_and_keeps_the_chat(server: MockServer, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    server.reply(text_answer("Hal", STALL))
    with Terminal("chat", "--base-url", server.url, "--history", str(path)) as seen:
        seen.read(PROMPT)
        seen.type("hi\n", "Hal")
        assert "stopped: the answer is partial" in seen.type("\x03")
        seen.type("go on\n")
        assert "once more" in seen.interrupt()
        seen.settle()
        assert seen.end("\x03") == 130
    assert turns(server) == [["hi"], ["hi", "Hal", "go on"]]
    kept = json.loads(path.read_text("utf-8"))["messages"]
    assert [each.get("partial") for each in kept] == [None, True, None, None]
    assert kept[1]["text"] == "Hal"


@needs_terminals
def test_ctrl_c_before_anything_came(server: MockServer) -> None:
    server.reply(STALL)
    with Terminal("chat", "--base-url", server.url, "--model", "m") as seen:
        seen.read(PROMPT)
        os.write(seen.fd, b"hi\n")
        server.wait_until(lambda: server.requests, 20)
        said = seen.type("\x03")
        assert "stopped before anything came" in said
        assert "/retry asks it again" in said
        assert "Hello" in seen.type("/retry\n")
        assert seen.end() == 0
    assert turns(server) == [["hi"], ["hi"]]


@needs_terminals
def test_a_hostile_answer_does_not_steer_the_terminal(server: MockServer) -> None:
    server.default(text_answer("\x1b", "[31mred\x9b2J", reasoning="\x1b]0;title\x07"))
    for arguments in (["chat"], ["ask", "--reasoning", "hi"]):
        with Terminal(*arguments, "--base-url", server.url, NO_COLOR="1") as seen:
            if arguments == ["chat"]:
                seen.read(PROMPT)
                seen.type("hi\n")
                seen.end()
            else:
                seen.read("2J")
        # What readline itself writes is all there may be.
        own = seen.seen.replace("\x1b[?2004h", "").replace("\x1b[?2004l", "")
        assert "\x1b" not in own
        assert "\x9b" not in own
        assert "\x07" not in own
        assert "\\x1b[31mred\\x9b2J" in own
        assert "\\x1b]0;title\\x07" in own


@needs_terminals
@pytest.mark.parametrize(
    ("variables", "dimmed"),
    [({}, TERM != "dumb"), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_reasoning_is_dimmed(variables: dict[str, str], dimmed: bool, server: MockServer) -> None:
    server.default(text_answer("42", reasoning="hm"))
    with Terminal("chat", "--base-url", server.url, **variables) as seen:
        seen.read(PROMPT)
        shown = seen.type("hi\n")
        assert ("\x1b[2mhm\x1b[0m\n\n42" if dimmed else "hm\n\n42") in shown
        assert ("\x1b[2m" in shown) is dimmed
        assert seen.end() == 0


# -- chat, its lines and its file -----------------------------------------------------------------


def lines(*typed: str) -> bytes:
    return "".join(f"{line}\n" for line in typed).encode("utf-8")


def test_files_and_pictures_by_path(server: MockServer, here: Any, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("contents", encoding="utf-8")
    (tmp_path / "a b.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    typed = lines(
        f"/file {tmp_path / 'a.txt'}", f'/image "{tmp_path / "a b.png"}"', "/image /no/such",
        "look", "and now?",
    )  # fmt: skip
    done = here("chat", "--base-url", server.url, stdin=typed)
    assert done.code == 0
    assert "/no/such is not a file" in done.err
    first, second = (request.json()["messages"] for request in server.requests[1:])
    told = json.dumps(first)
    assert "look" in told
    assert "contents" in told
    assert "data:image/png;base64" in told
    assert second[0] == first[0]
    assert second[2]["content"] == "and now?"


def test_a_file_that_cannot_be_sent(server: MockServer, here: Any, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"\xff\xfe")
    typed = lines(f"/file {tmp_path / 'a.bin'}", "look", "/drop", "look")
    done = here("chat", "--base-url", server.url, stdin=typed)
    assert "a.bin" in done.err
    assert "the question is not kept" in done.err
    assert turns(server) == [["look"]]
    assert done.code == 0


def test_models_system_retry_and_clear(server: MockServer, here: Any) -> None:
    typed = lines("hi", "/system Short.", "/model other", "/retry", "/clear", "hey", "/quit")
    done = here("chat", "--system", "Long.", stdin=typed, OPENAI_BASE_URL=server.url)
    assert done.code == 0
    asked = [request.json() for request in server.requests[1:]]
    assert [each["model"] for each in asked] == ["mock", "other", "other"]
    assert turns(server) == [["Long.", "hi"], ["Short.", "hi"], ["Short.", "hey"]]


def test_a_failed_question_is_not_kept(server: MockServer, here: Any) -> None:
    server.reply(status=503)
    done = here("chat", "--base-url", server.url, stdin=lines("one", "two", "/retry", "/models"))
    assert turns(server) == [["one"], ["two"], ["two"]]
    assert "/retry asks it again" in done.err
    assert done.err.count("mock") == 2
    server.reply(status=503)
    assert here("chat", "--base-url", server.url, stdin=lines("one")).code == 3


def test_the_history_is_a_file(server: MockServer, here: Any, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    given = ["--base-url", server.url, "--history", str(path), "--key-env", "K"]
    here("chat", *given, "--system", "S", stdin=lines("hi"), K=KEY)
    if os.name != "nt":
        assert path.stat().st_mode & 0o777 == 0o600
    here("chat", *given, stdin=lines("again"), K=KEY)
    assert turns(server) == [["S", "hi"], ["S", "hi", "Hello", "again"]]
    text = path.read_text("utf-8")
    kept = json.loads(text)
    assert kept["model"] == "mock"
    assert kept["system"] == "S"
    messages = [svir.message_from_dict(each) for each in kept["messages"]]
    assert messages[:2] == [svir.User("hi"), svir.Assistant("Hello")]
    assert len(messages) == 4
    assert KEY not in text
    assert server.url not in text
    assert [each.name for each in tmp_path.iterdir()] == ["chat.json"]


@pytest.mark.parametrize("text", ["{", "[]", '{"messages": [{"role": "?"}]}', '{"messages": 1}'])
def test_a_file_that_is_no_history_stays(text: str, here: Any, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_text(text, encoding="utf-8")
    done = here("chat", "--base-url", "http://localhost:1", "--history", str(path))
    assert done.code == 2
    assert str(path) in done.err
    assert path.read_text("utf-8") == text


def test_a_history_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "chat.json"
    history = chat.History(str(path))
    history.messages = [svir.User("one")]
    history.save(str(path))
    before = path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    history.messages = [svir.User("two")]
    with pytest.raises(OSError, match="No space"):
        history.save(str(path))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_history_that_cannot_be_written(server: MockServer, here: Any, tmp_path: Path) -> None:
    typed = lines("hi", f"/save {tmp_path}", "/save")
    done = here("chat", "--base-url", server.url, stdin=typed)
    assert done.code == 0
    assert f"cannot write {tmp_path}" in done.err
    assert "/save FILE" in done.err


# -- check ----------------------------------------------------------------------------------------


def steps(done: Done) -> dict[str, str]:
    """The last state of each step."""
    found = re.findall(r"(?m)^(\w+) +(ok|bad|note|-) ", done.out)
    return {name: state for name, state in found if name not in ("change", "client")}


def lines_of(done: Done, name: str) -> str:
    """What is said of a step, or under "change" and "client"."""
    return "\n".join(re.findall(rf"(?m)^{name} .*(?:\n +.*)*", done.out))


WELL = {
    "url": "ok", "proxy": "-", "address": "ok", "tls": "-", "http": "ok", "models": "ok",
    "key": "-", "stream": "ok", "reading": "ok",
}  # fmt: skip


def test_all_is_well(server: MockServer, here: Any) -> None:
    server.default(text_answer("rea", 0.1, "dy", usage=(5, 2)))
    done = here("check", server.url)
    assert (done.code, done.err, steps(done)) == (0, "", WELL)
    assert re.search(r"2 tokens, \d+\.\d tokens/s, first after 0\.\d\d s", done.out)
    assert f'svir.Client("{server.url}/v1")' in lines_of(done, "client")
    assert lines_of(done, "change").split() == ["change", "-", "nothing"]
    asked = server.requests[-1].json()
    assert asked["messages"][0]["content"] == "Answer with one word: ready"


# What the server's stream is like, what is said of it, and what the client needs.
CHUNK = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "a"}}]}
STREAMS: dict[str, tuple[Reply, list[str], str]] = {
    "no [DONE]": (
        Reply(HELLO[:-1]),
        [
            'bad  strict refuses it; accept={"end-without-done"} reads it',
            "takes the finish reason for the end, without [DONE]",
            "Known to need it: dialects.IK_LLAMA_CPP, dialects.PERPLEXITY, dialects.TGI\n",
            "ends without [DONE]",
            "quirk end-without-done",
        ],
        'accept={"end-without-done"}',
    ),
    "no finish": (
        Reply(text_answer("a", finish_reason=None)),
        ["quirk done-without-finish", "--accept done-without-finish"],
        'accept={"done-without-finish"}',
    ),
    "no content type": (
        Reply(HELLO, headers={"content-type": None}),
        ["no content type", "dialects.AZURE_API_MANAGEMENT"],
        'accept={"any-content-type"}',
    ),
    "two of them": (
        Reply(HELLO[:-1], content_type="text/plain"),
        ["text/plain", "--accept any-content-type --accept end-without-done"],
        'accept={"any-content-type", "end-without-done"}',
    ),
    "not JSON": (
        Reply(text_answer("a", b"data: {x\n\n", "b")),
        ["strict refuses it; strict=False reads it", "quirk unparseable-data", "--lenient"],
        "strict=False",
    ),
    "as usual": (Reply(HELLO), ["strict reads it", "usage in a chunk of its own"], ""),
    "CRLF": (Reply([each.replace(b"\n", b"\r\n") for each in HELLO]), ["CRLF line ends"], ""),
    "comments": (Reply(b": wait\n\n" * 2, HELLO), ["2 comment lines, as ': wait'"], ""),
    "roles": (Reply(sse(CHUNK) * 2, HELLO[2:]), ["role in 2 of 4 deltas"], ""),
    "reasoning": (
        Reply(text_answer("a", reasoning="hm")), ["reasoning in reasoning_content"], "",
    ),
    "no usage": (Reply(text_answer("a")), ["usage none"], ""),
    "empty data": (Reply(b"data:\n\n", HELLO), ["quirk empty-data: events without data"], ""),
    "until the end": (Reply(HELLO, framing="close"), ["until the connection closes"], ""),
}  # fmt: skip


@pytest.mark.parametrize("name", STREAMS)
def test_what_a_stream_needs(name: str, server: MockServer, here: Any) -> None:
    reply, said, needed = STREAMS[name]
    server.on_request = lambda request: None if request.lists_models else reply
    done = here("check", server.url)
    for words in said:
        assert words in done.out
    client = f'svir.Client("{server.url}/v1"{", " + needed if needed else ""})'
    assert client in lines_of(done, "client")
    assert (done.code == 0) is (steps(done)["reading"] == "ok") is (needed == "")
    # With what it names, the check and `svir ask` are content; so is the client.
    flags = re.findall(r"--accept [a-z-]+|--lenient", lines_of(done, "change"))
    given = " ".join(flags).split()
    again = here("check", server.url, *given)
    assert again.code == 0
    assert "refuses" not in again.out
    assert client in lines_of(again, "client")
    assert here("ask", "hi", "--base-url", server.url, *given).code == 0
    names = {word for word in given if not word.startswith("--")}
    made = svir.Client(server.url, accept=names, strict="--lenient" not in given)
    assert made.complete(svir.Request("m", "hi")).finish_reason == "stop"
    made.close()


def test_every_name_of_accept_is_explained() -> None:
    assert set(wire.TAKES) == svir.ACCEPT
    assert wire.dialects_with(svir.ACCEPT) == []


def test_every_known_quirk_is_explained() -> None:
    page = (ROOT / "docs" / "decoding.md").read_text("utf-8")
    names = re.findall(r"(?m)^- ((?:`[a-z0-9-]+`(?:, )?)+):", page)
    documented = {name for each in names for name in re.findall(r"`(.*?)`", each)}
    assert len(documented) > 30
    assert documented == set(wire.QUIRKS)


def serves(prefix: str) -> Callable[[Any], Reply]:
    """A server whose API is under this path only."""

    def answer(request: Any) -> Reply:
        if request.path == prefix + "/models":
            return Reply({"data": [{"id": "mock"}]})
        if request.path == prefix + "/chat/completions":
            return Reply(HELLO)
        return Reply("<html>no</html>", status=404, content_type="text/html")

    return answer


# Where the API is, what is given, and the client that is named.
PATHS = [
    ("/v1", "/v1/chat/completions", "/v1", 0),
    ("/v1", "/v1/models", "/v1", 0),
    ("/v1", "/", "/v1", 0),
    ("/v1", "/api/chat", "/v1", 2),
    ("/v1", "/api/generate/", "/v1", 2),
    ("/v1", "/v1/completions", "/v1", 2),
    ("/v1", "/v1/messages", "/v1", 2),
    ("/v1", "/ui", "/v1", 3),
    ("/openai/v1", "", "/openai/v1", 3),
    ("/api/v1", "/api/v2", "/api/v1", 3),
    ("", "/v1", '", exact_url=True', 3),
]


@pytest.mark.parametrize(("there", "given", "client", "code"), PATHS)
def test_a_wrong_path_is_found_out(
    there: str, given: str, client: str, code: int, server: MockServer, here: Any
) -> None:
    server.on_request = serves(there)
    done = here("check", server.url + given)
    assert done.code == code
    assert steps(done)["reading"] == "ok"
    wanted = client if '"' in client else client + '"'
    assert f'svir.Client("{server.url}{wanted})' in lines_of(done, "client")
    if code:  # the same form in both
        place = wanted.partition('"')[0]
        assert re.search(
            rf"the base URL is {server.url}{place}(, with exact_url=True \(here --exact-url\))?\n",
            lines_of(done, "change") + "\n",
        )
    assert ("the base URL is" in done.out) is (code != 0 or "chat" in given or "models" in given)


def test_a_redirect_is_told_and_not_followed(server: MockServer, here: Any) -> None:
    place = f"https://u:pw@llm.example/v1/models?key={KEY}"
    server.on_request = lambda request: Reply(status=308, headers={"location": place})
    done = here("check", server.url, "--key-env", "K", K=KEY)
    assert done.code == 3
    assert "give https://llm.example/v1 as the base URL" in done.out
    assert KEY not in done.out
    assert "pw" not in done.out


def test_no_such_host_and_no_such_port(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        monkeypatch.setattr(options, "USUAL_PORTS", {})
        monkeypatch.setattr(probe, "USUAL_PORTS", {})
        done = here("check", f"http://127.0.0.1:{port}")
    assert done.code == 3
    assert steps(done)["address"] == "bad"
    assert f"nothing listens on port {port}" in done.out
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    done = here("check", "https://llm.example", HTTPS_PROXY=f"http://u:{KEY}@proxy.example:3128")
    assert done.code == 3
    assert "the name llm.example has no address" in done.out
    assert "--proxy-env HTTPS_PROXY" in lines_of(done, "change")
    assert KEY not in done.out


def test_a_server_on_a_usual_port_is_named(
    server: MockServer, here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = int(server.url.rpartition(":")[2])
    monkeypatch.setattr(probe, "USUAL_PORTS", {port: "LM Studio"})
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        done = here("check", f"http://127.0.0.1:{held.getsockname()[1]}")
    assert f"a server answers at {server.url}" in lines_of(done, "change")
    assert list(probe.other_ports(probe.split(f"http://10.0.0.1:{port + 1}/v1"))) == []


def test_a_port_that_speaks_something_else(here: Any) -> None:
    with Peer(lambda conn: conn.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")) as peer:
        done = here("check", peer.url)
    assert done.code == 3
    assert "does not answer as an HTTP server" in lines_of(done, "change")


@pytest.mark.skipif(
    sys.platform != "linux", reason="*** only Linux leaves a full queue unanswered"
)
def test_a_port_that_does_not_answer(here: Any) -> None:
    with full_backlog() as url:
        done = here("check", url, "--connect-timeout", "0.2")
    assert done.code == 3
    assert "no answer" in lines_of(done, "address")
    assert "firewall" in lines_of(done, "change")


def test_http_and_https_mixed_up(server: MockServer, here: Any, tls: Any) -> None:
    # The peer ends a connection that does not begin as HTTP, as servers do.
    with Peer(lambda conn: plain_http(conn)) as peer:
        done = here("check", peer.tls_url)
    assert done.code == 3
    assert steps(done)["tls"] == "bad"
    assert f"speaks plain http: {peer.url}" in lines_of(done, "change")
    with MockServer(tls=tls.server()) as secure:
        url = secure.url.replace("https:", "http:")
        done = here("check", url)
    assert done.code == 3
    assert f"speaks TLS: {secure.url}" in lines_of(done, "change")


def plain_http(conn: Any) -> None:
    if conn.recv(1, socket.MSG_PEEK).isalpha():
        read_head(conn)
        conn.sendall(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")


# The certificate, whether its root is trusted, a part of the reason and of what to change.
CERTIFICATES = [
    ("localhost", False, "issuer certificate", "trusts the issuer CN=svir test root"),
    ("expired", True, "expired", "ran out on 2020-01-02"),
    ("elsewhere", True, "mismatch", "is for elsewhere.example"),
]


@pytest.mark.parametrize(("name", "trusts", "why", "change"), CERTIFICATES)
def test_a_certificate_that_is_not_accepted(
    name: str, trusts: bool, why: str, change: str, here: Any, tls: Any
) -> None:
    with MockServer(tls=tls.server(name)) as server:
        trust = ["--cafile", tls.cafile] if trusts else []
        done = here("check", server.url, *trust, "--key-env", "K", K=KEY)
        assert not server.requests  # the key went nowhere
    said = lines_of(done, "tls")
    assert done.code == 3
    assert why in said
    assert change in lines_of(done, "change")
    assert f"certificate of CN={name}, from CN=svir test root" in said
    assert "trusted: " in said


def test_a_certificate_that_is_accepted(here: Any, tls: Any) -> None:
    with MockServer(tls=tls.server()) as server:
        server.default(HELLO)
        done = here("check", server.url, "--cafile", tls.cafile)
    assert done.code == 0
    assert steps(done) == {**WELL, "tls": "ok"}
    said = lines_of(done, "tls")
    assert "TLSv1." in said
    assert "ends 2126-01-01" in said
    assert tls.cafile in said
    assert "for localhost, 127.0.0.1, ::1" in said


def test_what_is_no_certificate() -> None:
    for data in (b"", b"\x30", b"\x30\x05", b"\x30\x03\x30\x01\x00", b"\x30\x82", bytes(64)):
        with pytest.raises(ValueError, match="not a certificate"):
            certificate.read(data)


def guarded(words: str, *, list_too: bool = True) -> Callable[[Any], Reply | None]:
    """A server that wants the key."""

    def answer(request: Any) -> Reply | None:
        if request.headers.get("authorization") == f"Bearer {KEY}":
            return None if request.lists_models else Reply(HELLO)
        if request.lists_models and not list_too:
            return None
        return Reply({"error": {"message": words}}, status=401)

    return answer


def test_the_key(server: MockServer, here: Any) -> None:
    server.on_request = guarded(f"wrong {KEY}x")
    done = here("check", server.url, "--key-env", "K", K=KEY)
    assert done.code == 0
    assert "from K: accepted" in lines_of(done, "key")
    assert "not known" not in lines_of(done, "key")
    assert "api_key=..." in lines_of(done, "client")
    assert KEY not in done.out
    done = here("check", server.url, "--key-env", "K", K=KEY + "x")
    assert done.code == 3
    assert "from K: rejected with 401" in lines_of(done, "key")
    assert KEY not in done.out
    assert "the key from K" in lines_of(done, "change")
    assert "--key-file or --key-env, in a program api_key=" in lines_of(done, "change")
    done = here("check", server.url, OPENAI_API_KEY="sk-other")
    assert done.code == 3
    assert "none was sent, and the server asks" in lines_of(done, "key")
    assert "OPENAI_API_KEY is set, but for" in lines_of(done, "change")
    assert "--key-file or --key-env, in a program api_key=" in lines_of(done, "change")
    # llama.cpp lists its models to everybody.
    server.on_request = guarded("who?", list_too=False)
    done = here("check", server.url)
    assert done.code == 3
    assert steps(done) == {
        **{name: WELL[name] for name in list(WELL)[:6]},
        "key": "bad",
        "stream": "bad",
    }
    done = here("check", server.url, "--key-env", "K", K=KEY)
    assert done.code == 0
    assert "whether it is looked at is not known" in lines_of(done, "key")


def test_plain_http_to_another_machine(here: Any, server: MockServer, monkeypatch: Any) -> None:
    monkeypatch.setattr("svir._is_loopback", lambda host: host == "localhost")
    server.on_request = guarded("who?", list_too=False)
    done = here("check", server.url, "--key-env", "K", K=KEY)
    assert done.code == 2
    assert steps(done)["url"] == "bad"
    assert "allow_http=True (here --allow-http) permits it" in lines_of(done, "change")
    assert all("authorization" not in request.headers for request in server.requests)
    done = here("check", server.url, "--key-env", "K", "--allow-http", K=KEY)
    assert done.code == 0


def test_models_that_are_not_there(server: MockServer, here: Any) -> None:
    server.model_list(["bge-m3", "qwen3-4b"])
    assert "qwen3-4b is asked" in here("check", server.url).out
    done = here("check", server.url, "--model", "qwen3")
    assert "qwen3 is not among them; near it: qwen3-4b" in lines_of(done, "models")
    assert "qwen3 is not among the listed models; near it: qwen3-4b" in lines_of(done, "change")
    done = here("check", server.url, "--model", "nonsense")
    assert "nonsense is not among the listed models\n" in lines_of(done, "change") + "\n"
    server.model_list([])
    done = here("check", server.url)
    assert done.code == 3
    assert "load a model" in lines_of(done, "change")
    server.on_request = lambda request: (
        Reply("no", status=404) if request.lists_models else Reply(HELLO)
    )
    assert here("check", server.url).code == 3
    done = here("check", server.url, "--model", "m")
    assert done.code == 0
    assert "no list; m is asked" in done.out


# What goes wrong with the answer: the exit code, and what is said.
FAILURES: dict[str, tuple[Reply, int, str]] = {
    "busy": (Reply({"error": {"message": "loading"}}, status=503), 3, "the server says: loading"),
    "no model": (Reply({"error": {"message": "?"}}, status=404), 3, "is the model's name right"),
    "inside": (Reply(error_event(f"broken {KEY}")), 3, "broken [withheld]"),
    "cut": (Reply(text_answer("a", CUT)), 4, "did not come to its end"),
    "unreadable": (
        Reply(text_answer("a", finish_reason="perhaps")), 4, "no setting of svir reads this",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILURES)
def test_an_answer_that_fails(name: str, server: MockServer, here: Any) -> None:
    reply, code, said = FAILURES[name]
    server.on_request = lambda request: None if request.lists_models else reply
    done = here("check", server.url, "--key-env", "K", K=KEY)
    assert done.code == code
    assert said in done.out
    assert KEY not in done.out
    assert not lines_of(done, "client")  # nothing reads it: no client to name


PAGE = f"<!doctype html><html><head><title id=a>\nRouter &amp;\n login {KEY}</title></head></html>"
# What a browser is given at both places: the answer, the lines of the steps.
PAGES: dict[str, tuple[Reply, str]] = {
    "a title": (
        Reply(PAGE, content_type="Text/HTML; charset=utf-8"),
        "its title: Router & login [withheld]\n",
    ),
    "no title": (Reply("<p>hi", content_type="text/html"), ""),
    "a title with the key late": (
        Reply(f"<title>{'x' * 90} {KEY}</title>", content_type="text/html"), " [withheld]\n",
    ),
    "an endless title": (Reply("<title>" * 20000, content_type="text/html"), ""),
    "an empty title": (Reply("<title> </title>", content_type="text/html"), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("more", [(), ("--model", "m")])
def test_a_web_page(name: str, more: tuple[str, ...], server: MockServer, here: Any) -> None:
    reply, title = PAGES[name]
    server.on_request = lambda request: reply
    done = here("check", server.url, "--key-env", "K", *more, K=KEY)
    assert done.code == 3
    kind = reply.content_type.partition(";")[0]
    assert f"200, {kind}, and not a list of models" in lines_of(done, "http")
    assert title in lines_of(done, "http") + "\n"
    assert ("title" in done.out) is bool(title)
    (change,) = re.findall(r"(?m)^change .*", done.out)
    assert "a web page answered, not a model server" in change
    assert not re.search(r"(?m)^ +2\.  ", done.out)
    assert not lines_of(done, "client")
    assert "cut off" not in done.out
    assert "Report it" not in done.out
    assert KEY not in done.out
    assert ("a web page, and not an answer" in lines_of(done, "stream")) is bool(more)
    report = json.loads(here("check", server.url, "--json", *more).out)
    assert report["client"] is None


# An answer that is no list, what is said of it, and a part of what to change.
NO_LISTS = [
    (Reply({"status": "ok"}), "200, application/json, and not a list of models", "--model"),
    (Reply(b"x", headers={"content-type": None}), "200, no content type, and not", "--model"),
    (Reply(b"{", CUT), "200, the list of models was cut short", "did not come to its end"),
]


@pytest.mark.parametrize(("reply", "said", "change"), NO_LISTS)
def test_what_is_no_list(
    reply: Reply, said: str, change: str, server: MockServer, here: Any
) -> None:
    server.on_request = lambda request: reply
    done = here("check", server.url)
    assert done.code == 3
    assert said in lines_of(done, "http")
    assert change in lines_of(done, "change")
    assert "web page" not in done.out


def test_an_event_stream_that_says_it_is_html(server: MockServer, here: Any) -> None:
    server.default(HELLO, content_type="text/html")
    done = here("check", server.url)
    assert 'accept={"any-content-type"}' in lines_of(done, "client")
    assert "web page" not in done.out


def test_a_report_holds_no_secret(
    server: MockServer, here: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    server.model_list([f"m {KEY}"])
    server.default(
        text_answer(f"{KEY} pass%20word pass word top-secret", finish_reason=None),
        headers={"server": f"x {KEY}"},
    )
    proxy = server.url.replace("//", "//user:pass%20word@")
    done = here(
        *("check", server.url, "--json", "--key-env", "K", "--proxy-env", "P"),
        *("--header", "x-key=top-secret", "--query", "v=hidden-query"),
        K=KEY,
        P=proxy,
    )
    report = json.loads(done.out)
    assert done.code == report["exit_code"] == 4
    assert report["change"]
    assert [each["step"] for each in report["steps"]] == list(WELL)
    assert report["answer"].startswith("data: ")
    assert "proxy=..." in report["client"].replace('"', "")
    for secret in (KEY, "pass%20word", "pass word", "top-secret", "hidden-query", str(tmp_path)):
        assert secret not in done.out
        assert json.dumps(secret)[1:-1] not in done.out
    stream = report["steps"][-2]
    assert {"done": True, "line_ends": "LF", "usage": "none"}.items() <= stream.items()
    assert report["steps"][-1]["accept"] == ["done-without-finish"]


def test_a_proxy(server: MockServer, here: Any) -> None:
    # The scripted server takes the whole URL for a path, as a proxy does.
    place = server.url.replace("//", f"//user:{KEY}@")
    done = here("check", "http://localhost:1", "--proxy-env", "HTTP_PROXY", HTTP_PROXY=place)
    assert done.code == 0
    assert f"{server.url}, from HTTP_PROXY" in lines_of(done, "proxy")
    assert "proxy-authorization" in server.requests[-1].headers
    assert KEY not in done.out
    done = here("check", server.url, HTTP_PROXY=place)
    assert "HTTP_PROXY is set, and svir takes no proxy" in lines_of(done, "proxy")
    assert KEY not in done.out
    done = here("check", server.url, HTTP_PROXY=place, NO_PROXY="127.0.0.1")
    assert "is set" not in done.out


@pytest.mark.parametrize(
    ("status", "said"), [(403, "does not let this through"), (407, "asks for a password")]
)
def test_a_proxy_that_refuses(status: int, said: str, here: Any) -> None:
    def refuse(conn: Any) -> None:
        if read_head(conn):
            conn.sendall(f"HTTP/1.1 {status} No\r\ncontent-length: 0\r\n\r\n".encode())

    with Peer(lambda conn: refuse(conn)) as peer:
        done = here("check", "https://llm.example", "--proxy", peer.url)
    assert done.code == 3
    assert steps(done)["proxy"] == "ok"
    assert f"the proxy answered {status} to CONNECT llm.example:443" in lines_of(done, "tls")
    assert said in lines_of(done, "change")


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="*** this system has no UNIX sockets")
def test_a_unix_socket(here: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with MockServer(unix=path) as server:
        server.default(HELLO)
        done = here("check", "http://localhost", "--unix-socket", path)
    assert done.code == 0
    assert f"{path}: connected" in lines_of(done, "address")
    done = here("check", "http://localhost", "--unix-socket", path)
    assert done.code == 3
    assert "No such file" in lines_of(done, "address")


# -- The examples of docs/command.md --------------------------------------------------------------

READY = text_answer("rea", 0.1, "dy", usage=(14, 2), model="qwen3-4b")


@contextlib.contextmanager
def example(name: str, tls: Any) -> Iterator[tuple[str, list[str]]]:
    """The server of an example: its base URL, and what else is given."""
    if name == "Nothing listens there":
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            yield f"http://127.0.0.1:{held.getsockname()[1]}", []
        return
    secure = name == "A certificate that nobody here trusts"
    with MockServer(tls=tls.server() if secure else None) as server:
        server.model_list(["qwen3-4b"])
        server.default(READY)
        given: list[str] = []
        if name == "The end is missing":
            server.default(READY[:-1])
        elif name == "A URL of another API":
            server.on_request = lambda request: (
                None if request.path.startswith("/v1/") else Reply("no", status=404)
            )
            given = ["/api/chat"]
        elif name == "The key is missing":
            server.on_request = guarded("Invalid API Key", list_too=False)
        elif name == "A web page answers":
            page = Reply("<title>Router login</title>", content_type="text/html")
            server.on_request = lambda request: page
        else:
            assert secure or name == "All is well"
        yield server.url, given


def as_documented(out: str, url: str) -> str:
    """With the place that the page has, and without what differs from run to run."""
    place = url.partition("://")[2]
    out = out.replace(place, "127.0.0.1:8080").replace(place.rpartition(":")[2], "8080")
    out = re.sub(r"trusted: .*", "trusted: ...", out)
    return re.sub(r"\d+(\.\d+)?(?= ms| tokens/s| s\b| days)", "N", out)


EXAMPLES = re.findall(
    r"(?ms)^### ([^\n]*)\n.*?^```text\n\$ svir check (\S+)\n(.*?)^```$",
    (ROOT / "docs" / "command.md").read_text("utf-8"),
)


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) == 7


@pytest.mark.parametrize(("name", "url", "shown"), EXAMPLES, ids=[each[0] for each in EXAMPLES])
def test_an_example_of_the_page(
    name: str, url: str, shown: str, here: Any, tls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "USUAL_PORTS", {})
    with example(name, tls) as (place, given):
        done = here("check", place + "".join(given))
        assert as_documented(place + "".join(given), place) == as_documented(url, place)
    assert as_documented(done.out, place) == as_documented(shown, place)


def test_the_page_tells_every_exit_code_and_option(here: Any) -> None:
    page = (ROOT / "docs" / "command.md").read_text("utf-8")
    for code in (0, 1, 2, 3, 4, 5, 6, 7, 130, 141):
        assert re.search(rf"(?m)^\| {code} \| \S", page)
    for name in ("chat", "ask", "models", "check", "replay"):
        known = set(re.findall(r"(?m)^  (--[a-z-]+)", here(name, "--help").out))
        assert f"`svir {name}" in page
        assert known
        for option in re.findall(
            r"`(--[a-z-]+)", page.partition(f"## `svir {name}")[2].partition("\n## ")[0]
        ):
            assert option in known, f"svir {name} has no {option}"


# -- record, replay, draw -------------------------------------------------------------------------


def test_record_and_replay(server: MockServer, here: Any, tmp_path: Path) -> None:
    path, svg = str(tmp_path / "a.jsonl"), tmp_path / "a.svg"
    server.default(HELLO[:-1])
    done = here("ask", "hi", "--base-url", server.url, "--model", "m", "--record", path)
    assert done.code == 4
    shown = here("replay", path)
    assert shown.code == 4
    assert "POST " in shown.out
    assert "truncated" in shown.out
    again = here("replay", path, "--text", "--accept", "end-without-done", "--stats")
    assert (again.code, again.out) == (0, "Hello\n")
    assert "2 tokens" in again.err
    again = here("replay", path, "--json", "--dialect", "perplexity", "--svg", str(svg))
    assert json.loads(again.out)["quirks"] == ["end-without-done"]
    assert svg.read_text("utf-8").lstrip().startswith(("<svg", "<?xml"))
    assert here("replay", path, "--svg", str(tmp_path)).code == 2


def test_check_records_and_draws(server: MockServer, here: Any, tmp_path: Path) -> None:
    path, svg = tmp_path / "a.jsonl", tmp_path / "a.svg"
    done = here("check", server.url, "--record", str(path), "--svg", str(svg))
    assert done.code == 0
    assert "<svg" in svg.read_text("utf-8")
    assert here("replay", str(path), "--text").out == "Hello\n"
    done = here("check", server.url, "--svg", str(tmp_path))
    assert done.code == 2
    assert f"cannot write {tmp_path}" in done.err


# -- A real server --------------------------------------------------------------------------------


def test_a_real_server(llama: Any, here: Any) -> None:
    done = here("check", llama.base_url)
    assert done.code == 0
    assert steps(done) == WELL
    assert "strict reads it" in done.out
    assert here("models", llama.base_url).out == "tiny\n"
    done = here("ask", "[[think]]", "--base-url", llama.base_url, "--reasoning", "--stats")
    assert done.code == 0
    assert done.out.strip() == "The answer is 42."
    assert "Let me think." in done.err
    assert "tokens" in done.err
    done = here("ask", "[[long]]", "--base-url", llama.base_url, "--max-tokens", "5")
    assert done.code == 5
    assert done.out.startswith("w00 w01")


def test_a_real_server_with_a_key(start_llama: Any, here: Any) -> None:
    server = start_llama("--api-key", KEY)
    done = here("check", server.base_url)
    assert done.code == 3
    assert steps(done)["key"] == "bad"
    assert "--key-file" in done.out
    done = here("check", server.base_url, "--key-env", "K", K=KEY)
    assert done.code == 0
    assert "from K: accepted" in done.out
    assert KEY not in done.out


@needs_terminals
def test_ctrl_c_stops_a_real_server(start_llama: Any) -> None:
    server = start_llama("-c", "8192")  # it fills 1,024 tokens in a third of a second
    with Terminal("chat", "--base-url", server.base_url) as seen:
        seen.read(PROMPT)
        seen.type("[[loop]]\n", "LOOP")
        assert "stopped: the answer is partial" in seen.type("\x03")
        seen.type("/clear\n")
        assert "world!" in seen.type("hi\n")
        assert seen.end() == 0
