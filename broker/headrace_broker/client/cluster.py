"""The connections to a cluster's brokers and what is known of it: bootstrap, metadata, leaders, coordinators, retries.

One Cluster belongs to one event loop and can be shared by writer, reader and admin. Connections are made when needed,
one for each (broker, purpose), so that a long-polling Fetch never delays a heartbeat; a broker that refuses is tried
again after reconnect.backoff.ms, growing. Metadata is asked for tracked topics: at once when something asks, else
every metadata.max.age.ms, and while a broker owes an answer for long: it may hang, and another lead by now. When no
known broker answers, the bootstrap servers are tried again (KIP-899).
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
from headrace_broker.client.connection import Connection
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
"""Key type of FindCoordinator for consumer and worker groups."""

_SILENCE_MS = 3_000
"""Who owes the same answer for so long, at least, may hang: the metadata tell whether another leads in its place."""

_REPEATABLE = frozenset(
    (ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.HEARTBEAT, ApiKey.OFFSET_FETCH, ApiKey.OFFSET_COMMIT)
)
"""What does no harm when it is asked of another broker, too, or of the same one once more."""

_Key = tuple[int, str]


class Cluster:
    """A client's cluster; open it with `open`, close it with `close`."""

    endpoint_type = 1
    """What its nodes are, as DescribeCluster counts: brokers."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self.view = ClusterView()
        self.listeners: list[Callable[[ClusterView], None]] = []
        self._loop = asyncio.get_running_loop()
        self._connections: dict[_Key, Connection] = {}
        self._connecting: dict[_Key, asyncio.Task[Connection]] = {}
        self._failures: dict[_Key, tuple[int, float]] = {}
        self._coordinators: dict[tuple[int, str], int] = {}
        self._tracked: set[str] = set()
        self._tracks_all = 0
        self._refresh_wanted = asyncio.Event()
        self._refresh_now = asyncio.Event()
        self._refresh_waiters: list[asyncio.Future[None]] = []
        self._maintenance: asyncio.Task[None] | None = None
        self._owed: dict[_Key, tuple[int, int] | None] = {}
        self._silent: set[int] = set()
        self._watch: asyncio.TimerHandle | None = None
        self._max_age_ms: float = config.metadata_max_age_ms
        self._closed = False

    @classmethod
    async def open(cls, config: ClientConfig, *, timeout_ms: float | None = None) -> Cluster:
        """Find the brokers through the bootstrap servers. Raises NoBrokerError when none answers in time."""
        cluster = cls(config)
        timeout = timeout_ms if timeout_ms is not None else config.default_api_timeout_ms
        try:
            await cluster.retry(lambda: cluster._refresh([]), timeout, "finding the brokers")
        except BaseException:
            await cluster.close()
            raise
        cluster._maintenance = cluster._loop.create_task(cluster._maintain())
        cluster._look_for_silence()
        return cluster

    async def close(self) -> None:
        """Close every connection; whatever waits fails with ClosedError."""
        self._closed = True
        if self._watch is not None:
            self._watch.cancel()
        tasks = [*self._connecting.values(), *([self._maintenance] if self._maintenance else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._settle_waiters(ClosedError("the client was closed"))
        connections = list(self._connections.values())
        for connection in connections:
            connection.close()
        await asyncio.gather(*(connection.wait_closed() for connection in connections))

    # -- connections -------------------------------------------------------------------------------------------------

    def ready_connection(self, node_id: int, purpose: str = "") -> Connection | None:
        """Return the open connection to a broker, None when there is none."""
        connection = self._connections.get((node_id, purpose))
        return connection if connection is not None and connection.is_open else None

    async def connection(self, node_id: int, purpose: str = "") -> Connection:
        """Return the connection to a broker, made now if need be. Raises ConnectionLostError."""
        ready = self.ready_connection(node_id, purpose)
        if ready is not None:
            return ready
        return await asyncio.shield(self._connect_task((node_id, purpose)))

    def release(self, purpose: str) -> None:
        """Close the connections that were made for a purpose which has ended."""
        for key in [known for known in self._connections if known[1] == purpose]:
            self._connections.pop(key).close()

    def connect_soon(self, node_id: int, purpose: str, on_done: Callable[[], None]) -> None:
        """Make the connection in the background; `on_done` is called when it stands or has failed.

        Whoever needs the connection looks at it then, and asks again.
        """
        self._connect_task((node_id, purpose)).add_done_callback(lambda task: on_done())

    def _connect_task(self, key: _Key) -> asyncio.Task[Connection]:
        task = self._connecting.get(key)
        if task is None:
            task = self._connecting[key] = self._loop.create_task(self._connect(key))
            task.add_done_callback(_seen)  # who wanted it may have given up
        return task

    async def _connect(self, key: _Key) -> Connection:
        try:
            if self._closed:
                raise ClosedError("the client was closed")
            node = self.view.nodes.get(key[0])
            if node is None:
                raise ConnectionLostError(f"broker {key[0]} is not known (any more)")
            attempts, not_before = self._failures.get(key, (0, 0.0))
            pause = not_before - self.now_ms()
            if pause > 0:
                await asyncio.sleep(pause / 1000)
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

    async def _open(self, host: str, port: int, node_id: int | None) -> Connection:
        config = self.config
        return await Connection.open(
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
        """Send a request to one broker and return its answer. Raises ClientError."""
        connection = await self.connection(node_id, purpose)
        return await connection.request(message, timeout_ms=timeout_ms)

    async def request_any(self, message: Request[ResponseT], *, timeout_ms: float | None = None) -> ResponseT:
        """Send a request to some broker, the next one when it cannot be reached. Raises NoBrokerError."""
        failures = []
        for node_id in self._nodes_by_preference():
            try:
                return await self.request(node_id, message, timeout_ms=timeout_ms)
            except ConnectionLostError as error:
                failures.append(str(error))
        raise NoBrokerError("no broker answered: " + ("; ".join(failures) or "none is known"))

    async def request_controller(self, message: Request[ResponseT], *, timeout_ms: float | None = None) -> ResponseT:
        """Send a request to the controller (with KRaft: to any broker, which forwards it)."""
        if self.view.controller_id in self.view.nodes:
            return await self.request(self.view.controller_id, message, timeout_ms=timeout_ms)
        return await self.request_any(message, timeout_ms=timeout_ms)

    async def retry(self, attempt: Callable[[], Awaitable[T]], timeout_ms: float, what: str) -> T:
        """Run `attempt` until it does not fail with a retriable error, with back-off.

        Raises TimedOutError, from the last error, when `timeout_ms` is over.
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
                    raise TimedOutError(f"{what}: not done within {timeout_ms:.0f} ms: {last}") from last
                raise TimedOutError(f"{what}: no answer within {timeout_ms:.0f} ms") from error
            except ClientError as error:
                if not error.retriable or self._closed:
                    raise
                pause = self.retry_pause_ms(attempts)
                if self.now_ms() + pause >= deadline:
                    raise TimedOutError(f"{what}: not done within {timeout_ms:.0f} ms: {error}") from error
                attempts += 1
                last = error
                await asyncio.sleep(pause / 1000)

    def retry_pause_ms(self, attempts: int) -> float:
        """Return the pause before the next attempt, by retry.backoff.ms and retry.backoff.max.ms."""
        config = self.config
        return backoff_ms(attempts, config.retry_backoff_ms, config.retry_backoff_max_ms, random.random())

    def now_ms(self) -> float:
        """Return the loop's clock."""
        return self._loop.time() * 1000

    # -- metadata ----------------------------------------------------------------------------------------------------

    def track(self, topics: Iterable[str]) -> None:
        """Keep these topics in the view from now on."""
        new = set(topics) - self._tracked
        if new:
            self._tracked |= new
            self.request_refresh()

    def track_all(self, *, on: bool) -> None:
        """Keep every topic in the view while at least one user wants that."""
        self._tracks_all += 1 if on else -1
        if on:
            self.request_refresh()

    def refresh_at_least_every(self, interval_ms: float) -> None:
        """Refresh metadata more often than metadata.max.age.ms says."""
        self._max_age_ms = min(self._max_age_ms, interval_ms)
        self._refresh_wanted.set()

    def request_refresh(self) -> None:
        """Have the metadata refreshed soon (not more often than retry.backoff.ms)."""
        self._refresh_wanted.set()

    async def refreshed(self) -> ClusterView:
        """Wait for a refresh that begins after this call. Raises ClosedError."""
        if self._closed:
            raise ClosedError("the client was closed")
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._refresh_waiters.append(waiter)
        self._refresh_wanted.set()
        self._refresh_now.set()
        await waiter
        return self.view

    async def topic(self, name: str, timeout_ms: float | None = None) -> TopicView:
        """Return a topic, which is tracked from then on; waits until it exists.

        Raises BrokerError when the broker refuses it, TimedOutError when it does not appear in time.
        """
        known = self.view.topics.get(name)
        if known is not None:
            self._tracked.add(name)
            return known
        self.track([name])

        async def look() -> TopicView:
            view = await self.refreshed()
            found = view.topics.get(name)
            if found is None:
                code = view.errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                raise BrokerError(code, f"topic {name}")
            return found

        timeout = timeout_ms if timeout_ms is not None else self.config.default_api_timeout_ms
        return await self.retry(look, timeout, f"metadata of topic {name}")

    async def leader(self, topic: str, partition: int, timeout_ms: float | None = None) -> PartitionView:
        """Return a partition that has a leader, waiting for one. Raises BrokerError, TimedOutError."""
        await self.topic(topic, timeout_ms)

        async def look() -> PartitionView:
            found = self.view.leader(topic, partition)
            if found is None:
                found = (await self.refreshed()).leader(topic, partition)
            if found is None:
                raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition}")
            return found

        timeout = timeout_ms if timeout_ms is not None else self.config.default_api_timeout_ms
        return await self.retry(look, timeout, f"leader of {topic}-{partition}")

    async def fetch_metadata(self, topics: Iterable[str] | None, *, auto_create: bool = False) -> MetadataResponse:
        """Ask some broker for the metadata of these topics (None = all), without tracking them."""
        message = self._question(topics, auto_create=auto_create)
        try:
            return self._understood(await self.request_any(message))
        except NoBrokerError as error:
            return await self._bootstrap(message, error)

    def _question(self, topics: Iterable[str] | None, *, auto_create: bool) -> Request[Response]:
        asked = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        return MetadataRequest(topics=asked, allow_auto_topic_creation=auto_create)

    def _understood(self, response: Response) -> MetadataResponse:
        assert isinstance(response, MetadataResponse)
        return response

    async def _refresh(self, topics: list[str] | None) -> None:
        auto_create = self.config.kind == "producer" or (
            self.config.kind == "consumer" and self.config.allow_auto_create_topics
        )
        response = await self.fetch_metadata(topics, auto_create=auto_create)
        if response.error_code != ErrorCode.NONE:
            raise BrokerError(response.error_code, "cluster metadata")
        self.view = self.view.updated(response, asked=topics)
        for listener in list(self.listeners):
            listener(self.view)

    async def _bootstrap(self, message: Request[Response], before: NoBrokerError) -> MetadataResponse:
        """Ask the bootstrap servers in random order, until one answers."""
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
                response = self._understood(await connection.request(message))
            except ConnectionLostError as error:
                failures.append(str(error))
                continue
            self._adopt(connection, response, host, port)
            return response
        raise NoBrokerError("; ".join(failures))

    def _adopt(self, connection: Connection, response: MetadataResponse, host: str, port: int) -> None:
        """Keep a bootstrap connection as that of the broker which advertises the same address, else close it."""
        for broker in response.brokers:
            if (broker.host, broker.port) == (host, port) and (broker.node_id, "") not in self._connections:
                connection.broker = f"broker {broker.node_id} ({host}:{port})"
                self._connections[broker.node_id, ""] = connection
                return
        connection.close()

    def _nodes_by_preference(self) -> list[int]:
        """Return the known brokers: who may hang last, else connected ones first, by how many answers they owe."""
        nodes = list(self.view.nodes)
        random.shuffle(nodes)
        ready = {node_id: self.ready_connection(node_id) for node_id in nodes}
        owed = {node_id: inf if to is None else to.requests_in_flight for node_id, to in ready.items()}
        return sorted(nodes, key=lambda node_id: (node_id in self._silent, owed[node_id]))

    def _look_for_silence(self) -> None:
        """Look who leads while a broker owes the answer that it owed at the last look, and ask anew what may be."""
        owed = {key: connection.oldest_request for key, connection in self._connections.items()}
        before, self._owed = self._owed, owed
        hanging = [key for key, request in owed.items() if request is not None and request == before.get(key)]
        self._silent = {node_id for node_id, _ in hanging}
        if self.view.nodes.keys() - self._silent:
            for key in hanging:
                self._connections[key].give_up(_REPEATABLE)
            self._coordinators = {key: at for key, at in self._coordinators.items() if at not in self._silent}
        if hanging:
            self.request_refresh()
        self._watch = self._loop.call_later(_SILENCE_MS / 1000, self._look_for_silence)

    async def _maintain(self) -> None:
        """Refresh the metadata when asked to, and when it is old."""
        failures = 0
        while True:
            try:
                async with asyncio.timeout(self._max_age_ms / 1000):
                    await self._refresh_wanted.wait()
            except TimeoutError:
                pass  # old enough
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
                logger.log(logging.WARNING if failures == 1 else logging.DEBUG, "metadata refresh: %s", failure)
            except Exception as failure:  # a listener's own fault must not end all refreshing
                logger.exception("metadata refresh")
                error = ClientError(f"metadata refresh: {failure!r}")
                failures += 1
            self._settle_waiters(error, waiters)
            try:  # those who wait for a refresh have a back-off of their own; all others are held back here
                async with asyncio.timeout(self.retry_pause_ms(failures) / 1000):
                    await self._refresh_now.wait()
            except TimeoutError:
                pass

    def _settle_waiters(self, error: ClientError | None, waiters: list[asyncio.Future[None]] | None = None) -> None:
        settled = self._refresh_waiters if waiters is None else waiters
        for waiter in settled:
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
        """Return the broker that coordinates a group. Raises BrokerError, retriable while there is none."""
        known = self._coordinators.get((key_type, key))
        if known is not None:
            return known
        connection = await self.any_connection()
        version = connection.version_for(FindCoordinatorRequest)
        asked = (
            FindCoordinatorRequest(coordinator_keys=[key], key_type=key_type)
            if version >= 4
            else FindCoordinatorRequest(key=key, key_type=key_type)
        )
        response: Any = await connection.request(asked, version=version)
        answer = response.coordinators[0] if version >= 4 and response.coordinators else response
        if answer.error_code != ErrorCode.NONE:
            raise BrokerError(answer.error_code, f"coordinator of {key}", answer.error_message)
        if answer.node_id not in self.view.nodes:
            self.view = self.view.with_node(Node(answer.node_id, answer.host, answer.port))
        self._coordinators[key_type, key] = answer.node_id
        return int(answer.node_id)

    def forget_coordinator(self, key: str, key_type: int = GROUP) -> None:
        """Have the coordinator looked up again."""
        self._coordinators.pop((key_type, key), None)

    async def coordinator_connection(self, group_id: str, purpose: str = "group") -> Connection:
        """Return a connection to a group's coordinator, apart from long polls. Raises ClientError."""
        node_id = await self.coordinator(group_id)
        try:
            return await self.connection(node_id, purpose)
        except ConnectionLostError:
            self.forget_coordinator(group_id)
            raise

    async def request_coordinator(
        self, group_id: str, message: Request[ResponseT], *, purpose: str = "group", timeout_ms: float | None = None
    ) -> ResponseT:
        """Send a request to a group's coordinator. Raises ClientError."""
        connection = await self.coordinator_connection(group_id, purpose)
        try:
            return await connection.request(message, timeout_ms=timeout_ms)
        except ConnectionLostError:
            self.forget_coordinator(group_id)
            raise

    async def any_connection(self) -> Connection:
        """Return a connection to some broker. Raises NoBrokerError."""
        failures = []
        for node_id in self._nodes_by_preference():
            try:
                return await self.connection(node_id)
            except ConnectionLostError as error:
                failures.append(str(error))
        raise NoBrokerError("no broker can be reached: " + ("; ".join(failures) or "none is known"))


def _seen(task: asyncio.Task[Connection]) -> None:
    if not task.cancelled():
        task.exception()
