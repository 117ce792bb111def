"""Iceberg tables in a REST catalog: Iceberg's own reference implementation, and faults between it and the sink."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

pytest.importorskip("pyiceberg")
import pyarrow as pa

from headrace_connectors.lakehouse.committers.base import Commit, CommitOutcomeUnknownError, TableConflictError
from headrace_connectors.lakehouse.committers.iceberg_catalog import check_catalog, parse_catalog
from headrace_connectors.lakehouse.files.layout import FileLayout, PartitionField
from headrace_connectors.lakehouse.table_uri import TableUri
from support import iceberg_catalog, iceberg_committers, s3
from support.iceberg_catalog import RestCatalogServer
from support.lakehouse_committers import (
    ALL_TYPES,
    ALL_TYPES_ROW,
    ALL_TYPES_SCHEMA,
    Combination,
    append,
    identity,
    offsets,
    open_new,
    rows,
    s3_filesystem,
)
from support.s3_faults import FaultyS3, S3Fault, faulty

pytestmark = pytest.mark.jvm
_REASON = iceberg_catalog.unavailable_reason()
if _REASON is not None:
    pytest.skip(_REASON, allow_module_level=True)

T0 = [("t", 0)]
STORAGES = pytest.mark.parametrize("catalog", ["s3", "local"], indirect=True)


@dataclass(frozen=True, slots=True)
class Lake:
    """A REST catalog, a proxy in front of it, and the committers of tables that use the proxy."""

    catalog: RestCatalogServer
    proxy: FaultyS3
    tables: Combination

    def numbers(self, table: str = "t") -> list[int]:
        """Return the column n, read by Iceberg's Java library."""
        return sorted(row["n"] for row in self.catalog.read(f"default.{table}"))


@pytest.fixture(scope="module")
def catalog(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RestCatalogServer, s3.S3Server | None]]:
    directory = tmp_path_factory.mktemp("catalog")
    if getattr(request, "param", "local") == "local":
        with iceberg_catalog.running(directory) as running:
            yield running, None
    else:
        with s3.running() as server, iceberg_catalog.running(directory, server, "s3://lake/warehouse") as running:
            yield running, server


@pytest.fixture
def lake(catalog: tuple[RestCatalogServer, s3.S3Server | None]) -> Iterator[Lake]:
    server, storage = catalog
    with faulty(s3.S3Server(server.url)) as proxy:
        config = {"iceberg.catalog.type": "rest", "iceberg.catalog.uri": proxy.server.url}
        connection = iceberg_committers.connect(TableUri("/not-used"), config, storage)
        filesystem = s3_filesystem(storage) if storage is not None else None
        yield Lake(server, proxy, iceberg_committers.combination("iceberg-rest", connection, filesystem))
        proxy.clear()
        if connection.catalog().table_exists("default.t"):
            connection.catalog().drop_table("default.t")


def _is_commit(method: str, path: str) -> bool:
    return method == "POST" and "/tables/t" in path


@STORAGES
def test_java_reads_values_of_all_types_and_nulls(lake: Lake) -> None:
    committer = open_new(lake.tables, columns=ALL_TYPES)
    stored = pa.Table.from_pylist([ALL_TYPES_ROW, dict.fromkeys(ALL_TYPES_ROW)], ALL_TYPES_SCHEMA)
    committer.commit(Commit(identity(0), offsets(t=2), [lake.tables.write(committer, stored, "all.parquet")]))
    found = sorted(lake.catalog.read("default.t"), key=lambda row: row["a"] is None)
    assert found == [
        {
            **ALL_TYPES_ROW,
            "i": "AP8=",
            "j": "1969-07-20",
            "k": "2026-11-28T19:30:01.234567Z",
            "l": "-123456789.125",
            "n": {"k": [1, None]},
        },
        dict.fromkeys(ALL_TYPES_ROW),
    ]


@STORAGES
def test_java_reads_partitioned_tables_and_replaced_files(lake: Lake) -> None:
    layout = FileLayout((PartitionField("n", "bucket", 4), PartitionField("text")))
    committer = open_new(lake.tables, layout=layout)
    files = [lake.tables.write(committer, rows(n), f"text={n}/{n}.parquet", (n % 4, str(n))) for n in range(3)]
    committer.commit(Commit(identity(0), offsets(t=3), files))
    replaced = [file for file in committer.list_files() if file.path.endswith("/1.parquet")]
    new = lake.tables.write(committer, rows(1, 1), "text=1/new.parquet", (1, "1"))
    committer.commit(Commit(identity(1), offsets(t=4), [new], replaced))
    assert lake.numbers() == [0, 1, 1, 2]
    restarted = lake.tables.make("t", "sink")
    assert restarted.load(T0) == offsets(t=4)
    assert restarted.layout() == layout


