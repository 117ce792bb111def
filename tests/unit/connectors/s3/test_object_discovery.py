"""Tests of the discovery of objects in generated bucket listings, which have up to a million objects."""

from __future__ import annotations

import bisect
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_connectors.s3 import backup_finder as backup_finder_module
from headrace_connectors.s3 import file_finder
from headrace_connectors.s3.backup_finder import BackupFinder, BackupObject
from headrace_connectors.s3.file_finder import FileFinder
from headrace_connectors.s3.object_names import BackupNames, SourcePartition
from support.examples import examples

PAGE = 1000
MILLION = 1_000_000
NOW_MS = 100


class Listed(NamedTuple):
    key: str
    modified_ms: int


class Page(NamedTuple):
    objects: list[Listed]
    folders: list[str]
    token: str | None
    server_ms: int


class Listing:
    """A bucket with sorted keys. Each key is computed from its index, so a million keys need no memory."""

    def __init__(self, count: int, key: Callable[[int], str], modified: Callable[[int], int] = lambda index: 0) -> None:
        self.count = count
        self.requests = 0
        self._key = key
        self._modified = modified

    def __call__(self, prefix: str, delimiter: str, start_after: str | None, token: str | None) -> Page:
        self.requests += 1
        begin = self._first(lambda key: key >= prefix)
        if start_after is not None:
            begin = max(begin, self._first(lambda key: key > start_after))
        if token is not None:
            begin = int(token)
        objects: list[Listed] = []
        folders: list[str] = []
        index = begin
        while index < self.count and (key := self._key(index)).startswith(prefix):
            if len(objects) + len(folders) == PAGE:
                return Page(objects, folders, str(index), NOW_MS)
            end = key.find(delimiter, len(prefix)) if delimiter else -1
            if end < 0:
                objects.append(Listed(key, self._modified(index)))
                index += 1
            else:
                folder = key[: end + len(delimiter)]
                folders.append(folder)
                index = self._first(lambda key: key > folder and not key.startswith(folder), index)  # noqa: B023
        return Page(objects, folders, None, NOW_MS)

    def _first(self, is_after: Callable[[str], bool], low: int = 0) -> int:
        return bisect.bisect_left(range(self.count), True, lo=low, key=lambda index: is_after(self._key(index)))


def listing(keys: Iterable[str]) -> Listing:
    found = sorted(keys)
    return Listing(len(found), found.__getitem__)


class Positions:
    """Returns the stored source offset of each given source partition.

    A source partition consists of the objects of one topic partition in one folder.
    """

    def __init__(self, stored: Mapping[SourcePartition, Mapping[str, Any]] | None = None) -> None:
        self.stored = dict(stored or {})

    def __call__(self, source_partitions: Sequence[SourcePartition]) -> list[Mapping[str, Any] | None]:
        return [self.stored.get(each) for each in source_partitions]


def backup_finder(list_page: Any, positions: Positions, **more: Any) -> BackupFinder:
    return BackupFinder(list_page, BackupNames("+", ".json"), "topics/", "/", positions, **more)


def found_by(finder: BackupFinder) -> Iterator[BackupObject]:
    finder.find()
    while (found := finder.next_object()) is not None:
        yield found


def measured(action: Callable[[], Any]) -> tuple[float, int]:
    """Run `action`. Return its CPU time in seconds and its peak memory usage in bytes."""
    tracemalloc.start()
    began_s = time.process_time()
    action()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return time.process_time() - began_s, peak


def million_objects() -> Listing:
    return Listing(MILLION, lambda index: f"topics/items/partition=0/items+0+{index * 10:010d}.json")


def test_search_for_new_objects_starts_after_the_stored_position_and_does_not_list_earlier_objects() -> None:
    bucket = million_objects()
    source_partition = SourcePartition("topics/items/partition=0/", "items", 0)
    last = (MILLION - 3) * 10
    positions = Positions({source_partition: {"start": f"{last:010d}", "record": 10, "complete": True}})
    found = list(found_by(backup_finder(bucket, positions)))
    assert [int(each.start) for each in found] == [last + 10, last + 20]
    assert bucket.requests < 10


