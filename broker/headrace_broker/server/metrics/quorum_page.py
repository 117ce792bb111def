"""The metrics of the metadata quorum and of the controller."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from headrace_broker.metadata.leadership import imbalanced_partitions
from headrace_broker.server.metrics.page import MetricsPage
from headrace_broker.server.metrics.quorum_meter import QuorumMeter

if TYPE_CHECKING:
    from headrace_broker.server.node import Node


def add_raft(page: MetricsPage, node: Node, meter: QuorumMeter) -> None:
    """Add the metrics of this node's quorum role and of its connections to the voters."""
    raft, peers, now_s = node.quorum.raft, node.quorum.peers, perf_counter()
    state = type(raft.role).__name__.lower() if raft.config.is_voter else "observer"
    for prefix in ("kafka_server_raft_metrics", "kafka_server_raftmetrics"):
        for name, text, value in (
            ("current_leader", "The leader's id, -1 without a leader", raft.leader_id),
            ("current_epoch", "The quorum's epoch", raft.epoch),
            ("current_vote", "The node this node voted for in this epoch, -1 = none", raft.state.voted_id),
            ("high_watermark", "The high watermark of the metadata log known to this node", raft.high_watermark),
            ("log_end_offset", "The end offset of this node's metadata log", raft.log.log_end_offset),
            ("log_end_epoch", "The epoch of the last record in this node's metadata log", raft.log.last_fetched_epoch),
            ("commit_latency_avg", "Average ms from append to commit", meter.commit_ms.mean(now_s)),
            ("commit_latency_max", "Maximum ms from append to commit since the start", meter.commit_ms_max),
            ("append_records_rate", "Records per second appended as leader", meter.appended.per_second(now_s)),
            ("fetch_records_rate", "Records per second fetched from the leader", meter.fetched.per_second(now_s)),
        ):
            page.gauge(f"{prefix}_{name}", text, round(value, 4))
    name = "kafka_server_raft_metrics_current_state_info"
    page.gauge(name, "1, labelled with this node's state in the quorum", 1, state=state)
    name = "kafka_server_raftmetrics_current_state"
    page.gauge(name, "1, labelled with this node's state in the quorum", 1, current_state=state)
    for prefix in ("kafka_server_raft_channel_metrics", "kafka_server_raftchannelmetrics"):
        page.gauge(f"{prefix}_connection_count", "Open connections to voters", peers.open_connections)
        for name, text, rate in (
            ("request", "Requests to voters", meter.requests),
            ("response", "Responses of voters", meter.responses),
        ):
            page.counter(f"{prefix}_{name}_total", text, rate.total)
            page.gauge(f"{prefix}_{name}_rate", f"{text}, per second", round(rate.per_second(now_s), 4))


def add_controller(page: MetricsPage, node: Node, meter: QuorumMeter) -> None:
    """Add the controller's metrics about the cluster, if this node has the controller role."""
    if node.controller is None:
        return
    prefix = "kafka_controller_kafkacontroller"
    is_active = node.controller.is_active
    image = node.image
    fenced = sum(broker.fenced for broker in image.brokers.values())
    partitions = [partition for topic in image.topics.values() for partition in topic.partitions]
    offline = sum(partition.leader < 0 for partition in partitions)
    for name, text, value in (
        ("activecontrollercount", "1 on the active controller", int(is_active)),
        ("offlinepartitionscount", "Partitions without a leader", offline if is_active else 0),
        (
            "preferredreplicaimbalancecount",
            "Partitions not led by their preferred replica",
            len(imbalanced_partitions(image)) if is_active else 0,
        ),
        ("globaltopiccount", "Topics of the cluster", len(image.topics)),
        ("globalpartitioncount", "Partitions of the cluster", len(partitions)),
        ("activebrokercount", "Brokers that are not fenced", len(image.brokers) - fenced),
        ("fencedbrokercount", "Brokers that are fenced", fenced),
        ("metadataerrorcount", "Errors while applying metadata records", node.quorum.failures),
    ):
        page.gauge(f"{prefix}_{name}", text, value)
    prefix = "kafka_controller_controllerstats"
    for name, text, number in (
        ("uncleanleaderelections", "Unclean leader elections", meter.unclean_elections),
        ("electionfromeligibleleaderreplicas", "Elections from eligible leader replicas", meter.eligible_elections),
    ):
        page.counter(f"{prefix}_{name}_total", f"{text} observed by this node since its start", number)
        page.untyped(f"{prefix}_{name}persec", f"{text} observed by this node since its start", number)
