"""The JSON schemas for the request bodies, response bodies and parameters of the REST API. This module does no I/O."""

from __future__ import annotations

from typing import Any

JsonSchema = dict[str, Any]

_STRING: JsonSchema = {"type": "string"}
_INTEGER: JsonSchema = {"type": "integer"}
_BOOLEAN: JsonSchema = {"type": "boolean"}
_STATE: JsonSchema = {
    "type": "string",
    "enum": ["UNASSIGNED", "RUNNING", "PAUSED", "STOPPED", "FAILED", "RESTARTING"],
}
_CONNECTOR_TYPE: JsonSchema = {"type": "string", "enum": ["source", "sink", "unknown"]}
_JSON_MAP: JsonSchema = {"type": "object", "additionalProperties": True}
_STRING_MAP: JsonSchema = {"type": "object", "additionalProperties": _STRING}


def _ref(name: str) -> JsonSchema:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(items: JsonSchema) -> JsonSchema:
    return {"type": "array", "items": items}


def _nullable(schema: JsonSchema) -> JsonSchema:
    return {**schema, "type": [schema["type"], "null"]}


def _object(properties: dict[str, JsonSchema], *optional: str, **more: Any) -> JsonSchema:
    """Return the schema of an object with exactly these properties. Properties in `optional` may be missing.

    `more` contains further keywords of the schema.
    """
    required = [name for name in properties if name not in optional]
    shape: JsonSchema = {"type": "object", "properties": properties, "additionalProperties": False, **more}
    return {**shape, "required": required} if required else shape


_INSTANCE: dict[str, JsonSchema] = {
    "state": _STATE,
    "worker_id": _STRING,
    "trace": {**_STRING, "description": "The error of a failed connector or task."},
    "version": {**_STRING, "description": "The version of the plug-in that runs."},
}

