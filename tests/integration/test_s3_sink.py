"""Tests of the S3 sink with a real S3-compatible server (moto)."""

from __future__ import annotations

import gzip
import io
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Context, Decimal
from typing import Any

import pyarrow.parquet as pq
import pytest

from headrace.api.errors import ConnectError
from headrace.data.batch import SinkBatch, from_records
from headrace.data.headers import Headers
from headrace.data.json_texts import JsonTexts
from headrace.data.logical import decimal_schema
from headrace.data.records import SinkRecord
from headrace.data.schema import (
    BYTES_SCHEMA,
    INT32_SCHEMA,
    OPTIONAL_STRING_SCHEMA,
    STRING_SCHEMA,
    array,
    map_of,
    struct,
)
from headrace.data.sink_records import SinkRecords
from headrace.data.struct import Struct
from headrace.testing import Restart, run_sink
from headrace.testing.conformance import SinkConformance
from headrace_connectors.s3.bucket import TemporaryError, UploadLostError
from headrace_connectors.s3.sink import S3SinkConnector, S3SinkTask
from headrace_connectors.s3.sink_config import S3SinkConfig
from headrace_connectors.s3.spool import SpoolReader
from headrace_connectors.s3.uploads import SinkBucket
from support import s3
from support.validation import validation_errors

pytestmark = pytest.mark.integration

ROW = struct([("id", INT32_SCHEMA), ("name", OPTIONAL_STRING_SCHEMA)])
WIDE = Context(prec=100)


@pytest.fixture(scope="module")
def server() -> Iterator[s3.S3Server]:
    with s3.running() as running:
        yield running


@pytest.fixture
def bucket(server: s3.S3Server) -> s3.S3Server:
    server.clear()
    return server


def row(offset: int, **more: Any) -> SinkRecord:
    value = Struct(ROW, {"id": offset, "name": f"n{offset}"})
    position = {"original_topic": "items", "original_partition": 0, "original_offset": offset}
    fields = {"topic": "items", "timestamp": offset, "value": value, "value_schema": ROW} | position | more
    return SinkRecord(partition=0, offset=offset, **fields)


def put(server: s3.S3Server, records: Sequence[SinkRecord], *faults: Any, **props: str) -> Any:
    settings = server.props() | {"format.class": "JsonFormat", "flush.size": "3"}
    settings |= {key.replace("__", "."): value for key, value in props.items()}
    return run_sink(S3SinkConnector, settings, records, faults=faults)


class TestS3Sink(SinkConformance):
    plugin = S3SinkConnector
    is_exactly_once = True
    _server: s3.S3Server

    @pytest.fixture(autouse=True)
    def _bucket(self, bucket: s3.S3Server) -> None:
        type(self)._server = bucket

    def config(self) -> dict[str, str]:
        return self._server.props() | {"format.class": "JsonFormat", "flush.size": "1"}

    def stored(self) -> list[Any]:
        return [line for data in self._server.objects().values() for line in data.splitlines()]


def test_complete_files_become_objects_with_the_object_keys_of_confluents_sink(bucket: s3.S3Server) -> None:
    run = put(bucket, [row(offset) for offset in range(7)])
    assert bucket.objects() == {
        f"topics/items/partition=0/items+0+{first:010d}.json": b"".join(
            b'{"id":%d,"name":"n%d"}\n' % (offset, offset) for offset in range(first, first + 3)
        )
        for first in (0, 3)
    }
    assert run.committed == {("items", 0): 6}


def test_record_whose_object_key_would_have_more_than_1024_bytes_is_rejected(bucket: s3.S3Server) -> None:
    def key_of(text: str) -> str:
        return f"topics/items/a={text}/b=%0A0%2F/items+0+0000000001.headers.json"

    longest = "x" * (1024 - len(key_of("")))
    props = {
        "partitioner__class": "FieldPartitioner", "partition__field__name": "a,b", "flush__size": "1",
        "store__kafka__headers": "true", "headers__format__class": "JsonFormat", "errors__tolerance": "all",
    }  # fmt: skip
    values = [{"a": "x" * 2000, "b": "0"}, {"a": longest, "b": "\n0/"}, {"a": longest + "x", "b": "\n0/"}]
    records = [row(offset, value=value, value_schema=None) for offset, value in enumerate(values)]
    run = put(bucket, records, **props)
    assert max(len(key) for key in bucket.objects()) == 1024
    assert [record.offset for record, _ in run.reported] == [0, 2]
    assert "object key would have 1025 bytes" in str(run.reported[1][1])
    assert run.committed == {("items", 0): 3}


