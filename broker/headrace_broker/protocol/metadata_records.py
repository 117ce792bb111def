"""The records of the metadata log (`__cluster_metadata`), each of which changes the cluster's state (KIP-631).

A record's value consists of the frame version (1), the record type, the record version and the
record's fields. The first three are varints. All record types of Kafka 4.4 are defined, so that logs
and snapshots written by Kafka can be read.
"""

from __future__ import annotations

from headrace_broker.protocol.codec import DecodeError, decoder, encode_joined
from headrace_broker.protocol.notation import (
    Buffer,
    Message,
    array,
    binary,
    boolean,
    float64,
    int8,
    int16,
    int32,
    int64,
    string,
    uint16,
    uuid,
)
from headrace_broker.protocol.primitives import MalformedError, read_unsigned_varint, unsigned_varint

_FRAME_VERSION = 1


class MetadataRecord(Message):
    """Base class of the metadata log's records."""

    __slots__ = ()


class BrokerEndpoint(Message):
    name: str = string()
    host: str = string()
    port: int = uint16()
    security_protocol: int = int16()


class BrokerFeature(Message):
    name: str = string()
    min_supported_version: int = int16()
    max_supported_version: int = int16()


class RegisterBrokerRecord(MetadataRecord, api_key=0, versions="0-4", flexible="0+"):
    """A broker has registered and is fenced until it has read the metadata log up to this record.

    The broker epoch is the record's offset.
    """

    broker_id: int = int32()
    is_migrating_zk_broker: bool = boolean("2+")
    incarnation_id: bytes = uuid()
    broker_epoch: int = int64()
    end_points: list[BrokerEndpoint] = array(BrokerEndpoint)
    features: list[BrokerFeature] = array(BrokerFeature)
    rack: str | None = string(nullable="0+")
    fenced: bool = boolean(default=True)
    in_controlled_shutdown: bool = boolean("1+")
    log_dirs: list[bytes] = array(uuid, "3+", tag=0)
    cordoned_log_dirs: list[bytes] | None = array(uuid, "4+", nullable="4+", default=None, tag=1)


class UnregisterBrokerRecord(MetadataRecord, api_key=1, versions="0", flexible="0+"):
    """A broker's registration is removed."""

    broker_id: int = int32()
    broker_epoch: int = int64()


class TopicRecord(MetadataRecord, api_key=2, versions="0", flexible="0+"):
    """A topic is created. A PartitionRecord for each of its partitions follows."""

    name: str = string()
    topic_id: bytes = uuid()


class PartitionRecord(MetadataRecord, api_key=3, versions="0-2", flexible="0+"):
    """A partition is created. The record contains the partition's whole state."""

    partition_id: int = int32(default=-1)
    topic_id: bytes = uuid()
    replicas: list[int] = array(int32)
    isr: list[int] = array(int32)
    removing_replicas: list[int] = array(int32)
    adding_replicas: list[int] = array(int32)
    leader: int = int32(default=-1)
    leader_recovery_state: int = int8(tag=0)
    leader_epoch: int = int32(default=-1)
    partition_epoch: int = int32(default=-1)
    directories: list[bytes] = array(uuid, "1+")
    eligible_leader_replicas: list[int] | None = array(int32, "2+", nullable="2+", default=None, tag=1)
    last_known_elr: list[int] | None = array(int32, "2+", nullable="2+", default=None, tag=2)


class ConfigRecord(MetadataRecord, api_key=4, versions="0", flexible="0+"):
    """A config is set. A null value removes the config."""

    resource_type: int = int8()
    resource_name: str = string()
    name: str = string()
    value: str | None = string(nullable="0+")


