"""Sends the HTTP requests of the sink, with the package elastic_transport.

elastic_transport does not check the product or version of the server, and the requests use no version-specific media
type. Therefore, the requests work with Elasticsearch 7, 8 and 9 and with OpenSearch 2 and 3.
"""

from __future__ import annotations

import base64
import logging
from typing import Any
from urllib.parse import quote, urlsplit

import urllib3
from elastic_transport import (
    ConnectionTimeout,
    NodeConfig,
    SerializationError,
    TlsError,
    Transport,
    TransportError,
)

from headrace.api.errors import ConnectError
from headrace_connectors.elasticsearch.http_node import HttpNode, Proxy, node_config
from headrace_connectors.elasticsearch.responses import TEMPORARY_STATUSES
from headrace_connectors.elasticsearch.sink_config import ElasticsearchSinkConfig
from headrace_connectors.elasticsearch.tls import tls_context

# Its warnings repeat what the sink logs about a failed request, or report that a server responds again.
logging.getLogger("elastic_transport.node_pool").setLevel(logging.ERROR)

_BULK = "/_bulk?filter_path=errors,error,items.*.status,items.*.error.type,items.*.error.reason,items.*.error.index"


class TemporaryError(Exception):
    """A request failed for a reason that may be temporary."""


class TooLargeError(Exception):
    """The request is larger than the server accepts."""


