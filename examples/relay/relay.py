"""A WSGI relay: a browser asks, the model server's stream passes through unchanged.

    cp svir.py examples/relay/          # svir.py from the root of the repository
    python examples/relay/relay.py      # http://127.0.0.1:8000/, wsgiref, one thread a request
    gunicorn --threads 16 --chdir examples/relay relay

The key and the model's address stay here; the browser sends what was said, and gets the server's
bytes. Settings are environment variables:

    RELAY_UPSTREAM   the model server, http://127.0.0.1:1234
    RELAY_MODEL      the model to ask for; by default the first that the server lists
    RELAY_KEY        the server's API key, if it wants one
    RELAY_ORIGINS    the pages that may ask: http://127.0.0.1:8000 http://localhost:8000

This has no login: whoever reaches the page can use the model.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import re
import select
import socket
import socketserver
import sys
import threading
from pathlib import Path
from typing import Any, Callable, Iterable
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import svir

PAGE = Path(__file__).with_name("page.html").read_bytes()
MAX_BODY = 64 * 1024  # bytes of a question with all that was said before
MAX_TOKENS = 2048  # of an answer
MAX_AT_ONCE = 8  # answers in progress
SYSTEM = "Answer briefly."

# The page loads nothing, and runs no script but its own.
SCRIPT = re.findall(rb"<script>(.*?)</script>", PAGE, re.DOTALL)[0]
POLICY = (
    "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; frame-ancestors 'none'; "
    f"script-src 'sha256-{base64.b64encode(hashlib.sha256(SCRIPT).digest()).decode()}'"
)
STATUS = {
    200: "200 OK", 400: "400 Bad Request", 403: "403 Forbidden", 404: "404 Not Found",
    411: "411 Length Required", 413: "413 Content Too Large", 429: "429 Too Many Requests",
    502: "502 Bad Gateway", 503: "503 Service Unavailable",
}  # fmt: skip


class Refused(Exception):
    """A request that is not passed on: a status, a kind and words for the page."""

    def __init__(self, status: int, kind: str, message: str, retry_after: float | None = None):
        super().__init__(status, kind, message)
        self.status, self.kind, self.message = status, kind, message
        self.retry_after = retry_after


class Relay:
    """The WSGI application. `origins` are those whose pages may ask, such as `https://host`."""

    def __init__(self, client: svir.Client, origins: Iterable[str], model: str = "") -> None:
        self.client, self.origins, self.model = client, frozenset(origins), model
        self.free = threading.BoundedSemaphore(MAX_AT_ONCE)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        try:
            wanted = environ["REQUEST_METHOD"], environ.get("PATH_INFO", "")
            if wanted == ("GET", "/"):
                headers = [("Content-Security-Policy", POLICY)]
                return _whole(start_response, 200, "text/html; charset=utf-8", PAGE, headers)
            if wanted == ("POST", "/chat"):
                return self.chat(environ, start_response)
            raise Refused(404, "not_found", "There is GET / and POST /chat.")
        except Refused as error:
            body = {"error": {"type": error.kind, "message": error.message}}
            headers = []
            if error.retry_after is not None:
                headers.append(("Retry-After", str(round(error.retry_after))))
            data = json.dumps(body).encode()
            return _whole(start_response, error.status, "application/json", data, headers)

    def chat(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        # A browser names the page's origin with every POST, and a page cannot change that.
        if environ.get("HTTP_ORIGIN") not in self.origins:
            raise Refused(403, "origin", "Only this relay's own page may ask.")
        messages = _messages(_body(environ))
        if not self.free.acquire(blocking=False):
            raise Refused(503, "busy", "Too many answers at once.", retry_after=5)
        relayed = Relayed(environ, self.free.release)
        try:
            model = self.model or self.first_model()
            request = svir.Request(model, messages, system=SYSTEM, max_tokens=MAX_TOKENS)
            relayed.open(self.client.send(request))
            start_response(STATUS[200], relayed.headers())
        except svir.Error as error:
            relayed.close()
            relayed.log(error)
            raise _refused(error) from None
        except BaseException:
            relayed.close()
            raise
        return relayed

    def first_model(self) -> str:
        models = self.client.list_models()
        if not models:
            raise Refused(502, "no_model", "The model server lists no model.")
        return models[0].id


class Relayed:
    """The body of an answer: the upstream bytes as they arrive.

    A server calls `close()` however it ends. A generator would not do: one that never started runs
    no `finally` when it is closed.
    """

    raw: svir.RawStream

    def __init__(self, environ: dict[str, Any], ended: Callable[[], object]) -> None:
        self.errors, self.ended = environ["wsgi.errors"], ended
        self.over = threading.Event()
        # Stop in the page closes the browser's connection. A WSGI server sees that only when it
        # writes, and a model may think for a minute before there is anything to write. gunicorn
        # gives the socket, the server below does; elsewhere the next bytes find it out.
        self.browser: Any = environ.get("gunicorn.socket") or environ.get("relay.socket")

    def open(self, raw: svir.RawStream) -> None:
        """Send the request. Raises svir.Error; nothing has gone to the browser yet."""
        self.raw = raw
        if self.browser is not None:
            threading.Thread(target=self.watch, name="relay", daemon=True).start()
        raw.__enter__()

    def watch(self) -> None:
        while not self.over.wait(0.1):
            if _has_left(self.browser):
                self.raw.close()  # wakes the thread that reads
                return

    def headers(self) -> list[tuple[str, str]]:
        sent = self.raw.headers
        headers = [(n, sent[n]) for n in ("content-type", "content-encoding") if n in sent]
        # nginx in front would hold the stream back.
        return [*headers, ("Cache-Control", "no-store"), ("X-Accel-Buffering", "no")]

    def __iter__(self) -> Relayed:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self.raw)
        except svir.Error as error:
            self.log(error)
            # WSGI servers take this for a browser that left, and break the connection off (but for
            # mod_wsgi). The body must not end properly: a cut answer would look whole to HTTP.
            raise BrokenPipeError(errno.EPIPE, "the answer was cut") from None

    def log(self, error: svir.Error) -> None:
        if error.kind != "cancelled":  # the browser left
            print(f"relay: {error.kind}: {error}", file=self.errors)

    def close(self) -> None:
        if not self.over.is_set():
            self.over.set()
            if hasattr(self, "raw"):
                self.raw.close()
            self.ended()


def _has_left(sock: socket.socket) -> bool:
    """Whether the browser has closed its connection. Takes nothing from it."""
    try:
        readable, _, _ = select.select([sock], [], [], 0)
        return bool(readable) and socket.socket.recv(sock, 1, socket.MSG_PEEK) == b""
    except (OSError, ValueError):  # reset, or closed on this side
        return True


def _body(environ: dict[str, Any]) -> Any:
    length = environ.get("CONTENT_LENGTH") or ""
    if not length.isdigit():
        raise Refused(411, "length", "The request needs a Content-Length.")
    if int(length) > MAX_BODY:
        raise Refused(413, "too_large", f"More than {MAX_BODY} bytes were said.")
    try:
        return json.loads(environ["wsgi.input"].read(int(length)))
    except (ValueError, RecursionError):
        raise Refused(400, "json", "The body is not JSON.") from None


def _messages(body: Any) -> list[svir.Message]:
    """[["user", text], ["assistant", text], ...]: nothing else of a request is the page's."""
    roles: dict[Any, Any] = {"user": svir.User, "assistant": svir.Assistant}
    try:
        messages = [roles[role](text) for role, text in body]
    except (KeyError, TypeError, ValueError):
        messages = []
    if not messages or not isinstance(messages[-1], svir.User):
        raise Refused(400, "messages", 'Send [["user", "..."]], the last one of the user.')
    return messages


