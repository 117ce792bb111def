"""Applies `errors.tolerance` to bad records, which cannot become table rows. This module does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.api.errors import DataError
from headrace_connectors.lakehouse.job.results import BadRecord, RangeResult
from headrace_connectors.lakehouse.offsets import TopicPartition

_SKIP = (
    "set errors.tolerance=all to skip such records, and errors.deadletterqueue.topic.name=<topic> to keep them in a"
    " dead letter queue"
)
_ADVICE = {
    False: f"To continue, {_SKIP}.",
    True: f"To continue, change the columns of the table and restart the task; or {_SKIP}, from which a second"
    " connector can load them into another table (the connector's README shows both).",
}


class BadRecordError(DataError):
    """The error with which the task fails because of bad records.

    `first_bad_offsets` has the offset of each partition's first bad record. The records before this offset are loaded.
    """

    def __init__(self, first: BadRecord, count: int, first_bad_offsets: Mapping[TopicPartition, int]) -> None:
        self.first_bad_offsets = dict(first_bad_offsets)
        more = f" (and {count - 1} more bad records in this batch)" if count > 1 else ""
        super().__init__(
            f"{describe(first)}{more}; the records before each partition's first bad record are loaded. "
            f"{_ADVICE[first.columns_mismatch]}"
        )


def describe(bad: BadRecord) -> str:
    """Return the position of a bad record and the reason."""
    failure = bad.failure
    return f"topic {failure.topic}, partition {failure.partition}, offset {failure.offset}: {failure.reason}"


def bad_record_error(results: Iterable[RangeResult]) -> BadRecordError | None:
    """Return the error for the bad records of a micro-batch, or None if there are none."""
    firsts: dict[TopicPartition, int] = {}
    found: list[BadRecord] = []
    count = 0
    for result in results:
        count += result.bad_count
        found += result.bad
        if result.first_bad is not None:
            key = result.range.key
            firsts[key] = min(firsts.get(key, result.first_bad), result.first_bad)
    if not count:
        return None
    first = min(found, key=lambda bad: (bad.failure.topic, bad.failure.partition, bad.failure.offset))
    return BadRecordError(first, count, firsts)
