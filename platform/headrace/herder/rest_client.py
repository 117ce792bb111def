"""Sends REST requests from one worker of a group to another: forwarded requests, and task configurations.

The standard library's client runs in a thread: such requests are rare, and their bodies must be sent byte for byte,
because they are signed. Forwarded requests have separate threads, so that they do not delay task configurations if the
other worker does not respond.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import ssl
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any
from urllib.parse import quote, urlsplit

from headrace.runtime.rest_config import tls_settings
from headrace.runtime.worker_config import WorkerConfig
from headrace_broker.security.tls_settings import TlsConfigError

TIMEOUT_S = 95.0  # longer than the request timeout of the other worker
CONNECT_TIMEOUT_S = 10.0
REPLACED_GRACE_S = 5.0
"""How long to wait for the response of a worker that has left the group, for example because it shuts down."""


class Kind(Enum):
    """The kind of a request. The value is the maximum number of concurrent requests of this kind."""

    FORWARDED = 64
    TASK_CONFIGS = 16


@cache
def _threads(kind: Kind) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(kind.value, thread_name_prefix=f"rest-client-{kind.name.lower()}")


@dataclass(frozen=True, slots=True)
class RestResponse:
    """A response of another worker."""

    status: int
    headers: Mapping[str, str]
    """The response headers, with lower-case names."""
    body: bytes

    def describe(self) -> str:
        """Return the status and the message of an error response."""
        try:
            return f"{self.status}: {json.loads(self.body)['message']}"
        except (ValueError, KeyError, TypeError):
            return str(self.status)


def join(base: str, *parts: str) -> str:
    """Return the URL with these path segments below a base URL, which ends with a slash."""
    return base.rstrip("/") + "".join("/" + quote(part, safe="") for part in parts)


class NotSentError(OSError):
    """No connection could be established, so the other worker has certainly not received the request."""


async def send(
    config: WorkerConfig, method: str, url: str, body: bytes | None, headers: Mapping[str, str], *, kind: Kind
) -> RestResponse:
    """Send a request and return the response, whatever its status. Raises NotSentError or another OSError.

    If the call is cancelled, the connection is closed.
    """
    request = _Request()
    try:
        return await asyncio.get_running_loop().run_in_executor(
            _threads(kind), request.send, config, method, url, body, headers
        )
    except asyncio.CancelledError:
        request.abort()
        raise


async def send_unless_replaced(
    replaced: Callable[[], Coroutine[Any, Any, None]] | None,
    config: WorkerConfig,
    method: str,
    url: str,
    body: bytes | None,
    headers: Mapping[str, str],
    *,
    kind: Kind,
) -> RestResponse | None:
    """Send a request and return the response.

    Return None if a rebalance replaces the other worker before it responds, for example because it is suspended. The
    coroutine function `replaced` waits for this rebalance. Raises NotSentError or another OSError.
    """
    sending = asyncio.ensure_future(send(config, method, url, body, headers, kind=kind))
    replacing = asyncio.ensure_future(replaced() if replaced is not None else asyncio.Event().wait())
    waits: list[asyncio.Future[Any]] = [sending, replacing]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait([sending], timeout=REPLACED_GRACE_S)
        return sending.result() if sending.done() else None
    finally:
        for each in waits:
            each.cancel()


class _Request:
    """A request that a thread sends. Another thread may abort the request."""

    def __init__(self) -> None:
        self._connection: http.client.HTTPConnection | None = None
        self._is_aborted = False

    def send(
        self, config: WorkerConfig, method: str, url: str, body: bytes | None, headers: Mapping[str, str]
    ) -> RestResponse:
        connection = self._connection = _connection(config, url)
        target = _target(url)
        try:
            _connect(connection)
            if self._is_aborted:
                raise ConnectionAbortedError("the request was aborted")
            connection.request(method, target, body, {"Content-Type": "application/json", **headers})
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return RestResponse(response.status, found, response.read())
        except ConnectionError:  # also http.client.RemoteDisconnected, which is an HTTPException too
            raise
        except http.client.HTTPException as error:
            raise OSError(f"{url}: invalid HTTP response: {error!r}") from error
        finally:
            connection.close()

    def abort(self) -> None:
        self._is_aborted = True
        connection = self._connection
        if connection is not None and (sock := connection.sock) is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # the thread's read ends


def _connection(config: WorkerConfig, url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    if parts.scheme == "https":
        return http.client.HTTPSConnection(
            parts.hostname or "", parts.port, timeout=CONNECT_TIMEOUT_S, context=_tls_context(config)
        )
    return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=CONNECT_TIMEOUT_S)


def _target(url: str) -> str:
    parts = urlsplit(url)
    return parts.path + ("?" + parts.query if parts.query else "")


def _connect(connection: http.client.HTTPConnection) -> None:
    """Connect within `CONNECT_TIMEOUT_S`. Raises NotSentError, or another OSError if TLS fails."""
    try:
        connection.connect()
    except ssl.SSLError:
        raise
    except OSError as error:
        raise NotSentError(*error.args) from error
    connection.sock.settimeout(TIMEOUT_S)


def _tls_context(config: WorkerConfig) -> ssl.SSLContext:
    """Return the TLS context of requests to other workers. Raises OSError."""
    from headrace_broker.security.tls import client_context

    try:
        return client_context(tls_settings(config.properties, admin=False, is_client=True))
    except TlsConfigError as error:
        raise OSError(str(error)) from error
