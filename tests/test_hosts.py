"""The examples in the hosts they are for, each with a copy of svir.py as its head comment says.

A test steers its host with a script of the host's own, which waits for the buffer to show a text
and logs it. The server sends the next piece only when the test has seen that: so each piece came
with a tick of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest

import svir
from loopback import eventually, nothing_left
from svir_ext.testing import STALL, MockServer, text_answer, tool_answer

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SIMPLE = "Hel", "lo é\nnext"
LONG = (
    30.0  # seconds, on a machine that is busy: WeeChat without a terminal uses all of a processor
)


def host(*programs: str) -> Any:
    missing = [name for name in programs if shutil.which(name) is None]
    reason = f"*** {', '.join(missing)} not installed: its example is NOT TESTED"
    return pytest.mark.skipif(bool(missing), reason=reason)


def copy(example: str, folder: Path, to: str) -> Path:
    """Install an example as its head comment says: a copy of it, and one of svir.py at `to`."""
    shutil.copytree(EXAMPLES / example, folder / "plugin")
    target = folder / "plugin" / to
    target.parent.mkdir(exist_ok=True)
    shutil.copy(str(svir.__file__), target)
    return folder / "plugin"


@pytest.fixture
def server() -> Iterator[MockServer]:
    with MockServer() as server:
        yield server


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What holds the second piece of an answer back."""
    gate = threading.Event()
    yield gate
    gate.set()


class Host:
    """A host that runs, and what its log or its output says."""

    def __init__(self, command: list[str], log: Path, environ: dict[str, str]) -> None:
        log.touch()
        self.log = log
        self.errors = log.with_suffix(".errors")
        with open(self.errors, "wb") as errors, open(log.with_suffix(".out"), "wb") as out:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                env={**os.environ, **environ},
            )

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()

    def said(self) -> str:
        return self.log.read_text("utf-8")

    def wait_for(self, words: str) -> None:
        eventually(lambda: words in self.said() or self.process.poll() is not None, LONG)
        assert words in self.said(), self.errors.read_text("utf-8", "replace")

    def end(self) -> str:
        """Wait for the host to end by itself, and well; its log."""
        assert self.process.wait(LONG) == 0, self.errors.read_text("utf-8", "replace")
        return self.said()


# -- Vim ------------------------------------------------------------------------------------------

VIM_DRIVER = r"""
let g:ask_url = $URL
let g:ask_model = 'm'
function! Say(what)
  call writefile([a:what], $LOG, 'a')
endfunction
function! Until(pattern)
  for i in range(4000)
    let text = join(getline(1, '$'), "\n")
    if text =~# '^' .. a:pattern .. '$'
      return Say('saw ' .. text)
    endif
    sleep 5m
  endfor
  call Say('not ' .. a:pattern .. ' but ' .. text)
  cquit
endfunction
autocmd VimLeave * py3 import threading
autocmd VimLeave * call Say(py3eval('str([thread.name for thread in threading.enumerate()])'))
"""


def vim(plugin: Path, server: MockServer, *lines: str, environ: Any = None) -> Host:
    (plugin / "driver.vim").write_text("\n".join([VIM_DRIVER, *lines, "qa!"]), "utf-8")
    # Another plugin's file, which would be taken for svir if this one did not say which it means.
    (plugin / "python3" / "svir.py").write_text("raise RuntimeError('not this one')")
    log = plugin / "log"
    command = ["vim", "-Nu", "NONE", "-i", "NONE", "-n", "-es", "--cmd", f"set rtp^={plugin}"]
    command += ["-c", "runtime plugin/ask.vim", "-S", str(plugin / "driver.vim")]
    return Host(command, log, {"URL": server.url, "LOG": str(log), **(environ or {})})


@pytest.fixture
def vim_plugin(tmp_path: Path) -> Path:
    about = subprocess.run(["vim", "--version"], capture_output=True, check=True).stdout.decode()
    if not re.search(r"\+python3", about) or "+timers" not in about:
        pytest.skip("*** this Vim has no python3: its example is NOT TESTED")
    return copy("vim", tmp_path, "python3/vim_ask/svir.py")


