"""Tests that the example configs/plugins/countdown.py, a file with several plug-ins, works as its docstring says."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.worker import Worker, wait_for

pytestmark = pytest.mark.integration

PLUGINS = Path(__file__).parents[2] / "configs" / "plugins"


def test_source_sink_and_transform_of_the_countdown_example_run_from_one_file(tmp_path: Path) -> None:
    square = {"transforms": "square", "transforms.square.type": "square", "transforms.square.field": "n"}
    lines = tmp_path / "countdown.txt"
    with Worker(tmp_path, {"plugin.path": str(PLUGINS)}) as worker:
        worker.create("down", {"connector.class": "countdown", "topic": "countdown", "from": "3", **square})
        worker.create("lines", {"connector.class": "lines", "topics": "countdown", "path": str(lines)})
        expected = [f"countdown {offset} {{'n': {n * n}}}" for offset, n in enumerate((3, 2, 1, 0))]
        wait_for(lambda: lines.exists() and lines.read_text().splitlines() == expected, "all numbers")
        wait_for(lambda: worker.request("GET", "/connectors/down/offsets")["offsets"], "an offset")
        worker.request("POST", "/connectors/down/tasks/0/restart")
        worker.wait_for_state("down", "RUNNING")
        assert lines.read_text().splitlines() == expected


def test_broken_file_on_plugin_path_is_logged_once(tmp_path: Path) -> None:
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "broken.py").write_text("import headrace\nraise RuntimeError('broken file')\n")
    lines = tmp_path / "lines.txt"
    lines.write_text("a\n")
    with Worker(tmp_path, {"plugin.path": str(plugins)}) as worker:
        worker.create("in", {"connector.class": "FileStreamSource", "topic": "lines", "file": str(lines)})
        worker.wait_for_state("in", "RUNNING")
        assert worker.log().count("RuntimeError: broken file") == 1
