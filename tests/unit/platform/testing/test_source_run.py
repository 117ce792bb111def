"""Tests of `run_source`, which runs a source task in memory and calls it as a worker does."""

from __future__ import annotations

import datetime as dt
import math
import weakref
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pytest

from headrace.api import (
    Config,
    ConnectError,
    ConnectRecord,
    DataError,
    RecordMetadata,
    RetriableError,
    RetryPolicy,
    Schema,
    SourceBatch,
    SourceConnector,
    SourceRecord,
    SourceTask,
    Struct,
    Timestamp,
    Wait,
    key,
    source,
    transform,
    wait,
)
from headrace.data.schema import INT64_SCHEMA, OPTIONAL_STRING_SCHEMA, struct
from headrace.testing import LostAcknowledgement, PauseSource, RepeatedRetriableError, RestartSource, run_source


class NumbersConfig(Config):
    topic: str = key("topic", default="numbers")
    end: int = key("end", default=10)
    mode: str = key("mode", default="")


class NumbersTask(SourceTask[NumbersConfig]):
    """A source task that returns the numbers from 0 to `end` - 1, two in each poll."""

    def start(self, config: NumbersConfig) -> None:
        offset = self.context.offsets.read({"numbers": 1})
        self.next = 0 if offset is None else offset["n"]
        self.failures = 0

    def poll(self) -> SourceBatch | Sequence[SourceRecord] | None:
        if self.config.mode == "retriable" and self.failures < 3:
            self.failures += 1
            raise RetriableError("not yet")
        numbers = list(range(self.next, min(self.next + 2, self.config.end)))
        if not numbers:
            self.context.wait(5)
            return None
        self.next = numbers[-1] + 1
        partition, offset = {"numbers": 1}, {"n": self.next}
        if self.config.mode == "offsets only":
            return SourceBatch(self.config.topic, [], source_partition=partition, source_offset=offset)
        return [
            SourceRecord(
                topic=self.config.topic, value=number, source_partition=partition, source_offset={"n": number + 1}
            )
            for number in numbers
        ]


class CommittingTask(NumbersTask):
    """A source task that stores the arguments of each call of `commit_record`."""

    committed: list[tuple[Any, RecordMetadata | None]]

    def start(self, config: NumbersConfig) -> None:
        super().start(config)
        type(self).committed = []

    def commit_record(self, record: SourceRecord, metadata: RecordMetadata | None) -> None:
        self.committed.append((record.value, metadata))


@transform
def drop_odd(config: Config, record: ConnectRecord) -> ConnectRecord | None:
    return None if record.value % 2 else record.replace(value=-record.value)


@transform
def reject_three(config: Config, record: ConnectRecord) -> ConnectRecord:
    if record.value == 3:
        raise DataError("three")
    return record


def path(function: Any) -> str:
    return f"{function.__module__}:{function.__qualname__}"


def values(records: Sequence[SourceRecord]) -> list[Any]:
    return [record.value for record in records]


def test_run_source_returns_records_and_offsets_of_all_polls() -> None:
    run = run_source(NumbersTask, {}, records=100)
    assert values(run.records) == list(range(10))
    assert run.offset == {"n": 10}
    assert run.offsets == {(("numbers", 1),): {"n": 10}}
    assert (run.calls[0], run.calls[-1]) == ("start", "stop")


def test_run_source_ends_after_the_requested_number_of_records_and_the_next_run_continues() -> None:
    first = run_source(NumbersTask, {}, records=4)
    assert values(first.records) == [0, 1, 2, 3]
    second = run_source(NumbersTask, {}, records=100, offsets=first.offsets)
    assert values(second.records) == list(range(4, 10))


def test_source_task_reads_the_last_batch_again_after_a_simulated_restart() -> None:
    run = run_source(NumbersTask, {}, records=100, faults=[RestartSource(4)])
    assert values(run.records) == [0, 1, 2, 3, 2, 3, 4, 5, 6, 7, 8, 9]
    assert run.calls.count("start") == 2
    assert run.calls.count("stop") == 1


def test_source_task_reads_two_batches_again_if_the_acknowledgement_of_the_first_batch_is_lost() -> None:
    run = run_source(NumbersTask, {}, records=100, faults=[LostAcknowledgement(2)])
    assert values(run.records) == [0, 1, 2, 3, 4, 5, 2, 3, 4, 5, 6, 7, 8, 9]


def test_source_task_reads_its_last_batch_again_if_the_acknowledgement_of_this_batch_is_lost() -> None:
    run = run_source(NumbersTask, {"end": "4"}, records=100, faults=[LostAcknowledgement(2)])
    assert values(run.records) == [0, 1, 2, 3, 2, 3]
    assert run.offset == {"n": 4}


