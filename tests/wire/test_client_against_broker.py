"""Tests of headrace's client with headrace's broker. Some tests also use confluent-kafka."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from headrace_broker.client import admin as admin_module
from headrace_broker.client.admin import Admin, NewTopic, values_or_raise
from headrace_broker.client.admin_groups import GroupDescription
from headrace_broker.client.cluster import Cluster
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.consumer import Consumer, FetchedBatch
from headrace_broker.client.errors import (
    BrokerError,
    ClientError,
    NoBrokerError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    TimedOutError,
)
from headrace_broker.client.offsets import EARLIEST, LATEST, OffsetAndMetadata
from headrace_broker.client.partitioner import partition_for_key
from headrace_broker.client.producer import Producer
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.records.columns import RecordColumns
from support.broker import BrokerProcess, running_broker
from support.ports import free_port
from support.proxy import TcpProxy

pytestmark = [pytest.mark.wire, pytest.mark.timeout(300)]

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
Record = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("client"), offsets_topic_num_partitions="3") as running:
        yield running


def producer_config(address: str, **properties: str) -> ClientConfig:
    given = {"bootstrap.servers": address, "delivery.timeout.ms": "120000", "request.timeout.ms": "5000"}
    return ClientConfig.from_properties({**given, **_dotted(properties)}, "producer")


def consumer_config(address: str, **properties: str) -> ClientConfig:
    given = {"bootstrap.servers": address, "auto.offset.reset": "earliest", **_dotted(properties)}
    return ClientConfig.from_properties(given, "consumer")


def admin_config(address: str) -> ClientConfig:
    return ClientConfig.from_properties({"bootstrap.servers": address}, "admin")


def _dotted(properties: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in properties.items()}


async def create_topic(address: str, name: str, partitions: int = 1, **configs: str) -> None:
    admin = await Admin.open(admin_config(address))
    values_or_raise(await admin.create_topics([NewTopic(name, partitions, 1, _dotted(configs))]))
    await admin.close()


async def read_all(consumer: Consumer, count: int, timeout_s: float = 60) -> list[FetchedBatch]:
    batches: list[FetchedBatch] = []
    deadline = time.monotonic() + timeout_s
    while sum(map(len, batches)) < count:
        assert time.monotonic() < deadline, f"{sum(map(len, batches))} of {count} records received"
        batches += await consumer.poll(500)
    return batches


def records_of(batches: list[FetchedBatch]) -> list[Record]:
    records: list[Record] = []
    for batch in batches:
        columns = batch.columns
        for index, value in enumerate(columns.values):
            key = columns.keys[index] if columns.keys is not None else None
            headers = columns.headers[index] if columns.headers is not None else []
            records.append((key, value, list(headers)))
    return records


def values_of(batches: list[FetchedBatch]) -> list[bytes | None]:
    return [value for batch in batches for value in batch.columns.values]


def consume_with_confluent(address: str, topic: str, count: int, partition: int = 0) -> list[Any]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "oracle", "check.crcs": True})
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0)])
    messages: list[Any] = []
    deadline = time.monotonic() + 20
    while len(messages) < count and time.monotonic() < deadline:
        messages += [message for message in consumer.consume(1000, 0.5) if message.error() is None]
    consumer.close()
    return messages


# -- records ---------------------------------------------------------------------------------------------------------


RECORDS: list[Record] = [
    (b"key", b"value", [("name", b"x"), ("name", b"y"), ("none", None)]),
    (None, b"no key", []),
    (b"tombstone", None, []),
    (b"", b"", [("", b"")]),
    ("Schlüssel".encode(), "Wert ☃".encode() * 500, [("größe", b"\0\xff")]),
] * 40


@pytest.mark.parametrize("codec", CODECS)
def test_confluent_kafka_reads_records_of_headraces_producer(broker: BrokerProcess, codec: str) -> None:
    topic = f"ours-{codec}"

    async def write() -> None:
        producer = await Producer.open(producer_config(broker.address, compression_type=codec))
        columns = RecordColumns(
            values=[value for _, value, _ in RECORDS],
            keys=[key for key, _, _ in RECORDS],
            headers=[headers for _, _, headers in RECORDS],
            timestamps=list(range(1_700_000_000_000, 1_700_000_000_000 + len(RECORDS))),
        )
        metadata = await producer.send(topic, 0, columns)
        assert (metadata.topic, metadata.partition, metadata.base_offset, metadata.count) == (topic, 0, 0, len(RECORDS))
        values: list[bytes | None] = [b"%d" % index for index in range(5000)]
        assert (await producer.send(topic, None, RecordColumns(values))).base_offset == len(RECORDS)
        await producer.close()

    asyncio.run(write())
    messages = consume_with_confluent(broker.address, topic, len(RECORDS) + 5000)
    assert [message.offset() for message in messages] == list(range(len(RECORDS) + 5000))
    got = [(message.key(), message.value(), message.headers() or []) for message in messages[: len(RECORDS)]]
    assert got == RECORDS
    assert [message.timestamp()[1] for message in messages[:3]] == [1_700_000_000_000 + index for index in range(3)]
    assert [message.value() for message in messages[len(RECORDS) :]] == [b"%d" % index for index in range(5000)]
    assert abs(messages[-1].timestamp()[1] - time.time() * 1000) < 60_000


@pytest.mark.parametrize("codec", CODECS)
def test_headraces_consumer_reads_records_that_confluent_kafka_produced(broker: BrokerProcess, codec: str) -> None:
    topic = f"theirs-{codec}"
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.address, "compression.type": codec, "linger.ms": 5}
    )
    for key, value, headers in RECORDS:
        producer.produce(
            topic,
            value,
            key,
            partition=0,
            headers=headers or None,  # type: ignore[arg-type]
            timestamp=1_700_000_000_000,
        )
    assert producer.flush(20) == 0

    async def read() -> list[FetchedBatch]:
        consumer = await Consumer.open(consumer_config(broker.address))
        consumer.assign([(topic, 0)])
        batches = await read_all(consumer, len(RECORDS))
        assert await consumer.position((topic, 0)) == len(RECORDS)
        assert consumer.high_watermark((topic, 0)) == len(RECORDS)
        assert consumer.high_watermarks() == {(topic, 0): len(RECORDS)}
        await consumer.close()
        return batches

    batches = asyncio.run(read())
    assert records_of(batches) == RECORDS
    assert [offset for batch in batches for offset in batch.columns.offsets or ()] == list(range(len(RECORDS)))
    assert {stamp for batch in batches for stamp in batch.columns.timestamp_list()} == {1_700_000_000_000}


def test_producer_sends_keyed_records_to_the_same_partitions_as_confluent_kafka_with_murmur2(
    broker: BrokerProcess,
) -> None:
    keys = [b"key-%d" % index for index in range(300)]

    async def write() -> None:
        await create_topic(broker.address, "murmur-ours", 7)
        await create_topic(broker.address, "murmur-theirs", 7)
        producer = await Producer.open(producer_config(broker.address))
        await producer.send("murmur-ours", None, RecordColumns(list(keys), keys=list(keys)))
        await producer.close()

    asyncio.run(write())
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.address, "partitioner": "murmur2"})
    for key in keys:
        producer.produce("murmur-theirs", key, key)
    assert producer.flush(20) == 0

    async def keys_by_partition(topic: str) -> dict[int, list[bytes | None]]:
        consumer = await Consumer.open(consumer_config(broker.address))
        consumer.assign([(topic, partition) for partition in range(7)])
        found: dict[int, list[bytes | None]] = {}
        for batch in await read_all(consumer, len(keys)):
            found.setdefault(batch.partition, []).extend(batch.columns.keys or [])
        await consumer.close()
        return found

    ours, theirs = asyncio.run(keys_by_partition("murmur-ours")), asyncio.run(keys_by_partition("murmur-theirs"))
    assert ours == theirs
    assert all(partition == partition_for_key(key or b"", 7) for partition, keys in ours.items() for key in keys)


def test_producer_spreads_keyless_records_over_all_partitions(broker: BrokerProcess) -> None:
    async def run() -> set[int]:
        await create_topic(broker.address, "spread", 3)
        producer = await Producer.open(producer_config(broker.address))
        results = [await producer.send("spread", None, RecordColumns([b"x" * 1000] * 40)) for _ in range(20)]
        await producer.close()
        return {result.partition for result in results}

    assert asyncio.run(run()) == {0, 1, 2}


def test_many_small_sends_share_batches_and_each_send_returns_its_own_offset(broker: BrokerProcess) -> None:
    async def run() -> None:
        producer = await Producer.open(producer_config(broker.address))
        await producer.send("small", 0, RecordColumns([b"first"]))
        sends = [producer.send("small", 0, RecordColumns([b"%d" % index])) for index in range(500)]
        results = await asyncio.gather(*sends)
        assert [result.base_offset for result in results] == list(range(1, 501))
        await producer.close()
        consumer = await Consumer.open(consumer_config(broker.address))
        consumer.assign([("small", 0)])
        assert values_of(await read_all(consumer, 501))[1:] == [b"%d" % index for index in range(500)]
        await consumer.close()

    asyncio.run(run())


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_send_succeeds_with_every_acks_setting(broker: BrokerProcess, acks: str) -> None:
    async def run() -> None:
        producer = await Producer.open(producer_config(broker.address, acks=acks))
        results = [await producer.send(f"acks-{acks}", 0, RecordColumns([b"x"] * 10)) for _ in range(5)]
        await producer.close()
        assert [result.base_offset for result in results] == ([-1] * 5 if acks == "0" else [0, 10, 20, 30, 40])
        consumer = await Consumer.open(consumer_config(broker.address))
        consumer.assign([(f"acks-{acks}", 0)])
        assert len(values_of(await read_all(consumer, 50))) == 50
        await consumer.close()

    asyncio.run(run())


# -- bad input -------------------------------------------------------------------------------------------------------


def test_sends_after_a_too_large_batch_keep_their_order(broker: BrokerProcess) -> None:
    async def run() -> None:
        await create_topic(broker.address, "behind", 1, max_message_bytes="40000")
        producer = await Producer.open(producer_config(broker.address))
        values: list[bytes | None] = [b"%04d" % index + b"x" * 600 for index in range(290)]
        # The first send (120 KB) exceeds max.message.bytes; each of the other sends (18 KB) does not.
        sends = [producer.send("behind", 0, RecordColumns(values[:200]))]
        sends += [producer.send("behind", 0, RecordColumns(values[at : at + 30])) for at in (200, 230, 260)]
        await asyncio.gather(*sends)
        await producer.close()
        consumer = await Consumer.open(consumer_config(broker.address))
        consumer.assign([("behind", 0)])
        assert values_of(await read_all(consumer, 290)) == values
        await consumer.close()

    asyncio.run(run())


def test_too_large_batches_are_split_and_too_large_records_are_rejected(broker: BrokerProcess) -> None:
    async def run() -> None:
        await create_topic(broker.address, "tight", 1, max_message_bytes="10000")
        producer = await Producer.open(producer_config(broker.address))
        values: list[bytes | None] = [b"%04d" % index + b"x" * 500 for index in range(200)]
        result = await producer.send("tight", 0, RecordColumns(list(values)))
        assert result.count == 200
        with pytest.raises(RecordTooLargeError, match="tight-0"):
            await producer.send("tight", 0, RecordColumns([b"y" * 20_000]))
        assert (await producer.send("tight", 0, RecordColumns([b"after"]))).base_offset == 200
        with pytest.raises(RecordTooLargeError, match=r"max\.request\.size"):
            await producer.send("tight", 0, RecordColumns([b"y" * 2_000_000]))
        await producer.close()
        consumer = await Consumer.open(consumer_config(broker.address))
        consumer.assign([("tight", 0)])
        assert values_of(await read_all(consumer, 201)) == [*values, b"after"]
        await consumer.close()

    asyncio.run(run())


def test_send_with_values_that_are_not_bytes_fails_without_affecting_other_sends(broker: BrokerProcess) -> None:
    async def run() -> None:
        producer = await Producer.open(producer_config(broker.address, linger_ms="20"))
        await producer.send("mixed", 0, RecordColumns([b"start"]))
        good = producer.send("mixed", 0, RecordColumns([b"good"]))
        bad = producer.send("mixed", 0, RecordColumns(["text"]))  # type: ignore[list-item]
        worse = producer.send("mixed", 0, RecordColumns([12]))  # type: ignore[list-item]
        also_good = producer.send("mixed", 0, RecordColumns([b"also good"]))
        assert (await good).base_offset == 1
        assert (await also_good).base_offset == 2
        for future in (bad, worse):
            with pytest.raises(ClientError, match="mixed"):
                await future
        await producer.close()
        assert producer.buffered_bytes == 0

    asyncio.run(run())


def test_send_error_names_the_invalid_topic_or_partition(broker: BrokerProcess) -> None:
    async def run() -> None:
        producer = await Producer.open(producer_config(broker.address))
        with pytest.raises(BrokerError, match="no/such: INVALID_TOPIC_EXCEPTION"):
            await producer.send("no/such", None, RecordColumns([b"x"]))
        await producer.send("few", 0, RecordColumns([b"x"]))
        with pytest.raises(BrokerError, match="few-99"):
            await producer.send("few", 99, RecordColumns([b"x"]))
        await producer.close()

    asyncio.run(run())


def test_send_to_missing_topic_without_auto_creation_times_out(tmp_path: Path) -> None:
    with running_broker(tmp_path, auto_create_topics_enable="false") as strict:

        async def run() -> None:
            producer = await Producer.open(producer_config(strict.address, max_block_ms="700"))
            with pytest.raises(TimedOutError, match="topic nowhere"):
                await producer.send("nowhere", None, RecordColumns([b"x"]))
            await producer.close()

        asyncio.run(run())


def test_error_of_unreachable_bootstrap_server_contains_the_address() -> None:
    async def run() -> None:
        with pytest.raises((NoBrokerError, TimedOutError), match=r"127\.0\.0\.1:1\b"):
            await Cluster.open(producer_config("127.0.0.1:1"), timeout_ms=500)

    asyncio.run(run())


# -- positions -------------------------------------------------------------------------------------------------------


def test_consumer_supports_seek_and_pause_and_a_maximum_number_of_records_per_poll(broker: BrokerProcess) -> None:
    async def run() -> None:
        await create_topic(broker.address, "seek", 2)
        producer = await Producer.open(producer_config(broker.address))
        for partition in (0, 1):
            await producer.send("seek", partition, RecordColumns([b"%d" % index for index in range(100)]))
        await producer.close()
        consumer = await Consumer.open(consumer_config(broker.address))
        consumer.assign([("seek", 0), ("seek", 1)])
        consumer.pause([("seek", 1)])
        first = await consumer.poll(5000, max_records=30)
        assert [(batch.partition, len(batch), batch.next_offset) for batch in first] == [(0, 30, 30)]
        assert await consumer.position(("seek", 0)) == 30
        second = await consumer.poll(5000, max_records=30)
        assert values_of(second) == [b"%d" % index for index in range(30, 60)]
        consumer.seek(("seek", 0), 95)
        assert values_of(await consumer.poll(5000)) == [b"%d" % index for index in range(95, 100)]
        assert await consumer.poll(50) == []
        consumer.resume([("seek", 1)])
        assert {batch.partition for batch in await read_all(consumer, 100)} == {1}
        await consumer.seek_to_end()
        assert [await consumer.position(("seek", partition)) for partition in (0, 1)] == [100, 100]
        listed = await consumer.list_offsets({("seek", 0): EARLIEST, ("seek", 1): LATEST})
        assert (listed["seek", 0].offset, listed["seek", 1].offset) == (0, 100)
        await consumer.close()

    asyncio.run(run())


def test_poll_returns_part_of_a_batch_that_has_more_than_max_records(broker: BrokerProcess) -> None:
    async def run() -> None:
        await create_topic(broker.address, "limit")
        expected: list[bytes | None] = [b"%d" % index for index in range(3000)]
        producer = await Producer.open(producer_config(broker.address))
        for start in range(0, 3000, 600):
            await producer.send("limit", 0, RecordColumns(expected[start : start + 600]))
        await producer.close()
        consumer = await Consumer.open(consumer_config(broker.address))
        consumer.assign([("limit", 0)])
        values: list[bytes | None] = []
        while len(values) < 3000:
            batches = await consumer.poll(5000, max_records=700)
            assert 0 < sum(map(len, batches)) <= 700
            values += values_of(batches)
            assert await consumer.position(("limit", 0)) == len(values)
        assert values == expected
        assert await consumer.poll(50, max_records=700) == []
        consumer.seek(("limit", 0), 0)
        chunks = await consumer.poll_chunks(5000)
        assert [chunk.position for chunk in chunks] == [0]
        assert values_of(list(iter(chunks[0].next_batch, None))) == expected
        await consumer.close()

    asyncio.run(run())


def test_consumer_position_outside_the_log_is_reset_or_raises_an_error_depending_on_auto_offset_reset(
    broker: BrokerProcess,
) -> None:
    async def run() -> None:
        await create_topic(broker.address, "range")
        producer = await Producer.open(producer_config(broker.address))
        await producer.send("range", 0, RecordColumns([b"%d" % index for index in range(100)]))
        await producer.close()
        admin = await Admin.open(admin_config(broker.address))
        assert await admin.delete_records({("range", 0): 40}) == {("range", 0): 40}
        await admin.close()
        consumer = await Consumer.open(consumer_config(broker.address))
        consumer.assign([("range", 0)])
        consumer.seek(("range", 0), 10)
        assert values_of(await read_all(consumer, 60))[0] == b"40"
        await consumer.close()
        strict = await Consumer.open(consumer_config(broker.address, auto_offset_reset="none"))
        strict.assign([("range", 0)])
        strict.seek(("range", 0), 10)
        with pytest.raises(OffsetOutOfRangeError, match="range-0"):
            await strict.poll(5000)
        strict.seek(("range", 0), 99)
        assert values_of(await read_all(strict, 1)) == [b"99"]
        await strict.close()

    asyncio.run(run())


def test_consumer_returns_a_batch_larger_than_max_partition_fetch_bytes(broker: BrokerProcess) -> None:
    async def run() -> None:
        producer = await Producer.open(producer_config(broker.address))
        await producer.send("large", 0, RecordColumns([b"x" * 200_000]))
        await producer.send("large", 0, RecordColumns([b"y" * 200_000]))
        await producer.close()
        consumer = await Consumer.open(consumer_config(broker.address, max_partition_fetch_bytes="1000"))
        consumer.assign([("large", 0)])
        assert [len(value or b"") for value in values_of(await read_all(consumer, 2))] == [200_000, 200_000]
        await consumer.close()

    asyncio.run(run())


# -- threads ---------------------------------------------------------------------------------------------------------


def test_blocking_producer_and_consumer_calls_work_in_another_thread(broker: BrokerProcess) -> None:
    total = 200_000

    async def run() -> None:
        producer = await Producer.open(producer_config(broker.address, buffer_memory="1000000"))

        def write() -> int:
            futures = []
            for start in range(0, total, 1000):
                values: list[bytes | None] = [b"%08d" % index for index in range(start, start + 1000)]
                futures.append(producer.send_blocking("threads", 0, RecordColumns(values)))
            producer.flush_blocking(20_000)
            return sum(future.result(0).count for future in futures)

        assert await asyncio.to_thread(write) == total
        await producer.close()
        consumer = await Consumer.open(consumer_config(broker.address))
        consumer.assign([("threads", 0)])

        def read() -> list[bytes | None]:
            values: list[bytes | None] = []
            while len(values) < total:
                values += values_of(consumer.poll_blocking(5000))
            return values

        values = await asyncio.to_thread(read)
        assert values == [b"%08d" % index for index in range(total)]
        await consumer.close()

    asyncio.run(run())


# -- connection losses -----------------------------------------------------------------------------------------------


async def produce_through_losses(
    tmp_path: Path, disturb: Callable[[TcpProxy, BrokerProcess, int], Any], **properties: str
) -> None:
    """Produce 30 rounds of records through a proxy, call `disturb` after each round, and check the log.

    No record may be missing, duplicated or out of order.
    """
    proxy = TcpProxy()
    port = await proxy.start()
    loop = asyncio.get_running_loop()
    listener = f"PLAINTEXT://127.0.0.1:{free_port()}"
    broker = BrokerProcess(tmp_path, {"listeners": listener, "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"})
    proxy.target = ("127.0.0.1", int(listener.rpartition(":")[2]))
    await loop.run_in_executor(None, broker.start)
    broker.properties["listeners"] = listener  # otherwise a restart would replace it with the proxy's address
    try:
        producer = await Producer.open(
            producer_config(f"127.0.0.1:{port}", request_timeout_ms="1000", linger_ms="1", **properties)
        )
        futures = []
        for number in range(30):
            for part in range(4):
                first = (number * 4 + part) * 10
                futures.append(
                    producer.send("losses", 0, RecordColumns([b"%d" % (first + index) for index in range(10)]))
                )
                await asyncio.sleep(0.002)
            result = disturb(proxy, broker, number)
            if result is not None:
                await result
        await producer.flush(120_000)
        assert all(future.exception() is None for future in futures)
        await producer.close()
        consumer = await Consumer.open(consumer_config(f"127.0.0.1:{port}"))
        consumer.assign([("losses", 0)])
        values = values_of(await read_all(consumer, 1200))
        values += values_of(await consumer.poll(300))
        assert values == [b"%d" % index for index in range(1200)]
        await consumer.close()
        assert proxy.accepted_connections > 3
    finally:
        await proxy.close()
        await loop.run_in_executor(None, broker.close)


def test_aborted_connections_cause_no_lost_duplicate_or_reordered_records(tmp_path: Path) -> None:
    def abort_connections(proxy: TcpProxy, broker: BrokerProcess, number: int) -> None:
        if number % 3 == 0:
            proxy.abort_connections()

    asyncio.run(produce_through_losses(tmp_path, abort_connections))


def test_lost_produce_responses_cause_retries_without_duplicates(tmp_path: Path) -> None:
    async def drop_responses(proxy: TcpProxy, broker: BrokerProcess, number: int) -> None:
        if number % 5 == 1:
            proxy.drops_responses = True
        elif number % 5 == 2:
            proxy.abort_connections()
            proxy.drops_responses = False

    asyncio.run(produce_through_losses(tmp_path, drop_responses))


def test_producer_continues_after_broker_crash_and_restart(tmp_path: Path) -> None:
    async def crash(proxy: TcpProxy, broker: BrokerProcess, number: int) -> None:
        if number == 10:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, broker.kill)
            await loop.run_in_executor(None, broker.start)
            proxy.abort_connections()

    asyncio.run(produce_through_losses(tmp_path, crash))


# -- groups ----------------------------------------------------------------------------------------------------------


class PolledConsumer:
    """A group member that uses headrace's `Consumer`. A separate asyncio task polls the consumer."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.values: list[bytes | None] = []
        self.owned: set[tuple[str, int]] = set()
        self.events: list[tuple[str, int]] = []
        self._task: asyncio.Task[None] | None = None

    async def start(self, topics: list[str] | None = None, **options: Any) -> None:
        await self.consumer.subscribe(topics, on_assigned=self._assigned, on_revoked=self._revoked, **options)
        self._task = asyncio.create_task(self._poll())

    def _assigned(self, partitions: list[tuple[str, int]]) -> None:
        self.owned |= set(partitions)
        self.events.append(("assigned", len(partitions)))

    async def _revoked(self, partitions: list[tuple[str, int]]) -> None:
        await self.consumer.commit()
        self.owned -= set(partitions)
        self.events.append(("revoked", len(partitions)))

    async def _poll(self) -> None:
        while True:
            self.values += values_of(await self.consumer.poll(100))

    async def stop(self, *, leave_group: bool = True) -> None:
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        await self.consumer.close(leave_group=leave_group)


