"""Tests of the error that the connectors' demo reports if no stage receives a row for a long time."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

DEMO = Path(__file__).parents[2] / "configs" / "demo"


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(DEMO))
    module: Any = importlib.import_module("run_connectors_demo")
    monkeypatch.setattr(module, "STALLED_S", 0.0)
    monkeypatch.setattr(module, "POLL_S", 0.0)
    return module


def error_of(demo: Any, counts: Mapping[str, dict[str, int]]) -> str:
    """Return the error of a demo in which the stages never receive more rows than `counts`."""
    worker = SimpleNamespace(check=lambda: None)
    stages = {name: lambda found=found: found for name, found in counts.items()}
    with pytest.raises(demo.DemoError) as error:
        demo.follow(worker, {"flights": 1000, "planes": 10}, stages, demo.Progress())
    return str(error.value)


def test_stalled_demo_fails_with_an_error_about_the_incomplete_sinks(demo: Any) -> None:
    """A sink is incomplete if it has not written all records."""
    rows = {"flights": 1000, "planes": 10}
    behind = {"flights": 900, "planes": 10}
    error = error_of(demo, {"topic": rows, "S3": {}, "OpenSearch": rows, "SQLite": behind})
    assert "make no progress: s3-sink (S3: 0 of 1,010 rows), sqlite-sink (SQLite: 910 of 1,010 rows)." in error


def test_stalled_demo_fails_with_an_error_about_the_source_if_the_sinks_are_complete(
    demo: Any,
) -> None:
    """The sinks have written all records of the topics."""
    sent = {"flights": 500}
    error = error_of(demo, {"topic": sent, "S3": sent, "SQLite": sent})
    assert "make no progress: postgres-source (topic: 500 of 1,010 rows)." in error
