"""Broker registration, heartbeats, fencing, controlled shutdown and unregistration (KIP-631, KIP-841).

A broker is fenced until it has read the metadata log up to its own registration. A fenced broker cannot be elected
leader. A broker's epoch is the offset of its registration record, so a later incarnation of the broker has a higher
epoch.
"""

from __future__ import annotations

from headrace_broker.metadata.controller_result import ControllerResult
from headrace_broker.metadata.image import BrokerImage, MetadataImage
from headrace_broker.metadata.leadership import (
    TopicConfigs,
    elect_leaders_for_unfenced_broker,
    is_leader_of_any_partition,
    remove_broker_from_isrs,
)
from headrace_broker.metadata.liveness import BrokerLiveness
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from headrace_broker.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from headrace_broker.protocol.metadata_records import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)

FENCE = 1
UNFENCE = -1
SHUTTING_DOWN = 1


def register_broker(
    image: MetadataImage,
    request: BrokerRegistrationRequest,
    *,
    cluster_id: str,
    next_offset: int,
    is_alive: bool,
    topic_configs: TopicConfigs,
) -> ControllerResult[BrokerRegistrationResponse]:
    """Register a broker. `is_alive` is true if an earlier incarnation of the same broker id still has a session.

    The caller appends the records at `next_offset`. Raises ApiError DUPLICATE_BROKER_REGISTRATION,
    INCONSISTENT_CLUSTER_ID, INVALID_REQUEST.
    """
    if request.broker_id < 0:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"node.id={request.broker_id} is not a valid broker id: it must not be negative"
        )
    if request.cluster_id != cluster_id:
        raise ApiError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"this cluster's id is {cluster_id}, but the broker's cluster id is {request.cluster_id}",
        )
    known = image.brokers.get(request.broker_id)
    if known is not None and known.incarnation_id == request.incarnation_id:
        return ControllerResult(BrokerRegistrationResponse(broker_epoch=known.epoch))
    if known is not None and is_alive and not known.in_controlled_shutdown:
        raise ApiError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"another broker with node.id={request.broker_id} is running; give each node a unique node.id",
        )
    records: list[MetadataRecord] = []
    if known is not None:
        was_clean = request.previous_broker_epoch == known.epoch
        records += remove_broker_from_isrs(
            image, request.broker_id, topic_configs, unclean_shutdown=not was_clean, keep_sole_replicas=True
        )
    # The broker epoch is the offset of the registration record, which follows the records above.
    epoch = next_offset + len(records)
    records.append(_registration(request, epoch))
    return ControllerResult(BrokerRegistrationResponse(broker_epoch=epoch), records)


def _registration(request: BrokerRegistrationRequest, epoch: int) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=request.broker_id,
        incarnation_id=request.incarnation_id,
        broker_epoch=epoch,
        end_points=[
            BrokerEndpoint(name=item.name, host=item.host, port=item.port, security_protocol=item.security_protocol)
            for item in request.listeners
        ],
        features=[
            BrokerFeature(
                name=item.name,
                min_supported_version=item.min_supported_version,
                max_supported_version=item.max_supported_version,
            )
            for item in request.features
        ],
        rack=request.rack,
        fenced=True,
        log_dirs=list(request.log_dirs),
    )


def heartbeat(
    image: MetadataImage,
    request: BrokerHeartbeatRequest,
    liveness: BrokerLiveness,
    topic_configs: TopicConfigs,
    next_offset: int,
) -> ControllerResult[BrokerHeartbeatResponse]:
    """Handle BrokerHeartbeat: fence, unfence or shut down the broker. Raises ApiError STALE_BROKER_EPOCH."""
    broker = validate_broker_epoch(image, request.broker_id, request.broker_epoch)
    if broker.fenced:
        return _fenced_heartbeat(image, broker, request, topic_configs)
    if broker.in_controlled_shutdown:
        return _shutting_down_heartbeat(image, broker, request, liveness)
    if request.want_shut_down:
        records = _begin_shutdown(image, broker, topic_configs)
        liveness.begin_shutdown(broker.broker_id, next_offset + len(records) - 1)
        response = BrokerHeartbeatResponse(is_caught_up=True, is_fenced=False, should_shut_down=False)
        return ControllerResult(response, records)
    if request.want_fence:
        return ControllerResult(
            BrokerHeartbeatResponse(is_caught_up=_is_caught_up(broker, request), is_fenced=True),
            fence_broker(image, broker, topic_configs),
        )
    return ControllerResult(BrokerHeartbeatResponse(is_caught_up=_is_caught_up(broker, request), is_fenced=False))


