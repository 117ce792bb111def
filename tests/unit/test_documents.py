"""What the documents name is there: tests, files, tools."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
FOLDERS = ("broker", "platform", "transforms", "connectors", "configs", "tests")
_PATH = re.compile(r"`([a-z_./]+(?:\.(?:py|md|properties|toml)|/))`|\]\((?!http)([^)]+)\)")
_TEST = re.compile(r"`(test_[a-z_]+\.py)::(test_\w+)`")
_INVARIANT = re.compile(r"^\| (R\d+) \|", re.MULTILINE)
_NO_FILES = ("connectors/<system>/", "source.py", "sink.py", "config.py", "utils.py")


def files() -> list[str]:
    """Every file and folder, by its path from the root, with a slash in front."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts]
    return [f"/{path.relative_to(ROOT)}" for path in (*found, *(ROOT / name for name in FOLDERS), *ROOT.glob("*.*"))]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_that_is_named_is_there(document: str) -> None:
    there = files()
    named = {first or second for first, second in _PATH.findall((ROOT / document).read_text())} - set(_NO_FILES)
    missing = [name for name in named if not any(path.endswith("/" + name.rstrip("/")) for path in there)]
    assert missing == []


def test_every_invariant_of_replication_has_a_test() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert _INVARIANT.findall(text) == [f"R{number}" for number in range(1, 16)]
    for row in re.findall(r"^\| R\d+ \|.*$", text, re.MULTILINE):
        shown_by = _TEST.findall(row)
        assert shown_by, row
        for file, test in shown_by:
            (path,) = (ROOT / "tests").rglob(file)
            assert f"def {test}(" in path.read_text(), f"{file}::{test}"


def test_every_tool_that_the_readme_lists_is_installed() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    installed = {name.removeprefix("kafka") for name in scripts if name.startswith("kafka-") and "." not in name}
    (row,) = re.findall(r"^\| Tools \|.*$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert set(re.findall(r"`(?:kafka)?(-[a-z-]+)`", row)) == installed
