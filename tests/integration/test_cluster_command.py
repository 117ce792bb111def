"""Tests of `headrace cluster`, which starts, controls and stops a local cluster and leaves no process running."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli.cluster.layout import read_layout
from support.cluster import ClusterProcess, running_cluster
from support.cluster_load import create_topic
from support.processes import is_alive

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    with running_cluster(tmp_path_factory.mktemp("cluster") / "c") as cluster:
        yield cluster


def start_error(cluster: ClusterProcess, *arguments: str) -> str:
    """Start a supervisor that must fail to start, and return its one-line error message."""
    start = len(cluster.output)
    cluster.launch(*arguments)
    assert cluster.wait() == 1, cluster.output
    lines = cluster.output[start:].splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def wait_until_exited(pids: list[int]) -> None:
    deadline = time.monotonic() + 20
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, pids
        time.sleep(0.01)


def test_cluster_start_prints_bootstrap_servers_and_nodes(cluster: ClusterProcess) -> None:
    lines = cluster.output.splitlines()
    assert lines[0] == f"bootstrap.servers={cluster.bootstrap_servers}"
    assert sorted(lines[1:4]) == [f"node {node} {cluster.address(node)} pid {cluster.pid(node)}" for node in (1, 2, 3)]


def test_controller_listeners_use_consecutive_ports_from_base_port_plus_1000(cluster: ClusterProcess) -> None:
    for node in (1, 2, 3):
        socket.create_connection(("127.0.0.1", cluster.base_port + 1000 + node - 1), timeout=30).close()


def test_each_node_has_its_own_properties_file(cluster: ClusterProcess) -> None:
    text = (cluster.directory / "node-2" / "server.properties").read_text()
    assert "node.id=2\n" in text
    assert "min.insync.replicas=2\n" in text
    assert f"listeners=PLAINTEXT://{cluster.address(2)}," in text


def test_cluster_commands_control_a_cluster_that_another_process_has_started(
    cluster: ClusterProcess,
) -> None:
    cluster.stop_node(2)
    status = cluster.run_cli("status").stdout.splitlines()
    assert status[2] == f"node 2 {cluster.address(2)} stopped"
    assert status[1] == f"node 1 {cluster.address(1)} pid {cluster.pid(1)} serving"
    again = cluster.run_cli("stop-node", 2)
    assert (again.returncode, again.stderr) == (1, "headrace cluster: node 2 is not running\n")
    started = cluster.run_cli("start-node", 2)
    line = f"node 2 {cluster.address(2)} pid {cluster.pid(2)}"
    assert started.stdout == line + "\n"
    assert cluster.output.splitlines()[-1] == line
    assert "is already running as process" in cluster.run_cli("start-node", 2).stderr
    assert (
        cluster.run_cli("start-node", 9).stderr == "headrace cluster: there is no node 9: the cluster has nodes 1..3\n"
    )


def test_cluster_supervisor_reports_a_killed_node_and_does_not_restart_it(cluster: ClusterProcess) -> None:
    cluster.kill(3)
    cluster.await_output(lambda text: "node 3 died: killed by SIGKILL\n" in text)
    assert cluster.run_cli("status").stdout.splitlines()[3] == f"node 3 {cluster.address(3)} died: killed by SIGKILL"
    cluster.start_node(3)


def test_node_whose_data_directory_was_deleted_starts_only_with_the_format_option(cluster: ClusterProcess) -> None:
    """An empty node and a node that lacks committed records could form a majority, and these records would be lost."""
    data = cluster.directory / "node-3" / "data"
    cluster.stop_node(3)
    shutil.rmtree(data)
    rejected = cluster.run_cli("start-node", 3)
    assert rejected.returncode == 1
    assert f"{data} is not formatted: its data is lost" in rejected.stderr
    assert not (data / "meta.properties").exists()
    assert cluster.run_cli("start-node", 3, "--format").stdout == f"node 3 {cluster.address(3)} pid {cluster.pid(3)}\n"
    assert cluster.is_serving(3)


def test_cluster_status_shows_a_paused_node_as_not_responding(cluster: ClusterProcess) -> None:
    node = 3 if cluster.active_controller() == 2 else 2  # pausing the active controller would cause an election
    cluster.pause(node)
    try:
        lines = cluster.run_cli("status").stdout.splitlines()
        assert lines[node] == f"node {node} {cluster.address(node)} pid {cluster.pid(node)} not responding"
        assert lines[5 - node].endswith(" serving")
    finally:
        cluster.resume(node)


def test_cluster_start_rejects_a_directory_or_port_in_use(cluster: ClusterProcess, tmp_path: Path) -> None:
    other = ClusterProcess(cluster.directory)
    other._output = tmp_path / "other.out"
    other.base_port = cluster.base_port
    assert f"{cluster.directory} is in use by process " in start_error(other)
    other = ClusterProcess(tmp_path / "elsewhere")
    other.base_port = cluster.base_port
    line = start_error(other)
    assert line == (
        f"headrace cluster: port {cluster.base_port} (node 1, for clients) is in use: "
        "stop the process that uses it, or use another --base-port"
    )
    assert read_layout(other.directory) is None  # no layout is saved, so the next start may use another --base-port


def test_cluster_start_rejects_a_directory_with_unknown_files_or_with_a_cluster_of_another_size(
    tmp_path: Path,
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("text")
    in_other_directory = ClusterProcess(tmp_path / "other")
    message = start_error(in_other_directory)
    assert (
        "other contains files that do not belong to a cluster (letter.txt, ...): use a new or an empty directory"
        in message
    )
    existing = ClusterProcess(tmp_path / "existing", nodes=1)
    existing.start()
    assert existing.stop() == 0
    existing.nodes = 3
    assert "contains a cluster with --nodes 1, not 3" in start_error(existing)


def test_cluster_start_with_an_invalid_property_fails_with_a_one_line_error(tmp_path: Path) -> None:
    line = start_error(ClusterProcess(tmp_path / "c", properties={"num.partitions": "many"}))
    assert line == "headrace cluster: --property: num.partitions=many: expected a whole number"
    assert start_error(ClusterProcess(tmp_path / "d"), "--property", "x") == (
        "headrace cluster: --property x: expected KEY=VALUE"
    )


def test_restarted_cluster_keeps_its_topics_and_properties(tmp_path: Path) -> None:
    cluster = ClusterProcess(tmp_path / "c")
    try:
        cluster.start("--property", "num.partitions=4")
        create_topic(cluster.bootstrap_servers, "kept", 5)
        done = cluster.run_cli("stop")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert cluster.wait() == 0
        assert "died" not in cluster.output
        assert "no cluster runs in" in cluster.run_cli("status").stderr
        cluster.start()
        from confluent_kafka.admin import AdminClient

        topics = AdminClient({"bootstrap.servers": cluster.bootstrap_servers}).list_topics(timeout=30).topics
        assert len(topics["kept"].partitions) == 5
        assert "num.partitions=4\n" in (cluster.directory / "node-3" / "server.properties").read_text()
    finally:
        cluster.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_all_nodes_exit_when_a_signal_ends_their_supervisor(tmp_path: Path, number: int) -> None:
    cluster = ClusterProcess(tmp_path / "c")
    cluster.start()
    pids = [cluster.pid(node) for node in (1, 2, 3)]
    if number == signal.SIGKILL:
        os.kill(pids[1], signal.SIGSTOP)  # even a paused node must be killed
    cluster.signal(number)
    assert cluster.wait() == (0 if number != signal.SIGKILL else -signal.SIGKILL)
    wait_until_exited(pids)
