"""Tests that the environment of `make` contains no other project's commands with names of Kafka's commands."""

from __future__ import annotations

import sysconfig
from importlib.metadata import entry_points
from pathlib import Path


def test_all_commands_of_the_environment_with_names_of_kafka_commands_are_commands_of_headrace() -> None:
    own = {
        point.name
        for point in entry_points(group="console_scripts")
        if point.dist is not None and point.dist.name == "headrace"
    }
    directory = Path(sysconfig.get_path("scripts"))
    found = {path.name for pattern in ("kafka*", "connect-*") for path in directory.glob(pattern)}
    assert "kafka-topics" in found
    assert found - own == set(), "other projects' commands; run make check, which removes them"
