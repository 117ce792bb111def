"""Tests that the S3 sink does not overwrite existing objects, and writes only the records that they do not contain."""

from __future__ import annotations

import datetime as dt
import io
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow.parquet as pq
import pytest

from headrace.api.errors import ConnectError
from headrace.data.logical import DATE_SCHEMA, TIME_SCHEMA, TIMESTAMP_SCHEMA, decimal_schema
from headrace.data.records import SinkRecord
from headrace.data.schema import (
    BOOLEAN_SCHEMA,
    BYTES_SCHEMA,
    FLOAT32_SCHEMA,
    FLOAT64_SCHEMA,
    INT8_SCHEMA,
    INT32_SCHEMA,
    OPTIONAL_STRING_SCHEMA,
    STRING_SCHEMA,
    array,
    map_of,
    struct,
)
from headrace.data.struct import Struct
from headrace.testing import run_sink
from headrace_connectors.s3.sink import S3SinkConnector
from support import s3
from support.s3_faults import FaultyS3, S3Fault, faulty

pytestmark = pytest.mark.integration

ROW = struct([("id", INT32_SCHEMA), ("group", STRING_SCHEMA), ("text", STRING_SCHEMA)])
DAY_MS = "86400000"
FIRST = "topics/items/partition=0/items+0+0000000000.json"


@pytest.fixture(scope="module")
def server() -> Iterator[s3.S3Server]:
    with s3.running() as running:
        yield running


@pytest.fixture
def bucket(server: s3.S3Server) -> s3.S3Server:
    server.clear()
    return server


@pytest.fixture
def proxy(bucket: s3.S3Server) -> Iterator[FaultyS3]:
    with faulty(bucket) as running:
        yield running


def rows(count: int, *, text: str = "", groups: int = 1) -> list[SinkRecord]:
    values = [Struct(ROW, {"id": offset, "group": f"g{offset % groups}", "text": text}) for offset in range(count)]
    return [record(offset, value, ROW) for offset, value in enumerate(values)]


def record(offset: int, value: Any, schema: Any) -> SinkRecord:
    return SinkRecord(
        topic="items", partition=0, offset=offset, timestamp=offset, value=value, value_schema=schema,
        original_topic="items", original_partition=0, original_offset=offset,
    )  # fmt: skip


def put(server: s3.S3Server, records: Sequence[SinkRecord], flush_size: int, **props: str) -> Any:
    settings = server.props() | {"format.class": "JsonFormat", "flush.size": str(flush_size)}
    settings |= {"rotate.schedule.interval.ms": DAY_MS, "timezone": "UTC"}
    return run_sink(
        S3SinkConnector, settings | {key.replace("__", "."): value for key, value in props.items()}, records
    )


def ids(data: bytes, key: str = ".json") -> list[int]:
    if key.endswith(".parquet"):
        return [row["id"] for row in pq.read_table(io.BytesIO(data)).to_pylist()]
    return [json.loads(line)["id"] for line in data.splitlines()]


def counts(server: s3.S3Server) -> Counter[int]:
    """Return how many times each id is stored."""
    return Counter(number for key, data in server.objects().items() for number in ids(data, key))


@pytest.mark.parametrize("format_class", ["JsonFormat", "ParquetFormat"])
def test_records_of_an_existing_object_are_not_written_again(bucket: s3.S3Server, format_class: str) -> None:
    put(bucket, rows(3), 3, format__class=format_class)
    before = bucket.objects()
    run = put(bucket, rows(13), 5, format__class=format_class)
    after = bucket.objects()
    assert {key: after[key] for key in before} == before
    assert [ids(data, key) for key, data in sorted(after.items())] == [[0, 1, 2], [3, 4, 5, 6, 7], [8, 9, 10, 11, 12]]
    assert run.committed == {("items", 0): 13}


