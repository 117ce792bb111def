"""Tests of the commands that start workers: their names and their option --version."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from click.testing import CliRunner

from headrace.cli import connect_distributed, connect_standalone
from headrace.cli.main import headrace
from headrace_broker.protocol import KAFKA_VERSION

VERSIONS = f"{KAFKA_VERSION} (headrace {version('headrace')})\n"


@pytest.mark.parametrize("command", [connect_standalone.main, connect_distributed.main])
def test_worker_command_with_version_prints_the_same_versions_as_the_tools(
    command: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(command)
    with pytest.raises(SystemExit) as exit_:
        command(["--version"])
    assert (exit_.value.code, capsys.readouterr().out) == (0, VERSIONS)


@pytest.mark.parametrize("mode", ["standalone", "distributed"])
def test_headrace_connect_runs_the_command_of_the_same_name(mode: str) -> None:
    result = CliRunner().invoke(headrace, ["connect", mode, "--version"])
    assert (result.exit_code, result.output) == (0, VERSIONS)
    usage = CliRunner().invoke(headrace, ["connect", mode])
    assert usage.exit_code == 1
    assert f"connect-{mode}: the following arguments are required: worker.properties" in usage.output


def test_headrace_connect_lists_both_kinds_of_workers() -> None:
    output = CliRunner().invoke(headrace, ["connect", "--help"]).output
    assert {"standalone", "distributed"} <= set(output.split())
