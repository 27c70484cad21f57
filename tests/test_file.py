"""svir.py is one file: its order, its budget, and that a copy of it works alone, anywhere."""

from __future__ import annotations

import ast
import dis
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import textwrap
import types
import zipfile
from typing import Any, Iterator

import pytest

import svir
from svir_ext.testing import MockServer, text_answer

PATH = pathlib.Path(svir.__file__).resolve()
SOURCE = PATH.read_text("utf-8")
LINES = SOURCE.splitlines()
TREE = ast.parse(SOURCE)

LINE_BUDGET = 5950
FUNCTION_LINES = 60

# -- Order ----------------------------------------------------------------------------------------

BANNERS = {number: line for number, line in enumerate(LINES, 1) if re.match(r"# ?[-=#]{2,}", line)}
SECTIONS = [re.sub(r"^# -- | -+$", "", line) for line in BANNERS.values()]


def section_of(line: int) -> int:
    """0 is the head of the file: docstring, imports, `__all__`."""
    return sum(1 for banner in BANNERS if banner <= line)


def test_banners_have_one_form() -> None:
    for line in BANNERS.values():
        assert re.fullmatch(r"# -- \d\. [A-Z][a-z]+ -+", line)
    assert len({len(line) for line in BANNERS.values()}) == 1
    assert [int(section[0]) for section in SECTIONS] == list(range(1, len(SECTIONS) + 1))


def test_the_docstring_is_the_map() -> None:
    told = re.findall(r"^    (\d\. \w+) {2,}\S", ast.get_docstring(TREE, clean=False) or "", re.M)
    assert told == SECTIONS
    assert len(SECTIONS) == 6


def test_all_is_grouped_by_section() -> None:
    groups: dict[str, list[str]] = {}
    for line in SOURCE.partition("__all__ = [")[2].partition("\n]")[0].splitlines():
        comment = re.match(r" +# (.*)", line)
        if comment is not None:
            groups[comment.group(1)] = []
        elif line.strip():
            groups[list(groups)[-1]] += ast.literal_eval(f"[{line}]")
    assert list(groups) == SECTIONS
    defined = definitions()
    for number, (group, names) in enumerate(groups.items(), 1):
        assert names == sorted(names, key=lambda name: (not name[0].isupper(), name)) or (
            names == sorted(names)
        ), f"{group} is not sorted"
        assert {section_of(defined[name]) for name in names} == {number}
    assert [name for names in groups.values() for name in names] == svir.__all__


def definitions() -> dict[str, int]:
    """Each name of the module, with the line that defines it first."""
    found: dict[str, int] = {}
    for node in TREE.body:
        targets: list[Any] = []
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            targets = [node.name]
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            names = node.targets if isinstance(node, ast.Assign) else [node.target]
            targets = [name.id for target in names for name in ast.walk(target)
                       if isinstance(name, ast.Name)]  # fmt: skip
        for name in targets:
            found.setdefault(name, node.lineno)
    return found


def uses(code: types.CodeType) -> Iterator[tuple[int, str]]:
    """Every global name that runs, with its line. Annotations do not run."""
    line = code.co_firstlineno
    for instruction in dis.get_instructions(code):
        number: Any = getattr(instruction, "line_number", None) or instruction.starts_line
        line = number if number and number is not True else line
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield line, instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from uses(constant)


def test_no_section_uses_a_later_one() -> None:
    defined = definitions()
    found = {
        (section_of(line), section_of(defined[name]), name)
        for line, name in uses(compile(SOURCE, str(PATH), "exec"))
        if name in defined
    }
    later = [f"{name} of {SECTIONS[theirs - 1]} in {SECTIONS[ours - 1] if ours else 'the head'}"
             for ours, theirs, name in found if theirs > ours]  # fmt: skip
    assert not later
    assert {(6, 1, "Error"), (4, 2, "Limits"), (3, 2, "TextFile")} <= found, (
        "nothing was looked at"
    )


def imports(nodes: Any) -> set[str]:
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a lone file has no neighbours"
            found.add((node.module or "").partition(".")[0])
    return found


AT_THE_TOP = {
    *("__future__", "binascii", "codecs", "collections", "functools", "io", "itertools", "json"),
    *("os", "re", "select"),
    *("socket", "stat", "sys", "threading", "time"),
}
WHEN_NEEDED = {"email", "http", "inspect", "ssl", "struct", "typing", "urllib", "zlib"}


