"""The records of the config topic: keys and JSON values, as Kafka Connect writes them. No I/O.

`steps` encodes a change; `ConfigTopicState` reads the topic. Keys are plain strings; values are JSON without schemas.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

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

CONNECTOR, TASK, COMMIT, TARGET_STATE = "connector-", "task-", "commit-", "target-state-"
RESTART, LOGGER, FENCING, SESSION_KEY = "restart-connector-", "logger-cluster-", "tasks-fencing-", "session-key"

Record: TypeAlias = tuple[str, bytes | None]
"""Key and value of a record; the value None is a tombstone."""


def steps(change: ConfigChange) -> list[list[Record]]:
    """Return the records of a change. The writer reads to the end of the topic after each inner list."""
    match change:
        case PutConnector(name, config, target):
            record = CONNECTOR + name, _json({"properties": dict(config)})
            return [[record] if target is None else [_target_state(name, target), record]]
        case DeleteConnector(name):
            return [[(CONNECTOR + name, None), (TARGET_STATE + name, None)]]
        case PutTaskConfigs(name, configs):
            commit = COMMIT + name, _json({"tasks": len(configs)})
            return [tasks, [commit]] if (tasks := _tasks(name, configs)) else [[commit]]
        case PutTargetState(name, target):
            return [[_target_state(name, target)]]
        case RequestRestart(name, include_tasks, only_failed):
            return [[(RESTART + name, _json({"include-tasks": include_tasks, "only-failed": only_failed}))]]
        case PutSessionKey(key, algorithm, created_ms):
            return [[(SESSION_KEY, _json({"key": key, "algorithm": algorithm, "creation-timestamp": created_ms}))]]
        case PutLogLevel(logger, level):
            return [[(LOGGER + logger, _json({"level": level}))]]


def _tasks(name: str, configs: Sequence[Mapping[str, str]]) -> list[Record]:
    return [
        (f"{TASK}{name}-{number}", _json({"properties": _in_java_order(each)})) for number, each in enumerate(configs)
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
    return TARGET_STATE + name, _json({"state": old.value, "state.v2": target.value})


def _json(value: Mapping[str, Any]) -> bytes:
    # An unpaired surrogate, for example from the name of a file, has no UTF-8 form: it becomes an escape of JSON.
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="backslashreplace")
