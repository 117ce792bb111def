"""Metadata snapshots on disk, in Kafka's format: `<end offset, 20 digits>-<epoch, 10 digits>.checkpoint`.

A snapshot file contains record batches from offset 0 on: a header record, metadata records, a footer record. A file
with the suffix `.part` is not complete and is not used. A complete file is synced and then renamed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from headrace_broker.log.storage import Storage
from headrace_broker.metadata.protections import describe, protections_in
from headrace_broker.protocol.control_records import SnapshotFooterRecord, SnapshotHeaderRecord, encode_control_value
from headrace_broker.protocol.errors import ProtocolError
from headrace_broker.protocol.metadata_records import MetadataRecord, decode_metadata_record, encode_metadata_record
from headrace_broker.raft.log_port import OffsetAndEpoch
from headrace_broker.records.batch import CorruptBatchError, iter_batches, verify_crc
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns
from headrace_broker.records.control import ControlType, build_control_batch, parse_control_key
from headrace_broker.records.reader import read_batch
from headrace_broker.server.data_dirs import StartError

SUFFIX = ".checkpoint"
BOOTSTRAP_FILE = "bootstrap.checkpoint"
PART_SUFFIX = ".part"
RECORDS_PER_BATCH = 100

_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint\Z")


class SnapshotError(Exception):
    """A snapshot is corrupt or incomplete."""


class SnapshotFiles:
    """The snapshots in one directory. A snapshot that is being written becomes visible when `finish` is called."""

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self._directory = directory
        names = storage.listdir(directory) if storage.exists(directory) else []
        for name in names:
            if name.endswith(SUFFIX + PART_SUFFIX):
                storage.remove(f"{directory}/{name}")
        found = (_NAME.match(name) for name in names)
        self.ids: list[OffsetAndEpoch] = sorted((int(match[1]), int(match[2])) for match in found if match)
        """(end offset, epoch) of every complete snapshot, oldest first."""

    def path(self, snapshot: OffsetAndEpoch) -> str:
        """Return the path of the snapshot's file."""
        return f"{self._directory}/{snapshot[0]:020d}-{snapshot[1]:010d}{SUFFIX}"

    def size(self, snapshot: OffsetAndEpoch) -> int:
        """Return the snapshot's size in bytes."""
        return self._storage.size(self.path(snapshot))

    def read_chunk(self, snapshot: OffsetAndEpoch, position: int, size_bytes_max: int) -> tuple[int, bytes] | None:
        """Return the snapshot's size and its bytes from `position` on, or None if there is no such snapshot."""
        if snapshot not in self.ids:
            return None
        file = self._storage.open(self.path(snapshot))
        try:
            return file.size(), file.pread(size_bytes_max, max(0, position))
        finally:
            file.close()

    def write_chunk(self, snapshot: OffsetAndEpoch, position: int, data: bytes) -> None:
        """Write a chunk to the `.part` file at `position`, which is the end of the previous chunk. Raises OSError.

        If `position` is 0, the file is written from the beginning again.
        """
        file = self._storage.open(self.path(snapshot) + PART_SUFFIX)
        try:
            file.truncate(position)
            file.write(data, position)
        finally:
            file.close()

    def sync_part(self, snapshot: OffsetAndEpoch) -> None:
        """Sync the `.part` file. This method blocks, so call it in a thread. Raises OSError."""
        self._storage.sync(self.path(snapshot) + PART_SUFFIX)

    def finish(self, snapshot: OffsetAndEpoch) -> None:
        """Rename the `.part` file, which must be complete and synced, to the snapshot's name. Raises OSError."""
        self._storage.rename(self.path(snapshot) + PART_SUFFIX, self.path(snapshot))
        self.ids = sorted({*self.ids, snapshot})

    def sync_names(self) -> None:
        """Sync the directory to make the renames of snapshots durable. This method blocks. Raises OSError."""
        self._storage.sync_directory(self._directory)

    def discard(self, snapshot: OffsetAndEpoch) -> None:
        """Delete the snapshot's file and its `.part` file, if they exist."""
        if snapshot in self.ids:
            self.ids.remove(snapshot)
            self._storage.remove(self.path(snapshot))
        self._storage.remove(self.path(snapshot) + PART_SUFFIX)

    def part_records(self, snapshot: OffsetAndEpoch) -> list[MetadataRecord]:
        """Read and check every record of the `.part` file. Raises SnapshotError, OSError."""
        return parse_snapshot(self._storage.read(self.path(snapshot) + PART_SUFFIX))

    def records(self, snapshot: OffsetAndEpoch) -> list[MetadataRecord]:
        """Read and check every record of a snapshot. Raises SnapshotError, OSError."""
        return parse_snapshot(self._storage.read(self.path(snapshot)))


