"""Commits files to Delta tables with delta-rs: files and offsets in one commit of the Delta log, without a JVM or jars.

Besides the data files, a commit contains:
- a transaction identifier for the micro-batch: app id `headrace/<connector>/<generation>`, version = batch id;
- a transaction identifier for each partition: app id `headrace/<connector>/<topic>/<partition>`, version = next offset.
  Log cleanup does not delete these identifiers, and delta-rs rejects a commit if another process has changed the
  identifier of the same partition. Version -1 means that the offset was deleted. Version 2^63-1 means that another
  connector has taken over the partition;
- the offsets of all partitions as JSON in the commit metadata, for people and tools.

Tables use no reader feature. A commit that conflicts with another tool's change (such as a delete or a changed table
property) is retried on the new version of the table. On S3, a commit is a conditional put (`aws_conditional_put`).
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from headrace_connectors.lakehouse.column_types import TableColumn
from headrace_connectors.lakehouse.committers.base import (
    CONNECTOR_KEY,
    OFFSETS_KEY,
    Commit,
    TableFile,
    TableSchemaError,
    partition_app_id,
    unusable_location_error,
)
from headrace_connectors.lakehouse.committers.delta_log import DeltaLog
from headrace_connectors.lakehouse.committers.delta_schema import (
    delta_schema,
    partition_value_text,
    required_columns,
    table_columns,
    table_layout,
    unsupported_rules,
    value_text,
)
from headrace_connectors.lakehouse.committers.recovery import RecoveringCommitter
from headrace_connectors.lakehouse.committers.slow_requests import slow_requests_logged
from headrace_connectors.lakehouse.error_messages import error_text, unsupported_features, unsupported_features_error
from headrace_connectors.lakehouse.files.data_file import DataFile
from headrace_connectors.lakehouse.files.layout import FileLayout
from headrace_connectors.lakehouse.files.statistics import INDEXED_COLUMNS, delta_statistics
from headrace_connectors.lakehouse.files.stores import FileStore
from headrace_connectors.lakehouse.offsets import TableOffsets, TopicPartition
from headrace_connectors.lakehouse.s3_access import DELTA_RETRY_S, S3Access, delta_storage_options
from headrace_connectors.lakehouse.table_uri import TableUri

_INDEXED_COLUMNS_KEY = "delta.dataSkippingNumIndexedCols"
_TABLE_EXISTS = "already exists"
_CLIENT_ERROR = re.compile(r"status code: 4(?!08|09|12|29)\d\d\b")
_RETRIES = "max_retries"
DELETED = -1
"""Version of a partition's transaction identifier whose offset was deleted."""
TAKEN_OVER = 2**63 - 1
"""Version of a partition's transaction identifier whose offset another connector has taken over."""


