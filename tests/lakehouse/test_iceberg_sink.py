"""The lakehouse sink's engine with Iceberg tables: from topics to rows, on a local disk and on S3."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

pytest.importorskip("pyiceberg")
import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace_connectors.lakehouse.committers.iceberg_catalog import CatalogConnection
from headrace_connectors.lakehouse.table_uri import TableUri
from support import iceberg_committers, s3
from support.broker import BrokerProcess, running_broker
from support.iceberg_committers import load
from support.lakehouse_load import Load

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

JSON = {"value.converter": "org.apache.kafka.connect.json.JsonConverter"}
FIELDS = [
    {"field": "n", "type": "int16"},
    {"field": "at", "type": "int64", "name": "org.apache.kafka.connect.data.Timestamp"},
    {"field": "tags", "type": "array", "items": {"type": "string"}, "optional": True},
    {"field": "inner", "type": "struct", "optional": True, "fields": [{"field": "small", "type": "int8"}]},
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


def _produce(broker: BrokerProcess, topic: str, numbers: Sequence[int], partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    if topic not in admin.list_topics(timeout=30).topics:
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": broker.address})
    for n in numbers:
        payload = {"n": n, "at": n * 86_400_000, "tags": ["a", str(n)], "inner": {"small": n % 100}}
        schema = {"type": "struct", "fields": FIELDS}
        value = json.dumps({"schema": schema, "payload": payload})
        producer.produce(topic, value.encode(), partition=n % partitions)
    assert producer.flush(20) == 0


def _rows(connection: CatalogConnection, table: str) -> pa.Table:
    return load(connection, table).scan().to_arrow().sort_by("n")


def test_topics_are_loaded_into_tables_of_an_sqlite_catalog_across_restarts(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    props = {
        **JSON,
        "lakehouse.format": "iceberg",
        "lakehouse.table.name.format": "lake/${topic}",
        "lakehouse.partition.by": "day(at), bucket(4, n)",
        "lakehouse.sort.by": "n desc",
        "lakehouse.metadata.columns": "true",
    }
    _produce(broker, "local.events", range(20), partitions=2)
    for end in (20, 30):
        run = Load(broker.address, tmp_path, ["local.events"], props)
        try:
            run.until(lambda offsets, end=end: sum(offsets.values()) >= end)  # type: ignore[misc]
            if end == 20:
                _produce(broker, "local.events", range(20, 30), partitions=2)
                run.until(lambda offsets: sum(offsets.values()) >= 30)
        finally:
            run.stop()
    connection = iceberg_committers.connect(TableUri(str(tmp_path)))
    rows = _rows(connection, "lake/local.events")
    assert rows["n"].to_pylist() == list(range(30))
    assert rows["tags"][7].as_py() == ["a", "7"]
    assert rows["inner"][7].as_py() == {"small": 7}
    assert rows["_kafka_offset"].to_pylist() == [n // 2 for n in range(30)]
    table = load(connection, "lake/local.events")
    assert [str(field.transform) for field in table.spec().fields] == ["day", "bucket[4]"]
    assert table.scan(row_filter="at >= '1970-01-29T00:00:00+00:00'").to_arrow().num_rows == 2
    assert "schema.name-mapping.default" not in table.properties


def test_topics_are_loaded_into_tables_on_s3(broker: BrokerProcess, tmp_path: Path) -> None:
    _produce(broker, "s3-events", range(10))
    with s3.running() as server:
        config = {
            "iceberg.catalog.type": "sql",
            "iceberg.catalog.uri": f"sqlite:///{tmp_path / 'catalog.db'}",
            "iceberg.namespace": "lake",
        }
        access = {
            key: value for key, value in server.props().items() if key.startswith(("aws.", "store.", "s3.region"))
        }
        props = {**JSON, **config, **access, "lakehouse.format": "iceberg"}
        run = Load(broker.address, "s3://lake/warehouse", ["s3-events"], props)
        try:
            run.until_offsets(**{"s3-events": 10})
        finally:
            run.stop()
        connection = iceberg_committers.connect(iceberg_committers.s3_root("warehouse"), config, server)
        assert _rows(connection, "s3-events")["n"].to_pylist() == list(range(10))
        assert load(connection, "s3-events").location().startswith("s3://lake/warehouse")
