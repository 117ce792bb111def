"""Tests of the directory source with files that change while it reads them, and with damaged files."""

from __future__ import annotations

import errno
import gzip
import io
import os
import random
import shutil
import zlib
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.api import DataError
from headrace_connectors.common import gzip_reader
from headrace_connectors.file import file_formats, finished_files, record_lines
from headrace_connectors.file.directory_source import DirectorySourceConnector, DirectorySourceTask
from support.directory_source import read, values


class GrowingTask(DirectorySourceTask):
    """A task that appends to its input file before each of the first four polls."""

    def poll(self) -> Any:
        if self.config.directory and (polls := getattr(self, "polls", 0)) < 4:
            self.polls = polls + 1
            with open(Path(self.config.directory) / "a", "a") as file:
                file.write(f"{polls} begins,")
        return super().poll()


def test_file_that_grows_while_it_is_read_is_read_again_from_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a").write_text("first\n")
    monkeypatch.setattr(DirectorySourceConnector, "task_class", GrowingTask)
    run = read(tmp_path)
    last = "0 begins,1 begins,2 begins,3 begins,"
    assert values(run)[-2:] == ["first", last]
    assert set(values(run)) == {"first", last}
    assert "changed while it was read" in caplog.text
    assert run.offset["size"] == (tmp_path / "a").stat().st_size


class OverwritingTask(DirectorySourceTask):
    """A task that overwrites its input file `a` with `content` before poll number `at`."""

    content = b""
    at = 4

    def poll(self) -> Any:
        self.polls = getattr(self, "polls", 0) + 1
        if self.polls == self.at:
            for path in Path(self.config.directory).glob("a*"):
                path.write_bytes(self.content)
        return super().poll()


@pytest.mark.parametrize("action", ["keep", "delete", "move"])
@pytest.mark.parametrize("count", [3, 500, 2000])
def test_file_that_is_overwritten_while_it_is_read_is_read_again_from_its_beginning(
    tmp_path: Path, count: int, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_lines, "BLOCK_BYTES", 64)
    directory, done = tmp_path / "in", tmp_path / "done"
    directory.mkdir()
    (directory / "a").write_text("".join(f"old {number:05}\n" for number in range(500)))
    new = [f"new {number:05}" for number in range(count)]
    monkeypatch.setattr(OverwritingTask, "content", "".join(f"{line}\n" for line in new).encode())
    monkeypatch.setattr(DirectorySourceConnector, "task_class", OverwritingTask)
    run = read(directory, 10_000, finished_action=action, **{"finished.directory": str(done)})
    assert [value for value in values(run) if not value.startswith("old ")] == new
    assert run.offset["complete"]
    assert os.listdir(directory) == (["a"] if action == "keep" else [])
    if action == "move":
        assert (done / "a").read_bytes() == OverwritingTask.content


