"""Tests of the lakehouse sink's error messages, which name the path, the configuration key and the fix."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")

from headrace.api.errors import ConfigErrors
from headrace_connectors.lakehouse.error_messages import error_text, is_disk_full, jvm_exit_error, table_error
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
def test_error_for_a_full_disk_contains_the_path_and_the_configuration_key_that_sets_the_path(error: Exception) -> None:
    text = str(table_error(TABLE, "written", error))
    assert text.startswith(
        "no space left on the disk of /tables/t (lakehouse.path), the current batch was not committed"
    )


def test_error_text_omits_the_backtrace_of_delta_rs() -> None:
    error = RuntimeError("Kernel error: Json error\n   0: <unknown>\n   1: <unknown>\n             at ./x.c:1")
    assert str(table_error(TABLE, "read", error)) == "table /tables/t cannot be read: Kernel error: Json error"
    assert error_text(PermissionError(errno.EACCES, "Permission denied", "x")) == "Permission denied"
    assert not is_disk_full("spaceship")


@pytest.mark.parametrize(
    ("status", "output", "texts"),
    [
        (-9, "", ["was killed by SIGKILL", "lower spark.driver.memory"]),
        (
            3,
            "x\njava.lang.OutOfMemoryError: Java heap space",
            ["exited with status 3", "increase spark.driver.memory", "heap"],
        ),
        (-15, "", ["was killed by SIGTERM; committed batches are in the tables"]),
    ],
)
def test_error_after_the_jvm_exits_contains_the_cause_and_the_solution(
    status: int, output: str, texts: list[str]
) -> None:
    error = str(jvm_exit_error(status, output))
    assert all(text in error for text in texts), error


def test_error_for_a_directory_that_is_not_writable_names_its_configuration_key(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    props = {"lakehouse.path": str(tmp_path / "file" / "below")}
    with pytest.raises(
        ConfigErrors, match=rf"{tmp_path}/file/below for configuration lakehouse.path: the directory is not"
    ):
        make_task(Context("127.0.0.1:1", ["t"], props))
