"""Handles a source's failed records: logs them, and, with errors.tolerance=all, sends them to a dead letter queue.

Kafka Connect has a dead letter queue only for sinks. A source's DLQ record contains, as JSON, the record before the
stage in which it failed, with its source partition and source offset. Source offsets are committed only after the DLQ
records up to them are acknowledged.
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any

from headrace.api.errors import ConnectError
from headrace.converters.json_converter import JsonConverter, JsonConverterConfig
from headrace.data.batch import SourceBatch
from headrace.data.schema import Schema
from headrace.runtime.dead_letter_queue import DeadLetterQueue
from headrace.runtime.error_policy import ErrorCounters, ErrorLog, ErrorPolicy, Failure, Stage
from headrace.runtime.source_task_core import describe
from headrace_broker.records.columns import RecordColumns

PARTITION_HEADER, OFFSET_HEADER = "__headrace.errors.source.partition", "__headrace.errors.source.offset"
"""The context headers with a failed record's source partition and source offset as JSON."""


_PRODUCER_CLASS = "org.apache.kafka.clients.producer.KafkaProducer"


class SourceErrors:
    """The error handling of one source task. `run` runs a coroutine on the event loop."""

    def __init__(
        self,
        task: str,
        policy: ErrorPolicy,
        counters: ErrorCounters,
        *,
        run: Callable[[Coroutine[Any, Any, None]], Future[None]],
    ) -> None:
        self.queue: DeadLetterQueue | None = None
        self._log = ErrorLog(task, policy, counters)
        self._run = run
        self._lock = threading.Lock()  # the task's thread and the event loop report failures
        self._sends: list[Future[None]] = []

    def report_failure(self, failure: Failure, part: SourceBatch) -> None:
        """Handle a record that a transform or a converter rejected. Called in the task's thread."""
        self._log.add(failure, describe(part), part.values[0])
        if self.queue is not None:
            record = _as_json(part)
            self._send(failure, part.topic or "", part.source_partition, _offset_of(part), record)

    def report_unwritten(self, topic: str, columns: RecordColumns, part: SourceBatch, error: Exception) -> None:
        """Send a converted record to the dead letter queue, because it could not be written.

        Called on the event loop.
        """
        failure = Failure(Stage.KAFKA_PRODUCE, _PRODUCER_CLASS, error, 1)
        key = None if columns.keys is None else columns.keys[0]
        record = {"topic": topic, "key": _bytes_as_json(key), "value": _bytes_as_json(columns.whole_values()[0])}
        self._send(failure, topic, part.source_partition, _offset_of(part), record)

    async def wait(self) -> None:
        """Wait until all DLQ records are acknowledged. Raises ConnectError."""
        with self._lock:
            sends = list(self._sends)
        try:
            for send in sends:
                await asyncio.wrap_future(send)
        except Exception as error:
            assert self.queue is not None
            raise ConnectError(
                f"Could not write a record to the dead letter queue {self.queue.topic}: {error}"
            ) from error
        with self._lock:
            self._sends = [send for send in self._sends if send not in sends]

    def raise_failed(self) -> None:
        """Raise ConnectError if a DLQ record could not be written.

        The task then fails, and later reads the record again.
        """
        if not self._sends:
            return
        with self._lock:
            failed = next((send for send in self._sends if send.done() and send.exception() is not None), None)
        if failed is not None and self.queue is not None:
            raise ConnectError(
                f"Could not write a record to the dead letter queue {self.queue.topic}: {failed.exception()}"
            )

    async def close(self) -> None:
        """Close the producer of the dead letter queue."""
        if self.queue is not None:
            await self.queue.close()

    def _send(
        self,
        failure: Failure,
        topic: str,
        partition: Mapping[str, Any],
        offset: Mapping[str, Any],
        record: Mapping[str, Any],
    ) -> None:
        assert self.queue is not None
        described = {**record, "source_partition": partition, "source_offset": offset}
        columns = RecordColumns(
            keys=[_dumps({"source_partition": partition})],
            values=[_dumps(described)],
            headers=[[(PARTITION_HEADER, _dumps(partition)), (OFFSET_HEADER, _dumps(offset))]],
        )
        send = self._run(self.queue.send_on_loop(failure, {"topic": topic}, columns))
        with self._lock:
            self._sends.append(send)


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


def _value(schema: Schema | None, value: Any) -> Any:
    converter = JsonConverter()
    converter.configure(JsonConverterConfig.parse({"converter.type": "value", "schemas.enable": "false"}))
    try:
        converted = converter.from_connect("", schema, value)
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
