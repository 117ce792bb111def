"""The broker's own command line: what it runs without a file, and what it tells of itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headrace_broker.server.main import _parser, _properties, _say, main


def properties(*arguments: str) -> dict[str, str]:
    return _properties(_parser().parse_args(list(arguments)))


def test_without_a_file_the_data_lie_where_a_newcomer_finds_them() -> None:
    assert properties() == {
        "node.id": "1",
        "log.dirs": "headrace-data/broker",
        "offsets.topic.replication.factor": "1",
    }


def test_overrides_go_over_the_defaults_by_their_old_names_too() -> None:
    given = properties("--property", "log.dir=/data", "--override", "broker.id=7")
    assert given == {"log.dir": "/data", "broker.id": "7", "offsets.topic.replication.factor": "1"}


def test_overrides_go_over_a_file_which_keeps_kafkas_defaults(tmp_path: Path) -> None:
    file = tmp_path / "broker.properties"
    file.write_text("node.id=3\nlisteners=PLAINTEXT://:9092\n")
    given = properties(str(file), "--property", "node.id=4")
    assert given == {"node.id": "4", "listeners": "PLAINTEXT://:9092"}


def test_an_override_without_a_value_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"--property node\.id: expected KEY=VALUE"):
        properties("--property", "node.id")


def test_a_file_that_cannot_be_read_as_properties_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "broker.properties"
    file.write_text("log.dirs=C:\\users\n")
    assert main([str(file)]) == 1
    assert capsys.readouterr().err == f"headrace broker: {file}: Invalid \\u escape sequence: \\users\n"


def test_help_tells_what_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _parser().parse_args(["--help"])
    shown = capsys.readouterr().out
    assert "./headrace-data/broker" in " ".join(shown.split())
    assert "-fd" not in shown
    assert "parent-pid" not in shown


def test_it_serves_although_nobody_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        _say("headrace broker 1 serves 127.0.0.1:9092 (started in 83 ms)")