def validate_broker_epoch(image: MetadataImage, broker_id: int, epoch: int) -> BrokerImage:
    """Return the broker if `epoch` is its current broker epoch. Raises ApiError STALE_BROKER_EPOCH."""
    broker = image.brokers.get(broker_id)
    if broker is None or broker.epoch != epoch:
        state = "not registered" if broker is None else f"registered with broker epoch {broker.epoch}"
        raise ApiError(
            ErrorCode.STALE_BROKER_EPOCH, f"broker {broker_id} is {state}, but the request has broker epoch {epoch}"
        )
    return broker


def _is_caught_up(broker: BrokerImage, request: BrokerHeartbeatRequest) -> bool:
    return request.current_metadata_offset >= broker.epoch


def _fenced_heartbeat(
    image: MetadataImage, broker: BrokerImage, request: BrokerHeartbeatRequest, topic_configs: TopicConfigs
) -> ControllerResult[BrokerHeartbeatResponse]:
    caught_up = _is_caught_up(broker, request)
    if request.want_shut_down:
        return ControllerResult(BrokerHeartbeatResponse(is_caught_up=caught_up, is_fenced=True, should_shut_down=True))
    if request.want_fence or not caught_up:
        return ControllerResult(BrokerHeartbeatResponse(is_caught_up=caught_up, is_fenced=True))
    return ControllerResult(
        BrokerHeartbeatResponse(is_caught_up=True, is_fenced=False), unfence_broker(image, broker, topic_configs)
    )


def _shutting_down_heartbeat(
    image: MetadataImage, broker: BrokerImage, request: BrokerHeartbeatRequest, liveness: BrokerLiveness
) -> ControllerResult[BrokerHeartbeatResponse]:
    others = [item.broker_id for item in image.live_brokers()]
    is_seen_by_all = liveness.lowest_metadata_offset(others) >= liveness.shutdown_offset(broker.broker_id)
    may_shut_down = is_seen_by_all and not is_leader_of_any_partition(image, broker.broker_id)
    response = BrokerHeartbeatResponse(is_caught_up=True, is_fenced=False, should_shut_down=may_shut_down)
    return ControllerResult(response)


def unfence_broker(image: MetadataImage, broker: BrokerImage, topic_configs: TopicConfigs) -> list[MetadataRecord]:
    """Unfence a broker that has caught up, and elect leaders for its partitions that have no leader."""
    change = BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.epoch, fenced=UNFENCE, log_dirs=[]
    )
    return [change, *elect_leaders_for_unfenced_broker(image, broker.broker_id, topic_configs)]


def fence_broker(image: MetadataImage, broker: BrokerImage, topic_configs: TopicConfigs) -> list[MetadataRecord]:
    """Fence a broker whose session expired or that requested to be fenced, and elect new leaders for its partitions."""
    change = BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.epoch, fenced=FENCE, log_dirs=[]
    )
    return [*remove_broker_from_isrs(image, broker.broker_id, topic_configs), change]


def _begin_shutdown(image: MetadataImage, broker: BrokerImage, topic_configs: TopicConfigs) -> list[MetadataRecord]:
    change = BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.epoch, in_controlled_shutdown=SHUTTING_DOWN, log_dirs=[]
    )
    return [change, *remove_broker_from_isrs(image, broker.broker_id, topic_configs)]


def unregister_broker(image: MetadataImage, broker_id: int, topic_configs: TopicConfigs) -> ControllerResult[None]:
    """Unregister a broker permanently. Raises ApiError BROKER_ID_NOT_REGISTERED."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {broker_id} is not registered")
    records = remove_broker_from_isrs(image, broker_id, topic_configs, unclean_shutdown=True)
    return ControllerResult(None, [*records, UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=broker.epoch)])
