"""Tests of the S3 connectors with rclone, a second S3 server, which checks signatures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.api.errors import ConnectError
from headrace.data.records import SinkRecord
from headrace.data.schema import INT32_SCHEMA, STRING_SCHEMA, struct
from headrace.data.struct import Struct
from headrace.testing import run_sink, run_source
from headrace_connectors.s3.sink import S3SinkConnector
from headrace_connectors.s3.source import S3SourceConnector
from support import rclone, s3
from support.validation import validation_errors

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.skipif(rclone.unavailable_reason() is not None, reason=str(rclone.unavailable_reason())),
]

ROW = struct([("id", INT32_SCHEMA), ("text", STRING_SCHEMA)], name="shop.Item")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[s3.S3Server]:
    with rclone.running(tmp_path / "buckets") as server:
        yield server


def record(offset: int, size: int = 10, partition: int = 0) -> SinkRecord:
    position: dict[str, Any] = {"original_topic": "t", "original_partition": partition, "original_offset": offset}
    value = Struct(ROW, {"id": offset, "text": "x" * size})
    return SinkRecord(topic="t", partition=partition, offset=offset, key=f"k{offset}", key_schema=STRING_SCHEMA,
                      value=value, value_schema=ROW, **position)  # fmt: skip


def sink_props(store: s3.S3Server, **more: str) -> dict[str, str]:
    props = store.props() | {"format.class": "JsonFormat", "flush.size": "10"}
    return props | {key.replace("__", "."): value for key, value in more.items()}


def source_props(store: s3.S3Server, **more: str) -> dict[str, str]:
    props = sink_props(store, **more)
    for name in ("flush.size", "storage.class"):
        del props[name]
    return props


@pytest.mark.parametrize("form", ["JsonFormat", "ParquetFormat"])
def test_s3_sink_writes_and_s3_source_restores_every_record_with_its_key(store: s3.S3Server, form: str) -> None:
    records = [record(offset, partition=partition) for partition in range(2) for offset in range(50)]
    run = run_sink(S3SinkConnector, sink_props(store, format__class=form, store__kafka__keys="true"), records)
    assert run.committed == {("t", 0): 50, ("t", 1): 50}
    restored = run_source(S3SourceConnector, source_props(store, format__class=form), records=1000).records
    assert sorted((each.partition or 0, each.value["id"], each.key) for each in restored) == [
        (partition, offset, f"k{offset}") for partition in range(2) for offset in range(50)
    ]


def test_large_file_is_uploaded_in_parts_and_restored(store: s3.S3Server) -> None:
    records = [record(offset, 400_000) for offset in range(40)]
    run_sink(S3SinkConnector, sink_props(store, flush__size="40", s3__part__size="5242880"), records)
    assert [len(data) > 15_000_000 for data in store.objects().values()] == [True]
    restored = run_source(S3SourceConnector, source_props(store), records=1000).records
    assert [each.value["id"] for each in restored] == list(range(40))


def test_s3_source_reads_all_objects_of_a_listing_with_several_pages(store: s3.S3Server, tmp_path: Path) -> None:
    for partition in range(2):
        folder = tmp_path / "buckets" / s3.BUCKET / "topics" / "t" / f"partition={partition}"
        folder.mkdir(parents=True)
        for offset in range(1100):
            (folder / f"t+{partition}+{offset:010d}.json").write_bytes(b'{"id":%d}\n' % offset)
    first = run_source(S3SourceConnector, source_props(store), records=1300)
    last = run_source(S3SourceConnector, source_props(store), records=10_000, offsets=first.offsets)
    for partition in range(2):
        both = [*first.records, *last.records]
        assert [each.value["id"] for each in both if each.partition == partition] == list(range(1100))


def test_validation_with_wrong_credentials_reports_an_error_at_the_key_aws_access_key_id(store: s3.S3Server) -> None:
    sink = sink_props(store, aws__secret__access__key="wrong")
    assert list(validation_errors(S3SinkConnector, sink)) == ["aws.access.key.id"]
    source = source_props(store, aws__access__key__id="wrong")
    assert list(validation_errors(S3SourceConnector, source)) == ["aws.access.key.id"]


def test_changed_secret_key_fails_the_task_and_a_task_with_the_new_key_loses_no_record(tmp_path: Path) -> None:
    records = [record(offset) for offset in range(30)]
    with rclone.running(tmp_path / "buckets") as before:
        run_sink(S3SinkConnector, sink_props(before), records[:10])
    with rclone.running(tmp_path / "buckets", secret="rotated") as after:
        old = s3.S3Server(after.url, rclone.ACCESS_KEY, rclone.SECRET)
        with pytest.raises(ConnectError, match=r"Cannot write topics/t/.* in s3://lake at http.*SignatureDoesNotMatch"):
            run_sink(S3SinkConnector, sink_props(old), records)
        run_sink(S3SinkConnector, sink_props(after), records)
        restored = run_source(S3SourceConnector, source_props(after), records=1000).records
        assert [each.value["id"] for each in restored] == list(range(30))
