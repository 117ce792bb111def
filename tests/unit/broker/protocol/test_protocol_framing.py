"""Tests of frames: size prefixes, header versions, and errors for malformed headers."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.codec import decode
from headrace_broker.protocol.errors import ErrorCode, ProtocolError
from headrace_broker.protocol.framing import (
    RequestHeader,
    encode_request,
    encode_response,
    parse_request_header,
    parse_response_header,
)
from headrace_broker.protocol.messages import (
    ApiVersionsResponse,
    FetchResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    MetadataRequest,
    ProduceRequest,
)
from headrace_broker.protocol.messages.api_versions import ApiVersion
from headrace_broker.protocol.messages.fetch import FetchableTopicResponse, PartitionData
from headrace_broker.protocol.messages.produce import PartitionProduceData, TopicProduceData
from headrace_broker.server.handlers.api_versions import unsupported_version_response


def unframed(buffers: list[bytes]) -> bytes:
    frame = b"".join(buffers)
    assert struct.unpack_from(">i", frame) == (len(frame) - 4,)
    return frame[4:]


@pytest.mark.parametrize("client_id", ["headrace", "", "ü" * 100, None])
@pytest.mark.parametrize("version", [0, 8, 9, 13])
def test_encoded_request_is_parsed_to_same_header_and_message(client_id: str | None, version: int) -> None:
    frame = unframed(encode_request(-7, client_id, MetadataRequest(topics=[]), version))
    header = parse_request_header(memoryview(frame))
    assert header[:4] == (ApiKey.METADATA, version, -7, client_id)
    assert decode(MetadataRequest, version, frame, header.body_offset) == MetadataRequest(topics=[])


def test_non_flexible_request_is_encoded_without_tagged_fields() -> None:
    request = HeartbeatRequest(group_id="g", generation_id=2, member_id="m")
    expected = struct.pack(">ihhih2s", 22, 12, 0, 5, 2, b"me") + struct.pack(">h1sih1s", 1, b"g", 2, 1, b"m")
    assert b"".join(encode_request(5, "me", request, 0)) == expected


def test_length_of_the_client_id_is_encoded_in_two_bytes_in_flexible_headers() -> None:
    frame = unframed(encode_request(1, "me", HeartbeatRequest(), 4))
    assert frame[:13] == struct.pack(">hhih2sB", 12, 4, 1, 2, b"me", 0)


def test_tagged_fields_of_a_header_are_skipped() -> None:
    frame = struct.pack(">hhih", 12, 4, 1, -1) + bytes([2, 0, 1, 99, 200, 1, 2, 98, 97])
    assert parse_request_header(frame) == RequestHeader(12, 4, 1, None, len(frame))


@pytest.mark.parametrize(("version", "head"), [(3, 4), (4, 5)])
def test_response_header_has_tagged_fields_only_in_flexible_versions(version: int, head: int) -> None:
    frame = unframed(encode_response(9, HeartbeatResponse(error_code=27), version))
    assert parse_response_header(frame, ApiKey.HEARTBEAT, version) == (9, head)
    assert decode(HeartbeatResponse, version, frame, head).error_code == ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("version", range(6))
def test_api_versions_response_has_header_version_0(version: int) -> None:
    response = ApiVersionsResponse(api_keys=[ApiVersion(api_key=18, max_version=5)])
    frame = unframed(encode_response(3, response, version))
    assert parse_response_header(frame, ApiKey.API_VERSIONS, version) == (3, 4)
    assert decode(ApiVersionsResponse, version, frame, 4) == response


def test_api_versions_request_of_an_unsupported_version_receives_a_version_0_response() -> None:
    routes: Any = {18: SimpleNamespace(advertised=(0, 5)), 0: SimpleNamespace(advertised=(0, 13))}
    frame = unframed(encode_response(3, unsupported_version_response(routes), 0))
    body = struct.pack(">ih", 3, 35) + struct.pack(">ihhhhhh", 2, 0, 0, 13, 18, 0, 5)
    assert frame == body


def test_records_are_encoded_without_copying() -> None:
    batches: list[bytes] = [b"a" * 5000, b"b" * 10, b"c" * 2000]
    partition = PartitionData(partition_index=1, records=[memoryview(each) for each in batches])
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[partition])])
    buffers = encode_response(1, response, 12)
    assert [each.obj for each in buffers if isinstance(each, memoryview)] == batches
    frame = unframed(buffers)
    decoded = decode(FetchResponse, 12, frame, 5)
    assert bytes(decoded.responses[0].partitions[0].records) == b"".join(batches)


def test_records_are_decoded_as_views_of_the_frame() -> None:
    data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=1, records=b"x" * 100)])
    frame = bytearray(unframed(encode_request(1, None, ProduceRequest(acks=1, topic_data=[data]), 9)))
    header = parse_request_header(frame)
    records = decode(ProduceRequest, 9, frame, header.body_offset).topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    records[0:1] = b"y"
    assert b"yxx" in frame


@pytest.mark.parametrize("length", range(13))
def test_truncated_request_header_raises_protocol_error(length: int) -> None:
    frame = unframed(encode_request(1, "me", HeartbeatRequest(), 4))
    with pytest.raises(ProtocolError, match=r"header|client id"):
        parse_request_header(frame[:length])


@pytest.mark.parametrize("length", range(5))
def test_truncated_response_header_raises_protocol_error(length: int) -> None:
    frame = unframed(encode_response(1, HeartbeatResponse(), 4))
    with pytest.raises(ProtocolError, match="header"):
        parse_response_header(frame[:length], ApiKey.HEARTBEAT, 4)


def test_unknown_api_key_raises_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="Unknown API key 999"):
        parse_request_header(struct.pack(">hhih", 999, 0, 1, -1))


def test_client_id_with_invalid_utf8_raises_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="Error parsing request header"):
        parse_request_header(struct.pack(">hhih2s", 12, 0, 1, 2, b"\xff\xfe"))
