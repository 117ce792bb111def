"""Tests that the cluster supervisor keeps running when it cannot write to standard output."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from headrace.cli.cluster.running import _print_line


def test_cluster_supervisor_prints_lines_without_an_error_after_its_standard_output_was_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        _print_line("node 1 127.0.0.1:9092 pid 1")
        _print_line("node 1 died: killed by SIGKILL")


def test_output_line_that_could_not_be_written_to_a_full_disk_is_written_before_the_next_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with open("/dev/full", "w") as output, (tmp_path / "out").open("w") as file:
        monkeypatch.setattr(sys, "stdout", output)
        _print_line("one")
        os.dup2(file.fileno(), output.fileno())
        _print_line("two")
    assert (tmp_path / "out").read_text() == "one\ntwo\n"
