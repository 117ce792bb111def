"""The records of the lakehouse benchmark, in topics and in JSON files, and the connector configurations."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

PARTITIONS = 2
ENVELOPES = "envelopes"
PLAIN = "plain"
DDL = "id BIGINT, at STRING, origin STRING, dest STRING, distance DOUBLE, delay INT, note STRING"
SCHEMA = {
    "type": "struct",
    "optional": False,
    "name": "measured",
    "fields": [
        {"field": "id", "type": "int64", "optional": False},
        {"field": "at", "type": "string", "optional": True},
        {"field": "origin", "type": "string", "optional": True},
        {"field": "dest", "type": "string", "optional": True},
        {"field": "distance", "type": "double", "optional": True},
        {"field": "delay", "type": "int32", "optional": True},
        {"field": "note", "type": "string", "optional": True},
    ],
}
_START = f'{{"schema":{json.dumps(SCHEMA, separators=(",", ":"))},"payload":'
_TRANSFORMS = "org.apache.kafka.connect.transforms."
SIX_TRANSFORMS = {
    "transforms": "insert,rename,mask,cast,time,key",
    "transforms.insert.type": f"{_TRANSFORMS}InsertField$Value",
    "transforms.insert.static.field": "source",
    "transforms.insert.static.value": "bench",
    "transforms.rename.type": f"{_TRANSFORMS}ReplaceField$Value",
    "transforms.rename.renames": "dest:destination",
    "transforms.mask.type": f"{_TRANSFORMS}MaskField$Value",
    "transforms.mask.fields": "origin",
    "transforms.mask.replacement": "***",
    "transforms.cast.type": f"{_TRANSFORMS}Cast$Value",
    "transforms.cast.spec": "distance:string,delay:int64",
    "transforms.time.type": f"{_TRANSFORMS}TimestampConverter$Value",
    "transforms.time.field": "at",
    "transforms.time.target.type": "Timestamp",
    "transforms.time.format": "yyyy-MM-dd'T'HH:mm:ss'Z'",
    "transforms.key.type": f"{_TRANSFORMS}ValueToKey",
    "transforms.key.fields": "id",
}


def payload(i: int) -> str:
    """Return the JSON text of record `i`, about 165 bytes."""
    return json.dumps(
        {
            "id": i,
            "at": f"2013-01-{i % 28 + 1:02d}T10:00:00Z",
            "origin": "EWR",
            "dest": f"D{i % 100:02d}",
            "distance": i * 0.5,
            "delay": i % 300 if i % 7 else None,
            "note": f"a text of some length, as rows of databases have them, number {i}",
        },
        separators=(",", ":"),
    )


def envelope(i: int) -> str:
    """Return record `i` in JsonConverter's envelope."""
    return f"{_START}{payload(i)}}}"


def write_files(directory: Path, batches: int, batch_rows: int) -> None:
    """Write the records as JSON lines, one file for each batch."""
    directory.mkdir(parents=True)
    for batch in range(batches):
        with (directory / f"{batch}.json").open("w") as file:
            file.writelines(payload(i) + "\n" for i in range(batch * batch_rows, (batch + 1) * batch_rows))


def fill(address: str, topic: str, values: Iterator[str], partitions: int = PARTITIONS) -> None:
    """Create a topic and produce `values` to its partitions in turn."""
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result(30)
    producer = Producer({"bootstrap.servers": address, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    for number, value in enumerate(values):
        while True:
            try:
                producer.produce(topic, value, partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(60):
        raise RuntimeError("not every record was delivered")


def connector(topics: str, path: Path, batch_rows: int, more: Mapping[str, str] = {}) -> dict[str, str]:
    """Return the configuration of a connector that loads envelopes into Delta tables on two local cores."""
    return {
        "connector.class": "LakehouseSinkConnector",
        "topics": topics,
        "lakehouse.path": str(path),
        "lakehouse.batch.rows.max": str(batch_rows),
        "lakehouse.batch.bytes.max": str(1 << 30),
        "lakehouse.trigger.interval.ms": "0",
        "spark.master": "local[2]",
        "lakehouse.java.archive": "false",  # the first start on a machine would make it during the measurement
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "true",
        **more,
    }


PLAIN_JSON = {"value.converter.schemas.enable": "false", "lakehouse.schema": DDL}
