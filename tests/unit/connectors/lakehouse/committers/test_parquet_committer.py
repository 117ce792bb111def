"""Tests of the Parquet committer: crashes during a commit, folders of living and dead processes, and readers."""

from __future__ import annotations

import datetime
import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("deltalake")
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.committers import parquet as parquet_module
from headrace_connectors.lakehouse.committers.base import Commit, CommitOutcomeUnknownError, TableUnusableError
from headrace_connectors.lakehouse.committers.parquet_log import CommitLog
from headrace_connectors.lakehouse.ddl import parse_ddl
from headrace_connectors.lakehouse.files.layout import FileLayout, PartitionField
from headrace_connectors.lakehouse.offsets import TableOffsets
from support.lakehouse_committers import (
    COLUMNS,
    SCHEMA,
    Combination,
    append,
    identity,
    numbers,
    offsets,
    open_new,
    parquet_local,
    rows,
)

T0 = [("t", 0)]


@pytest.fixture
def parquet(tmp_path: Path) -> Combination:
    return parquet_local(tmp_path)


def staged_files(table: Path) -> list[str]:
    return sorted(path.name for path in (table / "_headrace" / "staged").rglob("*.parquet"))


def crash(*_: object) -> None:
    raise KeyboardInterrupt


def crash_at(call: int) -> Callable[[Path, Path], None]:
    """Return a replacement for `os.rename` that crashes at this call."""
    rename, calls = os.rename, iter(range(1, 100))

    def replacement(source: Path, target: Path) -> None:
        if next(calls) == call:
            raise KeyboardInterrupt
        rename(source, target)

    return replacement


# --- crashes --------------------------------------------------------------------------------------------------------


