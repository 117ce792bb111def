"""Tests of the Parquet files that a Spark task writes: contents, descriptors, limits, and what a failed task leaves."""

from __future__ import annotations

import os
import pickle
import resource
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.files.data_file import DataFile
from headrace_connectors.lakehouse.files.layout import FileLayout
from headrace_connectors.lakehouse.files.layout_text import parse_partition_spec, parse_sort_order
from headrace_connectors.lakehouse.files.settings import WriterSettings
from headrace_connectors.lakehouse.files.statistics import parse_footer
from headrace_connectors.lakehouse.files.stores import FileStore
from headrace_connectors.lakehouse.files.table_target import TableTarget
from headrace_connectors.lakehouse.files.writers import FileWriters

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string()), ("n", pa.int32())])


def target(location: Path, spec: str = "", order: str = "", name: str = "orders") -> TableTarget:
    return TableTarget(name, str(location), layout=FileLayout(parse_partition_spec(spec), parse_sort_order(order)))


def batch(first: int, count: int = 1_000, regions: tuple[str | None, ...] = ("a",)) -> pa.RecordBatch:
    ids = range(first, first + count)
    columns = [
        pa.array(ids),
        pa.array([regions[n % len(regions)] for n in ids]),
        pa.array([-n for n in ids], pa.int32()),
    ]
    return pa.record_batch(columns, schema=SCHEMA)


def write_rows(table: TableTarget, rows: pa.RecordBatch, name: str = "task-1") -> DataFile:
    with FileWriters(FileStore(), WriterSettings(), name) as writers:
        writers.write(table, rows.schema, rows)
        [file] = writers.finish()
    return file


def write(table: TableTarget, batches: list[pa.RecordBatch], **settings: Any) -> list[DataFile]:
    with FileWriters(FileStore(), WriterSettings(**settings), "task-1") as writers:
        for rows in batches:
            writers.write(table, SCHEMA, rows)
        return writers.finish()


def read(location: Path, file: DataFile) -> pa.Table:
    return pq.read_table(location / file.path, partitioning=None)


def ids(location: Path, files: list[DataFile]) -> list[int]:
    return sorted(number for file in files for number in read(location, file)["id"].to_pylist())


def stored(location: Path) -> list[str]:
    return sorted(file.path for file in FileStore().list(str(location)))


def test_file_contains_all_rows_and_its_descriptor_has_its_exact_size_and_footer(tmp_path: Path) -> None:
    files = write(target(tmp_path), [batch(0), batch(1_000, 5), batch(1_005, 0)])
    assert [(file.table, file.path, file.rows, file.partition) for file in files] == [
        ("orders", "part-task-1-00000.parquet", 1_005, ())
    ]
    path = tmp_path / files[0].path
    assert files[0].size == path.stat().st_size
    assert parse_footer(files[0].footer).equals(pq.read_metadata(path))
    assert read(tmp_path, files[0]).equals(pa.Table.from_batches([batch(0, 1_005)]))
    assert pickle.loads(pickle.dumps(files)) == files


def test_rows_of_all_types_are_read_back_unchanged(tmp_path: Path) -> None:
    rows = pa.record_batch(
        {
            "i8": pa.array([1, None], pa.int8()),
            "i16": pa.array([1, None], pa.int16()),
            "f32": pa.array([1.5, None], pa.float32()),
            "f64": pa.array([float("nan"), None]),
            "yes": pa.array([True, None]),
            "text": pa.array(["é", None]),
            "body": pa.array([b"\xff", None]),
            "day": pa.array([20_000, None], pa.int32()).cast(pa.date32()),
            "at": pa.array([-1, None], pa.int64()).cast(pa.timestamp("us", "UTC")),
            "local": pa.array([-1, None], pa.int64()).cast(pa.timestamp("us")),
            "cost": pa.array([Decimal("-1.10"), None], pa.decimal128(38, 2)),
            "tags": pa.array([["a", None], None]),
            "map": pa.array([[("k", [1])], None], pa.map_(pa.string(), pa.list_(pa.int64()))),
            "s": pa.array([{"x": {"y": "z"}}, None]),
        }
    )
    file = write_rows(target(tmp_path), rows)
    assert read(tmp_path, file).cast(rows.schema).to_pylist()[1] == rows.to_pylist()[1]
    assert str(read(tmp_path, file).to_pylist()) == str(rows.to_pylist())  # NaN is not equal to itself
    metadata = pq.read_metadata(tmp_path / file.path)
    for index in range(metadata.num_columns):
        column = metadata.row_group(0).column(index)
        is_text = column.path_in_schema in ("text", "body", "s.x.y", "tags.list.element", "map.key_value.key")
        assert column.has_dictionary_page == is_text, column.path_in_schema
        assert column.compression == "ZSTD"
        assert column.statistics is not None


