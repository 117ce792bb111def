"""Tests of the broker's command line: defaults, overrides, error messages and help."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headrace_broker.server.main import _parser, _print_line, _properties, main


def properties(*arguments: str) -> dict[str, str]:
    return _properties(_parser().parse_args(list(arguments)))


def test_broker_without_properties_file_uses_single_node_defaults() -> None:
    assert properties() == {
        "node.id": "1",
        "log.dirs": "headrace-data/broker",
        "offsets.topic.replication.factor": "1",
    }


def test_command_line_override_with_a_deprecated_key_replaces_the_default_value() -> None:
    given = properties("--property", "log.dir=/data", "--override", "broker.id=7")
    assert given == {"log.dir": "/data", "broker.id": "7", "offsets.topic.replication.factor": "1"}


def test_command_line_override_replaces_the_value_in_the_properties_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.properties"
    file.write_text("node.id=3\nlisteners=PLAINTEXT://:9092\n")
    given = properties(str(file), "--property", "node.id=4")
    assert given == {"node.id": "4", "listeners": "PLAINTEXT://:9092"}


def test_command_line_override_without_a_value_is_rejected() -> None:
    with pytest.raises(SystemExit, match=r"--property node\.id: expected KEY=VALUE"):
        properties("--property", "node.id")


def test_invalid_properties_file_is_rejected_with_a_one_line_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "broker.properties"
    file.write_text("log.dirs=C:\\users\n")
    assert main([str(file)]) == 1
    assert capsys.readouterr().err == f"headrace broker: {file}: Invalid \\u escape sequence: \\users\n"


def test_each_protection_that_is_not_supported_is_one_line_of_the_start_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "broker.properties"
    file.write_text(
        "process.roles=broker,controller\nnode.id=1\nlisteners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:9093\n"
        "controller.listener.names=CONTROLLER\nlistener.security.protocol.map=CONTROLLER:SASL_SSL,PLAINTEXT:PLAINTEXT\n"
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\nsuper.users=User:admin\n"
        f"log.dirs={tmp_path}/data\n"
    )
    assert main([str(file)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1] for line in lines] == [
        "listener.security.protocol.map",
        "authorizer.class.name",
        "super.users",
    ]
    assert all("would run" in line for line in lines)
    assert not (tmp_path / "data").exists()


def test_broker_help_does_not_show_internal_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _parser().parse_args(["--help"])
    shown = capsys.readouterr().out
    assert "./headrace-data/broker" in " ".join(shown.split())
    assert "-fd" not in shown
    assert "parent-pid" not in shown


def test_broker_raises_no_exception_if_it_cannot_write_to_standard_output(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        _print_line("headrace broker 1 serves 127.0.0.1:9092 (started in 83 ms)")
