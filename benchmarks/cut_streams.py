"""What clients make of an answer that is cut off: svir, the SDKs, and loops by hand.

    pip install openai httpx-sse ollama litellm langchain-openai urllib3 requests
    python3 benchmarks/cut_streams.py            a Markdown table; docs/comparison.md keeps one

A server on loopback sends the same answer to each client, and ends it in each of the ways below.
Each client is used as its own documentation shows it, with its defaults. What is not installed is
left out, and named on stderr. Nothing leaves this machine.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pathlib
import platform
import socket
import struct
import sys
import threading
from typing import Any, Callable, Iterator, NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import svir

PIECES = ("The sky", " is blue", " because")
REST = " of Rayleigh scattering."

# -- The server -----------------------------------------------------------------------------------


class Ending(NamedTuple):
    title: str
    framing: str = "chunked"  # or "close", the connection's end; or "length", a Content-Length
    whole: bool = False  # the rest of the text and the finish reason are sent
    marker: bool = False  # [DONE], or Ollama's "done": true
    closed: bool = False  # the framing is brought to its end
    reset: bool = False  # the connection is reset, not closed
    error: bool = False  # the server says that it failed


ENDINGS = {
    "whole": Ending("a whole answer, for comparison", whole=True, marker=True, closed=True),
    "chunked": Ending("chunked, and the connection closes in the middle"),
    "reset": Ending("chunked, and the connection is reset in the middle", reset=True),
    "proxy": Ending("chunked, and the body ends in the middle, its framing in order", closed=True),
    "close": Ending("without a length, and the connection closes in the middle", "close"),
    "length": Ending("with a Content-Length, and the connection closes in the middle", "length"),
    "error": Ending("an error inside the stream, and then the end", closed=True, error=True),
    "no-done": Ending(
        "all of the text and a finish reason, but no `[DONE]`", whole=True, closed=True
    ),
}


def openai_events(ending: Ending) -> Iterator[bytes]:
    def chunk(delta: object, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return sse({"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m",
                    "choices": [choice]})  # fmt: skip

    def sse(data: object) -> bytes:
        return b"data: " + json.dumps(data).encode() + b"\n\n"

    yield chunk({"role": "assistant", "content": ""})
    for piece in PIECES:
        yield chunk({"content": piece})
    if ending.error:
        yield sse({"error": {"message": "the engine stopped", "code": 500}})
    if ending.whole:
        yield chunk({"content": REST})
        yield chunk({}, "stop")
    if ending.marker:
        yield b"data: [DONE]\n\n"


def ollama_events(ending: Ending) -> Iterator[bytes]:
    """Ollama's own API: JSON lines, and the last one says done."""

    def line(text: str, done: bool = False) -> bytes:
        data: dict[str, Any] = {"model": "m", "done": done}
        data["message"] = {"role": "assistant", "content": text}
        return json.dumps(dict(data, done_reason="stop") if done else data).encode() + b"\n"

    for piece in PIECES:
        yield line(piece)
    if ending.error:
        yield json.dumps({"error": "the engine stopped"}).encode() + b"\n"
    if ending.whole:
        yield line(REST)
    if ending.marker:
        yield line("", done=True)


class Server:
    """Sends one answer, ended in one way, to everyone who asks; counts the requests."""

    def __init__(self, ending: Ending) -> None:
        self.ending, self.requests = ending, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()[0]
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(10)
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        path = read_request(connection)
        self.requests += 1
        is_ollama = path.startswith("/api/")
        body = list((ollama_events if is_ollama else openai_events)(self.ending))
        framing = self.ending.framing
        kind = "application/x-ndjson" if is_ollama else "text/event-stream"
        fields = {
            "chunked": "Transfer-Encoding: chunked\r\n",
            "length": f"Content-Length: {len(b''.join(body)) + 500}\r\n",
            "close": "Connection: close\r\n",
        }
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{fields[framing]}\r\n"
        connection.sendall(head.encode())
        for event in body:
            connection.sendall(
                b"%x\r\n%s\r\n" % (len(event), event) if framing == "chunked" else event
            )
        if self.ending.closed:
            connection.sendall(b"0\r\n\r\n")
        if self.ending.reset:  # the client has read what was sent before the reset comes
            threading.Event().wait(0.2)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass


def read_request(connection: socket.socket) -> str:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536) or b"\r\n\r\n"
    head, _, body = data.partition(b"\r\n\r\n")
    fields = dict(
        line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line
    )
    left = int(fields.get(b"content-length", b"0")) - len(body)
    while left > 0:
        left -= len(connection.recv(65536)) or left
    return head.split(b" ")[1].decode()


# -- The clients ----------------------------------------------------------------------------------
# Each yields pieces of text, and, where the client has one, the finish reason as ("finish", it).

MESSAGES = [{"role": "user", "content": "Why is the sky blue?"}]
BODY = {"model": "m", "messages": MESSAGES, "stream": True}
Piece = Any


def with_svir(url: str) -> Iterator[Piece]:
    with svir.Client(url).stream(svir.Request("m", "Why is the sky blue?")) as stream:
        yield from stream.text()
    yield "finish", stream.completion.finish_reason


def with_openai(url: str) -> Iterator[Piece]:
    import openai

    client: Any = openai.OpenAI(base_url=url + "/v1", api_key="none")
    finish = None
    for chunk in client.chat.completions.create(**BODY):
        for choice in chunk.choices:
            yield choice.delta.content
            finish = choice.finish_reason or finish
    yield "finish", finish