SCHEMAS: dict[str, JsonSchema] = {
    "Error": _object({"error_code": {**_INTEGER, "description": "The HTTP status."}, "message": _STRING}),
    "ServerInfo": _object({"version": _STRING, "commit": _STRING, "kafka_cluster_id": _nullable(_STRING)}),
    "WorkerStatus": _object(
        {
            "status": {**_STRING, "enum": ["starting", "healthy", "unhealthy"]},
            "message": _STRING,
            "brokers": _object(
                {"status": {**_STRING, "enum": ["available", "unavailable"]}, "message": _STRING}, "message"
            ),
            "failed_connectors": _list(_STRING),
            "failed_tasks": _list(_STRING),
        },
        "brokers",
    ),
    "Metrics": {**_STRING, "description": "Prometheus' text format."},
    "OpenApi": _JSON_MAP,
    "OpenApiYaml": {**_STRING, "description": "JSON, which is a subset of YAML 1.2."},
    "Plugins": _list(
        _object(
            {
                "class": _STRING,
                "type": {
                    **_STRING,
                    "enum": [
                        "source", "sink", "converter", "header_converter", "transformation", "predicate",
                        "configprovider", "rest_extension", "connector_client_config_override_policy",
                    ],
                },
                "version": _STRING,
            },
            "version",
        )
    ),
    "ConfigKey": _object(
        {
            "name": _STRING,
            "type": _STRING,
            "required": _BOOLEAN,
            "default_value": _nullable(_STRING),
            "importance": _STRING,
            "documentation": _nullable(_STRING),
            "group": _nullable(_STRING),
            "width": _STRING,
            "display_name": _STRING,
            "dependents": _list(_STRING),
            "order_in_group": _INTEGER,
            "order": {**_INTEGER, "description": "order_in_group, under its name before Kafka 4.2."},
        }
    ),
    "ConfigKeys": _list(_ref("ConfigKey")),
    "ConfigInfos": _object(
        {
            "warnings": {
                **_list(_STRING),
                "description": "Texts about keys and values without the intended effect. Missing if there are none.",
            },
            "name": _STRING,
            "error_count": _INTEGER,
            "groups": _list(_STRING),
            "configs": _list(
                _object(
                    {
                        "definition": {"oneOf": [_ref("ConfigKey"), {"type": "null"}]},
                        "value": _object(
                            {
                                "name": _STRING,
                                "value": _nullable(_STRING),
                                "recommended_values": _list(_STRING),
                                "errors": _list(_STRING),
                                "visible": _BOOLEAN,
                            }
                        ),
                    }
                )
            ),
        },
        "warnings",
    ),
    "Config": {
        "type": "object",
        "description": "A configuration. Numbers and booleans are stored as strings.",
        "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
    },
    "StoredConfig": _STRING_MAP,
    "CreateConnectorRequest": _object(
        {
            "name": _nullable(_STRING),
            "config": _ref("Config"),
            "initial_state": {
                "type": ["string", "null"],
                "description": "RUNNING (default), PAUSED or STOPPED, in upper or lower case (KIP-980).",
            },
        },
        "name",
        "initial_state",
        additionalProperties=True,
    ),
    "TaskId": _object({"connector": _STRING, "task": _INTEGER}),
    "ConnectorInfo": _object(
        {"name": _STRING, "config": _STRING_MAP, "tasks": _list(_ref("TaskId")), "type": _CONNECTOR_TYPE}
    ),
    "Connectors": {
        "oneOf": [
            _list(_STRING),
            {
                "type": "object",
                "description": "With the query parameter expand.",
                "additionalProperties": _object(
                    {"status": _ref("ConnectorStateInfo"), "info": _ref("ConnectorInfo")}, "status", "info"
                ),
            },
        ]
    },
    "TaskState": _object(
        {
            "id": _INTEGER,
            **_INSTANCE,
            "metrics": {
                "type": "object",
                "additionalProperties": _nullable({"type": "number"}),
                "description": "The task's metrics by their names in Kafka, if they are requested.",
            },
        },
        "trace",
        "version",
        "metrics",
    ),
    "ConnectorStateInfo": _object(
        {
            "name": _STRING,
            "connector": _object(_INSTANCE, "trace", "version"),
            "tasks": _list(_ref("TaskState")),
            "type": _CONNECTOR_TYPE,
        }
    ),
    "TaskInfos": _list(_object({"id": _ref("TaskId"), "config": _STRING_MAP})),
    "TaskConfigs": _list(_STRING_MAP),
    "TasksConfig": {"type": "object", "additionalProperties": _STRING_MAP},
    "ActiveTopics": {"type": "object", "additionalProperties": _object({"topics": _list(_STRING)})},
    "ConnectorOffsets": _object({"offsets": _list(_object({"partition": _JSON_MAP, "offset": _JSON_MAP}))}),
    "AlterOffsetsRequest": _object(
        {
            "offsets": _list(
                _object(
                    {
                        "partition": _JSON_MAP,
                        "offset": {**_nullable(_JSON_MAP), "description": "The value null removes the offset."},
                    }
                )
            )
        },
        additionalProperties=True,
    ),
    "Message": _object({"message": _STRING}),
    "LoggerLevel": _object({"level": _STRING, "last_modified": {**_nullable(_INTEGER), "description": "ms"}}),
    "Loggers": {"type": "object", "additionalProperties": _ref("LoggerLevel")},
    "AffectedLoggers": _list(_STRING),
    "SetLevelRequest": _object({"level": _STRING}, additionalProperties=True),
}  # fmt: skip
"""The schemas of all bodies by name."""

QUERY_PARAMETERS: dict[str, JsonSchema] = {
    "connectorsOnly": {
        "schema": {**_BOOLEAN, "default": True},
        "description": "Whether to list only connectors instead of all plug-ins.",
    },
    "version": {"schema": _STRING, "description": "Accepted for compatibility; one version is installed (KIP-891)."},
    "expand": {
        "schema": _list({**_STRING, "enum": ["status", "info"]}),
        "description": "What to return for each connector; the parameter may be repeated.",
    },
    "includeTasks": {"schema": {**_BOOLEAN, "default": False}, "description": "Whether to restart tasks, too."},
    "onlyFailed": {
        "schema": {**_BOOLEAN, "default": False},
        "description": "Whether to restart only failed connectors and tasks.",
    },
    "metrics": {
        "schema": {**_BOOLEAN, "default": False},
        "description": "Whether to return the task's metrics. The worker of the task is asked for them.",
    },
    "scope": {
        "schema": {**_STRING, "enum": ["worker", "cluster"], "default": "worker"},
        "description": "Whether to set the level in this worker or in all workers of the group.",
    },
}
"""The query parameters by name."""

PATH_PARAMETERS: dict[str, JsonSchema] = {
    "connector": {"schema": _STRING, "description": "The name of the connector."},
    "task": {"schema": {**_INTEGER, "minimum": 0}, "description": "The number of the task."},
    "pluginName": {"schema": _STRING, "description": "The class of the plug-in, or the class's simple name."},
    "logger": {"schema": _STRING, "description": "The name of the logger; root is the root logger."},
}
"""The path parameters by name."""
