"""Collects the metrics page of a node, with the metric names that dashboards and alerts for Kafka use.

The page has the metric names of jmx_exporter's rules for Kafka. If Confluent's name for a metric differs (`...persec`,
without `_total`), the page has the metric under both names. No two metrics share a name. Gauges are read when the page
is requested.
"""

from __future__ import annotations

import gc
import os
import resource
import threading
from collections import Counter
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter, thread_time
from typing import TYPE_CHECKING

from headrace_broker.server.metrics.broker_page import add_broker, add_partitions
from headrace_broker.server.metrics.byte_rates import ByteRates
from headrace_broker.server.metrics.group_page import add_group_offsets
from headrace_broker.server.metrics.meter import Latencies, Meter, RequestMetrics, TopicMetrics, api_name
from headrace_broker.server.metrics.page import MetricsPage
from headrace_broker.server.metrics.quorum_meter import QuorumMeter
from headrace_broker.server.metrics.quorum_page import add_controller, add_raft
from headrace_broker.server.metrics.sampled_rates import IdleRatio, Rate

if TYPE_CHECKING:
    from headrace_broker.server.node import Node

_ONLY_PROCESSOR = "0"
"""The label of the only network processor. Kafka has several network threads; this node has one event loop."""
_TOPIC_METERS: tuple[tuple[str, str, Callable[[TopicMetrics], int]], ...] = (
    ("messagesin", "Records produced", lambda item: item.messages_in),
    ("bytesin", "Bytes produced", lambda item: item.bytes_in),
    ("bytesout", "Bytes fetched by consumers", lambda item: item.bytes_out),
    ("bytesrejected", "Bytes of batches rejected as too large", lambda item: item.bytes_rejected),
    ("totalproducerequests", "Batches in Produce requests", lambda item: item.produced),
    ("failedproducerequests", "Batches in Produce requests that failed", lambda item: item.failed),
    ("totalfetchrequests", "Partition reads, including those of followers", lambda item: item.fetched),
    ("failedfetchrequests", "Partition reads that failed", lambda item: item.fetches_failed),
    ("producemessageconversions", "Always 0: this broker does not convert records", lambda item: 0),
    ("fetchmessageconversions", "Always 0: this broker does not convert records", lambda item: 0),
)
_TIMES: tuple[tuple[str, str, Callable[[RequestMetrics], Latencies]], ...] = (
    ("totaltimems", "Time from the request to its response", lambda item: item.total_time),
    ("requestqueuetimems", "Time before the request is handled", lambda item: item.request_queue_time),
    ("localtimems", "Time in the handler", lambda item: item.local_time),
    ("remotetimems", "Time waiting for followers, for new records or for other nodes", lambda item: item.remote_time),
    (
        "responsequeuetimems",
        "Time waiting for the responses to earlier requests",
        lambda item: item.response_queue_time,
    ),
    ("responsesendtimems", "Time to write the response to the socket", lambda item: item.response_send_time),
)


class Collector:
    """Builds the metrics page of one node.

    The page reports the idle ratio of the event loop's thread, so the collector must be created on that thread.
    """

    def __init__(self, node: Node, meter: Meter, quorum_meter: QuorumMeter) -> None:
        self._node = node
        self._meter = meter
        self._quorum_meter = quorum_meter
        self._idle_ratio = IdleRatio(perf_counter(), thread_time())
        self._started_ms = node.now_ms()
        self._fetch_rates: dict[int, Rate] = {}
        self._byte_rates = ByteRates(perf_counter())

    async def page(self) -> bytes:
        """Return the metrics page of the node as encoded text."""
        page, node = MetricsPage(), self._node
        _process(page)
        _server(page, node, self._started_ms)
        _requests(page, self._meter)
        self._idle(page)
        _connections(page, node, self._meter)
        page.summary("kafka_log_logflushstats_logflushrateandtimems", "Log fsyncs", self._quorum_meter.flushes)
        add_raft(page, node, self._quorum_meter)
        add_controller(page, node, self._quorum_meter)
        if node.broker is not None:
            await _topics(page, self._meter)
            await self._byte_rates.add_to(page, self._meter, perf_counter())
            add_broker(page, node.broker, self._fetch_rates)
            await add_partitions(page, node.broker)
            await add_group_offsets(page, node.broker)
        return page.text()

    def _idle(self, page: MetricsPage) -> None:
        ratio = round(self._idle_ratio.ratio(perf_counter(), thread_time()), 4)
        for name in (
            "kafka_network_socketserver_networkprocessoravgidle_percent",
            "kafka_network_socketserver_networkprocessoravgidlepercent",
            "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
            "kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent_oneminuterate",
        ):
            page.gauge(name, "Fraction of the last minute in which the event loop was idle, 0 to 1", ratio)


# -- the process -----------------------------------------------------------------------------------------------------


