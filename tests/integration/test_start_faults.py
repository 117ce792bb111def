"""Tests that a node whose settings do not match its cluster fails to start, with one line that says how to fix it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cluster import ClusterProcess, free_base_port, running_cluster

_TIMEOUT_S = 60


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    directory = tmp_path_factory.mktemp("faults") / "cluster"
    with running_cluster(directory, 3, broker_session_timeout_ms="1500", broker_heartbeat_interval_ms="300") as running:
        yield running


def voters_of(cluster: ClusterProcess) -> str:
    ports = [cluster.base_port + 1000 + node - 1 for node in range(1, 4)]
    return ",".join(f"{node}@127.0.0.1:{port}" for node, port in enumerate(ports, 1))


def cluster_id_of(cluster: ClusterProcess) -> str:
    found = next(cluster.directory.rglob("meta.properties"))
    return dict(line.split("=", 1) for line in found.read_text().splitlines() if "=" in line)["cluster.id"]


_AHEAD = """
import runpy, time
real_ns = time.time_ns
time.time_ns = lambda: real_ns() + {seconds} * 10**9
runpy.run_module("headrace_broker.server", run_name="__main__")
"""


def command(directory: Path, cluster_id: str | None, *, ahead_s: int = 0, **properties: object) -> list[str]:
    values = {
        "node.id": 4,
        "process.roles": "broker",
        "controller.listener.names": "CONTROLLER",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": directory,
        "initial.broker.registration.timeout.ms": 20_000,
        "broker.session.timeout.ms": 1500,
        "broker.heartbeat.interval.ms": 300,
        **{key.replace("_", "."): value for key, value in properties.items()},
    }
    words = [sys.executable, "-m", "headrace_broker.server"]
    if ahead_s:
        words[1:] = ["-c", _AHEAD.format(seconds=ahead_s)]
    words += ["--cluster-id", cluster_id] if cluster_id is not None else []
    return words + [word for key, value in values.items() for word in ("--property", f"{key}={value}")]


def start_error(directory: Path, cluster_id: str | None, *, ahead_s: int = 0, **properties: object) -> str:
    """Start a node that must fail to start, and return its error line. The node's clock is `ahead_s` ahead."""
    done = subprocess.run(
        command(directory, cluster_id, ahead_s=ahead_s, **properties),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("headrace broker: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_start_fails_if_controller_quorum_voters_lists_client_listeners(
    cluster: ClusterProcess, tmp_path: Path
) -> None:
    voters = ",".join(f"{node}@{cluster.address(node)}" for node in (1, 2, 3))
    line = start_error(
        tmp_path,
        cluster_id_of(cluster),
        controller_quorum_voters=voters,
        initial_broker_registration_timeout_ms=2000,
    )
    assert f"1@{cluster.address(1)} is a client listener of a broker, not a controller listener" in line


def test_node_start_fails_if_the_node_has_the_cluster_id_of_another_cluster(
    cluster: ClusterProcess, tmp_path: Path
) -> None:
    line = start_error(tmp_path, "AAAAAAAAAAAAAAAAAAAAAQ", controller_quorum_voters=voters_of(cluster))
    assert "does not belong to cluster" in line
    assert "correct controller.quorum.voters" in line


def test_broker_start_fails_if_another_running_broker_has_the_same_node_id(
    cluster: ClusterProcess, tmp_path: Path
) -> None:
    cluster_id, voters = cluster_id_of(cluster), voters_of(cluster)
    words = command(tmp_path / "first", cluster_id, controller_quorum_voters=voters)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as first:
        try:
            assert first.stdout is not None
            assert "serves" in first.stdout.readline()
            line = start_error(tmp_path / "second", cluster_id, controller_quorum_voters=voters)
            assert "another broker with node.id=4 is running" in line
            assert "give each node a unique node.id" in line
        finally:
            first.terminate()
        assert first.wait(timeout=_TIMEOUT_S) == 0


def test_node_start_fails_if_the_other_nodes_do_not_list_the_node_as_a_voter(
    cluster: ClusterProcess, tmp_path: Path
) -> None:
    port = free_base_port(1)
    voters = f"{voters_of(cluster)},4@127.0.0.1:{port}"
    line = start_error(
        tmp_path,
        cluster_id_of(cluster),
        process_roles="broker,controller",
        listeners=f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{port}",
        controller_quorum_voters=voters,
    )
    assert "does not have node 4 in its controller.quorum.voters" in line
    assert "configure the same voters on every node" in line


def test_node_start_fails_if_controller_quorum_voters_lists_nodes_with_swapped_addresses(
    cluster: ClusterProcess, tmp_path: Path
) -> None:
    ports = [cluster.base_port + 1000 + offset for offset in (1, 2, 0)]
    voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in enumerate(ports, 1))
    line = start_error(tmp_path, cluster_id_of(cluster), controller_quorum_voters=voters)
    assert re.search(r"the node at 127\.0\.0\.1:\d+ is not voter [123]: ", line), line
    assert (
        f"controller.quorum.voters must list each node with its own address; the value on this node is {voters}" in line
    )


