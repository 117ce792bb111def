"""Tests of the files of lakehouse tables with real S3 servers, and with the programs that read tables."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.schema import Schema
from deltalake.transaction import AddAction, create_table_with_add_actions

from headrace.api.errors import ConfigError
from headrace_connectors.lakehouse.files.data_file import DataFile
from headrace_connectors.lakehouse.files.layout import FileLayout
from headrace_connectors.lakehouse.files.layout_text import parse_partition_spec, parse_sort_order
from headrace_connectors.lakehouse.files.settings import WriterSettings
from headrace_connectors.lakehouse.files.statistics import delta_statistics
from headrace_connectors.lakehouse.files.stores import FileStore
from headrace_connectors.lakehouse.files.table_target import TableTarget
from headrace_connectors.lakehouse.files.writers import FileWriters
from headrace_connectors.lakehouse.location_check import check_location
from headrace_connectors.lakehouse.s3_access import delta_storage_options
from headrace_connectors.lakehouse.s3_settings import AccessProvider
from headrace_connectors.lakehouse.table_uri import TableUri
from headrace_connectors.s3.connection import S3AccessConfig
from support import rclone, s3, versitygw
from support.ports import free_port
from support.spark import SHORT_RUN_CONF

pytestmark = pytest.mark.integration

KEYS = ("s3.region", "store.url", "aws.access.key.id", "aws.secret.access.key")
TABLES = TableUri.parse("s3a://lake/a/tables")
TIMESTAMP = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string()), ("at", TIMESTAMP), ("cost", pa.decimal128(9, 2))])
DAY_US = 86_400_000_000


@pytest.fixture(scope="module")
def moto() -> Iterator[s3.S3Server]:
    with s3.running() as server:
        yield server


@pytest.fixture
def server(moto: s3.S3Server) -> s3.S3Server:
    moto.clear()
    return moto


@pytest.fixture
def signed(tmp_path: Path) -> Iterator[s3.S3Server]:
    """Run a server that checks signatures."""
    if reason := versitygw.unavailable_reason():
        pytest.skip(reason)
    with versitygw.running(tmp_path / "buckets") as server:
        yield server


def config(server: s3.S3Server, **changes: str) -> S3AccessConfig:
    keys = {name: server.props()[name] for name in KEYS}
    return S3AccessConfig.parse(keys | {name.replace("__", "."): text for name, text in changes.items()})


def store(server: s3.S3Server) -> FileStore:
    return FileStore(AccessProvider(config(server)).current())


def location_errors(config: S3AccessConfig, uri: TableUri = TABLES, *, delta: bool = True) -> list[ConfigError]:
    return list(check_location(config, uri, conditional_writes=delta))


def contents(server: s3.S3Server) -> dict[str, bytes]:
    """Return the objects without the empty ones that PyArrow creates for a directory whose last file it deletes."""
    return {key: content for key, content in server.objects().items() if not key.endswith("/")}


def rows(first: int, count: int) -> pa.RecordBatch:
    ids = range(first, first + count)
    columns = [
        pa.array(ids, pa.int64()),
        pa.array([(None, "Perth", "a b/ü%", "Rome")[n % 4] for n in ids]),
        pa.array([n * DAY_US // 100 for n in ids], pa.int64()).cast(TIMESTAMP),
        pa.array(ids, pa.int64()).cast(pa.decimal128(19, 0)).cast(pa.decimal128(9, 2)),
    ]
    return pa.record_batch(columns, schema=SCHEMA)


def write(files: FileStore, table: TableTarget, batches: list[pa.RecordBatch]) -> list[DataFile]:
    with FileWriters(files, WriterSettings(), "task-1") as writers:
        for batch in batches:
            writers.write(table, batch.schema, batch)
        return writers.finish()


def test_files_in_s3_are_written_listed_and_deleted(server: s3.S3Server) -> None:
    files, location = store(server), "s3://lake/a/tables/orders"
    table = TableTarget("orders", location, layout=FileLayout(parse_partition_spec("region, day(at)")))
    written = write(files, table, [rows(0, 250)])
    assert len(written) == 4 * 3
    listed = {file.path: file.size for file in files.list(location)}
    assert listed == {file.path: file.size for file in written}
    assert contents(server).keys() == {f"a/tables/orders/{path}" for path in listed}
    assert all(files.exists(location, file.path) and files.size(location, file.path) == file.size for file in written)
    with files.open_input(location, written[0].path) as stream:
        assert pq.read_table(stream).num_rows == written[0].rows
    for file in written:
        files.delete(location, file.path)
        files.delete(location, file.path)
        assert not files.exists(location, file.path)
    assert contents(server) == {}


def test_large_file_in_s3_is_uploaded_in_parts(server: s3.S3Server) -> None:
    batches = [pa.record_batch({"body": pa.array([os.urandom(1 << 20) for _ in range(4)])}) for _ in range(6)]
    [file] = write(store(server), TableTarget("t", str(TABLES)), batches)
    [content] = contents(server).values()
    assert len(content) == file.size > 24 << 20
    read = pq.read_table(pa.BufferReader(content))
    assert read.equals(pa.Table.from_batches(batches))


def test_many_open_files_in_s3_keep_the_memory_limit(server: s3.S3Server) -> None:
    table, limit = TableTarget("t", str(TABLES), layout=FileLayout(parse_partition_spec("bucket(20, id)"))), 4 << 20
    before = pa.total_allocated_bytes()
    with FileWriters(store(server), WriterSettings(memory_bytes=limit), "t") as writers:
        for first in range(0, 160_000, 20_000):
            writers.write(table, SCHEMA, rows(first, 20_000))
            assert pa.total_allocated_bytes() - before < 5 * limit
        files = writers.finish()
    assert sum(file.rows for file in files) == 160_000
    assert len(files) == 20  # no file had to be completed early


def test_task_that_fails_leaves_neither_objects_nor_uploads_in_s3(server: s3.S3Server) -> None:
    settings = WriterSettings(memory_bytes=1, file_size_bytes=10_000)

    def fail() -> None:
        with FileWriters(store(server), settings, "t") as writers:
            for first in range(0, 2_000, 500):
                writers.write(TableTarget("t", str(TABLES)), SCHEMA, rows(first, 500))
            assert contents(server)
            raise RuntimeError("the task fails")

    with pytest.raises(RuntimeError):
        fail()
    assert contents(server) == {}
    assert "Uploads" not in server.client().list_multipart_uploads(Bucket=s3.BUCKET)


def test_validation_of_a_bucket_that_is_safe_for_delta_leaves_no_object(server: s3.S3Server) -> None:
    assert location_errors(config(server)) == []
    assert location_errors(config(server), TableUri.parse("s3://lake"), delta=False) == []
    assert contents(server) == {}


def test_validation_names_the_key_that_makes_a_bucket_inaccessible(server: s3.S3Server) -> None:
    closed = f"http://127.0.0.1:{free_port()}"
    role = {"s3__credentials__provider__class": "AwsAssumeRoleCredentialsProvider"}
    for uri, changes, key, text in (
        (TableUri.parse("s3://nothing/t"), {}, "lakehouse.path", "NoSuchBucket"),
        (TABLES, {"store__url": closed}, "store.url", f"in s3://lake at {closed}"),
        (TABLES, {"s3__proxy__url": closed}, "s3.proxy.url", "proxy"),
        (TABLES, role, "s3.credentials.provider.class", "sts.role.arn must be set"),
    ):
        [error] = location_errors(config(server, **changes), uri)
        assert error.key == key
        assert text in str(error)


def test_credentials_of_an_assumed_role_are_temporary_and_can_write(server: s3.S3Server) -> None:
    role = {
        "s3__credentials__provider__class": "AwsAssumeRoleCredentialsProvider",
        "s3__credentials__provider__sts__role__arn": "arn:aws:iam::123456789012:role/loader",
    }
    assert location_errors(config(server, **role)) == []
    access = AccessProvider(config(server, **role)).current(600)
    assert access.access_key != server.access_key
    assert access.session_token
    assert access.expires_ms
    [file] = write(FileStore(access), TableTarget("t", str(TABLES)), [rows(0, 10)])
    assert FileStore(access).size(str(TABLES), file.path) == file.size


@pytest.mark.slow
@pytest.mark.skipif(rclone.unavailable_reason() is not None, reason=str(rclone.unavailable_reason()))
def test_store_that_ignores_if_none_match_is_refused_for_delta_only(tmp_path: Path) -> None:
    with rclone.running(tmp_path / "buckets") as server:
        [error] = location_errors(config(server))
        assert error.key == "lakehouse.path"
        assert "ignores the header If-None-Match" in str(error)
        assert "use a store that supports conditional writes, or lakehouse.format=iceberg" in str(error)
        assert location_errors(config(server), delta=False) == []
        assert contents(server) == {}


@pytest.mark.slow
@pytest.mark.timeout(900)  # the first run builds the server
def test_server_that_checks_signatures_accepts_files_and_delta_commits(signed: s3.S3Server) -> None:
    assert location_errors(config(signed)) == []
    files = store(signed)
    [file] = write(files, TableTarget("orders", "s3://lake/orders"), [rows(0, 1_000)])
    assert files.size("s3://lake/orders", file.path) == file.size
    assert files.access is not None
    options = delta_storage_options(files.access)
    commit_to_delta("s3://lake/orders", [file], "", options)
    assert DeltaTable("s3://lake/orders", storage_options=options).to_pyarrow_table().num_rows == 1_000
    tables = [DeltaTable("s3://lake/orders", storage_options=options) for _ in range(2)]
    once = CommitProperties(app_transactions=[Transaction("headrace/sink/orders/0", 7)])
    write_deltalake(tables[0], pa.table(rows(0, 1)), mode="append", commit_properties=once)
    with pytest.raises(CommitFailedError, match="Concurrent transaction"):
        write_deltalake(tables[1], pa.table(rows(0, 1)), mode="append", commit_properties=once)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_wrong_secret_and_wrong_region_are_found_by_validation(signed: s3.S3Server) -> None:
    [error] = location_errors(config(signed, aws__secret__access__key="wrong-secret"))
    assert error.key == "aws.access.key.id"
    assert "SignatureDoesNotMatch" in str(error)
    assert "wrong-secret" not in str(error)
    [error] = location_errors(config(signed, s3__region="eu-west-1"))
    assert error.key == "s3.region"
    assert "check that the bucket is in the region eu-west-1" in str(error)
    access = store(signed).access
    assert access is not None
    with pytest.raises(OSError, match="SIGNATURE_DOES_NOT_MATCH"):
        write(FileStore(replace(access, secret_key="wrong")), TableTarget("t", "s3://lake/t"), [rows(0, 1)])
    assert contents(signed) == {}


# --- readers --------------------------------------------------------------------------------------------------------


def commit_to_delta(location: str, files: list[DataFile], spec: str, options: dict[str, str] | None = None) -> None:
    """Create a Delta table with the files. Partition fields other than identity become columns of the table."""
    fields = parse_partition_spec(spec)
    derived = {"day": pa.date32(), "bucket": pa.int32()}
    columns = [pa.field(field.name, derived[field.transform]) for field in fields if field.transform in derived]
    actions = [
        AddAction(
            file.path,
            file.size,
            {
                field.name: None if value is None else str(value)
                for field, value in zip(fields, file.partition, strict=True)
            },
            0,
            True,
            delta_statistics(file.footer),
        )
        for file in files
    ]
    schema = Schema.from_arrow(pa.schema([*SCHEMA, *columns]))
    names = [field.name for field in fields]
    create_table_with_add_actions(location, schema, actions, partition_by=names, storage_options=options)


SPARK_CONF = {"spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC", "spark.driver.host": "127.0.0.1"}
SPEC = "region, day(at), bucket(3, id)"


@pytest.fixture
def table(tmp_path: Path) -> tuple[Path, list[DataFile]]:
    """Write the files of a partitioned and sorted table."""
    layout = FileLayout(parse_partition_spec(SPEC), parse_sort_order("id desc"))
    return tmp_path, write(FileStore(), TableTarget("t", str(tmp_path), layout=layout), [rows(0, 300), rows(300, 10)])


EXPECTED = rows(0, 310).to_pylist()


def test_delta_rs_reads_all_rows_and_skips_files_by_partition_and_statistics(
    table: tuple[Path, list[DataFile]],
) -> None:
    directory, files = table
    commit_to_delta(str(directory), files, SPEC)
    delta = DeltaTable(directory)
    read = delta.to_pyarrow_table(columns=SCHEMA.names).sort_by("id")
    assert read.to_pylist() == EXPECTED
    one = delta.to_pyarrow_dataset(as_large_types=False)
    import pyarrow.dataset as ds

    region = ds.field("region") == "a b/ü%"
    assert one.to_table(filter=region).num_rows == sum(row["region"] == "a b/ü%" for row in EXPECTED)
    number = ds.field("id") == 77
    assert one.to_table(filter=number)["id"].to_pylist() == [77]
    fragments = list(one.get_fragments(filter=number))
    assert 0 < len(fragments) < len(files) / 2  # the statistics exclude the other files


def test_statistics_equal_those_of_delta_rs(tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "id": [3, None, -1],
        "small": pa.array([3, None, -1], pa.int8()),
        "text": ["b", None, "é"],
        "price": [1.5, None, -0.25],
        "day": pa.array([20_000, None, -1], pa.int32()).cast(pa.date32()),
        "at": pa.array([1_500_000, None, -1_000], pa.int64()).cast(TIMESTAMP),
        "cost": pa.array([2, None, 1], pa.decimal128(19, 0)).cast(pa.decimal128(9, 2)),
        "nothing": pa.nulls(3, pa.int64()),
        "s": [{"x": 1, "t": {"y": "z"}}, None, {"x": None, "t": None}],
        "tags": [["a"], None, []],
    }
    rows = pa.record_batch(columns)
    [file] = write(FileStore(), TableTarget("ours", str(tmp_path / "ours")), [rows])
    action = AddAction(file.path, file.size, {}, 0, True, delta_statistics(file.footer))
    create_table_with_add_actions(str(tmp_path / "ours"), Schema.from_arrow(rows.schema), [action])
    write_deltalake(tmp_path / "theirs", pa.Table.from_batches([rows]))
    ours, theirs = (
        pa.table(DeltaTable(tmp_path / name).get_add_actions(flatten=True)).to_pylist()[0]
        for name in ("ours", "theirs")
    )
    for found in (ours, theirs):
        del found["path"], found["size_bytes"], found["modification_time"]
    assert len(ours) > 20
    assert ours == theirs


def test_duckdb_reads_all_rows(table: tuple[Path, list[DataFile]]) -> None:
    duckdb = pytest.importorskip("duckdb")
    directory, files = table
    paths = [str(directory / file.path) for file in files]
    query = "SELECT * FROM read_parquet(?, hive_partitioning=false) ORDER BY id"
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        assert connection.sql(query, params=[paths]).to_arrow_table().cast(SCHEMA).to_pylist() == EXPECTED


def test_pyiceberg_adds_the_files_and_reads_all_rows(table: tuple[Path, list[DataFile]]) -> None:
    pytest.importorskip("pyiceberg")
    from pyiceberg.catalog.sql import SqlCatalog

    directory, files = table
    properties = {"uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}/warehouse"}
    catalog = SqlCatalog("tests", **properties)
    try:
        catalog.create_namespace("db")
        iceberg = catalog.create_table("db.t", SCHEMA)
        iceberg.add_files([f"{directory}/{file.path}" for file in files], check_duplicate_files=False)
        assert iceberg.scan().to_arrow().cast(SCHEMA).sort_by("id").to_pylist() == EXPECTED
        assert iceberg.scan(row_filter="id = 77").to_arrow()["id"].to_pylist() == [77]
    finally:
        catalog.close()


@pytest.mark.spark
@pytest.mark.slow
def test_spark_reads_all_rows(table: tuple[Path, list[DataFile]]) -> None:
    pyspark: Any = pytest.importorskip("pyspark.sql")
    directory, files = table
    builder = pyspark.SparkSession.builder
    for key, value in (SHORT_RUN_CONF | SPARK_CONF).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        read = pa.table(spark.read.parquet(*[str(directory / file.path) for file in files]).toArrow())
        assert read.sort_by("id").cast(SCHEMA).to_pylist() == EXPECTED
    finally:
        spark.stop()