def test_run_source_returns_all_records_after_a_simulated_pause() -> None:
    run = run_source(NumbersTask, {}, records=100, faults=[PauseSource(4, seconds=1000)])
    assert values(run.records) == list(range(10))


def test_run_source_repeats_a_poll_that_failed_with_a_retriable_error() -> None:
    run = run_source(NumbersTask, {"mode": "retriable"}, records=100)
    assert values(run.records) == list(range(10))
    assert run.calls[:5] == ["start", *["poll"] * 4]


def test_run_source_commits_the_offsets_of_batches_without_records() -> None:
    run = run_source(NumbersTask, {"mode": "offsets only"}, records=100)
    assert run.records == []
    assert run.offset == {"n": 10}


def test_run_source_applies_transforms() -> None:
    run = run_source(NumbersTask, {"transforms": "a", "transforms.a.type": path(drop_odd)}, records=100)
    assert values(run.records) == [0, -2, -4, -6, -8]
    assert run.offset == {"n": 10}


def test_run_source_raises_the_error_of_a_transform_unless_errors_are_tolerated() -> None:
    props = {"transforms": "a", "transforms.a.type": path(reject_three)}
    with pytest.raises(Exception, match="three"):
        run_source(NumbersTask, props, records=100)
    run = run_source(NumbersTask, {**props, "errors.tolerance": "all"}, records=100)
    assert values(run.records) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert [(record.value, str(error)) for record, error in run.skipped] == [(3, "three")]


def test_run_source_calls_commit_record_with_the_untransformed_record_and_its_record_metadata() -> None:
    props = {"transforms": "a", "transforms.a.type": path(drop_odd), "end": "4"}
    run_source(CommittingTask, props, records=100)
    assert CommittingTask.committed == [
        (0, RecordMetadata("numbers", 0, 0, None)),
        (1, None),
        (2, RecordMetadata("numbers", 0, 1, None)),
        (3, None),
    ]


@pytest.mark.parametrize("polled", [5, [5], "text", [SourceRecord(topic="t", value=1), 5]])
def test_run_source_raises_type_error_if_poll_returns_objects_that_are_not_records(polled: Any) -> None:
    class OtherTask(SourceTask[Config]):
        def poll(self) -> Any:
            return polled

    with pytest.raises(TypeError, match=r"OtherTask.*must return SourceRecord|not iterable"):
        run_source(OtherTask, {}, records=1)


def test_error_for_a_record_without_a_topic_contains_the_source_offset_of_the_record() -> None:
    @source
    def ticks(config: NumbersConfig, offset: Mapping[str, Any] | None) -> Iterator[SourceRecord]:
        yield SourceRecord(topic=None, value=1, source_offset={"n": 7})

    with pytest.raises(DataError, match=r"offset \{'n': 7\} has no topic"):
        run_source(ticks, {}, records=1)


def test_run_source_with_several_tasks_reads_all_source_partitions() -> None:
    @source(partitions=lambda config: [{"shard": number} for number in range(5)])
    def shards(
        config: NumbersConfig, offset: Mapping[str, Any] | None, partition: Mapping[str, Any]
    ) -> Iterator[SourceRecord | Wait]:
        yield SourceRecord(topic="t", value=partition["shard"], source_offset={"n": 1})
        yield wait(1)

    run = run_source(shards, {"tasks.max": "2"}, records=3)
    assert set(values(run.records)) == set(range(5))
    with pytest.raises(ValueError, match=r"source partitions: use SourceRun\.offsets"):
        assert run.offset


class _SharingTask(SourceTask):
    """Returns one record, which contains the number of the task, the number of tasks, and `tolerates_errors`."""

    def poll(self) -> Sequence[SourceRecord]:
        found = [self.context.task_number, self.context.task_count, self.context.tolerates_errors]
        return [SourceRecord(topic="t", value=found)]


class _SharingSource(SourceConnector):
    """Its tasks have configurations that do not contain the keys of the framework."""

    task_class = _SharingTask

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        return [{}] * max_tasks


@pytest.mark.parametrize(("tolerance", "is_tolerant"), [({"errors.tolerance": " all "}, True), ({}, False)])
def test_task_context_has_the_number_of_tasks_and_the_error_tolerance_of_the_connector(
    tolerance: dict[str, str], is_tolerant: bool
) -> None:
    run = run_source(_SharingSource, {"tasks.max": "2", **tolerance}, records=1)
    assert values(run.records) == [[0, 2, is_tolerant], [1, 2, is_tolerant]]


