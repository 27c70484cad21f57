"""svir_ext.layers: each layer against a server that fails as scripted, then all together."""

from __future__ import annotations

import ast
import contextlib
import gc
import itertools
import logging
import os
import random
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest

import svir
from svir_ext import layers
from svir_ext.layers import at_most, fallback, retry, timeout, trace
from svir_ext.testing import (
    CUT,
    RESET,
    STALL,
    MockServer,
    error_event,
    scripted,
    text_answer,
)

ROOT = Path(__file__).resolve().parent.parent
REQUEST = svir.Request("qwen3-4b", "What is the secret word?")
KEEP_ALIVE = b": still here\n\n"


# -- Help -----------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[MockServer]:
    with MockServer() as server:
        yield server
        server.check()


def asked(*layers: svir.Layer, url: str = "http://localhost:1") -> svir.Completion:
    with svir.Client(url, layers=layers) as client:
        return client.complete(REQUEST)


def failing(times: int, error: Callable[[], svir.Error]) -> svir.Layer:
    """A layer that fails that often, each time with a new error, and then passes calls on."""
    left = [times]

    def layer(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
        if left[0] > 0:
            left[0] -= 1
            raise error()
        yield from call(request)

    return layer


class FakeCall:
    """A `Call` whose clock stands still: it notes the sleeps, and fails as it is told to."""

    def __init__(self, *errors: svir.Error) -> None:
        self.errors, self.asked = list(errors), 0
        self.slept: list[float] = []
        self.limits: list[str] = []  # those that hold

    def __call__(self, request: svir.Request) -> Iterator[svir.Event]:
        self.asked += 1
        if self.errors:
            raise self.errors.pop(0)
        return iter([svir.Completed(svir.Completion("ok", finish_reason="stop"))])

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    @contextlib.contextmanager
    def deadline(self, seconds: float | None, message: str) -> Iterator[None]:
        self.limits.append(message)
        yield
        self.limits.remove(message)

    idle = deadline


def waits(layer: svir.Layer, *errors: svir.Error) -> list[float]:
    """How long the layer sleeps before it gets through, or before it raises the last error."""
    call = FakeCall(*errors)
    stream = layer(REQUEST, call)  # type: ignore[arg-type]
    with contextlib.suppress(svir.Error):
        assert [event.type for event in stream] == ["completed"]
    return call.slept


def limited(retry_after: float | None = None) -> svir.RateLimited:
    return svir.RateLimited("slow down", retry_after=retry_after)


def unused_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def close_once(condition: Callable[[], object], stream: svir.Stream) -> threading.Thread:
    """Close the stream from another thread when the condition holds."""

    def close() -> None:
        end = time.monotonic() + 5
        while not condition() and time.monotonic() < end:
            time.sleep(0.002)
        stream.close()

    return in_thread(close)


# -- retry ----------------------------------------------------------------------------------------


def test_retry_waits_twice_as_long_each_time_up_to_max_wait() -> None:
    errors = [svir.Unavailable("busy") for _ in range(8)]
    slept = waits(retry(8, jitter=0), *errors)
    assert slept == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert waits(retry(2, backoff=60, max_wait=2, jitter=0), *errors[:2]) == [2, 2]
    assert waits(retry(2, backoff=0, jitter=0), *errors[:2]) == [0, 0]
    assert set(waits(retry(3000, jitter=0), *(limited() for _ in range(3000)))[10:]) == {30}


def test_retry_waits_as_long_as_the_server_asks() -> None:
    # The server's word counts for its own wait, and leaves the doubling of the others alone.
    assert waits(retry(3, jitter=0), limited(7), limited(0), limited()) == [7, 0, 2]
    assert waits(retry(1, jitter=0), limited(30)) == [30]
    assert waits(retry(1), limited(30)) == [30]


def test_retry_gives_up_when_the_server_asks_for_more_than_max_wait() -> None:
    call = FakeCall(limited(30.1))
    with pytest.raises(svir.RateLimited) as caught:
        list(retry(3)(REQUEST, call))  # type: ignore[arg-type]
    assert (caught.value.retry_after, call.asked, call.slept) == (30.1, 1, [])
    assert waits(retry(1, max_wait=120, jitter=0), limited(100)) == [100]


def test_jitter_only_ever_lengthens_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "random", lambda: 1.0)
    assert waits(retry(2, jitter=0.5), limited(), limited(10)) == [0.75, 15]
    assert waits(retry(1), limited()) == [0.625]
    assert waits(retry(1, jitter=1), limited(29)) == [30]  # never above max_wait
    monkeypatch.setattr(random, "random", lambda: 0.0)
    assert waits(retry(1, jitter=0.5), limited()) == [0.5]


