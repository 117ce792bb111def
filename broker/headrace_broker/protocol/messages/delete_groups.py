"""DeleteGroups (42): delete groups without members, and their offsets.

Version 2 is flexible, and version 3 adds error messages.
"""

from __future__ import annotations

from headrace_broker.protocol.notation import Message, Request, Response, array, int16, int32, string


class DeletableGroupResult(Message):
    group_id: str = string()
    error_code: int = int16()
    error_message: str | None = string("3+", nullable="3+", default=None, ignorable=True)


class DeleteGroupsResponse(Response, api_key=42, versions="0-3", flexible="2+"):
    throttle_time_ms: int = int32()
    results: list[DeletableGroupResult] = array(DeletableGroupResult)


class DeleteGroupsRequest(Request[DeleteGroupsResponse], api_key=42, versions="0-3", flexible="2+"):
    groups_names: list[str] = array(string)
