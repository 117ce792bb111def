"""The REST server: a starlette application under uvicorn, in the worker's event loop."""

from __future__ import annotations

import socket
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from headrace.herder.standalone import StandaloneHerder
from headrace.rest.admin import AdminEndpoints
from headrace.rest.answers import PathsAsSent, http_error
from headrace.rest.connectors import ConnectorEndpoints


class ListenerError(Exception):
    """A listener cannot be had; the message is one line that says why."""


class RestServer:
    """Serves the listeners; `bind` first, so that a port in use is found before anything starts."""

    def __init__(self, listeners: list[str]) -> None:
        self._listeners = listeners
        self._sockets: list[socket.socket] = []
        self._server: uvicorn.Server | None = None

    def bind(self) -> tuple[str, int]:
        """Bind all listeners; host and port of the first. Raises ListenerError."""
        for listener in self._listeners:
            self._sockets.append(_bind(listener))
        host, port = self._sockets[0].getsockname()[:2]
        return str(host), int(port)

    async def start(self, herder: StandaloneHerder) -> None:
        """Serve."""
        routes: list[Any] = [*AdminEndpoints(herder).routes(), *ConnectorEndpoints(herder).routes()]
        application = Starlette(routes=routes, exception_handlers={HTTPException: http_error})
        application.add_middleware(PathsAsSent)
        if origins := herder.config["access.control.allow.origin"]:
            methods = herder.config["access.control.allow.methods"] or "GET,POST,HEAD"
            application.add_middleware(
                CORSMiddleware, allow_origins=_split(origins), allow_methods=_split(methods), allow_headers=["*"]
            )
        config = uvicorn.Config(application, log_config=None, access_log=False, lifespan="off", ws="none")
        config.load()
        self._server = server = uvicorn.Server(config)
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=self._sockets)

    async def stop(self) -> None:
        """Answer what is under way for a moment, then close."""
        if self._server is not None:
            self._server.config.timeout_graceful_shutdown = 1
            self._server.should_exit = True
            await self._server.shutdown(sockets=self._sockets)


def _split(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _bind(listener: str) -> socket.socket:
    address = listener.partition("://")[2]
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, int(port)))
        bound.listen(128)
    except (OSError, OverflowError) as error:
        bound.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise ListenerError(f"listeners: {listener} cannot be had: {reason}") from None
    return bound
