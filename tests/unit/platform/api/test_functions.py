"""Tests of `@source` functions: the offsets they receive, and when generators are created, advanced and closed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from headrace.api import Config, ConnectError, RetriableError, SinkRecords, SourceRecord, Wait, key, sink, source, wait
from headrace.testing import PauseSource, RestartSource, run_sink, run_source
from headrace.testing.source_run import stop_while_polling

Offset = Mapping[str, Any] | None
Items = Iterator[SourceRecord | Wait]

EVENTS: list[Any] = []
"""The actions of the test functions, in order."""


@pytest.fixture(autouse=True)
def _clear_events() -> None:
    EVENTS.clear()


class TickConfig(Config):
    topic: str = key("topic", default="ticks")
    count: int = key("count", default=3)


def tick(config: TickConfig, number: int) -> SourceRecord:
    return SourceRecord(topic=config.topic, value=number, source_offset={"n": number})


@source
def ticks(config: TickConfig, offset: Offset) -> Items:
    """Yield `config.count` numbers in each call."""
    EVENTS.append(offset)
    first = 0 if offset is None else offset["n"] + 1
    for number in range(first, first + config.count):
        yield tick(config, number)


def values(records: Sequence[SourceRecord]) -> list[Any]:
    return [record.value for record in records]


def test_source_function_that_has_returned_is_called_again_after_the_poll_interval_with_its_last_offset() -> None:
    run = run_source(ticks, {"poll.interval.ms": "1000"}, records=7)
    assert values(run.records) == list(range(9))
    assert EVENTS == [None, {"n": 2}, {"n": 5}]
    assert run.offset == {"n": 8}


def test_source_function_that_has_returned_is_not_called_again_before_the_poll_interval_ends() -> None:
    run = run_source(ticks, {"poll.interval.ms": "100000"}, records=100, idle_s=60)
    assert values(run.records) == [0, 1, 2]


def test_source_function_receives_the_committed_offset_after_a_restart() -> None:
    run_source(ticks, {"poll.interval.ms": "1000"}, records=12, faults=[RestartSource(6)])
    assert EVENTS == [None, {"n": 2}, {"n": 2}, {"n": 5}]


def test_generator_is_not_advanced_while_the_connector_is_paused() -> None:
    @source
    def clock(config: TickConfig, offset: Offset) -> Items:
        for number in range(4):
            EVENTS.append(number)
            yield tick(config, number)
            yield wait(1)

    run = run_source(clock, {}, records=4, faults=[PauseSource(2, seconds=500)])
    assert values(run.records) == [0, 1, 2, 3]
    assert EVENTS == [0, 1, 2, 3]


def test_generator_is_advanced_again_after_its_waiting_time() -> None:
    """The generator yields `wait(seconds)`."""

    @source
    def slow(config: TickConfig, offset: Offset) -> Items:
        yield tick(config, 0)
        yield wait(50)
        yield tick(config, 1)
        yield wait(70)
        yield tick(config, 2)

    assert values(run_source(slow, {}, records=100).records) == [0, 1]
    assert values(run_source(slow, {}, records=100, idle_s=80).records)[:3] == [0, 1, 2]


def test_stopping_a_task_runs_the_finally_blocks_of_all_its_generators() -> None:
    @source(partitions=lambda config: [{"n": number} for number in range(3)])
    def connections(config: TickConfig, offset: Offset, partition: Mapping[str, Any]) -> Items:
        try:
            while True:
                yield tick(config, 0)
                yield wait(1)
        finally:
            EVENTS.append(partition["n"])
            if partition["n"] == 1:
                raise OSError("close failed")

    with pytest.raises(OSError, match="close failed"):
        run_source(connections, {}, records=3)
    assert sorted(EVENTS) == [0, 1, 2]


def test_records_yielded_before_an_error_are_delivered_and_the_function_is_called_again_after_a_retriable_error() -> (
    None
):
    @source
    def flaky(config: TickConfig, offset: Offset) -> Items:
        EVENTS.append(offset)
        first = 0 if offset is None else offset["n"] + 1
        for number in range(first, first + 2):
            yield tick(config, number)
        raise RetriableError("try again")

    run = run_source(flaky, {}, records=6)
    assert values(run.records) == [0, 1, 2, 3, 4, 5]
    assert EVENTS == [None, {"n": 1}, {"n": 3}]


def test_retriable_error_in_one_source_partition_does_not_lose_records_of_another_partition() -> None:
    @source(partitions=lambda config: [{"n": 0}, {"n": 1}])
    def halves(config: TickConfig, offset: Offset, partition: Mapping[str, Any]) -> Items:
        if partition["n"] == 1:
            raise RetriableError("try again")
        yield tick(config, 0 if offset is None else offset["n"] + 1)

    run = run_source(halves, {"poll.interval.ms": "0"}, records=3)
    assert values(run.records) == [0, 1, 2]


def test_source_partitions_of_a_source_function_are_spread_over_the_tasks() -> None:
    @source(partitions=lambda config: [{"n": number} for number in range(5)])
    def shards(config: TickConfig, offset: Offset, partition: Mapping[str, Any]) -> Items:
        yield tick(config, partition["n"])
        yield wait(1000)

    run = run_source(shards, {"tasks.max": "3"}, records=2)
    assert values(run.records) == [0, 3, 1, 4, 2]
    assert run.offsets == {(("n", number),): {"n": number} for number in range(5)}


def test_source_offset_does_not_change_after_a_record_without_an_offset() -> None:
    @source
    def pairs(config: TickConfig, offset: Offset) -> Items:
        yield tick(config, 5)
        yield SourceRecord(topic=config.topic, value=6)
        yield wait(1000)

    assert run_source(pairs, {}, records=2).offset == {"n": 5}


@pytest.mark.parametrize("first_offset", [{"n": 5}, None])
def test_records_without_a_source_offset_cause_one_warning_per_task(
    first_offset: Offset, caplog: pytest.LogCaptureFixture
) -> None:
    @source
    def pairs(config: TickConfig, offset: Offset) -> Items:
        yield SourceRecord(topic=config.topic, value=1, source_offset=first_offset)
        yield SourceRecord(topic=config.topic, value=2)
        yield SourceRecord(topic=config.topic, value=3)
        yield wait(1000)

    run_source(pairs, {}, records=3)
    [warning] = [each for each in caplog.records if each.levelname == "WARNING"]
    assert f"pairs yielded a record without source_offset: its offset is {first_offset}" in warning.getMessage()


def test_records_with_source_offsets_cause_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    run_source(ticks, {}, records=3)
    assert not caplog.records


@pytest.mark.parametrize("item", ["text", 5, {"value": 1}, None])
def test_error_for_a_source_function_that_does_not_yield_records_contains_the_function_name(item: Any) -> None:
    @source
    def wrong(config: TickConfig, offset: Offset) -> Any:
        yield item

    with pytest.raises(ConnectError, match=rf"wrong yielded {type(item).__name__}: it must yield SourceRecord"):
        run_source(wrong, {}, records=1)


def test_error_for_a_source_function_that_is_not_a_generator_contains_the_function_name() -> None:
    @source
    def wrong(config: TickConfig, offset: Offset) -> Any:
        return [tick(config, 1)]

    with pytest.raises(ConnectError, match="wrong must be a generator"):
        run_source(wrong, {}, records=1)


def test_task_stops_immediately_while_its_generator_is_waiting() -> None:
    @source
    def patient(config: TickConfig, offset: Offset) -> Items:
        yield tick(config, 0)
        yield wait(3600)

    assert stop_while_polling(patient, {}) < 1


def test_offsets_of_records_are_committed_after_the_sink_function_returns() -> None:
    @sink
    def store(config: TickConfig, records: SinkRecords) -> None:
        assert len(records)
        EVENTS.extend(record.value for record in records)

    run = run_sink(store, {}, ["a", "b"])
    assert EVENTS == ["a", "b"]
    assert run.committed == {("test", 0): 2}
