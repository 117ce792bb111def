"""The REST server: Starlette applications under uvicorn, on the worker's event loop.

One application serves `listeners`. If `admin.listeners` is set, a second application serves the admin listeners. Each
application has one uvicorn server per scheme, because uvicorn configures TLS per server.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headrace.herder.herder import Herder
from headrace.rest.admin import AdminEndpoints
from headrace.rest.basic_auth import Authenticator, create_authenticator
from headrace.rest.connection_limit import LimitedHTTPProtocol
from headrace.rest.connectors import ConnectorEndpoints
from headrace.rest.operations import OPERATIONS
from headrace.rest.responses import Endpoint, RawPathMiddleware
from headrace.rest.routing import method_error_handler, routes
from headrace.runtime.rest_config import (
    Listener,
    OriginPatterns,
    advertised_listener,
    header_rules,
    split_list,
    tls_settings,
)
from headrace.runtime.worker_config import WorkerConfig
from headrace_broker.security.tls_settings import TlsConfigError

LAST_REQUESTS_S = 0.1
STOP_MARGIN_S = 4.0
"""The time that a stopping worker waits for requests in addition to task.shutdown.graceful.timeout.ms."""


class ListenerError(Exception):
    """A listener cannot be bound, its TLS keys are invalid, or the REST users cannot be read.

    The message is one line with the reason.
    """


@dataclass(frozen=True, slots=True)
class _BoundListeners:
    """The bound sockets of one uvicorn server."""

    admin: bool
    sockets: list[socket.socket]
    tls: ssl.SSLContext | None


class RestServer:
    """Serves the REST listeners. Call `bind` first, so that a port conflict is detected before anything else starts."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._authenticator: Authenticator | None = None
        self._bound: list[_BoundListeners] = []
        self._servers: list[tuple[uvicorn.Server, _BoundListeners]] = []

    def bind(self) -> tuple[str, str, int]:
        """Bind all listeners. Return scheme, host and port of the advertised listener. Raises ListenerError."""
        self._authenticator = self._create_authenticator()
        scheme, advertised = advertised_listener(self._config["listeners"], self._config["rest.advertised.listener"])
        bound_advertised: socket.socket | None = None
        for key in ("listeners", "admin.listeners"):
            admin = key == "admin.listeners"
            listeners = [Listener.parse(text) for text in self._config[key] or ()]
            for served in dict.fromkeys(listener.scheme for listener in listeners):
                tls = self._tls(key, admin=admin) if served == "https" else None
                sockets = {each: _bind(key, each) for each in listeners if each.scheme == served}
                self._bound.append(_BoundListeners(admin, list(sockets.values()), tls))
                if not admin:
                    bound_advertised = sockets.get(advertised, bound_advertised)
        assert bound_advertised is not None
        host, port = bound_advertised.getsockname()[:2]
        return scheme, f"[{host}]" if ":" in host else str(host), int(port)

    async def start(self, herder: Herder) -> None:
        """Start to serve requests on all bound listeners."""
        applications = {False: self.application(herder), True: self._admin_application(herder)}
        for bound in self._bound:
            server = _create_server(applications[bound.admin], bound.tls)
            self._servers.append((server, bound))
            await server.startup(sockets=bound.sockets)

    async def stop(self, stopping_since: float) -> None:
        """Wait for pending requests, respond with status 500 to those that do not complete, and close the servers.

        `stopping_since` is the `time.monotonic()` at which the worker began to stop. The wait ends at the latest when
        `STOP_MARGIN_S` plus task.shutdown.graceful.timeout.ms have passed since then. If less than a second of this
        time remains, the wait may last a second. Requests on connections that were accepted shortly before this call
        still receive a response. Otherwise another worker of the group would not know whether a request that it has
        forwarded was executed.
        """
        for server, _ in self._servers:
            for listening in server.servers:
                listening.close()
        if any(server.server_state.connections for server, _ in self._servers):
            await asyncio.sleep(LAST_REQUESTS_S)
        grace_s = self._config["task.shutdown.graceful.timeout.ms"] / 1000 + STOP_MARGIN_S
        remaining_s = stopping_since + grace_s - time.monotonic()
        for server, _ in self._servers:
            server.config.timeout_graceful_shutdown = max(1, int(remaining_s))
            server.should_exit = True
        await asyncio.gather(*(server.shutdown(sockets=bound.sockets) for server, bound in self._servers))
        aborted = [task for server, _ in self._servers for task in server.server_state.tasks]
        if aborted:
            await asyncio.wait(aborted, timeout=LAST_REQUESTS_S)

    def application(self, herder: Herder) -> Starlette:
        """Return the application that serves the listeners in `listeners`."""
        admin = AdminEndpoints(herder)
        endpoints = admin.endpoints() | ConnectorEndpoints(herder).endpoints()
        if self._config["admin.listeners"] is None:
            endpoints |= admin.admin_endpoints()
        application = self._create(endpoints | self._openapi_endpoints(endpoints))
        if origins := self._config["access.control.allow.origin"].strip():
            from headrace.rest.cors import CrossOrigin

            methods = split_list(self._config["access.control.allow.methods"])
            application.add_middleware(CrossOrigin, origins=OriginPatterns.parse(origins), methods=methods)
        if rules := header_rules(self._config["response.http.headers.config"]):
            from headrace.rest.response_headers import ResponseHeaders

            application.add_middleware(ResponseHeaders, rules=rules)
        return application

    def _admin_application(self, herder: Herder) -> Starlette:
        """Return the application that serves `admin.listeners`.

        As in Kafka Connect, this application adds neither CORS headers nor those in `response.http.headers.config`.
        """
        return self._create(AdminEndpoints(herder).admin_endpoints())

    def _create(self, endpoints: Mapping[str, Endpoint]) -> Starlette:
        created = routes(endpoints, self._config, self._authenticator)
        handlers = {HTTPException: method_error_handler(created, self._authenticator)}
        application = Starlette(routes=created, exception_handlers=handlers)
        application.router.redirect_slashes = False
        application.add_middleware(RawPathMiddleware)
        return application

    def _openapi_endpoints(self, endpoints: Mapping[str, Endpoint]) -> dict[str, Endpoint]:
        """Return the endpoints that serve the OpenAPI document.

        The document also describes the endpoints in `endpoints`.
        """
        operations = [OPERATIONS[id_] for id_ in (*endpoints, "openapiJson", "openapiYaml")]

        async def get(request: Request) -> Response:
            from headrace.rest import openapi  # a late import, because most workers never serve the document

            document = openapi.document(operations, has_basic_auth=self._authenticator is not None)
            is_yaml = request.url.path.endswith(".yaml")
            return JSONResponse(document, media_type="application/yaml" if is_yaml else None)

        return {"openapiJson": get, "openapiYaml": get}

    def _create_authenticator(self) -> Authenticator | None:
        try:
            return create_authenticator(self._config, os.environ)
        except OSError as error:
            raise ListenerError(
                f"rest.extension.classes: cannot read the users of {error.filename}: {error.strerror}"
            ) from None
        except ValueError as error:
            raise ListenerError(f"rest.extension.classes: {error}") from None

    def _tls(self, key: str, *, admin: bool) -> ssl.SSLContext:
        from headrace_broker.security.tls import server_context

        try:
            return server_context(tls_settings(self._config.properties, admin=admin))
        except TlsConfigError as error:
            raise ListenerError(f"{key}: cannot load the key or certificates: {error}") from None


def _create_server(application: Any, tls: ssl.SSLContext | None) -> uvicorn.Server:
    config = uvicorn.Config(
        application, http=LimitedHTTPProtocol, log_config=None, access_log=False, lifespan="off", ws="none"
    )
    config.load()
    config.ssl = tls
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    return server


def _bind(key: str, listener: Listener) -> socket.socket:
    """Bind the listener. As in Kafka Connect, a listener for all addresses accepts IPv4 and IPv6 connections."""
    host = listener.host
    is_dual_stack = host in ("", "0.0.0.0", "::")
    if is_dual_stack:
        host = "::" if _has_ipv6() else "0.0.0.0"
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_dual_stack and ":" in host:
        bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    try:
        bound.bind((host, listener.port))
        bound.listen(128)
    except (OSError, OverflowError) as error:
        bound.close()
        raise ListenerError(f"{key}: cannot bind {listener.text}: {_bind_error_reason(key, listener, error)}") from None
    return bound


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


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
