"""Tests of the FileStream connectors with a full disk or a deleted, truncated or replaced file."""

from __future__ import annotations

import logging
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.api.errors import ConnectError
from headrace.data.batch import SinkBatch
from headrace.data.sink_records import SinkRecords
from headrace_connectors.file.sink import FileStreamSinkTask
from headrace_connectors.file.sink_config import FileStreamSinkConfig
from headrace_connectors.file.source import FileStreamSourceTask
from headrace_connectors.file.source_config import FileStreamSourceConfig


def records(*values: str) -> SinkRecords:
    return SinkRecords([SinkBatch("t", list(values), partition=0, offsets=list(range(len(values))), timestamps=0)])


def test_file_sink_creates_its_output_file_again_after_the_file_was_deleted(tmp_path: Path) -> None:
    file = tmp_path / "deeper" / "out"
    file.parent.mkdir()
    task = FileStreamSinkTask()
    task.start(FileStreamSinkConfig.parse({"file": str(file)}))
    task.put(records("one"))
    file.unlink()
    task.put(records("two"))
    assert file.read_text() == "two\n"
    file.unlink()
    file.parent.rmdir()
    with pytest.raises(ConnectError, match="Couldn't find or create file"):
        task.put(records("three"))
    task.stop()


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """Simulate a full disk by limiting file sizes to `size_bytes`.

    The write that reaches the limit is partial, and the next write fails.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("appended_by_another_task", ["", "another task's line\n"])
def test_file_sink_removes_the_partial_line_of_a_put_that_failed_on_a_full_disk(
    tmp_path: Path, appended_by_another_task: str
) -> None:
    file = tmp_path / "out"
    task = FileStreamSinkTask()
    task.start(FileStreamSinkConfig.parse({"file": str(file)}))
    task.put(records("one"))
    with file.open("a") as other:
        other.write(appended_by_another_task)
    before = file.read_text()
    with file_size_limit(len(before) + 5), pytest.raises(ConnectError, match=r"Cannot write to .*out: File too large"):
        task.put(records("two", "three"))
    assert file.read_text() == before
    task.put(records("two", "three"))
    assert file.read_text() == before + "two\nthree\n"
    task.stop()


class Reader:
    """A FileStreamSource task, with the lines and the source offsets that it has returned."""

    def __init__(self, file: Path, position: int | None = None) -> None:
        self.task = FileStreamSourceTask()
        offset = None if position is None else {"position": position}
        self.task.context = SimpleNamespace(offsets=SimpleNamespace(read=lambda _: offset), wait=lambda _: True)
        self.task.config = FileStreamSourceConfig.parse({"file": str(file), "topic": "t"})
        self.task.start(self.task.config)
        self.positions: list[int] = []

    def lines(self, polls: int = 5) -> list[str]:
        found: list[str] = []
        for _ in range(polls):
            if (batch := self.task.poll()) is not None:
                found += batch.values
                self.positions.append(batch.source_offset["position"])
        return found


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    file = tmp_path / "app.log"
    file.write_text("one\ntwo\n")
    return file


def test_file_source_reads_a_renamed_file_to_its_end_and_continues_with_the_new_file(
    log_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    reader = Reader(log_file)
    assert reader.lines() == ["one", "two"]
    with log_file.open("a") as writer:  # still writes to the renamed file
        log_file.rename(log_file.with_suffix(".1"))
        writer.write("three\n")
        writer.flush()
        assert reader.lines() == ["three"]
        assert "was deleted or renamed" in caplog.text
        log_file.write_text("four\n")
        writer.write("incomplete")
    assert reader.lines() == ["incomplete", "four"]
    assert reader.positions[-2:] == [0, 5]
    assert f"File {log_file} was replaced: continuing at byte 0" in caplog.text
    with log_file.open("a") as writer:
        writer.write("five\n")
    assert reader.lines() == ["five"]
    reader.task.stop()


def test_file_source_reads_lines_that_are_written_to_the_renamed_file_while_the_new_file_exists(log_file: Path) -> None:
    reader = Reader(log_file)
    assert reader.lines(1) == ["one", "two"]
    with log_file.open("a") as writer:
        log_file.rename(log_file.with_suffix(".1"))
        log_file.write_text("new\n")
        assert reader.lines(1) == []
        writer.write("late\n")
    assert reader.lines() == ["late", "new"]
    reader.task.stop()


@pytest.mark.parametrize("content", ["", "1\n", "1\n2\n"])
def test_file_source_continues_at_the_start_of_a_truncated_file(
    log_file: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    reader = Reader(log_file)
    assert reader.lines() == ["one", "two"]
    log_file.write_text(content)  # truncates the file, and keeps its inode
    assert reader.lines() == content.split()
    assert reader.positions[-1] == len(content)
    assert f"File {log_file} was truncated: continuing at byte 0" in caplog.text
    reader.task.stop()


def test_file_source_reads_an_unterminated_line_of_a_truncated_file_once(log_file: Path) -> None:
    log_file.write_text("one\nincomplete")
    reader = Reader(log_file)
    assert reader.lines() == ["one"]
    log_file.write_text("")
    with log_file.open("a") as writer:
        writer.write("next\n")
    assert reader.lines() == ["incomplete", "next"]
    reader.task.stop()


def test_file_source_that_starts_beyond_the_end_of_the_file_reads_the_file_from_its_start(
    log_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    reader = Reader(log_file, position=100)
    assert reader.lines() == ["one", "two"]
    assert "the stored offset is 100, so the file was truncated or replaced: continuing at byte 0" in caplog.text
    reader.task.stop()


def test_file_source_that_starts_at_the_end_of_the_file_reads_only_new_lines(log_file: Path) -> None:
    reader = Reader(log_file, position=8)
    assert reader.lines() == []
    with log_file.open("a") as writer:
        writer.write("three\n")
    assert reader.lines() == ["three"]
    assert reader.positions == [14]
    reader.task.stop()


def test_error_for_a_directory_as_input_file_names_the_path(tmp_path: Path) -> None:
    task = FileStreamSourceTask()
    task.context = SimpleNamespace(offsets=SimpleNamespace(read=lambda _: None), wait=lambda _: False)
    task.config = FileStreamSourceConfig.parse({"file": str(tmp_path), "topic": "t"})
    task.start(task.config)
    with pytest.raises(ConnectError, match=f"Cannot read file {tmp_path}: Is a directory"):
        task.poll()
    task.stop()
