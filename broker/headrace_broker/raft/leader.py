"""The leader role: tracks the progress of every replica, advances the high watermark, and serves fetches.

The high watermark advances in `Leader._maybe_advance_high_watermark`, after a flush of the leader's own log and after
each fetch of a voter. A leader that receives no fetches from a majority of the voters resigns (check quorum).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest
from headrace_broker.protocol.messages.fetch import FetchRequest
from headrace_broker.protocol.messages.fetch_snapshot import FetchSnapshotRequest
from headrace_broker.protocol.notation import Request
from headrace_broker.raft import messages
from headrace_broker.raft.effects import Flush, Token
from headrace_broker.raft.log_port import OffsetAndEpoch
from headrace_broker.raft.nominees import Unattached
from headrace_broker.raft.quorum_state import NO_NODE
from headrace_broker.raft.role import Role

if TYPE_CHECKING:
    from headrace_broker.raft.core import Raft

OBSERVER_SESSION_MS = 300_000
_OBSERVERS_MAX = 1000


@dataclass(slots=True)
class Progress:
    """The fetch progress of a replica. `end_offset` is -1 until the replica's first fetch in this leader epoch."""

    end_offset: int = -1
    last_fetch_ms: int = -1
    last_caught_up_ms: int = -1
    leader_end_at_fetch: int = -1


@dataclass(slots=True)
class _DelayedFetch:
    """A fetch that waits for new records, or for the high watermark to exceed the value that the replica knows."""

    token: Token
    node_id: int
    offset: int
    high_watermark: int
    deadline_ms: int
    size_bytes_max: int


