"""Sends REST requests from one worker of a group to another: forwarded requests, and task configurations.

The standard library's client runs in a thread: such requests are rare, and their bodies must be sent byte for byte,
because they are signed.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from headrace.runtime.rest_config import Tls
from headrace.runtime.worker_config import WorkerConfig

TIMEOUT_S = 95.0  # longer than the request timeout of the other worker
CONNECT_TIMEOUT_S = 10.0


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
    config: WorkerConfig, method: str, url: str, body: bytes | None, headers: Mapping[str, str]
) -> RestResponse:
    """Send a request and return the response, whatever its status. Raises NotSentError or another OSError."""
    return await asyncio.to_thread(_send, config, method, url, body, headers)


def _send(config: WorkerConfig, method: str, url: str, body: bytes | None, headers: Mapping[str, str]) -> RestResponse:
    parts = urlsplit(url)
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(
            parts.hostname or "", parts.port, timeout=CONNECT_TIMEOUT_S, context=_tls_context(config)
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=CONNECT_TIMEOUT_S)
    target = parts.path + ("?" + parts.query if parts.query else "")
    try:
        _connect(connection)
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


def _connect(connection: http.client.HTTPConnection) -> None:
    """Connect within `CONNECT_TIMEOUT_S`. Raises OSError; NotSentError unless it is an error of TLS."""
    try:
        connection.connect()
    except ssl.SSLError:
        raise
    except OSError as error:
        raise NotSentError(*error.args) from error
    connection.sock.settimeout(TIMEOUT_S)


def _tls_context(config: WorkerConfig) -> ssl.SSLContext:
    """Return the TLS context of requests to other workers. Raises OSError."""
    from headrace.runtime.tls import client_context

    try:
        return client_context(Tls.of(config.properties, admin=False, is_client=True))
    except ValueError as error:
        raise OSError(f"invalid ssl settings: {error}") from error
