"""Runs the quorum's core: its clock, its disk, its peers, and what is committed for those who listen.

Inputs reach the core one at a time, and none while it waits for its vote to be on disk.  Committed batches are handed
to `on_commit` in order; `append` is for the leader and answers when its batch is committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from headrace_broker.log.storage import is_passing
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.snapshots import image_of
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.fetch import FetchRequest
from headrace_broker.protocol.metadata_records import MetadataRecord
from headrace_broker.protocol.notation import Request, Response
from headrace_broker.raft.core import Raft
from headrace_broker.raft.effects import (
    Effect,
    Flush,
    HighWatermark,
    LeaderChanged,
    Persist,
    Reply,
    Send,
    SnapshotLoaded,
)
from headrace_broker.raft.follower import DivergedError
from headrace_broker.raft.leader import Leader
from headrace_broker.raft.messages import claimed_by, fetcher_of, leader_of, only_partition, topics_of
from headrace_broker.server.data_dirs import StartError
from headrace_broker.server.kraft.metadata_log import MetadataLog
from headrace_broker.server.kraft.peers import Peers
from headrace_broker.server.telling import Telling

logger = logging.getLogger(__name__)

_RETRY_S = 0.05
_REFUSALS = frozenset(
    (ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.INCONSISTENT_VOTER_SET, ErrorCode.INVALID_VOTER_KEY)
)

Committed = Callable[[Sequence[MetadataRecord], int, int], None]
"""(records of one batch, offset of the last, epoch)."""


class Quorum:
    """This node's part in the quorum; lives on the event loop."""

    def __init__(self, raft: Raft, log: MetadataLog) -> None:
        self.raft = raft
        self.log = log
        self.on_commit: Committed = _nobody
        self.on_snapshot: Callable[[MetadataImage], None] = _nobody_either
        self.after_commit: Callable[[], None] = _nothing
        self.on_refusal: Callable[[int, ErrorCode], None] = _unheard
        self.on_leader_changed: Callable[[], None] = _nothing
        self.on_caught_up: Callable[[], None] = _nothing
        self.on_leadership: Callable[[bool], None] = _ignore
        self.on_failure: Callable[[str], None] = _no_reason
        self.on_majority_gone: Callable[[], None] = _nothing
        self.peers: Peers
        self._loop = asyncio.get_running_loop()
        self._inputs: deque[Callable[[int], list[Effect]]] = deque()
        self._effects: deque[Effect] = deque()
        self._is_busy = False
        self._is_persisting = False
        self._flushing: asyncio.Task[None] | None = None
        self._flush_again = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._committed_offset = log.log_start_offset
        self._waiting: deque[tuple[int, int, asyncio.Future[None]]] = deque()
        self._reaching: list[tuple[int, asyncio.Future[None]]] = []
        self._is_closed = False
        self._hostile = Telling()
        self._led = False
        self.failures = 0
        """How often this node's part has stopped: what is committed can no longer be followed."""

    # -- who leads ---------------------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Whether this node leads and knows everything that was committed before."""
        role = self.raft.role
        return isinstance(role, Leader) and role.is_established

    @property
    def is_persisting(self) -> bool:
        """Whether what the core has decided is not on disk yet, and not acted upon."""
        return self._is_persisting or any(isinstance(effect, Persist) for effect in self._effects)

    @property
    def next_offset(self) -> int:
        """The offset of the next record that is appended."""
        return self.log.log_end_offset

    # -- inputs ------------------------------------------------------------------------------------------------------

    def start(self, peers: Peers) -> None:
        """Take part."""
        self.peers = peers
        self._load_snapshot()
        self._give(self.raft.start)

    def handle(self, request: Request[Any], host: str = "") -> asyncio.Future[Response]:
        """Answer another node's request; `host` is where a request comes from that claims something of an epoch."""
        future: asyncio.Future[Response] = self._loop.create_future()
        if host:
            future.add_done_callback(lambda done: self._note_claim(request, host, done))
        if isinstance(request, FetchRequest):
            self.peers.heard(fetcher_of(request))
        self._give(lambda now_ms: self.raft.handle(request, future, now_ms))
        return future

    def _note_claim(self, request: Any, host: str, answer: asyncio.Future[Response]) -> None:
        """Tell of a request that no sound member of this quorum sends."""
        refused = set() if answer.cancelled() else _errors(answer.result())
        if not refused - {ErrorCode.FENCED_LEADER_EPOCH} or not self._hostile.is_due(self._loop.time()):
            return
        partition = only_partition(request.topics)
        node_id, epoch = (-1, -1) if partition is None else claimed_by(partition)
        logger.warning(
            "refusing %s from %s, of node %d in epoch %d: this node is at epoch %d of cluster %s and knows voters %s",
            type(request).__name__,
            host,
            node_id,
            epoch,
            self.raft.epoch,
            self.raft.config.cluster_id,
            sorted(self.raft.config.voters),
        )

    def refused(self, node_id: int) -> None:
        """A node's process is dead."""
        self._give(lambda now_ms: self.raft.refused(node_id, now_ms))
        if self.majority_is_gone:
            self.on_majority_gone()

    @property
    def majority_is_gone(self) -> bool:
        """Whether the processes of so many voters are dead that nothing can be decided until they are back."""
        voters = self.raft.config.voters
        return 2 * len(voters - self.peers.refusing) <= len(voters)

    def append(self, records: Sequence[MetadataRecord]) -> asyncio.Future[None]:
        """Append one batch as leader; the future is done when it is committed.  Raises ApiError NOT_CONTROLLER."""
        if not self.leads or self._is_persisting:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        try:
            last_offset = self.log.append(records, self.raft.epoch)
        except ApiError as error:
            self._fail_if_offline(error)
            raise
        committed: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((last_offset, self.raft.epoch, committed))
        self._give(self.raft.appended)
        return committed

    def reached(self, offset: int) -> asyncio.Future[None]:
        """Done when everything before `offset` is committed and applied here."""
        future: asyncio.Future[None] = self._loop.create_future()
        if self._committed_offset >= offset:
            future.set_result(None)
        else:
            self._reaching.append((offset, future))
        return future

    def resign(self) -> None:
        """Hand leadership over, if this node has it."""
        self._give(self.raft.resign)

    # -- the core's turns --------------------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _give(self, step: Callable[[int], list[Effect]]) -> None:
        self._inputs.append(step)
        if not self._is_busy:
            self._work()

    def _work(self) -> None:
        """Do the core's effects and give it its inputs, until there are none or its state has to be persisted."""
        if self._is_closed:
            return
        self._is_busy = True
        while True:
            if self._effects:
                effect = self._effects.popleft()
                if isinstance(effect, Persist):
                    self._is_persisting = True
                    self._loop.create_task(self._persist(effect))
                    return
                self._do_or_fail(effect)
            elif self._inputs:
                self._effects.extend(self._turn(self._inputs.popleft()))
            else:
                break
        self._is_busy = False
        if self.raft.is_caught_up:
            self.on_caught_up()
        self._arm()

    def _turn(self, step: Callable[[int], list[Effect]]) -> list[Effect]:
        try:
            return step(self._now_ms())
        except ApiError as error:
            if not self._fail_if_offline(error):
                self._fail_unexpectedly(error)
        except DivergedError as error:
            self._fail(str(error))
        except OSError as error:  # the next attempt may find room
            logger.error("a snapshot of the metadata cannot be taken over: %s", error.strerror or error)
        except Exception as error:  # noqa: BLE001 - a core in an unknown state must not go on
            self._fail_unexpectedly(error)
        return []

    def _do_or_fail(self, effect: Effect) -> None:
        try:
            self._do(effect)
        except StartError as error:  # the log is damaged
            self._fail(str(error))
        except Exception as error:  # noqa: BLE001 - whoever follows what is committed has missed a part of it
            self._fail_unexpectedly(error)

    def _fail_unexpectedly(self, error: Exception) -> None:
        logger.error("the quorum met an error that nobody expected", exc_info=error)
        self._fail(repr(error))

    async def _persist(self, effect: Persist) -> None:
        failing = Telling()
        while True:
            try:
                await self._loop.run_in_executor(None, self.log.write_state, effect.state)
                break
            except OSError as error:
                if failing.is_due(self._loop.time()):
                    logger.error("quorum-state cannot be written, trying again: %s", error)
                await asyncio.sleep(_RETRY_S)
        self._is_persisting = False
        self._work()

    def _do(self, effect: Effect) -> None:
        if isinstance(effect, Send):
            self._send(effect.node_id, effect.request)
        elif isinstance(effect, Reply):
            if not effect.token.done():
                effect.token.set_result(effect.response)
        elif isinstance(effect, Flush):
            self._flush()
        elif isinstance(effect, HighWatermark):
            self._commit(effect.offset)
        elif isinstance(effect, LeaderChanged):
            self._leader_changed(effect)
        else:
            assert isinstance(effect, SnapshotLoaded)
            self._load_snapshot()

    def _send(self, node_id: int, request: Request[Any]) -> None:
        def answered(response: Response | None) -> None:
            self._note_refusal(node_id, response)
            self._give(lambda now_ms: self.raft.response(node_id, request, response, now_ms))

        self.peers.send(node_id, request, answered)

    def _note_refusal(self, node_id: int, response: Response | None) -> None:
        """A voter that says we have no business with it is heard of: one of the two files is wrong."""
        if response is None:
            return
        refused = _errors(response) & _REFUSALS
        if _is_another(node_id, response):
            refused.add(ErrorCode.INVALID_VOTER_KEY)
        if refused:
            self.on_refusal(node_id, refused.pop())

    def _arm(self) -> None:
        deadline_ms = self.raft.next_deadline_ms()
        if deadline_ms is None or (self._timer is not None and self._timer_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        self._timer = self._loop.call_later(max(1, deadline_ms - self._now_ms()) / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._give(self.raft.tick)

    # -- the log -----------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        if self._flushing is not None:
            self._flush_again = True
        else:
            self._flushing = self._loop.create_task(self._sync())

    async def _sync(self) -> None:
        """fdatasync until nothing is new; what is appended meanwhile shares the next one."""
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
                    elif not is_passing(error):
                        raise
                    await asyncio.sleep(_RETRY_S)
                    self._flush_again = True
                    continue
                self.log.synced()
                self._give(self.raft.flushed)
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
        logger.error("the metadata log stops: %s", reason)
        while self._waiting:
            committed = self._waiting.popleft()[2]
            if not committed.done():
                committed.set_exception(ApiError(ErrorCode.KAFKA_STORAGE_ERROR, reason))
        self.on_failure(reason)

    def _load_snapshot(self) -> None:
        """What a snapshot holds takes the place of what was committed before."""
        snapshot, records = self.log.take_snapshot_records()
        if snapshot is None or snapshot[0] < self._committed_offset:
            return
        self._committed_offset = snapshot[0]
        self.log.log.high_watermark = snapshot[0]
        self.on_snapshot(image_of(records, snapshot[0] - 1, snapshot[1]))
        logger.info("loaded a snapshot of the metadata up to offset %d", snapshot[0])

    def _commit(self, offset: int) -> None:
        for records, last_offset, epoch in self.log.batches(self._committed_offset, offset):
            self.on_commit(records, last_offset, epoch)
        self._committed_offset = offset
        self.log.log.high_watermark = offset
        while self._waiting and self._waiting[0][0] < offset:
            _, epoch, committed = self._waiting.popleft()
            if not committed.done():
                committed.set_result(None)
        for reaching in [item for item in self._reaching if item[0] <= offset]:
            self._reaching.remove(reaching)
            if not reaching[1].done():
                reaching[1].set_result(None)
        self._note_leadership()
        self.after_commit()

    def _note_leadership(self) -> None:
        if self.leads is not self._led:
            self._led = self.leads
            self.on_leadership(self._led)

    def _leader_changed(self, effect: LeaderChanged) -> None:
        """What was appended in an earlier epoch and is not committed may or may not survive: who waits is told."""
        kept = deque(
            entry
            for entry in self._waiting
            if entry[1] == effect.epoch and effect.leader_id == self.raft.config.node_id
        )
        for _, _, committed in (entry for entry in self._waiting if entry not in kept):
            if not committed.done():
                committed.set_exception(ApiError(ErrorCode.NOT_CONTROLLER))
                committed.exception()  # who asked for it may be gone, and that is no news for the log
        self._waiting = kept
        self._note_leadership()
        self.on_leader_changed()

    def leave(self) -> None:
        """Take no part any more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.peers.close()

    async def close(self) -> None:
        """Stop taking part; what is being written is finished."""
        self.leave()
        if self._flushing is not None:
            await asyncio.wait({self._flushing})
        self.log.close()


def _errors(response: Response) -> set[ErrorCode]:
    partition = only_partition(topics_of(response))
    codes = {getattr(response, "error_code", 0), 0 if partition is None else partition.error_code}
    return {ErrorCode.of(code) for code in codes - {0}}


def _is_another(node_id: int, response: Response) -> bool:
    """Whether the node that was asked says that it does not lead, but the one that it was asked as does."""
    partition = only_partition(topics_of(response))
    return (
        partition is not None
        and partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        and leader_of(partition)[0] == node_id
    )


def _nobody(records: Sequence[MetadataRecord], last_offset: int, epoch: int) -> None:
    """Placeholder until someone listens."""


def _nobody_either(image: MetadataImage) -> None:
    """Placeholder until someone listens."""


def _unheard(node_id: int, code: ErrorCode) -> None:
    """Placeholder until someone listens."""


def _nothing() -> None:
    """Placeholder until someone listens."""


def _no_reason(reason: str) -> None:
    """Placeholder until someone listens."""


def _ignore(leads: bool) -> None:
    """Placeholder until someone listens."""
