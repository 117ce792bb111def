"""HeaderFrom: copy or move fields of the key or value into headers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from headrace.api.config import Config, Importance, key
from headrace.api.errors import ConfigError
from headrace.data.batch import Batch
from headrace.data.columns import Column, ColumnarValues, Columns, column_items
from headrace.data.headers import Header, Headers
from headrace.data.schema import Schema
from headrace.data.struct import from_rows, struct_converter
from headrace_transforms.columnar import field_column, filled_with_defaults, path_column, pick_columns
from headrace_transforms.field_paths import row_getter
from headrace_transforms.key_or_value import (
    KeyOrValue,
    TransformResult,
    copy_basics,
    defaults_filler,
    replace_null_key,
    require_maps,
    require_no_nulls,
    require_struct_schema,
)
from headrace_transforms.list_checks import require_non_empty
from headrace_transforms.record_errors import place_of, record_error


class HeaderFromConfig(Config):
    """Configuration of HeaderFrom."""

    fields_: list[str] = key(
        "fields", validator=require_non_empty, doc="The fields to copy or move.", importance=Importance.HIGH
    )
    headers: list[str] = key(
        "headers",
        validator=require_non_empty,
        doc="The headers' names, in the order of the fields.",
        importance=Importance.HIGH,
    )
    operation: str = key(
        "operation",
        one_of=("move", "copy"),
        doc="move: remove the fields from the key or value. copy: keep them.",
        importance=Importance.HIGH,
    )
    replace_null_with_default: bool = replace_null_key()

    @classmethod
    def errors_between(cls, values: Mapping[str, Any]) -> Iterator[ConfigError]:
        """Check that there are as many fields as headers."""
        fields, headers = values.get("fields"), values.get("headers")
        if fields is not None and headers is not None and len(fields) != len(headers):
            reason = "'fields' config must have the same number of elements as 'headers' config."
            yield ConfigError("fields", ",".join(fields), reason)


class HeaderFrom(KeyOrValue[HeaderFromConfig]):
    """Adds a header for each field, with the field's schema. Null keys and values are errors."""

    abstract = True

    def configure(self, config: HeaderFromConfig) -> None:
        """Store the fields, headers and operation."""
        self._names = list(zip(config.fields_, config.headers, strict=True))
        self._fields = frozenset(config.fields_)
        self._moves = config.operation == "move"
        self._purpose = f"header {config.operation}"
        self._replace_null = config.replace_null_with_default

    def change_batch(self, batch: Any) -> Batch | Sequence[Batch]:
        """Add the headers.

        If the property `operation` is `move`, then remove the fields from the record key or value.
        """
        schema = batch.value_schema if self.side == "value" else batch.key_schema
        columns = batch.compact if self.side == "value" else None
        if isinstance(columns, Columns):
            additions = self._from_columns(schema, columns)
        elif schema is not None:
            additions = self._with_schema(schema, self.side_values(batch))
        else:
            additions = self._without_schema(self.side_values(batch))
        present = batch.headers if batch.headers is not None else [()] * len(batch)
        headers = [Headers((*old, *new)) for old, new in zip(present, additions, strict=True)]
        return super().change_batch(batch.replace(headers=headers))

    def _from_columns(self, schema: Schema | None, values: Columns) -> Iterable[Iterable[Header]]:
        if schema is None:
            return _rows_of_headers(
                values, [(header, None, field_column(values, name)) for name, header in self._names]
            )
        return _rows_of_headers(
            values,
            [
                (header, of, path_column(schema, values, (name,), self._replace_null, self.side))
                for (name, header), of in zip(self._names, self._field_schemas(schema), strict=True)
            ],
        )

    def _field_schemas(self, schema: Schema) -> list[Schema]:
        """Return the schemas of the configured fields. Raises DataError if a field is missing."""
        require_struct_schema(schema, self._purpose, self.side)
        schemas = []
        for name, _ in self._names:
            field = schema.field(name)
            if field is None:
                place, found = place_of(self.side, name), "a struct without this field"
                raise record_error(f"Unknown field: {name}", place, "a field with this name", found)
            schemas.append(field.schema)
        return schemas

    def _with_schema(self, schema: Schema, values: list[Any]) -> list[list[Header]]:
        require_struct_schema(schema, self._purpose, self.side)
        require_no_nulls(values, self._purpose, self.side)
        parts = [
            (header, of, row_getter(schema, (name,), self._replace_null))
            for (name, header), of in zip(self._names, self._field_schemas(schema), strict=True)
        ]
        return [
            [Header(header, of, struct_converter(of)(get(row))) for header, of, get in parts] for row in values
        ]  # fmt: skip

    def _without_schema(self, values: list[Any]) -> list[list[Header]]:
        require_maps(values, self._purpose, self.side)
        return [[Header(header, None, value.get(name)) for name, header in self._names] for value in values]

    def change(self, schema: Schema | None, values: list[Any], batch: Batch) -> TransformResult:
        """If the property `operation` is `move`, remove the fields."""
        if not self._moves:
            return schema, values
        moved = self._fields
        if schema is None:
            return None, [{name: item for name, item in value.items() if name not in moved} for value in values]
        kept = [field for field in schema.fields if field.name not in moved]
        updated = copy_basics(schema, [(field.name, field.schema) for field in kept])
        rows = defaults_filler(schema, self._replace_null)(values)
        return updated, [tuple([row[field.index] for field in kept]) for row in rows]

    def change_columnar(self, schema: Schema | None, values: ColumnarValues, batch: Batch) -> TransformResult | None:
        """If the property `operation` is `move`, remove the columns."""
        if not self._moves:
            return schema, values
        if not isinstance(values, Columns):
            return None
        kept = [index for index, name in enumerate(values.names) if name not in self._fields]
        names = [values.names[index] for index in kept]
        if schema is None:
            return None, pick_columns(values, names, kept)
        updated = copy_basics(
            schema, [(name, schema.fields[index].schema) for name, index in zip(names, kept, strict=True)]
        )
        return updated, pick_columns(filled_with_defaults(schema, values, self._replace_null), names, kept)


def _rows_of_headers(values: Columns, parts: Sequence[tuple[str, Schema | None, Column]]) -> Iterable[Iterable[Header]]:
    """Return the headers of each record. `parts` contains the key, the schema and the column of each header."""
    columns = [
        [Header(header, schema, item) for item in from_rows(schema, column_items(column, len(values)))]
        for header, schema, column in parts
    ]
    return zip(*columns, strict=True)


class HeaderFromKey(HeaderFrom):
    """HeaderFrom applied to the key."""

    side = "key"
    java_names = ("org.apache.kafka.connect.transforms.HeaderFrom$Key",)


class HeaderFromValue(HeaderFrom):
    """HeaderFrom applied to the value."""

    side = "value"
    java_names = ("org.apache.kafka.connect.transforms.HeaderFrom$Value",)
