"""Hand the tools of an MCP server to a model. It needs the official SDK: pip install "mcp>=2".

    python3 examples/mcp_bridge.py http://localhost:8000/mcp http://localhost:1234 qwen3-4b "Hello"

The SDK is asyncio and svir is not, so the session lives in a thread of its own. Which servers to
trust, and what their tools may do, is for your program to say: this offers all there are.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import sys
import threading
from pathlib import Path
from typing import Any, Iterator

import mcp  # pyright: ignore[reportMissingImports]

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import svir


class McpTools:
    """A toolbox while its `with` block runs. `server` is what `mcp.Client` takes: the URL of a
    server, `mcp.StdioServerParameters` to start one, or a server object in this process."""

    def __init__(self, server: Any, timeout: float | None = 60) -> None:
        self.server, self.timeout = server, timeout
        self.tools: list[svir.Tool] = []
        self.started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.thread = threading.Thread(target=self.run, name="mcp", daemon=True)

    def __enter__(self) -> McpTools:
        self.thread.start()
        self.started.result()  # raises what kept the session from starting
        return self

    def __exit__(self, *error: object) -> None:
        self.loop.call_soon_threadsafe(self.stop.set)
        self.thread.join()

    def __iter__(self) -> Iterator[svir.Tool]:
        return iter(self.tools)

    def call(self, call: svir.ToolCall, /) -> svir.ToolResult:
        if not self.thread.is_alive():
            return svir.ToolResult(call.id, "the MCP session has ended", is_error=True)
        asked = asyncio.run_coroutine_threadsafe(self.ask(call), self.loop)
        try:
            return asked.result()
        except KeyboardInterrupt:
            asked.cancel()  # the server is told, too
            raise
        except Exception as error:  # of the arguments, the session or the server
            return svir.ToolResult(call.id, f"{type(error).__name__}: {error}", is_error=True)

    # -- In the thread of the session --

    def run(self) -> None:
        try:
            asyncio.run(self.session())
        except BaseException as error:
            if self.started.done():
                raise
            self.started.set_exception(error)

    async def session(self) -> None:
        self.loop, self.stop = asyncio.get_running_loop(), asyncio.Event()
        # One task enters and leaves the client: the SDK's cancel scopes belong to their task.
        async with mcp.Client(self.server) as self.client:
            self.tools = await self.list_tools()
            self.started.set_result(None)
            await self.stop.wait()

    async def list_tools(self) -> list[svir.Tool]:
        tools, cursor = [], None
        while True:
            page = await self.client.list_tools(cursor=cursor)
            for tool in page.tools:
                tools.append(svir.Tool(tool.name, tool.description or "", tool.input_schema))
            cursor = page.next_cursor
            if not cursor:
                return tools

    async def ask(self, call: svir.ToolCall) -> svir.ToolResult:
        asked = self.client.call_tool(call.name, call.parse())
        answer: Any = await asyncio.wait_for(asked, self.timeout)
        kinds = {block.type for block in answer.content} - {"text"}
        if kinds:  # a tool result is text: nothing is dropped silently
            content = f"the tool answered with {', '.join(sorted(kinds))}, which cannot be shown"
            return svir.ToolResult(call.id, content, is_error=True)
        content = "\n".join(block.text for block in answer.content)
        if not answer.content and answer.structured_content is not None:
            content = json.dumps(answer.structured_content, ensure_ascii=False)
        return svir.ToolResult(call.id, content, is_error=bool(answer.is_error))


def main(server: str, base_url: str, model: str, question: str) -> None:
    messages: list[svir.Message] = [svir.User(question)]
    with McpTools(server) as tools, svir.Client(base_url) as client:
        while True:
            completion = client.complete(svir.Request(model, messages, tools=tools))
            messages.append(completion.message)
            if not completion.tool_calls:
                print(completion.text)
                return
            for call in completion.tool_calls:
                print(f"[{call.name} {call.arguments}]")
                messages.append(tools.call(call))


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
