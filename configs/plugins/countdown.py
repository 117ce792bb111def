"""Plug-ins of one's own in one file: a source, a sink and a transform, as an example.

The worker file says where it lies (`plugin.path=configs/plugins`); connector files name the classes:

    connector.class=CountdownSource             connector.class=LinesSink
    topic=countdown                             topics=countdown
    from=10                                     path=countdown.txt
    transforms=square
    transforms.square.type=Square
    transforms.square.field=n

A plug-in imports `headrace.api` and `headrace.data` alone; their docstrings say who calls what, and when. A name that
another plug-in has too is written `countdown:Square`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.api.config import Config, key
from headrace.api.connector import SinkConnector, SourceConnector
from headrace.api.errors import DataError
from headrace.api.task import SinkTask, SourceTask, TopicPartition
from headrace.api.transform import Transformation
from headrace.data.records import SinkRecord, SourceRecord


class CountdownConfig(Config):
    """The keys that the source and its task read."""

    topic: str = key("topic", doc="Topic to write to.", non_empty=True)
    start: int = key("from", default=10, at_least=0, doc="The first number; the last is 0.")


class CountdownTask(SourceTask):
    """Says one number per poll; after a restart it goes on below the last one that was committed."""

    config_model = CountdownConfig

    def __init__(self) -> None:
        self._stopping = threading.Event()

    def start(self, config: CountdownConfig) -> None:
        """Find out where to go on."""
        self._topic = config.topic
        offset = self.context.offsets.read({"countdown": config.topic})
        self._next = config.start if offset is None else offset["said"] - 1

    def poll(self) -> Sequence[SourceRecord] | None:
        """The next number; None, after a wait, when there is none."""
        if self._next < 0:
            self._stopping.wait(1.0)
            return None
        said, self._next = self._next, self._next - 1
        partition, offset = {"countdown": self._topic}, {"said": said}
        return [SourceRecord(topic=self._topic, value={"n": said}, source_partition=partition, source_offset=offset)]

    def wake_up(self) -> None:
        """End the wait of `poll`; called from another thread."""
        self._stopping.set()


class CountdownSource(SourceConnector):
    """One task, with the connector's own configuration."""

    config_model = CountdownConfig
    task_class = CountdownTask

    def start(self, config: CountdownConfig) -> None:
        """Keep the configuration for the task."""
        self._config = config

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        """One, whatever tasks.max says."""
        return [self._config.originals]


class LinesConfig(Config):
    """The keys that the sink and its tasks read."""

    path: str = key("path", doc="File to append to.", non_empty=True)


class LinesTask(SinkTask):
    """Appends a line per record. After a crash, records since the last commit come again."""

    config_model = LinesConfig

    def start(self, config: LinesConfig) -> None:
        """Open the file."""
        self._file = open(config.path, "a", encoding="utf-8")  # noqa: SIM115 - closed by `stop`

    def put(self, records: Sequence[SinkRecord]) -> None:
        """Write; what `flush` has not made durable is delivered again after a crash."""
        for record in records:
            self._file.write(f"{record.topic} {record.offset} {record.value}\n")

    def flush(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Called before offsets are committed."""
        self._file.flush()

    def stop(self) -> None:
        """Close the file, if `start` came so far."""
        if hasattr(self, "_file"):
            self._file.close()


class LinesSink(SinkConnector):
    """As many tasks as allowed, all alike."""

    config_model = LinesConfig
    task_class = LinesTask

    def start(self, config: LinesConfig) -> None:
        """Keep the configuration for the tasks."""
        self._config = config

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        """The same for each."""
        return [self._config.originals] * max_tasks


class SquareConfig(Config):
    """The key that the transform reads."""

    field: str = key("field", doc="The number to square.", non_empty=True)


class Square(Transformation):
    """Squares a number of a value without a schema; `errors.tolerance` decides about records that have none."""

    config_model = SquareConfig

    def configure(self, config: SquareConfig) -> None:
        """Take the settings."""
        self._field = config.field

    def apply(self, record: Any) -> Any:
        """A new record: those that came in are not changed."""
        value = record.value
        if not isinstance(value, dict) or not isinstance(value.get(self._field), int):
            raise DataError(f"the value has no number {self._field}: {value!r:.60}")
        return record.replace(value={**value, self._field: value[self._field] ** 2})
