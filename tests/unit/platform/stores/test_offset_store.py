"""Tests that every offset store returns the stored offsets for any order of a source partition's fields."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.stores.file_offsets import FileOffsetStore
from headrace.stores.offset_store import MemoryOffsetStore, OffsetStore

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> OffsetStore:
    return MemoryOffsetStore() if request.param == "memory" else FileOffsetStore(tmp_path / "offsets")


async def test_offset_is_found_only_for_an_equal_source_partition_of_the_same_connector(store: OffsetStore) -> None:
    await store.write("c", [({"a": 1, "b": 2}, {"n": 1})])
    assert await store.read("c", [{"b": 2, "a": 1}, {"a": 1}]) == [{"n": 1}, None]
    assert await store.read("d", [{"a": 1, "b": 2}]) == [None]


async def test_null_offset_removes_the_source_partition_from_the_store(store: OffsetStore) -> None:
    await store.write("c", [({"a": 1}, {"n": 1}), ({"a": 2}, {"n": 2})])
    await store.write("c", [({"a": 1}, None), ({"a": 3}, None)])
    assert await store.read_all("c") == [({"a": 2}, {"n": 2})]
    assert await store.read_all("unknown") == []


async def test_offsets_of_concurrent_writes_are_all_stored(store: OffsetStore) -> None:
    await asyncio.gather(*(store.write("c", [({"a": number}, {"n": number})]) for number in range(10)))
    assert len(await store.read_all("c")) == 10
