"""Runs the directory source in the test process, without a worker or a broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.testing import run_source
from headrace_connectors.file.directory_source import DirectorySourceConnector


def props(directory: Path, **more: str) -> dict[str, str]:
    """Return the configuration of a source that reads lines."""
    base = {"directory": str(directory), "topic": "t", "format": "lines", "settle.time.ms": "0", "batch.size": "3"}
    return base | {name.replace("_", "."): text for name, text in more.items()}


def read(directory: Path, count: int = 1000, **more: Any) -> Any:
    """Run the source in memory until it has returned `count` records, or until it has no more records."""
    options = {name: more.pop(name) for name in ("offsets", "faults") if name in more}
    return run_source(DirectorySourceConnector, props(directory, **more), records=count, **options)


def values(run: Any) -> list[Any]:
    """Return the values of all records in `run`, a result of `read`. Convert each struct to a dictionary."""
    return [dict(record.value) if hasattr(record.value, "schema") else record.value for record in run.records]
