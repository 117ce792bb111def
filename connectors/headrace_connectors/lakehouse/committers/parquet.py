"""Commits files to Parquet tables: a directory of data files that contains each record once, and a log of commits.

    <table>/<file>.parquet                  data files, for any reader of a Parquet directory
    <table>/<column>=<value>/<file>         the same with partition fields (Hive's layout)
    <table>/_headrace/commits/<n>.json      commit n (`parquet_log`)
    <table>/_headrace/staged/<folder>/      data files before their commit (`parquet_staging`)

`commit` syncs the staged files. Then it links the file of commit n into place, which fails if commit n exists already.
This link commits the micro-batch. Finally it deletes the files that the commit removes, and renames the new files into
the table, one after the other. If a crash interrupts this, the next `load` by any committer completes it.

Readers of the directory see each committed record at most once. While a commit's files are renamed, which takes
milliseconds, they see some of its files; after a crash until the next `load`. Readers of the commit log see all files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow.parquet as pq

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.committers.base import (
    BatchIdentity,
    Commit,
    TableFile,
    unusable_location_error,
)
from headrace_connectors.lakehouse.committers.parquet_log import (
    CommitExistsError,
    CommitLog,
    LoggedCommit,
    LoggedFile,
)
from headrace_connectors.lakehouse.committers.parquet_staging import Staging
from headrace_connectors.lakehouse.committers.recovery import RecoveringCommitter
from headrace_connectors.lakehouse.files.stores import sync
from headrace_connectors.lakehouse.offsets import TableOffsets, TopicPartition
from headrace_connectors.lakehouse.table_uri import TableUri

_HIDDEN = ("_", ".")


class ParquetCommitter(RecoveringCommitter):
    """Commits to one local Parquet table. The file system must support hard links and locks."""

    def __init__(self, name: str, uri: TableUri, connector: str) -> None:
        super().__init__(name, str(uri), connector)
        self._directory = uri.local
        self._log = CommitLog(self._directory)
        self._staging = Staging(self._directory)
        self._last: LoggedCommit | None = None
        self._attempted = 0

    def exists(self) -> bool:
        """Whether the table has a commit."""
        return self._last is not None

    def data_location(self) -> str:
        """Return this committer's folder for new files."""
        return str(self._staging.root / self._staging.folder)

    def list_files(self) -> list[TableFile]:
        """Return the files in the table's directory."""
        return [
            TableFile(str(path.relative_to(self._directory)), path.stat().st_size, pq.read_metadata(path).num_rows)
            for path in sorted(_visible_files(self._directory))
        ]

    def other_connectors(self, partitions: Iterable[TopicPartition]) -> dict[str, TableOffsets]:
        """Return the offsets of the other connectors, from the last commit."""
        wanted = set(partitions)
        known = self._last.offsets if self._last is not None else {}
        return {
            connector: offsets
            for connector, offsets in known.items()
            if connector != self.connector and not wanted.isdisjoint(offsets.next_offsets)
        }

    def close(self) -> None:
        """Release the lock of the folder for new files."""
        self._staging.close()

    # --- reading ----------------------------------------------------------------------------------------------------

    def _read(self, partitions: Sequence[TopicPartition]) -> TableOffsets:
        existed = self.exists()
        with self._staging.abandoned():
            self._last = self._log.read_last()
            if self._last is not None:
                self._publish(self._last)
        if self._last is None:
            if existed:
                self._columns = None
            self._check_no_foreign_files()
            return TableOffsets()
        self._columns, self._layout = self._last.columns, self._last.layout
        return self._last.offsets.get(self.connector, TableOffsets())

    def _check_no_foreign_files(self) -> None:
        """Raise TableUnusableError if the directory is a Delta table or contains files of other programs.

        Readers of the directory would read the rows of these files as rows of the table. Files are accepted if their
        names begin with ``_`` or ``.``, because readers skip such files.
        """
        names = sorted(os.listdir(self._directory)) if self._directory.is_dir() else []
        if "_delta_log" in names:
            raise unusable_location_error(f"{self._directory} is a Delta table, but lakehouse.format=parquet")
        found = [name for name in names if not name.startswith(_HIDDEN)]
        if found:
            raise unusable_location_error(
                f"{self._directory} contains files that this connector did not write ({found[0]})"
            )

    # --- writing ----------------------------------------------------------------------------------------------------

    def _apply(self, commit: Commit) -> None:
        files = tuple(LoggedFile(file.path, file.size, file.rows) for file in commit.add)
        if files:
            self._sync_staged(files)
        removed = tuple(file.path for file in commit.remove)
        self._link(commit.identity, {self.connector: commit.offsets}, files, removed)

    def _apply_take_over(self, connector: str, moved: TableOffsets, merged: TableOffsets) -> None:
        assert self._last is not None
        remaining = self._last.offsets[connector].without(moved.next_offsets)
        self._link(BatchIdentity(self.connector, 0, 0), {connector: remaining, self.connector: merged})

    def _link(
        self,
        identity: BatchIdentity,
        offsets: dict[str, TableOffsets],
        files: tuple[LoggedFile, ...] = (),
        removed: tuple[str, ...] = (),
    ) -> None:
        """Write the next commit, and make its files visible."""
        assert self._columns is not None
        last = self._last
        if last is not None and not self._log.has(last.number):
            raise ConnectError(f"table {self.location} was removed by another process; restart the task")
        self._attempted = 0 if last is None else last.number + 1
        commit = LoggedCommit(
            number=self._attempted,
            identity=identity,
            offsets={**(last.offsets if last is not None else {}), **offsets},
            columns=self._columns,
            layout=self._layout,
            files=files,
            removed=removed,
            staged=self._staging.folder,
        )
        folder = self._staging.root / self._staging.folder
        folder.mkdir(parents=True, exist_ok=True)
        self._log.write(commit, folder / "commit.json")
        self._last = commit
        self._publish(commit)

    def _sync_staged(self, files: Sequence[LoggedFile]) -> None:
        """Sync the staged files and their directories. Raises ConnectError if they cannot be committed."""
        staged = self._staging.root / self._staging.folder
        directories = {staged.parent, staged}
        for file in files:
            if (self._directory / file.path).exists():
                raise ConnectError(f"table {self.location} already contains a file {file.path}")
            sync(staged / file.path)
            directories.update(_parents(staged / file.path, staged))
        for directory in directories:
            sync(directory)

    def _publish(self, commit: LoggedCommit) -> None:
        """Delete the removed files, and rename the new ones into the table. Does nothing if that has been done."""
        staged = self._staging.root / commit.staged
        pending = [file for file in commit.files if (staged / file.path).exists()]
        directories: set[Path] = set()
        for path in commit.removed:
            if pending or not commit.files:
                (self._directory / path).unlink(missing_ok=True)
                directories.add((self._directory / path).parent)
        for file in pending:
            target = self._directory / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.rename(staged / file.path, target)
            except FileNotFoundError:
                if not target.exists():  # otherwise another process has completed this commit
                    raise
            directories.update(_parents(target, self._directory))
        for directory in directories:
            if directory.is_dir():
                sync(directory)

    def _contains(self, commit: Commit) -> bool:
        return self._last is not None and self._log.contains(commit.identity, self._attempted, self._last.number)

    def _is_retriable(self, error: Exception) -> bool:
        return isinstance(error, CommitExistsError)

    def _delete(self, path: str) -> None:
        (self._staging.root / self._staging.folder / path).unlink(missing_ok=True)


def _parents(path: Path, root: Path) -> Iterator[Path]:
    """Yield the directories of a file, up to and including `root`."""
    for parent in path.parents:
        yield parent
        if parent == root:
            return


def _visible_files(directory: Path) -> Iterator[Path]:
    """Yield the files that readers of the directory see."""
    for entry in os.scandir(directory) if directory.is_dir() else ():
        if entry.name.startswith(_HIDDEN):
            continue
        if entry.is_dir():
            yield from _visible_files(Path(entry.path))
        else:
            yield Path(entry.path)
