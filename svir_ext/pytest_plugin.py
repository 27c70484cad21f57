"""A fixture for pytest: one line in conftest.py gives it to every test.

    pytest_plugins = ["svir_ext.pytest_plugin"]

    def test_greeting(mock_server):
        mock_server.reply(text_answer("Hello"))
        assert greet(svir.Client(mock_server.url)) == "Hello"

The only module of svir that imports pytest.
"""

from __future__ import annotations

from typing import Iterator

import pytest

from svir_ext.testing import MockServer

__all__ = ["mock_server"]


@pytest.fixture
def mock_server() -> Iterator[MockServer]:
    """A `MockServer` that runs during the test, which fails when a request had no reply."""
    with MockServer() as server:
        yield server
        server.check()
