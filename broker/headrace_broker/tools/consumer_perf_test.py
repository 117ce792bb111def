"""kafka-consumer-perf-test: measure the throughput of a consumer group member (Kafka's ConsumerPerformance)."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from headrace_broker.tools.command_line import (
    Parser,
    client_config,
    is_given,
    open_cluster,
    properties_of,
    run,
    run_and_exit,
    warn_deprecated,
    warn_without_metrics,
)
from headrace_broker.tools.topic_filter import topic_filter

if TYPE_CHECKING:
    from headrace_broker.client.consumer import Consumer
    from headrace_broker.client.fetched import FetchedBatch

_MB = 1024 * 1024
_POLL_MS = 100
_DATE_PARTS = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}
_DEPRECATED = {"--messages": "--num-records", "--consumer.config": "--command-config"}
_EXTRA_HEADER = ", rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    parser = _parser()
    options = parser.parse(argv)
    parser.required_server(options)
    parser.require(options, "num_records")
    if is_given(options, "topic") == is_given(options, "include"):
        parser.error("Exactly one of the following arguments is required: --topic, --include")
    warn_deprecated(options, argv, _DEPRECATED)
    warn_without_metrics(options)
    return run(_consume(options), fast=True)


def entry() -> None:
    """Entry point of the console script."""
    run_and_exit(main)


def _parser() -> Parser:
    parser = Parser("kafka-consumer-perf-test", "Measure a consumer's throughput.")
    parser.add_bootstrap_server()
    parser.add_command_config("--consumer.config")
    add = parser.add_argument
    add("--topic", help="The topic to read.")
    add("--include", metavar="REGEX", help="A regular expression for the topics to read, instead of --topic.")
    add("--num-records", "--messages", dest="num_records", type=int, metavar="N", help="REQUIRED: records to read.")
    add("--group", default=None, help="The consumer group. Default: a new group.")
    add("--fetch-size", type=int, default=1024 * 1024, metavar="BYTES", help="Bytes to fetch per partition.")
    add("--socket-buffer-size", type=int, default=2 * 1024 * 1024, metavar="BYTES", help="The receive buffer size.")
    add("--from-latest", action="store_true", help="Start at the log end if there is no committed offset.")
    add("--timeout", type=int, default=10_000, metavar="MS", help="Exit when no record arrives for this long.")
    add("--reporting-interval", type=int, default=5_000, metavar="MS", help="Interval of --show-detailed-stats.")
    add("--show-detailed-stats", action="store_true", help="Print a line per interval instead of one at the end.")
    add("--date-format", default="yyyy-MM-dd HH:mm:ss:SSS", metavar="FORMAT", help="Java's format of times.")
    add("--hide-header", action="store_true", help="Do not print the column names.")
    add("--command-property", action="append", metavar="K=V", help="A consumer property.")
    add("--print-metrics", action="store_true", help=argparse.SUPPRESS)
    return parser


def format_date(moment_ms: float, pattern: str) -> str:
    """Format a time like Java's SimpleDateFormat; supports yyyy, MM, dd, HH, mm, ss and SSS."""
    moment = datetime.fromtimestamp(moment_ms / 1000)
    text = pattern.replace("SSS", f"{moment.microsecond // 1000:03d}")
    for java, python in _DATE_PARTS.items():
        text = text.replace(java, moment.strftime(python))
    return text


class _ConsumeCounts:
    """Counts records and bytes, and measures the time that the consumer needs to join the group."""

    def __init__(self) -> None:
        self.records = 0
        self.size_bytes = 0
        self.join_started_ms: float | None = _now_ms()
        self.join_ms = 0.0
        self.join_ms_in_interval = 0.0

    def add(self, batch: FetchedBatch) -> None:
        columns = batch.columns
        self.records += len(columns)
        for items in (columns.values, columns.keys or ()):
            self.size_bytes += sum(map(len, filter(None, items)))

    def on_assigned(self, *ignored: object) -> None:
        if self.join_started_ms is not None:
            elapsed_ms = _now_ms() - self.join_started_ms
            self.join_ms += elapsed_ms
            self.join_ms_in_interval += elapsed_ms
            self.join_started_ms = None

    def on_revoked(self, *ignored: object) -> None:
        self.join_started_ms = _now_ms()


