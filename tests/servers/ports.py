"""A port for a program that cannot choose one itself."""

from __future__ import annotations

import socket


def free_port() -> int:
    """One that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class PortTaken(Exception):
    """Another program was quicker."""
