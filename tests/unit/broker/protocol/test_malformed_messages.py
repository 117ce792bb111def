"""Tests of malformed input: truncated, oversized and random bytes raise only DecodeError and use little memory."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest

from headrace_broker.protocol.apis import API
from headrace_broker.protocol.codec import DecodeError, EncodeError, decode, decoder, encode, encode_joined
from headrace_broker.protocol.messages import (
    CreateTopicsRequest,
    FetchRequest,
    JoinGroupRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    ProduceRequest,
)
from headrace_broker.protocol.messages.metadata import MetadataRequestTopic
from headrace_broker.protocol.messages.produce import PartitionProduceData, TopicProduceData
from headrace_broker.protocol.notation import Message
from support.random_messages import random_message

REQUESTS = [api.request for api in API.values()]
RESPONSES = [api.response for api in API.values()]
COMMON = [ProduceRequest, FetchRequest, MetadataRequest, ListOffsetsRequest, JoinGroupRequest, OffsetCommitRequest]


@pytest.mark.parametrize("message", REQUESTS + RESPONSES, ids=lambda each: each.__name__)
def test_truncated_message_raises_decode_error(message: type[Message]) -> None:
    for version in (message.__versions__[0], message.__versions__[1]):
        data = encode_joined(random_message(message, version, Random(f"{message.__name__}{version}")), version)[:3000]
        for length in range(len(data)):
            with pytest.raises(DecodeError) as raised:
                decode(message, version, data[:length])
            assert raised.value.message == message.__name__
            assert 0 <= raised.value.position <= length


@pytest.mark.parametrize("message", REQUESTS, ids=lambda each: each.__name__)
def test_random_and_corrupted_bytes_raise_only_decode_error(message: type[Message]) -> None:
    rng = Random(message.__name__)
    for version in range(message.__versions__[0], message.__versions__[1] + 1):
        read = decoder(message, version)
        data = encode_joined(random_message(message, version, rng), version)[:2000]
        for _ in range(10):
            corrupted = bytearray(data or b"\0")
            for _ in range(rng.randint(1, 4)):
                corrupted[rng.randrange(len(corrupted))] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
            for attempt in (bytes(corrupted), rng.randbytes(rng.randint(0, 60))):
                try:
                    read(attempt, 0)
                except DecodeError:
                    continue


@pytest.mark.parametrize("message", COMMON, ids=lambda each: each.__name__)
@pytest.mark.parametrize(
    "fill", [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\x00\x7f\xff\xff\xff", b"\xfe\xff\xff\xff\x0f"]
)
def test_message_with_a_huge_length_field_allocates_little_memory(message: type[Message], fill: bytes) -> None:
    tracemalloc.start()
    try:
        for version in range(message.__versions__[0], message.__versions__[1] + 1):
            read = decoder(message, version)
            data = encode_joined(message(), version)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            for position in range(len(data)):
                try:
                    read(data[:position] + fill + data[position:], 0)
                except DecodeError:
                    continue
            assert tracemalloc.get_traced_memory()[1] - before < 200_000
    finally:
        tracemalloc.stop()


def test_message_with_too_many_nested_messages_raises_decode_error() -> None:
    count = 1_200_000
    varint = bytes([(count + 1) & 127 | 128, (count + 1) >> 7 & 127 | 128, (count + 1) >> 14])
    empty_topic = b"\x01\x00"
    with pytest.raises(
        DecodeError, match="field topics, at byte 3: the message contains more than 1000000 nested messages"
    ):
        decode(MetadataRequest, 9, varint + empty_topic * count + b"\x00" * 4)


def test_decode_error_names_message_and_version_and_field_and_position() -> None:
    topics = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=1, records=b"x" * 100)])]
    data = encode_joined(ProduceRequest(acks=1, topic_data=topics), 9)
    with pytest.raises(DecodeError) as raised:
        decode(ProduceRequest, 9, data[:40])
    error = raised.value
    assert (error.field, error.version, error.position) == ("topic_data.partition_data.records", 9, 16)
    assert "cannot decode ProduceRequest version 9, field topic_data.partition_data.records, at byte 16" in str(error)
    assert "Error reading value of length 100, only 24 bytes available" in str(error)


def test_null_in_non_nullable_field_raises_decode_error() -> None:
    with pytest.raises(DecodeError, match="field topics, at byte 4: non-nullable field was serialized as null"):
        decode(MetadataRequest, 0, b"\xff\xff\xff\xff")


def test_invalid_utf8_raises_decode_error() -> None:
    with pytest.raises(DecodeError, match=r"field topics\.name.*utf-8"):
        decode(MetadataRequest, 0, b"\x00\x00\x00\x01\x00\x01\xff")


def test_array_longer_than_the_message_raises_decode_error() -> None:
    with pytest.raises(DecodeError, match="Error reading array of size 3, only 5 bytes available"):
        decode(MetadataRequest, 0, b"\x00\x00\x00\x03\x00\x01a\x00\x00")


def test_tagged_field_with_wrong_size_raises_decode_error() -> None:
    good = encode_joined(FetchRequest(cluster_id="abc"), 12)
    assert good.endswith(b"\x01\x00\x04\x04abc")
    with pytest.raises(
        DecodeError, match=r"field cluster_id.*Error reading tagged field of size 5: its value has 4 bytes"
    ):
        decode(FetchRequest, 12, good[:-5] + b"\x05\x04abc\x00")


def test_unterminated_varint_raises_decode_error() -> None:
    with pytest.raises(DecodeError, match="the varint has more than 32 bits"):
        decode(MetadataRequest, 9, b"\xff" * 20)


def test_unknown_tagged_fields_are_skipped() -> None:
    data = encode_joined(MetadataRequest(topics=[]), 12)
    assert decode(MetadataRequest, 12, data[:-1] + b"\x02\x05\x02zz\xff\x01\x00") == MetadataRequest(topics=[])


def test_decoder_ignores_bytes_after_the_message() -> None:
    data = encode_joined(MetadataRequest(topics=[]), 12)
    assert decoder(MetadataRequest, 12)(data + b"more", 0) == (MetadataRequest(topics=[]), len(data))


@pytest.mark.parametrize("version", [-1, 2, 14, 1000])
def test_unknown_version_raises_decode_error_or_encode_error(version: int) -> None:
    with pytest.raises(DecodeError, match=f"ProduceRequest version {version}.*3 to 13"):
        decode(ProduceRequest, version, b"")
    with pytest.raises(EncodeError, match="the supported versions are 3 to 13"):
        encode(ProduceRequest(), version)


@pytest.mark.parametrize(
    ("request_", "version", "expected_error"),
    [
        (ProduceRequest(acks=70_000), 9, r"field acks, timeout_ms.*'h' format requires"),
        (
            ProduceRequest(topic_data=[TopicProduceData(topic_id=b"short")]),
            13,
            r"topic_data\.topic_id: a UUID must have 16",
        ),
        (MetadataRequest(topics=[MetadataRequestTopic(name="a" * 40_000)]), 1, r"field topics\.name"),
        (MetadataRequest(topics=None), 0, "field topics"),
        (MetadataRequest(allow_auto_topic_creation=False), 3, "field allow_auto_topic_creation: version 3 has no such"),
        (CreateTopicsRequest(topics="abc"), 7, r"field topics.*'str' object has no attribute"),  # type: ignore[arg-type]
    ],
)
def test_message_with_an_invalid_field_value_raises_encode_error(
    request_: Message, version: int, expected_error: str
) -> None:
    with pytest.raises(EncodeError, match=expected_error):
        encode(request_, version)
