"""The names of loggers: Python's module names, and the logger names of Apache Kafka that correspond to them.

`PUT /admin/loggers/{logger}` of Kafka Connect accepts every name, and a misspelt name has no effect. headrace accepts
only the names of its loggers and of modules, and the names of Apache Kafka in `APACHE_LOGGERS`.
"""

from __future__ import annotations

import logging
import pkgutil
import sys
from collections.abc import Iterable, Mapping
from importlib.machinery import ModuleSpec, PathFinder

ROOT_NAMES = ("root", "")
_BROKER = "headrace_broker"  # a worker uses only the client in this package
PACKAGES = ("headrace", _BROKER, "headrace_connectors", "headrace_transforms")

_SOURCE_TASK = ("headrace.runtime.worker_source_task", "headrace.runtime.source_task_core")
_SINK_TASK = ("headrace.runtime.worker_sink_task", "headrace.runtime.sink_task_core", "headrace.runtime.sink_consumer")
_ERRORS = (
    "headrace.runtime.error_policy",
    "headrace.runtime.tolerance",
    "headrace.runtime.source_errors",
    "headrace.runtime.sink_errors",
)
_MEMBERSHIP = "headrace_broker.client.membership"
_GROUP = ("headrace.herder.worker_group", _MEMBERSHIP)
_CONFIG_TOPIC = ("headrace.stores.kafka_config_store", "headrace.stores.config_topic_state")
_STATUS_TOPIC = ("headrace.stores.kafka_status_store", "headrace.stores.status_topic_state")
_CONSUMER = ("headrace_broker.client.consumer", "headrace_broker.client.fetcher")
_RUNTIME = "org.apache.kafka.connect.runtime"
_STORAGE = "org.apache.kafka.connect.storage"
_CLIENTS = "org.apache.kafka.clients"

APACHE_LOGGERS: Mapping[str, tuple[str, ...]] = {
    "org.apache.kafka": ("headrace", "headrace_broker.client"),
    "org.apache.kafka.connect": ("headrace", _MEMBERSHIP),
    "org.apache.kafka.connect.file": ("headrace_connectors.file",),
    "org.apache.kafka.connect.transforms": ("headrace_transforms",),
    "org.apache.kafka.connect.util": ("headrace.stores.topic_log", "headrace.runtime.topic_creator"),
    "org.apache.kafka.connect.util.KafkaBasedLog": ("headrace.stores.topic_log",),
    "org.apache.kafka.connect.util.TopicAdmin": ("headrace.runtime.topic_creator",),
    _RUNTIME: ("headrace.runtime", "headrace.herder", "headrace.plugins", "headrace.rest", _MEMBERSHIP),
    f"{_RUNTIME}.AbstractHerder": ("headrace.herder.base", "headrace.herder.instances"),
    f"{_RUNTIME}.AbstractWorkerSourceTask": _SOURCE_TASK,
    f"{_RUNTIME}.SourceTaskOffsetCommitter": _SOURCE_TASK,
    f"{_RUNTIME}.SubmittedRecords": _SOURCE_TASK,
    f"{_RUNTIME}.Worker": ("headrace.runtime.worker", "headrace.herder.instances"),
    f"{_RUNTIME}.WorkerConnector": ("headrace.runtime.worker_connector",),
    f"{_RUNTIME}.WorkerSinkTask": _SINK_TASK,
    f"{_RUNTIME}.WorkerSourceTask": _SOURCE_TASK,
    f"{_RUNTIME}.WorkerTask": ("headrace.runtime.worker_task",),
    f"{_RUNTIME}.distributed": ("headrace.herder", _MEMBERSHIP),
    f"{_RUNTIME}.distributed.DistributedHerder": ("headrace.herder.distributed", "headrace.herder.instances"),
    f"{_RUNTIME}.distributed.EagerAssignor": ("headrace.herder.group_core",),
    f"{_RUNTIME}.distributed.IncrementalCooperativeAssignor": ("headrace.herder.group_core",),
    f"{_RUNTIME}.distributed.WorkerCoordinator": _GROUP,
    f"{_RUNTIME}.distributed.WorkerGroupMember": _GROUP,
    f"{_RUNTIME}.errors": _ERRORS,
    f"{_RUNTIME}.errors.DeadLetterQueueReporter": ("headrace.runtime.source_errors", "headrace.runtime.sink_errors"),
    f"{_RUNTIME}.errors.LogReporter": ("headrace.runtime.error_policy",),
    f"{_RUNTIME}.errors.RetryWithToleranceOperator": ("headrace.runtime.tolerance",),
    f"{_RUNTIME}.isolation": ("headrace.plugins",),
    f"{_RUNTIME}.rest": ("headrace.rest", "headrace.herder.rest_client"),
    f"{_RUNTIME}.rest.RestClient": ("headrace.rest.forwarding", "headrace.herder.rest_client"),
    f"{_RUNTIME}.rest.RestServer": ("headrace.rest",),
    f"{_RUNTIME}.standalone": ("headrace.herder",),
    f"{_RUNTIME}.standalone.StandaloneHerder": ("headrace.herder.standalone", "headrace.herder.instances"),
    _STORAGE: ("headrace.stores",),
    f"{_STORAGE}.ConnectorOffsetBackingStore": ("headrace.stores.connector_offset_store",),
    f"{_STORAGE}.KafkaConfigBackingStore": _CONFIG_TOPIC,
    f"{_STORAGE}.KafkaOffsetBackingStore": ("headrace.stores.kafka_offset_store",),
    f"{_STORAGE}.KafkaStatusBackingStore": _STATUS_TOPIC,
    _CLIENTS: ("headrace_broker.client",),
    f"{_CLIENTS}.Metadata": ("headrace_broker.client.cluster",),
    f"{_CLIENTS}.NetworkClient": ("headrace_broker.client.cluster",),
    f"{_CLIENTS}.admin": ("headrace_broker.client.cluster",),
    f"{_CLIENTS}.consumer": (*_CONSUMER, "headrace_broker.client.consumer_group", "headrace_broker.client.membership"),
    f"{_CLIENTS}.consumer.KafkaConsumer": _CONSUMER,
    f"{_CLIENTS}.consumer.internals.ConsumerCoordinator": (
        "headrace_broker.client.consumer_group",
        "headrace_broker.client.membership",
    ),
    f"{_CLIENTS}.producer": ("headrace_broker.client.producer",),
    f"{_CLIENTS}.producer.KafkaProducer": ("headrace_broker.client.producer",),
    "io.confluent.connect.elasticsearch": ("headrace_connectors.elasticsearch",),
    "io.confluent.connect.jdbc": ("headrace_connectors.jdbc",),
    "io.confluent.connect.s3": ("headrace_connectors.s3",),
}
"""headrace's loggers with the task of each logger of Apache Kafka and of Confluent's connectors."""


