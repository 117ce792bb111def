"""Tests of the validation of local directories. `tests/lakehouse/test_lakehouse_files.py` validates buckets."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
from headrace_connectors.lakehouse.location_check import check_location
from headrace_connectors.lakehouse.table_uri import TableUri
from headrace_connectors.s3.connection import S3AccessConfig

CONFIG = S3AccessConfig.parse({})


def test_writable_directory_is_created_and_stays_empty(tmp_path: Path) -> None:
    uri = TableUri.parse(f"file://{tmp_path}/a/tables")
    assert list(check_location(CONFIG, uri, conditional_writes=True)) == []
    assert list((tmp_path / "a/tables").iterdir()) == []


@pytest.mark.parametrize("key", ["lakehouse.path", "lakehouse.table.orders.path"])
def test_directory_that_is_not_writable_is_an_error_in_its_key(tmp_path: Path, key: str) -> None:
    (tmp_path / "file").touch()
    uri = TableUri.parse(str(tmp_path / "file" / "tables"))
    [error] = check_location(CONFIG, uri, conditional_writes=False, path_key=key)
    assert error.key == key
    assert "the directory is not writable: Not a directory" in str(error)
