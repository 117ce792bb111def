"""Tests of `headrace init` with empty, missing and unsuitable directories.

tests/integration/test_readme_examples.py runs the files that the command writes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.cli.main import headrace
from headrace.cli.validate import validate_files

CONFIGS = Path(__file__).parents[4] / "configs"
FILES = [
    "broker.properties",
    "connect-distributed.properties",
    "connect-standalone.properties",
    "inbox/orders.csv",
    "orders-sink.properties",
    "orders-source.properties",
]


def init(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(headrace, ["init", *map(str, arguments)])
    return result.exit_code, result.output


def files_in(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def test_init_writes_the_files_to_the_current_directory_and_prints_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, output = init()
    assert code == 0
    created, command, result = output.splitlines()
    assert created == f"created {', '.join(FILES)}"
    assert command.startswith("next: connect-standalone connect-standalone.properties orders-source.properties ")
    assert result == "then, in another shell: cat orders.txt"
    assert files_in(tmp_path) == FILES


def test_init_creates_a_missing_directory_and_prints_how_to_enter_it(tmp_path: Path) -> None:
    code, output = init(tmp_path / "a" / "b")
    assert code == 0
    assert f"next: cd {tmp_path}/a/b && connect-standalone" in output
    assert files_in(tmp_path / "a" / "b") == FILES


def test_init_refuses_a_directory_that_contains_a_file_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "broker.properties").write_text("node.id=7\n")
    code, output = init(tmp_path)
    assert code == 1
    assert output.startswith(f"headrace init: the directory {tmp_path} is not empty: choose another directory")
    assert files_in(tmp_path) == ["broker.properties"]
    assert (tmp_path / "broker.properties").read_text() == "node.id=7\n"


def test_init_refuses_a_file_as_its_directory(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("")
    assert init(tmp_path / "notes") == (1, f"headrace init: {tmp_path}/notes is a file: choose another directory\n")


def test_init_names_a_directory_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("")
    code, output = init(tmp_path / "notes" / "orders")
    assert (code, output) == (1, f"headrace init: {tmp_path}/notes/orders cannot be written: Not a directory\n")


def test_files_of_init_are_valid_and_those_of_the_same_name_in_configs_are_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    init()
    connectors = [Path("orders-source.properties"), Path("orders-sink.properties")]
    assert validate_files(connectors, Path("connect-standalone.properties"))
    assert validate_files([Path("connect-distributed.properties")], None)
    for name in ("broker.properties", "connect-distributed.properties", "connect-standalone.properties"):
        assert (CONFIGS / name).read_text() == Path(name).read_text()


def test_broker_of_init_starts_the_first_rebalance_of_a_group_at_once(tmp_path: Path) -> None:
    assert init(tmp_path)[0] == 0
    assert "group.initial.rebalance.delay.ms=0" in (tmp_path / "broker.properties").read_text().splitlines()