def test_imports() -> None:
    """The standard library only, and little of it at once. Both lists are to be looked at."""
    top = imports(TREE.body)
    blocks = [
        n for n in TREE.body if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test)
    ]
    for_checkers = {id(node) for block in blocks for part in block.body for node in ast.walk(part)}
    inner = [node for node in ast.walk(TREE) if id(node) not in for_checkers]
    assert top <= AT_THE_TOP
    assert imports(inner) - top <= WHEN_NEEDED | {"certifi"}
    checked = imports(node for block in blocks for node in ast.walk(block))
    assert checked - AT_THE_TOP - WHEN_NEEDED <= {"types", "typing_extensions"}
    if sys.version_info >= (3, 10):
        assert imports(inner) - {"certifi"} <= sys.stdlib_module_names


# -- Size and habits ------------------------------------------------------------------------------


def functions() -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(TREE) if isinstance(node, ast.FunctionDef))


def test_the_budget() -> None:
    assert len(LINES) <= LINE_BUDGET


def test_no_function_is_long() -> None:
    """Its signature is not counted: that is a table, and grouped by comments where it is long."""
    for function in functions():
        assert function.end_lineno is not None
        size = function.end_lineno - function.body[0].lineno + 2
        assert size <= FUNCTION_LINES, f"{function.name} has {size} lines"


def is_overload(function: ast.FunctionDef) -> bool:
    return any(getattr(word, "id", "") == "overload" for word in function.decorator_list)


def test_the_public_api_has_docstrings() -> None:
    assert ast.get_docstring(TREE)
    missing = []
    for node in TREE.body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef)) or node.name.startswith("_"):
            continue
        inside = node.body if isinstance(node, ast.ClassDef) else []
        methods = [
            method
            for method in inside
            if isinstance(method, ast.FunctionDef)
            and not method.name.startswith("_")
            and not is_overload(method)
        ]
        for documented in (node, *methods):
            if not ast.get_docstring(documented):
                missing.append(f"{node.name}.{documented.name} (line {documented.lineno})")
    assert not missing


def test_habits() -> None:
    """No console is there (hosts.md 6), asserts vanish under -O, and text has an encoding."""
    called = {name for _, name in uses(compile(SOURCE, str(PATH), "exec"))}
    assert not called & {"print", "input", "exit", "quit", "breakpoint", "eval", "exec"}
    assert "open" in called
    for node in ast.walk(TREE):
        assert not isinstance(node, (ast.Assert, ast.Global)), f"line {node.lineno}"
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "open":
            assert "rb" in ast.dump(node) or "encoding" in ast.dump(node), f"line {node.lineno}"


def test_the_licence_and_the_version_are_in_the_file() -> None:
    assert LINES[0].startswith("# svir: ")
    assert "Licence: MIT OR Apache-2.0" in LINES[0]
    assert re.fullmatch(r"\d+\.\d+\.\d+(rc\d+)?", svir.__version__)


# -- Alone ----------------------------------------------------------------------------------------

FLAGS = ["-I", "-S", "-W", "error", "-X", "dev", "-bb", "-OO"]
FORBIDDEN = [
    *("asyncio", "subprocess", "signal", "multiprocessing", "dataclasses", "inspect", "typing"),
    *("ssl", "http.client", "email", "concurrent", "logging", "certifi", "typing_extensions"),
]
ANSWER = "Hel", "lo é😀"