@pytest.mark.parametrize(
    ("form", "old", "invalid", "new", "value"),
    [
        ("csv", "n,m\n" + "1,2\n" * 50, b"n,m\n" + b"3\n" * 80, b"n,m\n3,4\n", {"n": "3", "m": "4"}),
        ("json", "11\n" * 50, b"{\n" * 80, b"33\n", 33),
        ("lines", "a\n" * 50, b"\xff\n" * 80, b"b\n", "b"),
    ],
)
def test_task_does_not_fail_for_an_invalid_record_of_a_file_that_changes_while_it_is_read(
    tmp_path: Path, form: str, old: str, invalid: bytes, new: bytes, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Task(OverwritingTask):
        content = invalid

        def poll(self) -> Any:
            batch = super().poll()
            if self.polls == self.at:
                assert batch is None
                (tmp_path / "a").write_bytes(new)
            return batch

    monkeypatch.setattr(record_lines, "BLOCK_BYTES", 8)
    monkeypatch.setattr(DirectorySourceConnector, "task_class", Task)
    (tmp_path / "a").write_text(old)
    assert values(read(tmp_path, format=form))[-1] == value


def test_all_records_of_a_compressed_file_are_read_if_the_file_grows_during_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the file grows, the task must not treat the incomplete compressed data as damaged."""
    data = gzip.compress(b"".join(b"%d\n" % number for number in range(5000)))
    pieces = [data[:-2000], data[:-1000], data]

    class Task(DirectorySourceTask):
        def _open(self, found: Any) -> bool:
            is_open = super()._open(found)
            if pieces:
                (tmp_path / "a.gz").write_bytes(pieces.pop(0))
            return is_open

    monkeypatch.setattr(DirectorySourceConnector, "task_class", Task)
    (tmp_path / "a.gz").write_bytes(pieces.pop(0))
    run = read(tmp_path, 100_000, poll_interval_ms="1")
    assert [int(value) for value in values(run)][-5000:] == list(range(5000))


TEXTS = {
    "csv": ("n,text\n", '{0},"a\n{0}"\n', lambda value: int(value["n"])),
    "json": ("", '{{"n": {0}}}\n', lambda value: value["n"]),
    "lines": ("", "{0}\n", int),
}


@pytest.mark.parametrize("extension", ["", ".gz"])
@pytest.mark.parametrize("form", list(TEXTS))
@pytest.mark.parametrize("failed_reads", [[2], [3], [3, 4, 5], [12]])
def test_temporary_read_errors_cause_no_lost_or_duplicate_records(
    tmp_path: Path, form: str, failed_reads: list[int], extension: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FlakyFile(io.FileIO):
        reads = 0

        def read(self, size: int = -1, /) -> bytes:
            FlakyFile.reads += 1
            if FlakyFile.reads in failed_reads:
                raise OSError(errno.EIO, "Input/output error")
            return super().read(size)

    header, record, number_of = TEXTS[form]
    data = (header + "".join(record.format(number) for number in range(200))).encode()
    (tmp_path / f"a{extension}").write_bytes(gzip.compress(data) if extension else data)
    monkeypatch.setattr(record_lines, "BLOCK_BYTES", 50)
    monkeypatch.setattr(gzip_reader, "_RAW_BYTES", 20)
    monkeypatch.setattr(record_lines.io, "FileIO", FlakyFile)  # type: ignore[attr-defined]
    run = read(tmp_path, format=form, **{"batch.size": "10"})
    assert [number_of(value) for value in values(run)] == list(range(200))
    assert FlakyFile.reads > max(failed_reads)


DAMAGES = {
    "truncated": "the compressed data is truncated",
    "invalid": "the compressed data is invalid: .*invalid block type",
    "wrong checksum": "the compressed data is invalid: .*incorrect data check",
    "text after the last member": "the compressed data is invalid: .*incorrect header check",
}


@pytest.mark.parametrize("form", list(TEXTS))
@pytest.mark.parametrize("count", [199, 4_000])
@pytest.mark.parametrize("damage", list(DAMAGES))
def test_all_records_before_the_damaged_part_of_a_compressed_file_are_read(
    tmp_path: Path, form: str, count: int, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test divides the block size by 10, so that a file with 4,000 records has several blocks."""
    monkeypatch.setattr(record_lines, "BLOCK_BYTES", record_lines.BLOCK_BYTES // 10)
    monkeypatch.setattr(gzip_reader, "_RAW_BYTES", gzip_reader._RAW_BYTES // 10)
    header, record, number_of = TEXTS[form]
    digits = random.Random(1)
    numbers = [digits.randrange(10**9) for _ in range(count)]
    compressor = zlib.compressobj(wbits=31)
    data = compressor.compress((header + "".join(map(record.format, numbers))).encode())
    data += compressor.flush(zlib.Z_SYNC_FLUSH if damage in ("truncated", "invalid") else zlib.Z_FINISH)
    data += {"invalid": b"\xff" * 100, "text after the last member": b"text"}.get(damage, b"")
    (tmp_path / "a.gz").write_bytes(data[:-8] + bytes(8) if damage == "wrong checksum" else data)
    run = read(tmp_path, 10_000, format=form, **{"errors.tolerance": "all", "batch.size": "100"})
    assert [number_of(value) for value in values(run)] == numbers
    assert run.offset["complete"]
    assert run.offset["errors"] == 1
    with pytest.raises(DataError, match=DAMAGES[damage]):
        read(tmp_path, 10_000, format=form, **{"batch.size": "100"})


def test_gzip_members_of_a_compressed_file_may_be_followed_by_zeros(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"a\nb") + gzip.compress(b"c\n") + bytes(20) + gzip.compress(b"d"))
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"e\n") + bytes(200_000))
    assert values(read(tmp_path)) == ["a", "bc", "d", "e"]


def test_file_that_changes_while_it_is_moved_to_another_file_system_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_rename, real_copy, changes = os.rename, shutil.copy2, ["new\n"]

    def rename(source: str, target: str) -> None:
        if os.path.dirname(source) != os.path.dirname(target):
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        real_rename(source, target)

    def copy(source: str, target: str) -> None:
        real_copy(source, target)
        if changes:
            Path(source).write_text(changes.pop())

    monkeypatch.setattr(finished_files.os, "rename", rename)  # type: ignore[attr-defined]
    monkeypatch.setattr(finished_files.shutil, "copy2", copy)  # type: ignore[attr-defined]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_text("longer\n")
    done = tmp_path / "done"
    more = {"finished.action": "move", "finished.directory": str(done)}
    run = read(tmp_path / "in", **more)
    again = read(tmp_path / "in", offsets=run.offsets, **more)
    assert values(run) + values(again) == ["longer", "new"]
    assert [path.read_text() for path in done.iterdir()] == ["new\n"]
    assert os.listdir(tmp_path / "in") == []


