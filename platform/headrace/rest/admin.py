"""The endpoints `/`, `/health`, `/connector-plugins`, `/admin/loggers` and `/metrics`."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headrace.herder.errors import BadRequestError, NotFoundError
from headrace.herder.herder import Herder
from headrace.herder.leader_check import INTERNAL_TOPICS_HEADER, internal_topics_header
from headrace.metrics import logs
from headrace.metrics.logger_names import UnknownLoggerError
from headrace.rest.request_bodies import config_body, json_object_body
from headrace.rest.responses import Endpoint, path_param
from headrace_broker.protocol import KAFKA_VERSION


class AdminEndpoints:
    """The endpoints of this module. They return the state of the herder's worker."""

    def __init__(self, herder: Herder) -> None:
        self._herder = herder

    def endpoints(self) -> dict[str, Endpoint]:
        """Return the endpoints that all listeners serve, by operation id."""
        return {
            "serverInfo": self.root,
            "healthCheck": self.health,
            "metrics": self.metrics,
            "listConnectorPlugins": self.plugins,
            "getConnectorConfigDef": self.plugin_config,
            "validateConfigs": self.validate,
        }

    def admin_endpoints(self) -> dict[str, Endpoint]:
        """Return the endpoints that `admin.listeners` moves to separate listeners or disables (KIP-495)."""
        return {"listLoggers": self.loggers, "getLogger": self.logger, "setLevel": self.set_logger}

    async def root(self, request: Request) -> Response:
        """Return the version and the cluster id.

        The version is that of the Kafka release with the same REST API, because tools check this version.
        """
        from importlib.metadata import version

        cluster_id = await self._herder.cluster_id()
        commit = f"headrace-{version('headrace')}"
        topics = internal_topics_header(self._herder.config)
        return JSONResponse(
            {"version": KAFKA_VERSION, "commit": commit, "kafka_cluster_id": cluster_id},
            headers={INTERNAL_TOPICS_HEADER: topics} if topics else {},
        )

    async def health(self, request: Request) -> Response:
        """Return whether the worker has completed startup (KIP-1017).

        The status code depends only on the startup. The body also reports failed connectors and unreachable brokers,
        which a restart of the worker would not repair.
        """
        health = self._herder.health()
        if health.is_ready:
            status, message = "healthy", "Worker has completed startup and is ready to handle requests."
        else:
            status, message = "starting", "Worker is still starting up."
        body: dict[str, Any] = {"status": status, "message": message}
        if health.uses_brokers and health.broker_error is None:
            body["brokers"] = {"status": "available"}
        elif health.uses_brokers:
            body["brokers"] = {"status": "unavailable", "message": logs.secrets.mask(str(health.broker_error))}
        body["failed_connectors"] = list(health.failed_connectors)
        body["failed_tasks"] = list(health.failed_tasks)
        return JSONResponse(body, 200 if health.is_ready else 503)

    async def plugins(self, request: Request) -> Response:
        """List the available plug-ins."""
        connectors_only = request.query_params.get("connectorsOnly", "true").lower() == "true"
        return JSONResponse(await self._herder.plugins(connectors_only=connectors_only))

    async def plugin_config(self, request: Request) -> Response:
        """Return the configuration keys of one plug-in."""
        return JSONResponse(await self._herder.plugin_config(path_param(request, "pluginName")))

    async def validate(self, request: Request) -> Response:
        """Validate a connector's configuration. The response contains the errors."""
        plugin = path_param(request, "pluginName")
        return JSONResponse(await self._herder.validate(plugin, await config_body(request)))

    async def loggers(self, request: Request) -> Response:
        """List headrace's loggers, and the other loggers whose level was set, with their effective levels."""
        return JSONResponse(logs.levels())

    async def logger(self, request: Request) -> Response:
        """Return the effective level of one logger."""
        try:
            return JSONResponse(logs.level_of(path_param(request, "logger")))
        except UnknownLoggerError as error:
            raise NotFoundError(str(error)) from None

    async def set_logger(self, request: Request) -> Response:
        """Set a log level in this process and in all task processes."""
        level = (await json_object_body(request)).get("level")
        if level is None:
            raise BadRequestError("Desired 'level' parameter was not specified in request.")
        logger, scope = path_param(request, "logger"), request.query_params.get("scope", "worker").lower()
        try:
            if scope == "cluster":
                await self._herder.wait_until_started()
                await self._herder.set_group_log_level(logger, str(level))
                return Response(status_code=204)
            return JSONResponse(await self._herder.set_log_level(logger, str(level)))
        except KeyError:
            raise NotFoundError(f"invalid log level '{level}'.") from None

    async def metrics(self, request: Request) -> Response:
        """Return all metrics in Prometheus' text format."""
        from headrace.metrics import prometheus  # a late import, because prometheus_client would delay startup

        return Response(prometheus.render(self._herder.metrics()), media_type=prometheus.CONTENT_TYPE)
