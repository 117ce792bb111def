"""Tests of a consumer's start positions: each partition's committed offset, or the offset from auto.offset.reset."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_broker.client import fetcher as module
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.fetcher import Fetcher
from headrace_broker.client.offsets import ListedOffset, OffsetAndMetadata

A, B, END = ("t", 0), ("t", 1), 100


class FetcherWithPendingLookups:
    """A fetcher whose committed-offset lookups wait until the test completes them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cluster: Any = SimpleNamespace(
            listeners=[],
            retry_backoff_ms=lambda attempts: 0.0,
            now_ms=lambda: 0.0,
            view=SimpleNamespace(is_replica=lambda *_: False, leader=lambda *_: None),
            request_refresh=lambda: None,
            close_connections=lambda purpose: None,
        )
        self.committed = {A: 3, B: 43}
        self.lookups: asyncio.Queue[tuple[list[Any], asyncio.Future[None]]] = asyncio.Queue()
        config = ClientConfig.from_properties(
            {"bootstrap.servers": "h:1", "group.id": "g", "auto.offset.reset": "latest"}, "consumer"
        )
        self.fetcher = Fetcher(cluster, config, self._committed, lambda: None)
        monkeypatch.setattr(self.fetcher, "_leader_of", lambda *_: None)
        monkeypatch.setattr(module.offset_api, "list_offsets", self._listed)

    async def _committed(self, partitions: list[Any]) -> dict[Any, OffsetAndMetadata | None]:
        found = {item: self.committed.get(item) for item in partitions}
        response: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.lookups.put_nowait((partitions, response))
        await response
        return {item: None if offset is None else OffsetAndMetadata(offset) for item, offset in found.items()}

    async def _listed(self, cluster: Any, timestamps: Any, **_: Any) -> dict[Any, ListedOffset]:
        return {item: ListedOffset(END, -1, -1) for item in timestamps}

    def assign(self, *partitions: Any) -> None:
        self.fetcher.core.assign(partitions)
        self.fetcher.pump()

    async def complete_lookups(self) -> dict[Any, int | None]:
        while any(self.fetcher.core.position(item) is None for item in self.fetcher.core.assignment):
            (await asyncio.wait_for(self.lookups.get(), 30))[1].set_result(None)
            for _ in range(5):
                await asyncio.sleep(0)
        return {item: self.fetcher.core.position(item) for item in self.fetcher.core.assignment}


def test_partition_that_is_assigned_during_a_committed_offset_lookup_starts_at_its_committed_offset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the position were reset to `latest`, the consumer would skip the records after the committed offset."""

    async def work() -> dict[Any, int | None]:
        fetcher = FetcherWithPendingLookups(monkeypatch)
        fetcher.assign(A)
        _, response = await asyncio.wait_for(fetcher.lookups.get(), 30)
        fetcher.assign(A, B)
        response.set_result(None)
        return await fetcher.complete_lookups()

    assert asyncio.run(work()) == {A: 3, B: 43}


def test_committed_offset_that_was_requested_before_the_partition_was_reassigned_is_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the two assignments, another member may have owned the partition and committed a newer offset."""

    async def work() -> dict[Any, int | None]:
        fetcher = FetcherWithPendingLookups(monkeypatch)
        fetcher.assign(A)
        _, response = await asyncio.wait_for(fetcher.lookups.get(), 30)
        fetcher.assign()
        fetcher.committed[A] = 7
        fetcher.assign(A)
        response.set_result(None)
        return await fetcher.complete_lookups()

    assert asyncio.run(work()) == {A: 7}


def test_partition_without_committed_offset_starts_at_the_offset_from_auto_offset_reset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> dict[Any, int | None]:
        fetcher = FetcherWithPendingLookups(monkeypatch)
        del fetcher.committed[A]
        fetcher.assign(A, B)
        return await fetcher.complete_lookups()

    assert asyncio.run(work()) == {A: END, B: 43}
