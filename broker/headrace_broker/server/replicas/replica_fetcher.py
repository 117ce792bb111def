"""Fetches records from one leader, for all partitions of this leader that this broker follows.

Normally, one fetch request is in flight at a time. While the follower is far behind, it sends the next request before
it appends the records of the last response. The leader then reads and sends the next records while the follower
appends.

A newly added partition does not wait for the current long poll: a second request makes the leader complete the long
poll. A partition that fails is retried after a growing backoff. After the error FENCED_LEADER_EPOCH, a partition is not
fetched again until the image has a new leader epoch for it.

If the leader does not respond, the fetcher reopens the connection long before replica.socket.timeout.ms has passed.
After a network partition has ended, TCP may resume the old connection only after a further delay, which can be as long
as the network partition was. If this follower is in the ISR, the high watermark would not advance during this delay.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from headrace_broker.client.connection import BrokerConnection
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
from headrace_broker.replication.fetch_sessions import FetchSessionHandler
from headrace_broker.server.log_throttle import LogThrottle
from headrace_broker.server.replicas.partitions import Partition

if TYPE_CHECKING:
    from headrace_broker.server.broker import Broker

logger = logging.getLogger(__name__)

_FETCH_VERSION_MAX = 17
_BACKOFF_MIN_MS = 20
_THROTTLED_MAX_MS = 1000
_TRUNCATION_SYNC_MAX_MS = 1000
_AFTER_EXCEPTION_S = 1.0
_LONG_POLL_S = 0.01
_RESPONSE_TIMEOUT_MS = 2_000
_SESSION_ERRORS = (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
_EARLIEST = -2
_LATEST = -1


class _PartitionResponse(NamedTuple):
    """A partition's part of a response, with the leader epoch and fetch offset that were requested."""

    partition: Partition
    epoch: int
    offset: int
    partition_data: PartitionData


