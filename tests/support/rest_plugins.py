"""Connectors for tests of the REST API of real workers. They write each start and stop to a file.

`write_plugins` writes the connectors to a directory for plugin.path. A test controls the connectors with the file
`failing`. The file contains names of connectors and tasks, for example "c" or "c-1". A connector or task with one of
these names raises an error when it starts. A running task with one of these names also raises an error.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

_PLUGINS = '''
# plug-ins for the tests of headrace
import json, os, time
from headrace.api import (
    Config, ConnectError, DataError, RetriableError, SinkConnector, SinkTask, SourceConnector, SourceRecord, SourceTask,
    Transformation, key,
)
from headrace.data.schema import STRING_SCHEMA

class RestConfig(Config):
    directory: str = key("directory", doc="Directory of the files of the test.")
    topic: str = key("topic", default="", doc="Topic of the source.")
    records: int = key("records", default=3, doc="Records of each source task.")
    stop_seconds: float = key("stop.seconds", default=0.0, doc="How long a source task takes to stop.")
    task_count: int = key("task.count", default=0, doc="Number of tasks; 0: tasks.max.")
    alter_result: str = key("alter.result", default="false", doc="Result of alter_offsets: true, false or error.")

class _Controlled:
    def note(self, event):
        with open(os.path.join(self.config.directory, "events"), "a") as file:
            file.write(json.dumps([event, self.name()]) + "\\n")
    def name(self):
        number = getattr(self.context, "task_number", None)
        return self.context.connector_name + ("" if number is None else f"-{number}")
    def fail_if_requested(self):
        try:
            with open(os.path.join(self.config.directory, "failing")) as file:
                names = file.read().split()
        except FileNotFoundError:
            return
        if self.name() in names:
            raise ConnectError(f"{self.name()} fails on request")

class _Connector(_Controlled):
    def start(self, config):
        self.config = config
        self.note("start")
        self.fail_if_requested()
    def task_configs(self, max_tasks):
        return [self.config.originals for _ in range(self.config.task_count or max_tasks)]
    def alter_offsets(self, config, offsets):
        with open(os.path.join(config.directory, "altered"), "a") as file:
            file.write(repr(sorted(offsets.items())) + "\\n")
        if config.alter_result == "error":
            raise ConnectError("these offsets are not acceptable")
        return config.alter_result == "true"

class RestSourceTask(_Controlled, SourceTask[RestConfig]):
    def start(self, config):
        self.note("start")
        self.fail_if_requested()
        self.partition = {"task": self.context.task_number}
        offset = self.context.offsets.read(self.partition)
        self.next = offset["n"] + 1 if offset else 0
    def poll(self):
        self.fail_if_requested()
        if self.next >= self.config.records:
            time.sleep(0.02)
            return None
        n, self.next = self.next, self.next + 1
        return [SourceRecord(topic=self.config.topic, value_schema=STRING_SCHEMA, value=str(n), key=str(n),
                             source_partition=self.partition, source_offset={"n": n})]
    def stop(self):
        time.sleep(self.config.stop_seconds)
        self.note("stop")

class RestSource(_Connector, SourceConnector[RestConfig]):
    task_class = RestSourceTask

class RestSinkTask(_Controlled, SinkTask[RestConfig]):
    def start(self, config):
        self.note("start")
        self.fail_if_requested()
    def put(self, records):
        self.fail_if_requested()
        with open(os.path.join(self.config.directory, "sunk"), "a") as file:
            for record in records:
                if record.value == "reported":
                    self.context.errant_record_reporter.report(record, DataError("the sink does not like it"))
                    continue
                file.write(json.dumps([record.topic, record.value]) + "\\n")

class RestSink(_Connector, SinkConnector[RestConfig]):
    task_class = RestSinkTask

class FailBad(Transformation):
    """Fails for the value bad; for the value late, it fails with a retriable error at the first attempt."""
    attempts = 0
    def apply(self, record):
        if record.value == "bad":
            raise DataError("the value is bad")
        if record.value == "late" and self.attempts == 0:
            self.attempts += 1
            raise RetriableError("not yet")
        return record
'''


def write_plugins(directory: Path) -> Path:
    """Write the module of the connectors to the directory `plugins`, and return this directory."""
    plugins = directory / "plugins"
    plugins.mkdir()
    (plugins / "rest_plugins.py").write_text(_PLUGINS)
    return plugins


def starts(directory: Path) -> Counter[str]:
    """Return how often each connector and task was started, by name: "c" is a connector, "c-0" is its first task."""
    path = directory / "events"
    lines = path.read_text().splitlines() if path.exists() else []
    return Counter(name for event, name in map(json.loads, lines) if event == "start")


def stops(directory: Path) -> Counter[str]:
    """Return how often each source task has stopped, by its name."""
    lines = (directory / "events").read_text().splitlines()
    return Counter(name for event, name in map(json.loads, lines) if event == "stop")


def sunk(directory: Path) -> list[tuple[str, str]]:
    """Return topic and value of each record that the sinks have received."""
    path = directory / "sunk"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(topic, value) for topic, value in map(json.loads, lines)]
