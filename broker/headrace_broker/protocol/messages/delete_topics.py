"""DeleteTopics (20): delete topics.

Version 4 is flexible, and version 5 adds error messages. A version 6 request contains the names or ids of topics in
`topics`. In earlier versions it contains names in `topic_names`.
"""

from __future__ import annotations

from headrace_broker.protocol.notation import Message, Request, Response, array, int16, int32, string, uuid


class DeletableTopicResult(Message):
    name: str | None = string(nullable="6+")
    topic_id: bytes = uuid("6+", ignorable=True)
    error_code: int = int16()
    error_message: str | None = string("5+", nullable="5+", default=None, ignorable=True)


class DeleteTopicsResponse(Response, api_key=20, versions="1-6", flexible="4+"):
    throttle_time_ms: int = int32(ignorable=True)
    responses: list[DeletableTopicResult] = array(DeletableTopicResult)


class DeleteTopicState(Message):
    name: str | None = string(nullable="0+", default=None)
    topic_id: bytes = uuid()


class DeleteTopicsRequest(Request[DeleteTopicsResponse], api_key=20, versions="1-6", flexible="4+"):
    topics: list[DeleteTopicState] = array(DeleteTopicState, "6+")
    topic_names: list[str] = array(string, "0-5", ignorable=True)
    timeout_ms: int = int32()
