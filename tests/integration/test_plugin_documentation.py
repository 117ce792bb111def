"""Tests that the Python examples of docs/plugins.md form a module that passes its own tests and mypy --strict."""

from __future__ import annotations

import datetime as dt
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest

from headrace.api import SinkRecord
from headrace.plugins.registry import Kind, Registry
from headrace.testing import run_sink, run_source
from headrace_connectors.jdbc.sink import JdbcSinkConnector
from headrace_connectors.s3.parquet import encode_rows

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
    assert "9 passed" in output


def test_examples_of_the_plugin_documentation_pass_mypy_strict(module: Path) -> None:
    run("mypy", "--strict", "--cache-dir", MYPY_CACHE, module, directory=module.parent)


def test_example_plugins_of_the_plugin_documentation_are_found_by_name(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    registry = Registry((str(module.parent),))
    for name in ("ticks", "measurements", "orders", "lines", "Poller", "Store", "Sender", "Sums"):
        assert registry.find(Kind.CONNECTOR, name)
    assert registry.find(Kind.TRANSFORM, "square")
    assert registry.find(Kind.PREDICATE, "has_field")
    assert registry.find(Kind.CONVERTER, "JsonWithVersion")
    del sys.modules[module.stem]


def test_records_of_the_schema_example_are_stored_by_the_jdbc_sink_and_as_parquet(
    module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    orders = Registry((str(module.parent),)).find(Kind.CONNECTOR, "orders")
    records = run_source(orders, {"topic": "orders", "last": "2"}, records=2).records
    del sys.modules[module.stem]

    database = tmp_path / "shop.db"
    props = {"connection.url": f"jdbc:sqlite:{database}", "auto.create": "true"}
    values = [
        SinkRecord(
            topic="orders", partition=0, offset=index, value_schema=each.value_schema, value=each.value, timestamp=0
        )
        for index, each in enumerate(records)
    ]
    assert run_sink(JdbcSinkConnector, props, values).committed == {("orders", 0): 2}
    with closing(sqlite3.connect(database)) as connection:
        [row, _] = connection.execute("SELECT id, customer, total, note, ordered_at FROM orders ORDER BY id").fetchall()
    ordered_at = dt.datetime(2026, 1, 1, 12, 30, tzinfo=dt.UTC)
    assert row == (1, "Ada", 9.9, None, ordered_at.timestamp() * 1000)

    [stored, _] = encode_rows(
        records[0].value_schema, [tuple(each.value.row) for each in records], True
    ).batch.to_pylist()
    assert stored == {
        "id": 1,
        "customer": "Ada",
        "total": Decimal("9.90"),
        "note": None,
        "ordered_at": ordered_at,
    }
