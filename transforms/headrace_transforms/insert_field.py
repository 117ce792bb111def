"""InsertField: add fields from the record's topic, partition, offset or timestamp, or a fixed text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pydantic

from headrace.api.config import Config, key
from headrace.api.errors import ConfigError, DataError
from headrace.data.batch import Batch, SinkBatch
from headrace.data.logical import OPTIONAL_TIMESTAMP_SCHEMA, TIMESTAMP_SCHEMA, millis_to_timestamp
from headrace.data.schema import (
    INT32_SCHEMA,
    INT64_SCHEMA,
    OPTIONAL_INT32_SCHEMA,
    OPTIONAL_INT64_SCHEMA,
    OPTIONAL_STRING_SCHEMA,
    STRING_SCHEMA,
    Schema,
)
from headrace_transforms.key_or_value import (
    Changed,
    KeyOrValue,
    SchemaCache,
    copy_basics,
    defaults_filler,
    replace_null_key,
    require_maps,
    require_struct_schema,
)

_PURPOSE = "field insertion"
_OPTIONALITY = "End the name with ! to make the field required, with ? to keep it optional (the default)."


class InsertFieldConfig(Config):
    """The keys of InsertField."""

    topic_field: str | None = key("topic.field", default=None, doc=f"Field for the topic. {_OPTIONALITY}")
    partition_field: str | None = key("partition.field", default=None, doc=f"Field for the partition. {_OPTIONALITY}")
    offset_field: str | None = key(
        "offset.field", default=None, doc=f"Field for the record's offset, in sinks only. {_OPTIONALITY}"
    )
    timestamp_field: str | None = key("timestamp.field", default=None, doc=f"Field for the timestamp. {_OPTIONALITY}")
    static_field: str | None = key("static.field", default=None, doc=f"Field for a fixed text. {_OPTIONALITY}")
    static_value: str | None = key("static.value", default=None, doc="The fixed text.")
    replace_null_with_default: bool = replace_null_key()

    @pydantic.model_validator(mode="after")
    def _some_field(self) -> InsertFieldConfig:
        fields = (self.topic_field, self.partition_field, self.offset_field, self.timestamp_field, self.static_field)
        if not any(field is not None for field in fields):
            raise ValueError("No field insertion configured")
        if self.static_field is not None and self.static_value is None:
            raise ConfigError("static.value", None, f"No value specified for static field: {self.static_field}")
        return self


class _Insertion(NamedTuple):
    """One field to add. `column` gives one item per record; with `shared` it gives one item for all."""

    name: str
    schema: Schema
    shared: bool
    column: Callable[[Batch], Any]
    plain: Callable[[Batch], Any]
    """The same for schemaless data."""


def _offsets(batch: Batch) -> list[int]:
    if not isinstance(batch, SinkBatch):
        raise DataError(f"Only SinkRecord supported for [{_PURPOSE}], found: {type(batch).__name__}")
    return list(batch.offsets)


def _timestamps(batch: Batch) -> list[Any]:
    return [None if ms is None else millis_to_timestamp(ms) for ms in batch.timestamp_list()]


class InsertField(KeyOrValue):
    """Fields are added in the order topic, partition, offset, timestamp, static; null keys and values pass."""

    abstract = True
    passes_null = True
    config_model = InsertFieldConfig

    def configure(self, config: InsertFieldConfig) -> None:
        """Take the fields to add."""
        self._insertions = list(_insertions(config))
        self._replace_null = config.replace_null_with_default
        self._all_shared = all(insertion.shared for insertion in self._insertions)
        self._plans = SchemaCache(self._plan)

    def _plan(self, schema: Schema) -> tuple[Schema, Callable[[list[Any]], list[Any]]]:
        require_struct_schema(schema, _PURPOSE)
        added = [(insertion.name, insertion.schema) for insertion in self._insertions]
        updated = copy_basics(schema, [*((field.name, field.schema) for field in schema.fields), *added])
        return updated, defaults_filler(schema, self._replace_null)

    def change(self, schema: Schema | None, values: list[Any], batch: Batch) -> Changed:
        """Add the fields to each value."""
        if schema is None:
            return None, self._with_maps(values, batch)
        updated, filled = self._plans(schema)
        rows = filled(values)
        if self._all_shared:
            suffix = tuple(insertion.column(batch) for insertion in self._insertions)
            return updated, [row + suffix for row in rows]
        columns = [_column(insertion.column(batch), insertion.shared, len(rows)) for insertion in self._insertions]
        return updated, [row + suffix for row, suffix in zip(rows, zip(*columns, strict=True), strict=True)]

    def _with_maps(self, values: list[Any], batch: Batch) -> list[Any]:
        require_maps(values, _PURPOSE)
        count = len(values)
        columns = [
            (insertion.name, _column(insertion.plain(batch), insertion.shared, count)) for insertion in self._insertions
        ]
        copies = [dict(value) for value in values]
        for name, column in columns:
            keep_null = name in self._always
            for copy, item in zip(copies, column, strict=True):
                if item is not None or keep_null:
                    copy[name] = item
        return copies

    @property
    def _always(self) -> set[str]:
        """The fields that are put even when they are null: a topic or a text is never null."""
        return {insertion.name for insertion in self._insertions if insertion.schema.type is STRING_SCHEMA.type}


def _column(items: Any, shared: bool, count: int) -> list[Any]:
    return [items] * count if shared else items


def _insertions(config: InsertFieldConfig) -> list[_Insertion]:
    found: list[_Insertion] = []

    def add(
        text: str | None,
        required: Schema,
        optional: Schema,
        column: Callable[[Batch], Any],
        plain: Callable[[Batch], Any] | None = None,
        shared: bool = True,
    ) -> None:
        if text is None:
            return
        name = text[:-1] if text.endswith(("?", "!")) else text
        found.append(_Insertion(name, required if text.endswith("!") else optional, shared, column, plain or column))

    add(config.topic_field, STRING_SCHEMA, OPTIONAL_STRING_SCHEMA, lambda batch: batch.topic)
    add(config.partition_field, INT32_SCHEMA, OPTIONAL_INT32_SCHEMA, lambda batch: batch.partition)
    add(config.offset_field, INT64_SCHEMA, OPTIONAL_INT64_SCHEMA, _offsets, shared=False)
    add(
        config.timestamp_field,
        TIMESTAMP_SCHEMA,
        OPTIONAL_TIMESTAMP_SCHEMA,
        _timestamps,
        lambda batch: batch.timestamp_list(),
        shared=False,
    )
    static = config.static_value
    add(config.static_field, STRING_SCHEMA, OPTIONAL_STRING_SCHEMA, lambda batch: static)
    return found


class InsertFieldKey(InsertField):
    """InsertField for the key."""

    side = "key"
    java_names = ("org.apache.kafka.connect.transforms.InsertField$Key",)


class InsertFieldValue(InsertField):
    """InsertField for the value."""

    side = "value"
    java_names = ("org.apache.kafka.connect.transforms.InsertField$Value",)
