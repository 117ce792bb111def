"""Tests of the output of kafka-metadata-quorum, and of the statistics of kafka-producer-perf-test."""

from __future__ import annotations

import pytest

from headrace_broker.client.admin_replicas import QuorumDescription
from headrace_broker.client.errors import BrokerError, TimedOutError
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.describe_quorum import DescribeQuorumResponsePartitionData, ReplicaState
from headrace_broker.tools.consumer_perf_test import format_date
from headrace_broker.tools.metadata_quorum import replication, status
from headrace_broker.tools.produce_stats import FailureCounts, ProduceStats
from headrace_broker.tools.tool_error import ToolError


def replica(node: int, end: int, time_ms: int) -> ReplicaState:
    return ReplicaState(
        replica_id=node, log_end_offset=end, last_fetch_timestamp=time_ms, last_caught_up_timestamp=time_ms
    )


def quorum(leader: int = 2) -> QuorumDescription:
    state = DescribeQuorumResponsePartitionData(
        leader_id=leader,
        leader_epoch=7,
        high_watermark=99,
        current_voters=[replica(1, 90, 1_000), replica(2, 100, 3_000), replica(3, 100, 2_500)],
        observers=[replica(4, 80, -1)],
    )
    return QuorumDescription(state, {1: [("CONTROLLER", "h", 9093)]})


def test_metadata_quorum_status_has_the_format_of_kafka() -> None:
    assert status(quorum(), "id") == [
        "ClusterId:              id",
        "LeaderId:               2",
        "LeaderEpoch:            7",
        "HighWatermark:          99",
        "MaxFollowerLag:         10",
        "MaxFollowerLagTimeMs:   2000",
        'CurrentVoters:          [{"id": 1, "endpoints": ["CONTROLLER://h:9093"]}, {"id": 2}, {"id": 3}]',
        'CurrentObservers:       [{"id": 4}]',
    ]


def test_metadata_quorum_replication_table_lists_the_leader_first() -> None:
    rows = [line.split("\t") for line in replication(quorum(), now_ms=3_000)]
    assert [row[0].strip() for row in rows] == ["NodeId", "2", "1", "3", "4"]
    assert [row[3].strip() for row in rows] == ["Lag", "0", "10", "0", "20"]
    assert [row[4].strip() for row in rows] == ["LastFetchTimestamp", "0 ms ago", "2000 ms ago", "500 ms ago", "-1"]
    assert [row[6].strip() for row in rows] == ["Status", "Leader", "Follower", "Follower", "Observer"]
    assert len({tuple(map(len, row)) for row in rows}) == 1


def test_metadata_quorum_status_fails_if_the_quorum_has_no_leader() -> None:
    with pytest.raises(ToolError, match="has no leader"):
        status(quorum(leader=-1), "id")


def test_producer_perf_test_prints_rate_and_latency_of_acknowledged_records() -> None:
    stats = ProduceStats(1_000, 0, 1_000)
    assert stats.add_acknowledged(500, 50_000, 10, 500) == []
    assert stats.add_acknowledged(250, 25_000, 20, 1_000) == [
        "750 records sent, 750.0 records/sec (0.07 MB/sec), 13.3 ms avg latency, 20.0 ms max latency."
    ]
    assert stats.add_acknowledged(250, 25_000, 100, 1_500) == []
    assert stats.total_line(2_000) == (
        "1000 records sent, 500.000000 records/sec (0.05 MB/sec), 35.00 ms avg latency, 100.00 ms max latency, "
        "20 ms 50th, 100 ms 95th, 100 ms 99th, 100 ms 99.9th."
    )


def test_producer_perf_test_prints_the_steady_state_message_once() -> None:
    stats = ProduceStats(10, 0, 1, is_steady_state=True)
    assert stats.add_acknowledged(5, 5, 1, 10)[0] == "In steady state."
    assert stats.add_acknowledged(5, 5, 1, 20)[0].startswith("5 records sent")
    assert "10 steady state records sent" in stats.total_line(20)


def test_date_format_option_of_the_consumer_perf_test_accepts_a_java_pattern() -> None:
    text = format_date(1_700_000_000_123, "yyyy-MM-dd HH:mm:ss:SSS")
    assert text.endswith(":20:123")
    assert text.startswith("2023-11-1")


def test_producer_perf_test_counts_failed_records_and_prints_the_first_error_of_each_type() -> None:
    failures = FailureCounts()
    assert failures.summary(10) == []
    first = BrokerError(ErrorCode.NOT_ENOUGH_REPLICAS, "t-0")
    assert [line.partition(": ")[0] for line in failures.add(3, first)] == ["t-0"]
    assert failures.add(2, BrokerError(ErrorCode.NOT_ENOUGH_REPLICAS, "t-1")) == []
    assert failures.add(1, TimedOutError("late")) == ["late (the tool only counts further errors of this type)"]
    assert failures.summary(10) == ["6 of 10 records failed: 5 with NOT_ENOUGH_REPLICAS, 1 with REQUEST_TIMED_OUT"]