@host("vim")
def test_vim_streams(vim_plugin: Path, server: MockServer, gate: threading.Event) -> None:
    server.reply(text_answer(SIMPLE[0], gate, SIMPLE[1]))
    server.reply(text_answer("cut", finish_reason="length"))
    steps = [
        r"call setline(1, ['x = 1', 'y = 2', 'z = 3'])",
        r"2,3Ask What is this?",
        r"call Until('Hel')",
        r"call Until('Hello é\nnext')",
        r"""py3 import sys""",
        r"""call Say(py3eval('str("svir" in sys.modules)'))""",
        r"Ask More",
        r"call Until('cut\n\[length\]')",
        r"sleep 120m",  # the timers have ended: nothing more comes
        r"call Say(string(len(timer_info())) .. ' timers')",
    ]
    with vim(vim_plugin, server, *steps) as running:
        running.wait_for("saw Hel")
        gate.set()
        assert running.end().splitlines() == [
            "saw Hel",
            "saw Hello é\x00next",  # as writefile() writes a line break inside a line
            "False",
            "saw cut\x00[length]",
            "0 timers",
            "['MainThread']",
        ]
    asked = [request.json()["messages"][0]["content"] for request in server.requests]
    assert asked == ["What is this?\n\ny = 2\nz = 3", "More"]


@host("vim")
def test_vim_stops(vim_plugin: Path, server: MockServer) -> None:
    server.default(text_answer("Hel", STALL))
    steps = [
        r"Ask Hi",
        r"call Until('Hel')",
        r"AskStop",
        r"call Until('Hel\n\[stopped\]')",
        r"Ask Hi",
        r"call Until('Hel')",
        r"bwipeout!",  # nobody reads on
        r"sleep 500m",
        r"call Say('end')",
    ]
    with vim(vim_plugin, server, *steps) as running:
        assert running.end().endswith("end\n['MainThread']\n")
    server.wait_until(lambda: server.open_connections == 0)


@host("vim")
def test_vim_quits_while_an_answer_comes(vim_plugin: Path, server: MockServer) -> None:
    server.default(text_answer("Hel", STALL))
    with vim(vim_plugin, server, "Ask Hi", "Ask Hi", "call Until('Hel')") as running:
        assert running.end() == "saw Hel\n['MainThread']\n"
    server.wait_until(lambda: server.open_connections == 0)


@host("vim")
def test_vim_says_what_failed(vim_plugin: Path, server: MockServer) -> None:
    server.reply({"error": {"message": "no such model"}}, status=404)
    steps = [
        r"Ask Hi",
        r"call Until('\n\[unsupported: .*404.*\nno such model\]')",
        r"let g:ask_url = 'ftp://localhost'",
        r"Ask Hi",
        r"call Until('\[config: .*\]')",
    ]
    environ = {"ASK_API_KEY": "sk-1", "LC_ALL": "C"}
    with vim(vim_plugin, server, *steps, environ=environ) as running:
        running.end()
    assert server.requests[0].headers["authorization"] == "Bearer sk-1"


@host("vim")
@pytest.mark.parametrize("chats", [True, False])
def test_vim_looks_a_model_up(chats: bool, vim_plugin: Path, server: MockServer) -> None:
    server.model_list(["bge-m3", "qwen3-4b"] if chats else ["bge-m3"])
    server.default(text_answer("Hel"))
    seen = "Hel" if chats else r"\n\[unsupported: .*g:ask_model.*\]"
    steps = ["unlet g:ask_model", "Ask Hi", f"call Until('{seen}')"]
    with vim(vim_plugin, server, *steps, environ={"ASK_API_KEY": ""}) as running:
        running.end()
    asked = [each.json()["model"] for each in server.requests if not each.lists_models]
    assert asked == ["qwen3-4b"] * chats


@host("vim")
def test_vim_without_its_copy(vim_plugin: Path, server: MockServer) -> None:
    (vim_plugin / "python3" / "vim_ask" / "svir.py").unlink()
    steps = ["try", "Ask Hi", "catch", "call Say(v:exception)", "endtry"]
    with vim(vim_plugin, server, *steps) as running:
        assert re.search(r"copy svir\.py to \S+vim_ask", running.said() or running.end())


