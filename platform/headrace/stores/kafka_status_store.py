"""The status store of a distributed worker: the status topic of the worker group, in the format of Kafka Connect.

Writes are sent in the order of the calls. `StatusTopicState` decides what a read returns and which writes are sent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from functools import partial

from headrace.stores.status_records import Key, encode_key
from headrace.stores.status_store import ConnectorStatuses, Status
from headrace.stores.status_topic_state import StatusListener, StatusRecord, StatusTopicState
from headrace.stores.topic_log import TopicLogs, TopicRecord
from headrace_broker.client.producer import RecordMetadata

log = logging.getLogger(__name__)


class KafkaStatusStore:
    """The statuses of all connectors of the group. `logs` must be started before `start` is called.

    `listener`, if set, receives each status that was read and that this worker has not overwritten.
    """

    def __init__(self, logs: TopicLogs, topic: str) -> None:
        self._log = logs.add(topic, self._on_record)
        self._state = StatusTopicState()
        self._writes: set[asyncio.Future[RecordMetadata]] = set()
        self.listener: StatusListener | None = None

    async def start(self) -> None:
        """Do nothing: `logs` has read the topic."""

    async def stop(self) -> None:
        """Wait until the pending writes are acknowledged, unless the topic was deleted."""
        if self._writes and not self._log.is_deleted:
            await asyncio.wait(self._writes)  # does not cancel the writes if this call is cancelled

    def put(self, connector: str, task: int | None, status: Status) -> None:
        """Store the status of a connector (task None) or task.

        A worker stores the status FAILED or UNASSIGNED only if no worker of a later generation has written a status.
        """
        self._send(self._state.put(connector, task, status))

    def show_starting(self, connector: str, task: int | None, status: Status) -> None:
        """Let this worker return a status for an instance that has no status or is UNASSIGNED. Nothing is written."""
        self._state.show_starting(connector, task, status)

    def adopt(self, connector: str, task: int | None, worker_id: str) -> None:
        """Treat a status as one of this worker's statuses, so that later statuses replace it. Nothing is written."""
        self._state.adopt(connector, task, worker_id)

    def remove(self, connector: str, task: int | None) -> None:
        """Remove the status of a task, or of a connector, its tasks and its topics (task None)."""
        self._send(self._state.remove(connector, task))

    def get(self, connector: str) -> ConnectorStatuses:
        """Return the statuses of a connector and of its tasks, which are sorted by number."""
        return self._state.get(connector)

    def task_counts(self) -> dict[str, int]:
        """Return, for each connector that has a status, the number of its tasks that have a status."""
        return self._state.task_counts()

    def add_topic(self, connector: str, topic: str, task: int) -> None:
        """Add a topic to those that a connector uses."""
        self._send(self._state.add_topic(connector, topic, task, time.time_ns() // 1_000_000))

    def topics(self, connector: str) -> list[str]:
        """Return the topics that a connector uses."""
        return self._state.topics(connector)

    def reset_topics(self, connector: str) -> None:
        """Remove all topics of a connector."""
        self._send(self._state.reset_topics(connector))

    def _send(self, records: Sequence[StatusRecord]) -> None:
        for record in records:
            write = self._log.send(record.encoded_key, record.value)
            self._writes.add(write)
            write.add_done_callback(partial(self._on_written, record.key))

    def _on_written(self, key: Key, write: asyncio.Future[RecordMetadata]) -> None:
        self._writes.discard(write)
        if (error := write.exception()) is not None:
            self._state.on_written(key, None)
            log.error("Status topic: the record with key %s could not be written: %s", encode_key(key).decode(), error)
        else:
            offset = write.result().base_offset
            log.debug("Status topic: wrote the record with key %s at offset %d", encode_key(key).decode(), offset)
            self._state.on_written(key, offset)

    def _on_record(self, record: TopicRecord) -> None:
        read = self._state.apply(record.offset, record.key, record.value)
        if read is not None and self.listener is not None:
            self.listener(*read)
