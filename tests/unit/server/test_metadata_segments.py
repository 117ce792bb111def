"""Segments of the metadata log that somebody has removed or cut: what was committed may not be forgotten silently."""

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
    """Three segments of two batches each, closed in good order."""
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
def test_a_segment_that_is_gone_is_not_forgotten(base: int, was_closed_cleanly: bool) -> None:
    """Also after a crash: records go last, so that no power failure leaves indexes without them."""
    storage = closed()
    storage.remove(path(base))
    with pytest.raises(StartError, match=f"{path(base)} is gone, and its indexes are there: put back a copy"):
        opened(storage, was_closed_cleanly=was_closed_cleanly)


@pytest.mark.parametrize("base", [0, 2])
@pytest.mark.parametrize("cut", [1, 0])
def test_a_segment_that_ends_too_early_is_not_passed_over(base: int, cut: int) -> None:
    """Cut inside its last batch or right before it: replay would go on with the next segment."""
    storage = closed()
    data = storage.read(path(base))
    _, (last, _) = iter_batches(data)
    storage.write(path(base), data[: last + cut])
    with pytest.raises(StartError, match=f"{path(base)} ends before offset {base + 2}, where the next segment begins"):
        opened(storage)
    assert opened(storage, was_closed_cleanly=False).log_end_offset == base + 1  # what follows was never synced


def test_whole_segments_are_taken_as_they_are() -> None:
    storage = closed()
    assert opened(storage).log_end_offset == 6
    assert opened(storage, was_closed_cleanly=False).log_end_offset == 6


def test_damage_that_replay_finds_says_how_to_have_it_fetched() -> None:
    """In the last batch of a log that was closed in order, which recovery does not look at."""
    storage = closed()
    data = bytearray(storage.read(path(4)))
    data[-2] ^= 1
    storage.write(path(4), data)
    log = opened(storage)
    with pytest.raises(StartError, match=r"is damaged \(.*CRC.*\): put back a copy of it; or, .* remove all of"):
        list(log.batches(0, log.log_end_offset))
