"""HoistField: wrap the whole key or value into one field."""

from __future__ import annotations

from typing import Any

from headrace.api.config import Config, Importance, key
from headrace.api.errors import DataError
from headrace.data.batch import Batch
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
        field = self._field
        if schema is None:
            return None, [{field: value} for value in values]
        if not schema.optional and None in values:
            raise DataError(f'Invalid value: null used for required field: "{field}", schema type: {schema.type.name}')
        return self._schemas(schema), list(zip(values, strict=True))


class HoistFieldKey(HoistField):
    """HoistField for the key."""

    side = "key"
    java_names = ("org.apache.kafka.connect.transforms.HoistField$Key",)


class HoistFieldValue(HoistField):
    """HoistField for the value."""

    side = "value"
    java_names = ("org.apache.kafka.connect.transforms.HoistField$Value",)
