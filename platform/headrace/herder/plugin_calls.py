"""Calls to plug-ins that are not running: validation, key definitions, and checks of altered offsets.

Each call runs in a process that executes no other call at the same time. An error in this process is raised as
HerderError.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.herder.errors import BadRequestError, HerderError, NotFoundError
from headrace.herder.stages import stage
from headrace.metrics import logs
from headrace.runtime.channel import RemoteError
from headrace.runtime.messages import OffsetPair
from headrace.runtime.traces import exception_line
from headrace.runtime.worker import CallTimeout, Worker

log = logging.getLogger(__name__)

R = TypeVar("R")

_USER_ERRORS = ("PluginNotFoundError", "ConfigError", "ConfigErrors", "DataError", "ConnectError")


@dataclass(frozen=True, slots=True)
class ValidConfig:
    """The result of the validation of a connector's configuration without errors."""

    type: str
    """"source" or "sink"."""
    warnings: tuple[str, ...]


class PluginCalls:
    """The plug-in calls of one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def check(self, config: Mapping[str, str]) -> ValidConfig:
        """Validate a configuration. Raises BadRequestError, which lists all errors and warnings."""
        result = await self.validate(config)
        warnings = _all_warnings(result)
        errors = [message for item in result["configs"] for message in item["value"]["errors"]]
        if errors:
            lines = "".join(f"\n{error}" for error in errors)
            lines += "".join(f"\nWarning: {warning}" for warning in warnings)  # a misspelt key often explains an error
            raise BadRequestError(
                f"Connector configuration is invalid and contains the following {len(errors)} error(s):{lines}\n"
                "You can also find the above list of errors at the endpoint "
                "`/connector-plugins/{connectorType}/config/validate`"
            )
        for warning in result["warnings"]:  # the connector's start logs the others
            log.warning("%s%s", logs.context(config.get("name", ""), "worker"), warning)
        return ValidConfig(str(result["type"]), tuple(warnings))

    async def type_of(self, config: Mapping[str, str]) -> str:
        """Return "source" or "sink", or "unknown" if the connector class cannot be loaded."""
        try:
            return await self._worker.connector_type(config)
        except (RemoteError, CallTimeout, OSError):
            return "unknown"

    async def validate(self, config: Mapping[str, str]) -> dict[str, Any]:
        """Return the result of `runtime.worker_connector.validate_config`. Raises HerderError."""
        with stage("performing multi-property validation for the connector"):
            return await _translated(self._worker.validate(config))

    async def validate_for(self, plugin: str, config: Mapping[str, str | None]) -> dict[str, Any]:
        """Validate a configuration for the plug-in in the URL. Return the REST API's format. Raises HerderError.

        The result has the field `warnings` only if there are any. Otherwise, it has exactly Kafka Connect's format.
        """
        with stage("performing multi-property validation for the connector"):
            result = await _translated(self._worker.validate(config, plugin))
        warnings = _all_warnings(result)
        infos = {key: result[key] for key in ("name", "error_count", "groups", "configs")}
        return infos | ({"warnings": warnings} if warnings else {})

    async def all(self, *, connectors_only: bool) -> list[dict[str, str]]:
        """Return the response of `GET /connector-plugins`. Raises HerderError."""
        return await _translated(self._worker.list_plugins(connectors_only=connectors_only))

    async def config_of(self, plugin: str) -> list[dict[str, Any]]:
        """Return the response of `GET /connector-plugins/P/config`. Raises NotFoundError."""
        try:
            return await _translated(self._worker.plugin_config(plugin))
        except BadRequestError as error:
            raise NotFoundError(str(error)) from None

    async def alter_offsets(
        self, name: str, config: Mapping[str, str], offsets: Sequence[OffsetPair], *, is_reset: bool = False
    ) -> bool | str:
        """Let a stopped connector check new offsets. Return the result of its `alter_offsets`. Raises HerderError."""
        return await _translated(self._worker.alter_offsets(name, config, offsets, is_reset=is_reset))


def _all_warnings(result: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys([*result["warnings"], *result["connector_warnings"]]))


async def _translated(call: Awaitable[R]) -> R:
    try:
        return await call
    except RemoteError as error:
        if error.kind in _USER_ERRORS:
            raise BadRequestError(error.message) from error
        raise HerderError(exception_line(error.trace)) from error  # the message of a KeyError is only the key
    except OverflowError as error:
        raise BadRequestError(f"The request contains a number that is too large: {error}") from None
    except (CallTimeout, OSError) as error:  # OSError: ChannelClosed, or no process can be created
        raise HerderError(str(error)) from error
