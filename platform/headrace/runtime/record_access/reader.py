"""Reads ranges of offsets with headrace's client, without membership in a consumer group.

The client runs on an event loop in a thread of its own. While the caller processes records, the client receives the
next ones. At most about two fetch responses are in memory. The caller's thread parses the records.
"""

from __future__ import annotations

import asyncio
import base64
import bisect
import logging
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from headrace.api.errors import ConnectError
from headrace.api.record_access import ClusterUnavailableError, RangeReadError, TopicDescription, TopicPartition
from headrace.data.java_regex import JavaPattern
from headrace.metrics import logs
from headrace.runtime.event_loops import LoopThread
from headrace_broker.client import offsets as offset_api
from headrace_broker.client.cluster import Cluster
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.consumer import Consumer
from headrace_broker.client.errors import BrokerError, ClientError, CorruptRecordsError, OffsetOutOfRangeError
from headrace_broker.client.fetched import FetchedBatch, FetchedChunk
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.metadata import MetadataResponseTopic
from headrace_broker.protocol.notation import ZERO_UUID
from headrace_broker.records.columns import RecordColumns

log = logging.getLogger(__name__)
_T = TypeVar("_T")

_INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"})
_GROUP_KEYS = frozenset({"group.id", "group.instance.id", "enable.auto.commit"})
# A reader reads one partition at a time, so its fetches may be larger than those of a consumer with many partitions.
_PARTITION_FETCH_BYTES = str(4 << 20)
_RECORDS_MAX = 5_000
"""Records that are yielded at once. A batch may contain more, and a failed record may need some kB for its trace."""
_POLL_MS = 1000
_SAMPLE_MS = 2000
_SAMPLE_FETCH_BYTES = "65536"


@dataclass(frozen=True, slots=True)
class KafkaRecordReader:
    """The configuration of a reader: a consumer's properties. Picklable. Its `repr` contains no properties."""

    properties: Mapping[str, str] = field(repr=False)

    @classmethod
    def from_consumer_properties(cls, properties: Mapping[str, str]) -> Self:
        """Return a reader with the properties of a sink's consumer, without those of its group.

        It reads only committed records, unless isolation.level is set.
        """
        own = {key: value for key, value in properties.items() if key not in _GROUP_KEYS}
        defaults = {"isolation.level": "read_committed", "max.partition.fetch.bytes": _PARTITION_FETCH_BYTES}
        fixed = {"auto.offset.reset": "none", "allow.auto.create.topics": "false"}
        return cls({**defaults, **own, **fixed})

    def open(self) -> OpenKafkaReader:
        """Return a reader, which connects when it is first used. Raises ConnectError if a property is invalid."""
        logs.mask_secrets_of(self.properties)
        return OpenKafkaReader(self.properties)


@dataclass(frozen=True, slots=True)
class KafkaRecords:
    """Fetched records of one partition: see `headrace.api.record_access.FetchedRecords`."""

    topic: str
    partition: int
    start: int
    end: int
    raw: RecordColumns

    @property
    def size_bytes(self) -> int:
        """The size of the keys and values."""
        keys = 0 if self.raw.keys is None else sum(len(key) for key in self.raw.keys if key is not None)
        return keys + sum(self.raw.value_lengths())

    @property
    def offsets(self) -> Sequence[int]:
        """The offsets of the records."""
        offsets = self.raw.offsets
        assert offsets is not None
        return offsets

    def __len__(self) -> int:
        return len(self.raw)


