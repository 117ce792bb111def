"""What fails around the lakehouse sink is told in one line: the path, the key, what to do."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")

from headrace.api.errors import ConfigErrors
from headrace_connectors.lakehouse.faults import is_disk_full, jvm_death, reason_of, table_fault
from support.lakehouse_task import Context, make_task

TABLE = Path("/tables/t")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        RuntimeError("Failed to parse parquet: External: Generic LocalFileSystem error: No space left on device"),
    ],
)
def test_a_full_disk(error: Exception) -> None:
    text = str(table_fault(TABLE, "written", error))
    assert text.startswith("no space left on the disk of /tables/t (lakehouse.path): nothing of this batch was added")


def test_other_faults_keep_their_reason_without_the_backtrace() -> None:
    error = RuntimeError("Kernel error: Json error\n   0: <unknown>\n   1: <unknown>\n             at ./x.c:1")
    assert str(table_fault(TABLE, "read", error)) == "table /tables/t cannot be read: Kernel error: Json error"
    assert reason_of(PermissionError(errno.EACCES, "Permission denied", "x")) == "Permission denied"
    assert not is_disk_full("spaceship")


@pytest.mark.parametrize(
    ("status", "output", "texts"),
    [
        (-9, "", ["was killed by SIGKILL", "lower spark.driver.memory"]),
        (3, "x\njava.lang.OutOfMemoryError: Java heap space", ["exited with 3", "raise spark.driver.memory", "heap"]),
        (-15, "", ["was killed by SIGTERM; what was committed is in the tables"]),
    ],
)
def test_the_death_of_the_jvm(status: int, output: str, texts: list[str]) -> None:
    error = str(jvm_death(status, output))
    assert all(text in error for text in texts), error


@pytest.mark.parametrize("key", ["lakehouse.path", "lakehouse.checkpoint.path"])
def test_a_directory_that_cannot_be_written_to_is_told_by_its_key(key: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    props = {"lakehouse.path": str(tmp_path / "tables"), key: str(tmp_path / "file" / "below")}
    with pytest.raises(ConfigErrors, match=rf"{tmp_path}/file/below for configuration {key}: the directory cannot be"):
        make_task(Context("127.0.0.1:1", ["t"], props))
