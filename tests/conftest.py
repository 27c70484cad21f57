"""Fixtures for every test: the real llama-server, and certificates for TLS."""

from __future__ import annotations

import contextlib
import os
import signal
import ssl
from pathlib import Path
from typing import Callable, Iterator

import pytest

import llama_server
import pinned
from llama_server import LlamaServer

HERE = Path(__file__).parent
WHY_NOT = llama_server.why_not()
IN_CI = os.environ.get("CI") == "true" and pinned.supported()


# A shell that runs a command in the background has it ignore SIGINT; some tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    if WHY_NOT is None:
        return f"llama-server: {' '.join(llama_server.program() or ())}"
    return f"llama-server: *** tests on a real server are SKIPPED: {WHY_NOT}"


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The scripted model's file; a test that needs a real server skips here when there is none."""
    if WHY_NOT is not None:
        (pytest.fail if IN_CI else pytest.skip)(WHY_NOT)
    return llama_server.tiny_model(str(tmp_path_factory.mktemp("model") / "tiny.gguf"))


@pytest.fixture(scope="session")
def llama(tiny_model: str) -> Iterator[LlamaServer]:
    """One plain llama-server for the whole run."""
    with LlamaServer(model=tiny_model) as server:
        yield server


@pytest.fixture
def start_llama(tiny_model: str) -> Iterator[Callable[..., LlamaServer]]:
    """Start servers for one test: `start_llama("--api-key", "k", unix_socket=True)`."""
    with contextlib.ExitStack() as stack:

        def start(*args: str, unix_socket: bool = False) -> LlamaServer:
            server = LlamaServer(args, model=tiny_model, unix_socket=unix_socket)
            return stack.enter_context(server)

        yield start


class Tls:
    """Certificates of a root of our own, for a server on this machine; see tests/tls/make.sh."""

    cafile = str(HERE / "tls" / "root.pem")

    def server(self, name: str = "localhost") -> ssl.SSLContext:
        """A server's context: "localhost", "elsewhere" (another host's) or "expired"."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(str(HERE / "tls" / f"{name}.pem"))
        return context


@pytest.fixture(scope="session")
def tls() -> Tls:
    return Tls()
