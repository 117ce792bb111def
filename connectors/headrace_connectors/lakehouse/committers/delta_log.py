"""Reads the offsets of all connectors from the log of a Delta table: from its commits and its newest checkpoint.

delta-rs returns a transaction identifier only if its name is known, and its `history` blocks all threads of the
process while it waits for S3.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import pyarrow.parquet as pq

from headrace_connectors.lakehouse.committers.base import CONNECTOR_KEY, OFFSETS_KEY
from headrace_connectors.lakehouse.files.stores import FileStore
from headrace_connectors.lakehouse.offsets import TableOffsets, TopicPartition

_PARTITION_APP_ID = re.compile(r"headrace/(.+)/([^/]+)/(\d+)", re.DOTALL)
_COMMIT_INFO = b'{"commitInfo"'


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The version of a checkpoint, and the next offset of each partition by connector."""

    version: int
    offsets: dict[str, dict[TopicPartition, int]]


class DeltaLog:
    """The log of a table as of one version."""

    def __init__(self, store: FileStore, location: str, version: int) -> None:
        self._store = store
        self._location = location
        self._version = version

    def offsets_of(self, connector: str) -> TableOffsets:
        """Return the offsets in the connector's newest commit.

        If that commit is no longer in the log, the result has the offsets in the checkpoint, and no topic ids.
        """
        for version, name, offsets in self._commits():
            if name == connector:
                return offsets
            if self.checkpoint is not None and version == self.checkpoint.version and not self._checkpointed(connector):
                break
        return TableOffsets(self._checkpointed(connector))

    def offsets_by_connector(self) -> dict[str, TableOffsets]:
        """Return the newest known offsets of every connector."""
        newest: dict[str, TableOffsets] = {}
        for version, name, offsets in self._commits():
            if self.checkpoint is not None and version < self.checkpoint.version:
                break
            if name is not None:
                newest.setdefault(name, offsets)
        for name, checkpointed in (self.checkpoint.offsets if self.checkpoint is not None else {}).items():
            known = newest.get(name, TableOffsets())
            newest[name] = TableOffsets({**checkpointed, **known.next_offsets}, known.topic_ids)
        return newest

    @cached_property
    def checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint, or None if there is none that can be read."""
        try:
            pointer = json.loads(self._read("_last_checkpoint"))
            version, parts = int(pointer["version"]), int(pointer.get("parts") or 1)
            names = [_checkpoint_name(version, part, parts) for part in range(1, parts + 1)]
            return Checkpoint(version, self._transactions(names))
        except FileNotFoundError:  # no checkpoint, or one of a newer format with another name
            return None

    def _checkpointed(self, connector: str) -> dict[TopicPartition, int]:
        return self.checkpoint.offsets.get(connector, {}) if self.checkpoint is not None else {}

    def _commits(self) -> Iterator[tuple[int, str | None, TableOffsets]]:
        """Yield the version, connector and offsets of each commit, the newest one first.

        The connector is None if the commit has no offsets. The iteration ends where the log has been cleaned up.
        """
        for version in range(self._version, -1, -1):
            try:
                content = self._read(f"{version:020d}.json")
            except FileNotFoundError:
                return
            info = _commit_info(content)
            if OFFSETS_KEY in info and CONNECTOR_KEY in info:
                yield version, info[CONNECTOR_KEY], TableOffsets.from_text(info[OFFSETS_KEY])
            else:
                yield version, None, TableOffsets()

    def _transactions(self, names: list[str]) -> dict[str, dict[TopicPartition, int]]:
        found: dict[str, dict[TopicPartition, int]] = defaultdict(dict)
        for name in names:
            with self._store.open_input(self._location, f"_delta_log/{name}") as stream:
                rows = pq.read_table(stream, columns=["txn"])["txn"].to_pylist()
            for row in rows:
                match = _PARTITION_APP_ID.fullmatch(row["appId"]) if row and row["appId"] else None
                if match is not None:
                    found[match[1]][match[2], int(match[3])] = int(row["version"])
        return dict(found)

    def _read(self, name: str) -> bytes:
        with self._store.open_input(self._location, f"_delta_log/{name}") as stream:
            content: bytes = stream.read()
        return content


def _commit_info(content: bytes) -> dict[str, str]:
    for line in content.splitlines():
        if line.startswith(_COMMIT_INFO):
            info: dict[str, str] = json.loads(line)["commitInfo"]
            return info
    return {}


def _checkpoint_name(version: int, part: int, parts: int) -> str:
    suffix = "" if parts == 1 else f".{part:010d}.{parts:010d}"
    return f"{version:020d}.checkpoint{suffix}.parquet"
