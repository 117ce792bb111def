"""Finds free loopback ports, for servers that need a configured port."""

from __future__ import annotations

import random
import socket

_FIRST, _LAST = 10_000, 32_000
"""Ports below those that the system gives to outgoing connections: a server can use its port again after a restart."""


def free_port() -> int:
    """Return a port that is not in use."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return distinct ports that are not in use."""
    found: set[int] = set()
    while len(found) < count:
        port = random.randrange(_FIRST, _LAST)
        if _is_free(port):
            found.add(port)
    return list(found)


def has_ipv6() -> bool:
    """Return whether this machine has an IPv6 loopback address."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