class DeltaCommitter(RecoveringCommitter):
    """Commits to one Delta table. Another process's commit after `load` is detected by `commit`."""

    ambiguous_attempts = 2  # delta-rs sends a request up to eleven times

    def __init__(self, name: str, uri: TableUri, connector: str, access: S3Access | None = None) -> None:
        super().__init__(name, str(uri), connector)
        self._uri = uri
        self._table: DeltaTable | None = None
        self._required: list[str] = []
        self._set_access(access)

    def use_access(self, access: S3Access) -> None:
        """Use renewed credentials. Does not read new versions of the table."""
        if access != self._store.access:
            self._set_access(access)
            if self._table is not None:
                self._table = DeltaTable(self.location, self._table.version(), storage_options=self._options)

    def _set_access(self, access: S3Access | None) -> None:
        self._store = FileStore(access)
        self._options = delta_storage_options(access) if access is not None else {}
        if access is not None and access.ca_file is not None:
            trust_in_delta(access.ca_file)

    def load(self, partitions: Iterable[TopicPartition] = ()) -> TableOffsets:
        """Read the table. Log a warning if S3 does not respond."""
        with self._slow_requests_logged("reading it"):
            return super().load(partitions)

    def commit(self, commit: Commit) -> None:
        """Commit. Log a warning if S3 does not respond."""
        with self._slow_requests_logged("committing to it"):
            super().commit(commit)

    def _slow_requests_logged(self, action: str) -> AbstractContextManager[None]:
        return slow_requests_logged(self.location, action, DELTA_RETRY_S) if self._uri.is_s3 else nullcontext()

    def exists(self) -> bool:
        """Whether the table exists."""
        return self._table is not None

    def data_location(self) -> str:
        """Return the table's location."""
        return self.location

    def list_files(self) -> list[TableFile]:
        """Return the files of the loaded version."""
        return [TableFile(row["path"], row["size_bytes"], row["num_records"]) for row in self._add_actions()]

    def other_connectors(self, partitions: Iterable[TopicPartition]) -> dict[str, TableOffsets]:
        """Return other connectors' offsets, from the history and from the transaction identifiers."""
        wanted = set(partitions)
        if self._table is None or not wanted:
            return {}
        found: dict[str, TableOffsets] = {}
        for connector, offsets in self._log().offsets_by_connector().items():
            current = self._current_offsets(connector, offsets.next_offsets)
            if connector != self.connector and not wanted.isdisjoint(current):
                found[connector] = offsets.with_offsets(current)
        return found

    def create(self, columns: Sequence[TableColumn], layout: FileLayout) -> None:
        """Check also that Delta can store the values of the partition fields."""
        binary = {column.name for column in columns if column.type.kind == "bytes"}
        for field in layout.partition_fields:
            if field.column in binary and field.transform in ("identity", "truncate"):
                raise TableSchemaError(
                    f"table {self.location} cannot be partitioned by column {field.column}: Delta tables have no"
                    " partition values of type binary; use bucket, or another column"
                )
        super().create(columns, layout)

    # --- reading ----------------------------------------------------------------------------------------------------

    def _read(self, partitions: Sequence[TopicPartition]) -> TableOffsets:
        try:
            self._table = DeltaTable(self.location, storage_options=self._options)
        except TableNotFoundError:
            if self._table is not None:
                self._table, self._columns = None, None
            self._check_other_formats()
            return TableOffsets()
        self._read_structure()
        committed = self._log().offsets_of(self.connector)
        current = self._current_offsets(self.connector, {**dict.fromkeys(partitions), **committed.next_offsets})
        return committed.with_offsets(current)

    def _check_other_formats(self) -> None:
        """Raise TableUnusableError if the directory is a table of another format."""
        if self._uri.is_s3:
            return
        directory = self._uri.local
        if (directory / "_headrace" / "commits").is_dir():
            raise unusable_location_error(
                f"{directory} is a Parquet table of this connector, but lakehouse.format=delta"
            )
        if any((directory / "metadata").glob("*.metadata.json")):
            raise unusable_location_error(f"{directory} is an Iceberg table, but lakehouse.format=delta")

    def _read_structure(self) -> None:
        assert self._table is not None
        schema = json.loads(self._table.schema().to_json())
        metadata = self._table.metadata()
        unsupported = unsupported_rules(schema, metadata.configuration)
        if unsupported:
            raise unsupported_features_error(self.location, "written", ", ".join(unsupported))
        self._required = required_columns(schema)
        self._columns = table_columns(schema)
        self._layout = table_layout(schema, metadata.partition_columns)

    def _log(self) -> DeltaLog:
        assert self._table is not None
        return DeltaLog(self._store, self.location, self._table.version())

    def _current_offsets(self, connector: str, known: Mapping[TopicPartition, int | None]) -> dict[TopicPartition, int]:
        """Return the offsets of the partitions in `known` from transaction identifiers, which are always up to date.

        A partition without a transaction identifier keeps its offset in `known`, unless that is None.
        """
        assert self._table is not None
        current: dict[TopicPartition, int] = {}
        for key, offset in known.items():
            version = self._table.transaction_version(partition_app_id(connector, key))
            value = offset if version is None else version
            if value is not None and DELETED < value < TAKEN_OVER:
                current[key] = value
        return current

    def _add_actions(self) -> list[dict[str, Any]]:
        if self._table is None:
            return []
        rows: list[dict[str, Any]] = pa.table(self._table.get_add_actions()).to_pylist()
        return [{**row, "path": unquote(row["path"])} for row in rows]  # the log contains paths as parts of a URL

    # --- writing ----------------------------------------------------------------------------------------------------

    def _apply(self, commit: Commit) -> None:
        self._check_offsets_unchanged(commit)
        self._check_required_columns(commit.add)
        transactions = [Transaction(commit.identity.app_id, commit.identity.batch_id)]
        transactions += _partition_transactions(self.connector, commit.offsets.next_offsets)
        deleted = self._offsets.next_offsets.keys() - commit.offsets.next_offsets.keys()
        transactions += _partition_transactions(self.connector, dict.fromkeys(deleted, DELETED))
        self._write(transactions, commit.offsets, commit.add, commit.remove)

    def _apply_take_over(self, connector: str, moved: TableOffsets, merged: TableOffsets) -> None:
        transactions = _partition_transactions(self.connector, merged.next_offsets)
        transactions += _partition_transactions(connector, dict.fromkeys(moved.next_offsets, TAKEN_OVER))
        self._write(transactions, merged)

    def _write(
        self,
        transactions: list[Transaction],
        offsets: TableOffsets,
        add: Sequence[DataFile] = (),
        remove: Sequence[TableFile] = (),
    ) -> None:
        properties = CommitProperties(
            app_transactions=transactions,
            custom_metadata={CONNECTOR_KEY: self.connector, OFFSETS_KEY: offsets.to_text()},
            # delta-rs does not notice that a concurrent compaction has removed the same files.
            max_commit_retries=0 if remove else None,
        )
        assert self._columns is not None
        fields = [field.name for field in self._layout.partition_fields]
        added = [self._add_action(file) for file in add]
        if self._table is None:
            assert not remove
            if not self._uri.is_s3:
                self._uri.local.mkdir(parents=True, exist_ok=True)
            create_table_with_add_actions(
                self.location,
                Schema.from_json(json.dumps(delta_schema(self._columns, self._layout))),
                added,
                partition_by=fields,
                storage_options=self._options,
                commit_properties=properties,
            )
            self._table = DeltaTable(self.location, storage_options=self._options)
        else:
            self._table.create_write_transaction(
                added + self._remove_actions(remove),
                "append",
                self._table.schema(),
                partition_by=fields,
                commit_properties=properties,
            )
            self._table.update_incremental()

    def _add_action(self, file: DataFile) -> AddAction:
        values = {
            field.name: partition_value_text(field, value)
            for field, value in zip(self._layout.partition_fields, file.partition, strict=True)
        }
        return AddAction(
            file.path, file.size, values, _now_ms(), True, delta_statistics(file.footer, self._indexed_columns())
        )

    def _indexed_columns(self) -> int:
        configuration = self._table.metadata().configuration if self._table is not None else {}
        return int(configuration.get(_INDEXED_COLUMNS_KEY) or INDEXED_COLUMNS)

    def _remove_actions(self, files: Sequence[TableFile]) -> list[RemoveAction]:
        partitions = {row["path"]: row.get("partition", {}) for row in self._add_actions()} if files else {}
        return [
            RemoveAction(
                file.path,
                True,
                _now_ms(),
                file.size,
                {name: value_text(value) for name, value in partitions.get(file.path, {}).items()},
            )
            for file in files
        ]

    def _check_offsets_unchanged(self, commit: Commit) -> None:
        """Raise an error if another process has committed this connector's offsets after this committer's last commit.

        After a commit, delta-rs reads all new versions of the table, which may include commits of other processes.
        """
        if self._table is not None:
            before = self._offsets.next_offsets
            keys = {*before, *commit.offsets.next_offsets}
            if self._current_offsets(self.connector, {**dict.fromkeys(keys), **before}) != before:
                raise CommitFailedError("the offsets in the table have changed")

    def _check_required_columns(self, files: Sequence[DataFile]) -> None:
        """Raise TableSchemaError if a NOT NULL column of a table that another tool created contains null."""
        for file in files if self._required else ():
            counts = json.loads(delta_statistics(file.footer, -1))["nullCount"]
            for name in self._required:
                if counts.get(name):
                    raise TableSchemaError(
                        f"table {self.location}: column {name} is NOT NULL, but it is null in {counts[name]} records;"
                        " change the column, or load the records into another table (lakehouse.table.name.format)"
                    )

    def _contains(self, commit: Commit) -> bool:
        if self._table is None:
            return False
        version = self._table.transaction_version(commit.identity.app_id)
        offsets = commit.offsets.next_offsets
        return version == commit.identity.batch_id and self._current_offsets(self.connector, offsets) == offsets

    def _is_retriable(self, error: Exception) -> bool:
        return _is_conflict(error) or self._is_ambiguous(error)

    def _is_ambiguous(self, error: Exception) -> bool:
        refused = isinstance(error, CommitFailedError) or _is_conflict(error) or is_client_error(error_text(error))
        return self._uri.is_s3 and not refused

    def _delete(self, path: str) -> None:
        self._store.delete(self.location, path)


def trust_in_delta(ca_file: str) -> None:
    """Let delta-rs trust the certificates in `ca_file` only, unless the environment of the worker says otherwise.

    delta-rs has no other setting than these variables of OpenSSL.
    """
    if "SSL_CERT_DIR" not in os.environ:
        os.environ.setdefault("SSL_CERT_FILE", ca_file)


def _partition_transactions(connector: str, offsets: Mapping[TopicPartition, int]) -> list[Transaction]:
    return [Transaction(partition_app_id(connector, key), offset) for key, offset in sorted(offsets.items())]


def _is_conflict(error: Exception) -> bool:
    if isinstance(error, CommitFailedError):
        return unsupported_features(str(error)) is None
    return isinstance(error, DeltaError) and _TABLE_EXISTS in str(error)


def is_client_error(text: str) -> bool:
    """Whether an S3 server refused the only request that was sent, because of the request itself."""
    return _CLIENT_ERROR.search(text) is not None and _RETRIES not in text


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
