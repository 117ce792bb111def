"""Tests of the keys `errors.*`: failed operations are retried with backoff before failed records are skipped."""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from headrace.api.errors import ConfigError, ConnectError, DataError, RecordErrors, RetriableError
from headrace.runtime.chain import Step, TransformChain
from headrace.runtime.error_counters import ErrorCounters
from headrace.runtime.error_policy import (
    DeadLetterQueueConfig,
    ErrorLog,
    ErrorPolicy,
    Failure,
    Stage,
    ToleranceExceeded,
)
from headrace.runtime.tolerance import RetryWithToleranceOperator
from headrace.runtime.traces import exception_line, trace_of
from support.errors import error_policy
from support.transforms import make_plugin, source_batch


class Numbers(list[int]):
    """Numbers that stand for records. The method `take` selects numbers by their indexes."""

    def take(self, indexes: Any) -> Numbers:
        return Numbers(self[index] for index in indexes)


class Clock:
    """A clock that advances only when `wait` is called."""

    def __init__(self) -> None:
        self.ms = 0
        self.waits: list[int] = []

    def wait(self, delay_ms: int) -> bool:
        self.waits.append(delay_ms)
        self.ms += delay_ms
        return True


def stages(
    policy: ErrorPolicy, clock: Clock | None = None, on_retry: Callable[[], None] = lambda: None
) -> tuple[RetryWithToleranceOperator, list[tuple[Failure, Any]]]:
    clock = clock or Clock()
    reported: list[tuple[Failure, Any]] = []
    built = RetryWithToleranceOperator(
        policy,
        report=lambda failure, part: reported.append((failure, part)),
        describe=lambda part: f"record {part[0]}" if isinstance(part, Numbers) else "a record",
        now_ms=lambda: clock.ms,
        wait_ms=clock.wait,
        rng=Random(1),
        on_retry=on_retry,
    )
    return built, reported


TOLERANT = error_policy(tolerate=True)


def test_error_for_a_record_with_too_many_nested_levels_says_so() -> None:
    built, reported = stages(TOLERANT)

    def recurse(depth: int) -> int:
        return recurse(depth + 1) + 1

    def operation(part: Numbers) -> list[int]:
        return [recurse(0) if number == 2 else number for number in part]

    assert built.run(Stage.TRANSFORMATION, "Deep", operation, Numbers([1, 2, 3])) == [[1], [3]]
    ((failure, part),) = reported
    assert part == [2]
    assert isinstance(failure.error, DataError)
    assert isinstance(failure.error.__cause__, RecursionError)
    assert "too many nested levels" in str(failure)


def test_failed_records_of_a_batch_are_skipped_and_reported() -> None:
    """The operation raises `RecordErrors` with the indexes of the failed records.

    The class `RetryWithToleranceOperator` then calls the operation again without these records.
    """
    built, reported = stages(TOLERANT)
    calls: list[list[int]] = []

    def no_threes(part: Numbers) -> list[int]:
        calls.append(list(part))
        if errors := {i: DataError(f"{n} is a three") for i, n in enumerate(part) if n == 3}:
            raise RecordErrors(errors)
        return list(part)

    assert built.run(Stage.VALUE_CONVERTER, "C", no_threes, Numbers([1, 3, 2, 3])) == [[1, 2]]
    assert [list(part) for _, part in reported] == [[3], [3]]
    assert calls == [[1, 3, 2, 3], [1, 2]]
    assert reported[0][0].stage is Stage.VALUE_CONVERTER


def test_records_are_tried_one_at_a_time_after_a_batch_error_without_record_indexes() -> None:
    built, reported = stages(TOLERANT)

    def no_threes(part: Numbers) -> list[int]:
        if 3 in part:
            raise ZeroDivisionError("three")
        return list(part)

    results = built.run(Stage.TRANSFORMATION, "T", no_threes, Numbers([1, 2, 3, 4, 5, 3, 6]))
    assert [n for result in results for n in result] == [1, 2, 4, 5, 6]
    assert [list(part) for _, part in reported] == [[3], [3]]


def test_first_error_is_raised_if_errors_are_not_tolerated() -> None:
    """The error text contains the record, the stage and the class."""
    built, reported = stages(error_policy())

    def fails(_part: Numbers) -> None:
        raise RecordErrors({1: DataError("bad")})

    with pytest.raises(ToleranceExceeded, match=r"record 7, stage TRANSFORMATION, class T: DataError: bad") as caught:
        built.run(Stage.TRANSFORMATION, "T", fails, Numbers([6, 7]))
    assert isinstance(caught.value.__cause__, DataError)
    assert [(str(failure.error), part) for failure, part in reported] == [("bad", [7])]


