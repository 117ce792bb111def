"""Which batches belong to aborted transactions, and which markers have nothing left to mark. Pure.

The tracker sees every batch of a log in order, with the aborted transactions from its indexes. It serves both passes:
the first skips the records of aborted transactions, the second drops them and says which index entries stay.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace_broker.log.transaction_index import AbortedTransaction
from headrace_broker.records.batch import BatchHeader, CorruptBatchError
from headrace_broker.records.control import ControlType, parse_control_key
from headrace_broker.records.reader import read_batch


class _Ongoing:
    """An aborted transaction whose marker is still to come; `has_batches` = some of its data was met."""

    __slots__ = ("has_batches", "transaction")

    def __init__(self, transaction: AbortedTransaction) -> None:
        self.transaction = transaction
        self.has_batches = False


class TransactionTracker:
    """Where a walk through a log stands in the transactions of its producers."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._to_come = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
        self._aborting: dict[int, _Ongoing] = {}
        self._committing: set[int] = set()
        self.retained: list[AbortedTransaction] = []
        """Aborted transactions whose markers still mark something; whoever writes an index takes them from here."""

    def is_discardable(self, header: BatchHeader, batch: memoryview) -> bool:
        """Take in the next batch; True for aborted data, and for a marker of which no data was met.

        Raises CorruptBatchError for a control batch that cannot be read.
        """
        self._begin_up_to(header.last_offset)
        if header.is_control:
            return self._marker(header, batch)
        if not header.is_transactional:
            return False
        aborting = self._aborting.get(header.producer_id)
        if aborting is None:
            self._committing.add(header.producer_id)
            return False
        aborting.has_batches = True
        return True

    def _begin_up_to(self, offset: int) -> None:
        while self._to_come and self._to_come[-1].first_offset <= offset:
            transaction = self._to_come.pop()
            self._aborting.setdefault(transaction.producer_id, _Ongoing(transaction))

    def _marker(self, header: BatchHeader, batch: memoryview) -> bool:
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