async def until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        await asyncio.sleep(0.02)


GROUP = {"heartbeat_interval_ms": "200", "session_timeout_ms": "6000", "enable_auto_commit": "false"}


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_headraces_consumers_and_confluent_consumers_share_the_partitions_of_a_group(
    broker: BrokerProcess, strategy: str
) -> None:
    topic, group = f"shared-{strategy}", f"group-{strategy}"

    async def run() -> None:
        await create_topic(broker.address, topic, 6)
        config = consumer_config(broker.address, group_id=group, partition_assignment_strategy=strategy, **GROUP)
        ours = [PolledConsumer(await Consumer.open(config)) for _ in range(2)]
        await ours[0].start([topic])
        await until(lambda: len(ours[0].owned) == 6)
        await ours[1].start([topic])
        theirs = confluent_kafka.Consumer(
            {
                "bootstrap.servers": broker.address,
                "group.id": group,
                "partition.assignment.strategy": strategy,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 200,
            }
        )
        theirs.subscribe([topic])
        loop = asyncio.get_running_loop()
        their_values: list[bytes | None] = []

        async def poll_theirs() -> None:
            while True:
                messages = await loop.run_in_executor(None, theirs.consume, 100, 0.1)
                their_values.extend(message.value() for message in messages if message.error() is None)

        polling = asyncio.create_task(poll_theirs())

        def their_partitions() -> set[tuple[str, int]]:
            return {(item.topic, item.partition) for item in theirs.assignment()}

        def is_shared() -> bool:
            owned = [ours[0].owned, ours[1].owned, their_partitions()]
            return all(len(each) == 2 for each in owned) and len(set().union(*owned)) == 6

        await until(is_shared)
        producer = await Producer.open(producer_config(broker.address))
        for partition in range(6):
            await producer.send(topic, partition, RecordColumns([b"%d-%d" % (partition, index) for index in range(50)]))
        await until(lambda: len(ours[0].values) + len(ours[1].values) + len(their_values) == 300)
        assert len({*ours[0].values, *ours[1].values, *their_values}) == 300
        await ours[0].consumer.commit()
        await ours[1].consumer.commit()
        await loop.run_in_executor(None, lambda: theirs.commit(asynchronous=False))

        await ours[1].stop()  # the other members receive its partitions and continue at the committed offsets
        await until(lambda: len(ours[0].owned) == 3 and len(ours[0].owned | their_partitions()) == 6)
        for partition in range(6):
            await producer.send(topic, partition, RecordColumns([b"more-%d" % partition]))
        await until(lambda: sum(map(len, (ours[0].values, ours[1].values, their_values))) == 306)
        await producer.close()
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
        await loop.run_in_executor(None, theirs.close)
        await until(lambda: len(ours[0].owned) == 6)
        if strategy == "cooperative-sticky":  # this strategy does not revoke retained partitions
            assert max(count for event, count in ours[0].events if event == "revoked") <= 4
        await ours[0].stop()

    asyncio.run(run())


