"""Checks that the files, tests and tools named in the documents exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
)
FOLDERS = ("broker", "platform", "transforms", "connectors", "configs", "docs", "tests")
ARCHITECTURE_LINES_MAX = 200
FIRST_VERSION_LINES_MAX = 120
_PATH = re.compile(r"`([a-z_./]+(?:\.(?:py|md|properties|toml)|/))`|\]\((?!http|#)([^)]+)\)")
_TEST = re.compile(r"`(test_[a-z_]+\.py)::(test_\w+)`")
_INVARIANT = re.compile(r"^\| (R\d+) \|", re.MULTILINE)
_PLACEHOLDERS = ("connectors/<system>/", "source.py", "sink.py", "config.py", "utils.py", "platform/")


def files() -> list[str]:
    """Return the paths of all files and folders, relative to the root, with a leading slash."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts]
    return [f"/{path.relative_to(ROOT)}" for path in (*found, *(ROOT / name for name in FOLDERS), *ROOT.glob("*.*"))]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_named_in_a_document_exists(document: str) -> None:
    paths = files()
    named = {first or second for first, second in _PATH.findall((ROOT / document).read_text())} - set(_PLACEHOLDERS)
    names = [name.removeprefix("../").rstrip("/") for name in named]
    assert [name for name in names if not any(path.endswith("/" + name) for path in paths)] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_test_named_in_a_document_exists(document: str) -> None:
    for file, test in _TEST.findall((ROOT / document).read_text()):
        sources = [path.read_text() for path in (ROOT / "tests").rglob(file)]
        assert any(f"def {test}(" in source for source in sources), f"{file}::{test}"


def test_every_replication_invariant_in_the_broker_document_names_a_test() -> None:
    text = (ROOT / "docs" / "broker.md").read_text()
    assert _INVARIANT.findall(text) == [f"R{number}" for number in range(1, 16)]
    for row in re.findall(r"^\| R\d+ \|.*$", text, re.MULTILINE):
        assert _TEST.findall(row), row


def test_architecture_document_does_not_exceed_its_line_limit() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= ARCHITECTURE_LINES_MAX


def test_changelog_describes_the_first_version_within_its_line_limit_below_the_unreleased_changes() -> None:
    sections = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    titles = [section.splitlines()[0] for section in sections]
    assert (titles[0], titles[-1]) == ("Unreleased", "0.1.0")
    assert len(sections[-1].splitlines()) <= FIRST_VERSION_LINES_MAX


def test_readme_names_exactly_the_extras_that_pyproject_defines() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (installation,) = re.findall(r"^## Install\n(.*?)^## ", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"^\| `([a-z0-9-]+)` \|", installation, re.MULTILINE)) == set(extras)
    assert set(re.findall(r"pip install '\.\[([a-z0-9-]+)\]'", installation)) <= set(extras)


def test_readme_lists_exactly_the_kafka_tools_that_are_installed() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    installed = {name.removeprefix("kafka") for name in scripts if name.startswith("kafka-") and "." not in name}
    (row,) = re.findall(r"^\| Tools \|.*$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert set(re.findall(r"`(?:kafka)?(-[a-z-]+)`", row)) == installed
