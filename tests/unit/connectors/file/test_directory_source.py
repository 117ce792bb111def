"""Tests of the directory source: file formats, positions, finished files, invalid records and hostile file names."""

from __future__ import annotations

import datetime as dt
import errno
import gzip
import logging
import os
import random
import tracemalloc
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.api import ConfigErrors, ConnectError, DataError
from headrace.api.config import config_def
from headrace.data.logical import Date, Timestamp
from headrace.data.schema import Type
from headrace.testing import RestartSource
from headrace.testing.conformance import SourceConformance
from headrace_connectors.file import directory_search, finished_files, record_lines
from headrace_connectors.file.directory_search import partition_of
from headrace_connectors.file.directory_source import DirectorySourceConnector, DirectorySourceTask
from support.directory_source import props, read, values

HOSTILE_NAMES = (
    "a b.csv", "\u00fc\u4e2d.csv", "x" * 200, "quote'\"", "*?[a]", "-n", "$HOME", "line\nfeed", "back\\slash",
    os.fsdecode(b"not-utf8-\xff\xfe"), "%41", "tab\t", "{json}",
)  # fmt: skip


class TestDirectorySourceKeepsFiles(SourceConformance):
    plugin = DirectorySourceConnector
    produced_files = 0

    def config(self) -> dict[str, str]:
        (self.directory / "in").mkdir()
        return props(self.directory / "in")

    def hostile_configs(self) -> Sequence[dict[str, str]]:
        return [
            props(self.directory / f"in{index}") | {"finished.directory": str(self.directory / "done")}
            for index in range(len(HOSTILE_NAMES))
        ]

    def produce(self, count: int) -> None:
        directory = self.directory / "in"
        if self.hostile_index is not None:
            directory = self.directory / f"in{self.hostile_index}"
            directory.mkdir()
        for number in range(0, count, 5):
            self.produced_files += 1
            name = f"file-{self.produced_files}" if self.hostile_index is None else HOSTILE_NAMES[self.hostile_index]
            lines = [f"{self.produced_files} {line}\n" for line in range(number, min(number + 5, count))]
            (directory / name).write_text("".join(lines))


class TestDirectorySourceMovesFiles(TestDirectorySourceKeepsFiles):
    def config(self) -> dict[str, str]:
        moved = {"finished.action": "move", "finished.directory": str(self.directory / "done")}
        return super().config() | moved

    def identity(self, record: Any) -> Any:
        return record.value


def test_restart_inside_a_file_of_any_format_loses_no_records_and_repeats_no_committed_records(tmp_path: Path) -> None:
    lines = [f"l\u00efne {number}" for number in range(11)]
    csv_text = "n,text\n" + "".join(f'{number},"a\r\n{number}"\n\n' for number in range(11))
    json_text = "".join(f'{{"n": {number}}}\r\n' for number in range(11))
    table = pa.table({"n": list(range(11))})
    expected = {
        "lines": lines,
        "csv": [{"n": str(number), "text": f"a\r\n{number}"} for number in range(11)],
        "json": [{"n": number} for number in range(11)],
        "parquet": [{"n": number} for number in range(11)],
    }
    for form, text in (("lines", "\n".join(lines)), ("csv", csv_text), ("json", json_text), ("parquet", "")):
        for extension in ("", ".gz"):
            directory = tmp_path / f"{form}{extension}"
            directory.mkdir()
            if form == "parquet":
                pq.write_table(table, directory / "data.parquet", row_group_size=4)
            elif extension:
                (directory / "data.gz").write_bytes(gzip.compress(text.encode()))
            else:
                (directory / "data").write_bytes(text.encode())
            first = read(directory, 4, format=form)
            assert values(first) == expected[form][:6]
            assert first.offset["complete"] is False
            rest = read(directory, format=form, offsets=first.offsets)
            assert values(first) + values(rest) == expected[form], directory
            assert read(directory, format=form, offsets=rest.offsets).records == []
            killed = read(directory, format=form, faults=[RestartSource(after_records=5)])
            assert values(killed) == expected[form][:6] + expected[form][3:], directory


