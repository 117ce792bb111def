"""Tests of partition values, which must equal Iceberg's, and of the split of rows by partition."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pyarrow")
import pyarrow as pa

from headrace_connectors.lakehouse.files import partitioning
from headrace_connectors.lakehouse.files.layout import PartitionField
from headrace_connectors.lakehouse.files.layout_text import parse_partition_spec
from headrace_connectors.lakehouse.files.partition_paths import partition_directory
from headrace_connectors.lakehouse.files.partitioning import (
    partition_values,
    rows_outside_calendar,
    split_by_partition,
)

UTC = dt.UTC
TIMESTAMP = pa.timestamp("us", "UTC")
BUCKETS = 2**31 - 1
"""With so many buckets, the bucket is the hash without its sign bit."""


def values(array: Any, transform: str, argument: int = 0) -> list[Any]:
    found: list[Any] = partition_values(array, PartitionField("x", transform, argument)).to_pylist()
    return found


@pytest.mark.parametrize(
    ("value", "type_", "hash_"),
    [
        (34, pa.int32(), 2017239379),
        (34, pa.int8(), 2017239379),
        (34, pa.int64(), 2017239379),
        (Decimal("14.20"), pa.decimal128(9, 2), -500754589),
        (dt.date(2017, 11, 16), pa.date32(), -653330422),
        (dt.datetime(2017, 11, 16, 22, 31, 8, tzinfo=UTC), TIMESTAMP, -2047944441),
        (dt.datetime(2017, 11, 16, 22, 31, 8, tzinfo=UTC), pa.timestamp("ms", "UTC"), -2047944441),
        (dt.datetime(2017, 11, 16, 22, 31, 8, 1, tzinfo=UTC), TIMESTAMP, -1207196810),
        ("iceberg", pa.string(), 1210000089),
        (b"\x00\x01\x02\x03", pa.binary(), -188683207),
    ],
)
def test_bucket_hash_equals_the_test_values_of_icebergs_specification(value: Any, type_: Any, hash_: int) -> None:
    array = pa.array([None, value], type_)
    assert values(array, "bucket", BUCKETS) == [None, (hash_ & BUCKETS) % BUCKETS]
    assert values(array.slice(1), "bucket", 16) == [(hash_ & BUCKETS) % 16]


def random_arrays() -> list[tuple[Any, str]]:
    """Return arrays with random values and nulls, each a slice, and the name of their type in pyiceberg."""
    generator = random.Random(40)
    texts = ["".join(generator.choices("aé€😀", k=generator.randrange(20))) for _ in range(300)]
    texts += ["".join(generator.choices("aé€😀", k=generator.randrange(2_000))) for _ in range(10)]
    decimals = [
        Decimal(generator.randrange(-(10**digits), 10**digits)).scaleb(-4) for digits in range(1, 28) for _ in range(10)
    ]
    times = [generator.randrange(-62135596800000000, 253402300800000000) for _ in range(300)]
    timestamps = pa.array([None, *times, -1, 0, -86_400_000_000], pa.int64()).cast(TIMESTAMP)
    return [
        (pa.array([None, *(generator.randrange(-(2**31), 2**31) for _ in range(300)), 0, -1], pa.int32()), "integer"),
        (pa.array([None, *(generator.randrange(-(2**62), 2**63) for _ in range(300)), 0, -1], pa.int64()), "long"),
        (pa.array([None, *texts], pa.string()), "string"),
        (pa.array([None, *texts], pa.large_string()), "string"),
        (pa.array([None, *(text.encode() for text in texts), b""], pa.binary()), "binary"),
        (pa.array([None, *decimals, Decimal("0.0128"), Decimal("-0.0128")], pa.decimal128(38, 4)), "decimal"),
        (timestamps, "timestamptz"),
        (timestamps.cast(pa.timestamp("us")), "timestamp"),
        (timestamps.cast(pa.date32()), "date"),
    ]


def test_partition_values_equal_pyicebergs_for_random_values() -> None:
    transforms = pytest.importorskip("pyiceberg.transforms")
    types = pytest.importorskip("pyiceberg.types")
    compared = 0
    for array, name in random_arrays():
        type_ = types.DecimalType(38, 4) if name == "decimal" else getattr(types, f"{name.capitalize()}Type")()
        candidates = [
            ("bucket", 97, transforms.BucketTransform(97)),
            ("truncate", 7, transforms.TruncateTransform(7)),
            ("year", 0, transforms.YearTransform()),
            ("month", 0, transforms.MonthTransform()),
            ("day", 0, transforms.DayTransform()),
            ("hour", 0, transforms.HourTransform()),
        ]
        for transform, argument, theirs in candidates:
            if theirs.can_transform(type_):
                expected = [theirs.transform(type_)(value) for value in iceberg_values(array)]
                found = partition_values(array, PartitionField("x", transform, argument))
                assert iceberg_values(found.slice(3)) == expected[3:], (name, transform)
                compared += 1
    assert compared == 9 + 6 + 4 * 3 - 1  # a date has no hour


def iceberg_values(array: Any) -> list[Any]:
    """Return the values as pyiceberg stores them: days and microseconds instead of dates and timestamps."""
    if pa.types.is_date(array.type):
        array = array.cast(pa.int32())
    elif pa.types.is_timestamp(array.type):
        array = array.cast(pa.int64())
    found: list[Any] = array.to_pylist()
    return found


def test_truncated_integer_near_the_minimum_wraps_as_in_java() -> None:
    assert values(pa.array([-(2**31), 7, -7], pa.int32()), "truncate", 10) == [2147483646, 0, -10]


ROWS = pa.record_batch(
    {
        "id": pa.array(range(8), pa.int64()),
        "ts": pa.array([0, 86_400_000_000, None, -1, 0, 1, 86_400_000_000, 5], pa.int64()).cast(TIMESTAMP),
        "region": pa.array(["a", "b", "a", None, "", "a", "b", "a"]),
    }
)


def split(spec: str, rows: Any = ROWS) -> dict[tuple[Any, ...], list[int]]:
    parts = list(split_by_partition(rows, parse_partition_spec(spec)))
    assert len({partition for partition, _ in parts}) == len(parts)
    return {partition: part["id"].to_pylist() for partition, part in parts}


def test_rows_are_split_by_partition_and_keep_their_order() -> None:
    first, second, before = dt.date(1970, 1, 1), dt.date(1970, 1, 2), dt.date(1969, 12, 31)
    assert split("day(ts)") == {(first,): [0, 4, 5, 7], (second,): [1, 6], (None,): [2], (before,): [3]}
    assert split("region, day(ts)") == {
        ("a", first): [0, 5, 7],
        ("b", second): [1, 6],
        ("a", None): [2],
        (None, before): [3],
        ("", first): [4],
    }
    assert split("day(ts), region", ROWS.slice(1, 5)) == {
        (second, "b"): [1],
        (None, "a"): [2],
        (before, None): [3],
        (first, ""): [4],
        (first, "a"): [5],
    }
    assert split("") == {(): list(range(8))}
    assert split("day(ts)", ROWS.slice(0, 0)) == {}
    assert split("year(ts)", ROWS.slice(4)) == {(0,): [4, 5, 6, 7]}


@pytest.mark.parametrize("radix_groups_max", [1 << 16, 1_000])
def test_many_partitions_contain_every_row_once(radix_groups_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioning, "_RADIX_GROUPS_MAX", radix_groups_max)
    rows = pa.record_batch({"id": pa.array(range(3_000)), "k": pa.array([f"k{n % 1_500}" for n in range(3_000)])})
    parts = split("k, truncate(2000, id)", rows)
    assert len(parts) == 2_500
    assert sorted(number for numbers in parts.values() for number in numbers) == list(range(3_000))


def test_partitions_of_a_batch_share_no_memory_with_it() -> None:
    rows = pa.record_batch({"id": pa.array(range(100_000)), "k": pa.array([n == 7 for n in range(100_000)])})
    small = dict(split_by_partition(rows, parse_partition_spec("k")))[(True,)]
    assert small.get_total_buffer_size() < 1_000


def test_rows_with_years_that_python_dates_do_not_have_are_found() -> None:
    days = pa.array([-719_162, -719_163, 2_932_896, 2_932_897, None], pa.int32()).cast(pa.date32())
    rows = pa.record_batch({"d": days, "ts": days.cast(TIMESTAMP)})
    for spec in ("d", "day(d)", "day(ts)", "ts", "hour(ts)"):
        assert rows_outside_calendar(rows, parse_partition_spec(spec)) == [1, 3]
    assert rows_outside_calendar(rows, parse_partition_spec("year(ts), bucket(4, d)")) == []


@pytest.mark.parametrize(
    ("spec", "partition", "directory"),
    [
        ("", (), ""),
        ("region, day(ts)", ("Perth", dt.date(2026, 11, 28)), "region=Perth/ts_day=2026-11-28/"),
        ("region", (None,), "region=__HIVE_DEFAULT_PARTITION__/"),
        ("region", ("",), "region=__HIVE_DEFAULT_PARTITION__/"),
        ("region", ("a b/../c%é=",), "region=a%20b%2F..%2Fc%25%C3%A9%3D/"),
        ("`a/b`", (7,), "a%2Fb=7/"),
        ("year(ts), paid", (56, True), "ts_year=2026/paid=true/"),
        ("month(ts)", (-1,), "ts_month=1969-12/"),
        ("hour(ts)", (-1,), "ts_hour=1969-12-31-23/"),
        ("bucket(16, id)", (3,), "id_bucket=3/"),
        ("ts", (dt.datetime(2026, 11, 28, 1, tzinfo=UTC),), "ts=2026-11-28T01%3A00%3A00%2B00%3A00/"),
        ("truncate(2, body)", (b"\x00\xff",), "body_truncate=00ff/"),
    ],
)
def test_partition_directory_is_readable_and_safe(spec: str, partition: tuple[Any, ...], directory: str) -> None:
    assert partition_directory(parse_partition_spec(spec), partition) == directory


def test_long_partition_values_have_short_and_different_directories() -> None:
    fields = parse_partition_spec("region")
    names = {partition_directory(fields, ("é" * 300 + end,)) for end in ("a", "b")}
    assert len(names) == 2
    assert all(len(name) < 255 for name in names)
    assert all(name.rpartition("-")[0].endswith(("%C3", "%A9")) for name in names)