def test_retry_of_what_is_not_retryable() -> None:
    spent = svir.RateLimited("no credit left", retryable=False)
    for error in (svir.Unsupported("no"), spent, svir.ServerError("died"), svir.ConfigError("x")):
        assert waits(retry(3), error) == []
    assert waits(retry(1, when=lambda error: True, jitter=0), svir.Unsupported("no")) == [0.5]
    begun = svir.Disconnected("broke")
    begun.in_stream = True
    assert waits(retry(3, when=lambda error: True), begun) == []


def test_retry_counts_the_attempts_after_the_first() -> None:
    errors = [svir.Unavailable(str(number)) for number in range(3)]
    call = FakeCall(*errors)
    with pytest.raises(svir.Unavailable, match="2"):
        list(retry(2, backoff=0)(REQUEST, call))  # type: ignore[arg-type]
    assert call.asked == 3
    call = FakeCall(*errors)
    with pytest.raises(svir.Unavailable, match="0"):
        list(retry(0)(REQUEST, call))  # type: ignore[arg-type]


def test_retry_against_a_server(server: MockServer) -> None:
    server.reply(status=429, headers={"retry-after": "0"})
    server.reply(status=503)
    server.reply(raw=True)  # closed without an answer
    server.reply(text_answer("Hel", "lo", usage=(3, 2)))
    completion = asked(retry(3, backoff=0.01), url=server.url)
    assert (completion.text, completion.usage) == ("Hello", svir.Usage(3, 2, 5))
    bodies = {request.body for request in server.requests}
    assert (len(server.requests), len(bodies)) == (4, 1)


@pytest.mark.parametrize(
    ("steps", "kind"),
    [
        ([text_answer("Hel", CUT)], "truncated"),
        ([text_answer("Hel", RESET)], "disconnected"),
        ([CUT], "truncated"),  # the response had opened, though no event had come
        ([error_event("died")], "server"),
        ([KEEP_ALIVE, RESET], "disconnected"),
    ],
    ids=["cut", "reset", "cut at once", "error", "reset before a token"],
)
def test_an_answer_that_has_begun_is_not_asked_for_again(
    server: MockServer, steps: list[Any], kind: str
) -> None:
    server.reply(*steps)
    with pytest.raises(svir.Error) as caught:
        asked(retry(5, backoff=0, when=lambda error: True), url=server.url)
    assert (caught.value.kind, len(server.requests)) == (kind, 1)
    assert caught.value.partial is not None


def test_retry_never_repeats_what_was_given_out() -> None:
    # An inner layer's own error says nothing of a response, but an event has gone out.
    with svir.Client(
        "http://localhost:1",
        layers=[retry(3, backoff=0), scripted("Hel", svir.Unavailable("gone"))],
    ) as client:
        stream = client.stream(REQUEST)
        assert next(stream) == svir.TextDelta("Hel")
        with pytest.raises(svir.Unavailable):
            next(stream)


