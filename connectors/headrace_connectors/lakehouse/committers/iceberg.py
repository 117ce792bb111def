"""Commits files to Iceberg tables with pyiceberg: rows and offsets are in one snapshot.

pyiceberg itself would retry a commit after a conflict, on the table's new state, and so accept a commit of a stale
process. It would also delete the manifests of a commit that was refused with status 409, although a proxy that repeats
requests may have caused this status after the commit was applied. `_SingleAttempt` avoids both without changing
the table's properties. After every error, the table is read again.

An attempt whose result is unknown may still be applied later, but not in addition to the next attempt: each attempt
requires that the main branch has not changed, so the catalog applies only one of them.
"""

from __future__ import annotations

import logging
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
    UnauthorizedError,
    ValidationException,
)
from pyiceberg.manifest import DataFile as IcebergDataFile
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AddSnapshotUpdate, AssertTableUUID, TableUpdate
from pyiceberg.utils.properties import property_as_bool

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.column_types import SchemaError, TableColumn, widened
from headrace_connectors.lakehouse.committers.base import (
    CONNECTOR_KEY,
    OFFSETS_KEY,
    BatchIdentity,
    Commit,
    CommitOutcomeUnknownError,
    TableConflictError,
    TableFile,
    TableSchemaError,
    TableUnusableError,
)
from headrace_connectors.lakehouse.committers.iceberg_catalog import CatalogConnection
from headrace_connectors.lakehouse.committers.iceberg_errors import catalog_error, describe_error
from headrace_connectors.lakehouse.committers.iceberg_files import (
    NAME_MAPPING_KEY,
    describe_files,
    missing_name_mapping,
)
from headrace_connectors.lakehouse.committers.iceberg_offsets import (
    BATCH_KEY,
    StoredOffsets,
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
    to_schema,
    to_sort_order,
    to_spec,
)
from headrace_connectors.lakehouse.committers.recovery import ATTEMPTS, RecoveringCommitter
from headrace_connectors.lakehouse.files.data_file import DataFile
from headrace_connectors.lakehouse.files.field_ids import FieldId
from headrace_connectors.lakehouse.files.layout import FileLayout
from headrace_connectors.lakehouse.offsets import TableOffsets, TopicPartition
from headrace_connectors.lakehouse.s3_access import S3Access
from headrace_connectors.lakehouse.table_uri import TableUri, TableUriError

_READ_ATTEMPTS = 5
_READ_RETRY_S = 0.05
_RENEW_S = 300.0
"""The table is loaded again after this time if it is not known when its vended credentials expire."""
_REFUSALS = (
    BadRequestError,
    ForbiddenError,
    NoSuchTableError,
    OAuthError,
    SchemaError,
    UnauthorizedError,
    ValidationException,
)
"""After these errors, the catalog has certainly not applied the commit, and a retry is useless."""
_NEW_TABLE_PROPERTIES = {
    "format-version": "2",
    # Iceberg's default, but not pyiceberg's. Without it, each commit gets slower by 0.2 ms.
    "commit.manifest-merge.enabled": "true",
    # A commit each second writes 86,400 metadata files a day. The newest 100 are kept.
    "write.metadata.delete-after-commit.enabled": "true",
}
logger = logging.getLogger(__name__)
_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:")


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
    """A transaction that is sent to the catalog exactly once, and never deletes a file.

    pyiceberg copies the whole metadata whenever a transaction is asked for it, 15 times per commit and 0.08 ms for each
    snapshot in the table. This class copies it once for each update.
    """

    _metadata: tuple[tuple[TableUpdate, ...], TableMetadata] | None = None
    """The updates, and the metadata with them."""

    @property
    def table_metadata(self) -> TableMetadata:
        if not self._updates:
            return self._table.metadata
        if self._metadata is None or self._metadata[0] is not self._updates:
            self._metadata = (self._updates, super().table_metadata)
        return self._metadata[1]

    def commit_transaction(self) -> Table:
        requirements = (*self._requirements, AssertTableUUID(uuid=self._table.metadata.table_uuid))
        self._table._do_commit(self._updates, requirements)
        return self._table


