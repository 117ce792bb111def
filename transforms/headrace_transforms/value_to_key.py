"""ValueToKey: create the key from fields of the value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.api.config import Config, Importance, key
from headrace.data.batch import Batch
from headrace.data.columns import Columns, Shared, Values, listed
from headrace.data.schema import Schema, struct
from headrace_transforms.columnar import path_column
from headrace_transforms.field_paths import field_at, field_syntax_key, map_value, parse_path, row_getter
from headrace_transforms.key_or_value import (
    ListTransformation,
    SchemaCache,
    replace_null_key,
    require_maps,
    require_no_nulls,
    require_struct_schema,
)
from headrace_transforms.list_checks import require_non_empty_items
from headrace_transforms.record_errors import place_of, record_error, schema_type_name

_PURPOSE = "copying fields from value to key"


class ValueToKeyConfig(Config):
    """Configuration of ValueToKey."""

    fields_: list[str] = key(
        "fields",
        validator=require_non_empty_items,
        distinct=True,
        doc="The fields of the value to create the key from.",
        importance=Importance.HIGH,
    )
    replace_null_with_default: bool = replace_null_key()
    field_syntax_version: str = field_syntax_key()


class ValueToKey(ListTransformation[ValueToKeyConfig]):
    """Sets the key to a struct with the configured fields, or to a map if the value has no schema."""

    java_names = ("org.apache.kafka.connect.transforms.ValueToKey",)
    changes_topics = False

    def configure(self, config: ValueToKeyConfig) -> None:
        """Parse the names or paths of the fields. Raises ConfigError."""
        version = config.field_syntax_version
        self._paths = [(name, parse_path(name, version, "fields")) for name in config.fields_]
        self._replace_null = config.replace_null_with_default
        self._plans = SchemaCache(self._plan)

    def _plan(self, schema: Schema) -> tuple[Schema, Callable[[Any], tuple[Any, ...]]]:
        require_struct_schema(schema, _PURPOSE, "value")
        fields, getters = [], []
        for name, path in self._paths:
            field = field_at(schema, path, "value")
            if field is None:
                place, found = place_of("value", name), "a struct without this field"
                raise record_error(f"Field does not exist: {name}", place, "a field with this name", found)
            fields.append((name, field.schema))
            getters.append(row_getter(schema, path, self._replace_null))
        if len(getters) == 1:
            only = getters[0]
            return struct(fields), lambda row: (only(row),)
        return struct(fields), lambda row: tuple([get(row) for get in getters])

    def change_batch(self, batch: Any) -> Batch:
        """Set the key of each record."""
        key_schema, keys = self._keys_by_column(batch) or self._keys(batch)
        for field in key_schema.fields if key_schema is not None else ():
            if not field.schema.optional and _has_null(keys, field.index):
                message = f'Invalid value: null used for required field: "{field.name}"'
                raise record_error(message, place_of("value", field.name), schema_type_name(field.schema), "null")
        changed: Batch = batch.replace(key_schema=key_schema, keys=listed(keys))
        return changed

    def _keys(self, batch: Batch) -> tuple[Schema | None, Values]:
        if batch.value_schema is None:
            require_maps(batch.values, _PURPOSE, "value")
            paths = self._paths
            return None, [{name: map_value(value, path, "value") for name, path in paths} for value in batch.values]
        require_no_nulls(batch.values, _PURPOSE, "value")
        key_schema, make = self._plans(batch.value_schema)
        return key_schema, [make(row) for row in batch.values]

    def _keys_by_column(self, batch: Batch) -> tuple[Schema | None, Columns] | None:
        """Create the keys from the columns of columnar values. Returns None if the keys must be created from rows."""
        values, key_schema = batch.compact, None
        if not isinstance(values, Columns) or not all(path for _, path in self._paths):
            return None
        if batch.value_schema is not None:
            key_schema, _ = self._plans(batch.value_schema)
        columns = [
            path_column(batch.value_schema, values, path, self._replace_null, "value") for _, path in self._paths
        ]
        names = [name for name, _ in self._paths]
        return key_schema, Columns(names, columns, len(values), is_maps=key_schema is None)


def _has_null(keys: Values, index: int) -> bool:
    """Whether the field at `index` is null in one of the keys."""
    if not isinstance(keys, Columns):
        return any(row[index] is None for row in listed(keys))
    column = keys.columns[index]
    return column.value is None if isinstance(column, Shared) else isinstance(column, list) and None in column
