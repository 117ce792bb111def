"""A minimal Kafka client for tests that control the exact bytes on the wire."""

from __future__ import annotations

import socket
import struct
from typing import Any

from headrace_broker.protocol.codec import decode
from headrace_broker.protocol.framing import encode_request, parse_response_header
from headrace_broker.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace_broker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace_broker.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace_broker.protocol.notation import Message, Request
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns


class RawClient:
    """A blocking connection. Tests can send several requests before they read the responses."""

    def __init__(self, address: str, timeout_s: float = 60.0) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.socket.close()

    def send(self, request: Message, version: int) -> int:
        """Send a request. Return its correlation id."""
        self.socket.sendall(self.frame(request, version))
        return self._correlation_id

    def frame(self, request: Message, version: int) -> bytes:
        """Encode a request and return its bytes, which the caller sends."""
        self._correlation_id += 1
        return b"".join(encode_request(self._correlation_id, "raw", request, version))

    def decode(self, frame: bytes, request: Request[Any], version: int) -> Any:
        """Decode the message in the frame of a response to `request`."""
        from headrace_broker.protocol.apis import API

        _, start = parse_response_header(frame, request.__api_key__, version)
        return decode(API[request.__api_key__].response, version, frame, start)

    def receive(self, request: Request[Any] | type[Request[Any]], version: int, response: type[Message]) -> Any:
        """Read the response to the oldest pending request. Return (correlation id, message)."""
        frame = self.receive_frame()
        correlation_id, start = parse_response_header(frame, request.__api_key__, version)
        return correlation_id, decode(response, version, frame, start)

    def receive_frame(self) -> bytes:
        """Read one frame. Raises ConnectionError if the broker closes the connection."""
        (size,) = struct.unpack(">i", self._read(4))
        return self._read(size)

    def call(self, request: Request[Any], version: int) -> Any:
        """Send a request and wait for the response."""
        from headrace_broker.protocol.apis import API

        sent = self.send(request, version)
        correlation_id, message = self.receive(request, version, API[request.__api_key__].response)
        assert correlation_id == sent
        return message

    def is_closed(self) -> bool:
        """Wait for data or the end of the stream. Return whether the broker has closed the connection."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self.socket.recv(min(1 << 20, size - len(data)))
            if not part:
                raise ConnectionError(f"the broker closed the connection after {len(data)} of {size} bytes")
            data += part
        return bytes(data)


def create_topic(client: RawClient, name: str, partitions: int = 1, **configs: str) -> bytes:
    """Create a topic and return its id. A keyword argument `a_b="x"` sets the config `a.b` to "x"."""
    from headrace_broker.protocol.messages.create_topics import CreatableTopicConfig

    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
    )
    result = client.call(CreateTopicsRequest(topics=[topic]), 7).topics[0]
    assert result.error_code == 0, result.error_message
    topic_id: bytes = result.topic_id
    return topic_id


def batch(*values: bytes, timestamp: int = 1_700_000_000_000, **options: Any) -> bytearray:
    """Build a batch of records without keys."""
    return build_batch(RecordColumns(values=list(values), timestamps=timestamp), **options)


def produce_request(topic: str, *batches: Any, acks: int = 1, partition: int = 0) -> ProduceRequest:
    """Build a Produce request. The first batch is for `partition`, and each next batch is for the next partition.

    The request contains the topic name instead of the topic id, as in versions up to 12.
    """
    data = [PartitionProduceData(index=index, records=records) for index, records in enumerate(batches, partition)]
    return ProduceRequest(acks=acks, timeout_ms=5000, topic_data=[TopicProduceData(name=topic, partition_data=data)])


def fetch_request(
    topic: str,
    offset: int = 0,
    *,
    partition: int = 0,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    **options: Any,
) -> FetchRequest:
    """Build a Fetch request for one partition.

    The request contains the topic name instead of the topic id, as in versions up to 12.
    """
    wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=partition_max_bytes)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        topics=[FetchTopic(topic=topic, partitions=[wanted])],
        **options,
    )
