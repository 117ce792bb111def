"""Tests that nodes start with the keys of the files that Apache Kafka 4.3 ships in its directory config/.

The tests change only node ids, ports and directories.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace_broker.tools import storage
from support.ports import free_ports
from support.raw_client import RawClient, create_topic

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
MAP = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL"
COMMON = """
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
num.partitions=1
num.recovery.threads.per.data.dir=2
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""
SERVER = f"""
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:{{controller}}
listeners=PLAINTEXT://:{{broker}},CONTROLLER://:{{controller}}
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:{{broker}},CONTROLLER://localhost:{{controller}}
controller.listener.names=CONTROLLER
listener.security.protocol.map={MAP}
{COMMON}"""
BROKER = f"""
process.roles=broker
node.id=2
controller.quorum.bootstrap.servers=localhost:{{controller}}
listeners=PLAINTEXT://localhost:{{broker}}
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:{{broker}}
controller.listener.names=CONTROLLER
listener.security.protocol.map={MAP}
group.initial.rebalance.delay.ms=0
{COMMON}"""
CONTROLLER = f"""
process.roles=controller
node.id=1
controller.quorum.bootstrap.servers=localhost:{{controller}}
listeners=CONTROLLER://:{{controller}}
advertised.listeners=CONTROLLER://localhost:{{controller}}
controller.listener.names=CONTROLLER
group.initial.rebalance.delay.ms=0
{COMMON}"""


class Files:
    """Properties files with the ports of one cluster."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.broker_port, self.controller_port = free_ports(2)

    def write(self, name: str, template: str) -> Path:
        """Write a file, and format its log directory."""
        file = self.directory / f"{name}.properties"
        text = template.format(broker=self.broker_port, controller=self.controller_port)
        file.write_text(f"{text}log.dirs={self.directory / name}\n")
        assert storage.main(["format", "-t", CLUSTER_ID, "-c", str(file)]) == 0
        return file


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@contextmanager
def running(file: Path, *arguments: str) -> Iterator[Path]:
    """Run a node until the block ends. Yield the path of its log when the node serves."""
    log = file.with_suffix(".log")
    command = [sys.executable, "-m", "headrace_broker.server", str(file), *arguments]
    with log.open("w") as output, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=output, text=True) as node:
        try:
            assert node.stdout is not None
            assert " serves " in node.stdout.readline(), log.read_text()
            yield log
        finally:
            node.send_signal(signal.SIGTERM)
            assert node.wait(30) == 0


def warnings(log: Path) -> list[str]:
    return [line.partition("WARNING ")[2] for line in log.read_text().splitlines() if "WARNING" in line]


def test_node_starts_with_the_keys_of_server_properties(files: Files) -> None:
    with running(files.write("server", SERVER)) as log, RawClient(f"127.0.0.1:{files.broker_port}") as client:
        create_topic(client, "t")
        (warning,) = warnings(log)
        assert warning.startswith(
            "Broker configuration: ignored Kafka configs that have no effect in this broker: num.network.threads"
        )


def test_controller_and_broker_start_with_the_keys_of_controller_properties_and_broker_properties(
    files: Files,
) -> None:
    controller, broker = files.write("controller", CONTROLLER), files.write("broker", BROKER)
    with (
        running(controller) as controller_log,
        running(broker) as broker_log,
        RawClient(f"127.0.0.1:{files.broker_port}") as client,
    ):
        create_topic(client, "t")
        assert (len(warnings(controller_log)), len(warnings(broker_log))) == (1, 1)


def test_broker_without_a_controller_in_its_bootstrap_servers_does_not_start(files: Files) -> None:
    file = files.write("broker", BROKER)
    words = ["--property", "initial.broker.registration.timeout.ms=300"]
    command = [sys.executable, "-m", "headrace_broker.server", str(file), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert line.startswith("headrace broker: controller.quorum.bootstrap.servers: no controller has responded within")
    assert f"localhost:{files.controller_port}: " in line


def test_broker_that_names_a_client_listener_in_its_bootstrap_servers_does_not_start(files: Files) -> None:
    with running(files.write("server", SERVER)):
        broker = files.write("broker", BROKER.replace("{controller}", "{broker}").replace(
            "PLAINTEXT://localhost:{broker}", "PLAINTEXT://localhost:0"
        ))  # fmt: skip
        words = ["--property", "initial.broker.registration.timeout.ms=300"]
        command = [sys.executable, "-m", "headrace_broker.server", str(broker), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "this is a broker listener; the controllers listen on" in done.stderr.splitlines()[-1]


def test_broker_with_the_node_id_of_a_controller_does_not_start(files: Files) -> None:
    with running(files.write("controller", CONTROLLER)):
        broker = files.write("broker", BROKER.replace("node.id=2", "node.id=1"))
        command = [sys.executable, "-m", "headrace_broker.server", str(broker)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "give each node a unique node.id" in done.stderr.splitlines()[-1]
