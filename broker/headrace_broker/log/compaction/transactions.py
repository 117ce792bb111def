"""Identifies batches of aborted transactions, and markers of transactions that have no records left.

Each of the two passes of a cleaning creates a `TransactionTracker` with the aborted transactions from the log's
transaction indexes. The pass then calls the tracker with each batch, in the order of the offsets. The first pass skips
the records of aborted transactions. The second pass removes these records and collects the transaction index entries to
retain.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace_broker.log.transaction_index import AbortedTxn
from headrace_broker.records.batch import BatchHeader, CorruptBatchError
from headrace_broker.records.control import ControlType, parse_control_key
from headrace_broker.records.reader import read_batch


class _AbortedInProgress:
    """An aborted transaction whose abort marker has not been read yet.

    `has_batches` is True if the log still contains a batch of the transaction.
    """

    __slots__ = ("has_batches", "transaction")

    def __init__(self, transaction: AbortedTxn) -> None:
        self.transaction = transaction
        self.has_batches = False


class TransactionTracker:
    """Tracks the open transactions while the batches of a log are read in order."""

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._upcoming = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
        self._aborting: dict[int, _AbortedInProgress] = {}
        self._committing: set[int] = set()
        self.retained: list[AbortedTxn] = []
        """Aborted transactions with remaining records.

        They become the entries of the next segment's transaction index.
        """

    def process_batch(self, header: BatchHeader, batch: memoryview) -> bool:
        """Process the next batch; return whether compaction may remove it.

        The result is True for a batch of an aborted transaction, and for a transaction marker whose transaction has no
        records left in the log. Raises CorruptBatchError for a control batch that cannot be parsed.
        """
        self._begin_up_to(header.last_offset)
        if header.is_control:
            return self._process_marker(header, batch)
        if not header.is_transactional:
            return False
        aborting = self._aborting.get(header.producer_id)
        if aborting is None:
            self._committing.add(header.producer_id)
            return False
        aborting.has_batches = True
        return True

    def _begin_up_to(self, offset: int) -> None:
        while self._upcoming and self._upcoming[-1].first_offset <= offset:
            transaction = self._upcoming.pop()
            self._aborting.setdefault(transaction.producer_id, _AbortedInProgress(transaction))

    def _process_marker(self, header: BatchHeader, batch: memoryview) -> bool:
        if not header.records_count:
            return True
        kind = _control_type(header, batch)
        if kind == ControlType.COMMIT:
            had_batches = header.producer_id in self._committing
            self._committing.discard(header.producer_id)
            return not had_batches
        if kind != ControlType.ABORT:
            return False
        aborting = self._aborting.pop(header.producer_id, None)
        if aborting is None or not aborting.has_batches:
            return True
        self.retained.append(aborting.transaction)
        return False


def _control_type(header: BatchHeader, batch: memoryview) -> int:
    keys = read_batch(batch, 0, header).keys
    try:
        return parse_control_key(keys[0] if keys else None)
    except ValueError as error:
        raise CorruptBatchError(0, str(error)) from error
