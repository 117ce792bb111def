"""Runs a sink task: consume, convert, transform, put. The offsets that the task's `pre_commit` returns are committed.

`SinkTaskCore` makes the decisions, and this module carries out its effects in the task's thread. The consumer runs on
the event loop and fetches bytes. Events of the consumer, of the worker and of timers reach the task's thread through
one queue. The thread converts, transforms and puts a few thousand records at a time. In between, it handles the events
in the queue.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from random import Random
from typing import Any

from headrace.api.errors import RecordErrors, RetriableError
from headrace.api.task import SinkTask
from headrace.data.sink_records import SinkRecords
from headrace.metrics import log_text
from headrace.metrics.elapsed import ms_since
from headrace.runtime import client_configs
from headrace.runtime import sink_task_core as core
from headrace.runtime.chain import TransformChain
from headrace.runtime.conversion import FromBytes, RawPart
from headrace.runtime.dead_letter_queue import DeadLetterQueue
from headrace.runtime.error_policy import ErrorPolicy
from headrace.runtime.record_lookup import read_record
from headrace.runtime.sink_consumer import Assigned, ConsumerEvent, ConsumerFailed, Polled, Revoked, SinkConsumer
from headrace.runtime.sink_errors import SinkErrors
from headrace.runtime.sink_offsets import TopicPartition
from headrace.runtime.task_effects import Fail, ReportState, Wait
from headrace.runtime.tolerance import RetryWithToleranceOperator
from headrace.runtime.worker_task import TaskContext, WorkerTask
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.fetched import FetchedChunk

log = logging.getLogger(__name__)

_Event = Callable[[], list[core.Effect]]


class WorkerSinkTask(WorkerTask):
    """Runs one `SinkTask`."""

    task: SinkTask

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._events: queue.SimpleQueue[tuple[_Event, Callable[[], None] | None]] = queue.SimpleQueue()
        self._consumer: SinkConsumer | None = None
        self._chain: TransformChain | None = None
        self._is_commit_requested = False

    # The task's thread

    def work(self) -> None:
        """Handle events and put records until the task is stopped."""
        self._open()
        self.task.context = _Context(self)
        self.start_task()
        if self.task.accepts_json_texts and not self._chain:
            self._from_bytes.keep_json_texts()
        self.open_client(self._open_consumer)
        self.loop.call_soon_threadsafe(self.background, self._commit_forever())
        lags = self.report_lags_forever(self._config.client_id, lambda: self.core.positions, self._end_offsets)
        self.loop.call_soon_threadsafe(self.background, lags)
        self.report_running()
        while not self.stopping.is_set():
            self._step()

    def finish(self) -> None:
        """Commit offsets, release the partitions, and close the clients."""
        if self._chain is None:
            return
        try:
            if self._consumer is not None:
                self.from_loop(self._consumer.stop())
            self._release_if_unconfirmed()
            self._carry_out(self.core.on_stop())
        finally:
            self._chain.close()
            self._converters.close()
            self.from_loop(self._close_clients())

    def _open(self) -> None:
        plugins, spec = self.plugins, self.spec
        policy = ErrorPolicy.from_config(plugins.connector_config)
        properties = client_configs.consumer_properties(plugins.worker, plugins.connector_config, spec.name)
        self._config = ClientConfig.from_properties(properties, kind="consumer")
        for warning in self._config.warnings:
            log.warning("Task %s: consumer configuration: %s", spec.name, warning)
        self.core = core.SinkTaskCore(spec.name, records_max=_records_max(self._config), is_paused=self.paused)
        self._converters = plugins.make_converters()
        queue = self.open_client(lambda: DeadLetterQueue.open(plugins, spec, self.counters.errors))
        self.errors = SinkErrors(
            spec.name,
            type(self.task).display_class(),
            policy,
            self._converters,
            self.counters.errors,
            queue=queue,
            read_record=lambda topic, partition, offset: read_record(properties, topic, partition, offset),
            run=self.later,
        )
        operator = RetryWithToleranceOperator(
            policy,
            report=self.errors.report_failure,
            describe=self.errors.describe,
            now_ms=_now_ms,
            wait_ms=self.wait_before_retry,
            rng=Random(),
            on_retry=self.counters.errors.add_failed_attempt,
        )
        self._from_bytes = FromBytes(self._converters, operator)
        self._chain = TransformChain(plugins.make_steps(), operator)

    def _step(self) -> None:
        """Handle the next event if there is one, otherwise carry out `SinkTaskCore.next_step`."""
        event = self._next_event()
        if event is None:
            self._carry_out(self.core.next_step(_now_ms()))
        else:
            self._handle(*event)

    def _next_event(self) -> tuple[_Event, Callable[[], None] | None] | None:
        """Return the next event, or None if there is none."""
        try:
            return self._events.get_nowait()
        except queue.Empty:
            return None

    def _handle(self, event: _Event, on_handled: Callable[[], None] | None) -> None:
        try:
            self._release_if_unconfirmed()
            self._carry_out(event())
        finally:
            if on_handled is not None:
                on_handled()

    def _release_if_unconfirmed(self) -> None:
        """Release the partitions before earlier events in the queue are handled, for example a commit that is due."""
        if not self.is_confirmed:
            self._carry_out(self.core.on_confirmed(False))

    def _carry_out(self, effects: list[core.Effect]) -> None:
        for effect in effects:
            self._carry_out_one(effect)

    def _carry_out_one(self, effect: core.Effect) -> None:
        match effect:
            case Wait(until_ms):
                self._wait_for_event(until_ms)
            case core.Convert(fetched):
                started, skipped = time.monotonic(), self.counters.errors.skipped
                records = SinkRecords([batch for each in fetched for batch in self._convert(each)])
                if log.isEnabledFor(logging.DEBUG):
                    self._log_converted(fetched, records, self.counters.errors.skipped - skipped, started)
                self.errors.send_collected()
                count = sum(map(len, fetched))
                self.counters.add_records(count)
                self.counters.set_active(self.core.uncommitted_records() + count)
                self._carry_out(self.core.converted(records))
            case core.Put(records):
                self._put(records)
            case core.Poll(count):
                self._running.allow_polls(count)
            case core.PreCommit(offsets, is_final):
                self._pre_commit(offsets, is_final=is_final)
            case core.Commit():
                self._commit(effect)
            case core.Report(records, index, error):
                self.errors.report_failed_put(records[index], error)
            case core.Reported():
                self._carry_out(self.core.reported(now_ms=_now_ms()))
            case core.Seek(positions):
                log.debug("Task %s: rewinding to %s", self.spec.name, log_text.partition_offsets(positions))
                self.from_loop(self._running.seek(positions))
            case core.SetPaused(paused, resumed):
                log.debug(
                    "Task %s: partitions %s are paused, partitions %s are not",
                    self.spec.name,
                    log_text.partitions(sorted(paused)),
                    log_text.partitions(sorted(resumed)),
                )
                self.from_loop(self._running.pause(paused, resumed))
            case ReportState():
                self.report_running()
            case core.Open(partitions):
                for topic in {topic for topic, _ in partitions}:
                    self.use_topic(topic)
                log.debug("Task %s: opening partitions %s", self.spec.name, log_text.partitions(partitions))
                self.task.open(partitions)
            case core.Opened():
                self._carry_out(self.core.opened())
            case core.Closed():
                self._carry_out(self.core.closed())
            case core.Release(released):
                self.errors.release(released)
                self._carry_out(self.core.release(released))
                self.counters.set_active(self.core.uncommitted_records())
            case core.Close(partitions):
                log.debug("Task %s: closing partitions %s", self.spec.name, log_text.partitions(partitions))
                self.task.close(partitions)
            case core.LeaveGroup():
                log.debug("Task %s: leaving group %s", self.spec.name, self._config.group_id)
                self.from_loop(self._leave_group())
            case core.JoinGroup():
                log.debug("Task %s: joining group %s again", self.spec.name, self._config.group_id)
                self.open_client(self._open_consumer)
            case Fail(error):
                raise error

    def _wait_for_event(self, until_ms: int | None) -> None:
        timeout_s = None if until_ms is None else max(0, until_ms - _now_ms()) / 1000
        self._running.is_task_idle = True
        try:
            event = self._events.get(timeout=timeout_s)
        except queue.Empty:
            return  # no event has arrived: it is time for the next step of `SinkTaskCore`
        finally:
            self._running.is_task_idle = False
        self._handle(*event)

    def _convert(self, fetched: Any) -> list[Any]:
        assert self._chain is not None
        chain = self._chain
        raw = RawPart(fetched.topic, fetched.partition, fetched.columns)
        return [result for batch in self._from_bytes.convert(raw) for result in chain.apply(batch)]

    def _log_converted(self, fetched: Sequence[Any], records: SinkRecords, skipped: int, started: float) -> None:
        count = sum(map(len, fetched))
        log.debug(
            "Task %s: converted and transformed %d fetched records (%s) in %d ms: %d records to put, %d dropped by "
            "transforms, %d skipped after errors",
            self.spec.name,
            count,
            log_text.offset_ranges(fetched),
            ms_since(started),
            len(records),
            count - skipped - len(records),
            skipped,
        )

    def _put(self, records: SinkRecords) -> None:
        started = time.monotonic()
        try:
            self.task.put(records)
        except Exception as error:  # noqa: BLE001 - the core decides what an error means
            retried, failed = _retried_and_failed(error, len(records))
            if retried:
                self.counters.errors.add_retry()
            self.counters.add_call(len(records) - failed, time.monotonic() - started)
            effects = self.core.put_failed(error, now_ms=_now_ms())
        else:
            self.counters.add_call(len(records), time.monotonic() - started)
            if len(records) and log.isEnabledFor(logging.DEBUG):
                log.debug(
                    "Task %s: put of %d records returned after %d ms",
                    self.spec.name,
                    len(records),
                    ms_since(started),
                )
            self.errors.raise_untolerated()
            effects = self.core.put_succeeded(now_ms=_now_ms())
        self._running.keep_alive()
        self._carry_out(effects)

    def _pre_commit(self, offsets: dict[TopicPartition, int], *, is_final: bool) -> None:
        if not is_final:  # after a final commit, the partitions are closed, whatever happens
            self.errors.raise_untolerated()
            self.errors.wait_for_reports()
        started = time.monotonic()
        try:
            if is_final:
                self.errors.wait_for_reports()
            wanted = self.errors.before_untolerated(self.task.pre_commit(offsets))
        except Exception:
            log.exception("Task %s: pre_commit failed, rewinding to the last committed offsets", self.spec.name)
            effects = self.core.pre_commit_failed(is_final=is_final)
        else:
            effects = self.core.pre_commit_succeeded(wanted, is_final=is_final)
            if any(isinstance(each, core.Commit) for each in effects):
                log.debug(
                    "Task %s: pre_commit of offsets %s returned %s after %d ms",
                    self.spec.name,
                    log_text.partition_offsets(offsets),
                    log_text.partition_offsets(wanted),
                    ms_since(started),
                )
        self._carry_out(effects)

    def _commit(self, effect: core.Commit) -> None:
        commit = self.later(self._commit_offsets(effect.offsets))
        if not effect.is_final:
            commit.add_done_callback(lambda done: self._queue(lambda: self._committed(effect, done)))
            return
        timeout_s = self.spec.worker_ms("offset.flush.timeout.ms") / 1000
        try:
            commit.result(timeout_s)
        except Exception as error:  # noqa: BLE001 - no record is lost: uncommitted records are delivered again
            log.error(
                "Task %s: failed to commit offsets; uncommitted records may be delivered again: %s",
                self.spec.name,
                f"no response within {timeout_s:g} s" if isinstance(error, TimeoutError) else error,
            )
        else:
            self._carry_out(self._commit_succeeded(effect))

    async def _commit_offsets(self, offsets: dict[TopicPartition, int]) -> None:
        started, group = time.monotonic(), self._config.group_id
        texts = log_text.partition_offsets(offsets)
        log.debug("Task %s: committing offsets %s of group %s", self.spec.name, texts, group)
        with self.counters.offset_commit():
            await self._running.commit(offsets)
        log.debug(
            "Task %s: committed offsets %s of group %s in %d ms",
            self.spec.name,
            texts,
            group,
            ms_since(started),
        )

    def _committed(self, effect: core.Commit, done: Future[Any]) -> list[core.Effect]:
        error = done.exception()
        if error is not None:
            log.error("Task %s: failed to commit offsets, retrying at the next commit: %s", self.spec.name, error)
            return []
        return self._commit_succeeded(effect)

    def _commit_succeeded(self, effect: core.Commit) -> list[core.Effect]:
        if effect.number != self.core.commit_number:
            self.counters.add_skipped_commit()
        effects = self.core.commit_succeeded(effect.offsets, effect.number)
        self.counters.set_active(self.core.uncommitted_records())
        return effects

    def carry_out_now(self, effects: list[core.Effect]) -> None:
        """Carry out effects of a call from the task. Called in the task's thread."""
        self._carry_out(effects)

    @property
    def _running(self) -> SinkConsumer:
        assert self._consumer is not None
        return self._consumer

    # Any thread

    def wake(self) -> None:
        """Pass the current pause state to the task's thread.

        If the task is to stop, this also ends the thread's wait.
        """
        is_paused = self.paused
        self._queue(lambda: self.core.on_pause() if is_paused else self.core.on_resume())

    def request_commit(self) -> None:
        """Commit as soon as the thread is free. There is one commit for all requests before the commit is sent."""
        if not self._is_commit_requested:
            self._is_commit_requested = True
            self._queue(self.core.on_commit_due, self._clear_commit_request)

    def _clear_commit_request(self) -> None:
        self._is_commit_requested = False

    def _queue(self, event: _Event, on_handled: Callable[[], None] | None = None) -> None:
        self._events.put((event, on_handled))

    # The event loop

    def _on_consumer_event(self, event: ConsumerEvent, on_handled: Callable[[], None] | None) -> None:
        self._queue(lambda: self._handle_consumer_event(event), on_handled)

    def _handle_consumer_event(self, event: ConsumerEvent) -> list[core.Effect]:
        match event:
            case Polled(epoch, chunks):
                is_current = epoch == self._running.epoch
                if chunks and log.isEnabledFor(logging.DEBUG):
                    self._log_fetched(chunks, is_current=is_current)
                return self.core.on_fetched(chunks, is_current=is_current)
            case Assigned(positions):
                log.debug(
                    "Task %s: received partitions with positions %s",
                    self.spec.name,
                    log_text.partition_offsets(positions),
                )
                return self.core.on_assigned(positions)
            case Revoked(partitions, is_lost):
                log.debug(
                    "Task %s: %s partitions %s",
                    self.spec.name,
                    "lost" if is_lost else "the group revokes",
                    log_text.partitions(partitions),
                )
                return self.core.on_revoked(partitions, is_lost=is_lost)
            case ConsumerFailed(error):
                return [Fail(error)]

    def _log_fetched(self, chunks: Sequence[FetchedChunk], *, is_current: bool) -> None:
        log.debug(
            "Task %s: the consumer fetched %d bytes of %s%s",
            self.spec.name,
            sum(chunk.size_bytes for chunk in chunks),
            log_text.chunk_ranges(chunks),
            "" if is_current else "; they are discarded because of a later seek",
        )

    def gauges(self) -> dict[str, float]:
        """Return the current values of the task, with those of its assignment."""
        found = self.counters.gauges()
        if self._consumer is not None:
            found |= {"partition_count": len(self.core.positions), "offset_commit_seq_no": self.core.commit_number}
        return found if self.lags.max is None else found | {"lag_max": self.lags.max}

    async def _end_offsets(self) -> Mapping[TopicPartition, int]:
        return await self._running.end_offsets()

    async def _open_consumer(self) -> None:
        config, spec = self.plugins.connector_config, self.spec
        consumer = SinkConsumer(
            self._on_consumer_event,
            self._config,
            config,
            spec.number,
            on_joined=self.report_member,
            dead_member=spec.dead_member,
        )
        await consumer.open()
        self._consumer = consumer

    def on_confirmed(self, is_confirmed: bool) -> None:
        """Leave the consumer group, or join it again."""
        if not is_confirmed:
            # The task's thread leaves the group, too, but a `put` may delay the thread for a long time.
            self.background(self._leave_group())
        self._queue(lambda: self.core.on_confirmed(is_confirmed and self.is_confirmed))

    def describe_unconfirmed(self) -> str:
        """Return that the task leaves its consumer group."""
        return f"leaves group {self._config.group_id}"

    async def _leave_group(self) -> None:
        if self._consumer is not None:  # otherwise the task's thread leaves the group when it has opened the consumer
            await self._consumer.close(removes_static_member=False)

    async def _commit_forever(self) -> None:
        interval_s = self.spec.worker_ms("offset.flush.interval.ms") / 1000
        while True:
            await asyncio.sleep(interval_s)
            self.request_commit()

    async def _close_clients(self) -> None:
        if self._consumer is not None:
            await self._consumer.close()
        await self.errors.close()