def _process(page: MetricsPage) -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    page.counter("process_cpu_seconds_total", "CPU time of the process", usage.ru_utime + usage.ru_stime)
    resident = 0
    if os.path.exists("/proc/self/statm"):
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
        page.gauge("process_resident_memory_bytes", "Resident memory", resident)
        page.gauge("process_open_fds", "Open file descriptors", len(os.listdir("/proc/self/fd")))
    note = "(this process has no JVM; the metric exists for dashboards that query it)"
    for name in ("jvm_memory_bytes_used", "jvm_memory_used_bytes"):
        page.gauge(name, f"Resident memory {note}", resident, area="heap")
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("jvm_memory_bytes_max", "jvm_memory_max_bytes"):
        page.gauge(name, f"The machine's memory {note}", machine_bytes, area="heap")
    page.gauge("jvm_threads_current", f"Threads {note}", threading.active_count())
    page.family(
        "jvm_gc_collection_seconds", "summary", f"Python garbage collections; their time is not measured {note}"
    )
    for generation, stats in enumerate(gc.get_stats()):
        page.sample("jvm_gc_collection_seconds_count", stats["collections"], gc=f"generation {generation}")
        page.sample("jvm_gc_collection_seconds_sum", 0, gc=f"generation {generation}")


def _server(page: MetricsPage, node: Node, started_ms: int) -> None:
    page.gauge("kafka_server_app_info", "1, labelled with the version", 1, version=_version())
    page.gauge("kafka_server_app_info_starttimems", "Start time of the node", started_ms)
    state = 3 if node.is_serving else 1
    page.gauge("kafka_server_kafkaserver_brokerstate", "1 = starting, 3 = running", state)
    if os.path.exists("/proc/self/io"):
        lines = (line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        transferred = {name: int(value) for name, value in lines}
        for name in ("read", "write"):
            text = f"Disk {name} bytes of the process"
            page.gauge(f"kafka_server_kafkaserver_linux_disk_{name}_bytes", text, transferred[f"{name}_bytes"])


@cache
def _version() -> str:
    try:
        return version("headrace")
    except PackageNotFoundError:
        return "unknown"


# -- requests and connections ----------------------------------------------------------------------------------------


def _requests(page: MetricsPage, meter: Meter) -> None:
    prefix = "kafka_network_requestmetrics"
    for name, kind in ((f"{prefix}_requests_total", "counter"), (f"{prefix}_requestspersec", "untyped")):
        page.family(name, kind, "Requests by API and version")
        for api_key, metrics in meter.requests.items():
            for api_version, number in metrics.by_version.items():
                page.sample(name, number, request=api_name(api_key), version=api_version)
    for name, kind in ((f"{prefix}_errors_total", "counter"), (f"{prefix}_errorspersec", "untyped")):
        page.family(name, kind, "Errors in responses; INVALID_REQUEST includes requests that violated the protocol")
        for api_key, metrics in meter.requests.items():
            for error, number in metrics.errors.items():
                page.sample(name, number, request=api_name(api_key), error=error)
    for short, text, times_of in _TIMES:
        page.family(f"{prefix}_{short}", "summary", f"{text} in ms, over the last 1000 requests")
        for api_key, metrics in meter.requests.items():
            page.quantiles(f"{prefix}_{short}", times_of(metrics), request=api_name(api_key))


def _connections(page: MetricsPage, node: Node, meter: Meter) -> None:
    connections = list(node.router.connections)
    prefix = "kafka_network_requestchannel"
    waiting = sum(connection.has_queued_requests for connection in connections)
    page.gauge(f"{prefix}_requestqueuesize", "Connections with a request that is not handled yet", waiting)
    unsent = sum(connection.queued_response_count for connection in connections)
    page.gauge(f"{prefix}_responsequeuesize", "Responses queued behind those of earlier requests", unsent)
    counts = Counter(connection.listener for connection in connections)
    listeners = [listener.name for listener in (*node.config.listeners, *node.config.controller_listeners)]
    now_s = perf_counter()
    for prefix in ("kafka_server_socket_server_metrics", "kafka_server_socketservermetrics"):
        page.family(f"{prefix}_connection_count", "gauge", "Open connections by listener")
        for listener in listeners:
            _by_listener(page, f"{prefix}_connection_count", counts[listener], listener)
        for name, rates in (("creation", meter.connections_opened), ("close", meter.connections_closed)):
            page.family(f"{prefix}_connection_{name}_rate", "gauge", "Connections per second, by listener")
            for listener in listeners:
                rate = rates.get(listener)
                value = 0.0 if rate is None else rate.per_second(now_s)
                _by_listener(page, f"{prefix}_connection_{name}_rate", round(value, 4), listener)
            page.family(f"{prefix}_connection_{name}_total", "counter", "Connections, by listener")
            for listener in listeners:
                total = rates[listener].total if listener in rates else 0
                _by_listener(page, f"{prefix}_connection_{name}_total", total, listener)


def _by_listener(page: MetricsPage, name: str, value: float, listener: str) -> None:
    page.sample(name, value, listener=listener, networkProcessor=_ONLY_PROCESSOR)


async def _topics(page: MetricsPage, meter: Meter) -> None:
    meter.fold_deleted_topics()
    prefix = "kafka_server_brokertopicmetrics"
    for short, text, value_of in _TOPIC_METERS:
        values = {topic: value_of(metrics) for topic, metrics in meter.topics.items()}
        for name, kind in ((f"{prefix}_{short}_total", "counter"), (f"{prefix}_{short}persec", "untyped")):
            page.family(name, kind, text)
            page.sample(name, sum(values.values(), value_of(meter.deleted_topics)))
            await page.samples(name, ((value, {"topic": topic}) for topic, value in values.items()))
