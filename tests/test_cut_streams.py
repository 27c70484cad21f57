"""The comparison of docs/comparison.md: its script, as far as nothing has to be installed."""

from __future__ import annotations

import importlib
import pathlib
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "comparison.md"


@pytest.fixture(scope="module")
def script() -> Any:
    return importlib.import_module("benchmarks.cut_streams")


def row(client: str) -> list[str]:
    """What the page says of a client, for each ending."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == client:
            return cells[1:]
    raise AssertionError(f"{client} is not in the table")


@pytest.mark.parametrize("client", ["svir", "urllib, a loop by hand"])
def test_the_page_says_what_happens(
    client: str, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "*")
    ask = script.CLIENTS[client][1]
    assert [str(script.ask(ask, ending)) for ending in script.ENDINGS.values()] == row(client)


def test_the_page_has_every_ending_and_client(script: Any) -> None:
    text = PAGE.read_text(encoding="utf-8")
    for number, ending in enumerate(script.ENDINGS.values(), 1):
        assert f"\n{number}. {ending.title}\n" in text
    for client in script.CLIENTS:
        assert len(row(client)) == len(script.ENDINGS)
