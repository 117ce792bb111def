"""Committers in processes that are killed: each row is in the table once, and no file of a living process is lost."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("deltalake")

from support import committing_process
from support.lakehouse_committers import delta_local, numbers, parquet_local

pytestmark = pytest.mark.integration


def start(format_: str, directory: Path, rows: int) -> subprocess.Popen[str]:
    command = [sys.executable, committing_process.__file__, format_, str(directory), str(rows)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def wait_for(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    for found in process.stdout:
        if found.startswith(line):
            return
    raise AssertionError(f"the process exited with status {process.wait()} before it printed {line!r}")


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_new_files_of_a_living_process_are_deleted_only_after_it_was_killed(tmp_path: Path) -> None:
    staged = tmp_path / "t" / "_headrace" / "staged"
    process = start("parquet", tmp_path, 1)
    try:
        wait_for(process, "committed")
        process.send_signal(signal.SIGSTOP)
        folders = list(staged.iterdir())
        parquet_local(tmp_path).make("t", "sink").load()
        assert list(staged.iterdir()) == folders
        assert folders
    finally:
        kill(process)
    parquet_local(tmp_path).make("t", "sink").load()
    assert list(staged.iterdir()) == []
    assert list((tmp_path / ".headrace~locks").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("format_", ["delta", "parquet"])
def test_rows_are_in_the_table_exactly_once_after_kills_at_random_moments(format_: str, tmp_path: Path) -> None:
    generator = random.Random(11)
    for _ in range(5):
        process = start(format_, tmp_path, 5)
        for _ in range(generator.randrange(1, 6)):
            wait_for(process, generator.choice(["staged", "committed"]))
        kill(process)
    combination = delta_local(tmp_path) if format_ == "delta" else parquet_local(tmp_path)
    offset = combination.make("t", "sink").load([("t", 0)]).next_offsets["t", 0]
    assert numbers(combination.read("t")) == list(range(offset))
