"""Checks whether a connector's client overrides comply with the worker's policy and have valid values.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from headrace.api.connector import Connector, SinkConnector
from headrace.runtime.client_configs import (
    admin_properties,
    consumer_properties,
    parse_producer,
    producer_properties,
)
from headrace.runtime.override_policy import known_policy, refusals
from headrace.runtime.worker_config import worker_value
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.errors import ClientConfigError


class OverrideProblem(NamedTuple):
    """An error or a warning about one client override."""

    key: str
    message: str
    is_error: bool


def override_problems(
    connector_class: type[Connector], config: Mapping[str, str | None], worker: Mapping[str, str]
) -> Iterator[OverrideProblem]:
    """Yield the problems of all client overrides in a connector's configuration.

    The value of an override is not checked if the policy refuses the override or the connector does not use the client.
    Raises ConfigError if a key of the worker's configuration is invalid.
    """
    policy = known_policy(worker_value(worker, "connector.client.config.override.policy") or "All") or "All"
    allowlist = worker_value(worker, "connector.client.config.override.allowlist")
    values = {key: text for key, text in config.items() if text is not None}
    refused = refusals(policy, allowlist, values)
    for key, message in refused.items():
        yield OverrideProblem(key, message, is_error=True)
    allowed = {"name": "", **{key: text for key, text in values.items() if key not in refused}}
    effective_worker = {"bootstrap.servers": "localhost:9092", **worker}
    for kind, parse in _clients(connector_class, allowed, effective_worker).items():
        prefix = f"{kind}.override."
        overrides = [key.removeprefix(prefix) for key in allowed if key.startswith(prefix)]
        if overrides:
            yield from _client_problems(prefix, overrides, parse)


def _clients(
    connector_class: type[Connector], config: Mapping[str, str], worker: Mapping[str, str]
) -> dict[str, Callable[[], ClientConfig]]:
    """Return the clients that the platform creates for the connector, as functions that parse their configurations."""
    is_sink = issubclass(connector_class, SinkConnector)
    clients: dict[str, Callable[[], ClientConfig]] = {
        "admin": lambda: ClientConfig.from_properties(admin_properties(worker, config, ""), kind="admin")
    }
    if not is_sink or config.get("errors.deadletterqueue.topic.name", "").strip():
        clients["producer"] = lambda: parse_producer(producer_properties(worker, config, ""))
    if issubclass(connector_class, SinkConnector) and connector_class.supports_transforms:
        clients["consumer"] = lambda: ClientConfig.from_properties(
            consumer_properties(worker, config, ""), kind="consumer"
        )
    return clients


def _client_problems(prefix: str, overrides: list[str], parse: Callable[[], ClientConfig]) -> Iterator[OverrideProblem]:
    try:
        messages, is_error = parse().warnings, False
    except ClientConfigError as error:
        messages, is_error = error.errors, True
    for message in messages:
        named = [name for name in overrides if _names(message, name)]
        if named or is_error:
            yield OverrideProblem(prefix + (named or overrides)[0], f"{prefix}{message}", is_error)


def _names(message: str, key: str) -> bool:
    """Whether the message mentions the key."""
    return any(word.partition("=")[0].rstrip(":;,") == key for word in message.split())