def test_partitions_have_files_of_their_own_with_their_partition_values(tmp_path: Path) -> None:
    table = target(tmp_path, "region, truncate(1000, id)")
    files = write(table, [batch(0, 1_500, ("a", "b/c", None)), batch(1_500, 500)])
    assert {file.path.rpartition("/")[0]: file.partition for file in files} == {
        "region=a/id_truncate=0": ("a", 0),
        "region=a/id_truncate=1000": ("a", 1_000),
        "region=b%2Fc/id_truncate=0": ("b/c", 0),
        "region=b%2Fc/id_truncate=1000": ("b/c", 1_000),
        "region=__HIVE_DEFAULT_PARTITION__/id_truncate=0": (None, 0),
        "region=__HIVE_DEFAULT_PARTITION__/id_truncate=1000": (None, 1_000),
    }
    assert ids(tmp_path, files) == list(range(2_000))
    for file in files:
        assert set(read(tmp_path, file)["region"].to_pylist()) == {file.partition[0]}


def test_tables_of_one_task_have_files_in_their_own_locations(tmp_path: Path) -> None:
    with FileWriters(FileStore(), WriterSettings(), "t") as writers:
        for name in ("a", "b"):
            writers.write(target(tmp_path / name, name=name), SCHEMA, batch(0, 10))
        assert [(file.table, file.path) for file in writers.finish()] == [
            ("a", "part-t-00000.parquet"), ("b", "part-t-00001.parquet")
        ]  # fmt: skip
    assert stored(tmp_path) == ["a/part-t-00000.parquet", "b/part-t-00001.parquet"]


def test_file_is_completed_when_it_has_reached_its_size(tmp_path: Path) -> None:
    batches = [batch(first) for first in range(0, 200_000, 1_000)]
    files = write(target(tmp_path), batches, file_size_bytes=100_000)
    assert len(files) > 3
    assert all(50_000 < file.size < 200_000 for file in files[:-1])
    assert ids(tmp_path, files) == list(range(200_000))


def test_rows_above_the_memory_limit_are_written_as_row_groups_the_largest_first(tmp_path: Path) -> None:
    large, small = target(tmp_path / "large", name="large"), target(tmp_path / "small", name="small")
    with FileWriters(FileStore(), WriterSettings(memory_bytes=300_000), "t") as writers:
        for first in range(0, 100_000, 1_000):
            writers.write(large, SCHEMA, batch(first))
            writers.write(small, SCHEMA, batch(first, 10))
        files = {file.table: file for file in writers.finish()}
    assert parse_footer(files["large"].footer).num_row_groups > 3
    assert parse_footer(files["small"].footer).num_row_groups == 1
    assert ids(tmp_path / "large", [files["large"]]) == list(range(100_000))


def test_rows_of_rare_partitions_do_not_keep_the_memory_of_other_rows(tmp_path: Path) -> None:
    table, limit = target(tmp_path, "region"), 4 << 20
    before = pa.total_allocated_bytes()
    with FileWriters(FileStore(), WriterSettings(memory_bytes=limit), "t") as writers:
        for first in range(0, 1_000_000, 20_000):
            regions = ["frequent"] * 20_000
            regions[7] = "rare"
            columns = [pa.array(range(first, first + 20_000)), pa.array(regions), pa.nulls(20_000, pa.int32())]
            writers.write(table, SCHEMA, pa.record_batch(columns, schema=SCHEMA))
        del columns
        assert pa.total_allocated_bytes() - before < 2 * limit
        assert sorted(file.rows for file in writers.finish()) == [50, 1_000_000 - 50]


