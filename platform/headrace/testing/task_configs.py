"""Creates a task's configuration and plug-ins in memory, from a connector and its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from headrace.api.connector import Connector, connector_for
from headrace.api.task import Task
from headrace.runtime.error_policy import ErrorPolicy, Failure
from headrace.runtime.spec import TaskSpec
from headrace.runtime.task_plugins import Plugins, class_path
from headrace.runtime.tolerance import RetryWithToleranceOperator
from headrace.testing.virtual_time import StoredOffsets, VirtualClock

CONNECTOR_NAME = "test"
_JSON_CONVERTER = "org.apache.kafka.connect.json.JsonConverter"
WORKER_CONFIG = {"key.converter": _JSON_CONVERTER, "value.converter": _JSON_CONVERTER}
"""The worker's configuration: like Kafka's example configurations, it selects JsonConverter with schemas."""


class ConnectorContext:
    """The platform's interface for a connector under test."""

    def __init__(self, props: Mapping[str, str], offsets: StoredOffsets) -> None:
        self.connector_name = CONNECTOR_NAME
        self.props = dict(props)
        self.offsets = offsets
        self.reconfigurations = 0
        self.errors: list[Exception] = []

    def request_task_reconfiguration(self) -> None:
        """Count this request of the connector in `reconfigurations`. The tasks are not reconfigured."""
        self.reconfigurations += 1

    def raise_error(self, error: Exception) -> None:
        """Add the error to `errors`. The connector does not fail."""
        self.errors.append(error)


def connector_class_of(plugin: type[Any]) -> type[Connector[Any]]:
    """Return the connector class of a plug-in.

    If `plugin` is a connector class, return `plugin`. If `plugin` is a task class, return the connector class of the
    task. Raises TypeError for any other class.
    """
    if issubclass(plugin, Connector):
        return plugin
    if issubclass(plugin, Task):
        return connector_for(plugin)
    raise TypeError(f"{plugin.__qualname__} is neither a connector nor a task class")


def task_configs(
    plugin: type[Any], props: Mapping[str, str], offsets: StoredOffsets, max_tasks: int = 1
) -> list[dict[str, str]]:
    """Start the connector, return the configurations of its tasks, and stop it.

    Raises ConfigErrors, the connector's errors, and TypeError for a value that is not a string.
    """
    for name, text in props.items():
        if not isinstance(text, str):
            raise TypeError(f"{name}={text!r}: the value must be a string, as in a connector's configuration file")
    connector = connector_class_of(plugin)()
    connector.config = connector.config_model.parse(props)
    connector.context = ConnectorContext(props, offsets)
    try:
        connector.start(connector.config)
        return connector.task_configs(max_tasks)
    finally:
        connector.stop()


def task_plugins(
    plugin: type[Any], props: Mapping[str, str], configs: Sequence[Mapping[str, str]], number: int = 0
) -> Plugins:
    """Return the plug-ins of one task of the connector `plugin`, for example its transforms and converters.

    `props` is the configuration of the connector, and `configs` are those of its tasks.
    """
    connector = connector_class_of(plugin)
    spec = TaskSpec(
        connector=CONNECTOR_NAME,
        number=number,
        task_count=len(configs),
        config={**configs[number], "task.class": class_path(connector.task_class)},
        connector_config={**props, "name": CONNECTOR_NAME},
        worker=WORKER_CONFIG,
    )
    return Plugins(spec)


def error_operator(
    policy: ErrorPolicy,
    clock: VirtualClock,
    report: Callable[[Failure, Any], None],
    describe: Callable[[Any], str] = repr,
) -> RetryWithToleranceOperator:
    """Return the operator that runs transforms and converters. `policy` determines the retried and tolerated failures.

    Retries wait in the virtual time of `clock`. Tolerated failures are passed to `report`. `describe` returns a
    description of the first record of a batch, for messages.
    """
    return RetryWithToleranceOperator(
        policy,
        report=report,
        describe=describe,
        now_ms=lambda: clock.now_ms,
        wait_ms=lambda delay_ms: clock.wait(delay_ms / 1000),
        rng=Random(0),
    )