@host("vim")
def test_vim_in_a_terminal(vim_plugin: Path, server: MockServer, gate: threading.Event) -> None:
    """With keys, and a screen that is drawn while Vim waits for the next one."""
    pty = pytest.importorskip("pty", reason="a terminal is POSIX")
    server.reply(text_answer("Kohl", gate, "rabi", STALL))
    command = ["vim", "-Nu", "NONE", "-i", "NONE", "-n", "--cmd", f"set rtp^={vim_plugin}"]
    command += ["--cmd", f"let g:ask_url = '{server.url}'", "-c", "runtime plugin/ask.vim"]
    master, slave = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8", "COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=environ, start_new_session=True
    )
    os.close(slave)
    screen = Screen(master)
    try:
        screen.wait_for("~")
        os.write(master, b":Ask Hi\r")
        screen.wait_for("Kohl")
        gate.set()
        screen.wait_for("rabi")
        os.write(master, b"\x03")
        screen.wait_for("[stopped]")
        os.write(master, b":qa!\r")
        assert process.wait(LONG) == 0
    finally:
        process.kill()
        process.wait()
        screen.thread.join(10)
        os.close(master)


class Screen:
    """What a program writes to its terminal."""

    def __init__(self, master: int) -> None:
        self.master, self.shown = master, b""
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self) -> None:
        with contextlib.suppress(OSError):  # the other side was closed
            while True:
                self.shown += os.read(self.master, 65536)

    def wait_for(self, words: str) -> None:
        eventually(lambda: words.encode() in self.shown, LONG)


# -- gdb ------------------------------------------------------------------------------------------

PROGRAM = """
struct point { int x, y; };
static int area(const struct point *p, const char *name) {
    int result = p->x * p->y;
    for (int i = 0; i < 2; i++) {
        int result = i;
        if (result < 0) return *name;
    }
    return result;
}
int main(void) {
    struct point p = {3, 4};
    return area(&p, "box") == 12 ? 0 : 1;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    (folder / "area.c").write_text(PROGRAM)
    command = ["gcc", "-g", "-O0", "-o", "area", "area.c"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "area"


def gdb(folder: Path, program: Path, server: MockServer, *commands: str) -> Host:
    script = copy("gdb", folder, "svir.py") / "explain.py"
    # Sourced scripts share one __main__, and another script may have names of the same kind.
    others = "python svir = os = gdb = Explain = None"
    commands = (f"source {script}", others, "break 7", "run", *commands)
    command = ["gdb", "-nx", "-batch", *(x for each in commands for x in ("-ex", each))]
    environ = {"ASK_URL": server.url, "ASK_MODEL": "m", "DEBUGINFOD_URLS": ""}
    running = Host([*command, str(program)], folder / "log", environ)
    running.log = running.log.with_suffix(".out")
    return running


THREADS = "python import sys, threading; print(threading.active_count(), 'svir' in sys.modules)"


@host("gdb", "gcc")
def test_gdb_explains(
    tmp_path: Path, program: Path, server: MockServer, gate: threading.Event
) -> None:
    server.reply(text_answer(SIMPLE[0], gate, SIMPLE[1], "\x1b[31m"))
    server.reply(text_answer("cut", finish_reason="length"))
    commands = "explain", "up", "explain Why?", THREADS, "kill"
    with gdb(tmp_path, program, server, *commands) as running:
        running.wait_for("Hel")
        gate.set()
        said = running.end()
    assert "\nHello é\nnext\\x1b[31m\n" in said
    assert "\ncut\n[length]\n1 False\n" in said
    inner, outer = (request.json()["messages"][1]["content"] for request in server.requests)
    assert "#0  area (p=" in inner
    assert "#1  " in inner
    assert "7\t        if (result < 0) return *name;" in inner
    assert "(it stands at line 7)" in inner
    named = inner.partition("Arguments and local variables:\n")[2].splitlines()
    assert named[:2] == ["result = 0", "i = 0"]
    assert [line.partition(" = ")[0] for line in named[2:]] == ["p", "name"]
    assert '"box"' in named[3]
    assert outer.startswith("Why?\n\n")
    assert outer.endswith("\np = {x = 3, y = 4}")


@host("gdb", "gcc")
def test_gdb_stops(tmp_path: Path, program: Path, server: MockServer) -> None:
    """Ctrl-C, while it reads: the command ends, and gdb goes on."""
    server.reply(text_answer("Hel", STALL))
    with gdb(tmp_path, program, server, "explain", THREADS, "kill") as running:
        running.wait_for("Hel")
        running.process.send_signal(signal.SIGINT)
        assert "\nHel\n[stopped]\n1 False\n" in running.end()
    server.wait_until(lambda: server.open_connections == 0)


@host("gdb", "gcc")
def test_gdb_says_what_failed(tmp_path: Path, program: Path, server: MockServer) -> None:
    server.reply({"error": {"message": "no such \x1b model"}}, status=404)
    with gdb(tmp_path, program, server, "kill", "explain", "run", "explain", "kill") as running:
        running.process.wait(LONG)
    told = running.errors.read_text("utf-8")
    assert "No frame is currently selected.\n" in told
    assert re.search(r"\nunsupported: .*404.*\nno such \\x1b model\n", told)
    assert "Traceback" not in told


# -- WeeChat --------------------------------------------------------------------------------------

WEECHAT_DRIVER = r"""
import json, os, re
import weechat

