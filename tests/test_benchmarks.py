"""The benchmarks run, with tiny counts; what they measure is no test of a busy machine."""

from __future__ import annotations

import importlib
import json
import pathlib
import sys
from typing import Any

import pytest

BENCHMARKS = pathlib.Path(__file__).resolve().parent.parent / "benchmarks"
TINY: dict[str, dict[str, Any]] = {
    "streams": {"COUNT": 20, "ROUNDS": 1, "TARGETS": {"content": 9.0}, "PEERS": {}},
    "parts": {"ROUNDS": 1},
    "growth": {"LENGTHS": (100, 200), "KINDS": ("tools",), "PIECE": 5, "ROUNDS": 1},
    "latency": {"COUNT": 4, "RATE": 500, "ROUNDS": 1},
    "short": {"CALLS": 1, "ROUNDS": 1},
    "startup": {"ROUNDS": 1},
    "uploads": {"IMAGES": 2, "IMAGE_SIZE": 60_000, "TEXT_SIZE": 60_000, "ROUNDS": 1},
    "many": {"STREAMS": 4, "COUNT": 4, "RATE": 100, "ROUNDS": 1},
}
FIGURES = {"growth": (1, 1), "uploads": 1, "many": 1}


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A benchmark as a module, with what it imports beside it, and all of it forgotten again."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setitem(sys.modules, "urllib3", None)  # the same, wherever it is installed
    for name in (*TINY, "common", "run"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module
    for name in (*TINY, "common", "run"):
        sys.modules.pop(name, None)


def tiny(load: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    module = load(name)
    for constant, value in TINY[name].items():
        assert hasattr(module, constant)
        monkeypatch.setattr(module, constant, value)
    if hasattr(module, "apart"):  # another process would have the constants as they are
        monkeypatch.setattr(module, "apart", lambda name, *arguments: FIGURES[name])
    if name == "startup":
        monkeypatch.setattr(module, "process", lambda code, environment: lambda: exec(code, {}))
    return module


@pytest.mark.parametrize("name", TINY)
def test_a_benchmark_has_its_table(
    name: str, load: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tiny(load, name, monkeypatch).measure()
    table = {"title": report.title, "machine": load("common").machine(), "rows": report.rows}
    load("common").show(json.loads(json.dumps(table)))
    assert capsys.readouterr().out.count("\n") == 1 + len(report.rows) > 3
    assert any("svir" in row["what"] or name == "growth" for row in report.rows)
    assert name == "parts" or any(row["target"] is not None for row in report.rows)
    assert name in load("run").NAMES


def test_a_target_is_for_the_ratio_or_the_value(load: Any) -> None:
    is_missed = load("common").is_missed
    assert is_missed({"value": 1.0, "ratio": 1.3, "target": 1.2})
    assert not is_missed({"value": 9.0, "ratio": 1.1, "target": 1.2})
    assert is_missed({"value": 1.3, "ratio": None, "target": 1.2})
    assert not is_missed({"value": 9.0, "ratio": 9.0, "target": None})


def test_every_benchmark_is_run(load: Any) -> None:
    others = {"common", "server", "run", "cut_streams"}
    assert {path.stem for path in BENCHMARKS.glob("*.py")} - others == set(load("run").NAMES)


def test_what_runs_apart_gives_its_figures(load: Any) -> None:
    grown, text = load("common").apart("growth", "memory", "content", 100, 3000)
    assert text > 3000
    assert grown >= 0
