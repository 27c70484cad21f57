"""Every input of the fuzzers' corpus, through the same targets, without a fuzzer."""

from __future__ import annotations

import pathlib

import pytest

import svir
from fuzz import targets

CORPUS = pathlib.Path(__file__).resolve().parent / "fuzz" / "corpus"
INPUTS = sorted(path for path in CORPUS.rglob("*") if path.is_file())


def test_each_target_has_a_corpus() -> None:
    assert {path.parent.name for path in INPUTS} == set(targets.TARGETS)
    assert {path.parent.parent for path in INPUTS} == {CORPUS}


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: f"{path.parent.name}-{path.name[:12]}")
def test_input(path: pathlib.Path) -> None:
    targets.TARGETS[path.parent.name](path.read_bytes())


SEED, WHOLE = b"\x07", b'data: {"choices":[{"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\n'


def test_a_target_that_meets_a_fault_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The targets are worth something only if they fail when svir does."""
    body = b"\0\0" + SEED + WHOLE
    targets.decoder(body)
    with monkeypatch.context() as patch:  # an end without [DONE] that is taken for a whole answer
        patch.setattr(svir._Answer, "end_of_input", lambda self, whole: self.complete("stop"))
        with pytest.raises(AssertionError):
            targets.decoder(body)
    with monkeypatch.context() as patch:  # a failure that is not svir's
        patch.setattr(svir._Answer, "end_of_input", lambda self, whole: [][0])
        with pytest.raises(IndexError):
            targets.decoder(body)
    with monkeypatch.context() as patch:  # what was cut is given out in other pieces
        patch.setattr(svir.Decoder, "_line", lambda self, line: self._answer.note(line[:9]))
        patch.setattr(svir.Decoder, "_split", lambda self, data: self._line(str(data)))
        with pytest.raises(AssertionError):
            targets.decoder(body)