async def _consume(options: argparse.Namespace) -> int:
    from headrace_broker.client.consumer import Consumer

    properties = {
        "client.id": "perf-consumer-client",
        "max.partition.fetch.bytes": str(options.fetch_size),
        "receive.buffer.bytes": str(options.socket_buffer_size),
        "auto.offset.reset": "latest" if options.from_latest else "earliest",
        "group.id": options.group or f"perf-consumer-{random.randrange(100_000)}",
        **properties_of(options.command_config, options.command_property),
        "bootstrap.servers": options.bootstrap_server,
    }
    if options.group:
        properties["group.id"] = options.group
    config = client_config(properties, "consumer")
    if not options.hide_header:
        print(_header(options), flush=True)
    cluster = await open_cluster(config)
    try:
        consumer = await Consumer.open(config, cluster=cluster)
        count = _ConsumeCounts()
        start_ms = _now_ms()
        await _subscribe(consumer, options, count)
        try:
            await _read(consumer, options, count)
        finally:
            await consumer.close()
        if not options.show_detailed_stats:
            print(_total(options, count, start_ms, _now_ms()))
    finally:
        await cluster.close()
    return 0


def _header(options: argparse.Namespace) -> str:
    first = "time, threadId" if options.show_detailed_stats else "start.time, end.time"
    return f"{first}, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec{_EXTRA_HEADER}"


async def _subscribe(consumer: Consumer, options: argparse.Namespace, count: _ConsumeCounts) -> None:
    if options.topic is not None:
        await consumer.subscribe([options.topic], on_assigned=count.on_assigned, on_revoked=count.on_revoked)
        return
    await consumer.subscribe(
        pattern=topic_filter(options.include), on_assigned=count.on_assigned, on_revoked=count.on_revoked
    )


async def _read(consumer: Consumer, options: argparse.Namespace, count: _ConsumeCounts) -> None:
    reported_ms = consumed_ms = now_ms = _now_ms()
    reported = (0, 0)
    while count.records < options.num_records and now_ms - consumed_ms <= options.timeout:
        remaining = options.num_records - count.records
        batches = await consumer.poll(_POLL_MS, min(remaining, consumer.records_max or remaining))
        now_ms = _now_ms()
        for batch in batches:
            count.add(batch)
        if batches:
            consumed_ms = now_ms
        if now_ms - reported_ms >= options.reporting_interval and batches:
            if options.show_detailed_stats:
                print(_progress(options, count, reported, reported_ms, now_ms), flush=True)
            count.join_ms_in_interval = 0
            reported_ms, reported = now_ms, (count.records, count.size_bytes)
    if count.records < options.num_records:
        print(
            f"WARNING: Exiting before consuming the expected number of records: timeout ({options.timeout} ms) "
            "exceeded. You can use the --timeout option to increase the timeout."
        )


def _progress(
    options: argparse.Namespace, count: _ConsumeCounts, reported: tuple[int, int], since_ms: float, now_ms: float
) -> str:
    records, mb = count.records - reported[0], (count.size_bytes - reported[1]) / _MB
    elapsed_s = (now_ms - since_ms) / 1000
    fetch_ms = now_ms - since_ms - count.join_ms_in_interval
    per_s = 1000 / fetch_ms if fetch_ms > 0 else 0.0
    return (
        f"{format_date(_wall_ms(now_ms), options.date_format)}, 0, {count.size_bytes / _MB:.4f}, {mb / elapsed_s:.4f}, "
        f"{count.records}, {records / elapsed_s:.4f}, {count.join_ms_in_interval:.0f}, {fetch_ms:.0f}, "
        f"{mb * per_s:.4f}, {records * per_s:.4f}"
    )


def _total(options: argparse.Namespace, count: _ConsumeCounts, start_ms: float, end_ms: float) -> str:
    mb = count.size_bytes / _MB
    elapsed_s = max(end_ms - start_ms, 1) / 1000
    fetch_ms = max(end_ms - start_ms - count.join_ms, 1)
    dates = ", ".join(format_date(_wall_ms(moment), options.date_format) for moment in (start_ms, end_ms))
    return (
        f"{dates}, {mb:.4f}, {mb / elapsed_s:.4f}, {count.records}, {count.records / elapsed_s:.4f}, "
        f"{count.join_ms:.0f}, {fetch_ms:.0f}, {mb / (fetch_ms / 1000):.4f}, {count.records / (fetch_ms / 1000):.4f}"
    )


def _now_ms() -> float:
    return time.monotonic() * 1000


def _wall_ms(moment_ms: float) -> float:
    return time.time() * 1000 - (_now_ms() - moment_ms)


if __name__ == "__main__":
    entry()
