"""Creates the OpenAPI 3.1 document of the REST API from the table of operations. This module does no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from headrace.rest.openapi_schemas import PATH_PARAMETERS, QUERY_PARAMETERS, SCHEMAS, JsonSchema
from headrace.rest.operations import Operation
from headrace_broker.protocol import KAFKA_VERSION

OPENAPI_VERSION = "3.1.0"
_PATH_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")


def document(operations: Iterable[Operation], *, has_basic_auth: bool) -> dict[str, Any]:
    """Return the OpenAPI document that describes these operations.

    With `has_basic_auth`, all operations require credentials, except the operations that only other workers use.
    """
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        path = paths.setdefault(_PATH_PARAMETER.sub(r"{\1}", operation.path), {})
        path[operation.method.lower()] = _operation(operation, has_basic_auth=has_basic_auth)
    components: dict[str, Any] = {"schemas": SCHEMAS}
    if has_basic_auth:
        components["securitySchemes"] = {"basic": {"type": "http", "scheme": "basic"}}
    return {
        "openapi": OPENAPI_VERSION,
        "info": {
            "title": "Kafka Connect REST API",
            "version": KAFKA_VERSION,
            "description": "The REST API of a Connect worker of headrace.",
            "license": {"name": "Apache 2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0.html"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": components,
    }


def _operation(operation: Operation, *, has_basic_auth: bool) -> JsonSchema:
    shape: JsonSchema = {"operationId": operation.id, "summary": operation.summary, "tags": [operation.tag]}
    path_parameters = _PATH_PARAMETER.findall(operation.path)
    parameters = [{"name": name, "in": "path", "required": True, **PATH_PARAMETERS[name]} for name in path_parameters]
    parameters += [{"name": name, "in": "query", **QUERY_PARAMETERS[name]} for name in operation.query]
    if parameters:
        shape["parameters"] = parameters
    if operation.body is not None:
        shape["requestBody"] = {"required": True, "content": _json(operation.body)}
    needs_credentials = has_basic_auth and not operation.is_internal
    if needs_credentials:
        shape["security"] = [{"basic": []}]
    shape["responses"] = _responses(operation, needs_credentials=needs_credentials)
    return shape


def _responses(operation: Operation, *, needs_credentials: bool) -> JsonSchema:
    responses: dict[int, JsonSchema] = {}
    for status, schema in operation.responses.items():
        responses[status] = {"description": _DESCRIPTIONS[status]}
        if schema is not None:
            responses[status]["content"] = {operation.media_type: {"schema": _reference(schema)}}
    for status, schema in operation.responses.items():
        if schema == "ConnectorInfo" and operation.method != "GET":
            responses[status]["headers"] = {"Warning": _WARNING_HEADER}
    if 201 in responses:
        location = {"required": True, "schema": {"type": "string"}, "description": "The path of the connector."}
        responses[201].setdefault("headers", {})["Location"] = location
    for status in (*operation.errors, 500):
        responses[status] = {"description": _DESCRIPTIONS[status], "content": _json("Error")}
    if needs_credentials:
        # As in Kafka Connect, this body is a plain text in spite of its media type.
        responses[401] = {"description": _DESCRIPTIONS[401], "content": {"application/json": {}}}
    return {str(status): responses[status] for status in sorted(responses)}


def _json(schema: str) -> JsonSchema:
    return {"application/json": {"schema": _reference(schema)}}


def _reference(schema: str) -> JsonSchema:
    return {"$ref": f"#/components/schemas/{schema}"}


_WARNING_HEADER = {
    "schema": {"type": "string"},
    "description": "The warnings about the configuration, for example about unknown keys. Missing if there are none.",
}
_DESCRIPTIONS = {
    200: "The request succeeded.",
    201: "The connector was created.",
    202: "The request was accepted; the worker executes it in the background.",
    204: "The request succeeded.",
    400: "The request or the configuration is invalid.",
    401: "The user or the password is wrong or missing.",
    403: "The worker's configuration forbids the request, or the signature of an internal request is wrong.",
    404: "The connector, task, plug-in or logger does not exist.",
    409: "The connector exists already, or a rebalance is in progress; in the second case, retry the request.",
    413: "The request's body is too large.",
    415: "The request's body is not JSON, according to its content type.",
    500: "An internal error, or a timeout.",
    503: "The worker is starting, or other requests use its memory for large request bodies.",
}
