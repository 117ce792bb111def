"""Checks that the two lock files agree, and that a user's environment contains the packages of users, and no others."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCK_FILES = ("requirements.lock", "requirements-dev.lock", "requirements-bootstrap.lock")
_PIN = re.compile(r"^([a-z0-9-]+)==([^ ]+)( ;.*?)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE)


def pins(lock_file: str) -> set[tuple[str, str, str]]:
    """Return the name, version and environment marker of each distribution in a lock file."""
    return {match[:3] for match in _PIN.findall((ROOT / lock_file).read_text())}


@pytest.mark.parametrize("lock_file", LOCK_FILES)
def test_every_line_of_a_lock_file_is_a_pinned_version_a_hash_or_a_comment(lock_file: str) -> None:
    rest = _PIN.sub("", (ROOT / lock_file).read_text())
    assert [line for line in rest.splitlines() if not line.lstrip().startswith("#")] == []
    assert "://" not in rest


def test_both_environments_contain_the_same_versions_of_their_common_packages() -> None:
    user, test = pins("requirements.lock"), pins("requirements-dev.lock")
    common = {name for name, *_ in user} & {name for name, *_ in test}
    assert common
    assert {pin[:2] for pin in test if pin[0] in common} <= {pin[:2] for pin in user}


def test_packages_of_the_test_and_check_groups_are_only_in_the_lock_file_for_development() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    names = {re.split(r"[^A-Za-z0-9-]", requirement)[0].lower() for requirement in groups["test"] + groups["check"]}
    assert names <= {name for name, *_ in pins("requirements-dev.lock")}
    assert names & {name for name, *_ in pins("requirements.lock")} == {"zstandard"}  # Spark Connect needs it, too


def test_users_environment_contains_the_packages_that_make_demo_imports() -> None:
    demo = ROOT / "configs" / "demo"
    installed = {name.replace("-", "_") for name, *_ in pins("requirements.lock")}
    modules, imported = ["run_demo"], set()
    for module in modules:  # the list grows by the modules of the demo that these modules import
        for name in _imports((demo / f"{module}.py").read_text()):
            if not (demo / f"{name}.py").exists():
                imported.add(name)
            elif name not in modules:
                modules.append(name)
    assert "deltalake" in imported
    assert imported - sys.stdlib_module_names - installed == set()


def _imports(source: str) -> set[str]:
    """Return the names of the top-level packages that a module's source imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names