def test_retry_of_only_what_never_reached_the_server(server: MockServer) -> None:
    never_sent = retry(1, when=lambda error: error.unsent, backoff=0)
    server.reply(status=503)
    with pytest.raises(svir.Unavailable):
        asked(never_sent, url=server.url)
    assert len(server.requests) == 1
    attempts: list[svir.Request] = []

    def count(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
        attempts.append(request)
        return call(request)

    with pytest.raises(svir.ConnectError) as caught:
        asked(never_sent, count, url=f"http://127.0.0.1:{unused_port()}")
    assert (caught.value.unsent, len(attempts)) == (True, 2)


def test_close_ends_a_wait_of_retry(server: MockServer) -> None:
    server.default(status=503, headers={"retry-after": "29"})
    with svir.Client(server.url, layers=[retry(5)]) as client:
        stream = client.stream(REQUEST)
        started = time.monotonic()
        closer = close_once(lambda: server.requests, stream)
        with pytest.raises(svir.Cancelled):
            list(stream)
        closer.join()
    assert time.monotonic() - started < 5
    assert len(server.requests) == 1


# -- timeout --------------------------------------------------------------------------------------


def test_first_token_comes_too_late_though_the_server_keeps_alive(server: MockServer) -> None:
    server.reply([[KEEP_ALIVE, 0.02]] * 500)
    with pytest.raises(svir.Timeout) as caught:
        asked(timeout(first_token=0.5, idle=60, total=60), url=server.url)
    assert "no token after 0.5 s: timeout(first_token=) sets the limit" in str(caught.value)
    assert (caught.value.in_stream, caught.value.retryable) == (True, True)


@pytest.mark.parametrize(
    "event",
    [
        svir.TextDelta("a"),
        svir.ReasoningDelta("hm", "reasoning"),
        svir.ToolCallDelta(0, "c", "f", ""),
        svir.Completed(svir.Completion("", finish_reason="stop")),
    ],
    ids=lambda event: event.type,
)
def test_first_token_is_met_by_any_piece_of_the_answer(event: svir.Event) -> None:
    call, seen = FakeCall(), []

    class Answering(FakeCall):
        def __call__(self, request: svir.Request) -> Iterator[svir.Event]:
            for each in (event, svir.Completed(svir.Completion("", finish_reason="stop"))):
                seen.append([limit.partition(": ")[2].split(" ")[0] for limit in self.limits])
                yield each

    call = Answering()
    layer = timeout(first_token=1, idle=2, total=3)
    assert len(list(layer(REQUEST, call))) == 2  # type: ignore[arg-type]
    # Before the first event, and after it: idle does not count before there is a token.
    assert seen == [
        ["timeout(total=)", "timeout(first_token=)"],
        ["timeout(total=)", "timeout(idle=)"],
    ]
    assert call.limits == []


def test_an_answer_may_take_longer_than_its_first_token(server: MockServer) -> None:
    server.reply(text_answer("a", 1.2, "b"))
    assert asked(timeout(first_token=1.0), url=server.url).text == "ab"


def test_silence_after_the_first_token(server: MockServer) -> None:
    server.reply(text_answer("a", STALL))
    with pytest.raises(svir.Timeout) as caught:
        asked(timeout(first_token=60, idle=0.1, total=60), url=server.url)
    assert "nothing came for 0.1 s: timeout(idle=) sets the limit" in str(caught.value)
    assert caught.value.partial is not None
    assert caught.value.partial.text == "a"


def test_keep_alives_feed_idle(server: MockServer) -> None:
    server.reply(text_answer("a", *[KEEP_ALIVE, 0.15] * 8, "b"))
    assert asked(timeout(idle=1.0), url=server.url).text == "ab"


def test_the_clients_own_idle_timeout_is_the_shorter_one(server: MockServer) -> None:
    server.reply(text_answer("a", STALL))
    client = svir.Client(server.url, layers=[timeout(idle=60)], idle_timeout=0.1)
    with client, pytest.raises(svir.Timeout, match="idle_timeout= sets the limit"):
        client.complete(REQUEST)


def test_total(server: MockServer) -> None:
    server.reply(text_answer(*["a", 0.02] * 500))
    with pytest.raises(svir.Timeout) as caught:
        asked(timeout(first_token=60, idle=60, total=0.8), url=server.url)
    assert "not done after 0.8 s: timeout(total=) sets the limit" in str(caught.value)
    assert caught.value.partial is not None
    assert caught.value.partial.text.startswith("a")


def test_a_timeout_outside_retry_bounds_all_attempts(server: MockServer) -> None:
    server.default(status=503)
    with pytest.raises(svir.Timeout, match="timeout\\(total=\\)"):
        asked(timeout(total=0.8), retry(9, backoff=30), url=server.url)
    assert len(server.requests) == 1


def test_a_timeout_inside_retry_bounds_each_attempt(server: MockServer) -> None:
    server.reply(raw=True, hang=True)
    server.reply(text_answer("a"))
    layers = [retry(1, backoff=0), timeout(first_token=0.8, total=60)]
    assert asked(*layers, url=server.url).text == "a"
    assert len(server.requests) == 2


def test_a_deadline_that_has_passed_lets_nothing_be_sent(server: MockServer) -> None:
    server.default(raw=True, hang=True)
    with pytest.raises(svir.Timeout, match="timeout\\(total=\\)"):
        asked(timeout(total=0.6), retry(3, backoff=0), url=server.url)
    assert len(server.requests) == 1


def test_no_limit_at_all(server: MockServer) -> None:
    server.reply(text_answer("a"))
    assert asked(timeout(), url=server.url).text == "a"


# -- trace ----------------------------------------------------------------------------------------


def traced(caplog: pytest.LogCaptureFixture, *layers: svir.Layer, **options: Any) -> str:
    """The one line logged for a call."""
    caplog.clear()
    with caplog.at_level(logging.INFO), svir.Client(
        options.pop("url", "http://localhost:1"), layers=layers, **options
    ) as client, contextlib.suppress(svir.Error, ZeroDivisionError):
        client.complete(REQUEST)
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("svir", logging.INFO)
    return record.getMessage()


def test_trace_of_an_answer(server: MockServer, caplog: pytest.LogCaptureFixture) -> None:
    server.reply(text_answer("secret", 0.1, " word", usage=(5, 2)))
    line = traced(caplog, trace(), url=server.url, api_key="sk-secret")
    names = [field.partition("=")[0] for field in line.split(" ")]
    assert names == [
        "model", "finish", "prompt_tokens", "completion_tokens", "tokens_per_second",
        "seconds", "first_token",
    ]  # fmt: skip
    assert line.startswith("model='qwen3-4b' finish=stop prompt_tokens=5 completion_tokens=2 ")
    assert "secret" not in line
    facts = caplog.records[0].svir  # type: ignore[attr-defined]
    assert 0 < facts["first_token"] < facts["seconds"] < 5
    assert facts["quirks"] is None


def test_trace_names_quirks(server: MockServer, caplog: pytest.LogCaptureFixture) -> None:
    answer = text_answer("a")
    server.reply(answer[0], b"data:\n\n", *answer[1:])
    assert " quirks=empty-data " in traced(caplog, trace(), url=server.url)


def test_trace_of_an_error(server: MockServer, caplog: pytest.LogCaptureFixture) -> None:
    server.reply({"error": {"message": "secret"}}, status=429)
    line = traced(caplog, trace(), url=server.url)
    assert line.startswith("model='qwen3-4b' error=rate_limited status=429 pieces=0 seconds=0.")
    server.reply(text_answer("secret", CUT))
    line = traced(caplog, trace(), url=server.url)
    assert line.startswith("model='qwen3-4b' error=truncated pieces=1 seconds=")
    assert "secret" not in line
    assert "first_token=" in line
    line = traced(caplog, trace(), failing(1, lambda: 1 / 0))  # type: ignore[arg-type, return-value]
    assert line.startswith("model='qwen3-4b' error=ZeroDivisionError pieces=0 ")


def test_trace_of_a_call_that_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    for wait in (False, True):
        caplog.clear()
        with caplog.at_level(logging.INFO), svir.Client(
            "http://localhost:1", layers=[trace(), scripted("secret", STALL)]
        ) as client:
            stream = client.stream(REQUEST)
            next(stream)
            closer = in_thread(stream.close)
            if not wait:
                closer.join()
            with pytest.raises(svir.Cancelled):
                next(stream)
            closer.join()
        (record,) = caplog.records
        assert record.getMessage().startswith("model='qwen3-4b' error=cancelled ")


def test_trace_of_a_stream_left_after_its_answer(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), svir.Client(
        "http://localhost:1", layers=[trace(), scripted("a")]
    ) as client, client.stream(REQUEST) as stream:
        for event in stream:
            if event.type == "completed":
                break
    assert "finish=stop" in caplog.text
    assert "error=" not in caplog.text


def test_trace_to_a_logger_of_ones_own(caplog: pytest.LogCaptureFixture) -> None:
    mine = logging.getLogger("mine.models")
    with caplog.at_level(logging.DEBUG):
        asked(trace(mine, logging.DEBUG), scripted("a", usage=(1, 1)))
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("mine.models", "DEBUG")


def test_trace_writes_one_line_whatever_the_model_is_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO), svir.Client(
        "http://localhost:1", layers=[trace(), scripted("a")]
    ) as client:
        client.complete(svir.Request("a\nb 'é'", "hi"))
    line = caplog.records[0].getMessage()
    assert line.startswith("model=\"a\\nb '\\xe9'\" finish=stop")
    assert "\n" not in line


