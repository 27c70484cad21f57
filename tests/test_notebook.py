"""svir_ext.notebook: what is drawn and when, that nothing of an answer runs, and a real kernel."""

from __future__ import annotations

import importlib.util
import io
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
import types
from html.parser import HTMLParser
from typing import Any, Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import svir
from svir_ext.notebook import Live, markdown, show
from svir_ext.testing import CUT, STALL, scripted

ROOT = pathlib.Path(__file__).resolve().parent.parent
REQUEST = svir.Request("m", "Hi")


def stream(*steps: Any, **options: Any) -> svir.Stream:
    client = svir.Client("http://localhost:1", layers=[scripted(*steps, **options)])
    return client.stream(REQUEST)


def threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("svir")]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    end = time.monotonic() + 5
    while threads() and time.monotonic() < end:
        time.sleep(0.01)
    assert not threads()


# -- Where nothing can be drawn again -------------------------------------------------------------


def test_plain_text(capsys: Any) -> None:
    call = svir.ToolCall("1", "weather", '{"city": "Oslo"}')
    answer = show(stream(svir.ReasoningDelta("Hm."), "Hel", "lo", call, usage=(5, 2)))
    text = capsys.readouterr().out
    assert text.startswith(
        'Hello\n\nweather({"city": "Oslo"})\n\n[tool_calls, 5 tokens in, 2 out, '
    )
    assert text.endswith(" s]\n")
    assert (answer.text, answer.reasoning, answer.error) == ("Hello", "Hm.", None)
    assert answer.completion is not None
    assert answer.result() is answer.completion
    assert answer.done
    assert repr(answer) == "<Live whole, 5 characters>"


