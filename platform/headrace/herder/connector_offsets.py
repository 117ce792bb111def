"""The offsets of all source connectors of a distributed worker, some of which have their own offsets topic (KIP-618).

If a connector sets `offsets.storage.topic`, its offsets are in this topic, in the cluster that its `admin.override.*`,
`consumer.override.*` and `producer.override.*` keys select. The worker creates the topic with the settings of its own
offsets topic, and reads it while an instance of the connector runs in this worker or a request needs the offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from headrace.metrics import logs
from headrace.runtime import client_configs
from headrace.runtime.worker_config import WorkerConfig
from headrace.stores import internal_topics
from headrace.stores.connector_offset_store import ConnectorOffsetStore
from headrace.stores.internal_topics import InternalTopic, InternalTopicError
from headrace.stores.kafka_offset_store import KafkaOffsetStore
from headrace.stores.offset_keys import Offset, Partition
from headrace.stores.offset_store import OffsetStore
from headrace.stores.topic_log import TopicLogs
from headrace_broker.client.admin import Admin
from headrace_broker.client.config import ClientConfig

TOPIC = "offsets.storage.topic"
START_TIMEOUT_S = 30.0
"""How long the first use of a connector's own offsets topic waits for the brokers, which may be of another cluster."""


@dataclass(slots=True, eq=False)
class _OpenStore:
    """The store of a connector with its own topic. `settings` are the keys with which the store was opened."""

    settings: Mapping[str, str]
    logs: TopicLogs
    store: OffsetStore
    calls: int = 0
    is_replaced: bool = False


class ConnectorOffsets:
    """An offset store that reads and writes the topic of each connector.

    `config_of` returns the current configuration of a connector, or None. `resolve` replaces the variables in a
    configuration. `is_in_use` tells whether an instance of the connector runs in this worker.
    """

    def __init__(
        self,
        worker: WorkerConfig,
        worker_store: OffsetStore,
        *,
        config_of: Callable[[str], Mapping[str, str] | None],
        resolve: Callable[[Mapping[str, str]], Awaitable[dict[str, str]]],
        is_in_use: Callable[[str], bool],
    ) -> None:
        self._worker = worker
        self._worker_store = worker_store
        self._config_of = config_of
        self._resolve = resolve
        self._is_in_use = is_in_use
        self._open: dict[str, _OpenStore] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def read(self, connector: str, partitions: Sequence[Partition]) -> list[dict[str, Any] | None]:
        """Return the offsets of these source partitions, or None for each partition without an offset.

        Raises ClientError, InternalTopicError.
        """
        async with self._store_of(connector) as store:
            return await store.read(connector, partitions)

    async def read_all(self, connector: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Return all (partition, offset) pairs of a connector. Raises ClientError, InternalTopicError."""
        async with self._store_of(connector) as store:
            return await store.read_all(connector)

    async def write(self, connector: str, offsets: Sequence[tuple[Partition, Offset | None]]) -> None:
        """Set offsets, and wait until the records are acknowledged. Raises ClientError, InternalTopicError."""
        async with self._store_of(connector) as store:
            await store.write(connector, offsets)

    async def close_unused(self) -> None:
        """Close the stores of connectors of which no instance runs in this worker any more."""
        for connector, opened in list(self._open.items()):
            if not opened.calls and not self._is_in_use(connector):
                await self._close(connector, opened)

    async def close(self) -> None:
        """Close all stores."""
        await asyncio.gather(*(self._close(connector, opened) for connector, opened in self._open.items()))

    @asynccontextmanager
    async def _store_of(self, connector: str) -> AsyncIterator[OffsetStore]:
        opened = await self._opened(connector)
        if opened is None:
            yield self._worker_store
            return
        opened.calls += 1
        try:
            yield opened.store
        finally:
            opened.calls -= 1
            if not opened.calls and (opened.is_replaced or not self._is_in_use(connector)):
                await self._close(connector, opened)

    async def _opened(self, connector: str) -> _OpenStore | None:
        """Return the store of a connector, or None if it has no topic of its own.

        Opens or replaces the store if needed.
        """
        lock = self._locks.get(connector)
        if lock is None:
            lock = self._locks[connector] = asyncio.Lock()
        async with lock:
            known, config = self._open.get(connector), self._config_of(connector)
            if config is None:  # the connector was deleted, and its tasks commit their last offsets
                return known
            settings = _settings(config)
            if known is not None and known.settings == settings:
                return known
            if known is not None:
                known.is_replaced = True
                if not known.calls:
                    await self._close(connector, known)
            if not settings or self._is_topic_of_worker(settings):
                return None
            try:
                async with asyncio.timeout(START_TIMEOUT_S):
                    opened = self._open[connector] = await self._start(connector, settings)
            except TimeoutError as error:
                raise InternalTopicError(
                    f"{TOPIC}={settings[TOPIC]}: the topic of connector {connector} could not be read within "
                    f"{START_TIMEOUT_S:g} s: {error or 'no broker responds'}"
                ) from error
            return opened

    def _is_topic_of_worker(self, settings: Mapping[str, str]) -> bool:
        has_cluster = any(key.endswith(".override.bootstrap.servers") for key in settings)
        return settings[TOPIC].strip() == self._worker["offset.storage.topic"] and not has_cluster

    async def _start(self, connector: str, settings: Mapping[str, str]) -> _OpenStore:
        values = dict(settings)
        if any("${" in value for value in settings.values()):
            values = await self._resolve(settings)
            logs.secrets.add(value for key, value in values.items() if value != settings[key] and key != TOPIC)
        properties = client_configs.offsets_topic_properties(self._worker.properties, values, connector)
        topic = values[TOPIC].strip()
        await self._create_topic(topic, properties.admin)
        topic_logs = TopicLogs(properties.consumer, properties.producer)
        own = KafkaOffsetStore(topic_logs, topic)
        try:
            await topic_logs.start()
        except BaseException:
            await topic_logs.stop()
            raise
        return _OpenStore(settings, topic_logs, ConnectorOffsetStore(own, self._worker_store))

    async def _create_topic(self, topic: str, properties: Mapping[str, str]) -> None:
        worker = self._worker
        wanted = InternalTopic(
            "offset.storage",
            "source connector offsets",
            topic,
            worker["offset.storage.partitions"],
            worker["offset.storage.replication.factor"],
            internal_topics.topic_configs(worker.properties, "offset.storage"),
            name_key=TOPIC,
        )
        admin = await Admin.open(ClientConfig.from_properties(properties, kind="admin"))
        try:
            await internal_topics.ensure(admin, [wanted])
        finally:
            await admin.close()

    async def _close(self, connector: str, opened: _OpenStore) -> None:
        if self._open.get(connector) is opened:
            del self._open[connector]
        await opened.logs.stop()


def _settings(config: Mapping[str, str]) -> dict[str, str]:
    """Return the keys that select a connector's own offsets topic, or an empty dict if it has no topic of its own."""
    if not config.get(TOPIC, "").strip():
        return {}
    return {key: value for key, value in config.items() if key == TOPIC or ".override." in key}
