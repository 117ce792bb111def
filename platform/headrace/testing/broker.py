"""`KafkaBroker`: a real headrace broker in the test's process, with its own thread and event loop.

The broker starts in milliseconds on a free port of 127.0.0.1, with its data in a temporary directory. Any Kafka client
can use it. Its clients connect through a `FaultProxy`, so that a test can make their requests fail.

The public methods block. Do not call them on the broker's thread; call them, for example, on the test's thread. Methods
that need a running broker raise `RuntimeError` while it is stopped. Faults do not affect the requests of these methods.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import socket
import tempfile
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from headrace.testing.broker_faults import Delay, Disconnect, Fail, Fault, FaultList, find_error
from headrace.testing.proxy import EXEMPT_CLIENT_ID, FaultProxy
from headrace_broker.client import offsets
from headrace_broker.client.admin import Admin, NewTopic, values_or_raise
from headrace_broker.client.cluster import Cluster
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.consumer import Consumer
from headrace_broker.client.errors import BrokerError, TimedOutError
from headrace_broker.client.fetched import FetchedBatch
from headrace_broker.client.producer import Producer
from headrace_broker.records.columns import RecordColumns, RecordHeaders
from headrace_broker.server.config import BrokerConfig
from headrace_broker.server.network.socket_server import SocketServer
from headrace_broker.server.node import Environment, Node

log = logging.getLogger(__name__)

T = TypeVar("T")

_HOST = "127.0.0.1"
_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 30.0
_REQUEST_TIMEOUT_S = 30.0
_POLL_MS = 100.0
_MISSING_TOPIC_MS = "2000"
"""How long `produce` waits for a topic that is not created automatically."""
_DEFAULTS = {
    "offsets.topic.num.partitions": "1",  # 50 partitions would delay the first consumer group
    "offsets.topic.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
}

Text = bytes | str | None
"""A key or value; str is encoded as UTF-8."""
NewRecord = Text | tuple[Text, Text] | tuple[Text, Text, Mapping[str, Text]]
"""A record to produce: a value, (key, value) or (key, value, headers)."""


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """A record that `KafkaBroker.consume` read. `timestamp` is in milliseconds."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class KafkaBroker:
    """A broker for tests; use it as a context manager, or call `start` first and `close` last.

    `config` contains Kafka's broker configuration, for example `{"auto.create.topics.enable": "false"}`. The listeners
    and log.dirs cannot be set. If `data_dir` is given, the broker keeps its data in that directory; otherwise `close`
    deletes the data.
    """

    def __init__(self, config: Mapping[str, str] | None = None, *, data_dir: Path | None = None) -> None:
        self._config = dict(config or {})
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._data_dir = data_dir
        self._faults = FaultList()
        self._port_holder: socket.socket | None = None
        self._thread: _BrokerThread | None = None

    # -- life cycle --------------------------------------------------------------------------------------------------

    def start(self) -> KafkaBroker:
        """Start the broker, and wait until it serves. Raises ConfigError, StartError, OSError."""
        if self._thread is not None:
            raise RuntimeError("the broker is already running")
        if self._data_dir is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="kafka-broker-")
            self._data_dir = Path(self._temporary.name)
        if self._port_holder is None:
            self._port_holder = _bind(0)
        thread = _BrokerThread(self._properties(), self.port, self._faults)
        thread.start_and_wait()
        self._thread = thread
        return self

    def stop(self) -> None:
        """Stop the broker cleanly if it runs. The broker keeps its data and its port for the next `start`."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()

    def restart(self) -> None:
        """Stop the broker and start it again, with the same port and data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop the broker, release its port and delete its temporary directory."""
        try:
            self.stop()
        finally:
            if self._port_holder is not None:
                self._port_holder.close()
                self._port_holder = None
            if self._temporary is not None:
                self._temporary.cleanup()
                self._temporary = self._data_dir = None

    def __enter__(self) -> KafkaBroker:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def bootstrap_servers(self) -> str:
        """The address for `bootstrap.servers`: `127.0.0.1:PORT`."""
        return f"{_HOST}:{self.port}"

    @property
    def port(self) -> int:
        """The port to which clients connect. It stays the same until `close`."""
        if self._port_holder is None:
            raise RuntimeError("the broker has no port before start() and after close(); call start() first")
        port: int = self._port_holder.getsockname()[1]
        return port

    def _properties(self) -> dict[str, str]:
        return {
            **_DEFAULTS,
            "node.id": "1",
            **self._config,
            "listeners": f"PLAINTEXT://{_HOST}:0",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap_servers}",
            "log.dirs": str(self._data_dir),
        }

    # -- topics and records ------------------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic, and wait until clients can use it. Raises BrokerError."""

        async def create() -> None:
            admin = await Admin.open(self._client_config("admin"))
            try:
                topic = NewTopic(name, partitions, replication_factor=1, configs=config or {})
                values_or_raise(await admin.create_topics([topic]))
            finally:
                await admin.close()

        self._run(create())

    def produce(self, topic: str, records: Iterable[NewRecord], *, partition: int | None = None) -> None:
        """Write records, in order, and wait until they are acknowledged. Raises ClientError.

        Without `partition`, the key of each record determines its partition, as in every Kafka producer.
        """
        columns = _columns(records)
        if not columns.values:
            return

        async def send() -> None:
            producer = await Producer.open(self._client_config("producer"))
            try:
                future = producer.send(topic, partition, columns)
                await producer.flush()
                await future
            finally:
                await producer.close()

        self._run(send())

    def consume(self, topic: str, count: int = 0, timeout: float = 10.0) -> list[ConsumerRecord]:
        """Return all records of a topic, ordered by partition and offset.

        Waits until the topic exists and contains at least `count` records. Uses no consumer group. Raises TimeoutError.
        """
        return self._run(self._consume(topic, count, timeout), timeout + _REQUEST_TIMEOUT_S)

    async def _consume(self, topic: str, count: int, timeout_s: float) -> list[ConsumerRecord]:
        deadline = asyncio.get_running_loop().time() + timeout_s
        consumer = await Consumer.open(self._client_config("consumer"))
        try:
            partitions = await _partitions(consumer.cluster, topic, timeout_s)
            consumer.assign(partitions)
            await consumer.seek_to_beginning()
            records: list[ConsumerRecord] = []
            while True:
                ends = await consumer.list_offsets(dict.fromkeys(partitions, offsets.LATEST))
                while any(consumer.positions().get(each, -1) < end.offset for each, end in ends.items()):
                    for batch in await consumer.poll(_POLL_MS):
                        records += _records(batch)
                if len(records) >= count:
                    return sorted(records, key=lambda record: (record.partition, record.offset))
                remaining_s = deadline - asyncio.get_running_loop().time()
                if remaining_s <= 0:
                    raise TimeoutError(
                        f"topic {topic} has only {len(records)} of {count} expected records after {timeout_s:g} s"
                    )
                for batch in await consumer.poll(min(_POLL_MS, remaining_s * 1000)):
                    records += _records(batch)
        finally:
            await consumer.close()

    def _client_config(self, kind: Any) -> ClientConfig:
        properties = {"bootstrap.servers": self.bootstrap_servers, "client.id": EXEMPT_CLIENT_ID}
        if kind == "consumer":
            properties["allow.auto.create.topics"] = "false"
        if kind == "producer":
            properties["max.block.ms"] = _MISSING_TOPIC_MS
        return ClientConfig.from_properties(properties, kind)

    def _run(self, work: Coroutine[Any, Any, T], timeout_s: float = _REQUEST_TIMEOUT_S) -> T:
        if self._thread is None:
            work.close()
            raise RuntimeError("the broker is stopped; call start() first")
        return self._thread.run(work, timeout_s)

    # -- faults ------------------------------------------------------------------------------------------------------

    def fail(self, api: str | int, *, error: str | int, times: int | None = None) -> Fault:
        """Respond to requests of an API with an error, for example `fail("Produce", error="NOT_LEADER_OR_FOLLOWER")`.

        Metadata requests reach the broker, and the error is set in the broker's response. Requests of other APIs do not
        reach the broker. `api` and `error` are Kafka's names or numbers. `times` limits the number of requests; without
        it, the fault lasts until its `with` block ends or it is removed. Raises ValueError if `fail` does not support
        the API.
        """
        return self._faults.add(api, Fail(find_error(error)), times)

    def delay(self, api: str | int, *, seconds: float, times: int | None = None) -> Fault:
        """Deliver the responses of an API `seconds` seconds after the broker has sent them. For `times` see `fail`."""
        return self._faults.add(api, Delay(seconds), times)

    def disconnect(self, api: str | int, *, before_request: bool = False, times: int | None = None) -> Fault:
        """Close the client's connection instead of delivering a response of an API, for example an acknowledgement.

        With `before_request`, the connection is closed before the broker receives the request. For `times` see `fail`.
        """
        return self._faults.add(api, Disconnect(before_request), times)

    def clear_faults(self) -> None:
        """Remove all faults."""
        self._faults.clear()


