"""The pages: their python blocks run in order, their links lead somewhere, their tables hold.

A block runs in the names of those before it on its page, against a scripted server. One marked
"python needs=NAME" needs a package that the tests do not install: it runs where that is there.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pathlib
import re
import shutil
import threading
from typing import Any, NamedTuple

import pytest

import svir
from svir_ext.testing import MockServer, Reply, text_answer, tool_answer

ROOT = pathlib.Path(__file__).resolve().parent.parent
TLS = ROOT / "tests" / "tls"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
# Others that link to them; their code, if any, has tests of its own.
OTHERS = [
    ROOT / "CHANGELOG.md",
    *sorted(ROOT.glob("examples/**/*.md")),
    *ROOT.glob("benchmarks/*.md"),
]

# -- The code -------------------------------------------------------------------------------------


class Block(NamedTuple):
    needs: str  # a package, or ""
    code: str
    line: int


def split(page: pathlib.Path) -> tuple[list[Block], str]:
    """The python blocks of a page, and the page without its code."""
    found: list[Block] = []
    rest: list[str] = []
    fence, start, needs = "", 0, ""
    lines = page.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        match = re.match(r"( *)```(.*)", line)
        if fence and line == fence:
            code = "\n".join(text[len(fence) - 3 :] for text in lines[start:number]) + "\n"
            found += [Block(needs.partition("needs=")[2], code, start)] if needs else []
            fence = ""
        elif not fence and match is not None:
            fence, start, needs = match.group(1) + "```", number + 1, ""
            if match.group(2).startswith("python"):
                needs = match.group(2)
                assert re.fullmatch(r"python( needs=\w+)?", needs), f"{page.name}: {needs}"
        elif not fence:
            rest.append(line)
    assert not fence, f"{page.name}: a fence is not closed"
    return found, "\n".join(rest) + "\n"


def blocks(page: pathlib.Path) -> list[Block]:
    return split(page)[0]


def name_of(value: Any) -> str:
    """A page's path, for the name of a test."""
    is_page = isinstance(value, pathlib.Path)
    return value.relative_to(ROOT).as_posix() if is_page else str(value)


NEEDED = sorted({(page, block.needs) for page in PAGES for block in blocks(page) if block.needs})


def answer(request: Any) -> Any:
    """What a model would say to the question of a block."""
    if request.lists_models:
        return None  # the server lists its own
    body = request.json()
    if body.get("response_format"):
        return Reply(text_answer('{"city": "Oslo"}'))
    if body.get("tools") and body["messages"][-1]["role"] != "tool":
        return Reply(tool_answer(("weather", {"city": "Oslo"})))
    if "million" in str(body["messages"][-1]):  # "Count to a million.": long enough to be stopped
        first, *rest = text_answer("1 ", "2 ", "3 ")
        return Reply(first, 0.5, *rest)
    return Reply(text_answer("Hello", " there", usage=(5, 2)))


@pytest.fixture
def space(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that a page's code starts with, in a folder with the files it speaks of."""
    monkeypatch.chdir(tmp_path)
    for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "notes.md").write_text("Buy milk.", encoding="utf-8")
    (tmp_path / "photo.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    shutil.copy(str(TLS / "root.pem"), str(tmp_path / "company-ca.pem"))
    shutil.copy(str(TLS / "localhost.pem"), str(tmp_path / "me.pem"))
    monkeypatch.setenv("LAB_KEY", "sk-lab")
    return {"__name__": "__main__"}


def run(page: pathlib.Path, found: list[Block], space: dict[str, Any]) -> None:
    before = set(threading.enumerate())
    with MockServer() as server:
        server.on_request = answer
        for block in found:
            code = re.sub(r"http://localhost:(1234|8080)\b", server.url, block.code)
            exec(compile("\n" * block.line + code, str(page), "exec"), space)
    for thread in set(threading.enumerate()) - before:
        if isinstance(thread, threading.Timer):
            thread.cancel()
        thread.join(10)
        assert not thread.is_alive(), f"{page.name} left {thread} running"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_code_of_a_page_runs(page: pathlib.Path, space: dict[str, Any]) -> None:
    run(page, [block for block in blocks(page) if not block.needs], space)


@pytest.mark.parametrize(("page", "package"), NEEDED, ids=name_of)
def test_code_that_needs_a_package_runs(
    page: pathlib.Path, package: str, space: dict[str, Any]
) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"*** {package} is not installed: part of {page.name} was not run")
    run(page, [block for block in blocks(page) if block.needs in ("", package)], space)


