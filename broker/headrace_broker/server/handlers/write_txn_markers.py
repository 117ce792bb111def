"""WriteTxnMarkers (27): end a transaction in its partitions. This broker does not support transactions yet.

Admin clients send this request to abort a transaction (KIP-664). Each partition receives INVALID_TXN_STATE.
"""

from __future__ import annotations

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.large_requests import RequestSplit

API_KEY = ApiKey.WRITE_TXN_MARKERS
VERSIONS = (1, 2)
REQUEST_SPLITS = (RequestSplit(("markers", "topics", "partition_indexes"), ("markers", "topics", "partitions")),)


def handle(context: RequestContext, request: WriteTxnMarkersRequest, version: int) -> WriteTxnMarkersResponse:
    """Return INVALID_TXN_STATE for each partition."""
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(
                                partition_index=index, error_code=ErrorCode.INVALID_TXN_STATE
                            )
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )
