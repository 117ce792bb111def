"""Builds record batches from the records of `send` calls, in the thread that calls `send`.

The batcher accumulates the records of small calls for linger.ms. It builds batches from the records of larger calls
immediately. Calls are small if they have less than batch.size bytes (by default 16 KiB). If the user has set
batch.size, it is also the maximum size of a batch. Otherwise, the maximum size is 1 MB.
`_send_lock` keeps the records in order while batches are built. The condition `_memory_available` guards the counter
`buffered_bytes`. buffer.memory is the limit of this counter. Batches are queued in order until the event loop retrieves
them with `drain_built`.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from headrace_broker.client import delivery as deliveries
from headrace_broker.client.accumulator import Accumulator, estimate_bytes, split_into_runs
from headrace_broker.client.cluster import Cluster
from headrace_broker.client.cluster_view import TopicView
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.delivery import Delivery, DeliveryPart
from headrace_broker.client.errors import (
    BrokerError,
    BufferExhaustedError,
    ClientError,
    ClosedError,
    RecordTooLargeError,
)
from headrace_broker.client.partitioner import StickyPartitioner, split_by_key
from headrace_broker.client.producer_core import ReadyBatch
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.records.batch import HEADER_SIZE
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns

_BATCH_BYTES_DEFAULT = 1_000_000
"""Large batches cost less CPU time per record. Brokers accept batches up to about 1 MiB by default."""


class Batcher:
    """Builds a producer's batches.

    When batches may be ready, `send` calls `on_built` in the thread that has called `send`.
    """

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
        self._memory_available = threading.Condition(threading.Lock())
        self._threads_waiting = 0
        self._ready_waiters: list[asyncio.Future[None]] = []
        self._accumulators: dict[tuple[str, int], Accumulator] = {}
        self._built: list[ReadyBatch] = []
        self._handoff: deque[ReadyBatch] = deque()
        self._closed = False

    # -- any thread --------------------------------------------------------------------------------------------------

    def send(self, topic: str, partition: int | None, columns: RecordColumns, delivery: Delivery) -> None:
        """Divide the records among partitions; accumulate small parts, and build batches from large parts.

        The event loop receives each batch when the batch is built. For a large call, the event loop sends the first
        batches while this method builds the next ones. This method adds all parts to `delivery` before it builds the
        first batch. Afterwards, only the event loop uses `delivery`.
        """
        if columns.timestamps is None:
            columns.timestamps = int(time.time() * 1000)
        with self._send_lock:
            try:
                if self._closed:
                    raise ClosedError("the producer is closed")
                runs = self._split(topic, partition, columns)
            except Exception as error:  # noqa: BLE001  (keys and values that are not bytes raise various errors)
                if not isinstance(error, ClientError):
                    error = ClientError(f"records for {topic} cannot be sent: {error}")
                delivery.expect_part()
                delivery.seal()
                self._fail_deliveries([DeliveryPart(delivery, len(columns))], error)
                return
            for _ in runs:
                delivery.expect_part()
            if runs:
                delivery.seal()
            else:
                self._loop.call_soon_threadsafe(delivery.seal)
            for number, run, run_bytes in runs:
                if self._built:
                    self._hand_over()
                    self._on_built()
                self._append((topic, number), run, run_bytes, DeliveryPart(delivery, len(run)))
            self._hand_over()
        self._on_built()  # after the lock is released, because `seal_due` does nothing while the lock is held

    def wait_for_memory(self, timeout_ms: float) -> None:
        """Block until fewer than buffer.memory bytes are buffered. Raises BufferExhaustedError, ClosedError."""
        if self.buffered_bytes < self._config.buffer_memory:
            return
        with self._memory_available:
            self._threads_waiting += 1
            try:
                has_memory = self._memory_available.wait_for(
                    lambda: self.buffered_bytes < self._config.buffer_memory or self._closed,
                    min(timeout_ms / 1000, threading.TIMEOUT_MAX),
                )
            finally:
                self._threads_waiting -= 1
        if self._closed:
            raise ClosedError("the producer was closed while a send waited for buffer memory")
        if not has_memory:
            raise BufferExhaustedError(
                f"the producer's buffer is full: {self.buffered_bytes} bytes are not acknowledged "
                f"(buffer.memory={self._config.buffer_memory}), and no memory was released within {timeout_ms:.0f} ms"
            )

    def _hand_over(self) -> None:
        self._handoff.extend(self._built)
        self._built.clear()

    def _fail_deliveries(self, parts: list[DeliveryPart], error: ClientError) -> None:
        """Mark each part as failed with `error`, in the `Delivery` object of the part.

        This runs in the event loop's thread, because only this thread may complete deliveries.
        """
        self._loop.call_soon_threadsafe(deliveries.fail, parts, error)

    def _partition_records(self, topic: str, partition: int | None, columns: RecordColumns) -> dict[int, RecordColumns]:
        view = self._cluster.view.topics.get(topic)
        if view is None:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"cannot send records to topic {topic}")
        if not len(columns):
            return {}
        if partition is not None:
            if not 0 <= partition < len(view.partitions):
                raise BrokerError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"{topic}-{partition}",
                    f"topic {topic} has only {len(view.partitions)} partitions",
                )
            return {partition: columns}
        return self._partition_by_key(view, columns)

    def _partition_by_key(self, view: TopicView, columns: RecordColumns) -> dict[int, RecordColumns]:
        count = len(view.partitions)
        if count == 1:
            return {0: columns}
        keyless = self._sticky.partition(view.name, view.available or range(count))
        if self._config.partitioner_ignore_keys:
            return {keyless: columns}
        return split_by_key(columns, count, keyless)

    def _split(self, topic: str, partition: int | None, columns: RecordColumns) -> list[tuple[int, RecordColumns, int]]:
        """Divide the records among partitions and by size; return (partition, records, bytes) of each part."""
        runs: list[tuple[int, RecordColumns, int]] = []
        for number, part in self._partition_records(topic, partition, columns).items():
            size = estimate_bytes(part)
            self._sticky.count_produced(topic, size)
            runs += [(number, run, run_bytes) for run, run_bytes in split_into_runs(part, size, self._batch_bytes_max)]
        return runs

    def _append(self, key: tuple[str, int], run: RecordColumns, run_bytes: int, part: DeliveryPart) -> None:
        self._reserve(run_bytes)
        accumulator = self._accumulators.get(key)
        if accumulator is not None and accumulator.size_bytes + run_bytes > self._config.batch_size:
            self._seal(key)
            accumulator = None
        if accumulator is None:
            accumulator = self._accumulators[key] = Accumulator(*key, self._loop.time() * 1000)
        accumulator.add(run, run_bytes, part)
        if run_bytes >= self._config.batch_size:
            self._seal(key)

    def _seal(self, key: tuple[str, int]) -> None:
        """Build a batch of the partition's accumulated records.

        If the build fails, build a separate batch for each `send` call, so that only the invalid call fails.
        """
        accumulator = self._accumulators.pop(key)
        try:
            self._build(accumulator)
        except Exception as error:  # noqa: BLE001  (values that are not bytes raise various errors)
            if len(accumulator.parts) > 1:
                for single in accumulator.split_by_send():
                    self._accumulators[key] = single
                    self._seal(key)
                return
            if not isinstance(error, ClientError):
                error = ClientError(f"{key[0]}-{key[1]}: records cannot be built into a batch: {error}")
            self._loop.call_soon_threadsafe(self.release, accumulator.size_bytes)
            self._fail_deliveries(accumulator.delivery_parts, error)

    def _build(self, accumulator: Accumulator) -> None:
        columns = accumulator.columns()
        data = build_batch(
            columns,
            compression=self._config.compression,
            compression_level=self._config.compression_level,
            checksum=not self._config.enable_idempotence,  # `ProducerCore` writes sequence numbers and the checksum
        )
        topic, partition = accumulator.topic, accumulator.partition
        if len(data) > self._config.max_request_size and len(columns) == 1:
            raise RecordTooLargeError(
                f"{topic}-{partition}: a record of {len(data)} bytes is larger than "
                f"max.request.size={self._config.max_request_size}"
            )
        deadline = self._loop.time() * 1000 + self._config.delivery_timeout_ms
        batch = ReadyBatch(topic, partition, data, len(columns), deadline, accumulator.delivery_parts)
        batch.reserved_bytes = accumulator.size_bytes
        self._built.append(batch)

    def _reserve(self, size_bytes: int) -> None:
        with self._memory_available:
            self.buffered_bytes += size_bytes

    # -- the loop's thread -------------------------------------------------------------------------------------------

    async def ready(self) -> None:
        """Wait until fewer than buffer.memory bytes are buffered."""
        while self.buffered_bytes >= self._config.buffer_memory and not self._closed:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._ready_waiters.append(waiter)
            await waiter

    def release(self, size_bytes: int) -> None:
        """Release the memory of a batch that was acknowledged or has failed."""
        with self._memory_available:
            self.buffered_bytes -= size_bytes
            if self._threads_waiting:
                self._memory_available.notify_all()
        if self.buffered_bytes < self._config.buffer_memory:
            self._wake_ready_waiters()

    def _wake_ready_waiters(self) -> None:
        waiters, self._ready_waiters = self._ready_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    @property
    def has_records(self) -> bool:
        """Whether records are accumulated, or batches wait for `drain_built`."""
        return bool(self._accumulators or self._handoff)

    def drain_built(self) -> Iterator[ReadyBatch]:
        """Yield the batches that were built since the last call, in order."""
        while self._handoff:
            yield self._handoff.popleft()

    def seal_due(self, now_ms: float, can_send: Callable[[str, int], bool]) -> None:
        """Build a batch from each accumulator whose linger.ms has passed, if the batch can be sent immediately.

        All other accumulators keep accumulating records.
        """
        if not self._accumulators:
            return
        if not self._send_lock.acquire(blocking=False):
            return  # a sender is building batches, and calls `on_built` when it finishes
        try:
            for key, accumulator in list(self._accumulators.items()):
                if now_ms - accumulator.opened_ms >= self._config.linger_ms and can_send(*key):
                    self._seal(key)
            self._hand_over()
        finally:
            self._send_lock.release()

    def seal_all(self) -> None:
        """Build batches from all accumulated records."""
        with self._send_lock:
            for key in list(self._accumulators):
                self._seal(key)
            self._hand_over()

    def next_due_ms(self, can_send: Callable[[str, int], bool]) -> float | None:
        """Return when `seal_due` has to run next, or None if no accumulated records can be sent.

        `can_send(topic, partition)` returns whether a batch of the partition can be sent immediately.
        """
        if not self._accumulators:
            return None
        opened = (accumulator.opened_ms for key, accumulator in list(self._accumulators.items()) if can_send(*key))
        first = min(opened, default=None)
        return None if first is None else first + self._config.linger_ms

    def close(self) -> None:
        """Reject new sends, build batches from all accumulated records, and wake the threads that wait for memory."""
        self._closed = True
        self.seal_all()
        with self._memory_available:
            self._memory_available.notify_all()
        self._wake_ready_waiters()