class ReplicaFetcher:
    """Fetches from one leader for this broker. Owns the connection to the leader and the fetch session."""

    def __init__(self, broker: Broker, leader_id: int) -> None:
        self._broker = broker
        self._leader_id = leader_id
        self._config = broker.config
        self._loop = asyncio.get_running_loop()
        self._partitions: dict[Partition, int] = {}
        """For each partition, the leader epoch in which it is fetched.

        A partition that returned records moves to the end. A full fetch has the partitions in this order, so that the
        first partitions cannot fill every response.
        """
        self._backing_off: dict[Partition, float] = {}  # the time at which the backoff of a partition ends
        self._error_throttles: dict[Partition, LogThrottle] = {}
        self._backoff_ms: dict[Partition, int] = {}  # the length of the partition's last backoff
        self._session = FetchSessionHandler()
        self._requested: dict[Partition, tuple[int, int]] = {}  # the epoch and offset in the last request
        self._to_request: dict[Partition, None] = {}  # partitions to add to or update in the session
        self._to_forget: dict[Partition, None] = {}  # partitions to remove from the session
        self._changed = asyncio.Event()
        self._connection: BrokerConnection | None = None
        self._pending_response: asyncio.Future[FetchResponse] | None = None
        self._requested_at: float | None = None
        self._appended_bytes = 0  # bytes of records since the last request
        self._long_poll_to_end: float | None = None  # start time of the request whose long poll must be ended
        self._failures = 0
        self._task: asyncio.Task[None] | None = None
        self.lags: dict[Partition, int] = {}
        """By partition: the number of committed records that this replica lacked after the last response."""
        self.fetches = 0

    def add(self, partition: Partition, leader_epoch: int) -> None:
        """Start fetching this partition in this leader epoch."""
        self._partitions[partition] = leader_epoch
        self._backing_off.pop(partition, None)
        self._to_forget.pop(partition, None)
        self._to_request[partition] = None
        self._changed.set()
        if self._task is None:
            self._task = self._loop.create_task(self._run())
        elif self._requested_at is not None and self._requested_at != self._long_poll_to_end:
            self._long_poll_to_end = self._requested_at
            self._loop.call_at(self._requested_at + _LONG_POLL_S, self._end_long_poll, self._requested_at)

    def remove(self, partition: Partition) -> None:
        """Stop fetching this partition. Records of this partition in a later response are ignored."""
        self._partitions.pop(partition, None)
        self._backing_off.pop(partition, None)
        self._backoff_ms.pop(partition, None)
        self._error_throttles.pop(partition, None)
        self._requested.pop(partition, None)
        self._to_request.pop(partition, None)
        self.lags.pop(partition, None)
        self._to_forget[partition] = None

    @property
    def is_following(self) -> bool:
        """Whether this fetcher has any partitions."""
        return bool(self._partitions)

    def _end_long_poll(self, requested_at: float) -> None:
        if self._requested_at != requested_at:
            return  # the response has arrived
        request = self._request()
        if self._connection is None or not self._session.fill_wake_up(request):
            self._drop_connection()
            return
        try:
            self._connection.send(request, self._version(self._connection), lambda response, error: None)
        except ClientError:
            pass  # the connection is closed; the pending fetch fails, and `_run` handles that

    def has_leader_disconnected(self) -> bool:
        """Return whether the leader has closed the connection, even if the event loop has not processed that yet."""
        return self._connection is not None and self._connection.is_open and self._connection.is_closed_by_peer()

    def close(self) -> None:
        """Stop fetching and close the connection."""
        if self._task is not None:
            self._task.cancel()
        self._drop_connection()

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._pending_response is not None:
            self._pending_response.add_done_callback(_ignore_result)
            self._pending_response = None
        self._reset_session()

    def _reset_session(self) -> None:
        """Discard the fetch session: the next request is a full fetch of all partitions."""
        self._session.reset()
        self._to_forget.clear()
        self._to_request = {partition: None for partition in self._partitions if partition not in self._backing_off}

    # -- the loop ----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            self._resume()
            self._back_off_throttled()
            if self._pending_response is None and len(self._backing_off) == len(self._partitions):
                await self._wait(self._until_ready_s())
                continue
            try:
                if self._pending_response is None:
                    self._pending_response = self._send_fetch(await self._connect())
                response = await self._await_response(self._pending_response)
                if self._failures:
                    self._failures = 0
                    self._broker.suspected_brokers.clear(self._leader_id)
                await self._handle_response(response)
            except (ClientError, ConnectionError) as error:
                self._on_failure(error)
                await self._wait(self._backoff_ms_for(self._failures) / 1000)
            except Exception:  # if the fetcher stopped, no partition of that leader would be replicated any more
                logger.exception("Fetcher for broker %d: unexpected error, reconnecting", self._leader_id)
                self._drop_connection()
                await self._wait(_AFTER_EXCEPTION_S)

    def _resume(self) -> None:
        """Resume fetching the partitions whose backoff has ended."""
        now = self._loop.time()
        for partition in [partition for partition, until in self._backing_off.items() if until <= now]:
            del self._backing_off[partition]
            self._to_forget.pop(partition, None)
            self._to_request[partition] = None

    def _back_off_throttled(self) -> None:
        """While the quota is exceeded, pause fetching the throttled partitions that are out of sync (KIP-73)."""
        replication = self._broker.replication
        delay_ms = replication.follower_throttle.delay_ms(replication.now_ms())
        if delay_ms == 0:
            return
        for partition in self._partitions:
            if partition not in self._backing_off and replication.is_throttled_as_follower(partition):
                self._back_off_for(partition, min(delay_ms, _THROTTLED_MAX_MS))

    def _until_ready_s(self) -> float | None:
        return max(0.001, min(self._backing_off.values()) - self._loop.time()) if self._backing_off else None

    async def _wait(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass  # the backoff has ended

    def _backoff_ms_for(self, failures: int) -> int:
        return min(_BACKOFF_MIN_MS << min(failures, 10), max(_BACKOFF_MIN_MS, self._config.replica_fetch_backoff_ms))

    def _on_failure(self, error: Exception) -> None:
        if self._connection is not None and not self._failures:  # the leader closed the connection, not this fetcher
            self._broker.suspected_brokers.suspect(self._leader_id, self._broker.image)
        self._drop_connection()
        self._failures += 1
        if self._failures == 1:
            logger.info("Fetcher for broker %d: Fetch request failed, retrying: %s", self._leader_id, error)

    async def _connect(self) -> BrokerConnection:
        if self._connection is not None and self._connection.is_open:
            return self._connection
        broker = self._broker.image.brokers.get(self._leader_id)
        endpoint = None if broker is None else broker.endpoint(self._config.inter_broker_listener)
        if endpoint is None:
            raise ConnectionError(
                f"broker {self._leader_id} has not registered the listener {self._config.inter_broker_listener}"
            )
        self._connection = await BrokerConnection.open(
            endpoint.host,
            endpoint.port,
            node_id=self._leader_id,
            client_id=f"broker-{self._broker.node_id}-fetcher",
            request_timeout_ms=min(
                self._config.replica_socket_timeout_ms, self._config.replica_fetch_wait_max_ms + _RESPONSE_TIMEOUT_MS
            ),
            setup_timeout_ms=_RESPONSE_TIMEOUT_MS,
            reuses_frames=True,
        )
        return self._connection

    def _send_fetch(
        self, connection: BrokerConnection, ends: dict[Partition, tuple[int, int]] | None = None
    ) -> asyncio.Future[FetchResponse]:
        """Send the next Fetch request.

        Some partitions may have received records that are not appended yet. For each of them, `ends` contains the
        offset after these records and the epoch of the last record.
        """
        request = self._request()
        to_request, self._to_request = self._to_request, {}
        to_forget, self._to_forget = self._to_forget, {}
        ends = ends or {}
        self._session.fill(
            request,
            (
                (partition, partition.topic_id, self._fetch_partition(partition, ends.get(partition)))
                for partition in to_request
            ),
            to_forget,
        )
        self.fetches += 1
        self._requested_at = self._loop.time()
        response = connection.request(request, version=self._version(connection))
        self._broker.router.busy_poll.record_read(self._appended_bytes)
        self._appended_bytes = 0
        return response

    async def _await_response(self, response: asyncio.Future[FetchResponse]) -> FetchResponse:
        try:
            return await response
        finally:
            self._requested_at = self._pending_response = None

    def _request(self) -> FetchRequest:
        return FetchRequest(
            replica_state=ReplicaState(replica_id=self._broker.node_id, replica_epoch=self._broker.lifecycle.epoch),
            max_wait_ms=self._config.replica_fetch_wait_max_ms,
            min_bytes=self._config.replica_fetch_min_bytes,
            max_bytes=self._config.replica_fetch_response_max_bytes,
        )

    def _version(self, connection: BrokerConnection) -> int:
        return connection.version_for(FetchRequest, at_least=15, at_most=_FETCH_VERSION_MAX)

    def _fetch_partition(self, partition: Partition, end: tuple[int, int] | None) -> FetchPartition:
        wanted = follower.next_fetch(
            partition.index, partition.log, self._partitions[partition], self._config.replica_fetch_max_bytes, end
        )
        self._requested[partition] = (self._partitions[partition], wanted.fetch_offset)
        return wanted

    # -- responses ---------------------------------------------------------------------------------------------------

    async def _handle_response(self, response: FetchResponse) -> None:
        if response.error_code != ErrorCode.NONE:
            self._reset_session()
            if response.error_code not in _SESSION_ERRORS:
                await self._wait(self._backoff_ms_for(1) / 1000)
            return
        responses = list(self._followed_partitions(response))
        self._session.on_response(response.session_id)
        if self._session.is_next_request_full:  # the leader's session cache is full
            self._reset_session()
        self._send_fetch_ahead(responses)
        for item in responses:
            if self._partitions.get(item.partition) == item.epoch:
                await self._handle_partition(*item)

    def _followed_partitions(self, response: FetchResponse) -> Iterator[_PartitionResponse]:
        """Yield the partitions in the response, and request them again with the next fetch.

        Skip a partition if it is no longer fetched, or if its leader epoch has changed since the request.
        """
        for topic in response.responses:
            held = self._broker.partitions.by_id.get(topic.topic_id, {})
            for partition_data in topic.partitions:
                partition = held.get(partition_data.partition_index)
                if partition is None:
                    continue
                epoch, offset = self._requested.get(partition, (-1, -1))
                if self._partitions.get(partition) == epoch:
                    self._to_request[partition] = None
                    if partition_data.records:
                        self._partitions[partition] = self._partitions.pop(partition)
                    yield _PartitionResponse(partition, epoch, offset, partition_data)

    def _send_fetch_ahead(self, responses: list[_PartitionResponse]) -> None:
        """Send the next fetch before `responses` are processed, if every log that receives records is far behind.

        If one of these logs has caught up, send no fetch here. The leader needs the new log end offset of this log to
        advance the high watermark, and only a fetch after the append contains this offset. If a fetch was sent here,
        the fetch after the append would have to wait for its response, which may be large.
        """
        throttle, ends = self._broker.replication.follower_throttle, {}
        for partition, _, offset, partition_data in responses:
            verdict = follower.action_for(partition.log, offset, partition_data)
            if isinstance(verdict, follower.Append) and not partition_data.records:
                continue
            if partition_data.high_watermark <= offset:
                return  # the log is caught up; checked first, because `end_after_append` reads all records
            end = follower.end_after_append(verdict, _records(partition_data))
            if end is None or throttle.is_throttled(partition.topic, partition.index):
                return
            ends[partition] = end
        if ends and self._connection is not None and self._connection.is_open:
            self._pending_response = self._send_fetch(self._connection, ends)

    async def _handle_partition(
        self, partition: Partition, epoch: int, offset: int, partition_data: PartitionData
    ) -> None:
        try:
            await self._process_partition(partition, epoch, offset, partition_data)
        except ApiError as error:
            self._log_error(partition, error)
            self._broker.check_storage(partition.log)
            self._back_off(partition)
        except ClientError:
            raise
        except Exception as error:  # noqa: BLE001  one partition's error must not stop the replication of the others
            self._log_error(partition, error)
            self._back_off(partition)

    def _log_error(self, partition: Partition, error: Exception) -> None:
        if not self._error_throttles.setdefault(partition, LogThrottle()).should_log(self._loop.time()):
            return
        logger.error(
            "Partition %s-%d: replication failed, retrying: %s",
            partition.topic,
            partition.index,
            error.message if isinstance(error, ApiError) else error,
            exc_info=None if isinstance(error, ApiError) else error,
        )

    async def _process_partition(
        self, partition: Partition, epoch: int, offset: int, partition_data: PartitionData
    ) -> None:
        verdict = follower.action_for(partition.log, offset, partition_data)
        if isinstance(verdict, follower.Append):
            self._append(partition, epoch, partition_data, verdict)
            self._backoff_ms.pop(partition, None)
            if self._error_throttles.pop(partition, None) is not None:
                logger.warning("Partition %s-%d: replication succeeded after errors", partition.topic, partition.index)
        elif isinstance(verdict, follower.Truncate):
            logger.info(
                "Partition %s-%d: truncating from %d to %d, because the log diverges from the leader's log, in which "
                "leader epoch %d ends at %d; fetching from the new log end offset",
                partition.topic,
                partition.index,
                partition.log.log_end_offset,
                verdict.offset,
                partition_data.diverging_epoch.epoch,
                partition_data.diverging_epoch.end_offset,
            )
            partition.uncommitted.clear()
            partition.log.truncate_to(verdict.offset, self._broker.now_ms())
            self._resume_when_synced(partition, epoch)
        elif isinstance(verdict, follower.ResetOffset):
            await self._find_start(await self._connect(), partition, epoch)
        elif isinstance(verdict, follower.Stop):
            self.remove(partition)
        else:
            self._back_off(partition)

    def _resume_when_synced(self, partition: Partition, epoch: int) -> None:
        """Pause fetching of a truncated partition. Resume fetching when the truncation is flushed to disk.

        Fetching resumes in leader epoch `epoch`. The fetcher continues to fetch the other partitions.
        """
        if partition.log.unsynced_truncation is None:
            return

        def synced() -> None:
            self._broker.check_storage(partition.log)
            if self._partitions.get(partition) == epoch:
                self.add(partition, epoch)

        self._back_off_for(partition, _TRUNCATION_SYNC_MAX_MS)
        self._broker.logs.sync_truncation(partition.log, synced)

    def _append(
        self, partition: Partition, epoch: int, partition_data: PartitionData, verdict: follower.Append
    ) -> None:
        log = partition.log
        data = _records(partition_data)
        if data:
            log.append_as_follower(data, now_ms=self._broker.now_ms(), leader_epoch_max=epoch)
            partition.uncommitted.append((log.log_end_offset, len(data)))
            self._appended_bytes += len(data)
            throttle = self._broker.replication.follower_throttle
            if throttle.is_throttled(partition.topic, partition.index):
                throttle.record(len(data), self._broker.replication.now_ms())
        self._broker.replication.on_leader_high_watermark(partition, min(verdict.high_watermark, log.log_end_offset))
        self.lags[partition] = max(0, verdict.high_watermark - log.log_end_offset)
        if verdict.log_start_offset > log.log_start_offset:
            log.advance_log_start(min(verdict.log_start_offset, log.log_end_offset))
            self._to_request[partition] = None  # report the new log start offset; a request sent ahead has the old one

    def _back_off(self, partition: Partition) -> None:
        if partition not in self._partitions:
            return  # the partition was removed during a ListOffsets request
        backoff_ms = self._backoff_ms.get(partition, _BACKOFF_MIN_MS // 2) * 2
        backoff_ms = self._backoff_ms[partition] = min(
            backoff_ms, max(_BACKOFF_MIN_MS, self._config.replica_fetch_backoff_ms)
        )
        self._back_off_for(partition, backoff_ms)

    def _back_off_for(self, partition: Partition, backoff_ms: int) -> None:
        self._backing_off[partition] = self._loop.time() + backoff_ms / 1000
        self._to_request.pop(partition, None)
        self._to_forget[partition] = None

    async def _find_start(self, connection: BrokerConnection, partition: Partition, epoch: int) -> None:
        """Handle the error OFFSET_OUT_OF_RANGE: restart at an offset within the offset range of the leader's log."""
        start = await self._list_leader_offset(connection, partition, epoch, _EARLIEST)
        end = await self._list_leader_offset(connection, partition, epoch, _LATEST)
        if start is None or end is None or self._partitions.get(partition) != epoch:
            self._back_off(partition)
            return
        log = partition.log
        partition.uncommitted.clear()
        offset, drops_all = follower.reset_offset(log, start, end)
        logger.warning(
            "Partition %s-%d: log end offset %d is out of range, because the leader has offsets %d to %d; restarting "
            "at offset %d",
            partition.topic, partition.index, log.log_end_offset, start, end, offset,
        )  # fmt: skip
        if drops_all:
            log.truncate_fully_and_start_at(offset, self._broker.now_ms())
        else:
            log.truncate_to(offset, self._broker.now_ms())
        self._resume_when_synced(partition, epoch)

    async def _list_leader_offset(
        self, connection: BrokerConnection, partition: Partition, epoch: int, timestamp: int
    ) -> int | None:
        wanted = ListOffsetsPartition(partition_index=partition.index, current_leader_epoch=epoch, timestamp=timestamp)
        request = ListOffsetsRequest(
            replica_id=self._broker.node_id,
            isolation_level=0,
            topics=[ListOffsetsTopic(name=partition.topic, partitions=[wanted])],
        )
        response: ListOffsetsResponse = await connection.request(request)
        result = response.topics[0].partitions[0]
        return None if result.error_code != ErrorCode.NONE else result.offset


def _records(partition_data: PartitionData) -> Buffer:
    records = partition_data.records or b""
    if not isinstance(records, list):
        return records
    return records[0] if len(records) == 1 else b"".join(records)


def _ignore_result(response: asyncio.Future[FetchResponse]) -> None:
    """Retrieve the exception of a response that is not needed, so that asyncio does not log it."""
    if not response.cancelled():
        response.exception()
