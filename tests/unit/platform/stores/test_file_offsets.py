"""Tests that the offsets file is always complete, and that writes keep other connectors' entries."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.stores import java_hashmap
from headrace.stores.file_offsets import FileOffsetStore, OffsetFileError

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_offsets_written_to_a_file_are_read_by_a_new_store_of_the_same_file(tmp_path: Path) -> None:
    store = FileOffsetStore(tmp_path / "deeper" / "connect.offsets")
    store.load()
    await store.write("c", [({"table": "t", "protocol": "1"}, {"incrementing": 7})])
    await store.write("d", [({"filename": "x"}, {"position": 1})])

    again = FileOffsetStore(store.path)
    again.load()
    assert await again.read("c", [{"protocol": "1", "table": "t"}, {"table": "other"}]) == [{"incrementing": 7}, None]
    assert await again.read_all("d") == [({"filename": "x"}, {"position": 1})]
    assert await again.read_all("unknown") == []


async def test_null_offset_removes_the_entry_from_the_offsets_file(tmp_path: Path) -> None:
    store = FileOffsetStore(tmp_path / "offsets")
    await store.write("c", [({"a": 1}, {"n": 1}), ({"a": 2}, {"n": 2})])
    await store.write("c", [({"a": 1}, None)])
    assert await store.read_all("c") == [({"a": 2}, {"n": 2})]
    assert java_hashmap.load(store.path.read_bytes()) == {b'["c",{"a":2}]': b'{"n":2}'}


async def test_write_keeps_the_bytes_of_existing_keys_in_the_offsets_file(tmp_path: Path) -> None:
    path = tmp_path / "offsets"
    path.write_bytes(java_hashmap.dump({b'["c", {"table":"t","protocol":"1"}]': b'{"n":1}', b"\xff\xfe": b"?"}))
    store = FileOffsetStore(path)
    store.load()
    await store.write("c", [({"protocol": "1", "table": "t"}, {"n": 2})])
    assert java_hashmap.load(path.read_bytes()) == {
        b'["c", {"table":"t","protocol":"1"}]': b'{"n":2}',
        b"\xff\xfe": b"?",
    }


async def test_missing_or_empty_offsets_file_is_loaded_without_offsets(tmp_path: Path) -> None:
    store = FileOffsetStore(tmp_path / "offsets")
    store.load()
    store.path.touch()
    store.load()
    assert await store.read("c", [{"a": 1}]) == [None]


def test_invalid_offsets_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "offsets"
    path.write_text("position=7")
    with pytest.raises(OffsetFileError, match=str(path)):
        FileOffsetStore(path).load()


async def test_failed_write_leaves_the_offsets_file_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileOffsetStore(tmp_path / "offsets")
    await store.write("c", [({"a": 1}, {"n": 1})])
    before = store.path.read_bytes()

    def no_space(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(OffsetFileError, match="No space left"):
        await store.write("c", [({"a": 1}, {"n": 2})])
    assert store.path.read_bytes() == before


def test_offsets_file_that_one_worker_has_locked_cannot_be_locked_by_another_worker(tmp_path: Path) -> None:
    first, second = FileOffsetStore(tmp_path / "offsets"), FileOffsetStore(tmp_path / "offsets")
    first.lock()
    try:
        with pytest.raises(OffsetFileError, match="offsets is in use by another worker"):
            second.lock()
        first.close()
        second.lock()
    finally:
        second.close()