def test_text_comes_as_it_arrives(monkeypatch: Any) -> None:
    gate = threading.Event()

    class Out(io.StringIO):
        def write(self, text: str) -> int:
            if "Hel" in text:
                gate.set()
            return super().write(text)

    def layer(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
        yield svir.TextDelta("Hel")
        assert gate.wait(5)
        yield svir.TextDelta("lo")
        yield svir.Completed(svir.Completion("Hello", finish_reason="stop"))

    out = Out()
    monkeypatch.setattr(sys, "stdout", out)
    show(svir.Client("http://localhost:1", layers=[layer]).stream(REQUEST))
    assert out.getvalue().startswith("Hello\n\n[")


def test_a_terminal_is_not_steered(capsys: Any) -> None:
    show(stream("a\x1b[2J", "\x07b\r", "c\u202ed\x9b1\tm\n"))
    assert capsys.readouterr().out.startswith("a[2Jbcd1\tm\n")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_encoding(encoding: str, monkeypatch: Any) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    monkeypatch.setattr(sys, "stdout", out)
    show(stream("é中"))
    wanted = "é中".encode(encoding, "replace")
    assert out.buffer.getvalue().startswith(wanted)  # type: ignore[attr-defined]


def test_no_console_at_all(monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert show(stream("Hello")).text == "Hello"


def test_an_error_is_shown_and_raised(capsys: Any) -> None:
    live = Live(stream("Hel", CUT))
    with pytest.raises(svir.Truncated) as caught:
        live.show()
    assert "truncated: the script has CUT here" in capsys.readouterr().out
    assert live.text == "Hel"
    assert live.completion is None
    assert isinstance(live.error, svir.Truncated)
    assert live.error is not caught.value, "what is kept has no traceback"
    assert live.error.__traceback__ is None
    with pytest.raises(svir.Truncated):
        live.result()


def test_a_mistake_in_a_layer_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        show(stream("Hel", ZeroDivisionError("mine")))
    assert any(entry.name == "_events" for entry in caught.traceback)


def test_stopped_from_another_thread() -> None:
    live = Live(stream("Hel", STALL))
    timer = threading.Timer(0.2, live.stop)
    timer.start()
    assert live.show() is live
    timer.join()
    assert isinstance(live.error, svir.Cancelled)
    assert (live.text, repr(live)) == ("Hel", "<Live stopped, 3 characters>")


def test_an_interrupt_keeps_what_had_come(monkeypatch: Any) -> None:
    live = Live(stream("Hel", STALL))
    take = live._take

    def interrupted(event: svir.Event) -> None:
        take(event)
        raise KeyboardInterrupt

    monkeypatch.setattr(live, "_take", interrupted)
    with pytest.raises(KeyboardInterrupt):
        live.show()
    assert live.text == "Hel"
    assert live.done
    assert isinstance(live.error, svir.Cancelled)


def test_in_the_background() -> None:
    live = show(stream("Hel", 0.2, "lo"), wait=False)
    assert not live.done
    assert live.result().text == "Hello"
    assert live.done


def test_wrong_use() -> None:
    with pytest.raises(svir.ConfigError, match=r"client\.stream"):
        Live(["Hello"])  # type: ignore[arg-type]
    live = Live(stream("a"))
    with pytest.raises(RuntimeError, match="not shown"):
        live.result()
    live.show()
    with pytest.raises(RuntimeError, match="already"):
        live.show()


def test_without_threads(monkeypatch: Any) -> None:
    """In a browser's Python a thread cannot be started."""

    def refuse(self: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert show(stream("Hel", "lo")).text == "Hello"


# -- A front end ----------------------------------------------------------------------------------


class Front:
    """IPython as far as it is used: what was displayed, and each update."""

    def __init__(self, monkeypatch: Any, kind: str = "ZMQInteractiveShell") -> None:
        self.shown: list[Any] = []
        self.updates: list[tuple[float, dict[str, str]]] = []
        self.shell: Any = type(kind, (), {"execution_count": 1})()
        self.button: Any = None
        core = types.ModuleType("IPython")
        core.get_ipython = lambda: self.shell  # type: ignore[attr-defined]
        display = types.ModuleType("IPython.display")
        display.display = self.display  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "IPython", core)
        monkeypatch.setitem(sys.modules, "IPython.display", display)
        monkeypatch.setitem(sys.modules, "ipywidgets", None)

    def display(self, what: Any, **options: Any) -> Any:
        self.shown.append(what)
        self.updates += [(time.monotonic(), what)] if isinstance(what, dict) else []
        return self

    def update(self, what: Any, **options: Any) -> None:
        assert options == {"raw": True}
        self.updates.append((time.monotonic(), what))

    def with_widgets(self, monkeypatch: Any) -> None:
        class Button:
            closed = False

            def __init__(self, **options: Any) -> None:
                assert options["description"] == "Stop"

            def on_click(self, call: Callable[[Any], None]) -> None:
                self.click = call

            def close(self) -> None:
                self.closed = True

        widgets = types.ModuleType("ipywidgets")
        widgets.Button = Button  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "ipywidgets", widgets)

    @property
    def last(self) -> str:
        return self.updates[-1][1]["text/markdown"]


@pytest.fixture
def front(monkeypatch: Any) -> Front:
    return Front(monkeypatch)


def test_the_last_drawing(front: Front, capsys: Any) -> None:
    call = svir.ToolCall("1", "weather", '{"city": "Oslo"}')
    show(stream(svir.ReasoningDelta("Hm <b>."), "A *word*.", call, usage=(5, 2)))
    assert re.sub(r"\d+&#46;\d+ s", "N s", front.last) == (
        "<details><summary>Reasoning</summary>\n\nHm &lt;b>.\n\n</details>\n\nA *word*.\n\n"
        '```\nweather({"city": "Oslo"})\n```\n\n'
        "*tool&#95;calls&#44; 5 tokens in&#44; 2 out&#44; N s*"
    )
    assert front.updates[-1][1]["text/plain"].startswith("A *word*.\n\nweather(")
    assert capsys.readouterr().out == "", "nothing is printed beside it"


def test_reasoning_is_open_until_the_answer_begins(front: Front) -> None:
    show(stream(svir.ReasoningDelta("Hm."), 0.3, "Hello", 0.3), every=0.0)
    drawn = [update["text/markdown"] for _, update in front.updates]
    assert any("<details open>" in each and "Hello" not in each for each in drawn)
    assert not any("<details open>" in each for each in drawn if "Hello" in each)


def test_updates_are_few(front: Front) -> None:
    """However fast it arrives; and the last piece does not wait for the next."""
    events: list[Any] = [step for number in range(300) for step in (f"w{number} ", 0.002)]
    show(stream(*events), every=0.2)
    drawn = [at for at, _ in front.updates]
    assert len(drawn) <= (drawn[-1] - drawn[0]) / 0.2 + 3
    assert min(b - a for a, b in zip(drawn[:-1], drawn[1:-1])) >= 0.19
    assert "w299" in front.last


def test_the_last_piece_is_drawn_while_nothing_comes(front: Front) -> None:
    live = show(stream("Hel", 0.02, "lo", STALL), wait=False, every=0.3)
    end = time.monotonic() + 5
    while "Hello" not in front.last and time.monotonic() < end:
        time.sleep(0.01)
    assert front.last.startswith("Hello")
    live.stop()


def test_long_answers_are_drawn_less_often(front: Front) -> None:
    events: list[Any] = [step for _ in range(40) for step in ("x" * 5000, 0.01)]
    show(stream(*events), every=0.05)
    sent = sum(len(update["text/markdown"]) for _, update in front.updates)
    seconds = front.updates[-1][0] - front.updates[0][0]
    assert sent / max(seconds, 0.4) < 20_000 / 0.05 * 3


def test_an_error_is_drawn(front: Front) -> None:
    error = svir.ServerError("it *failed*", server_message="<script>no</script>")
    with pytest.raises(svir.ServerError):
        show(stream("Hel", error))
    said = "**server**: it &#42;failed&#42;&#58; &#60;script&#62;no&#60;&#47;script&#62;"
    assert said in front.last
    assert "Hel" in front.last


def test_a_value_is_shown_once_in_its_cell(front: Front) -> None:
    answer = show(stream("Hello"))
    shown = len(front.shown)
    answer._ipython_display_()
    assert len(front.shown) == shown
    front.shell.execution_count = 2
    answer._ipython_display_()
    assert front.shown[-1]["text/markdown"] == front.last


def test_a_terminal_is_no_front_end(monkeypatch: Any, capsys: Any) -> None:
    front = Front(monkeypatch, "TerminalInteractiveShell")
    show(stream("Hello"))
    assert front.shown == []
    assert capsys.readouterr().out.startswith("Hello")


def test_the_stop_button(front: Front, monkeypatch: Any) -> None:
    front.with_widgets(monkeypatch)
    live = show(stream("Hel", STALL), wait=False)
    button = front.shown[0]
    button.click(None)
    with pytest.raises(svir.Cancelled):
        live.result()
    assert button.closed
    assert front.updates[-1][1] == {"text/plain": "", "text/html": ""}, "its place is empty"
    assert "**stopped**" in front.updates[-2][1]["text/markdown"]


def test_no_button_that_nobody_hears(front: Front, monkeypatch: Any) -> None:
    front.with_widgets(monkeypatch)
    show(stream("Hello"))
    assert all(isinstance(each, dict) for each in front.shown)


# -- Nothing of an answer runs --------------------------------------------------------------------

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "a <b onclick=x>b</b> <!-- --> <?php ?> <![CDATA[ ]]> </details>",
    "`` <img src=x> ` `<img src=x>`` `",
    "\\`<img src=x>\\`",
    "```\n<img src=x>\n``\n```\n<img src=x>",
    "~~~\n```\n~~~\n<img src=x>",
    "```\n~~~\n```\n<img src=x>\n~~~",
    "> ```\n<img src=x>\n> ```",
    "~~~ a`b\n```\n~~~\n<img src=x>\n```",
    "- ```\n<img src=x>\n  ```\n<img src=x>",
    "1. a\n\n   ```html\n   <img src=x>\n   ```\n<img src=x>",
    "    ```\n<img src=x>\n    ```\n<img src=x>",
    "``` a`b\n<img src=x>\n```\n<img src=x>",
    "```\r<img src=x>\r```\r<img src=x>",
    "```\x0b```\n<img src=x>\n```\u2028<img src=x>",
    "```{raw} html\n<img src=x>\n```",
    ":::{raw} html\n<img src=x>\n:::",
    "````\n```\n<img src=x>\n````\n<img src=x>",
    "[a](javascript:alert(1)) [b]( JaVaScRiPt:alert(1)) [c](\njavascript:alert(1))",
    "[a](java&#115;cript:alert(1)) [b](<javascript:alert(1)>) [c](data:text/html,x)",
    "[a][b]\n\n[b]: javascript:alert(1)\n\n[c]\n\n[c]:\njavascript:alert(1)",
    "[a\\](javascript:alert(1)) \\[b](javascript:alert(1)) [c] (javascript:alert(1))",
    "<javascript:alert(1)> <https://x.example>",
    "![a](https://evil.example/?leak) ![b][c]\n\n[c]: https://evil.example/x.png",
    "\\![a](https://evil.example/?leak) \\\\![a](https://evil.example/?leak)",
    "[![a](https://evil.example/i.png)](https://x.example)",
    "`[a](javascript:x)` `![a](https://evil.example)",
    "\\<img src=x> \\\\<img src=x> &lt;img src=x>",
    "<\u200bimg> <\nimg src=x> <\timg>",
    "| a | b |\n|---|---|\n| <img src=x> | `|` <img src=x> |",
    "$x<img src=x>$ $$\n<img src=x>\n$$",
    "<details>\n\n```\n</details>\n<img src=x>",
    "[^1]: <img src=x>\n\n[^1]",
    "# <img src=x>\n===\n***\n<img src=x>",
    "a\n<div>\n```\n</div>\n<img src=x>",
]
SAFE = set(
    "p h1 h2 h3 h4 h5 h6 ul ol li blockquote pre code em strong s del a hr br table thead tbody"
    " tr th td details summary sup section".split()
)


