"""Tests of a consumer's offset commits when brokers do not respond."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_broker.client import offsets
from headrace_broker.client.committed_offsets import CommittedOffsets
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.errors import ConnectionLostError
from headrace_broker.client.offsets import OffsetAndMetadata
from headrace_broker.protocol.errors import ErrorCode
from support.virtual_time import run_in_virtual_time


@pytest.mark.parametrize("is_auto_commit", [True, False])
def test_failed_auto_commit_is_not_retried_after_a_later_commit_has_started(
    monkeypatch: pytest.MonkeyPatch, is_auto_commit: bool
) -> None:
    """If the consumer retried the older commit, it would overwrite the newer committed offset."""
    committed: list[int] = []

    async def commit_offsets(
        cluster: Any, group_id: str, requested: dict[Any, Any], **options: Any
    ) -> dict[Any, ErrorCode]:
        if not committed and requested["t", 0].offset == 1:
            await asyncio.sleep(0.01)
            raise ConnectionLostError("broker 1 has not responded for a long time")
        committed.append(requested["t", 0].offset)
        return dict.fromkeys(requested, ErrorCode.NONE)

    async def retry(attempt: Callable[[], Awaitable[None]], timeout_ms: float, action: str) -> None:
        while True:
            try:
                return await attempt()
            except ConnectionLostError:
                await asyncio.sleep(0.02)

    async def work() -> None:
        cluster: Any = SimpleNamespace(
            now_ms=lambda: 0.0, retry=retry, view=SimpleNamespace(leader=lambda topic, partition: None)
        )
        properties = {"bootstrap.servers": "localhost:1", "group.id": "g"}
        committed_offsets = CommittedOffsets(cluster, ClientConfig.from_properties(properties, "consumer"))
        first = asyncio.ensure_future(committed_offsets.auto_commit({("t", 0): 1}))
        await asyncio.sleep(0.015)
        if is_auto_commit:
            await committed_offsets.auto_commit({("t", 0): 2})
        else:
            await committed_offsets.commit({("t", 0): OffsetAndMetadata(2)})
        await first
        assert committed == [2]

    monkeypatch.setattr(offsets, "commit_offsets", commit_offsets)
    run_in_virtual_time(work())
