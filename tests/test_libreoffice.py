"""examples/libreoffice with a stand-in for a document. Its README runs the real program."""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path
from typing import Any

import pytest

from svir_ext.testing import CUT, MockServer, text_answer

MACRO = Path(__file__).parent.parent / "examples" / "libreoffice" / "svir_rewrite.py"


class Document:
    """As much of a Writer document as the macro touches."""

    def __init__(self, text: str) -> None:
        self.text, self.calls, self.bar = text, [], []  # type: ignore[var-annotated]

    # The selection
    def getCurrentSelection(self) -> Any:
        return self

    def getByIndex(self, index: int) -> Any:
        return self

    def getString(self) -> str:
        return self.text

    def setString(self, text: str) -> None:
        self.calls.append("set")
        self.text = text

    # Undo, the window and its status bar
    def getUndoManager(self) -> Any:
        return self

    def enterUndoContext(self, name: str) -> None:
        self.calls.append("enter")

    def leaveUndoContext(self) -> None:
        self.calls.append("leave")

    def getCurrentController(self) -> Any:
        return self

    def getFrame(self) -> Any:
        return self

    def getContainerWindow(self) -> Any:
        return self

    def createStatusIndicator(self) -> Any:
        return self

    def start(self, text: str, steps: int) -> None:
        self.bar.append(text)

    def setText(self, text: str) -> None:
        self.bar.append(text)

    def end(self) -> None:
        self.bar.append(None)


@pytest.fixture
def macro() -> Any:
    spec = importlib.util.spec_from_file_location("svir_rewrite", MACRO)
    assert spec is not None
    module: Any = importlib.util.module_from_spec(spec)
    loader: Any = spec.loader
    loader.exec_module(module)
    return module


def test_the_selection_is_rewritten(macro: Any) -> None:
    document, go, answer = Document("helo wrld"), threading.Event(), text_answer("Hello ", "world")

    class Toolkit:
        def processEventsToIdle(self) -> None:
            assert document.text == "helo wrld", "replaced only by a whole answer"
            if document.bar[-1] == "Hello ":
                go.set()

    with MockServer() as server:
        macro.URL = server.url
        server.reply(answer[:2], go, answer[2:])
        macro.rewrite(document, Toolkit())
        messages = server.requests[0].json()["messages"]
    assert document.text == "Hello world"
    assert document.calls == ["enter", "set", "leave"]
    assert document.bar[-1] is None
    assert messages[1] == {"role": "user", "content": "helo wrld"}


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([*text_answer("Hel")[:2], CUT], "^truncated: "),
        (text_answer("Hel", finish_reason="length"), "length"),
    ],
)
def test_what_is_not_whole_changes_nothing(macro: Any, steps: list[Any], words: str) -> None:
    document = Document("helo")
    with MockServer() as server:
        macro.URL = server.url
        server.reply(steps)
        with pytest.raises(RuntimeError, match=words):
            macro.rewrite(document)
    assert (document.text, document.calls, document.bar[-1]) == ("helo", [], None)
    assert not [t for t in threading.enumerate() if t.name == "svir"], "no thread is left"


def test_nothing_selected(macro: Any) -> None:
    with pytest.raises(RuntimeError, match="Select some text"):
        macro.rewrite(Document(" "))
