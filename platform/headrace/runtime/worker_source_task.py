"""Runs a source task: poll, transform, convert, send. Source offsets are committed after acknowledgements.

`SourceTaskCore` makes the decisions, and this module carries out its effects. The task's thread runs plug-in code,
including transforms and converters. The producer runs on the event loop, which handles acknowledgements and commits
offsets even while `poll` blocks. A crash may duplicate records but never loses any.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from random import Random
from typing import Any

from headrace.api.errors import ConnectError, RetriableError
from headrace.api.task import RecordMetadata, SourceTask
from headrace.data.batch import SourceBatch
from headrace.data.records import SourceRecord
from headrace.metrics import log_text, logs
from headrace.metrics.elapsed import ms_since
from headrace.runtime import client_configs
from headrace.runtime import source_task_core as core
from headrace.runtime.chain import TransformChain
from headrace.runtime.channel import RemoteError
from headrace.runtime.conversion import ToBytes
from headrace.runtime.dead_letter_queue import DeadLetterQueue
from headrace.runtime.error_policy import DeadLetterQueueConfig, ErrorPolicy, Failure, Stage, tolerance_exceeded
from headrace.runtime.offsets_tracker import Submission
from headrace.runtime.source_errors import SourceErrors
from headrace.runtime.task_effects import Fail, ReportState, Wait
from headrace.runtime.tolerance import RetryWithToleranceOperator
from headrace.runtime.topic_creator import TopicCreator
from headrace.runtime.worker_task import TaskContext, WorkerTask
from headrace.stores.offset_keys import requested_partitions
from headrace_broker.client.delivery import RecordMetadata as SendMetadata
from headrace_broker.client.errors import ClosedError, RecordTooLargeError
from headrace_broker.client.producer import Producer

log = logging.getLogger(__name__)


class WorkerSourceTask(WorkerTask):
    """Runs one `SourceTask`."""

    task: SourceTask

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._policy = ErrorPolicy.from_config(self.plugins.connector_config)
        self._errors = SourceErrors(
            self.spec.name, self._policy, self.counters.errors, raise_if_ending=self._raise_if_ending
        )
        queue = DeadLetterQueueConfig.from_config(self.plugins.connector_config)
        self._has_queue = self._policy.tolerate and queue is not None
        self.core = core.SourceTaskCore(
            self.spec.name,
            is_paused=self.paused,
            tolerates_errors=self._policy.tolerate,
            commits_records=self._has_queue or type(self.task).commit_record is not SourceTask.commit_record,
            has_dead_letter_queue=self._has_queue,
        )
        self._lock = threading.Lock()  # held in every call of `SourceTaskCore`
        self._core_called = threading.Event()  # the event loop has called `SourceTaskCore`
        self._commit_lock = asyncio.Lock()
        self._producer: Producer | None = None
        self._topic_creator: TopicCreator | None = None
        self._preparation: asyncio.Task[None] | None = None

    # The task's thread

    def work(self) -> None:
        """Poll and send until the task is stopped."""
        self._open()
        self.task.context = _Context(self)
        self.start_task()
        self.later(self.commit_in_background(self._commit))
        has_stopped = False
        while not has_stopped:
            has_stopped = self._step()

    def finish(self) -> None:
        """Wait for acknowledgements, commit the acknowledged offsets, and close the clients."""
        producer = self._producer
        if producer is None:
            return
        try:
            # Commit before the wait, too: the process is killed if the wait exceeds the graceful timeout.
            self._carry_out(self._call_core(self.core.on_commit_due))
            self.from_loop(self._flush(producer))
            self._carry_out(self._call_core(self.core.flushed))
            self._carry_out(self._call_core(self.core.close))
        finally:
            self._chain.close()
            self._converters.close()
            self.from_loop(self._close_clients(producer))

    def _open(self) -> None:
        plugins, spec = self.plugins, self.spec
        operator = RetryWithToleranceOperator(
            self._policy,
            report=self._report_failed,
            describe=core.describe,
            now_ms=_now_ms,
            wait_ms=self.wait_before_retry,
            rng=Random(),
            on_retry=self.counters.errors.add_failed_attempt,
        )
        if self._has_queue:
            self._errors.queue = self.open_client(lambda: DeadLetterQueue.open(plugins, spec, self.counters.errors))
        self._converters = plugins.make_converters()
        self._to_bytes = ToBytes(self._converters, operator)
        self._chain = TransformChain(plugins.make_steps(), operator)
        self._topic_creator = TopicCreator.from_plugins(plugins)
        properties = client_configs.source_producer_properties(plugins.worker, plugins.connector_config, spec.name)
        config = client_configs.parse_producer(properties)
        for warning in config.warnings:
            log.warning("Task %s: producer configuration: %s", spec.name, warning)
        self._producer = self.open_client(lambda: Producer.open(config, is_at_least_once=True))

    def report_skipped(self, record: SourceRecord, error: Exception) -> None:
        """Handle a record that the task skips.

        Raises ToleranceExceeded if errors are not tolerated, and DataError if the record's source partition or source
        offset cannot be stored.
        """
        [part] = core.polled_batches([record], type(self.task).display_class())
        failure = Failure(Stage.TASK_POLL, type(self.task).display_class(), error, 1)
        self._errors.log_failure(failure, part)
        if self._has_queue:
            with self._lock:
                submission = self.core.failed_in_poll(part.source_partition)
            self._errors.send(failure, part, partial(self._on_dlq_acknowledged, submission))
        if not self._policy.tolerate:
            raise tolerance_exceeded(failure, core.describe(part)) from error

    def _report_failed(self, failure: Failure, part: SourceBatch) -> None:
        """Handle a record that a transform or a converter rejected."""
        self._errors.log_failure(failure, part)
        if self._has_queue:
            with self._lock:
                submission = self.core.failed_in_conversion()
            self._errors.send(failure, part, partial(self._on_dlq_acknowledged, submission))

    def _raise_if_ending(self) -> None:
        """Raise ClosedError if the task is to stop, or the error that fails the task at its next step."""
        if self.stopping.is_set():
            raise ClosedError("the task is being stopped")
        if self.core.error is not None:
            raise self.core.error

    def _step(self) -> bool:
        """Carry out the effects of `SourceTaskCore.next_step`. Return whether the task has stopped."""
        producer = self._producer
        assert producer is not None
        if self._core_called.is_set():
            self._core_called.clear()
        with self._lock:
            effects = self.core.next_step(_monotonic_ms(), is_buffer_full=producer.is_buffer_full)
        self._carry_out(effects)
        return isinstance(effects[-1], core.Stop)

    def _carry_out(self, effects: list[core.Effect]) -> None:
        for effect in effects:
            self._carry_out_one(effect)

    def _carry_out_one(self, effect: core.Effect) -> None:
        match effect:
            case core.Send():
                self._send(effect)
            case core.Convert(polled, batch, by_record):
                started, skipped = time.monotonic(), self.counters.errors.skipped
                outgoing = self._convert_by_record(batch) if by_record else self._convert(batch)
                self.counters.add_active(sum(len(each.columns) for each in outgoing) - len(batch))
                if log.isEnabledFor(logging.DEBUG):
                    self._log_converted(batch, outgoing, self.counters.errors.skipped - skipped, started)
                self._call_core(self.core.converted, polled, outgoing)
            case core.Poll():
                self._poll()
            case Wait(until_ms):
                self._core_called.wait(None if until_ms is None else max(0, until_ms - _monotonic_ms()) / 1000)
            case core.PrepareTopic(topic):
                self.later(self._start_preparation(topic))
            case core.Skip(send, error):
                self._on_acknowledged(send, len(send.records.columns), None, error)
            case core.SendUnwritten(send, error):
                self._send_unwritten(send, error)
            case core.CommitRecords(batch, results):
                for record, metadata in zip(batch.to_records(), results, strict=True):
                    self._call_back(self.task.commit_record, record, metadata)
            case core.CommitTask():
                self._call_back(self.task.commit)
            case core.CommitOffsets():
                self.from_loop(self._commit_offsets(effect))
            case ReportState():
                self.report_running()
            case core.ReportTopic(topic):
                self.use_topic(topic)
            case Fail(error):
                raise error
            case core.Stop():
                return

    def _poll(self) -> None:
        started = time.monotonic()
        try:
            batches = core.polled_batches(self.task.poll(), type(self.task).display_class())
        except Exception as error:  # noqa: BLE001 - the core decides what an error means
            if isinstance(error, RetriableError):
                self.counters.errors.add_retry()
            with self._lock:
                effects = self.core.poll_failed(error, now_ms=_monotonic_ms())
            self._carry_out(effects)
        else:
            count = sum(map(len, batches))
            self.counters.add_call(count, time.monotonic() - started)
            if count:
                self.counters.add_active(count)
            if batches and log.isEnabledFor(logging.DEBUG):
                log.debug(
                    "Task %s: poll returned %d records in %d batches after %d ms",
                    self.spec.name,
                    count,
                    len(batches),
                    ms_since(started),
                )
            self._call_core(self.core.polled, batches)

    def _log_converted(
        self, batch: SourceBatch, outgoing: list[core.OutgoingRecords], skipped: int, started: float
    ) -> None:
        converted = sum(len(each.columns) for each in outgoing)
        log.debug(
            "Task %s: transformed and converted %d records of source partition %s up to offset %s in %d ms: %d records "
            "to send to topic %s, %d dropped by transforms, %d skipped after errors",
            self.spec.name,
            len(batch),
            batch.source_partition,
            batch.source_offset,
            ms_since(started),
            converted,
            log_text.Listing(sorted({each.topic for each in outgoing})),
            len(batch) - skipped - converted,
            skipped,
        )

    def _convert(self, batch: SourceBatch, index: int | None = None) -> list[core.OutgoingRecords]:
        now_ms = _now_ms()
        outgoing: list[core.OutgoingRecords] = []
        for result in self._chain.apply(batch):
            topic = core.topic_of(result)
            outgoing += [
                core.OutgoingRecords(topic, result.partition, columns, index)
                for columns in self._to_bytes.convert(result, now_ms)
            ]
        return outgoing

    def _convert_by_record(self, batch: SourceBatch) -> list[core.OutgoingRecords]:
        """Transform and convert each record alone, so that every acknowledgement belongs to one record."""
        return [each for index in range(len(batch)) for each in self._convert(batch.take([index]), index)]

    def _send(self, send: core.Send) -> None:
        producer, records = self._producer, send.records
        assert producer is not None
        if records.topic not in producer.cluster.view.topics:
            self._call_core(self.core.topic_unknown, send)
            return
        columns, count = records.columns, len(records.columns)
        # Only `commit_record` and the dead letter queue need the columns, and then each record is sent alone.
        kept = send if records.index is not None else send.without_columns()
        on_done = partial(self._on_acknowledged, kept, count)
        if records.index is None and log.isEnabledFor(logging.DEBUG):  # otherwise, this would be a line per record
            log.debug(
                "Task %s: sending %d records to topic %s, partition %s",
                self.spec.name,
                count,
                records.topic,
                "selected by the producer" if records.partition is None else records.partition,
            )
        producer.send_with_callback(records.topic, records.partition, columns, on_done)

    def _send_unwritten(self, send: core.Send, error: Exception) -> None:
        records, batch = send.records, send.polled.batch
        assert batch is not None
        assert records.index is not None
        part = batch.take([records.index])
        on_done = partial(self._on_dlq_acknowledged, send.polled.submission)
        self._errors.send_unwritten(records.topic, records.columns, part, error, on_done)

    def _call_back(self, callback: Callable[..., None], *arguments: Any) -> None:
        try:
            callback(*arguments)
        except Exception:
            log.exception("Task %s: %s failed; the task continues", self.spec.name, callback.__name__)

    # Any thread

    def _call_core(self, method: Callable[..., list[core.Effect]], *arguments: Any) -> list[core.Effect]:
        with self._lock:
            return method(*arguments)

    # The event loop

    def wake(self) -> None:
        """Report the user's requests (stop, pause, resume) to `SourceTaskCore`."""
        if self.stopping.is_set():
            self._report_event(self.core.on_stop)
        self._report_event(self.core.on_pause if self.paused else self.core.on_resume)

    def _report_event(self, method: Callable[..., list[core.Effect]], *arguments: Any) -> None:
        """Call a method of `SourceTaskCore`, and end the wait of the task's thread."""
        effects = self._call_core(method, *arguments)
        if not self._core_called.is_set():
            self._core_called.set()
        self._carry_out(effects)

    def on_confirmed(self, is_confirmed: bool) -> None:
        """Stop polling, or poll again."""
        self._report_event(self.core.on_confirmed, is_confirmed)

    def describe_unconfirmed(self) -> str:
        """Return that the task does not poll."""
        return "does not poll"

    def _on_acknowledged(self, send: core.Send, count: int, sent: SendMetadata | None, error: Exception | None) -> None:
        written = count if error is None else 0 if sent is None else sent.count
        self.counters.add_records(written)
        self.counters.add_active(-count)
        if error is not None:
            self._count_unwritten(send.records.topic, count, written, error)
        metadata = None
        if send.records.index is not None and sent is not None:
            metadata = _record_metadata(sent, send.records.columns.timestamps)
        self._report_event(self.core.acknowledged, send, metadata, error)
        is_last = send.polled.submission.is_acknowledged
        if sent is not None and (is_last or send.records.index is None) and log.isEnabledFor(logging.DEBUG):
            log.debug(
                "Task %s: acknowledged %s, so source offset %s %s",
                self.spec.name,
                log_text.written(sent.parts or (sent,)),
                send.polled.submission.offset,
                "can be committed" if is_last else "waits for the other records of its batch",
            )

    def _on_dlq_acknowledged(self, submission: Submission, error: ConnectError | None) -> None:
        self._report_event(self.core.dlq_acknowledged, submission, error)

    def _count_unwritten(self, topic: str, sent: int, written: int, error: Exception) -> None:
        count = sent - written
        self.counters.errors.add_failed_records(count, are_skipped=self._policy.tolerate)
        if not self._policy.tolerate:
            return
        log.error(
            "Task %s: skipping %d of %d records that could not be written to topic %s: %s",
            self.spec.name,
            count,
            sent,
            topic,
            error,
        )

    async def _start_preparation(self, topic: str) -> None:
        self._preparation = asyncio.ensure_future(self._prepare_topic(topic))

    async def _prepare_topic(self, topic: str) -> None:
        logs.connector_context.set(logs.context(self.spec.connector, f"task-{self.spec.number}"))
        producer = self._producer
        assert producer is not None
        started = time.monotonic()
        try:
            if self._topic_creator is not None:
                await self._topic_creator.ensure(topic)
            await producer.prepare_topic(topic)
        except Exception as error:  # noqa: BLE001 - the core decides what an error means
            self._report_event(self.core.topic_failed, topic, error)
        else:
            log.debug("Task %s: topic %s is ready after %d ms", self.spec.name, topic, ms_since(started))
            self._report_event(self.core.topic_ready, topic)

    async def _commit(self) -> None:
        with self._lock:
            effects = self.core.on_commit_due()
        for effect in effects:
            assert isinstance(effect, core.CommitOffsets)
            await self._commit_offsets(effect)

    async def _commit_offsets(self, commit: core.CommitOffsets) -> None:
        timeout_ms, started = self.spec.worker_ms("offset.flush.timeout.ms"), time.monotonic()
        texts = log_text.source_offsets(commit.offsets)
        log.debug("Task %s: committing the offsets of %d source partitions", self.spec.name, len(commit.offsets))
        try:
            async with asyncio.timeout(timeout_ms / 1000), self._commit_lock:
                await self.commit_offsets(commit.offsets)
        except TimeoutError:
            error = TimeoutError(f"no response within offset.flush.timeout.ms={timeout_ms}")
            self._report_event(self.core.commit_failed, error)
        except Exception as error:  # noqa: BLE001 - no offsets are lost: the core commits them again
            commit_failed = partial(self.core.commit_failed, is_permanent=_is_permanent(error))
            self._report_event(commit_failed, error)
        else:
            log.debug("Task %s: committed source offsets %s in %d ms", self.spec.name, texts, ms_since(started))
            self._report_event(self.core.commit_succeeded, commit.offsets)

    async def _flush(self, producer: Producer) -> None:
        if self._preparation is not None:
            self._preparation.cancel()
        # Leave time for the last commit before the process is killed.
        graceful_ms = self.spec.worker_ms("task.shutdown.graceful.timeout.ms")
        timeout_ms = min(self.spec.worker_ms("offset.flush.timeout.ms"), graceful_ms * 4 // 5)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await producer.flush()
                if self._errors.queue is not None:
                    await self._errors.queue.flush()
        except TimeoutError:
            with self._lock:
                count = self.core.unacknowledged
            log.warning(
                "Task %s: %d batches were not acknowledged within %d ms (offset.flush.timeout.ms, or four fifths of "
                "task.shutdown.graceful.timeout.ms); after a restart they are read again",
                self.spec.name,
                count,
                timeout_ms,
            )

    async def _close_clients(self, producer: Producer) -> None:
        if self._topic_creator is not None:
            await self._topic_creator.close()
        if self._errors.queue is not None:
            await self._errors.queue.close(timeout_ms=0)
        await producer.close(timeout_ms=0)


class _Context(TaskContext):
    """The platform's interface for a source task."""

    def __init__(self, worker_task: WorkerSourceTask) -> None:
        super().__init__(worker_task)
        self._worker_task = worker_task
        self.offsets = self

    def read(self, partition: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the last committed offset of a source partition."""
        return self.read_all([partition])[0]

    def read_all(self, partitions: Iterable[Mapping[str, Any]]) -> list[dict[str, Any] | None]:
        """Return the last committed offsets of source partitions."""
        wanted = requested_partitions(partitions)
        return self._worker_task.from_loop(self._worker_task.read_offsets(wanted))

    def report_skipped(self, record: SourceRecord, error: Exception) -> None:
        """Report a record of the external system that the task skips."""
        self._worker_task.report_skipped(record, error)


def _is_permanent(error: Exception) -> bool:
    """Whether a commit of the same offsets can never succeed: they are too large, or cannot be encoded."""
    if isinstance(error, RemoteError):
        return error.kind == RecordTooLargeError.__name__
    return isinstance(error, ValueError | TypeError | OverflowError | RecursionError)


def _record_metadata(sent: SendMetadata, timestamps: Any) -> RecordMetadata:
    """Return the metadata of a record that was sent alone, with the broker's timestamp if it sets one."""
    timestamp = timestamps[0] if isinstance(timestamps, list) else timestamps
    if sent.log_append_time_ms >= 0:
        timestamp = sent.log_append_time_ms
    return RecordMetadata(sent.topic, sent.partition, sent.base_offset, timestamp)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
