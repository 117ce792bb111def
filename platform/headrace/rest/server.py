"""The REST server: Starlette applications under uvicorn, on the worker's event loop.

One application serves `listeners`. If `admin.listeners` is set, a second application serves the admin listeners. Each
application has one uvicorn server per scheme, because uvicorn configures TLS per server.
"""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from headrace.herder.herder import Herder
from headrace.rest.admin import AdminEndpoints
from headrace.rest.connectors import ConnectorEndpoints
from headrace.rest.responses import RawPathMiddleware, http_error_response
from headrace.runtime.rest_config import Listener, Tls, header_rules
from headrace.runtime.worker_config import WorkerConfig


class ListenerError(Exception):
    """A listener cannot be bound or its TLS configuration is invalid; the message is one line with the reason."""


@dataclass(frozen=True, slots=True)
class _BoundListeners:
    """The bound sockets of one server."""

    admin: bool
    sockets: list[socket.socket]
    tls: ssl.SSLContext | None


class RestServer:
    """Serves the REST listeners. Call `bind` first: it detects a port in use before anything else starts."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._bound: list[_BoundListeners] = []
        self._servers: list[tuple[uvicorn.Server, _BoundListeners]] = []

    def bind(self) -> tuple[str, str, int]:
        """Bind all listeners; return scheme, host and port of the first one. Raises ListenerError."""
        for key in ("listeners", "admin.listeners"):
            listeners = [Listener.parse(text) for text in self._config[key] or ()]
            for scheme in dict.fromkeys(listener.scheme for listener in listeners):
                admin = key == "admin.listeners"
                tls = self._tls(key, admin=admin) if scheme == "https" else None
                sockets = [_bind(key, listener) for listener in listeners if listener.scheme == scheme]
                self._bound.append(_BoundListeners(admin, sockets, tls))
        first = self._bound[0]
        host, port = first.sockets[0].getsockname()[:2]
        return "http" if first.tls is None else "https", str(host), int(port)

    async def start(self, herder: Herder) -> None:
        """Start to serve requests."""
        applications = {False: self.application(herder), True: self._admin_application(herder)}
        for bound in self._bound:
            server = _create_server(applications[bound.admin], bound.tls)
            self._servers.append((server, bound))
            await server.startup(sockets=bound.sockets)

    async def stop(self) -> None:
        """Wait briefly for pending requests, then close the servers."""
        for server, bound in self._servers:
            server.config.timeout_graceful_shutdown = 1
            server.should_exit = True
            await server.shutdown(sockets=bound.sockets)

    def application(self, herder: Herder) -> Starlette:
        """Return the application of `listeners`."""
        admin = AdminEndpoints(herder)
        routes = [*admin.routes(), *ConnectorEndpoints(herder).routes()]
        if self._config["admin.listeners"] is None:
            routes += admin.admin_routes()
        return self._with_middleware(routes)

    def _admin_application(self, herder: Herder) -> Starlette:
        return self._with_middleware(AdminEndpoints(herder).admin_routes())

    def _with_middleware(self, routes: Sequence[Route]) -> Starlette:
        application = Starlette(routes=routes, exception_handlers={HTTPException: http_error_response})
        application.add_middleware(RawPathMiddleware)
        if origins := self._config["access.control.allow.origin"]:
            methods = self._config["access.control.allow.methods"] or "GET,POST,HEAD"
            application.add_middleware(
                CORSMiddleware,
                allow_origins=_split_list(origins),
                allow_methods=_split_list(methods),
                allow_headers=["*"],
            )
        if rules := header_rules(self._config["response.http.headers.config"]):
            from headrace.rest.response_headers import ResponseHeaders

            application.add_middleware(ResponseHeaders, rules=rules)
        return application

    def _tls(self, key: str, *, admin: bool) -> ssl.SSLContext:
        from headrace.runtime.tls import server_context

        try:
            return server_context(Tls.of(self._config.properties, admin=admin))
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            named = isinstance(error, OSError) and error.filename is not None
            reason = f"{error.filename}: {error.strerror}" if named else str(error)  # type: ignore[union-attr]
            raise ListenerError(
                f"{key}: cannot load the key or certificates of ssl.keystore and ssl.truststore: {reason}"
            ) from None


def _create_server(application: Any, tls: ssl.SSLContext | None) -> uvicorn.Server:
    config = uvicorn.Config(application, log_config=None, access_log=False, lifespan="off", ws="none")
    config.load()
    config.ssl = tls
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    return server


def _split_list(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _bind(key: str, listener: Listener) -> socket.socket:
    family = socket.AF_INET6 if ":" in listener.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((listener.host, listener.port))
        bound.listen(128)
    except (OSError, OverflowError) as error:
        bound.close()
        raise ListenerError(f"{key}: cannot bind {listener.text}: {_bind_error_reason(key, listener, error)}") from None
    return bound


def _bind_error_reason(key: str, listener: Listener, error: OSError | OverflowError) -> str:
    code = getattr(error, "errno", None)
    reason = getattr(error, "strerror", None) or str(error)
    if code == errno.EADDRINUSE:
        return f"{reason}: stop the process that uses port {listener.port}, or set another port in {key}"
    if code == errno.EADDRNOTAVAIL:
        return f"{reason}: {listener.host} is not an address of this machine"
    if code == errno.EACCES:
        return f"{reason}: this user is not permitted to bind port {listener.port}; set a port above 1023"
    return reason