class PartitionChangeRecord(MetadataRecord, api_key=5, versions="0-2", flexible="0+"):
    """A partition is changed. A field that is absent (null, or -2 for `leader`) keeps its value."""

    partition_id: int = int32(default=-1)
    topic_id: bytes = uuid()
    isr: list[int] | None = array(int32, nullable="0+", default=None, tag=0)
    leader: int = int32(default=-2, tag=1)
    replicas: list[int] | None = array(int32, nullable="0+", default=None, tag=2)
    removing_replicas: list[int] | None = array(int32, nullable="0+", default=None, tag=3)
    adding_replicas: list[int] | None = array(int32, nullable="0+", default=None, tag=4)
    leader_recovery_state: int = int8(default=-1, tag=5)
    directories: list[bytes] | None = array(uuid, "1+", nullable="1+", default=None, tag=8)
    eligible_leader_replicas: list[int] | None = array(int32, "2+", nullable="2+", default=None, tag=6)
    last_known_elr: list[int] | None = array(int32, "2+", nullable="2+", default=None, tag=7)


class FenceBrokerRecord(MetadataRecord, api_key=7, versions="0", flexible="0+"):
    """A broker is fenced. BrokerRegistrationChangeRecord has replaced this record type."""

    id: int = int32()
    epoch: int = int64()


class UnfenceBrokerRecord(MetadataRecord, api_key=8, versions="0", flexible="0+"):
    """A broker is unfenced. BrokerRegistrationChangeRecord has replaced this record type."""

    id: int = int32()
    epoch: int = int64()


class RemoveTopicRecord(MetadataRecord, api_key=9, versions="0", flexible="0+"):
    """A topic and its partitions are deleted."""

    topic_id: bytes = uuid()


class DelegationTokenRecord(MetadataRecord, api_key=10, versions="0", flexible="0+"):
    """A delegation token is created or renewed."""

    owner: str = string()
    requester: str = string()
    renewers: list[str] = array(string)
    issue_timestamp: int = int64()
    max_timestamp: int = int64()
    expiration_timestamp: int = int64()
    token_id: str = string()


class UserScramCredentialRecord(MetadataRecord, api_key=11, versions="0", flexible="0+"):
    """A user's SCRAM credential is set."""

    name: str = string()
    mechanism: int = int8()
    salt: bytes = binary()
    stored_key: bytes = binary()
    server_key: bytes = binary()
    iterations: int = int32()


class FeatureLevelRecord(MetadataRecord, api_key=12, versions="0", flexible="0+"):
    """A feature is finalized at a level. Level 0 removes the feature."""

    name: str = string()
    feature_level: int = int16()


class EntityData(Message):
    entity_type: str = string()
    entity_name: str | None = string(nullable="0+")


class ClientQuotaRecord(MetadataRecord, api_key=14, versions="0", flexible="0+"):
    """An entity's quota is set or removed."""

    entity: list[EntityData] = array(EntityData)
    key: str = string()
    value: float = float64()
    remove: bool = boolean()


class ProducerIdsRecord(MetadataRecord, api_key=15, versions="0", flexible="0+"):
    """A broker is allocated the block of producer ids that ends just before `next_producer_id`."""

    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)
    next_producer_id: int = int64()


class BrokerRegistrationChangeRecord(MetadataRecord, api_key=17, versions="0-3", flexible="0+"):
    """A broker is fenced or unfenced, starts a controlled shutdown, or changes its log directories.

    `fenced` is 1 if the broker is fenced, -1 if it is unfenced, and 0 if this state does not change.
    `in_controlled_shutdown` is 1 if the broker starts a controlled shutdown, otherwise 0.
    """

    broker_id: int = int32()
    broker_epoch: int = int64()
    fenced: int = int8(tag=0)
    in_controlled_shutdown: int = int8("1+", tag=1)
    log_dirs: list[bytes] = array(uuid, "2+", tag=2)
    cordoned_log_dirs: list[bytes] | None = array(uuid, "3+", nullable="3+", default=None, tag=3)


class AccessControlEntryRecord(MetadataRecord, api_key=18, versions="0", flexible="0+"):
    """An ACL is created."""

    id: bytes = uuid()
    resource_type: int = int8()
    resource_name: str = string()
    pattern_type: int = int8()
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


class RemoveAccessControlEntryRecord(MetadataRecord, api_key=19, versions="0", flexible="0+"):
    """An ACL is deleted."""

    id: bytes = uuid()


