"""DescribeConfigs (32): return the effective configs of resources, and the source of each value.

Version 1 adds synonyms, and version 3 adds types and documentation. The configs of topics and of this broker can be
altered. The configs of groups, client metrics subscriptions and broker loggers are read-only
(`server.resource_configs`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from headrace_broker.log.config import (
    BROKER_CONFIGS,
    THROTTLED_RATES,
    TOPIC_CONFIGS,
    ConfigSource,
    ConfigType,
    resolve_config,
)
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
from headrace_broker.protocol.topic_names import topic_name_error
from headrace_broker.server.log_config_provider import altered_configs
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.large_requests import RequestSplit
from headrace_broker.server.network.listener_types import BROKER_AND_CONTROLLER
from headrace_broker.server.resource_configs import (
    BROKER_LOGGER_RESOURCE,
    CLIENT_METRICS_CONFIGS,
    CLIENT_METRICS_RESOURCE,
    GROUP_CONFIGS,
    GROUP_RESOURCE,
    DefaultConfig,
    check_broker_id,
    logger_levels,
)

API_KEY = ApiKey.DESCRIBE_CONFIGS
VERSIONS = (1, 4)
LISTENERS = BROKER_AND_CONTROLLER
REQUEST_SPLITS = (RequestSplit(("resources",), ("results",)),)

_DescribedTopics = dict[tuple[tuple[str, str], ...], list[DescribeConfigsResourceResult]]
"""A cache of described configs, by the configs that are set on a topic.

A list is slow to build, so topics with equal configs share one list.
"""


def handle(context: RequestContext, request: DescribeConfigsRequest, version: int) -> DescribeConfigsResponse:
    """Describe each resource; the result for a resource that does not exist is an error."""
    # One result for each resource: unlike Apache Kafka, a small request cannot make the broker build a huge response.
    resources = {(resource.resource_type, resource.resource_name): resource for resource in request.resources}
    topics: _DescribedTopics = {}
    results = [_describe(context, resource, request, topics) for resource in resources.values()]
    return DescribeConfigsResponse(results=results)


def _describe(
    context: RequestContext,
    resource: DescribeConfigsResource,
    request: DescribeConfigsRequest,
    topics: _DescribedTopics,
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(resource_type=resource.resource_type, resource_name=resource.resource_name)
    try:
        if resource.resource_type == TOPIC_RESOURCE:
            configs = _topic_configs(context, resource.resource_name, request, topics)
        else:
            configs = _DESCRIBERS.get(resource.resource_type, _unknown_type)(context, resource, request)
    except ApiError as error:
        result.error_code = error.code
        result.error_message = error.message
        return result
    keys = resource.configuration_keys
    result.configs = [config for config in configs if config.name in keys] if keys else configs
    return result


def _topic_configs(
    context: RequestContext, topic: str, request: DescribeConfigsRequest, topics: _DescribedTopics
) -> list[DescribeConfigsResourceResult]:
    error_message = topic_name_error(topic)
    if error_message is not None:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, error_message)
    if topic not in context.image.topics:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{topic}' does not exist.")
    set_on_topic = context.image.topic_configs(topic)
    key = tuple(sorted(set_on_topic.items()))
    if key not in topics:
        topics[key] = _effective_topic_configs(context, set_on_topic, request)
    return topics[key]


def _effective_topic_configs(
    context: RequestContext, set_on_topic: Mapping[str, str], request: DescribeConfigsRequest
) -> list[DescribeConfigsResourceResult]:
    altered = altered_configs(context.image, context.node_id)
    values = (resolve_config(name, set_on_topic, context.config.log_properties, altered) for name in TOPIC_CONFIGS)
    return [
        DescribeConfigsResourceResult(
            name=item.key.name,
            value=item.value,
            config_source=item.source,
            synonyms=_synonyms(item.synonyms, request),
            config_type=item.key.type,
            documentation=item.key.doc if request.include_documentation else None,
        )
        for item in values
    ]


def _broker_configs(
    context: RequestContext, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> list[DescribeConfigsResourceResult]:
    """Return this broker's configs, or, if the resource name is empty, the dynamic defaults of all brokers."""
    if resource.resource_name == "":
        source, values = altered_configs(context.image)[0]
        return [
            _broker_config(name, BROKER_CONFIGS[name].type, [(name, value, source)], request)
            for name, value in values.items()
            if name in BROKER_CONFIGS
        ]
    check_broker_id(resource.resource_name, context.node_id, " or empty string, but received")
    static = {item.name: item for item in context.config.described()}
    dynamic = altered_configs(context.image, context.node_id)
    types = {name: BROKER_CONFIGS[name].type for name in THROTTLED_RATES} | {
        name: item.type for name, item in static.items()
    }
    results = []
    for name, type_ in types.items():
        synonyms = [(name, configs[name], source) for source, configs in dynamic if name in configs]
        item = static.get(name)
        for config in () if item is None else (item, *(static[other] for other in item.synonyms)):
            if config.is_set and config.value is not None:
                synonyms.append((config.name, config.value, ConfigSource.STATIC_BROKER))
            default = config.default if config.is_set else config.value
            if default is not None:
                synonyms.append((config.name, default, ConfigSource.DEFAULT))
        # omit a throttle rate that has no dynamic value, because throttle rates have no static config
        if item is not None or synonyms:
            results.append(_broker_config(name, type_, synonyms, request))
    return results


