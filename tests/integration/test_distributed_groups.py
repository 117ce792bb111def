"""Tests of rebalances of a worker group.

The tests correspond to Apache Kafka's ConnectWorkerIntegrationTest and RebalanceSourceConnectorsIntegrationTest. Most
tests share one broker and one group of two workers, and delete their connectors at the end.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.broker import BrokerProcess, running_broker
from support.distributed import DistributedWorker, owners, worker_group
from support.monitored import (
    PLUGINS,
    Monitored,
    assert_no_number_is_missing,
    everything,
    wait_until_balanced,
)
from support.worker import RestError, wait_for

pytestmark = pytest.mark.integration

SETTINGS = {**PLUGINS, "task.shutdown.graceful.timeout.ms": "2000"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="module")
def shared_workers(
    broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[DistributedWorker]]:
    with worker_group(tmp_path_factory.mktemp("workers"), broker.address, 2, SETTINGS) as running:
        yield running


@pytest.fixture
def workers(shared_workers: list[DistributedWorker]) -> Iterator[list[DistributedWorker]]:
    yield shared_workers
    for name in shared_workers[0].request("GET", "/connectors"):
        shared_workers[0].request("DELETE", f"/connectors/{name}")
    for worker in shared_workers:
        wait_for(lambda w=worker: not everything(w), "all connectors are deleted", 30)


def other_group(name: str, **more: str) -> dict[str, str]:
    """Return the settings of a separate group on the same broker. Each call uses a new group id and new topics."""
    name = f"{name}-{uuid.uuid4().hex[:8]}"
    topics = {f"{kind}.storage.topic": f"{name}-{kind}" for kind in ("config", "offset", "status")}
    return {**SETTINGS, "group.id": name, **topics, **{key.replace("_", "."): value for key, value in more.items()}}


def unmoved(before: dict[int | None, tuple[str, str]], after: dict[int | None, tuple[str, str]]) -> set[int | None]:
    return {task for task, owner in before.items() if after.get(task) == owner}


# Workers join and leave


def test_connectors_and_tasks_move_to_a_new_worker_and_return_when_the_new_worker_stops(
    workers: list[DistributedWorker], tmp_path: Path
) -> None:
    source = Monitored(tmp_path, "added", 6).create(workers[0])
    wait_until_balanced(workers)
    before, starts = owners(workers[0], source.name), source.starts()
    with DistributedWorker(tmp_path / "third", workers[0].bootstrap_servers(), SETTINGS) as third:
        assert isinstance(third, DistributedWorker)
        wait_until_balanced([*workers, third])
        after = owners(third, source.name)
        assert {task for task, (_, owner) in after.items() if owner == third.worker_id}
        stayed = unmoved(before, after)
        assert {task: source.starts()[task] for task in stayed} == {task: starts[task] for task in stayed}
        starts = source.starts()
    wait_until_balanced(workers)
    stayed = unmoved(after, owners(workers[0], source.name))
    assert {task: source.starts()[task] for task in stayed} == {task: starts[task] for task in stayed}
    source.wait_for_progress(workers[0].bootstrap_servers())
    numbers = source.numbers(workers[0].bootstrap_servers())
    assert all(found == list(range(len(found))) for found in numbers.values()), "a clean stop duplicates no record"


def test_first_response_of_a_starting_worker_lists_the_connectors_of_its_group(
    workers: list[DistributedWorker], broker: BrokerProcess, tmp_path: Path
) -> None:
    source = Monitored(tmp_path, "known", 1).create(workers[0])
    wait_until_balanced(workers)
    worker = DistributedWorker(tmp_path / "third", broker.address, SETTINGS)
    responses: list[Any] = []

    def responds() -> bool:
        try:
            responses.append(worker.request("GET", "/connectors"))
        except (URLError, ConnectionError):
            return False
        return True

    worker.launch()
    try:
        wait_for(responds, "the worker responds", 30, worker.log)
    finally:
        worker.stop()
    assert responses == [[source.name]]


def metric(worker: DistributedWorker, name: str, **labels: str) -> list[float]:
    """Return the values of the metric `name` with at least these labels on the metrics page of a worker."""
    families = text_string_to_metric_families(worker.request("GET", "/metrics"))
    samples = [sample for family in families for sample in family.samples]
    return [each.value for each in samples if each.name == name and labels.items() <= each.labels.items()]


def test_metrics_of_a_worker_count_only_its_own_connectors_and_tasks(
    workers: list[DistributedWorker], tmp_path: Path
) -> None:
    source = Monitored(tmp_path, "counted", 3).create(workers[0])
    wait_until_balanced(workers)
    owned = owners(workers[0], source.name)
    for worker in workers:
        tasks = {str(task) for task, (_, owner) in owned.items() if task is not None and owner == worker.worker_id}
        is_owner = owned[None][1] == worker.worker_id
        assert metric(worker, "kafka_connect_worker_connector_count") == [is_owner]
        assert metric(worker, "kafka_connect_worker_task_count") == [len(tasks)]
        assert metric(worker, "kafka_connect_worker_connector_running_task_count") == [len(tasks)]
        assert metric(worker, "kafka_connect_connector_status", connector=source.name) == [1] * is_owner
        for number in range(3):
            is_own = str(number) in tasks
            assert metric(worker, "kafka_connect_connector_task_status", task=str(number)) == [1] * is_own
        assert metric(worker, "kafka_connect_worker_rebalance_rebalancing") == [0]
        assert metric(worker, "kafka_connect_worker_rebalance_completed_rebalances_total") > [1]
    epochs = [metric(worker, "kafka_connect_worker_rebalance_epoch") for worker in workers]
    assert epochs[0] == epochs[1] > [1]


def test_connectors_lose_no_record_when_two_workers_join_at_the_same_time_and_are_later_killed_at_the_same_time(
    workers: list[DistributedWorker], tmp_path: Path
) -> None:
    sources = [Monitored(tmp_path, f"several-{number}", 4).create(workers[0]) for number in range(2)]
    added = [
        DistributedWorker(tmp_path / f"added-{number}", workers[0].bootstrap_servers(), SETTINGS) for number in (1, 2)
    ]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda worker: worker.start(), added))
    wait_until_balanced([*workers, *added])
    for worker in added:
        worker.kill_group()
    wait_until_balanced(workers)
    for source in sources:
        source.wait_for_progress(workers[0].bootstrap_servers())
        assert_no_number_is_missing(source.numbers(workers[0].bootstrap_servers()))


@pytest.mark.slow
def test_worker_logs_the_address_of_a_worker_of_another_group_that_uses_the_same_internal_topics(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    settings = other_group("first")
    foreign = "writes statuses of the same connectors as this worker"
    with DistributedWorker(tmp_path / "first", broker.address, settings) as first:
        Monitored(tmp_path, "twice", 1).create(first)
        second_settings = {**settings, "group.id": settings["group.id"] + "-copy"}
        with DistributedWorker(tmp_path / "second", broker.address, second_settings) as second:
            for worker, other in ((first, second), (second, first)):
                line = f"worker {other.url.partition('://')[2]} {foreign}"
                wait_for(lambda w=worker, text=line: text in w.log(), line, 30, worker.log)
            time.sleep(1)
            assert first.log().count(foreign) == second.log().count(foreign) == 1
    assert "If that worker is running, another group uses the same internal topics" in second.log()


@pytest.mark.slow
def test_killed_worker_that_returns_within_the_scheduled_rebalance_delay_continues_its_own_tasks_after_the_delay(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    settings = other_group("returning", scheduled_rebalance_max_delay_ms="20000")
    with worker_group(tmp_path, broker.address, 2, settings) as [first, second]:
        source = Monitored(tmp_path, "returning", 4).create(first)
        wait_until_balanced([first, second])
        before = owners(first, source.name)
        kept = {task for task, (_, owner) in before.items() if owner == first.worker_id}
        starts = source.starts()
        second.kill_group()
        wait_for(lambda: "rejoining in " in first.log(), "the group delays the rebalance", 60)
        assert owners(first, source.name) == before
        second.start()
        lost = before.keys() - kept
        wait_for(lambda: {source.starts()[task] for task in lost} == {2}, "the tasks start on the worker", 60)
        source.wait_until_running(first)
        assert owners(first, source.name) == before
        assert {task: source.starts()[task] for task in kept} == {task: starts[task] for task in kept}


@pytest.mark.slow
def test_tasks_of_a_stopped_worker_are_unassigned_until_the_rebalance_delay_ends_even_if_the_worker_returns_earlier(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    settings = other_group("stopped", scheduled_rebalance_max_delay_ms="8000")
    with worker_group(tmp_path, broker.address, 2, settings) as [first, second]:
        source = Monitored(tmp_path, "stopped", 4).create(first)
        wait_until_balanced([first, second])
        before = owners(first, source.name)
        lost = {task for task, (_, owner) in before.items() if owner == second.worker_id}
        unassigned = {**before, **dict.fromkeys(lost, ("UNASSIGNED", second.worker_id))}
        stopped_s = time.monotonic()
        second.stop()
        wait_for(lambda: owners(first, source.name) == unassigned, "the statuses of the stopped worker")
        second.start()
        source.wait_until_running(second)
        wait_for(lambda: owners(first, source.name) == before, "the tasks run on their former workers")
        assert time.monotonic() - stopped_s >= 8


@pytest.mark.slow
def test_tasks_of_a_killed_worker_are_reassigned_after_the_scheduled_rebalance_delay(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    settings = other_group("delayed", scheduled_rebalance_max_delay_ms="3000")
    with worker_group(tmp_path, broker.address, 2, settings) as [first, second]:
        source = Monitored(tmp_path, "delayed", 4).create(first)
        wait_until_balanced([first, second])
        starts = source.starts()
        kept = {task for task, (_, owner) in owners(first, source.name).items() if owner == first.worker_id}
        second.kill_group()
        wait_until_balanced([first])
        source.wait_for_progress(broker.address)
        assert {task: source.starts()[task] for task in kept} == {task: starts[task] for task in kept}
        assert_no_number_is_missing(source.numbers(broker.address))


def test_restart_request_to_any_worker_restarts_only_the_failed_task(
    workers: list[DistributedWorker], tmp_path: Path
) -> None:
    flag = tmp_path / "fails"
    failing = Monitored(tmp_path, "failing", 2, {"fails.while": str(flag)}).create(workers[0])
    healthy = Monitored(tmp_path, "healthy", 2).create(workers[0])
    flag.touch()
    wait_for(
        lambda: (
            [state for task, (state, _) in owners(workers[0], failing.name).items() if task is not None]
            == ["FAILED", "FAILED"]
        ),
        "both tasks have failed",
        30,
    )
    before, healthy_starts = owners(workers[0], failing.name), healthy.starts()
    flag.unlink()
    for task, worker in enumerate(workers):
        worker.request("POST", f"/connectors/{failing.name}/tasks/{task}/restart")
        workers[0].wait_for_task_state(failing.name, task, "RUNNING", 30)
    assert owners(workers[0], failing.name).keys() == before.keys()
    assert failing.starts() == {None: 1, 0: 2, 1: 2}
    assert healthy.starts() == healthy_starts


def test_all_workers_report_a_task_as_failed_if_its_error_does_not_fit_into_a_record(
    workers: list[DistributedWorker], tmp_path: Path
) -> None:
    flag = tmp_path / "fails"
    failing = Monitored(tmp_path, "failing", 2, {"fails.while": str(flag)}).create(workers[0])
    (tmp_path / "text").write_text("x" * 1_500_000)
    (tmp_path / "text").rename(flag)
    for worker in workers:
        for task in range(failing.tasks):
            worker.wait_for_task_state(failing.name, task, "FAILED", 30)


def test_task_statuses_match_the_number_of_tasks_after_each_configuration_change(
    workers: list[DistributedWorker], tmp_path: Path
) -> None:
    source = Monitored(tmp_path, "resized", 2).create(workers[0])
    for tasks, worker in ((5, workers[1]), (1, workers[0]), (3, workers[1])):
        worker.request("PUT", f"/connectors/{source.name}/config", source.config(tasks))
        for each in workers:
            source.wait_until_running(each)
    for removed in (3, 4):
        with pytest.raises(RestError) as caught:
            workers[0].request("GET", f"/connectors/{source.name}/tasks/{removed}/status")
        assert caught.value.status == 404


def test_reconfiguring_and_deleting_a_connector_restarts_no_other_connector(
    workers: list[DistributedWorker], tmp_path: Path
) -> None:
    sources = [Monitored(tmp_path, f"neighbour-{number}", 2).create(workers[0]) for number in range(3)]
    wait_until_balanced(workers)
    before, undisturbed = owners(workers[0], sources[0].name), sources[0].starts()
    workers[1].request("PUT", f"/connectors/{sources[1].name}/config", sources[1].config(interval_ms="30"))
    wait_for(lambda: sources[1].starts() == {None: 2, 0: 2, 1: 2}, "the connector restarts with its tasks", 30)
    assert sources[0].starts() == undisturbed
    workers[0].request("DELETE", f"/connectors/{sources[2].name}")
    wait_until_balanced(workers)
    after = owners(workers[0], sources[0].name)
    stayed = unmoved(before, after)  # deleting a connector may move tasks of others to the other worker
    assert {task: sources[0].starts()[task] for task in stayed} == {task: undisturbed[task] for task in stayed}
    assert len(stayed) >= 2


@pytest.mark.slow
def test_paused_and_stopped_connectors_keep_their_states_after_their_worker_is_killed(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    with worker_group(tmp_path, broker.address, 2, other_group("states")) as [first, second]:
        paused, stopped = Monitored(tmp_path, "paused", 2), Monitored(tmp_path, "stopped", 2)
        for source in (paused, stopped):
            source.create(first)
        first.request("PUT", f"/connectors/{paused.name}/pause")
        second.request("PUT", f"/connectors/{stopped.name}/stop")
        first.wait_for_state(paused.name, "PAUSED")
        first.kill_group()
        wait_for(
            lambda: {owner for _, owner in everything(second).values()} == {second.worker_id},
            "the other worker runs everything",
            60,
            lambda: everything(second),
        )
        second.wait_for_state(paused.name, "PAUSED", 30)
        assert {task: state for task, (state, _) in owners(second, stopped.name).items()} == {None: "STOPPED"}
        before = paused.numbers(broker.address)
        for source in (paused, stopped):
            second.request("PUT", f"/connectors/{source.name}/resume")
            source.wait_until_running(second)
            source.wait_for_progress(broker.address)
            assert_no_number_is_missing(source.numbers(broker.address))
        assert all(paused.numbers(broker.address)[task][: len(found)] == found for task, found in before.items())
