"""The sink's dead letter queue: sends skipped records unchanged to a topic.

Spark's micro-batch contains only the topic, partition and offset of a bad record, so this module reads the original
records again. The micro-batch is committed after the broker has acknowledged the records of the dead letter queue, so
delivery is at least once, as for Connect's own dead letter queue.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.bad_records import BadRecord

_HEADER_PREFIX = "__connect.errors."
_TIMEOUT_S = 60.0
_POLL_S = 0.2
_RECORDS_PER_POLL = 1_000
_PRODUCER_KEYS = ("bootstrap.servers", "security.", "sasl.", "ssl.", "client.")


class DeadLetterQueue:
    """Sends records to one topic, and creates the topic with one partition if it does not exist."""

    def __init__(
        self, client: Mapping[str, str], topic: str, *, connector: str, headers: bool, replication_factor: int
    ) -> None:
        self._client = {key: value for key, value in client.items() if key.startswith(_PRODUCER_KEYS)}
        self._topic = topic
        self._connector = connector
        self._headers = headers
        self._replication_factor = replication_factor
        self._producer: Producer | None = None

    def send(self, records: Sequence[BadRecord]) -> None:
        """Send the original records and wait until the broker has acknowledged them. Raises ConnectError."""
        if self._producer is None:
            self._create_topic()
            self._producer = Producer({**self._client, "acks": "all", "enable.idempotence": True})
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Any) -> None:
            if error is not None:
                failures.append(error)

        for message, record in self._reread(records):
            headers = [*(message.headers() or ()), *(self._context(record) if self._headers else ())]
            kind, timestamp_ms = message.timestamp()
            stamp = {"timestamp": timestamp_ms} if kind else {}
            self._producer.produce(
                self._topic, message.value(), message.key(), headers=headers, on_delivery=delivered, **stamp
            )
            self._producer.poll(0)
        if self._producer.flush(_TIMEOUT_S) or failures:
            reason = failures[0].str() if failures else f"no response within {_TIMEOUT_S:.0f} s"
            raise ConnectError(f"records cannot be sent to dead letter queue {self._topic}: {reason}")

    def _create_topic(self) -> None:
        topic = NewTopic(self._topic, 1, self._replication_factor)
        admin = AdminClient(dict(self._client))
        try:
            admin.create_topics([topic])[self._topic].result(_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise ConnectError(f"dead letter queue {self._topic} cannot be created: {error}") from error

    def _reread(self, records: Sequence[BadRecord]) -> Iterator[tuple[Any, BadRecord]]:
        wanted: dict[tuple[str, int], dict[int, BadRecord]] = defaultdict(dict)
        for record in records:
            wanted[record.position.topic, record.position.partition][record.position.offset] = record
        consumer = Consumer(
            {
                **self._client,
                "group.id": "headrace-dead-letters",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
            }
        )
        try:
            consumer.assign([TopicPartition(*key, min(offsets)) for key, offsets in wanted.items()])
            deadline = time.monotonic() + _TIMEOUT_S
            while any(wanted.values()):
                if time.monotonic() > deadline:
                    raise ConnectError(
                        f"dead letter queue {self._topic}: the skipped records could not be read again from their"
                        f" topics within {_TIMEOUT_S:.0f} s"
                    )
                messages: list[Any] = consumer.consume(_RECORDS_PER_POLL, timeout=_POLL_S)
                for message in messages:
                    found = None
                    if message.error() is None:
                        found = wanted[message.topic(), message.partition()].pop(message.offset(), None)
                    if found is not None:
                        deadline = time.monotonic() + _TIMEOUT_S
                        yield message, found
        finally:
            consumer.close()

    def _context(self, record: BadRecord) -> list[tuple[str, bytes]]:
        values = {
            "topic": record.position.topic,
            "partition": str(record.position.partition),
            "offset": str(record.position.offset),
            "connector.name": self._connector,
            "task.id": "0",
            "stage": "VALUE_CONVERTER",
            "class.name": f"{type(self).__module__}.{type(self).__qualname__}",
            "exception.class.name": "org.apache.kafka.connect.errors.DataException",
            "exception.message": record.reason,
            "exception.stacktrace": str(record),
        }
        return [(_HEADER_PREFIX + name, value.encode()) for name, value in values.items()]
