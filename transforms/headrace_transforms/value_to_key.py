"""ValueToKey: make the key from fields of the value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.api.config import Config, Importance, key
from headrace.api.errors import DataError
from headrace.data.batch import Batch
from headrace.data.schema import Schema, struct
from headrace_transforms.field_paths import field_at, field_syntax_key, map_value, parse_path, row_getter
from headrace_transforms.key_or_value import (
    ListTransformation,
    SchemaCache,
    replace_null_key,
    require_maps,
    require_no_nulls,
    require_struct_schema,
)
from headrace_transforms.list_checks import distinct_and_some

_PURPOSE = "copying fields from value to key"


class ValueToKeyConfig(Config):
    """The keys of ValueToKey."""

    fields_: list[str] = key(
        "fields", validator=distinct_and_some, doc="Fields of the value for the key.", importance=Importance.HIGH
    )
    replace_null_with_default: bool = replace_null_key()
    field_syntax_version: str = field_syntax_key()


class ValueToKey(ListTransformation):
    """The key becomes a struct (a map without schema) of the fields named."""

    config_model = ValueToKeyConfig
    java_names = ("org.apache.kafka.connect.transforms.ValueToKey",)

    def configure(self, config: ValueToKeyConfig) -> None:
        """Take the fields' names. Raises ConfigError."""
        version = config.field_syntax_version
        self._paths = [(name, parse_path(name, version, "fields")) for name in config.fields_]
        self._replace_null = config.replace_null_with_default
        self._plans = SchemaCache(self._plan)

    def _plan(self, schema: Schema) -> tuple[Schema, Callable[[Any], tuple[Any, ...]]]:
        require_struct_schema(schema, _PURPOSE)
        fields, getters = [], []
        for name, path in self._paths:
            field = field_at(schema, path)
            if field is None:
                raise DataError(f"Field does not exist: {name}")
            fields.append((name, field.schema))
            getters.append(row_getter(schema, path, self._replace_null))
        if len(getters) == 1:
            only = getters[0]
            return struct(fields), lambda row: (only(row),)
        return struct(fields), lambda row: tuple([get(row) for get in getters])

    def change_batch(self, batch: Any) -> Batch:
        """Give each record its key."""
        changed: Batch
        if batch.value_schema is None:
            require_maps(batch.values, _PURPOSE)
            paths = self._paths
            maps = [{name: map_value(value, path) for name, path in paths} for value in batch.values]
            changed = batch.replace(key_schema=None, keys=maps)
            return changed
        require_no_nulls(batch.values, _PURPOSE)
        key_schema, make = self._plans(batch.value_schema)
        keys = [make(row) for row in batch.values]
        for field in key_schema.fields:
            if not field.schema.optional and any(row[field.index] is None for row in keys):
                raise DataError(f'Invalid value: null used for required field: "{field.name}"')
        changed = batch.replace(key_schema=key_schema, keys=keys)
        return changed
