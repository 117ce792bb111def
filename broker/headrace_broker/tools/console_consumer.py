"""kafka-console-consumer: write the records of topics to standard output.

The event loop fetches records. A separate thread formats and writes them, so that slow output never delays the
consumer's heartbeats. Without `--group`, the consumer joins no group and assigns all partitions to itself. If topics or
partitions are created later, the consumer reads them from the beginning.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace_broker.tools.command_line import (
    Parser,
    client_config,
    is_given,
    key_values,
    open_cluster,
    properties_of,
    run,
    run_and_exit,
    run_in_thread,
    warn_deprecated,
)
from headrace_broker.tools.tool_error import ToolError

if TYPE_CHECKING:
    from headrace_broker.client.consumer import Consumer, FetchedBatch
    from headrace_broker.records.columns import RecordColumns

_DEPRECATED = {
    "--consumer-property": "--command-property",
    "--consumer.config": "--command-config",
    "--property": "--formatter-property",
}
_FORMATTERS = ("DefaultMessageFormatter", "LoggingMessageFormatter", "NoOpMessageFormatter")
_COORDINATOR_FORMATTERS = ("OffsetsMessageFormatter", "GroupMetadataMessageFormatter", "TransactionLogMessageFormatter")
_FOREVER_MS = 24 * 3600 * 1000
_GRACE_S = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    parser = _parser()
    options = parser.parse(argv)
    warn_deprecated(options, argv, _DEPRECATED)
    _check(parser, options)
    return run(_consume(parser, options), fast=True)


def entry() -> None:
    """Entry point of the console script."""
    run_and_exit(main)


def _parser() -> Parser:
    parser = Parser("kafka-console-consumer", "Write the records of topics to standard output.")
    parser.add_bootstrap_server()
    add = parser.add_argument
    add("--topic", help="The topic to read.")
    add("--include", metavar="REGEX", help="A regular expression for the topics to read, instead of --topic.")
    add("--from-beginning", action="store_true", help="Start at the first record if there is no committed offset.")
    add("--partition", type=int, metavar="N", help="Read only this partition; from its end unless --offset is given.")
    add("--offset", metavar="N", help="With --partition: an offset, earliest or latest.")
    add("--group", help="The consumer group to join. Default: none.")
    add("--max-messages", type=int, metavar="N", help="Exit after this many records.")
    add("--timeout-ms", type=int, metavar="MS", help="Exit when no record arrives for this long.")
    add("--isolation-level", metavar="LEVEL", help="read_committed or read_uncommitted (default).")
    add(
        "--key-deserializer", metavar="CLASS", help="The keys' deserializer, e.g. LongDeserializer. Default: raw bytes."
    )
    add("--value-deserializer", metavar="CLASS", help="The values' deserializer. Default: raw bytes.")
    add("--skip-message-on-error", action="store_true", help="Skip records that cannot be formatted.")
    add(
        "--formatter-property",
        "--property",
        dest="formatter_property",
        action="append",
        metavar="KEY=VALUE",
        help="print.timestamp, print.partition, print.offset, print.epoch, print.headers, print.key =true|false "
        "(default false), print.value (default true), key.separator (tab), line.separator, headers.separator, "
        "null.literal, key.deserializer, value.deserializer, headers.deserializer. May be repeated.",
    )
    add("--formatter-config", metavar="FILE", help="A properties file for the formatter.")
    add("--formatter", metavar="CLASS", help=f"The formatter: {', '.join(_FORMATTERS + _COORDINATOR_FORMATTERS)}.")
    add("--enable-systest-events", action="store_true", help="Print shutdown_complete at exit.")
    add(
        "--command-property",
        "--consumer-property",
        dest="command_property",
        action="append",
        metavar="KEY=VALUE",
        help="A consumer property; overrides --command-config.",
    )
    parser.add_command_config("--consumer.config")
    return parser


def _check(parser: Parser, options: argparse.Namespace) -> None:
    if is_given(options, "topic") == is_given(options, "include"):
        parser.error("Exactly one of the following arguments is required: [topic], [include]")
    if options.partition is None:
        if options.offset is not None:
            parser.error("The partition is required when offset is specified.")
    elif options.topic is None:
        parser.error("The topic is required when partition is specified.")
    elif options.from_beginning and options.offset is not None:
        parser.error("Options from-beginning and offset cannot be specified together.")
    parser.required_server(options)
    text = options.offset
    if text is not None and text.lower() not in ("earliest", "latest") and not text.isdigit():
        parser.error(
            f"The provided offset value '{text}' is incorrect. Valid values are 'earliest', 'latest', or a "
            "non-negative long."
        )


def consumer_properties(parser: Parser, options: argparse.Namespace) -> dict[str, str]:
    """Return the consumer's properties; exit with a usage error if options and properties contradict each other."""
    from_file = properties_of(options.command_config)
    given = key_values(options.command_property)
    groups = {options.group, from_file.get("group.id"), given.get("group.id")} - {None}
    if len(groups) > 1:
        names = ", ".join(f"'{group}'" for group in sorted(groups))
        parser.error(f"The group ids provided in different places do not match. Detected group ids: {names}")
    if groups and options.partition is not None:
        parser.error("Options group and partition cannot be specified together.")
    properties = {**from_file, **given, "bootstrap.servers": options.bootstrap_server}
    if groups:
        properties["group.id"] = groups.pop()
    reset = properties.setdefault("auto.offset.reset", "earliest" if options.from_beginning else "latest")
    if options.from_beginning and reset != "earliest":
        parser.error(f"Can't simultaneously specify --from-beginning and 'auto.offset.reset={reset}'")
    if options.isolation_level is not None:
        properties["isolation.level"] = options.isolation_level
    properties.setdefault("client.id", "console-consumer")
    return properties


