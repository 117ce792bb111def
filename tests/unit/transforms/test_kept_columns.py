"""Tests that transforms process columns without converting them to rows, and that they find bad records fast."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.data.batch import SinkBatch
from headrace.data.columns import Column, Columns, Shared
from headrace.data.schema import (
    INT64_SCHEMA,
    OPTIONAL_INT64_SCHEMA,
    OPTIONAL_STRING_SCHEMA,
    STRING_SCHEMA,
    Schema,
    struct,
)
from support.transforms import batches, make_plugin, transform_errors

NESTED = struct([("x", INT64_SCHEMA), ("y", OPTIONAL_STRING_SCHEMA)], optional=True)
ROW = struct(
    [
        ("id", INT64_SCHEMA),
        ("at", STRING_SCHEMA),
        ("name", OPTIONAL_STRING_SCHEMA.replace(default="unknown")),
        ("count", OPTIONAL_INT64_SCHEMA),
        ("in", NESTED),
    ]
)
COUNT = 40

TRANSFORMS: list[tuple[str, dict[str, str]]] = [
    ("InsertField$Value", {"topic.field": "t", "offset.field": "o", "timestamp.field": "when"}),
    ("ReplaceField$Value", {"exclude": "count", "renames": "id:key"}),
    ("MaskField$Value", {"fields": "name,count"}),
    ("MaskField$Value", {"fields": "id", "replacement": "7"}),
    ("Cast$Value", {"spec": "id:string,count:int32"}),
    ("TimestampConverter$Value", {"field": "at", "format": "yyyy-MM-dd HH:mm:ss", "target.type": "Timestamp"}),
    ("ValueToKey", {"fields": "id,name"}),
    ("ValueToKey", {"fields": "in.y", "field.syntax.version": "V2"}),
    ("HeaderFrom$Value", {"fields": "id,name", "headers": "a,b", "operation": "move"}),
    ("HeaderFrom$Value", {"fields": "id", "headers": "a", "operation": "copy"}),
    ("Flatten$Value", {}),
    ("ExtractTopic$Value", {"field": "at"}),
    ("MessageTimestampRouter", {"message.timestamp.keys": "at", "message.timestamp.format": "yyyy-MM-dd HH:mm:ss"}),
    ("TimestampRouter", {}),
    ("RegexRouter", {"regex": "(.*)", "replacement": "$1-x"}),
    ("InsertHeader", {"header": "h", "value.literal": "1"}),
    ("DropHeaders", {"headers": "h"}),
    ("TombstoneHandler", {"behavior": "fail"}),
]
STRUCTS_ONLY: list[tuple[str, dict[str, str]]] = [("SetSchemaMetadata$Value", {"schema.name": "n"})]
WITHOUT_COLUMNS: list[tuple[str, dict[str, str]]] = [
    ("ExtractField$Value", {"field": "name"}),
    ("ExtractField$Value", {"field": "in.x", "field.syntax.version": "V2"}),
    ("Drop$Value", {}),
]


def _batch(schema: Schema | None) -> SinkBatch:
    nested: Any = [(index, None) for index in range(COUNT)]
    if schema is None:
        nested = [{"x": index, "y": None} for index in range(COUNT)]
    columns: list[Column] = [
        range(COUNT),
        [f"2026-01-{index % 28 + 1:02} 10:00:00" for index in range(COUNT)],
        [None if index % 5 == 0 else "a" for index in range(COUNT)],
        Shared(None),
        nested,
    ]
    held = Columns(["id", "at", "name", "count", "in"], columns, COUNT, is_maps=schema is None)
    return SinkBatch("test", held, value_schema=schema, partition=0, offsets=range(COUNT), timestamps=1)


@pytest.mark.parametrize(
    ("name", "props", "schema"),
    [
        *[(*case, ROW) for case in (*TRANSFORMS, *STRUCTS_ONLY)],
        *[(*case, None) for case in TRANSFORMS],
    ],
)
def test_transform_returns_columns_without_creating_rows(
    name: str, props: dict[str, str], schema: Schema | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, rows = _batch(schema), _batch(schema)
    rows = rows.replace(values=rows.values)
    transform = make_plugin(name, **props)
    expected = [each.values for each in batches(transform.apply_batch(rows))]
    with monkeypatch.context() as patch:
        created: list[Columns] = []
        make_items = Columns._make_items
        patch.setattr(Columns, "_make_items", lambda columns: created.append(columns) or make_items(columns))
        results = batches(transform.apply_batch(batch))
    assert all(len(columns.names) < len(batch.compact.names) for columns in created)  # only keys and single fields
    assert all(isinstance(result.compact, Columns) for result in results)
    assert [result.values for result in results] == expected


@pytest.mark.parametrize("schema", [ROW, None])
@pytest.mark.parametrize(("name", "props"), WITHOUT_COLUMNS)
def test_transform_that_returns_no_structs_does_not_create_rows(
    name: str, props: dict[str, str], schema: Schema | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, rows = _batch(schema), _batch(schema)
    transform = make_plugin(name, **props)
    expected = transform.apply_batch(rows.replace(values=rows.values)).values
    monkeypatch.delattr(Columns, "_make_items")
    assert transform.apply_batch(batch).values == expected


def test_flatten_of_maps_with_different_nested_keys_returns_maps() -> None:
    held = Columns(["a"], [[{"b": 1}, {"c": {"d": 2}}, {}]], 3, is_maps=True)
    batch = SinkBatch("test", held, partition=0, offsets=range(3))
    assert make_plugin("Flatten$Value").apply_batch(batch).values == [{"a.b": 1}, {"a.c.d": 2}, {}]


@pytest.mark.parametrize("bad", [[0], [1, 2_000], [3_999], list(range(100, 150))])
def test_search_for_bad_records_calls_the_transform_only_for_parts_with_bad_records(
    bad: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 4_000
    texts = ["x" if index in bad else "1" for index in range(count)]
    held = Columns(["id", "v"], [range(count), texts], count, is_maps=True)
    cast = make_plugin("Cast$Value", spec="v:int32")
    calls = []
    change_batch = cast.change_batch
    monkeypatch.setattr(cast, "change_batch", lambda batch: calls.append(len(batch)) or change_batch(batch))
    errors = transform_errors(cast, SinkBatch("test", held, partition=0, offsets=range(count)))
    assert list(errors) == bad
    assert len(calls) < 50 * len(bad)
    assert sum(calls) < count * 3
