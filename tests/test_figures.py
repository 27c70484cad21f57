"""docs/reliability.md claims no more than the tests try."""

from __future__ import annotations

import figures


def test_the_page_claims_no_more_than_there_is() -> None:
    there = dict(figures.rows())
    told = figures.claims(figures.PAGE.read_text("utf-8"))
    assert list(told) == list(there), "run tests/figures.py --write"
    assert {what: count for what, count in told.items() if count > there[what]} == {}
    assert all(there.values())
