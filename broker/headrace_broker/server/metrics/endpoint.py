"""Serves `GET /metrics` on the addresses of `headrace.metrics.listeners`, on the node's own event loop.

It supports the part of HTTP/1.1 that scrapers use. A connection carries one request without a body, and is closed after
the response.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import urlsplit

from headrace_broker.server.data_dirs import StartError
from headrace_broker.server.metrics.page import CONTENT_TYPE
from headrace_broker.server.network.endpoints import is_wildcard

logger = logging.getLogger(__name__)

_HEAD_TIMEOUT_S = 10.0
_HEAD_BYTES_MAX = 16 * 1024
_KEY = "headrace.metrics.listeners"


class MetricsEndpoint:
    """The HTTP servers of the metrics page."""

    def __init__(self, page: Callable[[], Awaitable[bytes]]) -> None:
        self._page = page
        self._servers: list[asyncio.Server] = []
        self.addresses: list[tuple[str, int]] = []

    async def serve(self, listeners: Sequence[str]) -> None:
        """Bind the listeners and serve the page. Raises StartError."""
        for listener in listeners:
            host, port = parse_listener(listener)
            try:
                server = await asyncio.start_server(self._serve_connection, host, port, limit=_HEAD_BYTES_MAX)
            except OSError as error:
                raise StartError(f"{_KEY}: {listener} cannot be bound: {error.strerror or error}") from None
            self._servers.append(server)
            self.addresses.append(server.sockets[0].getsockname()[:2])
            logger.info("Metrics: serving http://%s:%d/metrics", *self.addresses[-1])

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEAD_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            writer.write(await self._response(head))
            await writer.drain()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client sent no complete request, or disconnected
        finally:
            writer.close()

    async def _response(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.split(b" ", 1)[0].split(b"?", 1)[0]
        if path not in (b"/metrics", b"/"):
            return _http("404 Not Found", b"Not found: the metrics are at /metrics\n")
        if method not in (b"GET", b"HEAD"):
            return _http("405 Method Not Allowed", b"Method not allowed: use GET\n")
        body = await self._page()
        return _http("200 OK", body, with_body=method == b"GET")

    def close(self) -> None:
        """Stop serving."""
        for server in self._servers:
            server.close()


def parse_listener(text: str) -> tuple[str | None, int]:
    """Parse `http://host:port` into (host, port). Raises StartError.

    The host is None for all interfaces, over IPv4 and IPv6, which is the meaning of an empty host, 0.0.0.0 and [::].
    """
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        port = None
    if port is None or parts.scheme != "http" or parts.path not in ("", "/", "/metrics"):
        raise StartError(f"{_KEY}: '{text}' does not have the form http://host:port")
    host = parts.hostname or ""
    return None if is_wildcard(host) else host, port


def _http(status: str, body: bytes, *, with_body: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")
