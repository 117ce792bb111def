"""Opens the committer for a table's format. A format's module and its library are imported when they are needed."""

from __future__ import annotations

from headrace_connectors.lakehouse.committers.base import TableCommitter
from headrace_connectors.lakehouse.s3_access import S3Access
from headrace_connectors.lakehouse.table_uri import TableUri


def open_committer(
    format_: str, name: str, uri: TableUri, connector: str, access: S3Access | None = None
) -> TableCommitter:
    """Return the committer for a Delta or Parquet table. It accesses no files until its methods are called.

    `access` is necessary for a table on S3.
    """
    if format_ == "delta":
        from headrace_connectors.lakehouse.committers.delta import DeltaCommitter

        return DeltaCommitter(name, uri, connector, access)
    from headrace_connectors.lakehouse.committers.parquet import ParquetCommitter

    return ParquetCommitter(name, uri, connector)