def test_existing_object_that_contains_later_records_is_kept_and_its_records_are_not_written_again(
    bucket: s3.S3Server,
) -> None:
    put(bucket, rows(7), 7)
    put(bucket, rows(10), 3)
    assert [ids(data) for _, data in sorted(bucket.objects().items())] == [[0, 1, 2, 3, 4, 5, 6], [7, 8, 9]]


def test_existing_object_is_overwritten_if_conditional_writes_are_disabled(bucket: s3.S3Server) -> None:
    put(bucket, rows(3), 3)
    put(bucket, rows(5), 5, enable__conditional__writes="false")
    assert [ids(data) for data in bucket.objects().values()] == [[0, 1, 2, 3, 4]]


def test_objects_of_many_directories_exist_and_the_task_reads_their_records_again_only_once(
    bucket: s3.S3Server, proxy: FaultyS3
) -> None:
    directories = {"partitioner__class": "FieldPartitioner", "partition__field__name": "group"}
    put(bucket, rows(60, groups=20), 60, **directories)
    before = bucket.objects()
    put(proxy.server, rows(120, groups=20), 90, **directories)
    after = bucket.objects()
    assert {key: after[key] for key in before} == before
    # Records 60 to 119 are fewer than flush.size.
    assert counts(bucket) == Counter(range(60))
    assert sum(method == "PUT" for method, _ in proxy.requests) == 20
    put(bucket, rows(200, groups=20), 70, **directories)
    assert counts(bucket) == Counter(range(200))


def test_suspended_worker_that_continues_does_not_replace_a_longer_object(bucket: s3.S3Server, proxy: FaultyS3) -> None:
    """The request of the first worker arrives after the second worker has stored more records in the same object."""

    def second_worker_writes(method: str, path: str) -> bool:
        if method == "PUT" and not bucket.objects():
            put(bucket, rows(8), 8)
        return False

    proxy.add(S3Fault(second_worker_writes, 1))
    put(proxy.server, rows(9), 3)
    assert [ids(data) for data in bucket.objects().values()] == [[0, 1, 2, 3, 4, 5, 6, 7]]


def test_object_whose_response_was_lost_is_written_once(bucket: s3.S3Server, proxy: FaultyS3) -> None:
    proxy.add(S3Fault(lambda method, path: method == "PUT", 1, cuts_response_at=0))
    put(proxy.server, rows(9), 3)
    assert proxy.applied == 1
    assert [ids(data) for _, data in sorted(bucket.objects().items())] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_multipart_upload_does_not_replace_an_existing_object_and_its_parts_are_removed(bucket: s3.S3Server) -> None:
    put(bucket, rows(2, text="x" * 2_000_000), 2)
    put(bucket, rows(10, text="x" * 2_000_000), 5, s3__part__size="5242880")
    assert [ids(data) for _, data in sorted(bucket.objects().items())] == [[0, 1], [2, 3, 4, 5, 6]]
    assert bucket.client().list_multipart_uploads(Bucket=s3.BUCKET).get("Uploads", []) == []


def test_conflict_between_two_uploads_of_an_object_leads_to_a_new_upload(bucket: s3.S3Server, proxy: FaultyS3) -> None:
    proxy.add(S3Fault(lambda method, _: method == "PUT", 1, status=409, code="ConditionalRequestConflict"))
    put(proxy.server, rows(3), 3)
    assert proxy.applied == 1
    assert [ids(data) for data in bucket.objects().values()] == [[0, 1, 2]]


def test_without_permission_to_read_only_the_first_record_of_an_existing_object_is_not_written_again(
    bucket: s3.S3Server, proxy: FaultyS3, caplog: pytest.LogCaptureFixture
) -> None:
    put(bucket, rows(3), 3)
    proxy.add(S3Fault(lambda method, path: method == "GET" and path.endswith(".json"), 9, 403, "AccessDenied"))
    put(proxy.server, rows(6), 5)
    assert [ids(data) for _, data in sorted(bucket.objects().items())] == [[0, 1, 2], [1, 2, 3, 4, 5]]
    assert "the records after the object's first record are written again" in caplog.text


