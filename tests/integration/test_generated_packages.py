"""The packages that `headrace new` generates pass their own tests, mypy and ruff, and plugin.path finds them."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from headrace.cli.new_package import ENTRY_POINT_GROUPS, create_package

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
MYPY_CACHE = ROOT / "build" / "mypy-plugins"  # shared by all tests that run mypy on plug-ins
LABELS = {"source": "connector", "sink": "connector", "transform": "transform", "converter": "converter"}


def run(*command: str | Path, directory: Path) -> None:
    result = subprocess.run([sys.executable, *command], cwd=directory, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("kind", ENTRY_POINT_GROUPS)
def test_generated_package_passes_its_tests_and_checks(kind: str, tmp_path: Path) -> None:
    root = create_package(kind, f"example-{kind}", tmp_path)
    run("-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", directory=root)
    run("-m", "mypy", "--strict", "--cache-dir", MYPY_CACHE, directory=root)
    run("-m", "ruff", "check", "--no-cache", "--line-length", "120", ".", directory=root)
    run("-m", "ruff", "format", "--no-cache", "--check", "--line-length", "120", ".", directory=root)


@pytest.mark.parametrize("kind", ENTRY_POINT_GROUPS)
def test_generated_plugin_is_found_on_plugin_path(kind: str, tmp_path: Path) -> None:
    root = create_package(kind, f"example-{kind}", tmp_path)
    name = "ExampleConverter" if kind == "converter" else f"example_{kind}"
    find = f"from headrace.plugins import registry as r; r.use_plugin_path('src'); r.find('{LABELS[kind]}', '{name}')"
    run("-c", find, directory=root)


def test_wheel_contains_the_templates(tmp_path: Path) -> None:
    build = "import os, hatchling.build; print(hatchling.build.build_wheel(os.environ['OUT']))"
    result = subprocess.run(
        [sys.executable, "-c", build], cwd=ROOT, env={"OUT": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    templates = (ROOT / "platform/headrace/cli/templates").rglob("*.template")
    assert {str(path.relative_to(ROOT / "platform")) for path in templates} <= names