class NoOpRecord(MetadataRecord, api_key=20, versions="0", flexible="0+"):
    """Changes no state. Kafka's controller appends this record to advance the log end offset of an idle cluster."""


class ZkMigrationStateRecord(MetadataRecord, api_key=21, versions="0", flexible="0+"):
    """The state of the migration from ZooKeeper is set. The state is 0 in a cluster that was never migrated."""

    zk_migration_state: int = int8()


class RemoveUserScramCredentialRecord(MetadataRecord, api_key=22, versions="0", flexible="0+"):
    """A user's SCRAM credential is removed."""

    name: str = string()
    mechanism: int = int8()


class BeginTransactionRecord(MetadataRecord, api_key=23, versions="0", flexible="0+"):
    """A metadata transaction starts: the records that follow are applied together or not at all (KIP-868)."""

    name: str | None = string(nullable="0+", default=None, tag=0)


class EndTransactionRecord(MetadataRecord, api_key=24, versions="0", flexible="0+"):
    """A metadata transaction ends: its records are applied."""


class AbortTransactionRecord(MetadataRecord, api_key=25, versions="0", flexible="0+"):
    """A metadata transaction is aborted: its records are discarded."""

    reason: str | None = string(nullable="0+", default=None, tag=0)


class RemoveDelegationTokenRecord(MetadataRecord, api_key=26, versions="0", flexible="0+"):
    """A delegation token is deleted."""

    token_id: str = string()


class ControllerEndpoint(Message):
    name: str = string()
    host: str = string()
    port: int = uint16()
    security_protocol: int = int16()


class ControllerFeature(Message):
    name: str = string()
    min_supported_version: int = int16()
    max_supported_version: int = int16()


class RegisterControllerRecord(MetadataRecord, api_key=27, versions="0", flexible="0+"):
    """A controller has registered."""

    controller_id: int = int32()
    incarnation_id: bytes = uuid()
    zk_migration_ready: bool = boolean()
    end_points: list[ControllerEndpoint] = array(ControllerEndpoint)
    features: list[ControllerFeature] = array(ControllerFeature)


class ClearElrRecord(MetadataRecord, api_key=28, versions="0", flexible="0+"):
    """The eligible leader replicas of a topic, or of all topics, are cleared (KIP-966)."""

    topic_name: str = string()


class UnregisterControllerRecord(MetadataRecord, api_key=29, versions="0", flexible="0+"):
    """A controller's registration is removed."""

    controller_id: int = int32()


RECORD_TYPES: dict[int, type[MetadataRecord]] = {
    record.__api_key__: record for record in MetadataRecord.__subclasses__()
}
"""The record classes by record type."""


def encode_metadata_record(record: MetadataRecord, version: int | None = None) -> bytes:
    """Return `record` encoded in `version`, or in its newest version if None. Raises EncodeError."""
    if version is None:
        version = record.__versions__[1]
    head = unsigned_varint(_FRAME_VERSION) + unsigned_varint(record.__api_key__) + unsigned_varint(version)
    return head + encode_joined(record, version)


def decode_metadata_record(value: Buffer) -> MetadataRecord:
    """Return the record that is encoded in `value`. Raises DecodeError, for example for an unknown type."""
    try:
        frame_version, position = read_unsigned_varint(value, 0)
        record_type, position = read_unsigned_varint(value, position)
        version, position = read_unsigned_varint(value, position)
    except (IndexError, MalformedError) as error:
        raise DecodeError(
            "metadata record", 0, "", 0, f"the record's header is truncated or malformed: {error}"
        ) from None
    record = RECORD_TYPES.get(record_type)
    if frame_version != _FRAME_VERSION or record is None:
        raise DecodeError(
            "metadata record", version, "", 0, f"unsupported record type {record_type} or frame version {frame_version}"
        )
    decoded, end = decoder(record, version)(value, position)
    if end != len(value):
        raise DecodeError(record.__name__, version, "", end, f"{len(value) - end} bytes follow the record")
    return decoded