class Seen(HTMLParser):
    """What a browser would make of it: every tag has to be one that does nothing."""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        assert tag in SAFE, f"<{tag}>"
        for name, value in attrs:
            fits = {"href": r"https?://|mailto:|#", "class": "", "start": "", "align": "",
                    "style": "text-align:", "id": "fn", "open": ""}  # fmt: skip
            assert name in ({"title"} | set(fits)), f"{tag} {name}={value}"
            assert re.match(fits.get(name, ""), value or ""), f"{tag} {name}={value}"

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def handle_decl(self, decl: str) -> None:
        raise AssertionError(f"a declaration: {decl}")

    def handle_pi(self, data: str) -> None:
        raise AssertionError(f"an instruction: {data}")


def by_markdown_it(text: str) -> str:
    package = importlib.import_module("markdown_it")
    # Everything that could be drawn is: html, and no check of links.
    made = package.MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    made.validateLink = lambda url: True
    return str(made.render(text))


def by_mistune(text: str) -> str:
    mistune = importlib.import_module("mistune")
    renderer = mistune.HTMLRenderer(escape=False, allow_harmful_protocols=True)
    plugins = ["table", "strikethrough", "footnotes", "url", "task_lists"]
    return str(mistune.create_markdown(renderer=renderer, plugins=plugins)(text))


