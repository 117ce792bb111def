"""Tests that connector files are read in three formats: Java properties, flat JSON objects, and the REST API's JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.files import FileError, read_connector, read_properties
from headrace.stores.config_store import TargetState


def test_properties_file_is_parsed_as_in_java(tmp_path: Path) -> None:
    path = tmp_path / "c.properties"
    path.write_text("# comment\nname = c\n! another\nsql: select \\\n   1\ntext=\\u00fc ä\n", encoding="utf-8")
    assert read_properties(path) == {"name": "c", "sql": "select 1", "text": "ü ä"}
    assert read_connector(path).name == "c"


def test_only_whitespace_that_java_trims_is_removed_from_values_of_a_connector_file(tmp_path: Path) -> None:
    path = tmp_path / "c.properties"
    path.write_text("name=c\nseparator=\u00a0\nend=a\u2028\nplain=x \t\n", encoding="utf-8")
    assert read_properties(path) == {"name": "c", "separator": "\u00a0", "end": "a\u2028", "plain": "x"}


def test_connector_file_with_a_flat_json_object_is_read(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text('{"name": "c", "tasks.max": 2, "flag": true}')
    connector = read_connector(path)
    assert connector.config == {"name": "c", "tasks.max": "2", "flag": "true"}
    assert connector.initial_state is None


def test_connector_file_in_the_json_format_of_the_rest_api_is_read(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text('{"name": "c", "config": {"a": "1"}, "initial_state": "paused"}')
    connector = read_connector(path)
    assert connector.config == {"a": "1", "name": "c"}
    assert connector.initial_state is TargetState.PAUSED


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("c.properties", "a=1\n", "has no name"),
        ("c.json", '{"a": "1"}', "has no name"),
        ("c.json", '{"name": "c", "config": {"name": "d"}}', "config.name"),
        ("c.json", '{"name": "c", "config": {}, "state": "x"}', "unknown key state"),
        ("c.json", '{"name": "c", "config": {}, "initial_state": "ON"}', "initial_state"),
        ("c.json", '{"name": "c", "a": [1]}', "the value of a"),
        ("c.json", '{"name": "c",\n "a" 1}', "line 2"),
    ],
)
def test_error_for_an_invalid_connector_file_contains_the_path_and_the_reason(
    tmp_path: Path, name: str, text: str, reason: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(FileError) as caught:
        read_connector(path)
    assert str(path) in str(caught.value)
    assert reason in str(caught.value)


def test_missing_connector_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no such file"):
        read_connector(tmp_path / "none")