def test_memory_use_of_an_object_search_does_not_depend_on_the_number_of_new_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The test divides the page size and the maximum number of pending objects by 4.

    It therefore has to read only a quarter of the objects to cause the same number of requests.
    """
    monkeypatch.setattr(backup_finder_module, "PENDING_MAX", backup_finder_module.PENDING_MAX // 4)
    monkeypatch.setattr(f"{__name__}.PAGE", PAGE // 4)
    bucket = million_objects()
    finder = backup_finder(bucket, Positions())
    starts: list[int] = []

    def read_some() -> None:
        finder.find()
        for _ in range(5_000):
            found = finder.next_object()
            assert found is not None
            starts.append(int(found.start))

    seconds, peak = measured(read_some)
    print(f"5000 of a million new objects: {seconds:.2f} s of CPU, {peak / 1e6:.1f} MB, {bucket.requests} requests")
    assert starts == [index * 10 for index in range(5_000)]
    assert peak < 1.2e6
    assert bucket.requests < 60


@pytest.mark.prove
def test_object_search_finds_a_million_new_objects_in_order() -> None:
    bucket = million_objects()
    count = 0
    began_s = time.process_time()
    for found in found_by(backup_finder(bucket, Positions())):
        assert int(found.start) == count * 10
        count += 1
    print(f"a million new objects: {time.process_time() - began_s:.1f} s of CPU, {bucket.requests} requests")
    assert count == MILLION
    assert bucket.requests < 2.2 * MILLION / PAGE


@pytest.mark.slow
def test_generic_discovery_finds_50_new_objects_among_a_million_objects_with_little_memory() -> None:
    # The 64 stored positions are at time 5. Only the last 50 objects are newer.
    bucket = Listing(MILLION, lambda index: f"in/{index:07d}.json", lambda index: 9 if index >= MILLION - 50 else 5)
    positions = {slot: {"modified": 5, "object": "in/9", "record": 1, "complete": True} for slot in range(64)}
    finder = FileFinder(bucket, [""], lambda key: "t", positions)
    seconds, peak = measured(finder.find)
    print(f"50 new of a million objects: {seconds:.1f} s of CPU, {peak / 1e6:.1f} MB, {bucket.requests} requests")
    found = []
    while (each := finder.next_object()) is not None:
        found.append(each.key)
    assert found == [f"in/{index:07d}.json" for index in range(MILLION - 50, MILLION)]
    assert bucket.requests <= MILLION / PAGE + 1
    assert peak < 8e6


def test_discovery_in_generic_mode_finds_all_objects_in_order_if_each_search_returns_only_some_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(file_finder, "BATCH_MAX", 100)
    bucket = Listing(1050, lambda index: f"{index:05d}", lambda index: -index % 7)
    finder = FileFinder(bucket, [""], lambda key: "t", {})
    finder.find()
    found = []
    while (each := finder.next_object()) is not None:
        found.append((each.modified_ms, each.key))
    assert found == sorted((-index % 7, f"{index:05d}") for index in range(1050))


def test_generic_discovery_ignores_an_object_that_was_modified_within_the_settle_time() -> None:
    bucket = Listing(2, lambda index: f"{index}", lambda index: index)
    finder = FileFinder(bucket, [""], lambda key: "t", {}, settle_ms=NOW_MS)
    finder.find()
    assert [finder.next_object(), finder.next_object()] == [file_finder.FoundFile(0, "0", "t", 0), None]


def test_discovery_in_generic_mode_divides_the_objects_among_tasks() -> None:
    bucket = Listing(500, lambda index: f"{index:05d}")
    found: list[str] = []
    for task in range(3):
        finder = FileFinder(bucket, [""], lambda key: "t", {}, (task, 3))
        finder.find()
        while (each := finder.next_object()) is not None:
            found.append(each.key)
    assert sorted(found) == [f"{index:05d}" for index in range(500)]


def test_object_of_record_keys_is_ignored_until_the_object_of_the_record_values_exists() -> None:
    folder = "topics/items/partition=0/"
    before = [f"{folder}items+0+0000000000.json", f"{folder}items+0+0000000000.keys.json",
              f"{folder}items+0+0000000005.keys.json"]  # fmt: skip
    keys = list(before)
    positions = Positions()
    finder = backup_finder(lambda *arguments: listing(keys)(*arguments), positions)
    assert [each.start for each in found_by(finder)] == ["0000000000"]
    keys.append(f"{folder}items+0+0000000005.json")
    assert [(each.start, each.keys) for each in found_by(finder)] == [("0000000005", before[2])]


def test_objects_whose_names_do_not_have_the_format_of_the_s3_sink_are_ignored() -> None:
    folder = "topics/items/partition=0/"
    keys = [f"{folder}items+0+{offset:010d}.json" for offset in range(0, 30, 10)]
    foreign = [f"{folder}README", f"{folder}items+x+1.json", f"{folder}items+0+5.avro", f"{folder}other+0+1.json",
               "topics/loose.json", "elsewhere/items+0+1.json"]  # fmt: skip
    assert [each.values for each in found_by(backup_finder(listing([*keys, *foreign]), Positions()))] == keys


@settings(max_examples=examples(60), deadline=None)
@given(
    st.dictionaries(
        st.tuples(st.sampled_from(["a", "a+1", "b"]), st.integers(0, 12), st.sampled_from(["d=1/", "d=1/h=2/", ""])),
        st.lists(st.integers(0, 2_000), max_size=30, unique=True),
        max_size=12,
    ),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(1, 9),
)
def test_tasks_together_find_every_object_once_and_in_offset_order_for_any_bucket_layout(
    layout: dict[tuple[str, int, str], list[int]], tasks: int, width: int, page: int
) -> None:
    """Object names pad offsets with zeros to `width` digits. An offset may have more digits."""
    keys, expected = [], []
    for (topic, partition, folder), offsets in layout.items():
        for offset in offsets:
            name = f"topics/{topic}/{folder}{topic}+{partition}+{offset:0{width}d}"
            keys += [f"{name}.json", f"{name}.keys.json"]
            expected.append((topic, partition, offset, folder))
    found: list[tuple[str, int, int, str]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace_connectors.s3.backup_finder.PENDING_MAX", 3)
        patch.setattr(f"{__name__}.PAGE", page)
        for task in range(tasks):
            for each in found_by(backup_finder(listing(keys), Positions(), share=(task, tasks))):
                assert each.values is not None
                assert each.keys == each.values.replace(".json", ".keys.json")
                folder = each.source_partition.folder[len(f"topics/{each.source_partition.topic}/") :]
                found.append((each.source_partition.topic, each.source_partition.partition, int(each.start), folder))
    assert sorted(found) == sorted(expected)
    for topic, partition in {each[:2] for each in found}:
        offsets = [offset for t, p, offset, _ in found if (t, p) == (topic, partition)]
        assert offsets == sorted(offsets)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(0, 3_000), min_size=1, max_size=40, unique=True), st.data())
def test_object_search_after_a_restart_finds_exactly_the_objects_that_were_not_completely_read(
    offsets: list[int], data: Any
) -> None:
    width, page = data.draw(st.integers(0, 4)), data.draw(st.integers(1, 9))
    position = data.draw(st.sampled_from(offsets))
    is_complete = data.draw(st.booleans())
    keys = [f"topics/t/partition=1/t+1+{offset:0{width}d}.json" for offset in offsets]
    stored = {"start": f"{position:0{width}d}", "record": 2, "complete": is_complete}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace_connectors.s3.backup_finder.PENDING_MAX", 3)
        patch.setattr(f"{__name__}.PAGE", page)
        positions = Positions({SourcePartition("topics/t/partition=1/", "t", 1): stored})
        found = [(int(each.start), each.done) for each in found_by(backup_finder(listing(keys), positions))]
    rest = [(offset, 0) for offset in sorted(offsets) if offset > position]
    assert found == (rest if is_complete else [(position, 2), *rest])
