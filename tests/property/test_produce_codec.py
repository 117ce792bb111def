"""Tests that the hand-written Produce codec returns the same results and errors as the compiled codec."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_broker.protocol.codec import decoder
from headrace_broker.protocol.errors import ProtocolError
from headrace_broker.protocol.framing import encode_request, encode_response, parse_request_header
from headrace_broker.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from headrace_broker.server.network.produce_codec import ProduceParts, encode_appended, read_produce_request
from support.examples import examples

versions = st.integers(3, 13)
names = st.text(max_size=300)
partitions = st.builds(
    PartitionProduceData, index=st.integers(-(2**31), 2**31 - 1), records=st.none() | st.binary(max_size=300)
)
topics = st.builds(
    TopicProduceData,
    name=names,
    topic_id=st.binary(min_size=16, max_size=16),
    partition_data=st.lists(partitions, max_size=4),
)
requests = st.builds(
    ProduceRequest,
    transactional_id=st.none() | names,
    acks=st.integers(-2, 2),
    timeout_ms=st.integers(0, 2**31 - 1),
    topic_data=st.lists(topics, max_size=4),
)


def compiled(frame: memoryview, version: int) -> ProduceParts:
    """Decode `frame` with the compiled decoder, and return the same tuples as the hand-written decoder."""
    request, end = decoder(ProduceRequest, version)(frame, parse_request_header(frame).body_offset)
    if end != len(frame):
        raise ProtocolError("stray bytes")
    return (
        request.transactional_id,
        request.acks,
        request.timeout_ms,
        [
            (
                topic.topic_id if version >= 13 else topic.name,
                [(partition.index, partition.records) for partition in topic.partition_data],
            )
            for topic in request.topic_data
        ],
    )


def outcome(read: object, frame: memoryview, version: int) -> object:
    try:
        return read(frame, version)  # type: ignore[operator]
    except ProtocolError:
        return "rejected"


def frame_of(request: ProduceRequest, version: int, client_id: str | None) -> bytearray:
    return bytearray(b"".join(encode_request(7, client_id, request, version))[4:])


@settings(deadline=None, max_examples=examples(300))
@given(requests, versions, st.none() | st.text(max_size=20))
def test_hand_written_produce_decoder_returns_the_same_result_as_the_compiled_decoder(
    request: ProduceRequest, version: int, client_id: str | None
) -> None:
    frame = memoryview(frame_of(request, version, client_id))
    parts = read_produce_request(frame, version)
    assert parts == compiled(frame, version)
    for _, partition_data in parts[3]:
        for _, records in partition_data:
            assert records is None or records.obj is frame.obj, "records must stay in the receive buffer"


@settings(deadline=None, max_examples=examples(500))
@given(
    requests, versions, st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3), st.integers(-3, 3)
)
def test_hand_written_and_compiled_produce_decoders_agree_on_malformed_requests(
    request: ProduceRequest, version: int, changes: list[tuple[int, int]], longer: int
) -> None:
    data = frame_of(request, version, "client")
    for position, value in changes:
        if 16 <= position < len(data):  # change only bytes after the client id, which the hand-written decoder skips
            data[position] = value
    data = data + bytes(longer) if longer >= 0 else data[:longer]
    frame = memoryview(data)
    assert outcome(read_produce_request, frame, version) == outcome(compiled, frame, version)


@pytest.mark.parametrize("version", range(3, 14))
def test_produce_request_with_a_huge_partition_count_is_rejected_immediately(version: int) -> None:
    body = struct.pack(">hhihx" if version >= 9 else ">hhih", 0, version, 1, -1)
    body += b"\0" if version >= 9 else b"\xff\xff"
    body += struct.pack(">hi", 1, 1000) + (b"\xff\xff\xff\xff\x0f" if version >= 9 else b"\x7f\xff\xff\xff")
    with pytest.raises(ProtocolError):
        read_produce_request(memoryview(bytearray(body + bytes(100))), version)


int64s = st.integers(-1, 2**63 - 1)


@settings(deadline=None, max_examples=examples(300))
@given(
    versions,
    st.text(max_size=249),
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**31 - 1),
    int64s,
    int64s,
    int64s,
)
def test_hand_written_and_compiled_produce_encoders_write_the_same_bytes(
    version: int, name: str, topic_id: bytes, index: int, base_offset: int, time_ms: int, start_offset: int
) -> None:
    partition = PartitionProduceResponse(
        index=index, base_offset=base_offset, log_append_time_ms=time_ms, log_start_offset=start_offset
    )
    topic = TopicProduceResponse(name=name, topic_id=topic_id, partition_responses=[partition])
    expected = b"".join(encode_response(99, ProduceResponse(responses=[topic]), version))
    key = topic_id if version >= 13 else name
    assert encode_appended(99, version, key, index, base_offset, time_ms, start_offset) == expected
