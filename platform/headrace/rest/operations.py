"""The table of the REST API's operations, which defines the routes, their authentication and the OpenAPI document.

The operation ids are the method names of Kafka Connect's REST resources, as in Kafka's own OpenAPI document.
Schema names refer to `rest/openapi_schemas.py`. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Operation:
    """One endpoint: a method and a path, which may contain parameters such as `{connector}` and `{task:int}`."""

    id: str
    method: str
    path: str
    summary: str
    responses: Mapping[int, str | None]
    """The schema of each response by status; None if it has no body."""
    errors: tuple[int, ...] = ()
    """The statuses of error responses besides 500, which every operation may return."""
    body: str | None = None
    """The schema of the request body; None if the request has no body."""
    query: tuple[str, ...] = ()
    """The query parameters."""
    media_type: str = "application/json"
    is_internal: bool = False
    """Whether only workers of the group send the request; they sign it instead of authenticating (KIP-507)."""
    is_admin: bool = False
    """Whether `admin.listeners` moves the endpoint to other listeners, or disables it (KIP-495)."""

    @property
    def tag(self) -> str:
        """The operation's tag in the OpenAPI document: the first segment of the path, or `worker` for the path `/`."""
        return self.path.split("/")[1] or "worker"


def _get(id_: str, path: str, summary: str, schema: str, *errors: int, **more: object) -> Operation:
    return Operation(id_, "GET", path, summary, {200: schema}, errors, **more)  # type: ignore[arg-type]


_CHANGE = (404, 409)

