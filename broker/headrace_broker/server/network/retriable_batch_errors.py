"""Chooses the error for a batch that an idempotent producer sent after a batch that failed with a retriable error.

A producer has up to five batches in flight. The first batch may be rejected because this broker does not lead the
partition yet, or because the partition has too few in-sync replicas. If this problem ends before the second batch
arrives, the second batch appears to leave a sequence gap. In fact no batch is missing, because the producer retries the
first batch.

If librdkafka receives OUT_OF_ORDER_SEQUENCE_NUMBER, it starts a new producer epoch and resends batches, even batches
that were already appended to other partitions. This duplicates records. Therefore, if the broker rejects a batch, it
also rejects the following batches on the same connection, with the error of the first batch, until the producer retries
the first batch. Any other sequence gap fails with OUT_OF_ORDER_SEQUENCE_NUMBER.
"""

from __future__ import annotations

from collections.abc import Hashable

from headrace_broker.protocol.errors import ApiError, ErrorCode

_IN_FLIGHT_MAX = 5  # Kafka's limit for idempotent producers: max.in.flight.requests.per.connection
_PARTITIONS_MAX = 2000
_RETRIABLE = frozenset(
    (
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )
)


class RetriableBatchErrors:
    """The errors of one connection: the latest retriable error of a rejected batch, for each partition."""

    __slots__ = ("_errors",)

    def __init__(self) -> None:
        self._errors: dict[Hashable, tuple[ApiError, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._errors)

    def error_to_return(self, partition: Hashable, error: ApiError) -> ApiError:
        """Return the error to send to the producer of a batch that failed with `error`.

        This is `error` itself, with one exception: if `error` is OUT_OF_ORDER_SEQUENCE_NUMBER because an earlier batch
        of the partition failed with a retriable error, this is the error of the earlier batch.
        """
        if error.code in _RETRIABLE:
            # Drop the traceback: it would keep the request and its receive buffer in memory.
            self._errors[partition] = (error.with_traceback(None), _IN_FLIGHT_MAX - 1)
            if len(self._errors) > _PARTITIONS_MAX:
                del self._errors[next(iter(self._errors))]
        elif error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and partition in self._errors:
            first, in_flight = self._errors.pop(partition)
            if in_flight > 1:
                self._errors[partition] = (first, in_flight - 1)
            return first
        return error

    def clear(self, partition: Hashable) -> None:
        """Remove the partition's error, because a batch of this connection was appended."""
        self._errors.pop(partition, None)
