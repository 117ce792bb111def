"""Tests of the versions of Connect's group protocol: signed requests (KIP-507), and upgrades of `connect.protocol`."""

from __future__ import annotations

import base64
import hmac
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from support.broker import BrokerProcess, running_broker
from support.distributed import DistributedWorker, worker_group
from support.monitored import PLUGINS, Monitored, wait_until_balanced
from support.topics import read_topic
from support.worker import wait_for

pytestmark = pytest.mark.integration

SIGNATURE, ALGORITHM = "X-Connect-Authorization", "X-Connect-Request-Signature-Algorithm"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path) as running:
        yield running


def protocol(worker: DistributedWorker) -> str:
    """Return the group protocol of the last generation that the worker joined."""
    return re.findall(r"joined generation \d+ \((\w+)\)", worker.log())[-1]


def post(url: str, body: bytes, headers: Mapping[str, str]) -> int:
    """Send a POST request and return the status of the response."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **headers}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def session_key(broker: BrokerProcess) -> bytes:
    """Return the last session key in the config topic."""
    keys = [message for message in read_topic(broker.address, "connect-configs") if message.key() == b"session-key"]
    return base64.b64decode(json.loads(keys[-1].value() or b"")["key"])


def test_sessioned_group_accepts_task_configs_only_in_signed_requests(broker: BrokerProcess, tmp_path: Path) -> None:
    with worker_group(tmp_path, broker.address, 1, PLUGINS) as [worker]:
        source = Monitored(tmp_path, "signed", 2).create(worker)
        tasks = worker.request("GET", f"/connectors/{source.name}/tasks")
        body = json.dumps([{**task["config"], "interval.ms": "50"} for task in tasks]).encode()
        url = f"{worker.url}/connectors/{source.name}/tasks"

        def signed(key: bytes, algorithm: str = "HmacSHA256") -> dict[str, str]:
            signature = base64.b64encode(hmac.digest(key, body, "sha256")).decode()
            return {SIGNATURE: signature, ALGORITHM: algorithm}

        assert post(url, body, {}) == 400
        assert post(url, body, signed(b"another key")) == 403
        assert post(url, body, signed(session_key(broker), "HmacMD5")) == 400
        assert worker.request("GET", f"/connectors/{source.name}/tasks") == tasks
        assert post(url, body, signed(session_key(broker))) == 204
        stored = [task["config"] for task in worker.request("GET", f"/connectors/{source.name}/tasks")]
        assert [config["interval.ms"] for config in stored] == ["50", "50"]


def test_worker_accepts_unsigned_task_configs_if_the_group_has_no_session_key(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """With the setting ``connect.protocol=compatible``, the group has no session key."""
    with worker_group(tmp_path, broker.address, 1, {**PLUGINS, "connect.protocol": "compatible"}) as [worker]:
        source = Monitored(tmp_path, "unsigned").create(worker)
        [task] = worker.request("GET", f"/connectors/{source.name}/tasks")
        body = json.dumps([task["config"]]).encode()
        assert post(f"{worker.url}/connectors/{source.name}/tasks", body, {}) == 204


@pytest.mark.slow
def test_rolling_upgrade_of_connect_protocol_loses_and_duplicates_no_record(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    settings = {**PLUGINS, "connect.protocol": "eager"}
    with worker_group(tmp_path, broker.address, 3, settings) as workers:
        source = Monitored(tmp_path, "upgraded", 6).create(workers[0])
        wait_until_balanced(workers)
        assert {protocol(worker) for worker in workers} == {"default"}
        for older, newer in (("default", "compatible"), ("compatible", "sessioned")):
            for worker in workers:
                assert {protocol(each) for each in workers} == {older}, "the oldest worker determines the protocol"
                worker.stop()
                worker.settings["connect.protocol"] = newer
                worker.start()
                wait_until_balanced(workers)
                source.wait_for_progress(broker.address)
            wait_for(lambda p=newer: {protocol(each) for each in workers} == {p}, f"the protocol is {newer}", 60)
        workers[0].request("PUT", f"/connectors/{source.name}/config", source.config(3))
        source.wait_until_running(workers[1])
        workers[0].request("PUT", f"/connectors/{source.name}/stop")
        wait_for(lambda: not source.has_running_process(), "all tasks have stopped", 60)
        for numbers in source.numbers(broker.address).values():
            assert numbers == list(range(len(numbers))), "clean stops lose and duplicate no record"
