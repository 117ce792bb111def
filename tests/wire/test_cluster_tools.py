"""Tests of the cluster tools with three real nodes: their output and their effects.

If Maven and Java are on the PATH, the tests also run Kafka's own tools, which must print the same output.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from support import apache
from support.cluster import ClusterProcess, running_cluster
from support.cluster_load import await_in_sync, create_topic, leader_of, running_load
from support.commands import run_tool

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
jvm = [
    pytest.mark.jvm,
    pytest.mark.skipif(apache.unavailable_reason() is not None, reason=str(apache.unavailable_reason())),
]

Done = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    with running_cluster(tmp_path_factory.mktemp("tools") / "c") as cluster:
        yield cluster


def run(cluster: ClusterProcess, tool: str, *arguments: str, status: int = 0) -> str:
    done = run_tool(tool, "--bootstrap-server", cluster.bootstrap_servers, *arguments)
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def write(path: Path, data: object) -> str:
    path.write_text(json.dumps(data))
    return str(path)


def reassignment_plan(topic: str, *replicas: list[int]) -> dict[str, object]:
    partitions = [{"topic": topic, "partition": index, "replicas": item} for index, item in enumerate(replicas)]
    return {"version": 1, "partitions": partitions}


def await_reassigned(cluster: ClusterProcess, plan: str) -> str:
    deadline = time.monotonic() + 60
    while "in progress" in (text := run(cluster, "reassign_partitions", "--verify", "--reassignment-json-file", plan)):
        assert time.monotonic() < deadline, text
    return text


def replicas_by_broker(cluster: ClusterProcess, topic: str) -> dict[int, set[str]]:
    text = run(cluster, "log_dirs", "--describe", "--topic-list", topic)
    return {
        broker["broker"]: {item["partition"] for directory in broker["logDirs"] for item in directory["partitions"]}
        for broker in json.loads(text.splitlines()[-1])["brokers"]
    }


def test_reassign_partitions_tool_moves_replicas_while_clients_produce_and_consume(
    cluster: ClusterProcess, tmp_path: Path
) -> None:
    with running_load(cluster.bootstrap_servers, "moved", partitions=3) as load:
        two = write(tmp_path / "two.json", reassignment_plan("moved", [1, 2], [2, 3], [3, 1]))
        started = run(cluster, "reassign_partitions", "--execute", "--reassignment-json-file", two)
        assert started.endswith("Successfully started partition reassignments for moved-0,moved-1,moved-2\n")
        before = json.loads(started.splitlines()[2])
        assert {len(item["replicas"]) for item in before["partitions"]} == {3}
        verified = await_reassigned(cluster, two)
        assert "Reassignment of partition moved-2 is completed." in verified
        assert verified.endswith("Clearing topic-level throttles on topic moved\n")
        load.await_acknowledged(100)
        assert leader_of(cluster.bootstrap_servers, "moved", 1) in (2, 3)
        deadline = time.monotonic() + 30
        wanted = {1: {"moved-0", "moved-2"}, 2: {"moved-0", "moved-1"}, 3: {"moved-1", "moved-2"}}
        while replicas_by_broker(cluster, "moved") != wanted:  # wait until removed replicas are deleted
            assert time.monotonic() < deadline
        back = write(tmp_path / "back.json", before)
        run(cluster, "reassign_partitions", "--execute", "--reassignment-json-file", back)
        await_reassigned(cluster, back)
        await_in_sync(cluster.bootstrap_servers, "moved", 3)
    assert not load.errors
    assert run(cluster, "reassign_partitions", "--list") == "No partition reassignments found.\n"
    cancelled = run(cluster, "reassign_partitions", "--cancel", "--reassignment-json-file", back)
    assert cancelled.startswith("None of the specified partition reassignments are active.\n")


def test_generated_reassignment_proposal_can_be_executed(cluster: ClusterProcess, tmp_path: Path) -> None:
    create_topic(cluster.bootstrap_servers, "proposed", 4, 2)
    topics = write(tmp_path / "topics.json", {"version": 1, "topics": [{"topic": "proposed"}]})
    arguments = ("--generate", "--topics-to-move-json-file", topics, "--broker-list", "1,2")
    text = run(cluster, "reassign_partitions", *arguments)
    assert re.match(r"Current partition replica assignment\n\{.*\}\n\nProposed partition reassignment conf", text)
    plan = tmp_path / "plan.json"
    plan.write_text(text.splitlines()[-1])
    run(cluster, "reassign_partitions", "--execute", "--reassignment-json-file", str(plan))
    await_reassigned(cluster, str(plan))
    assert replicas_by_broker(cluster, "proposed")[1] == {f"proposed-{index}" for index in range(4)}


def test_invalid_reassignment_plans_are_rejected(cluster: ClusterProcess, tmp_path: Path) -> None:
    create_topic(cluster.bootstrap_servers, "kept", 1)
    for replicas, error in (([1, 9], "Unknown broker id 9"), ([1, 1], "may not contain duplicate entries")):
        plan = write(tmp_path / "plan.json", reassignment_plan("kept", replicas))
        assert error in run(cluster, "reassign_partitions", "--execute", "--reassignment-json-file", plan, status=1)
    plan = write(tmp_path / "plan.json", reassignment_plan("unknown", [1]))
    text = run(cluster, "reassign_partitions", "--execute", "--reassignment-json-file", plan, status=1)
    assert text == "Error: Topic unknown not found.\n"


def test_preferred_leader_election_restores_preferred_leaders(cluster: ClusterProcess) -> None:
    create_topic(cluster.bootstrap_servers, "led", 6)
    cluster.restart_node(1)
    await_in_sync(cluster.bootstrap_servers, "led", 3)
    elected = run(cluster, "leader_election", "--election-type", "preferred", "--all-topic-partitions")
    assert re.match(r"Successfully completed leader election \(PREFERRED\) for partitions .*led-\d", elected)
    again = run(cluster, "leader_election", "--election-type", "PREFERRED", "--topic", "led", "--partition", "0")
    assert again == "Valid replica already elected for partitions led-0\n"
    missing = ("--topic", "led", "--partition", "9")
    unknown = run(cluster, "leader_election", "--election-type", "unclean", *missing, status=1)
    assert unknown.startswith("Error completing leader election (UNCLEAN) for partition: led-9: ")


def test_metadata_quorum_tool_with_bootstrap_controller_queries_the_controllers(cluster: ClusterProcess) -> None:
    """The tool skips unreachable addresses and rejects the addresses of broker listeners."""
    tool = [sys.executable, "-m", "headrace_broker.tools.metadata_quorum", "describe", "--status"]
    first = cluster.base_port + 1000
    for servers, status, words in [
        (f"127.0.0.1:1,127.0.0.1:{first}", 0, r"LeaderId: +[123]\n(.*\n)*.*CONTROLLER://127.0.0.1:"),
        (
            f"127.0.0.1:{cluster.base_port}",
            1,
            rf"this is a broker listener; the controllers listen on 127.0.0.1:{first}, ",
        ),
        ("127.0.0.1:1", 1, "127.0.0.1:1: .*Connect call failed"),
    ]:
        done = subprocess.run([*tool, "--bootstrap-controller", servers], capture_output=True, text=True, timeout=120)
        assert done.returncode == status, done.stdout + done.stderr
        assert re.search(words, done.stdout + done.stderr), done.stdout + done.stderr


def test_admin_tools_accept_the_option_bootstrap_controller(cluster: ClusterProcess) -> None:
    controllers = f"127.0.0.1:{cluster.base_port + 1001},127.0.0.1:{cluster.base_port + 1000}"

    def run_at_controllers(tool: str, *arguments: str, status: int = 0) -> str:
        servers = [] if "--bootstrap-server" in arguments else ["--bootstrap-controller", controllers]
        done = run_tool(tool, *arguments, *servers)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    rows = [line.split() for line in run_at_controllers("cluster", "list-endpoints").splitlines()]
    assert rows[0] == ["ID", "HOST", "PORT", "RACK", "ENDPOINT_TYPE"]
    assert [row[2:] for row in rows[1:]] == [
        [str(cluster.base_port + 999 + node), "null", "controller"] for node in (1, 2, 3)
    ]
    assert run_at_controllers("cluster", "cluster-id") == run(cluster, "cluster", "cluster-id")
    assert run_at_controllers("cluster", "unregister", "--id", "9", status=1) == (
        "broker 9: BROKER_ID_NOT_REGISTERED: broker 9 is not registered\n"
    )
    two = ("--entity-type", "brokers", "--entity-name", "2")
    assert run_at_controllers("configs", *two, "--alter", "--add-config", "log.retention.ms=7") == (
        "Completed updating config for broker 2.\n"
    )
    assert "log.retention.ms=7 " in run_at_controllers("configs", *two, "--describe")
    run_at_controllers("configs", *two, "--alter", "--delete-config", "log.retention.ms")
    assert run_at_controllers("reassign_partitions", "--list") == "No partition reassignments found.\n"
    output = run_at_controllers("topics", "--list", "--bootstrap-server", controllers, status=1)
    assert "does not support Metadata: that is a controller's port" in output


def test_description_of_broker_configs_includes_their_synonyms(cluster: ClusterProcess) -> None:
    everyone, two = ("--entity-type", "brokers", "--entity-default"), ("--entity-type", "brokers", "--entity-name", "2")
    run(cluster, "configs", *everyone, "--alter", "--add-config", "log.retention.ms=8")
    run(cluster, "configs", *two, "--alter", "--add-config", "log.retention.ms=7")
    rows = run(cluster, "configs", *two, "--describe", "--all").splitlines()
    both = "DYNAMIC_BROKER_CONFIG:log.retention.ms=7, DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=8"
    assert [row for row in rows if "log.retention.ms" in row] == [
        f"  log.retention.ms=7 sensitive=false synonyms={{{both}, DEFAULT_CONFIG:log.retention.hours=168}}"
    ]
    assert "  node.id=2 sensitive=false synonyms={STATIC_BROKER_CONFIG:node.id=2}" in rows
    assert "  num.partitions=1 sensitive=false synonyms={DEFAULT_CONFIG:num.partitions=1}" in rows
    for whose in (everyone, two):
        run(cluster, "configs", *whose, "--alter", "--delete-config", "log.retention.ms")


def test_cluster_list_endpoints_shows_fenced_brokers_only_with_include_fenced_brokers(cluster: ClusterProcess) -> None:
    assert [row.split()[4] for row in run(cluster, "cluster", "list-endpoints").splitlines()] == ["STATE"] + 3 * [
        "unfenced"
    ]
    cluster.kill(3)
    try:
        deadline = time.monotonic() + 20
        while "3          127.0.0.1" in run(cluster, "cluster", "list-endpoints"):
            assert time.monotonic() < deadline
        rows = run(cluster, "cluster", "list-endpoints", "--include-fenced-brokers").splitlines()
        assert [row.split()[4] for row in rows] == ["STATE", "unfenced", "unfenced", "fenced"]
    finally:
        cluster.start_node(3)


def test_metadata_quorum_tool_describes_status_and_replication(cluster: ClusterProcess) -> None:
    text = run(cluster, "metadata_quorum", "describe", "--status")
    assert f"LeaderId:               {cluster.active_controller()}\n" in text
    assert f'"endpoints": ["CONTROLLER://127.0.0.1:{cluster.base_port + 1000}"]' in text
    rows = run(cluster, "metadata_quorum", "describe", "--replication").splitlines()
    assert [row.split("\t")[6].strip() for row in rows] == ["Status", "Leader", "Follower", "Follower"]


def test_topics_describe_selects_partitions_by_replication_state(cluster: ClusterProcess) -> None:
    create_topic(cluster.bootstrap_servers, "trouble", 1)
    run(cluster, "topics", "--create", "--topic", "strict", "--config", "min.insync.replicas=3", "--partitions", "1")

    def shown(*report: str) -> set[str]:
        text = run(cluster, "topics", "--describe", *report)
        return {line.split("\t")[1].removeprefix("Topic: ") for line in text.splitlines() if line.startswith("\t")}

    assert "strict" in shown("--at-min-isr-partitions")
    assert "trouble" not in shown("--under-replicated-partitions")
    cluster.stop_node(3)
    try:
        assert {"trouble", "strict"} <= shown("--under-replicated-partitions")
        assert "strict" in shown("--under-min-isr-partitions")
        assert "trouble" in shown("--at-min-isr-partitions")
        assert not shown("--unavailable-partitions")
    finally:
        cluster.start_node(3)
        await_in_sync(cluster.bootstrap_servers, "trouble", 3)


def test_delete_records_tool_continues_after_an_error_of_one_partition(cluster: ClusterProcess, tmp_path: Path) -> None:
    create_topic(cluster.bootstrap_servers, "cut", 1)
    produced = run(
        cluster, "producer_perf_test", "--topic", "cut", "--num-records", "500", "--record-size", "10",
        "--throughput", "-1", "--command-property", "acks=all",
    )  # fmt: skip
    assert re.fullmatch(r"500 records sent, .* ms 99th, \d+ ms 99.9th.\n", produced)
    entries = [{"topic": "cut", "partition": index, "offset": 200} for index in (0, 1)]
    file = write(tmp_path / "offsets.json", {"version": 1, "partitions": entries})
    lines = run(cluster, "delete_records", "--offset-json-file", file).splitlines()
    assert lines[2] == "partition: cut-0\tlow_watermark: 200"
    assert lines[3].startswith("partition: cut-1\terror: ")
    consumed = run(cluster, "consumer_perf_test", "--topic", "cut", "--num-records", "300").splitlines()
    assert consumed[0].startswith("start.time, end.time, data.consumed.in.MB, MB.sec")
    assert consumed[1].split(", ")[4] == "300"


@contextmanager
def broker_4(cluster: ClusterProcess, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Run broker 4, which is not a quorum voter. Yield a function that reads the broker's log output."""
    voters = ",".join(f"{node}@127.0.0.1:{cluster.base_port + 1000 + node - 1}" for node in (1, 2, 3))
    cluster_id = run(cluster, "cluster", "cluster-id").split()[-1]
    command = [sys.executable, "-m", "headrace_broker.server", "--cluster-id", cluster_id]
    for pair in (
        "node.id=4",
        "process.roles=broker",
        "controller.listener.names=CONTROLLER",
        "listeners=PLAINTEXT://127.0.0.1:0",
        "broker.heartbeat.interval.ms=200",
        f"controller.quorum.voters={voters}",
        f"log.dirs={tmp_path / 'data'}",
    ):
        command += ["--property", pair]
    path = tmp_path / "log"
    with path.open("wb") as log:
        broker = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        await_text(path.read_text, "headrace broker 4 serves")
        yield path.read_text
    finally:
        broker.terminate()
        assert broker.wait(60) == 0, path.read_text()


