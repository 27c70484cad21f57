"""(gdb) explain [QUESTION]: a model says what goes on in the selected frame. Ctrl-C stops it.

    mkdir ~/.gdb && cp svir.py examples/gdb/explain.py ~/.gdb/
    echo 'source ~/.gdb/explain.py' >> ~/.gdbinit

It asks ASK_URL, http://localhost:1234 by default, for the model ASK_MODEL; a key is taken from
ASK_API_KEY. The source around the frame, its arguments and its local variables are sent there.

gdb does nothing else while a command runs, so this is the plain loop: no thread, no timer, and
nothing to unload. While Python runs, gdb raises KeyboardInterrupt on Ctrl-C.
"""

# The modules of the host, and the copy of svir.py, are only there when it runs in the host.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportMissingModuleSource=false
from __future__ import annotations

import importlib.util
import os
from typing import Any, Iterator

import gdb


class Explain(gdb.Command):
    """Ask a model about the selected frame: explain [QUESTION]

    The source around it, its arguments and its local variables are sent along."""

    # All sourced scripts share one __main__: what is kept here cannot be another script's.
    def __init__(self, name: str = "explain") -> None:
        super().__init__(name, gdb.COMMAND_STACK)
        # The copy beside this file, under a name of its own, for the same reason.
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "svir.py")
        spec: Any = importlib.util.spec_from_file_location("gdb_explain_svir", path)
        self.svir: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.svir)
        self.gdb, self.environ = gdb, os.environ

    def invoke(self, argument: str, from_tty: bool) -> None:
        svir, write = self.svir, self.gdb.write
        try:
            with self.client().stream(self.request(argument)) as stream:
                for text in stream.text():
                    write(self.plain(text))
                    self.gdb.flush()
            finish = stream.completion.finish_reason
            write("\n" if finish == "stop" else f"\n[{finish}]\n")
        except KeyboardInterrupt:
            write("\n[stopped]\n")
        except svir.Error as error:
            raise self.gdb.GdbError(self.told(error)) from None
        except self.gdb.error as error:  # no frame is selected, for one
            raise self.gdb.GdbError(str(error)) from None

    def told(self, error: Any) -> str:
        """An error, with the server's own words: they are often the only reason."""
        words = f"\n{error.server_message}" if error.server_message else ""
        return self.plain(f"{error.kind}: {error}{words}")

    def plain(self, text: str) -> str:
        """A terminal obeys escape sequences, whoever wrote them: they are shown as escapes."""
        return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)

    def client(self) -> Any:
        key = "ASK_API_KEY" if self.environ.get("ASK_API_KEY") else None
        return self.svir.Client(
            self.environ.get("ASK_URL", "http://localhost:1234"),
            api_key=key and self.svir.Secret.from_env(key),
        )

    def request(self, question: str) -> Any:
        question = question or "What does this function do, and does anything look wrong?"
        return self.svir.Request(
            self.environ.get("ASK_MODEL", "default"),
            f"{question}\n\n{self.context(self.gdb.selected_frame())}",
            system="You explain one frame of a stopped program to its programmer, briefly.",
        )

    def context(self, frame: Any) -> str:
        sections = {
            "Stack": self.output("backtrace 8"),
            "Source": self.source(frame),
            "Arguments and local variables": "\n".join(self.variables(frame)),
        }
        return "\n\n".join(f"{name}:\n{text}" for name, text in sections.items() if text)

    def output(self, command: str) -> str:
        try:
            return self.gdb.execute(command, to_string=True).rstrip()
        except self.gdb.error as error:
            return f"({error})"

    def source(self, frame: Any) -> str:
        place = frame.find_sal()
        if place.symtab is None:
            return "(none: it was built without -g)"
        first, last = max(1, place.line - 15), place.line + 10
        lines = self.output(f"list {place.symtab.filename}:{first},{last}")
        return f"{lines}\n(it stands at line {place.line})"

    def variables(self, frame: Any) -> Iterator[str]:
        try:
            block = frame.block()
        except RuntimeError:  # no symbols for this frame
            return
        seen: set[str] = set()
        while block is not None:
            for symbol in block:
                if (symbol.is_argument or symbol.is_variable) and symbol.name not in seen:
                    seen.add(symbol.name)  # an inner one hides an outer one of this name
                    yield f"{symbol.name} = {self.value(symbol, frame)}"
            block = None if block.function else block.superblock

    def value(self, symbol: Any, frame: Any) -> str:
        try:
            return symbol.value(frame).format_string(max_elements=20)[:300]
        except self.gdb.error as error:  # a pointer to nowhere, for one
            return f"({error})"


Explain()
