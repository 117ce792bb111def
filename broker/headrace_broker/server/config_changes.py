"""Alters configs and builds one result per resource, for AlterConfigs and IncrementalAlterConfigs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from headrace_broker.metadata.configs import Changes
from headrace_broker.server.network.context import RequestContext

Result = TypeVar("Result")


async def alter(
    context: RequestContext,
    resources: Sequence[Any],
    changes: Sequence[Changes],
    result: Callable[..., Result],
    validate_only: bool,
) -> list[Result]:
    """Alter the configs of each resource: apply all changes of a resource, or none.

    Returns one result per resource, created by calling `result`.
    """
    wanted = [
        (resource.resource_type, resource.resource_name, change)
        for resource, change in zip(resources, changes, strict=True)
    ]
    errors = await context.controller.alter_configs(wanted, validate_only=validate_only)
    return [
        result(
            error_code=error.code if error is not None else 0,
            error_message=error.message if error is not None else None,
            resource_type=kind,
            resource_name=name,
        )
        for (kind, name, _), error in zip(wanted, errors, strict=True)
    ]