def _broker_config(
    name: str, type_: ConfigType, values: list[tuple[str, str, ConfigSource]], request: DescribeConfigsRequest
) -> DescribeConfigsResourceResult:
    """Describe one config of a broker.

    `values` has (name, value, source) for each synonym that has a value, by precedence, beginning with `name` itself.
    """
    key = BROKER_CONFIGS.get(name)
    own = values[0] if values and values[0][0] == name else None
    return DescribeConfigsResourceResult(
        name=name,
        value=None if own is None else own[1],
        read_only=key is None,
        config_source=ConfigSource.DEFAULT if own is None else own[2],
        synonyms=_synonyms([] if own is None else values, request),
        config_type=type_,
        documentation=key.doc if key is not None and request.include_documentation else None,
    )


def _logger_levels(
    context: RequestContext, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> list[DescribeConfigsResourceResult]:
    if not resource.resource_name:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
    check_broker_id(resource.resource_name, context.node_id, " but received")
    return [
        DescribeConfigsResourceResult(
            name=name, value=level, read_only=True, config_source=ConfigSource.DYNAMIC_BROKER_LOGGER, documentation=None
        )
        for name, level in logger_levels()
    ]


def _client_metrics_configs(
    context: RequestContext, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> list[DescribeConfigsResourceResult]:
    if not resource.resource_name:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
    return [_default_config(item, request) for item in CLIENT_METRICS_CONFIGS]


def _group_configs(
    context: RequestContext, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> list[DescribeConfigsResourceResult]:
    if not resource.resource_name:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
    return [_default_config(item, request) for item in GROUP_CONFIGS]


def _default_config(item: DefaultConfig, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = [] if item.broker_name is None else [(item.broker_name, item.value, ConfigSource.DEFAULT)]
    return DescribeConfigsResourceResult(
        name=item.name,
        value=item.value,
        read_only=True,
        config_source=ConfigSource.DEFAULT,
        synonyms=_synonyms(synonyms, request),
        config_type=item.type,
        documentation=item.doc if request.include_documentation else None,
    )


def _synonyms(
    values: Iterable[tuple[str, str, ConfigSource]], request: DescribeConfigsRequest
) -> list[DescribeConfigsSynonym]:
    if not request.include_synonyms:
        return []
    return [DescribeConfigsSynonym(name=name, value=value, source=source) for name, value, source in values]


def _unknown_type(
    context: RequestContext, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> list[DescribeConfigsResourceResult]:
    raise ApiError(
        ErrorCode.INVALID_REQUEST,
        f"Unexpected resource type {resource.resource_type} for resource {resource.resource_name}",
    )


_Describer = Callable[
    [RequestContext, DescribeConfigsResource, DescribeConfigsRequest], list[DescribeConfigsResourceResult]
]
_DESCRIBERS: dict[int, _Describer] = {
    BROKER_RESOURCE: _broker_configs,
    BROKER_LOGGER_RESOURCE: _logger_levels,
    CLIENT_METRICS_RESOURCE: _client_metrics_configs,
    GROUP_RESOURCE: _group_configs,
}
