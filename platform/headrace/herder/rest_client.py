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


async def send(
    config: WorkerConfig, method: str, url: str, body: bytes | None, headers: Mapping[str, str]
) -> RestResponse:
    """Send a request and return the response, whatever its status. Raises OSError."""
    return await asyncio.to_thread(_send, config, method, url, body, headers)


def _send(config: WorkerConfig, method: str, url: str, body: bytes | None, headers: Mapping[str, str]) -> RestResponse:
    parts = urlsplit(url)
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(
            parts.hostname or "", parts.port, timeout=TIMEOUT_S, context=_tls_context(config)
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
    target = parts.path + ("?" + parts.query if parts.query else "")
    try:
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


def _tls_context(config: WorkerConfig) -> ssl.SSLContext:
    from headrace.runtime.tls import client_context

    algorithm = config.properties.get("ssl.endpoint.identification.algorithm", "https")
    return client_context(Tls.of(config.properties, admin=False), checks_host_name=bool(algorithm.strip()))
