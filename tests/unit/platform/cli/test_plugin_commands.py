"""Tests that the command `headrace` has the commands of the entry points in the group headrace.commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from headrace.cli.main import headrace
from headrace.cli.plugin_commands import CommandsWithPlugins
from support.plugin_package import write_distribution

REGISTRY = """
import click

@click.group()
def registry():
    "Manage Acme's schemas."

@registry.command()
@click.option("--times", default=1)
def start(times):
    click.echo("started " * times)
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with distributions on sys.path."""
    modules = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - modules:
        if name.startswith("acme"):
            del sys.modules[name]


def run(*arguments: str) -> Result:
    """Run `headrace` in a new group, which reads the entry points again."""
    group = CommandsWithPlugins("headrace", headrace.commands, help=headrace.help)
    return CliRunner().invoke(group, list(arguments), prog_name="headrace", terminal_width=200)


def install(directory: Path, name: str, points: dict[str, str], modules: dict[str, str]) -> None:
    write_distribution(directory, name, {"commands": points}, modules)


def test_headrace_is_a_group_with_the_commands_of_entry_points() -> None:
    assert isinstance(headrace, CommandsWithPlugins)


def test_command_group_of_an_entry_point_is_listed_and_runs(directory: Path) -> None:
    install(directory, "acme-registry", {"acme-registry": "acme_cli:registry"}, {"acme_cli": REGISTRY})
    listed = run("--help").output
    assert "acme-registry  Manage Acme's schemas." in listed
    assert "validate" in listed
    assert "cannot be used" not in listed
    assert run("acme-registry", "start", "--times", "2").output == "started started \n"


@pytest.mark.parametrize("text", ["raise RuntimeError('no licence')", "import sys; sys.exit('no licence')"])
def test_command_that_cannot_be_imported_is_reported_and_the_other_commands_run(directory: Path, text: str) -> None:
    points = {
        "acme-registry": "acme_cli:registry",
        "acme-broken": "acme_broken:broken",
        "acme-type": "acme_cli:REGISTRY",
    }
    modules = {"acme_cli": REGISTRY + "REGISTRY = 1\n", "acme_broken": text}
    install(directory, "acme-registry", points, modules)
    result = run("acme-broken", "start", "--times", "2")
    assert result.exit_code == 1
    start = "headrace acme-broken: acme_broken:broken (distribution acme-registry) cannot be imported: "
    assert result.stderr.startswith(start)
    assert "no licence" in result.stderr
    result = run("acme-type", "--help")
    assert (result.exit_code, result.stderr) == (
        1,
        "headrace acme-type: acme_cli:REGISTRY (distribution acme-registry) is not a click.Command\n",
    )
    usable, _, unusable = run("--help").output.partition("Commands that cannot be used:")
    assert "acme-registry" in usable
    assert "acme-broken" not in usable
    assert "acme-broken" in unusable
    assert "acme-type" in unusable
    assert run("acme-registry", "start").exit_code == 0


def test_command_that_two_distributions_define_is_reported(directory: Path) -> None:
    for name in ("one", "two"):
        install(directory, f"acme-{name}", {"acme": f"acme_{name}:registry"}, {f"acme_{name}": REGISTRY})
    result = run("acme", "start")
    assert result.exit_code == 1
    assert "several distributions define this command: " in result.stderr
    for name in ("one", "two"):
        assert f"acme_{name}:registry (distribution acme-{name})" in result.stderr
    assert "several distributions define this command" in " ".join(run("--help").output.split())


def test_own_command_takes_precedence_over_an_entry_point_with_its_name(directory: Path) -> None:
    install(directory, "acme-registry", {"version": "acme_cli:registry"}, {"acme_cli": REGISTRY})
    assert run("version").output.startswith("headrace ")
    _, _, unusable = run("--help").output.partition("Commands that cannot be used:")
    assert "headrace has another command of this name, which hides acme_cli:registry" in " ".join(unusable.split())


def test_unknown_command_is_rejected(directory: Path) -> None:
    result = run("acme-registry")
    assert result.exit_code == click.UsageError.exit_code
    assert "No such command 'acme-registry'" in result.output
