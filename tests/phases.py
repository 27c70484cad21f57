"""Every place in which a call can wait, as a client and a request that will wait there."""

from __future__ import annotations

import socket
import ssl
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest

import svir
from harness import REQUEST
from loopback import Peer, full_backlog
from svir_ext.testing import MockServer, text_answer

BIG = svir.Request("m", "x" * (8 << 20))  # more than the buffers of two sockets hold
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
UNIX = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no UNIX sockets")
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
OPEN_ANSWER = text_answer("a", finish_reason=None)[:-1]  # an event with text, and no end


class Stage:
    """Where a phase puts its servers, which end with `stack`. `settings` are the client's."""

    def __init__(self, stack: ExitStack, tls: Any, settings: dict[str, Any]) -> None:
        self.stack, self.tls, self.settings = stack, tls, settings

    def client(self, url: str, **settings: Any) -> svir.Client:
        layers = [*self.settings.get("layers", ()), *settings.pop("layers", ())]
        return svir.Client(url, **{**self.settings, "layers": layers, **settings})

    def mock(self, *steps: Any, secure: bool = False, **options: Any) -> svir.Client:
        """A server that answers every request so, and a client for it."""
        server = self.stack.enter_context(MockServer(tls=self.tls.server() if secure else None))
        return self.client_of(server, steps, options, **self.secure() if secure else {})

    def unix(self, *steps: Any, **options: Any) -> svir.Client:
        path = str(Path(self.stack.enter_context(tempfile.TemporaryDirectory())) / "s")
        server = self.stack.enter_context(MockServer(unix=path))
        return self.client_of(server, steps, options, unix_socket=path)

    def client_of(
        self, server: MockServer, steps: Any, options: Any, **settings: Any
    ) -> svir.Client:
        if options.get("read_body") is False:
            server.reply(*steps, **options)  # only a queued reply is that early
        else:
            server.default(*steps, **options)
        return self.client(server.url, **settings)

    def secure(self) -> dict[str, Any]:
        """The context is made beforehand: a client's own is made in its first call, slowly."""
        return {"ssl_context": ssl.create_default_context(cafile=self.tls.cafile)}

    def silent(self) -> Peer:
        return self.stack.enter_context(Peer(silent))


def silent(conn: Any) -> None:
    """A peer that takes everything and says nothing."""
    while conn.recv(65536):
        pass


def asleep(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
    call.sleep(30)
    yield from call(request)


PHASES: dict[str, Callable[[Stage], svir.Client]] = {
    "connecting": lambda s: s.client(s.stack.enter_context(full_backlog())),
    "tls-handshake": lambda s: s.client(s.silent().tls_url, **s.secure()),
    "connect-by-proxy": lambda s: s.client("https://host.example", proxy=s.silent().url),
    "upload": lambda s: s.mock(raw=True, hang=True, read_body=False),
    "upload-tls": lambda s: s.mock(raw=True, hang=True, read_body=False, secure=True),
    "before-the-headers": lambda s: s.mock(raw=True, hang=True),
    "before-the-headers-tls": lambda s: s.mock(raw=True, hang=True, secure=True),
    "before-the-headers-unix": lambda s: s.unix(raw=True, hang=True),
    "inside-the-headers": lambda s: s.mock(STREAM_HEAD + b"A: ", raw=True, hang=True),
    "body-of-an-error": lambda s: s.mock(b"{", status=400, hang=True),
    "before-the-body": lambda s: s.mock(hang=True),
    "between-events": lambda s: s.mock(OPEN_ANSWER, hang=True),
    "between-events-tls": lambda s: s.mock(OPEN_ANSWER, hang=True, secure=True),
    "inside-a-chunk-size": lambda s: s.mock(
        STREAM_HEAD + b"Transfer-Encoding: chunked\r\n\r\n1", raw=True, hang=True
    ),
    "asleep-in-a-layer": lambda s: s.client("http://127.0.0.1:1", layers=[asleep]),
}
# Elsewhere a full queue refuses.
ONLY_SOMEWHERE = {"connecting": LINUX, "before-the-headers-unix": UNIX}


def phases(*without: str) -> pytest.MarkDecorator:
    """Run a test in each phase, as its argument `phase`."""
    names = [name for name in PHASES if name not in without]
    return pytest.mark.parametrize(
        "phase", [pytest.param(name, marks=ONLY_SOMEWHERE.get(name, ())) for name in names]
    )


class Asked:
    """A client, and what to ask of it."""

    def __init__(self, client: svir.Client, request: svir.Request) -> None:
        self.client, self.request = client, request

    def stream(self) -> svir.Stream:
        return self.client.stream(self.request)

    def open(self, how: str) -> Any:
        return self.stream() if how == "stream" else self.client.send(self.request)


def ask_in(phase: str, stack: ExitStack, tls: Any, **settings: Any) -> Asked:
    client = stack.enter_context(PHASES[phase](Stage(stack, tls, settings)))
    request = BIG if phase.startswith("upload") else REQUEST
    # Without usage a refusal is final: no second request is made without it.
    return Asked(client, request.replace(include_usage=False))
