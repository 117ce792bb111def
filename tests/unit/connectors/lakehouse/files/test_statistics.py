"""Tests of the statistics of Delta's log: they must never exclude a value that the file contains."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pyarrow")
import pyarrow as pa
import pyarrow.parquet as pq

from headrace_connectors.lakehouse.files.statistics import delta_statistics


def statistics(columns: dict[str, Any], row_group_size: int = 2, indexed_columns: int = 32) -> dict[str, Any]:
    table = pa.table(columns)
    collected: list[Any] = []
    with pq.ParquetWriter(pa.BufferOutputStream(), table.schema, metadata_collector=collected) as writer:
        writer.write_table(table, row_group_size=row_group_size)
    footer = pa.BufferOutputStream()
    collected[0].write_metadata_file(footer)
    text = delta_statistics(footer.getvalue().to_pybytes(), indexed_columns)
    found: dict[str, Any] = json.loads(text, parse_float=Decimal)
    return found


def bounds(array: Any) -> tuple[Any, Any, int]:
    found = statistics({"x": array})
    return found["minValues"].get("x"), found["maxValues"].get("x"), found["nullCount"]["x"]


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([3, None, 1, -5]), (-5, 3, 1)),
        (pa.array([3, 4, None, None]), (3, 4, 2)),
        (pa.array([None, None], pa.int64()), (None, None, 2)),
        (pa.array(["b", "é", "a"]), ("a", "é", 0)),
        (pa.array([1.5, -2.0, None]), (Decimal("-2.0"), Decimal("1.5"), 1)),
        (pa.array([float("nan"), 1.0]), (Decimal("1.0"), Decimal("1.0"), 0)),
        (pa.array([float("nan"), float("nan")]), (None, None, 0)),
        (pa.array([float("inf"), 1.0]), (Decimal("1.0"), None, 0)),
        (pa.array([True, None]), (None, None, 1)),
        (pa.array([b"x", None]), (None, None, 1)),
        (pa.array([20785, -1], pa.int32()).cast(pa.date32()), ("1969-12-31", "2026-11-28", 0)),
        (
            pa.array([1, -1], pa.int64()).cast(pa.timestamp("us", "UTC")),
            ("1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00.001Z", 0),
        ),
        (
            pa.array([0, 1_500_000], pa.int64()).cast(pa.timestamp("us")),
            ("1970-01-01T00:00:00.000", "1970-01-01T00:00:01.500", 0),
        ),
        (pa.array([0, 2**62], pa.int64()).cast(pa.timestamp("us", "UTC")), ("1970-01-01T00:00:00.000Z", None, 0)),
        (pa.array([-800_000], pa.int32()).cast(pa.date32()), (None, None, 0)),
    ],
)
def test_statistics_of_a_column(array: Any, expected: tuple[Any, Any, int]) -> None:
    assert bounds(array) == expected


@pytest.mark.parametrize("type_", [pa.decimal128(38, 2), pa.decimal128(18, 2), pa.decimal128(9, 2)])
def test_decimals_keep_all_digits(type_: Any) -> None:
    digits = "123456789012345678901234567890123456"[: type_.precision - 2]
    assert bounds(pa.array([Decimal(f"{digits}.01"), Decimal("-0.01")], type_)) == (
        Decimal("-0.01"), Decimal(f"{digits}.01"), 0
    )  # fmt: skip


def test_long_texts_are_truncated_and_the_maximum_stays_an_upper_bound() -> None:
    low, high, _ = bounds(pa.array(["a" * 40, "z" * 32 + "y"]))
    assert low == "a" * 32
    assert high == "z" * 32 + "\U0010ffff"
    assert high > "z" * 32 + "\uffff" * 8
    assert bounds(pa.array(["z" * 32 + "\U0010ffff" * 2])) == ("z" * 32, None, 0)


def test_text_without_statistics_in_the_footer_has_no_bounds() -> None:
    assert bounds(pa.array(["a" * 5000, "b"])) == (None, None, 0)


def test_fields_of_structs_have_statistics_and_lists_and_maps_have_none() -> None:
    found = statistics(
        {
            "s": pa.array([{"x": 1, "t": {"y": "a"}}, None, {"x": None, "t": None}]),
            "l": pa.array([[1], None, [2]]),
            "m": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
            'after "the" lists': pa.array([7, 8, 9]),
        }
    )
    assert found == {
        "numRecords": 3,
        "minValues": {"s": {"x": 1, "t": {"y": "a"}}, 'after "the" lists': 7},
        "maxValues": {"s": {"x": 1, "t": {"y": "a"}}, 'after "the" lists': 9},
        "nullCount": {"s": {"x": 2, "t": {"y": 2}}, 'after "the" lists': 0},
    }


def test_only_the_first_columns_have_statistics() -> None:
    columns = {f"c{number}": pa.array([number]) for number in range(40)}
    assert len(statistics(columns)["minValues"]) == 32
    assert list(statistics(columns, indexed_columns=2)["nullCount"]) == ["c0", "c1"]
    assert len(statistics(columns, indexed_columns=-1)["maxValues"]) == 40
