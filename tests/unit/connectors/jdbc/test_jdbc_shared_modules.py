"""Tests of the function `shared_modules` of the JDBC source.

The function returns the modules that the fork server imports before it starts the processes of a connector.
"""

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
from headrace_connectors.jdbc.source_config import JdbcSourceConfig
from headrace_connectors.jdbc.source import _dialect
_dialect(JdbcSourceConfig.parse({"connection.url": sys.argv[1], "mode": "bulk"}))
print(*sorted(name for name in set(sys.modules) - before if "sqlalchemy" in name or "psycopg" in name))
"""


@pytest.mark.parametrize("address", ["sqlite:shop.db", "postgresql://localhost/shop"])
def test_preloaded_modules_contain_all_slow_imports_of_a_jdbc_dialect(address: str, tmp_path: Path) -> None:
    """The import of these modules starts no threads, because the fork server must have only one thread."""
    (tmp_path / "shop.db").touch()
    url = f"jdbc:{address}"
    modules = JdbcSourceConnector.shared_modules({"connection.url": url})
    command = [sys.executable, "-c", PROGRAM, url, *modules]
    process = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (process.stdout.strip(), process.stderr) == ("", "")


def test_no_modules_are_preloaded_for_an_invalid_url() -> None:
    assert JdbcSourceConnector.shared_modules({}) == ()
    assert JdbcSourceConnector.shared_modules({"connection.url": "jdbc:db2"}) == ()
