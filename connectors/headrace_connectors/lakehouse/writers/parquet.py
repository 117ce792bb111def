"""Writes Parquet tables: a directory of data files that contains each record once, and a log of commits.

    <table>/part-<commit>.parquet           data files, for any reader of a Parquet directory
    <table>/_headrace/commits/<n>.json      commit n: its data file, row count, offsets and batch identity
    <table>/_headrace/staged/               data files before their commit; readers skip names that start with _

`write` writes the data file to `staged` and syncs it. Then it links the file of commit n into place, which fails if
commit n exists already. This link commits the micro-batch. Finally it renames the data file into the table. After a
crash before the rename, the next call of `committed` renames the data file of the last commit and deletes all other
staged files. So readers of the directory see each committed record at most once, and exactly once after the rename.
Readers of the commit log see all committed records.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

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

_COMMIT_NAME = re.compile(r"(\d{20})\.json")


class ParquetWriter(TableWriter):
    """Writes one Parquet table. The file system must support hard links, and must create them atomically."""

    _last: dict[str, Any] | None = None

    @property
    def _commits(self) -> Path:
        return self.directory / "_headrace" / "commits"

    @property
    def _staged(self) -> Path:
        return self.directory / "_headrace" / "staged"

    def committed(self, partitions: Iterable[TopicPartition] = ()) -> KafkaSourceOffset:
        """Repair the table if a crash interrupted a commit, and return the offsets of the last commit.

        If the data file of the last commit is still staged, rename the data file into the table. Then delete all
        remaining staged files.
        """
        self._last = self._read_last()
        if self._last is None:
            self._check_no_foreign_files()
            return KafkaSourceOffset()
        if self._last["file"] is not None and (self._staged / self._last["file"]).exists():
            self._publish(self._last["file"])
        for name in os.listdir(self._staged):
            (self._staged / name).unlink()
        return parse_offsets_json(self._last[OFFSETS_KEY])

    def _check_no_foreign_files(self) -> None:
        """Raise TableUnusableError if the directory is a Delta table or contains files of other programs.

        Readers of the directory would read the rows of these files as rows of the table. Files are accepted if their
        names begin with ``_`` or ``.``, because readers skip such files.
        """
        names = sorted(os.listdir(self.directory)) if self.directory.is_dir() else []
        if "_delta_log" in names:
            raise unusable_directory_error(f"{self.directory} is a Delta table, but lakehouse.format=parquet")
        found = [name for name in names if not name.startswith(("_", "."))]
        if found:
            raise unusable_directory_error(
                f"{self.directory} contains files that this connector did not write ({found[0]})"
            )

    def columns(self) -> pa.Schema | None:
        """Return the columns of the newest commit with rows."""
        if self._last is None or self._last["schema_file"] is None:
            return None
        schema = pq.read_schema(self.directory / self._last["schema_file"])
        return schema.remove_metadata()

    def write(self, identity: BatchIdentity, rows: pa.Table, offsets: KafkaSourceOffset) -> None:
        """Append rows and offsets in one commit."""
        number = 0 if self._last is None else int(self._last["commit"]) + 1
        for directory in (self._commits, self._staged):
            directory.mkdir(parents=True, exist_ok=True)
        file = f"part-{number:08d}-{identity.generation}-{identity.batch_id}.parquet" if rows.num_rows else None
        if file is not None:
            pq.write_table(rows, self._staged / file, compression="zstd", compression_level=1)
            _sync(self._staged / file)
        commit = {
            "commit": number,
            "file": file,
            "rows": rows.num_rows,
            "schema_file": file or (self._last or {}).get("schema_file"),
            "connector": identity.connector,
            "generation": identity.generation,
            "batch": identity.batch_id,
            OFFSETS_KEY: offsets_json(offsets),
        }
        self._link(number, commit)
        if file is not None:
            self._publish(file)
        self._last = commit

    def _link(self, number: int, commit: dict[str, Any]) -> None:
        temporary = self._staged / f"commit-{commit['generation']}-{commit['batch']}.json"
        temporary.write_text(json.dumps(commit) + "\n")
        _sync(temporary)
        try:
            os.link(temporary, self._commits / f"{number:020d}.json")
        except FileExistsError as error:
            raise TableConflictError(
                f"table {self.directory}: another process has written commit {number};"
                " check whether the connector is running twice"
            ) from error
        finally:
            temporary.unlink()
        _sync(self._commits)

    def _publish(self, file: str) -> None:
        os.rename(self._staged / file, self.directory / file)
        _sync(self.directory)

    def _read_last(self) -> dict[str, Any] | None:
        names = sorted(filter(_COMMIT_NAME.fullmatch, os.listdir(self._commits))) if self._commits.is_dir() else []
        if not names:
            return None
        commit: dict[str, Any] = json.loads((self._commits / names[-1]).read_text())
        return commit


def _sync(path: Path) -> None:
    """Sync a file's data or a directory's entries to disk, so that they survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
