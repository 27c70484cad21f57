"""The public surface is api.txt: what is in it is promised, what changes it is looked at.

After a change on purpose: `python tests/test_api.py > tests/api.txt`, and read the difference.
"""

from __future__ import annotations

import ast
import collections.abc
import difflib
import functools
import importlib
import inspect
import pathlib
import re
import sys
import types
from typing import Any, Iterator

import svir

PATH = pathlib.Path(svir.__file__).resolve()
API = pathlib.Path(__file__).resolve().parent / "api.txt"
SOURCE = PATH.read_text("utf-8")
LINES = SOURCE.splitlines()
TREE = ast.parse(SOURCE)
REFERENCE: Any = importlib.import_module("docs.make_reference")
BASES = ("Error", "_Value")  # what they define, each class below them has


def text_of(node: Any) -> str:
    """The source of an expression on one line, however the formatter broke it."""
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    lines = [line.encode("utf-8") for line in LINES[first : last + 1]]
    lines[-1] = lines[-1][: node.end_col_offset]
    lines[0] = lines[0][node.col_offset :]
    text = " ".join(b" ".join(lines).decode("utf-8").split())
    return re.sub(r",? ([\])}])", r"\1", re.sub(r"([\[({]) ", r"\1", text))


def argument(node: ast.arg, default: ast.expr | None) -> str:
    note = f": {text_of(node.annotation)}" if node.annotation is not None else ""
    if default is None:
        return node.arg + note
    return f"{node.arg}{note} = {text_of(default)}" if note else f"{node.arg}={text_of(default)}"


def signature(function: ast.FunctionDef, is_method: bool) -> str:
    spec = function.args
    assert not getattr(spec, "posonlyargs", None)
    none: list[Any] = [None]
    defaults = none * (len(spec.args) - len(spec.defaults)) + list(spec.defaults)
    words = [argument(node, default) for node, default in zip(spec.args, defaults)]
    words = words[1:] if is_method else words
    if spec.vararg is not None:
        words.append(f"*{argument(spec.vararg, None)}")
    elif spec.kwonlyargs:
        words.append("*")
    words += [argument(node, value) for node, value in zip(spec.kwonlyargs, spec.kw_defaults)]
    if spec.kwarg is not None:
        words.append(f"**{argument(spec.kwarg, None)}")
    returns = f" -> {text_of(function.returns)}" if function.returns is not None else ""
    return f"({', '.join(words)}){returns}"


def members(cls: ast.ClassDef) -> Iterator[str]:
    told: set[str] = set()
    for node in cls.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            value = f" = {text_of(node.value)}" if node.value is not None else ""
            found = [(node.target.id, f": {text_of(node.annotation)}{value}")]
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found = [(node.targets[0].id, f" = {text_of(node.value)}")]
        elif isinstance(node, ast.If):  # what type checkers are told, instead of what runs
            yield from (line for inner in node.body for line in method(inner))
            continue
        else:
            yield from method(node)
            continue
        for name, rest in found:
            told.add(name)
            if not name.startswith("_"):
                yield name + rest
    if any(getattr(base, "id", "") == "_Value" for base in cls.bases):
        yield f"takes {inspect.signature(getattr(svir, cls.name))}"
    for node in cls.body:
        if getattr(node, "name", "") == "__init__":
            yield from (line for line in attributes(node) if line.partition(":")[0] not in told)


def method(node: ast.stmt) -> Iterator[str]:
    if not isinstance(node, ast.FunctionDef):
        return
    if node.name.startswith("_") and node.name not in SPECIAL:
        return
    words = {getattr(word, "id", "") for word in node.decorator_list}
    if "property" in words:
        yield f"{node.name} -> {text_of(node.returns) if node.returns is not None else '?'}"
    else:
        kind = "classmethod " if "classmethod" in words else ""
        yield f"{kind}{node.name}{signature(node, True)}"


