"""Cast: change the type of fields, or of the whole key or value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.api.config import Config, Importance, key
from headrace.data.batch import Batch
from headrace.data.columns import ColumnarValues, Columns
from headrace.data.logical import is_logical
from headrace.data.schema import Schema, Type
from headrace_transforms.casting import TARGETS, caster
from headrace_transforms.columnar import ListConversion, field_column, filled_with_defaults, map_column
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
from headrace_transforms.list_casting import list_caster
from headrace_transforms.record_errors import place_of

_PURPOSE = "cast types"


def _parse_spec(spec: list[str]) -> dict[str | None, Type]:
    """Return the target types by field name. The name None stands for the whole value. Raises ValueError."""
    if not spec:
        raise ValueError("Must specify at least one field to cast.")
    casts: dict[str | None, Type] = {}
    for mapping in spec:
        parts = [part.strip() for part in mapping.split(":")]
        if len(parts) > 2:
            raise ValueError(f"Invalid rename mapping: {mapping}")
        try:
            target = Type(parts[-1].lower())
        except ValueError:
            raise ValueError(f"Invalid type found in casting spec: {parts[-1]}") from None
        if target not in TARGETS:
            names = ", ".join(type_.name for type_ in TARGETS)
            raise ValueError(f"Cast transformation does not support casting to {target.name}; supported: {names}")
        casts[parts[0] if len(parts) == 2 else None] = target
    if None in casts and len(spec) > 1:
        raise ValueError(
            "Cast transformations that specify a type to cast the entire value to "
            "may only specify a single cast in their spec"
        )
    return casts


def _check_spec(spec: list[str]) -> None:
    _parse_spec(spec)


class CastConfig(Config):
    """Configuration of Cast."""

    spec: list[str] = key(
        "spec",
        validator=_check_spec,
        doc="List of field:type pairs, or a single type for the whole key or value. "
        "Types: int8, int16, int32, int64, float32, float64, boolean, string.",
        importance=Importance.HIGH,
    )
    replace_null_with_default: bool = replace_null_key()


class Cast(KeyOrValue[CastConfig]):
    """Casts fields, or the whole key or value, to other types.

    A number that does not fit the target type is truncated, as in Java's casts. A string that is not a valid number of
    the target type is an error.
    """

    abstract = True
    passes_null = True

    def configure(self, config: CastConfig) -> None:
        """Store the target types."""
        casts = _parse_spec(config.spec)
        self._whole = casts.get(None)
        self._casts = {name: target for name, target in casts.items() if name is not None}
        self._schemaless_casts = [
            (name, caster(None, target, place_of(self.side, name))) for name, target in self._casts.items()
        ]
        self._schemaless_list_casts = [
            (name, list_caster(None, target, place_of(self.side, name))) for name, target in self._casts.items()
        ]
        self._replace_null = config.replace_null_with_default
        self._plans = SchemaCache(self._whole_plan if self._whole else self._struct_plan)
        self._list_casts = SchemaCache(self._field_list_casts)

    def _whole_plan(self, schema: Schema) -> tuple[Schema, Callable[[list[Any]], list[Any]]]:
        assert self._whole is not None
        cast = caster(schema, self._whole, place_of(self.side))
        updated = Schema(
            self._whole,
            name=schema.name,
            version=schema.version,
            doc=schema.doc,
            parameters=schema.parameters,
            optional=schema.optional,
        )
        if is_logical(schema):
            # Remove the schema's name, because the result is no longer a logical type such as Date or Decimal.
            updated = updated.replace(name=None, version=None, parameters=None)
        return updated.replace(default=cast(schema.default)), lambda values: list(map(cast, values))

    def _struct_plan(self, schema: Schema) -> tuple[Schema, Callable[[list[Any]], list[Any]]]:
        require_struct_schema(schema, _PURPOSE, self.side)
        fields: list[tuple[str, Schema]] = []
        casts: dict[int, Callable[[Any], Any]] = {}
        for field in schema.fields:
            target = self._casts.get(field.name)
            if target is None:
                fields.append((field.name, field.schema))
                continue
            cast = casts[field.index] = caster(field.schema, target, place_of(self.side, field.name))
            default = cast(field.schema.default)
            fields.append((field.name, Schema(target, optional=field.schema.optional, default=default)))
        updated = copy_basics(schema, fields).replace(optional=schema.optional)
        filled = defaults_filler(schema, self._replace_null)
        change = _row_changer(len(fields), casts)
        return updated, lambda rows: change(filled(rows))

    def _field_list_casts(self, schema: Schema) -> list[tuple[int, ListConversion]]:
        """Return the index of each field to cast, and the function that casts its column."""
        return [
            (field.index, list_caster(field.schema, self._casts[field.name], place_of(self.side, field.name)))
            for field in schema.fields
            if field.name in self._casts
        ]

    def change_columnar(self, schema: Schema | None, values: ColumnarValues, batch: Batch) -> TransformResult | None:
        """Cast the columns of the fields."""
        if not isinstance(values, Columns) or self._whole is not None:
            return None
        if schema is None:
            for name, cast in self._schemaless_list_casts:
                values = values.put(name, map_column(cast, field_column(values, name), len(values)))
            return None, values
        updated, _ = self._plans(schema)
        values = filled_with_defaults(schema, values, self._replace_null)
        for index, cast in self._list_casts(schema):
            values = values.replace(index, map_column(cast, values.columns[index], len(values)))
        return updated, values

    def change(self, schema: Schema | None, values: list[Any], batch: Batch) -> TransformResult:
        """Cast each value."""
        if schema is not None:
            updated, convert = self._plans(schema)
            return updated, convert(values)
        if self._whole is not None:
            return None, list(map(caster(None, self._whole, place_of(self.side)), values))
        require_maps(values, _PURPOSE, self.side)
        casts = self._schemaless_casts
        return None, [{**value, **{name: cast(value.get(name)) for name, cast in casts}} for value in values]


def _row_changer(width: int, casts: dict[int, Callable[[Any], Any]]) -> Callable[[list[Any]], list[Any]]:
    """Generate and return a function that casts rows: ``[(v0, f1(v1), ...) for v0, v1, ... in rows]``.

    `width` is the number of fields. `casts` contains the function that casts a field's value, by the field's index.
    """
    if not casts:
        return lambda rows: rows
    names = ", ".join(f"v{index}" for index in range(width))
    parts = ", ".join(f"f{index}(v{index})" if index in casts else f"v{index}" for index in range(width))
    scope = {f"f{index}": cast for index, cast in casts.items()}
    changer: Callable[[list[Any]], list[Any]] = eval(f"lambda rows: [({parts},) for {names}, in rows]", scope)
    return changer


class CastKey(Cast):
    """Cast applied to the key."""

    side = "key"
    java_names = ("org.apache.kafka.connect.transforms.Cast$Key",)


class CastValue(Cast):
    """Cast applied to the value."""

    side = "value"
    java_names = ("org.apache.kafka.connect.transforms.Cast$Value",)
