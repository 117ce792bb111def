"""Tests of table writers, which commit rows and offsets atomically, and of TopicRows, which converts Arrow rows."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from unittest.mock import Mock

import pytest

pytest.importorskip("deltalake")
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Field, write_deltalake

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.arrow_rows import BAD_PAYLOAD, TopicRows, split_by_topic
from headrace_connectors.lakehouse.column_types import leaf_types
from headrace_connectors.lakehouse.ddl import parse_ddl
from headrace_connectors.lakehouse.ranges import KafkaSourceOffset, Range
from headrace_connectors.lakehouse.tables import Table, Tables
from headrace_connectors.lakehouse.writers import open_writer
from headrace_connectors.lakehouse.writers.base import (
    BatchIdentity,
    TableConflictError,
    TableSchemaError,
    TableUnusableError,
    leaf_type_texts,
)

SCHEMA = pa.schema([("name with space", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("n", pa.int32())])
FORMATS = pytest.mark.parametrize("format_", ["delta", "parquet"])


def rows(*numbers: int) -> pa.Table:
    return pa.Table.from_pylist([{"name with space": str(n), "n": n} for n in numbers], schema=SCHEMA)


def batch(number: int) -> BatchIdentity:
    return BatchIdentity("sink", 1_700_000_000_000, number)


def position(offset: int) -> KafkaSourceOffset:
    return KafkaSourceOffset({("t", 0): offset, ("u", 3): 7}, {"t": "topic-id"})


def numbers_in(format_: str, directory: Path) -> list[int]:
    table = DeltaTable(directory).to_pyarrow_table() if format_ == "delta" else pq.read_table(directory)
    return sorted(table["n"].to_pylist())


@FORMATS
def test_table_writer_commits_rows_together_with_their_offsets(format_: str, tmp_path: Path) -> None:
    directory = tmp_path / "nested" / "table"
    writer = open_writer(format_, directory, "sink")
    assert writer.committed() == KafkaSourceOffset()
    assert writer.columns() is None
    writer.write(batch(0), rows(1, 2), position(2))
    writer.write(batch(1), rows(), position(5))  # a batch of bad records adds no rows but advances the offset
    writer.write(batch(2), rows(3), position(6))
    assert numbers_in(format_, directory) == [1, 2, 3]

    fresh = open_writer(format_, directory, "sink")
    assert fresh.committed() == position(6)
    assert fresh.columns() is not None
    fresh.prepare(SCHEMA)
    with pytest.raises(TableSchemaError, match="column n: int -> bigint"):
        fresh.prepare(SCHEMA.set(2, pa.field("n", pa.int64())))
    with pytest.raises(TableSchemaError, match=r"column `name with space` removed \(string\)"):
        fresh.prepare(SCHEMA.remove(0))


@FORMATS
def test_write_fails_if_another_writer_has_committed_the_same_offsets(format_: str, tmp_path: Path) -> None:
    one, other = (open_writer(format_, tmp_path / "table", "sink") for _ in range(2))
    assert one.committed() == other.committed() == KafkaSourceOffset()
    one.write(batch(0), rows(1), position(1))
    with pytest.raises(TableConflictError, match="another process"):
        other.write(batch(0), rows(1), position(1))
    other.committed()
    one.write(batch(1), rows(2), position(2))
    with pytest.raises(TableConflictError, match="another process"):
        other.write(batch(1), rows(2), position(2))
    assert numbers_in(format_, tmp_path / "table") == [1, 2]


def test_committed_offsets_of_a_delta_table_survive_the_cleanup_of_its_transaction_log(tmp_path: Path) -> None:
    directory = tmp_path / "table"
    writer = open_writer("delta", directory, "sink")
    writer.committed()
    writer.write(batch(0), rows(1), position(4))
    table = DeltaTable(directory)
    table.create_checkpoint()
    # Delta's log retention deletes the commits before the checkpoint, and the metadata in them.
    (directory / "_delta_log" / f"{0:020d}.json").unlink()
    found = open_writer("delta", directory, "sink").committed([("t", 0), ("u", 3), ("u", 4)])
    assert found.next_offsets == position(4).next_offsets


def test_committed_offsets_of_a_delta_table_survive_altering_or_overwriting_the_table(tmp_path: Path) -> None:
    """The error message about changed columns recommends altering or overwriting the table."""
    directory = tmp_path / "table"
    writer = open_writer("delta", directory, "sink")
    writer.committed()
    writer.write(batch(0), rows(1), position(4))
    DeltaTable(directory).alter.add_columns([Field("extra", "integer")])
    wider = SCHEMA.append(pa.field("extra", pa.int32()))
    again = open_writer("delta", directory, "sink")
    assert again.committed() == position(4)
    again.prepare(wider)
    again.write(batch(1), pa.Table.from_pylist([{"n": 2, "extra": 3}], schema=wider), position(5))

    texts = DeltaTable(directory).to_pyarrow_table().cast(wider.set(2, pa.field("n", pa.string())))
    write_deltalake(directory, texts, mode="overwrite", schema_mode="overwrite")
    last = open_writer("delta", directory, "sink")
    assert last.committed() == position(5)
    with pytest.raises(TableSchemaError, match="column n: string -> int"):
        last.prepare(wider)


@pytest.mark.parametrize("others", ["append", "delete", "property", "create"])
def test_delta_commit_is_retried_after_another_tool_has_changed_the_table(others: str, tmp_path: Path) -> None:
    directory = tmp_path / "table"
    writer = open_writer("delta", directory, "sink")
    writer.committed()
    if others == "create":
        write_deltalake(directory, rows(1))
    else:
        writer.write(batch(0), rows(1), position(4))
    if others == "append":
        write_deltalake(directory, rows(7), mode="append")
    elif others == "delete":
        DeltaTable(directory).delete("n = 1")
    elif others == "property":
        DeltaTable(directory).alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})
    writer.write(batch(1), rows(2), position(5))
    expected = {"append": [1, 2, 7], "delete": [2], "property": [1, 2], "create": [1, 2]}
    assert numbers_in("delta", directory) == expected[others]
    assert open_writer("delta", directory, "sink").committed() == position(5)


def test_write_error_names_a_column_that_another_tool_added_between_two_commits(tmp_path: Path) -> None:
    writer = open_writer("delta", tmp_path / "table", "sink")
    writer.committed()
    writer.write(batch(0), rows(1), position(4))
    DeltaTable(tmp_path / "table").alter.add_columns([Field("extra", "integer")])
    with pytest.raises(TableSchemaError, match="column extra removed"):
        writer.write(batch(1), rows(2), position(5))


def test_committed_offsets_in_a_delta_table_are_separate_for_each_connector(tmp_path: Path) -> None:
    writer = open_writer("delta", tmp_path / "table", "sink")
    writer.committed()
    writer.write(batch(0), rows(1), position(4))
    assert open_writer("delta", tmp_path / "table", "other").committed([("t", 0)]) == KafkaSourceOffset()


@pytest.mark.parametrize("crash_at", ["staged", "linked"])
def test_parquet_table_loses_and_duplicates_no_rows_after_a_crash_before_or_after_the_commit(
    crash_at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "table"
    writer = open_writer("parquet", directory, "sink")
    writer.committed()
    writer.write(batch(0), rows(1), position(1))

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(writer, "_link" if crash_at == "staged" else "_publish", crash)
    with pytest.raises(KeyboardInterrupt):
        writer.write(batch(1), rows(2), position(2))
    assert numbers_in("parquet", directory) == [1]

    again = open_writer("parquet", directory, "sink")
    committed = again.committed()
    assert committed == position(1 if crash_at == "staged" else 2)
    if crash_at == "staged":
        again.write(batch(0), rows(2), position(2))
    assert numbers_in("parquet", directory) == [1, 2]
    assert list((directory / "_headrace" / "staged").iterdir()) == []


def test_table_directory_with_files_of_another_format_or_tool_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    pq.write_table(rows(1), tmp_path / "foreign" / "a.parquet")
    with pytest.raises(
        TableUnusableError, match=r"foreign contains files .* not write \(a.parquet\); set another table name"
    ):
        open_writer("parquet", tmp_path / "foreign", "sink").committed()
    for format_, other, message in (
        ("delta", "parquet", "is a Delta table"),
        ("parquet", "delta", "is a Parquet table"),
    ):
        writer = open_writer(format_, tmp_path / format_, "sink")
        writer.committed()
        writer.write(batch(0), rows(1), position(1))
        with pytest.raises(TableUnusableError, match=message):
            open_writer(other, tmp_path / format_, "sink").committed()


@pytest.mark.parametrize(
    ("protocol", "action"),
    [
        ({"minReaderVersion": 9, "minWriterVersion": 9}, "read: .*Unsupported minimum reader version 9"),
        ({"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["rowTracking"]}, "written: .*RowTracking"),
        ({"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["futureThing"]}, "written: .*futureThing"),
    ],
)
def test_error_for_an_unsupported_delta_feature_names_the_table(
    protocol: dict[str, object], action: str, tmp_path: Path
) -> None:
    write_deltalake(tmp_path / "t", rows(1))
    (tmp_path / "t" / "_delta_log" / f"{1:020d}.json").write_text(json.dumps({"protocol": protocol}) + "\n")
    tables = Tables(tmp_path, "${topic}", lambda directory: open_writer("delta", directory, "sink"))
    with pytest.raises(ConnectError, match=f"table {tmp_path}/t cannot be {action}.*lakehouse.table.name.format"):
        tables.open("t").write(batch(0), rows(2), position(1))


@FORMATS
def test_write_fails_while_the_disk_is_full_and_succeeds_afterwards(
    format_: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = Tables(tmp_path, "${topic}", lambda directory: open_writer(format_, directory, "sink"))
    full = OSError(errno.ENOSPC, "No space left on device")
    function = {"delta": "delta.write_deltalake", "parquet": "parquet.pq.write_table"}[format_]
    with monkeypatch.context() as patched:
        patched.setattr(f"headrace_connectors.lakehouse.writers.{function}", Mock(side_effect=full))
        with pytest.raises(ConnectError, match=f"no space left on the disk of {tmp_path}/t .lakehouse.path"):
            tables.open("t").write(batch(0), rows(1), position(1))
    assert not tables.open("t").is_ours
    tables.open("t").write(batch(0), rows(1), position(1))
    assert tables.open("t").is_ours
    assert numbers_in(format_, tmp_path / "t") == [1]


def test_committed_offsets_are_loaded_from_existing_tables(tmp_path: Path) -> None:
    """A new `Tables` object loads the offsets that an earlier `Tables` object has committed."""
    tables = Tables(tmp_path, "bronze/${topic}", lambda directory: open_writer("delta", directory, "sink"))
    table = tables.open("t")
    assert isinstance(table, Table)
    assert table.is_missing(Range("t", 0, 0, 5))
    table.writer.write(batch(0), rows(1), table.offset_after([Range("t", 0, 0, 5)], {"t": "id"}))
    again = Tables(tmp_path, "bronze/${topic}", lambda directory: open_writer("delta", directory, "sink"))
    assert again.load_offsets([("t", 0), ("t", 1), ("new", 0)]) == KafkaSourceOffset({("t", 0): 5}, {"t": "id"})
    assert not again.open("t").is_missing(Range("t", 0, 0, 5))
    assert (tmp_path / "bronze" / "t" / "_delta_log").is_dir()


def test_arrow_schema_and_ddl_with_the_same_columns_have_the_same_leaf_types() -> None:
    declared = parse_ddl(
        "a tinyint, b smallint, c int, d bigint, e float, f double, g boolean, h string, i binary, j date, k timestamp,"
        " l decimal(12,3), m array<struct<`x y`: int, z: string>>, n map<string, array<int>>,"
        " o struct<p: struct<q: int>>"
    )
    schema = pa.schema(
        [
            ("a", pa.int8()),
            ("b", pa.int16()),
            ("c", pa.int32()),
            ("d", pa.int64()),
            ("e", pa.float32()),
            ("f", pa.float64()),
            ("g", pa.bool_()),
            ("h", pa.string()),
            ("i", pa.binary()),
            ("j", pa.date32()),
            ("k", pa.timestamp("us", tz="UTC")),
            ("l", pa.decimal128(12, 3)),
            ("m", pa.list_(pa.struct([("x y", pa.int32()), ("z", pa.string())]))),
            ("n", pa.map_(pa.string(), pa.list_(pa.int32()))),
            ("o", pa.struct([("p", pa.struct([("q", pa.int32())]))])),
        ]
    )
    assert leaf_type_texts(schema) == leaf_types(declared)


# --- Arrow rows -----------------------------------------------------------------------------------------------------


def kafka(topic: str, offsets: list[int], ids: list[int], errors: list[str | None] | None = None) -> pa.Table:
    count = len(offsets)
    return pa.table(
        {
            "topic": [topic] * count,
            "partition": pa.array([o % 2 for o in offsets], pa.int32()),
            "offset": offsets,
            "timestamp": pa.array([0] * count, pa.timestamp("us", tz="UTC")),
            "schema_id": ids,
            "schema": pa.array([f"schema {id_}" for id_ in ids]),
            "error": pa.array(errors or [None] * count, pa.string()),
        }
    )


VALUES = pa.struct([(BAD_PAYLOAD, pa.string()), ("n", pa.int32())])


def topic_rows() -> TopicRows:
    values = pa.array(
        [{BAD_PAYLOAD: None, "n": 1}, None, {BAD_PAYLOAD: "oops", "n": None}, {BAD_PAYLOAD: None, "n": None}], VALUES
    )
    return TopicRows("t", kafka("t", [4, 5, 6, 7], [1, 0, 1, 1], [None, None, None, "no"]), values)


def test_topic_rows_object_finds_unreadable_rows_and_missing_required_values_and_unknown_schemas() -> None:
    rows_ = topic_rows()
    assert list(rows_.unreadable_rows()) == [(2, None, "oops"), (3, "no", None)]
    assert list(rows_.missing_required_values(["n"])) == [(3, "n")]
    assert list(rows_.unknown_schemas([1])) == []
    assert list(rows_.unknown_schemas([2])) == [(0, "schema 1")]
    assert str(rows_.record_position(1)) == "topic t, partition 1, offset 5"


def test_valid_rows_are_converted_to_table_rows_with_metadata_columns() -> None:
    table = topic_rows().drop([2, 3]).to_table(None, metadata=True)
    assert table is not None
    assert table.column_names == ["_kafka_topic", "_kafka_partition", "_kafka_offset", "_kafka_timestamp", "n"]
    assert table["n"].to_pylist() == [1, None]
    assert table["_kafka_offset"].to_pylist() == [4, 5]


def test_rows_with_offsets_that_the_table_already_contains_are_dropped() -> None:
    fresh = topic_rows().from_offsets({("t", 0): 5, ("t", 1): 7, ("u", 0): 99})
    assert fresh.kafka["offset"].to_pylist() == [6, 7]
    assert topic_rows().from_offsets({}).kafka["offset"].to_pylist() == [4, 5, 6, 7]


def test_rows_at_or_after_a_partitions_end_offset_are_dropped() -> None:
    before = topic_rows().before_offsets({("t", 0): 6, ("u", 1): 0})
    assert before.kafka["offset"].to_pylist() == [4, 5, 7]
    assert before.values is not None
    assert len(before.values) == 3
    assert topic_rows().rows_with_schemas([0, 9]) == [1]


def test_tombstones_are_converted_to_rows_with_null_in_the_columns_of_the_table() -> None:
    rows_ = TopicRows("t", kafka("t", [1], [0]), None)
    assert rows_.to_table(None, metadata=True) is None
    table = rows_.to_table(pa.schema([("n", pa.int32()), ("_kafka_topic", pa.string())]), metadata=True)
    assert table is not None
    assert table["n"].to_pylist() == [None]


def test_micro_batch_is_split_into_the_rows_of_each_topic() -> None:
    both = pa.concat_tables([kafka("a", [1, 2], [1, 1]), kafka("b", [3], [2])])
    values = pa.array([{BAD_PAYLOAD: None, "n": 1}, {BAD_PAYLOAD: None, "n": 2}, None], VALUES)
    a, b = split_by_topic(both.append_column("group_0", values), {"a": "group_0"})
    assert (a.topic, len(a), b.topic, len(b)) == ("a", 2, "b", 1)
    assert a.values is not None
    assert a.values.field("n").to_pylist() == [1, 2]
    assert b.values is None
