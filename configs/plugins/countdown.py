"""Example of custom plugins in one file: a source connector, a sink connector and a transform.

Set `plugin.path=configs/plugins` in the worker's configuration. Connector configurations refer to the classes by name:

    connector.class=CountdownSource             connector.class=LinesSink
    topic=countdown                             topics=countdown
    from=10                                     path=countdown.txt
    transforms=square
    transforms.square.type=Square
    transforms.square.field=n

A plugin imports only `headrace.api` and `headrace.data`. Their docstrings describe when the worker calls each method.
If several plugins have the same name, add the module: `countdown:Square`.
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
    """Configuration of the source connector and its task."""

    topic: str = key("topic", doc="Topic to write to.", non_empty=True)
    start: int = key("from", default=10, at_least=0, doc="First number to send. The last number is 0.")


class CountdownTask(SourceTask):
    """Sends one number per poll. After a restart, it continues after the last committed number."""

    config_model = CountdownConfig

    def __init__(self) -> None:
        self._stopping = threading.Event()

    def start(self, config: CountdownConfig) -> None:
        """Read the committed source offset."""
        self._topic = config.topic
        offset = self.context.offsets.read({"countdown": config.topic})
        self._next = config.start if offset is None else offset["said"] - 1

    def poll(self) -> Sequence[SourceRecord] | None:
        """Return the next number, or None after a short wait if there is none."""
        if self._next < 0:
            self._stopping.wait(1.0)
            return None
        number, self._next = self._next, self._next - 1
        partition, offset = {"countdown": self._topic}, {"said": number}
        return [SourceRecord(topic=self._topic, value={"n": number}, source_partition=partition, source_offset=offset)]

    def wake_up(self) -> None:
        """Interrupt the wait in `poll`. The worker calls this from another thread."""
        self._stopping.set()


class CountdownSource(SourceConnector):
    """Starts one task with the connector's configuration."""

    config_model = CountdownConfig
    task_class = CountdownTask

    def start(self, config: CountdownConfig) -> None:
        """Store the configuration for the task."""
        self._config = config

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        """Return one configuration regardless of tasks.max."""
        return [self._config.originals]


class LinesConfig(Config):
    """Configuration of the sink connector and its tasks."""

    path: str = key("path", doc="File to append to.", non_empty=True)


class LinesTask(SinkTask):
    """Appends a line per record. After a crash, records after the last committed offsets are delivered again."""

    config_model = LinesConfig

    def start(self, config: LinesConfig) -> None:
        """Open the file."""
        self._file = open(config.path, "a", encoding="utf-8")  # noqa: SIM115 - closed by `stop`

    def put(self, records: Sequence[SinkRecord]) -> None:
        """Write the records. After a crash, records that were not flushed are delivered again."""
        for record in records:
            self._file.write(f"{record.topic} {record.offset} {record.value}\n")

    def flush(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Write buffered lines to the file. The worker calls this before it commits offsets."""
        self._file.flush()

    def stop(self) -> None:
        """Close the file, unless `start` failed before opening it."""
        if hasattr(self, "_file"):
            self._file.close()


class LinesSink(SinkConnector):
    """Starts `tasks.max` tasks with the same configuration."""

    config_model = LinesConfig
    task_class = LinesTask

    def start(self, config: LinesConfig) -> None:
        """Store the configuration for the tasks."""
        self._config = config

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        """Return the connector's configuration for every task."""
        return [self._config.originals] * max_tasks


class SquareConfig(Config):
    """Configuration of the transform."""

    field: str = key("field", doc="Name of the field with the number to square.", non_empty=True)


class Square(Transformation):
    """Squares a number in a schemaless value. A record without that number is handled as `errors.tolerance` says."""

    config_model = SquareConfig

    def configure(self, config: SquareConfig) -> None:
        """Store the configuration."""
        self._field = config.field

    def apply(self, record: Any) -> Any:
        """Return a new record. A transform must not modify its input."""
        value = record.value
        if not isinstance(value, dict) or not isinstance(value.get(self._field), int):
            raise DataError(f"the value has no field {self._field} with a number: {value!r:.60}")
        return record.replace(value={**value, self._field: value[self._field] ** 2})
