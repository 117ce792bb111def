"""Writes records for tests of the lakehouse sink, and reads its tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable

DATA = "org.apache.kafka.connect.data."


def produce(
    address: str,
    topic: str,
    values: Sequence[bytes | None],
    partitions: int = 1,
    *,
    keys: Sequence[bytes | None] | None = None,
    headers: Mapping[str, bytes] | None = None,
) -> None:
    """Create the topic if it does not exist, and write records to its partitions in turn."""
    admin = AdminClient({"bootstrap.servers": address})
    if topic not in admin.list_topics(timeout=30).topics:
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": address, "log_level": 0})
    for number, value in enumerate(values):
        producer.produce(
            topic,
            value,
            None if keys is None else keys[number],
            partition=number % partitions,
            timestamp=1_700_000_000_000 + number,
            headers=None if headers is None else list(headers.items()),
        )
    assert producer.flush(20) == 0


def envelope(fields: list[dict[str, Any]], payload: Any, *, spaced: bool = False, optional: bool = False) -> bytes:
    """Return a value in JsonConverter's envelope."""
    schema = {"type": "struct", "fields": fields, "optional": optional, "name": "row"}
    separators = (", ", ": ") if spaced else (",", ":")
    return json.dumps({"schema": schema, "payload": payload}, separators=separators).encode()


def field(name_: str, type_: str, **more: Any) -> dict[str, Any]:
    """Return an optional field of a schema in JsonConverter's envelope."""
    return {"type": type_, "optional": True, "field": name_, **more}


def numbers(first: int, count: int) -> list[bytes]:
    """Return envelopes with the field `n`."""
    return [envelope([field("n", "int32")], {"n": n}) for n in range(first, first + count)]


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a Delta table, ordered by topic, partition and offset."""
    rows: list[dict[str, Any]] = DeltaTable(path).to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: (row["_kafka_topic"], row["_kafka_partition"], row["_kafka_offset"]))
