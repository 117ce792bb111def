"""Writes the session keys with which a group's workers sign internal requests (KIP-507). Only the leader does this."""

from __future__ import annotations

import asyncio
import base64
import logging
import secrets
import time
from collections.abc import Callable, Coroutine
from typing import Any

from headrace.runtime.worker_config import WorkerConfig
from headrace.stores.config_store import ConfigSnapshot, ConfigStore, PutSessionKey
from headrace_broker.client.errors import ClientError

log = logging.getLogger(__name__)

KEY_RETRY_S = 1.0


class SessionKeyRotation:
    """Replaces the session key when it is older than `inter.worker.key.ttl.ms`.

    `is_needed` returns whether this worker is the leader of a group with the protocol `sessioned`. `spawn` runs a
    coroutine in the background.
    """

    def __init__(
        self,
        config: WorkerConfig,
        configs: ConfigStore,
        snapshot: Callable[[], ConfigSnapshot],
        is_needed: Callable[[], bool],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._config, self._configs, self._snapshot = config, configs, snapshot
        self._is_needed, self._spawn = is_needed, spawn
        self._timer: asyncio.TimerHandle | None = None

    def stop(self) -> None:
        """Write no more keys until `rotate_if_due` is called."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def rotate_if_due(self) -> None:
        """Write a new key if there is no key or it has expired.

        Otherwise, write a new key when the current key expires.
        """
        self.stop()
        if not self._is_needed():
            return
        key, now_ms = self._snapshot().session_key, time.time_ns() // 1_000_000
        algorithm = self._config["inter.worker.key.generation.algorithm"]
        ttl_ms = self._config["inter.worker.key.ttl.ms"]
        if key is None or key.algorithm != algorithm or key.created_ms + ttl_ms <= now_ms:
            size = (self._config["inter.worker.key.size"] or 256) // 8
            new = base64.b64encode(secrets.token_bytes(size)).decode()
            self._spawn(self._write(PutSessionKey(new, algorithm, now_ms), ttl_ms))
        else:
            self._rotate_after((key.created_ms + ttl_ms - now_ms) / 1000)

    async def _write(self, key: PutSessionKey, ttl_ms: int) -> None:
        """Write a session key. If this fails, try again with another key."""
        try:
            await self._configs.append(key)
        except (ClientError, TimeoutError) as error:
            log.error(
                "Session key: cannot write a new key to the config topic, retrying in %g s: %s", KEY_RETRY_S, error
            )
            self._rotate_after(KEY_RETRY_S)
        else:
            self._rotate_after(ttl_ms / 1000)

    def _rotate_after(self, delay_s: float) -> None:
        self.stop()
        self._timer = asyncio.get_running_loop().call_later(delay_s, self.rotate_if_due)