NOT_JSON = [
    dt.datetime(2026, 1, 1),
    b"x",
    Decimal("1.5"),
    (1, 2),
    [1],
    {"a": 1},
    math.nan,
    math.inf,
    2**63,
    -(2**63) - 1,
]


@pytest.mark.parametrize("value", NOT_JSON, ids=repr)
def test_source_offset_with_a_value_that_a_worker_would_read_as_another_type_is_rejected_at_the_poll(
    value: Any,
) -> None:
    @source
    def ticks(config: NumbersConfig, offset: Mapping[str, Any] | None) -> Iterator[SourceRecord]:
        yield SourceRecord(topic="t", value=1, source_offset={"ok": 1, "position": value})

    with pytest.raises(DataError, match=r"^Source offset .*: the value of 'position' "):
        run_source(ticks, {}, records=1)


@pytest.mark.parametrize("offset", [{1: 2}, {None: 2}, 5, "text", [("n", 1)]], ids=repr)
def test_source_offset_that_is_not_a_map_with_string_keys_is_rejected_at_the_poll(offset: Any) -> None:
    class OffsetTask(SourceTask[Config]):
        def poll(self) -> Any:
            return [SourceRecord(topic="t", value=1, source_partition={"p": 1}, source_offset=offset)]

    with pytest.raises(DataError, match=r"^Source offset "):
        run_source(OffsetTask, {}, records=1)


@pytest.mark.parametrize("has_records", [True, False])
def test_source_offsets_of_a_batch_are_checked_at_the_poll(has_records: bool) -> None:
    class BatchTask(SourceTask[Config]):
        def poll(self) -> Any:
            values = [1, 2] if has_records else []
            offsets: Any = [{"n": 1}, {"n": b"2"}] if has_records else None
            last: Any = {"n": 2} if has_records else {"n": b"2"}
            return SourceBatch("t", values, source_partition={}, source_offset=last, source_offsets=offsets)

    with pytest.raises(DataError, match="the value of 'n' has the type bytes"):
        run_source(BatchTask, {}, records=2)


@pytest.mark.parametrize("timestamp", [dt.datetime(2026, 1, 1), "2026-01-01", 1.5], ids=repr)
def test_timestamp_that_is_not_an_int_is_rejected_at_the_poll(timestamp: Any) -> None:
    @source
    def ticks(config: NumbersConfig, offset: Mapping[str, Any] | None) -> Iterator[SourceRecord]:
        yield SourceRecord(topic="t", value=1, timestamp=Timestamp(5), source_offset={"n": 1})
        yield SourceRecord(topic="t", value=2, timestamp=timestamp, source_offset={"n": 2})

    with pytest.raises(DataError, match=r"^The timestamp .* it must be an int, the milliseconds since 1970-01-01 UTC"):
        run_source(ticks, {}, records=2)


@pytest.mark.parametrize("topic", ["two words", "x" * 250, ".."])
def test_topic_with_a_name_that_brokers_reject_fails_the_run(topic: str) -> None:
    @source
    def ticks(config: NumbersConfig, offset: Mapping[str, Any] | None) -> Iterator[SourceRecord]:
        yield SourceRecord(topic=topic, value=1, source_offset={"n": 1})

    with pytest.raises(ConnectError, match=r"^Failed to create topic .*: a topic name has 1 to 249 letters"):
        run_source(ticks, {}, records=1)


def test_source_partition_with_a_value_that_json_cannot_represent_is_rejected_at_the_poll_and_at_a_read() -> None:
    class PartitionTask(SourceTask[NumbersConfig]):
        def start(self, config: NumbersConfig) -> None:
            if config.mode == "read":
                self.context.offsets.read({"day": dt.date(2026, 1, 1)})

        def poll(self) -> Any:
            return [SourceRecord(topic="t", value=1, source_partition={"day": dt.date(2026, 1, 1)}, source_offset={})]

    for mode in ("poll", "read"):
        with pytest.raises(DataError, match=r"^Source partition .*: the value of 'day' has the type date"):
            run_source(PartitionTask, {"mode": mode}, records=1)


def test_run_source_rejects_initial_offsets_that_a_worker_could_not_have_stored() -> None:
    with pytest.raises(DataError, match=r"^Source offset .*: the value of 'n' has the type datetime"):
        run_source(NumbersTask, {}, records=1, offsets={(("numbers", 1),): {"n": dt.datetime(2026, 1, 1)}})


