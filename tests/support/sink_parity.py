"""Loads the same topics with the S3 sink and with the lakehouse sink, and compares what the two sinks have stored.

The S3 sink runs in a worker, and writes objects of JSON lines to a server that stores them as files of a directory. The
lakehouse sink's engine runs in the test's process, and writes Delta or Parquet tables. Each sink has a dead letter
queue.

The objects of the S3 sink do not contain the topic to which transforms changed a record's topic. So if a connector
changes topics, the last transforms add a header with the topic.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import cycle
from operator import eq
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable

from headrace.testing import ConnectWorker, KafkaBroker
from headrace_connectors.lakehouse.spark.jobs import SparkJobs
from headrace_connectors.s3.sink import S3SinkConnector
from support import s3
from support.lakehouse_load import Load
from support.table_rows import rows_of_table, table_row, without_nulls
from support.transform_parity import ParityConnector, ParityTopic
from support.worker import wait_for

TIMEOUT_S = 120.0
SECOND_PARTITION_RECORDS = 10
_HEADERS, _KEY, _TOPIC = "parity_headers", "_kafka_key", "parity_topic"
_METADATA = ("_kafka_topic", "_kafka_partition", "_kafka_offset", "_kafka_timestamp")
_CONTEXT = "__connect.errors."
_COMPARED = ("topic", "partition", "offset", "stage", "class.name", "exception.class.name", "exception.message")


@dataclass(frozen=True)
class StoredRow:
    """A row that a sink has stored. `topic` is the topic after the transforms.

    `offset` is None if the sink does not store it. A table does not contain whether a row is a tombstone, so this is
    the expected value.
    """

    offset: int | None
    topic: str
    columns: Mapping[str, Any]
    key: Any
    headers: tuple[tuple[str, Any], ...]
    is_tombstone: bool


@dataclass(frozen=True)
class FailedCopy:
    """A record in a dead letter queue: its bytes, and the context headers that do not depend on the connector."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    context: tuple[str, ...]


@dataclass
class Stored:
    """What a sink has stored of the topics of one connector."""

    rows: dict[Partition, list[StoredRow]]
    """The rows by topic and partition in Kafka, in the order of their offsets."""
    failed: dict[Partition, list[FailedCopy]]
    """The records in the dead letter queue by their topic and partition, in the order of the queue."""


Partition = tuple[str, int]


# ---- topics ----------------------------------------------------------------------------------------------------------


def _ends(topic: ParityTopic) -> dict[Partition, int]:
    """Return the numbers of records of the partitions. The first topics have a second partition.

    It contains the first records of the first partition.
    """
    ends = {(topic.name, 0): len(topic.records)}
    return {**ends, (topic.name, 1): SECOND_PARTITION_RECORDS} if topic.name.endswith("t0") else ends


def produce_records(address: str, topics: Sequence[ParityTopic]) -> None:
    """Create the topics, and write their records."""
    admin = AdminClient({"bootstrap.servers": address})
    for created in admin.create_topics([NewTopic(topic.name, len(_ends(topic)), 1) for topic in topics]).values():
        created.result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": address, "log_level": 0})
    for topic in topics:
        for (name, partition), end in _ends(topic).items():
            for record in topic.records[:end]:
                more = {"timestamp": record.timestamp_ms, "headers": list(record.headers)}
                producer.produce(name, record.value, record.key, partition, **more)
    assert producer.flush(TIMEOUT_S) == 0


# ---- configuration ---------------------------------------------------------------------------------------------------


def marked_properties(connector: ParityConnector) -> dict[str, str]:
    """Return the properties of the connector, with the transforms that add headers at the end of the chain."""
    properties = connector.properties
    if not connector.changes_topics:
        return properties
    routed = {row.topic for topic in connector.topics for row in topic.rows}
    for number, topic in enumerate(sorted(routed)):
        alias, predicate = f"routed{number}", f"is_routed{number}"
        properties |= {
            f"transforms.{alias}.type": "InsertHeader",
            f"transforms.{alias}.header": _TOPIC,
            f"transforms.{alias}.value.literal": topic,
            f"transforms.{alias}.predicate": predicate,
            f"predicates.{predicate}.type": "TopicNameMatches",
            f"predicates.{predicate}.pattern": re.escape(topic),
            "transforms": f"{properties['transforms']},{alias}",
            "predicates": f"{properties['predicates']},{predicate}",
        }
    return properties


