"""The configuration of the Kafka source in Spark's processes, and the errors that the source raises.

This module does no I/O.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from headrace_connectors.lakehouse.envelope import EnvelopeReader, PayloadReader, PlainJsonReader, StringReader

ERROR_PREFIX = "headrace: "
"""Prefix by which the task finds the Kafka source's error messages in Spark's stack traces."""
UNAVAILABLE_PREFIX = "headrace, cluster unavailable: "
"""Prefix of error messages about an unavailable cluster. The task restarts the query after such an error."""


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
