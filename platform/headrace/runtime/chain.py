"""The transform chain of a task: `transforms=A,B` with their predicates.

Each record passes through each transform and predicate once, in order:

- A class that defines only `apply` or `test` is called for each record; `apply` is retried in place.
- A class that overrides `apply_batch` or `test_batch` receives whole batches, and reports which records failed.
- Such a class with ``stateless = True`` may receive the same records again after an error.

A batch from which a transform dropped records keeps its source offset or consumer offsets. `headrace.runtime.tolerance`
handles errors. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

from headrace.api.errors import ConnectError, DataError
from headrace.api.predicate import Predicate
from headrace.api.transform import Transformation
from headrace.data.batch import Batch, from_records
from headrace.data.records import ConnectRecord
from headrace.runtime.error_policy import Stage
from headrace.runtime.tolerance import RetryWithToleranceOperator, without

_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class Step:
    """One transform, applied to the records that its predicate selects."""

    transformation: Transformation[Any]
    predicate: Predicate[Any] | None = None
    negate: bool = False

    @property
    def class_name(self) -> str:
        """The class name in error messages of the step.

        As in Connect, it is the class of the transform, not the predicate.
        """
        return self.transformation.display_class()

    def close(self) -> None:
        """Close the transform and its predicate."""
        self.transformation.close()
        if self.predicate is not None:
            self.predicate.close()


class TransformChain:
    """The transforms of a task, in order."""

    def __init__(self, steps: Sequence[Step], operator: RetryWithToleranceOperator) -> None:
        self._steps = tuple(_StepRunner(step, operator) for step in steps)

    def apply(self, batch: Batch) -> Sequence[Any]:
        """Return the batches that result from the whole chain, in order. Raises ConnectError."""
        batches: Sequence[Batch] = (batch,)
        for step in self._steps:
            batches = [result for each in batches for result in step.apply(each)]
        return batches

    def __len__(self) -> int:
        return len(self._steps)

    def close(self) -> None:
        """Close transforms and predicates."""
        for step in self._steps:
            step.close()


class _StepRunner:
    """Runs one step, with the error handling that its classes permit."""

    def __init__(self, step: Step, operator: RetryWithToleranceOperator) -> None:
        self._step = step
        self._operator = operator.for_transform(step.transformation.alias)
        self._class_name = step.class_name
        self._transforms_batches = _overrides(step.transformation, Transformation, "apply_batch", "apply")
        self._tests_batches = _overrides(step.predicate, Predicate, "test_batch", "test")

    def close(self) -> None:
        self._step.close()

    def apply(self, batch: Batch) -> Sequence[Batch]:
        """Return the resulting batches, in order."""
        if self._step.predicate is None:
            return self._transform(batch)
        return [result for part, outcomes in self._test(batch) for result in self._apply_where(part, outcomes)]

    def _apply_where(self, batch: Batch, outcomes: list[bool]) -> Sequence[Batch]:
        """Transform the records for which the predicate's result is True (with `negate`, False)."""
        negate = self._step.negate
        if negate not in outcomes:
            return self._transform(batch)
        if (not negate) not in outcomes:
            return (batch,)
        results: list[Batch] = []
        unselected: list[int] = []  # stays one batch while the transform drops the selected records between them
        for outcome, indexes in groupby(range(len(batch)), key=outcomes.__getitem__):
            if outcome is negate:
                unselected += indexes
                continue
            transformed = self._transform(batch.take(list(indexes)))
            if transformed and unselected:
                results.append(batch.take(unselected))
                unselected = []
            results += transformed
        return [*results, batch.take(unselected)] if unselected else results

    def _transform(self, batch: Batch) -> Sequence[Batch]:
        transformation = self._step.transformation
        if not self._transforms_batches:
            results, _ = self._run_each(lambda record: _checked_record(transformation.apply(record)), batch)
            return from_records(record for record in results if record is not None)
        if transformation.stateless:
            runs = self._operator.run(
                Stage.TRANSFORMATION,
                self._class_name,
                lambda part: _consumed(transformation.apply_batch(part)),
                batch,
            )
            return [result for run in runs for result in self._as_batches(run)]
        result, _ = self._operator.run_once(
            Stage.TRANSFORMATION, self._class_name, lambda part: _consumed(transformation.apply_batch(part)), batch
        )
        return self._as_batches(result)

    def _test(self, batch: Batch) -> list[tuple[Batch, list[bool]]]:
        """Return records with the predicate's results. Records for which the predicate failed are left out."""
        predicate = self._step.predicate
        assert predicate is not None
        if not self._tests_batches:
            outcomes, skipped = self._run_each(lambda record: bool(predicate.test(record)), batch)
            return _tested(batch, outcomes, skipped)
        if predicate.stateless:
            runs = self._operator.run(
                Stage.TRANSFORMATION,
                self._class_name,
                lambda part: (part, _consumed(predicate.test_batch(part))),
                batch,
            )
            return [(part, self._as_outcomes(results, len(part))) for part, results in runs]
        result, skipped = self._operator.run_once(
            Stage.TRANSFORMATION, self._class_name, lambda part: _consumed(predicate.test_batch(part)), batch
        )
        return _tested(batch, self._as_outcomes(result, len(batch) - len(skipped)), skipped)

    def _run_each(self, operation: Callable[[Any], _R], batch: Batch) -> tuple[list[_R], list[int]]:
        return self._operator.run_each(Stage.TRANSFORMATION, self._class_name, operation, batch.to_records(), batch)

    def _as_batches(self, result: Any) -> Sequence[Batch]:
        if result is None:
            return ()
        if isinstance(result, Batch):
            return (result,) if len(result) else ()
        batches = list(result)
        for each in batches:
            if not isinstance(each, Batch):
                raise ConnectError(
                    f"apply_batch of {self._class_name} returned an object of type {type(each).__name__}: it must "
                    "return a batch, a sequence of batches or None"
                )
        return [batch for batch in batches if len(batch)]

    def _as_outcomes(self, result: Any, count: int) -> list[bool]:
        outcomes = [bool(outcome) for outcome in result or ()]
        if len(outcomes) != count:
            raise ConnectError(
                f"test_batch of {type(self._step.predicate).__qualname__} returned {len(outcomes)} results for "
                f"{count} records"
            )
        return outcomes


def _overrides(plugin: object, base: type, batch_method: str, record_method: str) -> bool:
    """Whether to call the plug-in's batch method: the nearest class that has either method defines it.

    Classes are searched from the plug-in's class to its base classes. If a subclass overrides only the record method of
    a base class with both methods, the record method is called for each record.
    """
    for each in type(plugin).__mro__:
        if each is base:
            break
        if batch_method in each.__dict__:
            return True
        if record_method in each.__dict__:
            break
    return False


def _tested(batch: Batch, outcomes: list[bool], skipped: list[int]) -> list[tuple[Batch, list[bool]]]:
    return [(without(batch, skipped), outcomes)] if outcomes else []


def _checked_record(result: Any) -> ConnectRecord | None:
    if result is None or isinstance(result, ConnectRecord):
        return result
    raise DataError(f"apply returned an object of type {type(result).__name__}: it must return a record or None")


def _consumed(result: Any) -> Any:
    """Collect the items of a result. Otherwise, a generator would run, and raise errors, outside the error handling."""
    return result if result is None or isinstance(result, Batch | list | tuple) else list(result)
