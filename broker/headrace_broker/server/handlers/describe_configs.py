"""DescribeConfigs (32): the configs in force on topics and on this broker, and where each comes from.

Version notes: 1+ synonyms; 3+ type and documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace_broker.log.config import BROKER_CONFIGS, TOPIC_CONFIGS, ConfigSource, config_in_force
from headrace_broker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from headrace_broker.protocol.topic_names import topic_name_fault
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.large_requests import Parts
from headrace_broker.server.network.listeners import EVERYWHERE
from headrace_broker.server.topic_rules import altered_configs

API_KEY = ApiKey.DESCRIBE_CONFIGS
VERSIONS = (1, 4)
LISTENERS = EVERYWHERE
PARTS = (Parts(("resources",), ("results",)),)
_Described = dict[tuple[tuple[str, str], ...], list[DescribeConfigsResourceResult]]


def handle(context: RequestContext, request: DescribeConfigsRequest, version: int) -> DescribeConfigsResponse:
    """Describe each resource; one that does not exist has its own error."""
    wanted = {(resource.resource_type, resource.resource_name): resource for resource in request.resources}
    described: _Described = {}
    results = [_describe(context, resource, request, described) for resource in wanted.values()]
    return DescribeConfigsResponse(results=results)


def _describe(
    context: RequestContext, resource: DescribeConfigsResource, request: DescribeConfigsRequest, described: _Described
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=None
    )
    try:
        configs = _CONFIGS.get(resource.resource_type, _unknown_type)(context, resource, request, described)
    except ApiError as error:
        result.error_code = error.code
        result.error_message = error.message
        return result
    keys = resource.configuration_keys
    result.configs = configs if keys is None else [config for config in configs if config.name in keys]
    return result


def _topic_configs(
    context: RequestContext, resource: DescribeConfigsResource, request: DescribeConfigsRequest, described: _Described
) -> list[DescribeConfigsResourceResult]:
    topic = resource.resource_name
    fault = topic_name_fault(topic)
    if fault is not None:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
    if topic not in context.image.topics:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{topic}' does not exist.")
    set_on_topic = context.image.topic_configs(topic)
    key = tuple(sorted(set_on_topic.items()))
    if key not in described:  # topics with equal settings share the list, which takes longest to make
        described[key] = _in_force(context, set_on_topic, request)
    return described[key]


def _in_force(
    context: RequestContext, set_on_topic: Mapping[str, str], request: DescribeConfigsRequest
) -> list[DescribeConfigsResourceResult]:
    altered = altered_configs(context.image, context.node_id)
    found = (config_in_force(name, set_on_topic, context.config.log_properties, altered) for name in TOPIC_CONFIGS)
    return [
        DescribeConfigsResourceResult(
            name=item.key.name,
            value=item.value,
            config_source=item.source,
            synonyms=[
                DescribeConfigsSynonym(name=name, value=value, source=source) for name, value, source in item.synonyms
            ]
            if request.include_synonyms
            else [],
            config_type=item.key.type,
            documentation=item.key.doc if request.include_documentation else None,
        )
        for item in found
    ]


def _broker_configs(
    context: RequestContext, resource: DescribeConfigsResource, request: DescribeConfigsRequest, described: _Described
) -> list[DescribeConfigsResourceResult]:
    if resource.resource_name == "":
        source, values = altered_configs(context.image)[0]
        return [_broker_config(name, [(value, source)], request) for name, value in values.items()]
    if resource.resource_name != str(context.node_id):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {context.node_id} or empty string, but received {resource.resource_name}",
        )
    rows: dict[str, list[tuple[str | None, ConfigSource]]] = {
        name: [(value, ConfigSource.STATIC_BROKER if is_set else ConfigSource.DEFAULT)]
        for name, value, is_set in context.config.described()
    }
    for source, values in reversed(altered_configs(context.image, context.node_id)):
        for name, value in values.items():
            rows.setdefault(name, []).insert(0, (value, source))
    return [_broker_config(name, row, request) for name, row in rows.items()]


def _broker_config(
    name: str, row: list[tuple[str | None, ConfigSource]], request: DescribeConfigsRequest
) -> DescribeConfigsResourceResult:
    """`row`: the values that were given, the one in force first."""
    key = BROKER_CONFIGS.get(name)
    value, source = row[0]
    return DescribeConfigsResourceResult(
        name=name,
        value=value,
        read_only=key is None,
        config_source=source,
        synonyms=[
            DescribeConfigsSynonym(name=name, value=given, source=giver)
            for given, giver in row
            if given is not None and request.include_synonyms
        ],
        config_type=0 if key is None else key.type,
        documentation=key.doc if key is not None and request.include_documentation else None,
    )


def _unknown_type(
    context: RequestContext, resource: DescribeConfigsResource, request: DescribeConfigsRequest, described: _Described
) -> list[DescribeConfigsResourceResult]:
    raise ApiError(
        ErrorCode.INVALID_REQUEST,
        f"Resource type {resource.resource_type} of '{resource.resource_name}' has no configs here.",
    )


_Describe = Callable[
    [RequestContext, DescribeConfigsResource, DescribeConfigsRequest, _Described], list[DescribeConfigsResourceResult]
]
_CONFIGS: dict[int, _Describe] = {TOPIC_RESOURCE: _topic_configs, BROKER_RESOURCE: _broker_configs}
