"""Fetches, from one leader, every partition that this broker follows there; one request at a time.

While it is far behind it asks for the next records before it writes those that came: the leader reads and sends them
meanwhile.

A partition that is new here does not wait for the long poll under way, which is ended by a request behind it.  What
fails is tried again after a pause that grows; a leader that says its epoch is over is asked no more until the image
names the next one.

A leader that is silent is connected to anew, long before replica.socket.timeout.ms: once a cut network works again,
TCP takes up a connection only after as long a time as it was cut, and leaders wait for a replica that may come back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from headrace_broker.client.connection import Connection
from headrace_broker.client.errors import ClientError
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
    ReplicaState,
)
from headrace_broker.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from headrace_broker.records.batch import Buffer
from headrace_broker.replication import follower
from headrace_broker.replication.fetch_sessions import SessionState
from headrace_broker.server.replicas.partitions import Partition
from headrace_broker.server.telling import Telling

if TYPE_CHECKING:
    from headrace_broker.server.broker import Broker

logger = logging.getLogger(__name__)

_FETCH_VERSION_MAX = 17
_PAUSE_MIN_MS = 20
_HELD_BACK_MAX_MS = 1000
_CUT_WAIT_MAX_MS = 1000
_AFTER_FAULT_S = 1.0
_LONG_POLL_S = 0.01
_SILENCE_MS = 2_000
_SESSION_ERRORS = (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
_EARLIEST = -2
_LATEST = -1


class _Taken(NamedTuple):
    """A partition's answer, with the epoch and the offset that it was asked for in."""

    partition: Partition
    epoch: int
    offset: int
    answer: PartitionData


