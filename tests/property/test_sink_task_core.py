"""Model-based test of SinkTaskCore's delivery guarantees."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.api.errors import DataError, RecordErrors, RetriableError
from headrace.data.sink_records import SinkRecords
from headrace.runtime.sink_task_core import (
    Close,
    Closed,
    Commit,
    Convert,
    Effect,
    JoinGroup,
    LeaveGroup,
    Open,
    Opened,
    Poll,
    PreCommit,
    Put,
    Release,
    Report,
    Reported,
    Seek,
    SetPaused,
    SinkTaskCore,
)
from headrace.runtime.task_effects import Fail, ReportState, Wait
from support.examples import examples
from support.sink_chunks import Chunk, records_of

PARTITIONS = [("t", 0), ("t", 1), ("t", 2)]
POLLS_MAX = 3
Partition = tuple[str, int]


class SinkTaskMachine(RuleBasedStateMachine):
    """Drives a SinkTaskCore with a simulated consumer, task and consumer group.

    Records are durable as soon as the task has flushed or reported them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.core = SinkTaskCore("c-0", records_max=3)
        self.now_ms = 0
        self.positions: dict[Partition, int] = {}  # consumer positions of assigned partitions
        self.paused: frozenset[Partition] = frozenset()
        self.polls = POLLS_MAX
        self.epoch = 0
        self.group: dict[Partition, int] = dict.fromkeys(PARTITIONS, 0)  # the consumer group's committed offsets
        self.pending_commits: list[Commit] = []
        self.buffered: set[tuple[Partition, int]] = set()  # records that were put but not flushed
        self.durable: set[tuple[Partition, int]] = set()
        self.last_put: dict[Partition, int] = {}
        self.open: set[Partition] = set()
        self.retried: list[tuple[Partition, int]] = []
        self.put_plan: Any = None
        self.resumes_in_put = False
        self.flush_fails = False
        self.has_failed = False
        self.is_stopped = False
        self.is_confirmed = True
        self.tolerates_errors = True

    # Execution of SinkTaskCore's effects

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if not self.has_failed:
                self.carry_out_one(effect)

    def carry_out_one(self, effect: Effect) -> None:
        match effect:
            case Convert(fetched):
                self.carry_out(self.core.converted(records_of(fetched)))
            case Put(records):
                self.put(records)
            case Open(partitions):
                assert self.open.isdisjoint(partitions)
                self.open |= set(partitions)
            case Close(partitions):
                assert self.open.issuperset(partitions)
                self.open -= set(partitions)
            case PreCommit(offsets, is_final):
                self.pre_commit(offsets, is_final=is_final)
            case Commit():
                self.commit(effect)
            case Release(partitions):
                self.carry_out(self.core.release(partitions))
                for partition in partitions:
                    self.forget(partition)
            case Seek(positions):
                self.epoch += 1
                self.retried = []
                for partition, offset in positions.items():
                    self.positions[partition] = offset
                    self.last_put[partition] = offset - 1
            case SetPaused(paused, resumed):
                assert not paused & resumed
                self.paused = (self.paused | paused) - resumed
            case Poll(count):
                self.polls += count
                assert self.polls <= POLLS_MAX
            case LeaveGroup():
                assert not self.open
                assert self.polls == POLLS_MAX
            case JoinGroup():
                self.polls = POLLS_MAX
            case Opened():
                self.carry_out(self.core.opened())
            case Closed():
                self.carry_out(self.core.closed())
            case Report(records, index, _):
                record = records[index]
                if self.tolerates_errors:
                    self.durable.add(((record.topic or "", record.partition or 0), record.offset))
                else:
                    self.has_failed = True
            case Reported():
                self.carry_out(self.core.reported(now_ms=self.now_ms))
            case Fail():
                self.has_failed = True
            case ReportState() | Wait():
                pass

    def put(self, records: SinkRecords) -> None:
        """Complete a put with the result that `self.put_plan` determines.

        Check that `records` are in order and that their partitions are open.
        """
        ids = [((record.topic or "", record.partition or 0), record.offset) for record in records]
        assert len(ids) <= 3
        assert self.is_confirmed
        assert all(partition in self.open for partition, _ in ids), "put after revocation"
        if self.retried:
            assert ids == [each for each in self.retried if each[0] in self.open], "other records before redelivery"
        else:
            for partition, offset in ids:
                assert offset == self.last_put[partition] + 1, "records are missing or out of order"
                self.last_put[partition] = offset
        if self.resumes_in_put:
            self.task_pauses(set(PARTITIONS), False)
        plan, self.put_plan = self.put_plan, None
        if plan == "retriable":
            self.retried = ids
            self.carry_out(self.core.put_failed(RetriableError("later"), now_ms=self.now_ms))
        elif isinstance(plan, dict) and any(index < len(ids) for index in plan):
            errors = {index: error for index, error in plan.items() if index < len(ids)}
            self.retried = [ids[index] for index, error in sorted(errors.items()) if isinstance(error, RetriableError)]
            self.buffered |= {each for index, each in enumerate(ids) if index not in errors}
            self.carry_out(self.core.put_failed(RecordErrors(errors), now_ms=self.now_ms))
        else:
            self.retried = []
            self.buffered |= set(ids)
            self.carry_out(self.core.put_succeeded(now_ms=self.now_ms))

    def pre_commit(self, offsets: dict[Partition, int], *, is_final: bool) -> None:
        fails, self.flush_fails = self.flush_fails, False
        if fails:
            self.buffered.clear()  # the task loses its unflushed records
            self.carry_out(self.core.pre_commit_failed(is_final=is_final))
            return
        self.durable |= self.buffered
        self.buffered.clear()
        self.carry_out(self.core.pre_commit_succeeded(offsets, is_final=is_final))

    def commit(self, effect: Commit) -> None:
        assert self.is_confirmed
        for partition, offset in effect.offsets.items():
            assert all((partition, each) in self.durable for each in range(offset)), "commit beyond durable records"
        if effect.is_final:
            self.group.update(effect.offsets)
            self.core.commit_succeeded(effect.offsets, effect.number)
        else:
            self.pending_commits.append(effect)

    def forget(self, partition: Partition) -> None:
        self.positions.pop(partition, None)
        self.paused -= {partition}
        self.retried = [each for each in self.retried if each[0] != partition]
        # The partition's next owner puts the uncommitted records again.
        self.buffered = {each for each in self.buffered if each[0] != partition}

    # Events

    @initialize(tolerates_errors=st.sampled_from([True, True, False]))
    def assign_all(self, tolerates_errors: bool) -> None:
        self.tolerates_errors = tolerates_errors
        self.assign(set(PARTITIONS))

    @rule(partitions=st.sets(st.sampled_from(PARTITIONS), min_size=1))
    @precondition(lambda self: self.is_confirmed and not self.is_stopped and not self.has_failed)
    def assign(self, partitions: set[Partition]) -> None:
        new = {each: self.group[each] for each in partitions if each not in self.positions}
        if new:
            self.positions |= new
            self.last_put |= {partition: offset - 1 for partition, offset in new.items()}
            self.carry_out(self.core.on_assigned(new))

    @rule(partitions=st.sets(st.sampled_from(PARTITIONS), min_size=1), is_lost=st.booleans())
    @precondition(lambda self: not self.is_stopped and not self.has_failed)
    def revoke(self, partitions: set[Partition], is_lost: bool) -> None:
        self.carry_out(self.core.on_revoked(partitions & set(self.positions), is_lost=is_lost))

    @rule(
        counts=st.dictionaries(st.sampled_from(PARTITIONS), st.sampled_from([4, 1, 2, 5, 0]), min_size=1),
        is_current=st.sampled_from([True, True, True, False]),
    )
    @precondition(lambda self: self.polls > 0 and not self.has_failed)
    def poll(self, counts: dict[Partition, int], is_current: bool) -> None:
        """Complete a poll with `counts[partition]` records of each partition that is assigned and not paused.

        If `is_current` is false, the records were fetched before the last seek.
        """
        self.polls -= 1
        chunks = []
        for partition, count in counts.items():
            if partition in self.positions and partition not in self.paused:
                start = self.positions[partition]
                chunks.append(Chunk(partition, start, start + count))
                if is_current:
                    self.positions[partition] = start + count
        self.carry_out(self.core.on_fetched(chunks, is_current=is_current))

    @rule(elapsed_ms=st.sampled_from([0, 40, 100]))
    @precondition(lambda self: not self.has_failed)
    def step(self, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms
        self.carry_out(self.core.next_step(self.now_ms))

    @rule(
        plan=st.one_of(
            st.just("retriable"),
            st.dictionaries(
                st.integers(0, 2),
                st.sampled_from([DataError("bad"), RetriableError("later")]),
                min_size=1,
            ),
        )
    )
    def next_put_fails(self, plan: Any) -> None:
        self.put_plan = plan

    @rule(elapsed_ms=st.sampled_from([0, 100]))
    @precondition(lambda self: not self.has_failed)
    def step_again(self, elapsed_ms: int) -> None:
        self.step(elapsed_ms)

    @rule(fails=st.sampled_from([False, False, True]))
    def next_flush_fails(self, fails: bool) -> None:
        self.flush_fails = fails

    @rule()
    @precondition(lambda self: not self.has_failed)
    def commit_due(self) -> None:
        self.carry_out(self.core.on_commit_due())

    @rule(succeeds=st.booleans())
    @precondition(lambda self: bool(self.pending_commits))
    def commit_completes(self, succeeds: bool) -> None:
        commit = self.pending_commits.pop(0)
        if succeeds:
            self.group.update({each: max(offset, self.group[each]) for each, offset in commit.offsets.items()})
            self.carry_out(self.core.commit_succeeded(commit.offsets, commit.number))

    @rule(is_paused=st.sampled_from([False, False, True]))
    @precondition(lambda self: not self.has_failed)
    def pause(self, is_paused: bool) -> None:
        self.carry_out(self.core.on_pause() if is_paused else self.core.on_resume())

    @rule(is_confirmed=st.sampled_from([True, True, False]))
    @precondition(lambda self: not self.has_failed and not self.is_stopped)
    def confirm(self, is_confirmed: bool) -> None:
        """Let the worker confirm that it may run the task, or not confirm it if `is_confirmed` is false."""
        self.is_confirmed = is_confirmed
        self.carry_out(self.core.on_confirmed(is_confirmed))
        assert is_confirmed or not self.open

    @rule(partitions=st.sets(st.sampled_from(PARTITIONS)), is_paused=st.sampled_from([False, False, True]))
    @precondition(lambda self: not self.has_failed and not self.is_stopped)
    def task_pauses(self, partitions: set[Partition], is_paused: bool) -> None:
        change = self.core.pause_partitions if is_paused else self.core.resume_partitions
        self.carry_out(change(partitions & set(self.positions)))

    @rule()
    @precondition(lambda self: not self.has_failed and len(self.durable) > 10)
    def stop(self) -> None:
        self.is_stopped = True
        self.carry_out(self.core.on_stop())
        assert not self.open

    @rule()
    @precondition(lambda self: self.has_failed and not self.is_stopped)
    def stop_after_failure(self) -> None:
        """Stop a failed task. The task still commits the offsets of the records that were put before the failure."""
        self.has_failed, self.is_stopped = False, True
        self.put_plan, self.flush_fails = None, False
        self.carry_out(self.core.on_stop())
        self.has_failed = True

    @invariant()
    def committed_records_are_durable(self) -> None:
        for partition, offset in self.group.items():
            assert all((partition, each) in self.durable for each in range(offset))

    def teardown(self) -> None:
        """Resume the task. In each following put, let the task resume all partitions.

        Then check that all fetched records are put and that their offsets are committed.
        """
        if self.is_stopped or self.has_failed:
            return
        self.confirm(True)
        self.assign(set(PARTITIONS))
        self.put_plan, self.flush_fails = None, False
        self.pause(False)
        self.resumes_in_put = True
        for _ in range(30):
            self.now_ms += 1000
            self.carry_out(self.core.next_step(self.now_ms))
            if self.polls > 0:
                self.poll({}, True)
        ends = {partition: self.last_put[partition] + 1 for partition in self.positions}
        assert ends == self.positions, "records that were fetched are not put"
        self.commit_due()
        while self.pending_commits:
            self.commit_completes(True)
        assert all(self.group[each] >= end for each, end in ends.items())


SinkTaskMachine.TestCase.settings = settings(deadline=None, max_examples=examples(120), stateful_step_count=40)
TestSinkTaskCore = SinkTaskMachine.TestCase
