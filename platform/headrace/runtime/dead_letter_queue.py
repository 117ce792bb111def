"""The dead letter queue of a task: a topic that receives failed records (KIP-298).

Every kind of task uses it. The DLQ records of sinks contain the original bytes. The context headers, with Connect's
names, describe where and why a record failed. They contain no secrets of the configuration, and the middle of a long
message or stack trace is omitted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from headrace.api.errors import ConnectError
from headrace.metrics import log_text
from headrace.runtime import client_configs
from headrace.runtime.error_counters import ErrorCounters
from headrace.runtime.error_policy import DeadLetterQueueConfig, Failure
from headrace.runtime.spec import TaskSpec
from headrace.runtime.task_plugins import Plugins
from headrace.runtime.topic_creator import create_topic
from headrace_broker.client.admin import Admin
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.delivery import Completion, RecordMetadata
from headrace_broker.client.errors import BufferExhaustedError, ClientError, TimedOutError
from headrace_broker.client.producer import Producer
from headrace_broker.records.columns import RecordColumns

log = logging.getLogger(__name__)

REENCODED_HEADER = "__headrace.errors.reencoded"
"""Marks a record whose original bytes no longer exist: it was converted to bytes again."""
_CONTEXT_PREFIX = "__connect.errors."
_WAIT_MS = 200


class DeadLetterQueue:
    """The producer of one dead letter queue. Create it with `open`."""

    def __init__(
        self, topic: str, spec: TaskSpec, producer: Producer, counters: ErrorCounters, *, with_context: bool
    ) -> None:
        self.topic = topic
        self._spec = spec
        self._producer = producer
        self._counters = counters
        self._with_context = with_context

    @classmethod
    async def open(cls, plugins: Plugins, spec: TaskSpec, counters: ErrorCounters) -> DeadLetterQueue | None:
        """Open the dead letter queue in the connector's configuration, and create its topic if necessary.

        Return None if the connector has no dead letter queue. Raises ConnectError.
        """
        config = DeadLetterQueueConfig.from_config(plugins.connector_config)
        if config is None:
            return None
        await _ensure_topic(plugins, spec, config)
        properties = client_configs.dead_letter_producer_properties(plugins.worker, plugins.connector_config, spec.name)
        producer = await Producer.open(client_configs.parse_producer(properties), is_at_least_once=True)
        return cls(config.topic, spec, producer, counters, with_context=config.with_context_headers)

    def send(self, failure: Failure, origin: Mapping[str, str], record: RecordColumns) -> Future[Any]:
        """Send one failed record. Return a future of its acknowledgement. Not callable on the event loop.

        `origin` contains the values of the context headers `topic`, `partition` and `offset`.
        """
        with self._counted():
            sent = self._producer.send_blocking(self.topic, 0, self._with_headers(failure, origin, record))
        sent.add_done_callback(self._count_unless_acknowledged)
        return sent

    def send_with_callback(
        self,
        failure: Failure,
        origin: Mapping[str, str],
        record: RecordColumns,
        on_done: Completion,
        *,
        raise_if_ending: Callable[[], None],
    ) -> None:
        """Send one failed record, and call `on_done` on the event loop when it is acknowledged or has failed.

        Not callable on the event loop. Blocks while the producer's buffer is full. This wait has no time limit of its
        own, because every record in the buffer is acknowledged or fails within delivery.timeout.ms. Raises
        TimedOutError if the topic's metadata are missing for max.block.ms. `raise_if_ending` raises an error that ends
        the wait.
        """
        with self._counted():
            self._send_with_callback(self._with_headers(failure, origin, record), on_done, raise_if_ending)

    def _send_with_callback(
        self, columns: RecordColumns, on_done: Completion, raise_if_ending: Callable[[], None]
    ) -> None:
        def complete(metadata: RecordMetadata | None, error: ClientError | None) -> None:
            if error is not None:
                self._counters.add_dlq_failure()
            on_done(metadata, error)

        max_block_ms = self._producer.max_block_ms
        deadline_s = time.monotonic() + max_block_ms / 1000
        while True:
            raise_if_ending()
            try:
                self._producer.send_with_callback(self.topic, 0, columns, complete, timeout_ms=_WAIT_MS)
            except BufferExhaustedError:
                continue
            except TimedOutError as error:
                if time.monotonic() >= deadline_s:
                    reason = error.__cause__ if isinstance(error.__cause__, ClientError) else "no response"
                    raise TimedOutError(
                        f"no metadata of topic {self.topic} within max.block.ms={max_block_ms:.0f}: {reason}"
                    ) from error
            else:
                return

    async def send_on_loop(self, failure: Failure, origin: Mapping[str, str], record: RecordColumns) -> None:
        """Send one failed record and wait for its acknowledgement. Raises ClientError."""
        with self._counted():
            await self._producer.send(self.topic, 0, self._with_headers(failure, origin, record))

    async def flush(self) -> None:
        """Wait until all records that were sent are acknowledged or have failed."""
        await self._producer.flush()

    async def close(self, timeout_ms: float | None = 30_000) -> None:
        """Close the producer, after a flush of at most `timeout_ms`."""
        await self._producer.close(timeout_ms)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count the `with` body as an attempt to write a record, which has failed if the body raises an exception."""
        self._counters.add_dlq_request()
        try:
            yield
        except BaseException:
            self._counters.add_dlq_failure()
            raise

    def _count_unless_acknowledged(self, sent: Future[Any]) -> None:
        if sent.cancelled() or sent.exception() is not None:
            self._counters.add_dlq_failure()

    def _with_headers(self, failure: Failure, origin: Mapping[str, str], record: RecordColumns) -> RecordColumns:
        log.debug(
            "Task %s: sending the failed record of %s to the dead letter queue %s",
            self._spec.name,
            log_text.Listing(origin.items(), " ".join),
            self.topic,
        )
        headers = list(record.headers[0]) if record.headers else []
        if self._with_context:
            headers += self._context_headers(failure, origin)
        return RecordColumns(
            values=record.whole_values(),
            keys=record.keys,
            headers=[headers] if headers else None,
            timestamps=record.timestamps,
        )

    def _context_headers(self, failure: Failure, origin: Mapping[str, str]) -> list[tuple[str, bytes | None]]:
        fields = {
            **origin,
            "connector.name": self._spec.connector,
            "task.id": str(self._spec.number),
            "stage": failure.stage.value,
            "class.name": failure.class_name,
            "exception.class.name": failure.error_class,
            "exception.message": failure.message,
            "exception.stacktrace": failure.trace,
        }
        return [(_CONTEXT_PREFIX + name, text.encode(errors="backslashreplace")) for name, text in fields.items()]


def origin_of(topic: str, partition: int, offset: int) -> dict[str, str]:
    """Return the context headers with the position of a sink's record: its topic, partition and offset."""
    return {"topic": topic, "partition": str(partition), "offset": str(offset)}


async def _ensure_topic(plugins: Plugins, spec: TaskSpec, config: DeadLetterQueueConfig) -> None:
    properties = client_configs.admin_properties(plugins.worker, plugins.connector_config, spec.name)
    admin = await Admin.open(ClientConfig.from_properties(properties, kind="admin"))
    try:
        if config.topic not in await admin.list_topics():
            await create_topic(admin, config.topic, 1, config.replication_factor, {})
    except Exception as error:
        raise ConnectError(
            f"Could not initialize the dead letter queue {config.topic} "
            f"(errors.deadletterqueue.topic.replication.factor={config.replication_factor}): {error}"
        ) from error
    finally:
        await admin.close()
