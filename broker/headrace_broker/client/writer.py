"""The writer: columns in, built record batches out, one acknowledgement for each `send`.

A shell around `writer_core` on one event loop. The `batcher` builds in the thread that sends, so that the loop only
moves bytes; `send_blocking` is for other threads, everything else for the loop's own. A bounded number of bytes waits
(buffer.memory): `ready` and `send_blocking` wait for room.
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
from headrace_broker.client.writer_core import ReadyBatch, RequestPlan, Verdict, WriterCore
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

__all__ = ["RecordMetadata", "Writer"]

logger = logging.getLogger(__name__)

_PRODUCE_VERSION_MAX = 12
"""The last version that names topics; 13 has ids."""


class Writer:
    """A producer; open it with `open`, close it with `close`."""

    def __init__(self, cluster: Cluster, config: ClientConfig, *, owns_cluster: bool) -> None:
        self.cluster = cluster
        self._config = config
        self._owns_cluster = owns_cluster
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._core = WriterCore(
            idempotent=config.enable_idempotence,
            waits_for_answers=config.acks != 0,
            in_flight_requests_max=config.max_in_flight,
            request_bytes_max=config.max_request_size,
            retries_max=config.retries,
            backoff_ms=cluster.retry_pause_ms,
        )
        self._batcher = Batcher(cluster, config, self._wake)
        self._parked: dict[str, list[tuple[int | None, RecordColumns, Delivery]]] = {}
        self._open: set[Delivery] = set()
        self._wake_due = False
        self._connecting: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._asks_producer_id = False
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        cluster.listeners.append(self._on_metadata)

    @classmethod
    async def open(cls, config: ClientConfig, *, cluster: Cluster | None = None) -> Writer:
        """Connect to the cluster (or share one). Raises NoBrokerError when no bootstrap server answers."""
        owns = cluster is None
        return cls(cluster or await Cluster.open(config), config, owns_cluster=owns)

    # -- sending -----------------------------------------------------------------------------------------------------

    def send(self, topic: str, partition: int | None, columns: RecordColumns) -> asyncio.Future[RecordMetadata]:
        """Send records, in the loop's thread; the future is done when all of them are acknowledged.

        Partition None = by key as Java does, keyless records to the topic's current sticky partition. The future fails
        with a ClientError. It never blocks: await `ready` first when sending much.
        """
        future: asyncio.Future[RecordMetadata] = self._loop.create_future()
        delivery = self._delivery(topic, partial(_settle_future, future))
        if self._closed:
            self._refuse(delivery, ClosedError("the writer is closed"))
        elif topic in self._parked or topic not in self.cluster.view.topics:
            self._park(topic, partition, columns, delivery)
        else:
            self._batcher.send(topic, partition, columns, delivery)
        return future

    def send_blocking(
        self, topic: str, partition: int | None, columns: RecordColumns, *, timeout_ms: float | None = None
    ) -> concurrent.futures.Future[RecordMetadata]:
        """`send_telling` with a future that is done when all of the records are acknowledged."""
        future: concurrent.futures.Future[RecordMetadata] = concurrent.futures.Future()
        self.send_telling(topic, partition, columns, partial(_settle_future, future), timeout_ms=timeout_ms)
        return future

    def send_telling(
        self,
        topic: str,
        partition: int | None,
        columns: RecordColumns,
        on_done: Completion,
        *,
        timeout_ms: float | None = None,
    ) -> None:
        """Send records from another thread: builds them here, and waits at most max.block.ms for room and metadata.

        Raises BufferExhaustedError, TimedOutError, ClosedError.
        """
        assert threading.get_ident() != self._loop_thread, "send_blocking would block the writer's own loop"
        timeout = self._config.max_block_ms if timeout_ms is None else timeout_ms
        if topic not in self.cluster.view.topics:
            asyncio.run_coroutine_threadsafe(self.cluster.topic(topic, timeout), self._loop).result()
        self._batcher.wait_for_room(timeout)
        self._batcher.send(topic, partition, columns, self._delivery(topic, on_done))

    async def ready(self) -> None:
        """Wait until less than buffer.memory is waiting to be acknowledged."""
        await self._batcher.ready()

    async def flush(self, timeout_ms: float | None = None) -> None:
        """Send what is gathered and wait until everything sent before is acknowledged or has failed.

        Failures are told by each send's own future. Raises TimedOutError.
        """
        waiting = list(self._open)
        self._batcher.seal_all()
        self._wake()
        done: asyncio.Future[None] = self._loop.create_future()
        left = len(waiting)

        def one_done() -> None:
            nonlocal left
            left -= 1
            if left == 0 and not done.done():
                done.set_result(None)

        for item in waiting:
            item.add_listener(one_done)
        if not waiting:
            return
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await done
        except TimeoutError:
            raise TimedOutError(f"{left} sends were not acknowledged within {timeout_ms:.0f} ms") from None

    def flush_blocking(self, timeout_ms: float | None = None) -> None:
        """`flush` for other threads."""
        asyncio.run_coroutine_threadsafe(self.flush(timeout_ms), self._loop).result()

    async def close(self, timeout_ms: float | None = 30_000) -> None:
        """Flush for up to `timeout_ms` (None = as long as it takes) or until cancelled, fail what is left, close the
        connections."""
        if self._closed:
            return
        try:
            await self.flush(timeout_ms)
        except TimedOutError as error:
            logger.warning("closing: %s", error)
        finally:
            await self._end()

    async def _end(self) -> None:
        self._closed = True
        self._batcher.close()
        self._abort(ClosedError("the writer was closed before the records were acknowledged"))
        if self._on_metadata in self.cluster.listeners:
            self.cluster.listeners.remove(self._on_metadata)
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._owns_cluster:
            await self.cluster.close()

    @property
    def buffered_bytes(self) -> int:
        """How many bytes wait to be acknowledged."""
        return self._batcher.buffered_bytes

    def _delivery(self, topic: str, on_done: Completion) -> Delivery:
        delivery = Delivery(topic, on_done)
        delivery.add_listener(partial(self._open.discard, delivery))
        self._open.add(delivery)
        return delivery

    def _refuse(self, delivery: Delivery, error: ClientError) -> None:
        delivery.expect_part()
        delivery.part_failed(error)
        delivery.sealed()

    def _wake(self) -> None:
        """Have the loop look at what is new, once however often it is called."""
        if self._wake_due:
            return
        self._wake_due = True
        if threading.get_ident() == self._loop_thread:
            self._loop.call_soon(self._pump)
        else:
            self._loop.call_soon_threadsafe(self._pump)

    # -- the loop's side ---------------------------------------------------------------------------------------------

    def _park(self, topic: str, partition: int | None, columns: RecordColumns, delivery: Delivery) -> None:
        """Keep a send until its topic is known; later sends to the topic queue behind it."""
        waiting = self._parked.get(topic)
        if waiting is not None:
            waiting.append((partition, columns, delivery))
            return
        self._parked[topic] = [(partition, columns, delivery)]
        self._spawn(self._unpark(topic))

    async def _unpark(self, topic: str) -> None:
        error: ClientError | None = None
        try:
            await self.cluster.topic(topic, self._config.max_block_ms)
        except ClientError as failure:
            error = failure
        for partition, columns, delivery in self._parked.pop(topic):
            if error is not None:
                self._refuse(delivery, error)
            else:
                self._batcher.send(topic, partition, columns, delivery)

    def _pump(self) -> None:
        """Move everything that can move: gathered sends, new batches, deadlines, requests."""
        self._wake_due = False
        if self._closed:
            return
        now_ms = self._loop.time() * 1000
        self._batcher.seal_due(now_ms, self._core.can_take_more)
        for batch in self._batcher.take_built():
            self._core.add(batch)
        for batch in self._core.expire(now_ms):
            self._fail(batch, self._delivery_timeout(batch))
        if self._core.needs_producer_id and not self._asks_producer_id:
            self._asks_producer_id = True
            self._spawn(self._ask_producer_id())
        while plans := self._core.drain(now_ms, self._leader_of, self._is_ready):
            for plan in plans:
                self._send_plan(plan)
        if self._core.leaderless:
            self._core.leaderless.clear()
            self.cluster.request_refresh()
        self._arm_timer(now_ms)

    def _leader_of(self, topic: str, partition: int) -> int | None:
        view = self.cluster.view.leader(topic, partition)
        return None if view is None else view.leader_id

    def _is_ready(self, node_id: int) -> bool:
        connection = self.cluster.ready_connection(node_id)
        if connection is None:
            if node_id not in self._connecting:
                self._connecting.add(node_id)
                self.cluster.connect_soon(node_id, "", partial(self._connected, node_id))
            return False
        if self._config.acks == 0 and not connection.is_writable:
            connection.on_writable = self._wake
            return False
        return True

    def _connected(self, node_id: int) -> None:
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
                raise ConnectionLostError(f"broker {plan.node_id}: the connection was lost")
            version = connection.version_for(ProduceRequest, at_most=_PRODUCE_VERSION_MAX)
            connection.send(request, version, partial(self._on_answer, plan) if config.acks else None)
        except ClientError as error:
            self._on_answer(plan, None, error)
            return
        if not config.acks:
            self._core.request_done(plan.node_id)
            for batch in plan.batches:
                self._conclude(batch, self._core.acknowledge(batch), -1, None)

    def _on_answer(self, plan: RequestPlan, response: ProduceResponse | None, error: ClientError | None) -> None:
        self._core.request_done(plan.node_id)
        now_ms = self._loop.time() * 1000
        if response is None:
            assert error is not None
            if plan.batches:
                logger.warning("%s; %d batches in flight will be sent again", error, len(plan.batches))
            self.cluster.request_refresh()
            for batch in plan.batches:
                batch.last_error = str(error)
                self._conclude(batch, self._core.lose(batch, now_ms), -1, error)
        else:
            answers = {
                (topic.name, part.index): part for topic in response.responses for part in topic.partition_responses
            }
            for batch in plan.batches:
                self._on_partition_answer(batch, answers.get((batch.topic, batch.partition)), now_ms)
        self._wake()

    def _on_partition_answer(self, batch: ReadyBatch, answer: PartitionProduceResponse | None, now_ms: float) -> None:
        subject = f"{batch.topic}-{batch.partition}"
        if answer is None:
            error: ClientError = ProtocolViolationError(f"the answer to a Produce request says nothing of {subject}")
            self._conclude(batch, self._core.lose(batch, now_ms), -1, error)
            return
        if answer.error_code == ErrorCode.NONE:
            self._conclude(batch, self._core.acknowledge(batch), answer.base_offset, None)
            return
        error = BrokerError(answer.error_code, subject, answer.error_message)
        batch.last_error = str(error)
        if error.retriable:
            logger.info("%s: will be sent again", error)
            self.cluster.request_refresh()
        verdict = self._core.refuse(batch, ErrorCode.of(answer.error_code), now_ms)
        if verdict is Verdict.LOSS:
            logger.error("%s: records that it had acknowledged are lost (an unclean election?); going on", error)
        self._conclude(batch, verdict, -1, error)

    def _conclude(self, batch: ReadyBatch, verdict: Verdict, base_offset: int, error: ClientError | None) -> None:
        if verdict is Verdict.DONE:
            self._batcher.release(batch.reserved_bytes)
            deliveries.acknowledge(batch.completion, batch.partition, base_offset)
        elif verdict is Verdict.SPLIT:
            self._split(batch)
        elif verdict is Verdict.FAILED:
            if error is None or (isinstance(error, ConnectionLostError) and self._is_late(batch)):
                error = self._delivery_timeout(batch)
            elif batch.in_doubt and isinstance(error, BrokerError):
                error = error.in_doubt()
            elif error.code == ErrorCode.MESSAGE_TOO_LARGE:
                error = RecordTooLargeError(f"{error} (one record of {len(batch.data)} bytes, built)")
            self._fail(batch, error)

    def _is_late(self, batch: ReadyBatch) -> bool:
        return self._loop.time() * 1000 >= batch.deadline_ms

    def _delivery_timeout(self, batch: ReadyBatch) -> DeliveryTimeoutError:
        known = self.cluster.view.errors.get(batch.topic)
        reason = batch.last_error or (f"topic {batch.topic}: {known.name}" if known else "no answer, or no leader")
        return DeliveryTimeoutError(
            f"{batch.count} records for {batch.topic}-{batch.partition} were not acknowledged within "
            f"delivery.timeout.ms={self._config.delivery_timeout_ms}: {reason}"
        )

    def _fail(self, batch: ReadyBatch, error: ClientError) -> None:
        self._batcher.release(batch.reserved_bytes)
        deliveries.fail(batch.completion, error)

    def _split(self, batch: ReadyBatch) -> None:
        """The topic takes smaller batches only: send the two halves instead."""
        columns = read_columns(batch.data, verify_crc=False)
        middle = len(columns) // 2
        halves = (columns.slice(0, middle), columns.slice(middle, len(columns)))
        parts: list[ReadyBatch] = []
        for half, shares in zip(halves, deliveries.cut(batch.completion, middle), strict=True):
            data = build_batch(
                half, compression=self._config.compression, compression_level=self._config.compression_level
            )
            part = ReadyBatch(batch.topic, batch.partition, data, len(half), batch.deadline_ms, shares)
            part.reserved_bytes = batch.reserved_bytes // 2 + (batch.reserved_bytes % 2 if not parts else 0)
            parts.append(part)
        logger.info(
            "%s-%d: a batch of %d bytes is too large for the broker: sent as two (a batch.size below the topic's "
            "max.message.bytes avoids that)",
            batch.topic,
            batch.partition,
            len(batch.data),
        )
        self._core.replace(batch, parts)

    async def _ask_producer_id(self) -> None:
        async def ask() -> InitProducerIdResponse:
            response = await self.cluster.request_any(
                InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=2**31 - 1)
            )
            if response.error_code != ErrorCode.NONE:
                raise BrokerError(response.error_code, "producer id for idempotence")
            return response

        try:
            response = await self.cluster.retry(ask, self._config.delivery_timeout_ms, "producer id for idempotence")
            self._core.set_producer_id(response.producer_id, response.producer_epoch)
        except ClientError as error:
            self._abort(error)
        finally:
            self._asks_producer_id = False
        self._wake()

    def _abort(self, error: ClientError) -> None:
        """Fail everything that is not acknowledged yet."""
        if not self._closed:
            self._batcher.seal_all()
        for batch in self._batcher.take_built():
            self._core.add(batch)
        for batch in self._core.abort():
            self._fail(batch, error)
        for waiting in list(self._parked.values()):
            for _, _, delivery in waiting:
                self._refuse(delivery, error)
            waiting.clear()

    def _on_metadata(self, view: object) -> None:
        if not self._core.is_idle:
            taken = self._core.take_back(self._loop.time() * 1000, self._leader_of)
            if taken:
                logger.info("%d batches that a former leader has not answered are sent to the next", taken)
            self._wake()

    def _arm_timer(self, now_ms: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lingered = self._batcher.next_due_ms(self._core.can_take_more)
        events = [when for when in (self._core.next_event_ms(now_ms), lingered) if when is not None]
        due = min(events, default=None)
        if due is not None:
            self._timer = self._loop.call_at(max(due, now_ms + 1) / 1000, self._wake)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _settle_future(
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
