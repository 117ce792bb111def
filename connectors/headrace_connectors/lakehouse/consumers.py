"""Creates the consumers that read topics in Spark's Python processes."""

from __future__ import annotations

from confluent_kafka import Consumer

from headrace_connectors.lakehouse.spec import SourceSpec

_CONSUMER_DEFAULTS = {
    "fetch.wait.max.ms": "100",
    "fetch.max.bytes": str(64 << 20),
    "max.partition.fetch.bytes": str(8 << 20),
    "queued.min.messages": "200000",
    "queued.max.messages.kbytes": str(64 << 10),
    "fetch.error.backoff.ms": "20",
}


def create_consumer(spec: SourceSpec, **extra: str) -> Consumer:
    """Return a new consumer that joins no consumer group and commits no offsets.

    The caller assigns partitions to it. `extra` contains additional properties of librdkafka.
    """
    fixed = {
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "isolation.level": "read_committed" if spec.read_committed else "read_uncommitted",
    }
    client = {key: value for key, value in spec.client.items() if key != "isolation.level"}
    return Consumer({"group.id": "headrace-lakehouse", **_CONSUMER_DEFAULTS, **client, **extra, **fixed})
