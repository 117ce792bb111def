"""Tests that a node refuses the directories of an Apache Kafka node that has quotas or SCRAM credentials."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support import apache
from support.ports import free_port

pytestmark = [
    pytest.mark.jvm,
    pytest.mark.integration,
    pytest.mark.skipif(bool(apache.unavailable_reason()), reason=apache.unavailable_reason() or ""),
]


def start_error(log_dir: Path) -> str:
    """Start a node that must fail to start in this directory, and return its error line."""
    command = [sys.executable, "-m", "headrace_broker.server"]
    for pair in ("node.id=1", "listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={log_dir}"):
        command += ["--property", pair]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    return done.stderr.splitlines()[-1]


def test_node_does_not_start_with_the_metadata_log_of_an_apache_kafka_node_that_has_quotas_and_scram_credentials(
    tmp_path: Path,
) -> None:
    with apache.broker(flags=apache.SHORT_RUN_FLAGS) as kafka:
        for config in ("producer_byte_rate=1000", "SCRAM-SHA-256=[password=secret]"):
            arguments = ["--alter", "--entity-type", "users", "--entity-name", "a", "--add-config", config]
            altered = apache.run_tool("kafka.admin.ConfigCommand", "--bootstrap-server", kafka.address, *arguments)
            assert altered.returncode == 0, altered.stderr
        shutil.copytree(kafka.directory / "data", tmp_path / "data")
    line = start_error(tmp_path / "data")
    assert "the metadata also contains SCRAM credentials (1), client quotas (1)" in line, line


def test_node_does_not_start_in_a_directory_that_apache_kafka_has_formatted_with_scram_credentials(
    tmp_path: Path,
) -> None:
    port = free_port()
    file = tmp_path / "server.properties"
    file.write_text(
        "process.roles=broker,controller\nnode.id=1\ncontroller.listener.names=CONTROLLER\n"
        f"controller.quorum.voters=1@127.0.0.1:{port}\nlog.dirs={tmp_path / 'data'}\n"
        f"listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:{port}\n"
    )
    credentials = ["--add-scram", "SCRAM-SHA-256=[name=a,password=b]"]
    formatted = apache.run_tool(
        "kafka.tools.StorageTool", "format", "-t", apache.CLUSTER_ID, "-c", str(file), *credentials
    )
    assert formatted.returncode == 0, formatted.stderr
    assert "bootstrap.checkpoint contains SCRAM credentials (1)" in start_error(tmp_path / "data")
