"""Runs the Raft state machine of the metadata quorum, with a clock, a disk and connections to the other voters.

The state machine processes one input at a time. If an input changes the quorum state (epoch and vote), the next input
waits until the new state is on disk. `on_commit` receives the committed batches in order. The controller calls
`append`; the future that `append` returns completes when the batch is committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from headrace_broker.log.storage import is_out_of_file_descriptors
from headrace_broker.metadata.delta import ReplayError
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.protections import describe, protections_in
from headrace_broker.metadata.snapshots import image_from_records
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.fetch import FetchRequest
from headrace_broker.protocol.metadata_records import MetadataRecord
from headrace_broker.protocol.notation import Request, Response
from headrace_broker.raft.core import Raft
from headrace_broker.raft.effects import (
    Effect,
    Flush,
    HighWatermarkAdvanced,
    LeaderChanged,
    Persist,
    SendRequest,
    SendResponse,
    SnapshotLoaded,
)
from headrace_broker.raft.follower import DivergedError
from headrace_broker.raft.leader import Leader
from headrace_broker.raft.messages import (
    fetch_replica_id,
    leader_and_epoch,
    metadata_partition,
    response_topics,
    sender_and_epoch,
)
from headrace_broker.server.data_dirs import StartError
from headrace_broker.server.kraft.metadata_log import MetadataLog
from headrace_broker.server.kraft.peers import Peers
from headrace_broker.server.log_throttle import LogThrottle

logger = logging.getLogger(__name__)

_RETRY_S = 0.05
_MISCONFIGURATION_ERRORS = frozenset(
    (ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.INCONSISTENT_VOTER_SET, ErrorCode.INVALID_VOTER_KEY)
)

CommitListener = Callable[[Sequence[MetadataRecord], int, int], None]
"""(records of one batch, offset of the last record, epoch of the batch)."""


class Quorum:
    """The replica of the metadata quorum on this node. All methods run on the event loop."""

    def __init__(self, raft: Raft, log: MetadataLog) -> None:
        self.raft = raft
        self.log = log
        self.on_commit: CommitListener = _no_listener
        self.on_snapshot: Callable[[MetadataImage], None] = _no_listener
        self.on_high_watermark_applied: Callable[[], None] = _no_listener
        self.on_misconfigured_voter: Callable[[int, ErrorCode], None] = _no_listener
        self.on_leader_changed: Callable[[], None] = _no_listener
        self.on_caught_up: Callable[[], None] = _no_listener
        self.on_leadership_change: Callable[[bool], None] = _no_listener
        self.on_failure: Callable[[str], None] = _no_listener
        self.on_majority_lost: Callable[[], None] = _no_listener
        self.peers: Peers
        self._loop = asyncio.get_running_loop()
        self._inputs: deque[Callable[[int], list[Effect]]] = deque()
        self._effects: deque[Effect] = deque()
        self._is_busy = False
        self._is_persisting_state = False
        self._flushing: asyncio.Task[None] | None = None
        self._flush_again = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._committed_offset = log.log_start_offset
        self._pending_appends: deque[tuple[int, int, asyncio.Future[None]]] = deque()
        self._offset_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._is_closed = False
        self._rejected_request_throttle = LogThrottle()
        self._was_active_leader = False
        self.failures = 0
        """The number of times that this node stopped following the metadata log because of an error."""

    # -- leadership --------------------------------------------------------------------------------------------------

    @property
    def is_active_leader(self) -> bool:
        """Whether this node is the leader and has committed a record of its epoch, and thus all earlier records."""
        role = self.raft.role
        return isinstance(role, Leader) and role.is_established

    @property
    def is_persisting(self) -> bool:
        """Whether the state machine has changed the quorum state, and the new state is not on disk yet."""
        return self._is_persisting_state or any(isinstance(effect, Persist) for effect in self._effects)

    @property
    def next_offset(self) -> int:
        """The offset of the next record to append."""
        return self.log.log_end_offset

    # -- inputs ------------------------------------------------------------------------------------------------------

    def start(self, peers: Peers) -> None:
        """Join the quorum, using `peers` for the connections to the voters."""
        self.peers = peers
        self._load_snapshot()
        self._submit(self.raft.start)

    def handle(self, request: Request[Any], host: str = "") -> asyncio.Future[Response]:
        """Handle another node's request. If `host` is set, log a warning with `host` when the request is rejected."""
        future: asyncio.Future[Response] = self._loop.create_future()
        if host:
            future.add_done_callback(lambda response: self._log_rejected_request(request, host, response))
        if isinstance(request, FetchRequest):
            self.peers.on_request_from(fetch_replica_id(request))
        self._submit(lambda now_ms: self.raft.handle_request(request, future, now_ms))
        return future

    def _log_rejected_request(self, request: Any, host: str, response: asyncio.Future[Response]) -> None:
        """Log a rejected request, unless the error is FENCED_LEADER_EPOCH, which is normal after an election."""
        errors = set() if response.cancelled() else _error_codes(response.result())
        if not errors - {ErrorCode.FENCED_LEADER_EPOCH}:
            return
        if not self._rejected_request_throttle.should_log(self._loop.time()):
            return
        partition = metadata_partition(request.topics)
        node_id, epoch = (-1, -1) if partition is None else sender_and_epoch(partition)
        logger.warning(
            "Rejecting %s from %s, sent by node %d in epoch %d: this node has epoch %d, cluster id %s and voters %s",
            type(request).__name__,
            host,
            node_id,
            epoch,
            self.raft.epoch,
            self.raft.config.cluster_id,
            sorted(self.raft.config.voters),
        )

    def on_connection_refused(self, node_id: int) -> None:
        """Handle a refused connection: the node's process is dead."""
        self._submit(lambda now_ms: self.raft.on_connection_refused(node_id, now_ms))
        if self.is_majority_lost:
            self.on_majority_lost()

    @property
    def is_majority_lost(self) -> bool:
        """Whether so many voters' processes are dead that the remaining voters are not a majority."""
        voters = self.raft.config.voters
        return 2 * len(voters - self.peers.refused_nodes) <= len(voters)

    def append(self, records: Sequence[MetadataRecord]) -> asyncio.Future[None]:
        """Append one batch as leader. The future completes when the batch is committed.

        Raises ApiError NOT_CONTROLLER.
        """
        if not self.is_active_leader or self._is_persisting_state:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        try:
            last_offset = self.log.append(records, self.raft.epoch)
        except ApiError as error:
            self._fail_if_offline(error)
            raise
        committed: asyncio.Future[None] = self._loop.create_future()
        self._pending_appends.append((last_offset, self.raft.epoch, committed))
        self._submit(self.raft.on_appended)
        return committed

    def wait_for_offset(self, offset: int) -> asyncio.Future[None]:
        """Return a future that completes when all records before `offset` are committed and applied on this node."""
        future: asyncio.Future[None] = self._loop.create_future()
        if self._committed_offset >= offset:
            future.set_result(None)
        else:
            self._offset_waiters.append((offset, future))
        return future

    def resign(self) -> None:
        """Resign as leader, if this node is the leader."""
        self._submit(self.raft.resign)

    # -- running the state machine -----------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _submit(self, step: Callable[[int], list[Effect]]) -> None:
        self._inputs.append(step)
        if not self._is_busy:
            self._process()

    def _process(self) -> None:
        """Apply the pending effects and process the pending inputs.

        If an input changes quorum-state, this method returns early. When the change is on disk, `_persist` continues
        with the pending effects and inputs.
        """
        if self._is_closed:
            return
        self._is_busy = True
        while True:
            if self._effects:
                effect = self._effects.popleft()
                if isinstance(effect, Persist):
                    self._is_persisting_state = True
                    self._loop.create_task(self._persist(effect))
                    return
                self._apply_or_fail(effect)
            elif self._inputs:
                self._effects.extend(self._step(self._inputs.popleft()))
            else:
                break
        self._is_busy = False
        if self.raft.is_caught_up:
            self.on_caught_up()
        self._schedule_tick()

    def _step(self, step: Callable[[int], list[Effect]]) -> list[Effect]:
        try:
            return step(self._now_ms())
        except ApiError as error:
            if not self._fail_if_offline(error):
                self._fail_unexpectedly(error)
        except DivergedError as error:
            self._fail(str(error))
        except OSError as error:  # if the disk is full, it may have space at the next attempt
            logger.error(
                "Metadata snapshot: cannot store the snapshot from the leader, retrying: %s", error.strerror or error
            )
        except Exception as error:  # noqa: BLE001 - a state machine in an unknown state must not continue
            self._fail_unexpectedly(error)
        return []

    def _apply_or_fail(self, effect: Effect) -> None:
        try:
            self._apply(effect)
        except StartError as error:  # the log is corrupt
            self._fail(str(error))
        except Exception as error:  # noqa: BLE001 - the listeners have missed committed records
            self._fail_unexpectedly(error)

    def _fail_unexpectedly(self, error: Exception) -> None:
        logger.error("Metadata quorum: stopping after an unexpected error", exc_info=error)
        self._fail(repr(error))

    async def _persist(self, effect: Persist) -> None:
        error_throttle = LogThrottle()
        while True:
            try:
                await self._loop.run_in_executor(None, self.log.write_state, effect.state)
                break
            except OSError as error:
                if error_throttle.should_log(self._loop.time()):
                    logger.error("Metadata quorum: cannot write quorum-state, retrying: %s", error)
                await asyncio.sleep(_RETRY_S)
        self._is_persisting_state = False
        self._process()

    def _apply(self, effect: Effect) -> None:
        if isinstance(effect, SendRequest):
            self._send(effect.node_id, effect.request)
        elif isinstance(effect, SendResponse):
            if not effect.token.done():
                effect.token.set_result(effect.response)
        elif isinstance(effect, Flush):
            self._flush()
        elif isinstance(effect, HighWatermarkAdvanced):
            self._commit(effect.offset)
        elif isinstance(effect, LeaderChanged):
            self._leader_changed(effect)
        else:
            assert isinstance(effect, SnapshotLoaded)
            self._load_snapshot()

    def _send(self, node_id: int, request: Request[Any]) -> None:
        def on_response(response: Response | None) -> None:
            self._check_for_misconfiguration(node_id, response)
            self._submit(lambda now_ms: self.raft.handle_response(node_id, request, response, now_ms))

        self.peers.send(node_id, request, on_response)

    def _check_for_misconfiguration(self, node_id: int, response: Response | None) -> None:
        """Report the voter `node_id` if its response shows that this node or the voter is misconfigured.

        For example, the two nodes have different cluster ids or different voters.
        """
        if response is None:
            return
        errors = _error_codes(response) & _MISCONFIGURATION_ERRORS
        if _is_other_voter_at_address(node_id, response):
            errors.add(ErrorCode.INVALID_VOTER_KEY)
        if errors:
            self.on_misconfigured_voter(node_id, errors.pop())

    def _schedule_tick(self) -> None:
        deadline_ms = self.raft.next_deadline_ms()
        if deadline_ms is None or (self._timer is not None and self._timer_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        self._timer = self._loop.call_later(max(1, deadline_ms - self._now_ms()) / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._submit(self.raft.tick)

    # -- the log -----------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        if self._flushing is not None:
            self._flush_again = True
        else:
            self._flushing = self._loop.create_task(self._sync())

    async def _sync(self) -> None:
        """Sync the log (fdatasync) repeatedly, until all appended records are synced.

        Each sync includes the records that were appended during the previous sync.
        """
        try:
            self._flush_again = True
            while self._flush_again:
                self._flush_again = False
                try:
                    paths = self.log.files_to_sync()
                    await self._loop.run_in_executor(None, self.log.sync, paths)
                except (OSError, ApiError) as error:
                    if isinstance(error, ApiError):
                        if self._fail_if_offline(error):
                            return
                    elif not is_out_of_file_descriptors(error):
                        raise
                    await asyncio.sleep(_RETRY_S)
                    self._flush_again = True
                    continue
                self.log.sync_completed()
                self._submit(self.raft.on_flushed)
        except OSError as error:
            self._fail(self.log.sync_failed(error))
        finally:
            self._flushing = None

    def _fail_if_offline(self, error: ApiError) -> bool:
        if self.log.log.offline_reason is not None:
            self._fail(error.message)
        return self.log.log.offline_reason is not None

    def _fail(self, reason: str) -> None:
        self.failures += 1
        logger.error("Metadata quorum: stopping, because the metadata log cannot be used: %s", reason)
        while self._pending_appends:
            committed = self._pending_appends.popleft()[2]
            if not committed.done():
                committed.set_exception(ApiError(ErrorCode.KAFKA_STORAGE_ERROR, reason))
        self.on_failure(reason)

    def _load_snapshot(self) -> None:
        """Replace the committed state with the log's snapshot, unless the snapshot is older."""
        snapshot, records = self.log.pop_snapshot_records()
        if snapshot is None or snapshot[0] < self._committed_offset:
            return
        self._committed_offset = snapshot[0]
        self.log.log.advance_high_watermark(snapshot[0])
        try:
            image = image_from_records(records, snapshot[0] - 1, snapshot[1])
        except ReplayError as error:
            raise StartError(_replay_error_text(error, records)) from None
        self.on_snapshot(image)
        logger.info("Metadata snapshot: loaded the snapshot with end offset %d", snapshot[0])

    def _commit(self, offset: int) -> None:
        try:
            for records, last_offset, epoch in self.log.batches(self._committed_offset, offset):
                self.on_commit(records, last_offset, epoch)
        except ReplayError as error:
            batches = self.log.batches(self._committed_offset, offset)
            raise StartError(_replay_error_text(error, (item for batch in batches for item in batch[0]))) from None
        self._committed_offset = offset
        self.log.log.advance_high_watermark(offset)
        while self._pending_appends and self._pending_appends[0][0] < offset:
            _, epoch, committed = self._pending_appends.popleft()
            if not committed.done():
                committed.set_result(None)
        for waiter in [item for item in self._offset_waiters if item[0] <= offset]:
            self._offset_waiters.remove(waiter)
            if not waiter[1].done():
                waiter[1].set_result(None)
        self._check_leadership()
        self.on_high_watermark_applied()

    def _check_leadership(self) -> None:
        if self.is_active_leader is not self._was_active_leader:
            self._was_active_leader = self.is_active_leader
            self.on_leadership_change(self._was_active_leader)

    def _leader_changed(self, effect: LeaderChanged) -> None:
        """Fail the pending appends of earlier epochs, because a new leader may keep or truncate their records."""
        kept = deque(
            entry
            for entry in self._pending_appends
            if entry[1] == effect.epoch and effect.leader_id == self.raft.config.node_id
        )
        for _, _, committed in (entry for entry in self._pending_appends if entry not in kept):
            if not committed.done():
                committed.set_exception(ApiError(ErrorCode.NOT_CONTROLLER))
                # retrieve the exception; otherwise asyncio would log it if the caller was cancelled
                committed.exception()
        self._pending_appends = kept
        self._check_leadership()
        self.on_leader_changed()

    def leave(self) -> None:
        """Leave the quorum: process no more inputs and close the connections."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.peers.close()

    async def close(self) -> None:
        """Leave the quorum, finish the sync in progress and close the log."""
        self.leave()
        if self._flushing is not None:
            await asyncio.wait({self._flushing})
        self.log.close()


def _error_codes(response: Response) -> set[ErrorCode]:
    partition = metadata_partition(response_topics(response))
    codes = {getattr(response, "error_code", 0), 0 if partition is None else partition.error_code}
    return {ErrorCode.from_code(code) for code in codes - {0}}


def _is_other_voter_at_address(node_id: int, response: Response) -> bool:
    """Return whether a node other than `node_id` responded from `node_id`'s configured address.

    The response then has the error NOT_LEADER_OR_FOLLOWER although it names `node_id` as the leader.
    """
    partition = metadata_partition(response_topics(response))
    return (
        partition is not None
        and partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        and leader_and_epoch(partition)[0] == node_id
    )


def _replay_error_text(error: ReplayError, records: Iterable[MetadataRecord]) -> str:
    """Also name the protections in the records: the node would not start even without the other error."""
    protections = protections_in(records)
    also = f"; the metadata also contains {describe(protections)}, which headrace does not support yet"
    return f"{error}{also if protections else ''}"


def _no_listener(*_: object) -> None:
    """Default for a listener that is not set."""
