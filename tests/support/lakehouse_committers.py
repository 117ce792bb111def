"""Combinations of table format and storage for the conformance suite of committers, and the tables of the suite."""

from __future__ import annotations

import datetime
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from headrace_connectors.lakehouse.column_types import TableColumn
from headrace_connectors.lakehouse.committers.base import BatchIdentity, Commit, TableCommitter, TableFile
from headrace_connectors.lakehouse.committers.formats import open_committer
from headrace_connectors.lakehouse.ddl import parse_ddl
from headrace_connectors.lakehouse.files.data_file import DataFile
from headrace_connectors.lakehouse.files.layout import FileLayout
from headrace_connectors.lakehouse.offsets import TableOffsets
from headrace_connectors.lakehouse.s3_access import S3Access, arrow_arguments, delta_storage_options
from headrace_connectors.lakehouse.table_uri import TableUri
from support.s3 import BUCKET, S3Server

COLUMNS = parse_ddl("n bigint, text string")
SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
ALL_TYPES = parse_ddl(
    "a tinyint, b smallint, c int, d bigint, e float, f double, g boolean, h string, i binary, j date, k timestamp,"
    " l decimal(12,3), m array<struct<`x y`: int, z: string>>, n map<string, array<int>>, o struct<p: struct<q: int>>,"
    " `name with space` string"
)
ALL_TYPES_SCHEMA = pa.schema(
    [
        ("a", pa.int8()),
        ("b", pa.int16()),
        ("c", pa.int32()),
        ("d", pa.int64()),
        ("e", pa.float32()),
        ("f", pa.float64()),
        ("g", pa.bool_()),
        ("h", pa.string()),
        ("i", pa.binary()),
        ("j", pa.date32()),
        ("k", pa.timestamp("us", tz="UTC")),
        ("l", pa.decimal128(12, 3)),
        ("m", pa.list_(pa.struct([("x y", pa.int32()), ("z", pa.string())]))),
        ("n", pa.map_(pa.string(), pa.list_(pa.int32()))),
        ("o", pa.struct([("p", pa.struct([("q", pa.int32())]))])),
        ("name with space", pa.string()),
    ]
)
ALL_TYPES_ROW: dict[str, Any] = {
    "a": -128,
    "b": -32768,
    "c": 2**31 - 1,
    "d": -(2**63),
    "e": 1.5,
    "f": -2.25,
    "g": True,
    "h": "grüße 🎉",
    "i": b"\x00\xff",
    "j": datetime.date(1969, 7, 20),
    "k": datetime.datetime(2026, 11, 28, 19, 30, 1, 234567, tzinfo=datetime.UTC),
    "l": Decimal("-123456789.125"),
    "m": [{"x y": 1, "z": None}, None],
    "n": [("k", [1, None])],
    "o": {"p": {"q": 7}},
    "name with space": "",
}


@dataclass(frozen=True, slots=True)
class Combination:
    """A table format on a storage.

    `make(table, connector)` returns a new committer. `read(table)` returns all rows, read by an engine that did not
    write them. `filesystem` is the file system of data locations, or None for local ones. `append(table, rows)` is a
    commit of another tool. `clean_up_log(table)` removes the history of the table as far as its format permits.
    `retypes` maps a column kind to the kind as which the format stores it.
    """

    name: str
    make: Callable[[str, str], TableCommitter]
    read: Callable[[str], pa.Table]
    filesystem: pa_fs.FileSystem | None = None
    append: Callable[[str, pa.Table], None] | None = None
    clean_up_log: Callable[[str], None] | None = None
    retypes: dict[str, str] = field(default_factory=dict)

    def write(self, committer: TableCommitter, rows: pa.Table, path: str, partition: tuple[Any, ...] = ()) -> DataFile:
        """Write a data file as an executor does, and return its descriptor."""
        location = committer.data_location()
        assert location is not None
        target = location.removeprefix("s3://") + "/" + path
        if self.filesystem is None:
            Path(target).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, target, filesystem=self.filesystem or pa_fs.LocalFileSystem())
        with (self.filesystem or pa_fs.LocalFileSystem()).open_input_file(target) as stream:
            size = stream.size()
            metadata = pq.read_metadata(stream)
        footer = io.BytesIO()
        metadata.write_metadata_file(footer)
        return DataFile(committer.name, path, size, rows.num_rows, footer.getvalue(), partition)

    def stored(self, columns: Sequence[TableColumn]) -> tuple[TableColumn, ...]:
        """Return columns with the kinds as which the format stores them."""
        return tuple(
            replace(column, type=replace(column.type, kind=self.retypes.get(column.type.kind, column.type.kind)))
            for column in columns
        )

    @staticmethod
    def partition_path(column: str, value: Any) -> str:
        """Return the directory of a partition in Hive's layout."""
        return f"{column}={'__HIVE_DEFAULT_PARTITION__' if value is None else quote(str(value), safe='')}"

    def exists(self, committer: TableCommitter, path: str) -> bool:
        """Whether a file exists at the committer's data location."""
        target = f"{committer.data_location()}".removeprefix("s3://") + "/" + path
        info = (self.filesystem or pa_fs.LocalFileSystem()).get_file_info(target)
        return bool(info.type == pa_fs.FileType.File)


