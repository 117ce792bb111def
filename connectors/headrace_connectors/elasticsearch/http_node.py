"""The HTTP connections to one server, directly or through an HTTP proxy.

elastic_transport does not support proxies, so `HttpNode` replaces the connection pool of its node by urllib3's
`ProxyManager`: requests to http servers go to the proxy, and requests to https servers through a tunnel (CONNECT).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import urllib3
from elastic_transport import NodeConfig, Urllib3HttpNode

_PROXY = "proxy"


class Proxy(NamedTuple):
    """An HTTP proxy."""

    host: str
    port: int
    authorization: str | None
    """`user:password`, or None for a proxy without authentication."""


def node_config(proxy: Proxy | None, **options: Any) -> NodeConfig:
    """Return the configuration of an `HttpNode`. `options` are arguments of `NodeConfig`."""
    return NodeConfig(**options, _extras={_PROXY: proxy})


class HttpNode(Urllib3HttpNode):
    """A server, to which requests are sent directly or through a proxy.

    If the TLS context does not check the server's host name, urllib3 checks it by default. The node disables this check
    (`assert_hostname=False`), so that the context alone decides.
    """

    def __init__(self, config: NodeConfig) -> None:
        super().__init__(config)
        skips_host_name = config.ssl_context is not None and not config.ssl_context.check_hostname
        proxy: Proxy | None = config._extras[_PROXY]
        if proxy is not None:
            self.pool: Any = _ProxiedPool(config, proxy, {"assert_hostname": False} if skips_host_name else {})
        elif skips_host_name:
            self.pool.assert_hostname = False


class _ProxiedPool:
    """Has the methods of a urllib3 connection pool that `Urllib3HttpNode` calls."""

    def __init__(self, config: NodeConfig, proxy: Proxy, options: dict[str, Any]) -> None:
        self._origin = f"{config.scheme}://{config.host}:{config.port}"
        if config.ssl_context is not None:
            options |= {"ssl_context": config.ssl_context}
        headers = urllib3.make_headers(proxy_basic_auth=proxy.authorization) if proxy.authorization else None
        self._manager = urllib3.ProxyManager(
            f"http://{proxy.host}:{proxy.port}",
            proxy_headers=headers,
            maxsize=config.connections_per_node,
            block=True,
            **options,
        )

    def urlopen(self, method: str, target: str, **options: Any) -> urllib3.BaseHTTPResponse:
        return self._manager.urlopen(method, self._origin + target, redirect=False, **options)

    def close(self) -> None:
        self._manager.clear()