def parsers() -> list[Any]:
    found = []
    for name, package in (("by_markdown_it", "markdown_it"), ("by_mistune", "mistune")):
        missing = importlib.util.find_spec(package) is None
        reason = f"*** {package} is not installed: hostile Markdown was not given to it"
        mark = pytest.mark.skipif(missing, reason=reason)
        found.append(pytest.param(globals()[name], id=package, marks=mark))
    return found


@pytest.mark.parametrize("parse", parsers())
def test_these_would_run(parse: Callable[[str], str]) -> None:
    """The check below can fail."""
    for text in ("<img src=x>", "[a](javascript:x)", "![a](https://x.example)"):
        with pytest.raises(AssertionError):
            Seen().feed(parse(text))


@pytest.mark.parametrize("parse", parsers())
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile(text: str, parse: Callable[[str], str]) -> None:
    for around in ("{}", "Hello {}", "- a\n- {}", "> {}", "{}\n\n```\n<i>\n```\n\n{}"):
        Seen().feed(parse(markdown(around.replace("{}", text))))


FRAGMENTS = (
    "<img src=x>", "<", ">", "/", "!", "[", "]", "(", ")", ":", "\\", "&#60;", "&lt;", "\t", "=",
    "https://x.example", "javascript:", "`", "``", "```", "~~~", "````", "\n", "\n\n", "\r", " ",
    "1. ", "#", "*", "_", "$", "$$", "|", "a", '"', "'", "\x0b", "\u2028", "<!--", "-->", "    ",
    "<script>", "</details>", "[a]: ", "](", "![", ":::", "{raw}", "|-|\n", "\\href{javascript:}",
    "- ", "> ",
)  # fmt: skip


@pytest.mark.parametrize("parse", parsers())
@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=25).map("".join))
def test_hostile_by_chance(parse: Callable[[str], str], text: str) -> None:
    made = markdown(text)
    Seen().feed(parse(made))
    assert "![" not in re.sub(r"(?ms)^(`{3,}).*?^\1$", "", made)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("# A *b* **c** _d_\n\n1. e\n2. f\n\n> g", None),
        ("a < b, 1 <2, a <= b & c > d", None),
        ("[a](https://x.example) and [b](mailto:b@x.example)", None),
        ("`code` and ``a ` b``", None),
        ("| a |\n|---|\n| b |", None),
        ('```python\nif a<b: f("<b>")\n```', None),
        ("a\n```\nx\n```\nb", "a\n\n```\nx\n```\n\nb"),
        ("~~~js\na `` ```\n~~~", "````js\na `` ```\n````"),
        ("```\nnot closed <b>", "```\nnot closed <b>\n```"),
        ("```mermaid\na\n```", "```\na\n```"),
        ("```\n\n```", None),
        ("`List<int>`", "<code>List&#60;int&#62;</code>"),
        ("$a<b$ and $$c<d$$", r"$a\lt b$ and $$c\lt d$$"),
        (r"$\href{javascript:x}{y} \frac12$", r"$&#92;href{javascript:x}{y} \frac12$"),
        ("![a](https://x.example)", "&#33;[a](https://x.example)"),
        ("a\r\nb\rc\u2028d", "a\nb\nc\nd"),
        ("", ""),
        ("\n\n", ""),
    ],
)
def test_markdown(text: str, shown: str | None) -> None:
    assert markdown(text) == (text if shown is None else shown)


