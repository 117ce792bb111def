"""Tests that `KafkaRecordReader` reads the topics of an Apache Kafka broker, which supports transactions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.runtime.record_access.reader import KafkaRecordReader, OpenKafkaReader
from support import apache

pytestmark = [
    pytest.mark.integration,
    pytest.mark.jvm,
    pytest.mark.timeout(300),
    pytest.mark.skipif(apache.unavailable_reason() is not None, reason=str(apache.unavailable_reason())),
]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with apache.broker(flags=apache.SHORT_RUN_FLAGS) as running:
        yield running.address


def open_reader(address: str, **properties: str) -> OpenKafkaReader:
    own = {name.replace("_", "."): text for name, text in properties.items()}
    return KafkaRecordReader.from_consumer_properties({"bootstrap.servers": address, **own}).open()


def test_only_committed_records_are_read_unless_isolation_level_is_set(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(30)
    producer = Producer({"bootstrap.servers": address, "transactional.id": "p", "linger.ms": 0})
    producer.init_transactions(30)
    for value, is_committed in (("a", True), ("b", False), ("c", True), ("d", False)):
        producer.begin_transaction()
        producer.produce("t", f"{value}1")
        producer.flush(30)
        producer.produce("t", f"{value}2")
        producer.flush(30)
        if is_committed:
            producer.commit_transaction(30)
        elif value == "b":
            producer.abort_transaction(30)
    with open_reader(address) as reader:
        assert reader.log_bounds([("t", 0)]) == ({("t", 0): 0}, {("t", 0): 9})
        found = list(reader.read("t", 0, 0, 9))
        assert [value for records in found for value in records.raw.values] == [b"a1", b"a2", b"c1", b"c2"]
        assert [offset for records in found for offset in records.offsets] == [0, 1, 6, 7]
        assert (found[0].start, found[-1].end) == (0, 9)
        # A range that consists of markers and aborted records has no records, and is complete.
        found = list(reader.read("t", 0, 2, 6))
        assert [(records.start, records.end, len(records)) for records in found] == [(2, 6, 0)]
    with open_reader(address, isolation_level="read_uncommitted") as reader:
        assert reader.log_bounds([("t", 0)])[1] == {("t", 0): 11}
        found = list(reader.read("t", 0, 3, 11))
        assert [value for records in found for value in records.raw.values] == [
            b"b1",
            b"b2",
            b"c1",
            b"c2",
            b"d1",
            b"d2",
        ]
    producer.abort_transaction(30)