def _refused(error: svir.Error) -> Refused:
    """What the page may know: the kind and the server's own words, not where the server is."""
    status = {"rate_limited": 429, "unavailable": 503, "context_overflow": 413}.get(
        error.kind, 502
    )
    message = error.server_message or f"The model server could not answer ({error.kind})."
    return Refused(status, error.kind, message, error.retry_after)


def _whole(
    start_response: Any, status: int, kind: str, body: bytes, headers: list[tuple[str, str]]
) -> list[bytes]:
    own = [("Content-Type", kind), ("Content-Length", str(len(body)))]
    safe = [("X-Content-Type-Options", "nosniff"), ("Cache-Control", "no-store")]
    start_response(STATUS[status], own + safe + headers)
    return [body]


# -- wsgiref, a thread for each request -----------------------------------------------------------


class Handler(WSGIRequestHandler):
    """wsgiref's, with the socket in the environ, and a limit on a browser that says nothing."""

    timeout = 60

    def get_environ(self) -> dict[str, Any]:
        return {**super().get_environ(), "relay.socket": self.connection}

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


def serve(application: Relay, port: int = 8000) -> Server:
    server = Server(("127.0.0.1", port), Handler)
    server.set_app(application)
    return server


def from_environment() -> Relay:
    env = os.environ
    key = svir.Secret.from_env("RELAY_KEY") if env.get("RELAY_KEY") else None
    client = svir.Client(env.get("RELAY_UPSTREAM", "http://127.0.0.1:1234"), api_key=key)
    origins = env.get("RELAY_ORIGINS", "http://127.0.0.1:8000 http://localhost:8000").split()
    return Relay(client, origins, env.get("RELAY_MODEL", ""))


application = from_environment()  # what gunicorn and mod_wsgi look for

if __name__ == "__main__":
    with serve(application) as server:
        print("http://127.0.0.1:8000/", file=sys.stderr)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass
