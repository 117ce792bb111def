"""The status store of a distributed worker: the status topic of the worker group, in the format of Kafka Connect.

Writes are sent in the order of the calls. A read returns this worker's last write of the key until the worker reads a
later record with this key.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial

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
from headrace.stores.topic_log import TopicLogs, TopicRecord
from headrace_broker.client.producer import RecordMetadata

log = logging.getLogger(__name__)

_SAFE_STATES = frozenset((State.FAILED, State.UNASSIGNED))
_Statuses = dict[str, dict[int | None, Status]]


class KafkaStatusStore:
    """The statuses of all connectors of the group; `logs` must be started before `start`."""

    def __init__(self, logs: TopicLogs, topic: str) -> None:
        self._log = logs.add(topic, self._on_record)
        self._statuses: _Statuses = {}
        self._topics: dict[str, dict[str, None]] = {}
        self._pending: dict[Key, int] = {}  # this worker's unacknowledged writes
        self._acknowledged: dict[Key, int] = {}  # the offset of this worker's last acknowledged write
        self._writes: set[asyncio.Future[RecordMetadata]] = set()

    async def start(self) -> None:
        """Do nothing: `logs` has read the topic."""

    async def stop(self) -> None:
        """Wait until the pending writes are acknowledged."""
        await asyncio.gather(*self._writes, return_exceptions=True)

    def put(self, connector: str, task: int | None, status: Status) -> None:
        """Store the status of a connector (task None) or task.

        A worker reports that an instance has failed or is unassigned only if no later generation has it.
        """
        known = self._statuses.get(connector, {}).get(task)
        is_own = known is None or known.worker_id == status.worker_id or known.generation <= status.generation
        if status.state in _SAFE_STATES and not is_own:
            return
        self._statuses.setdefault(connector, {})[task] = status
        self._send(StatusKey(connector, task), encode_status(status))

    def show_starting(self, connector: str, task: int | None, status: Status) -> None:
        """Let this worker return a status for an instance that has none, or is UNASSIGNED; nothing is written."""
        statuses = self._statuses.setdefault(connector, {})
        if task not in statuses or statuses[task].state is State.UNASSIGNED:
            statuses[task] = status

    def remove(self, connector: str, task: int | None) -> None:
        """Remove the status of a task, or of a connector, its tasks and its topics (task None)."""
        known = self._statuses.get(connector, {})
        removed = [number for number in known if number is not None and task in (None, number)]
        for each in [*removed, *([None] if task is None and None in known else [])]:
            del known[each]
            self._send(StatusKey(connector, each), None)
        if task is None:
            self._statuses.pop(connector, None)
            self.reset_topics(connector)

    def get(self, connector: str) -> ConnectorStatuses:
        """Return the statuses of a connector, its tasks in order of their numbers."""
        known = self._statuses.get(connector, {})
        tasks = {number: status for number, status in known.items() if number is not None}
        return ConnectorStatuses(known.get(None), dict(sorted(tasks.items())))

    def task_counts(self) -> dict[str, int]:
        """Return the connectors that have a status, each with the number of its tasks that have one."""
        return {name: len(known) - (None in known) for name, known in self._statuses.items()}

    def add_topic(self, connector: str, topic: str, task: int) -> None:
        """Add a topic to those that a connector uses."""
        if topic not in self._topics.setdefault(connector, {}):
            self._topics[connector][topic] = None
            key = TopicKey(topic, connector)
            self._send(key, encode_topic(key, task, time.time_ns() // 1_000_000))

    def topics(self, connector: str) -> list[str]:
        """Return the topics that a connector uses."""
        return list(self._topics.get(connector, ()))

    def reset_topics(self, connector: str) -> None:
        """Remove all topics of a connector."""
        for topic in self._topics.pop(connector, {}):
            self._send(TopicKey(topic, connector), None)

    def _send(self, key: Key, value: bytes | None) -> None:
        self._pending[key] = self._pending.get(key, 0) + 1
        write = self._log.send(encode_key(key), value)
        self._writes.add(write)
        write.add_done_callback(partial(self._on_written, key))

    def _on_written(self, key: Key, write: asyncio.Future[RecordMetadata]) -> None:
        self._writes.discard(write)
        self._pending[key] -= 1
        if not self._pending[key]:
            del self._pending[key]
        if write.cancelled() or (error := write.exception()) is not None:
            log.error("Status topic: the record %s could not be written: %s", key, "" if write.cancelled() else error)
        else:
            self._acknowledged[key] = write.result().base_offset

    def _on_record(self, record: TopicRecord) -> None:
        try:
            key = decode_key(record.key or b"")
        except ValueError as error:
            log.error("Status topic: skipping the record at offset %d: %s", record.offset, error)
            return
        if key in self._pending or record.offset < self._acknowledged.get(key, -1):
            return  # this worker's later write of the key is current
        self._acknowledged.pop(key, None)
        try:
            self._apply(key, record.value)
        except (ValueError, KeyError, TypeError) as error:
            log.error("Status topic: skipping the record at offset %d with key %s: %r", record.offset, key, error)

    def _apply(self, key: Key, value: bytes | None) -> None:
        match key:
            case TopicKey(topic, connector) if value is None:
                self._topics.get(connector, {}).pop(topic, None)
            case TopicKey(topic, connector):
                self._topics.setdefault(connector, {})[topic] = None
            case StatusKey(connector, None) if value is None:
                self._statuses.pop(connector, None)
            case StatusKey(connector, task) if value is None:
                self._statuses.get(connector, {}).pop(task, None)
            case StatusKey(connector, task):
                self._apply_status(connector, task, decode_status(value or b""))

    def _apply_status(self, connector: str, task: int | None, status: Status) -> None:
        known = self._statuses.setdefault(connector, {}).get(task)
        is_late = (
            task is not None
            and status.state is State.UNASSIGNED
            and known is not None
            and known.state is State.RUNNING
            and known.generation >= status.generation
        )
        if not is_late:
            self._statuses[connector][task] = status