def test_values_that_contain_the_separator_are_stored_once(bucket: s3.S3Server) -> None:
    records = [record(offset, b"a\nb%d" % offset, BYTES_SCHEMA) for offset in range(8)]
    put(bucket, records[:3], 3, format__class="ByteArrayFormat")
    put(bucket, records, 5, format__class="ByteArrayFormat")
    assert [data.count(b"a\n") for _, data in sorted(bucket.objects().items())] == [3, 5]


def test_compacted_records_inside_an_existing_object_do_not_hide_later_records(bucket: s3.S3Server) -> None:
    put(bucket, rows(10), 10)
    put(bucket, [each for each in rows(16) if each.offset not in (0, 3, 5, 9)], 6)
    assert counts(bucket) == Counter([*range(16), 1, 2, 4, 6, 7, 8])  # the first file has another first offset


def test_compacted_records_after_the_first_one_of_an_existing_object_cause_no_duplicates(bucket: s3.S3Server) -> None:
    put(bucket, rows(10), 10)
    put(bucket, [each for each in rows(16) if each.offset not in (3, 5, 9)], 6)
    assert counts(bucket) == Counter(range(16))


@pytest.mark.parametrize("groups", [1, 3])
def test_no_offset_inside_an_existing_object_is_committed(bucket: s3.S3Server, groups: int) -> None:
    directories = {"partitioner__class": "FieldPartitioner", "partition__field__name": "group"}
    put(bucket, rows(100, groups=groups), 100, **directories)
    run = put(bucket, rows(60, groups=groups), 30, **directories)
    assert run.committed in ({}, {("items", 0): 0})
    run = put(bucket, rows(160, groups=groups), 30, **directories)
    assert run.committed == {("items", 0): 160}
    assert counts(bucket) == Counter(range(160))


def test_records_that_the_open_file_rejects_do_not_hide_later_records(bucket: s3.S3Server) -> None:
    narrow = struct([("id", INT32_SCHEMA)])  # without a version
    records = [
        record(each.offset, Struct(narrow, {"id": each.offset}), narrow) if each.offset in (3, 5) else each
        for each in rows(20)
    ]
    options = {"schema__compatibility": "BACKWARD", "errors__tolerance": "all"}
    run = put(bucket, records[:12], 10, **options)
    assert [reported.offset for reported, _ in run.reported] == [3, 5]
    put(bucket, records, 8, **options)
    assert counts(bucket) == Counter(number for number in range(20) if number not in (3, 5))


@pytest.mark.parametrize("extractor", ["Wallclock", "Record"])
def test_records_after_the_first_one_are_written_again_if_the_clock_determines_directories(
    bucket: s3.S3Server, extractor: str
) -> None:
    props = {
        "partitioner__class": "TimeBasedPartitioner", "timestamp__extractor": extractor,
        "partition__duration__ms": "1000", "path__format": "'all'",
    }  # fmt: skip
    put(bucket, rows(3), 3, **props)
    put(bucket, rows(6), 5, **props)
    twice = {1, 2} if extractor == "Wallclock" else set()
    assert {number for number, count in counts(bucket).items() if count > 1} == twice


ALL_TYPES = struct(
    [
        ("i8", INT8_SCHEMA), ("f32", FLOAT32_SCHEMA), ("f64", FLOAT64_SCHEMA), ("flag", BOOLEAN_SCHEMA),
        ("bytes", BYTES_SCHEMA), ("price", decimal_schema(2)), ("day", DATE_SCHEMA), ("time", TIME_SCHEMA),
        ("at", TIMESTAMP_SCHEMA), ("list", array(OPTIONAL_STRING_SCHEMA)), ("map", map_of(STRING_SCHEMA, INT32_SCHEMA)),
        ("nested", struct([("a", OPTIONAL_STRING_SCHEMA)])),
    ]
)  # fmt: skip
ALL_VALUES = {
    "i8": -1, "f32": 0.1, "f64": float("nan"), "flag": True, "bytes": b"\x00\xff", "price": Decimal("1.10"),
    "day": dt.date(2026, 1, 2), "time": dt.time(3, 4, 5, 6000), "at": dt.datetime(2026, 1, 2, 3, 4, 5, 6000, dt.UTC),
    "list": ["a", None], "map": {"b": 2, "a": 1}, "nested": Struct(ALL_TYPES.field("nested").schema, {"a": None}),
}  # fmt: skip