# -- fallback -------------------------------------------------------------------------------------


@pytest.fixture
def other() -> Iterator[MockServer]:
    with MockServer() as other:
        other.default(text_answer("from the other"))
        yield other


@pytest.mark.parametrize(
    ("steps", "options"),
    [
        ([], {"status": 503}),
        ([], {"status": 429, "headers": {"retry-after": "3600"}}),
        ([], {"raw": True}),
        ([KEEP_ALIVE, RESET], {}),  # it had opened, but nothing was given out
        ([STALL], {}),  # no token in time
    ],
    ids=["unavailable", "limited", "no answer", "reset before a token", "no token"],
)
def test_fallback(
    server: MockServer, other: MockServer, steps: list[Any], options: dict[str, Any]
) -> None:
    server.reply(*steps, **options)
    with svir.Client(other.url, api_key="sk-other") as second:
        layers = [fallback(second, model="big"), timeout(first_token=0.5)]
        with svir.Client(server.url, layers=layers, api_key="sk-first") as client:
            assert client.complete(REQUEST).text == "from the other"
    (request,) = other.requests
    assert request.headers["authorization"] == "Bearer sk-other"
    assert request.json()["model"] == "big"
    assert request.json()["messages"] == server.requests[0].json()["messages"]


def test_fallback_when_nobody_listens(other: MockServer) -> None:
    with svir.Client(other.url) as second:
        url = f"http://127.0.0.1:{unused_port()}"
        assert asked(fallback(second), url=url).text == "from the other"
    assert other.requests[0].json()["model"] == "qwen3-4b"