def test_the_pages_that_show_code_are_read() -> None:
    shown = {name_of(page): len(blocks(page)) for page in PAGES}
    for name in ("README.md", "docs/errors.md", "docs/quickstart.md", "docs/recipes.md"):
        assert shown[name] >= 4, f"{name}: the code was not found"
    assert sum(shown.values()) > 60


# -- The links ------------------------------------------------------------------------------------


def prose(page: pathlib.Path) -> str:
    """A page without its code."""
    return re.sub(r"`[^`\n]*`", "`code`", split(page)[1])


def anchors(page: pathlib.Path) -> set[str]:
    """The fragments that GitHub gives the headings of a page."""
    found: dict[str, int] = {}
    out = set()
    for title in re.findall(r"^#+ +(.+?) *$", split(page)[1], re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "").replace("*", "")
        word = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found[word] = found.get(word, -1) + 1
        out.add(f"{word}-{found[word]}" if found[word] else word)
    return out


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=name_of)
def test_every_link_leads_somewhere(page: pathlib.Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"https?://", target):
            assert re.match(r"https://[\w.-]+\.\w+(/|$)", target), f"{page.name}: {target}"
            continue
        path, _, fragment = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        # CI also runs this where only the wheel has the sources.
        assert there.exists() or there in (ROOT / "svir.py", ROOT / "svir_ext"), (
            f"{page.name}: {target}"
        )
        assert not fragment or fragment in anchors(there), f"{page.name}: {target}"


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    names = [str(page.relative_to(ROOT / "docs").as_posix()) for page in PAGES[1:]]
    assert [name for name in names if name != "README.md" and f"]({name})" not in index] == []


# -- What the pages say of the sources ------------------------------------------------------------


def test_the_reference_is_current() -> None:
    """After a change to a public name or its docstring: python3 docs/make_reference.py"""
    module: Any = importlib.import_module("docs.make_reference")
    current = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert current == module.page(), "old: python3 docs/make_reference.py writes it anew"
    missing = [name for name in svir.__all__ if f"#### {name}\n" not in current]
    assert not missing


def test_every_error_has_its_entry() -> None:
    """What it is, and what to do about it."""
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    entries = dict(re.findall(r"^\*\*`(\w+)`\*\* ((?:.+\n)+)", text, re.MULTILINE))
    kinds = {name: getattr(svir, name) for name in svir.__all__ if is_error(getattr(svir, name))}
    del kinds["Error"]
    assert set(entries) == set(kinds)
    for name, kind in kinds.items():
        words = " ".join(entries[name].split())
        assert f"(`{kind.kind}`)" in words
        assert ("retryable" in words.partition(".")[0]) == kind.retryable
        assert "**Do:** " in words, f"{name}: what to do about it"


def is_error(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, svir.Error)


def messages() -> str:
    """All text in svir.py but docstrings, the parts of one f-string joined by a line break."""
    source = pathlib.Path(svir.__file__).read_text(encoding="utf-8")
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            parts = [getattr(part, "value", None) for part in node.values]
            found.append("\n".join(part if isinstance(part, str) else "" for part in parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return "\n".join(found)


# What stands for a hole of the message: "...", what is quoted, a number, and these words.
VARIES = re.compile(
    r"\.\.\.|'[^']*'|\d+|Connection refused|idle_timeout|at offset|Request\.messages\[|User or"
    r"|the request must be Request, not dict|\w+Error: "
)


def test_the_messages_of_the_tables_are_those_of_svir() -> None:
    """A first cell that is all code, in more than one word, is a message."""
    known = messages()
    pages = (ROOT / "docs" / "errors.md", ROOT / "docs" / "README.md")
    told = [
        cell
        for page in pages
        for cell in re.findall(r"^\| `([^`|]{12,})` \|", page.read_text("utf-8"), re.MULTILINE)
        if " " in cell
    ]
    assert len(told) > 40
    parts = [(cell, part.strip(" :]")) for cell in told for part in VARIES.split(cell)]
    assert [both for both in parts if len(both[1]) > 3 and both[1] not in known] == []


def test_the_base_urls_of_the_servers_page_can_be_used() -> None:
    text = (ROOT / "docs" / "servers.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|]+ \| `(https?://[^`]+)`([^|]*)\|", text, re.MULTILINE)
    assert len(rows) >= 20
    for url, more in rows:
        url = url.replace("//NAME", "//name")  # hosts are lower case
        is_bare = re.match(r"http://localhost:\d+\Z", url) is not None
        base = svir.Client(url, exact_url="exact_url=True" in more).base_url
        assert base == (url + "/v1" if is_bare else url)
