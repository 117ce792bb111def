"""The endpoints below `/connectors`."""

from __future__ import annotations

import json
import logging
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headrace.herder.errors import BadRequestError, ForbiddenError, NotFoundError
from headrace.herder.herder import Herder, PutResult
from headrace.rest import shapes
from headrace.rest.request_bodies import (
    config_body,
    json_body,
    json_object_body,
    raw_body,
    task_configs_body,
    to_config,
)
from headrace.rest.responses import Endpoint, boolean_param, path_param
from headrace.rest.warning_header import warning_header
from headrace.stores.config_store import TargetState

log = logging.getLogger(__name__)

_EXTERNAL_OFFSETS_MESSAGE = (
    "The Connect framework-managed offsets for this connector have been {} successfully. However, if this connector "
    "manages offsets externally, they will need to be manually {} in the system that the connector uses."
)


class ConnectorEndpoints:
    """The endpoints of this module. The herder executes their requests."""

    def __init__(self, herder: Herder) -> None:
        self._herder = herder

    def endpoints(self) -> dict[str, Endpoint]:
        """Return all endpoints by operation id. Their requests wait until the worker has started."""
        endpoints: dict[str, Endpoint] = {
            "listConnectors": self.list,
            "createConnector": self.create,
            "getConnector": self.info,
            "destroyConnector": self.delete,
            "getConnectorConfig": self.config,
            "putConnectorConfig": self.put_config,
            "patchConnectorConfig": self.patch_config,
            "getConnectorStatus": self.status,
            "getTaskConfigs": self.tasks,
            "putTaskConfigs": self.put_tasks,
            "getTasksConfig": self.tasks_config,
            "getTaskStatus": self.task_status,
            "restartTask": self.restart_task,
            "restartConnector": self.restart,
            "pauseConnector": self.pause,
            "resumeConnector": self.resume,
            "stopConnector": self.stop,
            "fenceZombies": self.fence,
            "getConnectorActiveTopics": self.topics,
            "resetConnectorActiveTopics": self.reset_topics,
            "getOffsets": self.offsets,
            "alterConnectorOffsets": self.alter_offsets,
            "resetConnectorOffsets": self.reset_offsets,
        }
        return {id_: self._after_start(endpoint) for id_, endpoint in endpoints.items()}

    def _after_start(self, endpoint: Endpoint) -> Endpoint:
        """Wrap an endpoint: its requests wait until the worker has started and therefore knows the connectors."""

        async def wait_and_execute(request: Request) -> Response:
            await self._herder.wait_until_started()
            return await endpoint(request)

        return wait_and_execute

    async def list(self, request: Request) -> Response:
        """List the names of all connectors. With `expand`, also return their status and info."""
        names, expansions = self._herder.names(), request.query_params.getlist("expand")
        if not expansions:
            return JSONResponse(names)
        await self._herder.wait_for_types()
        shown: dict[str, dict[str, Any]] = {}
        for name in names:
            try:
                shown[name] = {each: self._expanded(each, name) for each in expansions if each in ("status", "info")}
            except NotFoundError:
                continue  # the connector was deleted in the meantime
        return JSONResponse(shown)

    def _expanded(self, expansion: str, name: str) -> dict[str, Any]:
        if expansion == "status":
            return shapes.connector_status(self._herder.status(name))
        return shapes.connector_info(self._herder.info(name))

    async def create(self, request: Request) -> Response:
        """Create a connector, optionally in the paused or stopped state (KIP-980)."""
        body = await json_object_body(request, numbers_as_text=True)
        name = body.get("name") or ""
        if not isinstance(name, str):
            raise BadRequestError(f"The name of the connector must be a string, but is {json.dumps(name)}")
        name = name.strip()
        config = body.get("config")
        if not isinstance(config, dict):
            raise BadRequestError("The request must contain a name and a config")
        settings = _with_checked_name(name, to_config(config))
        state = body.get("initial_state")
        try:
            target = None if state is None else TargetState.from_initial_state(str(state))
        except ValueError as error:
            raise BadRequestError(str(error)) from None
        result = await self._herder.put(name, settings, target=target, replace=False)
        return _put_response(result)

    async def info(self, request: Request) -> Response:
        """Return the configuration and the tasks of a connector."""
        await self._herder.wait_for_types()
        return JSONResponse(shapes.connector_info(self._herder.info(_connector_name(request))))

    async def delete(self, request: Request) -> Response:
        """Delete a connector, but not its offsets."""
        await self._herder.delete(_connector_name(request))
        return Response(status_code=204)

    async def config(self, request: Request) -> Response:
        """Return the configuration of a connector as it was submitted."""
        return JSONResponse(dict(self._herder.connector_config(_connector_name(request))))

    async def put_config(self, request: Request) -> Response:
        """Create or reconfigure a connector."""
        name = _connector_name(request)
        result = await self._herder.put(name, _with_checked_name(name, await config_body(request)))
        return _put_response(result)

    async def patch_config(self, request: Request) -> Response:
        """Change some configuration keys of a connector (KIP-477)."""
        return _put_response(await self._herder.patch(_connector_name(request), await config_body(request)))

    async def status(self, request: Request) -> Response:
        """Return the states of a connector and its tasks."""
        await self._herder.wait_for_types()
        return JSONResponse(shapes.connector_status(self._herder.status(_connector_name(request))))

    async def tasks(self, request: Request) -> Response:
        """List the tasks of a connector with their configurations."""
        name = _connector_name(request)
        return JSONResponse(shapes.task_configs(name, self._herder.task_configs(name)))

    async def tasks_config(self, request: Request) -> Response:
        """Return the task configurations for old tools, in a format that Kafka 4.0 no longer supports."""
        name = _connector_name(request)
        configs = self._herder.task_configs(name)
        return JSONResponse({f"{name}-{number}": dict(config) for number, config in enumerate(configs)})

    async def task_status(self, request: Request) -> Response:
        """Return the state of one task, with its metrics if the query contains `metrics=true`."""
        name, number = _connector_name(request), request.path_params["task"]
        status = shapes.task_status(number, self._herder.task_status(name, number))
        if request.query_params.get("metrics", "").lower() == "true":
            metrics = await self._herder.task_metrics(name, number)
            status["metrics"] = {} if metrics is None else shapes.task_metrics(metrics, self._herder.status(name).type)
        return JSONResponse(status)

    async def restart_task(self, request: Request) -> Response:
        """Restart one task."""
        await self._herder.restart_task(_connector_name(request), request.path_params["task"])
        return Response(status_code=204)

    async def restart(self, request: Request) -> Response:
        """Restart a connector and optionally its tasks (KIP-745).

        With `onlyFailed`, restart only those that have failed.
        """
        include_tasks, only_failed = boolean_param(request, "includeTasks"), boolean_param(request, "onlyFailed")
        status = await self._herder.restart(
            _connector_name(request), include_tasks=include_tasks, only_failed=only_failed
        )
        if not include_tasks and not only_failed:
            return Response(status_code=204)
        return JSONResponse(shapes.connector_status(status), 202)

    async def pause(self, request: Request) -> Response:
        """Pause a connector and its tasks."""
        await self._herder.set_target(_connector_name(request), TargetState.PAUSED)
        return Response(status_code=202)

    async def resume(self, request: Request) -> Response:
        """Resume a paused or stopped connector."""
        await self._herder.set_target(_connector_name(request), TargetState.STARTED)
        return Response(status_code=202)

    async def stop(self, request: Request) -> Response:
        """Stop a connector. Its tasks are shut down, but its configuration is kept."""
        await self._herder.set_target(_connector_name(request), TargetState.STOPPED)
        return Response(status_code=204)

    async def topics(self, request: Request) -> Response:
        """List the topics that the connector uses (KIP-558)."""
        self._check_tracking()
        name = _connector_name(request)
        return JSONResponse({name: {"topics": self._herder.topics(name)}})

    async def reset_topics(self, request: Request) -> Response:
        """Reset the list of topics that the connector uses."""
        self._check_tracking()
        if not self._herder.config["topic.tracking.allow.reset"]:
            raise ForbiddenError("Topic tracking reset is disabled.")
        self._herder.reset_topics(_connector_name(request))
        return Response(status_code=202)

    async def offsets(self, request: Request) -> Response:
        """Return the committed offsets of a connector (KIP-875)."""
        return JSONResponse(shapes.offsets(await self._herder.offsets(_connector_name(request))))

    async def alter_offsets(self, request: Request) -> Response:
        """Alter the offsets of a stopped connector."""
        body = await json_body(request)
        pairs = _offset_pairs(body)
        return _offsets_response("altered", await self._herder.alter_offsets(_connector_name(request), pairs))

    async def reset_offsets(self, request: Request) -> Response:
        """Reset the offsets of a stopped connector."""
        return _offsets_response("reset", await self._herder.reset_offsets(_connector_name(request)))

    async def put_tasks(self, request: Request) -> Response:
        """Store task configurations that another worker of the group has sent in a signed request."""
        values = await task_configs_body(request)
        await self._herder.put_task_configs(_connector_name(request), request.state.body, values, request.headers)
        return Response(status_code=204)

    async def fence(self, request: Request) -> Response:
        """Reject a signed request to fence a source connector's producers, because exactly-once is not supported."""
        await self._herder.fence(_connector_name(request), await raw_body(request), request.headers)
        return Response(status_code=204)

    def _check_tracking(self) -> None:
        if not self._herder.config["topic.tracking.enable"]:
            raise ForbiddenError("Topic tracking is disabled.")


