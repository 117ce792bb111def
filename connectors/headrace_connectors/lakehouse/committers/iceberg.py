"""Commits files to Iceberg tables with pyiceberg: rows and offsets are in one snapshot.

pyiceberg itself would retry a commit after a conflict, on the table's new state, and so accept a commit of a stale
process. It would also delete the manifests of a commit that was refused with status 409, although a proxy that repeats
requests may have caused this status after the commit was applied. Therefore `_SingleAttempt` does neither: after every
error, the committer reads the table again, and looks for its snapshot and its batch before anything else.

An attempt whose result is unknown may still be applied later. That does no harm to the next attempt: each attempt
requires that the main branch has not changed, so the catalog accepts only one of them.
"""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NamespaceAlreadyExistsError,
    NoSuchIcebergTableError,
    NoSuchNamespaceError,
    NoSuchTableError,
    OAuthError,
    TableAlreadyExistsError,
    UnauthorizedError,
    ValidationException,
)
from pyiceberg.manifest import DataFile as IcebergDataFile
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update import AssertTableUUID
from pyiceberg.utils.properties import property_as_bool

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.column_types import SchemaError, TableColumn, describe_changes, leaf_types
from headrace_connectors.lakehouse.committers.base import (
    CONNECTOR_KEY,
    OFFSETS_KEY,
    BatchIdentity,
    Commit,
    CommitOutcomeUnknownError,
    TableCommitter,
    TableConflictError,
    TableFile,
    TableSchemaError,
    TableUnusableError,
)
from headrace_connectors.lakehouse.committers.iceberg_catalog import CatalogConnection, catalog_error, describe_error
from headrace_connectors.lakehouse.committers.iceberg_files import (
    NAME_MAPPING_KEY,
    describe_files,
    missing_name_mapping,
)
from headrace_connectors.lakehouse.committers.iceberg_offsets import (
    BATCH_KEY,
    batch_text,
    connectors,
    has_snapshot,
    offsets_property,
    property_value,
    stored_offsets,
)
from headrace_connectors.lakehouse.committers.iceberg_schema import (
    field_ids,
    from_schema,
    from_sort_order,
    from_spec,
    stored_columns,
    to_schema,
    to_sort_order,
    to_spec,
)
from headrace_connectors.lakehouse.files.field_ids import FieldId
from headrace_connectors.lakehouse.files.layout import FileLayout
from headrace_connectors.lakehouse.job.results import DataFile
from headrace_connectors.lakehouse.offsets import TableOffsets, TopicPartition
from headrace_connectors.lakehouse.table_uri import TableUri, TableUriError

_ATTEMPTS = 10
_RELOAD_ATTEMPTS = 5
_BACKOFF_S = 0.05
_BACKOFF_MAX_S = 2.0
_REFUSALS = (BadRequestError, ForbiddenError, OAuthError, UnauthorizedError, ValidationException, NoSuchTableError)
_NEW_TABLE_PROPERTIES = {
    "format-version": "2",
    # Iceberg's default, but not pyiceberg's. Without it, each commit gets slower by 0.8 ms.
    "commit.manifest-merge.enabled": "true",
}
_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Change:
    """A snapshot to commit. `offsets` has an entry for each connector whose offsets change."""

    connector: str
    batch: str
    offsets: Mapping[str, TableOffsets]
    add: Sequence[DataFile] = ()
    remove: Sequence[TableFile] = ()

    def summary(self) -> dict[str, str]:
        others = {offsets_property(name): offsets.to_text() for name, offsets in self.offsets.items()}
        own = others.pop(offsets_property(self.connector))
        return {CONNECTOR_KEY: self.connector, OFFSETS_KEY: own, BATCH_KEY: self.batch, **others}


class _SingleAttempt(Transaction):
    """A transaction that is sent to the catalog exactly once, and never deletes a file."""

    snapshot_id = 0

    def commit_transaction(self) -> Table:
        requirements = (*self._requirements, AssertTableUUID(uuid=self.table_metadata.table_uuid))
        self._table._do_commit(self._updates, requirements)
        return self._table


