"""Each block with only svir.py beside it: no site-packages, warnings are errors."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import svir
import svir_ext

# What a person may do with the one file, in a few lines.
SCRIPTS = {
    "layers": """
def answer(request, call):
    yield svir.Completed(svir.Completion("ok", finish_reason="stop"))
layers = [
    ext.trace(), ext.timeout(first_token=9, idle=9, total=9), ext.at_most(1), ext.retry(2),
    ext.fallback(svir.Client("http://localhost:2")), answer,
]
client = svir.Client("http://localhost:1", layers=layers)
assert client.complete(svir.Request("m", "hi")).text == "ok"
""",
    "loop": """
def answer(request, call):
    yield svir.Completed(svir.Completion("ok", finish_reason="stop"))
class Box:
    def __iter__(self):
        return iter(())
    def call(self, call):
        raise AssertionError
client = svir.Client("http://localhost:1", layers=[answer])
assert ext.run(client, svir.Request("m", "hi"), Box(), max_rounds=1).result().text == "ok"
""",
    "models": """
assert [model.id for model in ext.chat_models([svir.Model("a"), svir.Model("bge-m3")])] == ["a"]
""",
    "dialects": """
svir.Client("http://localhost:1", accept=ext.PERPLEXITY)
""",
    "schema": """
import dataclasses
@dataclasses.dataclass
class City:
    name: str
def answer(request, call):
    assert request.response_format.schema["required"] == ["name"]
    yield svir.Completed(svir.Completion('{"name": "Oslo"}', finish_reason="stop"))
client = svir.Client("http://localhost:1", layers=[answer])
assert ext.ask(client, svir.Request("m", "hi"), City)[0] == City("Oslo")
""",
    "tools": """
def weather(city: str) -> str:
    return "12 C in " + city
tools = ext.Tools(weather)
assert [tool.name for tool in tools] == ["weather"]
calls = [svir.ToolCall("1", "weather", '{"city": "Oslo"}')]
assert tools.call_all(calls, workers=2) == [svir.ToolResult("1", "12 C in Oslo")]
assert tools.call(svir.ToolCall("1", "weather")).is_error
""",
    "record": """
import io, pathlib
class Backend:
    status, headers = 200, {"content-type": "text/event-stream"}
    def send(self, request):
        chunk = b'data: {"choices":[{"delta":{"content":"ok"},"finish_reason":"stop"}]}'
        self.body = io.BytesIO(chunk + b"\\n\\ndata: [DONE]\\n\\n")
        return self
    def read(self, size, timeout):
        return self.body.read(size)
    def close(self):
        pass
path = pathlib.Path(sys.argv[1]) / "a.jsonl"
client = svir.Client("http://localhost:1", backend=ext.Recorder(path, Backend()))
assert client.complete(svir.Request("m", "hi")).text == "ok"
assert ext.load(path).decode().completion.text == "ok"
""",
    "notebook": """
def answer(request, call):
    yield svir.Completed(svir.Completion("ok", finish_reason="stop"))
client = svir.Client("http://localhost:1", layers=[answer])
out, sys.stdout = sys.stdout, None
shown = ext.show(client.stream(svir.Request("m", "hi")))
sys.stdout = out
assert shown.completion.text == "ok"
assert ext.markdown("<b>") == "&lt;b>"
assert "IPython" not in sys.modules
""",
    "timeline": """
assert ext.svg([(0.5, svir.TextDelta("ok"))]).startswith("<svg ")
""",
    "testing": """
with ext.MockServer() as server, svir.Client(server.url) as client:
    server.reply(ext.text_answer("o", "k"))
    assert client.complete(svir.Request("m", "hi")).text == "ok"
""",
}


# The blocks that a block imports.
NEEDS = {"tools": ["schema"]}


@pytest.mark.parametrize("module", ["svir_ext.{}", "{}"], ids=["package", "beside"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_block_alone(name: str, module: str, tmp_path: Path) -> None:
    shutil.copy(str(svir.__file__), tmp_path / "svir.py")
    folder = tmp_path / "svir_ext" if "." in module else tmp_path
    folder.mkdir(exist_ok=True)
    for each in (name, *NEEDS.get(name, ())):
        shutil.copy(Path(svir_ext.__path__[0]) / f"{each}.py", folder)
    code = (
        "import sys\nsys.path.insert(0, sys.argv[1])\n"
        f"import svir\nimport {module.format(name)} as ext\n{SCRIPTS[name]}"
        "assert not any('site-packages' in path for path in sys.path)\n"
    )
    command = [sys.executable, "-I", "-S", "-X", "dev", "-W", "error", "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
