"""kafka-producer-perf-test: measure a producer's throughput and latency (Kafka's ProducerPerformance).

If several records are due at the same time, the tool passes them to the producer with one call. A record's latency is
the time from this call to the record's acknowledgement.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
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
from headrace_broker.tools.produce_stats import FailureCounts, ProduceStats
from headrace_broker.tools.tool_error import ToolError

if TYPE_CHECKING:
    from headrace_broker.client.producer import Producer, RecordMetadata

_BATCH_RECORDS_MAX = 500
_BATCH_BYTES_MAX = 256 * 1024
_LETTERS = bytes(65 + byte % 26 for byte in range(256))
_PAYLOADS = ("record_size", "payload_file", "payload_monotonic")
_DEPRECATED = {"--producer-props": "--command-property", "--producer.config": "--command-config"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    parser = _parser()
    options = parser.parse(argv)
    _check(parser, options)
    warn_deprecated(options, argv, _DEPRECATED)
    warn_without_metrics(options)
    return run(_produce(options), fast=True)


def entry() -> None:
    """Entry point of the console script."""
    run_and_exit(main)


def _parser() -> Parser:
    parser = Parser("kafka-producer-perf-test", "Measure a producer's throughput and latency.")
    add = parser.add_argument
    add("--bootstrap-server", metavar="HOST:PORT,…", help="The brokers to connect to first.")
    add("--topic", help="REQUIRED: the topic to write to.")
    add("--num-records", type=int, metavar="N", help="REQUIRED: the number of records to send.")
    add("--record-size", type=int, metavar="BYTES", help="Send random records of this size.")
    add("--payload-file", metavar="FILE", help="Send records chosen at random from a file.")
    add("--payload-monotonic", action="store_true", help="Send ascending numbers.")
    add("--payload-delimiter", default="\\n", metavar="TEXT", help="The delimiter of records in --payload-file.")
    add("--throughput", type=float, metavar="N", help="REQUIRED: records per second; -1 = as fast as possible.")
    add("--command-property", "--producer-props", nargs="+", action="extend", metavar="K=V", help="Client properties.")
    add(
        "--command-config", "--producer.config", dest="command_config", metavar="FILE", help="A client properties file."
    )
    add(
        "--warmup-records",
        type=int,
        default=0,
        metavar="N",
        help="Also report the records after the first N separately.",
    )
    add("--reporting-interval", type=int, default=5_000, metavar="MS", help="The interval of the statistics lines.")
    add("--record-key-range", type=int, metavar="N", help="The number of different keys.")
    add("--key-distribution", default="none", choices=("none", "range", "random"), help="How keys are chosen.")
    add("--random-seed", type=int, default=0, metavar="N", help="The seed of the random generator.")
    add("--print-metrics", action="store_true", help=argparse.SUPPRESS)
    add("--transactional-id", help=argparse.SUPPRESS)
    add("--transaction-duration-ms", help=argparse.SUPPRESS)
    return parser


def _check(parser: Parser, options: argparse.Namespace) -> None:
    parser.require(options, "topic", "num_records", "throughput")
    if sum(is_given(options, name) for name in _PAYLOADS) != 1:
        parser.error("Exactly one of --record-size, --payload-file or --payload-monotonic is required")
    for name in ("transactional_id", "transaction_duration_ms"):
        if is_given(options, name):
            parser.error(f"--{name.replace('_', '-')}: not supported yet; headrace has no transactions")
    for name, minimum in (("num_records", 1), ("record_size", 1), ("reporting_interval", 1), ("warmup_records", 0)):
        number = getattr(options, name)
        if number is not None and number < minimum:
            parser.error(f"--{name.replace('_', '-')} {number}: expected {minimum} or more")
    if options.warmup_records >= options.num_records:
        parser.error("The value for --warmup-records must be strictly fewer than the number of records in the test")
    if options.key_distribution != "none" and not is_given(options, "record_key_range"):
        parser.error("--record-key-range is required with --key-distribution")


# -- payloads and keys -----------------------------------------------------------------------------------------------


def payloads(options: argparse.Namespace, rng: random.Random) -> Callable[[int, int], list[bytes | None]]:
    """Return a function `f(first, count)` that returns the values of records `first` to `first + count - 1`.

    Raises ToolError if the payload file cannot be read.
    """
    if options.record_size is not None:
        size: int = options.record_size

        def random_values(first: int, count: int) -> list[bytes | None]:
            text = rng.randbytes(size * count).translate(_LETTERS)
            return [text[position : position + size] for position in range(0, size * count, size)]

        return random_values
    if options.payload_monotonic:
        return lambda first, count: [b"%d" % number for number in range(first, first + count)]
    choices = read_payloads(options.payload_file, options.payload_delimiter)
    return lambda first, count: list(rng.choices(choices, k=count))


def read_payloads(path: str, delimiter: str) -> list[bytes]:
    """Return the payloads in the file, which are separated by `delimiter`. Raises ToolError."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ToolError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    found = [part.encode() for part in text.split(delimiter.encode().decode("unicode_escape"))]
    if found and not found[-1]:
        found.pop()
    if not found:
        raise ToolError(f"{path}: File does not exist or empty file provided.")
    return found


