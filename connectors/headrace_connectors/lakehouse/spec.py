"""The configuration of the Kafka source in Spark's processes, and the errors that the source raises."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from confluent_kafka import Consumer

from headrace_connectors.lakehouse.envelope import EnvelopeReader, PayloadReader, PlainJsonReader, StringReader

ERROR_PREFIX = "headrace: "
"""Prefix by which the task finds the Kafka source's error messages in Spark's stack traces."""
UNAVAILABLE_PREFIX = "headrace, cluster unavailable: "
"""Prefix of error messages about an unavailable cluster. The task restarts the query after such an error."""

_CONSUMER_DEFAULTS = {
    "fetch.wait.max.ms": "100",
    "fetch.max.bytes": str(64 << 20),
    "max.partition.fetch.bytes": str(8 << 20),
    "queued.min.messages": "200000",
    "queued.max.messages.kbytes": str(64 << 10),
    "fetch.error.backoff.ms": "20",
}


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """The configuration of the Kafka source. Spark passes it to Spark's processes as JSON in one option."""

    client: dict[str, str]
    topics: list[str]
    topics_regex: str | None
    value: str  # a `ValueFormat.kind`: "envelope", "json" or "string"
    encoding: str
    start: dict[str, Any]  # KafkaSourceOffset.to_json() with the tables' offsets
    start_at_latest: bool
    rows_max: int
    bytes_max: int
    tasks_max: int
    task_rows_min: int
    fail_on_data_loss: bool
    stall_timeout_s: float = 120.0
    task_pid: int | None = None  # Spark's Python processes exit when this process exits

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def read_committed(self) -> bool:
        return self.client.get("isolation.level") != "read_uncommitted"

    def consumer(self, **extra: str) -> Consumer:
        """Return a new consumer that joins no consumer group and commits no offsets.

        The caller assigns partitions to it. `extra` contains additional properties of librdkafka.
        """
        fixed = {
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if self.read_committed else "read_uncommitted",
        }
        client = {key: value for key, value in self.client.items() if key != "isolation.level"}
        return Consumer({"group.id": "headrace-lakehouse", **_CONSUMER_DEFAULTS, **client, **extra, **fixed})

    def payload_reader(self) -> PayloadReader:
        """Return a new reader for the values of one topic."""
        if self.value == "envelope":
            return EnvelopeReader()
        return PlainJsonReader() if self.value == "json" else StringReader(self.encoding)


class SourceError(RuntimeError):
    """The Kafka source cannot continue. The message is shown to the user."""

    def __init__(self, message: str) -> None:
        super().__init__(ERROR_PREFIX + message)


class SourceUnavailableError(RuntimeError):
    """The Kafka cluster is unavailable."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"{UNAVAILABLE_PREFIX}{cause}")
