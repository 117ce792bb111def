"""The commit log of a Parquet table: one JSON file per commit, which a hard link creates.

    <table>/_headrace/commits/<n>.json

A commit contains its files, the files that it removes, the table's columns and partition fields, and the offsets of
every connector that loads the table. So the last commit describes the offsets of the whole table. The last release
wrote commits with one file (`file`) and the offsets of all connectors together; `read_last` converts them. Commits of
this release have no key `file`. Therefore the last release refuses a table to which this release has committed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from headrace_connectors.lakehouse.column_types import TableColumn
from headrace_connectors.lakehouse.committers.base import OFFSETS_KEY, BatchIdentity
from headrace_connectors.lakehouse.committers.columns import columns_from_text, columns_to_text
from headrace_connectors.lakehouse.files.layout import FileLayout, PartitionField
from headrace_connectors.lakehouse.files.stores import sync
from headrace_connectors.lakehouse.offsets import TableOffsets
from headrace_connectors.lakehouse.values.arrow_types import columns_from_arrow

_COMMIT_NAME = re.compile(r"(\d{20})\.json")


class CommitExistsError(Exception):
    """Another process has written the commit with this number."""


@dataclass(frozen=True, slots=True)
class LoggedFile:
    """A file of a commit. `path` is relative to the table."""

    path: str
    size: int | None = None
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class LoggedCommit:
    """A commit. `staged` is the folder below `_headrace/staged` in which the files were written ("" for none)."""

    number: int
    identity: BatchIdentity
    offsets: dict[str, TableOffsets]
    columns: tuple[TableColumn, ...]
    layout: FileLayout = field(default_factory=FileLayout)
    files: tuple[LoggedFile, ...] = ()
    removed: tuple[str, ...] = ()
    staged: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the content of the commit's file."""
        own = self.identity.connector
        return {
            "commit": self.number,
            "connector": own,
            "generation": self.identity.generation,
            "batch": self.identity.batch_id,
            "rows": sum(file.rows or 0 for file in self.files),
            "files": [{"path": file.path, "size": file.size, "rows": file.rows} for file in self.files],
            "removed": list(self.removed),
            "staged": self.staged,
            "columns": columns_to_text(self.columns),
            "partition_fields": [[each.column, each.transform, each.argument] for each in self.layout.partition_fields],
            OFFSETS_KEY: self.offsets[own].to_text(),
            "other_connectors": {
                name: offsets.to_text() for name, offsets in sorted(self.offsets.items()) if name != own
            },
        }


class CommitLog:
    """Reads and writes the commits of one table."""

    def __init__(self, table: Path) -> None:
        self._table = table
        self._commits = table / "_headrace" / "commits"

    def read_last(self) -> LoggedCommit | None:
        """Return the last commit, or None if there is none."""
        names = sorted(filter(_COMMIT_NAME.fullmatch, os.listdir(self._commits))) if self._commits.is_dir() else []
        return self._parse(self._document(int(names[-1].removesuffix(".json")))) if names else None

    def has(self, number: int) -> bool:
        """Whether the log has the commit with this number."""
        return self._path(number).exists()

    def contains(self, identity: BatchIdentity, first: int, last: int) -> bool:
        """Whether one of the commits `first` to `last` is of this micro-batch."""
        return any(_identity(self._document(number)) == identity for number in range(first, last + 1))

    def write(self, commit: LoggedCommit, temporary: Path) -> None:
        """Write a commit: write a temporary file, and link it into the log. Raises CommitExistsError."""
        self._commits.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(commit.to_json()) + "\n")
        sync(temporary)
        try:
            os.link(temporary, self._path(commit.number))
        except FileExistsError:
            raise CommitExistsError(f"another process has written commit {commit.number}") from None
        finally:
            temporary.unlink()
        sync(self._commits)

    def _path(self, number: int) -> Path:
        return self._commits / f"{number:020d}.json"

    def _document(self, number: int) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self._path(number).read_text())
        return document

    def _parse(self, document: dict[str, Any]) -> LoggedCommit:
        identity = _identity(document)
        if "file" in document:
            return self._parse_last_release(document, identity)
        others = {name: TableOffsets.from_text(text) for name, text in document["other_connectors"].items()}
        return LoggedCommit(
            number=int(document["commit"]),
            identity=identity,
            offsets={**others, identity.connector: TableOffsets.from_text(document[OFFSETS_KEY])},
            columns=columns_from_text(document["columns"]),
            layout=FileLayout(tuple(PartitionField(*each) for each in document["partition_fields"])),
            files=tuple(LoggedFile(each["path"], each["size"], each["rows"]) for each in document["files"]),
            removed=tuple(document["removed"]),
            staged=document["staged"],
        )

    # --- commits of the last release --------------------------------------------------------------------------------

    def _parse_last_release(self, document: dict[str, Any], identity: BatchIdentity) -> LoggedCommit:
        files = (LoggedFile(document["file"], rows=document["rows"]),) if document["file"] is not None else ()
        return LoggedCommit(
            number=int(document["commit"]),
            identity=identity,
            offsets=self._offsets_by_connector(document),
            columns=self._columns_of(document["schema_file"]),
            files=files,
        )

    def _columns_of(self, schema_file: str | None) -> tuple[TableColumn, ...]:
        if schema_file is None:
            return ()
        staged = self._table / "_headrace" / "staged" / schema_file
        return columns_from_arrow(pq.read_schema(staged if staged.exists() else self._table / schema_file))

    def _offsets_by_connector(self, document: dict[str, Any]) -> dict[str, TableOffsets]:
        """Return the offsets by connector: a topic belongs to the connector that changed one of its offsets last.

        So a connector that was renamed keeps its topics, because the last release ignored names.
        """
        everything = TableOffsets.from_text(document[OFFSETS_KEY])
        owners = self._owners(document)
        return {
            connector: TableOffsets(
                {key: offset for key, offset in everything.next_offsets.items() if owners[key[0]] == connector},
                {topic: id_ for topic, id_ in everything.topic_ids.items() if owners.get(topic) == connector},
            )
            for connector in set(owners.values())
        }

    def _owners(self, last: dict[str, Any]) -> dict[str, str]:
        owners: dict[str, str] = {}
        topics = {topic for topic, _ in TableOffsets.from_text(last[OFFSETS_KEY]).next_offsets}
        for commit, previous in self._backwards(last):
            now = TableOffsets.from_text(commit[OFFSETS_KEY]).next_offsets
            before = TableOffsets.from_text(previous[OFFSETS_KEY]).next_offsets if previous is not None else {}
            for (topic, partition), offset in now.items():
                if offset != before.get((topic, partition)):
                    owners.setdefault(topic, commit["connector"])
            if topics <= owners.keys():
                break
        return owners

    def _backwards(self, last: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
        """Yield each commit with the commit before it, the last commit first."""
        commit = last
        while True:
            number = int(commit["commit"]) - 1
            previous = self._document(number) if self.has(number) else None
            yield commit, previous
            if previous is None:
                return
            commit = previous


def _identity(document: dict[str, Any]) -> BatchIdentity:
    return BatchIdentity(document["connector"], int(document["generation"]), int(document["batch"]))
