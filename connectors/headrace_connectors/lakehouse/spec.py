"""What Spark's processes need to know to read the topics: the source's specification and its error."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from confluent_kafka import Consumer

from headrace_connectors.lakehouse.envelope import EnvelopeReader, PayloadReader, PlainJsonReader, StringReader

MARKER = "headrace: "
"""Begins the message of every error of this source, so that the task finds it in Spark's stack traces."""
UNAVAILABLE = "headrace, cluster unavailable: "
"""Begins the message when the cluster does not answer: the query may be started again."""

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
    """All that the source needs to know; travels to Spark's processes as one JSON option."""

    client: dict[str, str]
    topics: list[str]
    topics_regex: str | None
    value: str  # "envelope", "json" or "string"
    encoding: str
    start: dict[str, Any]  # a Position: what the tables have
    start_at_latest: bool
    rows_max: int
    bytes_max: int
    tasks_max: int
    task_rows_min: int
    fail_on_data_loss: bool
    stall_timeout_s: float = 120.0
    task_pid: int | None = None  # the process whose end ends Spark's Python processes

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def read_committed(self) -> bool:
        return self.client.get("isolation.level") != "read_uncommitted"

    def consumer(self, **extra: str) -> Consumer:
        """A consumer that only ever assigns: it joins no group and commits nothing."""
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
    """The source cannot go on; the message is for the user."""

    def __init__(self, message: str) -> None:
        super().__init__(MARKER + message)


class SourceUnavailableError(RuntimeError):
    """The cluster does not answer."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"{UNAVAILABLE}{cause}")
