"""Batches refused for now, and what an idempotent producer had sent behind them on the same connection.

A producer has up to five batches on the way.  When the first is refused because this node leads the partition not yet,
or has too few replicas in sync, and that changes before the second is looked at, the second seems to leave a gap.  But
nothing is missing: the first comes again.  A client that is told of a gap begins a new epoch, in which it also repeats
what other partitions may have of it already (librdkafka), and then records are there twice.  So what was sent behind a
refused batch is refused like it, until that has come again; a gap that is none of these is answered as one.
"""

from __future__ import annotations

from collections.abc import Hashable

from headrace_broker.protocol.errors import ApiError, ErrorCode

_IN_FLIGHT_MAX = 5  # Kafka's bound for idempotent producers: max.in.flight.requests.per.connection
_PARTITIONS_MAX = 2000
_COMES_AGAIN = frozenset(
    (
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )
)


class RefusedBatches:
    """Of one connection: the partitions whose last batch was refused for now."""

    __slots__ = ("_refused",)

    def __init__(self) -> None:
        self._refused: dict[Hashable, tuple[ApiError, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._refused)

    def answer(self, partition: Hashable, error: ApiError) -> ApiError:
        """What to answer to a batch that failed with this error."""
        if error.code in _COMES_AGAIN:
            # Without what its traceback holds on to: the request, and the buffer it came in.
            self._refused[partition] = (error.with_traceback(None), _IN_FLIGHT_MAX - 1)
            if len(self._refused) > _PARTITIONS_MAX:
                del self._refused[next(iter(self._refused))]
        elif error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and partition in self._refused:
            first, behind = self._refused.pop(partition)
            if behind > 1:
                self._refused[partition] = (first, behind - 1)
            return first
        return error

    def appended(self, partition: Hashable) -> None:
        """The partition has taken a batch of this connection."""
        self._refused.pop(partition, None)
