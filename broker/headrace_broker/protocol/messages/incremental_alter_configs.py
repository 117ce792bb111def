"""IncrementalAlterConfigs (44): change individual configs (KIP-339).

Operations: 0 set, 1 delete, 2 append to a list, 3 subtract from a list. Version 1 is flexible.
"""

from __future__ import annotations

from headrace_broker.protocol.notation import Message, Request, Response, array, boolean, int8, int16, int32, string


class AlterConfigsResourceResponse(Message):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    resource_type: int = int8()
    resource_name: str = string()


class IncrementalAlterConfigsResponse(Response, api_key=44, versions="0-1", flexible="1+"):
    throttle_time_ms: int = int32()
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)


class AlterableConfig(Message):
    name: str = string()
    config_operation: int = int8()
    value: str | None = string(nullable="0+")


class AlterConfigsResource(Message):
    resource_type: int = int8()
    resource_name: str = string()
    configs: list[AlterableConfig] = array(AlterableConfig)


class IncrementalAlterConfigsRequest(
    Request[IncrementalAlterConfigsResponse], api_key=44, versions="0-1", flexible="1+"
):
    resources: list[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = boolean()
