"""HoistField: wrap the whole key or value into one field."""

from __future__ import annotations

from typing import Any

from headrace.api.config import Config, Importance, key
from headrace.api.errors import DataError
from headrace.data.batch import Batch
from headrace.data.columns import Columns, Compact, Lines
from headrace.data.schema import Schema, struct
from headrace_transforms.key_or_value import Changed, KeyOrValue, SchemaCache


class HoistFieldConfig(Config):
    """The keys of HoistField."""

    field: str = key("field", doc="Name of the one field of the new struct or map.", importance=Importance.MEDIUM)


class HoistField(KeyOrValue):
    """``x`` becomes ``Struct{field=x}``, or ``{field: x}`` without schema; nulls are wrapped too."""

    abstract = True
    config_model = HoistFieldConfig

    def configure(self, config: HoistFieldConfig) -> None:
        """Take the field's name."""
        self._field = config.field
        self._schemas = SchemaCache(lambda schema: struct([(config.field, schema)]))

    def change(self, schema: Schema | None, values: list[Any], batch: Batch) -> Changed:
        """Wrap each value."""
        if schema is None:
            return None, self._wrapped(values, is_maps=True)
        if not schema.optional and None in values:
            field, name = self._field, schema.type.name
            raise DataError(f'Invalid value: null used for required field: "{field}", schema type: {name}')
        return self._schemas(schema), self._wrapped(values, is_maps=False)

    def change_compact(self, schema: Schema | None, values: Compact, batch: Batch) -> Changed:
        """Wrap all values at once."""
        column = values if isinstance(values, Lines) else values.items()
        if schema is None:
            return None, self._wrapped(column, is_maps=True)
        return self._schemas(schema), self._wrapped(column, is_maps=False)

    def _wrapped(self, column: list[Any] | Lines, is_maps: bool) -> Columns:
        return Columns([self._field], [column], len(column), is_maps=is_maps)


class HoistFieldKey(HoistField):
    """HoistField for the key."""

    side = "key"
    java_names = ("org.apache.kafka.connect.transforms.HoistField$Key",)


class HoistFieldValue(HoistField):
    """HoistField for the value."""

    side = "value"
    java_names = ("org.apache.kafka.connect.transforms.HoistField$Value",)
