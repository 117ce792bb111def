"""Tests of headrace's worker with an Apache Kafka broker, and of Kafka's own worker with headrace's broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from support import apache
from support.broker import running_broker
from support.worker import Worker, wait_for

pytestmark = [
    pytest.mark.jvm,
    pytest.mark.integration,
    pytest.mark.skipif(bool(apache.unavailable_reason()), reason=apache.unavailable_reason() or ""),
]

# ASCII only, because Kafka's FileStreamSource counts characters, but its offsets are positions in bytes.
LINES = [f"line {i}" for i in range(2000)]
CONVERTERS = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "true",
    "offset.flush.interval.ms": "500",
}


def _connectors(directory: Path) -> list[dict[str, str]]:
    source = {
        "name": "local-file-source",
        "connector.class": "FileStreamSource",
        "tasks.max": "1",
        "file": str(directory / "in.txt"),
        "topic": "connect-test",
        "transforms": "MakeMap,InsertSource",
        "transforms.MakeMap.type": "org.apache.kafka.connect.transforms.HoistField$Value",
        "transforms.MakeMap.field": "line",
        "transforms.InsertSource.type": "org.apache.kafka.connect.transforms.InsertField$Value",
        "transforms.InsertSource.static.field": "data_source",
        "transforms.InsertSource.static.value": "test-file-source",
    }
    sink = {
        "name": "local-file-sink",
        "connector.class": "FileStreamSink",
        "tasks.max": "1",
        "file": str(directory / "out.txt"),
        "topics": "connect-test",
    }
    return [source, sink]


def _expected() -> list[str]:
    return [f"Struct{{line={line},data_source=test-file-source}}" for line in LINES]


def _arrived(directory: Path) -> Callable[[], bool]:
    out = directory / "out.txt"
    return lambda: out.exists() and len(out.read_text().splitlines()) >= len(LINES)


def _records(address: str, count: int, group: str = "check") -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe(["connect-test"])
    values: list[bytes] = []
    while len(values) < count:
        values += [message.value() or b"" for message in consumer.consume(500, timeout=10)]
    consumer.close()
    return values


def _files(directory: Path) -> list[Path]:
    files = []
    for config in _connectors(directory):
        files.append(directory / f"{config['name']}.properties")
        files[-1].write_text("".join(f"{key}={value}\n" for key, value in config.items()))
    return files


def _output(directory: Path) -> list[str]:
    return (directory / "out.txt").read_text().splitlines()


def test_headrace_worker_copies_every_line_with_an_apache_kafka_broker_and_repeats_no_line_after_a_restart(
    tmp_path: Path,
) -> None:
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in LINES))
    with apache.broker(flags=apache.SHORT_RUN_FLAGS) as kafka:
        settings = {"bootstrap.servers": kafka.address, **CONVERTERS}
        settings["offset.storage.file.filename"] = str(tmp_path / "connect.offsets")
        with Worker(tmp_path, settings, _files(tmp_path)):
            wait_for(_arrived(tmp_path), "every line is in the output", 60)
        assert _output(tmp_path) == _expected()
        # Restart the worker and check that no record is read or written twice.
        with (tmp_path / "in.txt").open("a") as file:
            file.write("one more\n")
        with Worker(tmp_path, settings, _files(tmp_path)):
            wait_for(lambda: "one more" in (tmp_path / "out.txt").read_text(), "the new line is in the output", 60)
        assert _output(tmp_path)[: len(LINES)] == _expected()
        assert len(_output(tmp_path)) == len(LINES) + 1


def test_headrace_worker_continues_from_the_offsets_file_of_kafkas_standalone_worker(tmp_path: Path) -> None:
    """Kafka's worker produces records and stops. Then headrace's worker continues with the same offsets file."""
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in LINES))
    offsets = {"offset.storage.file.filename": str(tmp_path / "connect.offsets")}
    with running_broker(tmp_path) as broker:
        settings = {"bootstrap.servers": broker.address, **CONVERTERS, **offsets}
        with apache.connect_standalone(settings, _connectors(tmp_path), flags=apache.SHORT_RUN_FLAGS):
            wait_for(_arrived(tmp_path), "every line is in the output", 60)
        assert _output(tmp_path) == _expected()
        apaches = _records(broker.address, len(LINES))

        with (tmp_path / "in.txt").open("a") as file:
            file.writelines(f"{line}\n" for line in LINES)
        with Worker(tmp_path, settings, _files(tmp_path)):
            wait_for(lambda: len(_output(tmp_path)) >= 2 * len(LINES), "the new lines are in the output", 60)
        assert _output(tmp_path) == _expected() * 2
        everything = _records(broker.address, 2 * len(LINES), "check-all")
        assert everything[len(LINES) :] == apaches
