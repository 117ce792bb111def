"""InsertField: add fields with the record's topic, partition, offset or timestamp, or with a static value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from headrace.api.config import Config, key
from headrace.api.errors import ConfigError
from headrace.data.batch import Batch, SinkBatch
from headrace.data.columns import Column, ColumnarValues, Columns, Shared, column_items
from headrace.data.logical import OPTIONAL_TIMESTAMP_SCHEMA, TIMESTAMP_SCHEMA, Timestamp
from headrace.data.schema import (
    INT32_SCHEMA,
    INT64_SCHEMA,
    OPTIONAL_INT32_SCHEMA,
    OPTIONAL_INT64_SCHEMA,
    OPTIONAL_STRING_SCHEMA,
    STRING_SCHEMA,
    Schema,
)
from headrace_transforms.columnar import filled_with_defaults
from headrace_transforms.key_or_value import (
    KeyOrValue,
    SchemaCache,
    TransformResult,
    copy_basics,
    defaults_filler,
    replace_null_key,
    require_maps,
    require_struct_schema,
)
from headrace_transforms.record_errors import place_of, record_error

_PURPOSE = "field insertion"
_OPTIONALITY = "Append ! to the name to make the field required, or ? to make it optional (the default)."


class InsertFieldConfig(Config):
    """Configuration of InsertField."""

    topic_field: str | None = key("topic.field", default=None, doc=f"Name of the field for the topic. {_OPTIONALITY}")
    partition_field: str | None = key(
        "partition.field", default=None, doc=f"Name of the field for the partition. {_OPTIONALITY}"
    )
    offset_field: str | None = key(
        "offset.field", default=None, doc=f"Name of the field for the offset, for sink connectors only. {_OPTIONALITY}"
    )
    timestamp_field: str | None = key(
        "timestamp.field", default=None, doc=f"Name of the field for the timestamp. {_OPTIONALITY}"
    )
    static_field: str | None = key(
        "static.field", default=None, doc=f"Name of the field for the value of static.value. {_OPTIONALITY}"
    )
    static_value: str | None = key("static.value", default=None, doc="Value of static.field.")
    replace_null_with_default: bool = replace_null_key()

    @classmethod
    def errors_between(cls, values: Mapping[str, Any]) -> Iterator[ConfigError]:
        """Check that at least one field is configured, and that the static field has a value."""
        sources = ("topic", "partition", "offset", "timestamp", "static")
        if all(values.get(f"{source}.field") is None for source in sources):
            yield ConfigError("", None, "No field insertion configured")
        static = values.get("static.field")
        if static is not None and values.get("static.value") is None:
            yield ConfigError("static.value", None, f"No value specified for static field: {static}")

    def value_warnings(self, task_class: type[Any]) -> dict[str, str]:
        """Warn if records of the connector have no timestamp yet when transforms receive them."""
        if self.timestamp_field is None or getattr(task_class, "sets_timestamps", True):
            return {}
        return {
            "timestamp.field": "the records of this source have no timestamp when transforms receive them, so the "
            "field is null or missing; use a column of the source instead, or add the field in a sink connector"
        }


class _Insertion(NamedTuple):
    """A field to add, and functions that return its values for the records of a batch."""

    name: str
    schema: Schema
    column: Callable[[Batch], Column]
    """Returns the values for records with a schema."""
    schemaless_column: Callable[[Batch], Column]
    """Returns the values for records without a schema."""


def _offsets(batch: Batch, place: str) -> Column:
    if not isinstance(batch, SinkBatch):
        found = type(batch).__name__.replace("Batch", "Record")
        message = f"Only SinkRecord supported for [{_PURPOSE}], found: {found}"
        raise record_error(message, place, "a SinkRecord, which has an offset")
    return batch.offsets if isinstance(batch.offsets, range) else list(batch.offsets)


def _millis(batch: Batch) -> Column:
    return batch.timestamps if isinstance(batch.timestamps, list) else Shared(batch.timestamps)


def _timestamps(batch: Batch) -> Column:
    if isinstance(batch.timestamps, list):
        return list(map(_to_timestamp, batch.timestamps))
    return Shared(_to_timestamp(batch.timestamps))


def _to_timestamp(millis: int | None) -> Any:
    return None if millis is None else Timestamp(millis)


class InsertField(KeyOrValue[InsertFieldConfig]):
    """Adds fields in the order topic, partition, offset, timestamp, static. Does not change null keys and values."""

    abstract = True
    passes_null = True

    def configure(self, config: InsertFieldConfig) -> None:
        """Store the fields to add."""
        self._insertions = list(_insertions(config, self.side))
        self._replace_null = config.replace_null_with_default
        self._plans = SchemaCache(self._plan)

    def _plan(self, schema: Schema) -> tuple[Schema, Callable[[list[Any]], list[Any]]]:
        require_struct_schema(schema, _PURPOSE, self.side)
        added = [(insertion.name, insertion.schema) for insertion in self._insertions]
        updated = copy_basics(schema, [*((field.name, field.schema) for field in schema.fields), *added])
        return updated, defaults_filler(schema, self._replace_null)

    def change(self, schema: Schema | None, values: list[Any], batch: Batch) -> TransformResult:
        """Add the fields to each value."""
        if schema is None:
            return None, self._change_maps(values, batch)
        updated, filled = self._plans(schema)
        rows = filled(values)
        columns = [insertion.column(batch) for insertion in self._insertions]
        if all(isinstance(column, Shared) for column in columns):
            suffix = tuple(column.value for column in columns if isinstance(column, Shared))
            return updated, [row + suffix for row in rows]
        suffixes = zip(*(column_items(column, len(rows)) for column in columns), strict=True)
        return updated, [row + suffix for row, suffix in zip(rows, suffixes, strict=True)]

    def _change_maps(self, values: list[Any], batch: Batch) -> list[Any]:
        require_maps(values, _PURPOSE, self.side)
        copies = [dict(value) for value in values]
        for insertion in self._insertions:
            name = insertion.name
            for copy, item in zip(copies, column_items(insertion.schemaless_column(batch), len(values)), strict=True):
                if item is not None:
                    copy[name] = item
        return copies

    def change_columnar(self, schema: Schema | None, values: ColumnarValues, batch: Batch) -> TransformResult | None:
        """Add the fields as columns.

        Returns None if `change` must transform the values instead. This is so if the values are maps, and an added
        field is null in some records but not in all.
        """
        if not isinstance(values, Columns):
            return None
        if schema is not None:
            updated, _ = self._plans(schema)
            values = filled_with_defaults(schema, values, self._replace_null)
            for insertion in self._insertions:
                values = values.put(insertion.name, insertion.column(batch))
            return updated, values
        for insertion in self._insertions:
            column = insertion.schemaless_column(batch)
            if isinstance(column, list) and None in column:
                return None
            if column != Shared(None):
                values = values.put(insertion.name, column)
        return None, values


def _insertions(config: InsertFieldConfig, side: str) -> list[_Insertion]:
    found: list[_Insertion] = []

    def add(
        text: str | None,
        required: Schema,
        optional: Schema,
        column: Callable[[Batch], Column],
        schemaless_column: Callable[[Batch], Column] | None = None,
    ) -> None:
        if text is None:
            return
        name = text[:-1] if text.endswith(("?", "!")) else text
        schema = required if text.endswith("!") else optional
        found.append(_Insertion(name, schema, column, schemaless_column or column))

    add(config.topic_field, STRING_SCHEMA, OPTIONAL_STRING_SCHEMA, lambda batch: Shared(batch.topic))
    add(config.partition_field, INT32_SCHEMA, OPTIONAL_INT32_SCHEMA, lambda batch: Shared(batch.partition))
    offset_place = place_of(side, (config.offset_field or "").rstrip("?!"))
    add(config.offset_field, INT64_SCHEMA, OPTIONAL_INT64_SCHEMA, lambda batch: _offsets(batch, offset_place))
    add(config.timestamp_field, TIMESTAMP_SCHEMA, OPTIONAL_TIMESTAMP_SCHEMA, _timestamps, _millis)
    static = Shared(config.static_value)
    add(config.static_field, STRING_SCHEMA, OPTIONAL_STRING_SCHEMA, lambda batch: static)
    return found


class InsertFieldKey(InsertField):
    """InsertField applied to the key."""

    side = "key"
    java_names = ("org.apache.kafka.connect.transforms.InsertField$Key",)


class InsertFieldValue(InsertField):
    """InsertField applied to the value."""

    side = "value"
    java_names = ("org.apache.kafka.connect.transforms.InsertField$Value",)
