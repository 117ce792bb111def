"""Stores the offsets of connectors in Iceberg tables, and finds them again.

Each snapshot of a connector has its offsets in the summary (`headrace.offsets`, `headrace.connector`). The newest
snapshot in the history of the main branch counts. So after a user has rolled the table back to an older snapshot, the
offsets are those of that snapshot, and the removed rows are loaded again.

Expiring snapshots may remove a connector's newest snapshot if other writers have committed since. Therefore each commit
also sets the table property `headrace.offsets.<connector>`, with the position of the snapshot in the history. The
property counts only if that snapshot can be an expired ancestor of the current one: if it is older than the oldest
snapshot of the history. (Some tools clear the parent of the oldest snapshot, so the parent does not tell.)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from headrace_connectors.lakehouse.committers.base import CONNECTOR_KEY, OFFSETS_KEY, BatchIdentity
from headrace_connectors.lakehouse.offsets import TableOffsets

BATCH_KEY = "headrace.batch"
"""Key in the snapshot summary. Its value identifies the run and the micro-batch."""


@dataclass(frozen=True, slots=True)
class StoredOffsets:
    """A connector's offsets, and the batch with which they were committed."""

    offsets: TableOffsets
    batch: str = ""


def offsets_property(connector: str) -> str:
    """Return the name of the table property with the offsets of a connector."""
    return f"{OFFSETS_KEY}.{connector}"


def batch_text(identity: BatchIdentity) -> str:
    """Return the text that identifies a batch in a snapshot summary."""
    return f"{identity.app_id}/{identity.batch_id}"


def property_value(snapshot: Snapshot, offsets: TableOffsets, batch: str) -> str:
    """Return the value of the table property that a commit of `snapshot` sets."""
    return json.dumps(
        {
            "snapshot-id": snapshot.snapshot_id,
            "position": _position(snapshot),
            "batch": batch,
            "offsets": json.loads(offsets.to_text()),
        },
        separators=(",", ":"),
    )


def _position(snapshot: Snapshot) -> list[int]:
    # Tables of format version 1 have no sequence numbers.
    return [snapshot.sequence_number or 0, snapshot.timestamp_ms]


def history(metadata: TableMetadata) -> Iterator[Snapshot]:
    """Yield the current snapshot of the main branch and its ancestors, as far as they have not expired."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    snapshot = by_id.get(metadata.current_snapshot_id) if metadata.current_snapshot_id is not None else None
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = by_id.get(parent) if parent is not None else None


def has_snapshot(metadata: TableMetadata, snapshot_id: int) -> bool:
    """Whether the history of the main branch contains a snapshot."""
    return any(snapshot.snapshot_id == snapshot_id for snapshot in history(metadata))


def stored_offsets(metadata: TableMetadata, connector: str) -> StoredOffsets | None:
    """Return a connector's offsets, or None if the table does not have any."""
    oldest: Snapshot | None = None
    for snapshot in history(metadata):
        found = _in_summary(_summary(snapshot), connector)
        if found is not None:
            return found
        oldest = snapshot
    text = metadata.properties.get(offsets_property(connector))
    return _in_property(text, oldest) if text is not None and oldest is not None else None


def connectors(metadata: TableMetadata) -> set[str]:
    """Return the names of all connectors that have committed to the table."""
    prefix = offsets_property("")
    names = {key.removeprefix(prefix) for key in metadata.properties if key.startswith(prefix)}
    return names | {
        name for snapshot in history(metadata) if (name := _summary(snapshot).get(CONNECTOR_KEY)) is not None
    }


def _summary(snapshot: Snapshot) -> Mapping[str, str]:
    return snapshot.summary.additional_properties if snapshot.summary is not None else {}


def _in_summary(summary: Mapping[str, str], connector: str) -> StoredOffsets | None:
    # A snapshot that takes over the offsets of another connector has the offsets of both.
    key = OFFSETS_KEY if summary.get(CONNECTOR_KEY) == connector else offsets_property(connector)
    text = summary.get(key)
    return StoredOffsets(TableOffsets.from_text(text), summary.get(BATCH_KEY, "")) if text is not None else None


def _in_property(text: str, oldest: Snapshot) -> StoredOffsets | None:
    entry: dict[str, Any] = json.loads(text)
    if entry["position"] > _position(oldest):
        return None
    return StoredOffsets(TableOffsets.from_text(json.dumps(entry["offsets"])), entry["batch"])
