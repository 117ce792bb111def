"""Tests of forged requests between nodes: no node fails, no broker is replaced, and no forged record is accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.broker_registration import BrokerRegistrationRequest, Listener
from headrace_broker.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace_broker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from headrace_broker.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace_broker.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from headrace_broker.raft import messages
from headrace_broker.raft.config import RaftConfig
from support.cluster import ClusterProcess, running_cluster
from support.raw_client import RawClient, batch, produce_request

pytestmark = pytest.mark.integration

EPOCH_MAX = 2**31 - 1
HUGE = 2**62


def meta_properties(cluster: ClusterProcess) -> dict[str, str]:
    path = next((cluster.directory / "node-1").rglob("meta.properties"))
    return dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)


def controller_address(cluster: ClusterProcess, node_id: int) -> str:
    return f"127.0.0.1:{cluster.base_port + 1000 + node_id - 1}"


def forged_requests(config: RaftConfig, voter: int) -> list[tuple[Any, int]]:
    metadata_fetch = messages.fetch_request(config, 1, (-5, 0), HUGE)
    return [
        (messages.vote_request(config, voter, EPOCH_MAX, (HUGE, EPOCH_MAX), pre_vote=False), 2),
        (messages.vote_request(config, voter, EPOCH_MAX, (HUGE, EPOCH_MAX), pre_vote=True), 2),
        (messages.begin_quorum_epoch_request(config, voter, EPOCH_MAX), 1),
        (messages.end_quorum_epoch_request(config, EPOCH_MAX, [voter]), 1),
        (metadata_fetch, 17),
        (messages.fetch_snapshot_request(config, 1, (-1, -1), -1), 1),
    ]


def test_forged_requests_between_nodes_are_rejected_and_change_no_state(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "cluster") as cluster:
        active = cluster.active_controller()
        cluster_id = meta_properties(cluster)["cluster.id"]
        voters = frozenset((1, 2, 3))
        for node_id in voters:
            forged = RaftConfig(node_id=1 + node_id % 3, voters=voters, cluster_id=cluster_id)
            for request, version in forged_requests(forged, node_id):
                with RawClient(controller_address(cluster, node_id)) as client:
                    response = client.call(request, version)
                    partition = messages.metadata_partition(messages.response_topics(response))
                    assert partition is not None
                    assert partition.error_code != ErrorCode.NONE
        with RawClient(controller_address(cluster, active)) as client:
            listener = Listener(name="PLAINTEXT", host="127.0.0.1", port=1, security_protocol=0)
            forged_registration = BrokerRegistrationRequest(
                broker_id=active, cluster_id=cluster_id, incarnation_id=b"x" * 16, listeners=[listener]
            )
            assert client.call(forged_registration, 4).error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
        with RawClient(controller_address(cluster, active)) as client:
            updates = [FeatureUpdateKey(feature=f"f{number}", max_version_level=1) for number in range(50_000)]
            client.send(UpdateFeaturesRequest(feature_updates=updates, timeout_ms=1000), 1)
            assert client.is_closed()
        check_client_cannot_commit_as_follower(cluster)
        for node_id in voters:
            assert "Traceback" not in cluster.log(node_id)
            assert f"Rejecting VoteRequest from 127.0.0.1, sent by node {1 + node_id % 3}" in cluster.log(node_id)
        assert sum(cluster.log(node_id).count("is active in epoch") for node_id in voters) == 1


def check_client_cannot_commit_as_follower(cluster: ClusterProcess) -> None:
    with RawClient(cluster.address(1)) as client:
        wanted = CreatableTopic(name="t", num_partitions=1, replication_factor=3)
        created = client.call(CreateTopicsRequest(topics=[wanted], timeout_ms=20_000), 7).topics[0]
        assert created.error_code == 0, created.error_message
        metadata_request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
        leader = client.call(metadata_request, 9).topics[0].partitions[0].leader_id
    with RawClient(cluster.address(leader)) as client:
        for follower in {1, 2, 3} - {leader}:
            for epoch in (-1, 0, HUGE):
                partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
                request = FetchRequest(
                    replica_state=ReplicaState(replica_id=follower, replica_epoch=epoch),
                    max_wait_ms=0,
                    min_bytes=0,
                    max_bytes=1 << 20,
                    session_epoch=0,
                    topics=[FetchTopic(topic_id=created.topic_id, partitions=[partition])],
                )
                assert client.call(request, 17).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        response = client.call(produce_request("t", batch(b"x"), acks=-1), 9).responses[0].partition_responses[0]
        assert response.error_code == 0
