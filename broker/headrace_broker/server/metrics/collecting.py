"""What a node's page holds: the names that dashboards and alerts for Kafka read.

Names are those of jmx_exporter's Kafka rules, and those of Confluent's where they differ (`...persec`, without
`_total`); the two do not collide.  States are read when the page is asked for.
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
from headrace_broker.server.metrics.meter import Latencies, Meter, RequestCounts, TopicCounts, api_name
from headrace_broker.server.metrics.page import Page
from headrace_broker.server.metrics.quorum_meter import QuorumMeter
from headrace_broker.server.metrics.quorum_page import add_controller, add_raft
from headrace_broker.server.metrics.windows import Idleness, Rate

if TYPE_CHECKING:
    from headrace_broker.server.node import Node

_ONLY_PROCESSOR = "0"
"""Kafka numbers its network threads; here one loop is all of them."""
_TOPIC_METERS: tuple[tuple[str, str, Callable[[TopicCounts], int]], ...] = (
    ("messagesin", "Records that were produced", lambda item: item.messages_in),
    ("bytesin", "Bytes that were produced", lambda item: item.bytes_in),
    ("bytesout", "Bytes of records that consumers were given", lambda item: item.bytes_out),
    ("bytesrejected", "Bytes of batches that were too large", lambda item: item.bytes_rejected),
    ("totalproducerequests", "Batches that were to be appended", lambda item: item.produced),
    ("failedproducerequests", "Batches that were refused", lambda item: item.failed),
    ("totalfetchrequests", "Reads of a partition, by followers too", lambda item: item.fetched),
    ("failedfetchrequests", "Reads of a partition that were refused", lambda item: item.fetches_failed),
    ("producemessageconversions", "There are none: records stay as they are", lambda item: 0),
    ("fetchmessageconversions", "There are none: records stay as they are", lambda item: 0),
)
_TIMES: tuple[tuple[str, str, Callable[[RequestCounts], Latencies]], ...] = (
    ("totaltimems", "From the request to its answer", lambda item: item.total),
    ("requestqueuetimems", "Read, and not taken up yet", lambda item: item.queued),
    ("localtimems", "At work on the request at first", lambda item: item.local),
    ("remotetimems", "Waiting for others", lambda item: item.remote),
    ("responsequeuetimems", "Answered, behind the answers of earlier requests", lambda item: item.unsent),
    ("responsesendtimems", "Handing the answer to the socket", lambda item: item.sending),
)


class Collector:
    """Makes the pages of one node; made on the thread whose idleness it tells."""

    def __init__(self, node: Node, meter: Meter, quorum_meter: QuorumMeter) -> None:
        self._node = node
        self._meter = meter
        self._quorum_meter = quorum_meter
        self._idleness = Idleness(perf_counter(), thread_time())
        self._started_ms = node.now_ms()
        self._fetch_rates: dict[int, Rate] = {}

    async def page(self) -> bytes:
        """The whole page."""
        page, node = Page(), self._node
        _process(page)
        _server(page, node, self._started_ms)
        _requests(page, self._meter)
        self._idle(page)
        _connections(page, node, self._meter)
        page.summary("kafka_log_logflushstats_logflushrateandtimems", "fsyncs of logs", self._quorum_meter.flushes)
        add_raft(page, node, self._quorum_meter)
        add_controller(page, node, self._quorum_meter)
        if node.broker is not None:
            _topics(page, self._meter)
            add_broker(page, node.broker, self._fetch_rates)
            await add_partitions(page, node.broker)
        return page.text()

    def _idle(self, page: Page) -> None:
        share = round(self._idleness.share(perf_counter(), thread_time()), 4)
        for name in (
            "kafka_network_socketserver_networkprocessoravgidle_percent",
            "kafka_network_socketserver_networkprocessoravgidlepercent",
            "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
            "kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent_oneminuterate",
        ):
            page.gauge(name, "The part of the last minute in which the loop did not run, 0 to 1", share)


# -- the process -----------------------------------------------------------------------------------------------------


def _process(page: Page) -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    page.counter("process_cpu_seconds_total", "Processor time of the process", usage.ru_utime + usage.ru_stime)
    resident = 0
    if os.path.exists("/proc/self/statm"):
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
        page.gauge("process_resident_memory_bytes", "Resident memory", resident)
        page.gauge("process_open_fds", "Open descriptors", len(os.listdir("/proc/self/fd")))
    here = "(not a JVM; for panels that ask for it)"
    for name in ("jvm_memory_bytes_used", "jvm_memory_used_bytes"):
        page.gauge(name, f"Resident memory {here}", resident, area="heap")
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("jvm_memory_bytes_max", "jvm_memory_max_bytes"):
        page.gauge(name, f"The machine's memory {here}", machine_bytes, area="heap")
    page.gauge("jvm_threads_current", f"Threads {here}", threading.active_count())
    page.family(
        "jvm_gc_collection_seconds", "summary", f"Collections of Python's generations, their time untold {here}"
    )
    for generation, stats in enumerate(gc.get_stats()):
        page.sample("jvm_gc_collection_seconds_count", stats["collections"], gc=f"generation {generation}")
        page.sample("jvm_gc_collection_seconds_sum", 0, gc=f"generation {generation}")


def _server(page: Page, node: Node, started_ms: int) -> None:
    page.gauge("kafka_server_app_info", "1, with the version", 1, version=_version())
    page.gauge("kafka_server_app_info_starttimems", "When the node was started", started_ms)
    state = 3 if node.is_serving else 1
    page.gauge("kafka_server_kafkaserver_brokerstate", "1 = starting, 3 = running", state)
    if os.path.exists("/proc/self/io"):
        lines = (line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        done = {name: int(value) for name, value in lines}
        for name in ("read", "write"):
            text = "Bytes that the process had the disk transfer"
            page.gauge(f"kafka_server_kafkaserver_linux_disk_{name}_bytes", text, done[f"{name}_bytes"])


@cache
def _version() -> str:
    try:
        return version("headrace")
    except PackageNotFoundError:
        return "unknown"


# -- requests and connections ----------------------------------------------------------------------------------------


def _requests(page: Page, meter: Meter) -> None:
    prefix = "kafka_network_requestmetrics"
    for name, kind in ((f"{prefix}_requests_total", "counter"), (f"{prefix}_requestspersec", "untyped")):
        page.family(name, kind, "Requests by API and version")
        for api_key, counts in meter.requests.items():
            for api_version, number in counts.by_version.items():
                page.sample(name, number, request=api_name(api_key), version=api_version)
    for name, kind in ((f"{prefix}_errors_total", "counter"), (f"{prefix}_errorspersec", "untyped")):
        page.family(name, kind, "Errors in answers; INVALID_REQUEST also counts requests that broke the protocol")
        for api_key, counts in meter.requests.items():
            for error, number in counts.errors.items():
                page.sample(name, number, request=api_name(api_key), error=error)
    for short, text, times_of in _TIMES:
        page.family(f"{prefix}_{short}", "summary", f"{text}, in ms, of the last thousand")
        for api_key, counts in meter.requests.items():
            page.quantiles(f"{prefix}_{short}", times_of(counts), request=api_name(api_key))


def _connections(page: Page, node: Node, meter: Meter) -> None:
    connections = list(node.router.connections)
    prefix = "kafka_network_requestchannel"
    waiting = sum(connection.has_requests_waiting for connection in connections)
    page.gauge(f"{prefix}_requestqueuesize", "Connections whose next request has to wait", waiting)
    unsent = sum(connection.answers_waiting for connection in connections)
    page.gauge(f"{prefix}_responsequeuesize", "Answers behind those of earlier requests", unsent)
    counts = Counter(connection.listener for connection in connections)
    listeners = [listener.name for listener in (*node.config.listeners, *node.config.controller_listeners)]
    now_s = perf_counter()
    for prefix in ("kafka_server_socket_server_metrics", "kafka_server_socketservermetrics"):
        page.family(f"{prefix}_connection_count", "gauge", "Open connections by listener")
        for listener in listeners:
            _by_listener(page, f"{prefix}_connection_count", counts[listener], listener)
        for name, rates in (("creation", meter.connections_made), ("close", meter.connections_lost)):
            page.family(f"{prefix}_connection_{name}_rate", "gauge", "Connections per second, by listener")
            for listener in listeners:
                rate = rates.get(listener)
                value = 0.0 if rate is None else rate.per_second(now_s)
                _by_listener(page, f"{prefix}_connection_{name}_rate", round(value, 4), listener)
            page.family(f"{prefix}_connection_{name}_total", "counter", "Connections, by listener")
            for listener in listeners:
                total = rates[listener].total if listener in rates else 0
                _by_listener(page, f"{prefix}_connection_{name}_total", total, listener)


def _by_listener(page: Page, name: str, value: float, listener: str) -> None:
    page.sample(name, value, listener=listener, networkProcessor=_ONLY_PROCESSOR)


def _topics(page: Page, meter: Meter) -> None:
    meter.forget_topics()
    prefix = "kafka_server_brokertopicmetrics"
    for short, text, value_of in _TOPIC_METERS:
        values = {topic: value_of(counts) for topic, counts in meter.topics.items()}
        for name, kind in ((f"{prefix}_{short}_total", "counter"), (f"{prefix}_{short}persec", "untyped")):
            page.family(name, kind, text)
            page.sample(name, sum(values.values(), value_of(meter.gone_topics)))
            for topic, value in values.items():
                page.sample(name, value, topic=topic)