def test_source_offset_with_every_json_primitive_is_committed() -> None:
    offset = {"null": None, "bool": True, "int": 2**63 - 1, "float": 1.5, "str": "text"}

    @source
    def ticks(config: NumbersConfig, committed: Mapping[str, Any] | None) -> Iterator[SourceRecord]:
        yield SourceRecord(topic="t", value=1, source_offset=offset)

    assert run_source(ticks, {}, records=1).offset == offset


USER_SCHEMA = struct([("id", INT64_SCHEMA), ("name", OPTIONAL_STRING_SCHEMA)])


class StructTask(SourceTask[NumbersConfig]):
    """A source task that returns a valid struct and then, if `mode` is set, an invalid value."""

    def start(self, config: NumbersConfig) -> None:
        self.records = [
            self.record(1, USER_SCHEMA, Struct(USER_SCHEMA, {"id": 1})),
            *{
                "missing field": [self.record(2, USER_SCHEMA, Struct(USER_SCHEMA, {"name": "a"}))],
                "missing schema": [self.record(2, None, Struct(USER_SCHEMA, {"id": 2}))],
                "wrong type": [self.record(2, INT64_SCHEMA, "two")],
                "bad key": [self.record(2, INT64_SCHEMA, 2, key_schema=INT64_SCHEMA, key="two")],
                "bytes": [self.record(2, None, b"\xff")],
                "": [],
            }[config.mode],
            self.record(3, USER_SCHEMA, Struct(USER_SCHEMA, {"id": 3})),
        ]

    def record(self, number: int, schema: Schema | None, value: Any, **attributes: Any) -> SourceRecord:
        offset = {"n": number}
        return SourceRecord(topic="t", value_schema=schema, value=value, source_offset=offset, **attributes)

    def poll(self) -> list[SourceRecord] | None:
        records, self.records = self.records, []
        return records


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("missing field", 'VALUE_CONVERTER.*null value for field that is required.*"id"'),
        ("missing schema", r"VALUE_CONVERTER.*Mismatching schema:"),
        ("wrong type", "VALUE_CONVERTER.*Invalid type for INT64: str"),
        ("bad key", "KEY_CONVERTER.*Invalid type for INT64: str"),
    ],
)
def test_record_that_the_json_converter_rejects_fails_the_run_or_is_skipped(mode: str, message: str) -> None:
    with pytest.raises(ConnectError, match=message):
        run_source(StructTask, {"mode": mode}, records=3)
    run = run_source(StructTask, {"mode": mode, "errors.tolerance": "all"}, records=3)
    assert [record.value["id"] for record in run.records] == [1, 3]
    assert [record.source_offset for record, _ in run.skipped] == [{"n": 2}]
    assert run.offset == {"n": 3}


def test_run_source_uses_the_converters_of_the_connector_configuration() -> None:
    text_props = {"value.converter": "org.apache.kafka.connect.storage.StringConverter"}
    assert len(run_source(StructTask, text_props, records=2).records) == 2
    assert len(run_source(StructTask, {"mode": "bytes"}, records=3).records) == 3
    bytes_props = {"value.converter": "org.apache.kafka.connect.converters.ByteArrayConverter", "mode": "bytes"}
    with pytest.raises(ConnectError, match="ByteArrayConverter"):
        run_source(StructTask, bytes_props, records=3)


def test_run_source_returns_records_as_they_were_before_their_conversion() -> None:
    [first, _] = run_source(StructTask, {}, records=2).records
    assert first.value == Struct(USER_SCHEMA, {"id": 1})
    assert first.value_schema == USER_SCHEMA


def test_run_source_fails_with_the_text_of_a_retriable_error_that_poll_raised_100_times_in_a_row() -> None:
    polls = 0

    class LockedTask(SourceTask[Config]):
        def poll(self) -> None:
            nonlocal polls
            polls += 1
            raise RetriableError(RetryPolicy(polls).after(polls, "locked").text)

    with pytest.raises(
        RepeatedRetriableError, match=r"poll .* 100 times in a row: locked; retrying in 100 ms \(attempt 101\)$"
    ):
        run_source(LockedTask, {}, records=1)
    assert polls == 100


@pytest.mark.parametrize("fault", [RestartSource(2), LostAcknowledgement(1)])
def test_killed_source_task_is_freed_before_the_next_instance_starts(fault: Any) -> None:
    instances: list[weakref.ref[Any]] = []
    alive_at_start: list[int] = []

    class TrackedTask(NumbersTask):
        def start(self, config: NumbersConfig) -> None:
            super().start(config)
            alive_at_start.append(sum(each() is not None for each in instances))
            instances.append(weakref.ref(self))

    run_source(TrackedTask, {}, records=6, faults=[fault])
    assert alive_at_start == [0, 0]