def test_a_long_answer_takes_no_long_time() -> None:
    """Each redrawing reads all of it: none of the patterns may be quadratic."""
    for piece in (
        "`" * 2,
        "$",
        "<",
        "[a](",
        "\\",
        "``a",
        "$ a",
        "!",
        "```\n",
        "~~~ `\n",
        "a `b\n",
    ):
        start = time.process_time()
        markdown(piece * (200_000 // len(piece)))
        assert time.process_time() - start < 5, piece


# -- A real kernel --------------------------------------------------------------------------------

MISSING = [
    name
    for name in ("nbclient", "nbformat", "ipykernel")
    if importlib.util.find_spec(name) is None
]
needs_jupyter = pytest.mark.skipif(
    bool(MISSING), reason=f"*** no real notebook was run: {', '.join(MISSING)} not installed"
)
SETUP = f"""
import sys
sys.path.insert(0, {str(pathlib.Path(svir.__file__).resolve().parent)!r})
sys.path.insert(0, {str(ROOT)!r})
import os, signal, threading, svir
from svir_ext.notebook import Live, show
from svir_ext.testing import CUT, STALL, scripted
def stream(*steps, **options):
    client = svir.Client("http://localhost:1", layers=[scripted(*steps, **options)])
    return client.stream(svir.Request("m", "Hi"))
"""


@pytest.fixture(scope="module")
def cells() -> Any:
    """The outputs of cells that one kernel ran, by name."""
    nbclient, v4 = map(importlib.import_module, ("nbclient", "nbformat.v4"))
    code = {
        "setup": SETUP,
        "whole": 'answer = show(stream(svir.ReasoningDelta("Hm."), "Hel", 0.2, "lo <b>",'
        " usage=(5, 2)))\nanswer",
        "again": "answer",
        "later": 'later = show(stream("Hel", 0.3, "lo"), wait=False)\nlater',
        "after": 'print(later.result().text, end="")',
        "failed": 'show(stream("Hel", CUT))',
        "interrupted": "live = Live(stream('Hel', STALL))\n"
        "threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()\nlive.show()",
        "kept": 'print(live.text, live.error.kind, live.done, end="")',
    }
    made = v4.new_notebook(cells=[v4.new_code_cell(each) for each in code.values()])
    client = nbclient.NotebookClient(made, timeout=60, allow_errors=True, kernel_name="python3")
    client.execute()
    return {name: cell["outputs"] for name, cell in zip(code, made.cells)}


def drawn(outputs: Any) -> list[str]:
    """The answers in a cell: what else there is is the place of a button."""
    data = [each["data"] for each in outputs if each["output_type"] == "display_data"]
    return [each["text/markdown"] for each in data if "text/markdown" in each]


def failure(outputs: Any) -> list[str]:
    return [each["ename"] for each in outputs if each["output_type"] == "error"]


@needs_jupyter
def test_a_real_notebook(cells: Any) -> None:
    assert cells["setup"] == []
    (text,) = drawn(cells["whole"])
    assert text.startswith("<details><summary>Reasoning</summary>\n\nHm.\n\n</details>")
    assert "Hello &lt;b>" in text
    assert "5 tokens in&#44; 2 out" in text
    assert len(cells["whole"]) == 1, "it is drawn in one place, and not a second time"
    assert drawn(cells["again"]) == [text]


@needs_jupyter
def test_a_real_notebook_in_the_background(cells: Any) -> None:
    (text,) = drawn(cells["later"])
    assert text.startswith("Hello\n\n*"), "it was drawn to its end after the cell was over"
    assert cells["after"][0]["text"] == "Hello"


@needs_jupyter
def test_a_real_notebook_fails_and_is_interrupted(cells: Any) -> None:
    assert failure(cells["failed"]) == ["Truncated"]
    (text,) = drawn(cells["failed"])
    assert text.startswith("Hel\n\n**truncated**")
    assert failure(cells["interrupted"]) == ["KeyboardInterrupt"]
    (text,) = drawn(cells["interrupted"])
    assert text.startswith("Hel\n\n**stopped**")
    assert cells["kept"][0]["text"] == "Hel cancelled True"


def test_importing_it_imports_no_front_end() -> None:
    code = "import svir_ext.notebook, sys; print({'IPython', 'ipywidgets'} & {*sys.modules})"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=30, env=env)
    assert done.stdout.strip() == b"set()", done.stderr