def test_an_answer_of_the_first_server_is_its_own(server: MockServer, other: MockServer) -> None:
    server.reply(text_answer("from the first"))
    with svir.Client(other.url) as second:
        assert asked(fallback(second), url=server.url).text == "from the first"
    assert other.requests == []


def test_no_fallback_once_something_was_given_out(server: MockServer, other: MockServer) -> None:
    server.reply(text_answer("Hel", RESET))
    with svir.Client(other.url) as second, pytest.raises(svir.Disconnected) as caught:
        asked(fallback(second, when=lambda error: True), url=server.url)
    assert caught.value.partial is not None
    assert (caught.value.partial.text, other.requests) == ("Hel", [])


def test_fallback_for_the_errors_that_are_meant(server: MockServer, other: MockServer) -> None:
    with svir.Client(other.url) as second:
        server.reply({"error": {"message": "who are you?"}}, status=401)
        with pytest.raises(svir.Unauthorized):
            asked(fallback(second), url=server.url)
        server.reply(error_event("prompt is too long"))

        def too_long(error: svir.Error) -> bool:
            return isinstance(error, svir.ContextOverflow)

        assert asked(fallback(second, when=too_long), url=server.url).text == "from the other"
        server.reply(status=503)
        with pytest.raises(svir.Unavailable):
            asked(fallback(second, when=too_long), url=server.url)


def test_when_both_fail_the_last_error_is_raised(server: MockServer, other: MockServer) -> None:
    server.reply(status=503)
    other.reply(status=401)
    with svir.Client(other.url) as second, pytest.raises(svir.Unauthorized) as caught:
        asked(fallback(second), url=server.url)
    assert str(caught.value.where).startswith(f"POST {other.url}")
    assert caught.value.__context__ is None  # no frames of the first call are kept


