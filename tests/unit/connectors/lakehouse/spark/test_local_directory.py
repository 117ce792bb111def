"""Tests of the directories for Spark's temporary files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.spark.local_directory import local_directory

HOLD = """
import sys
from pathlib import Path
from headrace_connectors.lakehouse.spark.local_directory import local_directory
with local_directory(Path(sys.argv[1])) as directory:
    (directory / "file").touch()
    print(directory.name, flush=True)
    sys.stdin.read()
"""


def entries(parent: Path) -> list[str]:
    return sorted(path.name for path in parent.iterdir())


def test_directory_is_deleted_at_the_end(tmp_path: Path) -> None:
    with local_directory(tmp_path / "sink") as directory:
        (directory / "file").touch()
    assert entries(tmp_path / "sink") == []
    with local_directory(None) as directory:
        assert directory.is_dir()
    assert not directory.exists()


def test_directory_of_a_living_process_is_kept_and_that_of_a_killed_one_is_deleted(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        other = process.stdout.readline().strip()
        with local_directory(tmp_path) as directory:
            assert entries(tmp_path) == sorted([directory.name, f"{directory.name}.lock", other, f"{other}.lock"])
        process.kill()
    assert entries(tmp_path) == [other, f"{other}.lock"]
    with local_directory(tmp_path):
        assert not (tmp_path / other).exists()
    assert entries(tmp_path) == []


def test_old_files_of_earlier_versions_are_deleted(tmp_path: Path) -> None:
    (tmp_path / "spark-1").mkdir()
    (tmp_path / "spark-2").mkdir()
    (tmp_path / "liblz4.so").touch()
    for name in ("spark-1", "liblz4.so"):
        os.utime(tmp_path / name, (0, 0))
    with local_directory(tmp_path):
        pass
    assert entries(tmp_path) == ["spark-2"]


def test_error_names_the_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConnectError, match=r"Spark's files cannot be written to .*/file/sink: Not a directory"):
        local_directory(tmp_path / "file" / "sink").__enter__()
