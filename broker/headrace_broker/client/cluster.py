"""`Cluster`: a client's connections to brokers, and the cluster metadata (leaders, coordinators, bootstrap servers).

A Cluster belongs to one event loop. A producer, a consumer and an admin client can share it. Connections are opened on
demand, one for each (broker, purpose), so that a long-polling Fetch never delays a heartbeat. After a failed connection
attempt, the client waits before the next attempt. The wait starts at reconnect.backoff.ms and grows exponentially. The
client refreshes the metadata of tracked topics on request and every metadata.max.age.ms. If a broker has not responded
for a long time, the client also refreshes the metadata, because the partitions of a hung broker may have new leaders.
If no known broker responds, the client uses the bootstrap servers again (KIP-899).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from math import inf
from typing import Any, TypeVar

from headrace_broker.client.backoff import backoff_ms
from headrace_broker.client.cluster_view import ClusterView, Node, PartitionView, TopicView
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.connection import BrokerConnection
from headrace_broker.client.errors import (
    BrokerError,
    ClientError,
    ClosedError,
    ConnectionLostError,
    NoBrokerError,
    TimedOutError,
)
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace_broker.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from headrace_broker.protocol.notation import Request, Response

logger = logging.getLogger(__name__)

T = TypeVar("T")
ResponseT = TypeVar("ResponseT", bound=Response)

GROUP = 0
"""The FindCoordinator key type for consumer groups and Connect worker groups."""

_HUNG_CHECK_INTERVAL_MS = 3_000
"""Interval of the checks for hung brokers in ms.

