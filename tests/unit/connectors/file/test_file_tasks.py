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
from headrace_connectors.file.config import FileStreamSinkConfig, FileStreamSourceConfig
from headrace_connectors.file.sink import FileStreamSinkTask
from headrace_connectors.file.source import FileStreamSourceTask


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


@pytest.mark.parametrize("replaced", [False, True])
def test_warning_about_a_truncated_or_replaced_input_file_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, replaced: bool
) -> None:
    file = tmp_path / "in"
    file.write_text("one\ntwo\n")
    task = FileStreamSourceTask()
    task.context = SimpleNamespace(offsets=SimpleNamespace(read=lambda _: None), wait=lambda _: False)
    task.config = FileStreamSourceConfig.parse({"file": str(file), "topic": "t"})
    task.start(task.config)
    assert task.poll() is not None
    if replaced:
        file.unlink()
    file.write_text("1\n")
    with caplog.at_level(logging.WARNING):
        assert [task.poll() for _ in range(3)] == [None] * 3
    [message] = [record.getMessage() for record in caplog.records]
    assert f"was {'deleted or replaced' if replaced else 'truncated'} after the task had read 8 bytes" in message
    task.stop()


def test_error_for_a_directory_as_input_file_names_the_path(tmp_path: Path) -> None:
    task = FileStreamSourceTask()
    task.context = SimpleNamespace(offsets=SimpleNamespace(read=lambda _: None), wait=lambda _: False)
    task.config = FileStreamSourceConfig.parse({"file": str(tmp_path), "topic": "t"})
    task.start(task.config)
    with pytest.raises(ConnectError, match=f"Cannot read file {tmp_path}: Is a directory"):
        task.poll()
    task.stop()
