"""ListConfigResources (74): list the names of the resources that have configs.

Version 0 lists client-metrics subscriptions only (KIP-714), and version 1 also lists other resource types (KIP-1142).
"""

from __future__ import annotations

from headrace_broker.protocol.notation import Message, Request, Response, array, int8, int16, int32, string


class ConfigResource(Message):
    resource_name: str = string()
    resource_type: int = int8("1+", default=16, ignorable=True)


class ListConfigResourcesResponse(Response, api_key=74, versions="0-1", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    config_resources: list[ConfigResource] = array(ConfigResource)


class ListConfigResourcesRequest(Request[ListConfigResourcesResponse], api_key=74, versions="0-1", flexible="0+"):
    resource_types: list[int] = array(int8, "1+")
