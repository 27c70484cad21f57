"""An optional loop: ask, run the tools that the model calls, ask again, until it answers.

    rounds = run(client, request, tools, max_rounds=8)
    for text in rounds.text():
        print(text, end="", flush=True)
    history = rounds.messages

The same loop by hand is eight lines (docs/loop.md): write it out where this one does not fit.
"""

from __future__ import annotations

from typing import Iterator, Protocol

import svir

__all__ = ["Run", "Toolbox", "run"]


class Toolbox(Protocol):
    """What holds tools: `svir_ext.tools.Tools`, or anything else of this form."""

    def __iter__(self) -> Iterator[svir.Tool]: ...
    def call(self, call: svir.ToolCall, /) -> svir.ToolResult: ...


def run(client: svir.Client, request: svir.Request, tools: Toolbox, *, max_rounds: int) -> Run:
    """The events of every round, up to an answer without calls; at most `max_rounds` answers.

    A round is one request. Its events end with `Completed`; when that has tool calls, they are run
    in order as the next event is asked for, and the results go into the next request. So a caller
    who stops reading at a `Completed` stops before its calls are run.

    Raises `svir.LimitExceeded` when the last round still asks for tools: those calls are not run,
    because nobody would read their results. An error of a round, or of `tools.call`, is raised as
    it is. `messages` of the `Run` is whole up to there in each case.

    It journals nothing, keeps no session, asks nobody before a call is run, and never repeats one:
    what a tool did, it did. It holds no history back: `messages` grows with every turn.
    """
    return Run(client, request, tools, max_rounds)


class Run(svir.Stream):
    """The rounds as one stream. `close()` stops it from any thread; a tool that runs then still
    ends. `completion` is that of the last round that ended, `result()` that of the last one."""

    def __init__(
        self, client: svir.Client, request: svir.Request, tools: Toolbox, max_rounds: int
    ) -> None:
        if max_rounds < 1:
            raise svir.ConfigError("max_rounds must be at least 1")
        super().__init__(self._rounds(client, request, tools, max_rounds))
        self.messages: list[svir.Message] = list(request.messages)
        """The conversation so far: that of the request, then each turn and result as it came."""
        self._round: svir.Stream | None = None
        self._stopped = False

    def close(self) -> None:
        """Stop, from any thread, at any time: the reader gets ``Cancelled``. Never waits."""
        self._stopped = True  # first: a round that starts now looks at it when it is known here
        if self._round is not None:
            self._round.close()

    def _rounds(
        self, client: svir.Client, request: svir.Request, tools: Toolbox, max_rounds: int
    ) -> Iterator[svir.Event]:
        request = request if request.tools else request.replace(tools=list(tools))
        for left in range(max_rounds - 1, -1, -1):
            self._round = stream = client.stream(request.replace(messages=self.messages))
            if self._stopped:
                stream.close()  # its first event is then the error
            with stream:
                for event in stream:
                    if isinstance(event, svir.Completed):
                        self.messages.append(event.completion.message)
                    yield event
            calls = stream.completion.tool_calls
            if not calls:
                return
            for call in calls if left else ():
                if self._stopped:
                    raise svir.Cancelled("the stream was closed")
                self.messages.append(tools.call(call))
            if request.tool_choice != "none":  # one that asks for a call would ask for ever
                request = request.replace(tool_choice="auto")
        raise svir.LimitExceeded(f"no answer after round {max_rounds}: max_rounds= is the limit")
