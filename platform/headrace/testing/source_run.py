"""`run_source`: runs a source's tasks in memory as a worker would, but in virtual time and with faults."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from headrace.api.errors import ConnectError
from headrace.api.task import RecordMetadata, SourceTask
from headrace.data.batch import SourceBatch
from headrace.data.records import SourceRecord
from headrace.plugins.connector_config import framework_value
from headrace.runtime import source_task_core as core
from headrace.runtime.chain import TransformChain
from headrace.runtime.conversion import ToBytes
from headrace.runtime.error_policy import ErrorPolicy, Failure
from headrace.runtime.task_effects import Fail, ReportState, Wait
from headrace.runtime.task_plugins import Plugins
from headrace.runtime.worker_config import TOPIC_NAME_RULE, is_topic_name
from headrace.testing.task_configs import (
    CONNECTOR_NAME,
    connector_class_of,
    error_operator,
    task_configs,
    task_plugins,
)
from headrace.testing.virtual_time import RetryLimit, StoredOffsets, VirtualClock, VirtualContext

IDLE_S = 60.0
EMPTY_POLL_S = 1.0
LIMIT_S = 24 * 3600.0
STOP_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class RestartSource:
    """A fault: after `after_records` records, the task is killed before the offset of the last batch is committed.

    A new instance starts at the committed offset.
    """

    after_records: int


@dataclass(frozen=True, slots=True)
class LostAcknowledgement:
    """A fault: batch number `batch` (the first is 1) is written, but its acknowledgement is lost.

    The task is killed after the next batch is acknowledged. A new instance starts at the offset before these two
    batches.
    """

    batch: int


@dataclass(frozen=True, slots=True)
class PauseSource:
    """A fault: after `after_records` records, the user pauses the connector for `seconds` seconds."""

    after_records: int
    seconds: float = 60.0


SourceFault = RestartSource | LostAcknowledgement | PauseSource


@dataclass
class SourceRun:
    """The result of `run_source`: the records, the committed offsets, and the calls of the tasks' methods."""

    records: list[SourceRecord] = field(default_factory=list)
    """The written records in order, after transforms, as they were before the conversion to bytes.

    A record that was read again after a fault appears again.
    """

    skipped: list[tuple[SourceRecord, Exception]] = field(default_factory=list)
    """The records that ``errors.tolerance=all`` skipped, with their errors."""

    calls: list[str] = field(default_factory=list)
    """The names of the called methods, in order."""

    _stored: StoredOffsets = field(default_factory=StoredOffsets)

    @property
    def offsets(self) -> dict[tuple[tuple[str, Any], ...], dict[str, Any]]:
        """The committed offsets. The keys are the source partitions as tuples of their sorted items."""
        return dict(self._stored.offsets)

    @property
    def offset(self) -> dict[str, Any] | None:
        """The committed offset of the only source partition, or None if no offset is committed.

        Raises ValueError if there are several source partitions.
        """
        if len(self._stored.offsets) > 1:
            raise ValueError(
                f"SourceRun.offset is ambiguous, because there are {len(self._stored.offsets)} source partitions: use "
                "SourceRun.offsets"
            )
        return next(iter(self.offsets.values()), None)


def run_source(
    plugin: type[Any],
    props: Mapping[str, str],
    *,
    records: int,
    offsets: Mapping[Any, Mapping[str, Any]] | None = None,
    faults: Sequence[SourceFault] = (),
    idle_s: float = IDLE_S,
) -> SourceRun:
    """Run all tasks of a source, one after another. Stop each task when it has written `records` records.

    A task is also stopped when its polls return no records for `idle_s` seconds of virtual time. `plugin` is a source
    connector or source task class, or a function decorated with `@source`. `props` is its configuration, which may
    contain ``tasks.max``, `transforms` and ``errors.tolerance``. `offsets` are the committed offsets at which the tasks
    start, for example those of an earlier run. Offsets are committed after each batch. Records are
    converted with the converters of `props`, by default with JsonConverter, so that invalid values fail.

    Raises every error that would fail a task.
    """
    run = SourceRun(_stored=StoredOffsets(offsets))
    configs = task_configs(plugin, props, run._stored, framework_value(props, "tasks.max"))
    for number in range(len(configs)):
        progress = _Progress(wanted=records, idle_s=idle_s, faults=list(faults))
        while not _SourceTaskRun(plugin, props, configs, number, run, progress).run_to_the_end():
            gc.collect()  # frees the killed task, which has a reference cycle with its context, and its connections
    return run


@dataclass
class _Progress:
    """The state of one task's run. If a fault kills the task, the restarted task continues with the same state.

    `records` is the number of acknowledged records, and `batches` is the number of written batches. `faults` are the
    faults that are not due yet.
    """

    wanted: int
    idle_s: float
    faults: list[SourceFault]
    records: int = 0
    batches: int = 0

    def take_fault(self, is_due: Callable[[Any], bool]) -> SourceFault | None:
        """Remove and return the first fault that is due."""
        found = next((fault for fault in self.faults if is_due(fault)), None)
        if found is not None:
            self.faults.remove(found)
        return found


