"""What the supervisor says is for whoever reads it; that nobody does, or can, is no reason to leave the nodes alone."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from headrace.cli.cluster.running import _say


def test_a_reader_that_is_gone_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        _say("node 1 127.0.0.1:9092 pid 1")
        _say("node 1 died: killed by SIGKILL")


def test_a_full_disk_takes_the_line_when_it_has_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with open("/dev/full", "w") as output, (tmp_path / "out").open("w") as file:
        monkeypatch.setattr(sys, "stdout", output)
        _say("one")
        os.dup2(file.fileno(), output.fileno())
        _say("two")
    assert (tmp_path / "out").read_text() == "one\ntwo\n"