def keys(options: argparse.Namespace, rng: random.Random, first: int, count: int) -> list[bytes | None] | None:
    """Return the keys of records `first` to `first + count - 1`, or None if the records have no keys."""
    if options.key_distribution == "none":
        return None
    if options.key_distribution == "range":
        return [b"%d" % (number % options.record_key_range) for number in range(first, first + count)]
    return [b"%d" % rng.randrange(options.record_key_range) for _ in range(count)]


# -- sending ---------------------------------------------------------------------------------------------------------


class _ProducerTest:
    """Sends the records of one test and collects its statistics."""

    def __init__(self, options: argparse.Namespace, producer: Producer) -> None:
        self._options = options
        self._producer = producer
        self._rng = random.Random(options.random_seed)
        self._values = payloads(options, self._rng)
        now_ms = _now_ms()
        self.stats = ProduceStats(options.num_records, now_ms, options.reporting_interval)
        self.steady: ProduceStats | None = None
        self.failures = FailureCounts()

    async def send_all(self) -> None:
        start_s = time.monotonic()
        sent = 0
        for count in self._batch_sizes():
            await self._wait_until_due(start_s, sent)
            await self._producer.ready()
            self._start_steady_state(sent)
            self._send(sent, count)
            sent += count
            await asyncio.sleep(0)
        await self._producer.flush()

    def _batch_sizes(self) -> Iterator[int]:
        """Yield the number of records to send with each call: the records of the next 2 ms, up to a limit."""
        options = self._options
        size = options.record_size or 100
        limit = max(1, min(_BATCH_RECORDS_MAX, _BATCH_BYTES_MAX // size))
        if options.throughput > 0:
            limit = max(1, min(limit, int(options.throughput / 500)))
        remaining, warmup_remaining = options.num_records, options.warmup_records
        while remaining:
            count = min(limit, remaining, warmup_remaining or remaining)
            warmup_remaining = max(0, warmup_remaining - count)
            remaining -= count
            yield count

    async def _wait_until_due(self, start_s: float, sent: int) -> None:
        if self._options.throughput > 0:
            early_s = start_s + sent / self._options.throughput - time.monotonic()
            if early_s > 0:
                await asyncio.sleep(early_s)

    def _start_steady_state(self, sent: int) -> None:
        options = self._options
        if options.warmup_records and sent == options.warmup_records:
            self.stats.is_quiet = True
            remaining = options.num_records - sent
            self.steady = ProduceStats(remaining, _now_ms(), options.reporting_interval, is_steady_state=True)

    def _send(self, first: int, count: int) -> None:
        from headrace_broker.records.columns import RecordColumns

        values = self._values(first, count)
        size_bytes = sum(len(value) for value in values if value is not None)
        sent_ms, steady = _now_ms(), self.steady
        columns = RecordColumns(values=values, keys=keys(self._options, self._rng, first, count))

        def done(future: asyncio.Future[RecordMetadata]) -> None:
            if future.cancelled():
                return
            error = future.exception()
            if error is not None:
                for line in self.failures.add(count, error):
                    print(line, file=sys.stderr)
                return
            now_ms = _now_ms()
            for stats in (self.stats, steady):
                if stats is not None:
                    for line in stats.add_acknowledged(count, size_bytes, int(now_ms - sent_ms), now_ms):
                        print(line, flush=True)

        self._producer.send(self._options.topic, None, columns).add_done_callback(done)


async def _produce(options: argparse.Namespace) -> int:
    from headrace_broker.client.producer import Producer

    properties = {
        "client.id": "perf-producer-client",
        **properties_of(options.command_config, options.command_property),
    }
    if options.bootstrap_server:
        properties["bootstrap.servers"] = options.bootstrap_server
    if not properties.get("bootstrap.servers"):
        raise ToolError("At least one of --bootstrap-server, --command-property or --command-config must be given")
    config = client_config(properties, "producer")
    cluster = await open_cluster(config)
    try:
        if options.warmup_records:
            print(
                f"Warmup first {options.warmup_records} records. Steady state results will print after the complete "
                "test summary."
            )
        test = _ProducerTest(options, await Producer.open(config, cluster=cluster))
        await test.send_all()
        print(test.stats.total_line(_now_ms()))
        if test.steady is not None:
            print(test.steady.total_line(_now_ms()))
        for line in test.failures.summary(options.num_records):
            print(line, file=sys.stderr)
    finally:
        await cluster.close()
    return 1 if test.failures.records else 0


def _now_ms() -> float:
    return time.monotonic() * 1000


if __name__ == "__main__":
    entry()
