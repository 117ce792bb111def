"""The follower role: fetches from the leader, and starts an election when the leader stops responding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.notation import Request
from headrace_broker.raft import messages
from headrace_broker.raft.effects import Flush, SnapshotLoaded
from headrace_broker.raft.log_port import OffsetAndEpoch
from headrace_broker.raft.nominees import Prospective, Unattached, successor_backoff_ms
from headrace_broker.raft.role import Role

if TYPE_CHECKING:
    from headrace_broker.raft.core import Raft


class Follower(Role):
    """A node that fetches from the known leader of the epoch, one request at a time.

    A voter flushes its log before each fetch, so the leader may count every record before the fetch offset as on disk.
    """

    def __init__(self, raft: Raft, leader_id: int, now_ms: int) -> None:
        super().__init__(raft)
        self.leader_id = leader_id
        self._next_fetch_ms = raft.earliest_send_ms(leader_id, now_ms)
        self._has_fetched = False
        self._is_flushing = False
        self._election_deadline_ms = self._fetch_timeout_deadline_ms(now_ms)
        self._pending_request: Request[Any] | None = None
        self._leader_high_watermark = -1
        self._snapshot_download: tuple[OffsetAndEpoch, int] | None = None  # (snapshot id, bytes received so far)

    @property
    def grants_pre_vote(self) -> bool:  # type: ignore[override]
        """Whether this follower grants pre-votes.

        The follower grants pre-votes until the leader has responded to the follower's first fetch.
        """
        return not self._has_fetched

    @property
    def is_caught_up(self) -> bool:  # type: ignore[override]
        return 0 <= self._leader_high_watermark <= self.raft.high_watermark

    def _fetch_timeout_deadline_ms(self, now_ms: int) -> int:
        timeout_ms = self.raft.config.fetch_timeout_ms
        return now_ms + timeout_ms + self.raft.random_ms_below(timeout_ms // 4)

    def enter(self, now_ms: int) -> None:
        self._fetch(now_ms)

    def deadline_ms(self) -> int | None:
        busy = self._pending_request is not None or self._is_flushing
        return self._election_deadline_ms if busy else min(self._next_fetch_ms, self._election_deadline_ms)

    def tick(self, now_ms: int) -> None:
        if now_ms >= self._election_deadline_ms:
            self._start_election(now_ms)
        else:
            self._fetch(now_ms)

    def _start_election(self, now_ms: int) -> None:
        raft = self.raft
        raft.transition_to(Prospective(raft, now_ms) if raft.config.is_voter else Unattached(raft, now_ms), now_ms)

    def on_connection_refused(self, node_id: int, now_ms: int) -> None:
        if node_id == self.leader_id:
            self._start_election(now_ms)

    def on_leader_resigned(self, successors: list[int], now_ms: int) -> None:
        raft = self.raft
        raft.transition_to(Unattached(raft, now_ms, successor_backoff_ms(raft, successors)), now_ms)

    # -- fetching ---------------------------------------------------------------------------------------------------

    def on_flushed(self, now_ms: int) -> None:
        self._is_flushing = False
        self._fetch(now_ms)

    def _fetch(self, now_ms: int) -> None:
        raft = self.raft
        if self._pending_request is not None or self._is_flushing or now_ms < self._next_fetch_ms:
            return
        if self._snapshot_download is not None:
            self._pending_request = messages.fetch_snapshot_request(raft.config, raft.epoch, *self._snapshot_download)
        elif raft.config.is_voter and raft.log.flushed_offset < raft.log.log_end_offset:
            self._is_flushing = True
            raft.emit(Flush())
            return
        else:
            self._pending_request = messages.fetch_request(raft.config, raft.epoch, raft.log_end, raft.high_watermark)
        raft.send(self.leader_id, self._pending_request)

    def on_response(self, node_id: int, request: Request[Any], partition: Any | None, now_ms: int) -> None:
        if request is not self._pending_request:
            return
        self._pending_request = None
        if partition is None or partition.error_code != ErrorCode.NONE:
            self._snapshot_download = None
            self._next_fetch_ms = now_ms + self.raft.config.retry_backoff_ms
            return
        self._has_fetched = True
        self._election_deadline_ms = self._fetch_timeout_deadline_ms(now_ms)
        if self._snapshot_download is None:
            self._handle_fetch_response(partition)
        else:
            self._handle_snapshot_chunk(self._snapshot_download, partition)
        self._fetch(now_ms)

    def _handle_fetch_response(self, partition: Any) -> None:
        raft = self.raft
        self._leader_high_watermark = max(self._leader_high_watermark, partition.high_watermark)
        if partition.diverging_epoch.epoch >= 0:
            self._truncate(partition.diverging_epoch.end_offset, partition.diverging_epoch.epoch)
        elif partition.snapshot_id.end_offset >= 0:
            self._snapshot_download = (partition.snapshot_id.end_offset, partition.snapshot_id.epoch), 0
        else:
            if partition.records:
                raft.log.append_as_follower(messages.concatenate(partition.records))
            self._advance_high_watermark()

    def _advance_high_watermark(self) -> None:
        """Advance this node's high watermark to the leader's high watermark, but not beyond the end of the local log.

        Call this method only after a fetch response without a diverging epoch. The local log is then a prefix of the
        leader's log.
        """
        raft = self.raft
        raft.advance_high_watermark(min(self._leader_high_watermark, raft.log.log_end_offset))

    def _truncate(self, end_offset: int, epoch: int) -> None:
        """Truncate the log to the last offset that may match the leader's log.

        `epoch` is the diverging epoch from the leader's response, and `end_offset` is the end offset of this epoch in
        the leader's log. Raises DivergedError instead of truncating committed records.
        """
        raft = self.raft
        local_end, local_epoch = raft.log.end_offset_for_epoch(epoch)
        target = min(local_end, end_offset) if local_epoch == epoch else local_end
        if target < raft.high_watermark:
            raise DivergedError(
                f"the log of leader {self.leader_id} (epoch {raft.epoch}) diverges from this node's log at offset "
                f"{target}, below this node's high watermark {raft.high_watermark}: a truncation would lose "
                "committed records"
            )
        raft.log.truncate_to(target)

    def _handle_snapshot_chunk(self, download: tuple[OffsetAndEpoch, int], partition: Any) -> None:
        snapshot, position = download
        data = messages.concatenate(partition.unaligned_records or b"")
        raft = self.raft
        raft.log.append_snapshot(snapshot, position, data)
        position += len(data)
        if position < partition.size and data:
            self._snapshot_download = snapshot, position
            return
        self._snapshot_download = None
        raft.log.finish_snapshot(snapshot)
        raft.emit(SnapshotLoaded(*snapshot))
        raft.advance_high_watermark(snapshot[0])


class DivergedError(Exception):
    """The leader's log lacks records that this node has committed. A voter lost its disk, or the code has a bug."""
