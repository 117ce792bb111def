"""Opens the committer for a table's format. A format's module and its library are imported when they are needed."""

from __future__ import annotations

from collections.abc import Mapping

from headrace_connectors.lakehouse.committers.base import TableCommitter
from headrace_connectors.lakehouse.table_uri import TableUri


def open_committer(
    format_: str, name: str, uri: TableUri, connector: str, storage_options: Mapping[str, str] | None = None
) -> TableCommitter:
    """Return the committer for a Delta or Parquet table. It accesses no files until its methods are called.

    `storage_options` are delta-rs's options for a table on S3.
    """
    if format_ == "delta":
        from headrace_connectors.lakehouse.committers.delta import DeltaCommitter

        return DeltaCommitter(name, uri, connector, storage_options)
    from headrace_connectors.lakehouse.committers.parquet import ParquetCommitter

    return ParquetCommitter(name, uri, connector)