def test_partitions_of_a_dead_group_member_are_assigned_to_another_member_after_its_session_timeout(
    broker: BrokerProcess,
) -> None:
    async def run() -> None:
        await create_topic(broker.address, "dying", 4)
        config = consumer_config(broker.address, group_id="dying", **GROUP)
        members = [PolledConsumer(await Consumer.open(config)) for _ in range(3)]
        for member in members:
            await member.start(["dying"])
        await until(lambda: sorted(len(member.owned) for member in members) == [1, 1, 2])
        await members[0].stop(leave_group=False)
        await until(lambda: sum(len(member.owned) for member in members[1:]) == 4)
        for member in members[1:]:
            await member.stop()

    asyncio.run(run())


def test_member_that_is_stopped_during_a_rebalance_leaves_the_group_before_the_rebalance_has_completed(
    broker: BrokerProcess,
) -> None:
    async def run() -> None:
        await create_topic(broker.address, "leaving", 2)
        config = consumer_config(broker.address, group_id="leaving", **GROUP | {"session_timeout_ms": "120000"})
        dead, waiting = PolledConsumer(await Consumer.open(config)), PolledConsumer(await Consumer.open(config))
        admin = await Admin.open(admin_config(broker.address))

        async def members() -> tuple[str, int]:
            group = (await admin.describe_groups(["leaving"]))["leaving"]
            assert isinstance(group, GroupDescription)
            return group.state, len(group.members)

        await dead.start(["leaving"])
        await until(lambda: len(dead.owned) == 2)
        await dead.stop(leave_group=False)  # it is a member until its session times out
        await waiting.start(["leaving"])
        while await members() != ("PreparingRebalance", 2):  # noqa: ASYNC110 - the broker sends no event
            await asyncio.sleep(0.02)
        started_s = time.monotonic()
        await waiting.stop()
        assert time.monotonic() - started_s < 60
        assert (await members())[1] == 1
        await admin.close()

    asyncio.run(run())


