"""Tests of source connectors with their own offsets topic (KIP-618), in a distributed worker with a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from support.broker import running_broker
from support.distributed import DistributedWorker, worker_group
from support.topics import read_topic
from support.worker import RestError, wait_for

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DistributedWorker]:
    directory = tmp_path_factory.mktemp("offsets")
    settings = {
        "offset.storage.partitions": "1",
        "config.providers": "env",
        "config.providers.env.class": "EnvVarConfigProvider",
    }
    with pytest.MonkeyPatch.context() as patched, running_broker(directory) as broker:
        patched.setenv("HEADRACE_TEST_TOPIC", "moved-offsets")
        with worker_group(directory, broker.address, 1, settings) as [started]:
            yield started


def source(file: Path, name: str, **settings: str) -> dict[str, str]:
    file.write_text("1\n2\n")
    converter = "org.apache.kafka.connect.storage.StringConverter"
    config = {"connector.class": "FileStreamSource", "file": str(file), "topic": name, "value.converter": converter}
    return {**config, **settings}


def stored(worker: DistributedWorker, topic: str, connector: str) -> list[Any]:
    """Return the values of the records that a source connector has in an offsets topic."""
    records = read_topic(worker.bootstrap_servers(), topic)
    mine = [record for record in records if json.loads(record.key() or b"[0]")[0] == connector]
    return [None if record.value() is None else json.loads(record.value() or b"") for record in mine]


def lines(worker: DistributedWorker, topic: str) -> list[bytes | None]:
    return [record.value() for record in read_topic(worker.bootstrap_servers(), topic)]


def offset(worker: DistributedWorker, name: str) -> Any:
    found = worker.request("GET", f"/connectors/{name}/offsets")["offsets"]
    return found[0]["offset"] if found else None


def stop(worker: DistributedWorker, name: str) -> None:
    worker.request("PUT", f"/connectors/{name}/stop")
    wait_for(lambda: worker.status(name)["tasks"] == [], f"{name} has no tasks")


def test_offsets_of_a_source_with_its_own_offsets_topic_are_stored_and_altered_and_reset_in_that_topic(
    worker: DistributedWorker, tmp_path: Path
) -> None:
    config = source(tmp_path / "in", "own", **{"offsets.storage.topic": "own-offsets"})
    worker.create("own", config)
    wait_for(lambda: offset(worker, "own") == {"position": 4}, "the offset of both lines")
    assert stored(worker, "own-offsets", "own")[-1] == {"position": 4}
    wait_for(lambda: stored(worker, "connect-offsets", "own")[-1:] == [{"position": 4}], "the worker's topic")
    resource = ConfigResource(ConfigResource.Type.TOPIC, "own-offsets")
    admin = AdminClient({"bootstrap.servers": worker.bootstrap_servers()})
    assert admin.describe_configs([resource])[resource].result(20)["cleanup.policy"].value == "compact"

    stop(worker, "own")
    (pair,) = worker.request("GET", "/connectors/own/offsets")["offsets"]
    worker.request("PATCH", "/connectors/own/offsets", {"offsets": [{**pair, "offset": {"position": 2}}]})
    assert offset(worker, "own") == {"position": 2}
    worker.request("PUT", "/connectors/own/resume")
    wait_for(lambda: lines(worker, "own") == [b"1", b"2", b"2"], "the second line again")

    wait_for(lambda: offset(worker, "own") == {"position": 4}, "the offset of both lines")
    stop(worker, "own")
    worker.request("DELETE", "/connectors/own/offsets")
    assert offset(worker, "own") is None
    assert stored(worker, "own-offsets", "own")[-1] is None
    assert stored(worker, "connect-offsets", "own")[-1] is None
    worker.request("PUT", "/connectors/own/resume")
    wait_for(lambda: lines(worker, "own") == [b"1", b"2", b"2", b"1", b"2"], "both lines again")
    worker.request("DELETE", "/connectors/own")


def test_source_continues_from_its_committed_offset_after_offsets_storage_topic_is_configured(
    worker: DistributedWorker, tmp_path: Path
) -> None:
    worker.create("moved", source(tmp_path / "in", "moved"))
    wait_for(lambda: offset(worker, "moved") == {"position": 4}, "the offset of both lines")
    worker.request("PATCH", "/connectors/moved/config", {"offsets.storage.topic": "${env:HEADRACE_TEST_TOPIC}"})
    with open(tmp_path / "in", "a") as file:
        file.write("3\n")
    wait_for(lambda: offset(worker, "moved") == {"position": 6}, "the offset of all lines")
    assert lines(worker, "moved") == [b"1", b"2", b"3"]
    wait_for(lambda: stored(worker, "moved-offsets", "moved")[-1:] == [{"position": 6}], "the offset in the own topic")
    worker.request("DELETE", "/connectors/moved")


def test_source_task_fails_if_its_offsets_storage_topic_is_not_compacted(
    worker: DistributedWorker, tmp_path: Path
) -> None:
    worker.create("plain", {**source(tmp_path / "in", "plain")})
    wait_for(lambda: offset(worker, "plain") is not None, "the topic plain exists")
    worker.create("wrong", source(tmp_path / "in2", "wrong", **{"offsets.storage.topic": "plain"}))
    worker.wait_for_task_state("wrong", 0, "FAILED")
    trace = worker.status("wrong")["tasks"][0]["trace"]
    assert "Topic 'plain' supplied via the 'offsets.storage.topic' property" in trace
    with pytest.raises(RestError, match=r"offsets\.storage\.topic"):
        worker.request("GET", "/connectors/wrong/offsets")
    for name in ("plain", "wrong"):
        worker.request("DELETE", f"/connectors/{name}")
