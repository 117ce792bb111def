"""A voter with its log in memory, and peers that a test plays: they vote as told and fetch when told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from headrace_broker.log.directory import LogDirectory
from headrace_broker.log.storage import MemoryStorage
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest
from headrace_broker.protocol.messages.fetch import FetchRequest
from headrace_broker.protocol.messages.fetch_snapshot import FetchSnapshotRequest
from headrace_broker.protocol.messages.vote import VoteRequest
from headrace_broker.raft import messages
from headrace_broker.raft.config import RaftConfig
from headrace_broker.raft.core import Raft
from headrace_broker.server.kraft.metadata_image import CommittedImage
from headrace_broker.server.kraft.metadata_log import MetadataLog
from headrace_broker.server.kraft.quorum import Quorum


class Storage(MemoryStorage):
    """Memory whose syncs are counted and can be made to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0
        self.sync_error: OSError | None = None

    def sync(self, path: str) -> None:
        self.syncs += 1
        if self.sync_error is not None:
            raise self.sync_error


class PlayedPeers:
    """In the place of `Peers`: votes are given as `grants` says, fetches wait for the test to answer them."""

    def __init__(self) -> None:
        self.grants = True
        self.fetches: asyncio.Queue[Callable[[Any], None]] = asyncio.Queue()
        self.faults: dict[int, str] = {}
        self.refusing: set[int] = set()

    def send(self, node_id: int, request: Any, on_answer: Callable[[Any], None]) -> None:
        if isinstance(request, FetchRequest | FetchSnapshotRequest):
            self.fetches.put_nowait(on_answer)
            return
        answer: Any = None
        if isinstance(request, VoteRequest):
            epoch = request.topics[0].partitions[0].replica_epoch
            answer = messages.vote_answer(ErrorCode.NONE, -1, epoch, granted=self.grants)
        elif isinstance(request, BeginQuorumEpochRequest):
            partition = request.topics[0].partitions[0]
            answer = messages.begin_answer(ErrorCode.NONE, partition.leader_id, partition.leader_epoch)
        asyncio.get_running_loop().call_soon(on_answer, answer)

    def heard(self, node_id: int) -> None:
        self.refusing.discard(node_id)

    def close(self) -> None:
        pass


class Voter:
    """Node 1 of `voters`; make it within a running loop."""

    def __init__(self, storage: Storage, *, voters: tuple[int, ...] = (1,), fetch_timeout_ms: int = 60_000) -> None:
        self.config = RaftConfig(
            node_id=1,
            voters=frozenset(voters),
            cluster_id="C",
            election_timeout_ms=20,
            fetch_timeout_ms=fetch_timeout_ms,
        )
        storage.makedirs("/data")
        log = MetadataLog(storage, LogDirectory(storage, "/data"), lambda: 1_700_000_000_000)
        self.quorum = Quorum(Raft(self.config, log, log.read_state(), Random(1)), log)
        self.committed = CommittedImage()
        self.quorum.on_commit = self.committed.apply
        self.quorum.on_snapshot = self.committed.replace
        self.peers = PlayedPeers()
        self._changed = asyncio.Event()
        self.quorum.on_leader_changed = self.quorum.after_commit = self._changed.set
        synced = log.synced

        def noted() -> None:
            synced()
            self._changed.set()

        log.synced = noted  # type: ignore[method-assign]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until leader, commits and syncs are as wanted."""
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    def is_flushed(self) -> bool:
        """Whether all of the log is on disk."""
        return self.quorum.log.flushed_offset == self.quorum.log.log_end_offset

    @property
    def image(self) -> MetadataImage:
        return self.committed.image

    def start(self) -> None:
        self.quorum.start(self.peers)  # type: ignore[arg-type]

    async def elected(self) -> None:
        """Wait until this node leads; with others, one of them fetches its first record."""
        await self.until(lambda: self.quorum.raft.leader_id == 1)
        await self.fetched()
        await self.until(lambda: self.quorum.leads)

    async def fetched(self, node_id: int = 2) -> None:
        """Another voter has everything that is in the log now on its disk."""
        raft = self.quorum.raft
        if node_id in self.config.voters:
            request = messages.fetch_request(self.config, raft.epoch, raft.end, -1)
            request.replica_state.replica_id = node_id
            request.max_wait_ms = 0
            await self.quorum.handle(request)
        await self.until(self.is_flushed)

    async def deposed(self, leader_id: int = 2) -> None:
        """Another voter was elected meanwhile."""
        epoch = self.quorum.raft.epoch + 1
        request = messages.begin_request(self.config, 1, epoch)
        request.topics[0].partitions[0].leader_id = leader_id
        await self.quorum.handle(request)

    async def stop(self) -> None:
        await self.quorum.close()
