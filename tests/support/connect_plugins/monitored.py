"""Connectors for tests of worker groups. They write their calls to a journal file.

The configuration of a connector can make its calls fail or block.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.api import (
    Config,
    ConnectError,
    SinkConnector,
    SinkTask,
    SourceConnector,
    SourceRecord,
    SourceTask,
    key,
)
from headrace.api.config_def import ConfigValue
from headrace.data.schema import INT64_SCHEMA
from headrace.data.sink_records import SinkRecords


class MonitoredConfig(Config):
    """The configuration keys of the connectors and their tasks."""

    journal: str = key("journal", doc="The file to which each call appends a line.")
    topic: str = key("topic", doc="The topic of the records.")
    tasks: int = key("tasks", default=1, doc="The number of tasks.")
    interval_ms: int = key("interval.ms", default=20, doc="The time between two records of a task.")
    blocks_in: str = key("blocks.in", default="", doc="The call that never returns, for example 'task poll'.")
    fails_while: str = key(
        "fails.while", default="", doc="The tasks fail while this file exists. Its content is part of the error."
    )
    number: int = key("number", default=0, doc="The number of the task.")


class _Monitored:
    """Base class of the connectors and tasks. It writes their calls to the journal."""

    config: MonitoredConfig

    def called(self, what: str, connector: str, task: int | None = None) -> None:
        """Append the call `what` (for example "task poll") to the journal. Block if `blocks.in` names this call."""
        line = json.dumps({"call": what, "connector": connector, "task": task, "pid": os.getpid()}) + "\n"
        with open(self.config.journal, "a", buffering=1) as file:
            file.write(line)
        while self.config.blocks_in == what:
            time.sleep(1)


class MonitoredSourceTask(_Monitored, SourceTask[MonitoredConfig]):
    """Produces the numbers 0, 1, 2, ... to partition 0 of the topic."""

    def start(self, config: MonitoredConfig) -> None:
        """Continue after the last committed number."""
        self.called("task start", self.context.connector_name, config.number)
        self._partition = {"task": config.number}
        offset = self.context.offsets.read(self._partition)
        self._next = 0 if offset is None else offset["number"] + 1

    def poll(self) -> Sequence[SourceRecord]:
        """Return a record with the next number, or fail or block as configured."""
        if self.config.fails_while and os.path.exists(self.config.fails_while):
            raise ConnectError(f"the file exists and contains {Path(self.config.fails_while).read_text()}")
        if self.config.blocks_in == "task poll":
            self.called("task poll", self.context.connector_name, self.config.number)
        self.context.wait(self.config.interval_ms / 1000)
        number, self._next = self._next, self._next + 1
        return [
            SourceRecord(
                topic=self.config.topic,
                partition=0,
                key_schema=INT64_SCHEMA,
                key=self.config.number,
                value_schema=INT64_SCHEMA,
                value=number,
                source_partition=self._partition,
                source_offset={"number": number},
            )
        ]

    def stop(self) -> None:
        """Append this call of `stop` to the journal file."""
        self.called("task stop", self.context.connector_name, self.config.number)


class MonitoredSource(_Monitored, SourceConnector[MonitoredConfig]):
    """A source connector with the configured number of tasks."""

    task_class = MonitoredSourceTask

    def validate(self, props: Mapping[str, str], values: dict[str, ConfigValue]) -> None:
        """Block if the configuration key `blocks.in` requires it."""
        while props.get("blocks.in") == "connector validate":
            time.sleep(1)

    def start(self, config: MonitoredConfig) -> None:
        """Append this call of `start` to the journal file."""
        self.called("connector start", self.context.connector_name)

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        """Return the configuration of each task."""
        self.called("connector task configs", self.context.connector_name)
        return [{**self.config.originals, "number": str(number)} for number in range(min(self.config.tasks, max_tasks))]

    def stop(self) -> None:
        """Append this call of `stop` to the journal file."""
        self.called("connector stop", self.context.connector_name)


class MonitoredSinkTask(_Monitored, SinkTask[MonitoredConfig]):
    """Discards records."""

    def start(self, config: MonitoredConfig) -> None:
        """Append this call of `start` to the journal file."""
        self.called("sink task start", self.context.connector_name)

    def put(self, records: SinkRecords) -> None:
        """Discard the records, or block if the configuration key `blocks.in` requires it."""
        if self.config.blocks_in == "sink task put":
            self.called("sink task put", self.context.connector_name)

    def flush(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Do nothing, or block if the configuration key `blocks.in` requires it."""
        if self.config.blocks_in == "sink task flush":
            self.called("sink task flush", self.context.connector_name)

    def stop(self) -> None:
        """Append this call of `stop` to the journal file."""
        self.called("sink task stop", self.context.connector_name)


class MonitoredSink(SinkConnector[MonitoredConfig]):
    """A sink connector with one task."""

    task_class = MonitoredSinkTask


class BlockedInConstructor(MonitoredSource):
    """A connector whose constructor never returns."""

    def __init__(self) -> None:
        while True:
            time.sleep(1)
