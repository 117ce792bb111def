"""Limits the connections to a REST server, so that idle clients do not use all file descriptors of the worker.

A connection that has not sent a complete request head is closed after `REQUEST_HEAD_TIMEOUT_S`. A server has at most
half as many connections as the process may have open files.

At the limit, a new connection replaces the oldest connection that has not sent a request. If all connections have sent
a request, the new connection is closed.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from typing import Any, cast

from uvicorn.protocols.http.auto import AutoHTTPProtocol

log = logging.getLogger(__name__)

REQUEST_HEAD_TIMEOUT_S = 20.0
CONNECTIONS_MAX = 1024
LOG_INTERVAL_S = 60.0


def connection_limit() -> int:
    """Return the maximum number of connections of one server."""
    if sys.platform == "win32":
        return CONNECTIONS_MAX
    import resource  # Windows has no such module

    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return CONNECTIONS_MAX if files == resource.RLIM_INFINITY else max(1, min(CONNECTIONS_MAX, files // 2))


class LimitedHTTPProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """One connection of a server with a limited number of connections."""

    _last_logged_s = -LOG_INTERVAL_S

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept or close a new connection."""
        self.accepted_s = time.monotonic()
        super().connection_made(transport)
        self._head_timer = asyncio.get_running_loop().call_later(REQUEST_HEAD_TIMEOUT_S, self._close_if_idle)
        if len(self.connections) > connection_limit():
            self._log_limit()
            waiting = [each for each in self.connections if each is not self and each.cycle is None]
            oldest = min(waiting, key=lambda each: each.accepted_s, default=self)
            cast("asyncio.Transport", oldest.transport).abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timer for the request head."""
        self._head_timer.cancel()
        super().connection_lost(exc)

    def _close_if_idle(self) -> None:
        if self.cycle is None:
            self.transport.close()

    def _log_limit(self) -> None:
        kind: Any = type(self)
        if time.monotonic() - kind._last_logged_s >= LOG_INTERVAL_S:
            kind._last_logged_s = time.monotonic()
            log.warning(
                "REST server: %d connections are open, which is the limit; closing connections that send no request",
                connection_limit(),
            )