class ReplicaFetcher:
    """The follower's side of the connection to one leader."""

    def __init__(self, broker: Broker, leader_id: int) -> None:
        self._broker = broker
        self._leader_id = leader_id
        self._config = broker.config
        self._loop = asyncio.get_running_loop()
        self._partitions: dict[Partition, int] = {}  # with the leader epoch that is fetched in
        self._resting: dict[Partition, float] = {}  # until when
        self._troubles: dict[Partition, Telling] = {}
        self._pauses_ms: dict[Partition, int] = {}  # how long each last had to rest
        self._session = SessionState()
        self._asked: dict[Partition, tuple[int, int]] = {}  # the epoch and the offset of the last request
        self._unsaid: dict[Partition, None] = {}  # what the leader has to be told of
        self._gone: dict[Partition, None] = {}  # what it need not tell of any more
        self._changed = asyncio.Event()
        self._connection: Connection | None = None
        self._answer: asyncio.Future[FetchResponse] | None = None
        self._asked_at: float | None = None
        self._taken_bytes = 0  # of records, since the last request
        self._to_end: float | None = None  # the request that is not waited for when it becomes a long poll
        self._failures = 0
        self._task: asyncio.Task[None] | None = None
        self.lags: dict[Partition, int] = {}
        """How many committed records each partition lacked after the last answer."""
        self.fetches = 0

    def add(self, partition: Partition, leader_epoch: int) -> None:
        """Fetch this partition from now on, in that epoch."""
        self._partitions[partition] = leader_epoch
        self._resting.pop(partition, None)
        self._gone.pop(partition, None)
        self._unsaid[partition] = None
        self._changed.set()
        if self._task is None:
            self._task = self._loop.create_task(self._run())
        elif self._asked_at is not None and self._asked_at != self._to_end:
            self._to_end = self._asked_at
            self._loop.call_at(self._asked_at + _LONG_POLL_S, self._end_long_poll, self._asked_at)

    def remove(self, partition: Partition) -> None:
        """Fetch it no more; an answer that is under way is thrown away."""
        self._partitions.pop(partition, None)
        self._resting.pop(partition, None)
        self._pauses_ms.pop(partition, None)
        self._troubles.pop(partition, None)
        self._asked.pop(partition, None)
        self._unsaid.pop(partition, None)
        self.lags.pop(partition, None)
        self._gone[partition] = None

    @property
    def is_following(self) -> bool:
        """Whether there is anything to fetch."""
        return bool(self._partitions)

    def _end_long_poll(self, asked_at: float) -> None:
        if self._asked_at != asked_at:
            return  # it has been answered
        request = self._request()
        if self._connection is None or not self._session.nudge(request):
            self._drop_connection()
            return
        try:
            self._connection.send(request, self._version(self._connection), lambda response, error: None)
        except ClientError:
            pass  # the connection is lost, which whoever waits for the answer hears of

    def leader_has_gone(self) -> bool:
        """Whether the leader has closed the connection, noticed here or not yet."""
        return self._connection is not None and self._connection.is_open and self._connection.peer_has_gone()

    def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
        self._drop_connection()

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._answer is not None:
            self._answer.add_done_callback(_look_at)
            self._answer = None
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Without the session that the leader had: the next request says everything."""
        self._session.reset()
        self._gone.clear()
        self._unsaid = {partition: None for partition in self._partitions if partition not in self._resting}

    # -- the loop ----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            self._resume()
            self._hold_back()
            if self._answer is None and len(self._resting) == len(self._partitions):
                await self._wait(self._until_ready_s())
                continue
            try:
                if self._answer is None:
                    self._answer = self._ask(await self._connect())
                response = await self._answered(self._answer)
                if self._failures:
                    self._failures = 0
                    self._broker.departures.found(self._leader_id)
                await self._take(response)
            except (ClientError, ConnectionError) as error:
                self._failed(error)
                await self._wait(self._pause_ms(self._failures) / 1000)
            except Exception:  # a fetcher that ends would leave every partition of that leader behind
                logger.exception("fetching from broker %d", self._leader_id)
                self._drop_connection()
                await self._wait(_AFTER_FAULT_S)

    def _resume(self) -> None:
        """Ask again for what was paused long enough."""
        now = self._loop.time()
        for partition in [partition for partition, until in self._resting.items() if until <= now]:
            del self._resting[partition]
            self._gone.pop(partition, None)
            self._unsaid[partition] = None

    def _hold_back(self) -> None:
        """Leave out for a while what is throttled, and not in sync (KIP-73)."""
        replication = self._broker.replication
        delay_ms = replication.follower_throttle.delay_ms(replication.now_ms())
        if delay_ms == 0:
            return
        for partition in self._partitions:
            if partition not in self._resting and replication.waits_as_follower(partition):
                self._rest(partition, min(delay_ms, _HELD_BACK_MAX_MS))

    def _until_ready_s(self) -> float | None:
        return max(0.001, min(self._resting.values()) - self._loop.time()) if self._resting else None

    async def _wait(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass  # the pause is over

    def _pause_ms(self, failures: int) -> int:
        return min(_PAUSE_MIN_MS << min(failures, 10), max(_PAUSE_MIN_MS, self._config.replica_fetch_backoff_ms))

    def _failed(self, error: Exception) -> None:
        if self._connection is not None and not self._failures:  # it was not given up here
            self._broker.departures.lost(self._leader_id, self._broker.image)
        self._drop_connection()
        self._failures += 1
        if self._failures == 1:
            logger.info("fetching from broker %d: %s", self._leader_id, error)

    async def _connect(self) -> Connection:
        if self._connection is not None and self._connection.is_open:
            return self._connection
        broker = self._broker.image.brokers.get(self._leader_id)
        endpoint = None if broker is None else broker.endpoint(self._config.inter_broker_listener)
        if endpoint is None:
            raise ConnectionError(f"broker {self._leader_id} has no listener {self._config.inter_broker_listener}")
        self._connection = await Connection.open(
            endpoint.host,
            endpoint.port,
            node_id=self._leader_id,
            client_id=f"broker-{self._broker.node_id}-fetcher",
            request_timeout_ms=min(
                self._config.replica_socket_timeout_ms, self._config.replica_fetch_wait_max_ms + _SILENCE_MS
            ),
            setup_timeout_ms=_SILENCE_MS,
            reuses_frames=True,
        )
        return self._connection

    def _ask(
        self, connection: Connection, ends: dict[Partition, tuple[int, int]] | None = None
    ) -> asyncio.Future[FetchResponse]:
        """Send the next request, with the `ends` of partitions whose records are on their way to the log."""
        request = self._request()
        unsaid, self._unsaid = self._unsaid, {}
        gone, self._gone = self._gone, {}
        ends = ends or {}
        self._session.fill(
            request,
            ((partition, partition.topic_id, self._wanted(partition, ends.get(partition))) for partition in unsaid),
            gone,
        )
        self.fetches += 1
        self._asked_at = self._loop.time()
        answer = connection.request(request, version=self._version(connection))
        self._broker.router.wakefulness.heard(self._taken_bytes)
        self._taken_bytes = 0
        return answer

    async def _answered(self, answer: asyncio.Future[FetchResponse]) -> FetchResponse:
        try:
            return await answer
        finally:
            self._asked_at = self._answer = None

    def _request(self) -> FetchRequest:
        return FetchRequest(
            replica_state=ReplicaState(replica_id=self._broker.node_id, replica_epoch=self._broker.lifecycle.epoch),
            max_wait_ms=self._config.replica_fetch_wait_max_ms,
            min_bytes=self._config.replica_fetch_min_bytes,
            max_bytes=self._config.replica_fetch_response_max_bytes,
        )

    def _version(self, connection: Connection) -> int:
        return connection.version_for(FetchRequest, at_least=15, at_most=_FETCH_VERSION_MAX)

    def _wanted(self, partition: Partition, end: tuple[int, int] | None) -> FetchPartition:
        wanted = follower.next_fetch(
            partition.index, partition.log, self._partitions[partition], self._config.replica_fetch_max_bytes, end
        )
        self._asked[partition] = (self._partitions[partition], wanted.fetch_offset)
        return wanted

    # -- answers -----------------------------------------------------------------------------------------------------

    async def _take(self, response: FetchResponse) -> None:
        if response.error_code != ErrorCode.NONE:
            self._begin_anew()
            if response.error_code not in _SESSION_ERRORS:
                await self._wait(self._pause_ms(1) / 1000)
            return
        self._session.answered(response.session_id)
        if self._session.is_full:  # the leader has no room for a session
            self._begin_anew()
        taken = list(self._taken(response))
        self._ask_ahead(taken)
        for item in taken:
            if self._partitions.get(item.partition) == item.epoch:
                await self._take_answer(*item)

    def _taken(self, response: FetchResponse) -> Iterator[_Taken]:
        """The answers for what is still followed in the epoch in which it was asked for."""
        for topic in response.responses:
            held = self._broker.partitions.by_id.get(topic.topic_id, {})
            for answer in topic.partitions:
                partition = held.get(answer.partition_index)
                if partition is None:
                    continue
                epoch, offset = self._asked.get(partition, (-1, -1))
                if self._partitions.get(partition) == epoch:
                    self._unsaid[partition] = None
                    yield _Taken(partition, epoch, offset, answer)

    def _ask_ahead(self, taken: list[_Taken]) -> None:
        """Send the next request before these answers are acted on, where every log that gets records is far behind.

        One that keeps up must not wait: its leader is to hear of it first, and not behind a long answer for others.
        """
        throttle, ends = self._broker.replication.follower_throttle, {}
        for partition, _, offset, answer in taken:
            verdict = follower.judge(partition.log, offset, answer)
            if isinstance(verdict, follower.Append) and not answer.records:
                continue
            if answer.high_watermark <= offset:
                return  # it keeps up: its records need not be looked through for that
            end = follower.end_ahead(verdict, _records(answer))
            if end is None or throttle.holds_for(partition.topic, partition.index):
                return
            ends[partition] = end
        if ends and self._connection is not None and self._connection.is_open:
            self._answer = self._ask(self._connection, ends)

    async def _take_answer(self, partition: Partition, epoch: int, offset: int, answer: PartitionData) -> None:
        try:
            await self._act(partition, epoch, offset, answer)
        except ApiError as error:
            self._tell_trouble(partition, error)
            self._broker.check_storage(partition.log)
            self._pause(partition)
        except ClientError:
            raise
        except Exception as error:  # noqa: BLE001  one partition must not keep the others from being followed
            self._tell_trouble(partition, error)
            self._pause(partition)

    def _tell_trouble(self, partition: Partition, error: Exception) -> None:
        if not self._troubles.setdefault(partition, Telling()).is_due(self._loop.time()):
            return
        logger.error(
            "%s-%d cannot be followed: %s",
            partition.topic,
            partition.index,
            error.message if isinstance(error, ApiError) else error,
            exc_info=None if isinstance(error, ApiError) else error,
        )

    async def _act(self, partition: Partition, epoch: int, offset: int, answer: PartitionData) -> None:
        verdict = follower.judge(partition.log, offset, answer)
        if isinstance(verdict, follower.Append):
            self._append(partition, epoch, answer, verdict)
            self._pauses_ms.pop(partition, None)
            if self._troubles.pop(partition, None) is not None:
                logger.warning("%s-%d is followed again", partition.topic, partition.index)
        elif isinstance(verdict, follower.Truncate):
            logger.info("%s-%d is cut to offset %d", partition.topic, partition.index, verdict.offset)
            partition.uncommitted.clear()
            partition.log.truncate_to(verdict.offset, self._broker.now_ms())
            self._go_on_when_safe(partition, epoch)
        elif isinstance(verdict, follower.FindStart):
            await self._find_start(await self._connect(), partition, epoch)
        elif isinstance(verdict, follower.Stop):
            self.remove(partition)
        else:
            self._pause(partition)

    def _go_on_when_safe(self, partition: Partition, epoch: int) -> None:
        """Leave out for a moment what was cut, until the cut is on disk: all others go on meanwhile."""
        if partition.log.unsafe_cut is None:
            return

        def synced() -> None:
            self._broker.check_storage(partition.log)
            if self._partitions.get(partition) == epoch:
                self.add(partition, epoch)

        self._rest(partition, _CUT_WAIT_MAX_MS)
        self._broker.logs.make_cut_safe(partition.log, synced)

    def _append(self, partition: Partition, epoch: int, answer: PartitionData, verdict: follower.Append) -> None:
        log = partition.log
        data = _records(answer)
        if data:
            log.append_as_follower(data, now_ms=self._broker.now_ms(), leader_epoch_max=epoch)
            partition.uncommitted.append((log.log_end_offset, len(data)))
            self._taken_bytes += len(data)
            throttle = self._broker.replication.follower_throttle
            if throttle.holds_for(partition.topic, partition.index):
                throttle.count(len(data), self._broker.replication.now_ms())
        self._broker.replication.learned(partition, min(verdict.high_watermark, log.log_end_offset))
        self.lags[partition] = max(0, verdict.high_watermark - log.log_end_offset)
        if verdict.log_start_offset > log.log_start_offset:
            log.advance_log_start(min(verdict.log_start_offset, log.log_end_offset))
            self._unsaid[partition] = None  # the request that was sent ahead may be the last it was named in

    def _pause(self, partition: Partition) -> None:
        if partition not in self._partitions:
            return  # it was taken away while the leader was asked for something
        pause_ms = self._pauses_ms.get(partition, _PAUSE_MIN_MS // 2) * 2
        pause_ms = self._pauses_ms[partition] = min(pause_ms, max(_PAUSE_MIN_MS, self._config.replica_fetch_backoff_ms))
        self._rest(partition, pause_ms)

    def _rest(self, partition: Partition, pause_ms: int) -> None:
        self._resting[partition] = self._loop.time() + pause_ms / 1000
        self._unsaid.pop(partition, None)
        self._gone[partition] = None

    async def _find_start(self, connection: Connection, partition: Partition, epoch: int) -> None:
        """Our log ends where the leader has nothing: begin where it has something."""
        start = await self._leader_offset(connection, partition, epoch, _EARLIEST)
        end = await self._leader_offset(connection, partition, epoch, _LATEST)
        if start is None or end is None or self._partitions.get(partition) != epoch:
            self._pause(partition)
            return
        log = partition.log
        partition.uncommitted.clear()
        offset, drops_all = follower.restart_at(log, start, end)
        logger.warning(
            "%s-%d ends at offset %d, the leader has %d to %d: going on at %d",
            partition.topic, partition.index, log.log_end_offset, start, end, offset,
        )  # fmt: skip
        if drops_all:
            log.truncate_fully_and_start_at(offset, self._broker.now_ms())
        else:
            log.truncate_to(offset, self._broker.now_ms())
        self._go_on_when_safe(partition, epoch)

    async def _leader_offset(
        self, connection: Connection, partition: Partition, epoch: int, timestamp: int
    ) -> int | None:
        wanted = ListOffsetsPartition(partition_index=partition.index, current_leader_epoch=epoch, timestamp=timestamp)
        request = ListOffsetsRequest(
            replica_id=self._broker.node_id,
            isolation_level=0,
            topics=[ListOffsetsTopic(name=partition.topic, partitions=[wanted])],
        )
        response: ListOffsetsResponse = await connection.request(request)
        answer = response.topics[0].partitions[0]
        return None if answer.error_code != ErrorCode.NONE else answer.offset


def _records(answer: PartitionData) -> Buffer:
    records = answer.records or b""
    if not isinstance(records, list):
        return records
    return records[0] if len(records) == 1 else b"".join(records)


def _look_at(answer: asyncio.Future[FetchResponse]) -> None:
    """Have it known that nobody waits for this any more: it may have failed."""
    if not answer.cancelled():
        answer.exception()