steps = json.loads(os.environ["STEPS"])

def say(words):
    with open(os.environ["LOG"], "a", encoding="utf-8") as log:
        log.write(words + "\n")

def shown():
    buffer = weechat.buffer_search("python", "ask")
    lines = weechat.infolist_get("buffer_lines", buffer, "") if buffer else ""
    found = []
    while lines and weechat.infolist_next(lines):
        found.append(weechat.infolist_string(lines, "message"))
    return "/".join(found)

def tick(data, left):
    if not steps:
        return weechat.WEECHAT_RC_OK
    if steps[0].startswith("/"):
        weechat.command("", steps.pop(0))
    elif re.fullmatch(steps[0], shown()):
        say("saw " + shown())
        steps.pop(0)
    return weechat.WEECHAT_RC_OK

def unload():
    say("driver unloaded")
    return weechat.WEECHAT_RC_OK

weechat.register("driver", "svir", "1", "MIT", "", "unload", "")
weechat.hook_timer(20, 0, 0, "tick", "")
"""


def weechat(folder: Path, server: MockServer, *steps: str, environ: Any = None) -> Host:
    """Steps are commands, or "" and a pattern to wait for in the buffer of the example."""
    python = copy("weechat", folder, "ask_svir.py")
    shutil.move(str(python), str(folder / "python"))
    (folder / "python" / "driver.py").write_text(WEECHAT_DRIVER, "utf-8")
    setting = "/set plugins.var.python.ask."
    started = [f"{setting}url {server.url}", f"{setting}model m"]
    started += [f"/python load {folder}/python/{name}.py" for name in ("ask", "driver")]
    command = ["weechat-headless", "-d", str(folder)]
    command += [x for each in started for x in ("-r", each)]
    log = folder / "log"
    more = {"LOG": str(log), "STEPS": json.dumps(steps), **(environ or {})}
    return Host(command, log, more)


@host("weechat-headless")
def test_weechat_streams(tmp_path: Path, server: MockServer, gate: threading.Event) -> None:
    server.reply(text_answer(SIMPLE[0], gate, SIMPLE[1]))
    server.reply(text_answer("\x1904a\tb", finish_reason="length"))
    first = "Hi there/Hello é/next"
    steps = ["/ask Hi there", "Hi there/Hel", f"{first}"]
    steps += ["/ask More", f"{first}/More/04a    b/.length.", "/quit"]
    with weechat(tmp_path, server, *steps) as running:
        running.wait_for("saw Hi there/Hel\n")
        gate.set()
        assert running.end().splitlines() == [
            "saw Hi there/Hel",
            f"saw {first}",
            f"saw {first}/More/04a    b/[length]",
            "driver unloaded",
        ]


@host("weechat-headless")
def test_weechat_stops(tmp_path: Path, server: MockServer) -> None:
    server.default(text_answer("Hel", STALL))
    steps = ["/ask Hi", "Hi/Hel", "/ask More", "/ask -stop", "Hi/Hel/.stopped."]
    steps += ["/buffer close python.ask", "/ask Two", "Two/Hel"]
    # Closed while an answer comes: it ends, and no longer opens the buffer for its last words.
    steps += ["/buffer close python.ask", "/wait 200ms /ask Three", "Three/Hel", "/quit"]
    with weechat(tmp_path, server, *steps) as running:
        running.end()
    server.wait_until(lambda: server.open_connections == 0)
    assert len(server.requests) == 3


@host("weechat-headless")
def test_weechat_unloads_while_an_answer_comes(tmp_path: Path, server: MockServer) -> None:
    """WeeChat aborts when a thread is left. The script can be loaded again."""
    server.default(text_answer("Hel", STALL))
    # From WeeChat's own loop: one script that loads another crashes it (3.8). "" is no buffer.
    reload = "/wait 1ms /python reload ask"
    steps = ["/ask Hi", "Hi/Hel", reload, "", "/ask Again", "Again/Hel", "/quit"]
    with weechat(tmp_path, server, *steps) as running:
        assert running.end() == "saw Hi/Hel\nsaw \nsaw Again/Hel\ndriver unloaded\n"
    assert "Fatal" not in running.errors.read_text("utf-8", "replace")
    server.wait_until(lambda: server.open_connections == 0)


@host("weechat-headless")
def test_weechat_says_what_failed(tmp_path: Path, server: MockServer) -> None:
    server.reply({"error": {"message": "no such model"}}, status=404)
    steps = [
        "/ask Hi",
        "Hi//.unsupported: .*404.*/no such model.",
        "/set plugins.var.python.ask.url ftp://x",
    ]
    steps += ["/ask Hi", ".*/Hi/config: .*", "/quit"]
    with weechat(tmp_path, server, *steps, environ={"ASK_API_KEY": "sk-1"}) as running:
        running.end()
    assert server.requests[0].headers["authorization"] == "Bearer sk-1"


# -- Sublime Text, as far as that goes without it -------------------------------------------------


class View:
    def __init__(self, text: str = "") -> None:
        self.text, self.valid, self.set = text, True, {}

    def is_valid(self) -> bool:
        return self.valid

    def run_command(self, name: str, arguments: dict[str, Any]) -> None:
        assert name == "append"
        self.text += arguments["characters"]

    def settings(self) -> Any:
        return types.SimpleNamespace(set=self.set.__setitem__, erase=self.set.pop)

    def sel(self) -> list[str]:
        return [self.text]

    def substr(self, region: str) -> str:
        return region

    def set_name(self, name: str) -> None:
        self.name = name

    def set_scratch(self, scratch: bool) -> None:
        self.scratch = scratch


class Sublime:
    """As much of Sublime Text's API as the plugin uses, and its main loop."""

    def __init__(self, settings: dict[str, str], selected: str) -> None:
        self.views = [View(selected)]
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.module: Any = types.ModuleType("sublime")
        self.module.load_settings = lambda name: settings
        self.module.set_timeout = self.set_timeout
        self.base: Any = types.ModuleType("sublime_plugin")
        self.base.TextInputHandler = object
        self.base.WindowCommand = self.base.ApplicationCommand = type("Command", (), {})

    def set_timeout(self, callback: Callable[[], None], delay: float) -> None:
        assert threading.current_thread() is threading.main_thread()
        self.timers.append((time.monotonic() + delay / 1000, callback))

    def active_view(self) -> View:
        return self.views[0]

    def new_file(self) -> View:
        self.views.append(View())
        return self.views[-1]

    def run_until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < end, [view.text for view in self.views]
            due = [timer for timer in self.timers if timer[0] <= time.monotonic()]
            for timer in due:
                self.timers.remove(timer)
                timer[1]()
            time.sleep(0.002)


