"""A LibreOffice macro: a model rewrites the selected text of a Writer document.

    dir=~/.config/libreoffice/4/user/Scripts/python     # Linux; README.md has the others
    mkdir -p $dir/pythonpath
    cp examples/libreoffice/svir_rewrite.py $dir/
    cp svir.py $dir/pythonpath/                          # LibreOffice puts that on sys.path

Then Tools > Macros > Run Macro > My Macros > svir_rewrite > rewrite_selection. The server and the
model are set by SVIR_URL and SVIR_MODEL in the environment of LibreOffice, or below.
"""

from __future__ import annotations

import os
import time
from typing import Any

import svir

URL = os.environ.get("SVIR_URL", "http://127.0.0.1:1234")
MODEL = os.environ.get("SVIR_MODEL", "qwen3-4b")
SYSTEM = "Rewrite the user's text so that it reads well. Answer with the new text only."
SECONDS = 120.0  # for the whole answer


def rewrite_selection(*args: object) -> None:
    """What the menu runs. One step of Undo takes the whole of it back."""
    document = XSCRIPTCONTEXT.getDocument()  # type: ignore[name-defined]  # noqa: F821
    toolkit = XSCRIPTCONTEXT.getComponentContext().ServiceManager.createInstance(  # type: ignore[name-defined]  # noqa: F821
        "com.sun.star.awt.Toolkit"
    )
    rewrite(document, toolkit)


def rewrite(document: Any, toolkit: Any = None) -> None:
    """Replace the selection once the answer is whole. Else the document stays as it is."""
    ranges = document.getCurrentSelection()
    selected = ranges.getByIndex(0)
    text = selected.getString()
    if not text.strip():
        say(document, toolkit, "Select some text first.")
        return
    work = svir.Background(stream(text))
    try:
        completion = follow(document, work, toolkit)
    except svir.Error as error:
        say(document, toolkit, told(error))
        return
    finally:
        work.cancel()
        work.join(5)  # no thread may be left when LibreOffice quits
    undo = document.getUndoManager()
    undo.enterUndoContext("Rewrite")
    try:
        selected.setString(completion.text)
    finally:
        undo.leaveUndoContext()


def stream(text: str) -> svir.Stream:
    client = svir.Client(URL, total_timeout=SECONDS)
    return client.stream(svir.Request(MODEL, text, system=SYSTEM))


def follow(document: Any, work: svir.Background, toolkit: Any) -> svir.Completion:
    """Show the answer grow in the status bar, and let the window live meanwhile."""
    bar = document.getCurrentController().getFrame().createStatusIndicator()
    bar.start("Rewriting", 0)
    shown = ""
    try:
        while not work.done:
            shown += "".join(event.text for event in work.poll() if event.type == "text")
            bar.setText(shown[-60:].replace("\n", " ") or "Rewriting")
            if hasattr(toolkit, "processEventsToIdle"):
                toolkit.processEventsToIdle()
            time.sleep(0.05)
    finally:
        bar.end()
    completion = work.result()
    if completion.finish_reason != "stop":
        raise svir.Truncated(f"the answer is not whole: {completion.finish_reason}")
    return completion


def told(error: svir.Error) -> str:
    """An error, with the server's own words: they are often the only reason."""
    words = f"\n\n{error.server_message}" if error.server_message else ""
    return f"{error.kind}: {error}{words}"


def say(document: Any, toolkit: Any, message: str) -> None:
    """A message box; without a window, as under --headless, an error of the macro."""
    window = document.getCurrentController().getFrame().getContainerWindow()
    box = getattr(toolkit, "createMessageBox", None)
    if box is None or os.environ.get("SVIR_HEADLESS"):
        raise RuntimeError(message)
    from com.sun.star.awt.MessageBoxType import ERRORBOX  # pyright: ignore[reportMissingImports]

    box(window, ERRORBOX, 1, "svir", message).execute()


g_exportedScripts = (rewrite_selection,)
