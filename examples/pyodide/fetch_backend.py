"""svir in Pyodide: a browser has no sockets, so this sends with fetch().

    cp svir.py examples/pyodide/        # svir.py from the root of the repository

    client = svir.Client(url, backend=FetchBackend())
    for text in client.stream(request).text():          # the usual loop, blocking
        ...

    async for event in events(url, request):            # where nothing may block
        ...

The first needs WebAssembly's promise integration (JSPI); README.md says who has it. The second
works everywhere: svir's encoder and decoder do no I/O.
"""

from __future__ import annotations

from typing import Any, AsyncIterator, Mapping

from js import AbortController, Error, Object, clearTimeout, fetch, setTimeout  # pyright: ignore[reportMissingImports]
from pyodide.ffi import JsException, run_sync, to_js  # pyright: ignore[reportMissingImports]

import svir

# fetch() has decoded the body by the time it is read.
NO_LONGER_TRUE = ("content-encoding", "content-length")


class FetchBackend:
    """svir's HTTP through the browser's. It decides about proxies, TLS and CORS."""

    def send(self, request: svir.HttpRequest) -> FetchResponse:
        stop = AbortController.new()
        request.on_cancel(stop.abort)  # stream.close() from an event handler of the page
        sending = _fetch(request.method, request.url, request.headers, request.body, stop.signal)
        response = _wait(sending, request.timeout, stop)
        if response.type == "opaqueredirect":  # all that a browser says about one
            raise svir.ProtocolError("the server redirects, which is not followed")
        return FetchResponse(response, stop)


class FetchResponse:
    def __init__(self, response: Any, stop: Any) -> None:
        self.stop = stop
        self.status: int = response.status
        self.headers = {n: v for n, v in response.headers if n not in NO_LONGER_TRUE}
        self.reader = response.body.getReader() if response.body else None

    def read(self, size: int, timeout: float | None) -> bytes:
        # When a connection breaks, fetch() drops what it has and was not read: `partial` may lack
        # the last bytes that had arrived.
        if self.reader is None:
            return b""
        result = _wait(self.reader.read(), timeout, self.stop)
        return b"" if result.done else result.value.to_bytes()

    def close(self) -> None:
        self.stop.abort()  # without effect on a body that was read to its end


def _fetch(
    method: str, url: str, headers: Mapping[str, str], body: Any, signal: Any = None
) -> Any:
    """The promise of a response. The body goes from memory: browsers stream none in HTTP/1."""
    options = {"method": method, "headers": headers, "redirect": "manual"}
    options.update(credentials="omit", cache="no-store")
    if signal is not None:
        options["signal"] = signal
    if body is not None:
        options["body"] = b"".join(body)
    return fetch(url, to_js(options, dict_converter=Object.fromEntries))


def _wait(promise: Any, seconds: float | None, stop: Any) -> Any:
    """Block until the promise is kept, while the page's own events go on."""
    timer, late = None, Error.new("timeout")
    if seconds is not None:  # not asyncio's: a timer of Pyodide's loop stays when it is cancelled
        timer = setTimeout(stop.abort.bind(stop), min(seconds * 1000, 2**31 - 1), late)
    try:
        return run_sync(promise)
    except JsException as error:
        if stop.signal.aborted and stop.signal.reason.message == "timeout":
            raise svir.Timeout("nothing came in time") from None
        # All that fetch() tells: no connection, CORS, a body cut short and a reset are one error.
        raise svir.Disconnected(f"fetch: {error}") from None
    finally:
        if timer is not None:
            clearTimeout(timer)


async def events(
    url: str, request: svir.Request, *, key: str | None = None, stop: Any = None
) -> AsyncIterator[svir.Event]:
    """The events of an answer, without blocking. `stop` is an AbortController.

    Raises svir's errors. Layers, timeouts and a second try are the caller's.
    """
    stop = stop or AbortController.new()
    wire, decoder = svir.ChatCompletions(), svir.Decoder()
    url = svir.Client(url).base_url + wire.path
    headers = {"content-type": "application/json", **wire.headers(key)}
    try:
        response = await _fetch("POST", url, headers, svir.encode(request), stop.signal)
        if not response.ok:
            body = (await response.arrayBuffer()).to_bytes()
            raise wire.error(response.status, dict(response.headers), body)
        reader = response.body.getReader()
        while decoder.completion is None:
            result = await reader.read()
            data = None if result.done else result.value.to_bytes()
            for event in decoder.finish() if data is None else decoder.feed(data):
                yield event
    except JsException as error:
        kind = svir.Cancelled if stop.signal.aborted else svir.Disconnected
        failed = kind(f"fetch: {error}")
        failed.partial = decoder.partial
        raise failed from None
    except svir.Error as error:
        error.partial = decoder.partial
        raise
    finally:
        stop.abort()  # when the caller left early, the model stops
