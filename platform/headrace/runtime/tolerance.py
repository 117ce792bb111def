"""Error tolerance for converters and transforms: `errors.*`, KIP-298. No I/O.

Retriable errors are retried until `errors.retry.timeout`, with a backoff that doubles from 300 ms up to
`errors.retry.delay.max.ms`. After that, like all other errors, they are tolerated (the record is skipped and reported)
or they fail the task.

A stage processes a whole batch. If it raises RecordErrors, the named records are skipped; after any other error the
batch is split in halves until the failed records are found. The other records keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any, Protocol, Self, TypeVar

from headrace.api.errors import ConnectError, RecordErrors, RetriableError

RETRY_DELAY_MIN_MS = 300


class Stage(StrEnum):
    """The stage in which an error occurred, with KIP-298's names."""

    TASK_PUT = "TASK_PUT"
    TASK_POLL = "TASK_POLL"
    TRANSFORMATION = "TRANSFORMATION"
    KEY_CONVERTER = "KEY_CONVERTER"
    VALUE_CONVERTER = "VALUE_CONVERTER"
    HEADER_CONVERTER = "HEADER_CONVERTER"
    KAFKA_PRODUCE = "KAFKA_PRODUCE"
    KAFKA_CONSUME = "KAFKA_CONSUME"


class Part(Protocol):
    """The input of a stage: records from which some can be selected with `take`."""

    def __len__(self) -> int: ...
    def take(self, indexes: Any) -> Self: ...


_P = TypeVar("_P", bound=Part)
_R = TypeVar("_R")


class ToleranceExceeded(ConnectError):
    """A record failed with `errors.tolerance=none`: the task fails. The original error is the cause."""


@dataclass(frozen=True, slots=True)
class ErrorPolicy:
    """The `errors.*` keys of a connector."""

    retry_timeout_ms: int = 0
    retry_delay_max_ms: int = 60_000
    tolerate: bool = False
    log: bool = False
    log_messages: bool = False

    @classmethod
    def from_config(cls, config: Mapping[str, str]) -> ErrorPolicy:
        """Read the keys of a validated configuration."""
        return cls(
            retry_timeout_ms=int(config.get("errors.retry.timeout", 0)),
            retry_delay_max_ms=int(config.get("errors.retry.delay.max.ms", 60_000)),
            tolerate=config.get("errors.tolerance", "none").lower() == "all",
            log=config.get("errors.log.enable", "false").lower() == "true",
            log_messages=config.get("errors.log.include.messages", "false").lower() == "true",
        )

    def retry_delay_ms(self, attempt: int, elapsed_ms: int, rng: Random) -> int | None:
        """Return the delay before attempt number `attempt` + 1; None if there are no more attempts.

        The delay doubles. Once it exceeds the maximum, it is a random value below the maximum, so that many tasks do
        not retry at the same time.
        """
        if self.retry_timeout_ms == 0 or 0 <= self.retry_timeout_ms <= elapsed_ms:
            return None
        delay_ms = RETRY_DELAY_MIN_MS << min(attempt - 1, 40)
        if delay_ms > self.retry_delay_max_ms:
            delay_ms = rng.randrange(self.retry_delay_max_ms) if self.retry_delay_max_ms > 0 else 0
        return delay_ms if self.retry_timeout_ms < 0 else min(delay_ms, self.retry_timeout_ms - elapsed_ms)


@dataclass(frozen=True, slots=True)
class Failure:
    """A record for which a stage failed."""

    stage: Stage
    class_name: str
    error: Exception
    attempts: int


class RetryWithToleranceOperator:
    """Runs stages under an error policy.

    For each tolerated record, the stage runner calls `report(failure, part)`, where `part` contains only this record.
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
    ) -> None:
        self._policy = policy
        self._report = report
        self._describe = describe
        self._now_ms = now_ms
        self._wait_ms = wait_ms  # False when the task is being stopped
        self._rng = rng

    def run(self, stage: Stage, class_name: str, operation: Callable[[_P], _R], part: _P) -> list[_R]:
        """Return the results of `operation` in order: one result, or several if records were skipped.

        Raises ToleranceExceeded.
        """
        try:
            return [operation(part)]
        except RecordErrors as error:
            errors = error.errors
            if len(part) > 1 and not any(isinstance(cause, RetriableError) for cause in errors.values()):
                return self._leave_out(stage, class_name, operation, part, errors)
            cause = next(iter(errors.values()))
        except Exception as error:  # noqa: BLE001 - plug-in code raises what it likes
            cause = error
        if len(part) == 1:
            return self._retry(stage, class_name, operation, part, cause)
        middle = len(part) // 2
        first, second = part.take(range(middle)), part.take(range(middle, len(part)))
        return [
            *self.run(stage, class_name, operation, first),
            *self.run(stage, class_name, operation, second),
        ]

    def _leave_out(
        self,
        stage: Stage,
        class_name: str,
        operation: Callable[[_P], _R],
        part: _P,
        errors: Mapping[int, Exception],
    ) -> list[_R]:
        """The records at fault are known: report them, and go on with the others."""
        for index, error in errors.items():
            self._give_up(Failure(stage, class_name, error, 1), part.take([index]))
        good = [index for index in range(len(part)) if index not in errors]
        return self.run(stage, class_name, operation, part.take(good)) if good else []

    def _retry(
        self, stage: Stage, class_name: str, operation: Callable[[_P], _R], part: _P, error: Exception
    ) -> list[_R]:
        started_ms, attempts = self._now_ms(), 1
        while isinstance(error, RetriableError):
            delay_ms = self._policy.retry_delay_ms(attempts, self._now_ms() - started_ms, self._rng)
            if delay_ms is None or not self._wait_ms(delay_ms):
                break
            attempts += 1
            try:
                return [operation(part)]
            except RecordErrors as again:
                error = next(iter(again.errors.values()))
            except Exception as again:  # noqa: BLE001
                error = again
        self._give_up(Failure(stage, class_name, error, attempts), part)
        return []

    def _give_up(self, failure: Failure, part: Any) -> None:
        """Tolerate a record, or raise ToleranceExceeded."""
        if self._policy.tolerate:
            self._report(failure, part)
            return
        error = failure.error
        raise ToleranceExceeded(
            f"Tolerance exceeded in error handler: {self._describe(part)}, stage {failure.stage.value}, "
            f"class {failure.class_name}: {type(error).__name__}: {error}"
        ) from error
