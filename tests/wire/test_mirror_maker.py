"""Apache's MirrorMaker 2 copies a topic, its configs and a group's offsets from one headrace broker to another."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from support import apache
from support.broker import BrokerProcess, running_broker
from support.topics import end_offset, read_topic

pytestmark = [
    pytest.mark.jvm,
    pytest.mark.skipif(apache.unavailable_reason() is not None, reason=apache.unavailable_reason() or ""),
]

RECORDS = 1000
TIMEOUT_S = 90.0
CONFIG = """
clusters = a, b
a.bootstrap.servers = {a}
b.bootstrap.servers = {b}
a->b.enabled = true
a->b.topics = orders
a->b.groups = shop
a->b.sync.group.offsets.enabled = true
b->a.enabled = false
replication.factor = 1
checkpoints.topic.replication.factor = 1
heartbeats.topic.replication.factor = 1
offset-syncs.topic.replication.factor = 1
config.storage.replication.factor = 1
offset.storage.replication.factor = 1
status.storage.replication.factor = 1
emit.checkpoints.interval.seconds = 1
sync.group.offsets.interval.seconds = 1
sync.topic.configs.interval.seconds = 1
refresh.topics.interval.seconds = 1
offset.flush.interval.ms = 1000
"""


def _create_orders(broker: BrokerProcess) -> None:
    """Create the topic `orders`, produce records, and commit the offset of the group `shop` after the last record."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic("orders", 1, 1, config={"retention.ms": "123456789"})])["orders"].result(30)
    producer = Producer({"bootstrap.servers": broker.address})
    for number in range(RECORDS):
        producer.produce("orders", key=str(number), value=f"order {number}", headers={"number": str(number)})
    assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "shop", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    read = 0
    while read < RECORDS:
        read += len(consumer.consume(RECORDS, 1))
    consumer.commit(asynchronous=False)
    consumer.close()


def _is_synchronized(broker: BrokerProcess) -> bool:
    """Whether the broker has all records and the configs of the mirrored topic, and the consumer group."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    if end_offset(broker.address, "a.orders") < RECORDS:
        return False
    resource = ConfigResource(ConfigResource.Type.TOPIC, "a.orders")
    configs = admin.describe_configs([resource])[resource].result(30)
    groups = admin.list_consumer_groups().result(30)
    return configs["retention.ms"].value == "123456789" and any(group.group_id == "shop" for group in groups.valid)


def test_mirror_maker_copies_records_topic_configs_and_groups_between_two_brokers_without_errors(
    tmp_path: Path,
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with running_broker(tmp_path / "a") as source, running_broker(tmp_path / "b") as target:
        _create_orders(source)
        properties = tmp_path / "mm2.properties"
        properties.write_text(CONFIG.format(a=source.address, b=target.address))
        log = tmp_path / "log"
        command = apache.java_command("org.apache.kafka.connect.mirror.MirrorMaker", str(properties))
        with log.open("wb") as output:
            mirror = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, cwd=tmp_path)
        try:
            deadline = time.monotonic() + TIMEOUT_S
            while not _is_synchronized(target):
                assert mirror.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()[-5000:]
                time.sleep(0.2)  # poll, because MirrorMaker does not report its progress
            text = log.read_text()  # without the errors of requests that its end interrupts
        finally:
            mirror.terminate()
            mirror.wait(30)
        copies = read_topic(target.address, "a.orders")
        originals = read_topic(source.address, "orders")
        assert [(each.key(), each.value(), each.headers()) for each in copies] == [
            (each.key(), each.value(), each.headers()) for each in originals
        ]
        assert "Exception" not in text, text
        assert "ERROR" not in text, text
