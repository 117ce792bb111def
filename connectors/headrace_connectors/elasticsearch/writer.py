"""Sends operations in bulk requests from several threads, and tracks which records are stored.

Operations wait in one queue. A thread sends the first operations of the queue when they fill a bulk request, when the
oldest operation has waited for `linger.ms`, or at a flush. If `is_ordered` is true, the operations have no versions. In
this case, two requests in flight never contain operations on the same document. The first fatal error stops all
threads.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headrace.api.errors import ConnectError
from headrace.api.retries import RetryPolicy
from headrace.api.task import TopicPartition
from headrace.data.batch import SinkBatch
from headrace_connectors.elasticsearch.client import Client, TemporaryError, TooLargeError
from headrace_connectors.elasticsearch.rejected_fields import describe
from headrace_connectors.elasticsearch.responses import (
    Outcome,
    Verdict,
    backoff_ms,
    indexes_to_retry,
    outcomes_of,
)
from headrace_connectors.elasticsearch.sink_config import ElasticsearchSinkConfig

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class PartitionRun:
    """Consecutive records of a partition, and the number of these records that are not stored yet."""

    partition: TopicPartition
    first_offset: int
    remaining: int
    is_revoked: bool = False


class Operation(NamedTuple):
    """One operation of a bulk request, and the record that it comes from."""

    lines: bytes
    document_id: str | None
    batch: SinkBatch
    at: int
    run: PartitionRun

    @property
    def position(self) -> str:
        """The record's topic, partition and offset, for error messages."""
        batch = self.batch
        return f"{batch.original_topic}-{batch.original_partition} at offset {batch.original_offsets[self.at]}"


Decode = Callable[[Operation], Operation | None]
"""Decodes and encodes the operation's record. Returns the operation with the new document.

Returns None if the new document is equal to the old document.
"""
OnRejected = Callable[[Operation, ConnectError], None]
"""Handles a record that the server rejected. Raises ConnectError to fail the task. Called from several threads."""


def retry_policy(config: ElasticsearchSinkConfig) -> RetryPolicy:
    """Return the policy for temporary errors of the server, with a random pause before each retry."""
    return RetryPolicy(
        lambda attempt: backoff_ms(config.retry_backoff_ms, attempt, random.uniform), config.max_retries, "max.retries"
    )


