"""Loads nycflights13 and TPC-H from PostgreSQL through topics into tables of all formats, and compares all rows.

Readers that share no code with the sink read the tables: Spark with Delta Lake's library, Iceberg's Java library, and
DuckDB. The S3 server checks signatures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient

from support import data_sets, delta_spark, iceberg_catalog, postgres, versitygw
from support.database_tables import DatabaseTables
from support.iceberg_catalog import RestCatalogServer
from support.s3 import BUCKET, S3Server
from support.spark import SHORT_RUN_PROPS
from support.topics import committed_offsets, end_offsets
from support.worker import Worker, wait_for

_REASONS = (iceberg_catalog.unavailable_reason(), delta_spark.unavailable_reason(), versitygw.unavailable_reason())
MISSING = [reason for reason in (postgres.unavailable_reason(), *_REASONS) if reason]
pytestmark = [
    pytest.mark.jvm,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(bool(MISSING), reason="; ".join(MISSING)),
]

DAY_MS = "86400000"
LOAD_S = 600
SCALES = [pytest.param(0.01, marks=pytest.mark.slow), pytest.param(0.1, marks=pytest.mark.prove)]
"""TPC-H's scale factors. With the larger one, the data sets have 1,234,289 rows together.

`make prove` loads all combinations of table formats and places. `make test-long` loads local Parquet tables, and
Iceberg tables on S3.
"""
ICEBERG_TYPES = {
    "int": "INTEGER",
    "long": "BIGINT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "date": "DATE",
    "timestamptz": "TIMESTAMP WITH TIME ZONE",
    "decimal(15, 2)": "DECIMAL(15,2)",
}


@dataclass(frozen=True, slots=True)
class Loader:
    """Loads the topics, which contain the tables of the database, into tables of a format."""

    worker: Worker
    client: AdminClient
    database: DatabaseTables
    storage: S3Server

    def load(self, config: Mapping[str, str]) -> None:
        """Run a sink connector until all records are in its tables."""
        name = "tables"
        self.worker.create(
            name,
            {
                "connector.class": "LakehouseSinkConnector",
                "topics": ",".join(self.database.types),
                **SHORT_RUN_PROPS,
                "spark.ui.enabled": "false",
                **config,
            },
        )
        wait_for(
            lambda: committed_offsets(self.client, name, self.database.types) == self.database.rows,
            "all records are in tables",
            LOAD_S,
            lambda: self.worker.status(name),
        )
        self.worker.request("PUT", f"/connectors/{name}/stop")
        self.worker.request("DELETE", f"/connectors/{name}/offsets")
        self.worker.request("DELETE", f"/connectors/{name}")

    def s3_config(self) -> dict[str, str]:
        """Return the configuration of the S3 server."""
        keys = ("s3.region", "store.url", "aws.access.key.id", "aws.secret.access.key")
        return {key: value for key, value in self.storage.props().items() if key in keys}

    def check_delta(self, tables: Path, directory: Path) -> None:
        """Compare Delta tables with the database, read by Spark."""
        delta_spark.copy_to_parquet({tables / table: directory / table for table in self.database.types})
        for table in self.database.types:
            self.database.assert_parquet_equals(table, f"{directory / table}/*.parquet")

    def check_iceberg(self, catalog: RestCatalogServer, directory: Path) -> None:
        """Compare Iceberg tables with the database, read by Iceberg's Java library."""
        file = directory / "rows.json"
        for table in self.database.types:
            types = {column: ICEBERG_TYPES[kind] for column, kind in catalog.column_types("default", table).items()}
            catalog.copy_to_json(f"default.{table}", file)
            self.database.assert_json_equals(table, file, types)