def _all_ends(connector: ParityConnector) -> dict[Partition, int]:
    return {partition: end for topic in connector.topics for partition, end in _ends(topic).items()}


def _dead_letter_queue(topic: str) -> dict[str, str]:
    prefix = "errors.deadletterqueue."
    return {
        f"{prefix}topic.name": topic,
        f"{prefix}topic.replication.factor": "1",
        f"{prefix}context.headers.enable": "true",
    }


# ---- the S3 sink -----------------------------------------------------------------------------------------------------


def start_s3_sink(worker: ConnectWorker, server: s3.S3Server, sink: str, connector: ParityConnector) -> None:
    """Start a sink that writes objects below the directory `sink` of the bucket."""
    props = {
        **marked_properties(connector),
        **server.props(),
        **_dead_letter_queue(f"dlq-{sink}"),
        "connector.class": S3SinkConnector.__name__,
        "topics": ",".join(topic.name for topic in connector.topics),
        "topics.dir": sink,
        "flush.size": "1000",
        "rotate.schedule.interval.ms": "1000",
        "timezone": "UTC",
        "format.class": "JsonFormat",
        "json.decimal.format": "NUMERIC",
        "store.kafka.keys": "true",
        "store.kafka.headers": "true",
        "behavior.on.null.values": "write",
    }
    worker.create(sink, props, wait=False)


def stored_in_s3(
    broker: KafkaBroker, worker: ConnectWorker, directory: Path, sink: str, connector: ParityConnector
) -> Stored:
    """Wait until a sink has stored all records, delete it, and return what it has stored in `directory`."""
    worker.wait_for_status(sink, "RUNNING", TIMEOUT_S)
    _wait_until_committed(worker, sink, _all_ends(connector))
    worker.delete(sink)
    rows = {partition: _read_objects(directory, partition) for partition in _all_ends(connector)}
    return Stored(rows, _read_queue(broker, f"dlq-{sink}", connector))


def _wait_until_committed(worker: ConnectWorker, sink: str, ends: Mapping[Partition, int]) -> None:
    wait_for(lambda: _committed(worker, sink) == ends, f"{sink} commits {ends}", TIMEOUT_S, lambda: worker.status(sink))


def _committed(worker: ConnectWorker, sink: str) -> dict[Partition, int]:
    found = worker.request("GET", f"/connectors/{sink}/offsets")["offsets"]
    return {
        (each["partition"]["kafka_topic"], each["partition"]["kafka_partition"]): each["offset"]["kafka_offset"]
        for each in found
    }


def _read_objects(directory: Path, partition: Partition) -> list[StoredRow]:
    """Return the rows in the objects of a partition: first all rows with values, then all tombstones.

    Only the first row of each object has its offset, from the name of the object.
    """
    topic, number = partition
    values = _read_files(directory / topic / f"partition={number}", partition, has_values=True)
    tombstones = _read_files(directory / topic / "tombstone", partition, has_values=False)
    return [*values, *tombstones]


def _read_files(directory: Path, partition: Partition, *, has_values: bool) -> Iterator[StoredRow]:
    topic, number = partition
    for keys_file in sorted(directory.glob(f"{topic}+{number}+*.keys.json")):
        name = keys_file.name.removesuffix(".keys.json")
        keys, headers = _lines(keys_file), _lines(keys_file.with_name(f"{name}.headers.json"))
        values = _lines(keys_file.with_name(f"{name}.json")) if has_values else [None] * len(keys)
        offset: int | None = int(name.rpartition("+")[2])
        for value, key, items in zip(values, keys, headers, strict=True):
            yield _row(topic, offset, value, key, [(item["key"], item["value"]) for item in items], not has_values)
            offset = None


