"""Limits the connections to a REST server, so that slow or idle clients do not use all file descriptors of the worker.

A connection is idle while the worker waits for the client: for a request head, for more of a request body, or until the
client reads a response. An idle connection is closed after `IDLE_TIMEOUT_S`. This timeout starts again whenever a part
of a body arrives, but not when a part of a request head arrives.

A server has at most `CONNECTIONS_MAX` connections, and at most half as many as the process may have open files. At
this limit, a new connection replaces the idle connection that has gone longest without a completed response. If no
connection is idle, the new connection is closed.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

log = logging.getLogger(__name__)

IDLE_TIMEOUT_S = 20.0
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
        super().connection_made(transport)
        self.request_since_s = self._body_received_s = self._write_paused_s = time.monotonic()
        self._check_later(IDLE_TIMEOUT_S)
        if len(self.connections) > connection_limit():
            self._log_limit()
            idle = [each for each in self.connections if each is not self and each.idle_since_s() is not None]
            replaced = min(idle, key=lambda each: each.request_since_s, default=self)
            replaced.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timer of the idle timeout."""
        self._idle_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handle a part of a request."""
        self._body_received_s = time.monotonic()
        super().data_received(data)

    def on_response_complete(self) -> None:
        """Wait for the next request on this connection."""
        self.request_since_s = time.monotonic()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Stop writing, because the client does not read the response."""
        self._write_paused_s = time.monotonic()
        super().pause_writing()

    def idle_since_s(self) -> float | None:
        """Return the time at which the worker began to wait for the client, or None if the worker is not waiting.

        The time is a value of `time.monotonic()`.
        """
        if self.cycle is None or self.cycle.response_complete:
            return self.request_since_s
        if self.flow.write_paused:
            return self._write_paused_s
        if self.cycle.more_body and not self.flow.read_paused:
            return self._body_received_s
        return None

    def _check_later(self, delay_s: float) -> None:
        self._idle_timer = asyncio.get_running_loop().call_later(delay_s, self._close_if_idle)

    def _close_if_idle(self) -> None:
        since_s = self.idle_since_s()
        remaining_s = IDLE_TIMEOUT_S if since_s is None else since_s + IDLE_TIMEOUT_S - time.monotonic()
        if remaining_s <= 0:
            self.transport.abort()  # `close` would wait until the client has read what was written
        else:
            self._check_later(remaining_s)

    def _log_limit(self) -> None:
        kind: Any = type(self)
        if time.monotonic() - kind._last_logged_s >= LOG_INTERVAL_S:
            kind._last_logged_s = time.monotonic()
            log.warning(
                "REST server: the limit of %d open connections is reached; for each new connection, the worker closes "
                "the idle connection that has gone longest without a completed response",
                connection_limit(),
            )