def write_parquet(path: Path, hours: list[int]) -> None:
    """Write a Parquet file with a time at each of `hours`. The hour 24 is invalid in Connect."""
    times = [hour * 3_600_000 for hour in hours]
    table = pa.table({"n": list(range(len(hours))), "at": pa.array(times, pa.int32()).cast(pa.time32("ms"))})
    pq.write_table(table, path, row_group_size=100, compression="none")


@pytest.mark.parametrize("batch_size", ["7", "1000"])
@pytest.mark.parametrize("invalid", [0, 3, 150, 299])
def test_all_rows_before_an_invalid_value_of_a_parquet_file_are_read(
    tmp_path: Path, invalid: int, batch_size: str
) -> None:
    write_parquet(tmp_path / "a", [24 if number == invalid else 12 for number in range(300)])
    more = {"format": "parquet", "batch.size": batch_size}
    run = read(tmp_path, **more, **{"errors.tolerance": "all"})
    assert [value["n"] for value in values(run)] == list(range(invalid))
    with pytest.raises(
        DataError, match=rf"a: cannot read row {invalid + 1} or a row after it: column at \(time32\[ms\]\)"
    ):
        read(tmp_path, **more)


def test_all_rows_before_a_damaged_page_of_a_parquet_file_are_read(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a", [12] * 300)
    data = bytearray((tmp_path / "a").read_bytes())
    start = pq.read_metadata(tmp_path / "a").row_group(2).column(0).dictionary_page_offset
    data[start : start + 20] = b"\xff" * 20
    (tmp_path / "a").write_bytes(data)
    run = read(tmp_path, format="parquet", **{"errors.tolerance": "all", "batch.size": "1000"})
    assert [value["n"] for value in values(run)] == list(range(len(run.records)))
    assert len(run.records) == 200
    with pytest.raises(DataError, match="a: cannot read row 201 or a row after it"):
        read(tmp_path, format="parquet", **{"batch.size": "1000"})


def test_directory_source_loses_no_row_of_a_parquet_file_after_temporary_read_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class FlakyFile(io.FileIO):
        reads = 0

        def read(self, size: int = -1, /) -> bytes:
            FlakyFile.reads += 1
            if FlakyFile.reads in (1, 3, 4):
                raise OSError(errno.EIO, "Input/output error")
            return super().read(size)

    def open_flaky(descriptor: int, mode: str, *, closefd: bool) -> FlakyFile:
        return FlakyFile(descriptor, closefd=closefd)

    write_parquet(tmp_path / "a", [12] * 300)
    monkeypatch.setattr(file_formats, "open", open_flaky, raising=False)
    run = read(tmp_path, format="parquet", **{"errors.tolerance": "all", "batch.size": "70"})
    assert [value["n"] for value in values(run)] == list(range(300))
    assert FlakyFile.reads > 4
    assert "cannot be read: [Errno 5] Input/output error; retrying in 1000 ms (attempt 2)" in caplog.text


@pytest.mark.parametrize("count", [100, 130, 200, 299])
def test_restarted_task_continues_at_the_next_row_of_a_parquet_file(tmp_path: Path, count: int) -> None:
    write_parquet(tmp_path / "a", [24 if number == 299 else 12 for number in range(300)])
    first = read(tmp_path, count, format="parquet", **{"batch.size": str(count), "errors.tolerance": "all"})
    assert len(first.records) == count
    rest = read(tmp_path, format="parquet", offsets=first.offsets, **{"errors.tolerance": "all"})
    assert len(rest.records) == 299 - count
    with pytest.raises(DataError, match="a: cannot read row 300 or a row after it"):
        read(tmp_path, format="parquet", offsets=first.offsets)


def test_parquet_columns_of_type_null_and_uint64_are_read(tmp_path: Path) -> None:
    columns = {"none": pa.nulls(2), "big": pa.array([2**64 - 1, None], pa.uint64()), "list": [[None], []]}
    pq.write_table(pa.table(columns), tmp_path / "a")
    assert values(read(tmp_path, format="parquet")) == [
        {"none": None, "big": Decimal(2**64 - 1), "list": [None]}, {"none": None, "big": None, "list": []},
    ]  # fmt: skip


def test_csv_dates_and_timestamps_have_no_limits_of_years(tmp_path: Path) -> None:
    lines = [
        "9999-12-31T23:59:59-05:00,9999-12-31",
        "0001-01-01T00:00:00+01:00,-0043-03-15",
        "+12345-06-07,12345-06-07",
    ]
    (tmp_path / "a").write_text("at,day\n" + "\n".join(lines) + "\n")
    found = values(read(tmp_path, format="csv", **{"csv.columns": "at:timestamp,day:date"}))
    assert found == [
        {"at": 253402318799000, "day": 2932896},
        {"at": -62135600400000, "day": -735160},
        {"at": 327416947200000, "day": 3789548},
    ]
