"""kafka-console-producer: send the lines of standard input to a topic.

A separate thread reads the input in large chunks and sends the lines in batches. If the input is a terminal, the
thread prints a prompt. Kafka's tool fails a batch after three attempts of 1.5 s each; this tool waits for the
producer's default delivery timeout (two minutes). The exit status is 1 if a record could not be sent.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

from headrace_broker.tools.command_line import (
    Parser,
    broker_message,
    client_config,
    open_cluster,
    properties_of,
    run,
    run_and_exit,
    run_in_thread,
    wait_for_topic,
    warn_deprecated,
)
from headrace_broker.tools.tool_error import ToolError

if TYPE_CHECKING:
    from headrace_broker.client.producer import Producer, RecordMetadata
    from headrace_broker.records.columns import RecordColumns
    from headrace_broker.tools.line_reader import LineReader

_CHUNK_BYTES = 1 << 20
_LINGER_MS = 1000
_INTERRUPTED_FLUSH_MS = 10_000
_DEPRECATED = {
    "--producer-property": "--command-property",
    "--producer.config": "--command-config",
    "--property": "--reader-property",
    "--max-partition-memory-bytes": "--batch-size",
}
_PRODUCER_KEYS = {
    "timeout": "linger.ms",
    "request_required_acks": "acks",
    "request_timeout_ms": "request.timeout.ms",
    "message_send_max_retries": "retries",
    "retry_backoff_ms": "retry.backoff.ms",
    "socket_buffer_size": "send.buffer.bytes",
    "max_memory_bytes": "buffer.memory",
    "batch_size": "batch.size",
    "metadata_expiry_ms": "metadata.max.age.ms",
    "max_block_ms": "max.block.ms",
}
"""{option: the producer property that it sets}."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    parser = _parser()
    options = parser.parse(argv)
    warn_deprecated(options, argv, _DEPRECATED)
    parser.require(options, "topic")
    parser.required_server(options)
    return run(_produce(options), fast=True)


def entry() -> None:
    """Entry point of the console script."""
    run_and_exit(main)


def _parser() -> Parser:
    parser = Parser("kafka-console-producer", "Write the lines of standard input to a topic.")
    parser.add_bootstrap_server()
    add = parser.add_argument
    add("--topic", help="REQUIRED: the topic to write to.")
    add(
        "--reader-property",
        "--property",
        dest="reader_property",
        action="append",
        metavar="KEY=VALUE",
        help="parse.key=true (default false), key.separator (default tab), parse.headers=true (default false), "
        "headers.delimiter (tab), headers.separator (comma), headers.key.separator (colon), ignore.error=true, "
        "null.marker (a text that means null). May be repeated.",
    )
    add("--reader-config", metavar="FILE", help="A properties file for the reader.")
    add("--line-reader", metavar="CLASS", help="The line reader; only Kafka's LineMessageReader is supported.")
    add("--sync", action="store_true", help="Send one record at a time and wait for its acknowledgement.")
    add(
        "--compression-codec",
        nargs="?",
        const="gzip",
        metavar="CODEC",
        help="none, gzip, snappy, lz4 or zstd; gzip if no value is given. Default: none.",
    )
    add("--request-required-acks", metavar="ACKS", help="0, 1 or all (-1). Default: all.")
    add("--timeout", metavar="MS", help="How long a record waits for others to fill a batch. Default: 1000.")
    add("--batch-size", "--max-partition-memory-bytes", dest="batch_size", metavar="BYTES", help="Size of a batch.")
    add("--message-send-max-retries", metavar="N", help="How many times to retry a batch.")
    add("--retry-backoff-ms", metavar="MS", help="The delay before a retry. Default: 100.")
    add("--request-timeout-ms", metavar="MS", help="How long to wait for a response. Default: 30000.")
    add("--metadata-expiry-ms", metavar="MS", help="The interval of metadata refreshes. Default: 300000.")
    add("--max-block-ms", metavar="MS", help="How long to wait for the topic and for buffer memory. Default: 60000.")
    add("--max-memory-bytes", metavar="BYTES", help="The buffer memory for unsent records. Default: 32 MiB.")
    add("--socket-buffer-size", metavar="BYTES", help="The socket's send buffer size. Default: the kernel's.")
    add(
        "--command-property",
        "--producer-property",
        dest="command_property",
        action="append",
        metavar="KEY=VALUE",
        help="A producer property; overrides --command-config.",
    )
    parser.add_command_config("--producer.config")
    return parser


