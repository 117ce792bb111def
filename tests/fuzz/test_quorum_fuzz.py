"""Tests that each quorum request with extreme numbers receives a response, and that later elections succeed."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from headrace_broker.metadata.snapshots import image_records
from headrace_broker.protocol.apis import API, ApiKey
from headrace_broker.protocol.metadata_records import ProducerIdsRecord
from headrace_broker.protocol.notation import MessageField
from headrace_broker.protocol.topic_names import CLUSTER_METADATA_TOPIC
from headrace_broker.raft.messages import METADATA_TOPIC_ID
from headrace_broker.server.kraft.snapshot_files import encode_snapshot
from support.quorum import Storage, Voter
from support.random_messages import random_message

KEYS = (ApiKey.VOTE, ApiKey.BEGIN_QUORUM_EPOCH, ApiKey.END_QUORUM_EPOCH, ApiKey.FETCH, ApiKey.FETCH_SNAPSHOT)
EDGES = {"int32": (-(2**31), -2, -1, 0, 1, 2, 3, 4, 2**31 - 2, 2**31 - 1), "int64": (-(2**63), -1, 0, 1, 2, 2**63 - 1)}


def numbers(field: MessageField, rng: Random) -> Any:
    """Return a value for the field, or None if `random_message` must choose the value.

    The values of ids, names and partitions are fixed. The values of all other integer fields are edge values.
    """
    if field.name in ("voter_id", "cluster_id"):
        return -1 if field.name == "voter_id" else "C"
    if field.name in ("topic", "topic_name", "name"):
        return CLUSTER_METADATA_TOPIC
    if field.name in ("partition", "partition_index", "index"):
        return 0
    return rng.choice(EDGES[field.kind]) if field.kind in EDGES else None


def random_request(rng: Random) -> Any:
    """Return a request for the metadata partition.

    All integer fields except the partition have random or extreme values.
    """
    api = API[rng.choice(KEYS)]
    request = random_message(api.request, api.max_version, rng, numbers)
    if not request.topics:
        return random_request(rng)
    request.cluster_id = None
    del request.topics[1:]
    topic = request.topics[0]
    topic.partitions = (topic.partitions or [])[:1]
    if hasattr(topic, "topic_id"):
        topic.topic_id = METADATA_TOPIC_ID
    return request if topic.partitions else random_request(rng)


@pytest.mark.parametrize("seed", range(4))
def test_quorum_responds_to_requests_with_extreme_numbers_and_can_elect_a_leader_afterwards(seed: int) -> None:
    asyncio.run(send_hostile_requests(Random(seed)))


async def send_hostile_requests(rng: Random) -> None:
    voter = Voter(Storage(), voters=(1, 2, 3), fetch_timeout_ms=100)
    voter.start()
    if rng.random() < 0.5:
        await elected(voter)
        await delete_log_before_snapshot(voter)
    for _ in range(400):
        if rng.random() < 0.05:
            await elected(voter)
        request = random_request(rng)
        try:
            async with asyncio.timeout(30):
                await voter.quorum.handle(request)
        except TimeoutError:
            raise AssertionError(f"no response to {request}") from None
        assert voter.quorum.failures == 0, request
    await elected(voter)
    await voter.stop()


async def delete_log_before_snapshot(voter: Voter) -> None:
    """Write a snapshot and delete all log records below its end offset.

    The voter then no longer knows the leader epochs of the deleted offsets.
    """
    quorum, log = voter.quorum, voter.quorum.log
    for number in (1, 2, 3):
        committed = quorum.append([ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=number)])
        await voter.fetched()
        await committed
    snapshot = (log.log_end_offset, quorum.raft.epoch)
    records = image_records(voter.image)
    log.append_snapshot(snapshot, 0, b"".join(encode_snapshot(records, quorum.raft.epoch, 0)))
    log.snapshots.finish(snapshot)
    log.roll()
    log.delete_before(snapshot)
    assert log.log_start_offset > 0


async def elected(voter: Voter) -> None:
    async with asyncio.timeout(30):
        while not voter.quorum.is_active_leader:
            if voter.quorum.raft.leader_id == 1:
                await voter.fetched()
            await asyncio.sleep(0.005)
