"""FileStreamSinkConnector and the example sink pass the conformance suite."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.testing.conformance import SinkConformance
from headrace_connectors.file.sink import FileStreamSinkConnector

EXAMPLE = Path(__file__).parents[3] / "configs" / "plugins" / "countdown.py"


def load_example() -> Any:
    spec = importlib.util.spec_from_file_location("countdown_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestFileStreamSink(SinkConformance):
    plugin = FileStreamSinkConnector

    def config(self) -> dict[str, str]:
        return {"file": str(self.directory / "lines.txt")}

    def stored(self) -> Sequence[Any]:
        path = self.directory / "lines.txt"
        return path.read_text().splitlines() if path.exists() else []


class TestExampleSink(SinkConformance):
    plugin = load_example().lines

    def config(self) -> dict[str, str]:
        return {"path": str(self.directory / "lines.txt")}

    def stored(self) -> Sequence[Any]:
        path = self.directory / "lines.txt"
        return path.read_text().splitlines() if path.exists() else []
