"""The records of `__transaction_state`: the latest record of a transactional id contains its transaction's state.

The module `transaction_states` lists the numbers of the states. Version 1 of the record's value is for
transaction.version 2 (KIP-890), in which every transaction bumps the producer epoch.
"""

from __future__ import annotations

from headrace_broker.protocol.notation import Message, array, int8, int16, int32, int64, string
from headrace_broker.protocol.versioned import RecordKey, RecordValue


class TransactionLogKey(RecordKey, api_key=0, versions="0"):
    """The key of a record of `__transaction_state`."""

    transactional_id: str = string()


class PartitionsSchema(Message):
    topic: str = string()
    partition_ids: list[int] = array(int32)


class TransactionLogValue(RecordValue, api_key=0, versions="0-1", flexible="1+"):
    producer_id: int = int64()
    previous_producer_id: int = int64("1+", default=-1, tag=0)
    next_producer_id: int = int64("1+", default=-1, tag=1)
    producer_epoch: int = int16()
    next_producer_epoch: int = int16("1+", default=-1, tag=3)
    transaction_timeout_ms: int = int32()
    transaction_status: int = int8()
    transaction_partitions: list[PartitionsSchema] | None = array(PartitionsSchema, nullable="0+")
    transaction_last_update_timestamp_ms: int = int64()
    transaction_start_timestamp_ms: int = int64()
    client_transaction_version: int = int16("1+", tag=2)


TRANSACTION_KEYS: dict[int, type[RecordKey]] = {0: TransactionLogKey}
"""The key classes by key type."""
