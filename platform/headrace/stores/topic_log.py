"""Compacted topics as logs: reads all their records from the beginning, then follows them, and appends records.

One consumer reads all partitions of all the topics, and one producer appends records. Both run on the worker's event
loop. Each record is passed to the listener of its topic, even if this worker has appended the record. If the brokers
are unavailable, the consumer and the producer retry until the brokers respond. A `TopicLog` corresponds to Kafka
Connect's KafkaBasedLog.

If a topic gets more partitions, the logs read these partitions, too. The last record of a key is current, so all
records of a key must be in one partition. A key stays in the partition in which it was read. For all other keys, the
number of partitions at the start determines the partition. The clients do not create topics, because a topic that was
deleted must be created again with `cleanup.policy=compact`. After a topic was deleted, its reads and writes fail with
TopicDeletedError.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from headrace.metrics import log_text
from headrace.metrics.elapsed import ms_since
from headrace_broker.client.cluster import Cluster
from headrace_broker.client.cluster_view import ClusterView, TopicView
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.consumer import Consumer
from headrace_broker.client.errors import ClientError
from headrace_broker.client.fetched import FetchedBatch
from headrace_broker.client.offsets import LATEST
from headrace_broker.client.partitioner import partition_for_key
from headrace_broker.client.producer import Producer, RecordMetadata
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.topic_names import TopicPartition
from headrace_broker.records.columns import RecordColumns

log = logging.getLogger(__name__)

_POLL_TIMEOUT_MS = 60_000
_RETRY_BACKOFF_S = 0.5
DELETION_CONFIRMATION_S = 5.0
"""How long the brokers must report that a topic does not exist, because the metadata of one broker may be outdated."""
_REFRESH_MARGIN_S = 0.1
CLOSE_TIMEOUT_MS = 1_000
"""How long `TopicLogs.stop` waits for acknowledgements."""
_CONSUMER = {"auto.offset.reset": "earliest", "enable.auto.commit": "false", "allow.auto.create.topics": "false"}
_PRODUCER = {"acks": "all", "delivery.timeout.ms": "2147483647", "max.block.ms": "60000", "linger.ms": "0"}


class TopicDeletedError(ClientError):
    """The topic of a log was deleted. The message names the topic and says what to do."""


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """One record of a log."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


RecordListener: TypeAlias = Callable[[TopicRecord], None]


