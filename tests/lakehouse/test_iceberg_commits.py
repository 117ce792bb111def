"""Commits to Iceberg tables in an SQLite catalog: conflicts, unknown results, and changes by other tools and users."""

from __future__ import annotations

import datetime
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyiceberg")
import pyarrow as pa
import pyiceberg.table
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, ForbiddenError
from pyiceberg.partitioning import PartitionField as IcebergPartitionField
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform
from pyiceberg.types import IntegerType, ListType, LongType, NestedField, StringType, TimestampType, TimestamptzType

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.committers.base import (
    Commit,
    CommitOutcomeUnknownError,
    TableCommitter,
    TableConflictError,
    TableSchemaError,
)
from headrace_connectors.lakehouse.committers.iceberg import IcebergCommitter
from headrace_connectors.lakehouse.committers.iceberg_catalog import CatalogConnection
from headrace_connectors.lakehouse.ddl import parse_ddl
from headrace_connectors.lakehouse.files.layout import FileLayout, PartitionField, SortField
from headrace_connectors.lakehouse.offsets import TableOffsets
from headrace_connectors.lakehouse.s3_access import S3Access
from headrace_connectors.lakehouse.table_uri import TableUri
from support import iceberg_committers
from support.iceberg_committers import load
from support.lakehouse_committers import (
    COLUMNS,
    Combination,
    append,
    identity,
    numbers,
    offsets,
    open_new,
    rows,
)

T0 = [("t", 0)]


@pytest.fixture
def connection(tmp_path: Path) -> CatalogConnection:
    return iceberg_committers.connect(TableUri(str(tmp_path)))


@pytest.fixture
def tables(connection: CatalogConnection) -> Combination:
    return iceberg_committers.combination("iceberg-local", connection)


# --- retries --------------------------------------------------------------------------------------------------------


def test_stale_commit_is_refused_and_the_users_retry_properties_stay(
    tables: Combination, connection: CatalogConnection
) -> None:
    one, other = (open_new(tables) for _ in range(2))
    properties = {"commit.retry.num-retries": "7", "commit.retry.min-wait-ms": "1"}
    load(connection, "t").transaction().set_properties(properties).commit_transaction()
    other.load(T0)
    one.load(T0)
    append(tables, one, 0, [1], offsets(t=1))
    stale = tables.write(other, rows(1), "stale.parquet")
    with pytest.raises(TableConflictError):
        other.commit(Commit(identity(0, generation=7), offsets(t=1), [stale]))
    assert numbers(tables.read("t")) == [1]
    found = load(connection, "t").properties
    assert properties.items() <= found.items()
    assert not [key for key in found if key.startswith("commit.retry.") and key not in properties]


def test_one_snapshot_has_the_files_the_offsets_the_connector_and_the_batch(
    tables: Combination, connection: CatalogConnection
) -> None:
    committer = open_new(tables)
    append(tables, committer, 3, [1, 2], offsets(t=2))
    (snapshot,) = load(connection, "t").snapshots()
    assert snapshot.summary is not None
    assert {
        "headrace.connector": "sink",
        "headrace.offsets": offsets(t=2).to_text(),
        "headrace.batch": "headrace/sink/1700000000000/3",
        "added-records": "2",
    }.items() <= snapshot.summary.additional_properties.items()


