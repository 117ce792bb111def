"""HoistField: wrap the whole key or value in a struct or map with one field."""

from __future__ import annotations

from typing import Any

from headrace.api.config import Config, Importance, key
from headrace.data.batch import Batch
from headrace.data.columns import ColumnarValues, Columns, Lines
from headrace.data.schema import Schema, struct
from headrace_transforms.key_or_value import KeyOrValue, SchemaCache, TransformResult
from headrace_transforms.record_errors import place_of, record_error, schema_type_name


class HoistFieldConfig(Config):
    """Configuration of HoistField."""

    field: str = key("field", doc="Name of the only field of the new struct or map.", importance=Importance.MEDIUM)


class HoistField(KeyOrValue[HoistFieldConfig]):
    """Replaces ``x`` with ``Struct{field=x}``, or with ``{field: x}`` without a schema. Nulls are wrapped, too."""

    abstract = True

    def configure(self, config: HoistFieldConfig) -> None:
        """Store the field's name."""
        self._field = config.field
        self._schemas = SchemaCache(lambda schema: struct([(config.field, schema)]))

    def change(self, schema: Schema | None, values: list[Any], batch: Batch) -> TransformResult:
        """Wrap each value."""
        if schema is None:
            return None, self._wrapped(values, is_maps=True)
        if not schema.optional and None in values:
            field, expected = self._field, schema_type_name(schema)
            message = f'Invalid value: null used for required field: "{field}", schema type: {schema.type.name}'
            raise record_error(message, place_of(self.side, field), expected, "null")
        return self._schemas(schema), self._wrapped(values, is_maps=False)

    def change_columnar(self, schema: Schema | None, values: ColumnarValues, batch: Batch) -> TransformResult:
        """Wrap the values without converting them to rows."""
        column = values if isinstance(values, Lines) else values.items()
        if schema is None:
            return None, self._wrapped(column, is_maps=True)
        return self._schemas(schema), self._wrapped(column, is_maps=False)

    def _wrapped(self, column: list[Any] | Lines, is_maps: bool) -> Columns:
        return Columns([self._field], [column], len(column), is_maps=is_maps)


class HoistFieldKey(HoistField):
    """HoistField applied to the key."""

    side = "key"
    java_names = ("org.apache.kafka.connect.transforms.HoistField$Key",)


class HoistFieldValue(HoistField):
    """HoistField applied to the value."""

    side = "value"
    java_names = ("org.apache.kafka.connect.transforms.HoistField$Value",)