@pytest.mark.parametrize("format_class", ["JsonFormat", "ParquetFormat"])
def test_records_of_all_types_are_equal_to_those_of_the_existing_object(bucket: s3.S3Server, format_class: str) -> None:
    records = [record(offset, Struct(ALL_TYPES, ALL_VALUES), ALL_TYPES) for offset in range(8)]
    put(bucket, records[:3], 3, format__class=format_class)
    run = put(bucket, records, 5, format__class=format_class)
    assert len(bucket.objects()) == 2
    assert run.committed == {("items", 0): 8}


@pytest.mark.parametrize("format_class", ["JsonFormat", "ParquetFormat", "ByteArrayFormat"])
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_records_of_a_topic_that_was_created_again_are_not_taken_for_those_of_an_existing_object(
    bucket: s3.S3Server, format_class: str, compression: str
) -> None:
    def of_topic(number: int) -> list[SinkRecord]:
        if format_class == "ByteArrayFormat":
            return [record(offset, b"%d-%d" % (number, offset), BYTES_SCHEMA) for offset in range(5)]
        return [
            row.replace(value=Struct(ROW, {"id": row.offset, "group": "g", "text": str(number)})) for row in rows(5)
        ]

    put(bucket, of_topic(1), 3, format__class=format_class, s3__compression__type=compression)
    before = bucket.objects()
    with pytest.raises(ConnectError, match=r"\+0000000000\..* exists, but its record with offset 0 differs"):
        put(bucket, of_topic(2), 5, format__class=format_class, s3__compression__type=compression)
    assert bucket.objects() == before
    options = {"format__class": format_class, "s3__compression__type": compression}
    put(bucket, of_topic(2), 5, enable__conditional__writes="false", **options)
    assert bucket.objects() != before


def test_only_the_first_record_of_an_object_that_another_program_wrote_is_not_written_again(
    bucket: s3.S3Server,
) -> None:
    bucket.client().put_object(Bucket=s3.BUCKET, Key=FIRST, Body=b"{}\n")
    put(bucket, rows(6), 5)
    assert bucket.objects()[FIRST] == b"{}\n"
    assert [ids(data) for key, data in bucket.objects().items() if key != FIRST] == [[1, 2, 3, 4, 5]]


def test_large_file_is_uploaded_when_it_is_complete_so_that_its_object_has_metadata(bucket: s3.S3Server) -> None:
    put(bucket, rows(6, text="x" * 2_000_000), 6, s3__part__size="5242880")
    (key,) = bucket.objects()
    metadata = bucket.client().head_object(Bucket=s3.BUCKET, Key=key)["Metadata"]
    assert metadata["headrace-last-offset"] == "5"


@pytest.mark.parametrize(("keeps", "advice"), [("true", "set enable.conditional.writes=false"), ("false", "")])
def test_error_of_a_store_without_support_for_conditional_writes_names_the_configuration_key(
    bucket: s3.S3Server, proxy: FaultyS3, keeps: str, advice: str
) -> None:
    proxy.add(S3Fault(lambda method, _: method == "PUT", 9, status=501, code="NotImplemented"))
    with pytest.raises(ConnectError, match="NotImplemented") as caught:
        put(proxy.server, rows(3), 3, enable__conditional__writes=keeps)
    assert str(caught.value).endswith(advice) if advice else "enable.conditional" not in str(caught.value)