def test_csv_fields_are_converted_to_declared_column_types_and_the_null_text_is_read_as_null(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "skip;id;price;day;at;ok;ratio;name\n"
        "x;7;12.50;2026-11-24;2026-11-24T01:00:00+01:00;TRUE;0.5;'a;''b'\n"
        "x;-8;;;;;;\n"
    )
    columns = "id:int64 not null,name,price:decimal(2),day:date,at:timestamp,ok:boolean,ratio:float64"
    more = {"csv.delimiter": ";", "csv.quote": "'", "csv.null.value": "", "csv.columns": columns}
    run = read(tmp_path, format="csv", **more)
    first, second = values(run)
    assert first == {
        "id": 7, "name": "a;'b", "price": Decimal("12.50"), "day": Date.of(dt.date(2026, 11, 24)),
        "at": Timestamp.of(dt.datetime(2026, 11, 24)), "ok": True, "ratio": 0.5,
    }  # fmt: skip
    assert second == {"id": -8} | dict.fromkeys(("name", "price", "day", "at", "ok", "ratio"))
    schema = run.records[0].value_schema
    assert [(field.name, field.schema.type, field.schema.optional) for field in schema.fields][:2] == [
        ("id", Type.INT64, False), ("name", Type.STRING, True),
    ]  # fmt: skip


