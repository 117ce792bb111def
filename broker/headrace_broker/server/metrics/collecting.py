"""What a node's page holds: the names that dashboards and alerts for Kafka read.

Names are those of jmx_exporter's Kafka rules, and for meters also Confluent's (`...persec`, without `_total`), which do
not collide.  States are read when the page is asked for; there are many partitions, so they are read in slices between
which the loop serves others.
"""

from __future__ import annotations

import asyncio
import os
import resource
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from headrace_broker.metadata.leadership import imbalanced
from headrace_broker.protocol.messages.list_groups import ListGroupsRequest
from headrace_broker.server.metrics.meter import Meter, RequestCounts, api_name
from headrace_broker.server.metrics.page import Page
from headrace_broker.server.partitions import Partition

if TYPE_CHECKING:
    from headrace_broker.server.broker import Broker
    from headrace_broker.server.node import Node

_PARTITIONS_AT_ONCE = 100
_QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
_RUNNING = 3
_GROUP_STATES = ("Stable", "Empty", "Dead", "PreparingRebalance", "CompletingRebalance")
_TOPIC_METERS = (
    ("messagesin", "Records that were produced", "messages_in"),
    ("bytesin", "Bytes that were produced", "bytes_in"),
    ("totalproducerequests", "Batches that were to be appended", "produced"),
    ("failedproducerequests", "Batches that were refused", "failed"),
)


async def collect(node: Node, meter: Meter) -> bytes:
    """The whole page."""
    page = Page()
    _process(page)
    _requests(page, meter)
    _connections(page, node, meter)
    _raft(page, node)
    _controller(page, node)
    if node.broker is not None:
        _topics(page, meter)
        _broker(page, node.broker)
        await _partitions(page, node.broker)
    return page.text()


def _process(page: Page) -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    page.family("process_cpu_seconds_total", "counter", "Processor time of the process")
    page.sample("process_cpu_seconds_total", usage.ru_utime + usage.ru_stime)
    statm = "/proc/self/statm"
    if os.path.exists(statm):
        with open(statm, encoding="ascii") as file:
            pages = int(file.read().split()[1])
        page.gauge("process_resident_memory_bytes", "Resident memory", pages * resource.getpagesize())
        page.gauge("process_open_fds", "Open descriptors", len(os.listdir("/proc/self/fd")))


# -- requests and connections ----------------------------------------------------------------------------------------


def _requests(page: Page, meter: Meter) -> None:
    prefix = "kafka_network_requestmetrics"
    for name, kind in ((f"{prefix}_requests_total", "counter"), (f"{prefix}_requestspersec", "untyped")):
        page.family(name, kind, "Requests by API and version")
        for api_key, counts in meter.requests.items():
            for version, number in counts.by_version.items():
                page.sample(name, number, request=api_name(api_key), version=version)
    page.family(f"{prefix}_errors_total", "counter", "Requests that broke the protocol")
    for api_key, counts in meter.requests.items():
        page.sample(f"{prefix}_errors_total", counts.errors, request=api_name(api_key), error="INVALID_REQUEST")
    _latencies(page, meter, f"{prefix}_totaltimems", "From the request to its answer", lambda item: item.total_ms)
    _latencies(page, meter, f"{prefix}_localtimems", "At work on the request at first", lambda item: item.local_ms)


def _latencies(
    page: Page, meter: Meter, name: str, text: str, latencies_of: Callable[[RequestCounts], Iterable[float]]
) -> None:
    page.family(name, "summary", f"{text}, in ms, of the last thousand")
    for api_key, counts in meter.requests.items():
        ordered = sorted(latencies_of(counts))
        for quantile in _QUANTILES if ordered else ():
            value = ordered[min(int(quantile * len(ordered)), len(ordered) - 1)]
            page.sample(name, round(value, 4), request=api_name(api_key), quantile=quantile)
        page.sample(f"{name}_count", counts.answered, request=api_name(api_key))


