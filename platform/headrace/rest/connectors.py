"""`/connectors` and everything below it."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace.herder.errors import BadRequestError, ForbiddenError, HerderError, NotFoundError
from headrace.herder.standalone import StandaloneHerder
from headrace.herder.states import TargetState
from headrace.rest.answers import answer, as_config, body_of, config_of, flag, map_of, path_text

log = logging.getLogger(__name__)

_EXTERNAL = (
    "The Connect framework-managed offsets for this connector have been {} successfully. However, if this connector "
    "manages offsets externally, they will need to be manually {} in the system that the connector uses."
)


class ConnectorEndpoints:
    """The endpoints over one herder."""

    def __init__(self, herder: StandaloneHerder) -> None:
        self._herder = herder

    def routes(self) -> list[Route]:
        """All routes."""
        table: list[tuple[str, str, Any]] = [
            ("GET", "/connectors", self.list),
            ("POST", "/connectors", self.create),
            ("GET", "/connectors/{name}", self.info),
            ("DELETE", "/connectors/{name}", self.delete),
            ("GET", "/connectors/{name}/config", self.config),
            ("PUT", "/connectors/{name}/config", self.put_config),
            ("PATCH", "/connectors/{name}/config", self.patch_config),
            ("GET", "/connectors/{name}/status", self.status),
            ("GET", "/connectors/{name}/tasks", self.tasks),
            ("GET", "/connectors/{name}/tasks-config", self.tasks_config),
            ("GET", "/connectors/{name}/tasks/{task:int}/status", self.task_status),
            ("POST", "/connectors/{name}/tasks/{task:int}/restart", self.restart_task),
            ("POST", "/connectors/{name}/restart", self.restart),
            ("PUT", "/connectors/{name}/pause", self.pause),
            ("PUT", "/connectors/{name}/resume", self.resume),
            ("PUT", "/connectors/{name}/stop", self.stop),
            ("GET", "/connectors/{name}/topics", self.topics),
            ("PUT", "/connectors/{name}/topics/reset", self.reset_topics),
            ("GET", "/connectors/{name}/offsets", self.offsets),
            ("PATCH", "/connectors/{name}/offsets", self.alter_offsets),
            ("DELETE", "/connectors/{name}/offsets", self.reset_offsets),
            ("POST", "/connectors/{name}/tasks", self.internal),
            ("PUT", "/connectors/{name}/fence", self.internal),
        ]
        return [Route(path, answer(endpoint), methods=[method]) for method, path, endpoint in table]

    async def list(self, request: Request) -> Response:
        """Names; with `expand`, status and info."""
        names, expansions = self._herder.names(), request.query_params.getlist("expand")
        if not expansions:
            return JSONResponse(names)
        shown: dict[str, dict[str, Any]] = {}
        for name in names:
            try:
                shown[name] = {what: self._expanded(what, name) for what in expansions if what in ("status", "info")}
            except NotFoundError:
                continue  # deleted meanwhile
        return JSONResponse(shown)

    def _expanded(self, what: str, name: str) -> dict[str, Any]:
        return self._herder.status(name) if what == "status" else self._herder.info(name)

    async def create(self, request: Request) -> Response:
        """A new connector, perhaps paused or stopped (KIP-980)."""
        body = await map_of(request)
        name = str(body.get("name") or "").strip()
        config = body.get("config")
        if not isinstance(config, dict):
            raise BadRequestError("The request must hold a name and a config")
        settings = _with_name(name, as_config(config))
        state = body.get("initial_state")
        try:
            target = None if state is None else TargetState.from_initial_state(str(state))
        except ValueError as error:
            raise BadRequestError(str(error)) from None
        await self._herder.put(name, settings, target=target, replace=False)
        return self._created(name)

    async def info(self, request: Request) -> Response:
        """Configuration and tasks."""
        return JSONResponse(self._herder.info(_name(request)))

    async def delete(self, request: Request) -> Response:
        """Stop and forget; offsets stay."""
        await self._herder.delete(_name(request))
        return Response(status_code=204)

    async def config(self, request: Request) -> Response:
        """The configuration as it was given."""
        return JSONResponse(self._herder.config_of(_name(request)))

    async def put_config(self, request: Request) -> Response:
        """Create or reconfigure."""
        name = _name(request)
        created = await self._herder.put(name, _with_name(name, await config_of(request)))
        return self._created(name) if created else JSONResponse(self._herder.info(name))

    async def patch_config(self, request: Request) -> Response:
        """Change some keys (KIP-477)."""
        await self._herder.patch(_name(request), await config_of(request))
        return JSONResponse(self._herder.info(_name(request)))

    async def status(self, request: Request) -> Response:
        """States of connector and tasks."""
        return JSONResponse(self._herder.status(_name(request)))

    async def tasks(self, request: Request) -> Response:
        """Tasks with their configurations."""
        return JSONResponse(self._herder.task_configs(_name(request)))

    async def tasks_config(self, request: Request) -> Response:
        """The shape that was removed in Kafka 4.0, for old tools."""
        name = _name(request)
        return JSONResponse({f"{name}-{t['id']['task']}": t["config"] for t in self._herder.task_configs(name)})

    async def task_status(self, request: Request) -> Response:
        """One task's state."""
        return JSONResponse(self._herder.task_status(_name(request), request.path_params["task"]))

    async def restart_task(self, request: Request) -> Response:
        """Stop and start one task."""
        await self._herder.restart_task(_name(request), request.path_params["task"])
        return Response(status_code=204)

    async def restart(self, request: Request) -> Response:
        """Restart the connector, with its tasks or only what failed (KIP-745)."""
        include_tasks, only_failed = flag(request, "includeTasks"), flag(request, "onlyFailed")
        status = await self._herder.restart(_name(request), include_tasks=include_tasks, only_failed=only_failed)
        if not include_tasks and not only_failed:
            return Response(status_code=204)
        return JSONResponse(status, 202)

    async def pause(self, request: Request) -> Response:
        """Rest, keeping everything."""
        await self._herder.set_target(_name(request), TargetState.PAUSED)
        return Response(status_code=202)

    async def resume(self, request: Request) -> Response:
        """Go on."""
        await self._herder.set_target(_name(request), TargetState.STARTED)
        return Response(status_code=202)

    async def stop(self, request: Request) -> Response:
        """End the tasks; the connector stays known."""
        await self._herder.set_target(_name(request), TargetState.STOPPED)
        return Response(status_code=204)

    async def topics(self, request: Request) -> Response:
        """The topics in use (KIP-558)."""
        self._check_tracking()
        name = _name(request)
        return JSONResponse({name: {"topics": self._herder.topics(name)}})

    async def reset_topics(self, request: Request) -> Response:
        """Forget the topics in use."""
        self._check_tracking()
        if not self._herder.config["topic.tracking.allow.reset"]:
            raise ForbiddenError("Topic tracking reset is disabled.")
        self._herder.reset_topics(_name(request))
        return Response(status_code=202)

    async def offsets(self, request: Request) -> Response:
        """Committed offsets (KIP-875)."""
        return JSONResponse({"offsets": await self._herder.offsets(_name(request))})

    async def alter_offsets(self, request: Request) -> Response:
        """Set offsets of a stopped connector."""
        body = await body_of(request)
        pairs = _offset_pairs(body)
        return _altered("altered", await self._herder.alter_offsets(_name(request), pairs))

    async def reset_offsets(self, request: Request) -> Response:
        """Remove the offsets of a stopped connector."""
        return _altered("reset", await self._herder.reset_offsets(_name(request)))

    async def internal(self, request: Request) -> Response:
        """Endpoints between distributed workers."""
        raise HerderError("Kafka Connect in standalone mode does not support this internal request.")

    def _created(self, name: str) -> Response:
        return JSONResponse(self._herder.info(name), 201, {"Location": f"/connectors/{quote(name, safe='')}"})

    def _check_tracking(self) -> None:
        if not self._herder.config["topic.tracking.enable"]:
            raise ForbiddenError("Topic tracking is disabled.")


def _name(request: Request) -> str:
    return path_text(request, "name")


def _with_name(name: str, config: dict[str, Any]) -> dict[str, Any]:
    given = config.setdefault("name", name)
    if given != name:
        raise BadRequestError(
            f"Connector name configuration ({given}) doesn't match connector name in the URL ({name})"
        )
    return config


def _offset_pairs(body: Any) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    items = body.get("offsets") if isinstance(body, dict) else None
    if not isinstance(items, list) or not items:
        raise BadRequestError("Partitions / offsets need to be provided for an alter offsets request")
    pairs: list[tuple[dict[str, Any], dict[str, Any] | None]] = []
    for item in items:
        match item:
            case {"partition": dict(partition), "offset": dict() | None as offset}:
                pairs.append((partition, offset))
            case _:
                raise BadRequestError(f"An offset must be given as {{partition: {{…}}, offset: {{…}} or null}}: {item}")
    return pairs


def _altered(what: str, took_part: bool) -> Response:
    short = f"The offsets for this connector have been {what} successfully"
    return JSONResponse({"message": short if took_part else _EXTERNAL.format(what, what)})
