"""Tests of the S3 source with a real S3-compatible server (moto)."""

from __future__ import annotations

import base64
import decimal
import gzip
import io
import json
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.api.errors import ConnectError
from headrace.data.headers import Headers
from headrace.data.logical import DATE_SCHEMA, TIME_SCHEMA, TIMESTAMP_SCHEMA, Date, Time, Timestamp, decimal_schema
from headrace.data.records import SinkRecord, SourceRecord
from headrace.data.schema import BYTES_SCHEMA, INT32_SCHEMA, OPTIONAL_STRING_SCHEMA, STRING_SCHEMA, array, struct
from headrace.data.struct import Struct
from headrace.testing import RestartSource, run_sink, run_source
from headrace.testing.conformance import SourceConformance
from headrace_connectors.s3.bucket import Bucket
from headrace_connectors.s3.sink import S3SinkConnector
from headrace_connectors.s3.source import S3SourceConnector
from headrace_connectors.s3.source_config import S3SourceConfig
from support import s3
from support.validation import validation_errors

pytestmark = pytest.mark.integration

ROW = struct([("id", INT32_SCHEMA), ("name", OPTIONAL_STRING_SCHEMA)], name="shop.Item", version=3)


@pytest.fixture(scope="module")
def server() -> Iterator[s3.S3Server]:
    with s3.running() as running:
        yield running


@pytest.fixture
def bucket(server: s3.S3Server) -> s3.S3Server:
    server.clear()
    return server


def sink_record(offset: int, partition: int = 0, topic: str = "items", **more: Any) -> SinkRecord:
    value = Struct(ROW, {"id": offset, "name": f"n{offset}"})
    position = {"original_topic": topic, "original_partition": partition, "original_offset": offset}
    fields = {"topic": topic, "timestamp": offset, "value": value, "value_schema": ROW} | position | more
    return SinkRecord(partition=partition, offset=offset, **fields)


def back_up(server: s3.S3Server, records: Sequence[SinkRecord], **props: str) -> None:
    settings = server.props() | {"format.class": "JsonFormat", "flush.size": "3"}
    run_sink(S3SinkConnector, settings | {key.replace("__", "."): value for key, value in props.items()}, records)


def source_props(server: s3.S3Server, **props: str) -> dict[str, str]:
    settings = server.props() | {"format.class": "JsonFormat"}
    del settings["storage.class"]
    return settings | {key.replace("__", "."): value for key, value in props.items()}


def restore(server: s3.S3Server, *faults: Any, **props: str) -> list[SourceRecord]:
    return run_source(S3SourceConnector, source_props(server, **props), records=1000, faults=faults).records


class TestS3SourceOfBackups(SourceConformance):
    plugin = S3SourceConnector
    _server: s3.S3Server
    _next = 0

    @pytest.fixture(autouse=True)
    def _bucket(self, bucket: s3.S3Server) -> None:
        type(self)._server = bucket
        self._next = 0

    def config(self) -> dict[str, str]:
        return source_props(self._server, record__batch__max__size="2")

    def produce(self, count: int) -> None:
        records = [sink_record(offset) for offset in range(self._next, self._next + count)]
        back_up(self._server, records, flush__size="5")
        self._next += count


class TestS3SourceOfAnyFiles(SourceConformance):
    plugin = S3SourceConnector
    _server: s3.S3Server
    _next = 0

    @pytest.fixture(autouse=True)
    def _bucket(self, bucket: s3.S3Server) -> None:
        type(self)._server = bucket
        self._next = 0

    def config(self) -> dict[str, str]:
        return source_props(
            self._server, mode="GENERIC", topic__regex__list="lines:.*", record__batch__max__size="2",
            file__discovery__settle__ms="0",
        )  # fmt: skip

    def produce(self, count: int) -> None:
        for number in range(self._next, self._next + count, 5):
            lines = b"".join(b'{"n":%d}\n' % each for each in range(number, min(number + 5, self._next + count)))
            self._server.client().put_object(Bucket=s3.BUCKET, Key=f"in/{number:05}.json", Body=lines)
        self._next += count


