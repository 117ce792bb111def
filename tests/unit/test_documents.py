"""Checks that the files, tests and tools named in the documents exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from types import FunctionType

import pytest

from headrace.api import Connector

ROOT = Path(__file__).parents[2]
DOCUMENTS = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
)
READMES_OF_CONNECTORS = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("connectors/*/*/README.md"))
FOLDERS = ("broker", "platform", "transforms", "connectors", "configs", "docs", "tests")
ARCHITECTURE_LINES_MAX = 210
FIRST_VERSION_LINES_MAX = 120
README_WORDS_MAX = 1500
_PATH = re.compile(r"`([a-z0-9_./]+(?:\.(?:py|md|properties|toml)|/))`")
_LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")
_TEST = re.compile(r"`(test_[a-z_]+\.py)::(test_\w+)`")
_INVARIANT = re.compile(r"^\| (R\d+) \|", re.MULTILINE)
_PLACEHOLDERS = (
    "connectors/<system>/", "source.py", "source_config.py", "sink.py", "sink_config.py", "utils.py", "platform/",
)  # fmt: skip


def files() -> list[str]:
    """Return the paths of all files and folders, relative to the root, with a leading slash."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts]
    return [f"/{path.relative_to(ROOT)}" for path in (*found, *(ROOT / name for name in FOLDERS), *ROOT.glob("*.*"))]


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a Markdown page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_named_in_a_document_exists(document: str) -> None:
    paths = files()
    names = {name.rstrip("/") for name in _PATH.findall((ROOT / document).read_text()) if name not in _PLACEHOLDERS}
    assert [name for name in names if not any(path.endswith("/" + name) for path in paths)] == []


@pytest.mark.parametrize("document", [*DOCUMENTS, *READMES_OF_CONNECTORS])
def test_every_link_of_a_document_leads_to_a_file_and_a_heading(document: str) -> None:
    page = ROOT / document
    for path, anchor in _LINK.findall(page.read_text()):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


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


def test_every_row_of_where_to_find_names_a_file() -> None:
    section = (ROOT / "ARCHITECTURE.md").read_text().partition("## Where to find\n")[2].partition("\n## ")[0]
    rows = [row.strip("| ").split(" | ") for row in section.strip().splitlines()[2:]]
    assert len(rows) >= 20
    assert [question for question, answer in rows if not _PATH.search(answer)] == []


def test_plugins_page_describes_every_method_of_connectors() -> None:
    text = (ROOT / "docs" / "plugins.md").read_text()
    methods = [
        name
        for name, member in vars(Connector).items()
        if isinstance(member, FunctionType | classmethod) and not name.startswith("_")
    ]
    assert {"required_extra", "validate"} <= set(methods)
    assert [name for name in methods if f"`{name}" not in text and f"def {name}(" not in text] == []


def test_changelog_describes_the_first_version_within_its_line_limit_below_the_unreleased_changes() -> None:
    sections = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    titles = [section.splitlines()[0] for section in sections]
    assert (titles[0], titles[-1]) == ("Unreleased", "0.1.0")
    assert len(sections[-1].splitlines()) <= FIRST_VERSION_LINES_MAX


def test_readme_does_not_exceed_its_word_limit_and_links_to_every_page_of_docs() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(readme.split()) <= README_WORDS_MAX
    pages = {path for path, _ in _LINK.findall(readme)} | {"docs/connect-tests.md", "docs/lakehouse.md"}
    assert {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} <= pages


def test_readme_and_its_installation_page_name_exactly_the_extras_that_pyproject_defines() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    readme, installation = (ROOT / "README.md").read_text(), (ROOT / "docs" / "installation.md").read_text()
    assert set(re.findall(r"^\| `([a-z0-9-]+)` \|", installation, re.MULTILINE)) == set(extras)
    (sentence,) = re.findall(r"^The extras are (.*?)\. ", readme, re.MULTILINE)
    assert set(re.findall(r"`([a-z0-9-]+)`", sentence)) == set(extras)
    installed = re.findall(r"pip install '\.\[([a-z0-9,-]+)\]'", readme + installation)
    assert {extra for names in installed for extra in names.split(",")} <= set(extras)


def test_features_page_lists_exactly_the_kafka_tools_that_are_installed() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    installed = {name.removeprefix("kafka") for name in scripts if name.startswith("kafka-") and "." not in name}
    (row,) = re.findall(r"^\| Tools \|.*$", (ROOT / "docs" / "features.md").read_text(), re.MULTILINE)
    assert set(re.findall(r"`(?:kafka)?(-[a-z-]+)`", row)) == installed
    assert (
        f"`kafka-topics`, `kafka-console-consumer` and {len(installed) - 2} other" in (ROOT / "README.md").read_text()
    )


@pytest.mark.parametrize("document", ["README.md", "docs/benchmarks.md"])
def test_every_number_in_a_table_of_benchmarks_is_in_the_results_file_of_its_row(document: str) -> None:
    rows = re.findall(
        r"^\| (.*)tests/benchmarks/results/([a-z-]+)\.md\) \|$", (ROOT / document).read_text(), re.MULTILINE
    )
    assert len(rows) >= 5
    for row, area in rows:
        results = (ROOT / "tests" / "benchmarks" / "results" / f"{area}.md").read_text()
        measured = [
            number for line in results.splitlines() if line.startswith(f"| {area} |") for number in numbers(line)
        ]
        _, *values = row.split(" | ")[:3]
        for value in map(without_remark, values):
            for number in numbers(value):
                assert any(is_rounded(number, result) for result in measured), f"{area}: {number} in {row}"


def without_remark(cell: str) -> str:
    """Return the value of a cell in a table of benchmarks, without the text after the value."""
    return re.split(r" \(|, but ", cell)[0]


def numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?", text)]


def is_rounded(number: float, result: float) -> bool:
    """Return whether a number in a document is a result, rounded to about two digits, maybe in another unit."""
    return any(abs(number - result * unit) <= 0.03 * number for unit in (1, 1e3, 1e-3))
