"""Functions that a model may call. The loop that feeds the results back is the caller's (D6).

    def weather(city: str, unit: Literal["c", "f"] = "c") -> str:
        '''Current weather in a city.'''

    tools = Tools(weather)
    completion = client.complete(svir.Request("qwen3-4b", "Weather in Oslo?", tools=tools))
    results = tools.call_all(completion.tool_calls)

A toolbox is anything that iterates over `svir.Tool`s and has `call(ToolCall) -> ToolResult`:
`Tools`, a bridge to other tools (examples/mcp_bridge.py), or your own. It needs schema.py.
"""

from __future__ import annotations

import collections
import functools
import inspect
import json
import logging
import threading
import traceback
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Iterable,
    Iterator,
    NamedTuple,
    Protocol,
    TypeVar,
    overload,
)

import svir

if TYPE_CHECKING or __package__:
    from . import schema
else:  # copied out of the package, beside svir.py
    import schema

__all__ = ["Toolbox", "Tools", "call_all"]

_F = TypeVar("_F", bound=Callable[..., Any])
_LOG = logging.getLogger("svir")


class Toolbox(Protocol):
    """What can describe tools to a model and answer its calls."""

    def __iter__(self) -> Iterator[svir.Tool]: ...
    def call(self, call: svir.ToolCall, /) -> svir.ToolResult:
        """The result of one call. A failure is a result too, one with `is_error`."""
        ...


class _Entry(NamedTuple):
    tool: svir.Tool
    read: Callable[[Any], Any]  # of the arguments, as `run` takes them
    run: Callable[[svir.ToolCall, Any], Any]


