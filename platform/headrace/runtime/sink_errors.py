"""Handles a sink's failed records: log, dead letter queue, errant record reporter (KIP-298, KIP-610).

A DLQ record contains the original bytes of the failed record. An offset commit waits until the DLQ records before that
offset are acknowledged. The DLQ records of one batch are sent in offset order, whichever stage failed first.
"""

from __future__ import annotations

import bisect
import logging
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.api.errors import ConnectError
from headrace.data.batch import SinkBatch
from headrace.data.records import SinkRecord
from headrace.runtime import client_configs
from headrace.runtime.conversion import Converters, RawPart, take_columns
from headrace.runtime.dead_letters import context_headers
from headrace.runtime.tolerance import ErrorPolicy, Failure, Stage, ToleranceExceeded
from headrace.runtime.topic_creator import create_topic
from headrace_broker.client.admin import Admin
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.writer import Writer
from headrace_broker.records.columns import RecordColumns

if TYPE_CHECKING:
    from headrace.runtime.worker_sink_task import WorkerSinkTask

log = logging.getLogger(__name__)


class SinkErrors:
    """The error handling of one sink task. `current` contains the records that are being processed."""

    def __init__(self, unit: WorkerSinkTask, policy: ErrorPolicy, converters: Converters) -> None:
        config = unit.plugins.connector_config
        self.current: RawPart | None = None
        self._unit = unit
        self._policy = policy
        self._converters = converters
        self._topic = config.get("errors.deadletterqueue.topic.name", "").strip()
        self._replication = int(config.get("errors.deadletterqueue.topic.replication.factor", 3))
        self._with_context = config.get("errors.deadletterqueue.context.headers.enable", "false").lower() == "true"
        self._writer: Writer | None = None
        self._unsent: deque[_Letter] = deque()  # a task may report from any thread
        self._letters: list[Future[Any]] = []

    async def open(self) -> None:
        """Create the dead letter queue if one is configured and its topic does not exist. Raises ConnectError."""
        if not self._topic:
            return
        plugins, spec = self._unit.plugins, self._unit.spec
        properties = client_configs.admin_properties(plugins.worker, plugins.connector_config, spec.name)
        admin = await Admin.open(ClientConfig.from_properties(properties, kind="admin"))
        try:
            if self._topic not in await admin.list_topics():
                await create_topic(admin, self._topic, 1, self._replication, {})
        except Exception as error:
            raise ConnectError(
                f"Could not initialize the dead letter queue {self._topic} "
                f"(errors.deadletterqueue.topic.replication.factor={self._replication}): {error}"
            ) from error
        finally:
            await admin.close()
        properties = client_configs.dead_letter_producer_properties(plugins.worker, plugins.connector_config, spec.name)
        self._writer = await Writer.open(ClientConfig.from_properties(properties, kind="producer"))

    async def close(self) -> None:
        """Close the producer of the dead letter queue."""
        if self._writer is not None:
            await self._writer.close()

    def reporter(self) -> SinkErrors | None:
        """Return `context.errant_record_reporter`: None if neither a DLQ nor error logging is configured."""
        return self if self._writer is not None or self._policy.log else None

    def report_at(self, batch: SinkBatch, index: int, error: Exception) -> Future[None]:
        """Handle the record at that index of a batch. Raises ToleranceExceeded if errors are not tolerated."""
        return self.report(batch.take([index]).to_records()[0], error)

    def report(self, record: SinkRecord, error: Exception) -> Future[None]:
        """Handle a record that the task cannot store. Raises ToleranceExceeded if errors are not tolerated."""
        topic, partition = record.original_topic or "", record.original_partition or 0
        offset = record.offset if record.original_offset is None else record.original_offset
        failure = Failure(Stage.TASK_PUT, type(self._unit.task).display_class(), error, 1)
        where = _where(topic, partition, offset)
        if not self._policy.tolerate:
            raise ToleranceExceeded(f"Tolerance exceeded in error handler: {where}, stage TASK_PUT: {error}") from error
        columns = self._raw_record(topic, partition, offset)
        self._note(failure, topic, partition, offset, self._converted_back(record) if columns is None else columns)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def report_failure(self, failure: Failure, part: Any) -> None:
        """Handle a tolerated failure of a stage."""
        topic, partition, offset = _identity(part)
        self._note(failure, topic, partition, offset, self._raw_record(topic, partition, offset))

    def describe(self, part: Any) -> str:
        """Describe the record: its topic, partition and offset."""
        return _where(*_identity(part))

    def wait_for_reports(self) -> None:
        """Wait until all DLQ records are acknowledged. Raises ConnectError."""
        self.send_letters()
        letters, self._letters = self._letters, []
        for letter in letters:
            try:
                letter.result()
            except Exception as error:
                raise ConnectError(
                    f"Could not write a record to the dead letter queue {self._topic}: {error}"
                ) from error

    def send_letters(self) -> None:
        """Send the collected DLQ records in offset order; called in the task's thread."""
        letters: list[_Letter] = []
        while self._unsent:
            letters.append(self._unsent.popleft())
        letters.sort(key=lambda letter: (letter.topic, letter.partition, letter.offset))
        self._letters += map(self._send, letters)

    def _note(self, failure: Failure, topic: str, partition: int, offset: int, columns: RecordColumns | None) -> None:
        counters = self._unit.counters
        counters.errors += 1
        counters.skipped += 1
        if self._policy.log:
            log.error(
                "Error encountered in task %s. Executing stage '%s' with class '%s', where %s%s: %s",
                self._unit.spec.name,
                failure.stage.value,
                failure.class_name,
                _where(topic, partition, offset),
                f", raw value {columns.values[0]!r}" if self._policy.log_messages and columns is not None else "",
                failure.error,
                exc_info=failure.error,
            )
        if self._writer is not None and columns is not None:
            self._unsent.append(_Letter(failure, topic, partition, offset, columns))

    def _send(self, letter: _Letter) -> Future[Any]:
        assert self._writer is not None
        columns = letter.columns
        headers = list(columns.headers[0]) if columns.headers else []
        if self._with_context:
            spec = self._unit.spec
            headers += context_headers(
                letter.failure,
                topic=letter.topic,
                partition=letter.partition,
                offset=letter.offset,
                connector=spec.connector,
                task=spec.number,
            )
        record = RecordColumns(
            values=columns.values,
            keys=columns.keys,
            headers=[headers] if headers else None,
            timestamps=columns.timestamps,
        )
        future: Future[Any] = self._writer.send_blocking(self._topic, 0, record)
        return future

    def _raw_record(self, topic: str, partition: int, offset: int) -> RecordColumns | None:
        """The bytes of a record of the part that is being delivered."""
        raw = self.current
        if raw is None or (raw.topic, raw.partition) != (topic, partition) or raw.columns.offsets is None:
            return None
        offsets = raw.columns.offsets
        index = bisect.bisect_left(offsets, offset)
        if index == len(offsets) or offsets[index] != offset:
            return None
        return take_columns(raw.columns, [index])

    def _converted_back(self, record: SinkRecord) -> RecordColumns:
        """The bytes of a record that is long gone from the reader."""
        converters, topic = self._converters, record.topic or ""
        headers = [
            (header.key, converters.header.from_connect_header(topic, header.key, header.schema, header.value))
            for header in record.headers
        ]
        return RecordColumns(
            values=[converters.value.from_connect(topic, record.value_schema, record.value)],
            keys=[converters.key.from_connect(topic, record.key_schema, record.key)],
            headers=[headers] if headers else None,
            timestamps=record.timestamp,
        )


@dataclass(frozen=True, slots=True)
class _Letter:
    """A record that could not be handled, and why."""

    failure: Failure
    topic: str
    partition: int
    offset: int
    columns: RecordColumns


def _identity(part: Any) -> tuple[str, int, int]:
    """Topic, partition and offset of a part of one record: a `SinkBatch`, or a raw part on its way to become one."""
    if hasattr(part, "original_offsets"):
        return part.original_topic, part.original_partition, part.original_offsets[0]
    raw: RawPart = part if isinstance(part, RawPart) else part.raw
    assert raw.columns.offsets is not None
    return raw.topic, raw.partition, raw.columns.offsets[0]


def _where(topic: str, partition: int, offset: int) -> str:
    return f"topic {topic}, partition {partition}, offset {offset}"