def test_the_others_layers_and_limits_hold(server: MockServer, other: MockServer) -> None:
    server.default(status=503)
    other.reply(status=503)
    with svir.Client(other.url, layers=[retry(1, backoff=0)]) as second:
        assert asked(fallback(second), url=server.url).text == "from the other"
    assert len(other.requests) == 2
    other.reply(text_answer("a", STALL))
    with svir.Client(other.url, total_timeout=0.2) as second, pytest.raises(svir.Timeout):
        asked(fallback(second), url=server.url)


def test_a_third_server(server: MockServer, other: MockServer) -> None:
    server.default(status=503)
    third = svir.Client(other.url)
    with third, svir.Client(server.url, layers=[fallback(third)]) as second:
        assert asked(fallback(second), url=server.url).text == "from the other"
    assert len(server.requests) == 2


@pytest.mark.parametrize("begun", [False, True], ids=["before the headers", "in the answer"])
def test_close_reaches_the_other_server(
    server: MockServer, other: MockServer, begun: bool
) -> None:
    server.reply(status=503)
    if begun:
        other.reply(text_answer("a", STALL))
    else:
        other.reply(raw=True, hang=True)
    with svir.Client(other.url) as second:
        layers = [fallback(second, when=lambda error: True)]
        with svir.Client(server.url, layers=layers) as client:
            stream = client.stream(REQUEST)
            closer = close_once(lambda: other.requests, stream)
            with pytest.raises(svir.Cancelled):
                list(stream)
            closer.join()
    assert (len(server.requests), len(other.requests)) == (1, 1)
    other.wait_until(lambda: other.open_connections == 0)


def test_a_closed_stream_falls_back_to_nothing() -> None:
    second = svir.Client("http://localhost:1", layers=[scripted("never")])
    layers = [fallback(second, when=lambda error: True), scripted(STALL)]
    stream = svir.Client("http://localhost:1", layers=layers).stream(REQUEST)
    closer = in_thread(stream.close)
    with pytest.raises(svir.Cancelled):
        list(stream)
    closer.join()


# -- at_most --------------------------------------------------------------------------------------