class _BrokerThread:
    """One run of the broker, from start to stop, with its thread and event loop."""

    def __init__(self, properties: Mapping[str, str], port: int, faults: FaultList) -> None:
        self._properties = properties
        self._port = port
        self._faults = faults
        self._started: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
        self._stopping = asyncio.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name=f"kafka-broker-{port}", daemon=True)

    def start_and_wait(self) -> None:
        """Start the thread, and wait until the broker serves. Raises the error that made the start fail."""
        self._thread.start()
        try:
            self._started.result(_START_TIMEOUT_S)
        except concurrent.futures.TimeoutError:
            raise TimeoutError(f"the broker did not start within {_START_TIMEOUT_S:g} s") from None
        except BaseException:
            self._thread.join()
            raise

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run a coroutine on the broker's event loop and return its result."""
        loop = self._started.result()
        return asyncio.run_coroutine_threadsafe(_with_timeout(work, timeout_s), loop).result()

    def stop(self) -> None:
        """Stop the broker and its thread. Raises an error that occurred while the broker ran or stopped."""
        loop = self._started.result()
        if self._thread.is_alive():
            loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(_STOP_TIMEOUT_S)
        if self._thread.is_alive():
            raise TimeoutError(f"the broker did not stop within {_STOP_TIMEOUT_S:g} s")
        if self._error is not None:
            raise self._error

    def _main(self) -> None:
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001  raised in the thread that started or stops the broker
            if self._started.done():
                self._error = error
            else:
                self._started.set_exception(error)

    async def _serve(self) -> None:
        config = BrokerConfig.from_properties(self._properties)
        for warning in config.warnings:
            log.warning("Broker configuration: %s", warning)
        server = SocketServer(
            config.socket_listen_backlog_size, config.socket_send_buffer_bytes, config.socket_receive_buffer_bytes
        )
        # With one processor, the broker does not busy-poll: busy polling would keep the interpreter lock from the test.
        node = await Node.start(config, environment=Environment(listening=server, processors=1))
        proxy = FaultProxy((_HOST, server.listeners[0].port), self._faults)
        try:
            await proxy.start(_bind(self._port))
            self._started.set_result(asyncio.get_running_loop())
            await self._stopping.wait()
        finally:
            await proxy.close()
            await node.stop()


