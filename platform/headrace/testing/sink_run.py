"""`run_sink`: runs a sink task in memory as a worker would, but in virtual time and with faults."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from headrace.api.errors import RetriableError
from headrace.api.task import SinkTask, TopicPartition
from headrace.data.batch import SinkBatch, from_records
from headrace.data.records import SinkRecord
from headrace.data.sink_records import SinkRecords
from headrace.runtime import sink_task_core as core
from headrace.runtime.chain import TransformChain
from headrace.runtime.error_policy import ErrorPolicy, Failure, ToleranceExceeded
from headrace.runtime.task_effects import Fail, ReportState, Wait
from headrace.runtime.task_plugins import Plugins
from headrace.testing.task_configs import (
    CONNECTOR_NAME,
    connector_class_of,
    error_operator,
    task_configs,
    task_plugins,
)
from headrace.testing.virtual_time import RetryLimit, StoredOffsets, VirtualClock, VirtualContext

MAX_POLL_RECORDS = 500
COMMIT_INTERVAL_S = 60.0
POLL_SECONDS = 1.0
LIMIT_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Rebalance:
    """A fault: after put number `after_put` (the first is 1), all partitions are revoked and assigned again."""

    after_put: int


@dataclass(frozen=True, slots=True)
class LostPartitions:
    """A fault: after put number `after_put`, all partitions are lost (without a commit), and then assigned again."""

    after_put: int


@dataclass(frozen=True, slots=True)
class Restart:
    """A fault: after put number `after_put`, the task is killed. A new instance starts at the committed offsets."""

    after_put: int


@dataclass(frozen=True, slots=True)
class LostPut:
    """A fault: the platform repeats a successful call of the task's method `put`, with the same records.

    The field `put` is the number of the call (the first is 1).
    """

    put: int


@dataclass(frozen=True, slots=True)
class Pause:
    """A fault: after put number `after_put`, the user pauses the connector for `seconds` seconds."""

    after_put: int
    seconds: float = 60.0


SinkFault = Rebalance | LostPartitions | Restart | LostPut | Pause


@dataclass
class SinkRun:
    """The result of `run_sink`: the committed offsets, the reported records, and the calls of the task's methods."""

    committed: dict[TopicPartition, int] = field(default_factory=dict)
    """The committed offset of each partition."""

    reported: list[tuple[SinkRecord, Exception]] = field(default_factory=list)
    """The records that would be in the dead letter queue, with their errors."""

    puts: int = 0
    """The number of calls of `put` with records."""

    calls: list[str] = field(default_factory=list)
    """The names of the called methods, in order."""


def run_sink(
    plugin: type[Any],
    props: Mapping[str, str],
    records: Iterable[Any],
    *,
    faults: Sequence[SinkFault] = (),
    max_poll_records: int = MAX_POLL_RECORDS,
    committed: Mapping[TopicPartition, int] | None = None,
) -> SinkRun:
    """Put all records into a sink task, commit, and stop it, all in virtual time.

    `plugin` is a sink connector or sink task class, or a function decorated with `@sink`. `props` is its configuration,
    which may contain `transforms` and ``errors.tolerance``. `records` are SinkRecord objects in the order of their
    offsets, or plain values, which become schemaless records of partition 0 of topic "test". `committed` contains
    the offsets at which the task starts.

    Raises every error that would fail the task.
    """
    log = _Log(records)
    run = SinkRun(committed=dict(committed or {}))
    remaining = sorted(faults, key=lambda fault: getattr(fault, "after_put", getattr(fault, "put", 0)))
    while not _SinkTaskRun(plugin, props, log, run, remaining, max_poll_records).run_to_the_end():
        gc.collect()  # frees the killed task, which has a reference cycle with its context, and its connections
    return run


class _Log:
    """The records that the task consumes, by partition."""

    def __init__(self, records: Iterable[Any]) -> None:
        self.partitions: dict[TopicPartition, list[SinkRecord]] = {}
        for number, item in enumerate(records):
            record = item if isinstance(item, SinkRecord) else _as_record(item, number)
            partition = record.topic or "", record.partition or 0
            self.partitions.setdefault(partition, []).append(record)

    def end(self, partition: TopicPartition) -> int:
        records = self.partitions[partition]
        return records[-1].offset + 1

    def read(self, partition: TopicPartition, offset: int, count: int) -> list[SinkRecord]:
        return [record for record in self.partitions[partition] if record.offset >= offset][:count]


@dataclass(frozen=True, slots=True)
class _Fetched:
    topic: str
    partition: int
    records: list[SinkRecord]

    @property
    def next_offset(self) -> int:
        return self.records[-1].offset + 1

    def __len__(self) -> int:
        return len(self.records)


class _Chunk:
    """The records of one partition that a poll returned."""

    def __init__(self, partition: TopicPartition, records: list[SinkRecord]) -> None:
        self.topic, self.partition = partition
        self.next_offset = records[-1].offset + 1
        self._records = records

    def next_batch(self, records_max: int | None = None) -> _Fetched | None:
        taken, self._records = self._records[:records_max], self._records[records_max or len(self._records) :]
        return _Fetched(self.topic, self.partition, taken) if taken else None


