"""Write docs/reference.md: the public names of svir and svir_ext, from their sources.

    python3 docs/make_reference.py            writes it
    python3 docs/make_reference.py --check    says whether it is current

The words are those of the docstrings: to change a word, change it there. Nothing is imported, so
the page is the same from every Python.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import pathlib
import re
import sys
import textwrap
from typing import Any, Iterable, Iterator

HERE = pathlib.Path(__file__).resolve().parent
PAGE = HERE / "reference.md"
HEAD = """\
# Reference

Every public name, from the docstrings. `docs/make_reference.py` writes this page; do not edit it.
The other pages say what to do with these: [start here](README.md).

Values (messages, requests, completions, events) are immutable. They compare, hash, copy, pickle
and print by their fields, and have `replace(**changes)`, `to_dict()` and `from_dict(data)`: see
[serialization](serialization.md). What cannot be used raises [`ConfigError`](#configerror), an
argument that does not exist `TypeError`. Arguments after `*` are taken by name only.
"""

# What svir makes and gives out: how it does that is nobody's concern.
GIVEN = ("Body", "Call", "Deadline", "MockRequest", "RawStream")


class Source:
    """A module's file, as text and as a tree."""

    def __init__(self, path: pathlib.Path) -> None:
        text = path.read_text("utf-8")
        self.lines = text.splitlines()
        self.tree = ast.parse(text)
        self.docstring = ast.get_docstring(self.tree) or ""
        self.public = list(self.exported())

    def exported(self) -> Iterator[str]:
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and name_of(node) == "__all__":
                yield from ast.literal_eval(node.value)

    def of(self, node: Any) -> str:
        """The source of an expression, on one line."""
        # Not ast.get_source_segment: it splits the whole file for each expression.
        lines = [line.encode("utf-8") for line in self.lines[node.lineno - 1 : node.end_lineno]]
        lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        text = " ".join(b" ".join(lines).decode("utf-8").split())
        return re.sub(r",? ([\])}])", r"\1", re.sub(r"([\[({]) ", r"\1", text))

    def section(self, line: int) -> str:
        """The title of the banner above a line."""
        titles = [
            match.group(1)
            for text in self.lines[:line]
            for match in [re.match(r"# -- (\d\. \w+) -", text)]
            if match
        ]
        return titles[-1] if titles else ""


def name_of(node: Any) -> str:
    """What a statement defines: a class, a function, or the first name it assigns."""
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", node)
    return getattr(target, "id", "") or getattr(node, "name", "")


def find(module: str) -> pathlib.Path:
    spec = importlib.util.find_spec(module)
    assert spec is not None, module
    assert spec.origin is not None, module
    return pathlib.Path(spec.origin)


# -- Signatures -----------------------------------------------------------------------------------


def signature(source: Source, node: Any, is_method: bool) -> str:
    """The arguments and the result of a function, in lines of at most 99."""
    words = list(arguments(source, node.args))[1 if has_self(node, is_method) else 0 :]
    result = f" -> {source.of(node.returns)}" if node.returns is not None else ""
    return broken(words, result)


def has_self(node: Any, is_method: bool) -> bool:
    """Whether the first argument is `self` or `cls`."""
    return is_method and "staticmethod" not in decorators(node)


def arguments(source: Source, spec: ast.arguments) -> Iterator[str]:
    none: list[Any] = [None]
    before = list(getattr(spec, "posonlyargs", [])) + spec.args
    defaults = none * (len(before) - len(spec.defaults)) + list(spec.defaults)
    for node, default in zip(before, defaults):
        yield argument(source, node, default)
    if spec.vararg is not None:
        yield "*" + argument(source, spec.vararg, None)
    elif spec.kwonlyargs:
        yield "*"
    for node, default in zip(spec.kwonlyargs, spec.kw_defaults):
        yield argument(source, node, default)
    if spec.kwarg is not None:
        yield "**" + argument(source, spec.kwarg, None)


def argument(source: Source, node: ast.arg, default: Any) -> str:
    note = f": {source.of(node.annotation)}" if node.annotation is not None else ""
    if default is None:
        return node.arg + note
    return f"{node.arg}{note}{' = ' if note else '='}{source.of(default)}"


def broken(words: Iterable[str], result: str = "") -> str:
    words = list(words)
    line = f"({', '.join(words)}){result}"
    if len(line) <= 80:
        return line
    return "(\n" + "".join(f"    {word},\n" for word in words) + f"){result}"


def decorators(node: Any) -> list[str]:
    return [getattr(word, "id", getattr(word, "attr", "")) for word in node.decorator_list]


# -- Classes --------------------------------------------------------------------------------------


def is_value(source: Source, node: ast.ClassDef) -> bool:
    return "_Value" in [getattr(base, "id", "") for base in node.bases]


def fields(source: Source, node: ast.ClassDef) -> Iterator[tuple[ast.AnnAssign, str]]:
    """The annotated attributes of a class, with the text below each that explains it."""
    below = [*node.body[1:], node.body[0]]
    for statement, following in zip(node.body, below):
        if isinstance(statement, ast.AnnAssign) and not name_of(statement).startswith("_"):
            value = getattr(following, "value", None) if isinstance(following, ast.Expr) else None
            text = getattr(value, "value", None)
            yield (
                statement,
                text if isinstance(text, str) and following is not node.body[0] else "",
            )


def constructor(source: Source, node: ast.ClassDef) -> str:
    """How a class is called. A value's fields are its arguments (see `_Value` in svir.py)."""
    init = next((n for n in node.body if name_of(n) == "__init__"), None)
    takes_any = isinstance(init, ast.FunctionDef) and init.args.vararg is not None
    if takes_any or not is_value(source, node):  # of the values, User(*parts) has its own
        taken = signature(source, init, True) if init is not None else ""
        return node.name + taken.replace(") -> None", ")")
    settings = {name_of(n): n.value for n in node.body if isinstance(n, ast.Assign)}
    by_place = ast.literal_eval(settings["_positional"]) if "_positional" in settings else 2
    defaults = ast.literal_eval(settings["_defaults"]) if "_defaults" in settings else {}
    words: list[str] = []
    for place, (field, _) in enumerate(own_fields(source, node)):
        words += ["*"] if place == by_place else []
        words.append(shown_field(source, field, defaults))
    return node.name + broken(words)


def own_fields(source: Source, node: ast.ClassDef) -> list[tuple[ast.AnnAssign, str]]:
    return [
        (field, text)
        for field, text in fields(source, node)
        if not source.of(field.annotation).startswith("ClassVar")
    ]


def shown_field(source: Source, field: ast.AnnAssign, defaults: dict[str, Any]) -> str:
    name, note = name_of(field), source.of(field.annotation).replace("_Count", "int")
    if field.value is not None:
        return f"{name}: {note} = {source.of(field.value)}"
    return f"{name}: {note}" + (f" = {json.dumps(defaults[name])}" if name in defaults else "")


def methods(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    """The public methods; of overloads the last, which has the docstring."""
    seen: dict[str, ast.FunctionDef] = {}
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_"):
            seen[inner.name] = inner
    for inner in seen.values():
        if is_value_method(inner):
            continue
        yield inner


def is_value_method(node: ast.FunctionDef) -> bool:
    return node.name in ("replace", "to_dict", "from_dict")


# -- Markdown -------------------------------------------------------------------------------------


# `name`: at the start of a sentence opens an item of a list; `name`, `other`: and the like too.
_ITEM = re.compile(r"(?:\A|(?<=[.:] ))(?=`[^`]+`(?:,? (?:and )?`[^`]+`)*: )")


def prose(text: str) -> str:
    """A docstring as Markdown: its code is fenced, its sentences about one name are a list."""
    return "\n\n".join(paragraph(block) for block in re.split(r"\n[ ]*\n", clean(text)))


def paragraph(block: str) -> str:
    if re.match(r" {4}", block):
        return code(textwrap.dedent(block))
    text = re.sub(r"``(.+?)``", r"`\1`", block)
    text = re.sub(r"\bdocs/(\w+\.md)", r"[\1](\1)", text)
    text = re.sub(r"^(\d+)\.(?=\s)", r"\1\\.", text, flags=re.MULTILINE)  # "429." opens no list
    start, *items = cut(" ".join(text.split()))
    if not items:
        return text
    lines = [f"- {item.strip()}" for item in items]
    return "\n".join(([start.strip(), ""] if start.strip() else []) + lines)


def cut(text: str) -> list[str]:
    """What comes before the first item, and the items. (`re.split` at "" needs no group.)"""
    places = [match.start() for match in _ITEM.finditer(text)]
    return [text[at:end] for at, end in zip([0, *places], [*places, None])]


def clean(text: str) -> str:
    """What `inspect.cleandoc` does, where the first line has no indent."""
    first, _, rest = text.strip().partition("\n")
    return first if not rest else first + "\n" + textwrap.dedent(rest)


def entry(source: Source, node: Any, level: str) -> Iterator[str]:
    """One public name."""
    yield f"{level} {name_of(node)}"
    if isinstance(node, ast.ClassDef):
        yield from class_entry(source, node)
    elif isinstance(node, ast.FunctionDef):
        if "fixture" in decorators(node):
            yield "A pytest fixture."
        yield code(node.name + signature(source, node, False))
        yield prose(ast.get_docstring(node, clean=False) or "")
    else:
        yield code(assigned(source, node))
        yield prose(after(source, node))


def class_entry(source: Source, node: ast.ClassDef) -> Iterator[str]:
    bases = [source.of(base) for base in node.bases]
    bases = [base for base in bases if not re.match(r"_|Protocol|Dict|NamedTuple|Generic", base)]
    kind = "protocol" if is_protocol(node) else "class"
    yield code(f"{kind} {constructor(source, node) if node.name not in GIVEN else node.name}")
    if bases:
        yield "A kind of " + ", ".join(f"`{base}`" for base in bases) + "."
    yield prose(ast.get_docstring(node, clean=False) or "")
    told = [
        f"- `{shown_field(source, field, {})}`" + (f": {prose(text)}" if text else "")
        for field, text in fields(source, node)
        if text or (not is_value(source, node) and "ClassVar" not in source.of(field.annotation))
    ]
    told += [f"- `{name}`: {value}" for name, value in class_facts(source, node)]
    if told:
        yield "\n".join(told)
    listed = "\n".join(method_entry(source, method) for method in methods(node))
    yield f"Attributes and methods:\n\n{listed}" if listed else ""


def class_facts(source: Source, node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """`kind` and `retryable` of an error, `type` of an event."""
    for inner in node.body:
        if isinstance(inner, ast.Assign) and name_of(inner) in ("kind", "retryable"):
            yield name_of(inner), f"`{source.of(inner.value)}`"
        elif isinstance(inner, ast.AnnAssign) and name_of(inner) == "type" and inner.value:
            yield "type", f"`{source.of(inner.value)}`"


def is_protocol(node: ast.ClassDef) -> bool:
    return any(getattr(base, "id", "") == "Protocol" for base in node.bases)


def method_entry(source: Source, node: ast.FunctionDef) -> str:
    words = decorators(node)
    if "property" in words:
        head = f"{node.name} -> {source.of(node.returns)}" if node.returns else node.name
    else:
        head = ("classmethod " if "classmethod" in words else "") + node.name
        head += signature(source, node, True)
    text = prose(ast.get_docstring(node, clean=False) or "")
    head = f"- **`{' '.join(head.split())}`**".replace("( ", "(").replace(", )", ")")
    return textwrap.indent(f"{head}: {text}" if text else head, "  ")[2:]


def assigned(source: Source, node: Any) -> str:
    return f"{name_of(node)} = {alias_of(node) or source.of(node.value)}"


def alias_of(node: Any) -> str | None:
    """The type that ``Name: TypeAlias = "..."`` stands for."""
    if getattr(getattr(node, "annotation", None), "id", "") != "TypeAlias":
        return None
    return str(ast.literal_eval(node.value)).replace("_PathLike", "os.PathLike[str]")


def after(source: Source, node: Any) -> str:
    """The text below an assignment, which explains it."""
    following = source.tree.body[source.tree.body.index(node) + 1 :][:1]
    for statement in following:
        if isinstance(statement, ast.Expr):
            text = getattr(statement.value, "value", None)
            return text if isinstance(text, str) else ""
    return ""


def code(text: str) -> str:
    return f"```text\n{text}\n```"


def definitions(source: Source) -> Iterator[Any]:
    """The statements that define the public names, in the file's order."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.Assign, ast.AnnAssign)
    seen: dict[str, Any] = {}
    for node in source.tree.body:
        if isinstance(node, kinds) and name_of(node) in source.public:
            seen[name_of(node)] = node
    yield from seen.values()


# -- The page -------------------------------------------------------------------------------------


def core() -> Iterator[str]:
    source = Source(find("svir"))
    section = ""
    yield "## svir"
    for node in definitions(source):
        if source.section(node.lineno) != section:
            section = source.section(node.lineno)
            yield f"### {section}"
        yield from entry(source, node, "####")


def blocks() -> Iterator[str]:
    for path in sorted(find("svir_ext").parent.glob("*.py")):
        source = Source(path)
        if not source.public:
            continue
        yield f"## svir_ext.{path.stem}"
        yield prose(source.docstring)
        for node in definitions(source):
            yield from entry(source, node, "####")


def index(parts: list[str]) -> str:
    """The names of each section, with links."""
    groups: list[tuple[str, list[str]]] = []
    for part in parts:
        title = re.match(r"(#{2,4}) (.+)\Z", part)
        if title is None or title.group(2) == "svir":
            continue
        if len(title.group(1)) < 4:
            groups.append((title.group(2), []))
        else:
            groups[-1][1].append(title.group(2))
    seen: dict[str, int] = {}
    lines = []
    for title, names in groups:
        anchor(title, seen)
        links = ", ".join(f"[`{name}`](#{anchor(name, seen)})" for name in names)
        lines.append(f"- **{title}**: {links}")
    return "\n".join(lines)


def anchor(title: str, seen: dict[str, int]) -> str:
    """The fragment that GitHub gives a heading; the second of a name ends in -1."""
    word = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
    count = seen.get(word, 0)
    seen[word] = count + 1
    return f"{word}-{count}" if count else word


def page() -> str:
    parts = [part.rstrip() for part in [*core(), *blocks()] if part.strip()]
    return "\n\n".join([HEAD.rstrip(), index(parts), *parts]) + "\n"


def main(words: list[str]) -> int:
    sys.path.insert(0, str(HERE.parent))
    text = page()
    if "--check" not in words:
        PAGE.write_bytes(text.encode("utf-8"))  # with plain line ends, on Windows too
        return 0
    current = PAGE.exists() and PAGE.read_text("utf-8") == text
    print("current" if current else "old: python3 docs/make_reference.py writes it anew")
    return 0 if current else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