class IcebergCommitter(TableCommitter):
    """One Iceberg table. The table's commits use optimistic concurrency, so other tools may change it at any time."""

    def __init__(
        self, name: str, connection: CatalogConnection, connector: str, table_location: str | None = None
    ) -> None:
        """`table_location` is the location of a table that must be created. By default the catalog chooses it."""
        self.name = name
        self.connector = connector
        self.identifier = connection.config.identifier(name)
        self.location = ".".join(self.identifier)
        self._connection = connection
        self._table_location = table_location
        self._table: Table | None = None
        self._offsets = TableOffsets()
        self._columns: tuple[TableColumn, ...] = ()

    # --- reading ----------------------------------------------------------------------------------------------------

    def load(self, partitions: Iterable[TopicPartition] = ()) -> TableOffsets:
        """Read the table's current state, and return this connector's offsets in it.

        `partitions` has no effect, because a table always has the offsets of all partitions.
        """
        self._set_table(self._read_table())
        return self._offsets

    def _read_table(self) -> Table | None:
        try:
            return self._connection.catalog().load_table(self.identifier)
        except NoSuchIcebergTableError as error:
            raise TableUnusableError(
                f"{self.location} is not an Iceberg table ({describe_error(error)}); set another table name"
                " (lakehouse.table.name.format)"
            ) from error
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except Exception as error:
            raise self._error("read", error) from error

    def _set_table(self, table: Table | None) -> None:
        self._table = table
        if table is None:
            self._offsets, self._columns = TableOffsets(), ()
            return
        try:
            self._columns = from_schema(table.schema())
            from_spec(table.spec(), table.schema())
        except SchemaError as error:
            raise self._schema_error(error) from error
        stored = stored_offsets(table.metadata, self.connector)
        self._offsets = stored.offsets if stored is not None else TableOffsets()

    def exists(self) -> bool:
        return self._table is not None

    def columns(self) -> tuple[TableColumn, ...] | None:
        return self._columns if self._table is not None else None

    def stored_columns(self, columns: Sequence[TableColumn]) -> tuple[TableColumn, ...]:
        """Return `columns` as the table stores them: Iceberg has no integers of 8 and 16 bits."""
        return stored_columns(columns)

    def field_ids(self) -> dict[str, FieldId]:
        """Return the ids of the columns for `with_field_ids`, or an empty dict if the table does not exist."""
        return field_ids(self._table.schema().fields) if self._table is not None else {}

    def layout(self) -> FileLayout | None:
        if self._table is None:
            return None
        schema = self._table.schema()
        return FileLayout(from_spec(self._table.spec(), schema), from_sort_order(self._table.sort_order(), schema))

    def data_location(self) -> str | None:
        if self._table is None:
            return None
        try:
            return str(TableUri.parse(self._data_location(self._table)))
        except TableUriError as error:
            raise TableUnusableError(
                f"Iceberg table {self.location} is at {self._table.location()}: {error}"
            ) from error

    @staticmethod
    def _data_location(table: Table) -> str:
        return (table.properties.get("write.data.path") or f"{table.location()}/data").rstrip("/")

    def other_connectors(self, partitions: Iterable[TopicPartition]) -> dict[str, TableOffsets]:
        if self._table is None:
            return {}
        own, found = set(partitions), {}
        for name in sorted(connectors(self._table.metadata) - {self.connector}):
            stored = stored_offsets(self._table.metadata, name)
            if stored is not None and own & stored.offsets.next_offsets.keys():
                found[name] = stored.offsets
        return found

    def list_files(self) -> list[TableFile]:
        if self._table is None:
            return []
        prefix = self._data_location(self._table) + "/"
        try:
            return [
                TableFile(file.file_path.removeprefix(prefix), file.file_size_in_bytes, file.record_count)
                for file in _live_files(self._table)
            ]
        except Exception as error:
            raise self._error("read", error) from error

    # --- creation ---------------------------------------------------------------------------------------------------

    def create(self, columns: Sequence[TableColumn], layout: FileLayout) -> None:
        """Create the table without rows, unless it exists with equal columns."""
        if self._table is None:
            self._set_table(self._create_table(columns, layout))
        assert self._table is not None
        self._check_columns(columns)

    def _create_table(self, columns: Sequence[TableColumn], layout: FileLayout) -> Table:
        try:
            schema = to_schema(columns)
            spec, order = to_spec(schema, layout), to_sort_order(schema, layout)
        except SchemaError as error:
            raise TableSchemaError(f"Iceberg table {self.location} cannot be created: {error}") from error
        try:
            catalog = self._connection.catalog()
            self._create_namespaces(catalog)
            return catalog.create_table(
                self.identifier,
                schema,
                location=self._table_location,
                partition_spec=spec,
                sort_order=order,
                properties=_NEW_TABLE_PROPERTIES,
            )
        except TableAlreadyExistsError:
            table = self._read_table()  # another process has created it
            assert table is not None
            return table
        except Exception as error:
            raise self._error("created", error) from error

    def _create_namespaces(self, catalog: Catalog) -> None:
        namespace = self.identifier[:-1]
        if catalog.namespace_exists(namespace):
            return
        for length in range(1, len(namespace) + 1):
            try:
                catalog.create_namespace(namespace[:length])
            except NamespaceAlreadyExistsError:
                continue

    def _check_columns(self, columns: Sequence[TableColumn]) -> None:
        found = describe_changes(leaf_types(self._columns), leaf_types(stored_columns(columns)))
        if found:
            raise TableSchemaError(
                f"the records' columns do not match Iceberg table {self.location}: {', '.join(found)}; load the records"
                " into another table (lakehouse.table.name.format), or change the table's columns"
            )

    # --- commits ----------------------------------------------------------------------------------------------------

    def commit(self, commit: Commit) -> None:
        batch = batch_text(commit.identity)
        self._commit(_Change(self.connector, batch, {self.connector: commit.offsets}, commit.add, commit.remove))

    def take_over(self, connector: str, partitions: Iterable[TopicPartition]) -> TableOffsets:
        """Move the offsets of another connector for these partitions to this connector, in one commit.

        The other connector's next commit fails, because its offsets have changed. Returns this connector's offsets.
        """
        found = self.other_connectors(partitions).get(connector)
        if found is None:
            return self._offsets
        moved = set(partitions) & found.next_offsets.keys()
        kept = {key: offset for key, offset in found.next_offsets.items() if key not in moved}
        topics = {topic for topic, _ in moved}
        own = TableOffsets(
            {**self._offsets.next_offsets, **{key: found.next_offsets[key] for key in moved}},
            {**self._offsets.topic_ids, **{topic: id_ for topic, id_ in found.topic_ids.items() if topic in topics}},
        )
        kept_topics = {topic for topic, _ in kept}
        rest = TableOffsets(kept, {topic: id_ for topic, id_ in found.topic_ids.items() if topic in kept_topics})
        identity = BatchIdentity(self.connector, time.time_ns() // 1_000_000, 0)
        self._commit(_Change(self.connector, batch_text(identity), {self.connector: own, connector: rest}))
        return self._offsets

    def _commit(self, change: _Change) -> None:
        unknown = False
        for attempt in range(1, _ATTEMPTS + 1):
            transaction = self._stage(change, unknown)
            try:
                transaction.commit_transaction()
            except Exception as error:
                unknown |= not isinstance(error, (CommitFailedException, *_REFUSALS))
                if not self._is_applied(change, transaction.snapshot_id, error, unknown):
                    if attempt == _ATTEMPTS or isinstance(error, _REFUSALS):
                        raise self._commit_error(error, unknown) from error
                    _back_off(attempt)
                    continue
            self._offsets = change.offsets[self.connector]
            return

    def _stage(self, change: _Change, unknown: bool) -> _SingleAttempt:
        """Write the manifests of the change. Nothing refers to them yet."""
        table = self._table
        if table is None:
            raise ConnectError(f"Iceberg table {self.location} does not exist; restart the task to create it")
        try:
            return _stage(table, self._data_location(table), change)
        except SchemaError as error:
            raise self._schema_error(error) from error
        except Exception as error:
            raise self._commit_error(error, unknown) from error

    def _is_applied(self, change: _Change, snapshot_id: int, error: Exception, unknown: bool) -> bool:
        """Read the table again after a failed commit, and return whether it has the change nevertheless.

        Raises an error if the change must not be committed to the table's current state.
        """
        before = self._table
        assert before is not None
        after = self._read_again(error)
        if after is None or after.metadata.table_uuid != before.metadata.table_uuid:
            raise ConnectError(
                f"Iceberg table {self.location} was dropped or replaced while this task wrote to it; restart the task"
            ) from error
        stored = stored_offsets(after.metadata, self.connector)
        if has_snapshot(after.metadata, snapshot_id) or (stored is not None and stored.batch == change.batch):
            logger.info("Iceberg table %s: the commit was applied despite: %s", self.location, describe_error(error))
            self._set_table(after)
            return True
        self._check_offsets(change, stored.offsets if stored is not None else TableOffsets(), error)
        self._check_structure(before, after, error, unknown)
        logger.info("Iceberg table %s: retrying a commit that failed: %s", self.location, describe_error(error))
        self._set_table(after)
        return False

    def _read_again(self, error: Exception) -> Table | None:
        for attempt in range(1, _RELOAD_ATTEMPTS + 1):
            try:
                return self._read_table()
            except TableUnusableError:
                return None
            except ConnectError as reading:
                if attempt == _RELOAD_ATTEMPTS:
                    raise CommitOutcomeUnknownError(
                        f"Iceberg table {self.location}: the commit may have been applied ({describe_error(error)}),"
                        f" but the table cannot be read: {reading}"
                    ) from error
                _back_off(attempt)
        raise AssertionError("unreachable")

    def _check_offsets(self, change: _Change, now: TableOffsets, error: Exception) -> None:
        own, before = now.next_offsets, self._offsets.next_offsets
        if any(own.get(key, 0) != before.get(key, 0) for key in change.offsets[self.connector].next_offsets):
            raise TableConflictError(
                f"table {self.location}: another process has loaded the same offsets ({describe_error(error)});"
                " check whether the connector is running twice"
            ) from error

    def _check_structure(self, before: Table, after: Table, error: Exception, unknown: bool) -> None:
        """Raise an error if files that were written for the table `before` do not fit the table `after`."""
        try:
            columns = from_schema(after.schema())
        except SchemaError as problem:
            raise self._schema_error(problem) from error
        found = describe_changes(leaf_types(self._columns), leaf_types(columns))
        if before.spec() != after.spec():
            found.append(f"partition spec {after.spec()}")
        if found and unknown:
            raise self._commit_error(error, unknown) from error
        if found:
            raise TableSchemaError(
                f"Iceberg table {self.location} was changed while this task wrote to it ({', '.join(found)});"
                " restart the task"
            ) from error

    def discard(self, files: Sequence[DataFile]) -> None:
        if self._table is None:
            return
        for file in files:
            path = f"{self._data_location(self._table)}/{file.path}"
            try:
                self._table.io.delete(path)
            except OSError as error:
                logger.warning("File %s was not committed and cannot be deleted: %s", path, describe_error(error))

    # --- errors -----------------------------------------------------------------------------------------------------

    def _error(self, action: str, error: Exception) -> ConnectError:
        return catalog_error(self._connection.config, self.location, action, error)

    def _commit_error(self, error: Exception, unknown: bool) -> ConnectError:
        if unknown:
            return CommitOutcomeUnknownError(
                f"Iceberg table {self.location}: the commit may have been applied or not: {describe_error(error)}"
            )
        return self._error("written", error)

    def _schema_error(self, error: SchemaError) -> TableSchemaError:
        return TableSchemaError(
            f"Iceberg table {self.location}: {error}; load the records into another table"
            " (lakehouse.table.name.format), or change the table"
        )


def _stage(table: Table, location: str, change: _Change) -> _SingleAttempt:
    transaction = _SingleAttempt(table)
    mapping = missing_name_mapping(table.metadata) if change.add else None
    removed = _find_files(table, location, change.remove)
    update = transaction.update_snapshot(snapshot_properties=change.summary())
    merges = property_as_bool(table.properties, "commit.manifest-merge.enabled", False)
    producer = update.overwrite() if removed else update.merge_append() if merges else update.fast_append()
    for file in removed:
        producer.delete_data_file(file)
    for file in describe_files(table.metadata, location, change.add):
        producer.append_data_file(file)
    producer.commit()
    transaction.snapshot_id = producer.snapshot_id
    sequence_number = table.metadata.next_sequence_number()
    properties = {
        offsets_property(name): property_value(producer.snapshot_id, sequence_number, offsets, change.batch)
        for name, offsets in change.offsets.items()
    }
    if mapping is not None:
        properties[NAME_MAPPING_KEY] = mapping.model_dump_json()
    transaction.set_properties(properties)
    return transaction


def _find_files(table: Table, location: str, files: Sequence[TableFile]) -> list[IcebergDataFile]:
    wanted = {file.path if _ABSOLUTE.match(file.path) else f"{location}/{file.path}" for file in files}
    found = [file for file in _live_files(table) if file.file_path in wanted] if wanted else []
    missing = wanted - {file.file_path for file in found}
    if missing:
        raise ValidationException(f"the table does not contain the file {min(missing)}, which should be removed")
    return found


def _live_files(table: Table) -> Iterator[IcebergDataFile]:
    snapshot = table.current_snapshot()
    for manifest in snapshot.manifests(table.io) if snapshot is not None else ():
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            if entry.data_file.content == DataFileContent.DATA:
                yield entry.data_file


def _back_off(attempt: int) -> None:
    time.sleep(random.uniform(0.5, 1) * min(_BACKOFF_S * 2**attempt, _BACKOFF_MAX_S))
