"""The statuses as the records of the status topic describe them, with this worker's own writes.

A read returns this worker's last write of a key until the worker reads a later record with this key. As in Kafka
Connect (KAFKA-12525), a task's late UNASSIGNED does not replace RUNNING of an equal or later generation. This rule does
not apply to two records of the same worker, because their order is known. Kafka Connect applies the rule to such
records, too. This module does no I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from headrace.stores.status_records import (
    Key,
    StatusKey,
    TopicKey,
    decode_key,
    decode_status,
    encode_key,
    encode_status,
    encode_topic,
)
from headrace.stores.status_store import ConnectorStatuses, State, Status

log = logging.getLogger(__name__)

_SAFE_STATES = frozenset((State.FAILED, State.UNASSIGNED))
StatusListener: TypeAlias = Callable[[StatusKey, Status | None], None]
"""Receives a status that was read from the topic, or None if the status was removed."""


@dataclass(frozen=True, slots=True)
class StatusRecord:
    """A record to append. The value None is a tombstone. Call `on_written` when the write has succeeded or failed."""

    key: Key
    value: bytes | None

    @property
    def encoded_key(self) -> bytes:
        """The record's key as bytes."""
        return encode_key(self.key)


class StatusTopicState:
    """The statuses and the topics of all connectors of a group, as one worker knows them."""

    def __init__(self) -> None:
        self._statuses: dict[str, dict[int | None, Status]] = {}
        self._topics: dict[str, dict[str, None]] = {}
        self._pending: dict[Key, int] = {}  # this worker's unacknowledged writes
        self._acknowledged: dict[Key, int] = {}  # the offset of this worker's last acknowledged write

    def get(self, connector: str) -> ConnectorStatuses:
        """Return the statuses of a connector and of its tasks, which are sorted by number."""
        known = self._statuses.get(connector, {})
        tasks = {number: status for number, status in known.items() if number is not None}
        return ConnectorStatuses(known.get(None), dict(sorted(tasks.items())))

    def task_counts(self) -> dict[str, int]:
        """Return, for each connector that has a status, the number of its tasks that have a status."""
        return {name: len(known) - (None in known) for name, known in self._statuses.items()}

    def show_starting(self, connector: str, task: int | None, status: Status) -> None:
        """Let this worker return a status for an instance that has no status or is UNASSIGNED. Nothing is written."""
        statuses = self._statuses.setdefault(connector, {})
        if task not in statuses or statuses[task].state is State.UNASSIGNED:
            statuses[task] = status

    def adopt(self, connector: str, task: int | None, worker_id: str) -> None:
        """Treat a status as one of this worker's, so that later statuses replace it, whatever its generation is."""
        statuses = self._statuses.get(connector, {})
        if task in statuses:
            statuses[task] = replace(statuses[task], worker_id=worker_id)

    def topics(self, connector: str) -> list[str]:
        """Return the topics that a connector uses."""
        return list(self._topics.get(connector, ()))

    # Writes of this worker; each method returns the records to append, in order

    def put(self, connector: str, task: int | None, status: Status) -> list[StatusRecord]:
        """Set a status.

        FAILED or UNASSIGNED is ignored if another worker has written a status of a later generation.
        """
        known = self._statuses.get(connector, {}).get(task)
        is_own = known is None or known.worker_id == status.worker_id or known.generation <= status.generation
        if status.state in _SAFE_STATES and not is_own:
            return []
        self._statuses.setdefault(connector, {})[task] = status
        return [self._write(StatusKey(connector, task), encode_status(status))]

    def remove(self, connector: str, task: int | None) -> list[StatusRecord]:
        """Remove the status of a task, or of a connector, its tasks and its topics (task None)."""
        known = self._statuses.get(connector, {})
        tasks = [number for number in known if number is not None and task in (None, number)]
        found: list[int | None] = [*tasks, *([None] if task is None and None in known else [])]
        for number in found:
            del known[number]
        records = [self._write(StatusKey(connector, number), None) for number in found]
        if task is None:
            self._statuses.pop(connector, None)
            records += self.reset_topics(connector)
        return records

    def add_topic(self, connector: str, topic: str, task: int, now_ms: int) -> list[StatusRecord]:
        """Add a topic to those that a connector uses."""
        if topic in self._topics.setdefault(connector, {}):
            return []
        self._topics[connector][topic] = None
        key = TopicKey(topic, connector)
        return [self._write(key, encode_topic(key, task, now_ms))]

    def reset_topics(self, connector: str) -> list[StatusRecord]:
        """Remove all topics of a connector."""
        return [self._write(TopicKey(topic, connector), None) for topic in self._topics.pop(connector, {})]

    def _write(self, key: Key, value: bytes | None) -> StatusRecord:
        self._pending[key] = self._pending.get(key, 0) + 1
        return StatusRecord(key, value)

    def on_written(self, key: Key, offset: int | None) -> None:
        """Handle the end of a write. `offset` is the record's offset, or None if the write has failed."""
        self._pending[key] -= 1
        if not self._pending[key]:
            del self._pending[key]
        if offset is not None:
            self._acknowledged[key] = offset

    # Records of the topic

    def apply(self, offset: int, key: bytes | None, value: bytes | None) -> tuple[StatusKey, Status | None] | None:
        """Apply a record. Return the status that it contains, unless this worker has overwritten the status.

        Records that cannot be read are logged and skipped.
        """
        try:
            decoded = decode_key(key or b"")
        except ValueError as error:
            log.error("Status topic: skipping the record at offset %d: %s", offset, error)
            return None
        if decoded in self._pending or offset < self._acknowledged.get(decoded, -1):
            return None  # this worker's later write of the key is current
        self._acknowledged.pop(decoded, None)
        try:
            return self._apply(decoded, value)
        except (ValueError, KeyError, TypeError) as error:
            log.error(
                "Status topic: skipping the record at offset %d with key %s: %r",
                offset,
                encode_key(decoded).decode(),
                error,
            )
            return None

    def _apply(self, key: Key, value: bytes | None) -> tuple[StatusKey, Status | None] | None:
        if isinstance(key, TopicKey):
            topics = self._topics.setdefault(key.connector, {})
            if value is None:
                topics.pop(key.topic, None)
            else:
                topics[key.topic] = None
            return None
        if value is not None:
            status = decode_status(value)
            self._apply_status(key.connector, key.task, status)
            return key, status
        known = self._statuses.get(key.connector, {})
        known.pop(key.task, None)
        if not known:
            self._statuses.pop(key.connector, None)
        return key, None

    def _apply_status(self, connector: str, task: int | None, status: Status) -> None:
        known = self._statuses.setdefault(connector, {}).get(task)
        is_late = (
            task is not None
            and status.state is State.UNASSIGNED
            and known is not None
            and known.state is State.RUNNING
            and known.worker_id != status.worker_id
            and known.generation >= status.generation
        )
        if not is_late:
            self._statuses[connector][task] = status
