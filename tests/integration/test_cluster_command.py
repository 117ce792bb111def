"""`headrace cluster`: one command for a cluster, asked from other shells, that leaves no process behind."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from headrace.cli.cluster.layout import read_layout
from support.cluster import ClusterProcess, running_cluster
from support.cluster_load import create_topic

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    with running_cluster(tmp_path_factory.mktemp("cluster") / "c") as cluster:
        yield cluster


def refusal(cluster: ClusterProcess, *arguments: str) -> str:
    """Start a supervisor that must not start; returns its only line."""
    seen = len(cluster.output)
    cluster.launch(*arguments)
    assert cluster.wait() == 1, cluster.output
    lines = cluster.output[seen:].splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def await_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 20
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids):
        assert time.monotonic() < deadline, pids
        time.sleep(0.01)


def test_it_says_where_clients_and_nodes_are(cluster: ClusterProcess) -> None:
    lines = cluster.output.splitlines()
    assert lines[0] == f"bootstrap.servers={cluster.bootstrap_servers}"
    assert sorted(lines[1:4]) == [f"node {node} {cluster.address(node)} pid {cluster.pid(node)}" for node in (1, 2, 3)]


def test_controllers_are_a_thousand_ports_away(cluster: ClusterProcess) -> None:
    for node in (1, 2, 3):
        socket.create_connection(("127.0.0.1", cluster.base_port + 1000 + node - 1), timeout=5).close()


def test_nodes_have_properties_files_of_their_own(cluster: ClusterProcess) -> None:
    text = (cluster.directory / "node-2" / "server.properties").read_text()
    assert "node.id=2\n" in text
    assert "min.insync.replicas=2\n" in text
    assert f"listeners=PLAINTEXT://{cluster.address(2)}," in text


def test_status_stop_and_start_from_another_shell(cluster: ClusterProcess) -> None:
    cluster.stop_node(2)
    status = cluster.ask("status").stdout.splitlines()
    assert status[2] == f"node 2 {cluster.address(2)} stopped"
    assert status[1] == f"node 1 {cluster.address(1)} pid {cluster.pid(1)} serving"
    again = cluster.ask("stop-node", 2)
    assert (again.returncode, again.stderr) == (1, "headrace cluster: node 2 does not run\n")
    started = cluster.ask("start-node", 2)
    line = f"node 2 {cluster.address(2)} pid {cluster.pid(2)}"
    assert started.stdout == line + "\n"
    assert cluster.output.splitlines()[-1] == line
    assert "runs already" in cluster.ask("start-node", 2).stderr
    assert cluster.ask("start-node", 9).stderr == "headrace cluster: there is no node 9: the cluster has nodes 1..3\n"


def test_a_dead_node_is_told_of_and_left_alone(cluster: ClusterProcess) -> None:
    cluster.kill(3)
    cluster.await_output(lambda text: "node 3 died: killed by SIGKILL\n" in text)
    assert cluster.ask("status").stdout.splitlines()[3] == f"node 3 {cluster.address(3)} died: killed by SIGKILL"
    cluster.start_node(3)


def test_a_node_whose_data_is_gone_begins_anew_only_when_told_to(cluster: ClusterProcess) -> None:
    """It has forgotten how it voted: with one other node it could bring back a past that the third has left behind."""
    data = cluster.directory / "node-3" / "data"
    cluster.stop_node(3)
    shutil.rmtree(data)
    refused = cluster.ask("start-node", 3)
    assert refused.returncode == 1
    assert f"{data} is not formatted: what it held is gone" in refused.stderr
    assert not (data / "meta.properties").exists()
    assert cluster.ask("start-node", 3, "--format").stdout == f"node 3 {cluster.address(3)} pid {cluster.pid(3)}\n"
    assert cluster.is_serving(3)


def test_status_tells_a_node_that_serves_nobody_from_one_that_does(cluster: ClusterProcess) -> None:
    node = 3 if cluster.active_controller() == 2 else 2  # without it the others would have no quorum for a moment
    cluster.pause(node)
    try:
        lines = cluster.ask("status").stdout.splitlines()
        assert lines[node] == f"node {node} {cluster.address(node)} pid {cluster.pid(node)} not answering"
        assert lines[5 - node].endswith(" serving")
    finally:
        cluster.resume(node)


def test_a_directory_in_use_and_ports_in_use_are_refused(cluster: ClusterProcess, tmp_path: Path) -> None:
    other = ClusterProcess(cluster.directory)
    other._output = tmp_path / "other.out"
    other.base_port = cluster.base_port
    assert f"{cluster.directory} is in use by process " in refusal(other)
    other = ClusterProcess(tmp_path / "elsewhere")
    other.base_port = cluster.base_port
    line = refusal(other)
    assert line == (
        f"headrace cluster: port {cluster.base_port} (node 1, for clients) is in use: "
        "stop whoever has it, or name another --base-port"
    )
    assert read_layout(other.directory) is None  # so another --base-port is taken


def test_directories_of_others_and_of_another_size_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    strange = ClusterProcess(tmp_path / "mine")
    assert "mine holds other files (letter.txt, ...): name a new or an empty directory" in refusal(strange)
    known = ClusterProcess(tmp_path / "known", nodes=1)
    known.start()
    assert known.stop() == 0
    known.nodes = 3
    assert "holds a cluster with --nodes 1, not 3" in refusal(known)


def test_a_bad_property_is_one_line(tmp_path: Path) -> None:
    line = refusal(ClusterProcess(tmp_path / "c", properties={"num.partitions": "many"}))
    assert line == "headrace cluster: --property: num.partitions=many: expected a whole number"
    assert refusal(ClusterProcess(tmp_path / "d"), "--property", "x") == (
        "headrace cluster: --property x: expected KEY=VALUE"
    )


def test_a_cluster_is_taken_up_again_where_it_was(tmp_path: Path) -> None:
    cluster = ClusterProcess(tmp_path / "c")
    try:
        cluster.start("--property", "num.partitions=4")
        create_topic(cluster.bootstrap_servers, "kept", 5)
        done = cluster.ask("stop")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert cluster.wait() == 0
        assert "died" not in cluster.output
        assert "no cluster runs in" in cluster.ask("status").stderr
        cluster.start()
        from confluent_kafka.admin import AdminClient

        topics = AdminClient({"bootstrap.servers": cluster.bootstrap_servers}).list_topics(timeout=10).topics
        assert len(topics["kept"].partitions) == 5
        assert "num.partitions=4\n" in (cluster.directory / "node-3" / "server.properties").read_text()
    finally:
        cluster.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_no_node_outlives_its_supervisor(tmp_path: Path, number: int) -> None:
    cluster = ClusterProcess(tmp_path / "c")
    cluster.start()
    pids = [cluster.pid(node) for node in (1, 2, 3)]
    if number == signal.SIGKILL:
        os.kill(pids[1], signal.SIGSTOP)  # even one that does not run
    cluster.signal(number)
    assert cluster.wait() == (0 if number != signal.SIGKILL else -signal.SIGKILL)
    await_gone(pids)
