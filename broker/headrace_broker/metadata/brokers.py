"""Decisions about brokers: registration, heartbeats, fencing, controlled shutdown, unregistration (KIP-631, KIP-841).

A broker is fenced until it has read the metadata log up to its own registration; it may lead only unfenced.  Its epoch
is the offset of its registration record, so a later incarnation has a larger one.
"""

from __future__ import annotations

from headrace_broker.metadata.image import BrokerImage, MetadataImage
from headrace_broker.metadata.leadership import TopicRules, broker_leaves, broker_returns, leads_any
from headrace_broker.metadata.liveness import BrokerLiveness
from headrace_broker.metadata.outcome import Outcome
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
    rules: TopicRules,
) -> Outcome[BrokerRegistrationResponse]:
    """Register a broker that started.  `is_alive`: the present incarnation of that id still has a session.

    Raises ApiError DUPLICATE_BROKER_REGISTRATION, INCONSISTENT_CLUSTER_ID, INVALID_REQUEST.
    """
    if request.broker_id < 0:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"node.id={request.broker_id} is no number for a broker")
    if request.cluster_id != cluster_id:
        raise ApiError(
            ErrorCode.INCONSISTENT_CLUSTER_ID, f"this is cluster {cluster_id}, the broker's is {request.cluster_id}"
        )
    known = image.brokers.get(request.broker_id)
    if known is not None and known.incarnation_id == request.incarnation_id:
        return Outcome(BrokerRegistrationResponse(broker_epoch=known.epoch))
    if known is not None and is_alive and not known.in_controlled_shutdown:
        raise ApiError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"another broker with node.id={request.broker_id} is alive; give each node a number of its own",
        )
    records: list[MetadataRecord] = []
    if known is not None:
        was_clean = request.previous_broker_epoch == known.epoch
        records += broker_leaves(
            image, request.broker_id, rules, unclean_shutdown=not was_clean, keeps_sole_replicas=True
        )
    # The epoch is the record's own offset, which others stand before.
    epoch = next_offset + len(records)
    records.append(_registration(request, epoch))
    return Outcome(BrokerRegistrationResponse(broker_epoch=epoch), records)


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
    image: MetadataImage, request: BrokerHeartbeatRequest, liveness: BrokerLiveness, rules: TopicRules, next_offset: int
) -> Outcome[BrokerHeartbeatResponse]:
    """What a broker's heartbeat changes, and what the broker is to do.  Raises ApiError STALE_BROKER_EPOCH."""
    broker = checked_broker(image, request.broker_id, request.broker_epoch)
    if broker.fenced:
        return _fenced_heartbeat(image, broker, request, rules)
    if broker.in_controlled_shutdown:
        return _stopping_heartbeat(image, broker, request, liveness)
    if request.want_shut_down:
        records = _begin_shutdown(image, broker, rules)
        liveness.begin_shutdown(broker.broker_id, next_offset + len(records) - 1)
        response = BrokerHeartbeatResponse(is_caught_up=True, is_fenced=False, should_shut_down=False)
        return Outcome(response, records)
    if request.want_fence:
        return Outcome(
            BrokerHeartbeatResponse(is_caught_up=_is_caught_up(broker, request), is_fenced=True),
            fence_broker(image, broker, rules),
        )
    return Outcome(BrokerHeartbeatResponse(is_caught_up=_is_caught_up(broker, request), is_fenced=False))


def checked_broker(image: MetadataImage, broker_id: int, epoch: int) -> BrokerImage:
    """The broker, if that is its present epoch.  Raises ApiError STALE_BROKER_EPOCH."""
    broker = image.brokers.get(broker_id)
    if broker is None or broker.epoch != epoch:
        known = "not registered" if broker is None else f"at epoch {broker.epoch}"
        raise ApiError(ErrorCode.STALE_BROKER_EPOCH, f"broker {broker_id} is {known}, not at epoch {epoch}")
    return broker


def _is_caught_up(broker: BrokerImage, request: BrokerHeartbeatRequest) -> bool:
    return request.current_metadata_offset >= broker.epoch


def _fenced_heartbeat(
    image: MetadataImage, broker: BrokerImage, request: BrokerHeartbeatRequest, rules: TopicRules
) -> Outcome[BrokerHeartbeatResponse]:
    caught_up = _is_caught_up(broker, request)
    if request.want_shut_down:
        return Outcome(BrokerHeartbeatResponse(is_caught_up=caught_up, is_fenced=True, should_shut_down=True))
    if request.want_fence or not caught_up:
        return Outcome(BrokerHeartbeatResponse(is_caught_up=caught_up, is_fenced=True))
    return Outcome(BrokerHeartbeatResponse(is_caught_up=True, is_fenced=False), unfence_broker(image, broker, rules))


def _stopping_heartbeat(
    image: MetadataImage, broker: BrokerImage, request: BrokerHeartbeatRequest, liveness: BrokerLiveness
) -> Outcome[BrokerHeartbeatResponse]:
    others = [item.broker_id for item in image.live_brokers()]
    seen_by_all = liveness.lowest_metadata_offset(others) >= liveness.shutdown_offset(broker.broker_id)
    may_go = seen_by_all and not leads_any(image, broker.broker_id)
    response = BrokerHeartbeatResponse(is_caught_up=True, is_fenced=False, should_shut_down=may_go)
    return Outcome(response)


def unfence_broker(image: MetadataImage, broker: BrokerImage, rules: TopicRules) -> list[MetadataRecord]:
    """The broker has caught up: it may lead, and partitions that waited for it get a leader."""
    change = BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.epoch, fenced=UNFENCE, log_dirs=[]
    )
    return [change, *broker_returns(image, broker.broker_id, rules)]


def fence_broker(image: MetadataImage, broker: BrokerImage, rules: TopicRules) -> list[MetadataRecord]:
    """The broker is not heard of: others lead its partitions, and no client is sent to it."""
    change = BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.epoch, fenced=FENCE, log_dirs=[]
    )
    return [*broker_leaves(image, broker.broker_id, rules), change]


def _begin_shutdown(image: MetadataImage, broker: BrokerImage, rules: TopicRules) -> list[MetadataRecord]:
    change = BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.epoch, in_controlled_shutdown=SHUTTING_DOWN, log_dirs=[]
    )
    return [change, *broker_leaves(image, broker.broker_id, rules)]


def unregister_broker(image: MetadataImage, broker_id: int, rules: TopicRules) -> Outcome[None]:
    """Forget a broker that will not come back.  Raises ApiError BROKER_ID_NOT_REGISTERED."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {broker_id} is not registered")
    records = broker_leaves(image, broker_id, rules, unclean_shutdown=True)
    return Outcome(None, [*records, UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=broker.epoch)])