def test_s3_sink_writes_the_same_objects_again_after_a_restart(bucket: s3.S3Server) -> None:
    records = [row(offset) for offset in range(20)]
    put(bucket, records)
    expected = bucket.objects()
    bucket.clear()
    put(bucket, records, Restart(2), flush__size="3")
    assert bucket.objects() == expected


def test_record_keys_and_headers_are_stored_in_separate_objects_if_configured(bucket: s3.S3Server) -> None:
    records = [row(offset, key=f"k{offset}", key_schema=STRING_SCHEMA, headers=Headers().add("h", "x", STRING_SCHEMA))
               for offset in range(3)]  # fmt: skip
    put(bucket, records, store__kafka__keys="true", store__kafka__headers="true")
    found = {key.rsplit("/", 1)[1]: data.splitlines() for key, data in bucket.objects().items()}
    assert found["items+0+0000000000.keys.json"] == [b'"k0"', b'"k1"', b'"k2"']
    assert json.loads(found["items+0+0000000000.headers.json"][0]) == [{"key": "h", "value": "x"}]
    assert len(found) == 3


def test_keys_of_tombstones_are_written_to_the_tombstone_directory(bucket: s3.S3Server) -> None:
    records = [row(0, key="a", key_schema=STRING_SCHEMA),
               row(1, key="b", key_schema=STRING_SCHEMA, value=None, value_schema=None),
               row(2, key="c", key_schema=STRING_SCHEMA)]  # fmt: skip
    put(bucket, records, store__kafka__keys="true", behavior__on__null__values="write")
    assert {key: data for key, data in bucket.objects().items() if "tombstone" in key} == {
        "topics/items/tombstone/items+0+0000000001.keys.json": b'"b"\n'
    }


@pytest.mark.parametrize(
    ("behavior", "reports_nulls", "reported"),
    [("ignore", "true", [1]), ("ignore", "false", []), ("fail", "false", [1])],
)
def test_null_values_are_skipped_or_are_errors_and_are_reported_as_configured(
    bucket: s3.S3Server, behavior: str, reports_nulls: str, reported: list[int]
) -> None:
    records = [row(0), row(1, value=None, value_schema=None), row(2), row(3)]
    props = {"behavior__on__null__values": behavior, "report__null__values__to__dlq": reports_nulls}
    run = put(bucket, records, errors__tolerance="all", **props)
    assert [record.offset for record, _ in run.reported] == reported
    assert [data.count(b"\n") for data in bucket.objects().values()] == [3]
    assert run.committed == {("items", 0): 4}


def test_ignored_null_value_does_not_fail_the_task_if_errors_are_not_tolerated(bucket: s3.S3Server) -> None:
    records = [row(0), row(1, value=None, value_schema=None), row(2), row(3)]
    run = put(bucket, records, behavior__on__null__values="ignore", errors__log__enable="true")
    assert run.reported == []
    assert run.committed == {("items", 0): 4}


def bad_record(kind: str, offset: int) -> SinkRecord:
    if kind == "null":
        return row(offset, value=None, value_schema=None)
    if kind == "key too long":
        return row(offset, value={"name": "x" * 1100}, value_schema=None)
    narrow = struct([("id", INT32_SCHEMA)])  # without a version
    return row(offset, value=Struct(narrow, {"id": offset}), value_schema=narrow)


