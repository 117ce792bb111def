"""Tests of `headrace validate`: each line of the output names a configuration file."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.validate import validate_files
from headrace.testing import ConnectWorker, ConnectWorkerError, KafkaBroker
from support.ports import free_port

pytestmark = pytest.mark.integration


def test_validate_command_reports_an_error_if_the_database_is_unreachable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error line contains the path of the configuration file and the configuration key `connection.url`."""
    file = tmp_path / "j.properties"
    file.write_text(
        "name=j\nconnector.class=JdbcSource\nmode=bulk\ntable.whitelist=orders\ntopic.prefix=t-\n"
        f"connection.url=jdbc:postgresql://127.0.0.1:{free_port()}/shop\n"
    )
    assert not validate_files([file], None)
    output = capsys.readouterr()
    lines = output.err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"{file}: Invalid value jdbc:postgresql://127.0.0.1:")
    assert "for configuration connection.url: cannot connect to postgresql://127.0.0.1:" in lines[0]
    assert output.out == ""


def test_worker_reports_forbidden_client_overrides_together_with_all_other_errors(kafka_broker: KafkaBroker) -> None:
    config = {
        "connector.class": "FileStreamSource",
        "tasks.max": "0",
        "producer.override.acks": "1",
        "producer.override.linger.ms": "soon",
        "admin.override.request.timeout.ms": "soon",
    }
    settings = {
        "connector.client.config.override.policy": "Allowlist",
        "connector.client.config.override.allowlist": "linger.ms,request.timeout.ms",
    }
    with ConnectWorker(kafka_broker.bootstrap_servers, settings) as worker:
        with pytest.raises(ConnectWorkerError, match=r"contains the following 5 error\(s\)") as refused:
            worker.create("c", config)
        for part in (
            "topic",
            "tasks.max",
            "The 'Allowlist' policy does not allow 'acks' to be overridden",
            "producer.override.linger.ms=soon",
            "admin.override.request.timeout.ms=soon",
        ):
            assert part in str(refused.value)
        result = worker.request("PUT", "/connector-plugins/FileStreamSource/config/validate", {**config, "name": "c"})
        assert result["error_count"] == 5
