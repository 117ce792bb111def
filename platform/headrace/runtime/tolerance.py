"""Runs transforms and converters with retries and error tolerance: `errors.*`, KIP-298. This module does no I/O.

Retriable errors are retried until `errors.retry.timeout`, with a backoff that doubles from 300 ms up to
`errors.retry.delay.max.ms`. After that, like all other errors, they are reported, and the record is skipped or the task
fails. The other records keep their order.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from headrace.api.errors import ConnectError, DataError, RecordErrors, RetriableError
from headrace.runtime.error_policy import ErrorPolicy, Failure, Stage, tolerance_exceeded
from headrace.runtime.traces import message_of

if TYPE_CHECKING:
    from random import Random

log = logging.getLogger(__name__)


class Part(Protocol):
    """The input of a stage: records from which some can be selected with `take`."""

    def __len__(self) -> int: ...
    def take(self, indexes: Any) -> Self: ...


_P = TypeVar("_P", bound=Part)
_R = TypeVar("_R")
_T = TypeVar("_T")


class RetryWithToleranceOperator:
    """Runs operations of one stage under an error policy.

    For each failed record, the operator calls `report(failure, part)`, where `part` contains only this record.
    `on_retry` is called before an operation is repeated. `wait_ms` waits before a retry. If the task is to stop,
    `wait_ms` returns False or raises an error. Every method raises ToleranceExceeded.
    """

    def __init__(
        self,
        policy: ErrorPolicy,
        *,
        report: Callable[[Failure, Any], None],
        describe: Callable[[Any], str],
        now_ms: Callable[[], int],
        wait_ms: Callable[[int], bool],
        rng: Random,
        on_retry: Callable[[], None] = lambda: None,
    ) -> None:
        self._policy = policy
        self._report = report
        self._describe = describe
        self._now_ms = now_ms
        self._wait_ms = wait_ms
        self._rng = rng
        self._on_retry = on_retry
        self._transform = ""

    def for_transform(self, alias: str) -> Self:
        """Return an operator for one transform. Its errors name the transform's alias."""
        operator = copy.copy(self)
        operator._transform = alias
        return operator

    def run_each(
        self, stage: Stage, class_name: str, operation: Callable[[_T], _R], items: Iterable[_T], part: Part
    ) -> tuple[list[_R], list[int]]:
        """Call `operation` for each item in `items`, one per record of `part`. Retry failed calls in place.

        Returns the results in order, and the indexes of the records that were skipped.
        """
        results: list[_R] = []
        skipped: list[int] = []
        for index, item in enumerate(items):
            try:
                results.append(operation(item))
            except Exception as error:  # noqa: BLE001 - any error of a plug-in concerns only this record
                retried = self._retry(stage, class_name, partial(operation, item), part, index, error)
                results += retried
                if not retried:
                    skipped.append(index)
        return results, skipped

    def run_once(
        self, stage: Stage, class_name: str, operation: Callable[[_P], _R], part: _P
    ) -> tuple[_R | None, list[int]]:
        """Call an operation that must not receive a record twice.

        Returns the results of all records that were not skipped, and the indexes of the skipped records. Raises
        ConnectError if the operation raises any exception except RecordErrors with results.
        """
        try:
            return operation(part), []
        except RecordErrors as error:
            errors = _checked_errors(error, len(part), self._name_of(class_name))
            if error.results is None and len(errors) < len(part):
                raise ConnectError(
                    f"{self._name_of(class_name)} raised RecordErrors without the results of the good records "
                    f"({message_of(error)}): pass them as results, or set stateless = True if the class can receive "
                    "the same records again"
                ) from error
            for index, cause in errors.items():
                self._give_up(self._failure(stage, class_name, cause, 1), part.take([index]))
            return error.results, list(errors)
        except Exception as error:
            raise ConnectError(
                f"{self._name_of(class_name)} failed with {type(error).__name__}: {message_of(error)} (in "
                f"a batch of {len(part)} records from {self._describe(part)}); to skip only bad records, raise "
                "RecordErrors with the results of the other records"
            ) from error

    def run(self, stage: Stage, class_name: str, operation: Callable[[_P], _R], part: _P) -> list[_R]:
        """Call an operation that may receive the same records again.

        If the operation raises RecordErrors, it is called again without the failed records. After any other error, the
        records are split in halves until the failed records are found. Returns the results in order. There is one
        result, or there are several if records were skipped.
        """
        try:
            return [operation(part)]
        except RecordErrors as error:
            errors = _checked_errors(error, len(part), self._name_of(class_name))
            return self._run_without(stage, class_name, operation, part, errors)
        except Exception as error:  # noqa: BLE001 - plug-in code raises what it likes
            if len(part) == 1:
                return self._retry(stage, class_name, partial(operation, part), part, 0, error)
        middle = len(part) // 2
        first, second = part.take(range(middle)), part.take(range(middle, len(part)))
        return [
            *self.run(stage, class_name, operation, first),
            *self.run(stage, class_name, operation, second),
        ]

    def _run_without(
        self,
        stage: Stage,
        class_name: str,
        operation: Callable[[_P], _R],
        part: _P,
        errors: Mapping[int, Exception],
    ) -> list[_R]:
        """Call the operation without the failed records.

        Retry records with retriable errors at their place in the order.
        """
        if not any(isinstance(error, RetriableError) for error in errors.values()):
            for index, error in errors.items():
                self._give_up(self._failure(stage, class_name, error, 1), part.take([index]))
            good = [index for index in range(len(part)) if index not in errors]
            return self.run(stage, class_name, operation, part.take(good)) if good else []
        results: list[_R] = []
        for has_failed, indexes in groupby(range(len(part)), key=errors.__contains__):
            if not has_failed:
                results += self.run(stage, class_name, operation, part.take(list(indexes)))
                continue
            for index in indexes:
                one = part.take([index])
                results += self._retry(stage, class_name, partial(operation, one), one, 0, errors[index])
        return results

    def _retry(
        self, stage: Stage, class_name: str, operation: Callable[[], _R], part: Part, index: int, error: Exception
    ) -> list[_R]:
        """Repeat an operation on the record at that index of `part`.

        Return its result, or an empty list if it is skipped.
        """
        started_ms, attempts = self._now_ms(), 1
        while isinstance(error, RetriableError):
            delay_ms = self._policy.retry_delay_ms(attempts, self._now_ms() - started_ms, self._rng)
            log.debug(
                "Stage %s, class %s: attempt %d failed with %s; %s",
                stage.value,
                class_name,
                attempts,
                type(error).__name__,  # its message may contain the record
                "no more attempts" if delay_ms is None else f"the next attempt is in {delay_ms} ms",
            )
            if delay_ms is None or not self._wait_ms(delay_ms):
                break
            self._on_retry()
            attempts += 1
            try:
                return [operation()]
            except RecordErrors as again:
                error = next(iter(again.errors.values()))
            except Exception as again:  # noqa: BLE001
                error = again
        self._give_up(self._failure(stage, class_name, error, attempts), part.take([index]))
        return []

    def _failure(self, stage: Stage, class_name: str, error: Exception, attempts: int) -> Failure:
        return Failure(stage, class_name, _described(error), attempts, self._transform)

    def _name_of(self, class_name: str) -> str:
        return f"transform {self._transform} ({class_name})" if self._transform else class_name

    def _give_up(self, failure: Failure, part: Part) -> None:
        """Report the record in `part`. Raise ToleranceExceeded if errors are not tolerated."""
        self._report(failure, part)
        if not self._policy.tolerate:
            raise tolerance_exceeded(failure, self._describe(part))


def _described(error: Exception) -> Exception:
    """Return an error that says what is wrong with the record, instead of Python's RecursionError."""
    if not isinstance(error, RecursionError):
        return error
    described = DataError(
        "The record has too many nested levels for this class: the limit depends on the class, and is about 450 levels "
        "of maps or arrays. Reduce the levels before the record reaches this class."
    )
    described.__cause__ = error
    return described


def without(part: _P, skipped: Sequence[int]) -> _P:
    """Return the records of `part` that were not skipped."""
    if not skipped:
        return part
    left_out = set(skipped)
    return part.take([index for index in range(len(part)) if index not in left_out])


def _checked_errors(error: RecordErrors, count: int, name: str) -> Mapping[int, Exception]:
    """Return the errors by index. Raises ConnectError if no record has the index of an error."""
    for index in error.errors:
        if not (isinstance(index, int) and 0 <= index < count):
            raise ConnectError(
                f"{name} raised RecordErrors for the index {index!r}, but it received {count} records: the keys "
                "of RecordErrors are the indexes of the failed records in the batch, from 0"
            ) from error
    return error.errors
