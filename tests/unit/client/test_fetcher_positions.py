"""Where a reader begins: at what is committed for each partition, at the reset where nothing is."""

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


class Looking:
    """A fetcher whose questions for committed offsets wait for the test to answer them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cluster: Any = SimpleNamespace(
            listeners=[],
            retry_pause_ms=lambda attempts: 0.0,
            now_ms=lambda: 0.0,
            view=SimpleNamespace(is_replica=lambda *_: False, leader=lambda *_: None),
            request_refresh=lambda: None,
            release=lambda purpose: None,
        )
        self.committed = {A: 3, B: 43}
        self.asked: asyncio.Queue[tuple[list[Any], asyncio.Future[None]]] = asyncio.Queue()
        config = ClientConfig.from_properties(
            {"bootstrap.servers": "h:1", "group.id": "g", "auto.offset.reset": "latest"}, "consumer"
        )
        self.fetcher = Fetcher(cluster, config, self._committed, lambda: None)
        monkeypatch.setattr(self.fetcher, "_leader_of", lambda *_: None)
        monkeypatch.setattr(module.offset_api, "list_offsets", self._listed)

    async def _committed(self, partitions: list[Any]) -> dict[Any, OffsetAndMetadata | None]:
        found = {item: self.committed.get(item) for item in partitions}
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.asked.put_nowait((partitions, answered))
        await answered
        return {item: None if offset is None else OffsetAndMetadata(offset) for item, offset in found.items()}

    async def _listed(self, cluster: Any, timestamps: Any, **_: Any) -> dict[Any, ListedOffset]:
        return {item: ListedOffset(END, -1, -1) for item in timestamps}

    def assign(self, *partitions: Any) -> None:
        self.fetcher.core.assign(partitions)
        self.fetcher.pump()

    async def answer_all(self) -> dict[Any, int | None]:
        while any(self.fetcher.core.position(item) is None for item in self.fetcher.core.assignment):
            (await asyncio.wait_for(self.asked.get(), 5))[1].set_result(None)
            for _ in range(5):
                await asyncio.sleep(0)
        return {item: self.fetcher.core.position(item) for item in self.fetcher.core.assignment}


def test_what_is_assigned_while_offsets_are_looked_up_is_looked_up_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it was reset: with `latest`, records between its committed offset and the end were never read."""

    async def work() -> dict[Any, int | None]:
        looking = Looking(monkeypatch)
        looking.assign(A)
        _, answered = await asyncio.wait_for(looking.asked.get(), 5)
        looking.assign(A, B)
        answered.set_result(None)
        return await looking.answer_all()

    assert asyncio.run(work()) == {A: 3, B: 43}


def test_what_was_committed_before_a_partition_came_back_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another member had it meanwhile, and committed."""

    async def work() -> dict[Any, int | None]:
        looking = Looking(monkeypatch)
        looking.assign(A)
        _, answered = await asyncio.wait_for(looking.asked.get(), 5)
        looking.assign()
        looking.committed[A] = 7
        looking.assign(A)
        answered.set_result(None)
        return await looking.answer_all()

    assert asyncio.run(work()) == {A: 7}


def test_a_partition_without_a_committed_offset_is_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> dict[Any, int | None]:
        looking = Looking(monkeypatch)
        del looking.committed[A]
        looking.assign(A, B)
        return await looking.answer_all()

    assert asyncio.run(work()) == {A: END, B: 43}
