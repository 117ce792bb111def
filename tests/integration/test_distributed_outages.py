"""Tests of worker groups while brokers are unavailable, and of errors in the configuration of a group."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from headrace.herder.distributed import STOP_TIMEOUT_S
from support.broker import BrokerProcess, running_broker
from support.cluster import running_cluster
from support.distributed import DistributedWorker, owners, worker_group
from support.monitored import PLUGINS, Monitored, assert_no_number_is_missing, wait_until_balanced
from support.ports import free_port
from support.worker import RestError, wait_for

pytestmark = pytest.mark.integration

GRACEFUL_S = 2.0
SETTINGS = {**PLUGINS, "task.shutdown.graceful.timeout.ms": str(int(GRACEFUL_S * 1000))}
UNAVAILABLE = "no broker responds"
NO_COORDINATOR = "the coordinator does not respond"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path) as running:
        yield running


def health(worker: DistributedWorker) -> Any:
    return worker.request("GET", "/health")


def launch(worker: DistributedWorker) -> None:
    """Start a worker that cannot become healthy, and wait until its REST server responds."""
    worker.launch()

    def responds() -> bool:
        try:
            worker.request("GET", "/health")
        except RestError as error:
            return error.status == 503
        except OSError:
            return False
        return False

    wait_for(responds, "the REST server responds", 30, worker.log)


# Brokers are unavailable


@pytest.mark.slow
def test_worker_that_starts_without_a_broker_becomes_healthy_once_a_broker_is_available(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    worker = DistributedWorker(tmp_path / "worker", address, SETTINGS)
    launch(worker)
    with pytest.raises(RestError) as caught:
        health(worker)
    assert caught.value.body["status"] == "starting"
    wait_for(lambda: UNAVAILABLE in worker.log(), "the worker logs that no broker responds", 30)
    wait_for(lambda: starting_health(worker)["brokers"]["status"] == "unavailable", "the brokers' state", 30)
    time.sleep(3)  # the worker tries to connect several times, and must not log each attempt
    assert worker.log().count(UNAVAILABLE) == 1
    assert "Connection refused" in worker.log()
    assert len(worker.log().splitlines()) <= 5, worker.log()
    with running_broker(tmp_path, listeners=f"PLAINTEXT://{address}"):
        wait_for(worker.is_healthy, "the worker is healthy", 60, worker.log)
        assert health(worker)["brokers"] == {"status": "available"}
        Monitored(tmp_path, "late").create(worker)
        assert worker.stop() < 40


def starting_health(worker: DistributedWorker) -> Any:
    try:
        return health(worker)
    except RestError as error:
        return error.body


@pytest.mark.slow
def test_sigterm_stops_a_starting_worker_within_the_timeout_while_no_broker_is_available(tmp_path: Path) -> None:
    worker = DistributedWorker(tmp_path / "worker", f"127.0.0.1:{free_port()}", SETTINGS)
    launch(worker)
    assert worker.stop() < STOP_TIMEOUT_S + 30


@pytest.mark.slow
def test_deletion_of_internal_topics_is_reported_in_the_log_in_health_responses_and_in_rest_errors(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    worker = DistributedWorker(tmp_path / "worker", broker.address, SETTINGS)
    with worker:
        source = Monitored(tmp_path, "kept", 1).create(worker)
        topics = [worker.settings[f"{kind}.storage.topic"] for kind in ("config", "offset", "status")]
        admin = AdminClient({"bootstrap.servers": broker.address})
        for deletion in admin.delete_topics(topics).values():
            deletion.result(30)
        wait_for(lambda: health(worker)["brokers"]["status"] == "unavailable", "health reports the deletion", 30)
        text = f"topic {topics[0]} was deleted while the worker was running"
        wait_for(lambda: text in health(worker)["brokers"]["message"], "health reports the config topic", 30)
        started = time.monotonic()
        with pytest.raises(RestError, match=f"Failed to write to config topic: {text}"):
            worker.request("PUT", f"/connectors/{source.name}/pause")
        assert time.monotonic() - started < 40
        assert worker.request("GET", "/connectors") == [source.name]
        worker.stop()
    lines = worker.log().splitlines()
    for topic in topics:
        assert sum("ERROR Internal topics" in line and f"topic {topic} was deleted" in line for line in lines) == 1
    assert "stops without leaving its group" not in worker.log()


@pytest.mark.slow
def test_worker_that_stops_while_no_broker_is_available_logs_why_its_statuses_could_not_be_written(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    worker = DistributedWorker(tmp_path / "worker", broker.address, SETTINGS)
    with worker:
        Monitored(tmp_path, "cut-off", 1).create(worker)
        wait_for(lambda: owners(worker, "cut-off").get(0, ("",))[0] == "RUNNING", "the task runs", 30, worker.log)
        broker.kill()
        time.sleep(2)  # the clients try to connect again
        assert worker.stop() < GRACEFUL_S + STOP_TIMEOUT_S + 30
    log = worker.log()
    cause = "could not be written: the producer was closed before the records were acknowledged"
    for key in ("status-connector-cut-off", "status-task-cut-off-0"):
        assert f"ERROR Status topic: the record with key {key} {cause}" in log
    assert "the worker stops without leaving its group" in log
    assert "(asyncio)" not in log
    assert log.splitlines()[-1].endswith("INFO Kafka Connect stopped (headrace.cli.distributed_worker)")


@pytest.mark.prove
def test_tasks_stop_when_the_worker_session_expires_during_a_broker_outage_and_continue_after_the_outage(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    with worker_group(tmp_path, broker.address, 2, SETTINGS) as workers:
        source = Monitored(tmp_path, "outage", 4).create(workers[0])
        wait_until_balanced(workers)
        source.wait_for_progress(broker.address)
        lines = {worker: len(worker.log().splitlines()) for worker in workers}
        broker.kill()
        for worker in workers:
            wait_for(lambda w=worker: health(w)["brokers"]["status"] == "unavailable", "the brokers' state", 30)
            assert health(worker)["status"] == "healthy"
        wait_for(lambda: not source.has_running_process(), "all tasks have stopped", 60)
        assert workers[0].request("GET", "/connectors") == [source.name], "reads work without brokers"
        time.sleep(5)  # the workers try to connect several times, and must not log each attempt
        for worker in workers:
            assert worker.log().count(NO_COORDINATOR) == 1, worker.log()
            new = worker.log().splitlines()[lines[worker] :]
            assert len(new) <= 30, "\n".join(new)
        broker.start()
        wait_until_balanced(workers)
        assert health(workers[0])["brokers"] == {"status": "available"}
        source.wait_for_progress(broker.address)
        assert_no_number_is_missing(source.numbers(broker.address))


@pytest.mark.prove
def test_tasks_continue_without_a_restart_if_the_broker_returns_within_the_session_timeout(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    with worker_group(tmp_path, broker.address, 2, {**SETTINGS, "session.timeout.ms": "60000"}) as workers:
        source = Monitored(tmp_path, "short", 4).create(workers[0])
        wait_until_balanced(workers)
        starts = source.starts()
        broker.kill()
        wait_for(lambda: all(NO_COORDINATOR in worker.log() for worker in workers), "the workers notice it", 30)
        broker.start()
        for worker in workers:
            wait_for(lambda w=worker: health(w)["brokers"]["status"] == "available", "the brokers' state", 60)
        source.wait_for_progress(broker.address)
        assert source.starts() == starts
        assert_no_number_is_missing(source.numbers(broker.address))


@pytest.mark.slow
def test_worker_stops_within_the_timeout_after_sigterm_if_its_broker_was_killed(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    with worker_group(tmp_path, broker.address, 2, {**SETTINGS, "session.timeout.ms": "60000"}) as workers:
        Monitored(tmp_path, "stopping", 4).create(workers[0])
        wait_until_balanced(workers)
        broker.kill()
        assert workers[0].stop() < GRACEFUL_S + STOP_TIMEOUT_S + 30
        assert "the worker stops without leaving its group" in workers[0].log()
        broker.start()


@pytest.mark.prove
def test_worker_stops_within_the_timeout_after_sigterm_if_its_broker_is_frozen(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    with worker_group(tmp_path, broker.address, 1, SETTINGS) as [worker]:
        source = Monitored(tmp_path, "hanging", 2).create(worker)
        source.wait_for_progress(broker.address)
        broker.send_signal(signal.SIGSTOP)
        try:
            assert worker.stop() < GRACEFUL_S + STOP_TIMEOUT_S + 30
        finally:
            broker.send_signal(signal.SIGCONT)


@pytest.mark.prove
def test_tasks_stop_when_the_worker_session_expires_while_the_broker_is_frozen(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    with worker_group(tmp_path, broker.address, 1, SETTINGS) as [worker]:
        source = Monitored(tmp_path, "frozen", 2).create(worker)
        source.wait_for_progress(broker.address)
        broker.send_signal(signal.SIGSTOP)
        try:
            wait_for(lambda: not source.has_running_process(), "all tasks have stopped", 30)
        finally:
            broker.send_signal(signal.SIGCONT)
        source.wait_until_running(worker)
        source.wait_for_progress(broker.address)
        assert_no_number_is_missing(source.numbers(broker.address))


@pytest.mark.prove
def test_tasks_are_not_restarted_when_the_group_coordinator_fails_over(tmp_path: Path) -> None:
    settings = {**SETTINGS, **{f"{kind}.storage.replication.factor": "3" for kind in ("config", "offset", "status")}}
    with (
        running_cluster(tmp_path / "cluster", default_replication_factor="3", min_insync_replicas="2") as cluster,
        worker_group(tmp_path, cluster.bootstrap_servers, 2, {**settings, "session.timeout.ms": "30000"}) as workers,
    ):
        source = Monitored(tmp_path, "failover", 4).create(workers[0])
        wait_until_balanced(workers)
        starts = source.starts()
        for node in (1, 2, 3):
            cluster.kill(node)
            source.wait_for_progress(cluster.bootstrap_servers)
            cluster.start_node(node)
            for worker in workers:
                wait_for(lambda w=worker: health(w)["brokers"]["status"] == "available", "a coordinator", 60)
        assert source.starts() == starts
        assert_no_number_is_missing(source.numbers(cluster.bootstrap_servers))


# The leader stops


@pytest.mark.slow
def test_requests_to_other_workers_succeed_while_the_leader_stops_or_is_killed(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    with worker_group(tmp_path, broker.address, 3, SETTINGS) as workers:
        source = Monitored(tmp_path, "leaderless", 2).create(workers[0])
        by_url = {worker.url + "/": worker for worker in workers}
        remaining = list(workers)
        for ends in ("stop", "kill"):
            leader = by_url[leader_url(remaining[0])]
            remaining.remove(leader)
            with ThreadPoolExecutor(1) as threads:
                stopping = threads.submit(leader.stop if ends == "stop" else leader.kill_group)
                for number in range(5):
                    config = source.config(interval_ms=str(20 + number))
                    remaining[0].request("PUT", f"/connectors/{source.name}/config", config)
                stopping.result()
            remaining[-1].create(f"after-{ends}", Monitored(tmp_path, f"after-{ends}").config())
            source.wait_until_running(remaining[0])


def leader_url(worker: DistributedWorker) -> str:
    return re.findall(r"; leader (\S+);", worker.log())[-1]


# Health


def test_health_endpoint_returns_200_and_lists_the_failed_connectors_and_tasks_of_the_worker(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    with worker_group(tmp_path, broker.address, 2, SETTINGS) as workers:
        assert health(workers[0]) == {
            "status": "healthy",
            "message": "Worker has completed startup and is ready to handle requests.",
            "brokers": {"status": "available"},
            "failed_connectors": [],
            "failed_tasks": [],
        }
        flag = tmp_path / "fails"
        flag.touch()
        source = Monitored(tmp_path, "failing", 2, {"fails.while": str(flag)})
        workers[0].create(source.name, source.config())
        unusable = {**source.config(), "tasks": "200", "tasks.max": "1", "journal": str(tmp_path / "no" / "directory")}
        workers[0].create("unusable", unusable)

        def shown() -> tuple[list[str], list[str]]:
            bodies = [health(worker) for worker in workers]
            return (
                sorted(name for body in bodies for name in body["failed_connectors"]),
                sorted(name for body in bodies for name in body["failed_tasks"]),
            )

        wait_for(lambda: shown() == (["unusable"], ["failing-0", "failing-1"]), "the failures", 30, shown)
        for worker in workers:
            own = {f"failing-{t}" for t, (_, owner) in owners(worker, "failing").items() if owner == worker.worker_id}
            assert set(health(worker)["failed_tasks"]) == own - {"failing-None"}


# Mistakes in the configuration of a group


@pytest.mark.prove
def test_second_worker_with_the_same_advertised_address_logs_one_error(broker: BrokerProcess, tmp_path: Path) -> None:
    port = free_port()
    settings = {**SETTINGS, "rest.advertised.host.name": "127.0.0.1", "rest.advertised.port": str(port)}
    with worker_group(tmp_path, broker.address, 2, settings) as [first, second]:
        error = f"rest.advertised.host.name, rest.advertised.port: another worker of group {settings_group(first)}"
        wait_for(lambda: error in second.log(), "the error", 60, second.log)
        [line] = [line for line in second.log().splitlines() if error in line]
        assert f"http://127.0.0.1:{port}/" in line
        assert error not in first.log()


def settings_group(worker: DistributedWorker) -> str:
    return worker.settings["group.id"]


@pytest.mark.prove
def test_worker_restarted_after_a_kill_logs_no_error_about_a_duplicate_advertised_address(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    with worker_group(tmp_path, broker.address, 1, {**SETTINGS, "heartbeat.interval.ms": "500"}) as [worker]:
        worker.kill_group()
        worker.start()
        wait_for(lambda: leader_url(worker) == worker.url + "/", "the worker is the leader", 60)
        Monitored(tmp_path, "alone").create(worker)
        time.sleep(6 + 2 + 2)  # session.timeout.ms, after which the worker checks the members again
        assert "rest.advertised" not in worker.log()


def test_worker_logs_once_that_its_group_id_belongs_to_a_consumer_group_and_joins_when_this_group_is_empty(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(20)
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "workers"})
    consumer.subscribe(["t"])
    deadline = time.monotonic() + 30
    while not consumer.assignment():
        consumer.poll(0.1)
        assert time.monotonic() < deadline
    worker = DistributedWorker(tmp_path / "worker", broker.address, SETTINGS)
    launch(worker)
    wait_for(lambda: "group.id=workers" in worker.log(), "the error", 30, worker.log)
    for _ in range(30):
        consumer.poll(0.1)  # several attempts to join
    assert sum("ERROR" in line for line in worker.log().splitlines()) == 1, worker.log()
    consumer.close()
    wait_for(worker.is_healthy, "the worker is healthy", 60, worker.log)
    worker.stop()


@pytest.mark.prove
def test_worker_with_a_wildcard_listener_advertises_the_local_address_of_its_broker_connection(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    port = free_port()
    worker = DistributedWorker(tmp_path / "worker", broker.address, {**SETTINGS, "listeners": f"http://0.0.0.0:{port}"})
    worker.url = f"http://127.0.0.1:{port}"
    with worker:
        assert f"advertised URL http://127.0.0.1:{port}/" in worker.log()
        Monitored(tmp_path, "wildcard").create(worker)
        assert {owner for _, owner in owners(worker, "wildcard").values()} == {f"127.0.0.1:{port}"}


# Internal topics


def describe(broker: BrokerProcess, topic: str) -> tuple[int, int, dict[str, str]]:
    """Return the number of partitions, the replication factor, and the topic's configuration."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    partitions = admin.list_topics(topic, timeout=20).topics[topic].partitions
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    entries = admin.describe_configs([resource])[resource].result(20)
    return len(partitions), len(partitions[0].replicas), {name: entry.value for name, entry in entries.items()}


