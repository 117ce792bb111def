"""Tests that keys of the S3 connectors change the objects that the sink writes, and what the source reads.

The source restores the records with the same values of the keys.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow.parquet as pq
import pytest

from headrace.api.errors import ConnectError
from headrace.data.logical import decimal_schema
from headrace.data.records import SinkRecord, SourceRecord
from headrace.data.schema import BYTES_SCHEMA, STRING_SCHEMA, struct
from headrace.data.struct import Struct
from headrace.testing import run_sink, run_source
from headrace_connectors.s3.sink import S3SinkConnector
from headrace_connectors.s3.source import S3SourceConnector
from support import s3
from support.s3_faults import S3Fault, faulty

pytestmark = pytest.mark.integration

TEXT = struct([("text", STRING_SCHEMA)])


@pytest.fixture(scope="module")
def server() -> Iterator[s3.S3Server]:
    with s3.running() as running:
        yield running


@pytest.fixture
def bucket(server: s3.S3Server) -> s3.S3Server:
    server.clear()
    return server


def record(offset: int, **more: Any) -> SinkRecord:
    position = {"original_topic": "items", "original_partition": 0, "original_offset": offset}
    fields = {"value": Struct(TEXT, {"text": f"v{offset}"}), "value_schema": TEXT} | position | more
    return SinkRecord(topic="items", partition=0, offset=offset, **fields)


def props(server: s3.S3Server, **more: str) -> dict[str, str]:
    settings = server.props() | {"format.class": "JsonFormat"}
    return settings | {key.replace("__", "."): value for key, value in more.items()}


def write(server: s3.S3Server, records: Sequence[SinkRecord], **more: str) -> dict[str, bytes]:
    """Write the records to one object, and return all objects."""
    run_sink(S3SinkConnector, props(server, flush__size=str(len(records)), **more), records)
    return server.objects()


def read(server: s3.S3Server, **more: str) -> list[SourceRecord]:
    return run_source(S3SourceConnector, props(server, **more), records=1000).records


@pytest.mark.parametrize(
    ("form", "expected"), [("BASE64", base64.b64encode((1234).to_bytes(2)).decode()), ("NUMERIC", 12.34)]
)
def test_json_decimal_format_sets_how_json_objects_contain_decimals(
    bucket: s3.S3Server, form: str, expected: Any
) -> None:
    schema = struct([("price", decimal_schema(2))])
    value = Struct(schema, {"price": Decimal("12.34")})
    objects = write(bucket, [record(0, value=value, value_schema=schema)], json__decimal__format=form)
    assert [json.loads(data) for data in objects.values()] == [{"price": expected}]


@pytest.mark.parametrize(
    ("codec", "extension", "compression"),
    [
        ("none", ".parquet", "UNCOMPRESSED"),
        ("gzip", ".gz.parquet", "GZIP"),
        ("snappy", ".snappy.parquet", "SNAPPY"),
        ("lz4", ".lz4.parquet", "LZ4"),
        ("zstd", ".zstd.parquet", "ZSTD"),
        ("brotli", ".brotli.parquet", "BROTLI"),
    ],
)
def test_parquet_codec_sets_extension_and_compression_of_objects_that_the_source_restores(
    bucket: s3.S3Server, codec: str, extension: str, compression: str
) -> None:
    objects = write(bucket, [record(0)], format__class="ParquetFormat", parquet__codec=codec)
    assert list(objects) == [f"topics/items/partition=0/items+0+0000000000{extension}"]
    metadata = pq.ParquetFile(io.BytesIO(*objects.values())).metadata
    assert metadata.row_group(0).column(0).compression == compression
    assert [each.value["text"] for each in read(bucket, format__class="ParquetFormat")] == ["v0"]


def test_s3_compression_level_sets_the_level_of_gzip_objects(bucket: s3.S3Server) -> None:
    data = {}
    for level in ("0", "1", "9"):
        records = [record(offset) for offset in range(500)]
        objects = write(bucket, records, s3__compression__type="gzip", s3__compression__level=level)
        (data[level],) = objects.values()
    assert len(data["0"]) > 5 * len(data["1"])
    assert (data["1"][8], data["9"][8]) == (4, 2)  # byte XFL of the gzip header: fastest, smallest


@pytest.mark.parametrize(
    ("key", "value", "name"),
    [
        ("topics__dir", "", "items/partition=0/items+0+0000000000.json"),
        ("file__delim", "--", "topics/items/partition=0/items--0--0000000000.json"),
        ("directory__delim", "_", "topics_items_partition=0_items+0+0000000000.json"),
    ],
)
def test_topics_dir_and_delimiters_set_the_object_names_that_sink_and_source_use(
    bucket: s3.S3Server, key: str, value: str, name: str
) -> None:
    assert list(write(bucket, [record(0)], **{key: value})) == [name]
    (restored,) = read(bucket, **{key: value})
    assert (restored.topic, restored.partition, restored.value) == ("items", 0, {"text": "v0"})
    bucket.clear()
    assert list(write(bucket, [record(0)])) == ["topics/items/partition=0/items+0+0000000000.json"]
    assert read(bucket, **{key: value}) == []


@pytest.mark.parametrize(("width", "digits"), [("0", "7"), ("1", "7"), ("4", "0007")])
def test_filename_offset_zero_pad_width_sets_the_number_of_digits_in_object_names(
    bucket: s3.S3Server, width: str, digits: str
) -> None:
    objects = write(bucket, [record(7)], filename__offset__zero__pad__width=width)
    assert list(objects) == [f"topics/items/partition=0/items+0+{digits}.json"]
    assert [each.value["text"] for each in read(bucket)] == ["v7"]


def test_format_bytearray_extension_sets_the_extension_that_the_sink_writes_and_the_source_reads(
    bucket: s3.S3Server,
) -> None:
    form = {"format__class": "ByteArrayFormat", "format__bytearray__extension": ".dat"}
    objects = write(bucket, [record(0, value=b"bytes", value_schema=BYTES_SCHEMA)], **form)
    assert objects == {"topics/items/partition=0/items+0+0000000000.dat": b"bytes\n"}
    assert [each.value for each in read(bucket, **form)] == [b"bytes"]
    assert read(bucket, format__class="ByteArrayFormat") == []


def test_tombstone_encoded_partition_sets_the_directory_of_records_with_null_values(bucket: s3.S3Server) -> None:
    tombstone = record(0, key="a", key_schema=STRING_SCHEMA, value=None, value_schema=None)
    directory = {"tombstone__encoded__partition": "deleted"}
    keys = {"store__kafka__keys": "true", "keys__format__class": "JsonFormat"}
    objects = write(bucket, [tombstone], behavior__on__null__values="write", **directory, **keys)
    assert objects == {"topics/items/deleted/items+0+0000000000.keys.json": b'"a"\n'}
    assert [(each.key, each.value) for each in read(bucket, **directory)] == [("a", None)]
    assert read(bucket) == []


@pytest.mark.parametrize("behavior", ["ignore", "fail"])
def test_behavior_on_tagging_error_sets_whether_an_object_without_tags_fails_the_task(
    bucket: s3.S3Server, caplog: pytest.LogCaptureFixture, behavior: str
) -> None:
    tagging = {"s3__object__tagging": "true", "s3__object__behavior__on__tagging__error": behavior}
    message = r"Cannot tag topics/items/partition=0/items\+0\+0000000000\.json in s3://lake at http.*: AccessDenied"
    with faulty(bucket) as proxy:
        proxy.add(S3Fault(lambda method, path: path.endswith("?tagging"), 1, status=403, code="AccessDenied"))
        if behavior == "fail":
            with pytest.raises(ConnectError, match=message):
                write(proxy.server, [record(0)], **tagging)
        else:
            assert list(write(proxy.server, [record(0)], **tagging).values()) == [b'{"text":"v0"}\n']
            assert "ignoring the error, because s3.object.behavior.on.tagging.error=ignore" in caplog.text
        assert proxy.applied == 1


def test_file_discovery_starting_timestamp_skips_objects_that_were_modified_earlier(bucket: s3.S3Server) -> None:
    client = bucket.client()
    client.put_object(Bucket=s3.BUCKET, Key="a.json", Body=b'"text"\n')
    (modified,) = (item["LastModified"] for item in client.list_objects_v2(Bucket=s3.BUCKET)["Contents"])
    modified_ms = int(modified.timestamp() * 1000)
    generic = {"mode": "GENERIC", "topic__regex__list": "t:.*", "file__discovery__settle__ms": "0"}
    for start_ms, expected in ((modified_ms, ["text"]), (modified_ms + 1, [])):
        found = read(bucket, file__discovery__starting__timestamp=str(start_ms), **generic)
        assert [each.value for each in found] == expected
