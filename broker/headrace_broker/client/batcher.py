"""From sends to record batches: partitions, gathers, cuts and builds, in whatever thread sends; bounds the memory.

Sends smaller than batch.size gather for linger.ms; larger ones are built at once, whole, cut only at batch.size when
that key was given, else at 256 KiB. Two locks: `_send_lock` keeps senders in order while they build, `_room` guards the
count of buffered bytes. Built batches wait in order for the loop, which takes them with `take_built`.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from headrace_broker.client import delivery as deliveries
from headrace_broker.client.accumulator import Accumulator, estimate_bytes, runs
from headrace_broker.client.cluster import Cluster
from headrace_broker.client.cluster_view import TopicView
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.delivery import Delivery, Share
from headrace_broker.client.errors import (
    BrokerError,
    BufferExhaustedError,
    ClientError,
    ClosedError,
    RecordTooLargeError,
)
from headrace_broker.client.partitioner import StickyPartitioner, split_by_key
from headrace_broker.client.writer_core import ReadyBatch
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.records.batch import HEADER_SIZE
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns

_BATCH_BYTES_DEFAULT = 256 * 1024


class Batcher:
    """Builds a writer's batches; `on_built` is called in the sending thread when there may be something to take."""

    def __init__(self, cluster: Cluster, config: ClientConfig, on_built: Callable[[], None]) -> None:
        self.buffered_bytes = 0
        self._cluster = cluster
        self._config = config
        self._on_built = on_built
        self._loop = asyncio.get_running_loop()
        given = "batch.size" in config.explicit
        batch_bytes = config.batch_size if given else max(_BATCH_BYTES_DEFAULT, config.batch_size)
        self._batch_bytes_max = max(min(batch_bytes, config.max_request_size) - HEADER_SIZE, 1)
        self._sticky = StickyPartitioner(config.batch_size, random.Random())
        self._send_lock = threading.Lock()
        self._room = threading.Condition(threading.Lock())
        self._threads_waiting = 0
        self._ready_waiters: list[asyncio.Future[None]] = []
        self._accumulators: dict[tuple[str, int], Accumulator] = {}
        self._built: list[ReadyBatch] = []
        self._handoff: deque[ReadyBatch] = deque()
        self._closed = False

    # -- any thread --------------------------------------------------------------------------------------------------

    def send(self, topic: str, partition: int | None, columns: RecordColumns, delivery: Delivery) -> None:
        """Cut, build or gather the records, and hand what is ready to the loop.

        Batches are handed over after the last one is counted in the delivery, so that only one thread at a time has it.
        """
        if columns.timestamps is None:
            columns.timestamps = int(time.time() * 1000)
        with self._send_lock:
            try:
                if self._closed:
                    raise ClosedError("the writer is closed")
                for number, part in self._partitioned(topic, partition, columns).items():
                    self._append(topic, number, part, delivery)
            except Exception as error:  # noqa: BLE001  (keys and values that are no bytes fail in many ways)
                if not isinstance(error, ClientError):
                    error = ClientError(f"records for {topic} cannot be sent: {error}")
                delivery.expect_part()
                self._fail_shares([Share(delivery, len(columns))], error)
            if delivery.is_waiting:
                delivery.sealed()
            else:
                self._loop.call_soon_threadsafe(delivery.sealed)
            self._hand_over()
        self._on_built()

    def wait_for_room(self, timeout_ms: float) -> None:
        """Block until less than buffer.memory waits. Raises BufferExhaustedError, ClosedError."""
        with self._room:
            if self.buffered_bytes < self._config.buffer_memory:
                return
            self._threads_waiting += 1
            try:
                has_room = self._room.wait_for(
                    lambda: self.buffered_bytes < self._config.buffer_memory or self._closed,
                    min(timeout_ms / 1000, threading.TIMEOUT_MAX),
                )
            finally:
                self._threads_waiting -= 1
        if self._closed:
            raise ClosedError("the writer was closed")
        if not has_room:
            raise BufferExhaustedError(
                f"{self.buffered_bytes} bytes wait to be acknowledged (buffer.memory={self._config.buffer_memory}) "
                f"and none was within {timeout_ms:.0f} ms"
            )

    def _hand_over(self) -> None:
        self._handoff.extend(self._built)
        self._built.clear()

    def _fail_shares(self, shares: list[Share], error: ClientError) -> None:
        """Fail deliveries in the loop's thread, which owns them."""
        self._loop.call_soon_threadsafe(deliveries.fail, shares, error)

    def _partitioned(self, topic: str, partition: int | None, columns: RecordColumns) -> dict[int, RecordColumns]:
        view = self._cluster.view.topics.get(topic)
        if view is None:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic}")
        if not len(columns):
            return {}
        if partition is not None:
            if not 0 <= partition < len(view.partitions):
                raise BrokerError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"{topic}-{partition}",
                    f"the topic has {len(view.partitions)} partitions",
                )
            return {partition: columns}
        return self._partitioned_by_key(view, columns)

    def _partitioned_by_key(self, view: TopicView, columns: RecordColumns) -> dict[int, RecordColumns]:
        count = len(view.partitions)
        if count == 1:
            return {0: columns}
        keyless = self._sticky.partition(view.name, view.available or range(count))
        if self._config.partitioner_ignore_keys:
            return {keyless: columns}
        return split_by_key(columns, count, keyless)

    def _append(self, topic: str, partition: int, columns: RecordColumns, delivery: Delivery) -> None:
        size = estimate_bytes(columns)
        self._sticky.produced(topic, size)
        key = (topic, partition)
        for run, run_bytes in runs(columns, size, self._batch_bytes_max):
            delivery.expect_part()
            self._reserve(run_bytes)
            gathered = self._accumulators.get(key)
            if gathered is not None and gathered.size_bytes + run_bytes > self._config.batch_size:
                self._seal(key)
                gathered = None
            if gathered is None:
                gathered = self._accumulators[key] = Accumulator(topic, partition, self._loop.time() * 1000)
            gathered.add(run, run_bytes, Share(delivery, len(run)))
            if run_bytes >= self._config.batch_size:
                self._seal(key)

    def _seal(self, key: tuple[str, int]) -> None:
        """Build what was gathered; if that fails, build each send by itself, so that only the bad one fails."""
        gathered = self._accumulators.pop(key)
        try:
            self._build(gathered)
        except Exception as error:  # noqa: BLE001  (whatever the builder says about values that are no bytes)
            if len(gathered.pieces) > 1:
                for single in gathered.singles():
                    self._accumulators[key] = single
                    self._seal(key)
                return
            if not isinstance(error, ClientError):
                error = ClientError(f"{key[0]}-{key[1]}: records cannot be built into a batch: {error}")
            self._loop.call_soon_threadsafe(self.release, gathered.size_bytes)
            self._fail_shares(gathered.shares, error)

    def _build(self, gathered: Accumulator) -> None:
        columns = gathered.columns()
        data = build_batch(
            columns,
            compression=self._config.compression,
            compression_level=self._config.compression_level,
            checksum=not self._config.enable_idempotence,  # the core stamps sequence numbers, and the checksum
        )
        topic, partition = gathered.topic, gathered.partition
        if len(data) > self._config.max_request_size and len(columns) == 1:
            raise RecordTooLargeError(
                f"{topic}-{partition}: a record of {len(data)} bytes is larger than "
                f"max.request.size={self._config.max_request_size}"
            )
        deadline = self._loop.time() * 1000 + self._config.delivery_timeout_ms
        batch = ReadyBatch(topic, partition, data, len(columns), deadline, gathered.shares)
        batch.reserved_bytes = gathered.size_bytes
        self._built.append(batch)

    def _reserve(self, size_bytes: int) -> None:
        with self._room:
            self.buffered_bytes += size_bytes

    # -- the loop's thread -------------------------------------------------------------------------------------------

    async def ready(self) -> None:
        """Wait until there is room."""
        while self.buffered_bytes >= self._config.buffer_memory and not self._closed:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._ready_waiters.append(waiter)
            await waiter

    def release(self, size_bytes: int) -> None:
        """Count bytes as acknowledged or given up."""
        with self._room:
            self.buffered_bytes -= size_bytes
            if self._threads_waiting:
                self._room.notify_all()
        if self.buffered_bytes < self._config.buffer_memory:
            self._tell_ready()

    def _tell_ready(self) -> None:
        waiters, self._ready_waiters = self._ready_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def take_built(self) -> Iterator[ReadyBatch]:
        """Yield the batches that were built since, in order."""
        while self._handoff:
            yield self._handoff.popleft()

    def seal_due(self, now_ms: float, can_take: Callable[[str, int], bool]) -> None:
        """Build what has lingered long enough, where a batch could leave at once; else it may as well grow."""
        if not self._accumulators:
            return
        if not self._send_lock.acquire(blocking=False):  # a sender is building: it tells when it is done
            return
        try:
            for key, gathered in list(self._accumulators.items()):
                if now_ms - gathered.opened_ms >= self._config.linger_ms and can_take(*key):
                    self._seal(key)
            self._hand_over()
        finally:
            self._send_lock.release()

    def seal_all(self) -> None:
        """Build everything that was gathered."""
        with self._send_lock:
            for key in list(self._accumulators):
                self._seal(key)
            self._hand_over()

    def next_due_ms(self, can_take: Callable[[str, int], bool]) -> float | None:
        """Return when `seal_due` has something to do next, None when nothing is gathered that could leave."""
        opened = (gathered.opened_ms for key, gathered in list(self._accumulators.items()) if can_take(*key))
        first = min(opened, default=None)
        return None if first is None else first + self._config.linger_ms

    def close(self) -> None:
        """Refuse further sends, build what was gathered, and let nobody wait for room any more."""
        self._closed = True
        self.seal_all()
        with self._room:
            self._room.notify_all()
        self._tell_ready()