def test_columns_of_a_csv_file_without_a_header_are_named_by_their_numbers_or_by_the_configuration(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.csv").write_text("\ufeff1\ttwo\n")
    more = {"csv.header": "false", "csv.delimiter": "tab"}
    assert values(read(tmp_path, format="csv", **more)) == [{"column1": "1", "column2": "two"}]
    more["csv.columns"] = "n:int32,word"
    assert values(read(tmp_path, format="csv", **more)) == [{"n": 1, "word": "two"}]


BAD_RECORDS = [
    ("csv", "a,b\n1,2\n3\n5,6\n", "line 3: the record has 1 fields, but there are 2 columns", {}),
    ("csv", 'a,b\n1,2\n3,"x"y\n5,6\n', "line 3: column 2: invalid CSV record: ',' expected after '\"'", {}),
    ("csv", 'a,b\n1,2\n3,"x\n5,6\n', "line 3: column 2: invalid CSV record: a quoted field has no end", {}),
    ("csv", "a,b\n1,2\n3,x\ry\n5,6\n", "line 3: invalid CSV record: a carriage return outside quotes", {}),
    ("csv", "a,b\n1,2\nx,4\n5,6\n", "line 3: column 1 (a): the field 'x' is not an integer", {"csv.columns": "a:int8"}),
    (
        "csv",
        "a,b\n1,2\n300,4\n5,6\n",
        "line 3: column 1 (a): the field '300' is not between",
        {"csv.columns": "a:int8"},
    ),
    (
        "csv",
        "a,b\n1,2\n3,\udcff\n5,6\n",
        "line 3: invalid CSV record: byte 3 of the line is not valid utf-8: invalid start byte; set the key encoding "
        "to the encoding of the file",
        {},
    ),
    ("csv", f"a,b\n1,2\n3,{'x' * 90}\n5,6\n", "line 3: invalid CSV record: the line has more than", {}),
    ("json", '{"a":1}\n{"a":\n{"a":5}\n', "line 2: not a JSON document", {}),
    ("json", '1\n{"a":"\udcff"}\n{"a":5}\n', "line 2: not a JSON document", {}),
    (
        "lines",
        "a\n\udcff\nb\n",
        "line 2: byte 1 of the line is not valid utf-8: invalid start byte; set the key encoding to",
        {},
    ),
    ("lines", f"a\n{'x' * 90}\nb\n", "line 2: the line has more than record.max.bytes=80 bytes", {}),
]


@pytest.mark.parametrize(("form", "text", "error", "more"), BAD_RECORDS)
def test_invalid_record_is_skipped_if_errors_are_tolerated_and_otherwise_fails_the_task_and_the_error_names_the_line(
    tmp_path: Path, form: str, text: str, error: str, more: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "in"
    directory.mkdir()
    (directory / "data").write_bytes(text.encode("utf-8", "surrogateescape"))
    more = {**more, "record.max.bytes": "80"}
    with pytest.raises(DataError) as found:
        read(directory, format=form, **more)
    assert str(found.value).startswith(f"File {directory / 'data'}, {error}")
    assert "errors.tolerance" in str(found.value)
    more |= {"errors.tolerance": "all", "error.directory": str(tmp_path / "bad"), "finished.action": "delete"}
    run = read(directory, format=form, **more)
    assert len(run.records) == 2
    assert "skipped 1 invalid records" in caplog.text
    assert error in caplog.text
    assert os.listdir(directory) == []
    assert os.listdir(tmp_path / "bad") == ["data"]


@pytest.mark.parametrize(
    ("form", "name", "data", "error"),
    [
        ("parquet", "a.parquet", b"no parquet", "not a Parquet file"),
        ("lines", "a.gz", b"no gzip", "the compressed data is invalid"),
        ("lines", "b.gz", gzip.compress(os.urandom(5000))[:-900], "the compressed data is truncated"),
        ("csv", "a.csv", b"a,b,a\n1,2,3\n", "line 1: column 3 of the header has the same name 'a' as another column"),
        ("csv", "a.csv", b"a,,c\n1,2,3\n", "line 1: column 2 of the header has no name"),
    ],
)
def test_invalid_file_is_moved_to_the_error_directory_if_errors_are_tolerated_and_otherwise_fails_the_task(
    tmp_path: Path, form: str, name: str, data: bytes, error: str
) -> None:
    directory = tmp_path / "in"
    directory.mkdir()
    (directory / name).write_bytes(data)
    more = {"errors.tolerance": "all", "encoding": "latin-1", "error.directory": str(tmp_path / "bad")}
    with pytest.raises(DataError, match=error) as found:
        read(directory, format=form, encoding="latin-1")
    assert str(directory / name) in str(found.value)
    run = read(directory, format=form, **more)
    assert run.offset["errors"] == 1
    assert os.listdir(tmp_path / "bad") == [name]


def test_finished_file_and_its_done_marker_are_moved_under_a_new_name_if_an_earlier_moved_file_has_the_same_name(
    tmp_path: Path,
) -> None:
    source, done = tmp_path / "in", tmp_path / "in" / "done"
    (source / "sub").mkdir(parents=True)
    more = {
        "recursive": "true", "finished.action": "move", "finished.directory": str(done), "done.marker.suffix": ".ok",
    }  # fmt: skip
    for content in ("first", "second"):
        (source / "sub" / "a").write_text(content)
        (source / "sub" / "a.ok").touch()
        (source / "unmarked").write_text("later")
        assert values(read(source, **more)) == [content]
    assert sorted(path.name for path in (done / "sub").iterdir()) == ["a", "a.1", "a.ok", "a.ok.1"]
    assert (done / "sub" / "a").read_text() == "first"
    assert (source / "unmarked").exists()


def test_finished_file_is_not_deleted_before_its_last_offset_is_committed(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n2\n3\n4\n")
    killed = read(tmp_path, 9, finished_action="delete", faults=[RestartSource(after_records=4)])
    assert values(killed) == ["1", "2", "3", "4", "4"]
    assert os.listdir(tmp_path) == []


def test_file_whose_stored_offset_is_at_its_end_is_deleted_by_the_next_run(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n")
    kept = read(tmp_path)
    assert os.listdir(tmp_path) == ["a"]
    assert read(tmp_path, finished_action="delete", offsets=kept.offsets).records == []
    assert os.listdir(tmp_path) == []


def test_file_that_was_replaced_after_it_was_read_is_read_from_its_beginning(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n2\n")
    first = read(tmp_path)
    (tmp_path / "a").write_text("3\n4\n5\n")
    assert values(read(tmp_path, offsets=first.offsets)) == ["3", "4", "5"]


def test_empty_files_are_deleted_like_other_finished_files(tmp_path: Path) -> None:
    for name, data in (("a", b""), ("b.gz", gzip.compress(b""))):
        (tmp_path / name).write_bytes(data)
    assert read(tmp_path, finished_action="delete").records == []
    assert os.listdir(tmp_path) == []


def test_only_regular_files_with_selected_names_are_read(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("b")
    (tmp_path / "a.csv").write_text("a")
    for name in ("c.csv.tmp", ".d.csv", "e.txt", "f.csv.part"):
        (tmp_path / name).write_text("no")
    (tmp_path / "dir.csv").mkdir()
    (tmp_path / "dir.csv" / "g.csv").write_text("g")
    (tmp_path / "loop.csv").symlink_to(tmp_path)
    (tmp_path / "dangling.csv").symlink_to(tmp_path / "missing")
    os.mkfifo(tmp_path / "fifo.csv")
    assert values(read(tmp_path, **{"file.pattern": "*.csv"})) == ["a", "b"]
    assert values(read(tmp_path, **{"file.pattern": "*.csv", "recursive": "true"})) == ["a", "b", "g"]


def test_files_are_read_in_the_order_of_their_modification_times_if_file_order_is_modified(tmp_path: Path) -> None:
    for name, second in (("a", 3), ("b", 1), ("c", 2)):
        (tmp_path / name).write_text(name)
        os.utime(tmp_path / name, (second, second))
    assert values(read(tmp_path, **{"file.order": "modified"})) == ["b", "c", "a"]


def test_file_that_changed_within_the_settle_time_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    os.utime(tmp_path / "a", (0, 0))
    assert read(tmp_path, **{"settle.time.ms": "3600000"}).records == []


def test_files_are_divided_among_several_tasks_and_each_file_is_read_once(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / str(number)).write_text(f"{number}\n")
    run = read(tmp_path, **{"tasks.max": "4"})
    assert sorted(map(int, values(run))) == list(range(50))
    assert len(run.offsets) == 50


def test_record_has_a_header_with_the_file_name_if_configured(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n2\n")
    run = read(tmp_path, **{"file.name.header": "source"})
    assert [(header.key, header.value) for record in run.records for header in record.headers] == [("source", "a")] * 2


def test_source_partition_of_a_file_with_a_non_unicode_name_contains_the_bytes_of_the_name() -> None:
    assert partition_of("caf\u00e9") == {"file": "caf\u00e9"}
    assert partition_of(os.fsdecode(b"\xff")) == {"file.bytes": "ff"}


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"finished.action": "move"}, "finished.directory"),
        ({"finished.action": "move", "finished.directory": "DIR"}, "finished.directory"),
        ({"csv.delimiter": '"'}, "csv.quote"),
        ({"csv.delimiter": "::"}, "csv.delimiter"),
        ({"encoding": "utf-16"}, "encoding"),
        ({"csv.columns": "a:text"}, "csv.columns"),
        ({"csv.columns": "a,a"}, "csv.columns"),
        ({"csv.columns": "a:int8(3)"}, "csv.columns"),
        ({"format": "xml"}, "format"),
    ],
)
def test_error_for_an_invalid_setting_names_its_configuration_key(
    tmp_path: Path, more: dict[str, str], key: str
) -> None:
    changed = {name: text.replace("DIR", str(tmp_path)) for name, text in more.items()}
    with pytest.raises(ConfigErrors) as found:
        DirectorySourceConnector.config_model.parse(props(tmp_path) | changed)
    assert [error.key for error in found.value.errors] == [key]


def test_validation_reports_a_missing_input_directory(tmp_path: Path) -> None:
    given = props(tmp_path / "missing")
    checked = config_def(DirectorySourceConnector.config_model).validate(given)
    DirectorySourceConnector().validate(given, checked)
    assert checked["directory"].errors == [f"Directory {tmp_path / 'missing'} does not exist, or is not a directory"]


def target_errors(directory: Path, **settings: str) -> dict[str, list[str]]:
    """Validate a source that reads `directory`. Return the errors of keys finished.directory and error.directory."""
    given = props(directory, **settings)
    checked = config_def(DirectorySourceConnector.config_model).validate(given)
    DirectorySourceConnector().validate(given, checked)
    assert checked["directory"].errors == []
    return {name: checked[name].errors for name in ("finished.directory", "error.directory") if checked[name].errors}


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("/proc/x/y", "No such file or directory"),
        ("DIR/file", "Not a directory"),
        ("DIR/file/below", "Not a directory"),
        (f"DIR/{'x' * 300}", "File name too long"),
    ],
)
def test_validation_reports_directories_to_which_files_cannot_be_moved(
    tmp_path: Path, target: str, reason: str
) -> None:
    (tmp_path / "file").touch()
    path = target.replace("DIR", str(tmp_path))
    unused = {"finished_directory": path, "error_directory": path}
    assert target_errors(tmp_path, **unused) == {}
    errors = target_errors(tmp_path, **unused, finished_action="move", errors_tolerance="all")
    message = f"Files cannot be moved to directory {path}: {reason}"
    assert errors == {"finished.directory": [message], "error.directory": [message]}


def test_validation_does_not_create_the_missing_directory_of_finished_files(tmp_path: Path) -> None:
    for target in (tmp_path / "done", tmp_path / "a" / "b"):
        assert target_errors(tmp_path, finished_action="move", finished_directory=str(target)) == {}
    assert list(tmp_path.iterdir()) == []


def test_source_with_a_missing_input_directory_logs_one_warning_and_retries(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    assert read(tmp_path / "missing").records == []
    assert caplog.text.count("cannot be listed, retrying") == 1


def test_all_files_are_read_in_order_if_each_directory_search_returns_only_some_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_search, "CANDIDATES_MAX", 10)
    monkeypatch.setattr(directory_search, "_CHUNK", 3)
    for number in random.Random(1).sample(range(100, 200), 100):
        (tmp_path / str(number)).write_text(f"{number}\n")
    assert [int(value) for value in values(read(tmp_path))] == list(range(100, 200))
    assert sorted(int(value) for value in values(read(tmp_path, finished_action="delete"))) == list(range(100, 200))


def test_read_continues_with_the_next_record_after_temporary_file_system_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(record_lines, "BLOCK_BYTES", 6)
    failures = iter([False, False, True, True, False, False, True] + [False] * 100)
    real = record_lines.RecordLines._read_block

    def read_block(self: Any) -> None:
        if next(failures):
            raise record_lines.TemporaryFileError("[Errno 5] Input/output error")
        real(self)

    monkeypatch.setattr(record_lines.RecordLines, "_read_block", read_block)
    (tmp_path / "a").write_text("".join(f"{number}\n" for number in range(20)))
    assert [int(value) for value in values(read(tmp_path, errors_tolerance="all"))] == list(range(20))
    assert "cannot be read: [Errno 5]" in caplog.text


def test_task_fails_if_a_finished_file_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unlink(path: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    (tmp_path / "a").write_text("1\n")
    monkeypatch.setattr(finished_files.os, "unlink", unlink)
    run = read(tmp_path, finished_action="delete")  # the last commit of the run deletes the file
    assert "cannot be deleted" in caplog.text
    with pytest.raises(ConnectError, match=r"cannot be deleted \(finished\.action=delete\): Permission denied"):
        read(tmp_path, finished_action="delete", offsets=run.offsets)


def test_unreadable_subdirectory_is_logged_once_and_files_in_other_subdirectories_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("open", "closed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    real = os.scandir

    def scandir(path: str) -> Any:
        if path.endswith("closed/"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path)

    monkeypatch.setattr(directory_search.os, "scandir", scandir)
    assert values(read(tmp_path, recursive="true")) == ["open"]
    assert caplog.text.count("closed/ cannot be listed, ignoring its files: Permission denied") == 1


def test_task_that_is_stopped_does_not_finish_skipping_to_a_position_in_a_compressed_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_lines, "_SKIP_BYTES", 64)
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"".join(b"%d\n" % number for number in range(1000))))
    with open(path, "rb") as file:
        lines = record_lines.RecordLines(file.fileno(), is_gzip=True, limit=100)
        assert lines.skip_to(2000, 500, lambda: False) is False
    with open(path, "rb") as file:
        lines = record_lines.RecordLines(file.fileno(), is_gzip=True, limit=100)
        assert lines.skip_to(10, 5)
        assert (lines.take(1), lines.position, lines.line) == ([b"5"], 12, 6)