class _Killed(Exception):
    """Ends the current instance of the task, for the fault `Restart`."""


class _SinkTaskRun:
    """One instance of the task, from its start until it is stopped, or killed by the fault `Restart`."""

    def __init__(
        self,
        plugin: type[Any],
        props: Mapping[str, str],
        log: _Log,
        run: SinkRun,
        faults: list[SinkFault],
        records_max: int,
    ) -> None:
        self._log, self._run, self._faults = log, run, faults
        self._clock = VirtualClock(LIMIT_S)
        self._put_limit = RetryLimit("put")
        self._core = core.SinkTaskCore(f"{CONNECTOR_NAME}-0", records_max=records_max)
        self._positions: dict[TopicPartition, int] = {}
        self._paused: frozenset[TopicPartition] = frozenset()
        self._reports_requested_commit = False
        self._untolerated: ToleranceExceeded | None = None  # the first error that fails the task
        self._policy = ErrorPolicy.from_config({**props, "errors.log.enable": "false"})
        configs = task_configs(plugin, props, StoredOffsets())
        self._task: SinkTask[Any] = connector_class_of(plugin).task_class()  # type: ignore[assignment]
        self._plugins = task_plugins(plugin, props, configs)
        operator = error_operator(self._policy, self._clock, self._report_failure)
        self._chain = TransformChain(self._plugins.make_steps(), operator)
        self._task.context = _SinkContext(self, self._clock, self._plugins)

    def run_to_the_end(self) -> bool:
        """Run until all records are put and committed. Return False if the fault `Restart` killed the task."""
        try:
            self._call("start", self._plugins.start_task, self._task)
            self._assign_all()
            self._put_all()
            self._carry_out(self._core.on_commit_due())
            self._carry_out(self._core.on_stop())
        except _Killed:
            return False
        except Exception:
            self._call("stop", self._task.stop)  # a worker stops a failed task, too
            raise
        finally:
            self._chain.close()
        self._call("stop", self._task.stop)
        return True

    def _put_all(self) -> None:
        is_empty_poll_done = False
        next_commit_s = COMMIT_INTERVAL_S
        while not self._clock.is_stopping:
            step = self._core.next_step(self._clock.now_ms)
            self._carry_out(step)
            wait = step[-1]
            if not isinstance(wait, Wait):
                continue
            if wait.until_ms is not None:
                self._clock.wait(wait.until_ms / 1000 - self._clock.now_s)
            elif is_empty_poll_done and not self._has_more():
                return
            else:
                is_empty_poll_done = not self._poll()
                self._clock.wait(POLL_SECONDS if is_empty_poll_done else 0.001)
            if self._clock.now_s >= next_commit_s or self._reports_requested_commit:
                next_commit_s, self._reports_requested_commit = self._clock.now_s + COMMIT_INTERVAL_S, False
                self._carry_out(self._core.on_commit_due())
        raise TimeoutError(f"the sink task has not stored all records after {LIMIT_S:g} s of virtual time")

    def _has_more(self) -> bool:
        return self._core.has_waiting_records or any(
            position < self._log.end(partition) for partition, position in self._positions.items()
        )

    def _poll(self) -> bool:
        """Poll the log as a consumer does. Return whether the poll returned records."""
        chunks = []
        for partition, position in self._positions.items():
            found = [] if partition in self._paused else self._log.read(partition, position, MAX_POLL_RECORDS)
            if found:
                self._positions[partition] = found[-1].offset + 1
                chunks.append(_Chunk(partition, found))
        self._carry_out(self._core.on_fetched(chunks))
        return bool(chunks)

    def _assign_all(self) -> None:
        self._positions = {
            partition: self._run.committed.get(partition, records[0].offset)
            for partition, records in self._log.partitions.items()
        }
        self._carry_out(self._core.on_assigned(self._positions))

    def _carry_out(self, effects: list[core.Effect]) -> None:
        for effect in effects:
            self._carry_out_one(effect)

    def _carry_out_one(self, effect: core.Effect) -> None:
        match effect:
            case core.Convert(fetched):
                batches = [batch for each in fetched for batch in self._transformed(each)]
                self._carry_out(self._core.converted(SinkRecords(batches)))
            case core.Put(records):
                self._put(records)
            case core.Open(partitions):
                self._call("open", self._task.open, partitions)
            case core.Opened():
                self._carry_out(self._core.opened())
            case core.Close(partitions):
                self._call("close", self._task.close, partitions)
            case core.Closed():
                self._carry_out(self._core.closed())
            case core.PreCommit(offsets, is_final):
                self._pre_commit(offsets, is_final=is_final)
            case core.Commit(offsets, _, number):
                self._run.committed.update(offsets)
                self._carry_out(self._core.commit_succeeded(offsets, number))
            case core.Release(partitions):
                self._carry_out(self._core.release(partitions))
            case core.Seek(positions):
                self._positions.update(positions)
            case core.SetPaused(paused, resumed):
                self._paused = (self._paused | paused) - resumed
            case core.Report(records, index, error):
                self.report(records[index], error)
            case core.Reported():
                self._carry_out(self._core.reported(now_ms=self._clock.now_ms))
            case Fail(error):
                raise error
            case core.Poll() | ReportState() | Wait():
                return

    def _transformed(self, fetched: _Fetched) -> list[SinkBatch]:
        records = [
            record.replace(
                original_topic=record.topic, original_partition=record.partition, original_offset=record.offset
            )
            for record in fetched.records
        ]
        return [result for batch in from_records(records) for result in self._chain.apply(batch)]

    def _put(self, records: SinkRecords) -> None:
        if len(records):
            self._run.puts += 1
        fault = self._due_fault() if len(records) else None
        try:
            self._call("put", self._task.put, records)
            if isinstance(fault, LostPut):
                raise RetriableError("the fault LostPut makes the worker call put again with the same records")
        except Exception as error:  # noqa: BLE001 - the core decides what an error means
            self._put_limit.failed(error)
            self._carry_out(self._core.put_failed(error, now_ms=self._clock.now_ms))
        else:
            if self._untolerated is not None:
                raise self._untolerated
            self._put_limit.succeeded()
            self._carry_out(self._core.put_succeeded(now_ms=self._clock.now_ms))
        self._inject(fault)

    def _due_fault(self) -> SinkFault | None:
        for fault in self._faults:
            if getattr(fault, "after_put", getattr(fault, "put", 0)) == self._run.puts:
                self._faults.remove(fault)
                return fault
        return None

    def _inject(self, fault: SinkFault | None) -> None:
        match fault:
            case Restart():
                raise _Killed
            case Rebalance() | LostPartitions():
                is_lost = isinstance(fault, LostPartitions)
                self._carry_out(self._core.on_revoked(list(self._positions), is_lost=is_lost))
                self._assign_all()
            case Pause(seconds=seconds):
                self._carry_out(self._core.on_pause())
                self._clock.wait(seconds)
                self._carry_out(self._core.on_resume())

    def _pre_commit(self, offsets: dict[TopicPartition, int], *, is_final: bool) -> None:
        try:
            wanted = self._call("pre_commit", self._task.pre_commit, offsets)
        except Exception:  # noqa: BLE001 - as in a worker, the records are put again
            effects = self._core.pre_commit_failed(is_final=is_final)
        else:
            effects = self._core.pre_commit_succeeded(wanted, is_final=is_final)
        self._carry_out(effects)

    def _call(self, name: str, method: Any, *arguments: Any) -> Any:
        self._run.calls.append(name)
        return method(*arguments)

    # Called by the task's context

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        return self._core.assignment

    def change_pause(self, partitions: tuple[TopicPartition, ...], *, is_paused: bool) -> None:
        change = self._core.pause_partitions if is_paused else self._core.resume_partitions
        self._carry_out(change(partitions))

    def request_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._core.request_offsets(offsets)

    def request_commit(self) -> None:
        self._reports_requested_commit = True

    def set_retry_timeout(self, timeout_ms: int) -> None:
        self._core.set_retry_timeout(timeout_ms)

    def report(self, record: SinkRecord, error: Exception) -> None:
        """Add a record to the reported records, which a worker would send to the dead letter queue.

        Raises ToleranceExceeded if errors are not tolerated. The task then fails even if it catches the exception.
        """
        if not self._policy.tolerate:
            exceeded = ToleranceExceeded(f"errors.tolerance=none, and record {record!r} failed: {error}")
            self._untolerated = self._untolerated or exceeded
            raise exceeded from error
        self._run.reported.append((record, error))

    def _report_failure(self, failure: Failure, part: Any) -> None:
        self._run.reported.append((part.to_records()[0], failure.error))


class _SinkContext(VirtualContext):
    """The platform's interface for the sink task, including its errant record reporter."""

    def __init__(self, run: _SinkTaskRun, clock: VirtualClock, plugins: Plugins) -> None:
        super().__init__(clock, plugins)
        self._run = run

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        return self._run.assignment

    @property
    def errant_record_reporter(self) -> _SinkContext:
        return self

    def report(self, record: SinkRecord, error: Exception) -> Future[None]:
        self._run.report(record, error)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def report_at(self, batch: SinkBatch, index: int, error: Exception) -> Future[None]:
        return self.report(batch.take([index]).to_records()[0], error)

    def pause(self, *partitions: TopicPartition) -> None:
        self._run.change_pause(partitions, is_paused=True)

    def resume(self, *partitions: TopicPartition) -> None:
        self._run.change_pause(partitions, is_paused=False)

    def offset(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._run.request_offsets(offsets)

    def request_commit(self) -> None:
        self._run.request_commit()

    def timeout(self, timeout_ms: int) -> None:
        self._run.set_retry_timeout(timeout_ms)


def _as_record(value: Any, offset: int) -> SinkRecord:
    return SinkRecord(topic="test", partition=0, offset=offset, value=value, timestamp=offset)
