"""The leader of an epoch: it knows how far each replica is, commits what a majority has on disk, and resigns when it
no longer hears from a majority."""

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
from headrace_broker.raft.quorum_state import NO_ONE
from headrace_broker.raft.role import Role

if TYPE_CHECKING:
    from headrace_broker.raft.core import Raft

OBSERVER_SESSION_MS = 300_000
_OBSERVERS_MAX = 1000


@dataclass(slots=True)
class Progress:
    """What the leader knows of a replica: `end_offset` is -1 until it has fetched."""

    end_offset: int = -1
    last_fetch_ms: int = -1
    last_caught_up_ms: int = -1
    leader_end_at_fetch: int = -1


@dataclass(slots=True)
class _Waiting:
    """A fetch that waits for records or for a high watermark that its sender does not know."""

    token: Token
    node_id: int
    offset: int
    high_watermark: int
    until_ms: int
    size_bytes_max: int


class Leader(Role):
    """Leads `raft.epoch`."""

    def __init__(self, raft: Raft, granted: Iterable[int], now_ms: int) -> None:
        super().__init__(raft)
        config = raft.config
        self.leader_id = config.node_id
        self._granted = sorted(granted)
        self.epoch_start_offset = raft.log.log_end_offset
        self.progress = {voter: Progress() for voter in sorted(config.voters - {config.node_id})}
        self.observers: dict[int, Progress] = {}
        self._waiting: list[_Waiting] = []
        self._heard_ms = dict.fromkeys(self.progress, now_ms)
        self._tell_ms = dict.fromkeys(self.progress, now_ms)  # who is to hear of this epoch, and when next
        self._telling: dict[int, Request[Any]] = {}

    @property
    def is_established(self) -> bool:
        """Whether a record of this epoch is committed: all that earlier leaders committed is known here, then."""
        return self.raft.high_watermark > self.epoch_start_offset

    @property
    def is_caught_up(self) -> bool:  # type: ignore[override]
        return self.is_established

    def enter(self, now_ms: int) -> None:
        raft = self.raft
        raft.log.append_leader_change(raft.epoch, self.leader_id, sorted(raft.config.voters), self._granted)
        raft.emit(Flush())
        self._tell(now_ms)

    def leave(self, now_ms: int) -> None:
        raft = self.raft
        for waiting in self._waiting:
            raft.reply(waiting.token, messages.fetch_answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, NO_ONE, raft.epoch))
        self._waiting.clear()

    # -- time -------------------------------------------------------------------------------------------------------

    def deadline_ms(self) -> int | None:
        times = [waiting.until_ms for waiting in self._waiting]
        times += [at_ms for voter, at_ms in self._tell_ms.items() if voter not in self._telling]
        if self.progress:
            times.append(self._majority_heard_ms() + self.raft.config.check_quorum_timeout_ms)
        return min(times, default=None)

    def tick(self, now_ms: int) -> None:
        raft = self.raft
        if self.progress and now_ms >= self._majority_heard_ms() + raft.config.check_quorum_timeout_ms:
            self.resign(now_ms)
            return
        self._tell(now_ms)
        self._answer([waiting for waiting in self._waiting if waiting.until_ms <= now_ms])
        gone = [node for node, seen in self.observers.items() if now_ms - seen.last_fetch_ms > OBSERVER_SESSION_MS]
        for node in gone:
            del self.observers[node]

    def _majority_heard_ms(self) -> int:
        """Since when a majority, this node counted, may have been silent."""
        return sorted(self._heard_ms.values(), reverse=True)[self.raft.config.majority - 2]

    def _tell(self, now_ms: int) -> None:
        """Send BeginQuorumEpoch to voters that have not fetched in this epoch, or not lately."""
        raft = self.raft
        for voter, at_ms in self._tell_ms.items():
            if now_ms >= at_ms and voter not in self._telling:
                request = self._telling[voter] = messages.begin_request(raft.config, voter, raft.epoch)
                raft.send(voter, request)

    def on_response(self, node_id: int, request: Request[Any], partition: Any | None, now_ms: int) -> None:
        if self._telling.get(node_id) is not request or not isinstance(request, BeginQuorumEpochRequest):
            return
        del self._telling[node_id]
        told = partition is not None and partition.error_code == ErrorCode.NONE
        config = self.raft.config
        self._tell_ms[node_id] = now_ms + (config.fetch_timeout_ms // 2 if told else config.retry_backoff_ms * 5)

    def resign(self, now_ms: int) -> None:
        """Step down and say so; the voter that is farthest should stand first."""
        raft = self.raft
        successors = sorted(self.progress, key=lambda voter: -self.progress[voter].end_offset)
        for voter in self.progress:
            raft.send(voter, messages.end_request(raft.config, raft.epoch, successors))
        raft.become(Unattached(raft, now_ms, raft.config.election_timeout_ms * 2), now_ms)

    # -- the log ----------------------------------------------------------------------------------------------------

    def on_appended(self, now_ms: int) -> None:
        self.raft.emit(Flush())
        self._answer([waiting for waiting in self._waiting if waiting.offset < self.raft.log.log_end_offset])

    def on_flushed(self, now_ms: int) -> None:
        self._commit()

    def _commit(self) -> None:
        """Move the high watermark to what a majority has on disk, once that reaches into this epoch."""
        raft = self.raft
        ends = sorted([raft.log.flushed_offset, *(seen.end_offset for seen in self.progress.values())], reverse=True)
        offset = ends[raft.config.majority - 1]
        if offset > self.epoch_start_offset and raft.advance_high_watermark(offset):
            self._answer([waiting for waiting in self._waiting if waiting.high_watermark < offset])

    def on_fetch(self, request: FetchRequest, partition: Any, token: Token, now_ms: int) -> None:
        raft = self.raft
        node_id = messages.fetcher_of(request)
        position: OffsetAndEpoch = (partition.fetch_offset, partition.last_fetched_epoch)
        snapshot, diverging = self._where_it_parts(position)
        if snapshot is not None or diverging is not None:
            raft.reply(token, self._fetch_answer(diverging=diverging, snapshot=snapshot))
            return
        self._note_progress(node_id, partition.fetch_offset, now_ms)
        waiting = _Waiting(
            token,
            node_id,
            partition.fetch_offset,
            min(partition.high_watermark, raft.high_watermark) if node_id >= 0 else raft.high_watermark,
            now_ms + min(max(0, request.max_wait_ms), raft.config.fetch_max_wait_ms),
            request.max_bytes,
        )
        self._waiting.append(waiting)
        has_news = partition.fetch_offset < raft.log.log_end_offset or waiting.high_watermark < raft.high_watermark
        if has_news or request.max_wait_ms <= 0:
            self._answer([waiting])

    def _where_it_parts(self, position: OffsetAndEpoch) -> tuple[OffsetAndEpoch | None, OffsetAndEpoch | None]:
        """(snapshot to load, end of the epoch to truncate to) for a log that does not continue in ours."""
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

    def _note_progress(self, node_id: int, offset: int, now_ms: int) -> None:
        if node_id in self.progress:
            seen = self.progress[node_id]
            self._heard_ms[node_id] = now_ms
            self._tell_ms[node_id] = now_ms + self.raft.config.fetch_timeout_ms
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
            self._commit()

    def _answer(self, due: list[_Waiting]) -> None:
        log = self.raft.log
        for waiting in due:
            if waiting not in self._waiting:
                continue
            self._waiting.remove(waiting)
            records = b""
            if waiting.offset < log.log_end_offset:
                records = log.read(waiting.offset, min(waiting.size_bytes_max, self.raft.config.fetch_max_bytes))
            self.raft.reply(waiting.token, self._fetch_answer(records=records))

    def _fetch_answer(
        self, *, records: bytes = b"", diverging: OffsetAndEpoch | None = None, snapshot: OffsetAndEpoch | None = None
    ) -> Any:
        raft = self.raft
        return messages.fetch_answer(
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
        if request.replica_id in self._heard_ms:
            self._heard_ms[request.replica_id] = now_ms
        found = raft.log.read_snapshot(
            snapshot, partition.position, max(0, min(request.max_bytes, raft.config.fetch_max_bytes))
        )
        if found is None:
            answer = messages.snapshot_answer(ErrorCode.SNAPSHOT_NOT_FOUND, self.leader_id, raft.epoch)
        elif not 0 <= partition.position < found[0]:
            answer = messages.snapshot_answer(ErrorCode.POSITION_OUT_OF_RANGE, self.leader_id, raft.epoch)
        else:
            answer = messages.snapshot_answer(
                ErrorCode.NONE, self.leader_id, raft.epoch,
                snapshot=snapshot, size=found[0], position=partition.position, data=found[1],
            )  # fmt: skip
        raft.reply(token, answer)
