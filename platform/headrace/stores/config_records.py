"""The records of the config topic: keys and JSON values, as Kafka Connect writes them. This module does no I/O.

`steps` encodes a change. `ConfigTopicState` reads the topic. Keys are plain strings, and values are JSON without
schemas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from headrace.data.java import hash_map_copy_order, hash_map_order
from headrace.stores.config_store import (
    ConfigChange,
    DeleteConnector,
    PutConnector,
    PutLogLevel,
    PutSessionKey,
    PutTargetState,
    PutTaskConfigs,
    RequestRestart,
    TargetState,
)
from headrace.stores.connect_json import encode

CONNECTOR, TASK, COMMIT, TARGET_STATE = "connector-", "task-", "commit-", "target-state-"
RESTART, LOGGER, FENCING, SESSION_KEY = "restart-connector-", "logger-cluster-", "tasks-fencing-", "session-key"

Record: TypeAlias = tuple[str, bytes | None]
"""Key and value of a record; the value None is a tombstone."""


def steps(change: ConfigChange) -> list[list[Record]]:
    """Return the records of a change. The writer reads to the end of the topic after each inner list."""
    match change:
        case PutConnector(name, config, target):
            record = CONNECTOR + name, encode({"properties": dict(config)})
            return [[record] if target is None else [_target_state(name, target), record]]
        case DeleteConnector(name):
            return [[(CONNECTOR + name, None), (TARGET_STATE + name, None)]]
        case PutTaskConfigs(name, configs):
            commit = COMMIT + name, encode({"tasks": len(configs)})
            return [tasks, [commit]] if (tasks := _tasks(name, configs)) else [[commit]]
        case PutTargetState(name, target):
            return [[_target_state(name, target)]]
        case RequestRestart(name, include_tasks, only_failed):
            return [[(RESTART + name, encode({"include-tasks": include_tasks, "only-failed": only_failed}))]]
        case PutSessionKey(key, algorithm, created_ms):
            return [[(SESSION_KEY, encode({"key": key, "algorithm": algorithm, "creation-timestamp": created_ms}))]]
        case PutLogLevel(logger, level):
            return [[(LOGGER + logger, encode({"level": level}))]]


def _tasks(name: str, configs: Sequence[Mapping[str, str]]) -> list[Record]:
    return [
        (f"{TASK}{name}-{number}", encode({"properties": _in_java_order(each)})) for number, each in enumerate(configs)
    ]


def _in_java_order(config: Mapping[str, str]) -> dict[str, str]:
    """Return a task's configuration in the order in which Kafka Connect writes it.

    A worker copies the connector's configuration to a HashMap, adds `task.class`, and copies the HashMap.
    """
    added = [key for key in ("task.class",) if key in config]
    keys = hash_map_order(key for key in config if key not in added)
    return {key: config[key] for key in hash_map_copy_order(hash_map_copy_order(keys, added))}


def _target_state(name: str, target: TargetState) -> Record:
    # Workers from before KIP-875 do not support STOPPED.
    old = TargetState.PAUSED if target is TargetState.STOPPED else target
    return TARGET_STATE + name, encode({"state": old.value, "state.v2": target.value})
