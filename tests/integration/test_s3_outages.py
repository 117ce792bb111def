"""Tests that S3 connectors lose and repeat no record if the store is restarted or its disk is full.

The store is rclone, which keeps objects as files of a directory. The worker has an embedded broker.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from botocore.exceptions import ClientError
from confluent_kafka import Producer

from support import rclone, s3, small_disk
from support.ports import free_port
from support.topics import end_offset, read_topic
from support.worker import Worker, wait_for

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.skipif(rclone.unavailable_reason() is not None, reason=str(rclone.unavailable_reason())),
]

FLUSH_SIZE = 150
PART_BYTES = 5_242_880
RETRYING = "ms (attempt 2)"


class Store:
    """rclone's server on a fixed port. The objects in `directory` remain when the server stops."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = free_port()
        self._running = ExitStack()
        self.server = s3.S3Server(f"http://127.0.0.1:{self._port}", rclone.ACCESS_KEY, rclone.SECRET)

    def start(self) -> None:
        self._running.enter_context(rclone.running(self._directory, self._port))

    def stop(self) -> None:
        """Kill the server."""
        self._running.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "buckets")
    yield store
    store.stop()


def sink_file(directory: Path, store: Store) -> Path:
    props = store.server.props() | {
        "name": "sink",
        "connector.class": "io.confluent.connect.s3.S3SinkConnector",
        "topics": "items",
        "format.class": "io.confluent.connect.s3.format.json.JsonFormat",
        "flush.size": str(FLUSH_SIZE),
        "s3.part.size": str(PART_BYTES),
        "s3.part.retries": "0",
    }
    return properties_file(directory / "sink.properties", props)


def source_file(directory: Path, store: Store) -> Path:
    props = store.server.props() | {
        "name": "source",
        "connector.class": "io.confluent.connect.s3.source.S3SourceConnector",
        "format.class": "io.confluent.connect.s3.format.json.JsonFormat",
        "record.batch.max.size": "10",
        "s3.poll.interval.ms": "100",
        "s3.part.retries": "0",
    }
    return properties_file(directory / "source.properties", props)


def properties_file(path: Path, props: dict[str, str]) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in props.items()))
    return path


def write(worker: Worker, numbers: range, size: int) -> None:
    """Write records with these numbers to the topic. Each record has `size` bytes of text."""
    producer = Producer({"bootstrap.servers": worker.bootstrap_servers()})
    for number in numbers:
        producer.produce("items", json.dumps({"id": number, "text": "x" * size}))
        producer.poll(0)
    assert producer.flush(60) == 0


def wait_for_objects(store: Store, count: int) -> None:
    wait_for(lambda: len(store.server.objects()) >= count, f"the store has {count} objects", 60)


def wait_for_retries(worker: Worker, count: int) -> None:
    """Wait until the sink has begun to retry uploads for the `count`-th time."""
    wait_for_log(worker, RETRYING, count)


def wait_for_log(worker: Worker, text: str, count: int) -> None:
    wait_for(lambda: worker.log().count(text) == count, f"the log contains {text} {count} times", 60, worker.log)


def assert_every_record_once(store: Store, files: int) -> None:
    """Wait until the store has `files` objects. They must contain every record once, in order."""
    wait_for_objects(store, files)
    objects = store.server.objects()
    assert [key.rsplit("+", 1)[1] for key in sorted(objects)] == [
        f"{number * FLUSH_SIZE:010}.json" for number in range(files)
    ]
    found = [json.loads(line)["id"] for key in sorted(objects) for line in objects[key].splitlines()]
    assert found == list(range(files * FLUSH_SIZE))


def has_upload(store: Store) -> bool:
    """Whether the bucket has a multipart upload in progress."""
    try:
        return bool(store.server.client().list_multipart_uploads(Bucket=s3.BUCKET).get("Uploads"))
    except ClientError as error:
        if error.response["Error"]["Code"] != "NoSuchUpload":  # rclone's response for a bucket without uploads
            raise
        return False


