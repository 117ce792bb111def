"""Iceberg's field ids in Parquet files. This module does no I/O.

Readers find the columns of an Iceberg table by these ids. Some readers know no name mapping, and would assign ids to a
file without them by the position of its columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

_KEY = b"PARQUET:field_id"


@dataclass(frozen=True, slots=True)
class FieldId:
    """The id of a column or nested field. The children of arrays are `element`, those of maps `key` and `value`."""

    id: int
    children: dict[str, FieldId] = field(default_factory=dict)


def with_field_ids(schema: pa.Schema, ids: Mapping[str, FieldId]) -> pa.Schema:
    """Return the schema with which a `ParquetWriter` writes these ids. The tables that it writes need no change."""
    return pa.schema(_with_ids(schema, ids))


def _with_ids(fields: Iterable[pa.Field], ids: Mapping[str, FieldId]) -> list[pa.Field]:
    return [_with_id(field, ids[field.name]) if field.name in ids else field for field in fields]


def _with_id(field_: pa.Field, id_: FieldId) -> pa.Field:
    type_, children = field_.type, id_.children
    if pa.types.is_struct(type_):
        type_ = pa.struct(_with_ids(type_, children))
    elif pa.types.is_map(type_):
        key, value = type_.key_field.with_name("key"), type_.item_field.with_name("value")
        type_ = pa.map_(*_with_ids((key, value), children), keys_sorted=type_.keys_sorted)
    elif pa.types.is_list(type_):
        type_ = pa.list_(*_with_ids([type_.value_field.with_name("element")], children))
    elif pa.types.is_large_list(type_):
        type_ = pa.large_list(*_with_ids([type_.value_field.with_name("element")], children))
    return field_.with_type(type_).with_metadata({_KEY: str(id_.id).encode()})


def read_field_ids(fields: Iterable[pa.Field]) -> dict[str, FieldId]:
    """Return the ids in the Arrow schema of a Parquet file. The result does not have fields without ids."""
    return {
        field.name: FieldId(int(field.metadata[_KEY]), read_field_ids(_children(field.type)))
        for field in fields
        if _KEY in (field.metadata or {})
    }


def _children(type_: pa.DataType) -> list[pa.Field]:
    if pa.types.is_map(type_):
        return [type_.key_field, type_.item_field]
    return [type_.field(number) for number in range(type_.num_fields)]
