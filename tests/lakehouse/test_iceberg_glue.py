"""Iceberg tables in AWS Glue (moto)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("pyiceberg")
from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.committers.base import Commit, TableConflictError, TableUnusableError
from headrace_connectors.lakehouse.committers.iceberg import IcebergCommitter
from headrace_connectors.lakehouse.committers.iceberg_catalog import catalog_errors
from headrace_connectors.lakehouse.files.layout import FileLayout
from headrace_connectors.lakehouse.offsets import TableOffsets
from support import iceberg_committers, s3
from support.lakehouse_committers import COLUMNS, append, identity, numbers, offsets, open_new, s3_filesystem

T0 = [("t", 0)]


@pytest.fixture(scope="module")
def server() -> Iterator[s3.S3Server]:
    with s3.running() as running:
        yield running


def _config(server: s3.S3Server) -> dict[str, str]:
    return {"iceberg.catalog.type": "glue", "iceberg.catalog.glue.endpoint": server.url, "iceberg.namespace": "lake"}


def test_table_is_created_committed_to_and_fenced(server: s3.S3Server) -> None:
    root, config = iceberg_committers.s3_root("warehouse"), _config(server)
    assert catalog_errors(config, root, iceberg_committers.s3_access(server)) == []
    connection = iceberg_committers.connect(root, config, server)
    tables = iceberg_committers.combination("iceberg-glue", connection, s3_filesystem(server))
    one, stale = (open_new(tables) for _ in range(2))
    append(tables, one, 0, [1, 2], offsets(t=2))
    append(tables, one, 1, [3], offsets(t=3))
    with pytest.raises(TableConflictError):
        stale.commit(Commit(identity(0, generation=7), offsets(t=2)))
    assert numbers(tables.read("t")) == [1, 2, 3]
    assert tables.make("t", "sink").load(T0) == offsets(t=3)
    assert stale.load(T0) == offsets(t=3)


def test_table_that_is_no_iceberg_table_and_nested_namespaces_are_refused(server: s3.S3Server) -> None:
    connection = iceberg_committers.connect(iceberg_committers.s3_root("warehouse"), _config(server), server)
    glue = connection.catalog().glue  # type: ignore[attr-defined]
    glue.create_database(DatabaseInput={"Name": "other"})
    glue.create_table(DatabaseName="other", TableInput={"Name": "t", "Parameters": {"table_type": "HIVE"}})
    with pytest.raises(TableUnusableError, match=r"other\.t is not an Iceberg table"):
        IcebergCommitter("other/t", connection, "sink").load(T0)
    nested = IcebergCommitter("a/b/t", connection, "sink")
    assert nested.load(T0) == TableOffsets()
    with pytest.raises(ConnectError, match=r"table a\.b\.t cannot be created: .*hierarchical namespaces"):
        nested.create(COLUMNS, FileLayout())


def test_check_reports_wrong_credentials_and_endpoints(server: s3.S3Server) -> None:
    config = {**_config(server), "iceberg.catalog.glue.endpoint": "http://127.0.0.1:9"}
    config["iceberg.catalog.glue.max-retries"] = "1"
    (error,) = catalog_errors(config, iceberg_committers.s3_root("warehouse"), iceberg_committers.s3_access(server))
    assert error.key == "iceberg.catalog.type"
    assert 'Could not connect to the endpoint URL: "http://127.0.0.1:9/"' in str(error)
