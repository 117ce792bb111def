"""Tests that the JDBC source's `shared_modules` include all slow imports and start no threads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace_connectors.jdbc.source import JdbcSourceConnector

PROGRAM = """
import importlib, sys, threading
from headrace.runtime import preload
preload.load()
for name in sys.argv[2:]:
    importlib.import_module(name)
assert threading.active_count() == 1, threading.enumerate()
before = set(sys.modules)
from headrace_connectors.jdbc.config import JdbcSourceConfig
from headrace_connectors.jdbc.source import _dialect
_dialect(JdbcSourceConfig.parse({"connection.url": sys.argv[1], "mode": "bulk"}))
print(*sorted(name for name in set(sys.modules) - before if "sqlalchemy" in name or "psycopg" in name))
"""


@pytest.mark.parametrize("address", ["sqlite:shop.db", "postgresql://localhost/shop"])
def test_shared_modules_include_all_slow_imports_of_the_dialect_and_start_no_threads(
    address: str, tmp_path: Path
) -> None:
    (tmp_path / "shop.db").touch()
    url = f"jdbc:{address}"
    modules = JdbcSourceConnector.shared_modules({"connection.url": url})
    command = [sys.executable, "-c", PROGRAM, url, *modules]
    process = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (process.stdout.strip(), process.stderr) == ("", "")


def test_no_shared_modules_are_returned_for_an_invalid_url() -> None:
    assert JdbcSourceConnector.shared_modules({}) == ()
    assert JdbcSourceConnector.shared_modules({"connection.url": "jdbc:db2"}) == ()