def producer_properties(options: argparse.Namespace, *, interactive: bool) -> dict[str, str]:
    """Return the producer's properties.

    --command-property overrides --command-config, and the tool's other options override both. `interactive`
    means that a user types the lines in a terminal. In this case, linger.ms keeps the producer's default.
    """
    properties = properties_of(options.command_config, options.command_property)
    properties["bootstrap.servers"] = options.bootstrap_server
    if options.compression_codec is not None:
        properties["compression.type"] = options.compression_codec
    if not interactive:  # a terminal's lines are sent without linger
        properties.setdefault("linger.ms", str(_LINGER_MS))
    for option, key in _PRODUCER_KEYS.items():
        if getattr(options, option) is not None:
            properties[key] = getattr(options, option)
    if properties.get("acks", "all") not in ("all", "-1"):
        properties.setdefault("enable.idempotence", "false")
    properties.setdefault("client.id", "console-producer")
    return properties


def _line_reader(options: argparse.Namespace) -> LineReader:
    from headrace_broker.tools.line_reader import LineReader

    if options.line_reader is not None and not options.line_reader.endswith("LineMessageReader"):
        raise ToolError(f"line reader {options.line_reader} is not supported; use LineMessageReader")
    return LineReader(properties_of(options.reader_config, options.reader_property))


async def _produce(options: argparse.Namespace) -> int:
    from headrace_broker.client.producer import Producer

    reader = _line_reader(options)
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    config = client_config(producer_properties(options, interactive=interactive), "producer")
    cluster = await open_cluster(config)
    producer = await Producer.open(config, cluster=cluster)
    sender = _InputSender(producer, reader, options.topic, sync=options.sync, prompts=interactive)
    flush_timeout_ms = config.delivery_timeout_ms
    try:
        await wait_for_topic(cluster, options.topic, config.max_block_ms)
        await run_in_thread(sender.send_all)
    except asyncio.CancelledError:  # after a signal, the tool flushes the lines that it has read, for at most 10 s
        flush_timeout_ms = min(flush_timeout_ms, _INTERRUPTED_FLUSH_MS)
        raise
    finally:
        try:
            await producer.close(flush_timeout_ms)
        finally:
            await cluster.close()
    return 1 if sender.failures else 0


class _InputSender:
    """Reads and sends the lines of standard input in a separate thread."""

    def __init__(self, producer: Producer, reader: LineReader, topic: str, *, sync: bool, prompts: bool) -> None:
        self._producer = producer
        self._reader = reader
        self._topic = topic
        self._sync = sync
        self._prompts = prompts
        self.failures = 0

    def send_all(self) -> None:
        """Send every line. If a line cannot be parsed, send the lines before it and raise ToolError."""
        from headrace_broker.tools.line_reader import LineSplitter

        splitter = LineSplitter()
        descriptor = sys.stdin.fileno()
        while True:
            if self._prompts:
                print(">", end="", flush=True)
            chunk = os.read(descriptor, _CHUNK_BYTES)
            lines = splitter.feed(chunk) if chunk else splitter.finish()
            first_line = self._reader.line_number + 1
            columns, error = self._reader.read(lines)
            if len(columns):
                self._send(columns, first_line)
            if error is not None:
                raise error
            if not chunk:
                return

    def _send(self, columns: RecordColumns, first_line: int) -> None:
        if self._sync:
            for index in range(len(columns)):
                sent = self._producer.send_blocking(self._topic, None, columns.slice(index, index + 1))
                self._producer.flush_blocking()
                sent.result()
            return
        lines = f"line {first_line}" if len(columns) == 1 else f"lines {first_line}-{first_line + len(columns) - 1}"
        sent = self._producer.send_blocking(self._topic, None, columns)
        sent.add_done_callback(partial(self._on_sent, lines))

    def _on_sent(self, lines: str, sent: Future[RecordMetadata]) -> None:
        from headrace_broker.client.errors import ClientError

        error = sent.exception()
        if error is None:
            return
        self.failures += 1
        text = broker_message(error) if isinstance(error, ClientError) else str(error)
        print(f"ERROR Error when sending {lines} to topic {self._topic}: {text}", file=sys.stderr)


if __name__ == "__main__":
    entry()