class _Entry:
    """An entry of a directory that exists only in memory."""

    def __init__(self, number: int) -> None:
        self.name = f"file-{number * 7919 % 10_000:06}-{'x' * 100}"
        self.path = self.name

    def is_file(self) -> bool:
        return True

    def stat(self) -> os.stat_result:
        return os.stat_result((0,) * 10, {"st_ctime_ns": 0, "st_mtime_ns": 0})


class _Entries:
    def __iter__(self) -> Iterator[_Entry]:
        return map(_Entry, range(10_000))

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


@pytest.mark.parametrize("are_read", [False, True])
def test_memory_use_of_a_directory_search_does_not_depend_on_the_number_of_files(
    are_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_search, "CANDIDATES_MAX", 500)
    monkeypatch.setattr(directory_search.os, "scandir", lambda path: _Entries())
    selection = directory_search.FileSelection("d", ["*"], [".*"], False, frozenset(), None, 0, "name", (0, 1))
    offset = {"size": 0, "modified": 0, "complete": True}
    search = directory_search.DirectorySearch(
        selection,
        lambda names: [offset if are_read else None] * len(names),
        lambda name, state: False,
        lambda name, offset: None,
        lambda name, error: None,
    )
    tracemalloc.start()
    try:
        while not search.step(lambda: True):
            pass
        files = search.files()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000  # the names alone have more than 1.5 MB
    if are_read:
        assert files == []
    else:
        assert [file.name[:11] for file in files] == [f"file-{number:06}" for number in range(500)]
        assert search.is_truncated