If a broker sends no byte of a response between two checks, the metadata is refreshed.
"""

_IDEMPOTENT_APIS = frozenset(
    (ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.HEARTBEAT, ApiKey.OFFSET_FETCH, ApiKey.OFFSET_COMMIT)
)
"""Requests that can safely be sent again, to the same broker or to another one."""

_Key = tuple[int, str]


class Cluster:
    """A client's connections to a cluster and the cluster's metadata. Open it with `open`, close it with `close`."""

    endpoint_type = 1
    """The endpoint type in DescribeCluster: brokers."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self.view = ClusterView()
        self.listeners: list[Callable[[ClusterView], None]] = []
        self._loop = asyncio.get_running_loop()
        self._connections: dict[_Key, BrokerConnection] = {}
        self._connecting: dict[_Key, asyncio.Task[BrokerConnection]] = {}
        self._failures: dict[_Key, tuple[int, float]] = {}
        self._coordinators: dict[tuple[int, str], int] = {}
        self._tracked: set[str] = set()
        self._tracks_all = 0
        self._refresh_wanted = asyncio.Event()
        self._refresh_now = asyncio.Event()
        self._refresh_waiters: list[asyncio.Future[None]] = []
        self._maintenance: asyncio.Task[None] | None = None
        self._oldest_requests: dict[_Key, tuple[int, int] | None] = {}
        self._hung_brokers: set[int] = set()
        self._hung_check_timer: asyncio.TimerHandle | None = None
        self._max_age_ms: float = config.metadata_max_age_ms
        self._closed = False
        self.retried_error: ClientError | None = None
        """The error of the last failed attempt that `retry` has repeated or will repeat."""

    @classmethod
    async def open(
        cls,
        config: ClientConfig,
        *,
        timeout_ms: float | None = None,
        on_retry: Callable[[ClientError], None] | None = None,
    ) -> Cluster:
        """Find the brokers through the bootstrap servers. Raises TimedOutError if no server responds in time.

        `on_retry` is called with the error of each failed attempt that will be repeated.
        """
        cluster = cls(config)
        timeout = timeout_ms if timeout_ms is not None else config.default_api_timeout_ms
        try:
            await cluster.retry(lambda: cluster._refresh([]), timeout, "finding the brokers", on_retry)
        except BaseException:
            await cluster.close()
            raise
        cluster._maintenance = cluster._loop.create_task(cluster._maintain())
        cluster._check_for_hung_brokers()
        return cluster

    async def close(self) -> None:
        """Close every connection. Pending calls fail with ClosedError."""
        self._closed = True
        if self._hung_check_timer is not None:
            self._hung_check_timer.cancel()
        tasks = [*self._connecting.values(), *([self._maintenance] if self._maintenance else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._complete_waiters(ClosedError("the client was closed"))
        connections = list(self._connections.values())
        for connection in connections:
            connection.close()
        await asyncio.gather(*(connection.wait_closed() for connection in connections))

    # -- connections -------------------------------------------------------------------------------------------------

    def ready_connection(self, node_id: int, purpose: str = "") -> BrokerConnection | None:
        """Return the broker's open connection for this purpose, or None if no such connection is open."""
        connection = self._connections.get((node_id, purpose))
        return connection if connection is not None and connection.is_open else None

    async def connection(self, node_id: int, purpose: str = "") -> BrokerConnection:
        """Return the broker's connection for this purpose; open it if necessary. Raises ConnectionLostError."""
        ready = self.ready_connection(node_id, purpose)
        if ready is not None:
            return ready
        return await asyncio.shield(self._connect_task((node_id, purpose)))

    def close_connections(self, purpose: str) -> None:
        """Close the connections that were opened for this purpose."""
        for key in [known for known in self._connections if known[1] == purpose]:
            self._connections.pop(key).close()

    def connect_in_background(self, node_id: int, purpose: str, on_done: Callable[[], None]) -> None:
        """Open the broker's connection for this purpose in the background.

        `on_done` is called when the connection is open or has failed.

        The caller then calls `ready_connection`, which returns None if the connection has failed.
        """
        self._connect_task((node_id, purpose)).add_done_callback(lambda task: on_done())

    def _connect_task(self, key: _Key) -> asyncio.Task[BrokerConnection]:
        task = self._connecting.get(key)
        if task is None:
            task = self._connecting[key] = self._loop.create_task(self._connect(key))
            task.add_done_callback(_retrieve_exception)  # the caller may have been cancelled
        return task

    async def _connect(self, key: _Key) -> BrokerConnection:
        try:
            if self._closed:
                raise ClosedError("the client was closed")
            node = self.view.nodes.get(key[0])
            if node is None:
                raise ConnectionLostError(f"broker {key[0]} is not in the cluster metadata")
            attempts, not_before = self._failures.get(key, (0, 0.0))
            backoff = not_before - self.now_ms()
            if backoff > 0:
                await asyncio.sleep(backoff / 1000)
            try:
                connection = await self._open(node.host, node.port, node.node_id)
            except ClientError:
                config = self.config
                wait = backoff_ms(
                    attempts, config.reconnect_backoff_ms, config.reconnect_backoff_max_ms, random.random()
                )
                self._failures[key] = (attempts + 1, self.now_ms() + wait)
                self.request_refresh()
                raise
            self._failures.pop(key, None)
            self._connections[key] = connection
            return connection
        finally:
            del self._connecting[key]

    async def _open(self, host: str, port: int, node_id: int | None) -> BrokerConnection:
        config = self.config
        return await BrokerConnection.open(
            host,
            port,
            client_id=config.client_id,
            node_id=node_id,
            request_timeout_ms=config.request_timeout_ms,
            setup_timeout_ms=config.connection_setup_timeout_ms,
            send_buffer_bytes=config.send_buffer_bytes,
            receive_buffer_bytes=config.receive_buffer_bytes,
            on_closed=self.request_refresh,
        )

    # -- requests ----------------------------------------------------------------------------------------------------

    async def request(
        self, node_id: int, message: Request[ResponseT], *, purpose: str = "", timeout_ms: float | None = None
    ) -> ResponseT:
        """Send a request on the broker's connection for `purpose`, and return the response. Raises ClientError."""
        connection = await self.connection(node_id, purpose)
        return await connection.request(message, timeout_ms=timeout_ms)

    async def request_any(self, message: Request[ResponseT], *, timeout_ms: float | None = None) -> ResponseT:
        """Send a request to any broker. If a broker cannot be reached, try the next one. Raises NoBrokerError."""
        failures = []
        for node_id in self._nodes_by_preference():
            try:
                return await self.request(node_id, message, timeout_ms=timeout_ms)
            except ConnectionLostError as error:
                failures.append(str(error))
        reason = "; ".join(failures) or "the cluster metadata has no brokers"
        raise NoBrokerError(f"no broker responded: {reason}")

    async def request_controller(self, message: Request[ResponseT], *, timeout_ms: float | None = None) -> ResponseT:
        """Send a request to the controller.

        In a KRaft cluster, send it to a broker, which forwards it to the controller.
        """
        if self.view.controller_id in self.view.nodes:
            return await self.request(self.view.controller_id, message, timeout_ms=timeout_ms)
        return await self.request_any(message, timeout_ms=timeout_ms)

    async def retry(
        self,
        attempt: Callable[[], Awaitable[T]],
        timeout_ms: float,
        action: str,
        on_retry: Callable[[ClientError], None] | None = None,
    ) -> T:
        """Run `attempt` repeatedly, with backoff, until it succeeds or fails with an error that is not retriable.

        After `timeout_ms`, raises a TimedOutError that contains the last error. `action` is the name of the operation
        in error texts. `on_retry` is called with the error of each failed attempt that will be repeated.
        """
        deadline = self.now_ms() + timeout_ms
        attempts = 0
        last: ClientError | None = None
        while True:
            try:
                async with asyncio.timeout(max(deadline - self.now_ms(), 0) / 1000):
                    return await attempt()
            except TimeoutError as error:
                if last is not None:
                    raise TimedOutError(f"{action}: timed out after {timeout_ms:.0f} ms: {last}") from last
                raise TimedOutError(f"{action}: no response within {timeout_ms:.0f} ms") from error
            except ClientError as error:
                if not error.retriable or self._closed:
                    raise
                backoff = self.retry_backoff_ms(attempts)
                if self.now_ms() + backoff >= deadline:
                    raise TimedOutError(f"{action}: timed out after {timeout_ms:.0f} ms: {error}") from error
                attempts += 1
                last = self.retried_error = error
                if on_retry is not None:
                    on_retry(error)
                await asyncio.sleep(backoff / 1000)

    def retry_backoff_ms(self, attempts: int) -> float:
        """Return the backoff before the next attempt.

        The backoff grows with `attempts`, from retry.backoff.ms to retry.backoff.max.ms.
        """
        config = self.config
        return backoff_ms(attempts, config.retry_backoff_ms, config.retry_backoff_max_ms, random.random())

    def now_ms(self) -> float:
        """Return the event loop's time in milliseconds."""
        return self._loop.time() * 1000

    # -- metadata ----------------------------------------------------------------------------------------------------

    def track(self, topics: Iterable[str]) -> None:
        """Include these topics in every metadata refresh from now on."""
        new = set(topics) - self._tracked
        if new:
            self._tracked |= new
            self.request_refresh()

    def track_all(self, *, on: bool) -> None:
        """Start or stop tracking all topics for one caller.

        All topics are tracked until every caller that started tracking has also stopped tracking.
        """
        self._tracks_all += 1 if on else -1
        if on:
            self.request_refresh()

    def refresh_at_least_every(self, interval_ms: float) -> None:
        """Refresh the metadata at least every `interval_ms`, even if metadata.max.age.ms is longer."""
        self._max_age_ms = min(self._max_age_ms, interval_ms)
        self._refresh_wanted.set()

    def request_refresh(self) -> None:
        """Request a metadata refresh. Refreshes are at least retry.backoff.ms apart."""
        self._refresh_wanted.set()

    async def wait_for_refresh(self) -> ClusterView:
        """Wait for a metadata refresh that starts after this call. Raises ClosedError."""
        if self._closed:
            raise ClosedError("the client was closed")
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._refresh_waiters.append(waiter)
        self._refresh_wanted.set()
        self._refresh_now.set()
        await waiter
        return self.view

    async def topic(self, name: str, timeout_ms: float | None = None) -> TopicView:
        """Return a topic's metadata, and track the topic from now on. Waits until the topic exists.

        Raises BrokerError if the broker rejects the topic, and TimedOutError if the topic does not exist before the
        timeout.
        """
        known = self.view.topics.get(name)
        if known is not None:
            self._tracked.add(name)
            return known
        self.track([name])

        async def attempt() -> TopicView:
            view = await self.wait_for_refresh()
            found = view.topics.get(name)
            if found is None:
                code = view.errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                raise BrokerError(code, f"topic {name}")
            return found

        timeout = timeout_ms if timeout_ms is not None else self.config.default_api_timeout_ms
        return await self.retry(attempt, timeout, f"metadata of topic {name}")

    async def leader(self, topic: str, partition: int, timeout_ms: float | None = None) -> PartitionView:
        """Return a partition's metadata; wait until the partition has a leader. Raises BrokerError, TimedOutError."""
        await self.topic(topic, timeout_ms)

        async def attempt() -> PartitionView:
            found = self.view.leader(topic, partition)
            if found is None:
                found = (await self.wait_for_refresh()).leader(topic, partition)
            if found is None:
                raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"cannot find the leader of {topic}-{partition}")
            return found

        timeout = timeout_ms if timeout_ms is not None else self.config.default_api_timeout_ms
        return await self.retry(attempt, timeout, f"leader of {topic}-{partition}")

    async def fetch_metadata(self, topics: Iterable[str] | None, *, auto_create: bool = False) -> MetadataResponse:
        """Request the metadata of these topics (None = all) from any broker, without tracking them."""
        message = self._metadata_request(topics, auto_create=auto_create)
        try:
            return self._metadata_response(await self.request_any(message))
        except NoBrokerError as error:
            return await self._bootstrap(message, error)

    def _metadata_request(self, topics: Iterable[str] | None, *, auto_create: bool) -> Request[Response]:
        requested = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        return MetadataRequest(topics=requested, allow_auto_topic_creation=auto_create)

    def _metadata_response(self, response: Response) -> MetadataResponse:
        assert isinstance(response, MetadataResponse)
        return response

    async def _refresh(self, topics: list[str] | None) -> None:
        auto_create = self.config.kind == "producer" or (
            self.config.kind == "consumer" and self.config.allow_auto_create_topics
        )
        response = await self.fetch_metadata(topics, auto_create=auto_create)
        if response.error_code != ErrorCode.NONE:
            raise BrokerError(response.error_code, "cannot fetch the cluster metadata")
        self.view = self.view.updated(response, requested=topics)
        for listener in list(self.listeners):
            listener(self.view)

    async def _bootstrap(self, message: Request[Response], before: NoBrokerError) -> MetadataResponse:
        """Send the request to the bootstrap servers in random order, until one responds.

        Raises NoBrokerError if no server responds. `before` is the error of the earlier attempts to send the request
        to the known brokers. If at least one broker was known, the raised error's text includes the text of `before`.
        """
        failures = [] if not self.view.nodes else [str(before)]
        servers = list(self.config.bootstrap_servers)
        random.shuffle(servers)
        for host, port in servers:
            try:
                connection = await self._open(host, port, None)
            except ClientError as error:
                failures.append(str(error))
                continue
            try:
                response = self._metadata_response(await connection.request(message))
            except ConnectionLostError as error:
                failures.append(str(error))
                continue
            self._adopt(connection, response, host, port)
            return response
        raise NoBrokerError("; ".join(failures))

    def _adopt(self, connection: BrokerConnection, response: MetadataResponse, host: str, port: int) -> None:
        """Keep the bootstrap connection to `host` and `port`, or close it.

        The connection is kept if a broker in `response` advertises this address, and if no other connection to this
        broker exists.
        """
        for broker in response.brokers:
            if (broker.host, broker.port) == (host, port) and (broker.node_id, "") not in self._connections:
                connection.broker = f"broker {broker.node_id} ({host}:{port})"
                self._connections[broker.node_id, ""] = connection
                return
        connection.close()

    def _nodes_by_preference(self) -> list[int]:
        """Return the ids of the known brokers, in the order in which to try them.

        Connected brokers with the fewest requests in flight are first, and hung brokers are last.
        """
        nodes = list(self.view.nodes)
        random.shuffle(nodes)
        ready = {node_id: self.ready_connection(node_id) for node_id in nodes}
        in_flight = {node_id: inf if to is None else to.requests_in_flight for node_id, to in ready.items()}
        return sorted(nodes, key=lambda node_id: (node_id in self._hung_brokers, in_flight[node_id]))

    def _check_for_hung_brokers(self) -> None:
        """Find the brokers that hang.

        A broker is hung if no byte of the response to its oldest request has arrived since the last check. If a broker
        is hung, refresh the metadata. If at least one broker is not hung, also fail the idempotent requests in flight
        to the hung brokers, so that callers retry these requests on other brokers.
        """
        oldest = {key: connection.oldest_request for key, connection in self._connections.items()}
        before, self._oldest_requests = self._oldest_requests, oldest
        hung = [key for key, request in oldest.items() if request is not None and request == before.get(key)]
        self._hung_brokers = {node_id for node_id, _ in hung}
        if self.view.nodes.keys() - self._hung_brokers:
            for key in hung:
                self._connections[key].fail_requests(_IDEMPOTENT_APIS)
            self._coordinators = {key: at for key, at in self._coordinators.items() if at not in self._hung_brokers}
        if hung:
            self.request_refresh()
        self._hung_check_timer = self._loop.call_later(_HUNG_CHECK_INTERVAL_MS / 1000, self._check_for_hung_brokers)

    async def _maintain(self) -> None:
        """Refresh the metadata on request, and when it is older than metadata.max.age.ms."""
        failures = 0
        while True:
            try:
                async with asyncio.timeout(self._max_age_ms / 1000):
                    await self._refresh_wanted.wait()
            except TimeoutError:
                pass  # the metadata has expired
            self._refresh_wanted.clear()
            self._refresh_now.clear()
            waiters, self._refresh_waiters = self._refresh_waiters, []
            error: ClientError | None = None
            try:
                await self._refresh(None if self._tracks_all else sorted(self._tracked))
                failures = 0
            except ClientError as failure:
                error = failure
                failures += 1
                self._refresh_wanted.set()
                logger.log(
                    logging.WARNING if failures == 1 else logging.DEBUG,
                    "Metadata: the refresh failed, retrying: %s",
                    failure,
                )
            except Exception as failure:  # an error of a listener must not stop the refreshes
                logger.exception("Metadata: the refresh failed with an unexpected error, retrying")
                error = ClientError(f"metadata refresh failed: {failure!r}")
                failures += 1
            self._complete_waiters(error, waiters)
            try:  # limit the rate of `request_refresh`; callers of `wait_for_refresh` have their own backoff
                async with asyncio.timeout(self.retry_backoff_ms(failures) / 1000):
                    await self._refresh_now.wait()
            except TimeoutError:
                pass

    def _complete_waiters(self, error: ClientError | None, waiters: list[asyncio.Future[None]] | None = None) -> None:
        for waiter in self._refresh_waiters if waiters is None else waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)
        if waiters is None:
            self._refresh_waiters = []

    # -- coordinators ------------------------------------------------------------------------------------------------

    async def coordinator(self, key: str, key_type: int = GROUP) -> int:
        """Return the id of the broker that coordinates `key`, which is a group id by default.

        Raises BrokerError, which is retriable if no coordinator is available.
        """
        known = self._coordinators.get((key_type, key))
        if known is not None:
            return known
        connection = await self.any_connection()
        version = connection.version_for(FindCoordinatorRequest)
        request = (
            FindCoordinatorRequest(coordinator_keys=[key], key_type=key_type)
            if version >= 4
            else FindCoordinatorRequest(key=key, key_type=key_type)
        )
        response: Any = await connection.request(request, version=version)
        found = response.coordinators[0] if version >= 4 and response.coordinators else response
        if found.error_code != ErrorCode.NONE:
            raise BrokerError(found.error_code, f"cannot find the coordinator of {key}", found.error_message)
        if found.node_id not in self.view.nodes:
            self.view = self.view.with_node(Node(found.node_id, found.host, found.port))
        self._coordinators[key_type, key] = found.node_id
        return int(found.node_id)

    def forget_coordinator(self, key: str, key_type: int = GROUP) -> None:
        """Forget the coordinator of `key`, so that the next request looks it up again."""
        self._coordinators.pop((key_type, key), None)

    async def coordinator_connection(self, group_id: str, purpose: str = "group") -> BrokerConnection:
        """Return the connection for `purpose` to the coordinator of a group.

        Each purpose has its own connection, so that a Fetch request does not delay group requests. Raises ClientError.
        """
        node_id = await self.coordinator(group_id)
        try:
            return await self.connection(node_id, purpose)
        except ConnectionLostError:
            self.forget_coordinator(group_id)
            raise

    async def request_coordinator(
        self, group_id: str, message: Request[ResponseT], *, purpose: str = "group", timeout_ms: float | None = None
    ) -> ResponseT:
        """Send a request on the connection for `purpose` to a group's coordinator. Raises ClientError."""
        connection = await self.coordinator_connection(group_id, purpose)
        try:
            return await connection.request(message, timeout_ms=timeout_ms)
        except ConnectionLostError:
            self.forget_coordinator(group_id)
            raise

    async def any_connection(self) -> BrokerConnection:
        """Return a connection to any broker. Raises NoBrokerError."""
        failures = []
        for node_id in self._nodes_by_preference():
            try:
                return await self.connection(node_id)
            except ConnectionLostError as error:
                failures.append(str(error))
        reason = "; ".join(failures) or "the cluster metadata has no brokers"
        raise NoBrokerError(f"no broker can be reached: {reason}")


def _retrieve_exception(task: asyncio.Task[BrokerConnection]) -> None:
    if not task.cancelled():
        task.exception()