def await_text(read: Callable[[], str], words: str) -> None:
    deadline = time.monotonic() + 60
    while words not in read():
        assert time.monotonic() < deadline, read()
        time.sleep(0.01)


def brokers_of(cluster: ClusterProcess) -> set[int]:
    return set(AdminClient({"bootstrap.servers": cluster.bootstrap_servers}).list_topics(timeout=30).brokers)


def test_fourth_broker_can_be_added_and_removed_again_while_clients_produce_and_consume(
    cluster: ClusterProcess, tmp_path: Path
) -> None:
    """Clients receive no errors. The function `running_load` checks that no acknowledged record is lost."""
    with running_load(cluster.bootstrap_servers, "travels", partitions=2) as load:
        with broker_4(cluster, tmp_path):
            there = write(tmp_path / "there.json", reassignment_plan("travels", [4, 1], [4, 2]))
            run(cluster, "reassign_partitions", "--execute", "--reassignment-json-file", there)
            await_reassigned(cluster, there)
            assert leader_of(cluster.bootstrap_servers, "travels", 0) in (4, 1)
            assert replicas_by_broker(cluster, "travels")[4] == {"travels-0", "travels-1"}
            run(cluster, "leader_election", "--election-type", "preferred", "--all-topic-partitions")
            load.await_acknowledged(200)
            assert {leader_of(cluster.bootstrap_servers, "travels", index) for index in (0, 1)} == {4}
            back = write(tmp_path / "back.json", reassignment_plan("travels", [3, 1], [3, 2]))
            run(cluster, "reassign_partitions", "--execute", "--reassignment-json-file", back)
            await_reassigned(cluster, back)
            assert not replicas_by_broker(cluster, "travels").get(4)
            load.await_acknowledged(200)
        assert run(cluster, "cluster", "unregister", "--id", "4") == "Broker 4 is no longer registered.\n"
        load.await_acknowledged(200)
        assert not load.errors
    assert brokers_of(cluster) == {1, 2, 3}