def test_restored_records_have_the_topic_partition_and_order_of_the_backup(bucket: s3.S3Server) -> None:
    for topic in ("items", "other.topic"):
        for partition in range(3):
            back_up(bucket, [sink_record(offset, partition, topic) for offset in range(12)])
    records = restore(bucket)
    assert len(records) == 72
    for topic in ("items", "other.topic"):
        for partition in range(3):
            found = [record.value["id"] for record in records if (record.topic, record.partition) == (topic, partition)]
            assert found == list(range(12))


@pytest.mark.parametrize("tasks", ["1", "2", "5"])
def test_every_topic_partition_is_read_by_exactly_one_task(bucket: s3.S3Server, tasks: str) -> None:
    for partition in range(4):
        back_up(bucket, [sink_record(offset, partition) for offset in range(6)])
    records = restore(bucket, tasks__max=tasks)
    assert sorted((record.partition, record.value["id"]) for record in records) == [
        (partition, offset) for partition in range(4) for offset in range(6)
    ]


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_keys_headers_and_tombstones_are_restored(bucket: s3.S3Server, compression: str) -> None:
    headers = Headers().add("h", "x", STRING_SCHEMA).add("h", 5, INT32_SCHEMA)
    records = [sink_record(offset, key=f"k{offset}", key_schema=STRING_SCHEMA, headers=headers) for offset in range(3)]
    records[2] = records[2].replace(value=None, value_schema=None)
    back_up(bucket, records, store__kafka__keys="true", store__kafka__headers="true",
            behavior__on__null__values="write", s3__compression__type=compression)  # fmt: skip
    restored = restore(bucket)
    assert [(record.key, record.value) for record in restored] == [
        ("k0", {"id": 0, "name": "n0"}), ("k1", {"id": 1, "name": "n1"}), ("k2", None),
    ]  # fmt: skip
    assert [[(each.key, each.value) for each in record.headers] for record in restored] == [
        [("h", "x"), ("h", "5")]
    ] * 3


def test_null_record_keys_are_restored_from_objects(bucket: s3.S3Server) -> None:
    back_up(bucket, [sink_record(offset) for offset in range(3)], store__kafka__keys="true")
    assert [record.key for record in restore(bucket)] == [None] * 3


def test_records_are_restored_from_parquet_with_their_schema(bucket: s3.S3Server) -> None:
    amount = decimal_schema(2)
    schema = struct([("row", ROW), ("tags", array(STRING_SCHEMA)), ("amount", amount), ("at", TIMESTAMP_SCHEMA),
                     ("day", DATE_SCHEMA), ("times", array(TIME_SCHEMA)), ("level", INT32_SCHEMA.replace(default=7))],
                    name="shop.Order", version=2)  # fmt: skip
    values = [
        Struct(schema, {"row": Struct(ROW, {"id": 1, "name": None}), "tags": ["a", "b"],
                        "amount": decimal.Decimal("12.30"), "at": Timestamp(at), "day": Date(day),
                        "times": [Time(0), Time(86_399_999)], "level": 1})
        for at, day in ((1_709_209_800_000, 19_782), (2**63 - 1, 2**31 - 1), (-(2**63), -(2**31)))
    ]  # fmt: skip
    back_up(bucket, [sink_record(offset, value=value, value_schema=schema) for offset, value in enumerate(values)],
            format__class="ParquetFormat")  # fmt: skip
    records = restore(bucket, format__class="io.confluent.connect.s3.format.parquet.ParquetFormat")
    assert [record.value_schema for record in records] == [schema] * 3
    assert [record.value for record in records] == values


def test_byte_array_records_are_restored_from_objects(bucket: s3.S3Server) -> None:
    records = [sink_record(offset, value=b"v\n%d" % offset, value_schema=BYTES_SCHEMA) for offset in range(6)]
    more = {"format__class": "ByteArrayFormat", "format__bytearray__separator": "||"}
    back_up(bucket, records, **more)
    assert [record.value for record in restore(bucket, **more)] == [b"v\n%d" % offset for offset in range(6)]


