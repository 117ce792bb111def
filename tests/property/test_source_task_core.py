"""Model-based test of SourceTaskCore's delivery guarantees.

Record n of a source partition has the value n and the source offset n + 1, from which a restarted
task resumes after record n.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.api.errors import ConnectError, RetriableError
from headrace.api.task import RecordMetadata
from headrace.data.batch import SourceBatch
from headrace.runtime.offsets_tracker import Offset, Submission
from headrace.runtime.source_task_core import (
    CommitOffsets,
    CommitRecords,
    CommitTask,
    Convert,
    Effect,
    OutgoingRecords,
    Poll,
    PrepareTopic,
    ReportTopic,
    Send,
    SendUnwritten,
    Skip,
    SourceTaskCore,
    Stop,
)
from headrace.runtime.task_effects import Fail, ReportState, Wait
from support.examples import examples

PARTITIONS = 2
TOPICS = ("even", "odd")
DROPPED = 7
"""The transform drops every record whose number is divisible by `DROPPED`."""
REJECTED = 3
"""If the task has a dead letter queue, the transform rejects the records 1, 4, 7 and so on, unless it drops them."""
POLL_RECORDS_MAX = 3


class SourceTaskMachine(RuleBasedStateMachine):
    """Drives a SourceTaskCore with a simulated task, producer and offset store.

    After the task is killed, it resumes from the offsets in the offset store.
    """

    @initialize(
        tolerates_errors=st.booleans(),
        commits_records=st.booleans(),
        has_queue=st.booleans(),
        takes_risks=st.booleans(),
    )
    def create(self, tolerates_errors: bool, commits_records: bool, has_queue: bool, takes_risks: bool) -> None:
        self.takes_risks = takes_risks  # whether the task may be killed or fail
        self.has_queue = has_queue  # whether the task has a dead letter queue
        self.tolerates_errors = tolerates_errors or has_queue
        self.commits_records = commits_records or has_queue
        self.stored = dict.fromkeys(range(PARTITIONS), 0)
        self.done: set[tuple[int, int]] = set()  # (partition, number) of written, dropped and skipped records
        self.is_paused = False
        self.start_task()

    def start_task(self) -> None:
        self.core = SourceTaskCore(
            "c-0",
            is_paused=self.is_paused,
            tolerates_errors=self.tolerates_errors,
            commits_records=self.commits_records,
            has_dead_letter_queue=self.has_queue,
        )
        self.positions = dict(self.stored)
        self.now_ms = 0
        self.is_buffer_full = False
        self.in_flight: list[Send] = []
        self.dlq_in_flight: list[tuple[Submission, set[tuple[int, int]]]] = []
        self.unreported: set[tuple[int, int]] = set()  # records that could not be written and are not in the DLQ yet
        self.unsent: set[tuple[int, int]] = set()  # polled records that were neither dropped nor sent
        self.preparing: str | None = None
        self.is_preparation_failing = False
        self.commits: list[list[Offset]] = []  # offset commits in progress
        self.committed_records: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
        self.written: set[tuple[int, int]] = set()
        self.poll_plan: list[tuple[int, int]] | None = []
        self.has_failed = False
        self.has_stopped = False
        self.reported_pause: bool | None = None
        self.used_topics: list[str] = []
        self.expects_failure = False

    # Execution of SourceTaskCore's effects

    def carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            self.carry_out_one(effect)

    def carry_out_one(self, effect: Effect) -> None:
        match effect:
            case Poll():
                self.poll()
            case Convert(polled, batch, by_record):
                assert not self.is_buffer_full
                assert by_record is self.commits_records
                self.carry_out(self.core.converted(polled, self.convert(batch)))
            case Send(_, records):
                assert not self.is_buffer_full
                self.unsent -= self.records_in(records)
                self.in_flight.append(effect)
            case Skip(send, error):
                self.unsent -= self.records_in(send.records)
                self.report_result(send, None, error)
            case SendUnwritten(send, _):
                records = self.records_in(send.records)
                self.unreported -= records
                self.dlq_in_flight.append((send.polled.submission, records))
            case PrepareTopic(topic):
                assert self.preparing is None
                self.preparing = topic
            case CommitOffsets(offsets):
                assert not self.commits, "two commits at a time"
                self.commits.append(list(offsets))
            case CommitRecords(batch, results):
                self.commit_records(batch, results)
            case ReportState(is_paused):
                assert is_paused is not self.reported_pause
                self.reported_pause = is_paused
            case ReportTopic(topic):
                assert topic not in self.used_topics
                self.used_topics.append(topic)
            case Fail():
                assert self.expects_failure
                self.has_failed = True
            case Stop():
                self.has_stopped = True
            case CommitTask() | Wait():
                return

    def poll(self) -> None:
        assert not self.is_paused
        assert not self.is_buffer_full
        assert not self.unsent, "polled although records wait"
        assert not self.unreported, "polled although records wait for the dead letter queue"
        plan, self.poll_plan = self.poll_plan, []
        if plan is None:
            self.carry_out(self.core.poll_failed(RetriableError("poll"), now_ms=self.now_ms))
            return
        batches = []
        for partition, count in plan:
            first = self.positions[partition]
            self.positions[partition] = first + count + (count == 0)  # an empty batch skips one record
            if count == 0 and self.has_queue:  # the task skips the record and reports it
                self.dlq_in_flight.append((self.core.failed_in_poll({"p": partition}), {(partition, first)}))
            elif count == 0:
                self.done.add((partition, first))
            numbers = list(range(first, first + count))
            self.unsent |= {(partition, number) for number in numbers if number % DROPPED}
            self.done |= {(partition, number) for number in numbers if number % DROPPED == 0}
            batches.append(
                SourceBatch(
                    "t",
                    numbers,
                    source_partition={"p": partition},
                    source_offset={"n": self.positions[partition]},
                    source_offsets=[{"n": number + 1} for number in numbers],
                )
            )
        self.carry_out(self.core.polled(batches))

    def convert(self, batch: SourceBatch) -> list[OutgoingRecords]:
        kept = [(index, number) for index, number in enumerate(batch.values) if number % DROPPED]
        if self.has_queue:
            partition = batch.source_partition["p"]
            for record in {(partition, number) for _, number in kept if number % REJECTED == 1}:
                self.unsent.remove(record)
                self.dlq_in_flight.append((self.core.failed_in_conversion(), {record}))
            kept = [(index, number) for index, number in kept if number % REJECTED != 1]
        groups = [[item] for item in kept]
        if not self.commits_records:
            groups = [[item for item in kept if item[1] % 2 == parity] for parity in (0, 1)]
        return [
            OutgoingRecords(
                TOPICS[group[0][1] % 2],
                None,
                [(batch.source_partition["p"], number) for _, number in group],
                group[0][0] if self.commits_records else None,
            )
            for group in groups
            if group
        ]

    def records_in(self, records: OutgoingRecords) -> set[tuple[int, int]]:
        return set(records.columns)

    def report_result(self, send: Send, metadata: RecordMetadata | None, error: Exception | None) -> None:
        if error is None:
            self.written |= self.records_in(send.records)
        if error is not None and self.has_queue:
            self.unreported |= self.records_in(send.records)
        elif error is None or self.tolerates_errors:
            self.done |= self.records_in(send.records)
        else:
            self.expects_failure = True
        self.carry_out(self.core.acknowledged(send, metadata, error))

    def commit_records(self, batch: SourceBatch, results: list[RecordMetadata | None]) -> None:
        assert self.commits_records
        partition = batch.source_partition["p"]
        self.committed_records[partition] += batch.values
        for number, metadata in zip(batch.values, results, strict=True):
            assert (partition, number) in self.done
            assert (metadata is not None) == ((partition, number) in self.written)
            assert metadata is None or metadata.offset == number

    # Events

    @property
    def is_running(self) -> bool:
        return not self.has_failed and not self.has_stopped

    @precondition(lambda self: self.is_running)
    @rule(
        plan=st.one_of(
            st.none(),
            st.lists(
                st.tuples(st.integers(0, PARTITIONS - 1), st.integers(0, POLL_RECORDS_MAX)), min_size=1, max_size=3
            ),
        ),
        prepares_topics=st.booleans(),
    )
    def run(self, plan: list[tuple[int, int]] | None, prepares_topics: bool) -> None:
        """Run the task until its thread waits.

        `plan` lists the source partitions and record counts of the first poll. The poll fails if `plan` is None.
        If `prepares_topics` is true, each `PrepareTopic` effect succeeds immediately.
        """
        self.poll_plan = plan
        for _ in range(50):
            effects = self.core.next_step(self.now_ms, is_buffer_full=self.is_buffer_full)
            has_polled = Poll() in effects
            self.carry_out(effects)
            if prepares_topics and self.preparing is not None:
                self.topic_is_ready()
                continue
            if not self.is_running or any(isinstance(effect, Wait) for effect in effects):
                return
            if has_polled and not plan:
                return

    @precondition(lambda self: self.is_running)
    @rule()
    def step(self) -> None:
        self.carry_out(self.core.next_step(self.now_ms, is_buffer_full=self.is_buffer_full))

    @precondition(lambda self: self.in_flight)
    @rule()
    def acknowledge_all(self) -> None:
        while self.in_flight:
            self.acknowledge_first()

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        send = self.in_flight.pop(data.draw(st.integers(0, len(self.in_flight) - 1)))
        partition, number = send.records.columns[-1]
        self.report_result(send, RecordMetadata(send.records.topic, partition, number, None), None)

    @precondition(lambda self: self.in_flight and (self.tolerates_errors or self.takes_risks))
    @rule(data=st.data())
    def fail_send(self, data: st.DataObject) -> None:
        send = self.in_flight.pop(data.draw(st.integers(0, len(self.in_flight) - 1)))
        self.report_result(send, None, OSError("record too large"))

    @precondition(lambda self: self.dlq_in_flight)
    @rule(data=st.data())
    def acknowledge_dlq_record(self, data: st.DataObject) -> None:
        self.complete_dlq_record(data.draw(st.integers(0, len(self.dlq_in_flight) - 1)), None)

    @precondition(lambda self: self.dlq_in_flight)
    @rule()
    def acknowledge_all_dlq_records(self) -> None:
        while self.dlq_in_flight:
            self.complete_dlq_record(0, None)

    @precondition(lambda self: self.dlq_in_flight and self.takes_risks)
    @rule(data=st.data())
    def fail_dlq_record(self, data: st.DataObject) -> None:
        self.expects_failure = True
        index = data.draw(st.integers(0, len(self.dlq_in_flight) - 1))
        self.complete_dlq_record(index, ConnectError("record too large"))
        assert self.core.error is not None

    def complete_dlq_record(self, index: int, error: ConnectError | None) -> None:
        submission, records = self.dlq_in_flight.pop(index)
        if error is None:
            self.done |= records
        self.carry_out(self.core.dlq_acknowledged(submission, error))

    @precondition(lambda self: self.preparing)
    @rule()
    def topic_is_ready(self) -> None:
        topic, self.preparing = self.preparing, None
        assert topic is not None
        self.carry_out(self.core.topic_ready(topic))

    @precondition(lambda self: self.preparing and (self.tolerates_errors or self.takes_risks))
    @rule(is_fatal=st.booleans())
    def topic_fails(self, is_fatal: bool) -> None:
        is_fatal = is_fatal and self.takes_risks
        topic, self.preparing = self.preparing, None
        assert topic is not None
        self.expects_failure = self.expects_failure or is_fatal or not self.tolerates_errors
        self.carry_out(self.core.topic_failed(topic, ConnectError("denied") if is_fatal else OSError("invalid topic")))

    @precondition(lambda self: self.is_running and self.in_flight)
    @rule()
    def producer_forgets_topic(self) -> None:
        """Let the producer return the records of the last `Send` without sending them.

        A producer does this if its metadata no longer contain the topic.
        """
        send = self.in_flight.pop()
        self.unsent |= self.records_in(send.records)
        self.carry_out(self.core.topic_unknown(send))

    @rule()
    def commit_interval_passes(self) -> None:
        self.carry_out(self.core.on_commit_due())

    @precondition(lambda self: self.commits)
    @rule(is_successful=st.booleans())
    def commit_ends(self, is_successful: bool) -> None:
        offsets = self.commits.pop()
        if not is_successful:
            self.carry_out(self.core.commit_failed(TimeoutError("commit")))
            return
        for partition, offset in offsets:
            assert offset["n"] > self.stored[partition["p"]] or offset["n"] == self.stored[partition["p"]]
            self.stored[partition["p"]] = offset["n"]
        self.carry_out(self.core.commit_succeeded(offsets))

    @rule(is_paused=st.booleans())
    def pause_or_resume(self, is_paused: bool) -> None:
        self.is_paused = is_paused
        self.carry_out(self.core.on_pause() if is_paused else self.core.on_resume())

    @rule(is_full=st.booleans())
    def buffer_fills_or_empties(self, is_full: bool) -> None:
        self.is_buffer_full = is_full

    @rule(milliseconds=st.integers(1, 300))
    def time_passes(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    @precondition(lambda self: self.takes_risks)
    @rule()
    def kill(self) -> None:
        """Kill the task and start it again. Offset commits in progress are lost."""
        self.start_task()

    @precondition(lambda self: self.is_running)
    @rule()
    def stop(self) -> None:
        """Stop the task. `finish` then acknowledges or loses the records in flight."""
        self.carry_out(self.core.on_stop())
        for _ in range(100):
            if self.has_stopped or self.has_failed or (self.preparing and not self.is_buffer_full):
                break
            self.carry_out(self.core.next_step(self.now_ms, is_buffer_full=self.is_buffer_full))

    @precondition(lambda self: self.has_stopped or self.has_failed)
    @rule(is_acknowledged=st.booleans())
    def finish(self, is_acknowledged: bool) -> None:
        while is_acknowledged and self.in_flight:
            self.acknowledge_first()
        while is_acknowledged and self.dlq_in_flight:
            self.complete_dlq_record(0, None)
        if self.commits:  # an offset commit in progress fails
            offsets = self.commits.pop()
            self.carry_out(self.core.commit_failed(TimeoutError("closed")))
            assert offsets
        self.carry_out(self.core.flushed())
        if self.commits:
            self.commit_ends(is_successful=True)
        self.carry_out(self.core.close())
        if is_acknowledged and not (self.has_failed or self.expects_failure or self.unsent or self.unreported):
            assert self.stored == self.positions
        late, self.in_flight = self.in_flight, []
        for send in late:
            assert self.core.acknowledged(send, None, None) == []
        for submission, _ in self.dlq_in_flight:
            assert self.core.dlq_acknowledged(submission, None) == []
        assert self.core.on_commit_due() == []
        self.start_task()

    def acknowledge_first(self) -> None:
        send = self.in_flight.pop(0)
        partition, number = send.records.columns[-1]
        self.report_result(send, RecordMetadata(send.records.topic, partition, number, None), None)

    # Guarantees

    @invariant()
    def no_offset_is_stored_beyond_a_record_that_is_not_done(self) -> None:
        for partition, offset in getattr(self, "stored", {}).items():
            for number in range(offset):
                assert (partition, number) in self.done

    @invariant()
    def records_are_committed_in_order_and_once(self) -> None:
        for numbers in getattr(self, "committed_records", {}).values():
            assert numbers == sorted(set(numbers))


TestSourceTaskCore = SourceTaskMachine.TestCase
TestSourceTaskCore.settings = settings(max_examples=examples(150), stateful_step_count=60, deadline=None)
