"""ExtractField: replace the key or value with one of its fields."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

from headrace.api.config import Config, Importance, key
from headrace.data.batch import Batch
from headrace.data.columns import ColumnarValues, Columns, Lines, column_items
from headrace.data.schema import Schema
from headrace_transforms.columnar import path_column
from headrace_transforms.field_paths import field_at, field_syntax_key, map_value, parse_path, row_getter
from headrace_transforms.key_or_value import (
    KeyOrValue,
    SchemaCache,
    TransformResult,
    replace_null_key,
    require_maps,
    require_struct_schema,
)
from headrace_transforms.record_errors import place_of, record_error

_PURPOSE = "field extraction"


class ExtractFieldConfig(Config):
    """Configuration of ExtractField."""

    field: str = key("field", doc="Name or path of the field to extract.", importance=Importance.MEDIUM)
    replace_null_with_default: bool = replace_null_key()
    field_syntax_version: str = field_syntax_key()


class ExtractField(KeyOrValue[ExtractFieldConfig]):
    """Replaces ``Struct{a=1}`` with 1 for the field ``a``. Null stays null."""

    abstract = True

    def configure(self, config: ExtractFieldConfig) -> None:
        """Parse the field's name or path. Raises ConfigError."""
        self._name = config.field
        self._path = parse_path(config.field, config.field_syntax_version, "field")
        self._replace_null = config.replace_null_with_default
        self._plans = SchemaCache(self._plan)

    def _plan(self, schema: Schema) -> tuple[Schema, Callable[[list[Any]], list[Any]]]:
        require_struct_schema(schema, _PURPOSE, self.side)
        field = field_at(schema, self._path, self.side)
        if field is None:
            place, found = place_of(self.side, self._name), "a struct without this field"
            raise record_error(f"Unknown field: {self._name}", place, "a field with this name", found)
        get = row_getter(schema, self._path, self._replace_null)
        if len(self._path) == 1 and (field.schema.default is None or not self._replace_null):
            item = itemgetter(field.index)
            return field.schema, lambda rows: list(map(get if None in rows else item, rows))
        return field.schema, lambda rows: list(map(get, rows))

    def change(self, schema: Schema | None, values: list[Any], batch: Batch) -> TransformResult:
        """Extract the field of each value."""
        if schema is not None:
            extracted, convert = self._plans(schema)
            return extracted, convert(values)
        require_maps([value for value in values if value is not None] or [{}], _PURPOSE, self.side)
        path, side = self._path, self.side
        return None, [None if value is None else map_value(value, path, side) for value in values]

    def change_columnar(self, schema: Schema | None, values: ColumnarValues, batch: Batch) -> TransformResult | None:
        """Return the column of the field, or the values at the path in its column."""
        if not isinstance(values, Columns) or not self._path:
            return None
        extracted = None
        if schema is not None:
            extracted, _ = self._plans(schema)
        column = path_column(schema, values, self._path, self._replace_null, self.side)
        return extracted, column if isinstance(column, Lines) else column_items(column, len(values))


class ExtractFieldKey(ExtractField):
    """ExtractField applied to the key."""

    side = "key"
    java_names = ("org.apache.kafka.connect.transforms.ExtractField$Key",)


class ExtractFieldValue(ExtractField):
    """ExtractField applied to the value."""

    side = "value"
    java_names = ("org.apache.kafka.connect.transforms.ExtractField$Value",)
