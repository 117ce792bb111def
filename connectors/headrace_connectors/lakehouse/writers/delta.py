"""Delta tables through delta-rs: rows and offsets in one commit of the Delta log, no JVM and no jars.

A commit carries, besides the rows' files: the transaction of the batch (`headrace/<connector>/<generation>` -> batch
id); one transaction for each partition (`headrace/<connector>/<topic>/<partition>` -> next offset), which survive the
log's clean-up and make delta-rs refuse a commit when another process moved the same partition meanwhile; and the
offsets of the whole table as JSON in the commit's metadata, for people and tools. Tables use no reader feature.
A commit that was refused for what another tool did (a delete, a property) is tried again on the table as it is then.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from headrace_connectors.lakehouse.faults import reason_of, unsupported_features
from headrace_connectors.lakehouse.ranges import Position, TopicPartition
from headrace_connectors.lakehouse.writers.base import (
    OFFSETS_KEY,
    BatchIdentity,
    TableConflictError,
    TableWriter,
    offsets_json,
    offsets_position,
    unusable,
)

_CONNECTOR_KEY = "headrace.connector"
_RECENT_COMMITS = 20
_ATTEMPTS = 5
_log = logging.getLogger(__name__)


class DeltaWriter(TableWriter):
    """Writes one Delta table; commits are checked against the version that `committed` has read."""

    _table: DeltaTable | None = None
    _known = Position()

    def committed(self, partitions: Iterable[TopicPartition] = ()) -> Position:
        """Return the table's offsets: those of the connector's last commit, or its transactions'."""
        self._known = self._read(partitions)
        return self._known

    def _read(self, partitions: Iterable[TopicPartition]) -> Position:
        try:
            self._table = DeltaTable(self.directory)
        except TableNotFoundError:
            self._table = None
            if (self.directory / "_headrace" / "commits").is_dir():
                raise unusable(self.directory, "is a table of lakehouse.format=parquet") from None
            return Position()
        position = self._from_history(_RECENT_COMMITS) or self._from_history(None) or Position()
        identity = BatchIdentity(self.connector, 0, 0)
        offsets = dict(position.next_offsets)
        for key in {*partitions, *offsets}:
            version = self._table.transaction_version(identity.partition_app_id(key))
            if version is not None:
                offsets[key] = max(version, offsets.get(key, 0))
        return Position(offsets, position.topic_ids)

    def _from_history(self, limit: int | None) -> Position | None:
        assert self._table is not None
        for commit in self._table.history(limit):
            if OFFSETS_KEY in commit and commit.get(_CONNECTOR_KEY) == self.connector:
                return offsets_position(commit[OFFSETS_KEY])
        return None

    def columns(self) -> pa.Schema | None:
        """Return the table's columns as of `committed`."""
        return pa.schema(self._table.schema().to_arrow()) if self._table is not None else None

    def write(self, identity: BatchIdentity, rows: pa.Table, position: Position) -> None:
        """Append rows and offsets in one commit; what other tools do to the table in between is no obstacle."""
        transactions = [Transaction(identity.app_id, identity.batch_id)]
        for key, offset in sorted(position.next_offsets.items()):
            transactions.append(Transaction(identity.partition_app_id(key), offset))
        properties = CommitProperties(
            app_transactions=transactions,
            custom_metadata={_CONNECTOR_KEY: identity.connector, OFFSETS_KEY: offsets_json(position)},
        )
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._commit(rows, properties)
                break
            except DeltaError as error:
                created_meanwhile = self._table is None and DeltaTable.is_deltatable(str(self.directory))
                beaten = isinstance(error, CommitFailedError) and unsupported_features(str(error)) is None
                if not (created_meanwhile or beaten) or attempt == _ATTEMPTS:
                    raise
                self._look_again(rows.schema, position, error)
        self._known = position

    def _commit(self, rows: pa.Table, properties: CommitProperties) -> None:
        if self._table is None:
            self.directory.parent.mkdir(parents=True, exist_ok=True)
            write_deltalake(self.directory, rows, mode="error", commit_properties=properties)
            self._table = DeltaTable(self.directory)
        else:
            write_deltalake(self._table, rows, mode="append", commit_properties=properties)

    def _look_again(self, columns: pa.Schema, position: Position, error: DeltaError) -> None:
        """Read the table after someone else's commit came first, and return when the rows may still be appended.

        Raises TableConflictError when that commit has moved our offsets, TableSchemaError when it changed the columns.
        """
        known = self._known.next_offsets
        now = self.committed(position.next_offsets).next_offsets
        if any(now.get(key, 0) != known.get(key, 0) for key in position.next_offsets):
            raise TableConflictError(
                f"table {self.directory}: another process has loaded the same offsets meanwhile ({reason_of(error)});"
                " is the connector running twice?"
            ) from error
        self.prepare(columns)
        _log.info("Table %s was changed by another tool meanwhile (%s); trying again", self.directory, reason_of(error))
