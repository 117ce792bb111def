"""The REST server: starlette applications under uvicorn, in the worker's event loop.

One application for `listeners`, one for `admin.listeners` where these are given; a uvicorn server for each of them and
for each scheme, since TLS is a server's.
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

from headrace.herder.standalone import StandaloneHerder
from headrace.rest.admin import AdminEndpoints
from headrace.rest.answers import PathsAsSent, http_error
from headrace.rest.connectors import ConnectorEndpoints
from headrace.runtime.rest_config import Listener, Tls, header_rules
from headrace.runtime.worker_config import WorkerConfig


class ListenerError(Exception):
    """A listener cannot be had; the message is one line that says why."""


@dataclass(frozen=True, slots=True)
class _Bound:
    """The sockets that one server serves."""

    admin: bool
    sockets: list[socket.socket]
    tls: ssl.SSLContext | None


class RestServer:
    """Serves the listeners; `bind` first, so that a port in use is found before anything starts."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._bound: list[_Bound] = []
        self._servers: list[tuple[uvicorn.Server, _Bound]] = []

    def bind(self) -> tuple[str, str, int]:
        """Bind all listeners; scheme, host and port of the first. Raises ListenerError."""
        for key in ("listeners", "admin.listeners"):
            listeners = [Listener.parse(text) for text in self._config[key] or ()]
            for scheme in dict.fromkeys(listener.scheme for listener in listeners):
                admin = key == "admin.listeners"
                tls = self._tls(key, admin=admin) if scheme == "https" else None
                sockets = [_bind(key, listener) for listener in listeners if listener.scheme == scheme]
                self._bound.append(_Bound(admin, sockets, tls))
        first = self._bound[0]
        host, port = first.sockets[0].getsockname()[:2]
        return "http" if first.tls is None else "https", str(host), int(port)

    async def start(self, herder: StandaloneHerder) -> None:
        """Serve."""
        endpoints = AdminEndpoints(herder)
        routes = [*endpoints.routes(), *ConnectorEndpoints(herder).routes()]
        if self._config["admin.listeners"] is None:
            routes += endpoints.admin_routes()
        applications = {False: self._application(routes), True: self._application(endpoints.admin_routes())}
        for bound in self._bound:
            server = _server(applications[bound.admin], bound.tls)
            self._servers.append((server, bound))
            await server.startup(sockets=bound.sockets)

    async def stop(self) -> None:
        """Answer what is under way for a moment, then close."""
        for server, bound in self._servers:
            server.config.timeout_graceful_shutdown = 1
            server.should_exit = True
            await server.shutdown(sockets=bound.sockets)

    def _application(self, routes: Sequence[Route]) -> Starlette:
        application = Starlette(routes=routes, exception_handlers={HTTPException: http_error})
        application.add_middleware(PathsAsSent)
        if origins := self._config["access.control.allow.origin"]:
            methods = self._config["access.control.allow.methods"] or "GET,POST,HEAD"
            application.add_middleware(
                CORSMiddleware, allow_origins=_split(origins), allow_methods=_split(methods), allow_headers=["*"]
            )
        if rules := header_rules(self._config["response.http.headers.config"]):
            from headrace.rest.response_headers import ResponseHeaders

            application.add_middleware(ResponseHeaders, rules=rules)
        return application

    def _tls(self, key: str, *, admin: bool) -> ssl.SSLContext:
        from headrace.rest.tls import server_context

        try:
            return server_context(Tls.of(self._config.properties, admin=admin))
        except (OSError, ValueError) as error:  # ssl.SSLError among the former
            named = isinstance(error, OSError) and error.filename is not None
            reason = f"{error.filename}: {error.strerror}" if named else str(error)  # type: ignore[union-attr]
            raise ListenerError(
                f"{key}: the certificates or the key of ssl.keystore and ssl.truststore cannot be used: {reason}"
            ) from None


def _server(application: Any, tls: ssl.SSLContext | None) -> uvicorn.Server:
    config = uvicorn.Config(application, log_config=None, access_log=False, lifespan="off", ws="none")
    config.load()
    config.ssl = tls
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    return server


def _split(text: str) -> list[str]:
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
        raise ListenerError(f"{key}: {listener.text} cannot be had: {_bind_fault(key, listener, error)}") from None
    return bound


def _bind_fault(key: str, listener: Listener, error: OSError | OverflowError) -> str:
    code = getattr(error, "errno", None)
    reason = getattr(error, "strerror", None) or str(error)
    if code == errno.EADDRINUSE:
        return f"{reason}: stop whoever has port {listener.port}, or name another one in {key}"
    if code == errno.EADDRNOTAVAIL:
        return f"{reason}: {listener.host} is no address of this machine"
    if code == errno.EACCES:
        return f"{reason}: port {listener.port} may not be bound by this user; name one above 1023"
    return reason
