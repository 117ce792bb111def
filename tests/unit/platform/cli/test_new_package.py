"""Tests of `headrace new` with valid and invalid package names and directories.

tests/integration/test_generated_packages.py runs the generated packages.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.cli.main import headrace


def new(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(headrace, ["new", *map(str, arguments)])
    return result.exit_code, result.output


def test_headrace_new_creates_a_package_with_a_plugin_a_test_an_entry_point_and_a_readme(tmp_path: Path) -> None:
    code, output = new("sink", "weather-sink", "--dir", tmp_path)
    commands = f"cd {tmp_path}/weather-sink && pip install --editable '.[test]' && pytest"
    assert (code, output) == (0, f"created {tmp_path}/weather-sink; next: {commands}\n")
    root = tmp_path / "weather-sink"
    assert sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()) == [
        "README.md",
        "pyproject.toml",
        "src/weather_sink/__init__.py",
        "src/weather_sink/plugin.py",
        "src/weather_sink/py.typed",
        "tests/test_weather_sink.py",
    ]
    assert 'weather_sink = "weather_sink.plugin:weather_sink"' in (root / "pyproject.toml").read_text()
    assert "connector.class=weather_sink" in (root / "README.md").read_text()


@pytest.mark.parametrize("name", ["Weather", "9lives", "a b", "a.b", "a--b", "-a", "../a", "", "wetter-größe"])
def test_invalid_package_name_is_refused(name: str, tmp_path: Path) -> None:
    code, output = new("source", "--dir", tmp_path / "out", "--", name)
    assert code == 1
    assert f"{name!r} is not a package name: use lower-case letters and digits" in output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("class", "class is a Python keyword"),
        ("json", "the module json already exists"),
        ("headrace", "the module headrace already exists"),
    ],
)
def test_package_name_that_is_a_keyword_or_an_existing_module_is_refused_with_a_suggestion(
    name: str, reason: str, tmp_path: Path
) -> None:
    code, output = new("transform", name, "--dir", tmp_path)
    assert code == 1
    assert reason in output
    assert f"for example {name}-transform" in output


def test_headrace_new_refuses_an_existing_package_directory(tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    code, output = new("source", "orders", "--dir", tmp_path)
    assert code == 1
    assert f"{tmp_path}/orders already exists: choose another name, or another --dir" in output
    assert list((tmp_path / "orders").iterdir()) == []


def test_headrace_new_refuses_a_parent_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, output = new("source", "orders", "--dir", tmp_path / "file")
    assert code == 1
    assert "headrace new: " in output
    assert "Traceback" not in output