def _row(
    topic: str, offset: int | None, value: Any, key: Any, headers: list[tuple[str, Any]], is_tombstone: bool
) -> StoredRow:
    columns = {} if is_tombstone else value if isinstance(value, dict) else {"value": value}
    return StoredRow(
        offset,
        dict(headers).get(_TOPIC, topic),
        without_nulls(columns),
        without_nulls(key),
        tuple(headers),
        is_tombstone,
    )


def _lines(path: Path) -> list[Any]:
    return [json.loads(line, parse_float=Decimal) for line in path.read_bytes().splitlines()]


# ---- the lakehouse sink ----------------------------------------------------------------------------------------------


def store_in_tables(
    broker: KafkaBroker, directory: Path, sink: str, connector: ParityConnector, jobs: SparkJobs, format_: str
) -> Stored:
    """Load all records into tables in `directory`, and return what they contain."""
    props = {
        **marked_properties(connector),
        **_dead_letter_queue(f"dlq-{sink}"),
        "name": sink,
        "lakehouse.format": format_,
        "lakehouse.key.columns": "key",
        "lakehouse.headers.column": _HEADERS,
        **{f"lakehouse.table.{topic}.schema": ddl for topic, ddl in connector.ddl_by_topic.items()},
    }
    load = Load(broker.bootstrap_servers, directory, [topic.name for topic in connector.topics], props, jobs=jobs)
    try:
        load.until(partial(eq, _all_ends(connector)), TIMEOUT_S)
    finally:
        load.stop()
        load.context.close()
    return Stored(_read_tables(directory, format_, connector), _read_queue(broker, f"dlq-{sink}", connector))


def _read_tables(path: Path, format_: str, connector: ParityConnector) -> dict[Partition, list[StoredRow]]:
    tombstones = {(topic.name, row.offset) for topic in connector.topics for row in topic.rows if row.value is None}
    rows: dict[Partition, list[StoredRow]] = {partition: [] for partition in _all_ends(connector)}
    for directory in sorted(each for each in path.iterdir() if each.name[0] not in "._"):
        table = _read_delta(directory) if format_ == "delta" else _read_parquet(directory)
        names = [name for name in table.schema.names if name not in (*_METADATA, _KEY, _HEADERS)]
        values, keys = table.select(names), table.select([_KEY])
        for row, value, key in zip(*map(rows_of_table, (table, values, keys)), strict=True):
            topic = row["_kafka_topic"]
            headers = [(each["key"], each["value"]) for each in row[_HEADERS]]
            rows[topic, row["_kafka_partition"]].append(
                StoredRow(
                    row["_kafka_offset"],
                    directory.name,
                    table_row(values.schema, value),
                    table_row(keys.schema, key).get(_KEY),
                    tuple(headers),
                    (topic, row["_kafka_offset"]) in tombstones,
                )
            )
    return {partition: sorted(found, key=lambda row: row.offset or 0) for partition, found in rows.items()}


def _read_delta(directory: Path) -> pa.Table:
    return DeltaTable(directory).to_pyarrow_table()


def _read_parquet(directory: Path) -> pa.Table:
    files = [file for file in sorted(directory.rglob("*.parquet")) if "_headrace" not in file.parts]
    return pa.concat_tables(pq.ParquetFile(file).read() for file in files)


# ---- dead letter queues ----------------------------------------------------------------------------------------------


def _read_queue(broker: KafkaBroker, queue: str, connector: ParityConnector) -> dict[Partition, list[FailedCopy]]:
    found: dict[Partition, list[FailedCopy]] = {partition: [] for partition in _all_ends(connector)}
    for record in broker.consume(queue):
        context = {name.removeprefix(_CONTEXT): text for name, text in record.headers if name.startswith(_CONTEXT)}
        own = tuple(each for each in record.headers if not each[0].startswith(_CONTEXT))
        compared = tuple((context[name] or b"").decode() for name in _COMPARED)
        copy = FailedCopy(record.key, record.value, own, (*compared, *sorted(context)))
        found[compared[0], int(compared[1])].append(copy)
    return found


