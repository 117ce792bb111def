"""Tests that mypy --strict checks plug-ins against the types of headrace.api, and finds misspelled config fields."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
MYPY_CACHE = Path(__file__).parents[2] / "build" / "mypy-plugins"  # shared by all tests that run mypy on plug-ins

PLUGIN = """
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.api import (
    Config, ConfigProvider, ConnectRecord, Converter, RecordMetadata, Schema, SchemaAndValue, SinkConnector,
    SinkRecords, SinkTask, SourceRecord, SourceTask, Transformation, Wait, key, sink, source, transform, wait,
)


class PollerConfig(Config):
    topic: str = key("topic")
    interval: int = key("interval", default=5)


class PollerTask(SourceTask[PollerConfig]):
    def start(self, config: PollerConfig) -> None:
        self._offset = self.context.offsets.read({"name": self.context.connector_name})

    def poll(self) -> Sequence[SourceRecord] | None:
        if not self.context.wait(self.config.interval):
            return None
        return [SourceRecord(topic=self.config.topic, value=1, source_offset={"n": 1})]

    def commit_record(self, record: SourceRecord, metadata: RecordMetadata | None) -> None:
        print(record.topic, None if metadata is None else metadata.offset)


class StoreTask(SinkTask[PollerConfig]):
    def put(self, records: SinkRecords) -> None:
        for record in records:
            print(record.offset, self.config.topic, self.context.task_number)
        for batch in records.batches:
            print(batch.values)


class StoreConnector(SinkConnector[PollerConfig]):
    task_class = StoreTask


class Upper(Transformation[PollerConfig]):
    def configure(self, config: PollerConfig) -> None:
        self._topic = config.topic

    def apply(self, record: ConnectRecord) -> ConnectRecord | None:
        return record.replace(topic=self._topic)


class Text(Converter[PollerConfig]):
    def configure(self, config: PollerConfig) -> None:
        self._topic = config.topic

    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        return None if value is None else str(value).encode()

    def to_connect(self, topic: str, data: bytes | None) -> SchemaAndValue:
        return SchemaAndValue(None, data)


class Vault(ConfigProvider[PollerConfig]):
    def get(self, path: str, key: str) -> str | None:
        return self.config.topic


@source
def ticks(config: PollerConfig, offset: Mapping[str, Any] | None) -> Iterator[SourceRecord | Wait]:
    yield SourceRecord(topic=config.topic, value=1)
    yield wait(config.interval)


@sink
def lines(config: PollerConfig, records: SinkRecords) -> None:
    print(config.topic, len(records))


@transform
def route(config: PollerConfig, record: ConnectRecord) -> ConnectRecord | None:
    return record.replace(topic=config.topic)
"""


def mypy(directory: Path, text: str) -> str:
    """Return mypy's output for a plug-in with the source code `text`.

    As in a user's project, mypy finds headrace's types through the file py.typed.
    """
    (directory / "plugin.py").write_text(text)
    options = ["--strict", "--no-error-summary", "--config-file=", "--cache-dir", str(MYPY_CACHE)]
    command = [sys.executable, "-m", "mypy", *options, "plugin.py"]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=240).stdout


def test_strict_mypy_accepts_a_correct_plugin_and_reports_misspelled_config_fields(tmp_path: Path) -> None:
    assert mypy(tmp_path, PLUGIN) == ""
    misspelt = PLUGIN.replace("self.config.interval)", "self.config.intervall)").replace(
        "topic=config.topic, value=1", "topic=config.topick, value=1"
    )
    errors = [line.partition("error: ")[2] for line in mypy(tmp_path, misspelt).splitlines()]
    assert errors == [
        '"PollerConfig" has no attribute "intervall"; maybe "interval"?  [attr-defined]',
        '"PollerConfig" has no attribute "topick"; maybe "topic"?  [attr-defined]',
    ]
