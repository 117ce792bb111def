"""The controller at work on a log in memory: commits in order, replay at start, failures that lose nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import pytest

from headrace_broker.log.directory import LogDirectory
from headrace_broker.log.storage import MemoryStorage
from headrace_broker.metadata.cluster import bootstrap_records
from headrace_broker.metadata.delta import MetadataDelta
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.outcome import Outcome
from headrace_broker.metadata.producer_ids import allocate_producer_ids
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.raft.quorum_state import QuorumState
from headrace_broker.server.data_dirs import StartError
from headrace_broker.server.metadata_log import MetadataLog
from headrace_broker.server.metadata_service import MetadataService

QUORUM_STATE = "/data/__cluster_metadata-0/quorum-state"


class CountingStorage(MemoryStorage):
    """Memory whose syncs are counted and can be made to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0
        self.sync_error: OSError | None = None

    def sync(self, path: str) -> None:
        self.syncs += 1
        if self.sync_error is not None:
            raise self.sync_error


def service(storage: MemoryStorage) -> MetadataService:
    directory = LogDirectory(storage, "/data")
    storage.makedirs("/data")
    return MetadataService(MetadataLog(storage, directory, 1, lambda: 1_700_000_000_000))


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def next_block(image: MetadataImage) -> Outcome[range]:
    return allocate_producer_ids(image, 1)


def test_every_start_opens_a_new_epoch_that_is_on_disk_first() -> None:
    storage = CountingStorage()
    for epoch in (1, 2, 3):
        started = service(storage)
        assert started.log.epoch == epoch
        state = json.loads(storage.read(QUORUM_STATE))
        assert (state["leaderEpoch"], state["leaderId"], state["votedId"]) == (epoch, 1, 1)
        assert started.log.next_offset == epoch


def test_the_image_is_there_again_after_a_restart() -> None:
    storage = CountingStorage()
    first = service(storage)
    first.submit_now(lambda image: Outcome(None, bootstrap_records()))
    assert first.submit_now(next_block) == range(1000)
    second = service(storage)
    assert second.image == first.image
    assert second.image.features == {"metadata.version": 30}
    assert second.submit_now(next_block) == range(1000, 2000)


def test_decisions_see_those_before_them_and_share_a_sync() -> None:
    storage = CountingStorage()

    async def work() -> None:
        running = service(storage)
        seen: list[int] = []

        def listener(delta: MetadataDelta, image: MetadataImage) -> None:
            seen.append(image.next_producer_id)

        running.subscribe(listener)
        blocks = await asyncio.gather(*(running.submit(next_block) for _ in range(20)))
        assert blocks == [range(first, first + 1000) for first in range(0, 20_000, 1000)]
        assert seen == list(range(1000, 21_000, 1000))
        assert running.image.next_producer_id == 20_000
        assert running.log.log.high_watermark == running.log.next_offset
        assert storage.syncs <= 3

    run(work())


def test_nothing_is_answered_or_shown_before_it_is_synced() -> None:
    storage = CountingStorage()

    async def work() -> None:
        running = service(storage)
        waiting = asyncio.ensure_future(running.submit(next_block))
        await asyncio.sleep(0)
        assert running.log.next_offset == 2
        assert not waiting.done()
        assert running.image.next_producer_id == 0
        await waiting
        assert running.image.next_producer_id == 1000

    run(work())


def test_a_failed_sync_is_an_error_and_takes_nothing_back() -> None:
    storage = CountingStorage()

    async def work() -> None:
        running = service(storage)
        await running.submit(next_block)
        storage.sync_error = OSError(28, "No space left on device")
        for _ in range(2):
            with pytest.raises(ApiError, match="No space left") as caught:
                await running.submit(next_block)
            assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert running.image.next_producer_id == 1000

    run(work())


def test_an_abandoned_request_is_still_carried_out() -> None:
    storage = CountingStorage()

    async def work() -> None:
        running = service(storage)
        waiting = asyncio.ensure_future(running.submit(next_block))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await running.submit(next_block) == range(1000, 2000)

    run(work())


def test_the_quorum_state_of_others_is_refused() -> None:
    storage = CountingStorage()
    service(storage)
    storage.write(QUORUM_STATE, QuorumState(5, 2, 2, (1, 2, 3)).to_json())
    with pytest.raises(StartError, match=r"voters \[1, 2, 3\]"):
        service(storage)
    storage.write(QUORUM_STATE, b"{broken")
    with pytest.raises(StartError, match="quorum-state is damaged"):
        service(storage)


def test_a_lost_quorum_state_never_leads_back_to_an_old_epoch() -> None:
    storage = CountingStorage()
    for _ in range(3):
        service(storage)
    storage.remove(QUORUM_STATE)
    assert service(storage).log.epoch == 4


def test_kafkas_own_quorum_state_is_understood() -> None:
    kafkas = b'{"leaderId":1,"leaderEpoch":7,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}'
    assert QuorumState.from_json(kafkas) == QuorumState(7, 1, -1, ())
