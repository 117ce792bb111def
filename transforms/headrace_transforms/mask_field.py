"""MaskField: replace the values of fields with an empty value or a configured replacement."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from headrace.api.config import Config, Importance, key
from headrace.data.batch import Batch
from headrace.data.columns import Column, ColumnarValues, Columns, Shared, column_items
from headrace.data.java import Float32, float32, low_bits, parse_decimal, wrap
from headrace.data.logical import TEMPORAL_TYPES, Date, Time, Timestamp, is_logical
from headrace.data.schema import Schema, Type
from headrace.data.values import infer_type
from headrace_transforms.columnar import field_column, filled_with_defaults
from headrace_transforms.key_or_value import (
    KeyOrValue,
    SchemaCache,
    TransformResult,
    defaults_filler,
    replace_null_key,
    require_maps,
    require_no_nulls,
    require_struct_schema,
)
from headrace_transforms.list_checks import require_non_empty_items
from headrace_transforms.record_errors import place_of, record_error, type_name

_PURPOSE = "mask fields"
_EMPTY: dict[type, Callable[[], Any]] = {
    bool: bool,
    int: int,
    Float32: Float32,
    float: float,
    str: str,
    list: list,
    dict: dict,
    Decimal: Decimal,
    Timestamp: Timestamp,
    Date: Date,
    Time: Time,
}
_SAME_FOR_ALL_VALUES = frozenset((type(None), bool, int, Float32, float, str, *TEMPORAL_TYPES))
"""The classes for which the masked value depends only on the class of the value."""
_BITS = {Type.INT8: 8, Type.INT16: 16, Type.INT32: 32, Type.INT64: 64}
_MASKABLE = "a type other than BYTES and STRUCT"


class MaskFieldConfig(Config):
    """Configuration of MaskField."""

    fields_: list[str] = key(
        "fields",
        validator=require_non_empty_items,
        distinct=True,
        doc="The fields to mask.",
        importance=Importance.HIGH,
    )
    replacement: str | None = key(
        "replacement",
        default=None,
        non_empty=True,
        doc="Replacement for the values of string and number fields. Default: an empty value of the field's type, such "
        "as 0, false or an empty string.",
        importance=Importance.LOW,
    )
    replace_null_with_default: bool = replace_null_key()


class MaskField(KeyOrValue[MaskFieldConfig]):
    """Masks fields. Null fields stay null. A null key or value is an error."""

    abstract = True

    def configure(self, config: MaskFieldConfig) -> None:
        """Store the fields and the replacement."""
        self._fields = config.fields_
        self._replacement = config.replacement
        self._replace_null = config.replace_null_with_default
        self._plans = SchemaCache(self._plan)

    def _plan(self, schema: Schema) -> Callable[[list[Any]], list[Any]]:
        require_struct_schema(schema, _PURPOSE, self.side)
        masked = [(field.index, field.name, field.schema) for field in schema.fields if field.name in self._fields]
        filled = defaults_filler(schema, self._replace_null)

        def mask(row: tuple[Any, ...]) -> tuple[Any, ...]:
            items = list(row)
            for index, name, field_schema in masked:
                items[index] = self._masked(items[index], name, field_schema)
            return tuple(items)

        return lambda rows: [mask(row) for row in filled(rows)]

    def _masked(self, value: Any, name: str, schema: Schema | None) -> Any:
        if value is None:
            return None
        if self._replacement is None:
            empty = _EMPTY.get(type(value))
            if empty is None:
                found = type_name(value, schema)
                raise record_error(f"Cannot mask value of type: {found}", place_of(self.side, name), _MASKABLE, found)
            if isinstance(value, Decimal) and schema is not None:
                return value * 0  # a zero with the scale of the schema
            return empty()
        return self._replaced(value, name, schema, self._replacement)

    def _replaced(self, value: Any, name: str, schema: Schema | None, replacement: str) -> Any:
        if isinstance(value, str):
            return replacement
        if isinstance(value, (bool, *TEMPORAL_TYPES)) or not isinstance(value, (int, float, Decimal)):
            found = type_name(value, schema)
            message = f"Cannot mask value of type {found} with custom replacement."
            raise record_error(message, place_of(self.side, name), "STRING or a number", found)
        plain = None if schema is None or is_logical(schema) else schema
        target = plain.type if plain is not None else infer_type(value) or Type.INT64
        number = parse_decimal(replacement)
        if number is None:
            place, found = place_of(self.side, name), type_name(value, schema)
            expected = f"a replacement of type {'Decimal' if isinstance(value, Decimal) else target.name}"
            raise record_error(f"Unable to convert {replacement} (String) to number", place, expected, found)
        if isinstance(value, Decimal):
            return number
        if target in _BITS:
            return wrap(low_bits(number), _BITS[target])
        return float(number) if target is Type.FLOAT64 else Float32(float32(float(number)))

    def _masked_column(self, column: Column, count: int, name: str, schema: Schema | None) -> Column:
        if isinstance(column, Shared):
            return Shared(self._masked(column.value, name, schema))
        items = column_items(column, count)
        examples = dict(zip(map(type, items), items, strict=True))
        if not examples.keys() <= _SAME_FOR_ALL_VALUES:
            return [self._masked(item, name, schema) for item in items]
        masks = {class_: self._masked(item, name, schema) for class_, item in examples.items()}
        return Shared(*masks.values()) if len(masks) == 1 else list(map(masks.__getitem__, map(type, items)))

    def change_columnar(self, schema: Schema | None, values: ColumnarValues, batch: Batch) -> TransformResult | None:
        """Mask the columns of the fields."""
        if not isinstance(values, Columns):
            return None
        if schema is None:
            for name in self._fields:
                values = values.put(name, self._masked_column(field_column(values, name), len(values), name, None))
            return None, values
        require_struct_schema(schema, _PURPOSE, self.side)
        values = filled_with_defaults(schema, values, self._replace_null)
        for field in schema.fields:
            if field.name in self._fields:
                column = values.columns[field.index]
                masked = self._masked_column(column, len(values), field.name, field.schema)
                values = values.replace(field.index, masked)
        return schema, values

    def change(self, schema: Schema | None, values: list[Any], batch: Batch) -> TransformResult:
        """Mask the fields of each value."""
        if schema is not None:
            require_no_nulls(values, _PURPOSE, self.side)
            return schema, self._plans(schema)(values)
        require_maps(values, _PURPOSE, self.side)
        names = self._fields
        return None, [
            {**value, **{name: self._masked(value.get(name), name, None) for name in names}} for value in values
        ]


class MaskFieldKey(MaskField):
    """MaskField applied to the key."""

    side = "key"
    java_names = ("org.apache.kafka.connect.transforms.MaskField$Key",)


class MaskFieldValue(MaskField):
    """MaskField applied to the value."""

    side = "value"
    java_names = ("org.apache.kafka.connect.transforms.MaskField$Value",)
