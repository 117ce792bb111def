"""Tests of the syntax of partition specifications and sort orders, and of the check against a table's columns."""

from __future__ import annotations

import pytest

from headrace_connectors.lakehouse.ddl import parse_ddl
from headrace_connectors.lakehouse.files.layout import FileLayout, PartitionField, SortField
from headrace_connectors.lakehouse.files.layout_text import (
    LayoutError,
    layout_problems,
    parse_partition_spec,
    parse_sort_order,
)

COLUMNS = parse_ddl(
    "id BIGINT, ts TIMESTAMP, day DATE, region STRING, price DOUBLE, paid BOOLEAN, body BINARY, cost DECIMAL(9,2),"
    " address STRUCT<city: STRING>, tags ARRAY<STRING>, ts_hour INT"
)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("", ()),
        ("region", (PartitionField("region"),)),
        ("day(ts), bucket(16, id), region", (("ts", "day"), ("id", "bucket", 16), ("region",))),
        (" DAYS( ts ) ,\n truncate(name,4) ", (("ts", "day"), ("name", "truncate", 4))),
        ("identity(region),year(a),months(b),hours(c)", (("region",), ("a", "year"), ("b", "month"), ("c", "hour"))),
        ("bucket(16, `16`), `a,``b(`", (("16", "bucket", 16), ("a,`b(",))),
        ("day", (("day",),)),
        ("größe", (("größe",),)),
    ],
)
def test_partition_specification_is_parsed_into_fields(text: str, fields: tuple[object, ...]) -> None:
    expected = tuple(field if isinstance(field, PartitionField) else PartitionField(*field) for field in fields)  # type: ignore[misc]
    assert parse_partition_spec(text) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("day(ts", "parentheses do not match"),
        ("day(ts))", "parentheses do not match"),
        ("day((ts))", "parentheses do not match"),
        ("a,,b", "a field is empty"),
        ("a,", "a field is empty"),
        ("week(ts)", "unknown transform 'week' in 'week ( ts )'; the transforms are identity, year, month"),
        ("bucket(id)", "must have a number and a column; write bucket(16, column)"),
        ("bucket(16, 17)", "must have a number and a column"),
        ("bucket(0, id)", "the number must be 1 to 2147483647"),
        ("bucket(-1, id)", "must have a number and a column"),
        ("day(ts, 3)", "must have one argument; write day(column)"),
        ("day()", "is not a partition field"),
        ("day(a b)", "is malformed"),
        ("a b", "is not a partition field; write a column, or a transform such as day(column)"),
        ("`a", "a backquote is not closed"),
        ("``", "a name is empty"),
    ],
)
def test_malformed_partition_specification_is_refused_with_the_reason(text: str, problem: str) -> None:
    with pytest.raises(LayoutError) as error:
        parse_partition_spec(text)
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("", ()),
        ("ts", (SortField("ts", False, True),)),
        ("ts desc nulls last, id", (SortField("ts", True, False), SortField("id", False, True))),
        ("ts DESC", (SortField("ts", True, False),)),
        ("ts desc nulls first", (SortField("ts", True, True),)),
        ("`a b` nulls last", (SortField("a b", False, False),)),
        ("id asc nulls last", (SortField("id", False, False),)),
    ],
)
def test_sort_order_has_the_default_null_order_of_iceberg(text: str, fields: tuple[SortField, ...]) -> None:
    assert parse_sort_order(text) == fields


@pytest.mark.parametrize("text", ["ts up", "ts desc asc", "ts nulls", "ts nulls last desc", "day(ts)", ", ts"])
def test_malformed_sort_order_is_refused(text: str) -> None:
    with pytest.raises(LayoutError):
        parse_sort_order(text)


@pytest.mark.parametrize(
    "spec",
    [
        "day(ts), bucket(16, id), region",
        "month(ts), day",
        "year(day), truncate(3, region), truncate(2, cost), truncate(8, body), truncate(10, id), paid",
        "bucket(4, ts), bucket(4, day), bucket(4, region), bucket(4, body), bucket(4, cost)",
        "day(ts), bucket(4, ts)",
    ],
)
def test_layout_with_types_that_iceberg_permits_has_no_errors(spec: str) -> None:
    layout = FileLayout(parse_partition_spec(spec), parse_sort_order("ts desc, id, price, body"))
    assert layout_problems(layout, COLUMNS) == []


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("city", "cannot partition by column city, because the table has no such column; the columns are id, ts, day"),
        ("Region", "because the table has no such column; did you mean region?"),
        (
            "day(region)",
            "cannot partition by day(region): column region has the type string, and day needs one of date, timestamp",
        ),
        ("hour(day)", "column day has the type date, and hour needs one of timestamp"),
        ("bucket(4, address)", "column address has the type struct<city:string>"),
        ("bucket(4, price)", "column price has the type double"),
        ("price", "column price has the type double, and identity needs one of int8"),
        ("body", "column body has the type binary"),
        ("truncate(4, paid)", "column paid has the type boolean"),
        ("tags", "column tags has the type array<string>"),
        ("day(ts), month(ts)", "the partition fields of column ts repeat each other; keep one of them"),
        ("region, region", "the partition fields of column region repeat each other"),
        ("hour(ts)", "cannot partition by hour(ts): the table already has a column ts_hour"),
    ],
)
def test_impossible_partition_specification_is_reported_with_the_column_and_its_type(spec: str, problem: str) -> None:
    errors = layout_problems(FileLayout(parse_partition_spec(spec)), COLUMNS)
    assert len(errors) == 1
    assert problem in errors[0]


def test_partition_columns_must_not_be_all_columns_of_the_table() -> None:
    columns = parse_ddl("a INT, b STRING")
    assert layout_problems(FileLayout(parse_partition_spec("a")), columns) == []
    assert layout_problems(FileLayout(parse_partition_spec("a, bucket(4, b)")), columns) == []
    assert "at least one column must not be a partition column" in " ".join(
        layout_problems(FileLayout(parse_partition_spec("b, a")), columns)
    )


@pytest.mark.parametrize(
    ("order", "problem"),
    [
        ("tags", "cannot sort by column tags, because it has the type array<string>"),
        ("address desc", "cannot sort by column address"),
        ("nothing", "cannot sort by column nothing, because the table has no such column"),
        ("id, id desc", "column id is twice in the sort order"),
    ],
)
def test_impossible_sort_order_is_reported(order: str, problem: str) -> None:
    errors = layout_problems(FileLayout((), parse_sort_order(order)), COLUMNS)
    assert len(errors) == 1
    assert problem in errors[0]
