"""Produce (0): append record batches to partitions.

Changes by version:

* 7 allows zstd.
* 8 adds record-level errors (KIP-467).
* 9 is flexible.
* 10: the response contains the new leader (KIP-951). In earlier versions, `current_leader` must be empty.
* 12: a transactional write adds its partition to the transaction implicitly (KIP-890).
* 13 identifies topics by id.

Versions 0-2 are not implemented, so brokers reject produce requests with these versions. Brokers still advertise
versions 0-2, because librdkafka before 2.11 uses compression only if version 0 is advertised. With acks=0 the broker
sends no response.
"""

from __future__ import annotations

from headrace_broker.protocol.notation import (
    Message,
    Records,
    Request,
    Response,
    array,
    int16,
    int32,
    int64,
    record_batches,
    string,
    struct,
    uuid,
)


class BatchIndexAndErrorMessage(Message):
    batch_index: int = int32()
    batch_index_error_message: str | None = string(nullable="0+", default=None)


class LeaderIdAndEpoch(Message):
    leader_id: int = int32(default=-1)
    leader_epoch: int = int32(default=-1)


class PartitionProduceResponse(Message):
    index: int = int32()
    error_code: int = int16()
    base_offset: int = int64()
    log_append_time_ms: int = int64(default=-1, ignorable=True)
    log_start_offset: int = int64("5+", default=-1, ignorable=True)
    record_errors: list[BatchIndexAndErrorMessage] = array(BatchIndexAndErrorMessage, "8+", ignorable=True)
    error_message: str | None = string("8+", nullable="8+", default=None, ignorable=True)
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch, "10+", tag=0)


class TopicProduceResponse(Message):
    name: str = string("0-12", ignorable=True)
    topic_id: bytes = uuid("13+", ignorable=True)
    partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse)


class NodeEndpoint(Message):
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable="0+", default=None)


class ProduceResponse(Response, api_key=0, versions="3-13", flexible="9+"):
    responses: list[TopicProduceResponse] = array(TopicProduceResponse)
    throttle_time_ms: int = int32(ignorable=True)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "10+", tag=0)


class PartitionProduceData(Message):
    index: int = int32()
    records: Records | None = record_batches(nullable="0+")


class TopicProduceData(Message):
    name: str = string("0-12", ignorable=True)
    topic_id: bytes = uuid("13+", ignorable=True)
    partition_data: list[PartitionProduceData] = array(PartitionProduceData)


class ProduceRequest(Request[ProduceResponse], api_key=0, versions="3-13", flexible="9+"):
    transactional_id: str | None = string(nullable="0+", default=None)
    acks: int = int16()
    timeout_ms: int = int32()
    topic_data: list[TopicProduceData] = array(TopicProduceData)