START = """
import importlib.util, sys, types
folder, url = sys.argv[1:]
PATH = folder + "/svir.py"

def check(condition):  # -OO takes assert away
    if not condition:
        raise SystemExit("a check failed: see the line in the traceback")

def ask(svir):
    file = svir.TextFile(folder + "/text.txt")
    image = svir.Image(folder + "/image.png")
    message = svir.User("Hi \\u00e9", file, image)
    request = svir.Request("m", [message], tools=[svir.Tool("t")], temperature=0.5)
    check(request == request.replace() and request != request.replace(temperature=1))
    with svir.Client(url, api_key="sk-1") as client:
        with client.stream(request) as stream:
            check("".join(stream.text()) == "Hello \\u00e9\\U0001f600")
        work = svir.Background(client.stream(request))
        check(work.result() == stream.completion)
        check(work.join(5))
        check([model.id for model in client.list_models()] == ["mock"])
    try:
        svir.Request("m", "Hi", temperature="warm")
    except svir.Error as error:
        check(error.kind == "config" and "temperature" in str(error))
        return error
    raise SystemExit("no error")

def load(name, register):
    spec = importlib.util.spec_from_file_location(name, PATH)
    module = importlib.util.module_from_spec(spec)
    if register:
        sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
"""
ALONE = f"""
sys.path.insert(0, folder)
before = set(sys.modules)
import svir
loaded = set(sys.modules) - before
check(svir.__file__ == PATH)
check(not loaded & set({FORBIDDEN!r}))
ask(svir)
"""
ALIASES = """
sys.path.insert(0, folder)
before = "typing" in sys.modules  # importlib of 3.9 has it
import svir
check(before == ("typing" in sys.modules) and "Event" in dir(svir) and not hasattr(svir, "event"))
from svir import Event
import typing
check(typing.get_args(Event)[0] is svir.TextDelta and svir.Event is Event)
check(typing.get_args(svir.Layer)[1] == typing.Iterator[Event])
check("stop" in typing.get_args(svir.FinishReason) and str in typing.get_args(svir.FilePath))

space = {"__name__": "a_cell"}  # names are not asked for there, but looked up
with open(PATH, encoding="utf-8") as file:
    exec(compile(file.read(), "<cell>", "exec"), space)
import runpy
check(runpy.run_path(PATH)["Event"])  # a script has its names, too
exec("def f(event: Event, mode: ThinkMode): return Event", space)
check(typing.get_type_hints(space["f"], space)["event"] == space["Event"])
"""
EXECUTED = """
space = {"__name__": "a_notebook_cell"}
with open(PATH, encoding="utf-8") as file:
    exec(compile(file.read(), "<cell>", "exec"), space)
check("a_notebook_cell" not in sys.modules)
ask(types.SimpleNamespace(**space))
ask(load("not_registered", False))
"""
TWICE = """
one, two = load("plugin_one.svir", True), load("plugin_two.svir", True)
errors = ask(one), ask(two)
check(not isinstance(errors[0], two.Error) and not isinstance(errors[1], one.Error))
check(errors[0].kind == errors[1].kind)
check(one.User("a") != two.User("a"))
"""
ZIPPED = """
sys.path.insert(0, folder + "/svir.zip")
sys.modules.pop("svir", None)
import svir as zipped
check(zipped.__file__.startswith(folder + "/svir.zip"))
ask(zipped)
"""
WITHOUT_SSL = """
sys.modules["ssl"] = sys.modules["_ssl"] = None
sys.path.insert(0, folder)
import svir
ask(svir)
try:
    svir.Client("https://localhost")
except svir.ConfigError as error:
    check("ssl module" in str(error))
else:
    raise SystemExit("no error")
"""
# Without HOME or anything else in the environment, in an ASCII locale.
BARE = """
import os
check("HOME" not in os.environ)
sys.path.insert(0, folder)
import svir
ask(svir)
"""
CLOSED = """
check(sys.stdin is None and sys.stdout is None and sys.stderr is None)
sys.path.insert(0, folder)
import svir
ask(svir)
"""
SCENARIOS = {
    "alone": ALONE,
    "executed": EXECUTED,
    "other names of types": ALIASES,
    "twice": TWICE,
    "zipped": ZIPPED,
    "without ssl": WITHOUT_SSL,
    "bare": BARE,
    "closed stdio": CLOSED,
}
# On the other Pythons the same in fewer processes.
JOINED = {"alone, executed, twice, zipped": ALONE + EXECUTED + TWICE + ZIPPED}
JOINED.update(
    (name, SCENARIOS[name]) for name in ("without ssl", "closed stdio", "other names of types")
)


