"""A sink task: consume, convert, transform, put; offsets are committed as the task's `pre_commit` returns them.

The event loop fetches bytes and passes them to the task's thread through an inbox; rebalances, commits and commands use
the same inbox. The task's thread decodes, converts, transforms and puts some thousand records at a time, which fit into
the CPU's cache, and checks the inbox in between. Prefetched records of a revoked partition are discarded; the
partition's next owner reads them.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from random import Random
from typing import Any

from headrace.api.errors import RetriableError
from headrace.api.task import SinkTask
from headrace.data.batch import SinkBatch
from headrace.data.sink_records import SinkRecords
from headrace.runtime import client_configs
from headrace.runtime.chain import TransformChain
from headrace.runtime.conversion import FromBytes, RawPart
from headrace.runtime.sink_errors import SinkErrors
from headrace.runtime.sink_offsets import SinkOffsets, TopicPartition
from headrace.runtime.sink_reading import SinkReading
from headrace.runtime.tolerance import ErrorPolicy, RetryWithToleranceOperator
from headrace.runtime.worker_task import TaskContext, WorkerTask
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.reader import FetchedBatch, FetchedChunk

log = logging.getLogger(__name__)

RETRY_BACKOFF_MS = 100


class WorkerSinkTask(WorkerTask):
    """Runs one `SinkTask`."""

    task: SinkTask

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.offsets = SinkOffsets()
        self.paused_by_task: set[TopicPartition] = set()
        self.retry_timeout_ms: int | None = None
        self.wanted_positions: dict[TopicPartition, int] = {}  # the task's seeks, for when its call has returned
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._held: deque[FetchedChunk] = deque()  # read, but its turn has not come, or its partition is paused
        self._polls_taken = 0  # that the reader has not been told of yet
        self._redeliver: deque[tuple[FetchedBatch, deque[SinkBatch]]] = deque()
        self._resting = False  # the user paused the task
        self._chain: TransformChain | None = None
        self._reading: SinkReading | None = None

    # the task's thread

    def work(self) -> None:
        """Process the inbox until the task is stopped."""
        self._open()
        self.task.context = _Context(self)
        self.plugins.start_task(self.task)
        self._resting = self.paused
        self.open_client(self._open_reader)
        self.report_running()
        while not self.stopping.is_set():
            self._next_step()()
            while self._redeliver and not self.stopping.is_set():
                self._deliver_again()
            if self.wanted_positions:
                wanted, self.wanted_positions = self.wanted_positions, {}
                self.seek(wanted)

    def finish(self) -> None:
        """Commit offsets, release the partitions, and close the clients."""
        if self._chain is None:
            return
        try:
            if self._reading is not None:
                self.from_loop(self._reading.stop())
            self.give_back(list(self.offsets.delivered))
        finally:
            self._chain.close()
            self._converters.close()
            self.from_loop(self._close_clients())

    def commit(self, *, wait: bool = False) -> None:
        """Call the task's `pre_commit` and commit the returned offsets."""
        delivered = dict(self.offsets.delivered)
        if not delivered:
            return
        try:
            self.errors.wait_for_reports()
            wanted = self.task.pre_commit(delivered)
        except Exception:
            log.exception("Task %s: pre_commit failed, rewinding to the last committed offsets", self.spec.name)
            if not wait:
                self.seek(self.offsets.rewind())
            return
        offsets, complaints = self.offsets.to_commit(wanted)
        for complaint in complaints:
            log.warning("Task %s: %s", self.spec.name, complaint)
        if offsets:
            self._send_commit(offsets, wait)

    def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        """Continue to consume at other offsets; prefetched records of all partitions are discarded and read again."""
        self._held.clear()
        self._redeliver.clear()
        for partition, offset in positions.items():
            if partition in self.offsets.delivered:
                self.offsets.deliver(partition, offset)
        self.from_loop(self._reader.seek(dict(self.offsets.delivered)))
        self.apply_pauses()

    def apply_pauses(self) -> None:
        """Send the current set of paused partitions to the consumer."""
        assigned = set(self.offsets.delivered)
        paused = assigned if self._resting or self._redeliver else self.paused_by_task & assigned
        self.from_loop(self._reader.pause(paused, assigned - paused))

    def _open(self) -> None:
        plugins = self.plugins
        policy = ErrorPolicy.from_config(plugins.connector_config)
        self._converters = plugins.make_converters()
        self.errors = SinkErrors(self, policy, self._converters)
        self.open_client(self.errors.open)
        stages = RetryWithToleranceOperator(
            policy,
            report=self.errors.report_failure,
            describe=self.errors.describe,
            now_ms=lambda: time.monotonic_ns() // 1_000_000,
            wait_ms=lambda delay_ms: not self.stopping.wait(delay_ms / 1000),
            rng=Random(),
        )
        self._from_bytes = FromBytes(self._converters, stages)
        self._chain = TransformChain(plugins.make_steps(), stages)

    def take_fetched(self, epoch: int, chunks: Sequence[FetchedChunk]) -> None:
        """Queue the chunks of a poll; if the poll returned none, call `put` without records."""
        self._polls_taken += 1
        if epoch == self._reader.epoch:
            self._held.extend(chunk for chunk in chunks if (chunk.topic, chunk.partition) in self.offsets.delivered)
        if not chunks and not self._resting and not self._redeliver and not self._held:
            self.task.put(SinkRecords())
        self._ready()

    def _next_step(self) -> Callable[[], None]:
        """What has come in, else a piece of what is held, else what comes in next."""
        chunk = self._ready()
        if chunk is None:
            return self._inbox.get()
        try:
            return self._inbox.get_nowait()
        except queue.Empty:
            return lambda: self._deliver_piece(chunk)

    def _ready(self) -> FetchedChunk | None:
        """The first chunk that is held and not paused. Where there is one at most, reading goes on."""
        ready = (chunk for chunk in self._held if not self._is_paused((chunk.topic, chunk.partition)))
        first, second = next(ready, None), next(ready, None)
        if second is None:
            for _ in range(self._polls_taken):
                self._reader.read_on()
            self._polls_taken = 0
        return first

    def _deliver_piece(self, chunk: FetchedChunk) -> None:
        fetched = chunk.next_batch(self._reader.records_max)
        if fetched is not None:
            self._deliver(fetched)
            self._reader.keep_alive()
            return
        self._held.remove(chunk)
        self.offsets.deliver((chunk.topic, chunk.partition), chunk.next_offset)  # control batches come last, or alone

    def _is_paused(self, partition: TopicPartition) -> bool:
        return self._resting or bool(self._redeliver) or partition in self.paused_by_task

    def _deliver(self, fetched: FetchedBatch) -> None:
        assert self._chain is not None
        raw = RawPart(fetched.topic, fetched.partition, fetched.columns)
        self.errors.current = raw
        ready = deque(result for batch in self._from_bytes.convert(raw) for result in self._chain.apply(batch))
        self._put(fetched, ready)

    def _put(self, fetched: FetchedBatch, ready: deque[SinkBatch]) -> None:
        """Put batch by batch; one that is to be retried stays first in line, and all partitions rest meanwhile."""
        while ready:
            try:
                self.task.put(SinkRecords((ready[0],)))
            except RetriableError as error:
                log.warning("Task %s: put failed with a retriable error, retrying: %s", self.spec.name, error)
                self._redeliver.append((fetched, ready))
                self.apply_pauses()
                return
            ready.popleft()
        self.errors.send_letters()
        self.offsets.deliver((fetched.topic, fetched.partition), fetched.next_offset)
        self.counters.records += len(fetched.columns)
        self.counters.batches += 1

    def _deliver_again(self) -> None:
        """Serve the inbox for the time that the task asked for, then put again."""
        wait_ms = RETRY_BACKOFF_MS if self.retry_timeout_ms is None else self.retry_timeout_ms
        self.retry_timeout_ms = None
        deadline = time.monotonic() + wait_ms / 1000
        while self._redeliver and not self.stopping.is_set() and (left := deadline - time.monotonic()) > 0:
            try:
                self._inbox.get(timeout=left)()
            except queue.Empty:
                break
        if not self._redeliver or self._resting or self.stopping.is_set():
            return
        fetched, ready = self._redeliver.popleft()
        self._put(fetched, ready)
        if not self._redeliver:
            self.apply_pauses()

    def _rest(self, resting: bool) -> None:
        if resting is self._resting:
            return
        self._resting = resting
        self.apply_pauses()
        self.report_running()

    def take_over(self, positions: Mapping[TopicPartition, int]) -> None:
        """Handle assigned partitions."""
        self.offsets.assign(positions)
        for topic in {topic for topic, _ in positions}:
            self.use_topic(topic)
        self.task.open(sorted(positions))
        if self._resting or self._redeliver or self.paused_by_task:
            self.apply_pauses()

    def give_back(self, partitions: Sequence[TopicPartition], *, lost: bool = False) -> None:
        """Handle revoked partitions; those that are `lost` already belong to another member."""
        if not partitions:
            return
        if not lost:
            self.commit(wait=True)
        gone = set(partitions)
        self._held = deque(item for item in self._held if (item.topic, item.partition) not in gone)
        self._redeliver = deque(item for item in self._redeliver if (item[0].topic, item[0].partition) not in gone)
        self.paused_by_task -= gone
        self.offsets.revoke(gone)
        self.task.close(sorted(gone))

    def _send_commit(self, offsets: dict[TopicPartition, int], wait: bool) -> None:
        future = self.later(self._reader.commit(offsets))
        future.add_done_callback(lambda done: self._inbox.put(lambda: self._committed(offsets, done)))
        if wait:
            timeout_s = self.spec.worker_ms("offset.flush.timeout.ms", 5_000) / 1000
            try:
                future.result(timeout_s)
            except TimeoutError:
                log.error(
                    "Task %s: the commit of offsets timed out; uncommitted records may be delivered again",
                    self.spec.name,
                )
            except Exception as error:  # noqa: BLE001 - logged by _committed as well, but the inbox may be closed
                log.error(
                    "Task %s: failed to commit offsets; uncommitted records may be delivered again: %s",
                    self.spec.name,
                    error,
                )
            else:
                self.offsets.committed.update(offsets)

    def _committed(self, offsets: dict[TopicPartition, int], done: Future[Any]) -> None:
        error = done.exception()
        if error is not None:
            log.error("Task %s: failed to commit offsets, retrying at the next commit: %s", self.spec.name, error)
            return
        for partition, offset in offsets.items():
            if partition in self.offsets.committed:
                self.offsets.committed[partition] = max(offset, self.offsets.committed[partition])

    @property
    def _reader(self) -> SinkReading:
        assert self._reading is not None
        return self._reading

    # the event loop

    def wake(self) -> None:
        """Make the thread check its inbox, because a command has arrived."""
        wanted = self.paused
        self._inbox.put(lambda: self._rest(wanted))

    def request_commit(self) -> None:
        """Commit as soon as the thread is free; callable from any thread."""
        self._inbox.put(self.commit)

    def hand_over(self, action: Callable[[], None]) -> None:
        """Queue an action for the task's thread; actions run in order. Callable from any thread."""
        self._inbox.put(action)

    async def _open_reader(self) -> None:
        plugins, spec = self.plugins, self.spec
        properties = client_configs.consumer_properties(plugins.worker, plugins.connector_config, spec.name)
        config = ClientConfig.from_properties(properties, kind="consumer")
        for warning in config.warnings:
            log.warning("%s", warning)
        self._reading = SinkReading(self, config, plugins.connector_config, spec.number)
        await self._reading.open()
        self.background(self._commit_forever())

    async def _commit_forever(self) -> None:
        interval_s = self.spec.worker_ms("offset.flush.interval.ms", 60_000) / 1000
        while True:
            await asyncio.sleep(interval_s)
            self._inbox.put(self.commit)

    async def _close_clients(self) -> None:
        if self._reading is not None:
            await self._reading.close()
        await self.errors.close()


class _Context(TaskContext):
    """The platform's interface for a sink task; used from the task's thread."""

    def __init__(self, unit: WorkerSinkTask) -> None:
        super().__init__(unit)
        self._unit = unit

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are currently assigned to the task."""
        return frozenset(self._unit.offsets.delivered)

    @property
    def errant_record_reporter(self) -> Any:
        """The reporter for errant records; None if neither a DLQ nor error logging is configured."""
        return self._unit.errors.reporter()

    def pause(self, *partitions: TopicPartition) -> None:
        """Pause the consumption of these partitions."""
        self._unit.paused_by_task.update(partitions)
        self._unit.apply_pauses()

    def resume(self, *partitions: TopicPartition) -> None:
        """Resume the consumption of these partitions."""
        self._unit.paused_by_task.difference_update(partitions)
        self._unit.apply_pauses()

    def offset(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Continue to consume at these offsets after the current call has returned."""
        self._unit.wanted_positions.update(offsets)

    def request_commit(self) -> None:
        """Request an offset commit as soon as possible."""
        self._unit.request_commit()

    def timeout(self, timeout_ms: int) -> None:
        """Set the delay before the next retry of `put`."""
        self._unit.retry_timeout_ms = timeout_ms