def test_s3_sink_loses_and_repeats_no_record_if_the_store_is_restarted(tmp_path: Path, store: Store) -> None:
    store.start()
    with Worker(tmp_path, {}, [sink_file(tmp_path, store)]) as worker:
        for restart in range(3):
            files = 4 * restart
            write(worker, range(files * FLUSH_SIZE, (files + 2) * FLUSH_SIZE + 7), 100)
            wait_for_objects(store, files + 2)
            store.stop()
            write(worker, range((files + 2) * FLUSH_SIZE + 7, (files + 4) * FLUSH_SIZE), 100)
            wait_for_retries(worker, restart + 1)
            store.start()
            assert_every_record_once(store, files + 4)
        assert worker.status("sink")["tasks"][0]["state"] == "RUNNING"
    address = f"s3://lake at {store.server.url}"
    for line in worker.log().splitlines():
        assert RETRYING not in line or address in line


def test_s3_sink_loses_and_repeats_no_record_if_the_store_is_restarted_during_a_multipart_upload(
    tmp_path: Path, store: Store
) -> None:
    """rclone forgets the parts when it stops, so the sink must read the records of the file again."""
    store.start()
    with Worker(tmp_path, {}, [sink_file(tmp_path, store)]) as worker:
        write(worker, range(100), 100_000)
        wait_for(lambda: has_upload(store), "the sink has begun a multipart upload", 60, worker.log)
        store.stop()
        write(worker, range(100, FLUSH_SIZE), 100_000)
        wait_for_retries(worker, 1)
        store.start()
        assert_every_record_once(store, 1)
    assert "reading the records of items-0 again from offset 0" in worker.log()


def test_s3_sink_retries_uploads_until_the_full_disk_of_the_store_has_space(tmp_path: Path) -> None:
    with small_disk.small_disk(tmp_path / "disk", 4_000_000) as disk:
        store = Store(disk / "buckets")
        store.start()
        try:
            small_disk.fill(disk)
            with Worker(tmp_path, {}, [sink_file(tmp_path, store)]) as worker:
                write(worker, range(2 * FLUSH_SIZE), 1000)
                wait_for_retries(worker, 1)
                (warning,) = [line for line in worker.log().splitlines() if RETRYING in line]
                assert "Cannot write topics/items/partition=0/items+0+0000000000.json in s3://lake at http" in warning
                assert worker.status("sink")["tasks"][0]["state"] == "RUNNING"
                small_disk.free(disk)
                assert_every_record_once(store, 2)
        finally:
            store.stop()


def test_s3_source_loses_and_repeats_no_record_if_the_store_is_restarted(tmp_path: Path, store: Store) -> None:
    store.start()
    files = [put_file(store, number) for number in range(20)]
    with Worker(tmp_path, {}, [source_file(tmp_path, store)]) as worker:
        wait_for(lambda: end_offset(worker.bootstrap_servers(), "items", 0) > 0, "the source restores records", 60)
        for restart in range(3):
            store.stop()
            retries = restart + 1
            wait_for_log(worker, RETRYING, retries)
            store.start()
            files.append(put_file(store, len(files)))
            wait_for_log(worker, f"The bucket s3://lake at {store.server.url} can be read again", retries)
        rows = FLUSH_SIZE * len(files)
        wait_for(lambda: end_offset(worker.bootstrap_servers(), "items", 0) >= rows, f"{rows} records", 60, worker.log)
        restored = [
            json.loads(message.value() or b"")["id"] for message in read_topic(worker.bootstrap_servers(), "items")
        ]
    assert restored == list(range(rows))


def put_file(store: Store, number: int) -> str:
    """Write an object with the file `number` of the topic, as the S3 sink does. Return its key."""
    first = number * FLUSH_SIZE
    key = f"topics/items/partition=0/items+0+{first:010}.json"
    lines = "".join(json.dumps({"id": each}) + "\n" for each in range(first, first + FLUSH_SIZE))
    store.server.client().put_object(Bucket=s3.BUCKET, Key=key, Body=lines.encode())
    return key