def test_running_broker_that_is_unregistered_stays_unregistered_until_it_restarts(
    cluster: ClusterProcess, tmp_path: Path
) -> None:
    with broker_4(cluster, tmp_path) as log:
        assert 4 in brokers_of(cluster)
        run(cluster, "cluster", "unregister", "--id", "4")
        await_text(log, "broker 4 was unregistered: it is no longer the leader or an in-sync replica of any partition")
        stopped_s = time.monotonic()
    assert time.monotonic() - stopped_s < 10  # the broker does not wait for a controlled shutdown
    assert brokers_of(cluster) == {1, 2, 3}
    with broker_4(cluster, tmp_path):
        assert 4 in brokers_of(cluster)
    run(cluster, "cluster", "unregister", "--id", "4")


@pytest.mark.parametrize(
    ("ours", "theirs", "arguments"),
    [
        pytest.param("metadata_quorum", "MetadataQuorumCommand", ["describe", "--replication"], marks=jvm),
        pytest.param("metadata_quorum", "MetadataQuorumCommand", ["describe", "--status"], marks=jvm),
        pytest.param("log_dirs", "LogDirsCommand", ["--describe"], marks=jvm),
        pytest.param("topics", "TopicCommand", ["--describe", "--topic", "same"], marks=jvm),
        pytest.param("topics", "TopicCommand", ["--describe", "--topics-with-overrides"], marks=jvm),
        pytest.param("reassign_partitions", "reassign.ReassignPartitionsCommand", ["--list"], marks=jvm),
        pytest.param("reassign_partitions", "reassign.ReassignPartitionsCommand", ["--verify", "PLAN"], marks=jvm),
        pytest.param("reassign_partitions", "reassign.ReassignPartitionsCommand", ["--execute", "PLAN"], marks=jvm),
        pytest.param(
            "leader_election", "LeaderElectionCommand",
            ["--election-type", "preferred", "--topic", "same", "--partition", "0"], marks=jvm,
        ),
        pytest.param("delete_records", "DeleteRecordsCommand", ["--offset-json-file", "OFFSETS"], marks=jvm),
    ],
)  # fmt: skip
def test_headrace_cluster_tools_print_the_same_output_as_kafkas_tools(
    cluster: ClusterProcess, tmp_path: Path, ours: str, theirs: str, arguments: list[str]
) -> None:
    run(cluster, "topics", "--create", "--topic", "same", "--if-not-exists", "--replica-assignment", "1:2:3")
    files = {
        "PLAN": ["--reassignment-json-file", write(tmp_path / "plan.json", reassignment_plan("same", [1, 2, 3]))],
        "OFFSETS": [
            write(tmp_path / "o.json", {"partitions": [{"topic": "same", "partition": 0, "offset": 0}]}),
        ],
    }
    words = [word for argument in arguments for word in files.get(argument, [argument])]
    peer = apache.run_tool(
        f"org.apache.kafka.tools.{theirs}", "--bootstrap-server", cluster.bootstrap_servers, *words, timeout_s=120
    )
    assert peer.returncode == 0, peer.stdout + peer.stderr
    assert comparable(run(cluster, ours, *words)) == comparable(peer.stdout)


def comparable(text: str) -> list[object]:
    """Return the lines of `text`. Replace each timestamp and each lag time with the word TIME.

    JSON and topic configs are sorted, because Java prints them in arbitrary order.
    """
    lines: list[object] = []
    for line in text.splitlines():
        if line.startswith("{"):
            lines.append(ordered(json.loads(line)))
        else:
            line = re.sub(r"(?<=Configs: )\S+", lambda found: ",".join(sorted(found[0].split(","))), line)
            lines.append(re.sub(r"\b\d{13}\b|(?<=LagTimeMs: ).*", "TIME", line))
    return sorted(lines, key=str) if text.startswith("Topic: ") else lines


def ordered(value: object) -> object:
    if isinstance(value, dict):
        return {key: ordered(item) for key, item in value.items() if key not in ("size", "offsetLag")}
    if isinstance(value, list):
        return sorted((ordered(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    return value