SPECIAL = ("__init__", "__call__", "__iter__", "__next__", "__bytes__", "__enter__", "__exit__")


def attributes(function: ast.AST) -> Iterator[str]:
    """What the constructor sets for the public: `self.body = body`."""
    for node in ast.walk(function):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            if isinstance(target, ast.Attribute) and not target.attr.startswith("_"):
                note = getattr(node, "annotation", None)
                yield f"{target.attr}: {text_of(note)}" if note is not None else target.attr


@functools.lru_cache(maxsize=1)
def surface() -> str:
    lines = ["The public names of svir.py, by section; made by tests/test_api.py."]
    at = 0
    for node in TREE.body:
        targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
        name = getattr(node, "name", None) or getattr(targets[0], "id", None)
        if name not in svir.__all__ and name not in BASES:
            continue
        for banner in re.findall(r"^# -- (.*?) -+$", "\n".join(LINES[at : node.lineno]), re.M):
            lines += ["", f"# {banner}", ""]
        at = node.lineno
        if isinstance(node, ast.ClassDef):
            bases = ", ".join(map(text_of, node.bases))
            lines.append(f"class {name}({bases})" if bases else f"class {name}")
            lines += [f"    {member}" for member in members(node)]
        elif isinstance(node, ast.FunctionDef):
            lines.append(f"def {name}{signature(node, False)}")
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            lines.append(f"{name} = {REFERENCE.alias_of(node) or text_of(node.value)}")
    return "\n".join(lines) + "\n"


def test_the_surface_is_as_reviewed() -> None:
    found, reviewed = surface(), API.read_text("utf-8")
    difference = difflib.unified_diff(
        reviewed.splitlines(), found.splitlines(), "tests/api.txt", "svir.py", lineterm="", n=1
    )
    assert found == reviewed, "\n".join(difference)


def test_every_public_name_is_on_it() -> None:
    told = set(re.findall(r"^(?:class |def )?(\w+)(?:\(| = |$)", surface(), re.MULTILINE))
    assert told == set(svir.__all__) | set(BASES)


def test_all_is_what_is_public() -> None:
    """Nothing without an underscore is left out, and nothing is there that is not svir's."""
    assert len(set(svir.__all__)) == len(svir.__all__)
    public = {
        name
        for name in dir(svir)
        if not name.startswith("_") and not isinstance(getattr(svir, name), types.ModuleType)
    }
    for_types = {"TYPE_CHECKING", "Protocol", "dataclass_transform", *collections.abc.__all__}
    assert public - for_types - {"annotations", "deque"} == set(svir.__all__)


def test_star_gives_the_same() -> None:
    space: dict[str, Any] = {}
    exec("from svir import *", space)
    assert set(space) - {"__builtins__"} == set(svir.__all__)


def test_what_is_told_is_what_runs() -> None:
    """api.txt is read from the source; here the names of arguments are asked of the objects."""
    for name in svir.__all__:
        value = getattr(svir, name)
        if isinstance(value, types.FunctionType):
            (line,) = re.findall(rf"^def {name}\((.*)\)", surface(), re.MULTILINE)
            assert argument_names(line) == list(inspect.signature(value).parameters)
    client = list(inspect.signature(svir.Client).parameters)
    (line,) = re.findall(r"^class Client\n    __init__\((.*)\)", surface(), re.MULTILINE)
    assert argument_names(line) == client
    assert client[:2] == ["base_url", "api_key"]
    assert {p.kind for p in list(inspect.signature(svir.Client).parameters.values())[1:]} == {
        inspect.Parameter.KEYWORD_ONLY
    }


def argument_names(arguments: str) -> list[str]:
    node = ast.parse(f"def f({arguments}): pass").body[0]
    assert isinstance(node, ast.FunctionDef)
    every = [*node.args.args, node.args.vararg, *node.args.kwonlyargs, node.args.kwarg]
    return [argument.arg for argument in every if argument is not None]


if __name__ == "__main__":
    sys.stdout.write(surface())
