"""Tests of the format in which metadata, group, transaction and control records are stored."""

from __future__ import annotations

import pytest

from headrace_broker.protocol.codec import DecodeError, EncodeError
from headrace_broker.protocol.control_records import (
    ControlType,
    EndTxnMarker,
    LeaderChangeMessage,
    Voter,
    decode_control_type,
    decode_control_value,
    encode_control_key,
    encode_control_value,
)
from headrace_broker.protocol.errors import ProtocolError
from headrace_broker.protocol.group_records import (
    GROUP_KEYS,
    ConsumerGroupMetadataKey,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from headrace_broker.protocol.metadata_records import (
    RECORD_TYPES,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionChangeRecord,
    TopicRecord,
    decode_metadata_record,
    encode_metadata_record,
)
from headrace_broker.protocol.transaction_records import TRANSACTION_KEYS, TransactionLogKey, TransactionLogValue
from headrace_broker.protocol.versioned import RecordKey, decode_key, decode_value, encode_key, encode_value, key_type

# Kafka has no released record types 6, 13 and 16.
METADATA_TYPES = set(range(30)) - {6, 13, 16}


def test_all_metadata_record_types_are_defined() -> None:
    assert set(RECORD_TYPES) == METADATA_TYPES


@pytest.mark.parametrize(
    ("record", "version", "expected"),
    [
        (NoOpRecord(), 0, "01 14 00 00"),
        (TopicRecord(name="t", topic_id=bytes(range(16))), 0, "01 02 00 02 74 000102030405060708090a0b0c0d0e0f 00"),
        (FeatureLevelRecord(name="f", feature_level=1), 0, "01 0c 00 02 66 0001 00"),
        (
            PartitionChangeRecord(partition_id=1, isr=[2], leader=2),
            0,
            "01 05 00 00000001 00000000000000000000000000000000 02 00 05 02 00000002 01 04 00000002",
        ),
    ],
)
def test_metadata_record_starts_with_frame_version_and_record_type_and_record_version(
    record: TopicRecord, version: int, expected: str
) -> None:
    data = bytes.fromhex(expected.replace(" ", ""))
    assert encode_metadata_record(record, version).hex(" ") == data.hex(" ")
    assert decode_metadata_record(memoryview(data)) == record


def test_metadata_records_are_encoded_in_newest_version_by_default() -> None:
    record = PartitionChangeRecord(eligible_leader_replicas=[1])
    assert encode_metadata_record(record)[2] == 2
    with pytest.raises(EncodeError, match="eligible_leader_replicas: version 1 has no such field"):
        encode_metadata_record(record, 1)


@pytest.mark.parametrize(
    ("value", "expected_error"),
    [
        ("", "header is truncated"),
        ("01 02", "header is truncated"),
        ("00 02 00 00", "unsupported record type 2 or frame version 0"),
        ("01 7f 00 00", "unsupported record type 127"),
        ("01 02 09 00", "TopicRecord version 9"),
        ("01 14 00 00 00", "1 bytes follow the record"),
        ("01 02 00 02", "TopicRecord version 0, field name"),
    ],
)
def test_malformed_metadata_record_raises_decode_error(value: str, expected_error: str) -> None:
    with pytest.raises(DecodeError, match=expected_error):
        decode_metadata_record(bytes.fromhex(value.replace(" ", "")))


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (OffsetCommitKey(group="g", topic="t", partition=3), "0001 0001 67 0001 74 00000003"),
        (GroupMetadataKey(group="g"), "0002 0001 67"),
        (ConsumerGroupMetadataKey(group_id="g"), "0003 0001 67"),
    ],
)
def test_group_record_key_starts_with_its_type(key: RecordKey, expected: str) -> None:
    data = bytes.fromhex(expected.replace(" ", ""))
    assert encode_key(key).hex(" ") == data.hex(" ")
    assert decode_key(GROUP_KEYS, data) == key


def test_offset_commit_key_of_version_0_is_decoded() -> None:
    assert decode_key(GROUP_KEYS, bytes.fromhex("0000000167000174 00000003".replace(" ", ""))) == OffsetCommitKey(
        group="g", topic="t", partition=3
    )


@pytest.mark.parametrize("key", [b"", b"\x00", b"\x00\x63abc"])
def test_truncated_or_unknown_record_key_raises_decode_error(key: bytes) -> None:
    with pytest.raises(DecodeError, match=r"expected at least 2 bytes|unknown record key type 99"):
        decode_key(GROUP_KEYS, key)


def test_offset_commit_values_are_encoded_in_every_version_that_kafka_writes() -> None:
    value = OffsetCommitValue(offset=5, leader_epoch=2, metadata="m", commit_timestamp=1000, expire_timestamp=2000)
    assert encode_value(value, 1).hex(" ") == bytes.fromhex(
        "0001 0000000000000005 0001 6d 00000000000003e8 00000000000007d0".replace(" ", "")
    ).hex(" ")
    newer = encode_value(value, 3)
    assert newer.hex() == "0003" + "0000000000000005" + "00000002" + "00016d" + "00000000000003e8"
    assert decode_value(OffsetCommitValue, newer) == OffsetCommitValue(
        offset=5, leader_epoch=2, metadata="m", commit_timestamp=1000
    )
    with_topic = OffsetCommitValue(offset=5, topic_id=b"i" * 16)
    assert decode_value(OffsetCommitValue, encode_value(with_topic, 4)) == with_topic


@pytest.mark.parametrize("version", range(5))
def test_group_metadata_value_round_trips_in_every_version(version: int) -> None:
    member = MemberMetadata(member_id="m", client_id="c", client_host="/h", session_timeout=1, subscription=b"s")
    value = GroupMetadataValue(protocol_type="consumer", generation=4, protocol="range", leader="m", members=[member])
    assert decode_value(GroupMetadataValue, encode_value(value, version)) == value


def test_transaction_state_record_round_trips() -> None:
    key = TransactionLogKey(transactional_id="x")
    assert decode_key(TRANSACTION_KEYS, encode_key(key)) == key
    assert key_type(encode_key(key)) == 0
    value = TransactionLogValue(producer_id=1, next_producer_id=2, next_producer_epoch=3, transaction_status=1)
    assert decode_value(TransactionLogValue, encode_value(value, 1)) == value


def test_transaction_marker_contains_type_in_key_and_coordinator_epoch_in_value() -> None:
    assert encode_control_key(ControlType.COMMIT).hex() == "00000001"
    assert encode_control_value(EndTxnMarker(coordinator_epoch=7)).hex() == "000000000007"
    assert decode_control_value(ControlType.ABORT, bytes.fromhex("000000000007")) == EndTxnMarker(coordinator_epoch=7)


def test_leader_change_message_round_trips() -> None:
    message = LeaderChangeMessage(leader_id=1, voters=[Voter(voter_id=1)], granting_voters=[Voter(voter_id=1)])
    data = encode_control_value(message)
    assert data.hex(" ") == bytes.fromhex("0000 00000001 02 00000001 00 02 00000001 00 00".replace(" ", "")).hex(" ")
    assert decode_control_value(ControlType.LEADER_CHANGE, data) == message


def test_unknown_control_record_type_is_returned_and_malformed_key_raises_protocol_error() -> None:
    assert decode_control_type(b"\x00\x00\x00\x63") == 99
    for key in (b"", b"\x00\x00\x00", b"\xff\xff\x00\x01"):
        with pytest.raises(ProtocolError, match="control record"):
            decode_control_type(key)
