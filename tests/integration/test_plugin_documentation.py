"""Tests that the Python examples of docs/plugins.md form a module that passes its own tests and mypy --strict."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.plugins.registry import Kind, Registry

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "plugins.md"
MYPY_CACHE = ROOT / "build" / "mypy-plugins"  # shared by all tests that run mypy on plug-ins


@pytest.fixture
def module(tmp_path: Path) -> Path:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    path = tmp_path / "test_plugins_page.py"
    path.write_text("\n\n".join(blocks))
    return path


def run(*command: str | Path, directory: Path) -> str:
    result = subprocess.run(
        [sys.executable, "-m", *command], cwd=directory, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_examples_of_the_plugin_documentation_pass_their_own_tests(module: Path) -> None:
    output = run("pytest", "-q", "-W", "error", "-p", "no:cacheprovider", module, directory=module.parent)
    assert "8 passed" in output


def test_examples_of_the_plugin_documentation_pass_mypy_strict(module: Path) -> None:
    run("mypy", "--strict", "--cache-dir", MYPY_CACHE, module, directory=module.parent)


def test_example_plugins_of_the_plugin_documentation_are_found_by_name(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    registry = Registry((str(module.parent),))
    for name in ("ticks", "measurements", "lines", "Poller", "Store", "Sender", "Sums"):
        assert registry.find(Kind.CONNECTOR, name)
    assert registry.find(Kind.TRANSFORM, "square")
    assert registry.find(Kind.PREDICATE, "has_field")
    assert registry.find(Kind.CONVERTER, "JsonWithVersion")
    del sys.modules[module.stem]
