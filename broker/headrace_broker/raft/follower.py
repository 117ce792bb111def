"""A node that knows its leader: it fetches what the leader appends, and stands for election when the leader is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.notation import Request
from headrace_broker.raft import messages
from headrace_broker.raft.effects import Flush, SnapshotLoaded
from headrace_broker.raft.log_port import OffsetAndEpoch
from headrace_broker.raft.nominees import Prospective, Unattached, place_in_line
from headrace_broker.raft.role import Role

if TYPE_CHECKING:
    from headrace_broker.raft.core import Raft


class Follower(Role):
    """One fetch at a time.  A voter's next fetch tells the leader that everything before it is on disk here."""

    def __init__(self, raft: Raft, leader_id: int, now_ms: int) -> None:
        super().__init__(raft)
        self.leader_id = leader_id
        self._fetch_ms = raft.may_ask_ms(leader_id, now_ms)
        self._has_fetched = False
        self._is_flushing = False
        self._election_ms = self._timeout_from(now_ms)
        self._asked: Request[Any] | None = None
        self._leader_high_watermark = -1
        self._loading: tuple[OffsetAndEpoch, int] | None = None  # a snapshot, and how much of it is here

    @property
    def grants_pre_vote(self) -> bool:  # type: ignore[override]
        """Who hears its leader sees no need for another."""
        return not self._has_fetched

    @property
    def is_caught_up(self) -> bool:  # type: ignore[override]
        return 0 <= self._leader_high_watermark <= self.raft.high_watermark

    def _timeout_from(self, now_ms: int) -> int:
        timeout_ms = self.raft.config.fetch_timeout_ms
        return now_ms + timeout_ms + self.raft.random_ms(timeout_ms // 4)

    def enter(self, now_ms: int) -> None:
        self._ask(now_ms)

    def deadline_ms(self) -> int | None:
        busy = self._asked is not None or self._is_flushing
        return self._election_ms if busy else min(self._fetch_ms, self._election_ms)

    def tick(self, now_ms: int) -> None:
        if now_ms >= self._election_ms:
            self._leader_is_gone(now_ms)
        else:
            self._ask(now_ms)

    def _leader_is_gone(self, now_ms: int) -> None:
        raft = self.raft
        raft.become(Prospective(raft, now_ms) if raft.config.is_voter else Unattached(raft, now_ms), now_ms)

    def on_refused(self, node_id: int, now_ms: int) -> None:
        if node_id == self.leader_id:
            self._leader_is_gone(now_ms)

    def on_leader_resigned(self, successors: list[int], now_ms: int) -> None:
        raft = self.raft
        raft.become(Unattached(raft, now_ms, place_in_line(raft, successors)), now_ms)

    # -- fetching ---------------------------------------------------------------------------------------------------

    def on_flushed(self, now_ms: int) -> None:
        self._is_flushing = False
        self._ask(now_ms)

    def _ask(self, now_ms: int) -> None:
        raft = self.raft
        if self._asked is not None or self._is_flushing or now_ms < self._fetch_ms:
            return
        if self._loading is not None:
            self._asked = messages.snapshot_request(raft.config, raft.epoch, *self._loading)
        elif raft.config.is_voter and raft.log.flushed_offset < raft.log.log_end_offset:
            self._is_flushing = True
            raft.emit(Flush())
            return
        else:
            self._asked = messages.fetch_request(raft.config, raft.epoch, raft.end, raft.high_watermark)
        raft.send(self.leader_id, self._asked)

    def on_response(self, node_id: int, request: Request[Any], partition: Any | None, now_ms: int) -> None:
        if request is not self._asked:
            return
        self._asked = None
        if partition is None or partition.error_code != ErrorCode.NONE:
            self._loading = None
            self._fetch_ms = now_ms + self.raft.config.retry_backoff_ms
            return
        self._has_fetched = True
        self._election_ms = self._timeout_from(now_ms)
        if self._loading is None:
            self._fetched(partition)
        else:
            self._loaded(self._loading, partition)
        self._ask(now_ms)

    def _fetched(self, partition: Any) -> None:
        raft = self.raft
        self._leader_high_watermark = max(self._leader_high_watermark, partition.high_watermark)
        if partition.diverging_epoch.epoch >= 0:
            self._truncate(partition.diverging_epoch.end_offset, partition.diverging_epoch.epoch)
        elif partition.snapshot_id.end_offset >= 0:
            self._loading = (partition.snapshot_id.end_offset, partition.snapshot_id.epoch), 0
        else:
            if partition.records:
                raft.log.append_as_follower(messages.joined(partition.records))
            self._commit()

    def _commit(self) -> None:
        """The log is a part of the leader's: what is committed there is committed here."""
        raft = self.raft
        raft.advance_high_watermark(min(self._leader_high_watermark, raft.log.log_end_offset))

    def _truncate(self, end_offset: int, epoch: int) -> None:
        """Cut to where the leader's log and ours may agree; never what is committed."""
        raft = self.raft
        own_end, own_epoch = raft.log.end_offset_for_epoch(epoch)
        target = min(own_end, end_offset) if own_epoch == epoch else own_end
        if target < raft.high_watermark:
            raise DivergedError(
                f"leader {self.leader_id} of epoch {raft.epoch} has another log from offset {target} on, "
                f"but everything before {raft.high_watermark} is committed"
            )
        raft.log.truncate_to(target)

    def _loaded(self, loading: tuple[OffsetAndEpoch, int], partition: Any) -> None:
        snapshot, position = loading
        data = messages.joined(partition.unaligned_records or b"")
        raft = self.raft
        raft.log.append_snapshot(snapshot, position, data)
        position += len(data)
        if position < partition.size and data:
            self._loading = snapshot, position
            return
        self._loading = None
        raft.log.finish_snapshot(snapshot)
        raft.emit(SnapshotLoaded(*snapshot))
        raft.advance_high_watermark(snapshot[0])


class DivergedError(Exception):
    """The leader's log contradicts what was committed here: some node has lost its disk, or we have a bug."""