@pytest.mark.parametrize(("values", "keys"), [(b"a\nb\nc\n" + b"d\n" * 500, 502), (b"a\nb\n", 1)])
def test_keys_are_not_assigned_to_wrong_values_if_a_value_contains_the_separator(
    bucket: s3.S3Server, values: bytes, keys: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Confluent's sink, and earlier versions of headrace, wrote values that contain the separator."""
    name = "topics/items/partition=0/items+0+0000000000"
    bucket.client().put_object(Bucket=s3.BUCKET, Key=f"{name}.bin", Body=values)
    keys_text = b"".join(b'"k%d"\n' % number for number in range(keys))
    bucket.client().put_object(Bucket=s3.BUCKET, Key=f"{name}.keys.json", Body=keys_text)
    with pytest.raises(ConnectError, match=r"different numbers of records .*because records contain format\.bytearray"):
        restore(bucket, format__class="ByteArrayFormat")
    assert restore(bucket, format__class="ByteArrayFormat", behavior__on__error="log") == []
    assert "skipping the remaining part of the object, after record 0" in caplog.text


def test_keys_of_records_with_byte_array_values_are_restored(bucket: s3.S3Server) -> None:
    records = [sink_record(offset, value=b"v%d" % offset, value_schema=BYTES_SCHEMA, key=f"k{offset}",
                           key_schema=STRING_SCHEMA) for offset in range(30)]  # fmt: skip
    back_up(bucket, records, format__class="ByteArrayFormat", store__kafka__keys="true", flush__size="10")
    restored = restore(bucket, RestartSource(14), format__class="ByteArrayFormat", record__batch__max__size="4")
    assert {(record.key, record.value) for record in restored} == {
        (f"k{offset}", b"v%d" % offset) for offset in range(30)
    }


def test_records_in_hourly_directories_are_restored_in_order_of_offsets(bucket: s3.S3Server) -> None:
    hour_ms = 3_600_000
    records = [sink_record(offset, timestamp=(offset // 3) * hour_ms) for offset in range(30)]
    back_up(bucket, records, timezone="UTC", timestamp__extractor="Record", rotate__interval__ms=str(hour_ms),
            partitioner__class="HourlyPartitioner", flush__size="3")  # fmt: skip
    assert len(bucket.objects()) == 10
    assert [record.value["id"] for record in restore(bucket, record__batch__max__size="2")] == list(range(30))


def test_source_continues_in_the_middle_of_an_object_after_a_restart(bucket: s3.S3Server) -> None:
    back_up(bucket, [sink_record(offset) for offset in range(100)], flush__size="100")
    first = run_source(S3SourceConnector, source_props(bucket, record__batch__max__size="7"), records=21)
    assert first.offset == {"start": "0000000000", "record": 21, "complete": False}
    second = run_source(S3SourceConnector, source_props(bucket), records=1000, offsets=first.offsets)
    assert [record.value["id"] for record in [*first.records, *second.records]] == list(range(100))
    assert second.offset == {"start": "0000000000", "record": 100, "complete": True}


def test_objects_are_read_in_offset_order_even_if_some_offsets_have_more_digits_than_the_zero_padding(
    bucket: s3.S3Server,
) -> None:
    starts = [0, 5, 10, 95, 100, 1000]
    for start in starts:
        name = f"topics/items/partition=0/items+0+{start:02d}.json"
        bucket.client().put_object(Bucket=s3.BUCKET, Key=name, Body=b'{"id":%d}\n' % start)
    assert [record.value["id"] for record in restore(bucket)] == starts
    first = run_source(S3SourceConnector, source_props(bucket), records=4)
    again = run_source(S3SourceConnector, source_props(bucket), records=100, offsets=first.offsets)
    assert [record.value["id"] for record in again.records] == [100, 1000]


def test_records_of_topics_with_unusual_names_are_restored(bucket: s3.S3Server) -> None:
    topics = ["a.b_c-d", "topics", "items-0-5", "x" * 200, ".hidden"]
    for topic in topics:
        back_up(bucket, [sink_record(offset, topic=topic) for offset in range(3)])
    assert sorted({record.topic or "" for record in restore(bucket)}) == sorted(topics)


def test_generic_mode_maps_objects_to_topics_by_regular_expressions(bucket: s3.S3Server) -> None:
    client = bucket.client()
    client.put_object(Bucket=s3.BUCKET, Key="a/one.json", Body=b'{"n":1}\n{"n":2}')
    client.put_object(Bucket=s3.BUCKET, Key="b/two.json.gz", Body=gzip.compress(b'{"n":3}\n'))
    client.put_object(Bucket=s3.BUCKET, Key="c/skipped.txt", Body=b"no JSON")
    client.put_object(Bucket=s3.BUCKET, Key="folder/", Body=b"")
    records = restore(bucket, mode="GENERIC", topic__regex__list="first:a/.*,second:.*\\.gz",
                      file__discovery__settle__ms="0")  # fmt: skip
    found = sorted((record.topic, record.value["n"]) for record in records)
    assert found == [("first", 1), ("first", 2), ("second", 3)]


@pytest.mark.parametrize(
    ("props", "expected"),
    [
        ({"topics__dir": "quickstart"}, [1]),
        ({"topics__dir": "quickstart/"}, [1]),
        ({"topics__dir": "quickstart", "folders": "other"}, [3]),
        ({}, [1, 2, 3]),
    ],
)
def test_generic_mode_reads_only_objects_below_the_configured_topics_dir(
    bucket: s3.S3Server, props: dict[str, str], expected: list[int]
) -> None:
    for number, key in enumerate(("quickstart/a.json", "quickstart2/b.json", "other/c.json"), 1):
        bucket.client().put_object(Bucket=s3.BUCKET, Key=key, Body=b'{"n":%d}\n' % number)
    records = restore(bucket, mode="GENERIC", topic__regex__list="t:.*", file__discovery__settle__ms="0", **props)
    assert sorted(record.value["n"] for record in records) == expected


def test_generic_mode_derives_the_record_schema_from_parquet_columns(bucket: s3.S3Server) -> None:
    buffer = io.BytesIO()
    columns = {"id": pa.array([1, 2], pa.int64()), "kind": pa.array(["a", "b"]).dictionary_encode()}
    pq.write_table(pa.table(columns), buffer)
    bucket.client().put_object(Bucket=s3.BUCKET, Key="t.parquet", Body=buffer.getvalue())
    records = restore(bucket, mode="GENERIC", topic__regex__list="t:.*", format__class="CloudStorageParquetFormat",
                      file__discovery__settle__ms="0")  # fmt: skip
    assert [dict(record.value) for record in records] == [{"id": 1, "kind": "a"}, {"id": 2, "kind": "b"}]


@pytest.mark.parametrize("mode", ["GENERIC", "RESTORE_BACKUP"])
@pytest.mark.parametrize(
    "folders", ["logs/items,logs/items/partition=0/", "logs/items,logs/items", "logs/items/partition=0/,logs/items/"]
)
def test_each_object_below_overlapping_folders_is_read_once(bucket: s3.S3Server, mode: str, folders: str) -> None:
    for folder in ("items", "items2"):
        for number in range(3):
            name = f"logs/{folder}/partition=0/{folder}+0+{number:010}.json"
            bucket.client().put_object(Bucket=s3.BUCKET, Key=name, Body=b'"%s"\n' % folder.encode())
    records = restore(bucket, mode=mode, folders=folders, topics__dir="logs", topic__regex__list="t:.*",
                      file__discovery__settle__ms="0")  # fmt: skip
    assert [record.value for record in records] == ["items"] * 3


@pytest.mark.parametrize("behavior", ["fail", "ignore", "log"])
def test_property_behavior_on_error_sets_whether_an_invalid_object_fails_the_task_or_is_skipped(
    bucket: s3.S3Server, behavior: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = bucket.client()
    client.put_object(Bucket=s3.BUCKET, Key="1.json", Body=b'{"n":1}\n{broken\n{"n":2}\n')
    client.put_object(Bucket=s3.BUCKET, Key="2.json", Body=b'{"n":3}\n')
    props = {"mode": "GENERIC", "topic__regex__list": "t:.*", "behavior__on__error": behavior,
             "record__batch__max__size": "1", "file__discovery__settle__ms": "0"}  # fmt: skip
    if behavior == "fail":
        with pytest.raises(ConnectError, match=r"Cannot read object 1\.json in s3://lake at http.*line 2 is invalid"):
            restore(bucket, **props)
        return
    with caplog.at_level(logging.ERROR):
        assert sorted(record.value["n"] for record in restore(bucket, **props)) == [1, 3]
    assert ("1.json" in caplog.text) == (behavior == "log")


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_records_before_damaged_data_are_restored_if_behavior_on_error_is_log(
    bucket: s3.S3Server, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    buffer = io.BytesIO()
    if form == "json":
        buffer.write(b'{"n":1}\n' * 199 + b"{broken\n")
    else:
        pq.write_table(pa.table({"n": [1] * 300}), buffer, row_group_size=199, compression="none")
        start = pq.read_metadata(buffer).row_group(1).column(0).dictionary_page_offset
        buffer.getbuffer()[start : start + 20] = b"\xff" * 20
    name = f"topics/items/partition=0/items+0+0000000000.{form}"
    bucket.client().put_object(Bucket=s3.BUCKET, Key=name, Body=buffer.getvalue())
    props = {"format__class": f"{form.title()}Format", "record__batch__max__size": "1000"}
    with pytest.raises(ConnectError, match=rf"Cannot read object {name.replace('+', '.')} in .*(line|row) 200"):
        restore(bucket, **props)
    records = restore(bucket, behavior__on__error="log", **props)
    assert [record.value["n"] for record in records] == [1] * 199
    assert "skipping the remaining part of the object, after record 199" in caplog.text


@pytest.mark.parametrize("deleted", ["keys", "values"])
def test_deleted_object_fails_the_task_if_it_contains_record_keys_and_is_skipped_if_it_contains_record_values(
    bucket: s3.S3Server, deleted: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    back_up(bucket, [sink_record(offset) for offset in range(6)], store__kafka__keys="true")
    name = "topics/items/partition=0/items+0+0000000003" + (".keys.json" if deleted == "keys" else ".json")
    real = Bucket.open

    def open_object(self: Bucket, key: str) -> Any:
        bucket.client().delete_object(Bucket=s3.BUCKET, Key=name)
        return real(self, key)

    monkeypatch.setattr(Bucket, "open", open_object)
    if deleted == "values":
        assert [record.value["id"] for record in restore(bucket)] == [0, 1, 2]
        assert "deleted after it was listed, and is skipped" in caplog.text
    else:
        with pytest.raises(ConnectError, match=r"0003\.json in .* keys or headers was deleted after it was listed"):
            restore(bucket)


def test_restarted_source_reads_objects_that_were_written_after_its_stop(bucket: s3.S3Server) -> None:
    back_up(bucket, [sink_record(offset) for offset in range(6)])
    first = run_source(S3SourceConnector, source_props(bucket), records=100)
    back_up(bucket, [sink_record(offset) for offset in range(6, 12)])
    back_up(bucket, [sink_record(offset, partition=5) for offset in range(3)])
    second = run_source(S3SourceConnector, source_props(bucket), records=100, offsets=first.offsets)
    assert sorted((record.partition, record.value["id"]) for record in second.records) == [
        *((0, offset) for offset in range(6, 12)), *((5, offset) for offset in range(3)),
    ]  # fmt: skip


def test_restarted_source_reads_no_record_of_committed_objects_again(bucket: s3.S3Server) -> None:
    back_up(bucket, [sink_record(offset) for offset in range(30)])
    records = restore(bucket, RestartSource(10), record__batch__max__size="2")
    ids = [record.value["id"] for record in records]
    assert sorted(set(ids)) == list(range(30))
    assert len(ids) <= 32


def test_s3_source_validation_reports_each_error_at_the_invalid_configuration_key(bucket: s3.S3Server) -> None:
    def errors(**props: str) -> dict[str, list[str]]:
        settings = source_props(bucket) | props
        return validation_errors(S3SourceConnector, settings)

    assert errors() == {}
    assert "404" in errors(**{"s3.bucket.name": "nope"})["s3.bucket.name"][0]
    assert list(errors(**{"store.url": "http://127.0.0.1:1", "s3.part.retries": "0"})) == ["store.url"]
    assert "topic.regex.list" in errors(mode="GENERIC")
    provider = {"s3.credentials.provider.class": "AwsAssumeRoleCredentialsProvider"}
    assert "sts.role.arn" in errors(**provider)["s3.credentials.provider.class"][0]
    assert "Avro" in errors(**{"format.class": "AvroFormat"})["format.class"][0]


def test_alter_offsets_accepts_valid_source_offsets_and_rejects_invalid_source_offsets(bucket: s3.S3Server) -> None:
    config = S3SourceConfig.parse(source_props(bucket))
    partition = (("bucket", "lake"), ("prefix", "topics/items/partition=0/items+0+"))
    valid = {"start": "0000000003", "record": 1, "complete": False}
    assert S3SourceConnector().alter_offsets(config, {partition: valid})
    assert json.dumps(valid)
    for invalid in ({"start": "x", "record": 1, "complete": False}, {"position": 3}):
        with pytest.raises(ConnectError, match="start"):
            S3SourceConnector().alter_offsets(config, {partition: invalid})
    with pytest.raises(ConnectError, match="source partition"):
        S3SourceConnector().alter_offsets(config, {(("filename", "x"),): valid})


def test_requests_to_the_object_store_use_the_credentials_of_the_assumed_role(bucket: s3.S3Server) -> None:
    role = {"s3__credentials__provider__class": "io.confluent.connect.s3.auth.AwsAssumeRoleCredentialsProvider",
            "s3__credentials__provider__sts__role__arn": "arn:aws:iam::123456789012:role/lake"}  # fmt: skip
    config = S3SourceConfig.parse(source_props(bucket, **role))
    credentials = Bucket(config)._client._request_signer._credentials.get_frozen_credentials()
    assert credentials.token is not None
    assert credentials.access_key != "key"
    back_up(bucket, [sink_record(offset) for offset in range(3)], **role)
    assert [record.value["id"] for record in restore(bucket, **role)] == [0, 1, 2]


def test_objects_encrypted_with_a_customer_key_are_restored(bucket: s3.S3Server) -> None:
    key = base64.b64encode(bytes(range(32))).decode()
    back_up(bucket, [sink_record(offset) for offset in range(3)], s3__sse__customer__key=key, s3__send__digest="true")
    assert [record.value["id"] for record in restore(bucket, s3__sse__customer__key=key)] == [0, 1, 2]


@pytest.mark.parametrize("affix", ["PREFIX", "SUFFIX"])
def test_records_in_directories_whose_names_contain_the_schema_name_are_restored(
    bucket: s3.S3Server, affix: str
) -> None:
    back_up(bucket, [sink_record(offset) for offset in range(3)], s3__schema__partition__affix__type=affix)
    directories = ["schema_name=shop.Item", "partition=0"][:: 1 if affix == "PREFIX" else -1]
    assert list(bucket.objects()) == [f"topics/items/{'/'.join(directories)}/items+0+0000000000.json"]
    assert [record.value["id"] for record in restore(bucket)] == [0, 1, 2]
