"""A real broker whose disk is full: it starts with what is there, serves it, says which directory has no room, and
takes records again when it has some."""

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

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

DISK_BYTES = 12 * 1024 * 1024
COUNT = 400
KAFKA_STORAGE_ERROR = 56


def produce(client: RawClient, topic: str, count: int) -> int:
    """Produce batches until one is refused, and return how many were taken."""
    for number in range(count):
        columns = RecordColumns(values=[b"x" * 1000], keys=[str(number % 50).encode()], timestamps=1_700_000_000_000)
        records = build_batch(columns)
        answer = client.call(produce_request(topic, records), 9).responses[0].partition_responses[0]
        if answer.error_code:
            assert answer.error_code == KAFKA_STORAGE_ERROR
            return number
    return count


def end_of(client: RawClient, topic: str) -> int:
    """The high watermark; what lies before it can be read."""
    end: int = client.call(fetch_request(topic), 12).responses[0].partitions[0].high_watermark
    offset = 0
    while offset < end:
        found = client.call(fetch_request(topic, offset=offset), 12).responses[0].partitions[0]
        assert found.error_code == 0
        assert found.records
        offset = list(iter_batches(found.records))[-1][1].next_offset
    return end


def await_that(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def broker_on(disk: Path, directory: Path, **properties: str) -> BrokerProcess:
    broker = BrokerProcess(directory, {key.replace("_", "."): value for key, value in properties.items()})
    broker.data_dir = disk / "data"
    broker.properties["log.dirs"] = str(broker.data_dir)
    return broker


def test_a_full_disk_at_start(tmp_path: Path) -> None:
    """Records on the full disk, the metadata elsewhere."""
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
                checkpoint.unlink()  # what a crash may take, and a start makes anew
            fill(disk)
            broker.start()
            assert "No space left on device" in broker.log
            with RawClient(broker.address) as client:
                assert end_of(client, "plain") == COUNT
                taken = produce(client, "plain", 100)
                assert taken < 100
                await_that(lambda: "is offline: cannot" in broker.log, "nobody says that the directory is offline")
                assert f"Log directory {broker.data_dir} is offline" in broker.log
                assert end_of(client, "plain") == COUNT + taken
                free(disk)
                await_that(lambda: f"Log directory {broker.data_dir} is back" in broker.log, "it does not come back")
                assert produce(client, "plain", 100) == 100
            broker.restart()
            with RawClient(broker.address) as client:
                assert end_of(client, "plain") == COUNT + taken + 100
        finally:
            broker.close()


def test_a_metadata_log_without_room_is_one_line(tmp_path: Path) -> None:
    """It has to be written before anything is served: the line names the directory, and room is all that is missing."""
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        broker = broker_on(disk, tmp_path)
        try:
            broker.start()
            with RawClient(broker.address) as client:
                create_topic(client, "plain")
                assert produce(client, "plain", COUNT) == COUNT
            broker.kill()
            fill(disk)
            with pytest.raises(AssertionError, match=rf"{broker.data_dir}/__cluster_metadata-0: No space left"):
                broker.start()
            broker.kill()
            free(disk)
            broker.start()
            with RawClient(broker.address) as client:
                assert end_of(client, "plain") == COUNT
        finally:
            broker.close()
