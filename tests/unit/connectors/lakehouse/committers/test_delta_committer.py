"""Tests of the Delta committer: partition columns, statistics, the log, and changes by other tools."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
import pyarrow as pa
from deltalake import DeltaTable, Field, write_deltalake

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.column_types import TableColumn, leaf_types
from headrace_connectors.lakehouse.committers.base import (
    Commit,
    TableSchemaError,
    TableUnusableError,
)
from headrace_connectors.lakehouse.ddl import parse_ddl
from headrace_connectors.lakehouse.files.layout import FileLayout, PartitionField
from headrace_connectors.lakehouse.offsets import TableOffsets
from support.lakehouse_committers import (
    ALL_TYPES,
    ALL_TYPES_ROW,
    ALL_TYPES_SCHEMA,
    COLUMNS,
    Combination,
    append,
    delta_local,
    identity,
    numbers,
    offsets,
    open_new,
    rows,
)

T0 = [("t", 0)]


@pytest.fixture
def delta(tmp_path: Path) -> Combination:
    return delta_local(tmp_path)


def log_actions(table: Path, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (table / "_delta_log" / f"{version:020d}.json").read_text().splitlines()]


# --- partition columns and statistics -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "stored"),
    [
        (PartitionField("k", "year"), 56, 2026),
        (PartitionField("k", "month"), 682, "2026-11"),
        (PartitionField("k", "month"), -1, "1969-12"),
        (PartitionField("k", "day"), datetime.date(1969, 12, 31), datetime.date(1969, 12, 31)),
        (PartitionField("k", "hour"), 498_805, "2026-11-26-13"),
        (PartitionField("h", "bucket", 16), 3, 3),
        (PartitionField("h", "truncate", 2), "gr", "gr"),
        (PartitionField("d", "truncate", 10), -20, -20),
        (PartitionField("j"), datetime.date(2026, 11, 28), datetime.date(2026, 11, 28)),
        (PartitionField("k"), ALL_TYPES_ROW["k"], ALL_TYPES_ROW["k"]),
        (PartitionField("g"), True, True),
        (PartitionField("a"), -128, -128),
        (PartitionField("l"), Decimal("1234.500"), Decimal("1234.500")),
        (PartitionField("name with space"), "a/b=%", "a/b=%"),
        (PartitionField("k", "day"), None, None),
    ],
)
def test_partition_column_has_the_value_that_readers_expect(
    field: PartitionField, value: Any, stored: Any, delta: Combination
) -> None:
    layout = FileLayout((field,))
    committer = open_new(delta, columns=ALL_TYPES, layout=layout)
    row = {**ALL_TYPES_ROW, **({field.column: value} if field.transform == "identity" else {})}
    file = delta.write(committer, pa.Table.from_pylist([row], ALL_TYPES_SCHEMA), "x=1/1.parquet", (value,))
    committer.commit(Commit(identity(0), offsets(t=1), [file]))
    assert delta.read("t")[field.name].to_pylist() == [stored]
    restarted = delta.make("t", "sink")
    restarted.load(T0)
    assert restarted.layout() == layout
    assert leaf_types(restarted.columns() or ()) == leaf_types(ALL_TYPES)
    restarted.create(ALL_TYPES, layout)
    restarted.commit(Commit(identity(1), offsets(t=2), (), restarted.list_files()))
    assert delta.read("t").num_rows == 0


def test_partition_by_a_binary_column_is_refused(delta: Combination) -> None:
    with pytest.raises(TableSchemaError, match="cannot be partitioned by column i: Delta tables have no"):
        open_new(delta, columns=ALL_TYPES, layout=FileLayout((PartitionField("i"),)))
    open_new(delta, columns=ALL_TYPES, layout=FileLayout((PartitionField("i", "bucket", 4),)))


def test_tables_use_no_reader_feature_and_files_have_statistics(delta: Combination, tmp_path: Path) -> None:
    committer = open_new(delta)
    append(delta, committer, 0, [5, 3, 9], offsets(t=3))
    protocol = DeltaTable(tmp_path / "t").protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
    assert protocol.reader_features is None
    statistics = json.loads(next(a["add"]["stats"] for a in log_actions(tmp_path / "t", 0) if "add" in a))
    assert statistics == {
        "numRecords": 3,
        "minValues": {"n": 3, "text": "3"},
        "maxValues": {"n": 9, "text": "9"},
        "nullCount": {"n": 0, "text": 0},
    }


# --- the log --------------------------------------------------------------------------------------------------------


def test_offsets_are_found_in_a_checkpoint_and_in_the_commits_after_it(delta: Combination, tmp_path: Path) -> None:
    names = ["a/b", "other", "third"]
    committers = [open_new(delta, connector=name) for name in names]
    for number, (name, committer) in enumerate(zip(names, committers, strict=True)):
        append(delta, committer, 0, [number], offsets(**{f"t{number}": 5 + number}), name)
    assert delta.clean_up_log is not None
    delta.clean_up_log("t")
    append(delta, committers[2], 1, [9], offsets(t2=8), "third")
    reader = delta.make("t", "new")
    assert reader.load(T0) == TableOffsets()
    found = reader.other_connectors([("t0", 0), ("t1", 0), ("t2", 0)])
    assert {name: other.next_offsets for name, other in found.items()} == {
        "a/b": {("t0", 0): 5},
        "other": {("t1", 0): 6},
        "third": {("t2", 0): 8},
    }
    assert delta.make("t", "third").load() == offsets(t2=8)
    assert delta.make("t", "a/b").load().next_offsets == {("t0", 0): 5}


def test_offsets_survive_altering_or_overwriting_the_table(delta: Combination, tmp_path: Path) -> None:
    """The error message about changed columns recommends altering or overwriting the table."""
    append(delta, open_new(delta), 0, [1], offsets(t=4))
    DeltaTable(tmp_path / "t").alter.add_columns([Field("extra", "integer")])
    wider = (*COLUMNS, *parse_ddl("extra int"))
    again = delta.make("t", "sink")
    assert again.load(T0) == offsets(t=4)
    again.create(wider, FileLayout())
    file = delta.write(again, rows(2).append_column("extra", pa.array([3], pa.int32())), "wider.parquet")
    again.commit(Commit(identity(1), offsets(t=5), [file]))

    texts = delta.read("t").set_column(0, "n", pa.array(["1", "2"]))
    write_deltalake(tmp_path / "t", texts, mode="overwrite", schema_mode="overwrite")
    last = delta.make("t", "sink")
    assert last.load(T0) == offsets(t=5)
    with pytest.raises(TableSchemaError, match="column n: string -> bigint"):
        last.create(wider, FileLayout())


def test_log_of_another_tool_without_offsets_has_none(delta: Combination, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", rows(1))
    committer = delta.make("t", "sink")
    assert committer.load(T0) == TableOffsets()
    assert committer.exists()
    assert committer.other_connectors(T0) == {}
    committer.create(COLUMNS, FileLayout())
    append(delta, committer, 0, [2], offsets(t=1))
    assert numbers(delta.read("t")) == [1, 2]


# --- changes by other tools -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["append", "delete", "property", "create"])
def test_commit_is_retried_after_another_tool_has_changed_the_table(
    change: str, delta: Combination, tmp_path: Path
) -> None:
    committer = open_new(delta)
    if change == "create":
        write_deltalake(tmp_path / "t", rows(1))
    else:
        append(delta, committer, 0, [1], offsets(t=4))
    if change == "append":
        write_deltalake(tmp_path / "t", rows(7), mode="append")
    elif change == "delete":
        DeltaTable(tmp_path / "t").delete("n = 1")
    elif change == "property":
        DeltaTable(tmp_path / "t").alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})
    append(delta, committer, 1, [2], offsets(t=5))
    expected = {"append": [1, 2, 7], "delete": [2], "property": [1, 2], "create": [1, 2]}
    assert numbers(delta.read("t")) == expected[change]
    assert delta.make("t", "sink").load(T0) == offsets(t=5)


def test_commit_error_names_a_column_that_another_tool_added_between_two_commits(
    delta: Combination, tmp_path: Path
) -> None:
    committer = open_new(delta)
    append(delta, committer, 0, [1], offsets(t=4))
    DeltaTable(tmp_path / "t").alter.add_columns([Field("extra", "integer")])
    with pytest.raises(TableSchemaError, match="column extra removed"):
        append(delta, committer, 1, [2], offsets(t=5))


def test_table_created_concurrently_with_other_partition_fields_is_refused(delta: Combination, tmp_path: Path) -> None:
    committer = open_new(delta)
    write_deltalake(tmp_path / "t", rows(1), partition_by=["text"])
    with pytest.raises(TableSchemaError, match="is partitioned by text, but the configuration says no column"):
        append(delta, committer, 0, [2], offsets(t=1))


def test_replacing_a_file_that_another_tool_has_rewritten_fails(delta: Combination, tmp_path: Path) -> None:
    committer = open_new(delta)
    append(delta, committer, 0, [1], offsets(t=1))
    append(delta, committer, 1, [2], offsets(t=2))
    replaced = committer.list_files()[:1]
    DeltaTable(tmp_path / "t").optimize.compact()
    with pytest.raises(ConnectError, match="another tool has removed or rewritten file part-sink"):
        append(delta, committer, 2, [1, 10], offsets(t=3), remove=replaced)
    assert numbers(delta.read("t")) == [1, 2]


def test_table_that_was_removed_between_two_commits_is_not_created_again(delta: Combination, tmp_path: Path) -> None:
    committer = open_new(delta)
    append(delta, committer, 0, [1], offsets(t=4))
    for file in (tmp_path / "t" / "_delta_log").iterdir():
        file.unlink()
    with pytest.raises(ConnectError):
        append(delta, committer, 1, [2], offsets(t=5))


def test_table_with_types_that_records_cannot_have_shows_them_in_the_error(delta: Combination, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", rows(1).append_column("at", pa.array([None], pa.timestamp("us"))))
    committer = delta.make("t", "sink")
    committer.load(T0)
    assert [str(column.type) for column in committer.columns() or ()] == ["bigint", "string", "timestamp_ntz"]
    with pytest.raises(TableSchemaError, match="column at: timestamp_ntz -> timestamp"):
        committer.create((*COLUMNS, *parse_ddl("at timestamp")), FileLayout())


# --- refused tables -------------------------------------------------------------------------------------------------


def test_directory_of_a_parquet_or_iceberg_table_is_rejected(delta: Combination, tmp_path: Path) -> None:
    (tmp_path / "parquet" / "_headrace" / "commits").mkdir(parents=True)
    with pytest.raises(
        TableUnusableError, match=r"is a Parquet table of this connector, but lakehouse.format=delta; set another"
    ):
        delta.make("parquet", "sink").load(T0)
    (tmp_path / "iceberg" / "metadata").mkdir(parents=True)
    (tmp_path / "iceberg" / "metadata" / "00000-x.metadata.json").write_text("{}")
    with pytest.raises(TableUnusableError, match=r"is an Iceberg table, but lakehouse.format=delta"):
        delta.make("iceberg", "sink").load(T0)


@pytest.mark.parametrize(
    ("protocol", "action"),
    [
        ({"minReaderVersion": 9, "minWriterVersion": 9}, "read: .*Unsupported minimum reader version 9"),
        ({"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["rowTracking"]}, "written: .*RowTracking"),
        ({"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["futureThing"]}, "written: .*futureThing"),
    ],
)
def test_error_for_an_unsupported_delta_feature_names_the_table(
    protocol: dict[str, object], action: str, delta: Combination, tmp_path: Path
) -> None:
    write_deltalake(tmp_path / "t", rows(1))
    (tmp_path / "t" / "_delta_log" / f"{1:020d}.json").write_text(json.dumps({"protocol": protocol}) + "\n")
    with pytest.raises(ConnectError, match=f"table {tmp_path}/t cannot be {action}.*lakehouse.table.name.format"):
        append(delta, open_new(delta), 0, [2], offsets(t=1))


def create_by_another_tool(table: Path, field: dict[str, Any], configuration: dict[str, str], writer: int = 4) -> None:
    schema = {"type": "struct", "fields": [{"name": "n", "type": "long", "nullable": True, "metadata": {}, **field}]}
    metadata = {
        "id": "x",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema),
        "partitionColumns": [],
        "configuration": configuration,
        "createdTime": 1,
    }
    (table / "_delta_log").mkdir(parents=True)
    actions = [{"protocol": {"minReaderVersion": 2, "minWriterVersion": writer}}, {"metaData": metadata}]
    (table / "_delta_log" / f"{0:020d}.json").write_text("\n".join(map(json.dumps, actions)))


@pytest.mark.parametrize(
    ("field", "configuration", "feature"),
    [
        ({}, {"delta.constraints.small": "n < 5"}, "checkConstraints"),
        ({"metadata": {"delta.invariants": '{"expression":{"expression":"n < 5"}}'}}, {}, "invariants"),
        ({"metadata": {"delta.generationExpression": "5"}}, {}, "generatedColumns"),
        (
            {"metadata": {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-1"}},
            {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "1"},
            "columnMapping",
        ),
    ],
)
def test_table_with_rules_that_delta_rs_does_not_check_for_finished_files_is_refused(
    field: dict[str, Any], configuration: dict[str, str], feature: str, delta: Combination, tmp_path: Path
) -> None:
    create_by_another_tool(tmp_path / "t", field, configuration, writer=5)
    with pytest.raises(ConnectError, match=rf"table .*/t cannot be written: .*\({feature}\)"):
        delta.make("t", "sink").load(T0)


def test_null_in_a_required_column_of_a_table_is_refused(delta: Combination, tmp_path: Path) -> None:
    create_by_another_tool(tmp_path / "t", {"nullable": False}, {})
    committer = delta.make("t", "sink")
    committer.load(T0)
    good, bad = (pa.table({"n": pa.array(values, pa.int64())}) for values in ([1, 2], [3, None]))
    committer.commit(Commit(identity(0), offsets(t=2), [delta.write(committer, good, "good.parquet")]))
    with pytest.raises(TableSchemaError, match="column n is NOT NULL, but it is null in 1 records"):
        committer.commit(Commit(identity(1), offsets(t=4), [delta.write(committer, bad, "bad.parquet")]))
    assert numbers(delta.read("t")) == [1, 2]


def test_column_of_kind_time_is_stored_as_int(delta: Combination) -> None:
    from headrace_connectors.lakehouse.column_types import ColumnType

    columns = (TableColumn("clock", ColumnType("time")),)
    committer = open_new(delta, columns=columns)
    committer.commit(Commit(identity(0), offsets(t=1)))
    restarted = delta.make("t", "sink")
    restarted.load(T0)
    restarted.create(columns, FileLayout())
    assert [str(column.type) for column in restarted.columns() or ()] == ["int"]
