"""The files that executors write for Iceberg tables: field ids, partition values and statistics."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyiceberg")
import pyarrow as pa
import pyarrow.parquet as pq

from headrace_connectors.lakehouse.committers.base import Commit, TableFile
from headrace_connectors.lakehouse.committers.iceberg import IcebergCommitter
from headrace_connectors.lakehouse.committers.iceberg_catalog import CatalogConnection
from headrace_connectors.lakehouse.ddl import parse_ddl
from headrace_connectors.lakehouse.files.data_file import DataFile
from headrace_connectors.lakehouse.files.field_ids import read_field_ids, with_field_ids
from headrace_connectors.lakehouse.files.layout import FileLayout
from headrace_connectors.lakehouse.files.layout_text import parse_partition_spec, parse_sort_order
from headrace_connectors.lakehouse.files.settings import WriterSettings
from headrace_connectors.lakehouse.files.stores import FileStore
from headrace_connectors.lakehouse.files.table_target import TableTarget
from headrace_connectors.lakehouse.files.writers import FileWriters
from headrace_connectors.lakehouse.table_uri import TableUri
from support import iceberg_committers
from support.iceberg_committers import iceberg_schema, load
from support.lakehouse_committers import ALL_TYPES, ALL_TYPES_ROW, ALL_TYPES_SCHEMA, identity, offsets

COLUMNS = parse_ddl("n bigint, text string, price decimal(9,2), day date, ts timestamp, raw binary, flag boolean")
SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("text", pa.string()),
        ("price", pa.decimal128(9, 2)),
        ("day", pa.date32()),
        ("ts", pa.timestamp("us", "UTC")),
        ("raw", pa.binary()),
        ("flag", pa.bool_()),
    ]
)


@pytest.fixture
def connection(tmp_path: Path) -> CatalogConnection:
    return iceberg_committers.connect(TableUri(str(tmp_path)))


def _write(committer: IcebergCommitter, schema: pa.Schema, rows: list[dict[str, Any]]) -> tuple[DataFile, ...]:
    """Write rows as a Spark task does."""
    layout, columns = committer.layout(), committer.columns()
    assert layout is not None
    target = TableTarget("t", committer.data_location(), columns, layout, field_ids=committer.field_ids())
    with FileWriters(FileStore(), WriterSettings(), "task-1") as writers:
        batch = pa.RecordBatch.from_pylist(rows, schema)
        writers.write(target, with_field_ids(schema, target.field_ids), batch)
        return tuple(writers.finish())


def _create(connection: CatalogConnection, columns: Any, layout: FileLayout) -> IcebergCommitter:
    committer = IcebergCommitter("t", connection, "sink")
    committer.load()
    committer.create(columns, layout)
    return committer


def test_files_have_the_field_ids_of_all_columns_and_nested_fields(connection: CatalogConnection) -> None:
    committer = _create(connection, ALL_TYPES, FileLayout())
    (file,) = _write(committer, iceberg_schema(ALL_TYPES_SCHEMA), [ALL_TYPES_ROW, dict.fromkeys(ALL_TYPES_ROW)])
    footer = pq.read_metadata(pa.BufferReader(file.footer))
    assert read_field_ids(footer.schema.to_arrow_schema()) == committer.field_ids()
    committer.commit(Commit(identity(0), offsets(t=2), [file]))
    table = load(connection, "t")
    assert "schema.name-mapping.default" not in table.properties
    with table.update_schema() as update:
        update.rename_column("d", "renamed")
        update.rename_column("o.p.q", "renamed_too")
    row = load(connection, "t").scan(row_filter="a is not null").to_arrow().to_pylist()[0]
    assert (row["renamed"], row["o"]) == (ALL_TYPES_ROW["d"], {"p": {"renamed_too": 7}})


@pytest.mark.parametrize(
    "spec",
    [
        *("n", "text", "price", "day", "ts", "raw", "flag"),
        *("year(ts)", "month(ts)", "day(ts)", "hour(ts)", "year(day)", "month(day)", "day(day)"),
        *("truncate(10, n)", "truncate(2, text)", "truncate(50, price)", "truncate(1, raw)"),
        *("bucket(8, n)", "bucket(8, text)", "bucket(8, price)", "bucket(8, day)", "bucket(8, ts)", "bucket(8, raw)"),
        "bucket(4, n), day(ts), text",
    ],
)
def test_filters_find_every_row_by_its_partition_and_statistics(connection: CatalogConnection, spec: str) -> None:
    layout = FileLayout(parse_partition_spec(spec), parse_sort_order("n desc"))
    committer = _create(connection, COLUMNS, layout)
    assert committer.layout() == layout
    start = datetime.datetime(1969, 12, 30, 23, 59, 59, 999_999, tzinfo=datetime.UTC)
    times = [start + datetime.timedelta(days=17 * number, hours=number) for number in range(12)]
    rows: list[dict[str, Any]] = [
        {"n": n - 5, "text": f"ä{n}", "price": n - 5, "day": ts.date(), "ts": ts, "raw": bytes([n, 255]), "flag": n > 3}
        for n, ts in enumerate(times)
    ]
    committer.commit(Commit(identity(0), offsets(t=12), _write(committer, SCHEMA, [*rows, {"text": None}])))
    table = load(connection, "t")
    assert table.scan().to_arrow().num_rows == 13
    for number, row in list(enumerate(rows))[::5]:
        for condition in (
            f"n = {row['n']}",
            f"text = '{row['text']}'",
            f"day = '{row['day']}'",
            f"ts = '{row['ts'].isoformat()}'",
            f"price = {row['price']}.00",
        ):
            found = table.scan(row_filter=condition).to_arrow()["n"].to_pylist()
            assert found == [number - 5], (spec, condition)
    assert table.scan(row_filter="n is null").to_arrow().num_rows == 1
    committer.commit(Commit(identity(1), offsets(t=13), remove=_paths(committer)))
    assert load(connection, "t").scan().to_arrow().num_rows == 0


def _paths(committer: IcebergCommitter) -> list[TableFile]:
    files = committer.list_files()
    assert files
    return files
