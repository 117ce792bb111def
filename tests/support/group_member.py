"""Runs one group member as a program, so that tests can kill it: `python group_member.py KIND ...`.

The program prints a JSON line for each change of its assignment, such as `{"assigned": [0, 1]}`, and for each record:
`{"record": [partition, offset, value]}`. KIND is confluent, aiokafka or kafka-python.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable

HEARTBEAT_MS = 200


def print_json(kind: str, value: object) -> None:
    print(json.dumps({kind: value}), flush=True)


class AssignmentPrinter:
    """Prints an assignment if it differs from the last printed assignment."""

    def __init__(self) -> None:
        self._last: list[int] | None = None

    def __call__(self, partitions: Iterable[int]) -> None:
        assigned = sorted(partitions)
        if assigned != self._last:
            self._last = assigned
            print_json("assigned", assigned)


def confluent(address: str, group: str, topic: str, session_ms: int, instance: str | None) -> None:
    from confluent_kafka import Consumer

    config = {
        "bootstrap.servers": address,
        "group.id": group,
        "session.timeout.ms": session_ms,
        "heartbeat.interval.ms": HEARTBEAT_MS,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 100,
    }
    if instance is not None:
        config["group.instance.id"] = instance
    consumer = Consumer(config)
    consumer.subscribe([topic])
    print_assignment = AssignmentPrinter()
    while True:
        messages = consumer.consume(100, 0.05)
        print_assignment(p.partition for p in consumer.assignment())
        for message in messages:
            assert message.error() is None, message.error()
            print_json("record", [message.partition(), message.offset(), (message.value() or b"").decode()])


def kafka_python(address: str, group: str, topic: str, session_ms: int, instance: str | None) -> None:
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=address,
        group_id=group,
        group_instance_id=instance,
        session_timeout_ms=session_ms,
        heartbeat_interval_ms=HEARTBEAT_MS,
        auto_offset_reset="earliest",
        auto_commit_interval_ms=100,
    )
    print_assignment = AssignmentPrinter()
    while True:
        # kafka-python 3.0.12 loses its assignment if this timeout ends while its SyncGroup request is in flight.
        batches = consumer.poll(timeout_ms=1000)
        print_assignment(p.partition for p in consumer.assignment())
        for records in batches.values():
            for record in records:
                print_json("record", [record.partition, record.offset, record.value.decode()])


async def aiokafka(address: str, group: str, topic: str, session_ms: int, instance: str | None) -> None:
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=address,
        group_id=group,
        group_instance_id=instance,
        session_timeout_ms=session_ms,
        heartbeat_interval_ms=HEARTBEAT_MS,
        auto_offset_reset="earliest",
        auto_commit_interval_ms=100,
    )
    await consumer.start()
    print_assignment = AssignmentPrinter()
    while True:
        batches = await consumer.getmany(timeout_ms=50)
        print_assignment(p.partition for p in consumer.assignment())
        for records in batches.values():
            for record in records:
                print_json("record", [record.partition, record.offset, record.value.decode()])


def main(kind: str, address: str, group: str, topic: str, session_ms: str, instance: str | None = None) -> None:
    if kind == "aiokafka":
        asyncio.run(aiokafka(address, group, topic, int(session_ms), instance))
    else:
        run = {"confluent": confluent, "kafka-python": kafka_python}[kind]
        run(address, group, topic, int(session_ms), instance)


if __name__ == "__main__":
    main(*sys.argv[1:])