class Leader(Role):
    """The role of the quorum's leader in the epoch `raft.epoch`."""

    def __init__(self, raft: Raft, granted: Iterable[int], now_ms: int) -> None:
        super().__init__(raft)
        config = raft.config
        self.leader_id = config.node_id
        self._granted = sorted(granted)
        self.epoch_start_offset = raft.log.log_end_offset
        self.progress = {voter: Progress() for voter in sorted(config.voters - {config.node_id})}
        self.observers: dict[int, Progress] = {}
        self._delayed_fetches: list[_DelayedFetch] = []
        self._last_contact_ms = dict.fromkeys(self.progress, now_ms)
        self._next_begin_epoch_ms = dict.fromkeys(self.progress, now_ms)
        self._pending_begin_epoch: dict[int, Request[Any]] = {}

    @property
    def is_established(self) -> bool:
        """Whether a record of this epoch is committed.

        The high watermark is then above all earlier committed records.
        """
        return self.raft.high_watermark > self.epoch_start_offset

    @property
    def is_caught_up(self) -> bool:  # type: ignore[override]
        return self.is_established

    def enter(self, now_ms: int) -> None:
        raft = self.raft
        raft.log.append_leader_change(raft.epoch, self.leader_id, sorted(raft.config.voters), self._granted)
        raft.emit(Flush())
        self._send_begin_quorum_epoch(now_ms)

    def leave(self, now_ms: int) -> None:
        raft = self.raft
        for delayed in self._delayed_fetches:
            raft.respond(delayed.token, messages.fetch_response(ErrorCode.NOT_LEADER_OR_FOLLOWER, NO_NODE, raft.epoch))
        self._delayed_fetches.clear()

    # -- time -------------------------------------------------------------------------------------------------------

    def deadline_ms(self) -> int | None:
        times = [delayed.deadline_ms for delayed in self._delayed_fetches]
        times += [at_ms for voter, at_ms in self._next_begin_epoch_ms.items() if voter not in self._pending_begin_epoch]
        if self.progress:
            times.append(self._majority_contact_ms() + self.raft.config.check_quorum_timeout_ms)
        return min(times, default=None)

    def tick(self, now_ms: int) -> None:
        raft = self.raft
        if self.progress and now_ms >= self._majority_contact_ms() + raft.config.check_quorum_timeout_ms:
            self.resign(now_ms)
            return
        self._send_begin_quorum_epoch(now_ms)
        self._complete_fetches([delayed for delayed in self._delayed_fetches if delayed.deadline_ms <= now_ms])
        expired = [node for node, seen in self.observers.items() if now_ms - seen.last_fetch_ms > OBSERVER_SESSION_MS]
        for node in expired:
            del self.observers[node]

    def _majority_contact_ms(self) -> int:
        """Return the time of the latest contact with a majority of the voters.

        This node and the voters that have fetched at this time or later form a majority.
        """
        return sorted(self._last_contact_ms.values(), reverse=True)[self.raft.config.majority - 2]

    def _send_begin_quorum_epoch(self, now_ms: int) -> None:
        """Send BeginQuorumEpoch to the voters that have not fetched in this epoch or whose last fetch is too old."""
        raft = self.raft
        for voter, at_ms in self._next_begin_epoch_ms.items():
            if now_ms >= at_ms and voter not in self._pending_begin_epoch:
                request = messages.begin_quorum_epoch_request(raft.config, voter, raft.epoch)
                self._pending_begin_epoch[voter] = request
                raft.send(voter, request)

    def on_response(self, node_id: int, request: Request[Any], partition: Any | None, now_ms: int) -> None:
        if self._pending_begin_epoch.get(node_id) is not request or not isinstance(request, BeginQuorumEpochRequest):
            return
        del self._pending_begin_epoch[node_id]
        succeeded = partition is not None and partition.error_code == ErrorCode.NONE
        config = self.raft.config
        backoff_ms = config.fetch_timeout_ms // 2 if succeeded else config.retry_backoff_ms * 5
        self._next_begin_epoch_ms[node_id] = now_ms + backoff_ms

    def resign(self, now_ms: int) -> None:
        """Resign and send EndQuorumEpoch. The voter with the longest log is the first preferred successor."""
        raft = self.raft
        successors = sorted(self.progress, key=lambda voter: -self.progress[voter].end_offset)
        for voter in self.progress:
            raft.send(voter, messages.end_quorum_epoch_request(raft.config, raft.epoch, successors))
        raft.transition_to(Unattached(raft, now_ms, raft.config.election_timeout_ms * 2), now_ms)

    # -- the log ----------------------------------------------------------------------------------------------------

    def on_appended(self, now_ms: int) -> None:
        self.raft.emit(Flush())
        log_end_offset = self.raft.log.log_end_offset
        self._complete_fetches([delayed for delayed in self._delayed_fetches if delayed.offset < log_end_offset])

    def on_flushed(self, now_ms: int) -> None:
        self._maybe_advance_high_watermark()

    def _maybe_advance_high_watermark(self) -> None:
        """Advance the high watermark to the highest offset up to which a majority of the voters has flushed its log.

        The high watermark does not advance until a majority has a record of the leader's own epoch (Raft section
        5.4.2). Another leader may still overwrite a record of an earlier epoch, even if a majority has this record.
        """
        raft = self.raft
        ends = sorted([raft.log.flushed_offset, *(seen.end_offset for seen in self.progress.values())], reverse=True)
        offset = ends[raft.config.majority - 1]
        if offset > self.epoch_start_offset and raft.advance_high_watermark(offset):
            self._complete_fetches([delayed for delayed in self._delayed_fetches if delayed.high_watermark < offset])

    def on_fetch(self, request: FetchRequest, partition: Any, token: Token, now_ms: int) -> None:
        raft = self.raft
        node_id = messages.fetch_replica_id(request)
        position: OffsetAndEpoch = (partition.fetch_offset, partition.last_fetched_epoch)
        snapshot, diverging = self._validate_offset_and_epoch(position)
        if snapshot is not None or diverging is not None:
            raft.respond(token, self._fetch_response(diverging=diverging, snapshot=snapshot))
            return
        self._update_progress(node_id, partition.fetch_offset, now_ms)
        delayed = _DelayedFetch(
            token,
            node_id,
            partition.fetch_offset,
            min(partition.high_watermark, raft.high_watermark) if node_id >= 0 else raft.high_watermark,
            now_ms + min(max(0, request.max_wait_ms), raft.config.fetch_max_wait_ms),
            request.max_bytes,
        )
        self._delayed_fetches.append(delayed)
        is_behind = partition.fetch_offset < raft.log.log_end_offset or delayed.high_watermark < raft.high_watermark
        if is_behind or request.max_wait_ms <= 0:
            self._complete_fetches([delayed])

    def _validate_offset_and_epoch(
        self, position: OffsetAndEpoch
    ) -> tuple[OffsetAndEpoch | None, OffsetAndEpoch | None]:
        """Return (snapshot to download, diverging epoch and its end offset) for a replica whose log ends at `position`.

        Both are None if the replica's log is a prefix of the leader's log.
        """
        log = self.raft.log
        offset, epoch = position
        if log.log_start_offset == 0 and position == (0, 0):
            return None, None
        first = log.earliest_snapshot()
        start = log.log_start_offset
        if first is not None and (offset < start or epoch < first[1] or (offset == start and epoch != first[1])):
            return log.latest_snapshot(), None
        end_offset, known_epoch = log.end_offset_for_epoch(epoch)
        if known_epoch != epoch or end_offset < offset:
            return None, (end_offset, known_epoch)
        return None, None

    def _update_progress(self, node_id: int, offset: int, now_ms: int) -> None:
        if node_id in self.progress:
            seen = self.progress[node_id]
            self._last_contact_ms[node_id] = now_ms
            self._next_begin_epoch_ms[node_id] = now_ms + self.raft.config.fetch_timeout_ms
        elif node_id >= 0 and (node_id in self.observers or len(self.observers) < _OBSERVERS_MAX):
            seen = self.observers.setdefault(node_id, Progress())
        else:
            return
        end = self.raft.log.log_end_offset
        if offset >= end:
            seen.last_caught_up_ms = now_ms
        elif offset >= seen.leader_end_at_fetch >= 0:
            seen.last_caught_up_ms = max(seen.last_caught_up_ms, seen.last_fetch_ms)
        seen.leader_end_at_fetch = end
        seen.end_offset = offset
        seen.last_fetch_ms = now_ms
        if node_id in self.progress:
            self._maybe_advance_high_watermark()

    def _complete_fetches(self, fetches: list[_DelayedFetch]) -> None:
        log = self.raft.log
        for delayed in fetches:
            if delayed not in self._delayed_fetches:
                continue
            self._delayed_fetches.remove(delayed)
            records = b""
            if delayed.offset < log.log_end_offset:
                records = log.read(delayed.offset, min(delayed.size_bytes_max, self.raft.config.fetch_max_bytes))
            self.raft.respond(delayed.token, self._fetch_response(records=records))

    def _fetch_response(
        self, *, records: bytes = b"", diverging: OffsetAndEpoch | None = None, snapshot: OffsetAndEpoch | None = None
    ) -> Any:
        raft = self.raft
        return messages.fetch_response(
            ErrorCode.NONE,
            self.leader_id,
            raft.epoch,
            high_watermark=raft.high_watermark if self.is_established else -1,
            log_start_offset=raft.log.log_start_offset,
            records=records,
            diverging=diverging,
            snapshot=snapshot,
        )

    def on_fetch_snapshot(self, request: FetchSnapshotRequest, partition: Any, token: Token, now_ms: int) -> None:
        raft = self.raft
        snapshot = (partition.snapshot_id.end_offset, partition.snapshot_id.epoch)
        if request.replica_id in self._last_contact_ms:
            self._last_contact_ms[request.replica_id] = now_ms
        found = raft.log.read_snapshot(
            snapshot, partition.position, max(0, min(request.max_bytes, raft.config.fetch_max_bytes))
        )
        if found is None:
            response = messages.fetch_snapshot_response(ErrorCode.SNAPSHOT_NOT_FOUND, self.leader_id, raft.epoch)
        elif not 0 <= partition.position < found[0]:
            response = messages.fetch_snapshot_response(ErrorCode.POSITION_OUT_OF_RANGE, self.leader_id, raft.epoch)
        else:
            response = messages.fetch_snapshot_response(
                ErrorCode.NONE, self.leader_id, raft.epoch,
                snapshot=snapshot, size=found[0], position=partition.position, data=found[1],
            )  # fmt: skip
        raft.respond(token, response)
