"""Tests of a broker's `/metrics` page: format, values and listeners."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from support.broker import BrokerProcess, running_broker
from support.cluster_load import create_topic
from support.metrics import Samples, scrape, value
from support.ports import free_port, has_ipv6

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("metrics"), headrace_metrics_listeners="http://127.0.0.1:0") as running:
        yield running


def page(broker: BrokerProcess) -> Samples:
    return scrape(broker.log)


def test_metrics_count_records_bytes_and_time_of_produce_and_fetch_requests(broker: BrokerProcess) -> None:
    create_topic(broker.address, "measured", 2, replication=1)
    producer = Producer({"bootstrap.servers": broker.address})
    for number in range(500):
        producer.produce("measured", b"x" * 100, partition=number % 2)
    producer.flush(30)
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "g"})
    consumer.assign([TopicPartition("measured", 0, 0)])
    read = 0
    while read < 250:
        read += len(consumer.consume(250, 5))
    consumer.close()
    found = page(broker)
    prefix = "kafka_server_brokertopicmetrics"
    assert value(found, f"{prefix}_messagesin_total", topic="measured") == 500
    assert value(found, f"{prefix}_messagesinpersec", topic="measured") == 500
    assert value(found, f"{prefix}_messagesin_total") >= 500
    assert value(found, f"{prefix}_bytesin_total", topic="measured") > 50_000
    assert 25_000 < value(found, f"{prefix}_bytesout_total", topic="measured") < 35_000
    assert value(found, f"{prefix}_totalfetchrequests_total", topic="measured") > 0
    assert value(found, "kafka_log_log_logendoffset", topic="measured", partition="1") == 250
    assert value(found, "kafka_log_log_numlogsegments", topic="measured", partition="0") == 1
    assert value(found, "kafka_network_requestmetrics_totaltimems_count", request="Produce") > 0
    assert value(found, "kafka_network_requestmetrics_totaltimems", request="Fetch", quantile="0.99") > 0


def test_metrics_count_the_bytes_of_committed_offsets(broker: BrokerProcess) -> None:
    create_topic(broker.address, "committed", 1, replication=1)
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "committing"})
    consumer.commit(offsets=[TopicPartition("committed", 0, 0)], asynchronous=False)
    consumer.close()
    found = page(broker)
    assert value(found, "kafka_server_brokertopicmetrics_bytesin_total", topic="__consumer_offsets") > 0
    assert value(found, "kafka_server_brokertopicmetrics_messagesin_total", topic="__consumer_offsets") > 0


def test_metrics_of_a_healthy_node_show_no_offline_or_underreplicated_partitions(broker: BrokerProcess) -> None:
    create_topic(broker.address, "well", 3, replication=1)
    found = page(broker)
    assert value(found, "kafka_controller_kafkacontroller_activecontrollercount") == 1
    assert value(found, "kafka_controller_kafkacontroller_offlinepartitionscount") == 0
    assert value(found, "kafka_controller_kafkacontroller_activebrokercount") == 1
    assert value(found, "kafka_server_replicamanager_underreplicatedpartitions") == 0
    assert value(found, "kafka_server_replicamanager_leadercount") >= 3
    assert value(found, "kafka_server_kafkaserver_brokerstate") == 3
    assert value(found, "kafka_server_raft_metrics_current_state_info", state="leader") == 1
    assert value(found, "kafka_server_raft_metrics_current_leader") == 1
    assert value(found, "kafka_server_raft_metrics_high_watermark") > 0
    on_listener = {"listener": "PLAINTEXT", "networkProcessor": "0"}
    assert value(found, "kafka_server_socket_server_metrics_connection_count", **on_listener) >= 0
    assert value(found, "kafka_server_socket_server_metrics_connection_creation_rate", **on_listener) > 0
    assert value(found, "process_cpu_seconds_total") > 0


def test_metrics_have_the_fifteen_minute_rates_that_kafka_ui_reads(broker: BrokerProcess) -> None:
    create_topic(broker.address, "rated", 1, replication=1)
    producer = Producer({"bootstrap.servers": broker.address})
    producer.produce("rated", b"x" * 100_000)
    producer.flush(30)
    name, meter = "kafka_server_BrokerTopicMetrics_FifteenMinuteRate", ("name", "BytesInPerSec")
    rate = await_value(lambda: page(broker).get((name, (meter, ("topic", "rated"))), 0.0))
    assert 100 < rate < 100_000 / 5 + 1000  # at least 5 s passed since the previous update
    assert page(broker)[name, (meter,)] > 0


def await_value(read: Callable[[], float], timeout_s: float = 30) -> float:
    """Return the first value that is not 0."""
    deadline = time.monotonic() + timeout_s
    while not (found := read()):
        assert time.monotonic() < deadline
        time.sleep(0.1)  # poll, because the value depends on another process
    return found


def test_metrics_listener_returns_404_for_an_unknown_path(broker: BrokerProcess) -> None:
    address = re.findall(r"Metrics: serving (http://\S+)", broker.log)[-1]
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(address.replace("/metrics", "/other"), timeout=30)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "[::]"])
def test_metrics_listener_for_all_interfaces_accepts_requests_over_ipv4_and_ipv6(tmp_path: Path, host: str) -> None:
    port = free_port()
    with running_broker(tmp_path, headrace_metrics_listeners=f"http://{host}:{port}"):
        for address in ("127.0.0.1", "[::1]") if has_ipv6() else ("127.0.0.1",):
            with urllib.request.urlopen(f"http://{address}:{port}/metrics", timeout=10) as response:
                assert response.status == 200


@pytest.mark.parametrize("listener", ["127.0.0.1:9404", "https://127.0.0.1:9404", "http://127.0.0.1", "http://h:x"])
def test_invalid_metrics_listener_is_rejected(tmp_path: Path, listener: str) -> None:
    error = pytest.raises(
        AssertionError, match=r"headrace.metrics.listeners: '.*' does not have the form http://host:port"
    )
    with error, running_broker(tmp_path, headrace_metrics_listeners=listener):
        pass


def test_broker_start_with_a_metrics_port_in_use_fails_and_its_error_names_the_listener(
    tmp_path: Path, broker: BrokerProcess
) -> None:
    listener = f"http://127.0.0.1:{broker.port}"
    error = pytest.raises(AssertionError, match=rf"headrace.metrics.listeners: {listener} cannot be bound")
    with error, running_broker(tmp_path, headrace_metrics_listeners=listener):
        pass


def test_broker_opens_no_metrics_listener_by_default(tmp_path: Path) -> None:
    port = free_port()
    with running_broker(tmp_path) as plain:
        assert "Metrics: serving" not in plain.log
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=1)
