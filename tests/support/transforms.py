"""Creates plug-ins and batches for tests of transforms, predicates and converters, and applies the plug-ins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from headrace.api.errors import RecordErrors
from headrace.data.batch import Batch, SinkBatch, SourceBatch
from headrace.data.schema import Schema
from headrace.data.struct import struct_converter, to_rows
from headrace.plugins import registry
from headrace.plugins.creation import create, create_converter

_C = TypeVar("_C")


def make_plugin(name: str, kind: str = "transform", /, **props: str) -> Any:
    """Create and configure a plug-in. ``__`` in a keyword stands for a dot, e.g. ``static__field``."""
    return create(registry.find(kind, name), {key.replace("__", "."): value for key, value in props.items()})


def make_converter(converter_class: type[_C], which: str = "value", /, **props: str) -> _C:
    """Create a converter and configure it for `which`: "key" or "value".

    ``_`` in a keyword stands for a dot, e.g. ``schemas_enable``.
    """
    configured: _C = create_converter(
        converter_class, {key.replace("_", "."): value for key, value in props.items()}, which
    )
    return configured


def source_batch(values: list[Any], schema: Schema | None = None, **attributes: Any) -> SourceBatch:
    """Build a source batch from `values`. Structs in `values` must be `Struct` objects."""
    attributes.setdefault("topic", "test")
    return SourceBatch(
        values=to_rows(schema, values),
        value_schema=schema,
        source_partition={"p": 1},
        source_offset={"o": len(values)},
        **attributes,
    )


def sink_batch(values: list[Any], schema: Schema | None = None, **attributes: Any) -> SinkBatch:
    """Build a sink batch from `values`. Structs in `values` must be `Struct` objects."""
    attributes.setdefault("topic", "test")
    attributes.setdefault("partition", 0)
    attributes.setdefault("offsets", range(len(values)))
    return SinkBatch(values=to_rows(schema, values), value_schema=schema, **attributes)


def batches(result: Any) -> list[Batch]:
    """Return a transform's result as a list of batches."""
    if result is None:
        return []
    return [result] if isinstance(result, Batch) else list(result)


def records(result: Any) -> list[Any]:
    """Return a transform's result as a list of records."""
    return [record for batch in batches(result) for record in batch.to_records()]


def apply_to_values(transform: Any, items: list[Any], schema: Schema | None = None) -> list[Any]:
    """Transform a batch of values and return the resulting values."""
    return [record.value for record in records(transform.apply_batch(source_batch(items, schema)))]


def apply_to_value(transform: Any, item: Any, schema: Schema | None = None) -> tuple[Schema | None, Any]:
    """Transform one value and return the resulting schema and value."""
    (record,) = records(transform.apply_batch(source_batch([item], schema)))
    return record.value_schema, record.value


def transform_errors(transform: Any, batch: Batch) -> dict[int, Exception]:
    """Transform a batch and return the errors of its records, by index."""
    try:
        transform.apply_batch(batch)
    except RecordErrors as error:
        return error.errors
    return {}


def apply_to_each(transform: Any, batch: Batch) -> tuple[list[Any], list[int]]:
    """Call `apply` on each record. Return the resulting records, and the indexes of the records that failed."""
    transformed, failed = [], []
    for index, record in enumerate(batch.to_records()):
        try:
            result = transform.apply(record)
        except Exception:  # noqa: BLE001 - any exception is a failure of that record
            failed.append(index)
        else:
            transformed.extend([] if result is None else [result])
    return transformed, failed


def structs(schema: Schema, rows: Sequence[Any]) -> list[Any]:
    """Convert rows to `Struct` objects."""
    return [struct_converter(schema)(row) for row in rows]
