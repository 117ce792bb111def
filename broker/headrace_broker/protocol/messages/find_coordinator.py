"""FindCoordinator (10): find the coordinator of a group (key type 0), a transactional id (1) or a share group (2).

From version 4 on, a request contains several keys, and the response contains the results in `coordinators`. In earlier
versions, the response contains a single result in its top-level fields. Version 6 adds share groups.
"""

from __future__ import annotations

from headrace_broker.protocol.notation import Message, Request, Response, array, int8, int16, int32, string


class Coordinator(Message):
    key: str = string()
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", ignorable=True)


class FindCoordinatorResponse(Response, api_key=10, versions="0-6", flexible="3+"):
    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0-3")
    error_message: str | None = string("1-3", nullable="1-3", ignorable=True)
    node_id: int = int32("0-3")
    host: str = string("0-3")
    port: int = int32("0-3")
    coordinators: list[Coordinator] = array(Coordinator, "4+")


class FindCoordinatorRequest(Request[FindCoordinatorResponse], api_key=10, versions="0-6", flexible="3+"):
    key: str = string("0-3")
    key_type: int = int8("1+")
    coordinator_keys: list[str] = array(string, "4+")