@pytest.mark.parametrize(
    "error",
    [CommitStateUnknownException("504"), ConnectionResetError("reset"), CommitFailedException("repeated by a proxy")],
)
def test_commit_that_was_applied_despite_an_error_is_not_repeated(
    tables: Combination, connection: CatalogConnection, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    committer = open_new(tables)
    _fail_commits(monkeypatch, connection, [(True, error)])
    append(tables, committer, 0, [1], offsets(t=1))
    append(tables, committer, 1, [2], offsets(t=2))
    assert numbers(tables.read("t")) == [1, 2]
    assert len(load(connection, "t").snapshots()) == 2


def test_commit_that_was_not_applied_after_an_unknown_error_is_repeated(
    tables: Combination, connection: CatalogConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer = open_new(tables)
    _fail_commits(monkeypatch, connection, [(False, CommitStateUnknownException("504"))] * 2)
    append(tables, committer, 0, [1], offsets(t=1))
    assert numbers(tables.read("t")) == [1]


def test_refused_commit_fails_at_once(
    tables: Combination, connection: CatalogConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer = open_new(tables)
    attempts = _fail_commits(monkeypatch, connection, [(False, ForbiddenError("not allowed"))] * 2)
    with pytest.raises(ConnectError, match=r"table default.t cannot be written: .*not allowed") as raised:
        append(tables, committer, 0, [1], offsets(t=1))
    assert not isinstance(raised.value, CommitOutcomeUnknownError)
    assert len(attempts) == 1


def test_refusal_after_an_attempt_with_an_unknown_result_leaves_the_result_unknown(
    tables: Combination, connection: CatalogConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer = open_new(tables)
    failures = [(False, CommitStateUnknownException("504")), (False, ForbiddenError("not allowed"))]
    _fail_commits(monkeypatch, connection, failures)
    file = tables.write(committer, rows(1), "unknown.parquet")
    with pytest.raises(CommitOutcomeUnknownError, match="the result of the commit is unknown"):
        committer.commit(Commit(identity(0), offsets(t=1), [file]))
    committer.discard([file])
    assert tables.exists(committer, "unknown.parquet")


def test_result_is_unknown_if_the_table_cannot_be_read_after_an_error(
    tables: Combination, connection: CatalogConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer = open_new(tables)
    catalog = connection.catalog()
    commit_table = catalog.commit_table

    def fail(identifier: Any) -> None:
        raise ConnectionResetError("catalog is down")

    def commit_and_stop(*arguments: Any) -> None:
        commit_table(*arguments)
        monkeypatch.setattr(catalog, "load_table", fail)
        fail(None)

    monkeypatch.setattr(catalog, "commit_table", commit_and_stop)
    file = tables.write(committer, rows(1), "unknown.parquet")
    with pytest.raises(CommitOutcomeUnknownError, match="catalog is down"):
        committer.commit(Commit(identity(0), offsets(t=1), [file]))
    committer.discard([file])
    monkeypatch.undo()
    assert tables.make("t", "sink").load(T0) == offsets(t=1)
    assert numbers(tables.read("t")) == [1]


def _fail_commits(
    monkeypatch: pytest.MonkeyPatch, connection: CatalogConnection, failures: list[tuple[bool, Exception]]
) -> list[None]:
    """Let the next commits raise these errors, after the catalog has applied the commit if the first value is true."""
    catalog, attempts = connection.catalog(), list[None]()
    commit_table: Callable[..., Any] = catalog.commit_table

    def commit(*arguments: Any) -> Any:
        attempts.append(None)
        is_applied, error = failures.pop(0) if failures else (True, None)
        result = commit_table(*arguments) if is_applied else None
        if error is not None:
            raise error
        return result

    monkeypatch.setattr(catalog, "commit_table", commit)
    return attempts


# --- history --------------------------------------------------------------------------------------------------------


def test_rollback_of_the_table_takes_the_offsets_back(tables: Combination, connection: CatalogConnection) -> None:
    committer = open_new(tables)
    append(tables, committer, 0, [1], offsets(t=1))
    first = load(connection, "t").current_snapshot()
    assert first is not None
    append(tables, committer, 1, [2], offsets(t=2))
    load(connection, "t").manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    restarted = tables.make("t", "sink")
    assert restarted.load(T0) == offsets(t=1)
    with pytest.raises(TableConflictError):
        append(tables, committer, 2, [3], offsets(t=3))
    append(tables, restarted, 1, [2], offsets(t=2))
    assert numbers(tables.read("t")) == [1, 2]


def test_rollback_to_a_snapshot_before_the_connectors_first_commit_deletes_its_offsets(
    tables: Combination, connection: CatalogConnection
) -> None:
    committer = open_new(tables)
    assert tables.append is not None
    tables.append("t", rows(100))
    first = load(connection, "t").current_snapshot()
    assert first is not None
    append(tables, committer, 0, [1], offsets(t=1))
    load(connection, "t").manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    assert tables.make("t", "sink").load(T0) == TableOffsets()
    tables.append("t", rows(101))
    assert tables.make("t", "sink").load(T0) == TableOffsets()


def test_offsets_and_the_batch_survive_the_expiration_of_snapshots(
    tables: Combination, connection: CatalogConnection
) -> None:
    committer = open_new(tables)
    append(tables, committer, 0, [1], offsets(t=1))
    assert tables.append is not None
    assert tables.clean_up_log is not None
    for number in (100, 101):
        tables.append("t", rows(number))
    tables.clean_up_log("t")
    assert len(load(connection, "t").snapshots()) == 1
    restarted = tables.make("t", "sink")
    assert restarted.load(T0) == offsets(t=1)
    append(tables, restarted, 1, [2], offsets(t=2))
    assert numbers(tables.read("t")) == [1, 2, 100, 101]


def test_manifests_are_merged(tables: Combination, connection: CatalogConnection) -> None:
    committer = open_new(tables)
    load(connection, "t").transaction().set_properties({"commit.manifest.min-count-to-merge": "4"}).commit_transaction()
    committer.load(T0)
    for batch in range(10):
        append(tables, committer, batch, [batch], offsets(t=batch + 1))
    table = load(connection, "t")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(table.io)) < 5
    assert numbers(tables.read("t")) == list(range(10))
    assert len(committer.list_files()) == 10


def test_commit_copies_the_metadata_once(tables: Combination, monkeypatch: pytest.MonkeyPatch) -> None:
    committer = open_new(tables)
    append(tables, committer, 0, [1], offsets(t=1))
    copies: list[None] = []
    update = pyiceberg.table.update_table_metadata

    def counted(*arguments: Any) -> Any:
        copies.append(None)
        return update(*arguments)

    monkeypatch.setattr(pyiceberg.table, "update_table_metadata", counted)
    append(tables, committer, 1, [2], offsets(t=2))
    assert len(copies) <= 1


def test_old_metadata_files_are_deleted(tables: Combination, connection: CatalogConnection, tmp_path: Path) -> None:
    committer = open_new(tables)
    load(connection, "t").transaction().set_properties(
        {"write.metadata.previous-versions-max": "2"}
    ).commit_transaction()
    committer.load(T0)
    for batch in range(5):
        append(tables, committer, batch, [], offsets(t=batch + 1))
    assert len(list(tmp_path.glob("default/t/metadata/*.metadata.json"))) == 3


# --- tables of other engines ----------------------------------------------------------------------------------------


def _create(connection: CatalogConnection, *fields: NestedField, spec: PartitionSpec | None = None) -> None:
    catalog = connection.catalog()
    catalog.create_namespace_if_not_exists("default")
    catalog.create_table("default.t", Schema(*fields), partition_spec=spec or PartitionSpec())


def test_required_column_is_written_unless_a_value_is_null(tables: Combination, connection: CatalogConnection) -> None:
    _create(connection, NestedField(7, "text", StringType()), NestedField(9, "n", LongType(), required=True))
    committer = open_new(tables)
    columns = {column.name: column.optional for column in committer.columns() or ()}
    assert columns == {"n": False, "text": True}
    append(tables, committer, 0, [1, 2], offsets(t=2))
    null = tables.write(committer, pa.table({"n": [3, None], "text": ["a", "b"]}), "null.parquet")
    with pytest.raises(TableSchemaError, match="column n is required, but is null in 1 records"):
        committer.commit(Commit(identity(1), offsets(t=4), [null]))
    missing = tables.write(committer, pa.table({"text": ["a", "b"]}), "missing.parquet")
    with pytest.raises(TableSchemaError, match="column n is required, but the records do not have it"):
        committer.commit(Commit(identity(1), offsets(t=4), [missing]))
    assert numbers(tables.read("t")) == [1, 2]


def test_table_with_other_types_is_refused(tables: Combination, connection: CatalogConnection) -> None:
    _create(connection, NestedField(1, "n", IntegerType()), NestedField(2, "text", TimestampType()))
    committer = tables.make("t", "sink")
    committer.load(T0)
    with pytest.raises(
        TableSchemaError, match=r"table default\.t: column n: int -> bigint, column text: timestamp_ntz -> string"
    ):
        committer.create(COLUMNS, FileLayout())


def test_table_with_required_elements_is_refused(tables: Combination, connection: CatalogConnection) -> None:
    _create(connection, NestedField(1, "list", ListType(2, LongType(), element_required=True)))
    with pytest.raises(TableSchemaError, match=r"list\[\] is required, but this sink can write only optional values"):
        tables.make("t", "sink").load(T0)


def test_partition_values_are_stored_as_the_specification_says(
    tables: Combination, connection: CatalogConnection
) -> None:
    columns = parse_ddl("n bigint, text string, ts timestamp, day date")
    fields = [("ts", "hour"), ("ts", "day"), ("n", "bucket", 8), ("text", "truncate", 2), ("day",), ("ts",)]
    layout = FileLayout(tuple(PartitionField(*field) for field in fields), (SortField("n", descending=True),))
    committer = open_new(tables, columns=columns, layout=layout)
    noon = datetime.datetime(2026, 11, 28, 12, tzinfo=datetime.UTC)
    row = {"n": 1, "text": "abc", "ts": noon, "day": noon.date()}
    hours = int(noon.timestamp()) // 3600
    values = (hours, noon.date(), 4, "ab", noon.date(), noon)
    schema = pa.schema(
        [("n", pa.int64()), ("text", pa.string()), ("ts", pa.timestamp("us", "UTC")), ("day", pa.date32())]
    )
    file = tables.write(committer, pa.Table.from_pylist([row], schema), "one.parquet", values)
    committer.commit(Commit(identity(0), offsets(t=1), [file]))
    nulls = tables.write(committer, pa.Table.from_pylist([{"n": None}], schema), "nulls.parquet", (None,) * 6)
    committer.commit(Commit(identity(1), offsets(t=2), [nulls]))
    restarted = tables.make("t", "sink")
    restarted.load(T0)
    assert restarted.layout() == layout
    table = load(connection, "t")
    found = sorted(table.inspect.files()["partition"].to_pylist(), key=lambda each: each["ts_hour"] is None)
    assert found[0] == {
        "ts_hour": hours,
        "ts_day": noon.date(),
        "n_bucket": 4,
        "text_truncate": "ab",
        "day": noon.date(),
        "ts": noon,
    }
    assert set(found[1].values()) == {None}
    assert table.scan(row_filter="ts >= '2026-11-28T12:00:00+00:00'").to_arrow().num_rows == 1
    assert table.scan(row_filter="ts < '2026-11-28T11:00:00+00:00'").to_arrow().num_rows == 0
    first = next(each for each in restarted.list_files() if each.path == "one.parquet")
    restarted.commit(Commit(identity(2), offsets(t=3), remove=[first]))
    assert [each.path for each in restarted.list_files()] == ["nulls.parquet"]


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (PartitionField("missing"), "the partition column missing does not exist"),
        (PartitionField("text", "day"), r"column text \(string\) cannot be partitioned by day"),
        (PartitionField("list"), "column list .* cannot be partitioned by identity"),
        (PartitionField("n", "bucket", 4), "the partition field n_bucket has the name of a column"),
    ],
)
def test_impossible_partition_field_is_refused(tables: Combination, field: PartitionField, message: str) -> None:
    columns = parse_ddl("n bigint, text string, list array<int>, n_bucket int")
    committer = tables.make("t", "sink")
    committer.load(T0)
    with pytest.raises(TableSchemaError, match=f"table default.t cannot be created: {message}"):
        committer.create(columns, FileLayout((field,)))


def test_dropped_partition_field_of_format_version_1_is_null(
    tables: Combination, connection: CatalogConnection
) -> None:
    catalog = connection.catalog()
    catalog.create_namespace_if_not_exists("default")
    fields = (
        NestedField(1, "n", LongType()),
        NestedField(2, "text", StringType()),
        NestedField(3, "ts", TimestamptzType()),
    )
    spec = PartitionSpec(
        IcebergPartitionField(3, 1000, DayTransform(), "ts_day"), IcebergPartitionField(2, 1001, "identity", "text")
    )
    catalog.create_table("default.t", Schema(*fields), partition_spec=spec, properties={"format-version": "1"})
    load(connection, "t").update_spec().remove_field("ts_day").commit()
    columns = parse_ddl("n bigint, text string, ts timestamp")
    committer = open_new(tables, columns=columns, layout=FileLayout((PartitionField("text"),)))
    file = tables.write(committer, rows(5), "five.parquet", ("5",))
    committer.commit(Commit(identity(0), offsets(t=1), [file]))
    assert tables.make("t", "sink").load(T0) == offsets(t=1)
    assert load(connection, "t").scan(row_filter="text = '5'").to_arrow()["n"].to_pylist() == [5]


def test_files_without_field_ids_are_read_by_the_tables_name_mapping(
    tables: Combination, connection: CatalogConnection
) -> None:
    committer = open_new(tables)
    append(tables, committer, 0, [1], offsets(t=1))
    assert "schema.name-mapping.default" not in load(connection, "t").properties
    file = Combination.write(tables, committer, rows(2), "plain.parquet")
    committer.commit(Commit(identity(1), offsets(t=2), [file]))
    load(connection, "t").update_schema().rename_column("n", "number").commit()
    assert sorted(load(connection, "t").scan().to_arrow()["number"].to_pylist()) == [1, 2]


# --- changes while the task runs ------------------------------------------------------------------------------------


def test_commit_fails_if_the_columns_have_changed(tables: Combination, connection: CatalogConnection) -> None:
    committer = open_new(tables)
    append(tables, committer, 0, [1], offsets(t=1))
    file = tables.write(committer, rows(2), "two.parquet")
    load(connection, "t").update_schema().rename_column("n", "number").commit()
    assert tables.append is not None
    tables.append("t", rows(100).rename_columns(["number", "text"]))
    with pytest.raises(TableSchemaError, match="column number removed"):
        committer.commit(Commit(identity(1), offsets(t=2), [file]))


def test_commit_fails_if_a_column_was_replaced_by_one_with_the_same_name(
    tables: Combination, connection: CatalogConnection
) -> None:
    committer = open_new(tables)
    append(tables, committer, 0, [1], offsets(t=1))
    file = tables.write(committer, rows(2), "two.parquet")
    with load(connection, "t").update_schema() as update:
        update.delete_column("text")
    with load(connection, "t").update_schema() as update:
        update.add_column("text", StringType())
    assert tables.append is not None
    tables.append("t", rows(100))
    with pytest.raises(TableSchemaError, match="column text was replaced by another column of the same name"):
        committer.commit(Commit(identity(1), offsets(t=2), [file]))


def test_commit_fails_if_the_partition_spec_has_changed(tables: Combination, connection: CatalogConnection) -> None:
    committer = open_new(tables)
    file = tables.write(committer, rows(2), "two.parquet")
    load(connection, "t").update_spec().add_identity("text").commit()
    assert tables.append is not None
    tables.append("t", rows(100))
    with pytest.raises(TableSchemaError, match="t is partitioned by text"):
        committer.commit(Commit(identity(0), offsets(t=2), [file]))


def test_commit_fails_if_the_table_was_dropped_or_created_again(
    tables: Combination, connection: CatalogConnection
) -> None:
    committer = open_new(tables)
    append(tables, committer, 0, [1], offsets(t=1))
    file = tables.write(committer, rows(2), "two.parquet")
    connection.catalog().drop_table("default.t")
    with pytest.raises(ConnectError, match=r"default\.t was removed by another process"):
        committer.commit(Commit(identity(1), offsets(t=2), [file]))
    committer = open_new(tables)
    connection.catalog().drop_table("default.t")
    open_new(tables)
    with pytest.raises(ConnectError, match="dropped and created again"):
        committer.commit(Commit(identity(1), offsets(t=2), [file]))


# --- names and processes --------------------------------------------------------------------------------------------


def test_folders_of_the_tables_name_are_its_namespace(tables: Combination, connection: CatalogConnection) -> None:
    for name, identifier in [("a/b/c", ("a", "b", "c")), ("x.y", ("default", "x.y"))]:
        committer = open_new(tables, name)
        append(tables, committer, 0, [1], offsets(t=1))
        assert committer.location == ".".join(identifier)
        assert connection.catalog().table_exists(identifier)
        assert tables.make(name, "sink").load(T0) == offsets(t=1)


_PROCESS = """
import sys
from headrace_connectors.lakehouse.s3_access import S3Access
from headrace_connectors.lakehouse.table_uri import TableUri
from support import iceberg_committers
from support.lakehouse_committers import append, offsets, open_new
root, name = sys.argv[1:]
tables = iceberg_committers.combination("iceberg-local", iceberg_committers.connect(TableUri(root)))
committer = open_new(tables, connector=name)
for batch in range(8):
    append(tables, committer, batch, [batch], offsets(**{name: batch + 1}), name)
"""


def test_connectors_in_two_processes_append_to_one_table(tables: Combination, tmp_path: Path) -> None:
    open_new(tables)
    environment = {"PYTHONPATH": ":".join(sys.path)}
    processes = [
        subprocess.Popen([sys.executable, "-c", _PROCESS, str(tmp_path), name], env=environment)
        for name in ("one", "two")
    ]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    assert numbers(tables.read("t")) == sorted([*range(8), *range(8)])
    for name in ("one", "two"):
        assert tables.make("t", name).load() == offsets(**{name: 8})


def test_renewal_of_credentials_detects_another_process(tables: Combination) -> None:
    one, other = (open_new(tables) for _ in range(2))
    append(tables, one, 0, [1], offsets(t=1))
    one.use_access(S3Access("new", "secret"))
    with pytest.raises(TableConflictError, match="check whether the connector is running twice"):
        other.use_access(S3Access("new", "secret"))


def test_renewed_credentials_are_used_when_a_table_is_loaded(connection: CatalogConnection) -> None:
    committer: TableCommitter = IcebergCommitter("t", connection, "sink")
    committer.load()
    committer.create(COLUMNS, FileLayout())
    connection.renew({"s3.access-key-id": "new"})
    committer.use_access(S3Access("new", "secret"))
    assert isinstance(committer, IcebergCommitter)
    assert committer._table is not None
    assert committer._table.io.properties["s3.access-key-id"] == "new"