_TABLE = (
    _get("serverInfo", "/", "Get the version of this worker and the id of its Kafka cluster", "ServerInfo"),
    Operation(
        "healthCheck",
        "GET",
        "/health",
        "Check whether this worker has completed startup (KIP-1017)",
        {200: "WorkerStatus", 503: "WorkerStatus"},
    ),
    _get("metrics", "/metrics", "Get the metrics of this worker for Prometheus", "Metrics", media_type="text/plain"),
    _get("openapiJson", "/openapi.json", "Get this document", "OpenApi"),
    _get("openapiYaml", "/openapi.yaml", "Get this document as YAML", "OpenApiYaml", media_type="application/yaml"),
    _get("listConnectorPlugins", "/connector-plugins", "List the plug-ins", "Plugins", query=("connectorsOnly",)),
    _get(
        "getConnectorConfigDef",
        "/connector-plugins/{pluginName}/config",
        "Get the configuration keys of a plug-in",
        "ConfigKeys",
        404,
        query=("version",),
    ),
    Operation(
        "validateConfigs",
        "PUT",
        "/connector-plugins/{pluginName}/config/validate",
        "Validate a configuration; the response contains the errors",
        {200: "ConfigInfos"},
        (400, 404, 413, 415, 503),
        body="Config",
    ),
    _get(
        "listConnectors",
        "/connectors",
        "List the names of all connectors, or their status and info",
        "Connectors",
        query=("expand",),
    ),
    Operation(
        "createConnector",
        "POST",
        "/connectors",
        "Create a connector",
        {201: "ConnectorInfo"},
        (400, 409, 413, 415, 503),
        body="CreateConnectorRequest",
    ),
    _get("getConnector", "/connectors/{connector}", "Get a connector", "ConnectorInfo", 404),
    Operation(
        "destroyConnector",
        "DELETE",
        "/connectors/{connector}",
        "Delete a connector; its offsets are kept",
        {204: None},
        _CHANGE,
    ),
    _get(
        "getConnectorConfig",
        "/connectors/{connector}/config",
        "Get the configuration of a connector as it was submitted",
        "StoredConfig",
        404,
    ),
    Operation(
        "putConnectorConfig",
        "PUT",
        "/connectors/{connector}/config",
        "Create or reconfigure a connector",
        {200: "ConnectorInfo", 201: "ConnectorInfo"},
        (400, 409, 413, 415, 503),
        body="Config",
    ),
    Operation(
        "patchConnectorConfig",
        "PATCH",
        "/connectors/{connector}/config",
        "Change configuration keys of a connector; the value null removes a key (KIP-477)",
        {200: "ConnectorInfo"},
        (400, 404, 409, 413, 415, 503),
        body="Config",
    ),
    _get(
        "getConnectorStatus",
        "/connectors/{connector}/status",
        "Get the states of a connector and its tasks",
        "ConnectorStateInfo",
        404,
    ),
    _get(
        "getTaskConfigs",
        "/connectors/{connector}/tasks",
        "List the tasks of a connector with their configurations",
        "TaskInfos",
        404,
    ),
    Operation(
        "putTaskConfigs",
        "POST",
        "/connectors/{connector}/tasks",
        "Store the task configurations that another worker's connector generated (for workers only)",
        {204: None},
        (400, 403, 404, 409, 413, 503),
        body="TaskConfigs",
        is_internal=True,
    ),
    _get(
        "getTasksConfig",
        "/connectors/{connector}/tasks-config",
        "Get the task configurations in the format that Kafka 4.0 removed",
        "TasksConfig",
        404,
    ),
    _get(
        "getTaskStatus",
        "/connectors/{connector}/tasks/{task:int}/status",
        "Get the state of a task, optionally with its metrics",
        "TaskState",
        404,
        409,
        query=("metrics",),
    ),
    Operation(
        "restartTask",
        "POST",
        "/connectors/{connector}/tasks/{task:int}/restart",
        "Restart a task",
        {204: None},
        _CHANGE,
    ),
    Operation(
        "restartConnector",
        "POST",
        "/connectors/{connector}/restart",
        "Restart a connector, optionally including its tasks, or only failed instances (KIP-745)",
        {202: "ConnectorStateInfo", 204: None},
        _CHANGE,
        query=("includeTasks", "onlyFailed"),
    ),
    Operation(
        "pauseConnector",
        "PUT",
        "/connectors/{connector}/pause",
        "Pause a connector and its tasks",
        {202: None},
        _CHANGE,
    ),
    Operation(
        "resumeConnector",
        "PUT",
        "/connectors/{connector}/resume",
        "Resume a paused or stopped connector",
        {202: None},
        _CHANGE,
    ),
    Operation(
        "stopConnector",
        "PUT",
        "/connectors/{connector}/stop",
        "Stop a connector: shut down its tasks but keep its configuration (KIP-875)",
        {204: None},
        _CHANGE,
    ),
    Operation(
        "fenceZombies",
        "PUT",
        "/connectors/{connector}/fence",
        "Fence the producers of a source connector's old tasks (for workers only)",
        {204: None},
        (400, 403, 404, 409, 503),
        is_internal=True,
    ),
    _get(
        "getConnectorActiveTopics",
        "/connectors/{connector}/topics",
        "List the topics that a connector uses (KIP-558)",
        "ActiveTopics",
        403,
        404,
    ),
    Operation(
        "resetConnectorActiveTopics",
        "PUT",
        "/connectors/{connector}/topics/reset",
        "Reset the list of topics that a connector uses",
        {202: None},
        (403, 404),
    ),
    _get(
        "getOffsets",
        "/connectors/{connector}/offsets",
        "Get the committed offsets of a connector (KIP-875)",
        "ConnectorOffsets",
        400,
        404,
    ),
    Operation(
        "alterConnectorOffsets",
        "PATCH",
        "/connectors/{connector}/offsets",
        "Alter the offsets of a stopped connector (KIP-875)",
        {200: "Message"},
        (400, 404, 409, 413, 415, 503),
        body="AlterOffsetsRequest",
    ),
    Operation(
        "resetConnectorOffsets",
        "DELETE",
        "/connectors/{connector}/offsets",
        "Remove all offsets of a stopped connector (KIP-875)",
        {200: "Message"},
        (400, 404, 409),
    ),
    _get("listLoggers", "/admin/loggers", "List the loggers whose level was set", "Loggers", is_admin=True),
    _get("getLogger", "/admin/loggers/{logger}", "Get the level of a logger", "LoggerLevel", 404, is_admin=True),
    Operation(
        "setLevel",
        "PUT",
        "/admin/loggers/{logger}",
        "Set the level of a logger in this worker, or in all workers of the group (KIP-976)",
        {200: "AffectedLoggers", 204: None},
        (400, 404, 413, 415, 503),
        body="SetLevelRequest",
        query=("scope",),
        is_admin=True,
    ),
)

OPERATIONS: Mapping[str, Operation] = {operation.id: operation for operation in _TABLE}
"""All operations by their ids."""
