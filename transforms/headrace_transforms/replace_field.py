"""ReplaceField: keep, remove or rename fields."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from operator import itemgetter
from typing import Any, ClassVar

from headrace.api.config import Config, key
from headrace.data.batch import Batch
from headrace.data.columns import ColumnarValues, Columns
from headrace.data.schema import Schema
from headrace_transforms.columnar import filled_with_defaults
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
from headrace_transforms.list_checks import require_no_empty_items, require_rename_pairs

_PURPOSE = "field replacement"


class ReplaceFieldConfig(Config):
    """Configuration of ReplaceField."""

    removed_keys: ClassVar[Mapping[str, str]] = {"blacklist": "exclude", "whitelist": "include"}  # as in Kafka 4.0

    exclude: list[str] = key(
        "exclude",
        default=[],
        validator=require_no_empty_items,
        distinct=True,
        doc="Fields to remove, even if include contains them.",
    )
    include: list[str] = key(
        "include",
        default=[],
        validator=require_no_empty_items,
        distinct=True,
        doc="Fields to keep. Default: all fields.",
    )
    renames: list[str] = key(
        "renames", default=[], validator=require_rename_pairs, doc="New names of fields, as old:new pairs."
    )
    replace_null_with_default: bool = replace_null_key()


class ReplaceField(KeyOrValue[ReplaceFieldConfig]):
    """Filters and renames the fields of structs or maps. Does not change null keys and values."""

    abstract = True
    passes_null = True

    def configure(self, config: ReplaceFieldConfig) -> None:
        """Store the names of the fields to exclude, to include and to rename."""
        self._exclude = frozenset(config.exclude)
        self._include = frozenset(config.include)
        self._renames = dict(mapping.split(":") for mapping in config.renames)
        self._new_names = frozenset(self._renames.values())
        self._replace_null = config.replace_null_with_default
        self._plans = SchemaCache(self._plan)

    def _keeps(self, name: str) -> bool:
        return name not in self._exclude and (not self._include or name in self._include)

    def _plan(self, schema: Schema) -> tuple[Schema, Callable[[list[Any]], list[Any]]]:
        require_struct_schema(schema, _PURPOSE, self.side)
        kept = [field for field in schema.fields if self._keeps(field.name)]
        updated = copy_basics(schema, [(self._renames.get(field.name, field.name), field.schema) for field in kept])
        filled = defaults_filler(schema, self._replace_null)
        indexes = [field.index for field in kept]
        if indexes == list(range(len(schema.fields))):
            return updated, filled
        if len(indexes) > 1:
            pick = itemgetter(*indexes)
            return updated, lambda rows: list(map(pick, filled(rows)))
        return updated, lambda rows: [tuple(row[index] for index in indexes) for row in filled(rows)]

    def change(self, schema: Schema | None, values: list[Any], batch: Batch) -> TransformResult:
        """Filter and rename the fields of each value."""
        if schema is not None:
            updated, convert = self._plans(schema)
            return updated, convert(values)
        require_maps(values, _PURPOSE, self.side)
        exclude, include, renames, new_names = self._exclude, self._include, self._renames, self._new_names
        return None, [
            {
                renames.get(name, name): item
                for name, item in value.items()
                if name not in exclude and (not include or name in include)  # `_keeps`, without a call for each field
            }
            if not new_names or new_names.isdisjoint(value)
            else {renames.get(name, name): value[name] for name in self._kept_names(value)}
            for value in values
        ]

    def _kept_names(self, names: Collection[str]) -> list[str]:
        """Return the old names of the fields that a map keeps. A renamed field replaces a field with its new name."""
        kept = list(filter(self._keeps, names))
        replaced = {new for old, new in self._renames.items() if old in kept} - self._renames.keys()
        return [name for name in kept if name not in replaced]

    def change_columnar(self, schema: Schema | None, values: ColumnarValues, batch: Batch) -> TransformResult | None:
        """Remove and rename columns."""
        if not isinstance(values, Columns):
            return None
        if schema is not None:
            updated, _ = self._plans(schema)
            values = filled_with_defaults(schema, values, self._replace_null)
            schema = updated
        columns = dict(zip(values.names, values.columns, strict=True))
        kept = Columns((), (), len(values), is_maps=values.is_maps)
        for name in self._kept_names(columns):
            kept = kept.put(self._renames.get(name, name), columns[name])
        return schema, kept


class ReplaceFieldKey(ReplaceField):
    """ReplaceField applied to the key."""

    side = "key"
    java_names = ("org.apache.kafka.connect.transforms.ReplaceField$Key",)


class ReplaceFieldValue(ReplaceField):
    """ReplaceField applied to the value."""

    side = "value"
    java_names = ("org.apache.kafka.connect.transforms.ReplaceField$Value",)
