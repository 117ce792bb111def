"""Tests that S3 connectors lose no record if the store rejects, delays or interrupts requests.

Errors must name the bucket.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.api.errors import ConnectError
from headrace.data.records import SinkRecord
from headrace.data.schema import STRING_SCHEMA, struct
from headrace.data.struct import Struct
from headrace.testing import run_sink, run_source
from headrace_connectors.s3 import bucket
from headrace_connectors.s3.sink import S3SinkConnector
from headrace_connectors.s3.source import S3SourceConnector
from support import s3
from support.s3_faults import FaultyS3, S3Fault, faulty

pytestmark = pytest.mark.integration

TEXT = struct([("text", STRING_SCHEMA)])
PART = 5_242_880


@pytest.fixture(scope="module")
def server() -> Iterator[s3.S3Server]:
    with s3.running() as running:
        yield running


@pytest.fixture(scope="module")
def proxy(server: s3.S3Server) -> Iterator[FaultyS3]:
    with faulty(server) as running:
        yield running


@pytest.fixture
def store(server: s3.S3Server, proxy: FaultyS3) -> FaultyS3:
    server.clear()
    proxy.clear()
    proxy.applied = 0
    return proxy


def records(count: int, size: int = 10) -> list[SinkRecord]:
    found = []
    for offset in range(count):
        value = Struct(TEXT, {"text": f"{offset:09} " + "x" * size})
        position: dict[str, Any] = {"original_topic": "t", "original_partition": 0, "original_offset": offset}
        found.append(SinkRecord(topic="t", partition=0, offset=offset, value=value, value_schema=TEXT, **position))
    return found


def settings(store: FaultyS3, **more: str) -> dict[str, str]:
    props = store.server.props() | {"format.class": "JsonFormat", "flush.size": "10", "s3.part.retries": "0"}
    return props | {key.replace("__", "."): value for key, value in more.items()}


def sink(store: FaultyS3, count: int, size: int = 10, **more: str) -> Any:
    return run_sink(S3SinkConnector, settings(store, **more), records(count, size))


def source(store: FaultyS3, **more: str) -> Any:
    props = settings(store, record__batch__max__size="7", **more)
    for name in ("flush.size", "storage.class"):
        del props[name]
    return run_source(S3SourceConnector, props, records=10_000)


def is_write(method: str, path: str) -> bool:
    return method in ("PUT", "POST") and "/lake/" in path


def is_read(method: str, path: str) -> bool:
    return method == "GET" and ("/lake/" in path or "list-type" in path)


def is_object_read(method: str, path: str) -> bool:
    return method == "GET" and "/lake/" in path and ".json" in path


TEMPORARY = {
    "slow down": S3Fault(is_write, 3, status=503, code="SlowDown"),
    "internal error": S3Fault(is_write, 3, status=500, code="InternalError"),
    "connection cut before the response": S3Fault(is_write, 3, cuts_request=True),
    "slow server": S3Fault(is_write, 3, delay_s=0.1),
}


@pytest.mark.parametrize("name", TEMPORARY)
@pytest.mark.parametrize("multipart", [False, True], ids=["whole objects", "multipart"])
def test_s3_sink_retries_uploads_after_temporary_failures_and_writes_the_same_objects(
    server: s3.S3Server, store: FaultyS3, name: str, multipart: bool
) -> None:
    size, more = (400_000, {"flush__size": "30", "s3__part__size": str(PART)}) if multipart else (10, {})
    more["s3__part__retries"] = "1"  # the client repeats the first failure, and the task the second one
    expected = sink(store, 30, size, **more)
    objects = server.objects()
    server.clear()
    template = TEMPORARY[name]
    store.add(S3Fault(template.matches, 3, template.status, template.code, template.delay_s, template.cuts_request))
    run = sink(store, 30, size, **more)
    assert store.applied == 3
    assert server.objects() == objects
    assert run.committed == expected.committed == {("t", 0): 30}
    assert len(server.client().list_multipart_uploads(Bucket=s3.BUCKET).get("Uploads", ())) == 0


@pytest.mark.parametrize(
    "fault",
    [
        S3Fault(is_read, 2, status=503, code="SlowDown"),
        S3Fault(is_read, 2, cuts_request=True),
        S3Fault(is_object_read, 2, cuts_response_at=100),
        S3Fault(is_object_read, 2, cuts_response_at=0),
    ],
    ids=["slow down", "no response", "cut in the middle", "cut at the beginning"],
)
def test_s3_source_retries_failed_reads_without_loss_or_duplicates(store: FaultyS3, fault: S3Fault) -> None:
    sink(store, 30)
    store.add(S3Fault(fault.matches, 2, fault.status, fault.code, 0, fault.cuts_request, fault.cuts_response_at))
    run = source(store)
    assert store.applied == 2
    assert [int(record.value["text"][:9]) for record in run.records] == list(range(30))


def test_sink_and_source_retry_requests_that_get_no_response_within_the_read_timeout(
    server: s3.S3Server, store: FaultyS3, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bucket, "READ_TIMEOUT_S", 0.3)
    store.add(S3Fault(is_write, 1, delay_s=0.6, cuts_request=True))
    run = sink(store, 30)
    assert (store.applied, run.committed) == (1, {("t", 0): 30})
    assert sum(data.count(b"\n") for data in server.objects().values()) == 30
    store.add(S3Fault(is_object_read, 1, delay_s=0.6, cuts_request=True))
    restored = source(store).records
    assert (store.applied, [int(each.value["text"][:9]) for each in restored]) == (2, list(range(30)))
    for verb in ("write", "read"):
        key = f"topics/t/partition=0/t+0+0000000000.json in s3://lake at {store.server.url}"
        assert f"Cannot {verb} {key}: Read timeout on endpoint URL" in caplog.text


def test_s3_sink_retries_an_upload_if_the_store_responds_that_it_is_full(
    server: s3.S3Server, store: FaultyS3, caplog: pytest.LogCaptureFixture
) -> None:
    store.add(S3Fault(is_write, 1, status=507, code="InsufficientStorage"))
    run = sink(store, 30)
    assert (store.applied, run.committed) == (1, {("t", 0): 30})
    assert sum(data.count(b"\n") for data in server.objects().values()) == 30
    key = f"topics/t/partition=0/t+0+0000000000.json in s3://lake at {store.server.url}"
    assert f"Cannot write {key}: InsufficientStorage: fault of the test; retrying in" in caplog.text


@pytest.mark.parametrize("code", ["AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"])
def test_rejected_credentials_fail_the_task_with_an_error_that_names_bucket_and_object(
    store: FaultyS3, code: str
) -> None:
    store.add(S3Fault(is_write, 1000, status=403, code=code))
    message = rf"Cannot write topics/t/partition=0/t\+0\+0000000000\.json in s3://lake at http.*: {code}"
    with pytest.raises(ConnectError, match=message):
        sink(store, 10)
    store.clear()
    sink(store, 10)
    store.add(S3Fault(is_object_read, 1000, status=403, code=code))
    with pytest.raises(ConnectError, match=message.replace("write", "read")):
        source(store)


def test_credentials_that_become_invalid_fail_the_task_and_a_restart_with_valid_credentials_loses_no_record(
    server: s3.S3Server, store: FaultyS3
) -> None:
    after = iter(range(1000))
    store.add(
        S3Fault(lambda method, path: is_write(method, path) and next(after) >= 1, 1000, 403, "InvalidAccessKeyId")
    )
    with pytest.raises(ConnectError, match="InvalidAccessKeyId"):
        sink(store, 30)
    assert len(server.objects()) == 1
    store.clear()
    sink(store, 30)
    assert sum(data.count(b"\n") for data in server.objects().values()) == 30


def test_deleted_bucket_fails_sink_and_source(server: s3.S3Server, store: FaultyS3) -> None:
    server.client().delete_bucket(Bucket=s3.BUCKET)
    try:
        with pytest.raises(ConnectError, match=r"Cannot write topics/t/.* in s3://lake at http.*NoSuchBucket"):
            sink(store, 10)
        with pytest.raises(ConnectError, match=r"Cannot list topics/ in s3://lake at http.*NoSuchBucket"):
            source(store)
    finally:
        server.clear()


def test_s3_source_skips_and_logs_an_object_that_is_deleted_after_it_was_listed(
    server: s3.S3Server, store: FaultyS3, caplog: pytest.LogCaptureFixture
) -> None:
    sink(store, 30)
    key = "topics/t/partition=0/t+0+0000000010.json"
    deleted = threading.Event()

    def delete_before_the_read(method: str, path: str) -> bool:
        if method == "GET" and "0000000010" in path and not deleted.is_set():
            deleted.set()
            server.client().delete_object(Bucket=s3.BUCKET, Key=key)
        return False

    store.add(S3Fault(delete_before_the_read, 1))
    run = source(store)
    assert [int(record.value["text"][:9]) for record in run.records] == [*range(10), *range(20, 30)]
    assert f"Cannot read {key} in s3://lake" in caplog.text


def test_records_with_special_characters_in_the_partition_field_are_stored_in_topics_dir_and_can_be_restored(
    server: s3.S3Server, store: FaultyS3
) -> None:
    values = ["../../etc", "a b?c#d%2f&", "é\u2028\n", "x" * 300, "..", "<xml>&amp;", "a+0+0000000000"]
    schema = struct([("name", STRING_SCHEMA)])
    found = []
    for offset, name in enumerate(values):
        position: dict[str, Any] = {"original_topic": "a.b-c_d", "original_partition": 0, "original_offset": offset}
        value = Struct(schema, {"name": name})
        found.append(
            SinkRecord(topic="a.b-c_d", partition=0, offset=offset, value=value, value_schema=schema, **position)
        )
    run_sink(S3SinkConnector, settings(store, partitioner__class="FieldPartitioner", partition__field__name="name",
                                       flush__size="7"), found)  # fmt: skip
    for key in server.objects():
        assert key.startswith("topics/a.b-c_d/name=")
        assert key.count("/") == 3
    restored = source(store)
    assert sorted(record.value["name"] for record in restored.records) == sorted(values)


def test_record_whose_partition_field_is_too_long_for_an_object_key_is_reported(
    server: s3.S3Server, store: FaultyS3
) -> None:
    found = records(3)
    long = Struct(TEXT, {"text": "é" * 600})
    found[1] = found[1].replace(value=long)
    props = settings(store, partitioner__class="FieldPartitioner", partition__field__name="text", flush__size="1")
    run = run_sink(S3SinkConnector, props | {"errors.tolerance": "all"}, found)
    [(record, error)] = run.reported
    assert record.offset == 1
    assert "object key would have 1234 bytes" in str(error)
    assert len(server.objects()) == 2