class Gate:
    """A layer that counts the calls inside it, and lets each end when it is told to."""

    def __init__(self) -> None:
        self.inside, self.most, self.order = 0, 0, []  # type: ignore[var-annotated]
        self.open = threading.Event()

    def __call__(self, request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.order.append(request.model)
        try:
            while not self.open.is_set():
                call.sleep(0.002)
            yield from scripted("ok")(request, call)
        finally:
            self.inside -= 1


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


@pytest.mark.parametrize("n", [1, 3])
def test_at_most(n: int) -> None:
    gate = Gate()
    slots = at_most(n)
    # Two clients of one server, one line.
    clients = [svir.Client("http://localhost:1", layers=[slots, gate]) for _ in range(2)]
    threads = []
    for number in range(8):
        request = svir.Request(f"m{number}", "hi")
        work = clients[number % 2].complete
        threads.append(in_thread(lambda work=work, request=request: work(request)))
        if number < n:
            until(lambda: len(gate.order) > number)  # noqa: B023
    time.sleep(0.05)
    assert gate.inside == n
    gate.open.set()
    for thread in threads:
        thread.join()
    assert (gate.most, gate.inside) == (n, 0)
    assert sorted(gate.order) == [f"m{number}" for number in range(8)]


def test_calls_go_through_in_the_order_they_came() -> None:
    class Waiting(FakeCall):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            time.sleep(0.001)

    slots, order = at_most(1), []
    held = slots(REQUEST, FakeCall())  # type: ignore[arg-type]
    next(held)
    calls, threads = [Waiting() for _ in range(6)], []
    for number, call in enumerate(calls):
        stream = slots(REQUEST, call)  # type: ignore[arg-type]

        def read(stream: Iterator[svir.Event] = stream, number: int = number) -> None:
            for _ in stream:
                order.append(number)

        threads.append(in_thread(read))
        until(lambda: call.slept)  # it is in the line  # noqa: B023
    assert list(held) == []
    for thread in threads:
        thread.join()
    assert order == list(range(6))


@pytest.mark.parametrize("end", ["read", "fail", "close", "leave", "drop"])
def test_a_place_is_free_again(end: str) -> None:
    steps: list[Any] = ["a", "b", svir.Disconnected("gone")] if end == "fail" else ["a", "b"]
    client = svir.Client("http://localhost:1", layers=[at_most(1), scripted(*steps)])
    stream = client.stream(REQUEST)
    next(stream)
    waiting = client.stream(REQUEST)
    timer = threading.Timer(0.1, waiting.close)
    timer.start()
    with pytest.raises(svir.Cancelled):  # the first still holds the only place
        next(waiting)
    timer.join()
    if end == "read":
        stream.result()
    elif end == "fail":
        with pytest.raises(svir.Disconnected):
            stream.result()
    elif end == "close":
        stream.close()
    elif end == "leave":
        with stream:
            next(stream)
    else:
        del stream
        gc.collect()  # PyPy drops nothing before that
    assert next(client.stream(REQUEST)) == svir.TextDelta("a")


def test_a_deadline_ends_the_wait_for_a_place() -> None:
    slots = at_most(1)
    held = svir.Client("http://localhost:1", layers=[slots, scripted("a", "b")]).stream(REQUEST)
    next(held)
    with pytest.raises(svir.Timeout, match="timeout\\(first_token=\\)"):
        asked(timeout(first_token=0.1), slots, scripted("a"))
    held.close()
    assert asked(slots, scripted("a")).text == "a"


def test_a_call_that_waits_for_its_next_attempt_holds_no_place_inside_retry() -> None:
    slots = at_most(1)
    in_wait = threading.Event()

    def note(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
        try:
            yield from call(request)
        except svir.Error:
            in_wait.set()
            raise

    client = svir.Client(
        "http://localhost:1",
        layers=[retry(1, backoff=20), note, slots, failing(9, lambda: svir.Unavailable("busy"))],
    )
    stream = client.stream(REQUEST)

    def read() -> None:
        with pytest.raises(svir.Cancelled):
            list(stream)

    reader = in_thread(read)
    assert in_wait.wait(5)
    assert asked(slots, scripted("a")).text == "a"
    stream.close()
    reader.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_has_a_line_of_its_own() -> None:
    code = """if True:
        import os, sys
        sys.path.insert(0, sys.argv[1])
        import svir
        from svir_ext.layers import at_most
        from svir_ext.testing import scripted
        client = svir.Client("http://localhost:1", layers=[at_most(1), scripted("a", "b")])
        stream = client.stream(svir.Request("m", "hi"))
        next(stream)
        child = os.fork()
        if child == 0:
            print(client.complete(svir.Request("m", "hi")).text, flush=True)
            os._exit(0)
        sys.exit(os.waitpid(child, 0)[1])
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(ROOT)],
        stdout=subprocess.PIPE,
        timeout=20,
        check=True,
    )
    assert done.stdout.split() == [b"ab"]


# -- All together ---------------------------------------------------------------------------------

OTHER = svir.Client("http://localhost:1", layers=[scripted("other")])


def shout(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
    """A layer as a user writes it."""
    for event in call(request):
        yield svir.TextDelta(event.text.upper()) if event.type == "text" else event


LAYERS = {
    "retry": lambda: retry(2, backoff=0),
    "timeout": lambda: timeout(first_token=60, idle=60, total=60),
    "trace": lambda: trace(),
    "fallback": lambda: fallback(OTHER),
    "at_most": lambda: at_most(1),
    "shout": lambda: shout,
}
ORDERS = list(itertools.permutations(LAYERS))


def stack(order: tuple[str, ...]) -> list[svir.Layer]:
    return [LAYERS[name]() for name in order]


def test_every_order_answers() -> None:
    for order in ORDERS:
        layers = [*stack(order), scripted("a", "b", usage=(1, 2))]
        client = svir.Client("http://localhost:1", layers=layers)
        for _ in range(2):  # the second needs the place of the first
            with client.stream(REQUEST) as stream:
                assert list(stream.text()) == ["A", "B"], order
            assert stream.completion.text == "ab"
            assert stream.completion.usage == svir.Usage(1, 2, 3)


def test_every_order_asks_again() -> None:
    for order in ORDERS:
        busy = failing(1, lambda: svir.Unavailable("busy"))
        client = svir.Client("http://localhost:1", layers=[*stack(order), busy, scripted("a")])
        text = client.complete(REQUEST).text
        inside = order.index("retry") > order.index("fallback")
        assert text == ("a" if inside else "other"), order


def test_every_order_falls_back() -> None:
    for order in ORDERS:
        busy = failing(9, lambda: svir.Unavailable("busy"))
        client = svir.Client("http://localhost:1", layers=[*stack(order), busy])
        for _ in range(2):
            assert client.complete(REQUEST).text == "other", order


def test_close_from_another_thread_ends_every_order() -> None:
    for order, steps in itertools.product(ORDERS, ([STALL], ["a", STALL])):
        client = svir.Client("http://localhost:1", layers=[*stack(order), scripted(*steps)])
        stream = client.stream(REQUEST)
        closer = in_thread(stream.close)
        with pytest.raises(svir.Cancelled):
            list(stream)
        closer.join()


def test_leaving_every_order_gives_its_place_back() -> None:
    for order in ORDERS:
        client = svir.Client("http://localhost:1", layers=[*stack(order), scripted("a", "b")])
        for _ in range(2):
            with client.stream(REQUEST) as stream:
                assert next(stream) == svir.TextDelta("A")
            with pytest.raises(svir.Cancelled):
                next(stream)


@pytest.mark.parametrize("begun", [False, True], ids=["before the headers", "in the answer"])
def test_close_reaches_a_real_server_through_all(server: MockServer, begun: bool) -> None:
    for turn in range(len(LAYERS)):
        if begun:
            server.reply(text_answer("a", STALL))
        else:
            server.reply(raw=True, hang=True)
        names = tuple(LAYERS)
        order = names[turn:] + names[:turn]
        with svir.Client(server.url, layers=stack(order)) as client:
            stream = client.stream(REQUEST)
            closer = close_once(lambda: len(server.requests) > turn, stream)  # noqa: B023
            with pytest.raises(svir.Cancelled):
                list(stream)
            closer.join()
        server.wait_until(lambda: server.open_connections == 0)
    assert len(server.requests) == len(LAYERS)


def test_background_runs_through_all(server: MockServer) -> None:
    server.reply(status=503, headers={"retry-after": "0"})
    server.reply(text_answer("a", "b"))
    order = ("trace", "timeout", "fallback", "at_most", "retry", "shout")
    with svir.Client(server.url, layers=stack(order)) as client:
        work = svir.Background(client.stream(REQUEST))
        assert work.result().text == "ab"
        assert [event.text for event in work.poll() if event.type == "text"] == ["A", "B"]
        assert work.join(5)


def test_a_stack_of_layers_is_shared_between_threads(server: MockServer) -> None:
    server.default(text_answer("a", "b"))
    with svir.Client(server.url, layers=stack(tuple(LAYERS))) as client:
        texts: list[str] = []
        threads = [
            in_thread(lambda: texts.append(client.complete(REQUEST).text)) for _ in range(12)
        ]
        for thread in threads:
            thread.join()
    assert texts == ["ab"] * 12
    assert server.connections == 1  # one at a time


# -- The functions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: retry(-1),
        lambda: retry(1, backoff=-1),
        lambda: retry(1, jitter=-0.1),
        lambda: timeout(first_token=0),
        lambda: timeout(idle=-1),
        lambda: timeout(total=0),
        lambda: fallback("http://localhost:8080"),  # type: ignore[arg-type]
        lambda: at_most(0),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_made(make: Callable[[], object]) -> None:
    with pytest.raises(svir.ConfigError):
        make()


def test_no_layer_is_over_40_lines() -> None:
    tree = ast.parse(Path(layers.__file__).read_text("utf-8"))
    sizes = {
        node.name: (node.end_lineno or 0) - node.lineno + 1
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }
    assert {name for name in sizes if not name.startswith("_")} == set(layers.__all__)
    assert max(sizes.values()) <= 40


def test_an_event_passes_as_it_is() -> None:
    event = svir.TextDelta("a")
    own = scripted(event, svir.ToolCallDelta(0, "c", "f", "{}"))
    client = svir.Client("http://localhost:1", layers=[*stack(tuple(LAYERS))[:-1], own])
    assert next(client.stream(REQUEST)) is event