@pytest.fixture(scope="module", params=SCALES)
def loader(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loader]:
    directory = tmp_path_factory.mktemp("loader")
    with Worker(directory, {"value.converter.schemas.enable": "true"}) as worker:
        with postgres.running() as server:
            data_sets.load_flights(server, directory)
            data_sets.load_tpch(server, directory, request.param)
            with psycopg.connect(server.conninfo) as connection:
                for table in ("flights", "weather"):
                    connection.execute(f"ALTER TABLE {table} ALTER time_hour TYPE timestamp USING time_hour::timestamp")
            database = DatabaseTables(server, directory)
            worker.create("source", source_config(server))
            client = AdminClient({"bootstrap.servers": worker.bootstrap_servers()})
            wait_for(
                lambda: end_offsets(client, database.types) == database.rows,
                "all rows are in topics",
                LOAD_S,
                lambda: worker.status("source"),
            )
            worker.request("DELETE", "/connectors/source")
        with versitygw.running(directory / "buckets") as storage:
            yield Loader(worker, client, database, storage)


def source_config(server: postgres.Postgres) -> dict[str, str]:
    return {
        "connector.class": "io.confluent.connect.jdbc.JdbcSourceConnector",
        "connection.url": server.jdbc_url,
        "connection.user": server.user,
        "mode": "bulk",
        "poll.interval.ms": DAY_MS,
        "batch.max.rows": "5000",
        "topic.prefix": "",
        "producer.override.compression.type": "lz4",
    }


@pytest.mark.prove
def test_all_rows_reach_local_delta_tables(loader: Loader, tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    loader.load({"lakehouse.path": str(tables)})
    loader.check_delta(tables, tmp_path)


@pytest.mark.prove
def test_all_rows_reach_delta_tables_on_s3(loader: Loader, tmp_path: Path) -> None:
    loader.load({"lakehouse.path": f"s3://{BUCKET}/delta", **loader.s3_config()})
    # Paths in Delta's log are relative, so a copy of the objects is the same table.
    loader.storage.download("delta/", tmp_path)
    loader.check_delta(tmp_path / "delta", tmp_path)


def test_all_rows_reach_local_parquet_tables(loader: Loader, tmp_path: Path) -> None:
    loader.load({"lakehouse.format": "parquet", "lakehouse.path": str(tmp_path)})
    for table in loader.database.types:
        loader.database.assert_parquet_equals(table, f"{tmp_path / table}/*.parquet")


@pytest.mark.prove
def test_all_rows_reach_local_iceberg_tables_of_an_sql_catalog(loader: Loader, tmp_path: Path) -> None:
    loader.load({"lakehouse.format": "iceberg", "lakehouse.path": str(tmp_path)})
    with iceberg_catalog.running(tmp_path, database=tmp_path / "catalog.db") as catalog:
        loader.check_iceberg(catalog, tmp_path)


@pytest.mark.prove
def test_all_rows_reach_iceberg_tables_of_an_sql_catalog_on_s3(loader: Loader, tmp_path: Path) -> None:
    config = {
        "lakehouse.format": "iceberg",
        "lakehouse.path": f"s3://{BUCKET}/iceberg-sql",
        "iceberg.catalog.type": "sql",
        "iceberg.catalog.uri": f"sqlite:///{tmp_path / 'catalog.db'}",
    }
    loader.load(config | loader.s3_config())
    warehouse = f"s3://{BUCKET}/not-used"
    with iceberg_catalog.running(tmp_path, loader.storage, warehouse, tmp_path / "catalog.db") as catalog:
        loader.check_iceberg(catalog, tmp_path)


@pytest.mark.prove
def test_all_rows_reach_local_iceberg_tables_of_a_rest_catalog(loader: Loader, tmp_path: Path) -> None:
    with iceberg_catalog.running(tmp_path) as catalog:
        loader.load(rest_config(catalog))
        loader.check_iceberg(catalog, tmp_path)


def test_all_rows_reach_iceberg_tables_of_a_rest_catalog_on_s3(loader: Loader, tmp_path: Path) -> None:
    with iceberg_catalog.running(tmp_path, loader.storage, f"s3://{BUCKET}/iceberg-rest") as catalog:
        loader.load(rest_config(catalog) | loader.s3_config())
        loader.check_iceberg(catalog, tmp_path)


def rest_config(catalog: RestCatalogServer) -> dict[str, str]:
    return {"lakehouse.format": "iceberg", "iceberg.catalog.type": "rest", "iceberg.catalog.uri": catalog.url}