class Tools:
    """A toolbox of functions. A tool added under a name that is there replaces the earlier one.

    The model sees a function's name, the first paragraph of its docstring, and its arguments as
    `svir_ext.schema` writes their annotations. Arguments that do not fit never reach it.
    """

    def __init__(self, *functions: Callable[..., Any]) -> None:
        self._entries: dict[str, _Entry] = {}
        for function in functions:
            self.add(function)

    @overload
    def add(
        self,
        function: _F,
        *,
        name: str | None = None,
        description: str | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> _F: ...
    @overload
    def add(
        self,
        function: None = None,
        *,
        name: str | None = None,
        description: str | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> Callable[[_F], _F]: ...
    def add(
        self,
        function: Any = None,
        *,
        name: str | None = None,
        description: str | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> Any:
        """Add a function, and return it: `@tools.add` and `@tools.add(name="...")` work too.

        `name`, `description` and `parameters`, a JSON Schema, are told to the model in place of
        what the function says. What the model sends is still read by the annotations.
        Raises: TypeError for a function whose arguments a model cannot give.
        """
        if function is None:
            return functools.partial(
                self.add, name=name, description=description, parameters=parameters
            )
        target = _checked(function)
        written, read = schema.parameters_of(function)
        tool = svir.Tool(
            name or _name(target),
            _about(target) if description is None else description,
            written if parameters is None else parameters,
        )
        self._entries[tool.name] = _Entry(tool, read, lambda call, given: function(**given))
        return function

    def add_tool(self, tool: svir.Tool, handler: Callable[[svir.ToolCall], Any]) -> None:
        """Add a tool with a schema of its own. The handler is given the whole call.

        `call.parse()` are its arguments: a dict, not checked against the schema. To offer the
        tools of another toolbox: `for tool in other: tools.add_tool(tool, other.call)`.
        """
        self._entries[tool.name] = _Entry(tool, _read_object, lambda call, given: handler(call))

    def __iter__(self) -> Iterator[svir.Tool]:
        return iter([entry.tool for entry in self._entries.values()])

    def __repr__(self) -> str:
        return f"Tools({', '.join(self._entries)})"

    def call(self, call: svir.ToolCall) -> svir.ToolResult:
        """Run one call. A failure is a result with `is_error`, in words that the model can act on.

        A handler's text is the result as it is, None is "", a ToolResult gives its content, and
        anything else is written as JSON.
        """
        entry = self._entries.get(call.name)
        if entry is None:
            names = ", ".join(self._entries) or "none"
            return _failed(call, f"there is no such tool; the tools are: {names}")
        try:
            arguments = call.parse(entry.read)
        except ValueError as error:
            return _failed(call, f"the arguments do not fit: {error}", error)
        except Exception as error:  # of a class that checks its fields
            return _failed(call, f"the arguments do not fit: {_words(error)}", error)
        try:
            return _result(call, entry.run(call, arguments))
        except Exception as error:
            return _failed(call, _words(error), error)

    def call_all(
        self, calls: Iterable[svir.ToolCall], workers: int | None = None
    ) -> list[svir.ToolResult]:
        """Run calls, and return their results in order; see the function `call_all`."""
        return call_all(self, calls, workers)


def call_all(
    toolbox: Toolbox, calls: Iterable[svir.ToolCall], workers: int | None = None
) -> list[svir.ToolResult]:
    """Run calls one after the other, or in up to `workers` threads. The results are in order.

    No thread outlives the call. On KeyboardInterrupt no further call starts, and those that run
    are waited for; a second one leaves at once.
    Raises: what a handler raises that is no Exception, such as SystemExit.
    """
    calls = list(calls)
    if workers is None:
        return [toolbox.call(call) for call in calls]
    if workers < 1:
        raise ValueError("workers must be at least 1")
    return _Team(toolbox, calls).run(min(workers, len(calls)))


class _Team:
    """Threads that take calls from one queue."""

    def __init__(self, toolbox: Toolbox, calls: list[svir.ToolCall]) -> None:
        self.toolbox = toolbox
        self.todo = collections.deque(enumerate(calls))  # popleft() and clear() are atomic
        self.results: dict[int, svir.ToolResult] = {}
        self.stopped: list[BaseException] = []

    def run(self, count: int) -> list[svir.ToolResult]:
        # Daemons, so that a second KeyboardInterrupt can end the program.
        threads = [threading.Thread(target=self.work, daemon=True) for _ in range(count)]
        try:
            for thread in threads:
                thread.start()
            _join(threads)
        except BaseException:
            self.todo.clear()
            _join(threads)
            raise
        if self.stopped:
            raise self.stopped[0]
        return [self.results[place] for place in sorted(self.results)]

    def work(self) -> None:
        while True:
            try:
                place, call = self.todo.popleft()
            except IndexError:
                return  # nothing is left
            try:
                self.results[place] = self.toolbox.call(call)
            except BaseException as error:
                self.todo.clear()
                self.stopped.append(error)


def _join(threads: Iterable[threading.Thread]) -> None:
    for thread in threads:
        # On Windows a wait without an end cannot be interrupted.
        while thread.ident is not None and thread.is_alive():
            thread.join(0.1)


# -- A function as a tool -------------------------------------------------------------------------


def _checked(function: Any) -> Any:
    """The function under partials. Raises: TypeError for what cannot be a tool."""
    target = function
    while isinstance(target, functools.partial):
        target = target.func
    if isinstance(target, type) or not callable(target):
        raise TypeError(f"a tool is a function, not {target!r}")
    if inspect.iscoroutinefunction(target) or inspect.isasyncgenfunction(target):
        raise TypeError(f"{_name(target)} is async: give a function that runs it to its end")
    return target


def _name(target: Any) -> str:
    name = getattr(target, "__name__", None)
    if name is None or name == "<lambda>":
        raise TypeError(f"{target!r} has no name: give one, add(function, name=...)")
    return str(name)


def _about(target: Any) -> str:
    """The first paragraph of the docstring, in one line."""
    # An object that is callable has the docstring of its class, which is about something else.
    words = inspect.getdoc(target if hasattr(target, "__name__") else type(target).__call__)
    return " ".join((words or "").partition("\n\n")[0].split())


def _read_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("they must be a JSON object")
    return value


def _result(call: svir.ToolCall, result: Any) -> svir.ToolResult:
    if isinstance(result, svir.ToolResult):
        return _answer(call, result.content, result.is_error)
    value = schema.to_json_value(result)
    if value is None or isinstance(value, str):
        return _answer(call, value or "")
    return _answer(call, json.dumps(value, ensure_ascii=False, allow_nan=False))


def _answer(call: svir.ToolCall, content: str, is_error: bool = False) -> svir.ToolResult:
    # Half a surrogate pair, of a file name for one, cannot be sent: the next request would fail.
    pairs = content.encode("utf-16-le", "surrogatepass")
    return svir.ToolResult(call.id, pairs.decode("utf-16-le", "replace"), is_error=is_error)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _failed(call: svir.ToolCall, content: str, error: Exception | None = None) -> svir.ToolResult:
    if _LOG.isEnabledFor(logging.DEBUG):
        # Where, but neither the exception's words nor its chain: they may repeat what was sent.
        frames = "" if error is None else "".join(traceback.format_tb(error.__traceback__))
        what = "no such tool" if error is None else f"{call.name}: {type(error).__name__}"
        _LOG.debug("tool call %s failed: %s\n%s", call.id, what, frames)
    return _answer(call, content, is_error=True)
