"""The commit procedure that committers share: after any error they read the table again before they do anything else.

The rules: a commit that the table contains was applied, whatever the error said. If another process has changed this
connector's offsets, the commit fails. A conflict with another tool's commit is retried on the new state of the table.
If the result of a commit is unknown, its files are never deleted.
"""

from __future__ import annotations

import logging
import random
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.column_types import TableColumn
from headrace_connectors.lakehouse.committers.base import (
    Commit,
    CommitOutcomeUnknownError,
    TableCommitter,
    TableConflictError,
)
from headrace_connectors.lakehouse.committers.columns import check_columns, check_partition_fields
from headrace_connectors.lakehouse.error_messages import error_text, table_error
from headrace_connectors.lakehouse.files.data_file import DataFile
from headrace_connectors.lakehouse.files.layout import FileLayout
from headrace_connectors.lakehouse.offsets import TableOffsets, TopicPartition

ATTEMPTS = 10
_AMBIGUOUS_RETRY_S = 0.5
_CONFLICT_RETRY_S = 0.02
_BACK_OFF_MAX_S = 2.0
logger = logging.getLogger(__name__)


class RecoveringCommitter(TableCommitter):
    """A committer with this commit procedure. Subclasses access the table.

    `_offsets` are this connector's offsets in the table as of the last `load` or commit. `_columns` and `_layout` are
    those of the existing table, or those that `create` declared for the first commit.
    """

    ambiguous_attempts = ATTEMPTS
    """How often a commit is tried if its result is unknown. Some libraries have tried it several times before."""

    def __init__(self, name: str, location: str, connector: str) -> None:
        self.name = name
        self.location = location
        self.connector = connector
        self._offsets = TableOffsets()
        self._columns: tuple[TableColumn, ...] | None = None
        self._layout = FileLayout()
        self._unknown_paths: set[str] = set()

    def load(self, partitions: Iterable[TopicPartition] = ()) -> TableOffsets:
        """Read the table, and return this connector's offsets."""
        try:
            self._offsets = self._read(tuple(partitions))
        except ConnectError:
            raise
        except Exception as error:  # delta-rs and file systems raise exceptions without a common base class
            raise table_error(self.location, "read", error) from error
        return self._offsets

    def columns(self) -> tuple[TableColumn, ...] | None:
        """Return the columns of the existing table."""
        return self._columns if self.exists() else None

    def layout(self) -> FileLayout | None:
        """Return the partition fields of the existing table."""
        return self._layout if self.exists() else None

    def create(self, columns: Sequence[TableColumn], layout: FileLayout) -> None:
        """Store columns and partition fields for the first commit, or compare them with those of the table."""
        if self.exists() and self._columns is not None:
            check_columns(self.location, self._columns, columns)
            check_partition_fields(self.location, self._layout, layout)
        else:
            self._columns, self._layout = tuple(columns), FileLayout(layout.partition_fields)

    def commit(self, commit: Commit) -> None:
        """Commit files and offsets, and recover from errors as the module's docstring says."""
        before = self._offsets.next_offsets
        if self._columns is None:
            raise ConnectError(f"table {self.location} does not exist, and its columns are not known")
        is_uncertain = False
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._apply(commit)
                break
            except ConnectError:
                raise
            except Exception as error:
                if self._is_applied_despite(error, commit, before):
                    logger.info("Table %s contains the commit despite the error: %s", self.location, error_text(error))
                    break
                is_uncertain = is_uncertain or self._is_ambiguous(error)
                if not self._should_retry(error, attempt):
                    raise self._failure(error, commit.add, is_uncertain=is_uncertain) from error
                self._log_retry(error)
                self._back_off(error, attempt)
        self._offsets = commit.offsets

    def take_over(self, connector: str, partitions: Iterable[TopicPartition]) -> TableOffsets:
        """Move the offsets of another connector to this one."""
        wanted = set(partitions)
        for attempt in range(1, ATTEMPTS + 1):
            found = self.other_connectors(wanted).get(connector, TableOffsets())
            moved = found.only(wanted)
            if not moved.next_offsets:
                break
            try:
                self._apply_take_over(connector, moved, _merged(self._offsets, moved))
            except ConnectError:
                raise
            except Exception as error:
                if not self._should_retry(error, attempt):
                    raise table_error(self.location, "written", error) from error
                self._log_retry(error)
                self._back_off(error, attempt)
            self.load(wanted | self._offsets.next_offsets.keys())
        return self._offsets

    def discard(self, files: Sequence[DataFile]) -> None:
        """Delete files, except those of commits whose result is unknown."""
        for file in files:
            if file.path in self._unknown_paths:
                continue
            try:
                self._delete(file.path)
            except OSError as error:
                logger.warning(
                    "Table %s: file %s cannot be deleted (%s); it is not part of the table",
                    self.location,
                    file.path,
                    error_text(error),
                )

    # --- for subclasses ---------------------------------------------------------------------------------------------

    @abstractmethod
    def _read(self, partitions: Sequence[TopicPartition]) -> TableOffsets:
        """Read the table, set `_columns` and `_layout`, and return this connector's offsets."""

    @abstractmethod
    def _apply(self, commit: Commit) -> None:
        """Try to commit once. A ConnectError means that the commit was refused before anything was written."""

    @abstractmethod
    def _apply_take_over(self, connector: str, moved: TableOffsets, merged: TableOffsets) -> None:
        """Try once to commit `merged` as this connector's offsets, and to remove `moved` from those of `connector`."""

    @abstractmethod
    def _contains(self, commit: Commit) -> bool:
        """Whether the table, which was just read, contains the commit."""

    @abstractmethod
    def _is_retriable(self, error: Exception) -> bool:
        """Whether the commit can be tried again: a conflict with another commit, or an unknown result."""

    def _is_ambiguous(self, error: Exception) -> bool:
        """Whether the storage may still apply the commit after this error."""
        return False

    @abstractmethod
    def _delete(self, path: str) -> None:
        """Delete a file that no commit mentions. Does nothing if it does not exist. Raises OSError."""

    # --- the procedure ----------------------------------------------------------------------------------------------

    def _is_applied_despite(self, error: Exception, commit: Commit, before: Mapping[TopicPartition, int]) -> bool:
        """Read the table again after an error. Return whether it contains the commit.

        Raises TableConflictError, TableSchemaError or CommitOutcomeUnknownError if the commit must not be tried again.
        """
        existed, columns, layout = self.exists(), self._columns, self._layout
        assert columns is not None
        try:
            now = self.load({*before, *commit.offsets.next_offsets}).next_offsets
            if self._contains(commit):
                return True
        except ConnectError as read_error:
            raise self._unknown(error, commit.add, f"and the table cannot be read now ({read_error})") from error
        if self._columns is None:
            self._columns, self._layout = columns, layout
        if existed and not self.exists():
            raise ConnectError(f"table {self.location} was removed by another process ({error_text(error)})") from error
        if any(now.get(key, 0) != before.get(key, 0) for key in {*before, *commit.offsets.next_offsets}):
            raise TableConflictError(
                f"table {self.location}: another process has loaded the same offsets ({error_text(error)});"
                " check whether the connector is running twice"
            ) from error
        if self.exists():
            check_columns(self.location, self._columns, columns)
            check_partition_fields(self.location, self._layout, layout)
            self._check_removed_files(commit, error)
        return False

    def _check_removed_files(self, commit: Commit, error: Exception) -> None:
        remaining = {file.path for file in self.list_files()} if commit.remove else set()
        for file in commit.remove:
            if file.path not in remaining:
                raise ConnectError(
                    f"table {self.location}: another tool has removed or rewritten file {file.path}, which the commit"
                    " replaces; restart the task, which then reads the table again"
                ) from error

    def _failure(self, error: Exception, added: Iterable[DataFile], *, is_uncertain: bool) -> ConnectError:
        """Return the error for a commit that is not tried again. The storage may still apply it if `is_uncertain`."""
        if is_uncertain:
            return self._unknown(error, added, "and the table does not contain it yet")
        return table_error(self.location, "written", error)

    def _unknown(self, error: Exception, added: Iterable[DataFile], state: str) -> CommitOutcomeUnknownError:
        self._unknown_paths.update(file.path for file in added)
        return CommitOutcomeUnknownError(
            f"table {self.location}: the result of the commit is unknown ({error_text(error)}), {state};"
            " restart the task, which then continues from the offsets in the table"
        )

    def _should_retry(self, error: Exception, attempt: int) -> bool:
        attempts = self.ambiguous_attempts if self._is_ambiguous(error) else ATTEMPTS
        return attempt < attempts and self._is_retriable(error)

    def _log_retry(self, error: Exception) -> None:
        if self._is_ambiguous(error):
            logger.warning(
                "Table %s: the commit failed (%s), and the table does not contain it; retrying it",
                self.location,
                error_text(error),
            )
        else:
            logger.info(
                "Table %s was changed by another tool (%s), retrying the commit", self.location, error_text(error)
            )

    def _back_off(self, error: Exception, attempt: int) -> None:
        """Wait before the next attempt. The random time lets connectors that share a table commit in turn."""
        shortest = _AMBIGUOUS_RETRY_S if self._is_ambiguous(error) else 0.0
        time.sleep(shortest + random.uniform(0, min(_BACK_OFF_MAX_S, _CONFLICT_RETRY_S * 2**attempt)))


def _merged(own: TableOffsets, moved: TableOffsets) -> TableOffsets:
    offsets = dict(own.next_offsets)
    for key, offset in moved.next_offsets.items():
        offsets[key] = max(offset, offsets.get(key, 0))
    return TableOffsets(offsets, {**moved.topic_ids, **own.topic_ids})