class _Context(TaskContext):
    """The platform's interface for a sink task. The task's thread uses it."""

    def __init__(self, worker_task: WorkerSinkTask) -> None:
        super().__init__(worker_task)
        self._worker_task = worker_task
        self._core = worker_task.core

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are currently assigned to the task."""
        return self._core.assignment

    @property
    def errant_record_reporter(self) -> SinkErrors | None:
        """The reporter for errant records, or None if neither a DLQ nor error logging is configured."""
        return self._worker_task.errors.reporter()

    def pause(self, *partitions: TopicPartition) -> None:
        """Pause the consumption of these partitions."""
        self._worker_task.carry_out_now(self._core.pause_partitions(partitions))

    def resume(self, *partitions: TopicPartition) -> None:
        """Resume the consumption of these partitions."""
        self._worker_task.carry_out_now(self._core.resume_partitions(partitions))

    def offset(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Continue to consume at these offsets after the current call has returned."""
        self._core.request_offsets(offsets)

    def request_commit(self) -> None:
        """Request an offset commit as soon as possible."""
        self._worker_task.request_commit()

    def timeout(self, timeout_ms: int) -> None:
        """Set the delay before the next retry of `put`."""
        self._core.set_retry_timeout(timeout_ms)


def _retried_and_failed(error: Exception, count: int) -> tuple[bool, int]:
    """Return whether `put` receives any of its `count` records again, and how many records it has not stored."""
    if isinstance(error, RecordErrors):
        return any(isinstance(each, RetriableError) for each in error.errors.values()), len(error.errors)
    return isinstance(error, RetriableError), count


def _records_max(config: ClientConfig) -> int | None:
    """Return max.poll.records if that key is set, else None."""
    return config.max_poll_records if "max.poll.records" in config.explicit else None


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
