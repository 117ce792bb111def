"""Encodes and decodes the records of `__consumer_offsets`, in Kafka's format.

A record key starts with an int16, the record type. The fields of this type follow. Types 0 and 1 are committed offsets,
type 2 is a classic group, and other types belong to newer kinds of groups. A record value starts with an int16, the
version. The fields of this version follow. A null value is a tombstone.

Groups are written in version 3. Offsets are written in version 3, or in version 1 if they have an expire timestamp.
Kafka 2.1 and newer can read these versions, and so can the lag monitors that parse this topic. This module can decode
all versions up to 4.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace_broker.coordinator.groups.classic_group import ClassicGroup, GroupState, Member
from headrace_broker.coordinator.runtime import CoordinatorRecord
from headrace_broker.protocol.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from headrace_broker.protocol.versioned import (
    RecordKey,
    RecordValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
    key_type,
)

NAME_LENGTH_MAX = 8_000
"""The maximum number of characters in a group id or another stored name. A string in a record can hold
32767 bytes, a character takes up to 4 bytes in UTF-8, and the coordinator appends a suffix to client
ids and instance ids to create member ids."""

UNSUPPORTED_TYPES = {
    3: "ConsumerGroupMetadata",
    4: "ConsumerGroupPartitionMetadata",
    5: "ConsumerGroupMemberMetadata",
    6: "ConsumerGroupTargetAssignmentMetadata",
    7: "ConsumerGroupTargetAssignmentMember",
    8: "ConsumerGroupCurrentMemberAssignment",
    10: "ShareGroupMemberMetadata",
    11: "ShareGroupMetadata",
    12: "ShareGroupTargetAssignmentMetadata",
    13: "ShareGroupTargetAssignmentMember",
    14: "ShareGroupCurrentMemberAssignment",
    15: "ShareGroupStatePartitionMetadata",
    16: "ConsumerGroupRegularExpression",
    17: "StreamsGroupMetadata",
    19: "StreamsGroupMemberMetadata",
    20: "StreamsGroupTargetAssignmentMetadata",
    21: "StreamsGroupTargetAssignmentMember",
    22: "StreamsGroupCurrentMemberAssignment",
    23: "StreamsGroupTopology",
}
"""The record types of unsupported groups, with their names: KIP-848 consumer groups, share groups, streams groups."""

_OFFSET_VALUE_VERSION = 3
_EXPIRING_OFFSET_VALUE_VERSION = 1
_GROUP_VALUE_VERSION = 3


@dataclass(slots=True, frozen=True)
class CommittedOffset:
    """A group's committed offset for one partition."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = -1
    expire_timestamp_ms: int = -1  # -1 if offsets.retention.minutes applies


# -- building records


def offset_record(group_id: str, topic: str, partition: int, committed: CommittedOffset) -> CoordinatorRecord:
    expires = committed.expire_timestamp_ms >= 0
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=-1 if expires else committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp_ms,
        expire_timestamp=committed.expire_timestamp_ms,
    )
    version = _EXPIRING_OFFSET_VALUE_VERSION if expires else _OFFSET_VALUE_VERSION
    return CoordinatorRecord(OffsetCommitKey(group=group_id, topic=topic, partition=partition), value, version)


def offset_tombstone(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    return CoordinatorRecord(OffsetCommitKey(group=group_id, topic=topic, partition=partition), None)


def group_record(group: ClassicGroup, assignments: dict[str, bytes] | None = None) -> CoordinatorRecord:
    """Build the group's record. If `assignments` is None, use the members' current assignments."""
    name = group.protocol_name or ""
    members = [
        MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.protocols.get(name, b""),
            assignment=member.assignment if assignments is None else assignments.get(member.member_id, b""),
        )
        for member in group.members.values()
    ]
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation_id,
        protocol=group.protocol_name,
        leader=group.leader_id,
        current_state_timestamp=group.state_timestamp_ms,
        members=members,
    )
    return CoordinatorRecord(GroupMetadataKey(group=group.group_id), value, _GROUP_VALUE_VERSION)


def empty_group_record(group: ClassicGroup) -> CoordinatorRecord:
    """Build the record of a new group without members."""
    value = GroupMetadataValue(current_state_timestamp=group.state_timestamp_ms, protocol=None, leader=None, members=[])
    return CoordinatorRecord(GroupMetadataKey(group=group.group_id), value, _GROUP_VALUE_VERSION)


def group_tombstone(group_id: str) -> CoordinatorRecord:
    return CoordinatorRecord(GroupMetadataKey(group=group_id), None)


# -- reading records


def committed_offset(value: OffsetCommitValue) -> CommittedOffset:
    return CommittedOffset(
        value.offset, value.leader_epoch, value.metadata, value.commit_timestamp, value.expire_timestamp
    )


def group_from_record(group_id: str, value: GroupMetadataValue) -> ClassicGroup:
    """Restore a group from its record. The group is Stable if the record has members, otherwise Empty."""
    group = ClassicGroup(group_id, value.current_state_timestamp)
    group.generation_id = value.generation
    protocol_name = value.protocol or ""
    for stored in value.members:
        member = Member(
            stored.member_id,
            stored.group_instance_id,
            stored.client_id,
            stored.client_host,
            stored.session_timeout if stored.rebalance_timeout < 0 else stored.rebalance_timeout,
            stored.session_timeout,
            {protocol_name: bytes(stored.subscription)},
            bytes(stored.assignment),
        )
        group.add(member, value.protocol_type)
    group.protocol_type = value.protocol_type or None
    group.protocol_name = value.protocol
    if value.leader in group.members:
        group.leader_id = value.leader
    group.state = GroupState.STABLE if group.members else GroupState.EMPTY
    group.update_subscribed_topics()
    return group


# -- encoding


def encode_record(record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
    """Return a record's encoded key and value. The value of a tombstone is None."""
    key = encode_key(record.key)
    return key, None if record.value is None else encode_value(record.value, record.value_version)


def decode_record(key: bytes, value: bytes | None) -> CoordinatorRecord | None:
    """Decode a record. Returns None for a record type that the classic protocol does not use.

    Raises ProtocolError if `key` or `value` is not valid for its type and version.
    """
    value_class = _VALUE_CLASSES.get(key_type(key))
    if value_class is None:
        return None
    decoded_key = decode_key(_KEY_CLASSES, key)
    return CoordinatorRecord(decoded_key, None if value is None else decode_value(value_class, value))


_KEY_CLASSES: dict[int, type[RecordKey]] = {0: OffsetCommitKey, 1: OffsetCommitKey, 2: GroupMetadataKey}
_VALUE_CLASSES: dict[int, type[RecordValue]] = {0: OffsetCommitValue, 1: OffsetCommitValue, 2: GroupMetadataValue}