def test_source_offset_of_a_finished_file_is_removed_after_the_file_was_moved(tmp_path: Path) -> None:
    source, done = tmp_path / "in", tmp_path / "done"
    source.mkdir()
    for number in range(5):
        (source / str(number)).write_text(f"{number}\n")
    moved = {"finished.action": "move", "finished.directory": str(done)}
    run = read(source, **moved)
    last = read(source, offsets=run.offsets, **moved)  # the files of the last commit before the stop are gone
    assert len(os.listdir(done)) == 5
    assert len(last.offsets) <= 1
    (source / "0").write_text("again\n")
    assert values(read(source, offsets=last.offsets, **moved)) == ["again"]


def test_error_for_a_file_name_with_line_break_and_invalid_utf_8_contains_the_escaped_name(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"a\nb\xff")).write_bytes(b"\xff")
    with pytest.raises(DataError) as found:
        read(tmp_path)
    assert f"{tmp_path}/a\\nb\\udcff, line 1" in str(found.value)


def test_file_that_was_read_is_deleted_even_if_its_done_marker_no_longer_exists(tmp_path: Path) -> None:
    """The task may have been killed after it removed the done marker."""
    (tmp_path / "a").write_text("1\n")
    (tmp_path / "a.ok").touch()
    kept = read(tmp_path, **{"done.marker.suffix": ".ok"})
    (tmp_path / "a.ok").unlink()
    read(tmp_path, offsets=kept.offsets, **{"done.marker.suffix": ".ok", "finished.action": "delete"})
    assert os.listdir(tmp_path) == []


def test_finished_file_can_be_moved_to_a_directory_on_another_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.rename, []

    def rename(source: str, target: str) -> None:
        calls.append(source)
        if os.path.dirname(source) != os.path.dirname(target):
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        real(source, target)

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_text("1\n")
    monkeypatch.setattr(finished_files.os, "rename", rename)
    done = tmp_path / "done"
    assert values(read(tmp_path / "in", **{"finished.action": "move", "finished.directory": str(done)})) == ["1"]
    assert [path.read_text() for path in done.iterdir()] == ["1\n"]
    assert os.listdir(tmp_path / "in") == []
    assert len(calls) == 2


class TaskWithoutCommit(DirectorySourceTask):
    """A task whose `commit` callback does nothing, so that it does not delete finished files."""

    def commit(self) -> None:
        pass


def test_directory_search_deletes_a_committed_file_that_the_commit_callback_did_not_delete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("1\n")
    monkeypatch.setattr(DirectorySourceConnector, "task_class", TaskWithoutCommit)
    run = read(tmp_path, finished_action="delete")
    assert len(run.records) == 2
    assert os.listdir(tmp_path) == ["b"]  # the offset of b is committed only at the end of the run