@pytest.fixture
def sublime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: MockServer) -> Any:
    """The host, and the plugin in it."""
    plugin = copy("sublime/Ask", tmp_path, "lib/svir.py")
    plugin.rename(tmp_path / "Ask")
    found = Sublime({"url": server.url, "model": "m"}, "x = 1")
    monkeypatch.setitem(sys.modules, "sublime", found.module)
    monkeypatch.setitem(sys.modules, "sublime_plugin", found.base)
    monkeypatch.syspath_prepend(str(tmp_path))
    names = ["Ask", "Ask.lib", "Ask.lib.svir", "Ask.ask"]
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    import importlib

    plugin_module: Any = importlib.import_module("Ask.ask")
    yield found, plugin_module
    plugin_module.plugin_unloaded()
    for name in names:
        sys.modules.pop(name, None)


def ask_in(found: Sublime, plugin: Any, question: str) -> View:
    command = plugin.AskCommand()
    command.window = found
    command.run(question)
    return found.views[-1]


def test_sublime_streams(sublime: Any, server: MockServer, gate: threading.Event) -> None:
    found, plugin = sublime
    assert plugin.svir.Client is not svir.Client
    server.reply(text_answer(SIMPLE[0], gate, SIMPLE[1]))
    server.reply(text_answer("cut", finish_reason="length"))
    with nothing_left():
        view = ask_in(found, plugin, "What?")
        found.run_until(lambda: view.text == "Hel")
        assert view.set == {"ask_running": True}
        assert plugin.AskStopCommand().is_enabled()
        gate.set()
        found.run_until(lambda: view.text == "Hello é\nnext" and not found.timers)
        assert view.set == {}
        assert not plugin.AskStopCommand().is_enabled()
        view = ask_in(found, plugin, "More?")
        found.run_until(lambda: view.text == "cut\n[length]")
    assert server.requests[0].json()["messages"][0]["content"] == "What?\n\nx = 1"


