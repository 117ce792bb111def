"""FindCoordinator (10): return the broker that coordinates a group.

The coordinator is the leader of the `__consumer_offsets` partition that the group id hashes to. The first request
creates this topic. Version 1 adds the key type (0 group, 1 transaction, 2 share). From version 4 on, a request may
contain several keys.

This broker does not support transactions yet, so it returns the error that makes most clients report this:

- Java clients, librdkafka and others show the error's text. librdkafka, whose requests have at most version 2, does so
  only after an authorization error: it repeats the request after every other error.
- franz-go and sarama show only the error code's meaning. They send version 3 or a later version, and receive
  INVALID_TXN_STATE, like the Java client.
- kafkajs reports every error as "Failed to find group coordinator". It does not send its name in ApiVersions. A client
  without a name receives this broker as its coordinator, and then an error for its InitProducerId request.
"""

from __future__ import annotations

from collections.abc import Awaitable

from headrace_broker.coordinator.placement import coordinator_partition
from headrace_broker.metadata.image import BrokerImage
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from headrace_broker.protocol.topic_names import GROUP_METADATA_TOPIC
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.large_requests import RequestSplit
from headrace_broker.server.topic_creation import ensure_internal_topic

API_KEY = ApiKey.FIND_COORDINATOR
VERSIONS = (0, 6)
REQUEST_SPLITS = (RequestSplit(("coordinator_keys",), ("coordinators",)),)

GROUP, TRANSACTION, SHARE = 0, 1, 2
_NO_TRANSACTIONS = "Transactions are not supported by this broker yet: remove transactional.id from the producer."
_NO_SHARE_GROUPS = "Share groups are not supported by this broker yet: use a consumer group."
_LIBRDKAFKA_VERSION_MAX = 2


def handle(
    context: RequestContext, request: FindCoordinatorRequest, version: int
) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
    """Respond immediately if the offsets topic exists, otherwise after it has been created."""
    keys = list(request.coordinator_keys) if version >= 4 else [request.key]
    if request.key_type != GROUP or GROUP_METADATA_TOPIC in context.image.topics:
        return _respond(context, keys, request.key_type, version)
    return _create_and_respond(context, keys, version)


async def _create_and_respond(context: RequestContext, keys: list[str], version: int) -> FindCoordinatorResponse:
    await ensure_internal_topic(context, GROUP_METADATA_TOPIC)
    return _respond(context, keys, GROUP, version)


def _respond(context: RequestContext, keys: list[str], key_type: int, version: int) -> FindCoordinatorResponse:
    found = [_coordinator(context, key, key_type, version) for key in keys]
    if version >= 4:
        return FindCoordinatorResponse(coordinators=found)
    only = found[0]
    return FindCoordinatorResponse(
        error_code=only.error_code,
        error_message=only.error_message if only.error_code else "NONE",  # as in Apache Kafka
        node_id=only.node_id,
        host=only.host,
        port=only.port,
    )


def _coordinator(context: RequestContext, key: str, key_type: int, version: int) -> Coordinator:
    if key_type == TRANSACTION:
        return _transaction_coordinator(context, key, version)
    if key_type == SHARE:
        return _failed(key, ErrorCode.INVALID_REQUEST, _NO_SHARE_GROUPS)
    if key_type != GROUP:
        return _failed(key, ErrorCode.INVALID_REQUEST, f"Unknown coordinator type {key_type}.")
    return _found(context, key, _leader(context, key))


def _transaction_coordinator(context: RequestContext, key: str, version: int) -> Coordinator:
    """Return the error from which the client can tell that this broker does not support transactions."""
    if version > _LIBRDKAFKA_VERSION_MAX:
        return _failed(key, ErrorCode.INVALID_TXN_STATE, _NO_TRANSACTIONS)
    if context.client_software_name:
        return _failed(key, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, _NO_TRANSACTIONS)
    return _found(context, key, context.image.brokers.get(context.node_id))


def _found(context: RequestContext, key: str, broker: BrokerImage | None) -> Coordinator:
    endpoint = broker.endpoint(context.listener) if broker is not None else None
    if broker is None or endpoint is None:
        return _failed(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE.message)
    return Coordinator(key=key, node_id=broker.broker_id, host=endpoint.host, port=endpoint.port)


def _leader(context: RequestContext, key: str) -> BrokerImage | None:
    topic = context.image.topics.get(GROUP_METADATA_TOPIC)
    if topic is None:
        return None
    partition = topic.partitions[coordinator_partition(key, len(topic.partitions))]
    return context.image.brokers.get(partition.leader)


def _failed(key: str, code: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=message)