def _formatter(parser: Parser, options: argparse.Namespace) -> Callable[[int, RecordColumns], bytes]:
    from headrace_broker.tools.record_formatter import RecordFormatter

    name = (options.formatter or _FORMATTERS[0]).rpartition(".")[2].rpartition("$")[2]
    if name in _COORDINATOR_FORMATTERS:
        from headrace_broker.tools.coordinator_formatter import coordinator_formatter

        return coordinator_formatter(name)
    if name not in _FORMATTERS:
        known = ", ".join(_FORMATTERS + _COORDINATOR_FORMATTERS)
        parser.error(f"formatter {options.formatter} is not supported; the supported formatters are {known}")
    if name.startswith("NoOp"):
        return lambda partition, columns: b""
    properties = properties_of(options.formatter_config)
    if options.key_deserializer:
        properties["key.deserializer"] = options.key_deserializer
    if options.value_deserializer:
        properties["value.deserializer"] = options.value_deserializer
    try:
        return RecordFormatter({**properties, **key_values(options.formatter_property)}).format
    except ValueError as error:
        parser.error(str(error))


async def _consume(parser: Parser, options: argparse.Namespace) -> int:
    from headrace_broker.client.consumer import Consumer
    from headrace_broker.tools.console_subscription import start_reading

    output = _Output(
        _formatter(parser, options), skips_errors=options.skip_message_on_error, max_messages=options.max_messages
    )
    config = client_config(consumer_properties(parser, options), "consumer")
    cluster = await open_cluster(config)
    consumer = await Consumer.open(config, cluster=cluster)
    stopped: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    _stop_on_signals(stopped)
    timeout_ms = options.timeout_ms if options.timeout_ms is not None and options.timeout_ms >= 0 else None
    try:
        if await _run_until_stopped(start_reading(consumer, options, config.group_id), stopped, lambda: None):
            await _run_until_stopped(
                run_in_thread(partial(output.write_records, consumer, timeout_ms)),
                stopped,
                partial(output.stop, consumer),
            )
    finally:
        output.seek_to_unwritten(consumer)
        await consumer.close()
        await cluster.close()
        print(f"Processed a total of {output.count} messages", file=sys.stderr)
        if options.enable_systest_events:
            print("shutdown_complete")
    return 128 + stopped.result() if stopped.done() else 0


