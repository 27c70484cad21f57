"""Layers that a client may be given: `retry`, `timeout`, `trace`, `fallback`, `at_most`.

    client = svir.Client(
        "http://localhost:1234",
        layers=[trace(), timeout(first_token=60, total=600), at_most(1), retry(2)],
    )

Each is a plain function that gives a layer, a generator: take any as the start of your own. The
first in the list is the outermost, they go in any order, and `stream.close()` ends the waits of
all of them. Seconds everywhere.
"""

from __future__ import annotations

import logging
import os
import random
import time
from typing import Any, Callable, Iterator

import svir

__all__ = ["at_most", "fallback", "retry", "timeout", "trace"]


def retry(
    times: int,
    *,
    when: Callable[[svir.Error], bool] | None = None,
    backoff: float = 0.5,
    max_wait: float = 30.0,
    jitter: float = 0.25,
) -> svir.Layer:
    """Ask again, up to `times` times more, when a call failed before the answer began.

    `when(error)` says which errors: by default those with `error.retryable`. To send again only
    what never reached the server: `when=lambda error: error.unsent`.

    It waits as long as the server asked (Retry-After), else `backoff` seconds, doubled each time
    up to `max_wait`; then up to `jitter` times that longer, so that many clients do not come back
    at once. A server that asks for more than `max_wait` has its error raised at once: the program
    knows better what to do in that hour, and `error.retry_after` tells how long it is.
    """
    _check(times >= 0 and backoff >= 0 and jitter >= 0, "retry() takes nothing below 0")

    def layer(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
        left, pause = times, min(backoff, max_wait)
        while True:
            try:
                events = call(request)
                first = next(events, None)
            except svir.Error as error:
                # The server works on an answer that has begun: another would cost as much again.
                may = not error.in_stream and (error.retryable if when is None else when(error))
                wait = pause if error.retry_after is None else error.retry_after
                if not may or left == 0 or wait > max_wait:
                    raise
            else:
                yield from _resumed(first, events)
                return
            call.sleep(min(wait * (1 + jitter * random.random()), max_wait))
            left, pause = left - 1, min(pause * 2, max_wait)

    return layer


def timeout(
    *, first_token: float | None = None, idle: float | None = None, total: float | None = None
) -> svir.Layer:
    """Raise `svir.Timeout` when a limit passes; None is no limit.

    `first_token`: until the first piece of the answer: text, reasoning or a tool call. A server's
    keep-alives do not count. `idle`: from then on, without a byte from the server; here they do.
    `total`: until the whole answer is here.

    Outside `retry` the limits are for all attempts together, inside it for each one. `idle` can
    only be shorter than the client's own `idle_timeout=`, which also holds before the first token.
    """
    for limit in (first_token, idle, total):
        _check(limit is None or limit > 0, "a timeout() is more than 0; None is no limit")

    def layer(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
        with call.deadline(total, f"not done after {total} s: timeout(total=) sets the limit"):
            said = f"no token after {first_token} s: timeout(first_token=) sets the limit"
            with call.deadline(first_token, said):
                events = call(request)
                first = next(events, None)
            said = f"nothing came for {idle} s: timeout(idle=) sets the limit"
            with call.idle(idle, said):
                yield from _resumed(first, events)

    return layer


def trace(logger: logging.Logger | None = None, level: int = logging.INFO) -> svir.Layer:
    """Log one line for each call when it ends: an answer, an error, or closed before either.

        model='qwen3-4b' finish=stop seconds=2.31 first_token=0.41 prompt_tokens=5 ...

    Never what was asked or answered, nor a key. The same facts are a dict on the log record,
    `record.svir`. `logger` is by default `logging.getLogger("svir")`.
    """
    log = logging.getLogger("svir") if logger is None else logger

    def layer(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
        start, first, pieces = time.monotonic(), None, 0
        end: dict[str, Any] = {"error": svir.Cancelled.kind}  # unless it gets further
        events: Iterator[svir.Event] = iter(())
        completed = svir.Completed
        try:
            events = call(request)
            for event in events:
                if first is None:
                    first = time.monotonic() - start
                pieces += 1
                if type(event) is completed:  # not isinstance: this runs for every event
                    end = _answer(event.completion)
                yield event
        except Exception as error:
            end = _failure(error, pieces)
            raise
        finally:
            _close(events)
            facts = {"model": request.model, **end, "seconds": time.monotonic() - start}
            facts["first_token"] = first
            log.log(level, "%s", _line(facts), extra={"svir": facts})

    return layer


def _answer(completion: svir.Completion) -> dict[str, Any]:
    usage, timing = completion.usage, completion.timing
    return {
        "finish": completion.finish_reason,
        "prompt_tokens": usage and usage.prompt_tokens,
        "completion_tokens": usage and usage.completion_tokens,
        "tokens_per_second": timing and timing.tokens_per_second,
        "quirks": ",".join(completion.quirks) or None,
    }


def _failure(error: Exception, pieces: int) -> dict[str, Any]:
    if not isinstance(error, svir.Error):
        return {"error": type(error).__name__, "pieces": pieces}
    quirks = ",".join(error.quirks) or None
    return {"error": error.kind, "status": error.status, "pieces": pieces, "quirks": quirks}


def _line(facts: dict[str, Any]) -> str:
    """`name=value` for all that is known. The model's name is quoted: a caller chose it."""
    shown = {name: value for name, value in facts.items() if value is not None}
    shown["model"] = ascii(shown["model"])
    return " ".join(
        f"{n}={v:.2f}" if isinstance(v, float) else f"{n}={v}" for n, v in shown.items()
    )


def fallback(
    client: svir.Client,
    *,
    model: str | None = None,
    when: Callable[[svir.Error], bool] | None = None,
) -> svir.Layer:
    """Ask `client`, for `model` if given, when the call failed before anything was given out.

    `when(error)` says for which errors: by default those with `error.retryable` or `error.unsent`.
    The other client's own layers run. When it fails too, its error is raised. For a third server,
    give the second client a `fallback` of its own.
    """
    _check(isinstance(client, svir.Client), "fallback() takes a svir.Client")

    def layer(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
        try:
            events = call(request)
            first = next(events, None)
        except svir.Error as error:
            may = error.retryable or error.unsent if when is None else when(error)
            if not may or isinstance(error, svir.Cancelled):
                raise
        else:
            yield from _resumed(first, events)
            return
        # Not asked up there: the error would hold its frames for as long as the answer takes.
        other = request if model is None else request.replace(model=model)
        yield from call.through(client)(other)

    return layer


_TICK = 0.02  # seconds: little beside the shortest answer


def at_most(n: int) -> svir.Layer:
    """Let `n` calls through at a time, in the order they came; the others wait.

    A call counts until its stream has ended, failed, or was closed or dropped. One layer may be
    given to several clients of one server, and counts them together; it must not stand twice above
    one call, which would wait for itself. Inside `retry` a call that waits for its next attempt
    holds no place, outside it does.
    """
    _check(n >= 1, "at_most() lets at least 1 through")
    # The line of each process: calls that a fork copies from its parent end there, not here.
    lines: dict[int, list[object]] = {}

    def layer(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
        line, ticket = lines.setdefault(os.getpid(), []), object()
        line.append(ticket)
        try:
            # Looking again and again, because a deadline and close() end a sleep, but no lock.
            while ticket not in line[:n]:
                call.sleep(_TICK)
            yield from call(request)
        finally:
            line.remove(ticket)

    return layer


# -- What they share ------------------------------------------------------------------------------


def _check(right: bool, rule: str) -> None:
    if not right:
        raise svir.ConfigError(rule)


def _resumed(first: svir.Event | None, events: Iterator[svir.Event]) -> Iterator[svir.Event]:
    """The events whose first one was taken off already; closed when this is."""
    try:
        if first is not None:
            yield first
            yield from events
    finally:
        _close(events)


def _close(events: Iterator[svir.Event]) -> None:
    """End what is still running below, which holds a connection: PyPy drops things late."""
    close = getattr(events, "close", None)
    if close is not None:
        close()