class IcebergCommitter(RecoveringCommitter):
    """One Iceberg table. Other tools may change the table at any time."""

    def __init__(
        self, name: str, connection: CatalogConnection, connector: str, table_location: str | None = None
    ) -> None:
        """`table_location` is the location of a table that must be created. By default the catalog chooses it."""
        self.identifier = connection.config.identifier(name)
        super().__init__(name, ".".join(self.identifier), connector)
        self._connection = connection
        self._table_location = table_location
        self._table: Table | None = None
        self._loaded_s = 0.0
        self._snapshot_id = 0
        """The id of the snapshot that the last attempt to commit would have created."""
        self._is_committing = False
        self._is_pending = False
        """Whether the catalog may still apply an attempt of the current commit."""

    # --- reading ----------------------------------------------------------------------------------------------------

    def _read(self, partitions: Sequence[TopicPartition]) -> TableOffsets:
        table = self._load_table_again() if self._is_committing else self._load_table()
        if self._is_committing and table is not None and self._table is not None:
            self._check_same_table(self._table, table)
        self._set_table(table)
        stored = stored_offsets(table.metadata, self.connector) if table is not None else None
        return stored.offsets if stored is not None else TableOffsets()

    def _load_table(self) -> Table | None:
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

    def _load_table_again(self) -> Table | None:
        """Load the table after a failed commit, whose result is unknown if the catalog does not answer."""
        for attempt in range(1, _READ_ATTEMPTS):
            try:
                return self._load_table()
            except ConnectError as error:
                logger.warning("Table %s cannot be read after a failed commit: %s; retrying", self.location, error)
                time.sleep(_READ_RETRY_S * 2**attempt)
        return self._load_table()

    def _check_same_table(self, before: Table, after: Table) -> None:
        if before.metadata.table_uuid != after.metadata.table_uuid or _location(before) != _location(after):
            raise ConnectError(
                f"table {self.location} was dropped and created again, or moved, while this task wrote to it;"
                " restart the task"
            )

    def _set_table(self, table: Table | None) -> None:
        self._table = table
        self._loaded_s = time.time()
        if table is None:
            self._columns, self._layout = None, FileLayout()
            return
        try:
            schema = table.schema()
            self._columns = from_schema(schema)
            self._layout = FileLayout(from_spec(table.spec(), schema), from_sort_order(table.sort_order(), schema))
        except SchemaError as error:
            raise self._schema_error(error) from error

    def exists(self) -> bool:
        return self._table is not None

    def field_ids(self) -> dict[str, FieldId]:
        """Return the ids of the columns for `with_field_ids`, or an empty dict if the table does not exist."""
        return field_ids(self._table.schema().fields) if self._table is not None else {}

    def data_location(self) -> str | None:
        if self._table is None:
            return None
        try:
            return str(TableUri.parse(_location(self._table)))
        except TableUriError as error:
            raise TableUnusableError(f"table {self.location} is at {self._table.location()}: {error}") from error

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
        prefix = _location(self._table) + "/"
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
        super().create(widened(columns), layout)

    def _create_table(self, columns: Sequence[TableColumn], layout: FileLayout) -> Table:
        try:
            schema = to_schema(columns)
            spec, order = to_spec(schema, layout), to_sort_order(schema, layout)
        except SchemaError as error:
            raise TableSchemaError(f"table {self.location} cannot be created: {error}") from error
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
        except Exception as error:
            table = self._load_table()  # another process has created it, or the response was lost
            if table is None:
                raise self._error("created", error) from error
            return table

    def _create_namespaces(self, catalog: Catalog) -> None:
        namespace = self.identifier[:-1]
        if catalog.namespace_exists(namespace):
            return
        for length in range(1, len(namespace) + 1):
            try:
                catalog.create_namespace(namespace[:length])
            except NamespaceAlreadyExistsError:
                continue

    # --- commits ----------------------------------------------------------------------------------------------------

    def use_access(self, access: S3Access) -> None:
        """Read the table again with the credentials that the connection has now.

        Raises TableConflictError if another process has changed this connector's offsets.
        """
        before = self._offsets
        if self._table is not None and self.load() != before:
            raise TableConflictError(
                f"table {self.location}: another process has loaded records of this connector;"
                " check whether the connector is running twice"
            )

    def vended_access(self, valid_for_s: float) -> S3Access | None:
        if self._table is None:
            return None
        access = self._connection.vended_access(self._table)
        if access is not None and self._must_renew(access, valid_for_s):
            self.use_access(access)
            access = self._connection.vended_access(self._table)
        location = self.data_location()
        if access is None and location is not None and TableUri.parse(location).is_s3:
            problem = self._connection.missing_credentials(self._table)
            if problem is not None:
                raise ConnectError(f"table {self.location} is at {location}: {problem}")
        return access

    def _must_renew(self, access: S3Access, valid_for_s: float) -> bool:
        """Whether the table must be loaded again, because its credentials expire soon or may have been replaced."""
        now_s = time.time()
        if access.expires_ms is None:
            return now_s - self._loaded_s > _RENEW_S
        expires_s = access.expires_ms / 1000
        return expires_s - now_s < min(valid_for_s, (expires_s - self._loaded_s) / 2)

    def commit(self, commit: Commit) -> None:
        self._is_committing, self._is_pending = True, False
        try:
            super().commit(commit)
        except (CommitOutcomeUnknownError, TableConflictError):
            raise  # after a conflict the main branch has changed, so the catalog applies no earlier attempt
        except ConnectError as error:
            if self._is_pending:
                raise self._unknown(error, commit.add, "and the table does not contain it yet") from error
            raise
        finally:
            self._is_committing = False

    def _apply(self, commit: Commit) -> None:
        batch = batch_text(commit.identity)
        self._commit(_Change(self.connector, batch, {self.connector: commit.offsets}, commit.add, commit.remove))

    def _apply_take_over(self, connector: str, moved: TableOffsets, merged: TableOffsets) -> None:
        assert self._table is not None
        stored = stored_offsets(self._table.metadata, connector)
        assert stored is not None
        remaining = stored.offsets.without(moved.next_offsets)
        identity = BatchIdentity(self.connector, time.time_ns() // 1_000_000, 0)
        self._commit(_Change(self.connector, batch_text(identity), {self.connector: merged, connector: remaining}))

    def _commit(self, change: _Change) -> None:
        if self._table is None:
            raise ConnectError(f"table {self.location} does not exist; restart the task to create it")
        self._snapshot_id = 0  # nothing was sent yet
        transaction, self._snapshot_id = _stage(self._table, change)
        try:
            transaction.commit_transaction()
        except Exception as error:
            self._is_pending |= self._is_ambiguous(error)
            raise

    def _contains(self, commit: Commit) -> bool:
        if self._table is None:
            return False
        stored = stored_offsets(self._table.metadata, self.connector)
        return has_snapshot(self._table.metadata, self._snapshot_id) or stored == StoredOffsets(
            commit.offsets, batch_text(commit.identity)
        )

    def _is_retriable(self, error: Exception) -> bool:
        return not isinstance(error, _REFUSALS)

    def _is_ambiguous(self, error: Exception) -> bool:
        return not isinstance(error, (CommitFailedException, *_REFUSALS))

    def _should_retry(self, error: Exception, attempt: int) -> bool:
        # Also after an unknown result: the catalog applies at most one of the attempts.
        return attempt < ATTEMPTS and self._is_retriable(error)

    def _delete(self, path: str) -> None:
        if self._table is None:
            return
        try:
            self._table.io.delete(f"{_location(self._table)}/{path}")
        except FileNotFoundError:
            return

    # --- errors -----------------------------------------------------------------------------------------------------

    def _error(self, action: str, error: Exception) -> ConnectError:
        return catalog_error(self._connection.config, self.location, action, error)

    def _failure(self, error: Exception, added: Iterable[DataFile], *, is_uncertain: bool) -> ConnectError:
        if isinstance(error, SchemaError):
            return self._schema_error(error)
        return super()._failure(error, added, is_uncertain=True) if is_uncertain else self._error("written", error)

    def _schema_error(self, error: SchemaError) -> TableSchemaError:
        return TableSchemaError(
            f"table {self.location}: {error}; load the records into another table (lakehouse.table.name.format), or"
            " change the table"
        )


def _stage(table: Table, change: _Change) -> tuple[_SingleAttempt, int]:
    """Write the manifests of a change. Nothing refers to them yet. Returns the id of the new snapshot, too."""
    transaction = _SingleAttempt(table)
    added, have_ids = describe_files(table.metadata, _location(table), change.add)
    removed = _find_files(table, change.remove)
    update = transaction.update_snapshot(snapshot_properties=change.summary())
    merges = property_as_bool(table.properties, "commit.manifest-merge.enabled", False)
    producer = update.overwrite() if removed else update.merge_append() if merges else update.fast_append()
    for file in removed:
        producer.delete_data_file(file)
    for file in added:
        producer.append_data_file(file)
    producer.commit()
    snapshot = next(update.snapshot for update in transaction._updates if isinstance(update, AddSnapshotUpdate))
    properties = {
        offsets_property(name): property_value(snapshot, offsets, change.batch)
        for name, offsets in change.offsets.items()
    }
    mapping = missing_name_mapping(table.metadata) if not have_ids else None
    if mapping is not None:
        properties[NAME_MAPPING_KEY] = mapping.model_dump_json()
    transaction.set_properties(properties)
    return transaction, snapshot.snapshot_id


def _find_files(table: Table, files: Sequence[TableFile]) -> list[IcebergDataFile]:
    location = _location(table)
    wanted = {file.path if _ABSOLUTE.match(file.path) else f"{location}/{file.path}" for file in files}
    found = [file for file in _live_files(table) if file.file_path in wanted] if wanted else []
    missing = wanted - {file.file_path for file in found}
    if missing:
        raise ValidationException(f"the table does not contain the file {min(missing)}, which should be removed")
    return found


def _location(table: Table) -> str:
    """Return the URI of the directory for data files, in the form in which manifests have it."""
    return (table.properties.get("write.data.path") or f"{table.location()}/data").rstrip("/")


def _live_files(table: Table) -> Iterator[IcebergDataFile]:
    snapshot = table.current_snapshot()
    for manifest in snapshot.manifests(table.io) if snapshot is not None else ():
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            if entry.data_file.content == DataFileContent.DATA:
                yield entry.data_file
