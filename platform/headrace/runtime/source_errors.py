"""Handles a source's failed records: logs them, and, with errors.tolerance=all, sends them to a dead letter queue.

Kafka Connect has a dead letter queue only for sinks. A source's DLQ record contains, as JSON, the record before the
stage in which it failed, with its source partition and source offset. `SourceTaskCore` delays the commit of source
offsets until the DLQ records up to them are acknowledged.
"""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

from headrace.api.errors import ConnectError
from headrace.converters.json_converter import JsonConverter, JsonConverterConfig
from headrace.data.batch import SourceBatch
from headrace.data.schema import Schema
from headrace.runtime.dead_letter_queue import DeadLetterQueue
from headrace.runtime.error_counters import ErrorCounters
from headrace.runtime.error_policy import ErrorLog, ErrorPolicy, Failure, Stage
from headrace.runtime.source_task_core import describe
from headrace_broker.client.delivery import RecordMetadata
from headrace_broker.client.errors import ClientError, TimedOutError
from headrace_broker.records.columns import RecordColumns

PARTITION_HEADER, OFFSET_HEADER = "__headrace.errors.source.partition", "__headrace.errors.source.offset"
"""The context headers with a failed record's source partition and source offset as JSON."""

OnDone = Callable[[ConnectError | None], None]
_PRODUCER_CLASS = "org.apache.kafka.clients.producer.KafkaProducer"


class SourceErrors:
    """The error handling of one source task. Used in the task's thread.

    The methods that send a DLQ record block while the buffer of its producer is full. `raise_if_ending` raises an error
    that ends this wait. `on_done` is called on the event loop, with None when the DLQ record is acknowledged, or with
    the error that fails the task.
    """

    def __init__(
        self, task: str, policy: ErrorPolicy, counters: ErrorCounters, *, raise_if_ending: Callable[[], None]
    ) -> None:
        self.queue: DeadLetterQueue | None = None
        self._log = ErrorLog(task, policy, counters)
        self._raise_if_ending = raise_if_ending

    def log_failure(self, failure: Failure, part: SourceBatch) -> None:
        """Count and log a record that the task, a transform or a converter rejected."""
        self._log.add(failure, describe(part), part.values[0])

    def send(self, failure: Failure, part: SourceBatch, on_done: OnDone) -> None:
        """Send a record that the task, a transform or a converter rejected to the dead letter queue."""
        self._send(failure, part.topic or "", part, _as_json(part), on_done)

    def send_unwritten(
        self, topic: str, columns: RecordColumns, part: SourceBatch, error: Exception, on_done: OnDone
    ) -> None:
        """Send a converted record to the dead letter queue, because it could not be written."""
        failure = Failure(Stage.KAFKA_PRODUCE, _PRODUCER_CLASS, error, 1)
        key = None if columns.keys is None else columns.keys[0]
        record = {"topic": topic, "key": _bytes_as_json(key), "value": _bytes_as_json(columns.whole_values()[0])}
        self._send(failure, topic, part, record, on_done)

    def _send(
        self, failure: Failure, topic: str, part: SourceBatch, record: Mapping[str, Any], on_done: OnDone
    ) -> None:
        queue = self.queue
        assert queue is not None
        partition, offset = part.source_partition, _offset_of(part)
        described = {**record, "source_partition": partition, "source_offset": offset}
        columns = RecordColumns(
            keys=[_dumps({"source_partition": partition})],
            values=[_dumps(described)],
            headers=[[(PARTITION_HEADER, _dumps(partition)), (OFFSET_HEADER, _dumps(offset))]],
        )

        def complete(_: RecordMetadata | None, error: ClientError | None) -> None:
            on_done(None if error is None else _write_error(queue.topic, error))

        try:
            queue.send_with_callback(
                failure, {"topic": topic}, columns, complete, raise_if_ending=self._raise_if_ending
            )
        except TimedOutError as error:
            raise _write_error(queue.topic, error) from error


def _write_error(topic: str, error: Exception) -> ConnectError:
    failure = ConnectError(f"Could not write a record to the dead letter queue {topic}: {error}")
    failure.__cause__ = error
    return failure


def _as_json(part: SourceBatch) -> dict[str, Any]:
    """Return the fields of a record. Keys, values and headers become JSON without schemas, or text if that fails."""
    (record,) = part.to_records()
    headers = [{"key": each.key, "value": _value(each.schema, each.value)} for each in record.headers]
    return {
        "topic": record.topic,
        "partition": record.partition,
        "timestamp": record.timestamp,
        "key": _value(record.key_schema, record.key),
        "value": _value(record.value_schema, record.value),
        "headers": headers,
    }


@functools.cache
def _json_converter() -> JsonConverter:
    converter = JsonConverter()
    converter.configure(JsonConverterConfig.parse({"converter.type": "value", "schemas.enable": "false"}))
    return converter


def _value(schema: Schema | None, value: Any) -> Any:
    try:
        converted = _json_converter().from_connect("", schema, value)
        return None if converted is None else json.loads(converted)
    except Exception:  # noqa: BLE001 - the record is broken; its text is better than nothing
        return repr(value)


def _bytes_as_json(data: bytes | None) -> Any:
    """Return converted bytes as their text, or as {"base64": …} if they are not UTF-8."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _offset_of(part: SourceBatch) -> Mapping[str, Any]:
    return part.source_offsets[0] if part.source_offsets else part.source_offset or {}


def _dumps(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=repr).encode()