def test_files_of_a_crash_before_the_commit_are_deleted_and_loaded_again(
    parquet: Combination, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer = open_new(parquet)
    append(parquet, committer, 0, [1], offsets(t=1))
    with monkeypatch.context() as patched:
        patched.setattr(CommitLog, "write", crash)
        with pytest.raises(KeyboardInterrupt):
            append(parquet, committer, 1, [2], offsets(t=2))
    committer.close()
    assert staged_files(tmp_path / "t") == ["part-sink-1-1.parquet"]
    restarted = parquet.make("t", "sink")
    assert restarted.load(T0) == offsets(t=1)
    assert staged_files(tmp_path / "t") == []
    append(parquet, restarted, 2, [2], offsets(t=2))
    assert numbers(parquet.read("t")) == [1, 2]


@pytest.mark.parametrize("renamed", [0, 1, 2])
def test_commit_is_completed_after_a_crash_between_its_renames(
    renamed: int, parquet: Combination, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer = open_new(parquet)
    append(parquet, committer, 0, [1, 2], offsets(t=2))
    replaced = committer.list_files()
    files = [parquet.write(committer, rows(n), f"region=x/{n}.parquet") for n in (3, 4, 5)]
    monkeypatch.setattr(parquet_module.os, "rename", crash_at(renamed + 1))
    with pytest.raises(KeyboardInterrupt):
        committer.commit(Commit(identity(1), offsets(t=5), files, replaced))
    monkeypatch.undo()
    assert numbers(parquet.read("t")) == [3, 4, 5][:renamed]
    committer.close()

    other = parquet.make("t", "other")
    assert other.load([("u", 0)]) == TableOffsets()
    assert numbers(parquet.read("t")) == [3, 4, 5]
    assert staged_files(tmp_path / "t") == []
    assert parquet.make("t", "sink").load(T0) == offsets(t=5)


def test_crash_before_the_removal_of_files_is_repaired(parquet: Combination, monkeypatch: pytest.MonkeyPatch) -> None:
    committer = open_new(parquet)
    append(parquet, committer, 0, [1, 2], offsets(t=2))
    with monkeypatch.context() as patched:
        patched.setattr(committer, "_publish", crash)
        with pytest.raises(KeyboardInterrupt):
            committer.commit(Commit(identity(1), offsets(t=3), (), committer.list_files()))
    assert numbers(parquet.read("t")) == [1, 2]
    parquet.make("t", "sink").load(T0)
    assert list((Path(committer.location)).glob("*.parquet")) == []


def test_commit_whose_renames_fail_is_completed_later(parquet: Combination, monkeypatch: pytest.MonkeyPatch) -> None:
    committer = open_new(parquet)
    append(parquet, committer, 0, [1], offsets(t=1))
    file = parquet.write(committer, rows(2), "b.parquet")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(parquet_module.os, "rename", full)
        with pytest.raises(CommitOutcomeUnknownError, match="no space left"):
            committer.commit(Commit(identity(1), offsets(t=2), [file]))
    committer.discard([file])
    restarted = parquet.make("t", "sink")
    assert restarted.load(T0) == offsets(t=2)
    assert numbers(parquet.read("t")) == [1, 2]


def test_commit_is_refused_if_a_file_is_missing(parquet: Combination, tmp_path: Path) -> None:
    committer = open_new(parquet)
    append(parquet, committer, 0, [1], offsets(t=1))
    file = parquet.write(committer, rows(2), "b.parquet")
    committer.discard([file])
    with pytest.raises(ConnectError, match=r"table .*/t cannot be written: No such file or directory"):
        committer.commit(Commit(identity(1), offsets(t=2), [file]))
    assert committer.load(T0) == offsets(t=1)
    assert len(list((tmp_path / "t" / "_headrace" / "commits").iterdir())) == 1


def test_table_that_was_removed_between_two_commits_is_not_created_again(parquet: Combination, tmp_path: Path) -> None:
    committer = open_new(parquet)
    append(parquet, committer, 0, [1], offsets(t=1))
    shutil.rmtree(tmp_path / "t")
    with pytest.raises(ConnectError, match=r"table .*/t was removed by another process"):
        append(parquet, committer, 1, [2], offsets(t=2))
    assert parquet.make("t", "sink").load(T0) == TableOffsets()


# --- other processes ------------------------------------------------------------------------------------------------


def test_new_files_of_a_living_process_are_kept_and_those_of_a_dead_one_are_deleted(
    parquet: Combination, tmp_path: Path
) -> None:
    living, dead = open_new(parquet, connector="living"), open_new(parquet, connector="dead")
    file = parquet.write(living, rows(1), "living.parquet")
    parquet.write(dead, rows(2), "dead.parquet")
    dead.close()
    for connector in ("living", "dead", "third"):
        parquet.make("t", connector).load(T0)
    assert staged_files(tmp_path / "t") == ["living.parquet"]
    living.commit(Commit(identity(0, "living"), offsets(t=1), [file]))
    assert numbers(parquet.read("t")) == [1]


def test_connectors_that_commit_at_the_same_time_lose_no_rows(parquet: Combination) -> None:
    def load(number: int) -> None:
        connector = f"c{number}"
        committer = open_new(parquet, connector=connector)
        for batch in range(10):
            append(parquet, committer, batch, [100 * number + batch], offsets(**{connector: batch + 1}), connector)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(load, range(3)))
    assert numbers(parquet.read("t")) == [100 * n + batch for n in range(3) for batch in range(10)]
    for n in range(3):
        assert parquet.make("t", f"c{n}").load() == offsets(**{f"c{n}": 10})


# --- directories and readers ----------------------------------------------------------------------------------------


def test_directory_with_files_of_another_format_or_tool_is_rejected(parquet: Combination, tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    pq.write_table(rows(1), tmp_path / "foreign" / "a.parquet")
    with pytest.raises(
        TableUnusableError, match=r"foreign contains files .* not write \(a.parquet\); set another table name"
    ):
        parquet.make("foreign", "sink").load(T0)
    (tmp_path / "delta" / "_delta_log").mkdir(parents=True)
    with pytest.raises(TableUnusableError, match=r"is a Delta table, but lakehouse.format=parquet; set another"):
        parquet.make("delta", "sink").load(T0)


def test_pyarrow_reads_only_committed_rows_while_new_files_are_written(parquet: Combination, tmp_path: Path) -> None:
    committer = open_new(parquet)
    append(parquet, committer, 0, [1], offsets(t=1))
    parquet.write(committer, rows(2), "region=x/b.parquet")
    assert numbers(pq.read_table(tmp_path / "t")) == [1]


def test_derived_partition_fields_are_columns_for_readers_of_hive_directories(
    parquet: Combination, tmp_path: Path
) -> None:
    layout = FileLayout((PartitionField("at", "day"),))
    committer = open_new(parquet, columns=(*COLUMNS, *parse_ddl("at timestamp")), layout=layout)
    day = datetime.date(2026, 11, 28)
    stored = rows(1).append_column("at", pa.array([datetime.datetime(2026, 11, 28, 9, tzinfo=datetime.UTC)]))
    file = parquet.write(committer, stored, "at_day=2026-11-28/1.parquet", (day,))
    committer.commit(Commit(identity(0), offsets(t=1), [file]))
    hive = ds.partitioning(pa.schema([("at_day", pa.date32())]), flavor="hive")
    assert ds.dataset(tmp_path / "t", partitioning=hive).to_table()["at_day"].to_pylist() == [day]
    restarted = parquet.make("t", "sink")
    restarted.load(T0)
    assert restarted.layout() == layout
    assert [file.path for file in restarted.list_files()] == ["at_day=2026-11-28/1.parquet"]


def test_commit_log_describes_each_commit(parquet: Combination, tmp_path: Path) -> None:
    committer = open_new(parquet)
    files = [parquet.write(committer, rows(*range(n)), f"{n}.parquet") for n in (1, 2)]
    committer.commit(Commit(identity(7), offsets(t=3), files))
    document = json.loads((tmp_path / "t" / "_headrace" / "commits" / f"{0:020d}.json").read_text())
    assert document.pop("staged")
    assert document == {
        "commit": 0,
        "connector": "sink",
        "generation": 1_700_000_000_000,
        "batch": 7,
        "rows": 3,
        "files": [{"path": file.path, "size": file.size, "rows": file.rows} for file in files],
        "removed": [],
        "columns": "n bigint, text string",
        "partition_fields": [],
        "headrace.offsets": '{"t":{"partitions":{"0":3},"id":"id-of-t"}}',
        "other_connectors": {},
    }


@pytest.mark.parametrize("advance", [1, 2], ids=["one topic", "both topics"])
def test_topics_of_the_last_release_belong_to_the_connector_that_advanced_them_last(
    advance: int, parquet: Combination, tmp_path: Path
) -> None:
    """The last release ignored connector names, so a renamed connector continued the table."""
    directory = tmp_path / "t"
    commits = directory / "_headrace" / "commits"
    commits.mkdir(parents=True)
    pq.write_table(pa.table({"n": [1], "text": ["1"]}, SCHEMA), directory / "part-0.parquet")
    positions = [{("t", 0): 1, ("t", 1): 4, ("u", 0): 2}]
    positions.append({**positions[0], ("t", 0): 9, **({("u", 0): 3} if advance == 2 else {})})
    for number, (connector, found) in enumerate(zip(("before", "renamed"), positions, strict=True)):
        commit = {
            "commit": number,
            "file": None,
            "rows": 0,
            "schema_file": "part-0.parquet",
            "connector": connector,
            "generation": 1,
            "batch": number,
            "headrace.offsets": TableOffsets(found, {"t": "a", "u": "b"}).to_text(),
        }
        (commits / f"{number:020d}.json").write_text(json.dumps(commit))
    renamed = parquet.make("t", "renamed")
    loaded = renamed.load(T0)
    assert {key: loaded.next_offsets.get(key) for key in (("t", 0), ("t", 1))} == {("t", 0): 9, ("t", 1): 4}
    others = renamed.other_connectors([("u", 0)])
    assert others == ({"before": TableOffsets({("u", 0): 2}, {"u": "b"})} if advance == 1 else {})