class UnknownLoggerError(Exception):
    """The name is neither a logger's nor a module's, and not in `APACHE_LOGGERS`. The message says what to set."""


def resolve(name: str, directories: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the names of the Python loggers for the name in a request. `directories` may contain modules of plug-ins.

    Raises UnknownLoggerError.
    """
    if name.lower() in ROOT_NAMES:
        return ("root",)
    if name in APACHE_LOGGERS:
        return APACHE_LOGGERS[name]
    if name in logging.Logger.manager.loggerDict or _is_module(name, directories):
        return (name,)
    parents = [known for known in APACHE_LOGGERS if name.startswith(known + ".")]
    nearest = f" {max(parents, key=len)} is a known name of Apache Kafka." if parents else ""
    raise UnknownLoggerError(
        f"Logger {name} not found.{nearest} Set the level of root, {', '.join(PACKAGES)}, or one of their modules, "
        "which GET /admin/loggers lists, or the level of a plug-in's module."
    )


def listed() -> list[str]:
    """Return the loggers that `GET /admin/loggers` lists in addition to those with a level of their own.

    These are headrace's packages, the loggers of this process, and those in `APACHE_LOGGERS`. The modules that only run
    in other processes of the worker are not imported.
    """
    names = {name for mapped in APACHE_LOGGERS.values() for name in mapped}
    names.update(PACKAGES)
    for package in PACKAGES:
        if package != _BROKER and (spec := PathFinder.find_spec(package)) is not None:
            modules = pkgutil.iter_modules(spec.submodule_search_locations)
            names.update(f"{package}.{module.name}" for module in modules if module.ispkg)
    names.update(name for name in existing() if name.partition(".")[0] in PACKAGES)
    return sorted(names)


def existing() -> list[str]:
    """Return the names of all loggers of this process except the root logger."""
    manager = logging.Logger.manager
    return sorted(name for name, item in manager.loggerDict.items() if isinstance(item, logging.Logger))


def _is_module(name: str, directories: Iterable[str]) -> bool:
    """Whether a module or package has this name. Nothing is imported."""
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        return False
    found: ModuleSpec | None = None
    for depth in range(1, len(parts) + 1):
        path: Iterable[str] | None = [*sys.path, *directories] if found is None else found.submodule_search_locations
        if path is None:  # a module has no modules
            return False
        found = PathFinder.find_spec(".".join(parts[:depth]), list(path))
        if found is None:
            return False
    return found is not None and found.origin is not None  # any directory could be a namespace package
