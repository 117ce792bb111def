"""Tests of a broker with a full disk.

If only topic logs are on the full disk, the broker starts, returns records, and accepts records again once the disk has
free space. If the metadata log is on the full disk, the broker does not start. In both cases, the broker's log output
names the directory.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace_broker.records.batch import iter_batches
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns
from support.broker import BrokerProcess
from support.raw_client import RawClient, create_topic, fetch_request, produce_request
from support.small_disk import fill, free, small_disk

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

DISK_BYTES = 12 * 1024 * 1024
COUNT = 400
KAFKA_STORAGE_ERROR = 56


def produce(client: RawClient, topic: str, count: int) -> int:
    """Produce up to `count` batches, but stop when a batch is rejected. Return the number of accepted batches."""
    for number in range(count):
        columns = RecordColumns(values=[b"x" * 1000], keys=[str(number % 50).encode()], timestamps=1_700_000_000_000)
        records = build_batch(columns)
        response = client.call(produce_request(topic, records), 9).responses[0].partition_responses[0]
        if response.error_code:
            assert response.error_code == KAFKA_STORAGE_ERROR
            return number
    return count


def read_to_end(client: RawClient, topic: str) -> int:
    """Read all records up to the high watermark, and return the high watermark."""
    end: int = client.call(fetch_request(topic), 12).responses[0].partitions[0].high_watermark
    offset = 0
    while offset < end:
        found = client.call(fetch_request(topic, offset=offset), 12).responses[0].partitions[0]
        assert found.error_code == 0
        assert found.records
        offset = list(iter_batches(found.records))[-1][1].next_offset
    return end


def wait_until(condition: Callable[[], bool], description: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, f"not within 20 s: {description}"
        time.sleep(0.05)


def broker_on(disk: Path, directory: Path, **properties: str) -> BrokerProcess:
    broker = BrokerProcess(directory, {key.replace("_", "."): value for key, value in properties.items()})
    broker.data_dir = disk / "data"
    broker.properties["log.dirs"] = str(broker.data_dir)
    return broker


def test_broker_starts_on_a_full_disk_and_accepts_records_after_space_is_freed(
    tmp_path: Path,
) -> None:
    """The topic's log is on the full disk. The metadata log is on another disk."""
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        broker = broker_on(
            disk,
            tmp_path,
            metadata_log_dir=str(tmp_path / "metadata"),
            log_cleaner_backoff_ms="100",
            log_cleaner_min_cleanable_ratio="0.01",
        )
        try:
            broker.start()
            with RawClient(broker.address) as client:
                create_topic(client, "plain")
                create_topic(client, "compacted", **{"cleanup.policy": "compact"})
                assert produce(client, "plain", COUNT) == COUNT
                assert produce(client, "compacted", COUNT) == COUNT
            broker.kill()
            for checkpoint in broker.data_dir.glob("*/leader-epoch-checkpoint"):
                checkpoint.unlink()  # a crash may lose the checkpoint; the next start rebuilds it
            fill(disk)
            broker.start()
            assert "No space left on device" in broker.log
            with RawClient(broker.address) as client:
                assert read_to_end(client, "plain") == COUNT
                accepted = produce(client, "plain", 100)
                assert accepted < 100
                offline = f"Log directory {broker.data_dir} is offline: cannot"
                wait_until(lambda: offline in broker.log, "the log directory is offline")
                assert read_to_end(client, "plain") == COUNT + accepted
                free(disk)
                online = f"Log directory {broker.data_dir} is online again"
                wait_until(lambda: online in broker.log, "the log directory is online again")
                assert produce(client, "plain", 100) == 100
            broker.restart()
            with RawClient(broker.address) as client:
                assert read_to_end(client, "plain") == COUNT + accepted + 100
        finally:
            broker.close()


def test_broker_whose_metadata_log_is_on_a_full_disk_fails_to_start_and_its_error_names_the_directory(
    tmp_path: Path,
) -> None:
    """A broker writes to the metadata log before it serves requests.

    The error line names the directory and the cause.
    """
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        broker = broker_on(disk, tmp_path)
        try:
            broker.start()
            with RawClient(broker.address) as client:
                create_topic(client, "plain")
                assert produce(client, "plain", COUNT) == COUNT
            broker.kill()
            fill(disk)
            with pytest.raises(AssertionError, match=rf"{broker.data_dir}/__cluster_metadata-0\): No space left"):
                broker.start()
            broker.kill()
            free(disk)
            broker.start()
            with RawClient(broker.address) as client:
                assert read_to_end(client, "plain") == COUNT
        finally:
            broker.close()