def _bind(port: int) -> socket.socket:
    """Return a socket that is bound to the port (0 = a free port). Several of these sockets can share the port.

    A socket that is bound and never listens reserves the port while the broker is stopped.
    """
    bound = socket.socket()
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.setblocking(False)
        bound.bind((_HOST, port))
    except BaseException:
        bound.close()
        raise
    return bound


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _with_timeout(work: Awaitable[T], timeout_s: float) -> T:
    try:
        async with asyncio.timeout(timeout_s):
            return await work
    except TimeoutError as error:
        raise error if error.args else TimeoutError(f"the broker did not respond within {timeout_s:g} s") from None


async def _partitions(cluster: Cluster, topic: str, timeout_s: float) -> list[tuple[str, int]]:
    """Wait until the topic exists, and return its partitions. Raises TimeoutError."""
    try:
        found = await cluster.topic(topic, timeout_s * 1000)
    except (BrokerError, TimedOutError):
        raise TimeoutError(f"topic {topic} does not exist after {timeout_s:g} s") from None
    return [(topic, partition) for partition in range(len(found.partitions))]


def _columns(records: Iterable[NewRecord]) -> RecordColumns:
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    headers: list[RecordHeaders] = []
    for record in records:
        key, value, *more = record if isinstance(record, tuple) else (None, record)
        keys.append(_bytes(key))
        values.append(_bytes(value))
        headers.append([(name, _bytes(each)) for name, each in more[0].items()] if more else [])
    return RecordColumns(
        values, keys if any(key is not None for key in keys) else None, headers if any(headers) else None
    )


def _bytes(text: Text) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


def _records(batch: FetchedBatch) -> list[ConsumerRecord]:
    columns, count = batch.columns, len(batch)
    timestamps = columns.timestamps if isinstance(columns.timestamps, list) else [columns.timestamps or 0] * count
    assert columns.offsets is not None
    return [
        ConsumerRecord(batch.topic, batch.partition, offset, timestamp, key, value, tuple(headers))
        for offset, timestamp, key, value, headers in zip(
            columns.offsets,
            timestamps,
            columns.keys or [None] * count,
            columns.values,
            columns.headers or [[]] * count,
            strict=True,
        )
    ]
