"""Tests of the quorum's I/O: syncs of votes, the order of commits, snapshots, and failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from headrace_broker.log.directory import LogDirectory
from headrace_broker.metadata.cluster import bootstrap_records
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.snapshots import image_records
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.metadata_records import ProducerIdsRecord
from headrace_broker.raft import messages
from headrace_broker.raft.quorum_state import QuorumState
from headrace_broker.server.data_dirs import StartError
from headrace_broker.server.kraft.metadata_log import MetadataLog
from headrace_broker.server.kraft.snapshot_files import encode_snapshot
from headrace_broker.simulation.disk import SimulatedDisk
from support.quorum import Storage, Voter
from support.virtual_time import run_in_virtual_time

QUORUM_STATE = "/data/__cluster_metadata-0/quorum-state"


def run(work: Coroutine[Any, Any, None]) -> None:
    run_in_virtual_time(work)


def block(number: int) -> ProducerIdsRecord:
    return ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=1000 * number)


async def started(storage: Storage, **more: Any) -> Voter:
    voter = Voter(storage, **more)
    voter.start()
    await voter.elected()
    return voter


@pytest.mark.parametrize("seed", range(8))
def test_unsynced_vote_of_a_killed_process_survives_a_power_failure_after_the_process_has_restarted(seed: int) -> None:
    """Opening the metadata log must sync the vote. A voter that loses its vote could vote twice in the epoch."""
    disk = SimulatedDisk(Random(seed))

    def opened() -> MetadataLog:
        storage = disk.mount()
        storage.makedirs("/data")
        return MetadataLog(storage, LogDirectory(storage, "/data"), lambda: 0)

    opened().write_state(QuorumState(leader_epoch=4))
    voted = QuorumState(leader_epoch=5, voted_id=2, voters=(1, 2, 3))
    disk.mount().write_atomic(QUORUM_STATE, voted.to_json())  # the process dies before it syncs the directory
    assert opened().read_state() == voted
    disk.lose_power()
    assert opened().read_state() == voted


def test_single_voter_writes_a_new_epoch_to_disk_at_each_start_before_it_leads() -> None:
    async def work() -> None:
        storage = Storage()
        for epoch in (1, 2, 3):
            voter = await started(storage)
            assert voter.quorum.raft.epoch == epoch
            state = json.loads(storage.read(QUORUM_STATE))
            assert (state["leaderEpoch"], state["leaderId"], state["votedId"]) == (epoch, 1, 1)
            await voter.stop()

    run(work())


def test_metadata_image_is_restored_after_a_restart() -> None:
    async def work() -> None:
        storage = Storage()
        voter = await started(storage)
        await voter.quorum.append(bootstrap_records(MetadataImage()))
        await voter.quorum.append([block(1)])
        await voter.stop()
        again = await started(storage)
        assert again.image == voter.image
        assert again.image.features == {"metadata.version": 30}
        await again.stop()

    run(work())


def test_concurrent_appends_to_the_metadata_log_share_a_sync_and_are_committed_in_order() -> None:
    async def work() -> None:
        storage = Storage()
        voter = await started(storage)
        seen: list[int] = []
        voter.committed.subscribe(lambda delta, image: seen.append(image.next_producer_id))
        before = storage.syncs
        await asyncio.gather(*(voter.quorum.append([block(number)]) for number in range(1, 21)))
        assert seen == list(range(1000, 21_000, 1000))
        assert storage.syncs - before <= 3
        await voter.stop()

    run(work())


def test_record_is_not_committed_before_a_majority_has_synced_it() -> None:
    async def work() -> None:
        voter = await started(Storage(), voters=(1, 2, 3))
        committed = voter.quorum.append([block(1)])
        await voter.until(voter.is_flushed)
        assert not committed.done()
        assert voter.image.next_producer_id == 0
        await voter.fetched(3)
        await committed
        assert voter.image.next_producer_id == 1000
        await voter.stop()

    run(work())


def test_pending_append_fails_when_leadership_is_lost() -> None:
    async def work() -> None:
        voter = await started(Storage(), voters=(1, 2, 3))
        committed = voter.quorum.append([block(1)])
        await voter.deposed()
        with pytest.raises(ApiError) as caught:
            await committed
        assert caught.value.code == ErrorCode.NOT_CONTROLLER
        with pytest.raises(ApiError):
            voter.quorum.append([block(1)])
        await voter.stop()

    run(work())


def test_appends_fail_and_the_committed_image_is_kept_if_the_metadata_log_cannot_be_synced() -> None:
    async def work() -> None:
        storage = Storage()
        voter = await started(storage)
        reasons: list[str] = []
        voter.quorum.on_failure = reasons.append
        await voter.quorum.append([block(1)])
        storage.sync_error = OSError(28, "No space left on device")
        with pytest.raises(ApiError, match="No space left"):
            await voter.quorum.append([block(2)])
        with pytest.raises(ApiError, match="No space left"):
            await voter.quorum.append([block(2)])
        assert voter.image.next_producer_id == 1000
        assert "No space left" in reasons[0]
        storage.sync_error = None
        await voter.stop()

    run(work())


def test_method_wait_for_offset_completes_when_the_offset_is_committed() -> None:
    async def work() -> None:
        voter = await started(Storage())
        end = voter.quorum.next_offset
        await voter.quorum.wait_for_offset(end)
        waiting = voter.quorum.wait_for_offset(end + 2)
        await voter.quorum.append([block(1)])
        assert not waiting.done()
        await voter.quorum.append([block(2)])
        await waiting
        await voter.stop()

    run(work())


def test_follower_loads_the_leaders_snapshot_and_notifies_listeners_once() -> None:
    async def work() -> None:
        leader = await started(Storage())
        await leader.quorum.append([*bootstrap_records(MetadataImage()), block(7)])
        snapshot = leader.image.offset + 1, leader.image.epoch
        data = b"".join(encode_snapshot(image_records(leader.image), leader.image.epoch, 0))

        follower = Voter(Storage(), voters=(1, 2, 3))
        follower.peers.grants = False
        published: list[int] = []
        follower.committed.subscribe(lambda delta, image: published.append(image.next_producer_id))
        follower.start()
        quorum = follower.quorum
        await follower.deposed()
        epoch = quorum.raft.epoch
        fetch = messages.fetch_response(ErrorCode.NONE, 2, epoch, high_watermark=snapshot[0], snapshot=snapshot)
        (await follower.peers.fetches.get())(fetch)
        for position in range(0, len(data), 100):
            chunk = messages.fetch_snapshot_response(
                ErrorCode.NONE, 2, epoch,
                snapshot=snapshot, size=len(data), position=position, data=data[position : position + 100],
            )  # fmt: skip
            (await follower.peers.fetches.get())(chunk)
        await quorum.wait_for_offset(snapshot[0])
        assert follower.image.next_producer_id == 7000
        assert published == [7000]
        assert quorum.log.log_start_offset == snapshot[0]
        await leader.stop()
        await follower.stop()

    run(work())


def test_node_start_fails_if_the_quorum_state_file_is_unreadable() -> None:
    async def work() -> None:
        storage = Storage()
        await (await started(storage)).stop()
        storage.write(QUORUM_STATE, b"{broken")
        with pytest.raises(StartError, match=r"quorum-state: the quorum state is invalid .*, delete it"):
            Voter(storage)

    run(work())


def test_epoch_of_a_voter_does_not_decrease_when_the_quorum_state_file_is_lost() -> None:
    async def work() -> None:
        storage = Storage()
        for _ in range(3):
            await (await started(storage)).stop()
        storage.remove(QUORUM_STATE)
        voter = await started(storage)
        assert voter.quorum.raft.epoch == 4
        await voter.stop()

    run(work())


def test_quorum_state_file_that_kafka_wrote_is_read() -> None:
    kafkas = b'{"leaderId":1,"leaderEpoch":7,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}'
    assert QuorumState.from_json(kafkas) == QuorumState(7, 1, -1, ())


def test_rejected_quorum_request_is_logged_with_its_sender(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        voter = await started(Storage(), voters=(1, 2, 3))
        for _ in range(3):
            await voter.quorum.handle(messages.begin_quorum_epoch_request(voter.config, 2, 2**31 - 1), "10.0.0.9")
        assert voter.quorum.is_active_leader
        await voter.stop()

    run(work())
    (line,) = [record.getMessage() for record in caplog.records if "10.0.0.9" in record.getMessage()]
    assert "BeginQuorumEpochRequest" in line
    assert "sent by node 1 in epoch 2147483647" in line


def test_voter_that_sends_fetches_is_considered_alive_even_if_the_leader_cannot_connect_to_it() -> None:
    """If the fetches of voters were ignored, the last node of a rolling restart would assume that the majority is dead.

    That node would then skip its controlled shutdown.
    """

    async def work() -> None:
        voter = await started(Storage(), voters=(1, 2, 3))
        voter.quorum.peers.refused_nodes.update((2, 3))
        assert voter.quorum.is_majority_lost
        fetch = messages.fetch_request(replace(voter.config, node_id=2), voter.quorum.raft.epoch, (0, 0), 0)
        voter.quorum.handle(fetch)
        assert not voter.quorum.is_majority_lost
        await voter.stop()

    run(work())
