"""Tests that `read_records` and `read_record` find records by offset, and return None for deleted records."""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.runtime.record_lookup import Found, Position, read_record, read_records
from headrace.testing import KafkaBroker

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def test_record_is_found_by_its_offset_unless_it_was_deleted(
    kafka_broker: KafkaBroker,
) -> None:
    properties = {"bootstrap.servers": kafka_broker.bootstrap_servers, "group.id": "connect-c"}
    kafka_broker.create_topic("t", 2)
    for partition in (0, 1):
        kafka_broker.produce("t", [f"{partition}-{number}" for number in range(3000)], partition=partition)
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap_servers})
    for future in admin.delete_records([TopicPartition("t", 1, 10)]).values():
        future.result(30)
    wanted = [("t", 1, 2500), ("t", 0, 5), ("t", 1, 3), ("t", 0, 2999), ("t", 0, 6), ("t", 1, 10), ("t", 0, 5)]

    async def read() -> list[Found]:
        return [found async for found in read_records(properties, [Position(*each) for each in wanted])]

    found = asyncio.run(read())
    assert [(*position, columns and columns.values) for position, columns in found] == [
        ("t", 0, 5, [b"0-5"]),
        ("t", 0, 6, [b"0-6"]),
        ("t", 0, 2999, [b"0-2999"]),
        ("t", 1, 3, None),
        ("t", 1, 10, [b"1-10"]),
        ("t", 1, 2500, [b"1-2500"]),
    ]
    assert asyncio.run(read_record(properties, "t", 1, 3)) is None
    one = asyncio.run(read_record(properties, "t", 0, 7))
    assert one is not None
    assert one.values == [b"0-7"]