def test_restarted_static_member_keeps_its_partitions_without_rebalance(broker: BrokerProcess) -> None:
    async def run() -> None:
        await create_topic(broker.address, "static", 4)
        configs = [
            consumer_config(broker.address, group_id="static", group_instance_id=f"i{index}", **GROUP)
            for index in range(2)
        ]
        first, second = [PolledConsumer(await Consumer.open(config)) for config in configs]
        await first.start(["static"])
        await second.start(["static"])
        await until(lambda: len(first.owned) == 2 and len(second.owned) == 2)
        owned, events = set(second.owned), list(first.events)
        await second.stop()
        second = PolledConsumer(await Consumer.open(configs[1]))
        await second.start(["static"])
        await until(lambda: second.owned == owned)
        assert first.events == events
        await first.stop()
        await second.stop()

    asyncio.run(run())


def test_member_that_stops_polling_leaves_the_group_and_rejoins_when_it_polls_again(broker: BrokerProcess) -> None:
    async def run() -> None:
        await create_topic(broker.address, "lazy", 2)
        config = consumer_config(broker.address, group_id="lazy", max_poll_interval_ms="4000", **GROUP)
        events: list[str] = []
        lazy = await Consumer.open(config)
        await lazy.subscribe(
            ["lazy"],
            on_assigned=lambda partitions: events.append("assigned"),
            on_lost=lambda partitions: events.append("lost"),
        )
        while not lazy.assignment:
            await lazy.poll(100)
        other = PolledConsumer(await Consumer.open(config))
        await other.start(["lazy"])
        await until(lambda: len(other.owned) == 2)
        deadline = time.monotonic() + 30
        while events != ["assigned", "lost", "assigned"]:
            assert time.monotonic() < deadline, events
            await lazy.poll(100)
        await until(lambda: len(other.owned) == 1)
        assert len(lazy.assignment) == 1
        await lazy.close()
        await other.stop()

    asyncio.run(run())