class BulkWriter:
    """Queues operations, and sends them from several threads. Only the task's thread calls the public methods."""

    def __init__(
        self,
        client: Client,
        config: ElasticsearchSinkConfig,
        is_ordered: bool,
        decode: Decode,
        on_malformed: OnRejected,
        on_existing: OnRejected,
    ) -> None:
        """Start the threads.

        If `is_ordered` is true, two requests in flight never contain operations on the same document. If the server
        rejects a document as malformed, the writer calls `decode`. If `decode` returns the operation with a new
        document, the writer sends this operation. If `decode` returns None, the writer calls `on_malformed`. If the
        server rejects a `create` operation because the record's key is the id of an existing document, the writer calls
        `on_existing`.
        """
        self._client = client
        self._config = config
        self._is_ordered = is_ordered
        self._decode = decode
        self._on_malformed = on_malformed
        self._on_existing = on_existing
        self._retry_policy = retry_policy(config)
        self._changed = threading.Condition()
        self._pending: deque[Operation] = deque()
        self._pending_bytes = 0
        self._oldest_s = 0.0
        self._in_flight = 0
        self._ids_in_flight: set[str] = set()
        self._logged: set[tuple[Verdict, TopicPartition]] = set()
        self._is_flushing = False
        self._is_stopped = False
        self._error: Exception | None = None
        self._threads = [
            threading.Thread(target=self._run, name=f"elasticsearch-bulk-{number}", daemon=True)
            for number in range(config.max_in_flight)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def buffered(self) -> int:
        """The number of operations that are not stored yet."""
        return len(self._pending) + self._in_flight

    def submit(self, operations: Sequence[Operation]) -> None:
        """Append operations to the queue."""
        with self._changed:
            if not self._pending:
                self._oldest_s = time.monotonic()
            self._pending.extend(operations)
            self._pending_bytes += sum(len(each.lines) for each in operations)
            self._changed.notify_all()

    def wait_until_at_most(self, buffered: int, timeout_s: float) -> bool:
        """Wait until only `buffered` operations or fewer remain to be stored. Return False after the timeout.

        Raises the error that stopped the threads, if any.
        """
        with self._changed:
            is_reached = self._changed.wait_for(lambda: self._error or self.buffered <= buffered, timeout_s)
            self.raise_error()
            return bool(is_reached)

    def flush(self, timeout_s: float) -> bool:
        """Send all operations now, and wait until they are stored. Return False after the timeout or an error."""
        with self._changed:
            self._is_flushing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._error or not self.buffered, timeout_s)
            return not self.buffered

    def raise_error(self) -> None:
        """Raise the error that stopped the threads, if any."""
        if self._error is not None:
            raise self._error

    def revoke(self, partitions: Collection[TopicPartition], timeout_s: float) -> None:
        """Discard the queued operations of `partitions`. Wait up to `timeout_s` for all operations in flight."""
        with self._changed:
            kept: deque[Operation] = deque()
            for operation in self._pending:
                if operation.run.partition in partitions:
                    operation.run.is_revoked = True
                else:
                    kept.append(operation)
            self._pending = kept
            self._pending_bytes = sum(len(each.lines) for each in kept)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._error or not self._in_flight, timeout_s)

    def stop(self, timeout_s: float) -> None:
        """Discard all queued operations and stop the threads. The threads first finish their requests in flight.

        Returns when all threads have stopped, or after `timeout_s`.
        """
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    # -- the threads

    def _run(self) -> None:
        while True:
            bulk = self._take()
            if bulk is None:
                return
            try:
                self._send(bulk, 0)
            except Exception as error:  # noqa: BLE001 - the task's thread raises it
                with self._changed:
                    self._error = self._error or error
                    self._is_stopped = True
                    self._changed.notify_all()
                return
            finally:
                with self._changed:
                    if self._is_ordered:
                        self._ids_in_flight.difference_update(each.document_id or "" for each in bulk)
                    self._changed.notify_all()

    def _take(self) -> list[Operation] | None:
        """Wait until a bulk request can be sent. Return its operations, or None if the writer is stopped."""
        config = self._config
        with self._changed:
            while not self._is_stopped:
                wait_s = None
                if self._pending:
                    is_full = len(self._pending) >= config.batch_size or 0 <= config.bulk_bytes <= self._pending_bytes
                    wait_s = self._oldest_s + config.linger_ms / 1000 - time.monotonic()
                    if is_full or self._is_flushing or wait_s <= 0:
                        bulk = self._next_bulk()
                        if bulk:
                            return bulk
                        wait_s = None  # a request with the same document is in flight, and its end notifies this thread
                else:
                    self._is_flushing = False
                self._changed.wait(wait_s)
        return None

    def _next_bulk(self) -> list[Operation]:
        bulk: list[Operation] = []
        size, limit = 0, self._config.bulk_bytes
        while self._pending and len(bulk) < self._config.batch_size:
            operation = self._pending[0]
            if bulk and 0 <= limit < size + len(operation.lines):
                break
            if self._is_ordered and operation.document_id in self._ids_in_flight:
                break
            size += len(operation.lines)
            bulk.append(self._pending.popleft())
        if self._is_ordered:
            self._ids_in_flight.update(each.document_id or "" for each in bulk)
        self._pending_bytes -= size
        self._in_flight += len(bulk)
        self._oldest_s = time.monotonic()
        return bulk

    def _send(self, operations: Sequence[Operation], attempt: int) -> None:
        """Send operations, with retries, until all have a final outcome. Raises ConnectError.

        `attempt` is the number of attempts that have already failed.
        """
        while operations := self._drop_revoked(operations):
            try:
                response = self._client.bulk(b"".join([each.lines for each in operations]))
                outcomes = outcomes_of(response, len(operations), self._config.log_sensitive_data)
            except ValueError as error:
                raise ConnectError(f"Elasticsearch at {self._client.address}: {error}") from error
            except TooLargeError as error:
                if len(operations) > 1:
                    middle = len(operations) // 2
                    self._send(operations[:middle], attempt)
                    self._send(operations[middle:], attempt)
                    return
                outcomes = [Outcome(Verdict.MALFORMED, str(error))]
            except TemporaryError as error:
                attempt += 1
                first = operations[0].position
                self._pause(
                    attempt, f"Could not write {len(operations)} records (the first is record {first}): {error}"
                )
                continue
            operations, problem = self._apply(*self._decode_malformed(operations, outcomes))
            if problem:
                attempt += 1
                self._pause(attempt, problem)

    def _drop_revoked(self, operations: Sequence[Operation]) -> Sequence[Operation]:
        kept = [each for each in operations if not each.run.is_revoked]
        if len(kept) < len(operations):
            self._finish([each for each in operations if each.run.is_revoked])
        return [] if self._is_stopped else kept

    def _decode_malformed(
        self, operations: Sequence[Operation], outcomes: Sequence[Outcome]
    ) -> tuple[list[Operation], list[Outcome]]:
        """Replace each rejected document that is a copy of a record's JSON text, and mark its operation for a retry.

        The new document is encoded from the decoded record. The server may accept the new document. For example, the
        JSON text of a record may contain an object that has the same key twice. The server rejects this JSON text, but
        JsonConverter accepts the text. In the new document, the object has the key only once.
        """
        found, marked = list(operations), list(outcomes)
        for at, outcome in enumerate(outcomes):
            if outcome.verdict is Verdict.MALFORMED and (decoded := self._decode(operations[at])) is not None:
                found[at], marked[at] = decoded, Outcome(Verdict.RETRY)
        return found, marked

    def _apply(self, operations: Sequence[Operation], outcomes: Sequence[Outcome]) -> tuple[list[Operation], str]:
        """Complete the operations that have a final outcome.

        Return all other operations, and the reason to retry them.
        """
        again = indexes_to_retry(outcomes, [each.document_id for each in operations], self._is_ordered)
        repeated = set(again)
        for operation, outcome in zip(operations, outcomes, strict=True):
            if outcome.verdict in (Verdict.MALFORMED, Verdict.FATAL):
                error = ConnectError(
                    f"Elasticsearch at {self._client.address} rejected record {operation.position}: "
                    f"{self._full_reason(operation, outcome)}"
                )
                if outcome.verdict is Verdict.FATAL:
                    raise error
                self._on_malformed(operation, error)
            if outcome.verdict is Verdict.NEWER:
                self._warn_about_newer_document(operation, outcome.reason)
            # Otherwise, the document's id is the record's position, so the document is the record itself.
            if outcome.verdict is Verdict.EXISTS and not self._config.ignores_key(operation.batch.topic):
                self._handle_existing(operation, outcome.reason)
        self._finish([each for at, each in enumerate(operations) if at not in repeated])
        failed = [at for at in again if outcomes[at].reason]
        problem = ""
        if failed:
            first = f"{operations[failed[0]].position}: {outcomes[failed[0]].reason}"
            problem = (
                f"Elasticsearch at {self._client.address} rejected {len(failed)} records, the first is record {first}"
            )
        return [operations[at] for at in again], problem

    def _full_reason(self, operation: Operation, outcome: Outcome) -> str:
        """Return the server's reason and the rejected field, with the types of the record's value and of the field."""
        if outcome.field is None:
            return outcome.reason
        record = operation.batch.take([operation.at])
        compact_maps = self._config.compact_map_entries
        return f"{outcome.reason}: {describe(outcome.field, record.value_schema, record.values[0], compact_maps)}"

    def _warn_about_newer_document(self, operation: Operation, reason: str) -> None:
        """Log the first version conflict of each partition. A possible cause is that the topic was recreated."""
        if self._mark_logged(Verdict.NEWER, operation):
            logger.warning(
                "Record %s is not stored, because the index contains a newer version of its document: %s. This is "
                "normal if the topic has later records with this key. Otherwise, delete the index if the topic was "
                "recreated. If several topics or partitions contain the same key, write each key to only one partition "
                "and then delete the index. The task logs this warning only once for each partition",
                operation.position,
                reason,
            )

    def _handle_existing(self, operation: Operation, reason: str) -> None:
        error = ConnectError(
            f"Record {operation.position} is not stored, because the data stream contains a document with its key as "
            f"id: {reason}"
        )
        if self._mark_logged(Verdict.EXISTS, operation):
            logger.warning(
                "%s. This is normal if the record was stored before a failure. If several records have the same key, "
                "set key.ignore=true. The task logs this warning only once for each partition",
                error,
            )
        self._on_existing(operation, error)

    def _mark_logged(self, verdict: Verdict, operation: Operation) -> bool:
        """Record that `verdict` is logged for the operation's partition. Return False if this was recorded before."""
        with self._changed:
            is_first = (verdict, operation.run.partition) not in self._logged
            self._logged.add((verdict, operation.run.partition))
            return is_first

    def _finish(self, operations: Sequence[Operation]) -> None:
        with self._changed:
            for operation in operations:
                operation.run.remaining -= 1
            self._in_flight -= len(operations)
            self._changed.notify_all()

    def _pause(self, attempt: int, problem: str) -> None:
        """Log `problem` and wait before the next attempt. After `max.retries` retries, raises ConnectError instead."""
        retry = self._retry_policy.after(attempt, problem)
        retry.log(logger)
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopped, retry.pause_s)
