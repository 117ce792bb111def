"""Tables of the last release continue from their offsets, with the same columns and identifiers."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
import pyarrow as pa
import pyarrow.parquet as pq

from headrace_connectors.lakehouse.column_types import leaf_types
from headrace_connectors.lakehouse.committers.base import Commit
from headrace_connectors.lakehouse.ddl import parse_ddl
from headrace_connectors.lakehouse.files.layout import FileLayout
from headrace_connectors.lakehouse.offsets import TableOffsets
from support.lakehouse_committers import Combination, delta_local, identity, numbers, offsets, parquet_local

DATA = Path(__file__).parent / "data" / "last_release"
METADATA = "_kafka_topic string, _kafka_partition int, _kafka_offset bigint, _kafka_timestamp timestamp"
ORDERS = parse_ddl(
    f"{METADATA}, id int, small tinyint, short smallint, big bigint, f float, x double, flag boolean, name string,"
    " raw binary, day date, clock int, at timestamp, price decimal(12,2), tags array<string>, counts map<string,int>,"
    " place struct<city: string, `zip code`: int>"
)
SHARED = parse_ddl("n bigint, at timestamp")
SHARED_SCHEMA = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])


@pytest.fixture(params=["delta", "parquet"])
def combination(request: pytest.FixtureRequest, tmp_path: Path) -> Combination:
    shutil.copytree(DATA / request.param, tmp_path, dirs_exist_ok=True)
    return delta_local(tmp_path) if request.param == "delta" else parquet_local(tmp_path)


def shared_rows(*numbers_: int) -> pa.Table:
    return pa.table({"n": numbers_, "at": pa.nulls(len(numbers_), pa.timestamp("us", "UTC"))}, SHARED_SCHEMA)


def order(number: int, offset: int) -> dict[str, Any]:
    return {
        "_kafka_topic": "orders",
        "_kafka_partition": 0,
        "_kafka_offset": offset,
        "id": number,
        "small": number,
        "short": number * 100,
        "big": number * 10**12,
        "f": number + 0.5,
        "x": number + 0.25,
        "flag": number % 2 == 0,
        "name": f"grüße {number}",
        "raw": bytes([number, 255]),
        "day": datetime.date(1970, 1, 1) + datetime.timedelta(days=20000 + number),
        "clock": 3_600_000 * number,
        "at": datetime.datetime.fromtimestamp((1_700_000_000_000 + number) / 1000, datetime.UTC),
        "price": Decimal(number - 12345).scaleb(-2),
        "tags": ["a", None],
        "counts": {"k": number},
        "place": {"city": "Köln", "zip code": 50667},
    }


def test_rows_and_columns_of_all_types_are_unchanged_and_rows_are_appended(combination: Combination) -> None:
    committer = combination.make("orders", "sink")
    found = committer.load([("orders", 0)])
    assert found.next_offsets == {("orders", 0): 5}
    assert found.topic_ids["orders"]
    assert leaf_types(committer.columns() or ()) == leaf_types(ORDERS)
    committer.create(ORDERS, FileLayout())
    before = combination.read("orders").sort_by("_kafka_offset").to_pylist()
    for row in before:
        row.pop("_kafka_timestamp")
        row["counts"] = dict(row["counts"]) if row["counts"] is not None else None
    assert [row for row in before if row["id"] is not None] == [order(0, 0), order(1, 1), order(2, 2), order(9, 4)]
    assert before[3] == dict.fromkeys(before[0]) | {"_kafka_topic": "orders", "_kafka_partition": 0, "_kafka_offset": 3}

    again = combination.read("orders").slice(0, 2)
    if combination.name == "parquet-local":  # DuckDB returns other Arrow types than those of the table
        again = pq.read_table(next(Path(committer.location).glob("*.parquet"))).slice(0, 2)
    file = combination.write(committer, again, "more.parquet")
    committer.commit(Commit(identity(0), TableOffsets({("orders", 0): 7}, found.topic_ids), [file]))
    assert combination.read("orders").num_rows == 7
    assert combination.make("orders", "sink").load([("orders", 0)]).next_offsets == {("orders", 0): 7}


def test_table_shared_by_topics_continues_at_the_offsets_of_all_partitions(combination: Combination) -> None:
    committer = combination.make("shared_by_topics", "sink")
    found = committer.load([])
    assert found.next_offsets == {(topic, partition): 2 for topic in ("a.topic", "b_topic") for partition in (0, 1)}
    assert sorted(found.topic_ids) == ["a.topic", "b_topic"]
    assert committer.other_connectors(found.next_offsets) == {}


def test_table_shared_by_connectors_continues_for_both(combination: Combination) -> None:
    one, other = (combination.make("shared_by_connectors", name) for name in ("one", "other"))
    assert one.load([("t", 0)]) == offsets(t=7)
    assert other.load([("u", 0)]) == offsets(u=3)
    assert one.other_connectors([("u", 0)]) == {"other": offsets(u=3)}
    assert other.other_connectors([("t", 0)]) == {"one": offsets(t=7)}
    for batch in range(2):
        file = combination.write(one, shared_rows(21 + batch), f"one-{batch}.parquet")
        one.commit(Commit(identity(batch, "one"), offsets(t=8 + batch), [file]))
        file = combination.write(other, shared_rows(31 + batch), f"other-{batch}.parquet")
        other.commit(Commit(identity(batch, "other"), offsets(u=4 + batch), [file]))
    assert combination.make("shared_by_connectors", "one").load([("t", 0)]) == offsets(t=9)
    assert combination.make("shared_by_connectors", "other").load([("u", 0)]) == offsets(u=5)
    assert numbers(combination.read("shared_by_connectors")) == [1, 2, 3, 11, 12, 13, 21, 22, 31, 32]


def test_renamed_connector_takes_over_a_table_of_the_last_release(combination: Combination) -> None:
    renamed = combination.make("shared_by_connectors", "renamed")
    assert renamed.load([("t", 0)]) == TableOffsets()
    assert renamed.other_connectors([("t", 0)]) == {"one": offsets(t=7)}
    assert renamed.take_over("one", [("t", 0)]) == offsets(t=7)
    assert combination.make("shared_by_connectors", "one").load([("t", 0)]) == TableOffsets()
    assert combination.make("shared_by_connectors", "other").load([("u", 0)]) == offsets(u=3)


# --- Delta ----------------------------------------------------------------------------------------------------------


def test_delta_commit_has_the_identifiers_of_the_last_release(tmp_path: Path) -> None:
    shutil.copytree(DATA / "delta" / "shared_by_connectors", tmp_path / "t")
    delta = delta_local(tmp_path)
    committer = delta.make("t", "one")
    committer.load([("t", 0)])
    committer.commit(Commit(identity(3, "one"), offsets(t=8), [delta.write(committer, shared_rows(4), "x.parquet")]))
    old, new = (
        [json.loads(line) for line in (tmp_path / "t" / "_delta_log" / f"{n:020d}.json").read_text().splitlines()]
        for n in (2, 5)
    )
    assert [action["txn"] for action in new if "txn" in action] == [
        {"appId": "headrace/one/1700000000000", "version": 3},
        {"appId": "headrace/one/t/0", "version": 8},
    ]
    assert {action["txn"]["appId"] for action in old if "txn" in action} == {
        "headrace/one/1700000000000",
        "headrace/one/t/0",
    }
    infos = [next(a["commitInfo"] for a in actions if "commitInfo" in a) for actions in (old, new)]
    assert [info["headrace.connector"] for info in infos] == ["one", "one"]
    assert [info["headrace.offsets"] for info in infos] == [
        '{"t":{"partitions":{"0":3},"id":"id-of-t"}}',
        '{"t":{"partitions":{"0":8},"id":"id-of-t"}}',
    ]
    assert not any("protocol" in action for action in new)


# --- Parquet --------------------------------------------------------------------------------------------------------


def test_interrupted_commit_of_the_last_release_is_completed(tmp_path: Path) -> None:
    shutil.copytree(DATA / "parquet" / "pending", tmp_path / "t")
    parquet = parquet_local(tmp_path)
    assert numbers(parquet.read("t")) == [1, 2]
    committer = parquet.make("t", "sink")
    assert committer.load([("t", 0)]) == offsets(t=5)
    assert numbers(parquet.read("t")) == [1, 2, 3, 4, 5]
    file = parquet.write(committer, shared_rows(6), "x.parquet")
    committer.commit(Commit(identity(0), offsets(t=6), [file]))
    assert numbers(parquet.read("t")) == [1, 2, 3, 4, 5, 6]
    assert parquet.make("t", "sink").load([("t", 0)]) == offsets(t=6)


def test_staged_files_of_the_last_release_are_deleted_a_day_later(tmp_path: Path) -> None:
    """A process of the last release that is still running may be about to commit them."""
    shutil.copytree(DATA / "parquet" / "pending", tmp_path / "t")
    committer = parquet_local(tmp_path).make("t", "sink")
    staged = tmp_path / "t" / "_headrace" / "staged" / "part-00000002-1700000000000-2.parquet"
    os.utime(staged)
    committer.load([("t", 0)])
    assert staged.exists()
    os.utime(staged, (time.time() - 90_000,) * 2)
    committer.load([("t", 0)])
    assert not staged.exists()


def test_parquet_commit_has_no_key_file_so_that_the_last_release_refuses_the_table(tmp_path: Path) -> None:
    """The last release would delete staged files of a commit that it does not understand."""
    shutil.copytree(DATA / "parquet" / "pending", tmp_path / "t")
    parquet = parquet_local(tmp_path)
    committer = parquet.make("t", "sink")
    committer.load([("t", 0)])
    committer.commit(Commit(identity(0), offsets(t=6)))
    commit = json.loads((tmp_path / "t" / "_headrace" / "commits" / f"{2:020d}.json").read_text())
    assert "file" not in commit
    assert commit["headrace.offsets"] == '{"t":{"partitions":{"0":6},"id":"id-of-t"}}'
