"""Runs the JDBC sink in this process, with records of one topic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

from headrace.data.records import SinkRecord
from headrace.data.schema import FLOAT64_SCHEMA, INT32_SCHEMA, OPTIONAL_STRING_SCHEMA, Schema, struct
from headrace.data.sink_records import SinkRecords
from headrace.data.struct import Struct
from headrace.runtime.error_policy import ToleranceExceeded
from headrace.testing import SinkRun, run_sink
from headrace_connectors.jdbc.sink import JdbcSinkConnector, JdbcSinkTask
from support import validation

KEY = struct([("id", INT32_SCHEMA)])
ROW = struct(
    [("id", INT32_SCHEMA), ("name", OPTIONAL_STRING_SCHEMA), ("price", FLOAT64_SCHEMA.replace(optional=True))],
    name="row",
)


def record(
    offset: int,
    value: dict[str, Any] | None,
    schema: Schema = ROW,
    *,
    key: Any = None,
    topic: str = "items",
    **more: Any,
) -> SinkRecord:
    """Return a record whose value is a struct, or None (a tombstone). If `key` is a dict, the key is a struct too."""
    key_schema = KEY if isinstance(key, dict) else more.pop("key_schema", None)
    return SinkRecord(
        topic=topic,
        partition=0,
        offset=offset,
        key_schema=key_schema,
        key=Struct(KEY, key) if isinstance(key, dict) else key,
        value_schema=None if value is None else schema,
        value=None if value is None else Struct(schema, value),
        **more,
    )


def item(number: int, name: str | None = None, price: float | None = None, offset: int | None = None) -> SinkRecord:
    """Return a record with the schema ROW. The record's key is `number`."""
    return record(
        number if offset is None else offset,
        {"id": number, "name": name or f"n{number}", "price": price},
        key={"id": number},
    )


def tombstone(number: int, offset: int) -> SinkRecord:
    """Return a tombstone for the row whose id is `number`."""
    return record(offset, None, key={"id": number})


def put(url: str, records: Sequence[SinkRecord], **props: str) -> SinkRun:
    """Write the records. ``__`` in a keyword stands for a dot.

    Raises the error that fails the task. If the task fails because it rejects a record with `RecordErrors`, raises the
    error of this record.
    """
    with _reported_errors():
        return run_sink(JdbcSinkConnector, _settings(url, props), records)


def validation_errors(url: str, **props: str) -> dict[str, list[str]]:
    """Validate a configuration and return the errors by key; ``__`` in a keyword stands for a dot."""
    settings = _settings(url, props)
    return validation.validation_errors(JdbcSinkConnector, settings)


def put_after_change(
    url: str, before: Sequence[SinkRecord], change: Callable[[], object], after: Sequence[SinkRecord], **props: str
) -> SinkRun:
    """Write the records `before`, call `change`, and write the records `after` with the same task.

    `before` and `after` must have the same number of records.
    """
    assert len(before) == len(after)
    puts = count()

    class ChangingTask(JdbcSinkTask):
        def put(self, records: SinkRecords) -> None:
            if len(records) and next(puts) == 1:
                change()
            super().put(records)

    class ChangingConnector(JdbcSinkConnector):
        task_class = ChangingTask

    with _reported_errors():
        return run_sink(ChangingConnector, _settings(url, props), [*before, *after], max_poll_records=len(before))


@contextmanager
def _reported_errors() -> Iterator[None]:
    try:
        yield
    except ToleranceExceeded as error:
        raise error.__cause__ or error from None


def _settings(url: str, props: Mapping[str, str]) -> dict[str, str]:
    settings = {"connection.url": url, "auto.create": "true", "connection.backoff.ms": "0", "retry.backoff.ms": "0"}
    return settings | {key.replace("__", "."): value for key, value in props.items()}
