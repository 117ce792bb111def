"""Alters configs and builds one result per resource, for AlterConfigs and IncrementalAlterConfigs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from headrace_broker.metadata.configs import CLUSTER_WIDE, Changes
from headrace_broker.metadata.image import BROKER_RESOURCE
from headrace_broker.protocol.errors import ApiError
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.resource_configs import check_broker_id

Result = TypeVar("Result")


def reject_other_brokers(context: RequestContext, request: Any, result: Callable[..., Result]) -> list[Result]:
    """Remove the configs of other brokers from the request, and return an error for each of them.

    Each broker accepts only its own configs and the cluster-wide configs, as in Apache Kafka.
    """
    rejected: list[Result] = []
    accepted = []
    for resource in request.resources:
        try:
            if resource.resource_type == BROKER_RESOURCE and resource.resource_name != CLUSTER_WIDE:
                check_broker_id(resource.resource_name, context.node_id, ", but received")
            accepted.append(resource)
        except ApiError as error:
            rejected.append(_result(result, resource.resource_type, resource.resource_name, error))
    request.resources = accepted
    return rejected


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
    return [_result(result, kind, name, error) for (kind, name, _), error in zip(wanted, errors, strict=True)]


def _result(result: Callable[..., Result], kind: int, name: str, error: ApiError | None) -> Result:
    return result(
        error_code=error.code if error is not None else 0,
        error_message=error.message if error is not None else None,
        resource_type=kind,
        resource_name=name,
    )
