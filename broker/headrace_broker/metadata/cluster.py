"""Decisions about brokers and features: what a new log begins with, and registration.

Feature levels: `metadata.version` is Kafka 4.3's (30), so that every record type written here is known to Kafka's
tools; the other features stay at 0 until what they promise is there.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace_broker.metadata.image import BrokerImage, Endpoint, MetadataImage
from headrace_broker.metadata.outcome import Outcome
from headrace_broker.protocol.metadata_records import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    FeatureLevelRecord,
    MetadataRecord,
    RegisterBrokerRecord,
)

METADATA_VERSION_FEATURE = "metadata.version"
METADATA_VERSION = 30
METADATA_VERSION_MIN = 7
UNFENCED = -1
SHUTTING_DOWN = 1


def bootstrap_records() -> list[MetadataRecord]:
    """What the metadata log of a new cluster begins with."""
    return [FeatureLevelRecord(name=METADATA_VERSION_FEATURE, feature_level=METADATA_VERSION)]


def register_broker(
    image: MetadataImage,
    broker_id: int,
    *,
    next_offset: int,
    incarnation_id: bytes,
    endpoints: Sequence[Endpoint],
    rack: str | None,
    log_dirs: Sequence[bytes],
) -> Outcome[int]:
    """Register a broker that just started; answers its epoch, the offset at which the record will stand."""
    record = RegisterBrokerRecord(
        broker_id=broker_id,
        incarnation_id=incarnation_id,
        broker_epoch=next_offset,
        end_points=[
            BrokerEndpoint(name=item.name, host=item.host, port=item.port, security_protocol=item.security_protocol)
            for item in endpoints
        ],
        features=[
            BrokerFeature(
                name=METADATA_VERSION_FEATURE,
                min_supported_version=METADATA_VERSION_MIN,
                max_supported_version=METADATA_VERSION,
            )
        ],
        rack=rack,
        fenced=True,
        log_dirs=list(log_dirs),
    )
    return Outcome(next_offset, [record])


def unfence_broker(broker: BrokerImage) -> Outcome[None]:
    """The broker has caught up with the metadata log up to its own registration: it may lead."""
    if not broker.fenced:
        return Outcome(None)
    record = BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.epoch, fenced=UNFENCED, log_dirs=[]
    )
    return Outcome(None, [record])