def identity(batch: int, connector: str = "sink", generation: int = 1_700_000_000_000) -> BatchIdentity:
    return BatchIdentity(connector, generation, batch)


def offsets(**next_offsets: int) -> TableOffsets:
    """Return the offsets of partition 0 of topics, with an id for each topic."""
    return TableOffsets({(topic, 0): offset for topic, offset in next_offsets.items()},
                        {topic: f"id-of-{topic}" for topic in next_offsets})  # fmt: skip


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": numbers, "text": [str(n) for n in numbers]}, SCHEMA)


def numbers(table: pa.Table) -> list[int]:
    return sorted(table["n"].to_pylist())


def open_new(
    combination: Combination,
    table: str = "t",
    connector: str = "sink",
    columns: Sequence[TableColumn] = COLUMNS,
    layout: FileLayout | None = None,
) -> TableCommitter:
    """Open a table that may not exist, and declare its columns."""
    committer = combination.make(table, connector)
    committer.load([("t", 0)])
    committer.create(columns, layout or FileLayout())
    return committer


def append(
    combination: Combination, committer: TableCommitter, batch: int, numbers_: Sequence[int], after: TableOffsets,
    connector: str = "sink", remove: Sequence[TableFile] = (),
) -> None:  # fmt: skip
    """Commit one file with these numbers, or only offsets if there are none."""
    path = f"part-{connector}-{batch}-{len(numbers_)}.parquet"
    add = [combination.write(committer, rows(*numbers_), path)] if numbers_ else []
    committer.commit(Commit(identity(batch, connector), after, add, remove))


# --- Delta and Parquet ----------------------------------------------------------------------------------------------


def delta_local(directory: Path) -> Combination:
    from deltalake import DeltaTable, write_deltalake

    def clean_up(table: str) -> None:
        delta = DeltaTable(directory / table)
        delta.create_checkpoint()
        # Delta's log retention deletes the commits before the checkpoint, and the metadata in them.
        for version in range(delta.version()):
            (directory / table / "_delta_log" / f"{version:020d}.json").unlink(missing_ok=True)

    def other_tool(table: str, rows_: pa.Table) -> None:
        write_deltalake(directory / table, rows_, mode="append")

    return Combination(
        "delta-local",
        lambda table, connector: open_committer("delta", table, TableUri(str(directory / table)), connector),
        lambda table: DeltaTable(directory / table).to_pyarrow_table(),
        append=other_tool,
        clean_up_log=clean_up,
    )


def s3_access(server: S3Server) -> S3Access:
    return S3Access(server.access_key, server.secret, region="us-east-1", endpoint=server.url, ca_file=server.ca_file)


def s3_filesystem(server: S3Server) -> pa_fs.FileSystem:
    return pa_fs.S3FileSystem(**arrow_arguments(s3_access(server)))


def delta_s3(server: S3Server, prefix: str, proxy: S3Server | None = None) -> Combination:
    """Return Delta tables on S3. Committers send their requests to the proxy, if there is one."""
    from deltalake import DeltaTable, write_deltalake

    options = delta_storage_options(s3_access(server))
    committer_access = s3_access(proxy or server)

    def uri(table: str) -> TableUri:
        return TableUri(f"{prefix}/{table}", BUCKET)

    def clean_up(table: str) -> None:
        delta = DeltaTable(str(uri(table)), storage_options=options)
        delta.create_checkpoint()
        for version in range(delta.version()):
            server.client().delete_object(Bucket=BUCKET, Key=f"{prefix}/{table}/_delta_log/{version:020d}.json")

    def other_tool(table: str, rows_: pa.Table) -> None:
        write_deltalake(str(uri(table)), rows_, mode="append", storage_options=options)

    return Combination(
        "delta-s3",
        lambda table, connector: open_committer("delta", table, uri(table), connector, committer_access),
        lambda table: DeltaTable(str(uri(table)), storage_options=options).to_pyarrow_table(),
        filesystem=s3_filesystem(server),
        append=other_tool,
        clean_up_log=clean_up,
    )


def parquet_local(directory: Path) -> Combination:
    import duckdb

    def read(table: str) -> pa.Table:
        files = f"{directory / table}/**/*.parquet"
        query = f"select * from read_parquet('{files}') where filename not like '%/_headrace/%'"
        found = duckdb.connect().sql(query)
        assert found is not None
        return found.to_arrow_table()

    return Combination(
        "parquet-local",
        lambda table, connector: open_committer("parquet", table, TableUri(str(directory / table)), connector),
        read,
    )
