"""Reads and writes whole topics with librdkafka, a client that is independent of headrace's own client."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec


def read_topic(bootstrap_servers: str, topic: str, partition: int = 0) -> list[Message]:
    """Return every record of a partition from the log start offset to the current high watermark."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "not-used", "enable.auto.commit": False})
    try:
        low, high = _watermarks(consumer, topic, partition)
        consumer.assign([TopicPartition(topic, partition, low)])
        messages: list[Message] = []
        while len(messages) < high - low:
            message = consumer.poll(10)
            assert message is not None, f"{topic} ended at {len(messages)} of {high - low} records"
            assert message.error() is None, message.error()
            messages.append(message)
        return messages
    finally:
        consumer.close()


def end_offset(bootstrap_servers: str, topic: str, partition: int = 0) -> int:
    """Return the partition's high watermark, or 0 if the topic does not exist."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "not-used"})
    try:
        if topic not in consumer.list_topics(timeout=30).topics:
            return 0
        return _watermarks(consumer, topic, partition)[1]
    finally:
        consumer.close()


def end_offsets(client: AdminClient, topics: Iterable[str]) -> dict[str, int]:
    """Return the high watermark of partition 0 of each topic that exists."""
    existing = client.list_topics(timeout=30).topics
    partitions = {TopicPartition(topic, 0): OffsetSpec.latest() for topic in topics if topic in existing}
    found = client.list_offsets(partitions) if partitions else {}
    return {partition.topic: future.result(30).offset for partition, future in found.items()}


def committed_offsets(client: AdminClient, connector: str, topics: Iterable[str]) -> dict[str, int]:
    """Return the offsets of partition 0 of each topic that the group of a sink connector has committed."""
    group = f"connect-{connector}"
    request = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0) for topic in topics])]
    result = client.list_consumer_group_offsets(request)[group].result(30)
    return {each.topic: each.offset for each in result.topic_partitions}


def _watermarks(consumer: Consumer, topic: str, partition: int) -> tuple[int, int]:
    """Return (log start offset, high watermark), or (0, 0) while a new topic has no leader."""
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
    except KafkaException as error:
        if error.args[0].code() == KafkaError._UNKNOWN_PARTITION:
            return 0, 0
        raise
    return int(low), int(high)


def write_topic(bootstrap_servers: str, topic: str, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
    """Produce (key, value) pairs to partition 0 and wait for the acknowledgements."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 5})
    for key, value in records:
        producer.produce(topic, value=value, key=key, partition=0, headers=[("h", b"1")])
    assert producer.flush(20) == 0
