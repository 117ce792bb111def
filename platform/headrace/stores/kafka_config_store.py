"""The config store of a distributed worker: the config topic of the worker group, in the format of Kafka Connect."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace.metrics import log_text
from headrace.stores import config_records
from headrace.stores.config_store import ConfigChange, ConfigSnapshot, Listener, PutLogLevel, RequestRestart
from headrace.stores.config_topic_state import ConfigTopicState
from headrace.stores.topic_log import TopicLogs, TopicRecord

log = logging.getLogger(__name__)

WRITE_TIMEOUT_S = 30.0


class KafkaConfigStore:
    """Reads and writes the config topic. `logs` must be started before `start` is called."""

    def __init__(self, logs: TopicLogs, topic: str) -> None:
        self._log = logs.add(topic, self._on_record)
        self._state = ConfigTopicState()
        self._listener: Listener | None = None
        self._write_lock = asyncio.Lock()

    async def start(self, listener: Listener) -> ConfigSnapshot:
        """Return the state at the topic's current end offset. `listener` receives later changes."""
        self._listener = listener
        return self._state.snapshot()

    async def stop(self) -> None:
        """Wait for the changes that are being written, and remove the listener."""
        async with self._write_lock:
            self._listener = None

    async def append(self, change: ConfigChange) -> int:
        """Write a change. When the listener has received the change, return the next offset of the topic.

        Raises ClientError, and TimeoutError after 30 s.
        """
        async with self._write_lock, self._timeout(WRITE_TIMEOUT_S):
            await self._log.read_to_end()
            for records in config_records.steps(change):
                log.debug("Config topic: writing %s", log_text.Listing([key for key, _ in records]))
                await self._log.append([(key.encode(), value) for key, value in records])
                await self._log.read_to_end()
        return self._state.snapshot().offset

    async def refresh(self, timeout_s: float) -> ConfigSnapshot:
        """Read to the topic's current end offset and return the state. Raises ClientError, TimeoutError."""
        async with self._timeout(timeout_s):
            await self._log.read_to_end()
        return self._state.snapshot()

    @asynccontextmanager
    async def _timeout(self, timeout_s: float) -> AsyncIterator[None]:
        """Limit the duration of a block.

        Raises TopicDeletedError if the topic was deleted. Otherwise, raises TimeoutError with a text, while that of
        asyncio.timeout has no text.
        """
        try:
            async with asyncio.timeout(timeout_s):
                yield
        except TimeoutError as error:
            self._log.check_exists()
            raise TimeoutError(f"no response within {timeout_s:g} s") from error

    def _on_record(self, record: TopicRecord) -> None:
        log.debug("Config topic: read the record with key %r at offset %d", record.key, record.offset)
        change = self._state.apply(record.offset, record.key, record.value)
        if change is None or self._listener is None:  # no listener yet: `start` returns the state
            return
        if isinstance(change, RequestRestart | PutLogLevel):
            log.info("Config topic: received %s", change)
        self._listener(change, self._state.snapshot())
