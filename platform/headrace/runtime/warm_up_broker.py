"""A broker with one topic and one record, for the tasks that the fork server runs before it forks.

The broker serves one producer or consumer at a time. Its responses contain no errors. It stores only the records of the
last Produce request.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from types import TracebackType
from typing import Any, cast

from headrace_broker.protocol.apis import API, ApiKey
from headrace_broker.protocol.codec import decoder
from headrace_broker.protocol.framing import encode_response, parse_request_header
from headrace_broker.protocol.messages import (
    api_versions,
    fetch,
    find_coordinator,
    heartbeat,
    init_producer_id,
    join_group,
    leave_group,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    produce,
    sync_group,
)
from headrace_broker.protocol.notation import Response

TOPIC = "warm-up"
_TOPIC_ID = bytes(15) + b"\1"
_HOST = "127.0.0.1"
_EMPTY_FETCH_S = 0.002
_SIZE = struct.Struct(">i")


class WarmUpBroker:
    """Listens on a free loopback port while the block runs."""

    def __init__(self) -> None:
        self.port = 0
        self.idle = asyncio.Event()
        """Set when a record has been produced, and when a fetch arrives after an offset has been committed."""
        self._records = b""
        self._committed = False
        self._connections: set[_Connection] = set()

    async def __aenter__(self) -> WarmUpBroker:
        listener = socket.create_server((_HOST, 0))  # with host and port, uvloop would start threads to resolve them
        self.port = listener.getsockname()[1]
        self._server = await asyncio.get_running_loop().create_server(self._connect, sock=listener)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._connections:
            connection.close()
        self._server.close()
        await self._server.wait_closed()

    def _connect(self) -> _Connection:
        connection = _Connection(self)
        self._connections.add(connection)
        return connection

    def respond(self, request: Any) -> Response:
        """Return the response to a request."""
        match request:
            case api_versions.ApiVersionsRequest():
                return api_versions.ApiVersionsResponse(
                    api_keys=[
                        api_versions.ApiVersion(
                            api_key=key, min_version=API[key].min_version, max_version=API[key].max_version
                        )
                        for key in _APIS
                    ]
                )
            case metadata.MetadataRequest():
                return metadata.MetadataResponse(
                    brokers=[metadata.MetadataResponseBroker(node_id=1, host=_HOST, port=self.port)],
                    controller_id=1,
                    topics=[] if request.topics == [] else [_topic()],
                )
            case init_producer_id.InitProducerIdRequest():
                return init_producer_id.InitProducerIdResponse(producer_id=1)
            case produce.ProduceRequest():
                self.idle.set()
                return self._append(request)
            case find_coordinator.FindCoordinatorRequest():
                found = [
                    find_coordinator.Coordinator(key=key, node_id=1, host=_HOST, port=self.port)
                    for key in request.coordinator_keys
                ]
                return find_coordinator.FindCoordinatorResponse(coordinators=found)
            case offset_commit.OffsetCommitRequest():
                self._committed = True
                return _offset_commit_response(request)
            case _:
                return _group_response(request) or self._fetch(request)

    def _append(self, request: produce.ProduceRequest) -> Response:
        (topic,) = request.topic_data
        (partition,) = topic.partition_data
        records = partition.records or b""
        self._records = b"".join(records) if isinstance(records, list) else bytes(records)
        self._committed = False
        return produce.ProduceResponse(
            responses=[
                produce.TopicProduceResponse(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partition_responses=[produce.PartitionProduceResponse(index=partition.index, base_offset=0)],
                )
            ]
        )

    def _fetch(self, request: Any) -> Response:
        match request:
            case list_offsets.ListOffsetsRequest():
                partitions = [list_offsets.ListOffsetsPartitionResponse(partition_index=0, offset=0, leader_epoch=0)]
                return list_offsets.ListOffsetsResponse(
                    topics=[list_offsets.ListOffsetsTopicResponse(name=TOPIC, partitions=partitions)]
                )
            case fetch.FetchRequest(topics=[topic, *_]):
                if self._committed:
                    self.idle.set()
                data = fetch.PartitionData(
                    partition_index=0,
                    high_watermark=1,
                    last_stable_offset=1,
                    log_start_offset=0,
                    aborted_transactions=None,
                    records=b"" if topic.partitions[0].fetch_offset else self._records,
                )
                response = fetch.FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=[data])
                return fetch.FetchResponse(session_id=0, responses=[response])
        raise ValueError(f"the warm-up's broker does not support {type(request).__name__}")


_APIS = (
    ApiKey.API_VERSIONS,
    ApiKey.METADATA,
    ApiKey.PRODUCE,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.FIND_COORDINATOR,
    ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
)


def _topic() -> metadata.MetadataResponseTopic:
    partition = metadata.MetadataResponsePartition(
        partition_index=0, leader_id=1, leader_epoch=0, replica_nodes=[1], isr_nodes=[1]
    )
    return metadata.MetadataResponseTopic(name=TOPIC, topic_id=_TOPIC_ID, partitions=[partition])


def _group_response(request: Any) -> Response | None:
    match request:
        case join_group.JoinGroupRequest():
            member = join_group.JoinGroupResponseMember(member_id="member", metadata=request.protocols[0].metadata)
            return join_group.JoinGroupResponse(
                generation_id=1,
                protocol_type=request.protocol_type,
                protocol_name=request.protocols[0].name,
                leader="member",
                member_id="member",
                members=[member],
            )
        case sync_group.SyncGroupRequest():
            return sync_group.SyncGroupResponse(
                protocol_type=request.protocol_type,
                protocol_name=request.protocol_name,
                assignment=request.assignments[0].assignment,
            )
        case heartbeat.HeartbeatRequest():
            return heartbeat.HeartbeatResponse()
        case leave_group.LeaveGroupRequest():
            return leave_group.LeaveGroupResponse()
        case offset_fetch.OffsetFetchRequest(groups=[group, *_]):
            return offset_fetch.OffsetFetchResponse(
                groups=[
                    offset_fetch.OffsetFetchResponseGroup(
                        group_id=group.group_id,
                        topics=[
                            offset_fetch.OffsetFetchResponseTopics(
                                name=topic.name,
                                topic_id=topic.topic_id,
                                partitions=[
                                    offset_fetch.OffsetFetchResponsePartitions(
                                        partition_index=partition, committed_offset=-1, metadata=None
                                    )
                                    for partition in topic.partition_indexes
                                ],
                            )
                            for topic in group.topics or ()
                        ],
                    )
                ]
            )
    return None


def _offset_commit_response(request: offset_commit.OffsetCommitRequest) -> Response:
    return offset_commit.OffsetCommitResponse(
        topics=[
            offset_commit.OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    offset_commit.OffsetCommitResponsePartition(partition_index=partition.partition_index)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


class _Connection(asyncio.Protocol):
    """Splits the received bytes into requests, and responds to each request immediately.

    Empty fetches wait a moment.
    """

    def __init__(self, broker: WarmUpBroker) -> None:
        self._broker = broker
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Respond to the complete requests."""
        self._received += data
        while len(self._received) >= 4:
            end = 4 + _SIZE.unpack_from(self._received)[0]
            if len(self._received) < end:
                return
            frame = bytes(self._received[4:end])
            del self._received[:end]
            self._respond(frame)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def _respond(self, frame: bytes) -> None:
        header = parse_request_header(frame)
        request = decoder(API[header.api_key].request, header.api_version)(frame, header.body_offset)[0]
        response = self._broker.respond(request)
        buffers = encode_response(header.correlation_id, response, header.api_version)
        if isinstance(response, fetch.FetchResponse) and not response.responses[0].partitions[0].records:
            asyncio.get_running_loop().call_later(_EMPTY_FETCH_S, self._send, buffers)
        else:
            self._send(buffers)

    def _send(self, buffers: Any) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(buffers)
