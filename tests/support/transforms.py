"""Builders for tests of transforms and predicates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.api.errors import BatchError
from headrace.data.batch import Batch, SinkBatch, SourceBatch
from headrace.data.schema import Schema
from headrace.data.struct import struct_maker, to_rows
from headrace.plugins import registry


def make(name: str, kind: str = "transform", /, **props: str) -> Any:
    """A configured plug-in; ``__`` in a keyword is a dot, e.g. ``static__field``."""
    found = registry.find(kind, name)
    plugin = found()
    plugin.configure(found.config_model.parse({key.replace("__", "."): value for key, value in props.items()}))
    return plugin


def source(values: list[Any], schema: Schema | None = None, **attributes: Any) -> SourceBatch:
    """A batch of a source; values as records have them."""
    attributes.setdefault("topic", "test")
    return SourceBatch(
        values=to_rows(schema, values),
        value_schema=schema,
        source_partition={"p": 1},
        source_offset={"o": len(values)},
        **attributes,
    )


def sink(values: list[Any], schema: Schema | None = None, **attributes: Any) -> SinkBatch:
    """A batch of a sink; values as records have them."""
    attributes.setdefault("topic", "test")
    attributes.setdefault("partition", 0)
    attributes.setdefault("offsets", range(len(values)))
    return SinkBatch(values=to_rows(schema, values), value_schema=schema, **attributes)


def batches(result: Any) -> list[Batch]:
    """What a transform returned, as a list."""
    if result is None:
        return []
    return [result] if isinstance(result, Batch) else list(result)


def records(result: Any) -> list[Any]:
    """What a transform returned, record by record."""
    return [record for batch in batches(result) for record in batch.to_records()]


def values(transform: Any, items: list[Any], schema: Schema | None = None) -> list[Any]:
    """What becomes of values, as records have them."""
    return [record.value for record in records(transform.apply_batch(source(items, schema)))]


def one(transform: Any, item: Any, schema: Schema | None = None) -> tuple[Schema | None, Any]:
    """The schema and value that come of one value."""
    (record,) = records(transform.apply_batch(source([item], schema)))
    return record.value_schema, record.value


def failures(transform: Any, batch: Batch) -> dict[int, Exception]:
    """The errors by position that a transform reports for a batch."""
    try:
        transform.apply_batch(batch)
    except BatchError as error:
        return error.errors
    return {}


def one_by_one(transform: Any, batch: Batch) -> tuple[list[Any], list[int]]:
    """The records that `apply` makes, and the positions of those that it cannot handle."""
    made, failed = [], []
    for index, record in enumerate(batch.to_records()):
        try:
            result = transform.apply(record)
        except Exception:  # noqa: BLE001 - any exception is a failure of that record
            failed.append(index)
        else:
            made.extend([] if result is None else [result])
    return made, failed


def structs(schema: Schema, rows: Sequence[Any]) -> list[Any]:
    """Rows as `Struct`."""
    return [struct_maker(schema)(row) for row in rows]
