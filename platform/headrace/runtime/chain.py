"""The transform chain of a task: `transforms=A,B` with their predicates, applied to whole batches.

A batch from which a transform dropped records keeps its source offset or consumer offsets. `headrace.runtime.tolerance`
handles the errors of transforms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from headrace.api.errors import RecordErrors
from headrace.api.predicate import Predicate
from headrace.api.transform import Transformation
from headrace.data.batch import Batch
from headrace.runtime.tolerance import RetryWithToleranceOperator, Stage


@dataclass(frozen=True, slots=True)
class Step:
    """One transform, applied to the records that its predicate selects."""

    transformation: Transformation
    predicate: Predicate | None = None
    negate: bool = False

    @property
    def class_name(self) -> str:
        return self.transformation.display_class()

    def apply(self, batch: Batch) -> Sequence[Batch]:
        """Return the resulting batches, in order."""
        if self.predicate is None:
            return _as_batches(self.transformation.apply_batch(batch))
        outcomes = self.predicate.test_batch(batch)
        if all(outcome is not self.negate for outcome in outcomes):
            return _as_batches(self.transformation.apply_batch(batch))
        if all(outcome is self.negate for outcome in outcomes):
            return (batch,)
        return self._apply_by_runs(batch, outcomes)

    def _apply_by_runs(self, batch: Batch, outcomes: list[bool]) -> list[Batch]:
        results: list[Batch] = []
        errors: dict[int, Exception] = {}
        for outcome, run in groupby(range(len(batch)), key=outcomes.__getitem__):
            indexes = list(run)
            part = batch.take(indexes)
            if outcome is self.negate:
                results.append(part)
                continue
            try:
                results += _as_batches(self.transformation.apply_batch(part))
            except RecordErrors as error:
                errors |= {indexes[index]: cause for index, cause in error.errors.items()}
        if errors:
            raise RecordErrors(errors)
        return results


class TransformChain:
    """The transforms of a task, in order."""

    def __init__(self, steps: Sequence[Step], stages: RetryWithToleranceOperator) -> None:
        self._steps = tuple(steps)
        self._stages = stages

    def apply(self, batch: Batch) -> Sequence[Any]:
        """Return the batches that result from the whole chain, in order. Raises ToleranceExceeded."""
        batches: Sequence[Batch] = (batch,)
        for step in self._steps:
            batches = [
                result
                for each in batches
                for results in self._stages.run(Stage.TRANSFORMATION, step.class_name, step.apply, each)
                for result in results
            ]
        return batches

    def close(self) -> None:
        """Close transforms and predicates."""
        for step in self._steps:
            step.transformation.close()
            if step.predicate is not None:
                step.predicate.close()


def _as_batches(result: Any) -> Sequence[Batch]:
    if result is None:
        return ()
    if isinstance(result, Batch):
        return (result,) if len(result) else ()
    return [batch for batch in result if len(batch)]
