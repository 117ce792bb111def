"""The conformance suite of committers: every table format on every storage has the same behaviour."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from resource import RLIMIT_FSIZE, getrlimit, setrlimit

import pytest

pytest.importorskip("deltalake")
import pyarrow as pa

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.column_types import leaf_types
from headrace_connectors.lakehouse.committers.base import (
    Commit,
    TableConflictError,
    TableSchemaError,
)
from headrace_connectors.lakehouse.ddl import parse_ddl
from headrace_connectors.lakehouse.files.layout import FileLayout, PartitionField
from headrace_connectors.lakehouse.offsets import TableOffsets
from headrace_connectors.lakehouse.table_uri import TableUri
from support import iceberg_catalog, iceberg_committers, s3
from support import lakehouse_committers as suite
from support.lakehouse_committers import (
    ALL_TYPES,
    ALL_TYPES_ROW,
    ALL_TYPES_SCHEMA,
    COLUMNS,
    Combination,
    append,
    identity,
    numbers,
    offsets,
    open_new,
    rows,
)

pytestmark = pytest.mark.integration

T0 = [("t", 0)]


@pytest.fixture(scope="module")
def server() -> Iterator[s3.S3Server]:
    with s3.running() as running:
        yield running


@pytest.fixture(scope="module")
def rest_catalog(server: s3.S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    reason = iceberg_catalog.unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    with iceberg_catalog.running(tmp_path_factory.mktemp("catalog"), server, f"s3://{s3.BUCKET}/rest") as running:
        yield running


def _delta_local(tmp_path: Path, request: pytest.FixtureRequest) -> Combination:
    return suite.delta_local(tmp_path)


def _delta_s3(tmp_path: Path, request: pytest.FixtureRequest) -> Combination:
    return suite.delta_s3(request.getfixturevalue("server"), tmp_path.name)


def _parquet_local(tmp_path: Path, request: pytest.FixtureRequest) -> Combination:
    return suite.parquet_local(tmp_path)


def _iceberg_local(tmp_path: Path, request: pytest.FixtureRequest) -> Combination:
    return iceberg_committers.combination("iceberg-local", iceberg_committers.connect(TableUri(str(tmp_path))))


def _iceberg_s3(tmp_path: Path, request: pytest.FixtureRequest) -> Combination:
    server: s3.S3Server = request.getfixturevalue("server")
    config = {"iceberg.catalog.type": "sql", "iceberg.catalog.uri": f"sqlite:///{tmp_path / 'catalog.db'}"}
    connection = iceberg_committers.connect(iceberg_committers.s3_root(tmp_path.name), config, server)
    return iceberg_committers.combination("iceberg-s3", connection, suite.s3_filesystem(server))


def _iceberg_rest(tmp_path: Path, request: pytest.FixtureRequest) -> Combination:
    server: s3.S3Server = request.getfixturevalue("server")
    catalog: iceberg_catalog.RestCatalogServer = request.getfixturevalue("rest_catalog")
    config = {"iceberg.catalog.type": "rest", "iceberg.catalog.uri": catalog.url}
    connection = iceberg_committers.connect(None, config, server)
    filesystem = suite.s3_filesystem(server)
    return iceberg_committers.combination("iceberg-rest", connection, filesystem, f"{tmp_path.name}/")


COMBINATIONS: dict[str, Callable[[Path, pytest.FixtureRequest], Combination]] = {
    "delta-local": _delta_local,
    "delta-s3": _delta_s3,
    "parquet-local": _parquet_local,
    "iceberg-local": _iceberg_local,
    "iceberg-s3": _iceberg_s3,
    "iceberg-rest": _iceberg_rest,
}


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.jvm if name == "iceberg-rest" else ()) for name in COMBINATIONS]
)
def combination(request: pytest.FixtureRequest, tmp_path: Path) -> Combination:
    return COMBINATIONS[request.param](tmp_path, request)


# --- commits and reading --------------------------------------------------------------------------------------------


def test_table_that_does_not_exist_has_no_columns_and_no_offsets(combination: Combination) -> None:
    committer = combination.make("folder/t", "sink")
    assert committer.load(T0) == TableOffsets()
    assert not committer.exists()
    assert committer.columns() is None
    assert committer.layout() is None
    assert committer.list_files() == []
    assert committer.other_connectors(T0) == {}


def test_commits_with_one_file_several_files_and_only_offsets_are_loaded_after_a_restart(
    combination: Combination,
) -> None:
    committer = open_new(combination, "folder/t")
    append(combination, committer, 0, [1, 2], offsets(t=2))
    assert committer.exists()
    files = [combination.write(committer, rows(n), f"several-{n}.parquet") for n in (3, 4, 5)]
    committer.commit(Commit(identity(1), offsets(t=5), files))
    append(combination, committer, 2, [], offsets(t=9, u=1))
    assert numbers(combination.read("folder/t")) == [1, 2, 3, 4, 5]

    restarted = combination.make("folder/t", "sink")
    assert restarted.load(T0) == offsets(t=9, u=1)
    assert restarted.exists()
    assert leaf_types(restarted.columns() or ()) == leaf_types(COLUMNS)
    assert restarted.layout() == FileLayout()
    append(combination, restarted, 3, [6], offsets(t=10, u=1))
    assert numbers(combination.read("folder/t")) == [1, 2, 3, 4, 5, 6]


def test_declared_columns_are_kept_if_the_table_is_loaded_again_before_its_first_commit(
    combination: Combination,
) -> None:
    committer = open_new(combination)
    committer.load(T0)
    append(combination, committer, 0, [1], offsets(t=1))
    assert numbers(combination.read("t")) == [1]


def test_table_can_be_created_with_only_offsets(combination: Combination) -> None:
    committer = open_new(combination)
    append(combination, committer, 0, [], offsets(t=5))
    restarted = combination.make("t", "sink")
    assert restarted.load(T0) == offsets(t=5)
    assert leaf_types(restarted.columns() or ()) == leaf_types(COLUMNS)
    append(combination, restarted, 1, [1], offsets(t=6))
    assert numbers(combination.read("t")) == [1]


def test_list_files_returns_the_files_that_the_table_contains(combination: Combination) -> None:
    committer = open_new(combination)
    append(combination, committer, 0, [1, 2], offsets(t=2))
    append(combination, committer, 1, [3], offsets(t=3))
    for current in (committer, combination.make("t", "sink")):
        current.load(T0)
        assert sorted(file.rows or 0 for file in current.list_files()) == [1, 2]
        assert all(file.size > 100 for file in current.list_files())


def test_commit_removes_and_adds_files_at_once(combination: Combination) -> None:
    committer = open_new(combination)
    append(combination, committer, 0, [1, 2], offsets(t=2))
    append(combination, committer, 1, [3], offsets(t=3))
    replaced = [file for file in committer.list_files() if file.rows == 2]
    append(combination, committer, 2, [1, 20, 21], offsets(t=4), remove=replaced)
    assert numbers(combination.read("t")) == [1, 3, 20, 21]
    restarted = combination.make("t", "sink")
    assert restarted.load(T0) == offsets(t=4)
    assert sorted(file.rows or 0 for file in restarted.list_files()) == [1, 3]


def test_table_stores_values_of_all_types_and_nulls(combination: Combination) -> None:
    committer = open_new(combination, columns=ALL_TYPES)
    null_row = dict.fromkeys(ALL_TYPES_ROW)
    stored = pa.Table.from_pylist([ALL_TYPES_ROW, null_row], ALL_TYPES_SCHEMA)
    committer.commit(Commit(identity(0), offsets(t=2), [combination.write(committer, stored, "all.parquet")]))
    found = combination.read("t").select(stored.column_names).to_pylist()
    for row in found:
        if isinstance(row["n"], dict):  # DuckDB returns maps as dicts
            row["n"] = list(row["n"].items())
    assert sorted(found, key=lambda row: row["a"] is None) == [ALL_TYPES_ROW, null_row]
    restarted = combination.make("t", "sink")
    restarted.load(T0)
    assert leaf_types(restarted.columns() or ()) == leaf_types(combination.stored(ALL_TYPES))
    restarted.create(ALL_TYPES, FileLayout())


@pytest.mark.parametrize("region", ["eu", "a b/c=d%e:ü", None])
def test_partitioned_table_keeps_its_partition_fields_and_values(combination: Combination, region: str | None) -> None:
    columns = (*COLUMNS, *parse_ddl("region string"))
    layout = FileLayout((PartitionField("region"),))
    committer = open_new(combination, columns=columns, layout=layout)
    stored = rows(1, 2).append_column("region", pa.array([region, region], pa.string()))
    file = combination.write(committer, stored, combination.partition_path("region", region) + "/1.parquet", (region,))
    committer.commit(Commit(identity(0), offsets(t=2), [file]))
    assert combination.read("t").sort_by("n").select(["n", "region"]).to_pylist() == [
        {"n": 1, "region": region},
        {"n": 2, "region": region},
    ]
    restarted = combination.make("t", "sink")
    restarted.load(T0)
    assert restarted.layout() == layout
    assert leaf_types(restarted.columns() or ()) == leaf_types(columns)
    assert [each.rows for each in restarted.list_files()] == [2]
    other = combination.write(restarted, stored.slice(0, 1), "region=x/2.parquet", ("x",))
    restarted.commit(Commit(identity(1), offsets(t=3), [other], restarted.list_files()))
    assert combination.read("t").num_rows == 1
    with pytest.raises(TableSchemaError, match="t is partitioned by region, but the configuration says no column"):
        restarted.create(columns, FileLayout())


# --- structure ------------------------------------------------------------------------------------------------------


def test_create_accepts_equal_columns_in_any_order_and_rejects_others(combination: Combination) -> None:
    committer = open_new(combination)
    append(combination, committer, 0, [1], offsets(t=1))
    restarted = combination.make("t", "sink")
    restarted.load(T0)
    restarted.create(COLUMNS[::-1], FileLayout())
    with pytest.raises(TableSchemaError, match=r"records' columns do not match table .*column n: bigint -> string"):
        restarted.create(parse_ddl("n string, text string"), FileLayout())
    with pytest.raises(TableSchemaError, match=r"column `a b` added \(int\)"):
        restarted.create((*COLUMNS, *parse_ddl("`a b` int")), FileLayout())


# --- fencing --------------------------------------------------------------------------------------------------------


def test_commit_of_a_second_process_with_the_same_offsets_is_refused(combination: Combination) -> None:
    one, other = (open_new(combination) for _ in range(2))
    append(combination, one, 0, [1], offsets(t=1))
    stale = combination.write(other, rows(1), "stale-0.parquet")
    with pytest.raises(TableConflictError, match="another process has loaded the same offsets"):
        other.commit(Commit(identity(0, generation=7), offsets(t=1), [stale]))
    assert other.load(T0) == offsets(t=1)
    append(combination, one, 1, [2], offsets(t=2))
    stale = combination.write(other, rows(2), "stale-1.parquet")
    with pytest.raises(TableConflictError, match="check whether the connector is running twice"):
        other.commit(Commit(identity(1, generation=7), offsets(t=2), [stale]))
    assert numbers(combination.read("t")) == [1, 2]


def test_committer_is_refused_after_another_process_has_committed_after_its_own_commit(
    combination: Combination,
) -> None:
    one, other = (open_new(combination) for _ in range(2))
    append(combination, one, 0, [1], offsets(t=1))
    other.load(T0)
    other.commit(Commit(identity(0, generation=7), offsets(t=2), [combination.write(other, rows(2), "b.parquet")]))
    with pytest.raises(TableConflictError):
        append(combination, one, 1, [2], offsets(t=2))
    assert numbers(combination.read("t")) == [1, 2]


def test_connectors_with_different_names_append_different_topics_to_one_table(combination: Combination) -> None:
    one, other = open_new(combination, connector="one"), open_new(combination, connector="other")
    for batch in range(3):
        append(combination, one, batch, [batch], offsets(t=batch + 1), "one")
        append(combination, other, batch, [10 + batch], offsets(u=batch + 5), "other")
    assert numbers(combination.read("t")) == [0, 1, 2, 10, 11, 12]
    assert combination.make("t", "one").load(T0) == offsets(t=3)
    assert combination.make("t", "other").load([("u", 0)]) == offsets(u=7)
    one.load(T0)
    assert one.other_connectors([("u", 0), ("t", 0)]) == {"other": offsets(u=7)}
    assert one.other_connectors([("v", 0)]) == {}


def test_commit_is_retried_after_another_tool_has_appended(combination: Combination) -> None:
    if combination.append is None:
        pytest.skip("no other tool can write tables of this format")
    committer = open_new(combination)
    append(combination, committer, 0, [1], offsets(t=1))
    combination.append("t", rows(100))
    append(combination, committer, 1, [2], offsets(t=2))
    assert numbers(combination.read("t")) == [1, 2, 100]
    assert combination.make("t", "sink").load(T0) == offsets(t=2)


def test_offsets_survive_the_cleanup_of_the_history(combination: Combination) -> None:
    if combination.clean_up_log is None:
        pytest.skip("this format has no cleanup")
    one, other = open_new(combination, connector="one"), open_new(combination, connector="other")
    append(combination, one, 0, [1], offsets(t=4), "one")
    append(combination, other, 0, [2], offsets(u=7), "other")
    combination.clean_up_log("t")
    restarted = combination.make("t", "one")
    assert restarted.load([("t", 0), ("t", 1)]).next_offsets == {("t", 0): 4}
    assert restarted.other_connectors([("u", 0)])["other"].next_offsets == {("u", 0): 7}


def test_offsets_go_back_and_are_deleted_by_commits_without_files(combination: Combination) -> None:
    committer = open_new(combination)
    append(combination, committer, 0, [1], offsets(t=5, u=3))
    append(combination, committer, 1, [], offsets(t=2, u=3))
    assert combination.make("t", "sink").load(T0) == offsets(t=2, u=3)
    append(combination, committer, 2, [], offsets(u=3))
    assert combination.make("t", "sink").load([("t", 0), ("u", 0)]) == offsets(u=3)
    append(combination, committer, 3, [2], offsets(t=1, u=3))
    assert combination.make("t", "sink").load(T0) == offsets(t=1, u=3)


# --- take over ------------------------------------------------------------------------------------------------------


def test_take_over_moves_the_offsets_and_fences_the_other_connector(combination: Combination) -> None:
    old = open_new(combination, connector="old")
    append(combination, old, 0, [1], offsets(t=4, u=9), "old")
    new = combination.make("t", "new")
    assert new.load(T0) == TableOffsets()
    assert new.take_over("unknown", T0) == TableOffsets()
    assert new.take_over("old", T0) == offsets(t=4)
    assert new.other_connectors(T0) == {}
    assert new.take_over("old", T0) == offsets(t=4)
    append(combination, new, 0, [2], offsets(t=5), "new")
    with pytest.raises(TableConflictError):
        append(combination, old, 1, [2], offsets(t=5, u=9), "old")
    assert numbers(combination.read("t")) == [1, 2]

    assert combination.make("t", "new").load(T0) == offsets(t=5)
    restarted = combination.make("t", "old")
    assert restarted.load([("t", 0), ("u", 0)]) == offsets(u=9)
    assert restarted.other_connectors(T0) == {"new": offsets(t=5)}
    assert restarted.take_over("new", T0) == offsets(t=5, u=9)
    append(combination, restarted, 2, [3], offsets(t=6, u=9), "old")
    with pytest.raises(TableConflictError):
        append(combination, new, 1, [3], offsets(t=6), "new")
    assert numbers(combination.read("t")) == [1, 2, 3]


# --- failures and discarded files ------------------------------------------------------------------------------------


@contextmanager
def no_file_may_grow() -> Iterator[None]:
    """Make all writes to files fail, as on a disk with an error."""
    limits = getrlimit(RLIMIT_FSIZE)
    setrlimit(RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        setrlimit(RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("is_first", [True, False], ids=["first commit", "later commit"])
def test_commit_that_cannot_be_written_changes_nothing_and_succeeds_later(
    is_first: bool, combination: Combination
) -> None:
    if combination.filesystem is not None:
        pytest.skip("the table is not on a local disk")
    committer = open_new(combination)
    if not is_first:
        append(combination, committer, 0, [1], offsets(t=1))
    file = combination.write(committer, rows(2), "b.parquet")
    commit = Commit(identity(1), offsets(t=2), [file])
    with no_file_may_grow(), pytest.raises(ConnectError, match=r"table .*t"):
        committer.commit(commit)
    assert committer.load(T0) == (TableOffsets() if is_first else offsets(t=1))
    committer.commit(commit)
    assert numbers(combination.read("t")) == ([2] if is_first else [1, 2])


def test_discarded_files_are_deleted(combination: Combination) -> None:
    committer = open_new(combination)
    append(combination, committer, 0, [1], offsets(t=1))
    file = combination.write(committer, rows(2), "never.parquet")
    assert combination.exists(committer, "never.parquet")
    committer.discard([file, file])
    assert not combination.exists(committer, "never.parquet")
    append(combination, committer, 1, [3], offsets(t=2))
    assert numbers(combination.read("t")) == [1, 3]


def test_commit_without_columns_is_refused(combination: Combination) -> None:
    committer = combination.make("t", "sink")
    committer.load(T0)
    with pytest.raises(ConnectError, match="columns are not known"):
        committer.commit(Commit(identity(0), offsets(t=1)))