def _connections(page: Page, node: Node, meter: Meter) -> None:
    name = "kafka_server_socket_server_metrics_connection_count"
    page.family(name, "gauge", "Open connections by listener")
    counts = Counter(connection.listener for connection in node.router.connections)
    for listener in (*node.config.listeners, *node.config.controller_listeners):
        page.sample(name, counts[listener.name], listener=listener.name)
    name = "kafka_server_socket_server_metrics_connection_creation_total"
    page.family(name, "counter", "Connections that were made")
    page.sample(name, meter.connections_made)


def _topics(page: Page, meter: Meter) -> None:
    prefix = "kafka_server_brokertopicmetrics"
    for short, text, attribute in _TOPIC_METERS:
        values = {topic: getattr(counts, attribute) for topic, counts in meter.topics.items()}
        for name, kind in ((f"{prefix}_{short}_total", "counter"), (f"{prefix}_{short}persec", "untyped")):
            page.family(name, kind, text)
            page.sample(name, sum(values.values()))
            for topic, value in values.items():
                page.sample(name, value, topic=topic)
    for name, kind in ((f"{prefix}_bytesout_total", "counter"), (f"{prefix}_bytesoutpersec", "untyped")):
        page.family(name, kind, "Bytes of answers to Fetch, those to other brokers among them")
        page.sample(name, meter.bytes_out)


# -- the quorum and the controller -----------------------------------------------------------------------------------


def _raft(page: Page, node: Node) -> None:
    raft = node.quorum.raft
    prefix = "kafka_server_raft_metrics"
    for name, text, value in (
        ("current_leader", "The leader's id, -1 while there is none", raft.leader_id),
        ("current_epoch", "The quorum's epoch", raft.epoch),
        ("current_vote", "Whom this node has voted for in this epoch, -1 = nobody", raft.state.voted_id),
        ("high_watermark", "How far the metadata log is committed, as this node knows", raft.high_watermark),
        ("log_end_offset", "Where this node's metadata log ends", raft.log.log_end_offset),
    ):
        page.gauge(f"{prefix}_{name}", text, value)
    page.family(f"{prefix}_current_state_info", "gauge", "1 for what this node is in the quorum")
    state = type(raft.role).__name__.lower() if raft.config.is_voter else "observer"
    page.sample(f"{prefix}_current_state_info", 1, state=state)


def _controller(page: Page, node: Node) -> None:
    if node.controller is None:
        return
    prefix = "kafka_controller_kafkacontroller"
    is_active = node.controller.is_active
    page.gauge(f"{prefix}_activecontrollercount", "1 on the active controller", int(is_active))
    image = node.image
    fenced = sum(broker.fenced for broker in image.brokers.values())
    partitions = [partition for topic in image.topics.values() for partition in topic.partitions]
    offline = sum(partition.leader < 0 for partition in partitions)
    for name, text, value in (
        ("offlinepartitionscount", "Partitions without a leader", offline if is_active else 0),
        ("preferredreplicaimbalancecount", "Led by another", len(imbalanced(image)) if is_active else 0),
        ("globaltopiccount", "Topics of the cluster", len(image.topics)),
        ("globalpartitioncount", "Partitions of the cluster", len(partitions)),
        ("activebrokercount", "Brokers that serve", len(image.brokers) - fenced),
        ("fencedbrokercount", "Brokers that are fenced", fenced),
    ):
        page.gauge(f"{prefix}_{name}", text, value)


# -- the broker ------------------------------------------------------------------------------------------------------


def _broker(page: Page, broker: Broker) -> None:
    page.gauge("kafka_server_kafkaserver_brokerstate", "3 = running", _RUNNING)
    offline = sum(directory.offline_reason is not None for directory in broker.logs.directories)
    page.gauge("kafka_log_logmanager_offlinelogdirectorycount", "Log directories that cannot be used", offline)
    sessions = len(broker.fetch_sessions)
    page.gauge("kafka_server_fetchsessioncache_numincrementalfetchsessions", "Fetch sessions", sessions)
    states = Counter(group.group_state for group in broker.groups.list_groups(ListGroupsRequest()).groups)
    prefix = "kafka_coordinator_group_groupmetadatamanager_numgroups"
    page.gauge(prefix, "Groups that are coordinated here", sum(states.values()))
    for state in _GROUP_STATES:
        page.gauge(f"{prefix}{state.lower()}", f"Groups in state {state}", states[state])
    for short, number in (
        ("isrshrinks", broker.replication.isr_shrinks),
        ("isrexpands", broker.replication.isr_expands),
    ):
        for name, kind in ((f"{short}_total", "counter"), (f"{short}persec", "untyped")):
            page.family(f"kafka_server_replicamanager_{name}", kind, "Changes of in-sync replicas that came about")
            page.sample(f"kafka_server_replicamanager_{name}", number)