def with_openai_helper(url: str) -> Iterator[Piece]:
    import openai

    client: Any = openai.OpenAI(base_url=url + "/v1", api_key="none")
    with client.chat.completions.stream(model="m", messages=MESSAGES) as stream:
        for event in stream:
            if event.type == "content.delta":
                yield event.delta
        yield "finish", stream.get_final_completion().choices[0].finish_reason


def with_litellm(url: str) -> Iterator[Piece]:
    import litellm

    litellm.suppress_debug_info = True
    options = {"api_base": url + "/v1", "api_key": "none"}
    finish = None
    for chunk in litellm.completion(**{**BODY, "model": "openai/m"}, **options):
        choice: Any = chunk.choices[0]
        yield choice.delta.content
        finish = choice.finish_reason or finish
    yield "finish", finish


def with_langchain(url: str) -> Iterator[Piece]:
    from langchain_openai import ChatOpenAI

    chat: Any = ChatOpenAI(model="m", base_url=url + "/v1", api_key="none")  # type: ignore
    finish = None
    for chunk in chat.stream("Why is the sky blue?"):
        yield chunk.content
        finish = chunk.response_metadata.get("finish_reason") or finish
    yield "finish", finish


def with_ollama(url: str) -> Iterator[Piece]:
    import ollama

    finish = None
    for part in ollama.Client(host=url).chat(model="m", messages=MESSAGES, stream=True):
        yield part.message.content
        finish = part.done_reason or finish
    yield "finish", finish


def with_httpx_sse(url: str) -> Iterator[Piece]:
    import httpx
    import httpx_sse

    with httpx.Client(trust_env=False) as client, httpx_sse.connect_sse(
        client, "POST", url + "/v1/chat/completions", json=BODY
    ) as source:
        yield from read_events(event.data for event in source.iter_sse())


def with_requests(url: str) -> Iterator[Piece]:
    import requests

    with requests.post(url + "/v1/chat/completions", json=BODY, stream=True, timeout=10) as answer:
        yield from read_lines(answer.iter_lines())


def with_urllib3(url: str) -> Iterator[Piece]:
    import urllib3

    answer = urllib3.PoolManager().request(
        "POST", url + "/v1/chat/completions", json=BODY, preload_content=False, timeout=10
    )
    yield from read_lines(answer)
    answer.release_conn()


def with_urllib(url: str) -> Iterator[Piece]:
    import urllib.request

    headers = {"content-type": "application/json"}
    request = urllib.request.Request(
        url + "/v1/chat/completions", json.dumps(BODY).encode(), headers
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        yield from read_lines(answer)


def read_lines(lines: Any) -> Iterator[Piece]:
    """The loop that tutorials show."""
    yield from read_events(
        line[6:].decode().strip() for line in lines if line.startswith(b"data: ")
    )


def read_events(events: Iterator[str]) -> Iterator[Piece]:
    finish = None
    for data in events:
        if data == "[DONE]":
            break
        for choice in json.loads(data).get("choices", ()):
            yield choice["delta"].get("content")
            finish = choice["finish_reason"] or finish
    yield "finish", finish


CLIENTS: dict[str, tuple[str, Callable[[str], Iterator[Piece]]]] = {
    "svir": ("svir", with_svir),
    "openai, `create(stream=True)`": ("openai", with_openai),
    "openai, `chat.completions.stream`": ("openai", with_openai_helper),
    "litellm": ("litellm", with_litellm),
    "langchain-openai": ("langchain-openai", with_langchain),
    "ollama (its own API)": ("ollama", with_ollama),
    "httpx-sse, a loop by hand": ("httpx-sse", with_httpx_sse),
    "requests, a loop by hand": ("requests", with_requests),
    "urllib3, a loop by hand": ("urllib3", with_urllib3),
    "urllib, a loop by hand": ("", with_urllib),
}

# -- The table ------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    text: str
    error: str | None  # the class of what was raised
    finish: str | None
    requests: int

    def __str__(self) -> str:
        """A cell of the table."""
        end = f"`{self.error}`" if self.error else "whole" if self.finish else "**silent**"
        lost = "" if self.text.startswith("".join(PIECES)) else " †"
        again = "" if self.requests == 1 else f" ({self.requests} requests)"
        return end + lost + again


def ask(client: Callable[[str], Iterator[Piece]], ending: Ending) -> Outcome:
    texts: list[str] = []
    finish = error = None
    with Server(ending) as server:
        try:
            for piece in client(server.url):
                if isinstance(piece, tuple):
                    finish = piece[1]
                else:
                    texts.append(piece or "")
        except ImportError:
            raise
        except Exception as caught:
            error = type(caught).__name__
        return Outcome("".join(texts), error, finish, server.requests)


def version(package: str) -> str:
    from importlib.metadata import version

    if not package:
        return "Python " + platform.python_version()
    return f"{package} {svir.__version__ if package == 'svir' else version(package)}"


def main() -> int:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        del os.environ[name]
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it fetches a list at import
    logging.disable(logging.CRITICAL)
    versions = []
    for number, ending in enumerate(ENDINGS.values(), 1):
        print(f"{number}. {ending.title}")
    print("\n| Client |", " | ".join(map(str, range(1, len(ENDINGS) + 1))), "|")
    print("|", " | ".join(["---"] * (len(ENDINGS) + 1)), "|")
    for title, (package, client) in CLIENTS.items():
        try:
            outcomes = [ask(client, ending) for ending in ENDINGS.values()]
        except ImportError as error:
            print(f"not installed, left out: {title} ({error})", file=sys.stderr)
            continue
        versions.append(version(package))
        print(f"| {title} |", " | ".join(map(str, outcomes)), "|", flush=True)
    print("\n" + ", ".join(dict.fromkeys(versions)) + ".")
    return 0


if __name__ == "__main__":
    sys.exit(main())
