"""Submits the task configurations that this worker's connectors generate to the leader of the group, which stores them.

A submission is repeated until the leader has stored the task configurations. If they are too large for the config
topic, the connector fails. A newer submission of the same connector replaces an older one.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeAlias

from headrace.herder import rest_client
from headrace.herder.errors import ForwardError, HerderError, PayloadTooLargeError
from headrace.herder.group_core import GroupCore
from headrace.herder.group_protocol import Version
from headrace.herder.request_signature import sign
from headrace.herder.rest_client import Kind
from headrace.runtime.worker_config import WorkerConfig
from headrace.stores.config_store import ConfigSnapshot, TargetState
from headrace_broker.client.errors import ClientError

log = logging.getLogger(__name__)

BACKOFF_MIN_S, BACKOFF_MAX_S = 0.25, 60.0
TaskConfigs: TypeAlias = Sequence[Mapping[str, str]]


class TaskConfigsSubmission:
    """The submissions of one worker, in the background.

    `store` stores task configurations as the leader. `reject` fails a connector whose task configurations can never be
    stored. `wait_until_replaced` waits until a rebalance has completed after which the worker at this URL is not the
    leader. `spawn` runs a coroutine in the background.
    """

    def __init__(
        self,
        config: WorkerConfig,
        core: GroupCore,
        snapshot: Callable[[], ConfigSnapshot],
        *,
        store: Callable[[str, TaskConfigs], Awaitable[None]],
        reject: Callable[[str, TaskConfigs, Exception], None],
        wait_until_stable: Callable[[], Awaitable[None]],
        wait_until_replaced: Callable[[str], Coroutine[Any, Any, None]],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._config, self._core, self._snapshot = config, core, snapshot
        self._store, self._reject = store, reject
        self._wait_until_stable, self._wait_until_replaced = wait_until_stable, wait_until_replaced
        self._spawn = spawn
        self._running: dict[str, asyncio.Task[None]] = {}

    def submit(self, name: str, configs: TaskConfigs) -> None:
        """Submit the task configurations of a connector in the background."""
        if (earlier := self._running.pop(name, None)) is not None:
            earlier.cancel()
        self._running[name] = self._spawn(self._submit_until_stored(name, configs))

    async def _submit_until_stored(self, name: str, configs: TaskConfigs) -> None:
        backoff_s = BACKOFF_MIN_S
        while self._core.assignment.contains(name, None):
            try:
                await self._submit_once(name, configs)
                return
            except PayloadTooLargeError as error:
                self._reject(name, configs, error)
                return
            except (ClientError, HerderError, OSError) as error:
                state = self._snapshot().connectors.get(name)
                if state is None or state.target is TargetState.STOPPED:
                    return
                log.warning("Connector %s: its task configurations were not stored, retrying: %s", name, error)
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)

    async def _submit_once(self, name: str, configs: TaskConfigs) -> None:
        await self._wait_until_stable()
        if self._core.is_leader:
            await self._store(name, configs)
            return
        leader = self._core.leader_url
        if leader is None:
            raise ForwardError("the leader of the group is not known, because a rebalance is in progress", None)
        body = json.dumps([dict(config) for config in configs]).encode()
        # A suspended leader must not forward the request to the next leader when it continues.
        url = rest_client.join(leader, "connectors", name, "tasks") + "?forward=false"
        response = await rest_client.send_unless_replaced(
            lambda: self._wait_until_replaced(leader),
            self._config,
            "POST",
            url,
            body,
            self._signature(body),
            kind=Kind.TASK_CONFIGS,
        )
        if response is None:
            raise HerderError(f"the leader {leader} was replaced before it responded")
        if response.status >= 300:
            kind = PayloadTooLargeError if response.status == PayloadTooLargeError.status else HerderError
            raise kind(f"the leader {leader} responded {response.describe()}")

    def _signature(self, body: bytes) -> dict[str, str]:
        """Return the headers with the signature of a request. Workers sign requests with the protocol "sessioned"."""
        if self._core.version is not Version.SESSIONED:
            return {}
        key = self._snapshot().session_key
        if key is None:
            raise HerderError("the leader has not distributed a session key yet")
        return sign(key, self._config["inter.worker.signature.algorithm"], body)
