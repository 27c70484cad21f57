"""Chat in a terminal with a model that may read and write files of one folder.

    python3 examples/chat_with_tools.py http://localhost:1234 qwen3-4b notes/

It reads in that folder without asking, and asks you before it writes. Ctrl-C stops an answer,
Ctrl-D ends the chat. To take it with you: `cp svir.py chat_with_tools.py`, and the folder
`svir_ext`, into a folder of their own. A key is taken from the variable ASK_API_KEY.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import svir
from svir_ext.tools import Tools

MOST = 20_000  # characters of a file that the model is given
ROUNDS = 10  # of calls, before it has to answer
ACTS = ("write_file",)  # these change something: you are asked first


class Folder:
    """The tools. Paths are relative to the folder; none leads out of it."""

    def __init__(self, root: str) -> None:
        self.root = Path(root).resolve(strict=True)

    def path(self, name: str) -> Path:
        path = (self.root / name).resolve()  # follows links as well
        if self.root not in (path, *path.parents):
            raise ValueError(f"{name} is outside the folder")  # the model is told
        return path

    def list_files(self, folder: str = ".") -> list[str]:
        """Name the files and folders of a folder; folders end in a slash."""
        paths = sorted(self.path(folder).iterdir())
        return [path.name + "/" * path.is_dir() for path in paths]

    def read_file(self, name: str) -> str:
        """Read a text file."""
        with open(self.path(name), encoding="utf-8", errors="replace") as file:
            text = file.read(MOST + 1)
        return text if len(text) <= MOST else text[:MOST] + "\n[more follows]"

    def write_file(self, name: str, text: str) -> str:
        """Write a text file, in the place of what was there."""
        path = self.path(name)
        path.write_text(text, encoding="utf-8")
        return f"wrote {len(text)} characters"


def plain(text: str) -> str:
    """A terminal obeys escape sequences, whoever wrote them: they are shown as escapes."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def allowed(call: svir.ToolCall) -> bool:
    """Say what is called with what; whether it may be."""
    line = plain(f"[{call.name} {call.arguments}]").replace("\n", " ")
    if call.name not in ACTS:
        print(line)
        return True
    return input(f"{line}\nAllow this? [y/N] ").strip().lower() in ("y", "yes")


def answer(client: svir.Client, request: svir.Request, tools: Tools) -> list[svir.Message]:
    """Show an answer, with its rounds of tool calls; the conversation after it."""
    messages = list(request.messages)
    for _ in range(ROUNDS):
        with client.stream(request.replace(messages=messages)) as stream:
            for text in stream.text():
                print(plain(text), end="", flush=True)
        print()
        messages.append(stream.completion.message)
        calls = stream.completion.tool_calls
        if not calls:
            return messages
        for call in calls:
            if allowed(call):
                messages.append(tools.call(call))
            else:
                refused = svir.ToolResult(call.id, "the user does not allow this", is_error=True)
                messages.append(refused)
    print(f"[no answer after {ROUNDS} rounds of calls]")
    return messages


def chat(client: svir.Client, model: str, tools: Tools) -> None:
    messages: list[svir.Message] = []
    while True:
        question = input("\n> ")
        if not question.strip():
            continue
        request = svir.Request(model, [*messages, svir.User(question)], tools=tools)
        try:
            messages = answer(client, request, tools)
        except svir.Error as error:
            print(f"\n[{error.kind}: {plain(str(error))}]")
        except KeyboardInterrupt:
            # What its tools did is done, but the question is not in the history: many models
            # take no second one before an answer.
            print("\n[stopped]")


def main(url: str, model: str, root: str) -> None:
    for stream in (sys.stdin, sys.stdout):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # not every console has every letter
    folder = Folder(root)
    key = svir.Secret.from_env("ASK_API_KEY") if os.environ.get("ASK_API_KEY") else None
    with svir.Client(url, api_key=key) as client:
        try:
            chat(client, model, Tools(folder.list_files, folder.read_file, folder.write_file))
        except (EOFError, KeyboardInterrupt):
            print()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