def test_pattern_subscription_discovers_new_topic_after_the_discovery_interval(broker: BrokerProcess) -> None:
    async def run() -> None:
        config = consumer_config(broker.address, group_id="pattern", **GROUP)
        member = PolledConsumer(await Consumer.open(config))
        await member.start(pattern=lambda name: name.startswith("found-"), discovery_interval_ms=1000)
        await until(lambda: member.events != [])
        producer = await Producer.open(producer_config(broker.address))
        await producer.send("found-1", None, RecordColumns([b"hello"]))
        await until(lambda: member.values == [b"hello"], 60)  # metadata.max.age.ms is five minutes
        await create_topic(broker.address, "lost-1")
        await producer.send("found-2", None, RecordColumns([b"again"]))
        await until(lambda: member.values == [b"hello", b"again"], 60)
        assert {topic for topic, _ in member.owned} == {"found-1", "found-2"}
        await producer.close()
        await member.stop()

    asyncio.run(run())


def test_committed_offsets_with_metadata_are_visible_to_confluent_kafka(broker: BrokerProcess) -> None:
    async def run() -> None:
        await create_topic(broker.address, "commits")
        consumer = await Consumer.open(consumer_config(broker.address, group_id="commits", enable_auto_commit="false"))
        consumer.assign([("commits", 0)])
        await consumer.commit({("commits", 0): OffsetAndMetadata(7, metadata="why")})
        assert await consumer.committed([("commits", 0), ("commits", 1)]) == {
            ("commits", 0): OffsetAndMetadata(7, metadata="why"),
            ("commits", 1): None,
        }
        await consumer.close()

    asyncio.run(run())
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.address, "group.id": "commits"})
    (found,) = consumer.committed([confluent_kafka.TopicPartition("commits", 0)], 10)
    assert found.offset == 7
    consumer.close()


