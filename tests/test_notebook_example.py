"""examples/notebook.ipynb runs from its first cell to its last in a real kernel."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import svir
import svir_ext
from svir_ext.testing import STALL, MockRequest, MockServer, Reply, text_answer

NOTEBOOK = Path(__file__).parent.parent / "examples" / "notebook.ipynb"


def answer(request: MockRequest) -> Reply | None:
    if request.lists_models:
        return None
    question = request.json()["messages"][-1]["content"]
    if "million" in question:
        return Reply(text_answer("1, 2, ", finish_reason=None)[:2], STALL)
    if isinstance(question, list):
        assert question[1]["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
        return Reply(text_answer("Red."))
    return Reply(text_answer("It is ", "**blue**.", reasoning="Hm.", usage=(5, 2)))


def outputs(cell: Any) -> str:
    """What a reader sees below a cell."""
    seen = [output.get("text") or output["data"] for output in cell.outputs]
    return "".join(str(part) for part in seen)


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip(
        "nbclient", reason="*** nbclient is not installed: the notebook is NOT TESTED"
    )
    pytest.importorskip(
        "ipykernel", reason="*** ipykernel is not installed: the notebook is NOT TESTED"
    )
    import nbformat  # pyright: ignore[reportMissingImports]

    shutil.copy(svir.__file__, tmp_path / "svir.py")
    assert svir_ext.__file__ is not None
    shutil.copytree(Path(svir_ext.__file__).parent, tmp_path / "svir_ext")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "commit it without outputs"
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    with MockServer() as server:
        server.on_request = answer
        server.model_list(["bge-m3", "qwen3-4b"])
        monkeypatch.setenv("SVIR_URL", server.url)
        monkeypatch.delenv("SVIR_MODEL", raising=False)
        client = nbclient.NotebookClient(
            notebook, timeout=60, resources={"metadata": {"path": str(tmp_path)}}
        )
        client.execute()
        server.wait_until(lambda: server.open_connections == 0)
    _, plain, shown, picture, started, stopped = [
        outputs(cell) for cell in notebook.cells if cell.cell_type == "code"
    ]
    assert "It is **blue**." in plain
    assert "Usage(" in plain
    assert "text/markdown" in shown
    assert "It is **blue**." in shown
    assert picture == "Red.\n"
    assert "1, 2," in started
    assert "closed" in stopped