def test_start_fails_for_a_voter_that_is_configured_with_fewer_voters_than_the_other_nodes(
    cluster: ClusterProcess,
) -> None:
    cluster.stop_node(3)
    file = cluster.directory / "node-3" / "server.properties"
    kept = file.read_text()
    try:
        file.write_text(
            kept.replace(
                f"controller.quorum.voters={voters_of(cluster)}",
                f"controller.quorum.voters={voters_of(cluster).partition(',')[2]}",
            )
        )
        assert file.read_text() != kept
        words = [sys.executable, "-m", "headrace_broker.server", str(file)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=_TIMEOUT_S)
    finally:
        file.write_text(kept)
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert re.search("of node 3 has 2, 3, but the metadata quorum's leader (has 1, 2, 3|is node 1): ", line), line
    assert "configure the same voters on every node" in line
    cluster.start_node(3)


@pytest.mark.parametrize(("ahead_s", "words"), [(7200, "ahead of"), (-7200, "behind")])
def test_node_start_fails_if_its_clock_differs_by_two_hours_from_the_controllers_clock(
    cluster: ClusterProcess, tmp_path: Path, ahead_s: int, words: str
) -> None:
    line = start_error(tmp_path, cluster_id_of(cluster), ahead_s=ahead_s, controller_quorum_voters=voters_of(cluster))
    assert re.search(f"the clock of node 4 is (7199|7200|7201) s {words} the controller's, more than", line), line
    assert "synchronize both clocks with NTP, then start this node again" in line


def test_start_fails_in_a_directory_of_another_node(cluster: ClusterProcess, tmp_path: Path) -> None:
    voters = voters_of(cluster)
    start_error(tmp_path, "AAAAAAAAAAAAAAAAAAAAAQ", controller_quorum_voters=voters)  # formats the directory for node 4
    line = start_error(tmp_path, None, node_id=5, controller_quorum_voters=voters)
    assert "belongs to node 4, not 5" in line


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_node_that_waits_for_a_quorum_leader_stops_on_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    port = free_base_port(1)
    words = command(tmp_path / "d", "MkU3OEVBNTcwNTJENDM2Qg", controller_quorum_voters=f"1@127.0.0.1:{port}")
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            next(line for line in process.stderr if "Metadata quorum has no leader" in line)
            process.send_signal(number)
            started = time.monotonic()
            assert process.wait(_TIMEOUT_S) == 0
            assert time.monotonic() - started < 40
            assert "was stopped before its start completed" in process.stderr.read()
        finally:
            process.kill()


def test_node_start_fails_if_its_log_directory_is_not_formatted_or_the_quorum_is_unreachable(tmp_path: Path) -> None:
    port = free_base_port(2)
    voters = f"1@127.0.0.1:{port},2@127.0.0.1:{port + 1}"
    properties = {"controller_quorum_voters": voters, "initial_broker_registration_timeout_ms": 1500}
    line = start_error(tmp_path, None, **properties)
    assert f"{tmp_path} is not formatted" in line
    assert "kafka-storage format -t ID" in line
    line = start_error(tmp_path, "AAAAAAAAAAAAAAAAAAAAAQ", **properties)
    assert "could not be joined within 1500 ms (initial.broker.registration.timeout.ms)" in line
    assert f"1@127.0.0.1:{port} refuses connections" in line


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        (
            {
                "process_roles": "broker,controller",
                "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:9093",
                "controller_quorum_bootstrap_servers": "a:9093,b:9093",
            },
            "write controller.quorum.voters=1@host:port",
        ),
        (
            {
                "process_roles": "broker,controller",
                "controller_quorum_voters": "4@127.0.0.1:9093,5@127.0.0.1:9094",
                "listeners": "PLAINTEXT://127.0.0.1:0",
            },
            "listeners has no listener CONTROLLER; add CONTROLLER://host:port",
        ),
        (
            {
                "process_roles": "broker,controller",
                "controller_quorum_voters": "4@127.0.0.1:9093,5@127.0.0.1:9094",
                "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:9095",
            },
            "node 4 has port 9093, but its listener",
        ),
    ],
)
def test_node_start_fails_if_its_properties_contradict_each_other(
    tmp_path: Path, properties: dict[str, str], words: str
) -> None:
    assert words in start_error(tmp_path, None, **properties)