class _Killed(Exception):
    """Ends the current instance of the task, for a fault that kills the task."""


class _SourceTaskRun:
    """One instance of a task, from its start until it is stopped, or killed by a fault."""

    def __init__(
        self,
        plugin: type[Any],
        props: Mapping[str, str],
        configs: Sequence[dict[str, str]],
        number: int,
        run: SourceRun,
        progress: _Progress,
    ) -> None:
        self._run, self._progress = run, progress
        self._clock = VirtualClock(LIMIT_S)
        self._poll_limit = RetryLimit("poll")
        self._last_record_s = 0.0
        self._is_acknowledgement_lost = False
        self._end_offsets: dict[str, int] = {}  # by topic
        self._task: SourceTask[Any] = connector_class_of(plugin).task_class()  # type: ignore[assignment]
        self._plugins = task_plugins(plugin, props, configs, number)
        policy = ErrorPolicy.from_config({**props, "errors.log.enable": "false"})
        self._core = core.SourceTaskCore(
            f"{CONNECTOR_NAME}-{number}",
            tolerates_errors=policy.tolerate,
            commits_records=type(self._task).commit_record is not SourceTask.commit_record,
        )
        operator = error_operator(policy, self._clock, self._report_failure, core.describe)
        self._chain = TransformChain(self._plugins.make_steps(), operator)
        self._converters = self._plugins.make_converters()
        self._to_bytes = ToBytes(self._converters, operator)
        self._task.context = _SourceContext(self._clock, self._plugins, run._stored, run.skipped)

    def run_to_the_end(self) -> bool:
        """Run until the records are written and committed. Return False if a fault killed the task."""
        try:
            self._call("start", self._plugins.start_task, self._task)
            self._poll_until_done()
            self._carry_out(self._core.flushed())
            self._carry_out(self._core.close())
        except _Killed:
            return False
        finally:
            self._chain.close()
            self._converters.close()
        self._call("stop", self._task.stop)
        return True

    def _poll_until_done(self) -> None:
        while not self._is_done():
            if self._clock.is_stopping:
                raise TimeoutError(f"the source task has not returned all records after {LIMIT_S:g} s of virtual time")
            self._carry_out(self._core.next_step(self._clock.now_ms))
        self._clock.is_stopping = True
        self._carry_out(self._core.on_stop())
        while core.Stop() not in (effects := self._core.next_step(self._clock.now_ms)):
            self._carry_out(effects)

    def _is_done(self) -> bool:
        is_idle = self._clock.now_s - self._last_record_s >= self._progress.idle_s
        if is_idle and self._is_acknowledgement_lost:
            raise _Killed
        return self._progress.records >= self._progress.wanted or is_idle

    def _carry_out(self, effects: list[core.Effect]) -> None:
        for effect in effects:
            self._carry_out_one(effect)

    def _carry_out_one(self, effect: core.Effect) -> None:
        match effect:
            case core.Poll():
                self._poll()
            case core.Convert(polled, batch, by_record):
                self._carry_out(self._core.converted(polled, self._convert(batch, by_record=by_record)))
            case core.PrepareTopic(topic):
                if not is_topic_name(topic):
                    raise ConnectError(f"Failed to create topic {topic}: {TOPIC_NAME_RULE}")
                self._carry_out(self._core.topic_ready(topic))
            case core.Send():
                self._send(effect)
            case core.CommitOffsets(offsets):
                for partition, offset in offsets:
                    self._run._stored.write(partition, offset)
                self._carry_out(self._core.commit_succeeded(offsets))
            case core.CommitRecords(batch, results):
                for record, metadata in zip(batch.to_records(), results, strict=True):
                    self._call("commit_record", self._task.commit_record, record, metadata)
            case core.CommitTask():
                self._call("commit", self._task.commit)
            case Fail(error):
                raise error
            case Wait(until_ms):
                assert until_ms is not None, "the task waits without a deadline, and no event can end the wait"
                self._clock.wait(until_ms / 1000 - self._clock.now_s)
            case ReportState() | core.ReportTopic() | core.Skip() | core.Stop():
                return

    def _poll(self) -> None:
        before_s = self._clock.now_s
        try:
            polled = self._call("poll", self._task.poll)
        except Exception as error:  # noqa: BLE001 - the core decides what an error means
            self._poll_limit.failed(error)
            self._carry_out(self._core.poll_failed(error, now_ms=self._clock.now_ms))
            return
        self._poll_limit.succeeded()
        batches = core.polled_batches(polled, type(self._task).display_class())
        if any(len(batch) for batch in batches):
            self._last_record_s = self._clock.now_s
        elif self._clock.now_s == before_s:
            self._clock.wait(EMPTY_POLL_S)
        self._carry_out(self._core.polled(batches))

    def _convert(self, batch: SourceBatch, *, by_record: bool) -> list[core.OutgoingRecords]:
        if not by_record:
            return self._outgoing(batch, None)
        return [each for index in range(len(batch)) for each in self._outgoing(batch.take([index]), index)]

    def _outgoing(self, batch: SourceBatch, index: int | None) -> list[core.OutgoingRecords]:
        return [
            core.OutgoingRecords(core.topic_of(converted), converted.partition, converted, index)
            for result in self._chain.apply(batch)
            for converted in self._convertible(result)
        ]

    def _convertible(self, batch: Any) -> list[Any]:
        """Convert the records as a worker does. Return the original records, without those that were skipped."""
        core.topic_of(batch)
        now_ms = self._clock.now_ms
        indexes = [index for index in range(len(batch)) if self._to_bytes.convert(batch.take([index]), now_ms)]
        return [batch.take(indexes)] if indexes else []

    def _send(self, send: core.Send) -> None:
        """Add the records to the result, and acknowledge them unless the fault LostAcknowledgement is due."""
        progress, records = self._progress, send.records.columns.to_records()
        self._run.records += records
        progress.batches += 1
        if progress.take_fault(
            lambda fault: isinstance(fault, LostAcknowledgement) and fault.batch == progress.batches
        ):
            self._is_acknowledgement_lost = True
            return
        progress.records += len(records)
        self._carry_out(self._core.acknowledged(send, self._metadata(send.records, records), None))
        self._inject_fault()
        self._carry_out(self._core.on_commit_due())
        if self._is_acknowledgement_lost:
            raise _Killed

    def _metadata(self, outgoing: core.OutgoingRecords, records: Sequence[SourceRecord]) -> RecordMetadata:
        end = self._end_offsets[outgoing.topic] = self._end_offsets.get(outgoing.topic, 0) + len(records)
        return RecordMetadata(outgoing.topic, outgoing.partition or 0, end - 1, records[-1].timestamp)

    def _inject_fault(self) -> None:
        written = self._progress.records
        match self._progress.take_fault(lambda fault: getattr(fault, "after_records", written + 1) <= written):
            case RestartSource():
                raise _Killed
            case PauseSource(seconds=seconds):
                self._carry_out(self._core.on_pause())
                self._clock.wait(seconds)
                self._last_record_s = self._clock.now_s
                self._carry_out(self._core.on_resume())

    def _call(self, name: str, method: Any, *arguments: Any) -> Any:
        self._run.calls.append(name)
        return method(*arguments)

    def _report_failure(self, failure: Failure, part: Any) -> None:
        self._run.skipped.append((part.to_records()[0], failure.error))


