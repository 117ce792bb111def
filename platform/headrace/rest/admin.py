"""The root, `/health`, `/connector-plugins`, `/admin/loggers` and `/metrics`."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from headrace.herder.errors import BadRequestError, NotFoundError
from headrace.herder.standalone import StandaloneHerder
from headrace.metrics import logs, prometheus
from headrace.rest.answers import answer, config_of, map_of, path_text
from headrace_broker.protocol import KAFKA_VERSION


class AdminEndpoints:
    """The endpoints over one herder."""

    def __init__(self, herder: StandaloneHerder) -> None:
        self._herder = herder

    def routes(self) -> list[Route]:
        """Those of every listener."""
        table: list[tuple[str, str, Any]] = [
            ("GET", "/", self.root),
            ("GET", "/health", self.health),
            ("GET", "/connector-plugins", self.plugins),
            ("GET", "/connector-plugins/{plugin}/config", self.plugin_config),
            ("PUT", "/connector-plugins/{plugin}/config/validate", self.validate),
            ("GET", "/metrics", self.metrics),
        ]
        return _routes(table)

    def admin_routes(self) -> list[Route]:
        """Those that `admin.listeners` moves to listeners of their own, or turns off (KIP-495)."""
        table: list[tuple[str, str, Any]] = [
            ("GET", "/admin/loggers", self.loggers),
            ("GET", "/admin/loggers/{logger}", self.logger),
            ("PUT", "/admin/loggers/{logger}", self.set_logger),
        ]
        return _routes(table)

    async def root(self, request: Request) -> Response:
        """Who this is. The version is Kafka's whose API this is: tools compare it."""
        from importlib.metadata import version

        cluster_id = await self._herder.cluster_id()
        commit = f"headrace-{version('headrace')}"
        return JSONResponse({"version": KAFKA_VERSION, "commit": commit, "kafka_cluster_id": cluster_id})

    async def health(self, request: Request) -> Response:
        """KIP-1017."""
        if not self._herder.ready:
            return JSONResponse({"status": "starting", "message": "Worker is still starting up."}, 503)
        return JSONResponse(
            {"status": "healthy", "message": "Worker has completed startup and is ready to handle requests."}
        )

    async def plugins(self, request: Request) -> Response:
        """The plug-ins there are."""
        connectors_only = request.query_params.get("connectorsOnly", "true").lower() == "true"
        return JSONResponse(await self._herder.plugins.all(connectors_only))

    async def plugin_config(self, request: Request) -> Response:
        """The keys of one plug-in."""
        return JSONResponse(await self._herder.plugins.config_of(path_text(request, "plugin")))

    async def validate(self, request: Request) -> Response:
        """Check a configuration; errors are part of the answer."""
        plugin = path_text(request, "plugin")
        return JSONResponse(await self._herder.plugins.validate_for(plugin, await config_of(request)))

    async def loggers(self, request: Request) -> Response:
        """Loggers whose level was set."""
        return JSONResponse(logs.levels())

    async def logger(self, request: Request) -> Response:
        """One logger's effective level."""
        name = path_text(request, "logger")
        shape = logs.level_of(name)
        if shape is None:
            raise NotFoundError(f"Logger {name} not found.")
        return JSONResponse(shape)

    async def set_logger(self, request: Request) -> Response:
        """Change a level, here and in all tasks."""
        level = (await map_of(request)).get("level")
        if level is None:
            raise BadRequestError("Desired 'level' parameter was not specified in request.")
        name, now_ms = path_text(request, "logger"), time.time_ns() // 1_000_000
        try:
            affected = logs.set_level(name, str(level), now_ms)
        except KeyError:
            raise NotFoundError(f"invalid log level '{level}'.") from None
        await self._herder.worker.set_log_level(name, str(level), now_ms)
        if request.query_params.get("scope", "worker").lower() == "cluster":
            return Response(status_code=204)
        return JSONResponse(affected)

    async def metrics(self, request: Request) -> Response:
        """Prometheus' text format."""
        text = prometheus.render(self._herder.board, self._herder.names(), self._herder.worker.counters())
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


def _routes(table: list[tuple[str, str, Any]]) -> list[Route]:
    return [Route(path, answer(endpoint), methods=[method]) for method, path, endpoint in table]
