"""Builds the Spark select that parses the records of all topics in a micro-batch into typed columns.

Topics with the same `RecordLayout` form a topic group. Each topic group has one struct column. This column is null in
the rows of other topics. One select contains the struct columns of several topic groups, so Spark does not read and
parse the micro-batch separately for each table. `from_json` runs in permissive mode: if a payload does not match the
types of the struct column, the micro-batch does not fail. The field BAD_PAYLOAD of the struct column then contains the
unparsed payload.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace_connectors.lakehouse.arrow_rows import BAD_PAYLOAD
from headrace_connectors.lakehouse.bad_records import OUT_OF_RANGE
from headrace_connectors.lakehouse.column_types import (
    ColumnType,
    TableColumn,
    needs_no_conversion,
    struct_json,
    wire_type,
)
from headrace_connectors.lakehouse.layouts import LayoutVariant, RecordLayout

KAFKA_COLUMNS = ("topic", "partition", "offset", "timestamp", "schema_id", "schema", "error")

_MILLISECONDS_MAX = (2**63 - 1) // 1000  # a Spark timestamp counts microseconds in 64 bits


@dataclass(frozen=True, slots=True)
class TopicGroup:
    """Topics whose payloads are parsed into the same columns.

    `variants` has one record layout for each set of column defaults.
    """

    name: str
    variants: tuple[LayoutVariant, ...]
    topics: tuple[str, ...]
    decimals_numeric: bool

    def parsed_names(self) -> list[str]:
        """Return the names of the Spark columns with the parsed payloads: one column for each element of `variants`."""
        return [f"{self.name}_{number}" for number in range(len(self.variants))]


def select_groups(rows: DataFrame, groups: Sequence[TopicGroup]) -> DataFrame:
    """Select the Kafka columns and one struct column per topic group."""
    kafka = [F.col(name) for name in KAFKA_COLUMNS]
    # Use two selects, so that Spark parses each payload once and then reads fields of the struct. With one select,
    # Spark would parse the payload once per field.
    parsed = [
        _parsed(group, variant).alias(name)
        for group in groups
        for name, variant in zip(group.parsed_names(), group.variants, strict=True)
    ]
    return rows.select(*kafka, *parsed).select(*kafka, *(_typed_group(group).alias(group.name) for group in groups))


def _parsed(group: TopicGroup, variant: LayoutVariant) -> SparkColumn:
    layout = variant.layout
    payload = F.col("payload")
    condition = payload.isNotNull() & F.col("topic").isin(list(group.topics))
    if layout.encoded:
        condition = condition & F.col("schema_id").isin(sorted(variant.schema_ids))
    if layout.text:
        return F.when(condition, F.struct(F.lit(None).cast("string").alias(BAD_PAYLOAD), payload.alias("value")))
    if layout.wrapped:
        payload = F.concat(F.lit('{"value":'), payload, F.lit("}"))
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": BAD_PAYLOAD}
    return F.when(condition, F.from_json(payload, _wire_struct(layout, group.decimals_numeric), options))


def _wire_struct(layout: RecordLayout, numeric: bool) -> StructType:
    fields = [
        (column.name, wire_type(column.type, encoded=layout.encoded, decimals_numeric=numeric))
        for column in layout.columns
    ]
    return StructType.fromJson(struct_json([(BAD_PAYLOAD, "string"), *fields]))


def _typed_group(group: TopicGroup) -> SparkColumn:
    typed = [
        _typed_variant(F.col(name), variant.layout, group.decimals_numeric)
        for name, variant in zip(group.parsed_names(), group.variants, strict=True)
    ]
    return F.coalesce(*typed) if len(typed) > 1 else typed[0]


def _typed_variant(struct: SparkColumn, layout: RecordLayout, numeric: bool) -> SparkColumn:
    if not layout.encoded or all(
        column.default is None and needs_no_conversion(column.type) for column in layout.columns
    ):
        return struct
    fields = [_typed_field(struct, column, numeric).alias(column.name) for column in layout.columns]
    bad = [struct.getField(BAD_PAYLOAD), *_out_of_range(struct, layout.columns, numeric)]
    return F.when(struct.isNotNull(), F.struct(F.coalesce(*bad).alias(BAD_PAYLOAD), *fields))


def _out_of_range(struct: SparkColumn, columns: Sequence[TableColumn], numeric: bool) -> list[SparkColumn]:
    """Return a Spark expression for each column that may contain values that are out of range.

    The expression's value is an error message, or null if the parsed value fits the column's type. If `numeric` is
    true, decimals were parsed as numbers and are not checked.
    """
    texts = []
    for column in columns:
        if column.type.kind == "timestamp" or (column.type.kind == "decimal" and not numeric):
            wire = struct.getField(column.name)
            out_of_range = wire.isNotNull() & _typed(wire, column.type, numeric).isNull()
            text = f"{OUT_OF_RANGE}field {column.name}: the value does not fit {column.type}"
            texts.append(F.when(out_of_range, F.lit(text)))
    return texts


def _typed_field(struct: SparkColumn, column: TableColumn, numeric: bool) -> SparkColumn:
    wire = struct.getField(column.name)
    if column.default is not None:
        wire_json = wire_type(column.type, encoded=True, decimals_numeric=numeric)
        parsed = F.from_json(F.lit(f'{{"d":{column.default}}}'), StructType.fromJson(struct_json([("d", wire_json)])))
        wire = F.coalesce(wire, parsed.getField("d"))
    return _typed(wire, column.type, numeric)


def _typed(wire: SparkColumn, type_: ColumnType, numeric: bool) -> SparkColumn:
    """Convert a parsed value from JsonConverter's encoding to the Spark type of its column.

    If `numeric` is true, decimals have been parsed as numbers and are not converted.
    """
    if needs_no_conversion(type_) or (type_.kind == "decimal" and numeric):
        return wire
    if type_.kind == "date":
        return F.date_from_unix_date(wire)
    if type_.kind == "timestamp":
        return F.when(F.abs(wire) <= _MILLISECONDS_MAX, F.timestamp_millis(wire))
    if type_.kind == "decimal":
        return _decimal(wire, type_)
    if type_.kind == "struct":
        fields = [_typed_field(wire, field, numeric).alias(field.name) for field in type_.fields]
        return F.when(wire.isNotNull(), F.struct(*fields))
    if type_.kind == "array" and type_.element is not None:
        element = type_.element
        return F.transform(wire, lambda item: _typed(item, element, numeric))
    return _typed_map(wire, type_, numeric)


def _typed_map(wire: SparkColumn, type_: ColumnType, numeric: bool) -> SparkColumn:
    key_type, value_type = type_.key, type_.element
    assert key_type is not None
    assert value_type is not None
    if key_type.kind == "string":
        return F.transform_values(wire, lambda _, value: _typed(value, value_type, numeric))

    def entry(pair: SparkColumn) -> SparkColumn:
        key = _typed(_from_text(pair.getItem(0), key_type, numeric), key_type, numeric)
        value = _typed(_from_text(pair.getItem(1), value_type, numeric), value_type, numeric)
        return F.struct(key.alias("key"), value.alias("value"))

    return F.map_from_entries(F.transform(wire, entry))


def _from_text(text: SparkColumn, type_: ColumnType, numeric: bool) -> SparkColumn:
    """Parse a key or value of a map whose keys are not strings. `from_json` returned this key or value as `text`.

    Decimals in `text` are numbers if `numeric` is true, otherwise base64.
    """
    wire: Any = wire_type(type_, encoded=True, decimals_numeric=numeric)
    if wire == "string":
        return text
    if wire == "binary":
        return F.unbase64(text)
    if isinstance(wire, str):
        return text.cast(wire)
    return F.from_json(
        F.concat(F.lit('{"v":'), text, F.lit("}")), StructType.fromJson(struct_json([("v", wire)]))
    ).getField("v")


def _decimal(wire: SparkColumn, type_: ColumnType) -> SparkColumn:
    """Convert Connect's unscaled two's-complement bytes to a decimal, or to null if it has too many digits."""
    digits = F.hex(wire)
    fill = F.when(F.substring(digits, 1, 1) >= "8", F.lit("F")).otherwise(F.lit("0"))
    short = F.conv(F.lpad(digits, 16, fill), 16, -10)
    padded = F.lpad(digits, 32, fill)
    high = F.conv(F.substring(padded, 1, 16), 16, -10).cast("decimal(20,0)")
    low = F.conv(F.substring(padded, 17, 16), 16, 10).cast("decimal(20,0)")
    long = F.try_add(F.try_multiply(high, F.lit(str(2**64)).cast("decimal(20,0)")), low).cast("string")
    length = F.length(wire)
    unscaled = F.when(length.between(1, 8), short).when(length.between(9, 16), long)
    return F.concat(unscaled, F.lit(f"E-{type_.scale}")).try_cast(str(type_))
