"""MaskField: replace the values of fields with an empty value or a configured replacement."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from headrace.api.config import Config, Importance, key
from headrace.api.errors import DataError
from headrace.data.batch import Batch
from headrace.data.logical import is_logical
from headrace.data.schema import Schema, Type
from headrace_transforms.casting import caster
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
from headrace_transforms.list_checks import require_non_empty_unique

_PURPOSE = "mask fields"
_EMPTY: dict[type, Callable[[], Any]] = {
    bool: bool,
    int: int,
    float: float,
    str: str,
    list: list,
    dict: dict,
    Decimal: Decimal,
    dt.datetime: lambda: dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
    dt.date: lambda: dt.date(1970, 1, 1),
    dt.time: dt.time,
}


class MaskFieldConfig(Config):
    """Configuration of MaskField."""

    fields_: list[str] = key(
        "fields", validator=require_non_empty_unique, doc="The fields to mask.", importance=Importance.HIGH
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
        require_struct_schema(schema, _PURPOSE)
        masked = {field.index: field.schema for field in schema.fields if field.name in self._fields}
        filled = defaults_filler(schema, self._replace_null)

        def mask(row: tuple[Any, ...]) -> tuple[Any, ...]:
            items = list(row)
            for index, field_schema in masked.items():
                items[index] = self._masked(items[index], field_schema)
            return tuple(items)

        return lambda rows: [mask(row) for row in filled(rows)]

    def _masked(self, value: Any, schema: Schema | None) -> Any:
        if value is None:
            return None
        if self._replacement is None:
            empty = _EMPTY.get(type(value))
            if empty is None:
                raise DataError(f"Cannot mask value of type: {type(value).__name__}")
            if isinstance(value, Decimal) and schema is not None:
                return value * 0  # a zero with the scale of the schema
            return empty()
        return self._replaced(value, schema, self._replacement)

    def _replaced(self, value: Any, schema: Schema | None, replacement: str) -> Any:
        if isinstance(value, str):
            return replacement
        if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
            raise DataError(f"Cannot mask value of type {type(value).__name__} with custom replacement.")
        if isinstance(value, Decimal):
            return _decimal(replacement)
        plain = schema is not None and not is_logical(schema)
        target = (
            schema.type if schema is not None and plain else Type.FLOAT64 if isinstance(value, float) else Type.INT64
        )
        return caster(None, target)(replacement)

    def change(self, schema: Schema | None, values: list[Any], batch: Batch) -> TransformResult:
        """Mask the fields of each value."""
        if schema is not None:
            require_no_nulls(values, _PURPOSE)
            return schema, self._plans(schema)(values)
        require_maps(values, _PURPOSE)
        names = self._fields
        return None, [{**value, **{name: self._masked(value.get(name), None) for name in names}} for value in values]


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except ArithmeticError:
        raise DataError(f"Unable to convert {text} (String) to number") from None


class MaskFieldKey(MaskField):
    """MaskField applied to the key."""

    side = "key"
    java_names = ("org.apache.kafka.connect.transforms.MaskField$Key",)


class MaskFieldValue(MaskField):
    """MaskField applied to the value."""

    side = "value"
    java_names = ("org.apache.kafka.connect.transforms.MaskField$Value",)