class CountingStore(FileStore):
    """Counts the streams that are open."""

    opened: list[Any] = []  # noqa: RUF012

    def open_output(self, location: str, path: str) -> Any:
        self.opened.append(super().open_output(location, path))
        return self.opened[-1]

    def open_count(self) -> int:
        return sum(not stream.closed for stream in self.opened)


def test_open_files_are_limited_and_the_least_recently_used_is_completed(tmp_path: Path) -> None:
    store, table, regions = CountingStore(), target(tmp_path, "region"), tuple(f"r{n}" for n in range(20))
    highest = 0
    with FileWriters(store, WriterSettings(memory_bytes=60_000, open_files_max=5), "t") as writers:
        for first in range(0, 20_000, 1_000):
            writers.write(table, SCHEMA, batch(first, regions=regions))
            highest = max(highest, store.open_count())
        files = writers.finish()
    assert highest == 5
    assert store.open_count() == 0
    assert len({file.path for file in files}) == len(files) > 20
    assert ids(tmp_path, files) == list(range(20_000))


def test_partitions_without_memory_pressure_have_one_file_each_despite_the_limit_of_open_files(tmp_path: Path) -> None:
    regions = tuple(f"r{n}" for n in range(50))
    batches = [batch(first, regions=regions) for first in range(0, 20_000, 1_000)]
    assert len(write(target(tmp_path, "region"), batches, open_files_max=2)) == 50


@pytest.mark.parametrize("memory_bytes", [100_000, 100_000_000])
def test_rows_of_each_file_are_sorted_also_if_memory_forces_them_out(tmp_path: Path, memory_bytes: int) -> None:
    batches = [batch(first, regions=("b", None, "a")) for first in range(0, 20_000, 1_000)]
    files = write(target(tmp_path, order="region desc nulls first, n"), batches, memory_bytes=memory_bytes)
    assert len(files) == 1 if memory_bytes > 1_000_000 else len(files) > 1
    for file in files:
        rows = list(zip(*(read(tmp_path, file)[name].to_pylist() for name in ("region", "n")), strict=True))
        assert rows == sorted(rows, key=lambda row: ({None: 0, "b": 1, "a": 2}[row[0]], row[1]))
    assert ids(tmp_path, files) == list(range(20_000))


def test_null_order_of_each_sort_field_is_independent(tmp_path: Path) -> None:
    table = pa.record_batch({"id": [None, 1, None, 1], "n": [1, None, None, 1]}, schema=SCHEMA.remove(1))
    for order, expected in (
        ("id nulls first, n nulls last", [(None, 1), (None, None), (1, 1), (1, None)]),
        ("id nulls last, n desc nulls first", [(1, None), (1, 1), (None, None), (None, 1)]),
    ):
        file = write_rows(target(tmp_path, order=order), table, order[-5:].strip())
        rows = read(tmp_path, file)
        assert list(zip(rows["id"].to_pylist(), rows["n"].to_pylist(), strict=True)) == expected


def test_rows_with_other_columns_begin_a_new_file(tmp_path: Path) -> None:
    wider = SCHEMA.append(pa.field("extra", pa.string()))
    rows = pa.record_batch([*batch(10, 5).columns, pa.array(["x"] * 5)], schema=wider)
    with FileWriters(FileStore(), WriterSettings(memory_bytes=1), "t") as writers:
        writers.write(target(tmp_path), SCHEMA, batch(0, 10))  # written at once, because of the memory limit
        writers.write(target(tmp_path), wider, rows)
        files = writers.finish()
    assert [read(tmp_path, file).column_names for file in files] == [SCHEMA.names, wider.names]
    assert ids(tmp_path, files) == list(range(15))


