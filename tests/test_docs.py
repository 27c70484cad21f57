"""Every python block of the README and of docs/ runs, in order, against a scripted server."""

import re
import threading
from pathlib import Path

import pytest

from svir_ext.testing import MockServer, Reply, text_answer, tool_answer

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def answer(request):
    """What a model would say to the question of a block."""
    if request.lists_models:
        return None  # the server lists its own
    body = request.json()
    if body.get("response_format"):
        return Reply(text_answer('{"city": "Oslo"}'))
    if body.get("tools") and body["messages"][-1]["role"] != "tool":
        return Reply(tool_answer(("weather", {"city": "Oslo"})))
    return Reply(text_answer("Hello", " there", usage=(5, 2)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    if page.name in ("README.md", "errors.md"):
        assert blocks, "a page that shows code"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.md").write_text("Buy milk.", encoding="utf-8")
    (tmp_path / "photo.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    monkeypatch.setenv("LAB_KEY", "sk-lab")
    space = {"__name__": "__main__"}
    with MockServer() as server:
        server.on_request = answer
        for number, block in enumerate(blocks):
            code = re.sub(r"http://localhost:(1234|8080)\b", server.url, block)
            exec(compile(code, f"{page.name}, block {number}", "exec"), space)
    for timer in threading.enumerate():
        if isinstance(timer, threading.Timer):
            timer.cancel()
            timer.join()


def test_every_link_leads_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            # CI also runs this where only the wheel has svir.py.
            there = (page.parent / target).exists() or target == "svir.py"
            assert "://" in target or there, f"{page.name}: {target}"
