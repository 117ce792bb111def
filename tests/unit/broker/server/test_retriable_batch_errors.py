from __future__ import annotations

import pytest

from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.server.network.retriable_batch_errors import RetriableBatchErrors

GAP = ApiError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "sequence 4 where 3 is next")
PARTITION = ("t", 0)


@pytest.mark.parametrize(
    "code",
    [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
)
def test_batches_after_a_retriable_error_fail_with_the_same_error(code: ErrorCode) -> None:
    errors, first = RetriableBatchErrors(), ApiError(code)
    assert errors.error_to_return(PARTITION, first) is first
    assert [errors.error_to_return(PARTITION, GAP) for _ in range(4)] == [first] * 4


def test_sequence_gap_without_a_stored_retriable_error_fails_with_error_out_of_order_sequence_number() -> None:
    errors, first = RetriableBatchErrors(), ApiError(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert errors.error_to_return(PARTITION, GAP) is GAP
    errors.error_to_return(PARTITION, first)
    assert errors.error_to_return(("t", 1), GAP) is GAP
    errors.clear(PARTITION)
    assert errors.error_to_return(PARTITION, GAP) is GAP
    assert not errors


def test_retriable_error_of_a_rejected_batch_is_returned_for_at_most_four_later_batches() -> None:
    """A producer has at most five batches in flight, so at most four of them follow the rejected batch."""
    errors = RetriableBatchErrors()
    errors.error_to_return(PARTITION, ApiError(ErrorCode.NOT_ENOUGH_REPLICAS))
    returned = [errors.error_to_return(PARTITION, GAP) for _ in range(5)]
    assert returned[-1] is GAP
    assert not errors


def test_batch_with_a_sequence_gap_after_a_non_retriable_error_fails_with_error_out_of_order_sequence_number() -> None:
    errors = RetriableBatchErrors()
    errors.error_to_return(PARTITION, ApiError(ErrorCode.MESSAGE_TOO_LARGE))
    assert errors.error_to_return(PARTITION, GAP) is GAP


def test_number_of_partitions_with_a_stored_retriable_error_is_limited() -> None:
    """A client may send batches for any number of partitions, so the broker must limit the stored errors."""
    errors = RetriableBatchErrors()
    for index in range(10_000):
        errors.error_to_return(("no such topic", index), ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    returned = [errors.error_to_return(("no such topic", index), GAP) for index in range(10_000)]
    assert 1000 <= sum(error is not GAP for error in returned) <= 2000
    assert returned[-1] is not GAP


def test_stored_retriable_error_has_no_traceback() -> None:
    """If the stored error had a traceback, the traceback would keep the whole Produce request in memory."""
    errors = RetriableBatchErrors()
    try:
        raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS)
    except ApiError as error:
        errors.error_to_return(PARTITION, error)
    assert errors.error_to_return(PARTITION, GAP).__traceback__ is None
