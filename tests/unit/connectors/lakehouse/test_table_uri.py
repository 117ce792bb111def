"""Tests of the locations and names of tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace_connectors.lakehouse.table_names import TableNames
from headrace_connectors.lakehouse.table_uri import TableUri, TableUriError


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/data/lake", "/data/lake"),
        ("file:///data/lake", "/data/lake"),
        ("file:/data/lake", "/data/lake"),
        (" s3://lake/tables/ ", "s3://lake/tables"),
        ("s3a://lake", "s3://lake"),
        ("S3://lake/a/b", "s3://lake/a/b"),
    ],
)
def test_local_paths_and_s3_uris_are_normalised(text: str, shown: str) -> None:
    assert str(TableUri.parse(text)) == shown


def test_relative_path_is_relative_to_the_working_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert TableUri.parse("lake").local == tmp_path / "lake"


def test_table_is_below_its_root() -> None:
    assert str(TableUri.parse("s3://lake") / "a/b") == "s3://lake/a/b"
    assert str(TableUri.parse("/lake") / "a/b") == "/lake/a/b"


@pytest.mark.parametrize("text", ["gs://lake/x", "hdfs://name/x", "s3://", "abfss://c@a/x"])
def test_other_schemes_and_missing_buckets_are_errors(text: str) -> None:
    with pytest.raises(TableUriError):
        TableUri.parse(text)


def test_table_name_contains_the_topic() -> None:
    assert TableNames("raw/${topic}").name_of("flights") == "raw/flights"


@pytest.mark.parametrize("topic", ["../x", "_headrace", "a b", ""])
def test_topic_that_gives_an_invalid_table_name_is_an_error(topic: str) -> None:
    with pytest.raises(ValueError, match="must be a relative path"):
        TableNames().name_of(topic)
