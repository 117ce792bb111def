"""The same answer with an error in it: for requests whose records could not be stored or were not committed in time."""

from __future__ import annotations

from typing import Any, TypeVar

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import OffsetCommitResponse, OffsetDeleteResponse

ResponseT = TypeVar("ResponseT")


def with_error(response: ResponseT, error: ErrorCode) -> ResponseT:
    """`response` as it is when `error` befell the whole request; what already is an error stays one."""
    if isinstance(response, OffsetCommitResponse):
        for topic in response.topics:
            _refuse_each(topic.partitions, error)
    elif isinstance(response, list):
        _refuse_each(response, error)
    elif isinstance(response, OffsetDeleteResponse):
        response.topics = []
        _refuse_each([response], error)
    elif response is not None:
        _refuse_each([response], error)
    return response


def _refuse_each(parts: list[Any], error: ErrorCode) -> None:
    for part in parts:
        if not part.error_code:
            part.error_code = error