class _PartitionCounts:
    """What the partitions of a broker add up to."""

    def __init__(self) -> None:
        self.held = 0
        self.led = 0
        self.under_replicated = 0
        self.under_min_isr = 0
        self.at_min_isr = 0
        self.offline = 0


_PARTITION_FAMILIES: tuple[tuple[str, str, Callable[[Partition], float]], ...] = (
    ("kafka_log_log_size", "Bytes on disk", lambda item: item.log.size_bytes),
    ("kafka_log_log_logendoffset", "Where the log ends", lambda item: item.log.log_end_offset),
    ("kafka_log_log_logstartoffset", "Where the log begins", lambda item: item.log.log_start_offset),
    ("kafka_log_log_numlogsegments", "Segments", lambda item: len(item.log.segments)),
)
_LED_FAMILIES: tuple[tuple[str, str, Callable[[Partition], float]], ...] = (
    ("kafka_cluster_partition_replicascount", "Replicas", lambda item: _replicas(item)[0]),
    ("kafka_cluster_partition_insyncreplicascount", "Replicas in sync", lambda item: _replicas(item)[1]),
    ("kafka_cluster_partition_underreplicated", "1 while replicas lag", lambda item: int(_is_behind(item))),
    ("kafka_cluster_partition_underminisr", "1 while acks=all is refused", lambda item: int(_min_isr_margin(item) < 0)),
    ("kafka_cluster_partition_atminisr", "1 while none may go", lambda item: int(_min_isr_margin(item) == 0)),
)


def _replicas(partition: Partition) -> tuple[int, int]:
    replicas = partition.replicas
    return (1, 1) if replicas is None else (len(replicas.replicas), len(replicas.isr))


def _is_behind(partition: Partition) -> bool:
    replicas, in_sync = _replicas(partition)
    return in_sync < replicas


def _min_isr_margin(partition: Partition) -> int:
    replicas, in_sync = _replicas(partition)
    return in_sync - min(partition.log.config.min_insync_replicas, replicas)


async def _partitions(page: Page, broker: Broker) -> None:
    held = list(broker.partitions)
    led = [partition for partition in held if partition.leader == broker.node_id]
    counts = _PartitionCounts()
    counts.held, counts.led = len(held), len(led)
    for partition in held:
        counts.offline += partition.log.offline_reason is not None
    for partition in led:
        counts.under_replicated += _is_behind(partition)
        counts.under_min_isr += _min_isr_margin(partition) < 0
        counts.at_min_isr += _min_isr_margin(partition) == 0
    await asyncio.sleep(0)
    prefix = "kafka_server_replicamanager"
    for name, text, value in (
        ("partitioncount", "Replicas that are held here", counts.held),
        ("leadercount", "Partitions that are led here", counts.led),
        ("underreplicatedpartitions", "Led here, and replicas lag", counts.under_replicated),
        ("underminisrpartitioncount", "Led here, and acks=all is refused", counts.under_min_isr),
        ("atminisrpartitioncount", "Led here, and no replica may go", counts.at_min_isr),
        ("offlinereplicacount", "Replicas whose log cannot be used", counts.offline),
    ):
        page.gauge(f"{prefix}_{name}", text, value)
    for families, partitions in ((_PARTITION_FAMILIES, held), (_LED_FAMILIES, led)):
        for name, text, value_of in families:
            page.family(name, "gauge", text)
            await _samples(page, name, partitions, value_of)


async def _samples(
    page: Page, name: str, partitions: Sequence[Partition], value_of: Callable[[Partition], float]
) -> None:
    for start in range(0, len(partitions), _PARTITIONS_AT_ONCE):
        for partition in partitions[start : start + _PARTITIONS_AT_ONCE]:
            page.sample(name, value_of(partition), topic=partition.topic, partition=partition.index)
        await asyncio.sleep(0)