class OpenKafkaReader:
    """A reader whose client is opened by the first call: see `headrace.api.record_access.OpenRecordReader`."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = properties
        self._config = _parse(properties)
        self._client: _Client | None = None
        self._loop = LoopThread("record-reader")
        self._is_reading = False

    def describe_topics(self, topics: Iterable[str], topics_regex: str | None) -> Mapping[str, TopicDescription]:
        """Return the existing topics among `topics`, or all topics whose whole names match the Java regex."""
        return self._run(self._describe_topics(sorted(topics), topics_regex))

    def log_bounds(
        self, partitions: Iterable[TopicPartition]
    ) -> tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, int]]:
        """Return the log start offsets and the end offsets. With read_committed, the end is the last stable offset."""
        return self._run(self._log_bounds(list(partitions)))

    def average_record_bytes(self, positions: Mapping[TopicPartition, int]) -> Mapping[str, float]:
        """Return the average size of the next records of each topic, from a sample of one partition.

        A topic without a record within two seconds is omitted.
        """
        return self._run(self._sample(positions))

    def prepare(self, topics: Iterable[str]) -> None:
        """Request the metadata of all these topics at once. Otherwise, `read` requests them topic by topic."""
        self._run(self._prepare(set(topics)))

    def read(
        self, topic: str, partition: int, start: int, end: int, topic_id: str | None = None
    ) -> Iterator[KafkaRecords]:
        """Yield the records with `start` <= offset < `end`. Read one range at a time.

        Raises RangeReadError and ClusterUnavailableError. After an error, the client is opened again for the next
        range.
        """
        if self._is_reading:
            raise RuntimeError("the reader reads another range: read one range at a time")
        if start >= end:
            return
        self._is_reading = True
        is_done = False
        try:
            client = self._run(self._begin(topic, partition, start, end, topic_id))
            yield from self._read(_RangePosition(topic, partition, start, end), client)
            is_done = True
        finally:
            self._is_reading = False
            if not is_done:
                self._loop.run(self._close_client())

    def close(self) -> None:
        """Close the connections, and stop the thread."""
        self._loop.run(self._close_client())
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # In the caller's thread

    def _run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the event loop. Raises ClusterUnavailableError, and ConnectError for other errors."""
        try:
            return self._loop.run(coroutine)
        except ClientError as error:
            if error.retriable:
                raise ClusterUnavailableError(str(error)) from error
            raise ConnectError(str(error)) from error

    def _read(self, position: _RangePosition, client: _Client) -> Iterator[KafkaRecords]:
        """Yield the records of a range. The ranges of offsets that are yielded contain no gaps."""
        yielded = position.offset
        while position.offset < position.end:
            for chunk in self._loop.run(client.next_chunks(position)):
                for batch in _parsed(chunk, position):
                    columns = _before(batch.columns, position.end)
                    position.offset = min(batch.next_offset, position.end)
                    if len(columns):
                        yield KafkaRecords(position.topic, position.partition, yielded, position.offset, columns)
                        yielded = position.offset
                position.offset = min(max(position.offset, chunk.next_offset), position.end)
        if yielded < position.end:
            nothing = RecordColumns(values=[], offsets=[])
            yield KafkaRecords(position.topic, position.partition, yielded, position.end, nothing)

    # On the event loop

    async def _open_client(self) -> _Client:
        if self._client is None:
            self._client = await _Client.open(self._config)
        return self._client

    async def _close_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _prepare(self, topics: set[str]) -> None:
        await (await self._open_client()).track(topics)

    async def _begin(self, topic: str, partition: int, start: int, end: int, topic_id: str | None) -> _Client:
        client = await self._open_client()
        await client.begin(topic, partition, start, end, topic_id)
        return client

    async def _describe_topics(self, topics: list[str], topics_regex: str | None) -> dict[str, TopicDescription]:
        if topics_regex is None and not topics:
            return {}
        cluster = (await self._open_client()).cluster
        matches = None if topics_regex is None else JavaPattern(topics_regex).matches

        async def attempt() -> dict[str, TopicDescription]:
            response = await cluster.fetch_metadata(topics if matches is None else None)
            found = [each for each in response.topics if matches is None or _is_match(each, matches)]
            return {each.name or "": _description(each) for each in found if _exists(each)}

        return await cluster.retry(attempt, self._config.default_api_timeout_ms, "describing topics")

    async def _log_bounds(
        self, partitions: list[TopicPartition]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        if not partitions:
            return {}, {}
        client = await self._open_client()
        await client.track({topic for topic, _ in partitions})
        cluster = client.cluster
        starts, ends = await asyncio.gather(
            offset_api.list_offsets(cluster, dict.fromkeys(partitions, offset_api.EARLIEST)),
            offset_api.list_offsets(
                cluster, dict.fromkeys(partitions, offset_api.LATEST), read_committed=_is_read_committed(self._config)
            ),
        )
        return (
            {partition: found.offset for partition, found in starts.items()},
            {partition: found.offset for partition, found in ends.items()},
        )

    async def _sample(self, positions: Mapping[TopicPartition, int]) -> dict[str, float]:
        config = _parse({**self._properties, "max.partition.fetch.bytes": _SAMPLE_FETCH_BYTES})
        averages: dict[str, float] = {}
        async with _consumer(config, (await self._open_client()).cluster) as consumer:
            one_partition_each = {topic: (topic, partition) for topic, partition in positions}
            consumer.assign(one_partition_each.values())
            for sampled in one_partition_each.values():
                consumer.seek(sampled, positions[sampled])
            deadline_ms = consumer.cluster.now_ms() + _SAMPLE_MS
            while one_partition_each and (left_ms := deadline_ms - consumer.cluster.now_ms()) > 0:
                for chunk in await consumer.poll_chunks(left_ms):
                    batch = chunk.next_batch()
                    if batch is None or one_partition_each.pop(chunk.topic, None) is None:
                        continue
                    records = KafkaRecords(chunk.topic, chunk.partition, chunk.position, chunk.position, batch.columns)
                    averages[chunk.topic] = records.size_bytes / len(records)
                    consumer.pause([(chunk.topic, chunk.partition)])
        return averages


@dataclass(slots=True)
class _RangePosition:
    """The next offset to read of a range."""

    topic: str
    partition: int
    offset: int
    end: int

    def __str__(self) -> str:
        return f"topic {self.topic}, partition {self.partition}, offset {self.offset}"


class _Client:
    """The connections of an open reader, and the consumer of its current range. Used only on the event loop."""

    def __init__(self, cluster: Cluster, consumer: Consumer) -> None:
        self.cluster = cluster
        self._consumer = consumer
        self._topic_id: str | None = None

    @classmethod
    async def open(cls, config: ClientConfig) -> _Client:
        """Connect to the cluster. Raises ClientError."""
        cluster = await Cluster.open(config)
        return cls(cluster, await Consumer.open(config, cluster=cluster))

    async def close(self) -> None:
        """Close the connections."""
        await self._consumer.close()
        await self.cluster.close()

    async def begin(self, topic: str, partition: int, start: int, end: int, topic_id: str | None) -> None:
        """Start to fetch a range."""
        self._topic_id = topic_id or await self._current_id(topic)
        if topic_id is not None and await self._known_id(topic) not in (None, topic_id):
            await self.cluster.wait_for_refresh()
            self._check_topic(topic)
        consumer = self._consumer
        consumer.assign([])
        consumer.assign([(topic, partition)])
        consumer.set_end((topic, partition), end)
        consumer.seek((topic, partition), start)

    async def _known_id(self, topic: str) -> str | None:
        return _topic_id((await self.cluster.topic(topic)).topic_id)

    async def _current_id(self, topic: str) -> str | None:
        """Return the topic's id from metadata that are newer than the call."""
        if topic in self.cluster.view.topics:
            await self.cluster.wait_for_refresh()
        return await self._known_id(topic)

    async def track(self, topics: set[str]) -> None:
        """Request the metadata of all these topics at once. Raises TimedOutError."""
        cluster = self.cluster
        if not topics <= cluster.view.topics.keys():
            cluster.track(topics)
            await cluster.retry(cluster.wait_for_refresh, cluster.config.default_api_timeout_ms, "metadata of topics")

    async def next_chunks(self, position: _RangePosition) -> list[FetchedChunk]:
        """Wait for the next records of the current range. Raises RangeReadError, ClusterUnavailableError."""
        timeout_ms = self.cluster.config.default_api_timeout_ms
        deadline_ms = self.cluster.now_ms() + timeout_ms
        try:
            while self.cluster.now_ms() < deadline_ms:
                chunks = await self._consumer.poll_chunks(_POLL_MS)
                self._check_topic(position.topic)
                if chunks:
                    return chunks
                await self._check_bounds(position)
        except OffsetOutOfRangeError as error:
            raise await self._out_of_range(position) from error
        except CorruptRecordsError as error:
            raise _corrupt(position, error) from error
        except ClientError as error:
            if error.retriable:
                raise ClusterUnavailableError(f"{position}: {error}") from error
            raise RangeReadError(f"{position}: {error}") from error
        raise ClusterUnavailableError(
            f"no records received for {timeout_ms / 1000:.0f} s while reading {position.topic}-{position.partition} "
            f"at {position.offset}, before {position.end}"
        )

    def _check_topic(self, topic: str) -> None:
        """Raise RangeReadError if the topic has another id than at the start of the range."""
        view = self.cluster.view.topics.get(topic)
        current = None if view is None else _topic_id(view.topic_id)
        if current is not None and self._topic_id is not None and current != self._topic_id:
            raise RangeReadError(
                f"topic {topic} was deleted and created again (its id was {self._topic_id}, now it is {current})"
            )

    async def _check_bounds(self, position: _RangePosition) -> None:
        """Raise RangeReadError if the log does not contain the rest of the range. Called if no records have arrived."""
        start, end = await self._bounds(position)
        if end < position.end:
            raise RangeReadError(
                f"topic {position.topic}, partition {position.partition}: the log ends at offset {end}, but offsets "
                f"{position.offset} to {position.end - 1} are to be read; the log was truncated or created again"
            )
        if start > position.offset:
            raise await self._out_of_range(position)

    async def _out_of_range(self, position: _RangePosition) -> RangeReadError:
        start, end = await self._bounds(position)
        if position.offset < start:
            return RangeReadError(
                f"topic {position.topic}, partition {position.partition}: retention deleted offsets {position.offset} "
                f"to {start - 1} before they were loaded"
            )
        return RangeReadError(
            f"{position}: the log no longer contains this offset; it starts at offset {start} and ends at offset {end}"
        )

    async def _bounds(self, position: _RangePosition) -> tuple[int, int]:
        key = (position.topic, position.partition)
        read_committed = _is_read_committed(self.cluster.config)
        start = await offset_api.list_offsets(self.cluster, {key: offset_api.EARLIEST})
        end = await offset_api.list_offsets(self.cluster, {key: offset_api.LATEST}, read_committed=read_committed)
        return start[key].offset, end[key].offset


def _parse(properties: Mapping[str, str]) -> ClientConfig:
    try:
        return ClientConfig.from_properties(properties, kind="consumer")
    except ClientError as error:
        raise ConnectError(str(error)) from error


@asynccontextmanager
async def _consumer(config: ClientConfig, cluster: Cluster) -> AsyncIterator[Consumer]:
    consumer = await Consumer.open(config, cluster=cluster)
    try:
        yield consumer
    finally:
        await consumer.close()


def _parsed(chunk: FetchedChunk, position: _RangePosition) -> Iterator[FetchedBatch]:
    """Yield the records of a chunk. Raises RangeReadError if they are corrupt."""
    try:
        while (batch := chunk.next_batch(_RECORDS_MAX)) is not None:
            yield batch
    except CorruptRecordsError as error:
        raise _corrupt(position, error) from error


def _corrupt(position: _RangePosition, error: CorruptRecordsError) -> RangeReadError:
    return RangeReadError(f"{position}: the records are corrupt: {error.__cause__ or error}")


def _before(columns: RecordColumns, end: int) -> RecordColumns:
    """Return the records with offsets before `end`."""
    offsets = columns.offsets
    assert offsets is not None
    if not len(columns) or offsets[-1] < end:
        return columns
    return columns.slice(0, bisect.bisect_left(offsets, end))


def _is_read_committed(config: ClientConfig) -> bool:
    return config.isolation_level == "read_committed"


def _is_match(topic: MetadataResponseTopic, matches: Any) -> bool:
    name = topic.name or ""
    return not topic.is_internal and name not in _INTERNAL_TOPICS and bool(matches(name))


def _exists(topic: MetadataResponseTopic) -> bool:
    """Whether the topic exists. Raises BrokerError for any other error of the topic."""
    if topic.error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
        return False
    if topic.error_code != ErrorCode.NONE:
        raise BrokerError(topic.error_code, f"topic {topic.name}")
    return True


def _description(topic: MetadataResponseTopic) -> TopicDescription:
    return TopicDescription(_topic_id(topic.topic_id), tuple(sorted(each.partition_index for each in topic.partitions)))


def _topic_id(uuid: bytes) -> str | None:
    """Return a topic id as librdkafka prints it, or None if the broker has no topic ids.

    Lakehouse tables store topic ids in this form. It has the standard alphabet of base64, while Kafka's tools print the
    URL-safe alphabet.
    """
    return None if uuid == ZERO_UUID else base64.b64encode(uuid).rstrip(b"=").decode()