def check_bootstrap_file(storage: Storage, directory: str) -> None:
    """Check the file with the first records of a cluster, which Apache Kafka's `kafka-storage format` writes.

    headrace does not apply the file. Raises StartError if it contains protections, for example SCRAM credentials.
    """
    path = f"{directory}/{BOOTSTRAP_FILE}"
    if not storage.exists(path):
        return
    try:
        protections = protections_in(parse_snapshot(storage.read(path)))
    except SnapshotError as error:
        raise StartError(f"{path} is corrupt ({error}): format the directory again with kafka-storage format") from None
    if protections:
        raise StartError(
            f"{path} contains {describe(protections)}. headrace does not support them yet, and would run the cluster "
            "without them. Format an empty directory without them"
        )


def encode_snapshot(records: Iterable[MetadataRecord], epoch: int, timestamp_ms: int) -> Iterator[bytes]:
    """Yield the snapshot's bytes in chunks of one batch. Encoding a chunk takes well under a millisecond."""
    header = encode_control_value(SnapshotHeaderRecord(version=0, last_contained_log_timestamp=timestamp_ms))
    yield _control(ControlType.SNAPSHOT_HEADER, header, 0, epoch, timestamp_ms)
    offset = 1
    for chunk in _chunks(records):
        values: list[bytes | None] = [encode_metadata_record(record) for record in chunk]
        columns = RecordColumns(values=values, timestamps=timestamp_ms)
        yield bytes(build_batch(columns, base_offset=offset, partition_leader_epoch=epoch))
        offset += len(chunk)
    footer = encode_control_value(SnapshotFooterRecord(version=0))
    yield _control(ControlType.SNAPSHOT_FOOTER, footer, offset, epoch, timestamp_ms)


def _control(kind: ControlType, value: bytes, offset: int, epoch: int, timestamp_ms: int) -> bytes:
    return bytes(
        build_control_batch(kind, value, timestamp=timestamp_ms, base_offset=offset, partition_leader_epoch=epoch)
    )


def _chunks(records: Iterable[MetadataRecord]) -> Iterator[Sequence[MetadataRecord]]:
    chunk: list[MetadataRecord] = []
    for record in records:
        chunk.append(record)
        if len(chunk) == RECORDS_PER_BATCH:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def parse_snapshot(data: bytes) -> list[MetadataRecord]:
    """Return the records between header and footer. Raises SnapshotError."""
    view = memoryview(data)
    records: list[MetadataRecord] = []
    kinds: list[int] = []
    end = 0
    try:
        for position, header in iter_batches(view):
            verify_crc(view, position, header)
            columns = read_batch(view, position, header)
            end = position + header.size_bytes
            if header.is_control:
                kinds += [parse_control_key(key) for key in columns.keys or ()]
            else:
                records += [decode_metadata_record(value) for value in columns.values if value is not None]
    except (CorruptBatchError, ProtocolError, ValueError) as error:
        raise SnapshotError(str(error)) from None
    if end != len(data) or not kinds or kinds[0] != ControlType.SNAPSHOT_HEADER:
        raise SnapshotError("the file does not begin with a snapshot header, or ends in the middle of a batch")
    if kinds[-1] != ControlType.SNAPSHOT_FOOTER:
        raise SnapshotError("the snapshot has no footer")
    return records
