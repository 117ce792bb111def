"""Converts columns, partition fields and sort fields between headrace and Iceberg.

Iceberg has no integers of 8 and 16 bits: `column_types.widened` returns the columns as a table stores them. A column
of Connect's Time is an int, as in the other formats. Timestamps are instants (`timestamptz`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

from pyiceberg.partitioning import PartitionField as IcebergPartitionField
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortOrder
from pyiceberg.table.sorting import SortField as IcebergSortField
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from headrace_connectors.lakehouse.column_types import ColumnType, SchemaError, TableColumn, quoted
from headrace_connectors.lakehouse.files.field_ids import FieldId
from headrace_connectors.lakehouse.files.layout import FileLayout, PartitionField, SortField

_FIRST_PARTITION_FIELD_ID = 1000
_PRIMITIVES: dict[str, PrimitiveType] = {
    "int8": IntegerType(),
    "int16": IntegerType(),
    "int32": IntegerType(),
    "time": IntegerType(),
    "int64": LongType(),
    "float32": FloatType(),
    "float64": DoubleType(),
    "boolean": BooleanType(),
    "string": StringType(),
    "bytes": BinaryType(),
    "date": DateType(),
    "timestamp": TimestamptzType(),
}
_KINDS = {type_: kind for kind, type_ in _PRIMITIVES.items() if kind not in ("int8", "int16", "time")}
_INTEGERS = ("int8", "int16", "time")
_SIMPLE_TRANSFORMS: dict[str, Transform[Any, Any]] = {
    "identity": IdentityTransform(),
    "year": YearTransform(),
    "month": MonthTransform(),
    "day": DayTransform(),
    "hour": HourTransform(),
}
_TRANSFORMS: dict[type[Any], str] = {
    **{type(transform): name for name, transform in _SIMPLE_TRANSFORMS.items()},
    BucketTransform: "bucket",
    TruncateTransform: "truncate",
}


# --- columns --------------------------------------------------------------------------------------------------------


def to_schema(columns: Sequence[TableColumn]) -> Schema:
    """Return the schema of a new table. All columns are optional. The catalog assigns other field ids."""
    ids = count(1)
    return Schema(*_to_fields(columns, ids))


def _to_fields(columns: Sequence[TableColumn], ids: count[int]) -> list[NestedField]:
    numbered = [(next(ids), column) for column in columns]
    return [NestedField(id_, column.name, _to_type(column.type, ids), required=False) for id_, column in numbered]


def _to_type(type_: ColumnType, ids: count[int]) -> IcebergType:
    if type_.kind == "decimal":
        return DecimalType(type_.precision, type_.scale)
    if type_.kind == "struct":
        return StructType(*_to_fields(type_.fields, ids))
    if type_.kind == "array":
        assert type_.element is not None
        return ListType(next(ids), _to_type(type_.element, ids), element_required=False)
    if type_.kind == "map":
        assert type_.key is not None
        assert type_.element is not None
        key_id, value_id = next(ids), next(ids)
        return MapType(key_id, _to_type(type_.key, ids), value_id, _to_type(type_.element, ids), value_required=False)
    return _PRIMITIVES[type_.kind]


def from_schema(schema: Schema) -> tuple[TableColumn, ...]:
    """Return the columns of a table. A required column is not `optional`.

    Raises SchemaError if nested values are required: the statistics of a file do not say whether it has nulls there.
    """
    return tuple(
        TableColumn(field.name, _from_type(field.field_type, quoted(field.name)), optional=not field.required)
        for field in schema.fields
    )


def _from_type(type_: IcebergType, path: str) -> ColumnType:
    if isinstance(type_, DecimalType):
        return ColumnType("decimal", precision=type_.precision, scale=type_.scale)
    if isinstance(type_, StructType):
        fields = []
        for field in type_.fields:
            name = f"{path}.{quoted(field.name)}"
            _check_optional(name, field.required)
            fields.append(TableColumn(field.name, _from_type(field.field_type, name)))
        return ColumnType("struct", fields=tuple(fields))
    if isinstance(type_, ListType):
        _check_optional(f"{path}[]", type_.element_required)
        return ColumnType("array", element=_from_type(type_.element_type, f"{path}[]"))
    if isinstance(type_, MapType):
        _check_optional(f"{path}.value", type_.value_required)
        key = _from_type(type_.key_type, f"{path}.key")
        return ColumnType("map", key=key, element=_from_type(type_.value_type, f"{path}.value"))
    kind = _KINDS.get(type_) if isinstance(type_, PrimitiveType) else None
    # No record has a column of another type, so the names of these types must not be those of other kinds.
    return ColumnType(kind or ("timestamp_ntz" if isinstance(type_, TimestampType) else f"iceberg {type_}"))


def field_ids(fields: Iterable[NestedField]) -> dict[str, FieldId]:
    """Return the ids that the executors write into Parquet files."""
    return {field.name: FieldId(field.field_id, _child_ids(field.field_type)) for field in fields}


def _child_ids(type_: IcebergType) -> dict[str, FieldId]:
    if isinstance(type_, StructType):
        return field_ids(type_.fields)
    if isinstance(type_, ListType):
        return field_ids([type_.element_field])
    return field_ids([type_.key_field, type_.value_field]) if isinstance(type_, MapType) else {}


def _check_optional(path: str, required: bool) -> None:
    if required:
        raise SchemaError(f"{path} is required, but this sink can write only optional values inside of columns")


# --- partitions and sort order --------------------------------------------------------------------------------------


def to_spec(schema: Schema, layout: FileLayout) -> PartitionSpec:
    """Return the partition spec of a new table. Raises SchemaError if the table cannot be partitioned in this way."""
    fields = []
    for number, field in enumerate(layout.partition_fields):
        column = _find_column(schema, field.column, "partition")
        transform = _to_transform(field)
        if not transform.can_transform(column.field_type):
            raise SchemaError(
                f"column {quoted(field.column)} ({column.field_type}) cannot be partitioned by {transform}"
            )
        if field.name != field.column and field.name in schema.column_names:
            raise SchemaError(f"the partition field {quoted(field.name)} has the name of a column")
        fields.append(
            IcebergPartitionField(
                source_id=column.field_id,
                field_id=_FIRST_PARTITION_FIELD_ID + number,
                transform=transform,
                name=field.name,
            )
        )
    return PartitionSpec(*fields)


def _find_column(schema: Schema, name: str, purpose: str) -> NestedField:
    for field in schema.fields:
        if field.name == name:
            return field
    raise SchemaError(f"the {purpose} column {quoted(name)} does not exist")


def _to_transform(field: PartitionField) -> Transform[Any, Any]:
    if field.transform == "bucket":
        return BucketTransform(field.argument)
    if field.transform == "truncate":
        return TruncateTransform(field.argument)
    return _SIMPLE_TRANSFORMS[field.transform]


def to_sort_order(schema: Schema, layout: FileLayout) -> SortOrder:
    """Return the sort order of a new table. Raises SchemaError if a column does not exist."""
    fields = [
        IcebergSortField(
            source_id=_find_column(schema, field.column, "sort").field_id,
            transform=IdentityTransform(),
            direction=SortDirection.DESC if field.descending else SortDirection.ASC,
            null_order=NullOrder.NULLS_FIRST if field.nulls_first else NullOrder.NULLS_LAST,
        )
        for field in layout.sort_fields
    ]
    return SortOrder(*fields) if fields else SortOrder(order_id=0)


def from_spec(spec: PartitionSpec, schema: Schema) -> tuple[PartitionField, ...]:
    """Return the partition fields of a table, without dropped fields (`void`).

    Raises SchemaError if the executors cannot compute a partition field.
    """
    return tuple(
        _from_partition_field(field, schema) for field in spec.fields if not isinstance(field.transform, VoidTransform)
    )


def _from_partition_field(field: IcebergPartitionField, schema: Schema) -> PartitionField:
    name = _TRANSFORMS.get(type(field.transform))
    column = schema.find_column_name(field.source_id)
    top_level = {top.field_id: top.name for top in schema.fields}
    if name is None or field.source_id not in top_level:
        raise SchemaError(
            f"the table is partitioned by {field.transform} of column {column}, which this sink does not support"
        )
    argument = 0
    if isinstance(field.transform, BucketTransform):
        argument = field.transform.num_buckets
    elif isinstance(field.transform, TruncateTransform):
        argument = field.transform.width
    return PartitionField(top_level[field.source_id], name, argument)


def from_sort_order(order: SortOrder, schema: Schema) -> tuple[SortField, ...]:
    """Return the leading fields of a table's sort order that are columns. Files are sorted by these only."""
    top_level = {top.field_id: top.name for top in schema.fields}
    fields = []
    for field in order.fields:
        if not isinstance(field.transform, IdentityTransform) or field.source_id not in top_level:
            break
        fields.append(
            SortField(
                top_level[field.source_id],
                descending=field.direction == SortDirection.DESC,
                nulls_first=field.null_order == NullOrder.NULLS_FIRST,
            )
        )
    return tuple(fields)
