"""Runs the macro in a real LibreOffice, without a window: libreoffice-writer and python3-uno.

    /usr/bin/python3 examples/libreoffice/run.py http://127.0.0.1:1234 qwen3-4b "Text to rewrite"

It installs the macro as the menu would find it, in a profile of its own that it removes again,
selects the text, runs the macro by its script URL, and prints the document; then it undoes that.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uno  # pyright: ignore[reportMissingImports]

HERE = Path(__file__).resolve().parent
SCRIPT = "vnd.sun.star.script:svir_rewrite.py$rewrite_selection?language=Python&location=user"


def main(url: str, model: str, text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        scripts = Path(folder) / "user" / "Scripts" / "python"
        (scripts / "pythonpath").mkdir(parents=True)
        shutil.copy(HERE / "svir_rewrite.py", scripts)
        shutil.copy(HERE.parent.parent / "svir.py", scripts / "pythonpath")
        pipe = f"svir{os.getpid()}"
        command = ["soffice", "--headless", "--norestore", "--nologo"]
        command += [
            f"-env:UserInstallation={Path(folder).as_uri()}",
            f"--accept=pipe,name={pipe};urp;",
        ]
        environ = {**os.environ, "SVIR_URL": url, "SVIR_MODEL": model, "SVIR_HEADLESS": "1"}
        with subprocess.Popen(command, env=environ) as office:
            try:
                desktop, context = connect(pipe)
                try:
                    show(desktop, context, text)
                finally:
                    desktop.terminate()
            finally:
                try:
                    office.wait(20)
                except subprocess.TimeoutExpired:
                    office.kill()
                    print("LibreOffice did not end by itself", file=sys.stderr)


def connect(pipe: str) -> Any:
    resolver = uno.getComponentContext().ServiceManager.createInstance(
        "com.sun.star.bridge.UnoUrlResolver"
    )
    for _ in range(240):
        try:
            context = resolver.resolve(f"uno:pipe,name={pipe};urp;StarOffice.ComponentContext")
            break
        except Exception:  # it has not started yet
            time.sleep(0.25)
    else:
        raise SystemExit("LibreOffice did not start")
    return context.ServiceManager.createInstance("com.sun.star.frame.Desktop"), context


def show(desktop: Any, context: Any, text: str) -> None:
    document = desktop.loadComponentFromURL("private:factory/swriter", "_blank", 0, ())
    try:
        document.Text.setString(text)
        cursor = document.Text.createTextCursor()
        cursor.gotoEnd(True)
        document.getCurrentController().select(cursor)
        factory = context.getValueByName(
            "/singletons/com.sun.star.script.provider.theMasterScriptProviderFactory"
        )
        script = factory.createScriptProvider("").getScript(SCRIPT)
        script.invoke((), (), ())
        print(document.Text.getString())
        document.getUndoManager().undo()
        assert document.Text.getString() == text, "one step of Undo takes it back"
    finally:
        document.close(True)


if __name__ == "__main__":
    main(*sys.argv[1:])