def test_rows_are_converted_to_the_types_of_the_schema(tmp_path: Path) -> None:
    rows = pa.record_batch({"id": pa.array([1], pa.int32()), "region": ["a"], "n": pa.array([1], pa.int8())})
    [file] = write(target(tmp_path), [rows])
    assert read(tmp_path, file).schema.types == SCHEMA.types


@pytest.mark.parametrize("is_error", [True, False])
def test_task_that_fails_or_ends_early_leaves_no_files(tmp_path: Path, is_error: bool) -> None:
    def run() -> Iterator[None]:
        settings = WriterSettings(memory_bytes=1_000, file_size_bytes=20_000, open_files_max=2)
        with FileWriters(FileStore(), settings, "t") as writers:
            for first in range(0, 20_000, 1_000):
                writers.write(target(tmp_path, "region"), SCHEMA, batch(first, regions=("a", "b", "c")))
            assert len(stored(tmp_path)) > 3
            yield
            if is_error:
                writers.finish()
                raise RuntimeError("the task fails")

    task = run()
    next(task)
    with pytest.raises(RuntimeError if is_error else StopIteration):
        next(task)
    assert stored(tmp_path) == []


def test_column_type_that_parquet_does_not_have_fails_without_leaving_a_file(tmp_path: Path) -> None:
    rows = pa.record_batch({"x": pa.array([(1, 2, 3)], pa.month_day_nano_interval())})
    with pytest.raises(pa.ArrowException):
        write_rows(target(tmp_path), rows)
    assert stored(tmp_path) == []


@pytest.mark.parametrize("spec", ["day(at)", "at", "day(other)"])
def test_rows_that_cannot_be_partitioned_are_an_error_of_the_table(tmp_path: Path, spec: str) -> None:
    rows = pa.record_batch({"at": pa.array([0, 2**62], pa.int64()).cast(pa.timestamp("us", "UTC"))})
    with pytest.raises(ConnectError, match="table orders: rows cannot be partitioned: "):
        write_rows(target(tmp_path, spec), rows)
    assert stored(tmp_path) == []


def test_file_that_cannot_be_written_completely_is_deleted(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            write_rows(target(tmp_path), batch(0, 10_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert stored(tmp_path) == []


# --- local stores ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_local_store_creates_directories_and_finds_lists_and_deletes_files(tmp_path: Path, prefix: str) -> None:
    store, location = pickle.loads(pickle.dumps(FileStore())), f"{prefix}{tmp_path}/a b/t%20"
    assert list(store.list(location)) == []
    with store.open_output(location, "p=x%2Fy/f.parquet") as stream:
        stream.write(b"12345")
    assert store.exists(location, "p=x%2Fy/f.parquet")
    assert not store.exists(location, "p=x%2Fy")
    assert store.size(location, "p=x%2Fy/f.parquet") == 5
    assert [(file.path, file.size) for file in store.list(location)] == [("p=x%2Fy/f.parquet", 5)]
    assert abs(next(store.list(location)).modified_ms / 1000 - Path(tmp_path).stat().st_mtime) < 600
    with store.open_input(location, "p=x%2Fy/f.parquet") as file:
        assert file.read() == b"12345"
    store.delete(location, "p=x%2Fy/f.parquet")
    store.delete(location, "p=x%2Fy/f.parquet")
    assert not store.exists(location, "p=x%2Fy/f.parquet")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        store.size(location, "p=x%2Fy/f.parquet")


def test_local_store_does_not_overwrite_files(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("kept")
    with pytest.raises(FileExistsError):
        FileStore().open_output(str(tmp_path), "f")
    assert (tmp_path / "f").read_text() == "kept"


def test_closed_local_file_and_its_new_directories_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    sync = os.fsync

    def record(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    stream = FileStore().open_output(str(tmp_path / "table"), "a/f")
    assert synced == [str(tmp_path), str(tmp_path / "table")]
    stream.close()
    assert synced[2:] == [str(tmp_path / "table/a/f"), str(tmp_path / "table/a")]


def test_location_in_s3_without_credentials_is_an_error() -> None:
    with pytest.raises(OSError, match="no S3 credentials"):
        FileStore().open_output("s3://lake/t", "f")
