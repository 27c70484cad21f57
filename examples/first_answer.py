"""Stream a first answer to the terminal.

    python3 examples/first_answer.py ["a question"]

It asks a model server that already runs on this machine, or sets up a small model of its own (on
Linux x86-64), or else shows a scripted answer. All of that is in local_server.py; this is svir.
"""

from __future__ import annotations

import sys

import local_server  # first: it puts this checkout's svir.py on the path
import svir


def stream_answer(url: str, model: str, question: str) -> None:
    client = svir.Client(url)
    request = svir.Request(model, question, system="Answer in two or three plain sentences.")
    with client.stream(request) as stream:
        for text in stream.text():
            print(text, end="", flush=True)

    completion = stream.completion
    print(f"\n\nfinish reason: {completion.finish_reason}")
    if completion.usage is not None:
        usage = completion.usage
        print(f"tokens: {usage.prompt_tokens} read, {usage.completion_tokens} written")
    if completion.timing is not None and completion.timing.tokens_per_second is not None:
        print(f"speed: {completion.timing.tokens_per_second:.0f} tokens a second")


def main() -> int:
    options = local_server.options(__doc__)
    try:
        with local_server.find_or_start(options) as server:
            stream_answer(server.url, server.model, options.question)
    except svir.Error as error:
        print(f"\n{error.kind}: {error}", file=sys.stderr)
        if error.server_message:  # from outside: a terminal obeys escape sequences
            words = error.server_message
            words = "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in words)
            print(words, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
