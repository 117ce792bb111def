"""The interface of committers, and the code that all table formats share.

A committer adds and removes files of one table in one commit, which also stores the connector's offsets. So the rows
and offsets of a table cannot diverge. The files are written before, by the executors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.column_types import TableColumn
from headrace_connectors.lakehouse.files.data_file import DataFile
from headrace_connectors.lakehouse.files.field_ids import FieldId
from headrace_connectors.lakehouse.files.layout import FileLayout
from headrace_connectors.lakehouse.offsets import TableOffsets, TopicPartition
from headrace_connectors.lakehouse.s3_access import S3Access

OFFSETS_KEY = "headrace.offsets"
"""Key in the commit metadata. Its value is JSON with the topic ids and the next offsets of all partitions."""
CONNECTOR_KEY = "headrace.connector"
"""Key in the commit metadata. Its value is the name of the connector that made the commit."""


class TableSchemaError(ConnectError):
    """The columns of the table and of the records do not match."""


class TableUnusableError(ConnectError):
    """The committer rejects the table's location, because it contains files that do not belong to the table."""


class TableConflictError(ConnectError):
    """Another process has loaded the same offsets into the table, so this task must fail."""


class CommitOutcomeUnknownError(ConnectError):
    """The commit may have been applied, and the table could not be read afterwards. No file may be deleted."""


@dataclass(frozen=True, slots=True)
class BatchIdentity:
    """Identifies a micro-batch by connector, generation and batch id.

    The generation is the start time of the task's run in milliseconds, and `batch_id` counts the run's micro-batches.
    """

    connector: str
    generation: int
    batch_id: int

    @property
    def app_id(self) -> str:
        return f"headrace/{self.connector}/{self.generation}"

    def partition_app_id(self, key: TopicPartition) -> str:
        """Return the Delta application id under which the connector's next offset of a partition is stored."""
        return partition_app_id(self.connector, key)


def partition_app_id(connector: str, key: TopicPartition) -> str:
    """Return the Delta application id under which a connector's next offset of a partition is stored."""
    return f"headrace/{connector}/{key[0]}/{key[1]}"


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file that the table contains: its path relative to the table's location, its size and its rows."""

    path: str
    size: int
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """Files to add and to remove, and the table's offsets afterwards. A commit may contain only offsets."""

    identity: BatchIdentity
    offsets: TableOffsets
    add: Sequence[DataFile] = ()
    remove: Sequence[TableFile] = ()


class TableCommitter(ABC):
    """One table. This class is not thread-safe; each table has its own committer.

    Errors are ConnectErrors whose messages name the table. `name` is the table's name relative to the root of all
    tables, `location` what messages show: a local directory, a URI or an Iceberg identifier.
    """

    name: str
    location: str

    @abstractmethod
    def load(self, partitions: Iterable[TopicPartition] = ()) -> TableOffsets:
        """Read the table's current state, and return this connector's offsets in it (empty if there are none).

        The metadata of the connector's last commit contains them. If the history no longer has that commit, the result
        has at least the offsets of `partitions`, if the format stores them elsewhere (Delta's transaction identifiers).
        Completes a commit that a crash interrupted (Parquet's renames). Raises TableUnusableError.
        """

    @abstractmethod
    def exists(self) -> bool:
        """Whether the table existed when it was last loaded, or has been created since."""

    @abstractmethod
    def columns(self) -> tuple[TableColumn, ...] | None:
        """Return all columns of the loaded table, with the metadata columns, or None if it does not exist."""

    @abstractmethod
    def layout(self) -> FileLayout | None:
        """Return the partition fields of the existing table, or None if it does not exist.

        Sort fields are included only if the format stores them.
        """

    @abstractmethod
    def data_location(self) -> str | None:
        """Return the directory or URI into which executors write new files, or None until `create` was called.

        A format whose tables have their location before they exist (Delta, Parquet) never returns None.
        """

    @abstractmethod
    def create(self, columns: Sequence[TableColumn], layout: FileLayout) -> None:
        """Declare the columns of a table that does not exist yet.

        Iceberg creates the table, without rows or offsets. Delta and Parquet store the columns for the first commit.
        Does nothing if the table exists with equal columns. Raises TableSchemaError otherwise.
        """

    @abstractmethod
    def commit(self, commit: Commit) -> None:
        """Add and remove files and store the offsets, in one commit. Creates the table if it does not exist.

        Conflicts with commits of other tools are retried. After any error except a clean refusal, the committer reads
        the table again and looks for this batch's offsets: if they are there, the commit was applied. Raises
        TableConflictError if another process has changed this connector's offsets since `load`, TableSchemaError if the
        columns no longer match, CommitOutcomeUnknownError, and ConnectError if the commit was refused.
        """

    @abstractmethod
    def other_connectors(self, partitions: Iterable[TopicPartition]) -> dict[str, TableOffsets]:
        """Return the offsets of other connectors for at least one of these partitions, by connector name."""

    @abstractmethod
    def take_over(self, connector: str, partitions: Iterable[TopicPartition]) -> TableOffsets:
        """Move another connector's offsets for `partitions` to this connector, in one commit without files.

        Return this connector's offsets afterwards. The commit fences the other connector: its next commit to the table
        raises TableConflictError, and its `load` no longer returns these offsets. Does nothing if the table does not
        exist, or if `other_connectors` does not return `connector`. Call `load` before.
        """

    @abstractmethod
    def list_files(self) -> list[TableFile]:
        """Return the files that the table contains now."""

    def field_ids(self) -> dict[str, FieldId]:
        """Return the ids that files of the table must have, for `with_field_ids`. Only Iceberg tables have them."""
        return {}

    def use_access(self, access: S3Access) -> None:
        """Use other S3 credentials from now on.

        Raises TableConflictError if another process has changed this connector's offsets.
        """
        return

    def vended_access(self, valid_for_s: float) -> S3Access | None:
        """Return the S3 credentials that the table's catalog has vended for it, or None if there are none.

        Renews credentials that expire within `valid_for_s` seconds. Raises ConnectError if the table is on S3, but
        neither the catalog nor the connector's configuration has credentials.
        """
        return None

    def discard(self, files: Sequence[DataFile]) -> None:
        """Delete files that were never part of any commit. Errors are logged, because readers never see them."""
        return

    def close(self) -> None:
        """Release resources."""
        return


def unusable_location_error(problem: str) -> TableUnusableError:
    """Return the error for a table's location with files that do not belong to the table.

    The message consists of `problem`, which must name the location, and advice for the user.
    """
    return TableUnusableError(
        f"{problem}; set another table name (lakehouse.table.name.format) or lakehouse.path, or move these files away"
    )