# ---- comparison ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ParitySinks:
    """The broker, worker and S3 server with which the sinks run. `directory` has the objects as files."""

    broker: KafkaBroker
    worker: ConnectWorker
    server: s3.S3Server
    directory: Path

    def differences(self, seed: int, connectors: Sequence[ParityConnector], tables: Path, jobs: SparkJobs) -> list[str]:
        """Run both sinks for each connector, and return a text for each difference.

        `tables` is the directory of the tables. Every second connector has Delta tables, the others Parquet tables.
        """
        produce_records(self.broker.bootstrap_servers, [topic for each in connectors for topic in each.topics])
        named = [(f"seed{seed}-{number}", connector) for number, connector in enumerate(connectors)]
        for name, connector in named:
            start_s3_sink(self.worker, self.server, f"{name}-s3", connector)
        stored = [
            store_in_tables(self.broker, tables / name, f"{name}-tables", connector, jobs, format_)
            for (name, connector), format_ in zip(named, cycle(("delta", "parquet")), strict=False)
        ]
        objects = [
            stored_in_s3(self.broker, self.worker, self.directory / f"{name}-s3", f"{name}-s3", connector)
            for name, connector in named
        ]
        return [text for each in map(differences, connectors, objects, stored) for text in each]


def differences(connector: ParityConnector, objects: Stored, tables: Stored) -> list[str]:
    """Return a text for each difference between the S3 sink's objects and the tables."""
    found = []
    for topic in connector.topics:
        for partition, end in _ends(topic).items():
            where = f"topic {topic.name}, partition {partition[1]} {[*topic.transforms]}"
            texts = [*_row_differences(objects.rows[partition], tables.rows[partition])]
            texts += _failure_differences(objects.failed[partition], tables.failed[partition])
            expected = sorted(row.offset for row in topic.rows if row.offset < end)
            loaded = [row.offset for row in tables.rows[partition]]
            if expected != loaded:
                texts.append(f"rows with the offsets {expected} were expected, but the tables have {loaded}")
            found += [f"{where}: {text}" for text in texts]
    return found


def _failure_differences(first: Sequence[FailedCopy], second: Sequence[FailedCopy]) -> Iterator[str]:
    if first != second:
        pairs = [(a, b) for a, b in zip(first, second, strict=False) if a != b]
        yield f"the S3 sink has {len(first)} failed records, and the other has {len(second)}: {pairs[:2]}"


def _row_differences(objects: Sequence[StoredRow], table: Sequence[StoredRow]) -> Iterator[str]:
    for is_tombstone in (False, True):
        first = [row for row in objects if row.is_tombstone == is_tombstone]
        second = [row for row in table if row.is_tombstone == is_tombstone]
        kind = "tombstones" if is_tombstone else "rows"
        if len(first) != len(second):
            yield f"S3 has {len(first)} {kind}, and the tables have {len(second)}"
        different = [pair for pair in zip(first, second, strict=False) if not _equal(*pair)]
        if different:
            in_s3, in_table = different[0]
            yield f"{len(different)} {kind} differ. The first one\n  in S3: {in_s3}\n  in the table: {in_table}"


def _equal(in_s3: StoredRow, in_table: StoredRow) -> bool:
    return (
        in_s3.offset in (None, in_table.offset)
        and in_s3.topic == in_table.topic
        and in_table.columns in (in_s3.columns, {"value": in_s3.columns})  # a map is not a row
        and _equal_keys(in_s3.key, in_table.key)
        and len(in_s3.headers) == len(in_table.headers)
        and all(map(_equal_headers, in_s3.headers, in_table.headers))
    )


def _equal_keys(in_s3: Any, in_table: Any) -> bool:
    """Whether the keys are equal. A table has a key without a schema as a string, and any other such key as JSON."""
    if in_s3 == in_table or not isinstance(in_table, str):
        return bool(in_s3 == in_table)
    try:
        return bool(without_nulls(json.loads(in_table, parse_float=Decimal)) == in_s3)
    except ValueError:
        return False


def _equal_headers(in_s3: tuple[str, str | None], in_table: tuple[str, bytes | None]) -> bool:
    """Whether two headers are equal. A table has the bytes of a header of type BYTES, and the S3 sink their base64."""
    (name, text), (table_name, data) = in_s3, in_table
    if name != table_name or text is None or data is None:
        return name == table_name and text is None and data is None
    return text.encode() == data or text == base64.b64encode(data).decode()
