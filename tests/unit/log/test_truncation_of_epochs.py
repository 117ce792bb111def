"""Truncation forgets an epoch in which nothing was written: who goes on naming it is told to cut for ever."""

from __future__ import annotations

from headrace_broker.log.config import LogConfig
from headrace_broker.log.log import PartitionLog
from headrace_broker.log.storage import MemoryStorage
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns


def test_an_epoch_that_begins_at_the_logs_end_goes_with_a_truncation_there() -> None:
    storage = MemoryStorage()
    storage.makedirs("/d")
    log = PartitionLog.open(storage, "/d/t-0", "t", 0, LogConfig(), 0)
    batch = memoryview(build_batch(RecordColumns(values=[b"a"], timestamps=0)))
    log.append_as_leader(batch, leader_epoch=1, now_ms=0)
    log.assign_epoch(2, 1)
    assert log.latest_epoch == 2
    log.truncate_to(1, 0)
    assert (log.latest_epoch, log.log_end_offset) == (1, 1)