@pytest.mark.parametrize(
    ("name", "props", "value", "message"),
    [
        ("CastValue", {"spec": "int8"}, "x", "Value (x) was out of range for requested data type"),
        ("Python", {"expression": "value + 1"}, "x", "expression value + 1: TypeError: can only concatenate str"),
    ],
)
def test_error_of_a_transform_names_its_alias_once(
    name: str, props: dict[str, str], value: Any, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The alias is in the message of the error, in its trace, in the log line, and in the message of a DLQ record."""
    transform = make_plugin(name, **props)
    transform.alias = "shorten"
    with pytest.raises(ToleranceExceeded) as caught:
        TransformChain([Step(transform)], stages(error_policy())[0]).apply(source_batch([value]))
    where = f"stage TRANSFORMATION, class {transform.display_class()}: transform shorten: "
    for text in (str(caught.value), exception_line(trace_of(caught.value))):
        assert text.count("shorten") == 1
        assert where in text
        assert message in text

    built, reported = stages(TOLERANT)
    assert TransformChain([Step(transform)], built).apply(source_batch([value])) == []
    ((failure, _),) = reported
    assert failure.message.startswith(f"transform shorten: {message}")
    assert failure.message.count("shorten") == 1
    with caplog.at_level(logging.ERROR):
        ErrorLog("c-0", error_policy(tolerate=True, log=True), ErrorCounters()).add(failure, "record 1")
    line = caplog.messages[0].splitlines()[0]
    assert "Executing stage 'TRANSFORMATION'" in line
    assert f"where record 1: transform shorten: {message}" in line
    assert line.count("shorten") == 1


def test_error_of_a_stateful_transform_without_record_indexes_names_the_alias() -> None:
    built, _ = stages(TOLERANT)

    def fails(_part: Numbers) -> None:
        raise DataError("bad")

    with pytest.raises(ConnectError, match=r"^transform shorten \(T\) failed with DataError: bad"):
        built.for_transform("shorten").run_once(Stage.TRANSFORMATION, "T", fails, Numbers([1]))


def test_operation_that_fails_with_retriable_errors_is_retried_with_backoff() -> None:
    clock = Clock()
    built, reported = stages(error_policy(retry_timeout_ms=10_000, tolerate=True), clock)
    failures = iter([True, True, False])

    def sometimes(part: Numbers) -> list[int]:
        if next(failures):
            raise RetriableError("not now")
        return list(part)

    assert built.run(Stage.VALUE_CONVERTER, "C", sometimes, Numbers([1])) == [[1]]
    assert clock.waits == [300, 600]
    assert reported == []


def test_retries_of_retriable_errors_stop_after_errors_retry_timeout() -> None:
    clock = Clock()
    counters = ErrorCounters()
    policy = error_policy(retry_timeout_ms=1000, tolerate=True)
    built, reported = stages(policy, clock, counters.add_failed_attempt)

    def never(_part: Numbers) -> None:
        raise RetriableError("not now")

    assert built.run(Stage.VALUE_CONVERTER, "C", never, Numbers([1])) == []
    assert clock.waits == [300, 600, 100]
    assert reported[0][0].attempts == 4
    assert (counters.retries, counters.failures) == (3, 3)  # the report counts the last failure


def test_retry_delay_doubles_with_each_attempt_and_is_random_once_it_would_exceed_errors_retry_delay_max_ms() -> None:
    policy = error_policy(retry_timeout_ms=-1, retry_delay_max_ms=1000)
    assert [policy.retry_delay_ms(attempt, 0, Random(1)) for attempt in (1, 2)] == [300, 600]
    delays = {policy.retry_delay_ms(attempt, 10**9, Random(attempt)) for attempt in range(3, 30)}
    assert len(delays) > 5
    assert all(delay is not None and 0 <= delay < 1000 for delay in delays)


def test_errors_are_not_retried_if_errors_retry_timeout_is_0() -> None:
    assert error_policy().retry_delay_ms(1, 0, Random(1)) is None


def test_error_policy_is_parsed_from_connector_config() -> None:
    policy = ErrorPolicy.from_config(
        {"errors.tolerance": "all", "errors.log.enable": "true", "errors.retry.timeout": "-1"}
    )
    assert policy == error_policy(retry_timeout_ms=-1, tolerate=True, log=True)


def test_result_of_a_record_that_succeeds_after_retries_keeps_its_place_in_the_order() -> None:
    built, reported = stages(error_policy(retry_timeout_ms=10_000, tolerate=True))
    failures = {2: 2, 3: 100}

    def sometimes(part: Numbers) -> list[int]:
        errors: dict[int, Exception] = {}
        for index, number in enumerate(part):
            if failures.get(number, 0):
                failures[number] -= 1
                errors[index] = RetriableError("not now")
        if errors:
            raise RecordErrors(errors)
        return list(part)

    results = built.run(Stage.TRANSFORMATION, "T", sometimes, Numbers([1, 2, 3, 4]))
    assert [n for result in results for n in result] == [1, 2, 4]
    assert [list(part) for _, part in reported] == [[3]]


def test_each_record_with_a_retriable_error_is_retried_before_the_next_record() -> None:
    clock = Clock()
    built, reported = stages(error_policy(retry_timeout_ms=1000, tolerate=True), clock)
    calls: list[int] = []

    def sometimes(number: int) -> int:
        calls.append(number)
        if number == 2 and calls.count(2) < 3:
            raise RetriableError("not now")
        if number == 3:
            raise DataError("three")
        return number * 10

    numbers = Numbers([1, 2, 3, 4])
    assert built.run_each(Stage.TRANSFORMATION, "T", sometimes, numbers, numbers) == ([10, 20, 40], [2])
    assert calls == [1, 2, 2, 2, 3, 4]
    assert clock.waits == [300, 600]
    assert [list(part) for _, part in reported] == [[3]]


def test_stateful_operation_returns_the_results_of_the_other_records_if_a_record_fails() -> None:
    built, reported = stages(TOLERANT)

    def partly(part: Numbers) -> list[int]:
        raise RecordErrors({1: RetriableError("not now")}, [part[0], part[2]])

    assert built.run_once(Stage.TRANSFORMATION, "T", partly, Numbers([1, 2, 3])) == ([1, 3], [1])
    assert [list(part) for _, part in reported] == [[2]]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RecordErrors({1: DataError("bad")}), "T raised RecordErrors without the results of the good records"),
        (RecordErrors({7: DataError("bad")}, [1]), "for the index 7, but it received 2 records"),
        (RetriableError("not now"), "T failed with RetriableError: not now .in a batch of 2 records from record 1"),
    ],
)
def test_error_of_a_stateful_operation_fails_the_task_if_it_does_not_name_the_failed_records(
    error: Exception, message: str
) -> None:
    built, reported = stages(error_policy(retry_timeout_ms=-1, tolerate=True))

    def fails(_part: Numbers) -> None:
        raise error

    with pytest.raises(ConnectError, match=message):
        built.run_once(Stage.TRANSFORMATION, "T", fails, Numbers([1, 2]))
    assert reported == []


def test_stateful_operation_may_raise_record_errors_without_results_if_all_records_fail() -> None:
    built, reported = stages(TOLERANT)

    def fails(_part: Numbers) -> None:
        raise RecordErrors({0: DataError("a"), 1: DataError("b")})

    assert built.run_once(Stage.TRANSFORMATION, "T", fails, Numbers([1, 2])) == (None, [0, 1])
    assert len(reported) == 2


def test_error_policy_and_dead_letter_queue_have_the_defaults_of_kafka_connect() -> None:
    policy = ErrorPolicy.from_config({})
    assert policy == ErrorPolicy(
        retry_timeout_ms=0, retry_delay_max_ms=60_000, tolerate=False, log=False, log_messages=False
    )
    assert DeadLetterQueueConfig.from_config({"errors.deadletterqueue.topic.name": " "}) is None
    assert DeadLetterQueueConfig.from_config({"errors.deadletterqueue.topic.name": "dlq"}) == DeadLetterQueueConfig(
        "dlq", replication_factor=3, with_context_headers=False
    )


def test_error_for_an_invalid_value_in_the_error_policy_names_the_key() -> None:
    with pytest.raises(ConfigError, match=r"errors\.retry\.timeout"):
        ErrorPolicy.from_config({"errors.retry.timeout": "soon"})
