"""Sets the error in the response to a request whose records were not appended, or not committed in time."""

from __future__ import annotations

from typing import Any, TypeVar

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import OffsetCommitResponse, OffsetDeleteResponse

ResponseT = TypeVar("ResponseT")


def with_error(response: ResponseT, error: ErrorCode) -> ResponseT:
    """Set `error` in each error field of `response` that has no error yet, and return `response`."""
    if isinstance(response, OffsetCommitResponse):
        for topic in response.topics:
            _set_errors(topic.partitions, error)
    elif isinstance(response, list):
        _set_errors(response, error)
    elif isinstance(response, OffsetDeleteResponse):
        response.topics = []
        _set_errors([response], error)
    elif response is not None:
        _set_errors([response], error)
    return response


def _set_errors(messages: list[Any], error: ErrorCode) -> None:
    for message in messages:
        if not message.error_code:
            message.error_code = error
