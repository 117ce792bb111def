"""Copies whole data sets from PostgreSQL through topics to S3, OpenSearch, MariaDB and Delta, and compares all rows."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pymysql
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from support import data_sets, mariadb, postgres, rclone, search_server
from support.checksums import Contents, contents, of_mappings
from support.s3 import BUCKET, S3Server
from support.search_server import SearchServer
from support.spark import SHORT_RUN_CONF
from support.topics import committed_offsets, end_offsets
from support.worker import Worker, wait_for

MISSING = [
    reason
    for reason in (
        postgres.unavailable_reason(),
        mariadb.unavailable_reason(),
        rclone.unavailable_reason(),
        search_server.unavailable_reason(),
    )
    if reason
]
pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(bool(MISSING), reason="; ".join(MISSING)),
]

SINKS = ("objects", "documents", "rows", "tables")
DAY_MS = "86400000"


@pytest.mark.parametrize(
    ("scale", "has_flights", "timeout_s"),
    [
        pytest.param(0.001, False, 120, marks=pytest.mark.slow),
        pytest.param(0.1, True, 1800, marks=pytest.mark.prove),
    ],
)
def test_all_rows_of_postgresql_tables_reach_kafka_s3_opensearch_mariadb_and_delta(
    tmp_path: Path, scale: float, has_flights: bool, timeout_s: int
) -> None:
    work = tmp_path / "worker"
    work.mkdir()
    with (
        postgres.running() as source,
        mariadb.running() as target,
        rclone.running(tmp_path / "buckets") as store,
        search_server.running(flags=search_server.SHORT_RUN_FLAGS) as search,
        Worker(work, {"value.converter.schemas.enable": "true"}) as worker,
    ):
        data_sets.load_tpch(source, tmp_path, scale)
        if has_flights:
            data_sets.load_flights(source, tmp_path)
        types = data_sets.columns_of(source)
        expected = {table: _rows_of_postgresql(source, table, types[table]) for table in types}
        worker.create("source", source_config(source))
        ends = {table: found.rows for table, found in expected.items()}
        address = worker.bootstrap_servers()
        client = AdminClient({"bootstrap.servers": address})
        wait_for(lambda: end_offsets(client, types) == ends, "all rows are in the topics", timeout_s)
        for name, config in sink_configs(",".join(types), store, search, target, tmp_path).items():
            worker.create(name, config)
        for name in SINKS:
            wait_for(
                lambda name=name: committed_offsets(client, name, types) == ends,
                f"{name} has committed all records",
                timeout_s,
                lambda name=name: f"{committed_offsets(client, name, types)}; {worker.status(name)}",
            )
        found = {
            "topics": {table: of_mappings(types[table], _payloads(address, table, expected[table].rows))
                       for table in types},
            "objects": {table: of_mappings(types[table], _objects(store, table)) for table in types},
            "documents": {table: of_mappings(types[table], search.documents(table).values()) for table in types},
            "rows": {table: _rows_of_mariadb(target, table, types[table]) for table in types},
            "tables": {table: of_mappings(types[table], _delta(tmp_path / "lakehouse" / table)) for table in types},
        }  # fmt: skip
    for stage, tables in found.items():
        assert tables == expected, f"{stage} differ from PostgreSQL"


def source_config(server: postgres.Postgres) -> dict[str, str]:
    return {
        "connector.class": "io.confluent.connect.jdbc.JdbcSourceConnector",
        "connection.url": server.jdbc_url,
        "connection.user": server.user,
        "mode": "bulk",
        "poll.interval.ms": DAY_MS,
        "batch.max.rows": "5000",
        "numeric.mapping": "best_fit",
        "topic.prefix": "",
    }


def sink_configs(
    topics: str, store: S3Server, search: SearchServer, target: mariadb.MariaDb, directory: Path
) -> Mapping[str, Mapping[str, str]]:
    """Return the configurations of the connectors in `SINKS`."""
    common = {"topics": topics, "consumer.override.max.poll.records": "5000"}
    return {
        "objects": common
        | store.props()
        | {
            "connector.class": "io.confluent.connect.s3.S3SinkConnector",
            "format.class": "ParquetFormat",
            "flush.size": "100000",
            "rotate.schedule.interval.ms": "2000",
            "timezone": "UTC",
        },
        "documents": common
        | {
            "connector.class": "io.confluent.connect.elasticsearch.ElasticsearchSinkConnector",
            "connection.url": search.url,
            "read.timeout.ms": "60000",  # a server on a busy machine may need more than the default of 3 s
            "key.ignore": "true",
        },
        "rows": common
        | {
            "connector.class": "io.confluent.connect.jdbc.JdbcSinkConnector",
            "connection.url": target.jdbc_url,
            "connection.user": target.user,
            "auto.create": "true",
            "pk.mode": "kafka",
            "insert.mode": "upsert",
        },
        "tables": {
            "connector.class": "LakehouseSinkConnector",
            "topics": topics,
            "lakehouse.path": str(directory / "lakehouse"),
            **SHORT_RUN_CONF,
            "spark.ui.enabled": "false",
        },
    }


def _rows_of_postgresql(server: postgres.Postgres, table: str, types: Mapping[str, str]) -> Contents:
    names = ", ".join(f'"{name}"' for name in types)
    with psycopg.connect(server.conninfo) as connection, connection.cursor("rows") as cursor:
        return contents(types, cursor.execute(f"SELECT {names} FROM {table}"))


def _rows_of_mariadb(server: mariadb.MariaDb, table: str, types: Mapping[str, str]) -> Contents:
    connection = pymysql.connect(
        host="127.0.0.1", port=server.port, user=server.user, database="shop",
        cursorclass=pymysql.cursors.SSCursor,
    )  # fmt: skip
    with connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(f'`{name}`' for name in types)} FROM `{table}`")
        return contents(types, cursor)


def _payloads(address: str, topic: str, count: int) -> Iterator[dict[str, Any]]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "payloads"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    remaining = count
    while remaining:
        messages = consumer.consume(min(remaining, 10_000), timeout=30)
        assert messages, f"{topic}: {remaining} records are missing"
        for message in messages:
            assert message.error() is None, message.error()
            yield json.loads(message.value())["payload"]
        remaining -= len(messages)
    consumer.close()


def _objects(store: S3Server, table: str) -> Iterator[dict[str, Any]]:
    client = store.client()
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"topics/{table}/"):
        for item in page.get("Contents", ()):
            body = client.get_object(Bucket=BUCKET, Key=item["Key"])["Body"].read()
            yield from pq.read_table(io.BytesIO(body)).to_pylist()


def _delta(path: Path) -> Iterator[dict[str, Any]]:
    for batch in DeltaTable(path).to_pyarrow_dataset().to_batches():
        yield from batch.to_pylist()
