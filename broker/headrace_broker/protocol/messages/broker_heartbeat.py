"""BrokerHeartbeat (63): a broker reports its liveness and its metadata offset to the controller (KIP-631).

Version 1 adds offline log directories (KIP-858), and version 2 adds cordoned log directories.
"""

from __future__ import annotations

from headrace_broker.protocol.notation import Request, Response, array, boolean, int16, int32, int64, uuid


class BrokerHeartbeatResponse(Response, api_key=63, versions="0-2", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    is_caught_up: bool = boolean()
    is_fenced: bool = boolean(default=True)
    should_shut_down: bool = boolean()


class BrokerHeartbeatRequest(Request[BrokerHeartbeatResponse], api_key=63, versions="0-2", flexible="0+"):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)
    current_metadata_offset: int = int64()
    want_fence: bool = boolean()
    want_shut_down: bool = boolean()
    offline_log_dirs: list[bytes] = array(uuid, "1+", tag=0)
    cordoned_log_dirs: list[bytes] | None = array(uuid, "2+", nullable="2+", default=None, tag=1)