class RefusedError(ConnectError):
    """The server refused a request with the HTTP status `status`."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Client:
    """Sends requests to the servers of `connection.url`. Its methods may be called from several threads."""

    def __init__(self, config: ElasticsearchSinkConfig) -> None:
        """Create the client without connecting. Raises UnusableTlsSettingError."""
        proxy = f" (proxy {config.proxy_host}:{config.proxy_port})" if config.proxy_host else ""
        self.address = ",".join(config.urls) + proxy
        """The servers and the proxy, for messages."""
        self._connection_timeout_ms, self._read_timeout_ms = config.connection_timeout_ms, config.read_timeout_ms
        timeout = urllib3.Timeout(connect=config.connection_timeout_ms / 1000, read=config.read_timeout_ms / 1000)
        self._timeout: Any = timeout
        self._headers = _authorization(config)
        nodes = [_node(url, config) for url in config.urls]
        self._node_count = len(nodes)
        self._transport = Transport(nodes, node_class=HttpNode, max_retries=0, retry_on_status=(), meta_header=False)

    def bulk(self, body: bytes) -> Any:
        """Send a bulk request and return the response. Raises TemporaryError, TooLargeError or ConnectError."""
        return self._request("POST", _BULK, body, "application/x-ndjson")[1]

    def check(self) -> None:
        """Check that a server responds and accepts the credentials. Raises TemporaryError or ConnectError.

        The status 403 is accepted: `GET /` needs a cluster privilege, but writing to an index does not.
        """
        for attempt in range(self._node_count):  # each request goes to the next server
            try:
                self._request("GET", "/", allowed=(403, 404, 405))  # 404, 405: a reduced distribution
                return
            except TemporaryError:
                if attempt == self._node_count - 1:
                    raise

    def ensure_index(self, name: str) -> None:
        """Create an index, unless an index or alias with this name exists. Raises TemporaryError or ConnectError."""
        status, _ = self._request("HEAD", f"/{quote(name, safe='')}", allowed=(404,))
        if status == 404:
            self._create(f"/{quote(name, safe='')}", f"index {name}", "{}")

    def is_missing(self, name: str) -> bool:
        """Whether no index, data stream or alias has this name. Raises TemporaryError or ConnectError.

        Returns False if the user has no privilege to read metadata.
        """
        return self._request("HEAD", f"/{quote(name, safe='')}", allowed=(403, 404))[0] == 404

    def ensure_data_stream(self, name: str) -> None:
        """Create a data stream, unless it exists. Raises TemporaryError or ConnectError."""
        try:
            self._create(f"/_data_stream/{quote(name, safe='')}", f"data stream {name}", None)
        except RefusedError as error:
            if "no matching index template" in str(error):
                raise ConnectError(
                    f"{error}; create an index template that matches {name} and has a data_stream object"
                ) from error
            if error.status != 405:  # a reduced distribution; it creates the data stream at the first write
                raise

    def has_mapping(self, index: str) -> bool:
        """Whether the index has a mapping with at least one field. Raises TemporaryError or ConnectError."""
        _, body = self._request("GET", f"/{quote(index, safe='')}/_mapping")
        return any(each.get("mappings", {}).get("properties") for each in body.values())

    def put_mapping(self, index: str, mapping: bytes) -> None:
        """Set the mapping of an index. Raises TemporaryError or ConnectError."""
        self._request("PUT", f"/{quote(index, safe='')}/_mapping", mapping)

    def close(self) -> None:
        """Close all connections."""
        self._transport.close()

    def _create(self, path: str, what: str, body: str | None) -> None:
        try:
            self._request("PUT", path, None if body is None else body.encode())
        except RefusedError as error:
            if "already_exists_exception" not in str(error) and "already exists" not in str(error):
                raise RefusedError(f"Cannot create the {what}: {error}", error.status) from error

    def _request(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        content_type: str = "application/json",
        allowed: tuple[int, ...] = (),
    ) -> tuple[int, Any]:
        headers = {**self._headers, "accept": "application/json"}
        if body is not None:
            headers["content-type"] = content_type
        try:
            response = self._transport.perform_request(
                method, target, body=body, headers=headers, request_timeout=self._timeout
            )
        except TlsError as error:
            raise ConnectError(
                f"Elasticsearch at {self.address}: the TLS handshake failed: {error.message}; check elastic.https.ssl.*"
            ) from error
        except SerializationError as error:
            raise self._not_json_error(method, target, error.message) from error
        except ConnectionTimeout as error:
            raise self._timeout_error(error) from error
        except TransportError as error:
            raise TemporaryError(f"Elasticsearch at {self.address} is not reachable: {error.message}") from error
        status = response.meta.status
        if status < 300 or status in allowed:
            if method != "HEAD" and not isinstance(response.body, dict):
                raise self._not_json_error(method, target, f"{response.body!r:.200}")
            return status, response.body
        what = f"Elasticsearch at {self.address}: {method} {target.partition('?')[0]} failed with status {status}"
        text = f"{what}: {_reason(response.body)}"
        if status in TEMPORARY_STATUSES:
            raise TemporaryError(text)
        if status == 413:
            raise TooLargeError(text)
        if status == 407:
            text += "; check proxy.username and proxy.password"
        if status in (401, 403):
            text += "; check connection.username and connection.password, or connection.api.key, and the privileges"
        raise RefusedError(text, status)

    def _timeout_error(self, error: ConnectionTimeout) -> TemporaryError:
        """Return the error for a timeout, which names the configuration key with the limit."""
        if isinstance(error.__cause__, urllib3.exceptions.ConnectTimeoutError):
            limit = f"{self._connection_timeout_ms} ms (connection.timeout.ms)"
            return TemporaryError(f"Elasticsearch at {self.address} is not reachable: no connection after {limit}")
        limit = f"{self._read_timeout_ms} ms (read.timeout.ms)"
        return TemporaryError(f"Elasticsearch at {self.address} has not responded after {limit}")

    def _not_json_error(self, method: str, target: str, details: str) -> TemporaryError:
        """Return the error for a response that is not a JSON object.

        The error is temporary, because the response may come from a proxy.
        """
        return TemporaryError(
            f"Elasticsearch at {self.address} responded to {method} {target.partition('?')[0]} with data that is "
            f"not JSON: {details}; check connection.url"
        )


def _reason(body: Any) -> str:
    error = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(error, dict):
        return f"{error.get('type')}: {error.get('reason')}"
    return str(error or "no reason given")[:500]


def _authorization(config: ElasticsearchSinkConfig) -> dict[str, str]:
    if config.api_key is not None:
        return {"authorization": f"ApiKey {config.api_key.value}"}
    if config.username is not None and config.password is not None:
        pair = f"{config.username}:{config.password.value}".encode()
        return {"authorization": f"Basic {base64.b64encode(pair).decode()}"}
    return {}


def _node(url: str, config: ElasticsearchSinkConfig) -> NodeConfig:
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    return node_config(
        _proxy(config),
        scheme=parts.scheme,
        host=parts.hostname or "",
        port=parts.port or (443 if is_tls else 9200),
        path_prefix=parts.path.rstrip("/"),
        connections_per_node=config.max_in_flight + 1,
        http_compress=config.compression,
        ssl_context=tls_context(config) if is_tls else None,
    )


def _proxy(config: ElasticsearchSinkConfig) -> Proxy | None:
    if not config.proxy_host:
        return None
    authorization = None
    if config.proxy_username and config.proxy_password is not None:
        authorization = f"{config.proxy_username}:{config.proxy_password.value}"
    return Proxy(config.proxy_host, config.proxy_port, authorization)
