"""Real clients that record all requests and responses (`integration.history`) while faults are injected into a cluster.

There are idempotent producers with keyed records, and a consumer group whose members commit their positions. There is
also a consumer of all partitions, and a client that queries end offsets and committed offsets. A timeout does not count
as a response.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from integration.history import (
    Acknowledged,
    Commit,
    CommitFound,
    EndReported,
    Event,
    Failed,
    Logs,
    Positioned,
    Read,
    Sent,
    Value,
)

_KEYS = 24
_PADDING = " " + "x" * 200
_PAUSE_S = 0.01
_WATCH_PAUSE_S = 0.3
_CALL_S = 5.0
_READ_BACK_S = 120.0
_STOP_S = 60.0
_TIMEOUT_SETTINGS: dict[str, str | int | float | bool | None] = {
    "socket.timeout.ms": 10_000,  # fail requests to an isolated node, so that the client retries
    "socket.connection.setup.timeout.ms": 3_000,
    "reconnect.backoff.max.ms": 1_000,
    "log_level": 0,
}


class RecordedClients:
    """The clients of one topic, each in its own thread, and the history that they record."""

    def __init__(self, bootstrap_servers: str, topic: str, partitions: int) -> None:
        self.events: list[Event] = []
        self.topic = topic
        self.partitions = range(partitions)
        self.cluster_is_healthy = threading.Event()
        """Set while every node runs, is connected and has current metadata."""
        self._settings = {"bootstrap.servers": bootstrap_servers, **_TIMEOUT_SETTINGS}
        self._stop_sending = threading.Event()
        self._stop = threading.Event()
        self._senders: list[threading.Thread] = []
        self._others: list[threading.Thread] = []
        self.acknowledged: dict[int, int] = dict.fromkeys(self.partitions, 0)
        """The offset after the last acknowledged record of each partition."""
        self.acknowledged_s: dict[int, float] = {}
        """The time of the last acknowledgement of each partition."""
        self.acknowledgements: dict[str, int] = defaultdict(int)
        """The number of acknowledged records of each producer."""
        self.sent: dict[str, int] = defaultdict(int)
        self.read: dict[int, int] = dict.fromkeys(self.partitions, 0)
        """The offset after the last record that the consumer of all partitions has read, by partition."""
        self.committed: dict[int, int] = dict.fromkeys(self.partitions, 0)
        """The committed offset of the group, by partition."""

    def start(self, producers: int = 3, members: int = 3) -> None:
        """Start `producers` producers, `members` group members, and the other clients."""
        self._senders = [self._thread(self._produce, f"producer-{number}") for number in range(1, producers + 1)]
        self._others = [self._thread(self._consume, f"member-{number}") for number in range(1, members + 1)]
        self._others += [self._thread(self._read_all, "consumer"), self._thread(self._query_offsets, "watcher")]
        for thread in (*self._senders, *self._others):
            thread.start()

    def seconds_without_acknowledgement(self) -> dict[int, float]:
        """Return {partition: seconds} for partitions whose last acknowledgement is more than two seconds ago."""
        now_s = time.monotonic()
        return {item: round(now_s - at_s, 1) for item, at_s in self.acknowledged_s.items() if at_s < now_s - 2}

    def stop_sending(self, within_s: float) -> None:
        """Stop the producers. A record without a response within `within_s` is recorded as a failure."""
        self._stop_sending.set()
        for thread in self._senders:
            thread.join(within_s)
        for producer, count in self.sent.items():
            missing = count - self.acknowledgements[producer]
            if missing:
                self._record_failure(
                    producer, f"{missing} records had no response {within_s:.0f} s after the last send"
                )

    def stop(self) -> None:
        """Stop all clients.

        A client that does not stop is recorded as a failure. librdkafka's synchronous commit may wait for ever if the
        consumer leaves its group meanwhile.
        """
        self._stop.set()
        deadline = time.monotonic() + _STOP_S
        for thread in self._others:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self._record_failure(thread.name, f"did not stop within {_STOP_S:.0f} s")

    def _thread(self, work: Callable[[str], None], name: str) -> threading.Thread:
        def run() -> None:
            try:
                work(name)
            except Exception as error:
                self._record_failure(name, repr(error))
                raise

        return threading.Thread(target=run, name=name, daemon=True)

    def _record_failure(self, client: str, error: str) -> None:
        self.events.append(Failed(time.monotonic(), client, error))

    # -- producers ---------------------------------------------------------------------------------------------------

    def _produce(self, name: str) -> None:
        def failed(error: KafkaError) -> None:
            if error.fatal():
                self._record_failure(name, f"fatal: {error}")

        producer = Producer({**self._settings, "enable.idempotence": True, "linger.ms": 5, "error_cb": failed})
        while not self._stop_sending.is_set():
            number = self.sent[name]
            value = (name, number)
            try:
                producer.produce(
                    self.topic,
                    f"{name} {number}{_PADDING}",
                    key=f"{name} {number % _KEYS}",
                    on_delivery=lambda error, message, value=value: self._delivered(value, error, message),
                )
            except BufferError:
                producer.poll(0.1)
                continue
            self.events.append(Sent(time.monotonic(), value))
            self.sent[name] += 1
            producer.poll(_PAUSE_S)
        producer.flush()

    def _delivered(self, value: Value, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._record_failure(value[0], f"{value}: {error}")
            return
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        if offset is not None and offset < 0:
            offset = None  # librdkafka reports no offset: the response for a later batch acknowledged this record
        self.acknowledged_s[partition] = now_s = time.monotonic()
        self.events.append(Acknowledged(now_s, value, partition, offset))
        self.acknowledgements[value[0]] += 1
        self.acknowledged[partition] = max(self.acknowledged[partition], (offset or -1) + 1)

    # -- consumers ---------------------------------------------------------------------------------------------------

    def _consumer(self, group: str, reset: str) -> Consumer:
        settings = {"group.id": group, "auto.offset.reset": reset, "enable.auto.commit": False}
        settings |= {"session.timeout.ms": "6000", "heartbeat.interval.ms": "1000"}
        return Consumer({**self._settings, **settings, "error_cb": lambda error: None})

    def _record_reads(self, consumer: str, messages: list[Message]) -> dict[int, int]:
        """Append the consumed records to the history. Return {partition: next offset}."""
        now_s = time.monotonic()
        positions: dict[int, int] = {}
        for message in messages:
            error = message.error()
            if error is not None:
                self._record_failure(consumer, str(error))
                continue
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            self.events.append(Read(now_s, consumer, partition, offset, value_of(message)))
            positions[partition] = offset + 1
        return positions

    def _read_all(self, name: str) -> None:
        consumer = self._consumer("none", "error")
        consumer.assign([TopicPartition(self.topic, partition, 0) for partition in self.partitions])
        self.events.extend(Positioned(time.monotonic(), name, partition, 0) for partition in self.partitions)
        while not self._stop.is_set():
            self.read |= self._record_reads(name, consumer.consume(500, 0.1))
        consumer.close()

    def _consume(self, name: str) -> None:
        def assigned(_: Consumer, partitions: list[TopicPartition]) -> None:
            self.events.extend(Positioned(time.monotonic(), name, item.partition, None) for item in partitions)

        consumer = self._consumer(f"{self.topic}-readers", "earliest")
        consumer.subscribe([self.topic], on_assign=assigned)
        while not self._stop.is_set():
            positions = self._record_reads(name, consumer.consume(500, 0.1))
            if positions:
                self._commit(consumer, positions)
        consumer.close()

    def _commit(self, consumer: Consumer, positions: dict[int, int]) -> None:
        requested_s = time.monotonic()
        wanted = [TopicPartition(self.topic, partition, offset) for partition, offset in positions.items()]
        try:
            done = {item.partition for item in consumer.commit(offsets=wanted, asynchronous=False) if not item.error}
        except KafkaException:
            done = set()  # the commit was rejected, or its outcome is unknown
        for partition, offset in positions.items():
            self.events.append(Commit(requested_s, time.monotonic(), partition, offset, partition in done))
            if partition in done:
                self.committed[partition] = max(self.committed[partition], offset)

    # -- queries -----------------------------------------------------------------------------------------------------

    def _query_offsets(self, name: str) -> None:
        consumer = self._consumer(f"{self.topic}-readers", "error")
        while not self._stop.wait(_WATCH_PAUSE_S):
            for partition in self.partitions:
                self._query_end_offset(consumer, partition)
            self._query_committed(consumer)
        consumer.close()

    def _query_end_offset(self, consumer: Consumer, partition: int) -> None:
        requested_s, is_healthy = time.monotonic(), self.cluster_is_healthy.is_set()
        try:
            _, end = consumer.get_watermark_offsets(TopicPartition(self.topic, partition), _CALL_S)
        except KafkaException:
            return  # the partition has no leader, or the leader does not respond
        self.events.append(EndReported(requested_s, partition, end, is_healthy))

    def _query_committed(self, consumer: Consumer) -> None:
        requested_s, is_healthy = time.monotonic(), self.cluster_is_healthy.is_set()
        try:
            found = consumer.committed([TopicPartition(self.topic, item) for item in self.partitions], _CALL_S)
        except KafkaException:
            return
        if is_healthy:
            self.events.extend(
                CommitFound(requested_s, item.partition, item.offset) for item in found if item.offset >= 0
            )

    def read_logs(self) -> Logs:
        """Read and return the complete topic with a new consumer."""
        consumer = self._consumer("audit", "error")
        ends = {
            item: consumer.get_watermark_offsets(TopicPartition(self.topic, item), 30)[1] for item in self.partitions
        }
        consumer.assign([TopicPartition(self.topic, item, 0) for item in self.partitions])
        logs: dict[int, list[tuple[int, Value]]] = {item: [] for item in self.partitions}
        deadline_s = time.monotonic() + _READ_BACK_S
        while any(end > (logs[item][-1][0] + 1 if logs[item] else 0) for item, end in ends.items()):
            assert time.monotonic() < deadline_s, (
                f"read back { ({item: len(log) for item, log in logs.items()}) } of {ends}"
            )
            for message in consumer.consume(10_000, 0.5):
                partition, offset = message.partition(), message.offset()
                assert message.error() is None, message.error()
                assert partition is not None
                assert offset is not None
                logs[partition].append((offset, value_of(message)))
        consumer.close()
        return logs


def value_of(message: Message) -> Value:
    """Return the producer and the number in a record's value."""
    producer, number, *_ = (message.value() or b"").decode().split(" ")
    return producer, int(number)