class _SourceContext(VirtualContext):
    """The platform's interface for the source task."""

    def __init__(
        self,
        clock: VirtualClock,
        plugins: Plugins,
        offsets: StoredOffsets,
        skipped: list[tuple[SourceRecord, Exception]],
    ) -> None:
        super().__init__(clock, plugins)
        self.offsets = offsets
        self._skipped = skipped

    def report_skipped(self, record: SourceRecord, error: Exception) -> None:
        core.polled_batches([record], "the source task")  # raises the error that a worker would raise
        if not self.tolerates_errors:
            raise ConnectError(f"a record was skipped, although errors.tolerance=none: {error}") from error
        self._skipped.append((record, error))


def stop_while_polling(plugin: type[Any], props: Mapping[str, str]) -> float:
    """Run the first task in real time, and stop it while `poll` waits for records.

    Returns the number of seconds that the stop takes. Records are discarded. Raises the task's errors, and TimeoutError
    if the task does not stop within STOP_LIMIT_S.
    """
    offsets = StoredOffsets()
    task: SourceTask[Any] = connector_class_of(plugin).task_class()  # type: ignore[assignment]
    plugins = task_plugins(plugin, props, task_configs(plugin, props, offsets))
    context = _RealTimeContext(VirtualClock(LIMIT_S), plugins, offsets, [])
    task.context = context
    is_polling = threading.Event()

    def run() -> None:
        plugins.start_task(task)
        try:
            while not context.stopping.is_set():
                has_records = core.polled_batches(task.poll(), type(task).display_class())
                if not has_records:  # the next poll waits for records
                    is_polling.set()
        finally:
            task.stop()

    with ThreadPoolExecutor(1) as executor:
        running = executor.submit(run)
        while not is_polling.wait(0.05) and not running.done():
            if context.monotonic() - context.started_s > STOP_LIMIT_S:
                break
        started_s = time.monotonic()
        context.stopping.set()
        task.wake_up()
        running.result(STOP_LIMIT_S)
        return time.monotonic() - started_s


class _RealTimeContext(_SourceContext):
    """A task context that waits in real time instead of virtual time. A wait ends early when the task is to stop."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.stopping = threading.Event()
        self.started_s = time.monotonic()

    def wait(self, seconds: float) -> bool:
        return not self.stopping.wait(seconds)

    def monotonic(self) -> float:
        return time.monotonic()
