"""Tests of the files that `headrace lakehouse package` makes for executors."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace_connectors.lakehouse.commands import lakehouse
from headrace_connectors.lakehouse.spark import package

PROBE = """
import sys
from importlib.metadata import entry_points, version
import headrace_connectors.lakehouse.spark.jobs as jobs
import headrace.api, headrace_broker.records, headrace_transforms.cast
points = [point.name for point in entry_points(group="headrace.transforms")]
print(jobs.__file__, version("headrace"), "CastValue" in points)
"""


def test_zip_file_contains_headrace_and_its_entry_points(tmp_path: Path) -> None:
    output = tmp_path / "code.zip"
    result = CliRunner().invoke(lakehouse, ["package", "--code-only", "--output", str(output)])
    assert result.exit_code == 0, result.output
    assert f"lakehouse.executors.package={output}" in result.output
    assert output.stat().st_size < 4_000_000
    environment = {"PYTHONPATH": str(output), "PATH": "/usr/bin"}
    done = subprocess.run([sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [
        f"{output}/headrace_connectors/lakehouse/spark/jobs.py",
        version("headrace"),
        "True",
    ]


def test_archive_contains_an_environment_that_runs_anywhere_on_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"click", "msgspec"}  # a whole environment would take half a minute
    monkeypatch.setattr(
        package, "distributions", lambda: [found for found in ALL if found.metadata["Name"].lower() in names]
    )
    output = tmp_path / "environment.tar.gz"
    assert CliRunner().invoke(lakehouse, ["package", "--output", str(output)]).exit_code == 0
    (tmp_path / "environment").mkdir()
    subprocess.run(["tar", "-xf", output, "-C", tmp_path / "environment"], check=True)  # as Spark does
    code = "import sys, click, headrace as e; print(sys.prefix, click.__file__, e.__file__)"
    python = tmp_path / "environment" / "bin" / "python"
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert all(path.startswith(str(tmp_path / "environment")) for path in done.stdout.split())


ALL = list(package.distributions())


@pytest.mark.parametrize(
    "arguments", [["--output", "x.zip"], ["--code-only", "--output", "x.tar.gz"], ["--output", "x"]]
)
def test_name_of_the_file_must_fit_its_contents(arguments: list[str]) -> None:
    result = CliRunner().invoke(lakehouse, ["package", *arguments])
    assert result.exit_code == 2
    assert "the name must end with" in result.output


def test_error_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> list[object]:
        raise package.PackageError("the environment cannot be read")

    monkeypatch.setattr(package, "distributions", fail)
    result = CliRunner().invoke(lakehouse, ["package", "--output", str(tmp_path / "x.tar.gz")])
    assert result.exit_code == 1
    assert "headrace lakehouse package: the environment cannot be read" in result.output
    assert list(tmp_path.iterdir()) == []


def test_server_rejects_configuration_that_is_not_spark_s() -> None:
    result = CliRunner().invoke(lakehouse, ["server", "--conf", "memory=2g"])
    assert result.exit_code == 2
    assert "memory=2g is not spark.KEY=VALUE" in result.output
