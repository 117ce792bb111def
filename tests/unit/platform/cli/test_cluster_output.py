"""Tests that the cluster supervisor keeps running when it cannot write to standard output."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from headrace.cli.cluster.running import _print_line


def test_printing_lines_raises_no_error_after_the_standard_output_of_the_cluster_supervisor_was_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        _print_line("node 1 127.0.0.1:9092 pid 1")
        _print_line("node 1 died: killed by SIGKILL")


def test_output_line_that_was_not_written_because_the_disk_was_full_is_written_before_the_next_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with open("/dev/full", "w") as output, (tmp_path / "out").open("w") as file:
        monkeypatch.setattr(sys, "stdout", output)
        _print_line("one")
        os.dup2(file.fileno(), output.fileno())
        _print_line("two")
    assert (tmp_path / "out").read_text() == "one\ntwo\n"