def test_sublime_stops(sublime: Any, server: MockServer) -> None:
    found, plugin = sublime
    server.default(text_answer("Hel", STALL))
    with nothing_left():
        view = ask_in(found, plugin, "Hi")
        found.run_until(lambda: view.text == "Hel")
        plugin.AskStopCommand().run()
        found.run_until(lambda: view.text == "Hel\n[stopped]")
        closed = ask_in(found, plugin, "Hi")
        found.run_until(lambda: closed.text == "Hel")
        closed.valid = False
        found.run_until(lambda: not found.timers)
        server.wait_until(lambda: server.open_connections == 0)


def test_sublime_unloads_while_an_answer_comes(sublime: Any, server: MockServer) -> None:
    found, plugin = sublime
    server.default(text_answer("Hel", STALL))
    with nothing_left():
        view = ask_in(found, plugin, "Hi")
        found.run_until(lambda: view.text == "Hel")
        plugin.plugin_unloaded()
        found.run_until(lambda: not found.timers)
    assert view.text == "Hel"


def test_sublime_says_what_failed(
    sublime: Any, server: MockServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, plugin = sublime
    monkeypatch.setenv("ASK_API_KEY", "sk-1")
    server.reply({"error": {"message": "no such model"}}, status=404)
    view = ask_in(found, plugin, "Hi")
    found.run_until(lambda: view.text.startswith("\n[unsupported: "))
    assert view.text.endswith("\nno such model]")
    assert server.requests[0].headers["authorization"] == "Bearer sk-1"
    found.module.load_settings = lambda name: {"url": "ftp://localhost"}
    assert ask_in(found, plugin, "Hi").text.startswith("[config: ")


def test_sublime_reads_the_files_beside_it() -> None:
    folder = EXAMPLES / "sublime" / "Ask"
    assert (folder / ".python-version").read_text() == "3.8\n"
    commands = json.loads((folder / "Default.sublime-commands").read_text())
    keys = json.loads((folder / "Default.sublime-keymap").read_text())
    text = (folder / "ask.py").read_text("utf-8")
    for command in (each["command"] for each in (*commands, *keys)):
        name = "".join(word.title() for word in command.split("_")) + "Command"
        assert f"class {name}(" in text
    assert keys[0]["context"][0]["key"] == "setting.ask_running"


# -- The chat -------------------------------------------------------------------------------------


class Chat:
    """The example in a process of its own, with a folder of notes."""

    def __init__(self, folder: Path, server: MockServer) -> None:
        self.notes = folder / "notes"
        (self.notes / "sub").mkdir(parents=True)
        (self.notes / "a.txt").write_text("Buy milk.\n", encoding="utf-8")
        (folder / "outside.txt").write_text("secret", encoding="utf-8")
        script = EXAMPLES / "chat_with_tools.py"
        command = [sys.executable, "-X", "dev", "-W", "error", str(script), server.url, "m"]
        self.process = subprocess.Popen(
            [*command, str(self.notes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        )
        self.shown = ""

    def __enter__(self) -> Chat:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()

    def until(self, words: str) -> str:
        """What is shown up to these words, from where the last call ended."""
        assert self.process.stdout is not None
        shown = b""
        while not shown.endswith(words.encode()):
            byte = self.process.stdout.read(1)
            assert byte, shown.decode()
            shown += byte
        return shown.decode()

    def type(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def leave(self) -> None:
        """Ctrl-D."""
        rest, _ = self.process.communicate(timeout=LONG)
        assert (self.process.returncode, rest.decode().strip()) == (0, "")


def results(server: MockServer) -> list[str]:
    """The tool results that the last request brought."""
    messages = server.requests[-1].json()["messages"]
    return [each["content"] for each in messages if each["role"] == "tool"]


def test_chat_reads_without_asking(tmp_path: Path, server: MockServer) -> None:
    calls: list[Any] = [("list_files", {}), ("read_file", {"name": "a.txt"})]
    calls += [("read_file", {"name": name}) for name in ("../outside.txt", "/etc/hostname")]
    server.reply(tool_answer(*calls))
    server.reply(text_answer("You need ", "milk\x1b[2J."))
    server.reply(text_answer("Welcome."))
    with Chat(tmp_path, server) as chat:
        chat.until("> ")
        chat.type("What do I need?")
        shown = chat.until("\n> ")
        assert '\n[list_files {}]\n[read_file {"name": "a.txt"}]\n' in shown
        assert "\nYou need milk\\x1b[2J.\n" in shown
        assert results(server)[:2] == ['["a.txt", "sub/"]', "Buy milk.\n"]
        for outside in results(server)[2:]:
            assert re.fullmatch(r"error: ValueError: \S+ is outside the folder", outside)
        chat.type("Thanks")
        chat.until("Welcome.\n\n> ")
        assert [each["role"] for each in server.requests[-1].json()["messages"]] == [
            *("user", "assistant", *["tool"] * 4, "assistant", "user")
        ]
        chat.leave()


@pytest.mark.parametrize("yes", ["y", "n", ""])
def test_chat_asks_before_it_writes(yes: str, tmp_path: Path, server: MockServer) -> None:
    given = {"name": "sub/b.txt", "text": "é\nnew"}
    server.reply(tool_answer(("write_file", given)))
    server.reply(text_answer("Done."))
    with Chat(tmp_path, server) as chat:
        chat.until("> ")
        chat.type("Write it")
        shown = chat.until("Allow this? [y/N] ")
        assert json.loads(shown[shown.index("{") : shown.rindex("}") + 1]) == given
        assert not (chat.notes / "sub" / "b.txt").exists()
        chat.type(yes)
        chat.until("Done.\n\n> ")
        chat.leave()
        written = chat.notes / "sub" / "b.txt"
        if yes == "y":
            assert written.read_text("utf-8") == "é\nnew"
            assert results(server) == ["wrote 5 characters"]
        else:
            assert not written.exists()
            assert results(server) == ["error: the user does not allow this"]


@pytest.mark.skipif(os.name == "nt", reason="a signal is POSIX")
def test_chat_stops(tmp_path: Path, server: MockServer) -> None:
    server.reply(text_answer("Hel", STALL))
    server.reply(text_answer("again"), status=200)
    server.reply({"error": {"message": "no such model"}}, status=404)
    with Chat(tmp_path, server) as chat:
        chat.until("> ")
        chat.type("One")
        chat.until("Hel")
        chat.process.send_signal(signal.SIGINT)
        assert chat.until("> ") == "\n[stopped]\n\n> "
        server.wait_until(lambda: server.open_connections == 0)
        chat.type("Two")
        chat.until("again\n\n> ")
        assert [m["content"] for m in server.requests[-1].json()["messages"]] == ["Two"]
        chat.type("Three")
        assert "[unsupported: " in chat.until("]\n\n> ")
        chat.process.send_signal(signal.SIGINT)  # at the prompt: it ends
        chat.leave()


def test_chat_gives_up(tmp_path: Path, server: MockServer) -> None:
    server.default(tool_answer(("list_files", {})))
    with Chat(tmp_path, server) as chat:
        chat.until("> ")
        chat.type("Go on")
        chat.until("[no answer after 10 rounds of calls]\n\n> ")
        chat.leave()
    assert len(server.requests) == 10
