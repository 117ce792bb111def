"""The connectors as the records of the config topic describe them, by the rules of Kafka Connect.

A connector's task configurations take effect together, with the commit record that follows them. If a worker died
before it wrote all of these records, or if compaction removed some of them, the connector is inconsistent. It then runs
without tasks until its task configurations are written again. This module does no I/O.
"""

from __future__ import annotations

import base64
import json
import logging
from collections import defaultdict
from dataclasses import replace
from typing import Any

from headrace.stores import config_records as records
from headrace.stores.config_store import (
    ConfigChange,
    ConfigSnapshot,
    ConnectorState,
    DeleteConnector,
    PutConnector,
    PutLogLevel,
    PutSessionKey,
    PutTargetState,
    PutTaskConfigs,
    RequestRestart,
    TargetState,
)
from headrace.stores.offset_keys import in_hashmap_order

log = logging.getLogger(__name__)


class ConfigTopicState:
    """Reads the records of the config topic in order."""

    def __init__(self) -> None:
        self._next_offset = -1
        self._connectors: dict[str, ConnectorState] = {}
        self._targets: dict[str, TargetState] = {}
        self._uncommitted: defaultdict[str, dict[int, dict[str, str]]] = defaultdict(dict)
        self._ignored = set[str]()  # connectors without configuration, whose commits were ignored
        self._session_key: PutSessionKey | None = None

    def snapshot(self) -> ConfigSnapshot:
        """Return the current state. Its offset is the offset of the next record, as in the group protocol."""
        return ConfigSnapshot(self._next_offset, dict(self._connectors), self._session_key)

    def apply(self, offset: int, key: bytes | None, value: bytes | None) -> ConfigChange | None:
        """Apply a record. Return the change that it completes. Records that cannot be read are logged and skipped.

        As in Kafka Connect, a value that is not JSON does not advance the snapshot's offset. All workers of a group
        must follow this rule, because they start their assignments only if their offsets are equal.
        """
        try:
            content = None if value is None else json.loads(value)
            self._next_offset = offset + 1
            return self._apply(offset, (key or b"").decode(), content)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            log.error("Config topic: skipping the record with key %r at offset %d: %r", key, offset, error)
            return None

    def _apply(self, offset: int, key: str, content: Any) -> ConfigChange | None:
        if key == records.SESSION_KEY:
            return self._put_session_key(content)
        if key.startswith(records.TARGET_STATE):
            return self._put_target(key.removeprefix(records.TARGET_STATE), content)
        if key.startswith(records.CONNECTOR):
            return self._put_connector(offset, key.removeprefix(records.CONNECTOR), content)
        if key.startswith(records.TASK):
            self._put_task(key, content)
            return None
        if key.startswith(records.COMMIT):
            return self._commit(offset, key.removeprefix(records.COMMIT), content)
        if key.startswith(records.RESTART) and content is not None:
            include_tasks, only_failed = content.get("include-tasks") is True, content.get("only-failed") is True
            return RequestRestart(key.removeprefix(records.RESTART), include_tasks, only_failed)
        if key.startswith(records.LOGGER) and content is not None:
            return PutLogLevel(key.removeprefix(records.LOGGER), str(content["level"]))
        if not key.startswith((records.FENCING, records.RESTART, records.LOGGER)):
            log.error("Config topic: skipping the record at offset %d, which has the unknown key %r", offset, key)
        return None

    def _put_connector(self, offset: int, name: str, content: Any) -> ConfigChange:
        if content is None:
            self._connectors.pop(name, None)  # a separate tombstone removes its target state
            self._uncommitted.pop(name, None)
            self._ignored.discard(name)
            return DeleteConnector(name)
        config, known = _strings(content["properties"]), self._connectors.get(name)
        target = self._targets.setdefault(name, TargetState.STARTED)
        if known is None:
            self._connectors[name] = ConnectorState(config, target, offset, has_ignored_tasks=name in self._ignored)
            self._ignored.discard(name)
        else:
            self._connectors[name] = replace(known, config=config, config_offset=offset)
        return PutConnector(name, config, target)

    def _put_task(self, key: str, content: Any) -> None:
        name, separator, number = key.removeprefix(records.TASK).rpartition("-")
        if not separator:
            raise ValueError("the key of a task configuration must contain the connector's name and the task's number")
        self._uncommitted[name][int(number)] = _strings(content["properties"])

    def _put_target(self, name: str, content: Any) -> ConfigChange | None:
        if content is None:
            self._targets.pop(name, None)
            target = TargetState.STARTED
        else:
            target = self._targets[name] = _target(content)
        known = self._connectors.get(name)
        if known is None:
            return None
        self._connectors[name] = replace(known, target=target)
        return PutTargetState(name, target)

    def _commit(self, offset: int, name: str, content: Any) -> ConfigChange | None:
        known = self._connectors.get(name)
        count = _task_count(content["tasks"])
        if known is None:  # the connector was deleted, or written again later; compaction removed its configuration
            self._uncommitted.pop(name, None)
            (self._ignored.add if count else self._ignored.discard)(name)
            return None
        tasks = self._uncommitted.pop(name, {})
        # Compaction may have kept tasks of an earlier, greater count. A foreign record may contain any count.
        found = sum(number < count for number in tasks)
        if found < count:
            log.error(
                "Connector %s: the config topic contains %d of its %d task configurations; the connector has no tasks "
                "until its task configurations are written again",
                name,
                found,
                count,
            )
            self._connectors[name] = replace(
                known, task_configs=(), task_configs_offset=offset, applied_config=None, has_ignored_tasks=False
            )
            return PutTaskConfigs(name, ())
        configs = tuple(tasks[number] for number in range(count))
        self._connectors[name] = replace(
            known,
            task_configs=configs,
            task_configs_offset=offset,
            applied_config=known.config,
            has_ignored_tasks=False,
        )
        return PutTaskConfigs(name, configs)

    def _put_session_key(self, content: Any) -> ConfigChange:
        created_ms = int(content["creation-timestamp"])
        base64.b64decode(content["key"], validate=True)
        self._session_key = PutSessionKey(content["key"], str(content["algorithm"]), created_ms)
        return self._session_key


def _strings(properties: Any) -> dict[str, str]:
    """Return a configuration in the order of Java's `HashMap`, into which Kafka Connect reads it."""
    return in_hashmap_order({str(key): str(value) for key, value in properties.items() if value is not None})


def _task_count(value: Any) -> int:
    """Return the number of tasks in a commit record. Raises ValueError."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"the number of tasks, {value!r}, is not a whole number of at least 0")
    return value


def _target(content: Any) -> TargetState:
    for field in ("state.v2", "state"):
        try:
            return TargetState(content.get(field))
        except ValueError:
            continue
    raise ValueError(f"unknown target state {content!r}")
