"""What a reader commits, where brokers do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_broker.client import offsets
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.errors import ConnectionLostError
from headrace_broker.client.group_offsets import GroupOffsets
from headrace_broker.client.offsets import OffsetAndMetadata
from headrace_broker.protocol.errors import ErrorCode


@pytest.mark.parametrize("is_by_itself", [True, False])
def test_a_commit_that_was_not_answered_does_not_follow_a_later_one(
    monkeypatch: pytest.MonkeyPatch, is_by_itself: bool
) -> None:
    """The group would go on from the older offset, if this reader ended then."""
    committed: list[int] = []

    async def commit_offsets(
        cluster: Any, group_id: str, asked: dict[Any, Any], **options: Any
    ) -> dict[Any, ErrorCode]:
        if not committed and asked["t", 0].offset == 1:
            await asyncio.sleep(0.01)
            raise ConnectionLostError("it owes an answer for long")
        committed.append(asked["t", 0].offset)
        return dict.fromkeys(asked, ErrorCode.NONE)

    async def retry(attempt: Callable[[], Awaitable[None]], timeout_ms: float, what: str) -> None:
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
        ours = GroupOffsets(cluster, ClientConfig.from_properties(properties, "consumer"))
        first = asyncio.ensure_future(ours.commit_by_itself({("t", 0): 1}))
        await asyncio.sleep(0.015)
        if is_by_itself:
            await ours.commit_by_itself({("t", 0): 2})
        else:
            await ours.commit({("t", 0): OffsetAndMetadata(2)})
        await first
        assert committed == [2]

    monkeypatch.setattr(offsets, "commit_offsets", commit_offsets)
    asyncio.run(work())
