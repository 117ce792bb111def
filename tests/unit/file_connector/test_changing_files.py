"""Tests of the directory source with files that change while it reads them, and with damaged files."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pytest

from headrace_connectors.file import record_lines
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
    """A task whose file `a` gets other content, in place, before the poll of number `at`."""

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
def test_invalid_record_of_a_file_that_changes_while_it_is_read_does_not_fail_the_task(
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


def test_compressed_file_that_is_still_being_written_is_read_when_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