def test_poll_blocking_runs_callbacks_in_the_calling_thread(broker: BrokerProcess) -> None:
    async def run() -> None:
        await create_topic(broker.address, "blocking", 2)
        producer = await Producer.open(producer_config(broker.address))
        await producer.send("blocking", 0, RecordColumns([b"x"] * 10))
        await producer.close()
        consumer = await Consumer.open(consumer_config(broker.address, group_id="blocking", **GROUP))
        threads: list[int] = []

        def assigned(partitions: list[tuple[str, int]]) -> None:
            threads.append(threading.get_ident())
            for topic_partition in partitions:
                consumer.call(consumer.seek, topic_partition, 5 if topic_partition[1] == 0 else 0)

        await consumer.subscribe(["blocking"], on_assigned=assigned)

        def work() -> tuple[int, list[bytes | None]]:
            values: list[bytes | None] = []
            while len(values) < 5:
                values += values_of(consumer.poll_blocking(5000))
            consumer.call(consumer.commit)
            return threading.get_ident(), values

        thread, values = await asyncio.to_thread(work)
        assert threads == [thread]
        assert values == [b"x"] * 5
        assert (await consumer.committed([("blocking", 0)]))["blocking", 0] == OffsetAndMetadata(10, leader_epoch=0)
        await consumer.close()

    asyncio.run(run())


