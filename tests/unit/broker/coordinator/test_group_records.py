"""Tests of the record format of `__consumer_offsets`, compared with the bytes that Kafka writes."""

from __future__ import annotations

import pytest

from headrace_broker.coordinator.groups.records import (
    CommittedOffset,
    committed_offset,
    decode_record,
    encode_record,
    offset_record,
    offset_tombstone,
)
from headrace_broker.protocol.errors import ProtocolError
from support.groups import GroupDriver

# The key contains group "g", topic "t" and partition 7.
OFFSET_KEY = bytes.fromhex("0001 0001 67 0001 74 00000007")


def test_committed_offset_is_encoded_in_version_3() -> None:
    key, value = encode_record(offset_record("g", "t", 7, CommittedOffset(5, 2, "m", 1000)))
    assert key == OFFSET_KEY
    assert value == bytes.fromhex("0003 0000000000000005 00000002 0001 6d 00000000000003e8")


def test_committed_offset_with_expire_timestamp_is_encoded_in_version_1() -> None:
    _, value = encode_record(offset_record("g", "t", 7, CommittedOffset(5, 2, "m", 1000, 2000)))
    assert value == bytes.fromhex("0001 0000000000000005 0001 6d 00000000000003e8 00000000000007d0")


def test_offset_tombstone_is_encoded_with_a_null_value() -> None:
    assert encode_record(offset_tombstone("g", "t", 7)) == (OFFSET_KEY, None)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0000 0000000000000005 0001 6d 00000000000003e8", CommittedOffset(5, -1, "m", 1000)),
        ("0001 0000000000000005 0001 6d 00000000000003e8 00000000000007d0", CommittedOffset(5, -1, "m", 1000, 2000)),
        ("0002 0000000000000005 0001 6d 00000000000003e8", CommittedOffset(5, -1, "m", 1000)),
        ("0003 0000000000000005 00000002 0001 6d 00000000000003e8", CommittedOffset(5, 2, "m", 1000)),
        # Version 4 is a flexible version and contains a topic id.
        (
            "0004 0000000000000005 00000002 02 6d 00000000000003e8 01 00 10" + "ab" * 16,
            CommittedOffset(5, 2, "m", 1000),
        ),
    ],
)
@pytest.mark.parametrize("key_type", ["0000", "0001"])
def test_committed_offset_is_decoded_from_every_version(value: str, expected: CommittedOffset, key_type: str) -> None:
    record = decode_record(bytes.fromhex(key_type) + OFFSET_KEY[2:], bytes.fromhex(value))
    assert record is not None
    assert committed_offset(record.value) == expected  # type: ignore[arg-type]


def test_group_metadata_is_encoded_in_version_3() -> None:
    driver = GroupDriver()
    driver.now_ms = 1000
    (member,) = driver.create_stable_group(
        protocols={"p": b"\1\2"}, protocol_type="x", session_ms=6000, rebalance_ms=7000
    )
    key, value = driver.log[-1]

    def text(string: str) -> bytes:
        return len(string).to_bytes(2, "big") + string.encode()

    assert key == b"\0\2" + text("g")
    assert value == b"".join(
        (
            bytes.fromhex("0003"),
            text("x"),
            (1).to_bytes(4, "big"),
            text("p"),
            text(member),
            (1000).to_bytes(8, "big"),
            (1).to_bytes(4, "big"),
            text(member),
            b"\xff\xff",
            text("client"),
            text("/127.0.0.1"),
            (7000).to_bytes(4, "big"),
            (6000).to_bytes(4, "big"),
            b"\0\0\0\2\1\2",
            len(member).to_bytes(4, "big") + member.encode(),
        )
    )


@pytest.mark.parametrize("key_type", [3, 8, 16, 23])
def test_records_of_newer_group_types_are_ignored(key_type: int) -> None:
    assert decode_record(key_type.to_bytes(2, "big") + b"whatever", b"\0\0") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"\0", b"\0\3"), (OFFSET_KEY[:-1], None), (OFFSET_KEY, b"\0"), (OFFSET_KEY, b"\0\5xx"), (OFFSET_KEY, b"\0\3xx")],
)
def test_decoding_a_malformed_record_raises_protocol_error(key: bytes, value: bytes | None) -> None:
    with pytest.raises(ProtocolError):
        decode_record(key, value)
