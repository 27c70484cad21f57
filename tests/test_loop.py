"""svir_ext.loop: rounds with tools, against scripted answers and a scripted server."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any, Callable, Iterator

import pytest

import svir
from llama_server import LlamaServer
from svir_ext.layers import retry, timeout, trace
from svir_ext.loop import Run, run
from svir_ext.testing import (
    CUT,
    STALL,
    MockServer,
    scripted_turns,
    text_answer,
    tool_answer,
)

REQUEST = svir.Request("qwen3-4b", "Weather in Oslo?", system="Be brief.")
OSLO = svir.ToolCall("c1", "weather", '{"city": "Oslo"}')
ROME = svir.ToolCall("c2", "weather", '{"city": "Rome"}')


class Box:
    """A toolbox that notes what it was asked."""

    def __init__(self, handler: Callable[[svir.ToolCall], str] = lambda call: "12 C") -> None:
        self.handler, self.calls = handler, []  # type: ignore[var-annotated]

    def __iter__(self) -> Iterator[svir.Tool]:
        yield svir.Tool("weather", "Current weather in a city.", {"type": "object"})

    def call(self, call: svir.ToolCall) -> svir.ToolResult:
        self.calls.append(call)
        return svir.ToolResult(call.id, self.handler(call))


def client_of(*turns: list[Any], seen: list[svir.Request] | None = None) -> svir.Client:
    """A client whose answers are these turns, one for each request."""

    def note(request: svir.Request, call: svir.Call) -> Iterator[svir.Event]:
        if seen is not None:
            seen.append(request)
        return call(request)

    return svir.Client("http://localhost:1", layers=[note, scripted_turns(*turns)])


# -- What comes out -------------------------------------------------------------------------------


def test_events_of_every_round_and_the_messages() -> None:
    seen: list[svir.Request] = []
    tools = Box()
    client = client_of(["Let me see.", OSLO, ROME], ["It is ", "12 C."], seen=seen)
    rounds = run(client, REQUEST, tools, max_rounds=5)
    assert isinstance(rounds, Run)
    types = [event.type for event in rounds]
    assert types == ["text", "tool_call", "tool_call", "completed", "text", "text", "completed"]
    assert tools.calls == [OSLO, ROME]
    asked = svir.User("Weather in Oslo?")
    turn = svir.Assistant("Let me see.", tool_calls=[OSLO, ROME])
    results = [svir.ToolResult("c1", "12 C"), svir.ToolResult("c2", "12 C")]
    assert rounds.messages == [asked, turn, *results, svir.Assistant("It is 12 C.")]
    assert rounds.completion.text == "It is 12 C."
    assert [list(request.messages) for request in seen] == [[asked], [asked, turn, *results]]
    assert {request.system for request in seen} == {"Be brief."}
    assert [tool.name for request in seen for tool in request.tools] == ["weather"] * 2
    assert REQUEST.messages == (asked,)
    with pytest.raises(StopIteration):
        next(rounds)


def test_text_and_result_are_those_of_a_stream() -> None:
    client = client_of(["a", OSLO], ["b"])
    assert list(run(client, REQUEST, Box(), max_rounds=2).text()) == ["a", "b"]
    client = client_of(["a", OSLO], ["b"])
    rounds = run(client, REQUEST, Box(), max_rounds=2)
    with pytest.raises(RuntimeError):
        _ = rounds.completion
    assert rounds.result().text == "b"


def test_nothing_is_sent_or_run_before_it_is_asked_for() -> None:
    seen: list[svir.Request] = []
    tools = Box()
    rounds = run(client_of([OSLO], ["ok"], seen=seen), REQUEST, tools, max_rounds=2)
    assert (seen, rounds.messages) == ([], list(REQUEST.messages))
    for event in rounds:
        if event.type == "completed":
            break
    # Whoever stops reading at a Completed has time to look at the calls before they run.
    assert (tools.calls, len(seen)) == ([], 1)
    assert rounds.messages[-1] == svir.Assistant("", tool_calls=[OSLO])
    next(rounds)
    assert tools.calls == [OSLO]


@pytest.mark.parametrize("reason", ["length", "content_filter", "refusal", "stop"])
def test_any_answer_without_calls_ends_it(reason: str) -> None:
    last = svir.Completed(svir.Completion("no", finish_reason=reason))  # type: ignore[arg-type]
    seen: list[svir.Request] = []
    rounds = run(client_of([last], seen=seen), REQUEST, Box(), max_rounds=9)
    assert (rounds.result().finish_reason, len(seen)) == (reason, 1)


def test_tools_of_the_request_are_not_replaced() -> None:
    seen: list[svir.Request] = []
    few = [svir.Tool("time", "The time.", {"type": "object"})]
    run(client_of(["a"], seen=seen), REQUEST.replace(tools=few), Box(), max_rounds=1).result()
    assert [tool.name for tool in seen[0].tools] == ["time"]


@pytest.mark.parametrize(
    ("choice", "then"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "auto"),
        (svir.NamedTool("weather"), "auto"),
    ],
)
def test_a_call_is_required_of_the_first_round_only(choice: Any, then: str) -> None:
    seen: list[svir.Request] = []
    request = REQUEST.replace(tool_choice=choice)
    run(client_of([OSLO], ["ok"], seen=seen), request, Box(), max_rounds=2).result()
    assert [request.tool_choice for request in seen] == [choice, then]


# -- How it ends otherwise ------------------------------------------------------------------------


def test_max_rounds() -> None:
    seen: list[svir.Request] = []
    tools = Box()
    rounds = run(client_of([OSLO], [ROME], ["no"], seen=seen), REQUEST, tools, max_rounds=2)
    with pytest.raises(svir.LimitExceeded, match="round 2: max_rounds= is the limit"):
        rounds.result()
    # The last calls were not run: nobody would have read what they gave.
    assert (tools.calls, len(seen)) == ([OSLO], 2)
    assert rounds.messages[-1] == svir.Assistant("", tool_calls=[ROME])
    with pytest.raises(svir.LimitExceeded):
        next(rounds)
    with pytest.raises(svir.ConfigError):
        run(client_of(), REQUEST, tools, max_rounds=0)


def test_an_error_of_a_round_is_the_error() -> None:
    client = client_of([OSLO], ["It is", svir.Disconnected("gone")])
    rounds = run(client, REQUEST, Box(), max_rounds=5)
    with pytest.raises(svir.Disconnected, match="gone"):
        rounds.result()
    assert rounds.messages[-1] == svir.ToolResult("c1", "12 C")
    with pytest.raises(svir.Disconnected, match="gone"):
        next(rounds)


def test_an_error_of_a_tool_is_the_error() -> None:
    def fail(call: svir.ToolCall) -> str:
        raise KeyError(call.name)

    rounds = run(client_of([OSLO]), REQUEST, Box(fail), max_rounds=5)
    with pytest.raises(KeyError, match="weather"):
        rounds.result()
    assert rounds.messages[-1] == svir.Assistant("", tool_calls=[OSLO])


# -- Closing --------------------------------------------------------------------------------------


def test_closed_before_it_began() -> None:
    seen: list[svir.Request] = []
    rounds = run(client_of(["a"], seen=seen), REQUEST, Box(), max_rounds=1)
    rounds.close()
    rounds.close()
    for _ in range(2):
        with pytest.raises(svir.Cancelled):
            next(rounds)
    assert seen == []


def test_closed_between_two_rounds() -> None:
    tools = Box()
    rounds = run(client_of([OSLO], ["never"]), REQUEST, tools, max_rounds=5)
    for event in rounds:
        if event.type == "completed":
            rounds.close()
            break
    with pytest.raises(svir.Cancelled):  # and not an end that looks whole
        rounds.result()
    assert tools.calls == []


def test_closed_while_a_tool_runs() -> None:
    seen: list[svir.Request] = []
    tools = Box(lambda call: rounds.close() or "12 C")  # type: ignore[func-returns-value]
    rounds = run(client_of([OSLO, ROME], ["never"], seen=seen), REQUEST, tools, max_rounds=5)
    with pytest.raises(svir.Cancelled):
        rounds.result()
    assert (tools.calls, len(seen)) == ([OSLO], 1)
    assert rounds.messages[-1] == svir.ToolResult("c1", "12 C")  # what was done is told


def test_closed_after_the_answer() -> None:
    with run(client_of(["a"]), REQUEST, Box(), max_rounds=1) as rounds:
        for event in rounds:
            if event.type == "completed":
                rounds.close()
        assert rounds.completion.text == "a"


@pytest.mark.parametrize("begun", [False, True], ids=["before the headers", "in the answer"])
def test_close_from_another_thread_in_the_second_round(begun: bool) -> None:
    with MockServer() as server, svir.Client(server.url) as client:
        server.reply(tool_answer(("weather", {"city": "Oslo"})))
        if begun:
            server.reply(text_answer("a", STALL))
        else:
            server.reply(raw=True, hang=True)
        rounds = run(client, REQUEST, Box(), max_rounds=5)

        def close() -> None:
            server.wait_until(lambda: len(server.requests) == 2)
            time.sleep(0.01)
            rounds.close()

        closer = threading.Thread(target=close)
        closer.start()
        with pytest.raises(svir.Cancelled):
            rounds.result()
        closer.join()
        server.wait_until(lambda: server.open_connections == 0)


@pytest.mark.parametrize("how", ["close", "leave", "drop"])
def test_leaving_closes_the_connection(how: str) -> None:
    with MockServer() as server, svir.Client(server.url) as client:
        server.reply(text_answer("a", STALL))
        rounds = run(client, REQUEST, Box(), max_rounds=5)
        assert next(rounds) == svir.TextDelta("a")
        if how == "close":
            rounds.close()
        elif how == "leave":
            with rounds:
                pass
        else:
            del rounds
            for _ in range(3):  # PyPy ends one of what holds another at each collection
                gc.collect()
        server.wait_until(lambda: server.open_connections == 0)


def test_a_hammer_of_closes() -> None:
    """Whatever the moment: a whole run, or Cancelled."""
    for number in range(150):
        rounds = run(client_of([OSLO, 0.001], [ROME], ["ok"]), REQUEST, Box(), max_rounds=3)
        closer = threading.Timer(number * 1e-5, rounds.close)
        closer.start()
        try:
            assert rounds.result().text == "ok"
        except svir.Cancelled:
            pass
        closer.join()


# -- Over the wire --------------------------------------------------------------------------------


def test_over_the_wire_with_layers_and_in_the_background() -> None:
    with MockServer() as server:
        server.reply(status=503, headers={"retry-after": "0"})
        server.reply(tool_answer(("weather", {"city": "Oslo"})))
        server.reply(status=503, headers={"retry-after": "0"})
        server.reply(text_answer("12 C", usage=(9, 2)))
        layers = [trace(), timeout(first_token=60), retry(1)]
        with svir.Client(server.url, layers=layers) as client:
            rounds = run(client, REQUEST, Box(), max_rounds=3)
            work = svir.Background(rounds)
            assert work.result().text == "12 C"
            assert work.join(5)
            last = server.requests[-1].json()["messages"]
    assert [message["role"] for message in last] == ["system", "user", "assistant", "tool"]
    assert last[-1]["content"] == "12 C"
    assert last[-1]["tool_call_id"] == last[-2]["tool_calls"][0]["id"] == "call-1"
    assert len(server.requests) == 4


def test_calls_of_a_cut_answer_never_run() -> None:
    tools = Box()
    with MockServer() as server, svir.Client(server.url) as client:
        server.reply(tool_answer(("weather", {"city": "Oslo"}))[:-1], CUT)
        with pytest.raises(svir.Truncated):
            run(client, REQUEST, tools, max_rounds=3).result()
    assert tools.calls == []


def test_a_real_server(start_llama: Callable[..., LlamaServer]) -> None:
    """Two calls as a real server forms them, and their results as it reads them."""
    anything = {"type": "object"}
    tools = [svir.Tool(name, "", anything) for name in ("get_weather", "get_time")]
    # The last message picks what the model says: after the first round, the last result.
    box = Box(lambda call: f"{call.name} {call.parse()} [[hello]]")
    request = svir.Request("tiny", "[[tools2]]", tools=tools)
    layers = [retry(1), timeout(first_token=60)]
    with svir.Client(start_llama("-c", "4096").base_url, layers=layers) as client:
        rounds = run(client, request, box, max_rounds=3)
        assert rounds.result().text == "Hello, world!"
    assert [(call.name, call.parse()) for call in box.calls] == [
        ("get_weather", {"city": "Oslo"}),
        ("get_time", {"tz": "CET"}),
    ]
    kinds = [type(message).__name__ for message in rounds.messages]
    assert kinds == ["User", "Assistant", "ToolResult", "ToolResult", "Assistant"]
