from __future__ import annotations

import pytest

from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.server.network.refused_batches import RefusedBatches

GAP = ApiError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "sequence 4 where 3 is next")
PARTITION = ("t", 0)


@pytest.mark.parametrize(
    "code",
    [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
)
def test_what_follows_a_batch_that_comes_again_is_refused_like_it(code: ErrorCode) -> None:
    refused, first = RefusedBatches(), ApiError(code)
    assert refused.answer(PARTITION, first) is first
    assert [refused.answer(PARTITION, GAP) for _ in range(4)] == [first] * 4


def test_a_gap_that_nothing_explains_is_told() -> None:
    refused, first = RefusedBatches(), ApiError(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert refused.answer(PARTITION, GAP) is GAP
    refused.answer(PARTITION, first)
    assert refused.answer(("t", 1), GAP) is GAP
    refused.appended(PARTITION)
    assert refused.answer(PARTITION, GAP) is GAP
    assert not refused


def test_no_more_is_excused_than_can_be_on_the_way() -> None:
    refused = RefusedBatches()
    refused.answer(PARTITION, ApiError(ErrorCode.NOT_ENOUGH_REPLICAS))
    answers = [refused.answer(PARTITION, GAP) for _ in range(5)]
    assert answers[-1] is GAP
    assert not refused


def test_other_refusals_excuse_nothing() -> None:
    refused = RefusedBatches()
    refused.answer(PARTITION, ApiError(ErrorCode.MESSAGE_TOO_LARGE))
    assert refused.answer(PARTITION, GAP) is GAP


def test_no_more_is_remembered_than_producers_have_on_the_way() -> None:
    """A client may name partitions without end."""
    refused = RefusedBatches()
    for index in range(10_000):
        refused.answer(("no such topic", index), ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    told = [refused.answer(("no such topic", index), GAP) for index in range(10_000)]
    assert 1000 <= sum(error is not GAP for error in told) <= 2000
    assert told[-1] is not GAP


def test_of_a_refused_batch_nothing_is_kept_but_the_error() -> None:
    """Where it was raised, the whole request is known."""
    refused = RefusedBatches()
    try:
        raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS)
    except ApiError as error:
        refused.answer(PARTITION, error)
    assert refused.answer(PARTITION, GAP).__traceback__ is None