def test_stale_commit_is_refused(lake: Lake) -> None:
    one, other = (open_new(lake.tables) for _ in range(2))
    append(lake.tables, one, 0, [1], offsets(t=1))
    with pytest.raises(TableConflictError):
        other.commit(Commit(identity(0, generation=7), offsets(t=1)))
    assert lake.numbers() == [1]


@pytest.mark.parametrize(
    "fault",
    [
        S3Fault(_is_commit, 1, status=504, applies_request=True),
        S3Fault(_is_commit, 1, status=500, applies_request=True),
        S3Fault(_is_commit, 1, cuts_request=True, applies_request=True),
        # A proxy that repeats requests: the second one is refused, because the first one was applied.
        S3Fault(_is_commit, 1, status=409, applies_request=True),
        S3Fault(_is_commit, 2, status=504),
        S3Fault(_is_commit, 2, cuts_request=True),
        S3Fault(_is_commit, 1, status=409),
        S3Fault(_is_commit, 1, status=503),
    ],
    ids=lambda fault: f"{fault.status or 'disconnected'}-{'applied' if fault.applies_request else 'not-applied'}",
)
def test_commit_is_applied_exactly_once_despite_a_fault(lake: Lake, fault: S3Fault) -> None:
    committer = open_new(lake.tables)
    append(lake.tables, committer, 0, [0], offsets(t=1))
    lake.proxy.add(replace(fault))
    append(lake.tables, committer, 1, [1], offsets(t=2))
    assert lake.proxy.applied >= 1
    append(lake.tables, committer, 2, [2], offsets(t=3))
    assert lake.numbers() == [0, 1, 2]
    assert lake.tables.make("t", "sink").load(T0) == offsets(t=3)


def test_table_is_created_once_if_the_response_is_lost(lake: Lake) -> None:
    creates = S3Fault(lambda method, path: method == "POST" and path.endswith("/tables"), 1, 504, applies_request=True)
    lake.proxy.add(creates)
    committer = open_new(lake.tables)
    assert lake.proxy.applied == 1
    append(lake.tables, committer, 0, [1], offsets(t=1))
    assert lake.numbers() == [1]


def test_result_is_unknown_while_the_catalog_is_down_and_the_next_run_continues(lake: Lake) -> None:
    committer = open_new(lake.tables)
    lake.proxy.add(S3Fault(_is_commit, 1, cuts_request=True, applies_request=True))
    lake.proxy.add(S3Fault(lambda method, path: method == "GET", 100, cuts_request=True))
    file = lake.tables.write(committer, rows(1), "one.parquet")
    with pytest.raises(CommitOutcomeUnknownError):
        committer.commit(Commit(identity(0), offsets(t=1), [file]))
    committer.discard([file])
    lake.proxy.clear()
    restarted = lake.tables.make("t", "sink")
    assert restarted.load(T0) == offsets(t=1)
    append(lake.tables, restarted, 1, [2], offsets(t=2))
    assert lake.numbers() == [1, 2]


@pytest.mark.parametrize(
    ("status", "key", "message"),
    [
        (401, "iceberg.catalog.credential", "does not accept the credentials"),
        (403, "iceberg.catalog.credential", "does not accept the credentials"),
        (404, "iceberg.catalog.uri", "cannot be used"),
    ],
)
def test_check_reports_the_key_at_fault(lake: Lake, status: int, key: str, message: str) -> None:
    lake.proxy.add(S3Fault(lambda method, path: True, 100, status=status))
    config = parse_catalog({"iceberg.catalog.uri": lake.proxy.server.url}, TableUri("/not-used"))
    (error,) = check_catalog(config)
    assert error.key == key
    assert message in error.reason


def test_check_reports_a_catalog_that_does_not_answer(lake: Lake) -> None:
    lake.proxy.add(S3Fault(lambda method, path: True, 1, delay_s=2.0))
    config = parse_catalog({"iceberg.catalog.uri": lake.proxy.server.url}, TableUri("/not-used"))
    (error,) = check_catalog(config, timeout_s=0.2)
    assert error.key == "iceberg.catalog.uri"
    assert error.reason == "the catalog did not answer within 0.2 s"
