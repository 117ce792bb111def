"""Parquet tables: a directory of data files that holds each record once, and a log of commits beside them.

    <table>/part-<commit>.parquet           what every reader of a Parquet directory reads
    <table>/_headrace/commits/<n>.json      commit n: its data file, rows, offsets, who wrote it
    <table>/_headrace/staged/               data files before their commit; readers skip names that begin with _

A batch is written to `staged`, made durable, then its commit file is linked into place, which fails when commit n is
already there: that is the moment the batch counts. Then the data file is renamed into the table. A crash between the
two is mended by the next `committed`, which renames what the last commit lists and removes what no commit lists. So a
reader of the directory sees a record once or, in that gap, not yet; a reader of the commit log sees all that counts.
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

_COMMIT_NAME = re.compile(r"(\d{20})\.json")


class ParquetWriter(TableWriter):
    """Writes one Parquet table on a file system with atomic links."""

    _last: dict[str, Any] | None = None

    @property
    def _commits(self) -> Path:
        return self.directory / "_headrace" / "commits"

    @property
    def _staged(self) -> Path:
        return self.directory / "_headrace" / "staged"

    def committed(self, partitions: Iterable[TopicPartition] = ()) -> Position:
        """Return the offsets of the last commit, after finishing or clearing what a crash left."""
        self._last = self._read_last()
        if self._last is None:
            self._refuse_foreign()
            return Position()
        if self._last["file"] is not None and (self._staged / self._last["file"]).exists():
            self._publish(self._last["file"])
        for name in os.listdir(self._staged):
            (self._staged / name).unlink()
        return offsets_position(self._last[OFFSETS_KEY])

    def _refuse_foreign(self) -> None:
        """Raise TableUnusableError when there are files that readers of the directory would take for rows of ours."""
        names = sorted(os.listdir(self.directory)) if self.directory.is_dir() else []
        if "_delta_log" in names:
            raise unusable(self.directory, "is a Delta table, and lakehouse.format=parquet is set")
        found = [name for name in names if not name.startswith(("_", "."))]
        if found:
            raise unusable(self.directory, f"holds files that this connector did not write ({found[0]})")

    def columns(self) -> pa.Schema | None:
        """Return the columns of the newest commit with rows."""
        if self._last is None or self._last["schema_file"] is None:
            return None
        schema = pq.read_schema(self.directory / self._last["schema_file"])
        return schema.remove_metadata()

    def write(self, identity: BatchIdentity, rows: pa.Table, position: Position) -> None:
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
            OFFSETS_KEY: offsets_json(position),
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
                f"table {self.directory}: another process has written commit {number} meanwhile;"
                " is the connector running twice?"
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
    """Make a file's bytes, or a directory's names, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