async def _run_until_stopped(
    work: Coroutine[Any, Any, None], stopped: asyncio.Future[int], stop: Callable[[], None]
) -> bool:
    """Wait until `work` completes, or until a signal completes the future `stopped`.

    Returns False if a signal has arrived. If `work` is not complete when the signal arrives, call `stop`, wait briefly
    for `work`, and cancel `work`.
    """
    task = asyncio.ensure_future(work)
    either: list[asyncio.Future[Any]] = [task, stopped]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        stop()
        await asyncio.wait([task], timeout=_GRACE_S)
        task.cancel()
    if task.done():
        task.result()
    return not stopped.done()


def _stop_on_signals(stopped: asyncio.Future[int]) -> None:
    def stop(number: int) -> None:
        if not stopped.done():
            stopped.set_result(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)


# -- output ----------------------------------------------------------------------------------------------------------


class _Output:
    """Writes the consumer's records to standard output; `write_records` runs in a separate thread."""

    def __init__(
        self, format_batch: Callable[[int, RecordColumns], bytes], *, skips_errors: bool, max_messages: int | None
    ) -> None:
        self._format = format_batch
        self._skips_errors = skips_errors
        self._left = max_messages if max_messages is not None and max_messages >= 0 else None
        self._stopping = threading.Event()
        self._unwritten: Sequence[FetchedBatch] = []
        self.count = 0

    def stop(self, consumer: Consumer) -> None:
        """Make `write_records` return after the batch that it is writing."""
        self._stopping.set()
        consumer.wake_up()

    def write_records(self, consumer: Consumer, timeout_ms: int | None) -> None:
        """Poll records from `consumer` and write them to standard output.

        Stop when `max_messages` records are written, when no record arrives for `timeout_ms`, or when the pipe is
        closed.
        """
        while not self._stopping.is_set() and self._left != 0:
            batches = consumer.poll_blocking(_FOREVER_MS if timeout_ms is None else timeout_ms, self._left)
            if not batches and timeout_ms is not None:
                return
            for index, batch in enumerate(batches):
                self._unwritten = batches[index:]
                if self._stopping.is_set():
                    return
                try:
                    self._write(batch)
                except BrokenPipeError:
                    return
            self._unwritten = []

    def seek_to_unwritten(self, consumer: Consumer) -> None:
        """Seek back to each partition's first unwritten record.

        `Consumer.close` then commits only the offsets of written records. Call this method in the event loop's thread.
        """
        assigned = set(consumer.assignment)
        for batch in reversed(self._unwritten):
            if batch.columns.offsets and (batch.topic, batch.partition) in assigned:
                consumer.seek((batch.topic, batch.partition), batch.columns.offsets[0])

    def _write(self, batch: FetchedBatch) -> None:
        try:
            data = self._format(batch.partition, batch.columns)
        except ValueError as error:
            if not self._skips_errors:
                raise ToolError(f"{batch.topic}-{batch.partition}: {error}") from error
            data = self._format_valid_records(batch)
        view = memoryview(data)
        while view:
            view = view[os.write(1, view) :]
        self.count += len(batch)
        if self._left is not None:
            self._left -= len(batch)

    def _format_valid_records(self, batch: FetchedBatch) -> bytes:
        """Format the records one at a time; print an error for each record that cannot be formatted, and skip it."""
        formatted = []
        for index in range(len(batch)):
            record = batch.columns.slice(index, index + 1)
            try:
                formatted.append(self._format(batch.partition, record))
            except ValueError as error:
                offset = record.offsets[0] if record.offsets else -1
                print(f"ERROR {batch.topic}-{batch.partition}, offset {offset}: {error}; skipped", file=sys.stderr)
        return b"".join(formatted)


if __name__ == "__main__":
    entry()