# -- admin -----------------------------------------------------------------------------------------------------------


def test_admin_client_manages_topics_configs_and_group_offsets(broker: BrokerProcess) -> None:
    async def run() -> None:
        admin = await Admin.open(admin_config(broker.address))
        created = await admin.create_topics([NewTopic("admin", 3, 1, {"retention.ms": "1000"}), NewTopic("bad name")])
        assert created["admin"] is None
        assert isinstance(created["bad name"], BrokerError)
        assert created["bad name"].code is ErrorCode.INVALID_TOPIC_EXCEPTION
        again = await admin.create_topics([NewTopic("admin")])
        assert again["admin"] is not None
        assert again["admin"].code is ErrorCode.TOPIC_ALREADY_EXISTS
        assert "admin" in await admin.list_topics()
        assert await admin.create_partitions({"admin": 5}) == {"admin": None}
        described = await admin.describe_topics(["admin", "absent"])
        assert len(values_or_raise({"admin": described["admin"]})["admin"].partitions) == 5
        assert isinstance(described["absent"], BrokerError)
        topic = (admin_module.TOPIC, "admin")
        assert await admin.incremental_alter_configs(
            {topic: [("retention.ms", admin_module.SET, "2000"), ("cleanup.policy", admin_module.SET, "compact")]}
        ) == {topic: None}
        configs = (await admin.describe_configs({topic: ["retention.ms", "cleanup.policy"]}))[topic]
        assert not isinstance(configs, BrokerError)
        assert {config.name: config.value for config in configs} == {
            "retention.ms": "2000",
            "cleanup.policy": "compact",
        }
        with pytest.raises(BrokerError, match="broker 77: BROKER_NOT_AVAILABLE"):
            await admin.describe_configs([(admin_module.BROKER, "77")])
        cluster = await admin.describe_cluster()
        assert [(node.node_id, node.port) for node in cluster.nodes] == [(1, broker.port)]
        assert 0 in await admin.api_versions(1)
        altered = await admin.alter_group_offsets("admin-group", {("admin", 1): OffsetAndMetadata(3)})
        assert altered == {("admin", 1): None}
        assert "admin-group" in [group.group_id for group in await admin.list_groups()]
        assert await admin.list_group_offsets("admin-group") == {("admin", 1): OffsetAndMetadata(3)}
        described_group = (await admin.describe_groups(["admin-group"]))["admin-group"]
        assert not isinstance(described_group, BrokerError)
        assert described_group.state == "Empty"
        assert await admin.delete_group_offsets("admin-group", [("admin", 1)]) == {("admin", 1): None}
        assert await admin.list_group_offsets("admin-group", [("admin", 1)]) == {("admin", 1): None}
        deleted = await admin.delete_topics(["admin", "absent"])
        assert deleted["admin"] is None
        assert deleted["absent"] is not None
        assert deleted["absent"].code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert "admin" not in await admin.list_topics()
        await admin.close()

    asyncio.run(run())
