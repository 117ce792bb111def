"""Writes Delta tables with delta-rs: rows and offsets in one commit of the Delta log, without a JVM or jars.

Besides the data files, a commit contains:
- a transaction identifier for the micro-batch: app id `headrace/<connector>/<generation>`, version = batch id;
- a transaction identifier for each partition: app id `headrace/<connector>/<topic>/<partition>`, version = next offset.
  Log cleanup does not delete these identifiers, and delta-rs rejects a commit if another process has changed the
  identifier of the same partition;
- the offsets of all partitions as JSON in the commit metadata, for people and tools.

Tables use no reader feature. A commit that conflicts with another tool's change (such as a delete or a changed table
property) is retried on the new version of the table.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from headrace_connectors.lakehouse.error_messages import error_text, unsupported_features
from headrace_connectors.lakehouse.ranges import KafkaSourceOffset, TopicPartition
from headrace_connectors.lakehouse.writers.base import (
    OFFSETS_KEY,
    BatchIdentity,
    TableConflictError,
    TableWriter,
    offsets_json,
    parse_offsets_json,
    unusable_directory_error,
)

_CONNECTOR_KEY = "headrace.connector"
_RECENT_COMMITS = 20
_ATTEMPTS = 5
logger = logging.getLogger(__name__)


class DeltaWriter(TableWriter):
    """Writes one Delta table.

    The method `committed` reads the table. If another process commits afterwards, `write` detects the conflict.
    """

    _table: DeltaTable | None = None
    _last_offsets = KafkaSourceOffset()

    def committed(self, partitions: Iterable[TopicPartition] = ()) -> KafkaSourceOffset:
        """Return the table's offsets, from the metadata and transaction identifiers of the connector's last commit."""
        self._last_offsets = self._read(partitions)
        return self._last_offsets

    def _read(self, partitions: Iterable[TopicPartition]) -> KafkaSourceOffset:
        try:
            self._table = DeltaTable(self.directory)
        except TableNotFoundError:
            self._table = None
            if (self.directory / "_headrace" / "commits").is_dir():
                raise unusable_directory_error(
                    f"{self.directory} is a Parquet table of this connector, but lakehouse.format=delta"
                ) from None
            return KafkaSourceOffset()
        committed = self._from_history(_RECENT_COMMITS) or self._from_history(None) or KafkaSourceOffset()
        identity = BatchIdentity(self.connector, 0, 0)
        next_offsets = dict(committed.next_offsets)
        for key in {*partitions, *next_offsets}:
            version = self._table.transaction_version(identity.partition_app_id(key))
            if version is not None:
                next_offsets[key] = max(version, next_offsets.get(key, 0))
        return KafkaSourceOffset(next_offsets, committed.topic_ids)

    def _from_history(self, limit: int | None) -> KafkaSourceOffset | None:
        assert self._table is not None
        for commit in self._table.history(limit):
            if OFFSETS_KEY in commit and commit.get(_CONNECTOR_KEY) == self.connector:
                return parse_offsets_json(commit[OFFSETS_KEY])
        return None

    def columns(self) -> pa.Schema | None:
        """Return the table's columns as of the last call of `committed`."""
        return pa.schema(self._table.schema().to_arrow()) if self._table is not None else None

    def write(self, identity: BatchIdentity, rows: pa.Table, offsets: KafkaSourceOffset) -> None:
        """Append rows and offsets in one commit. Retries after a conflict with another tool's commit."""
        transactions = [Transaction(identity.app_id, identity.batch_id)]
        for key, offset in sorted(offsets.next_offsets.items()):
            transactions.append(Transaction(identity.partition_app_id(key), offset))
        properties = CommitProperties(
            app_transactions=transactions,
            custom_metadata={_CONNECTOR_KEY: identity.connector, OFFSETS_KEY: offsets_json(offsets)},
        )
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._commit(rows, properties)
                break
            except DeltaError as error:
                created_concurrently = self._table is None and DeltaTable.is_deltatable(str(self.directory))
                has_conflict = isinstance(error, CommitFailedError) and unsupported_features(str(error)) is None
                if not (created_concurrently or has_conflict) or attempt == _ATTEMPTS:
                    raise
                self._refresh_after_conflict(rows.schema, offsets, error)
        self._last_offsets = offsets

    def _commit(self, rows: pa.Table, properties: CommitProperties) -> None:
        if self._table is None:
            self.directory.parent.mkdir(parents=True, exist_ok=True)
            write_deltalake(self.directory, rows, mode="error", commit_properties=properties)
            self._table = DeltaTable(self.directory)
        else:
            write_deltalake(self._table, rows, mode="append", commit_properties=properties)

    def _refresh_after_conflict(self, columns: pa.Schema, offsets: KafkaSourceOffset, error: DeltaError) -> None:
        """Read the table again after a conflicting commit, and check that the rows can still be appended.

        `columns` are the columns of the rows, and `offsets` are the Kafka offsets that would be committed with them.
        Raises TableConflictError if the conflicting commit changed the connector's offsets in the table, and
        TableSchemaError if it changed the table's columns so that they no longer match `columns`.
        """
        before = self._last_offsets.next_offsets
        now = self.committed(offsets.next_offsets).next_offsets
        if any(now.get(key, 0) != before.get(key, 0) for key in offsets.next_offsets):
            raise TableConflictError(
                f"table {self.directory}: another process has loaded the same offsets ({error_text(error)});"
                " check whether the connector is running twice"
            ) from error
        self.prepare(columns)
        logger.info("Table %s was changed by another tool (%s), retrying the commit", self.directory, error_text(error))