@pytest.mark.parametrize("kind", ["null", "key too long", "no schema version"])
@pytest.mark.parametrize("tolerance", ["none", "all"])
def test_no_record_after_a_bad_record_is_stored_if_the_bad_record_fails_the_task(
    bucket: s3.S3Server, kind: str, tolerance: str
) -> None:
    """The user may skip the bad record. The next records then become other objects."""
    records = [bad_record(kind, offset) if offset == 4 else row(offset) for offset in range(12)]
    props = {"errors__tolerance": tolerance, "flush__size": "3", "schema__compatibility": "BACKWARD"}
    if kind == "key too long":
        props |= {"partitioner__class": "FieldPartitioner", "partition__field__name": "name", "flush__size": "2"}
    if tolerance == "none":
        with pytest.raises(ConnectError):
            put(bucket, records, **props)
    else:
        put(bucket, records, **props)
    stored = {json.loads(line)["id"] for data in bucket.objects().values() for line in data.splitlines()}
    assert (max(stored) < 4) == (tolerance == "none")


def test_gzip_objects_of_the_same_records_are_identical(bucket: s3.S3Server) -> None:
    put(bucket, [row(offset) for offset in range(3)], s3__compression__type="gzip")
    ((key, data),) = bucket.objects().items()
    assert key.endswith(".json.gz")
    assert gzip.decompress(data).count(b"\n") == 3
    put(bucket, [row(offset) for offset in range(3)], s3__compression__type="gzip")
    assert bucket.objects() == {key: data}


def test_byte_array_format_writes_records_with_separators(bucket: s3.S3Server) -> None:
    records = [row(offset, value=b"v%d" % offset, value_schema=BYTES_SCHEMA) for offset in range(3)]
    put(bucket, records, format__class="ByteArrayFormat", format__bytearray__separator="|")
    assert list(bucket.objects().values()) == [b"v0|v1|v2|"]


def test_parquet_object_contains_the_fields_of_nested_structs(bucket: s3.S3Server) -> None:
    nested = struct([("id", INT32_SCHEMA), ("tags", array(STRING_SCHEMA)), ("in", ROW),
                     ("map", map_of(STRING_SCHEMA, INT32_SCHEMA))])  # fmt: skip
    value = Struct(nested, {"id": 1, "tags": ["a"], "in": Struct(ROW, {"id": 2, "name": None}), "map": {"k": 3}})
    records = [row(offset, value=value, value_schema=nested) for offset in range(3)]
    put(bucket, records, format__class="io.confluent.connect.s3.format.parquet.ParquetFormat")
    ((key, data),) = bucket.objects().items()
    assert key.endswith("items+0+0000000000.snappy.parquet")
    table = pq.read_table(io.BytesIO(data))
    assert table.to_pylist() == [{"id": 1, "tags": ["a"], "in": {"id": 2, "name": None}, "map": [("k", 3)]}] * 3


def test_large_files_are_uploaded_in_parts(bucket: s3.S3Server) -> None:
    text = "x" * 100_000
    schema = struct([("text", STRING_SCHEMA)])
    records = [row(offset, value=Struct(schema, {"text": text}), value_schema=schema) for offset in range(150)]
    put(bucket, records, flush__size="150", s3__part__size="5242880", buffer__memory__bytes="1048576")
    ((key, data),) = bucket.objects().items()
    assert data == (b'{"text":"%s"}\n' % text.encode()) * 150
    assert bucket.client().head_object(Bucket=s3.BUCKET, Key=key)["ETag"].strip('"').endswith("-3")


def test_objects_are_tagged_with_offsets_record_count_and_configured_tags(bucket: s3.S3Server) -> None:
    put(bucket, [row(offset) for offset in range(3)], s3__object__tagging="true",
        s3__object__tagging__key__value__pairs="team:data")  # fmt: skip
    (key,) = bucket.objects()
    tags = bucket.client().get_object_tagging(Bucket=s3.BUCKET, Key=key)["TagSet"]
    assert {tag["Key"]: tag["Value"] for tag in tags} == {
        "team": "data", "startOffset": "0", "endOffset": "2", "recordCount": "3",
    }  # fmt: skip


def test_records_that_the_format_rejects_are_reported(bucket: s3.S3Server) -> None:
    records = [row(offset) for offset in range(4)]
    records[1] = row(1, value={"no": "schema"}, value_schema=None)
    run = put(bucket, records, format__class="ParquetFormat", errors__tolerance="all", flush__size="3")
    assert [record.offset for record, _ in run.reported] == [1]
    with pytest.raises(ConnectError, match="needs structs with a schema"):
        put(bucket, records, format__class="ParquetFormat")


