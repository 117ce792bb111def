"""Tests that the packages of all connectors have one layout: module names, loggers, and the sections of the README."""

from __future__ import annotations

import ast
import re
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

import headrace_connectors
from headrace.api.connector import Connector

ROOT = Path(headrace_connectors.__path__[0])
MODULES = sorted(str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py"))
READMES = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("*/README.md"))
CONNECTORS = sorted(
    (point for point in entry_points(group="headrace.connectors") if point.value.startswith("headrace_connectors.")),
    key=lambda point: point.name,
)
SECTIONS = ["Example", "Delivery", "Configuration", "Limits"]


@pytest.mark.parametrize("connector", CONNECTORS, ids=lambda point: point.name)
def test_configuration_of_a_connector_is_in_the_module_next_to_it_with_the_suffix_config(connector: Any) -> None:
    found: type[Connector[Any]] = connector.load()
    assert found.config_model.__module__ == f"{found.__module__}_config"


def test_every_connector_is_in_a_package_with_a_readme() -> None:
    assert len(CONNECTORS) == 9
    assert {f"{point.value.split('.')[1]}/README.md" for point in CONNECTORS} == set(READMES)


@pytest.mark.parametrize("readme", READMES)
def test_readme_describes_each_connector_in_the_same_sections(readme: str) -> None:
    """A README with several connectors has these sections for each connector, or for two connectors together."""
    headings = re.findall(r"^#+ (.*)$", (ROOT / readme).read_text(), re.MULTILINE)
    found = [heading for heading in headings if heading in SECTIONS]
    assert found == SECTIONS * (len(found) // len(SECTIONS))
    assert found


@pytest.mark.parametrize("module", MODULES)
def test_logger_of_a_module_has_the_name_of_the_module(module: str) -> None:
    for node in ast.parse((ROOT / module).read_text()).body:
        if isinstance(node, ast.Assign) and "getLogger" in ast.unparse(node.value):
            assert ast.unparse(node) == "logger = logging.getLogger(__name__)"
