"""Checks that the help of each command names documents of the repository, and that these documents exist."""

from __future__ import annotations

import importlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from headrace.cli.main import headrace

ROOT = Path(__file__).parents[2]
TARGETS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
WORKERS_AND_TOOLS = {target.partition(":")[0] for name, target in TARGETS.items() if name != "headrace"}
PASSED_THROUGH = ("broker start", "connect standalone")


def assert_names_documents(help_text: str) -> None:
    last = re.search(r"Read on: (.*)\(in\s+headrace's\s+repository\)\.\s*$", help_text, re.DOTALL)
    assert last is not None, help_text
    documents = [name.strip() for name in last[1].split(",")]
    assert [name for name in documents if not (ROOT / name).exists()] == []


def commands(group: click.Group, prefix: str = "") -> Iterator[str]:
    """Yield the words of each command of a group, except the group itself."""
    for name, command in group.commands.items():
        yield prefix + name
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix}{name} ")


@pytest.mark.parametrize("module", sorted({*WORKERS_AND_TOOLS, "headrace_broker.server.main"}))
def test_help_of_each_worker_and_tool_names_existing_documents(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        importlib.import_module(module).main(["--help"])
    assert_names_documents(capsys.readouterr().out)


@pytest.mark.parametrize("command", ["", *(name for name in commands(headrace) if name not in PASSED_THROUGH)])
def test_help_of_each_headrace_command_names_existing_documents(command: str) -> None:
    result = CliRunner().invoke(headrace, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert_names_documents(result.output)
