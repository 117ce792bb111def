"""A voter with its log in memory, and fake peers whose votes and fetches the test controls."""

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
    """In-memory storage that counts syncs. Tests can make the syncs fail."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0
        self.sync_error: OSError | None = None

    def sync(self, path: str) -> None:
        self.syncs += 1
        if self.sync_error is not None:
            raise self.sync_error


class FakePeers:
    """A fake of the class `Peers`, which sends requests to the other voters.

    The other voters grant votes if `grants` is True. Fetches are queued, so that the test can respond to them.
    """

    def __init__(self) -> None:
        self.grants = True
        self.fetches: asyncio.Queue[Callable[[Any], None]] = asyncio.Queue()
        self.connection_errors: dict[int, str] = {}
        self.refused_nodes: set[int] = set()

    def send(self, node_id: int, request: Any, on_response: Callable[[Any], None]) -> None:
        if isinstance(request, FetchRequest | FetchSnapshotRequest):
            self.fetches.put_nowait(on_response)
            return
        response: Any = None
        if isinstance(request, VoteRequest):
            epoch = request.topics[0].partitions[0].replica_epoch
            response = messages.vote_response(ErrorCode.NONE, -1, epoch, granted=self.grants)
        elif isinstance(request, BeginQuorumEpochRequest):
            partition = request.topics[0].partitions[0]
            response = messages.begin_quorum_epoch_response(ErrorCode.NONE, partition.leader_id, partition.leader_epoch)
        asyncio.get_running_loop().call_soon(on_response, response)

    def on_request_from(self, node_id: int) -> None:
        self.refused_nodes.discard(node_id)

    def close(self) -> None:
        pass


class Voter:
    """A quorum voter with node id 1. Create a `Voter` only while the event loop is running."""

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
        self.peers = FakePeers()
        self._changed = asyncio.Event()
        self.quorum.on_leader_changed = self.quorum.on_high_watermark_applied = self._changed.set
        sync_completed = log.sync_completed

        def sync_completed_and_notify() -> None:
            sync_completed()
            self._changed.set()

        log.sync_completed = sync_completed_and_notify  # type: ignore[method-assign]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until `holds()` is true. The voter calls `holds` after every leader change, commit and sync."""
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    def is_flushed(self) -> bool:
        """Return whether the whole log is synced."""
        return self.quorum.log.flushed_offset == self.quorum.log.log_end_offset

    @property
    def image(self) -> MetadataImage:
        return self.committed.image

    def start(self) -> None:
        self.quorum.start(self.peers)  # type: ignore[arg-type]

    async def elected(self) -> None:
        """Wait until this node is the active leader. If there are other voters, let voter 2 fetch the first record."""
        await self.until(lambda: self.quorum.raft.leader_id == 1)
        await self.fetched()
        await self.until(lambda: self.quorum.is_active_leader)

    async def fetched(self, node_id: int = 2) -> None:
        """Send a fetch request from voter `node_id` to voter 1. Then wait until voter 1 has synced its whole log.

        The fetch offset is the log end offset of voter 1. The request tells voter 1 that voter `node_id` has all
        records.
        """
        raft = self.quorum.raft
        if node_id in self.config.voters:
            request = messages.fetch_request(self.config, raft.epoch, raft.log_end, -1)
            request.replica_state.replica_id = node_id
            request.max_wait_ms = 0
            await self.quorum.handle(request)
        await self.until(self.is_flushed)

    async def deposed(self, leader_id: int = 2) -> None:
        """Elect voter `leader_id`: send this node a BeginQuorumEpoch request from `leader_id` with the next epoch."""
        epoch = self.quorum.raft.epoch + 1
        request = messages.begin_quorum_epoch_request(self.config, 1, epoch)
        request.topics[0].partitions[0].leader_id = leader_id
        await self.quorum.handle(request)

    async def stop(self) -> None:
        await self.quorum.close()