def describe(python: str) -> tuple[str, str] | None:
    """ "CPython 3.8" and the real path of an interpreter, or None for one that svir is not for."""
    script = (
        "import platform, sys; print(platform.python_implementation(), '%d.%d' % "
        "sys.version_info[:2], sys.version_info >= (3, 8), sys.executable)"
    )
    try:
        run = subprocess.run(
            [python, "-I", "-S", "-c", script], capture_output=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    kind, version, fits, path = run.stdout.decode().split(None, 3)
    return (f"{kind} {version}", path.strip()) if fits == "True" else None


def other_pythons() -> dict[str, str]:
    """One of each version from 3.8 up that this machine has, the running one left out."""
    root = pathlib.Path(os.environ.get("PYENV_ROOT") or pathlib.Path.home() / ".pyenv")
    names = [str(path) for path in sorted(root.glob("versions/*/bin/python"))]
    names += [found for found in (shutil.which("pypy3"), shutil.which("python3")) if found]
    described = (describe(name) for name in names)
    found = dict(pair for pair in described if pair is not None)
    found.pop(
        f"{platform.python_implementation()} {sys.version_info[0]}.{sys.version_info[1]}", None
    )
    return found


RUNS = [pytest.param(sys.executable, name, SCENARIOS[name], id=name) for name in SCENARIOS] + [
    pytest.param(path, name, script, id=f"{version}: {name}")
    for version, path in other_pythons().items()
    for name, script in JOINED.items()
]


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with the one file in it, and with a zip that holds it."""
    folder = tmp_path_factory.mktemp("alone")
    shutil.copy(PATH, folder / "svir.py")
    with zipfile.ZipFile(folder / "svir.zip", "w") as archive:
        archive.write(PATH, "svir.py")
    (folder / "text.txt").write_text("é\n", encoding="utf-8")
    (folder / "image.png").write_bytes(b"\x89PNG")
    return folder


def run(python: str, script: str, folder: pathlib.Path, url: str, name: str) -> tuple[int, str]:
    """The exit code of a script, and its last words: through a file, as stdio may be closed."""
    words = folder / "words.txt"
    words.write_text("", encoding="utf-8")
    script = textwrap.indent(START + script, "    ")
    script = (
        "try:\n" + script + "\nexcept BaseException:\n    import sys, traceback\n"
        "    with open(sys.argv[1] + '/words.txt', 'w', encoding='utf-8') as words:\n"
        "        traceback.print_exc(file=words)\n    raise\n"
    )
    command = [python, *FLAGS, "-c", script, str(folder), url]
    environ = None
    if name == "bare":
        command[1:1] = ["-X", "utf8=0"]
        environ = {"LC_ALL": "C", **{k: v for k, v in os.environ.items() if k == "SYSTEMROOT"}}
    if name == "closed stdio":
        command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command]
    done = subprocess.run(command, env=environ, cwd=folder, stderr=subprocess.PIPE, timeout=60)
    return done.returncode, words.read_text("utf-8") + done.stderr.decode("utf-8", "replace")


@pytest.mark.parametrize(("python", "name", "script"), RUNS)
def test_alone(python: str, name: str, script: str, copied: pathlib.Path) -> None:
    if name == "closed stdio" and os.name != "posix":
        pytest.skip("a shell closes them")
    with MockServer() as server:
        server.default(text_answer(*ANSWER))
        code, words = run(python, script, copied, server.url, name)
        assert (code, words) == (0, "")
    chats = [request for request in server.requests if not request.lists_models]
    assert len(chats) == 2 * script.count("ask(")
    assert all("é\n" in request.json()["messages"][0]["content"][0]["text"] for request in chats)


SUB_INTERPRETER = """
import sys
try:
    import _interpreters as interpreters
    run = interpreters.exec
except ImportError:
    import _xxsubinterpreters as interpreters
    run = interpreters.run_string
code = '''
import sys
sys.path.insert(0, {folder!r})
import svir
with svir.Client({url!r}) as client:
    if client.complete(svir.Request("m", "Hi")).text != "Hello":
        raise SystemExit("another answer")
'''
failed = run(interpreters.create(), code.format(folder=sys.argv[1], url=sys.argv[2]))
sys.exit(0 if failed is None else str(failed))
"""


@pytest.mark.skipif(
    sys.version_info[:2] == (3, 12),
    reason="*** CPython 3.12 crashes as a sub-interpreter ends: NOT TESTED",
)
@pytest.mark.skipif(platform.python_implementation() != "CPython", reason="CPython has them")
def test_in_a_sub_interpreter(copied: pathlib.Path) -> None:
    with MockServer() as server:
        server.default(text_answer("Hel", "lo"))
        command = [sys.executable, *FLAGS, "-c", SUB_INTERPRETER, str(copied), server.url]
        done = subprocess.run(command, capture_output=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, b"")
        assert len(server.requests) == 1
