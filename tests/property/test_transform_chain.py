"""Property test of transform chains in which some records fail.

Each good record passes through each transform and predicate of a chain once and in order. The chains
consist of stateful and stateless classes, which process single records or batches. Each step drops
some records and fails for others. A failure is either permanent or retriable. A retry after a
retriable error may succeed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.api.errors import DataError, RecordErrors, RetriableError
from headrace.api.predicate import Predicate
from headrace.api.transform import Transformation
from headrace.data.batch import SourceBatch, from_records
from headrace.runtime.chain import Step, TransformChain
from headrace.runtime.tolerance import RetryWithToleranceOperator
from support.errors import error_policy
from support.examples import examples

POLICY = error_policy(retry_timeout_ms=1000, tolerate=True)  # three retries, after 300, 600 and 100 ms
ALWAYS = 1_000_000


class Kind(Enum):
    RECORD = "one record at a time"
    BATCH = "stateful, by batch"
    STATELESS = "stateless, by batch, names the failed records"
    STATELESS_WITHOUT_NAMES = "stateless, by batch, raises the first error"


class RecordResult(Enum):
    PASS = "passes; for a predicate: True"
    DROP = "is dropped; for a predicate: False"
    FAIL = "fails"
    RETRY_ONCE = "succeeds at the first retry"
    RETRY_THRICE = "succeeds at the third retry"
    RETRY_NEVER_SUCCEEDS = "fails with a retriable error each time"


FAILURES = {
    RecordResult.FAIL: 0,
    RecordResult.RETRY_ONCE: 1,
    RecordResult.RETRY_THRICE: 3,
    RecordResult.RETRY_NEVER_SUCCEEDS: ALWAYS,
}


@dataclass
class Behaviour:
    """Simulates a plug-in. `results` determines the result for each record.

    `processed` contains the numbers of the processed records.
    """

    kind: Kind
    results: dict[int, RecordResult]
    processed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._failures = {number: FAILURES.get(fate, 0) for number, fate in self.results.items()}

    def error(self, number: int) -> Exception | None:
        if self.results[number] is RecordResult.FAIL:
            return DataError("failed")
        if self._failures[number] > 0:
            self._failures[number] -= 1
            return RetriableError("not now")
        return None

    def process(self, number: int) -> bool:
        error = self.error(number)
        if error is not None:
            raise error
        self.processed.append(number)
        return self.results[number] is not RecordResult.DROP

    def process_batch(self, batch: Any, results_of: Any) -> Any:
        errors: dict[int, Exception] = {}
        kept: list[bool] = []
        for index, number in enumerate(batch.values):
            try:
                kept.append(self.process(number))
            except Exception as error:
                if self.kind is Kind.STATELESS_WITHOUT_NAMES:
                    raise
                errors[index] = error
        good = [index for index in range(len(batch)) if index not in errors]
        results = results_of(batch, good, kept)
        if errors:
            raise RecordErrors(errors, None if self.kind is Kind.STATELESS else results)
        return results

    def expected(self, number: int) -> tuple[bool, bool]:
        """Return whether record `number` is processed without an error, and whether the record is kept."""
        fate = self.results[number]
        is_good = fate in (RecordResult.PASS, RecordResult.DROP) or (
            fate in (RecordResult.RETRY_ONCE, RecordResult.RETRY_THRICE) and self.kind is not Kind.BATCH
        )
        return is_good, fate is not RecordResult.DROP


class RecordTransform(Transformation):
    behaviour: Behaviour

    def apply(self, record: Any) -> Any:
        return record if self.behaviour.process(record.value) else None


class BatchTransform(Transformation):
    behaviour: Behaviour

    def apply_batch(self, batch: Any) -> Any:
        return self.behaviour.process_batch(batch, self._results)

    def _results(self, batch: Any, good: list[int], kept: list[bool]) -> Any:
        records = batch.to_records()
        return from_records([records[index] for index, keep in zip(good, kept, strict=True) if keep])


class StatelessTransform(BatchTransform):
    stateless = True


class RecordPredicate(Predicate):
    behaviour: Behaviour

    def test(self, record: Any) -> bool:
        return self.behaviour.process(record.value)


class BatchPredicate(Predicate):
    behaviour: Behaviour

    def test_batch(self, batch: Any) -> list[bool]:
        outcomes: list[bool] = self.behaviour.process_batch(batch, lambda batch, good, kept: kept)
        return outcomes


class StatelessPredicate(BatchPredicate):
    stateless = True


def with_behaviour(behaviour: Behaviour, classes: tuple[type[Any], type[Any], type[Any]]) -> Any:
    by_kind = {Kind.RECORD: classes[0], Kind.BATCH: classes[1]}
    plugin = by_kind.get(behaviour.kind, classes[2])()
    plugin.behaviour = behaviour
    return plugin


@st.composite
def behaviours(draw: st.DrawFn, count: int) -> Behaviour:
    results = draw(st.lists(st.sampled_from(RecordResult), min_size=count, max_size=count))
    return Behaviour(draw(st.sampled_from(Kind)), dict(enumerate(results)))


@settings(deadline=None, max_examples=examples(300))
@given(data=st.data(), count=st.integers(1, 8), step_count=st.integers(1, 3))
def test_each_good_record_passes_each_transform_and_predicate_once_and_in_order(
    data: st.DataObject, count: int, step_count: int
) -> None:
    steps: list[Step] = []
    plans: list[tuple[Behaviour, Behaviour | None, bool]] = []
    for _ in range(step_count):
        transform = data.draw(behaviours(count))
        predicate = data.draw(st.none() | behaviours(count))
        negate = data.draw(st.booleans())
        plans.append((transform, predicate, negate))
        steps.append(
            Step(
                with_behaviour(transform, (RecordTransform, BatchTransform, StatelessTransform)),
                predicate and with_behaviour(predicate, (RecordPredicate, BatchPredicate, StatelessPredicate)),
                negate,
            )
        )
    now_ms = 0
    reported: list[int] = []

    def wait(delay_ms: int) -> bool:
        nonlocal now_ms
        now_ms += delay_ms
        return True

    operator = RetryWithToleranceOperator(
        POLICY,
        report=lambda failure, part: reported.extend(part.values),
        describe=repr,
        now_ms=lambda: now_ms,
        wait_ms=wait,
        rng=Random(0),
    )
    batch = SourceBatch("t", list(range(count)), source_partition={}, source_offset={"n": count})
    out = TransformChain(steps, operator).apply(batch)

    numbers, failed = list(range(count)), set()
    for transform, predicate, negate in plans:
        failed |= _check_predicate(predicate, numbers)
        numbers = [number for number in numbers if number not in failed]
        selected = [n for n in numbers if predicate is None or predicate.expected(n)[1] is not negate]
        bad = {number for number in selected if not transform.expected(number)[0]}
        _check_processed(transform, [number for number in selected if number not in bad])
        failed |= bad
        dropped = {number for number in selected if not transform.expected(number)[1]}
        numbers = [number for number in numbers if number not in bad | dropped]
    assert [value for each in out for value in each.values] == numbers
    assert sorted(reported) == sorted(failed)


def _check_predicate(predicate: Behaviour | None, numbers: list[int]) -> set[int]:
    """Return the numbers of the records for which the predicate raises an error, even after retries.

    Assert that the predicate has tested all other records.
    """
    if predicate is None:
        return set()
    bad = {number for number in numbers if not predicate.expected(number)[0]}
    _check_processed(predicate, [number for number in numbers if number not in bad])
    return bad


def _check_processed(behaviour: Behaviour, good: list[int]) -> None:
    if behaviour.kind in (Kind.RECORD, Kind.BATCH):
        assert behaviour.processed == good
    else:  # a stateless plug-in may receive a record again
        assert set(behaviour.processed) == set(good)
