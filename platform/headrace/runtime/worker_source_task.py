"""A source task: poll, transform, convert, send; source offsets are committed after acknowledgements.

An offset is written to the worker's offset store only after the brokers have acknowledged every record up to it (or the
record was intentionally dropped). A crash may therefore duplicate records but never loses any.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, cast

from headrace.api.errors import ConnectError, RetriableError
from headrace.api.task import SourceTask
from headrace.data.batch import SourceBatch, from_records
from headrace.runtime import client_configs
from headrace.runtime.chain import TransformChain
from headrace.runtime.conversion import ToBytes
from headrace.runtime.offsets_tracker import Offsets, OffsetsTracker, Submission
from headrace.runtime.tolerance import ErrorPolicy, Failure, RetryWithToleranceOperator
from headrace.runtime.topic_creator import TopicCreator
from headrace.runtime.worker_task import TaskContext, WorkerTask
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.writer import RecordMetadata, Writer

log = logging.getLogger(__name__)

RETRY_BACKOFF_S = 0.1
IDLE_WAIT_S = 0.05


class WorkerSourceTask(WorkerTask):
    """Runs one `SourceTask`."""

    task: SourceTask

    def work(self) -> None:
        """Poll until the task is stopped."""
        self._open()
        self.task.context = _Context(self)
        self.plugins.start_task(self.task)
        self.report_running()
        self.later(self.commit_in_background(self._commit))
        resting = self.paused
        while not self.stopping.is_set():
            if self.paused is not resting:
                resting = self.paused
                self.report_running()
            if resting:
                self._wake.wait_for_change()
                continue
            self._step()

    def finish(self) -> None:
        """Wait for pending acknowledgements, commit the acknowledged offsets, and close the clients."""
        writer = self._writer
        if writer is None:
            return
        timeout_ms = self.spec.worker_ms("offset.flush.timeout.ms", 5_000)
        try:
            self.from_loop(self._settle(writer, timeout_ms))
        finally:
            self._chain.close()
            self._converters.close()
            self.from_loop(self._close_clients(writer))

    def wake(self) -> None:
        """Interrupt a wait."""
        self._wake.notify()

    # the task's thread

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._wake = _Wake()
        self._writer: Writer | None = None
        self._tracker = OffsetsTracker()
        self._uncommitted: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {}
        self._send_error: BaseException | None = None
        self._acknowledged: deque[SourceBatch] = deque()
        self._commit_due = False
        self._topics_used: set[str] = set()

    def _open(self) -> None:
        plugins, spec = self.plugins, self.spec
        self._policy = ErrorPolicy.from_config(plugins.connector_config)
        stages = RetryWithToleranceOperator(
            self._policy,
            report=self._report_failure,
            describe=_describe,
            now_ms=_now_ms,
            wait_ms=lambda delay_ms: not self.stopping.wait(delay_ms / 1000),
            rng=Random(),
        )
        self._converters = plugins.make_converters()
        self._to_bytes = ToBytes(self._converters, stages)
        self._chain = TransformChain(plugins.make_steps(), stages)
        self._hears_acknowledgements = type(self.task).commit_record is not SourceTask.commit_record
        self._topic_creator = TopicCreator.from_plugins(plugins)
        properties = client_configs.source_producer_properties(plugins.worker, plugins.connector_config, spec.name)
        config = ClientConfig.from_properties(properties, kind="producer")
        for warning in config.warnings:
            log.warning("%s", warning)
        self._writer = self.open_client(lambda: Writer.open(config))

    def _step(self) -> None:
        """One poll and what comes of it."""
        if self._send_error is not None:
            raise ConnectError(f"Failed to write a record to its topic: {self._send_error}") from self._send_error
        try:
            polled = self.task.poll()
        except RetriableError as error:
            log.warning("Task %s: poll failed with a retriable error, retrying: %s", self.spec.name, error)
            self.stopping.wait(RETRY_BACKOFF_S)
            polled = None
        for batch in _as_batches(polled):
            self._send(batch)
        self._call_back()

    def _send(self, batch: SourceBatch) -> None:
        now_ms = _now_ms()
        outgoing = [
            (result.topic, result.partition, columns)
            for result in self._chain.apply(batch)
            for columns in self._to_bytes.convert(result, now_ms)
        ]
        submission = self._tracker.submit(batch.source_partition, batch.source_offset, len(outgoing))
        counters = self.counters
        counters.batches += 1
        notify = _Acknowledgement(self, submission, batch)
        if not outgoing and self._hears_acknowledgements:
            self._acknowledged.append(batch)
        writer = self._writer
        assert writer is not None
        for topic, partition, columns in outgoing:
            if topic not in self._topics_used:
                self._first_use(topic)
            writer.send_with_callback(topic, partition, columns, partial(notify, len(columns)))
            counters.records += len(columns)

    def _first_use(self, topic: str) -> None:
        if self._topic_creator is not None:
            self.from_loop(self._topic_creator.ensure(topic))
        self._topics_used.add(topic)
        self.use_topic(topic)

    def _call_back(self) -> None:
        while self._acknowledged:
            for record in self._acknowledged.popleft().to_records():
                self._quietly(self.task.commit_record, record, None)
        if self._commit_due:
            self._commit_due = False
            self._quietly(self.task.commit)

    def _quietly(self, callback: Any, *arguments: Any) -> None:
        try:
            callback(*arguments)
        except Exception:
            log.exception("Task %s: %s failed; the task continues", self.spec.name, callback.__name__)

    def _report_failure(self, failure: Failure, part: Any) -> None:
        self.counters.errors += 1
        self.counters.skipped += 1
        if self._policy.log:
            log.error(
                "Error encountered in task %s. Executing stage '%s' with class '%s', where %s%s: %s",
                self.spec.name,
                failure.stage.value,
                failure.class_name,
                _describe(part),
                f", record value {part.values[0]!r}" if self._policy.log_messages else "",
                failure.error,
                exc_info=failure.error,
            )

    # the event loop

    def acknowledged(
        self, submission: Submission, batch: SourceBatch, sent: int, written: int, error: BaseException | None
    ) -> None:
        """Handle the result of sending part of a batch: `written` of its `sent` records were written."""
        if error is not None:
            self.counters.errors += sent - written
            if not self._policy.tolerate:
                self._send_error = error
                return
            self.counters.skipped += sent - written
            log.error(
                "Task %s: skipping %d of %d records that could not be written to topic %s: %s",
                self.spec.name,
                sent - written,
                sent,
                batch.topic,
                error,
            )
        submission.acknowledge()
        if self._hears_acknowledgements and submission.parts <= 0:
            self._acknowledged.append(batch)

    async def _commit(self) -> None:
        """Hand the committable offsets to the worker; what fails is taken up by the next round."""
        offsets = self._committable()
        if not offsets:
            return
        timeout_s = self.spec.worker_ms("offset.flush.timeout.ms", 5_000) / 1000
        try:
            await asyncio.wait_for(self.ask_worker("commit_offsets", offsets), timeout_s)
        except Exception as error:  # noqa: BLE001 - no offsets are lost: they stay in _uncommitted
            log.error("Task %s: failed to commit offsets, retrying at the next commit: %s", self.spec.name, error)
            return
        self._uncommitted.clear()
        self._commit_due = True

    def _committable(self) -> Offsets:
        for partition, offset in self._tracker.committable():
            self._uncommitted[repr(sorted(partition.items()))] = (partition, offset)
        return list(self._uncommitted.values())

    async def _settle(self, writer: Writer, timeout_ms: int) -> None:
        try:
            await asyncio.wait_for(writer.flush(), timeout_ms / 1000)
        except TimeoutError:
            log.warning(
                "Task %s: %d batches were not acknowledged within offset.flush.timeout.ms=%d; "
                "after a restart they are read again",
                self.spec.name,
                self._tracker.unacknowledged(),
                timeout_ms,
            )
        await asyncio.sleep(0)  # the futures' callbacks run first
        await self._commit()

    async def _close_clients(self, writer: Writer) -> None:
        if self._topic_creator is not None:
            await self._topic_creator.close()
        await writer.close()


class _Acknowledgement:
    """What the writer tells of one batch."""

    __slots__ = ("_batch", "_submission", "_unit")

    def __init__(self, unit: WorkerSourceTask, submission: Submission, batch: SourceBatch) -> None:
        self._unit = unit
        self._submission = submission
        self._batch = batch

    def __call__(self, sent: int, result: RecordMetadata | None, error: BaseException | None) -> None:
        written = 0 if result is None else result.count
        self._unit.acknowledged(self._submission, self._batch, sent, written, error)


class _Context(TaskContext):
    """The platform's interface for a source task."""

    def __init__(self, unit: WorkerSourceTask) -> None:
        super().__init__(unit)
        self._unit = unit
        self.offsets = self

    def read(self, partition: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the last committed offset of a source partition."""
        return self.read_all([partition])[0]

    def read_all(self, partitions: Iterable[Mapping[str, Any]]) -> list[dict[str, Any] | None]:
        """Return the last committed offsets of source partitions."""
        wanted = [dict(partition) for partition in partitions]
        found = self._unit.from_loop(self._unit.ask_worker("read_offsets", wanted))
        return cast("list[dict[str, Any] | None]", found)


class _Wake:
    """A wait that a change of the task's state interrupts."""

    def __init__(self) -> None:
        import threading

        self._event = threading.Event()

    def wait_for_change(self) -> None:
        self._event.wait()
        self._event.clear()

    def notify(self) -> None:
        self._event.set()


def _as_batches(polled: Any) -> Sequence[SourceBatch]:
    if polled is None:
        return ()
    if isinstance(polled, SourceBatch):
        return (polled,) if len(polled) else ()
    items = list(polled)
    if not items or isinstance(items[0], SourceBatch):
        return [batch for batch in items if len(batch)]
    return cast("list[SourceBatch]", from_records(items))


def _describe(part: Any) -> str:
    offset = part.source_offsets[0] if part.source_offsets else part.source_offset
    return f"a record for topic {part.topic} from source partition {part.source_partition} at offset {offset}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
