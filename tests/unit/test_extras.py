"""Checks that each extra installs the packages that its connectors import."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONNECTORS = ROOT / "connectors" / "headrace_connectors"


@pytest.mark.parametrize(
    ("folder", "extras"),
    [
        ("file", ["s3"]),  # only for Parquet files
        ("jdbc", ["jdbc-mysql", "jdbc-postgres"]),
        ("elasticsearch", ["elasticsearch"]),
        ("s3", ["s3"]),
        ("lakehouse", ["spark"]),
    ],
)
def test_extras_of_a_connector_install_all_packages_that_it_imports(folder: str, extras: list[str]) -> None:
    distributions = packages_distributions()
    installed = installed_with(extras)
    imported = {name for path in (CONNECTORS / folder).rglob("*.py") for name in imports_of(path)}
    foreign = {name for name in imported - sys.stdlib_module_names if not name.startswith("headrace")}
    missing = {
        name for name in foreign if not any(canonicalize_name(found) in installed for found in distributions[name])
    }
    assert missing == set()


def installed_with(extras: Iterable[str]) -> set[str]:
    """Return the names of the distributions that an installation of headrace with these extras contains."""
    pending = [Requirement(text) for text in PROJECT["dependencies"]]
    pending += [Requirement(f"headrace[{extra}]") for extra in extras]
    installed: set[str] = set()
    seen: set[tuple[str, frozenset[str]]] = set()
    while pending:
        requirement = pending.pop()
        name, key = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, key) not in seen:
            seen.add((name, key))
            installed.add(name)
            pending += requirements_of(name, key)
    return installed


def requirements_of(name: str, extras: frozenset[str]) -> list[Requirement]:
    """Return the requirements of a distribution. Those of one that this platform does not need are unknown."""
    if name == "headrace":  # the metadata of an editable installation may be older than pyproject.toml
        return [Requirement(text) for extra in extras for text in PROJECT["optional-dependencies"][extra]]
    try:
        texts = requires(name) or []
    except PackageNotFoundError:
        return []
    found = [Requirement(text) for text in texts]
    return [each for each in found if any(is_needed(each, extra) for extra in ("", *extras))]


def is_needed(requirement: Requirement, extra: str) -> bool:
    """Whether this Python needs a requirement of a distribution that is installed with `extra`."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def imports_of(path: Path) -> set[str]:
    """Return the names of the top-level packages that a module imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names
