"""Tests of removed or truncated metadata log segments: the start fails instead of silently losing committed records."""

from __future__ import annotations

import pytest

from headrace_broker.log.directory import LogDirectory
from headrace_broker.log.storage import MemoryStorage
from headrace_broker.protocol.metadata_records import ProducerIdsRecord
from headrace_broker.records.batch import iter_batches
from headrace_broker.server.data_dirs import StartError
from headrace_broker.server.kraft.metadata_log import MetadataLog

DIRECTORY = "/data/__cluster_metadata-0"
NOW_MS = 1_700_000_000_000


def opened(storage: MemoryStorage, *, was_closed_cleanly: bool = True) -> MetadataLog:
    storage.makedirs("/data")
    directory = LogDirectory(storage, "/data")
    directory.was_closed_cleanly = was_closed_cleanly
    return MetadataLog(storage, directory, lambda: NOW_MS)


def path(base: int) -> str:
    return f"{DIRECTORY}/{base:020d}.log"


def closed() -> MemoryStorage:
    """Return the storage of a cleanly closed metadata log with three segments of two batches each."""
    storage = MemoryStorage()
    log = opened(storage)
    for number in range(6):
        if number in (2, 4):
            log.roll()
        log.append([ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=number)], 1)
    log.close()
    return storage


@pytest.mark.parametrize("was_closed_cleanly", [True, False])
@pytest.mark.parametrize("base", [2, 4])
def test_start_fails_when_a_segment_of_the_metadata_log_is_missing(base: int, was_closed_cleanly: bool) -> None:
    """A crash cannot leave only index files, because the broker deletes the .log file of a segment last."""
    storage = closed()
    storage.remove(path(base))
    with pytest.raises(StartError, match=f"{path(base)} is missing, but its index files exist: restore /"):
        opened(storage, was_closed_cleanly=was_closed_cleanly)


@pytest.mark.parametrize("base", [0, 2])
@pytest.mark.parametrize("cut", [1, 0])
def test_node_start_fails_if_a_metadata_log_segment_ends_before_the_next_segment_begins(base: int, cut: int) -> None:
    """The segment is truncated inside or before its last batch. The replay must not skip to the next segment."""
    storage = closed()
    data = storage.read(path(base))
    _, (last, _) = iter_batches(data)
    storage.write(path(base), data[: last + cut])
    with pytest.raises(StartError, match=f"{path(base)} ends before offset {base + 2}, where the next segment begins"):
        opened(storage)
    assert opened(storage, was_closed_cleanly=False).log_end_offset == base + 1  # a crash may lose the later batches


def test_metadata_log_with_complete_segments_is_loaded() -> None:
    storage = closed()
    assert opened(storage).log_end_offset == 6
    assert opened(storage, was_closed_cleanly=False).log_end_offset == 6


def test_error_for_a_metadata_log_that_is_found_corrupt_during_replay_says_how_to_fetch_the_log_again() -> None:
    """The corruption is in the last batch of a cleanly closed log, which recovery does not check."""
    storage = closed()
    data = bytearray(storage.read(path(4)))
    data[-2] ^= 1
    storage.write(path(4), data)
    log = opened(storage)
    with pytest.raises(
        StartError, match=r"is corrupt \(.*CRC.*\): restore /\S+ from a copy\. Or, .* delete everything in"
    ):
        list(log.batches(0, log.log_end_offset))
