"""Tests of groups whose protocol type is not `consumer`: the broker does not change their metadata and assignments."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from headrace_broker.client.cluster import Cluster
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.errors import ClientError
from headrace_broker.client.membership import GroupMembership
from headrace_broker.client.membership_core import Generation, MembershipCore
from headrace_broker.protocol.messages.join_group import JoinGroupResponseMember
from support.broker import running_broker

pytestmark = [pytest.mark.wire, pytest.mark.timeout(300)]


class Worker:
    """A group member that supports two protocols.

    If it is the leader, the assignment of each member is the member's metadata in reverse byte order.
    """

    def __init__(self, cluster: Cluster, name: bytes) -> None:
        self.metadata = name + bytes(range(256))
        self.generation = Generation()
        self.assignment = b""
        self.prepared = 0
        self.errors: list[ClientError] = []
        core = MembershipCore(
            group_id="workers",
            protocol_type="connect",
            session_timeout_ms=6_000,
            rebalance_timeout_ms=5_000,
            heartbeat_interval_ms=100,
        )
        self.membership = GroupMembership(cluster, core, self, 5_000)

    def protocols(self, generation: Generation) -> Sequence[tuple[str, bytes]]:
        return [("sessioned", self.metadata), ("default", b"old")]

    async def on_join_prepare(self, generation: Generation) -> None:
        self.prepared += 1

    async def compute_assignments(
        self, generation: Generation, members: Sequence[JoinGroupResponseMember]
    ) -> Mapping[str, bytes]:
        assert generation.protocol == "sessioned"
        return {member.member_id: member.metadata[::-1] for member in members}

    async def on_join_complete(self, generation: Generation, assignment: bytes) -> None:
        self.generation, self.assignment = generation, assignment

    async def on_membership_lost(self) -> None:
        self.assignment = b""

    def on_failure(self, error: ClientError) -> None:
        self.errors.append(error)


def test_group_of_three_workers_continues_after_one_worker_leaves(tmp_path: Path) -> None:
    async def run(address: str) -> None:
        config = ClientConfig.from_properties({"bootstrap.servers": address}, "admin")
        cluster = await Cluster.open(config)
        workers = [Worker(cluster, b"worker-%d" % index) for index in range(3)]
        for worker in workers:
            worker.membership.start()
        await until_agreed(workers)
        assert [worker.assignment for worker in workers] == [worker.metadata[::-1] for worker in workers]
        assert sum(worker.generation.is_leader for worker in workers) == 1

        leader = next(worker for worker in workers if worker.generation.is_leader)
        others = [worker for worker in workers if worker is not leader]
        before = others[0].generation.generation_id
        await leader.membership.leave("done")
        await until_agreed(others, after=before)
        assert all(worker.prepared for worker in others)

        others[0].metadata = b"changed"
        before = others[0].generation.generation_id
        others[0].membership.rejoin("the metadata changed")
        await until_agreed(others, after=before)
        assert others[0].assignment == b"degnahc"
        for worker in others:
            await worker.membership.leave("done")
        assert not any(worker.errors for worker in workers)
        await cluster.close()

    with running_broker(tmp_path) as broker:
        asyncio.run(run(broker.address))


async def until_agreed(workers: Sequence[Worker], after: int = -1) -> None:
    deadline = time.monotonic() + 20
    while True:
        generations = {worker.generation.generation_id for worker in workers}
        stable = all(worker.membership.is_stable for worker in workers)
        if stable and len(generations) == 1 and min(generations) > after:
            return
        assert time.monotonic() < deadline, generations
        await asyncio.sleep(0.02)