@pytest.mark.slow
def test_internal_topics_are_created_with_the_configured_settings(broker: BrokerProcess, tmp_path: Path) -> None:
    settings = {
        **SETTINGS,
        "status.storage.partitions": "3",
        "config.storage.min.insync.replicas": "1",
        "offset.storage.segment.bytes": "1048576",
        "status.storage.cleanup.policy": "delete",
    }
    with worker_group(tmp_path, broker.address, 1, settings):
        found = {kind: describe(broker, f"connect-{kind}") for kind in ("configs", "offsets", "status")}
    assert {kind: each[:2] for kind, each in found.items()} == {"configs": (1, 1), "offsets": (5, 1), "status": (3, 1)}
    assert {each[2]["cleanup.policy"] for each in found.values()} == {"compact"}
    assert found["offsets"][2]["segment.bytes"] == "1048576"


@pytest.mark.prove
def test_worker_exits_if_the_replication_factor_of_an_internal_topic_exceeds_the_number_of_brokers(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    worker = DistributedWorker(tmp_path / "worker", broker.address, {"status.storage.replication.factor": "3"})
    worker.launch()
    assert worker.wait(30) == 2
    [line] = [line for line in worker.log().splitlines() if "ERROR" in line]
    assert "status.storage.topic: cannot create the topic connect-status" in line
    assert "status.storage.replication.factor is 3" in line


@pytest.mark.prove
def test_worker_uses_existing_internal_topics_without_changing_their_settings(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    compacted = {"cleanup.policy": "compact", "segment.bytes": "2097152"}
    counts = {"connect-configs": 1, "connect-offsets": 2, "connect-status": 7}
    for future in admin.create_topics([NewTopic(t, n, 1, config=compacted) for t, n in counts.items()]).values():
        future.result(20)
    with worker_group(tmp_path, broker.address, 1, SETTINGS) as [worker]:
        Monitored(tmp_path, "existing").create(worker)
        for topic, count in counts.items():
            partitions, _, configs = describe(broker, topic)
            assert (partitions, configs["segment.bytes"]) == (count, "2097152")


@pytest.mark.parametrize(
    ("topic", "partitions", "policy", "error"),
    [
        pytest.param(
            "connect-configs",
            2,
            "compact",
            "'config.storage.topic' property is required to have a single partition",
            marks=pytest.mark.prove,
        ),
        (
            "connect-configs",
            1,
            "delete",
            "'config.storage.topic' property is required to have 'cleanup.policy=compact'",
        ),
        pytest.param(
            "connect-status",
            5,
            "compact,delete",
            "'status.storage.topic' property is required to have 'cleanup.policy",
            marks=pytest.mark.prove,
        ),
    ],
)
def test_worker_exits_if_an_existing_internal_topic_has_a_wrong_partition_count_or_cleanup_policy(
    broker: BrokerProcess, tmp_path: Path, topic: str, partitions: int, policy: str, error: str
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(topic, partitions, 1, config={"cleanup.policy": policy})])[topic].result(20)
    worker = DistributedWorker(tmp_path / "worker", broker.address)
    worker.launch()
    assert worker.wait(30) == 2
    [line] = [line for line in worker.log().splitlines() if "ERROR" in line]
    assert f"Topic '{topic}' supplied via the {error}" in line
