"""DescribeConfigs (32): describe the configs of topics, brokers, loggers and groups.

Version 1 adds the source and the synonyms of a value, version 3 adds the type and the documentation of a config, and
version 4 is flexible. Connect reads the `cleanup.policy` of its internal topics with this request.
"""

from __future__ import annotations

from headrace_broker.protocol.notation import Message, Request, Response, array, boolean, int8, int16, int32, string


class DescribeConfigsSynonym(Message):
    name: str = string()
    value: str | None = string(nullable="0+")
    source: int = int8()


class DescribeConfigsResourceResult(Message):
    name: str = string()
    value: str | None = string(nullable="0+")
    read_only: bool = boolean()
    config_source: int = int8(default=-1, ignorable=True)
    is_sensitive: bool = boolean()
    synonyms: list[DescribeConfigsSynonym] = array(DescribeConfigsSynonym, ignorable=True)
    config_type: int = int8("3+", ignorable=True)
    documentation: str | None = string("3+", nullable="0+", ignorable=True)


class DescribeConfigsResult(Message):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    resource_type: int = int8()
    resource_name: str = string()
    configs: list[DescribeConfigsResourceResult] = array(DescribeConfigsResourceResult)


class DescribeConfigsResponse(Response, api_key=32, versions="1-4", flexible="4+"):
    throttle_time_ms: int = int32()
    results: list[DescribeConfigsResult] = array(DescribeConfigsResult)


class DescribeConfigsResource(Message):
    resource_type: int = int8()
    resource_name: str = string()
    configuration_keys: list[str] | None = array(string, nullable="0+")


class DescribeConfigsRequest(Request[DescribeConfigsResponse], api_key=32, versions="1-4", flexible="4+"):
    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource)
    include_synonyms: bool = boolean()
    include_documentation: bool = boolean("3+")
