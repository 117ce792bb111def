"""The combinations of Iceberg tables for the conformance suite of committers: catalogs and storages."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as pa_fs
from pyiceberg.table import Table

from headrace_connectors.lakehouse.committers.base import TableCommitter
from headrace_connectors.lakehouse.committers.iceberg import IcebergCommitter
from headrace_connectors.lakehouse.committers.iceberg_catalog import CatalogConnection
from headrace_connectors.lakehouse.committers.iceberg_config import parse_catalog
from headrace_connectors.lakehouse.files.data_file import DataFile
from headrace_connectors.lakehouse.files.field_ids import with_field_ids
from headrace_connectors.lakehouse.s3_access import S3Access, iceberg_properties
from headrace_connectors.lakehouse.table_uri import TableUri
from support.lakehouse_committers import Combination
from support.s3 import BUCKET, S3Server


@dataclass(frozen=True, slots=True)
class IcebergCombination(Combination):
    """A combination whose files have field ids, as the executors write them."""

    def write(self, committer: TableCommitter, rows: pa.Table, path: str, partition: tuple[Any, ...] = ()) -> DataFile:
        assert isinstance(committer, IcebergCommitter)
        location = committer.data_location()
        assert location is not None
        filesystem, target = self.filesystem or pa_fs.LocalFileSystem(), f"{location}/{path}".removeprefix("s3://")
        filesystem.create_dir(target.rpartition("/")[0])
        footers: list[Any] = []
        schema = with_field_ids(iceberg_schema(rows.schema), committer.field_ids())
        with pq.ParquetWriter(
            target, schema, filesystem=filesystem, store_schema=False, metadata_collector=footers
        ) as writer:
            writer.write_table(rows.cast(iceberg_schema(rows.schema)))
        footer = io.BytesIO()
        footers[0].write_metadata_file(footer)
        size = filesystem.get_file_info(target).size
        return DataFile(committer.name, path, size, rows.num_rows, footer.getvalue(), partition)


def iceberg_schema(schema: pa.Schema) -> pa.Schema:
    """Return an Arrow schema with the types of an Iceberg table: integers have at least 32 bits."""
    small = (pa.int8(), pa.int16())
    return pa.schema([field.with_type(pa.int32()) if field.type in small else field for field in schema])


def s3_access(server: S3Server) -> S3Access:
    return S3Access(server.access_key, server.secret, region="us-east-1", endpoint=server.url, ca_file=server.ca_file)


def connect(
    root: TableUri | None, config: Mapping[str, str] | None = None, server: S3Server | None = None
) -> CatalogConnection:
    """Return a connection to the catalog of a connector's configuration."""
    return CatalogConnection(
        parse_catalog(config or {}, root), iceberg_properties(s3_access(server)) if server else None
    )


def load(connection: CatalogConnection, table: str) -> Table:
    """Load a table with pyiceberg."""
    return connection.catalog().load_table(connection.config.identifier(table))


def combination(
    name: str,
    connection: CatalogConnection,
    filesystem: pa_fs.FileSystem | None = None,
    folder: str = "",
) -> Combination:
    """Return a combination whose tables are in `folder`. Arrow reads the files of pyiceberg's plan.

    pyiceberg itself returns empty lists for null lists of structs.
    """

    def read_files(table: str) -> pa.Table:
        source = load(connection, folder + table)
        paths = [
            task.file.file_path.removeprefix("s3://").removeprefix("file://") for task in source.scan().plan_files()
        ]
        files = [pq.read_table(path, filesystem=filesystem, partitioning=None) for path in paths]
        return pa.concat_tables(
            [source.schema().as_arrow().empty_table().select([]), *files], promote_options="default"
        )

    def other_tool(table: str, rows: pa.Table) -> None:
        load(connection, folder + table).append(rows)

    def expire_all(table: str) -> None:
        current = load(connection, folder + table).current_snapshot()
        assert current is not None
        for snapshot in load(connection, folder + table).snapshots():
            if snapshot.snapshot_id != current.snapshot_id:
                load(connection, folder + table).maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()

    return IcebergCombination(
        name,
        lambda table, connector: IcebergCommitter(folder + table, connection, connector),
        read_files,
        filesystem=filesystem,
        append=other_tool,
        clean_up_log=expire_all,
        retypes={"int8": "int32", "int16": "int32"},
    )


def s3_root(prefix: str) -> TableUri:
    return TableUri(prefix, BUCKET)
