"""Finds free loopback ports, for servers that need a configured port."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a port that is not in use."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return distinct ports that are not in use."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