def test_byte_array_format_rejects_a_record_key_of_type_string(bucket: s3.S3Server) -> None:
    """The error text tells the user to set key.converter to ByteArrayConverter."""
    records = [row(offset, key="k", key_schema=STRING_SCHEMA) for offset in range(3)]
    with pytest.raises(ConnectError, match=r"set key\.converter to ByteArrayConverter"):
        put(bucket, records, store__kafka__keys="true", keys__format__class="ByteArrayFormat")


def test_s3_sink_task_fails_if_the_bucket_does_not_exist(bucket: s3.S3Server) -> None:
    with pytest.raises(ConnectError, match=r"Cannot write topics/.* in s3://nope at http.*NoSuchBucket"):
        put(bucket, [row(offset) for offset in range(3)], s3__bucket__name="nope")


def test_s3_sink_validation_assigns_each_error_to_a_configuration_key(
    bucket: s3.S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test causes errors of the bucket, the store, the proxy and the credentials."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)

    def errors(**props: str) -> dict[str, list[str]]:
        settings = bucket.props() | {"format.class": "JsonFormat", "flush.size": "3"} | props
        return validation_errors(S3SinkConnector, settings)

    assert errors() == {}
    assert "404" in errors(**{"s3.bucket.name": "nope"})["s3.bucket.name"][0]
    assert "store.url" in errors(**{"store.url": "http://127.0.0.1:1", "s3.part.retries": "0"})
    assert list(errors(**{"s3.proxy.url": "http://127.0.0.1:1", "s3.part.retries": "0"})) == ["s3.proxy.url"]
    assert list(errors(**{"aws.access.key.id": "", "aws.secret.access.key": ""})) == ["s3.credentials.provider.class"]


class TaskContext:
    """A fake task context that stores the requests of the task. Tests set the clock of the context."""

    tolerates_errors = False

    def __init__(self) -> None:
        self.now_s = 0.0
        self.paused = False
        self.offsets: dict[Any, int] = {}

    def monotonic(self) -> float:
        return self.now_s

    def pause(self, *partitions: Any) -> None:
        self.paused = True

    def resume(self, *partitions: Any) -> None:
        self.paused = False

    def offset(self, offsets: dict[Any, int]) -> None:
        self.offsets |= offsets


@contextmanager
def running_task(server: s3.S3Server, **props: str) -> Iterator[tuple[S3SinkTask, TaskContext]]:
    settings = server.props() | {"format.class": "JsonFormat", "flush.size": "3"}
    task, context = S3SinkTask(), TaskContext()
    task.context = context  # type: ignore[assignment]
    task.start(S3SinkConfig.parse(settings | {key.replace("__", "."): value for key, value in props.items()}))
    task.open([("items", 0)])
    try:
        yield task, context
    finally:
        task.stop()


def sink_records(records: Sequence[SinkRecord]) -> SinkRecords:
    return SinkRecords(from_records(records))  # type: ignore[arg-type]


def test_unparsed_json_values_are_written_unchanged_as_lines_of_the_object(bucket: s3.S3Server) -> None:
    texts = [b'{"id": 1, "price": 1.10}', b'{"id": 2}', b'{"id": 3, "name": "\\u00e9"}']
    batch = SinkBatch("items", JsonTexts(texts), partition=0, offsets=range(3), timestamps=0)
    with running_task(bucket, partitioner__class="FieldPartitioner", partition__field__name="id") as (task, _):
        assert task.accepts_json_texts
        task.put(SinkRecords([batch]))
        assert task.pre_commit({("items", 0): 3}) == {("items", 0): 3}
    assert bucket.objects() == {
        f"topics/items/id={offset + 1}/items+0+{offset:010d}.json": text + b"\n" for offset, text in enumerate(texts)
    }


def test_s3_sink_with_parquet_format_does_not_accept_unparsed_json_values(bucket: s3.S3Server) -> None:
    with running_task(bucket, format__class="ParquetFormat") as (task, _):
        assert not task.accepts_json_texts


def test_uploads_are_retried_until_the_store_accepts_them(bucket: s3.S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = []
    upload = SinkBucket.put

    def refuse_twice(self: SinkBucket, key: str, data: SpoolReader, metadata: Mapping[str, str]) -> None:
        attempts.append(key)
        if len(attempts) <= 2:
            raise TemporaryError("SlowDown: reduce your request rate")
        upload(self, key, data, metadata)

    monkeypatch.setattr(SinkBucket, "put", refuse_twice)
    with running_task(bucket, retry__backoff__ms="1000") as (task, context):
        task.put(sink_records([row(offset) for offset in range(7)]))
        assert context.paused
        assert task.pre_commit({("items", 0): 7}) == {("items", 0): 0}
        context.now_s = 1.0
        task.put(SinkRecords())
        context.now_s = 1.9
        task.put(SinkRecords())  # the next attempt is not due yet
        assert (len(attempts), bucket.objects()) == (2, {})
        context.now_s = 2.0
        task.put(SinkRecords())
        assert not context.paused
        assert len(bucket.objects()) == 2
        assert task.pre_commit({("items", 0): 7}) == {("items", 0): 6}


def test_upload_in_progress_does_not_delay_a_put(bucket: s3.S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    may_upload, upload = threading.Event(), SinkBucket.put

    def upload_later(self: SinkBucket, key: str, data: SpoolReader, metadata: Mapping[str, str]) -> None:
        assert may_upload.wait(30)
        upload(self, key, data, metadata)

    monkeypatch.setattr(SinkBucket, "put", upload_later)
    with running_task(bucket) as (task, _):
        task.put(sink_records([row(offset) for offset in range(5)]))  # the first file has three records
        assert bucket.objects() == {}
        may_upload.set()
        assert task.pre_commit({("items", 0): 5}) == {("items", 0): 3}
        assert len(bucket.objects()) == 1


def test_put_waits_for_the_upload_of_a_complete_file_if_the_next_file_of_the_partition_is_also_complete(
    bucket: s3.S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = SinkBucket.put
    uploaded = []

    def upload_slowly(self: SinkBucket, key: str, data: SpoolReader, metadata: Mapping[str, str]) -> None:
        time.sleep(0.05)  # longer than the put would need without waiting
        upload(self, key, data, metadata)
        uploaded.append(key)

    monkeypatch.setattr(SinkBucket, "put", upload_slowly)
    with running_task(bucket) as (task, _):
        task.put(sink_records([row(offset) for offset in range(30)]))
        assert len(uploaded) >= 9


def test_fatal_upload_error_prevents_the_commit_of_offsets_and_fails_the_next_put(
    bucket: s3.S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: SinkBucket, key: str, data: SpoolReader, metadata: Mapping[str, str]) -> None:
        raise ConnectError("AccessDenied")

    monkeypatch.setattr(SinkBucket, "put", refuse)
    with running_task(bucket) as (task, _):
        task.put(sink_records([row(offset) for offset in range(3)]))
        assert task.pre_commit({("items", 0): 3}) == {("items", 0): 0}
        with pytest.raises(ConnectError, match="AccessDenied"):
            task.put(SinkRecords())


def test_s3_sink_writes_the_whole_file_again_if_the_store_has_lost_the_multipart_upload_of_the_file(
    bucket: s3.S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = struct([("text", STRING_SCHEMA)])
    value = Struct(schema, {"text": "x" * 1_000_000})
    records = [row(offset, value=value, value_schema=schema) for offset in range(12)]
    upload = SinkBucket.put_part
    lost = []

    def lose_second_part(self: SinkBucket, key: str, upload_id: str, number: int, data: SpoolReader) -> str:
        if number == 2 and not lost:  # moto responds with an internal server error instead of NoSuchUpload
            lost.append(key)
            raise UploadLostError("NoSuchUpload: the upload does not exist")
        return upload(self, key, upload_id, number, data)

    monkeypatch.setattr(SinkBucket, "put_part", lose_second_part)
    with running_task(bucket, flush__size="12", s3__part__size="5242880") as (task, context):
        task.put(sink_records(records[:8]))
        task.put(sink_records(records[8:]))
        assert context.offsets == task.pre_commit({("items", 0): 12}) == {("items", 0): 0}
        task.put(sink_records(records))
    (data,) = bucket.objects().values()
    assert data.count(b"\n") == 12


def test_parquet_objects_do_not_depend_on_the_size_of_the_put_batches(bucket: s3.S3Server) -> None:
    records = [row(offset, value=Struct(ROW, {"id": offset, "name": None if offset % 3 else f"n{offset}"}))
               for offset in range(25_000)]  # fmt: skip
    found = []
    for size in (25_000, 999, 61):
        bucket.clear()
        with running_task(bucket, format__class="ParquetFormat", flush__size="25000") as (task, _):
            for start in range(0, len(records), size):
                task.put(sink_records(records[start : start + size]))
        found.append(bucket.objects())
    assert found[0] == found[1] == found[2]
    ((_, data),) = found[0].items()
    table = pq.read_table(io.BytesIO(data))
    assert table.column("id").to_pylist() == list(range(25_000))


def test_parquet_format_reports_records_that_contain_a_struct_without_fields(bucket: s3.S3Server) -> None:
    empty, outer = struct([]), struct([("id", INT32_SCHEMA), ("inner", struct([]))])
    records = [
        row(0, value=Struct(empty, {}), value_schema=empty),
        row(1, value=Struct(outer, {"id": 1, "inner": Struct(empty, {})}), value_schema=outer),
        row(2),
    ]
    run = put(bucket, records, format__class="ParquetFormat", errors__tolerance="all", flush__size="1")
    assert [(record.offset, str(error)) for record, error in run.reported] == [
        (0, "ParquetFormat cannot store a struct without fields"),
        (1, "field inner: ParquetFormat cannot store a struct without fields"),
    ]
    assert len(bucket.objects()) == 1


def test_file_is_completed_when_the_schema_of_its_parquet_record_keys_changes(bucket: s3.S3Server) -> None:
    keys = [struct([("a", INT32_SCHEMA)]), struct([("b", STRING_SCHEMA)])]
    values = [{"a": 1}, {"b": "x"}]
    records = [row(at, key=Struct(keys[at // 2], values[at // 2]), key_schema=keys[at // 2]) for at in range(4)]
    put(bucket, records, store__kafka__keys="true", keys__format__class="ParquetFormat", flush__size="4")
    assert len(bucket.objects()) == 2  # the values and keys of the first two records; the others are in open files
    [stored] = [data for key, data in bucket.objects().items() if "keys" in key]
    assert pq.read_table(io.BytesIO(stored)).to_pylist() == [{"a": 1}, {"a": 1}]


def test_hourly_partitioner_writes_timestamps_of_all_years(bucket: s3.S3Server) -> None:
    records = [row(0, timestamp=1_782_907_200_000_000), row(1, timestamp=1_782_907_200_000)]
    put(bucket, records, partitioner__class="HourlyPartitioner", timezone="UTC", timestamp__extractor="Record",
        flush__size="1")  # fmt: skip
    assert sorted(bucket.objects()) == [
        "topics/items/year=2026/month=07/day=01/hour=12/items+0+0000000001.json",
        "topics/items/year=58468/month=01/day=30/hour=00/items+0+0000000000.json",
    ]


def test_value_that_parquet_cannot_contain_is_reported_with_its_column(bucket: s3.S3Server) -> None:
    schema = struct([("amount", decimal_schema(2))])
    records = [
        row(offset, value=Struct(schema, {"amount": Decimal("1.00")}), value_schema=schema) for offset in range(4)
    ]
    records[1] = records[1].replace(
        value=Struct(schema, {"amount": Decimal("1e40").quantize(Decimal("0.01"), context=WIDE)})
    )
    run = put(bucket, records, format__class="ParquetFormat", errors__tolerance="all")
    ((record, error),) = run.reported
    assert record.offset == 1
    assert "field amount cannot be written as Parquet's decimal128(38, 2)" in str(error)