def _put_response(result: PutResult) -> Response:
    headers = warning_header(result.warnings)
    if result.is_new:
        headers["Location"] = f"/connectors/{quote(result.info.name, safe='')}"
    return JSONResponse(shapes.connector_info(result.info), 201 if result.is_new else 200, headers)


def _connector_name(request: Request) -> str:
    return path_param(request, "connector")


def _with_checked_name(name: str, config: dict[str, Any]) -> dict[str, Any]:
    config_name = config.setdefault("name", name)
    if config_name != name:
        raise BadRequestError(
            f"Connector name configuration ({config_name}) doesn't match connector name in the URL ({name})"
        )
    return config


def _offset_pairs(body: Any) -> list[tuple[dict[str, Any] | None, dict[str, Any] | None]]:
    items = body.get("offsets") if isinstance(body, dict) else None
    if not isinstance(items, list) or not items:
        raise BadRequestError("Partitions / offsets need to be provided for an alter offsets request")
    pairs: list[tuple[dict[str, Any] | None, dict[str, Any] | None]] = []
    for item in items:
        match item:
            case dict() if item.keys() <= {"partition", "offset"}:
                partition, offset = item.get("partition"), item.get("offset")
            case _:
                partition = offset = ()
        if not isinstance(partition, dict | None) or not isinstance(offset, dict | None):
            raise BadRequestError(f"An offset must have the form {{partition: {{…}}, offset: {{…}} or null}}: {item}")
        pairs.append((partition, offset))
    return pairs


def _offsets_response(operation: str, connector_altered: bool | str) -> Response:
    if not connector_altered:
        return JSONResponse({"message": _EXTERNAL_OFFSETS_MESSAGE.format(operation, operation)})
    message = f"The offsets for this connector have been {operation} successfully"
    return JSONResponse({"message": message if connector_altered is True else f"{message}. {connector_altered}"})
