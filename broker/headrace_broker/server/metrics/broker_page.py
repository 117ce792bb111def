"""The broker's metrics about replicas, partition leaders, fetchers, delayed operations and groups."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING

from headrace_broker.protocol.messages.list_groups import ListGroupsRequest
from headrace_broker.server.metrics.page import MetricsPage
from headrace_broker.server.metrics.sampled_rates import Rate
from headrace_broker.server.replicas.partitions import Partition

if TYPE_CHECKING:
    from headrace_broker.server.broker import Broker

_GROUP_STATES = ("Stable", "Empty", "Dead", "PreparingRebalance", "CompletingRebalance")


def add_broker(page: MetricsPage, broker: Broker, fetch_rates: dict[int, Rate]) -> None:
    """Add the metrics of the whole broker.

    `fetch_rates` contains the fetch rate per leader. The caller passes the same dictionary at every scrape, because a
    rate is computed from the fetch counts of this scrape and of earlier scrapes.
    """
    offline = sum(directory.offline_reason is not None for directory in broker.logs.directories)
    page.gauge("kafka_log_logmanager_offlinelogdirectorycount", "Offline log directories", offline)
    sessions = len(broker.fetch_sessions)
    page.gauge("kafka_server_fetchsessioncache_numincrementalfetchsessions", "Fetch sessions", sessions)
    _groups(page, broker)
    name = "kafka_server_delayedoperationpurgatory_purgatorysize"
    page.family(name, "gauge", "Delayed requests: Produce waiting for followers, Fetch waiting for records")
    produces = broker.purgatory.produce_count()
    page.sample(name, produces, delayedOperation="Produce")
    page.sample(name, len(broker.purgatory) - produces, delayedOperation="Fetch")
    prefix = "kafka_server_replicamanager"
    text = "Committed ISR changes"
    for short, number in (
        ("isrshrinks", broker.replication.isr_shrinks),
        ("isrexpands", broker.replication.isr_expands),
    ):
        page.counter(f"{prefix}_{short}_total", text, number)
        page.untyped(f"{prefix}_{short}persec", text, number)
    _fetchers(page, broker, fetch_rates)


def _groups(page: MetricsPage, broker: Broker) -> None:
    states = Counter(group.group_state for group in broker.groups.list_groups(ListGroupsRequest()).groups)
    prefix = "kafka_coordinator_group_groupmetadatamanager_numgroups"
    page.gauge(prefix, "Groups that this broker coordinates", sum(states.values()))
    for state in _GROUP_STATES:
        page.gauge(f"{prefix}{state.lower()}", f"Groups in state {state}", states[state])


def _fetchers(page: MetricsPage, broker: Broker, rates: dict[int, Rate]) -> None:
    now_s = perf_counter()
    fetchers = {leader: fetcher for leader, fetcher in broker.replication.fetchers.items() if fetcher.is_following}
    for leader, fetcher in broker.replication.fetchers.items():
        rate = rates.setdefault(leader, Rate(now_s))
        rate.add(fetcher.fetches - rate.total, now_s)
    prefix = "kafka_server_replicafetchermanager"
    lag = max((lag for fetcher in fetchers.values() for lag in fetcher.lags.values()), default=0)
    page.gauge(f"{prefix}_maxlag", "Maximum lag of this broker's followers, in records", lag, clientId="Replica")
    slowest = min((rates[leader].per_second(now_s) for leader in fetchers), default=0.0)
    text = "Lowest fetch rate of this broker's replica fetchers, per second"
    page.gauge(f"{prefix}_minfetchrate", text, round(slowest, 4), clientId="Replica")


class _PartitionCounts:
    """The numbers of partitions on a broker, by role and state."""

    def __init__(self) -> None:
        self.hosted = 0
        self.led = 0
        self.under_replicated = 0
        self.under_min_isr = 0
        self.at_min_isr = 0
        self.offline = 0


_PARTITION_FAMILIES: tuple[tuple[str, str, Callable[[Partition], float]], ...] = (
    ("kafka_log_log_size", "Bytes on disk", lambda item: item.log.size_bytes),
    ("kafka_log_log_logendoffset", "Log end offset", lambda item: item.log.log_end_offset),
    ("kafka_log_log_logstartoffset", "Log start offset", lambda item: item.log.log_start_offset),
    ("kafka_log_log_numlogsegments", "Segments", lambda item: len(item.log.segments)),
)
_LED_FAMILIES: tuple[tuple[str, str, Callable[[Partition], float]], ...] = (
    ("kafka_cluster_partition_replicascount", "Replicas", lambda item: _replicas(item)[0]),
    ("kafka_cluster_partition_insyncreplicascount", "In-sync replicas", lambda item: _replicas(item)[1]),
    (
        "kafka_cluster_partition_underreplicated",
        "1 if a replica is out of sync",
        lambda item: int(_is_under_replicated(item)),
    ),
    (
        "kafka_cluster_partition_underminisr",
        "1 if the ISR is smaller than min.insync.replicas",
        lambda item: int(_min_isr_margin(item) < 0),
    ),
    (
        "kafka_cluster_partition_atminisr",
        "1 if the ISR has exactly min.insync.replicas replicas",
        lambda item: int(_min_isr_margin(item) == 0),
    ),
)


def _replicas(partition: Partition) -> tuple[int, int]:
    replicas = partition.replicas
    return (1, 1) if replicas is None else (len(replicas.replicas), len(replicas.isr))


def _is_under_replicated(partition: Partition) -> bool:
    replicas, in_sync = _replicas(partition)
    return in_sync < replicas


def _min_isr_margin(partition: Partition) -> int:
    replicas, in_sync = _replicas(partition)
    return in_sync - min(partition.log.config.min_insync_replicas, replicas)


async def add_partitions(page: MetricsPage, broker: Broker) -> None:
    """Add the metrics of the partitions."""
    hosted = list(broker.partitions)
    led = [partition for partition in hosted if partition.leader == broker.node_id]
    counts = _PartitionCounts()
    counts.hosted, counts.led = len(hosted), len(led)
    for partition in hosted:
        counts.offline += partition.log.offline_reason is not None
    for partition in led:
        counts.under_replicated += _is_under_replicated(partition)
        counts.under_min_isr += _min_isr_margin(partition) < 0
        counts.at_min_isr += _min_isr_margin(partition) == 0
    await asyncio.sleep(0)
    prefix = "kafka_server_replicamanager"
    for name, text, value in (
        ("partitioncount", "Replicas on this broker", counts.hosted),
        ("leadercount", "Partitions led by this broker", counts.led),
        ("underreplicatedpartitions", "Led partitions with a replica out of sync", counts.under_replicated),
        ("underminisrpartitioncount", "Led partitions below min.insync.replicas", counts.under_min_isr),
        ("atminisrpartitioncount", "Led partitions at exactly min.insync.replicas", counts.at_min_isr),
        ("offlinereplicacount", "Replicas in an offline log directory", counts.offline),
    ):
        page.gauge(f"{prefix}_{name}", text, value)
    for families, partitions in ((_PARTITION_FAMILIES, hosted), (_LED_FAMILIES, led)):
        for name, text, value_of in families:
            page.family(name, "gauge", text)
            await page.samples(
                name, ((value_of(each), {"topic": each.topic, "partition": each.index}) for each in partitions)
            )
