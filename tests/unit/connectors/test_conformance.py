"""Runs the conformance suite on the FileStream connectors and the example plug-ins."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.testing.conformance import SinkConformance, SourceConformance
from headrace_connectors.file.sink import FileStreamSinkConnector
from headrace_connectors.file.source import FileStreamSourceConnector

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


class TestFileStreamSource(SourceConformance):
    plugin = FileStreamSourceConnector
    names = ("lines.txt", "a b", "\u00fc\u4e2d.txt", "x" * 200, "quote'\"", "*?[a]", "-n", "$HOME")

    def config(self) -> dict[str, str]:
        return self.config_of("lines.txt")

    def config_of(self, name: str) -> dict[str, str]:
        return {"file": str(self.directory / name), "topic": "lines", "batch.size": "3"}

    def hostile_configs(self) -> Sequence[dict[str, str]]:
        return [self.config_of(name) for name in self.names]

    def produce(self, count: int) -> None:
        path = self.directory / self.names[self.hostile_index or 0]
        before = len(path.read_text().splitlines()) if path.exists() else 0
        with path.open("a") as file:
            file.writelines(f"line {number}\n" for number in range(before, before + count))