class TopicLogs:
    """The logs of one worker. Call `add` for each topic, then `start`, and `stop` last.

    `properties` configure the clients: bootstrap.servers, client.id and other client keys. The producer has its own
    properties and connections if `producer` is set.
    """

    def __init__(self, properties: Mapping[str, str], producer: Mapping[str, str] | None = None) -> None:
        self._consumer_config = ClientConfig.from_properties({**properties, **_CONSUMER}, kind="consumer")
        self._producer_config = ClientConfig.from_properties({**(producer or properties), **_PRODUCER}, kind="producer")
        self._producer_properties = producer
        self._listeners: dict[str, RecordListener] = {}
        self._cluster: Cluster | None = None
        self._consumer: Consumer | None = None
        self._producer: Producer | None = None
        self._task: asyncio.Task[None] | None = None
        self._progress = asyncio.Condition()
        self._producer_cluster: Cluster | None = None
        self._topics: dict[str, TopicView] = {}  # as they were at the start
        self._known_counts: dict[str, int] = {}
        self._moved_keys: dict[tuple[str, bytes], int] = {}
        """The partition of each key that was read in a partition other than the one that its hash selects."""
        self.errors: dict[str, str] = {}
        """For each unusable topic, the reason why the worker must be restarted before it can use the topic."""
        self._missing_since_s: dict[str, float] = {}
        self._deleted = set[str]()

    def add(self, topic: str, listener: RecordListener) -> TopicLog:
        """Add a topic. `listener` receives its records."""
        self._listeners[topic] = listener
        return TopicLog(self, topic)

    async def start(self) -> None:
        """Read all records of all topics, then follow the topics in the background. Raises ClientError."""
        cluster = self._cluster = await Cluster.open(self._consumer_config)
        self._consumer = await Consumer.open(self._consumer_config, cluster=cluster)
        producer_cluster = cluster
        if self._producer_properties is not None:  # a cluster of kind producer would create missing topics
            properties = {**self._producer_properties, **_CONSUMER}
            producer_cluster = self._producer_cluster = await Cluster.open(
                ClientConfig.from_properties(properties, kind="consumer")
            )
        self._producer = await Producer.open(self._producer_config, cluster=producer_cluster, is_at_least_once=True)
        views = [await cluster.topic(topic) for topic in self._listeners]
        self._topics = {view.name: view for view in views}
        self._known_counts = {view.name: len(view.partitions) for view in views}
        self._consumer.assign([(view.name, number) for view in views for number in range(len(view.partitions))])
        log.debug("Internal topics: reading %s from the beginning", log_text.partitions(self._consumer.assignment))
        cluster.listeners.append(self._on_metadata)
        self._task = asyncio.create_task(self._follow())
        await self.read_to_end(self._listeners)

    async def stop(self) -> None:
        """Stop reading, wait for the acknowledgements of sent records, and close the clients.

        The wait ends after `CLOSE_TIMEOUT_MS`.
        """
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._cluster is not None and self._on_metadata in self._cluster.listeners:
            self._cluster.listeners.remove(self._on_metadata)
        if self._producer is not None:
            await self._producer.close(CLOSE_TIMEOUT_MS)
        for client in (self._consumer, self._producer_cluster, self._cluster):
            if client is not None:
                await client.close()

    def is_deleted(self, topic: str) -> bool:
        """Whether the topic was deleted while the worker was running."""
        return topic in self._deleted

    def check_exists(self, topic: str) -> None:
        """Raise TopicDeletedError if the topic was deleted."""
        if topic in self._deleted:
            raise TopicDeletedError(self.errors[topic])

    async def read_to_end(self, topics: Sequence[str] | Mapping[str, RecordListener]) -> None:
        """Wait until the listeners have received all records that the topics contain at this time.

        Raises ClientError.
        """
        for topic in topics:
            self.check_exists(topic)
        started = time.monotonic()
        consumer = self._consumer
        assert consumer is not None
        partitions = [partition for partition in consumer.assignment if partition[0] in topics]
        listed = await consumer.list_offsets(dict.fromkeys(partitions, LATEST))
        ends = {partition: found.offset for partition, found in listed.items()}
        async with self._progress:
            await self._progress.wait_for(lambda: _has_read_to(consumer, ends))
        log.debug("Internal topics: read to %s in %d ms", log_text.partition_offsets(ends), ms_since(started))

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic."""
        assert self._consumer is not None
        return sum(name == topic for name, _ in self._consumer.assignment)

    def send(self, topic: str, key: bytes, value: bytes | None) -> asyncio.Future[RecordMetadata]:
        """Append a record. The future completes when the record is acknowledged, or fails with a ClientError."""
        assert self._producer is not None
        if topic in self._deleted:
            failed: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
            failed.set_exception(TopicDeletedError(self.errors[topic]))
            return failed
        return self._producer.send(topic, self._partition_of(topic, key), RecordColumns(keys=[key], values=[value]))

    def _partition_of(self, topic: str, key: bytes) -> int:
        hashed = partition_for_key(key, len(self._topics[topic].partitions))
        return self._moved_keys.get((topic, key), hashed)

    def _on_metadata(self, view: ClusterView) -> None:
        """Read new partitions, and report a topic that was deleted, or that was deleted and created again."""
        assert self._consumer is not None
        for topic, at_start in self._topics.items():
            found = view.topics.get(topic)
            if found is None:
                if view.errors.get(topic) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    self._on_missing(topic)
                continue
            self._on_found(topic, is_recreated=found.topic_id != at_start.topic_id)
            count = len(found.partitions)
            if count > self._known_counts[topic]:
                log.warning(
                    "Topic %s: there are %d partitions now instead of %d; reading the new partitions, and writing each "
                    "key to the same partition as before",
                    topic,
                    count,
                    self._known_counts[topic],
                )
                new = [(topic, number) for number in range(self._known_counts[topic], count)]
                self._known_counts[topic] = count
                self._consumer.assign([*self._consumer.assignment, *new])

    def _on_missing(self, topic: str) -> None:
        """Report that the topic was deleted if it has been missing for `DELETION_CONFIRMATION_S`."""
        loop = asyncio.get_running_loop()
        if topic not in self._missing_since_s:
            assert self._cluster is not None
            self._missing_since_s[topic] = loop.time()
            loop.call_later(DELETION_CONFIRMATION_S + _REFRESH_MARGIN_S, self._cluster.request_refresh)
        elif topic not in self._deleted and loop.time() - self._missing_since_s[topic] >= DELETION_CONFIRMATION_S:
            self._deleted.add(topic)
            self._set_error(
                topic,
                f"topic {topic} was deleted while the worker was running, so it can neither be read nor written; "
                "create it again with cleanup.policy=compact, restore its records if possible, and restart all "
                "workers of the group",
            )

    def _on_found(self, topic: str, *, is_recreated: bool) -> None:
        self._missing_since_s.pop(topic, None)
        was_deleted = topic in self._deleted
        self._deleted.discard(topic)
        if is_recreated and (was_deleted or topic not in self.errors):
            self._set_error(
                topic,
                f"topic {topic} was deleted and created again while the worker was running, so its records are lost; "
                "check its cleanup.policy, and restart all workers of the group",
            )
        elif was_deleted:
            del self.errors[topic]
            log.info("Internal topics: topic %s still exists: the brokers report it again", topic)

    def _set_error(self, topic: str, error: str) -> None:
        self.errors[topic] = error
        log.error("Internal topics: %s", error)

    async def _follow(self) -> None:
        assert self._consumer is not None
        has_failed = False
        while True:
            try:
                batches = await self._consumer.poll(_POLL_TIMEOUT_MS)
            except ClientError as error:
                if not has_failed:
                    log.warning("Internal topics cannot be read, retrying until a broker responds: %s", error)
                has_failed = True
                await asyncio.sleep(_RETRY_BACKOFF_S)
                continue
            if has_failed:
                log.info("Internal topics can be read again")
                has_failed = False
            for batch in batches:
                self._deliver(batch)
            async with self._progress:
                self._progress.notify_all()

    def _deliver(self, batch: FetchedBatch) -> None:
        columns, listener = batch.columns, self._listeners[batch.topic]
        assert columns.offsets is not None
        keys = columns.keys or [None] * len(columns)
        for offset, key, value in zip(columns.offsets, keys, columns.whole_values(), strict=True):
            if key is not None:
                self._remember_partition(batch.topic, key, batch.partition)
            try:
                listener(TopicRecord(batch.partition, offset, key, value))
            except Exception:
                log.exception("Topic %s: skipping the record at offset %d after an error", batch.topic, offset)

    def _remember_partition(self, topic: str, key: bytes, partition: int) -> None:
        if partition_for_key(key, len(self._topics[topic].partitions)) == partition:
            self._moved_keys.pop((topic, key), None)
        else:
            self._moved_keys[topic, key] = partition


@dataclass(frozen=True, slots=True)
class TopicLog:
    """One topic of the logs."""

    logs: TopicLogs
    topic: str

    @property
    def partition_count(self) -> int:
        """The number of partitions of the topic."""
        return self.logs.partitions(self.topic)

    def send(self, key: bytes, value: bytes | None) -> asyncio.Future[RecordMetadata]:
        """Append a record. The future completes when the record is acknowledged, or fails with a ClientError."""
        return self.logs.send(self.topic, key, value)

    async def append(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Append records in this order, and wait until all of them are acknowledged. Raises ClientError."""
        await asyncio.gather(*(self.send(key, value) for key, value in records))

    @property
    def is_deleted(self) -> bool:
        """Whether the topic was deleted while the worker was running."""
        return self.logs.is_deleted(self.topic)

    def check_exists(self) -> None:
        """Raise TopicDeletedError if the topic was deleted."""
        self.logs.check_exists(self.topic)

    async def read_to_end(self) -> None:
        """Wait until the listener has received all records that the topic contains at this time. Raises ClientError."""
        await self.logs.read_to_end([self.topic])


def _has_read_to(consumer: Consumer, ends: Mapping[TopicPartition, int]) -> bool:
    positions = consumer.positions()
    return all(positions.get(partition, 0) >= end for partition, end in ends.items())
