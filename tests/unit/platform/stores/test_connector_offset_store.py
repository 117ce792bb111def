"""Tests of a source connector's own offsets topic, which is combined with the worker's offset store."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.stores.connector_offset_store import ConnectorOffsetStore
from headrace.stores.offset_keys import Offset, Partition
from headrace.stores.offset_store import MemoryOffsetStore

pytestmark = pytest.mark.anyio

A, B = {"table": "a"}, {"table": "b"}


class RecordedStore(MemoryOffsetStore):
    """A store that appends its writes to the list `writes`, which several stores share.

    If `fails` is true, each write fails.
    """

    def __init__(self, name: str, writes: list[tuple[str, object]], *, fails: bool = False) -> None:
        super().__init__()
        self.name, self.writes, self.fails = name, writes, fails

    async def write(self, connector: str, offsets: Sequence[tuple[Partition, Offset | None]]) -> None:
        if self.fails:
            raise OSError("no broker responds")
        self.writes.append((self.name, list(offsets)))
        await super().write(connector, offsets)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_offset_in_the_connectors_offsets_topic_takes_precedence_over_the_offset_in_the_workers_topic() -> None:
    own, worker = MemoryOffsetStore(), MemoryOffsetStore()
    store = ConnectorOffsetStore(own, worker)
    await worker.write("c", [(A, {"n": 1}), (B, {"n": 1})])
    await own.write("c", [(A, {"n": 2})])
    assert await store.read("c", [A, B, {"table": "c"}]) == [{"n": 2}, {"n": 1}, None]
    assert await store.read_all("c") == [(A, {"n": 2}), (B, {"n": 1})]


async def test_tombstones_are_written_to_the_workers_topic_first_and_other_offsets_to_the_connectors_topic_first() -> (
    None
):
    writes: list[tuple[str, object]] = []
    store = ConnectorOffsetStore(RecordedStore("own", writes), RecordedStore("worker", writes))
    await store.write("c", [(A, {"n": 1}), (B, None)])
    assert writes == [
        ("worker", [(B, None)]),
        ("own", [(A, {"n": 1}), (B, None)]),
        ("worker", [(A, {"n": 1})]),
    ]


async def test_commit_succeeds_if_only_the_write_to_the_workers_offsets_topic_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    own = MemoryOffsetStore()
    store = ConnectorOffsetStore(own, RecordedStore("worker", [], fails=True))
    await store.write("c", [(A, {"n": 1})])
    assert await own.read("c", [A]) == [{"n": 1}]
    assert "Connector c: its offsets were not written to the worker's offsets topic" in caplog.text
    with pytest.raises(OSError, match="no broker"):
        await store.write("c", [(A, None)])
