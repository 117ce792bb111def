"""The producer: sends records as record batches, and reports one acknowledgement for each call of `send`.

Callers pass the records in column format (`RecordColumns`). The producer runs `producer_core` on one event loop. For
large calls of a send method, the `batcher` builds the batches in the calling thread.

A thread other than the event loop's thread may call only `send_blocking`, `send_with_callback` and `flush_blocking`.
All other methods must be called in the event loop's thread. The setting buffer.memory limits the unacknowledged bytes.
While the buffer is full, `ready`, `send_blocking` and `send_with_callback` wait.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Coroutine
from functools import partial
from typing import Any

from headrace_broker.client import delivery as deliveries
from headrace_broker.client.batcher import Batcher
from headrace_broker.client.cluster import Cluster
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.delivery import Completion, Delivery, RecordMetadata
from headrace_broker.client.errors import (
    BrokerError,
    ClientError,
    ClosedError,
    ConnectionLostError,
    DeliveryTimeoutError,
    ProtocolViolationError,
    RecordTooLargeError,
    TimedOutError,
)
from headrace_broker.client.lazy_timer import LazyTimer
from headrace_broker.client.producer_core import ProducerCore, ReadyBatch, RequestPlan, Verdict
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from headrace_broker.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns
from headrace_broker.records.reader import read_columns

__all__ = ["RecordMetadata", "Producer"]

logger = logging.getLogger(__name__)

PRODUCE_VERSION_MAX = 12
"""The last version with topic names; version 13 uses topic ids."""


class Producer:
    """A Kafka producer; open it with `open`, close it with `close`."""

    def __init__(
        self, cluster: Cluster, config: ClientConfig, *, owns_cluster: bool, is_at_least_once: bool = False
    ) -> None:
        self.cluster = cluster
        self._config = config
        self._owns_cluster = owns_cluster
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._core = ProducerCore(
            idempotent=config.enable_idempotence,
            expects_responses=config.acks != 0,
            in_flight_requests_max=config.max_in_flight,
            request_bytes_max=config.max_request_size,
            retries_max=config.retries,
            backoff_ms=cluster.retry_backoff_ms,
            is_at_least_once=is_at_least_once,
        )
        self._batcher = Batcher(cluster, config, self._wake)
        self._queued_sends: dict[str, list[tuple[int | None, RecordColumns, Delivery]]] = {}
        self._open_deliveries: set[Delivery] = set()
        self._pump_scheduled = False
        self._connecting: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._requesting_producer_id = False
        self._linger_timer = LazyTimer(self._loop, self._pump)
        self._deadline_timer = LazyTimer(self._loop, self._pump)
        self._closed = False
        cluster.listeners.append(self._on_metadata)

    @classmethod
    async def open(
        cls, config: ClientConfig, *, cluster: Cluster | None = None, is_at_least_once: bool = False
    ) -> Producer:
        """Connect to the cluster, or use `cluster` if set. Raises TimedOutError if no bootstrap server responds.

        With `is_at_least_once`, a sequence gap never makes the producer fail, but the producer may write batches twice
        (see `producer_core`).
        """
        opened = cluster or await Cluster.open(config)
        return cls(opened, config, owns_cluster=cluster is None, is_at_least_once=is_at_least_once)

    # -- sending -----------------------------------------------------------------------------------------------------

    def send(self, topic: str, partition: int | None, columns: RecordColumns) -> asyncio.Future[RecordMetadata]:
        """Send records. Call this method in the event loop's thread.

        When all records are acknowledged, the returned future completes. If a record cannot be sent, the future fails
        with a ClientError. If `partition` is None, the record key determines the partition, as in Kafka's Java
        producer. Records without a key are sent to the topic's current sticky partition. This method never blocks. To
        stay within buffer.memory, callers await `ready` first.
        """
        future: asyncio.Future[RecordMetadata] = self._loop.create_future()
        delivery = self._create_delivery(topic, partial(_complete_future, future))
        if self._closed:
            self._fail_delivery(delivery, ClosedError("the producer is closed"))
        elif topic in self._queued_sends or topic not in self.cluster.view.topics:
            self._queue_until_metadata(topic, partition, columns, delivery)
        else:
            self._batcher.send(topic, partition, columns, delivery)
        return future

    def send_blocking(
        self, topic: str, partition: int | None, columns: RecordColumns, *, timeout_ms: float | None = None
    ) -> concurrent.futures.Future[RecordMetadata]:
        """Send records from another thread; return a future that completes when all records are acknowledged.

        This method blocks and raises errors in the same cases as `send_with_callback`.
        """
        future: concurrent.futures.Future[RecordMetadata] = concurrent.futures.Future()
        self.send_with_callback(topic, partition, columns, partial(_complete_future, future), timeout_ms=timeout_ms)
        return future

    def send_with_callback(
        self,
        topic: str,
        partition: int | None,
        columns: RecordColumns,
        on_done: Completion,
        *,
        timeout_ms: float | None = None,
    ) -> None:
        """Send records. Call this method in any thread except the event loop's thread.

        Large batches are built in the calling thread. `on_done` receives the metadata of the records, or the error.
        This method blocks while the topic's metadata is missing or the buffer is full. The timeout of each wait is
        `timeout_ms` (None = max.block.ms). Raises BufferExhaustedError, TimedOutError, ClosedError.
        """
        assert threading.get_ident() != self._loop_thread, "send_blocking would block the producer's event loop"
        timeout = self._config.max_block_ms if timeout_ms is None else timeout_ms
        if topic not in self.cluster.view.topics:
            asyncio.run_coroutine_threadsafe(self.cluster.topic(topic, timeout), self._loop).result()
        self._batcher.wait_for_memory(timeout)
        self._batcher.send(topic, partition, columns, self._create_delivery(topic, on_done))

    async def ready(self) -> None:
        """Wait until fewer than buffer.memory bytes are unacknowledged."""
        await self._batcher.ready()

    async def prepare_topic(self, topic: str) -> None:
        """Fetch the topic's metadata in advance, so that sends need not wait. Raises BrokerError, TimedOutError."""
        await self.cluster.topic(topic, self._config.max_block_ms)

    async def flush(self, timeout_ms: float | None = None) -> None:
        """Send all accumulated records, and wait until every earlier send is acknowledged or has failed.

        A failed send does not raise an error here: the future of the `send` call reports it. Raises TimedOutError.
        """
        pending = list(self._open_deliveries)
        self._batcher.seal_all()
        self._wake()
        done: asyncio.Future[None] = self._loop.create_future()
        remaining = len(pending)

        def on_delivery_done() -> None:
            nonlocal remaining
            remaining -= 1
            if remaining == 0 and not done.done():
                done.set_result(None)

        for delivery in pending:
            delivery.add_listener(on_delivery_done)
        if not pending:
            return
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await done
        except TimeoutError:
            raise TimedOutError(f"flush: {remaining} sends were not acknowledged within {timeout_ms:.0f} ms") from None

    def flush_blocking(self, timeout_ms: float | None = None) -> None:
        """Run `flush` from another thread, and block until it has finished."""
        asyncio.run_coroutine_threadsafe(self.flush(timeout_ms), self._loop).result()

    async def close(self, timeout_ms: float | None = 30_000) -> None:
        """Flush, fail the sends that were not acknowledged, and close the connections.

        The flush ends after `timeout_ms` (None = no limit), or when this call is cancelled.
        """
        if self._closed:
            return
        try:
            await self.flush(timeout_ms)
        except TimedOutError as error:
            logger.warning(
                "Producer: failing all unacknowledged sends, because the last flush before close timed out: %s", error
            )
        finally:
            await self._shut_down()

    async def _shut_down(self) -> None:
        self._closed = True
        self._batcher.close()
        self._abort(ClosedError("the producer was closed before the records were acknowledged"))
        if self._on_metadata in self.cluster.listeners:
            self.cluster.listeners.remove(self._on_metadata)
        self._linger_timer.cancel()
        self._deadline_timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._owns_cluster:
            await self.cluster.close()

    @property
    def buffered_bytes(self) -> int:
        """The number of unacknowledged bytes."""
        return self._batcher.buffered_bytes

    @property
    def is_buffer_full(self) -> bool:
        """Whether the unacknowledged bytes have reached the limit buffer.memory. A blocking send would then wait."""
        return self._batcher.buffered_bytes >= self._config.buffer_memory

    @property
    def max_block_ms(self) -> float:
        """The timeout of a blocking send: max.block.ms."""
        return self._config.max_block_ms

    def _create_delivery(self, topic: str, on_done: Completion) -> Delivery:
        delivery = Delivery(topic, on_done)
        delivery.add_listener(partial(self._open_deliveries.discard, delivery))
        self._open_deliveries.add(delivery)
        return delivery

    def _fail_delivery(self, delivery: Delivery, error: ClientError) -> None:
        delivery.expect_part()
        delivery.fail_part(error)
        delivery.seal()

    def _wake(self) -> None:
        """Schedule one run of `_pump` in the loop, unless a run is already scheduled."""
        if self._pump_scheduled:
            return
        self._pump_scheduled = True
        if threading.get_ident() == self._loop_thread:
            self._loop.call_soon(self._pump)
        else:
            self._loop.call_soon_threadsafe(self._pump)

    # -- the loop's thread -------------------------------------------------------------------------------------------

    def _queue_until_metadata(
        self, topic: str, partition: int | None, columns: RecordColumns, delivery: Delivery
    ) -> None:
        """Queue a send until the topic's metadata is available. Later sends to the topic are queued after it."""
        queued = self._queued_sends.get(topic)
        if queued is not None:
            queued.append((partition, columns, delivery))
            return
        self._queued_sends[topic] = [(partition, columns, delivery)]
        self._spawn(self._send_queued(topic))

    async def _send_queued(self, topic: str) -> None:
        error: ClientError | None = None
        try:
            await self.cluster.topic(topic, self._config.max_block_ms)
        except ClientError as failure:
            error = failure
        for partition, columns, delivery in self._queued_sends.pop(topic):
            if error is not None:
                self._fail_delivery(delivery, error)
            else:
                self._batcher.send(topic, partition, columns, delivery)

    def _pump(self) -> None:
        """Build batches from accumulated records, queue new batches, fail expired batches, and send requests."""
        self._pump_scheduled = False
        if self._closed:
            return
        now_ms = self._loop.time() * 1000
        self._batcher.seal_due(now_ms, self._core.can_send_immediately)
        for batch in self._batcher.drain_built():
            self._core.add(batch)
        if not self._core.is_idle:
            self._send_waiting(now_ms)
        self._set_timers(now_ms)

    def _send_waiting(self, now_ms: float) -> None:
        """Fail expired batches, and send the batches that can be sent."""
        for batch in self._core.expire(now_ms):
            self._fail(batch, self._delivery_timeout(batch))
        if self._core.needs_producer_id and not self._requesting_producer_id:
            self._requesting_producer_id = True
            self._spawn(self._request_producer_id())
        while plans := self._core.drain(now_ms, self._leader_of, self._ensure_connected):
            for plan in plans:
                self._send_plan(plan)
        if self._core.leaderless:
            self._core.leaderless.clear()
            self.cluster.request_refresh()

    def _leader_of(self, topic: str, partition: int) -> int | None:
        view = self.cluster.view.leader(topic, partition)
        return None if view is None else view.leader_id

    def _ensure_connected(self, node_id: int) -> bool:
        connection = self.cluster.ready_connection(node_id)
        if connection is None:
            if node_id not in self._connecting:
                self._connecting.add(node_id)
                self.cluster.connect_in_background(node_id, "", partial(self._on_connected, node_id))
            return False
        if self._config.acks == 0 and not connection.is_writable:
            connection.on_writable = self._wake
            return False
        return True

    def _on_connected(self, node_id: int) -> None:
        self._connecting.discard(node_id)
        self._wake()

    def _send_plan(self, plan: RequestPlan) -> None:
        topics: dict[str, TopicProduceData] = {}
        for batch in plan.batches:
            topic = topics.get(batch.topic)
            if topic is None:
                topic = topics[batch.topic] = TopicProduceData(name=batch.topic)
            topic.partition_data.append(PartitionProduceData(index=batch.partition, records=batch.data))
        config = self._config
        request = ProduceRequest(
            acks=config.acks, timeout_ms=config.request_timeout_ms, topic_data=list(topics.values())
        )
        connection = self.cluster.ready_connection(plan.node_id)
        try:
            if connection is None:
                raise ConnectionLostError(f"broker {plan.node_id}: the connection is closed")
            version = connection.version_for(ProduceRequest, at_most=PRODUCE_VERSION_MAX)
            connection.send(request, version, partial(self._on_response, plan) if config.acks else None)
        except ClientError as error:
            self._on_response(plan, None, error)
            return
        if not config.acks:
            self._core.request_done(plan.node_id)
            for batch in plan.batches:
                self._apply_verdict(batch, self._core.acknowledge(batch), -1, None)

    def _on_response(self, plan: RequestPlan, response: ProduceResponse | None, error: ClientError | None) -> None:
        self._core.request_done(plan.node_id)
        now_ms = self._loop.time() * 1000
        if response is None:
            assert error is not None
            if plan.batches:
                logger.warning(
                    "Producer: Produce request failed, retrying its %d batches: %s", len(plan.batches), error
                )
            self.cluster.request_refresh()
            for batch in plan.batches:
                batch.last_error = str(error)
                self._apply_verdict(batch, self._core.handle_disconnect(batch, now_ms), -1, error)
        else:
            responses = {
                (topic.name, part.index): part for topic in response.responses for part in topic.partition_responses
            }
            for batch in plan.batches:
                self._on_partition_response(batch, responses.get((batch.topic, batch.partition)), now_ms)
        if not self._core.is_idle or self._batcher.has_records:
            self._wake()

    def _on_partition_response(
        self, batch: ReadyBatch, response: PartitionProduceResponse | None, now_ms: float
    ) -> None:
        subject = f"{batch.topic}-{batch.partition}"
        if response is None:
            error: ClientError = ProtocolViolationError(
                f"{subject}: the Produce response does not contain this partition"
            )
            self._apply_verdict(batch, self._core.handle_disconnect(batch, now_ms), -1, error)
            return
        if response.error_code == ErrorCode.NONE:
            verdict = self._core.acknowledge(batch)
            self._apply_verdict(batch, verdict, response.base_offset, None, response.log_append_time_ms)
            return
        error = BrokerError(response.error_code, subject, response.error_message)
        batch.last_error = str(error)
        if error.retriable:
            logger.info("Producer: the broker rejected a batch, retrying: %s", error)
            self.cluster.request_refresh()
        verdict = self._core.handle_error(batch, ErrorCode.from_code(response.error_code), now_ms)
        if verdict is Verdict.RETRY_AFTER_DATA_LOSS:
            logger.error(
                "Partition %s: acknowledged records are lost, probably because of an unclean leader election; the "
                "producer continues with the next records (%s: %s)",
                subject,
                error.code.name,
                error.message,
            )
        self._apply_verdict(batch, verdict, -1, error)

    def _apply_verdict(
        self,
        batch: ReadyBatch,
        verdict: Verdict,
        base_offset: int,
        error: ClientError | None,
        log_append_time_ms: int = -1,
    ) -> None:
        if verdict is Verdict.DONE:
            self._batcher.release(batch.reserved_bytes)
            deliveries.acknowledge(batch.delivery_parts, batch.partition, base_offset, log_append_time_ms)
        elif verdict is Verdict.SPLIT:
            self._split(batch)
        elif verdict is Verdict.FAILED:
            if error is None or (isinstance(error, ConnectionLostError) and self._is_past_deadline(batch)):
                error = self._delivery_timeout(batch)
            elif batch.outcome_unknown and isinstance(error, BrokerError):
                error = error.with_unknown_outcome()
            elif error.code == ErrorCode.MESSAGE_TOO_LARGE:
                error = RecordTooLargeError(f"{error} (one record, a batch of {len(batch.data)} bytes)")
            self._fail(batch, error)

    def _is_past_deadline(self, batch: ReadyBatch) -> bool:
        return self._loop.time() * 1000 >= batch.deadline_ms

    def _delivery_timeout(self, batch: ReadyBatch) -> DeliveryTimeoutError:
        known = self.cluster.view.errors.get(batch.topic)
        reason = batch.last_error or (f"topic {batch.topic}: {known.name}" if known else "no response, or no leader")
        return DeliveryTimeoutError(
            f"{batch.count} records for {batch.topic}-{batch.partition} were not acknowledged within "
            f"delivery.timeout.ms={self._config.delivery_timeout_ms}: {reason}"
        )

    def _fail(self, batch: ReadyBatch, error: ClientError) -> None:
        self._batcher.release(batch.reserved_bytes)
        deliveries.fail(batch.delivery_parts, error)

    def _split(self, batch: ReadyBatch) -> None:
        """Split a batch that is too large for the topic, and replace it with the two halves."""
        columns = read_columns(batch.data, verify_crc=False)
        middle = len(columns) // 2
        halves = (columns.slice(0, middle), columns.slice(middle, len(columns)))
        parts: list[ReadyBatch] = []
        for half, shares in zip(halves, deliveries.split_parts(batch.delivery_parts, middle), strict=True):
            data = build_batch(
                half, compression=self._config.compression, compression_level=self._config.compression_level
            )
            part = ReadyBatch(batch.topic, batch.partition, data, len(half), batch.deadline_ms, shares)
            part.reserved_bytes = batch.reserved_bytes // 2 + (batch.reserved_bytes % 2 if not parts else 0)
            parts.append(part)
        logger.info(
            "Partition %s-%d: a batch of %d bytes is too large for the broker; splitting it (set batch.size below "
            "the topic's max.message.bytes to avoid this)",
            batch.topic,
            batch.partition,
            len(batch.data),
        )
        self._core.replace(batch, parts)

    async def _request_producer_id(self) -> None:
        async def attempt() -> InitProducerIdResponse:
            response = await self.cluster.request_any(
                InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=2**31 - 1)
            )
            if response.error_code != ErrorCode.NONE:
                raise BrokerError(
                    response.error_code, "cannot get a producer id, which enable.idempotence=true requires"
                )
            return response

        try:
            response = await self.cluster.retry(
                attempt, self._config.delivery_timeout_ms, "the request for a producer id (enable.idempotence)"
            )
            self._core.set_producer_id(response.producer_id, response.producer_epoch)
        except ClientError as error:
            self._abort(error)
        finally:
            self._requesting_producer_id = False
        self._wake()

    def _abort(self, error: ClientError) -> None:
        """Fail all unacknowledged sends with `error`."""
        if not self._closed:
            self._batcher.seal_all()
        for batch in self._batcher.drain_built():
            self._core.add(batch)
        for batch in self._core.abort():
            self._fail(batch, error)
        for queued in list(self._queued_sends.values()):
            for _, _, delivery in queued:
                self._fail_delivery(delivery, error)
            queued.clear()

    def _on_metadata(self, view: object) -> None:
        if not self._core.is_idle:
            requeued = self._core.requeue_from_former_leaders(self._loop.time() * 1000, self._leader_of)
            if requeued:
                logger.info(
                    "Producer: sending %d batches to new leaders, because the former leaders have not responded",
                    requeued,
                )
            self._wake()

    def _set_timers(self, now_ms: float) -> None:
        linger_end_ms = self._batcher.next_due_ms(self._core.can_send_immediately)
        if linger_end_ms is not None:
            self._linger_timer.set(max(linger_end_ms, now_ms + 1) / 1000)
        event_ms = None if self._core.is_idle else self._core.next_event_ms(now_ms)
        if event_ms is not None:
            self._deadline_timer.set(max(event_ms, now_ms + 1) / 1000)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _complete_future(
    future: asyncio.Future[RecordMetadata] | concurrent.futures.Future[RecordMetadata],
    result: RecordMetadata | None,
    error: ClientError | None,
) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        assert result is not None
        future.set_result(result)
