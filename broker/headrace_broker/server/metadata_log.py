"""The metadata log of a quorum of one: `__cluster_metadata-0` on disk, in KRaft's own format.

Appends are batches of metadata records; a batch is committed when it is on the disk, and committed batches are handed
to `on_commit` in order.  Several appends may share one fdatasync, which runs in a thread because it may take tens of
milliseconds.  `raft.quorum_of_one` says what opens an epoch; a larger quorum changes who decides what is committed,
not this interface.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from headrace_broker.log.admission import AppendOrigin
from headrace_broker.log.config import LogConfig
from headrace_broker.log.directory import LogDirectory
from headrace_broker.log.log import PartitionLog
from headrace_broker.log.segment import LOG_SUFFIX
from headrace_broker.log.storage import Storage, is_passing
from headrace_broker.metadata.topic_names import CLUSTER_METADATA_TOPIC
from headrace_broker.protocol.errors import ApiError, ErrorCode, ProtocolError
from headrace_broker.protocol.metadata_records import MetadataRecord, decode_metadata_record, encode_metadata_record
from headrace_broker.raft.quorum_of_one import elect_self, leader_change_value
from headrace_broker.raft.quorum_state import FILE_NAME, QuorumState, QuorumStateError
from headrace_broker.records.batch import CorruptBatchError, iter_batches
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns
from headrace_broker.records.control import ControlType, build_control_batch
from headrace_broker.records.reader import read_columns
from headrace_broker.server.data_dirs import StartError
from headrace_broker.server.metadata_damage import damage_inside

logger = logging.getLogger(__name__)

_READ_BYTES = 4 * 1024 * 1024
_RETRY_S = 0.05
_CONFIG = LogConfig(retention_ms=-1, retention_bytes=-1, max_message_bytes=8 * 1024 * 1024)

Committed = Callable[[Sequence[MetadataRecord], int, int], None]
"""(records of one batch, offset of the last, epoch)."""


class MetadataLog:
    """Owner of the metadata partition's files and of `quorum-state`."""

    def __init__(self, storage: Storage, directory: LogDirectory, node_id: int, now_ms: Callable[[], int]) -> None:
        self._storage = storage
        self._directory = directory.partition_path(CLUSTER_METADATA_TOPIC, 0)
        self._node_id = node_id
        self._now_ms = now_ms
        self._pending: deque[tuple[int, Sequence[MetadataRecord], asyncio.Future[None]]] = deque()
        self._syncing: asyncio.Task[None] | None = None
        self.on_commit: Committed = _nobody
        self.epoch = 0
        self._refuse_damage()
        self.log = PartitionLog.open(
            storage,
            self._directory,
            CLUSTER_METADATA_TOPIC,
            0,
            _CONFIG,
            now_ms(),
            was_closed_cleanly=directory.was_closed_cleanly,
        )

    def _refuse_damage(self) -> None:
        """Raises StartError before recovery would cut away records that were committed."""
        if not self._storage.exists(self._directory):
            return
        for name in sorted(self._storage.listdir(self._directory)):
            path = f"{self._directory}/{name}"
            found = damage_inside(self._storage.read(path)) if name.endswith(LOG_SUFFIX) else None
            if found is not None:
                raise StartError(
                    f"{path} is damaged at byte {found[0]}, with sound metadata behind it from byte {found[1]} on: "
                    "put back a copy of it"
                )

    @property
    def next_offset(self) -> int:
        """The offset the next record will get."""
        return self.log.log_end_offset

    # -- start ---------------------------------------------------------------------------------------------------

    def replay(self) -> Iterator[tuple[list[MetadataRecord], int, int]]:
        """Every batch on disk, oldest first: (records, offset of the last, epoch).  Raises StartError."""
        try:
            yield from self._replay()
        except (ApiError, CorruptBatchError, ProtocolError) as error:
            raise StartError(f"{self._directory} is damaged, put back a copy of it: {error}") from None

    def _replay(self) -> Iterator[tuple[list[MetadataRecord], int, int]]:
        offset = self.log.log_start_offset
        while offset < self.log.log_end_offset:
            found = self.log.read(offset, _READ_BYTES, upper_bound_offset=self.log.log_end_offset, min_one_batch=True)
            buffer = b"".join(found.buffers)
            before = offset
            for position, header in iter_batches(buffer):
                offset = header.last_offset + 1
                if header.is_control:
                    continue
                end = position + 12 + header.batch_length
                columns = read_columns(memoryview(buffer)[position:end])
                records = [decode_metadata_record(value) for value in columns.values if value is not None]
                yield records, header.last_offset, header.partition_leader_epoch
            if offset == before:
                raise StartError(f"{self._directory} cannot be read at offset {offset}")

    def lead(self, last_epoch: int) -> None:
        """Take leadership: a new epoch on disk first, then its LeaderChange record; synchronous, at start only."""
        path = f"{self._directory}/{FILE_NAME}"
        try:
            previous = QuorumState.from_json(self._storage.read(path))
        except FileNotFoundError:
            previous = None
        except QuorumStateError as error:
            raise StartError(f"{path}: {error}") from None
        try:
            state = elect_self(previous, self._node_id, max(last_epoch, self.log.latest_epoch))
        except ValueError as error:
            raise StartError(f"{path}: {error}") from None
        self._storage.write_atomic(path, state.to_json())
        self._storage.sync_directory(self._directory)
        self.epoch = state.leader_epoch
        batch = build_control_batch(ControlType.LEADER_CHANGE, leader_change_value(state), timestamp=self._now_ms())
        self._append(batch)

    # -- appends -------------------------------------------------------------------------------------------------

    def append(self, records: Sequence[MetadataRecord]) -> asyncio.Future[None]:
        """Append one batch; the future is done when it is committed and `on_commit` has seen it."""
        last_offset = self._append_records(records)
        committed = asyncio.get_running_loop().create_future()
        self._pending.append((last_offset, records, committed))
        if self._syncing is None:
            self._syncing = asyncio.ensure_future(self._sync())
        return committed

    def append_now(self, records: Sequence[MetadataRecord]) -> None:
        """Append, sync and commit one batch before returning; for the start, when nobody is served yet."""
        last_offset = self._append_records(records)
        self.log.flush(self._now_ms())
        self._advance(last_offset, records)

    def _append_records(self, records: Sequence[MetadataRecord]) -> int:
        values: list[bytes | None] = [encode_metadata_record(record) for record in records]
        return self._append(build_batch(RecordColumns(values=values, timestamps=self._now_ms())))

    def _append(self, batch: bytearray) -> int:
        info = self.log.append_as_leader(
            memoryview(batch), leader_epoch=self.epoch, now_ms=self._now_ms(), origin=AppendOrigin.CONTROLLER
        )
        return info.last_offset

    async def _sync(self) -> None:
        """fdatasync until nothing is pending; what was appended meanwhile shares the next one."""
        loop = asyncio.get_running_loop()
        try:
            while self._pending:
                covered = len(self._pending)
                paths, _ = self.log.unflushed_files(with_active=True)
                try:
                    await loop.run_in_executor(None, self._sync_files, paths)
                except OSError as error:
                    if not is_passing(error):
                        raise
                    await asyncio.sleep(_RETRY_S)
                    continue
                for _ in range(covered):
                    self._commit_next()
        except OSError as error:
            self._fail(error)
        finally:
            self._syncing = None

    def _sync_files(self, paths: list[str]) -> None:
        for path in paths:
            self._storage.sync(path)

    def _commit_next(self) -> None:
        last_offset, records, committed = self._pending.popleft()
        self._advance(last_offset, records)
        if not committed.done():
            committed.set_result(None)

    def _fail(self, error: OSError) -> None:
        """A failed fsync may have lost pages: nothing pending is committed, and nothing more is appended."""
        reason = f"{self._directory} cannot be synced: {error.strerror or error}"
        logger.error("the metadata log stops: %s", reason)
        self.log.offline_reason = reason
        while self._pending:
            committed = self._pending.popleft()[2]
            if not committed.done():
                committed.set_exception(ApiError(ErrorCode.KAFKA_STORAGE_ERROR, reason))

    def _advance(self, last_offset: int, records: Sequence[MetadataRecord]) -> None:
        self.log.high_watermark = last_offset + 1
        self.on_commit(records, last_offset, self.epoch)

    async def close(self) -> None:
        """Wait for what is pending, then close the files."""
        if self._syncing is not None:
            await self._syncing
        try:
            self.log.close(clean=True, now_ms=self._now_ms())
        except ApiError as error:
            logger.error("the metadata log could not be closed cleanly: %s", error.message)


def _nobody(records: Sequence[MetadataRecord], last_offset: int, epoch: int) -> None:
    """Placeholder until someone listens."""
