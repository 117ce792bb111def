"""kafka-dump-log: print the batches, records, indexes and snapshots in a partition's files.

Options and output are those of Apache Kafka's DumpLogSegments. The tool only reads the files, so the broker may be
running.
"""

from __future__ import annotations

import argparse
import os
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace_broker.log.index import OffsetIndex, TimeIndex
from headrace_broker.log.producer_state import CorruptSnapshotError, decode_snapshot
from headrace_broker.records.batch import (
    HEADER_SIZE,
    SEQUENCE_MAX,
    BatchHeader,
    CorruptBatchError,
    compute_crc,
    read_header,
)
from headrace_broker.records.compression import Compression
from headrace_broker.records.reader import read_batch
from headrace_broker.tools.command_line import Parser as CommandLineParser
from headrace_broker.tools.command_line import run_and_exit
from headrace_broker.tools.record_decoders import (
    RecordParser,
    control_text,
    parse_metadata,
    parse_offsets,
    parse_strings,
    parse_transactions,
)

_TRANSACTION_INDEX_ENTRY = struct.Struct(">hqqqq")
_INT32_MAX = 2**31 - 1
_DESCRIPTION = (
    "This tool helps to parse a log file and dump its contents to the console, "
    "useful for debugging a seemingly corrupt log segment."
)


@dataclass(slots=True)
class Findings:
    """The inconsistencies that were found in each file. They are printed at the end."""

    index_mismatches: dict[str, list[str]] = field(default_factory=dict)
    time_mismatches: dict[str, list[str]] = field(default_factory=dict)
    time_disorder: dict[str, list[str]] = field(default_factory=dict)
    time_missing: dict[str, list[str]] = field(default_factory=dict)
    gaps: dict[str, list[str]] = field(default_factory=dict)

    def report(self) -> None:
        for title, found in (
            ("Mismatches in :", self.index_mismatches),
            ("Found timestamp mismatch in :", self.time_mismatches),
            ("Found out of order timestamp in :", self.time_disorder),
            ("The following indexed offsets are not found in :", self.time_missing),
            ("Non-consecutive offsets in ", self.gaps),
        ):
            for path, lines in found.items():
                print(f"{title}{os.path.abspath(path)}", *lines, sep="\n", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    options = _parse_arguments(argv)
    findings = Findings()
    for path in options.files.split(","):
        print(f"Dumping {path}")
        try:
            _dump_file(path, options, findings)
        except BrokenPipeError:
            raise  # the file has no error: the reader of standard output has closed the pipe
        except (OSError, ValueError, CorruptBatchError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 1
    findings.report()
    return 0


def entry() -> None:
    """Entry point of the console script."""
    run_and_exit(main)


def _parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = CommandLineParser("kafka-dump-log", _DESCRIPTION)
    add = parser.add_argument
    add("--files", required=True, help="REQUIRED: The comma separated list of data and index log files to be dumped.")
    add(
        "--print-data-log", action="store_true", help="Also print the records' contents; any decoder option implies it."
    )
    add("--deep-iteration", action="store_true", help="Print each record, not only the batches.")
    add("--verify-index-only", action="store_true", help="Verify the index without printing its content.")
    add(
        "--index-sanity-check", action="store_true", help="Only run the check of the index that a broker runs at start."
    )
    add("--max-message-size", type=int, default=5 * 1024 * 1024, metavar="SIZE", help="Size of the largest batch.")
    add("--max-bytes", type=int, default=_INT32_MAX, metavar="SIZE", help="Read at most this many bytes of a log file.")
    add("--skip-record-metadata", action="store_true", help="Do not print records' metadata, or control records.")
    add("--key-decoder-class", help="The keys' decoder; only Kafka's StringDecoder is supported.")
    add("--value-decoder-class", help="The values' decoder; only Kafka's StringDecoder is supported.")
    decoder = parser.add_mutually_exclusive_group()
    add = decoder.add_argument
    add("--offsets-decoder", action="store_true", help="Decode records of __consumer_offsets.")
    add("--transaction-log-decoder", action="store_true", help="Decode records of __transaction_state.")
    add("--cluster-metadata-decoder", action="store_true", help="Decode records of __cluster_metadata.")
    return parser.parse(argv)


def _dump_file(path: str, options: argparse.Namespace, findings: Findings) -> None:
    suffix = os.path.splitext(path)[1]
    if suffix in (".log", ".checkpoint"):
        _dump_log(path, options, findings)
    elif suffix == ".index":
        _dump_offset_index(path, options, findings)
    elif suffix == ".timeindex":
        _dump_time_index(path, options, findings)
    elif suffix == ".snapshot":
        _dump_producers(path)
    elif suffix == ".txnindex":
        _dump_transaction_index(path)
    else:
        print(f"Ignoring unknown file {path}", file=sys.stderr)


def _base_offset(path: str) -> int:
    return int(os.path.basename(path).partition(".")[0])


def _read(path: str, size_max: int = -1) -> memoryview:
    with open(path, "rb") as file:
        return memoryview(file.read(size_max))


# Logs


def _dump_log(path: str, options: argparse.Namespace, findings: Findings) -> None:
    if path.endswith(".log"):
        print(f"Log starting offset: {_base_offset(path)}")
    else:
        end_offset, epoch = os.path.basename(path).removesuffix(".checkpoint").split("-")
        print(f"Snapshot end offset: {int(end_offset)}, epoch: {int(epoch)}")
    parser = _record_parser(options)
    is_printed = options.print_data_log or parser is not parse_strings or _has_decoder_class(options)
    view = _read(path, options.max_bytes)
    position = 0
    last_offset = -1
    while position + HEADER_SIZE <= len(view):
        header = read_header(view, position)
        if header.size_bytes < HEADER_SIZE or position + header.size_bytes > len(view):
            break
        print(_batch_line(view, position, header))
        if is_printed or options.deep_iteration:
            last_offset = _dump_records(
                view, position, header, last_offset, path, options, findings, parser, is_printed
            )
        position += header.size_bytes
    is_unwritten = not any(view[position:])  # a preallocated file ends with zeros
    if not is_unwritten and options.max_bytes == _INT32_MAX:
        print(f"Found {len(view) - position} invalid bytes at the end of {os.path.basename(path)}")


def _batch_line(view: memoryview, position: int, header: BatchHeader) -> str:
    horizon = f"OptionalLong[{header.base_timestamp}]" if header.has_delete_horizon else "OptionalLong.empty"
    codec = Compression(header.compression).name.lower() if header.compression in list(Compression) else "unknown"
    is_valid = compute_crc(view, position, header.size_bytes) == header.crc
    return (
        f"baseOffset: {header.base_offset} lastOffset: {header.last_offset} count: {header.records_count} "
        f"baseSequence: {header.base_sequence} lastSequence: {header.last_sequence} producerId: {header.producer_id} "
        f"producerEpoch: {header.producer_epoch} partitionLeaderEpoch: {header.partition_leader_epoch} "
        f"isTransactional: {_java(header.is_transactional)} isControl: {_java(header.is_control)} "
        f"deleteHorizonMs: {horizon} position: {position} {_timestamp_type(header)}: {header.max_timestamp} "
        f"size: {header.size_bytes} magic: {header.magic} compresscodec: {codec} crc: {header.crc} "
        f"isvalid: {_java(is_valid)}"
    )


def _java(truth: bool) -> str:
    return "true" if truth else "false"


def _timestamp_type(header: BatchHeader) -> str:
    return "LogAppendTime" if header.timestamp_type else "CreateTime"


def _dump_records(
    view: memoryview,
    position: int,
    header: BatchHeader,
    last_offset: int,
    path: str,
    options: argparse.Namespace,
    findings: Findings,
    parser: RecordParser,
    is_printed: bool,
) -> int:
    """Print a batch's records and return their last offset, or `last_offset` if the batch has no records.

    `last_offset` is the offset of the record before the batch. Gaps between offsets are added to `findings`. Keys and
    values are printed only if `is_printed` is set.
    """
    if header.records_count == 0:
        return last_offset
    columns = read_batch(view, position, header)
    keys = columns.keys or [None] * len(columns)
    headers = columns.headers or [[]] * len(columns)
    rows = zip(columns.offsets or (), columns.timestamp_list(), keys, columns.values, headers, strict=True)
    for offset, timestamp, key, value, record_headers in rows:
        if offset != last_offset + 1:
            findings.gaps.setdefault(path, []).append(f"  {last_offset} is followed by {offset}")
        last_offset = offset
        line = ""
        if not options.skip_record_metadata:
            line = (
                f"| offset: {offset} {_timestamp_type(header)}: {timestamp} keySize: {_size(key)} "
                f"valueSize: {_size(value)} sequence: {_sequence(header, offset)} "
                f"headerKeys: [{','.join(name for name, _ in record_headers)}]"
            )
            if header.is_control:
                line += control_text(key, value)
        if is_printed and not header.is_control:
            key_text, payload = parser(offset, key, value)
            texts = [] if key_text is None else [f"key: {key_text}"]
            texts += [] if payload is None else [f"payload: {payload}"]
            if texts:
                line = " ".join([line or "|", *texts])
        print(line)
    return last_offset


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _sequence(header: BatchHeader, offset: int) -> int:
    if header.base_sequence < 0:
        return -1
    return (header.base_sequence + offset - header.base_offset) & SEQUENCE_MAX


# Decoders


def _has_decoder_class(options: argparse.Namespace) -> bool:
    for name in (options.key_decoder_class, options.value_decoder_class):
        if name is not None and not name.endswith("StringDecoder"):
            raise ValueError(f"decoder class {name} is not supported; use StringDecoder")
    return bool(options.key_decoder_class or options.value_decoder_class)


def _record_parser(options: argparse.Namespace) -> RecordParser:
    if options.offsets_decoder:
        return parse_offsets
    if options.transaction_log_decoder:
        return parse_transactions
    return parse_metadata if options.cluster_metadata_decoder else parse_strings


# Indexes and snapshots


def _dump_offset_index(path: str, options: argparse.Namespace, findings: Findings) -> None:
    base_offset = _base_offset(path)
    index = OffsetIndex.decode(bytes(_read(path)))
    if not len(index):
        print(f"{path} is empty.")
        return
    if options.index_sanity_check:
        print(f"{path} passed sanity check.")
        return
    view = _read(path.removesuffix(".index") + ".log")
    for relative, position in zip(index.offsets, index.positions, strict=True):
        offset = base_offset + relative
        last_offset = read_header(view, position).last_offset
        if last_offset != offset:
            line = f"  Index offset: {offset}, log offset: {last_offset}"
            findings.index_mismatches.setdefault(path, []).append(line)
        if not options.verify_index_only:
            print(f"offset: {offset} position: {position}")


def _dump_time_index(path: str, options: argparse.Namespace, findings: Findings) -> None:
    base_offset = _base_offset(path)
    times = TimeIndex.decode(bytes(_read(path)))
    if options.index_sanity_check:
        print(f"{path} passed sanity check.")
        return
    index = OffsetIndex.decode(bytes(_read(path.removesuffix(".timeindex") + ".index")))
    view = _read(path.removesuffix(".timeindex") + ".log")
    previous = -1
    for timestamp, relative in zip(times.timestamps, times.offsets, strict=True):
        offset = base_offset + relative
        found = _batch_reaching(view, index.lookup(relative), offset)
        if found is None or found[1].last_offset != offset:
            line = f"Indexed offset: {offset}, found log offset: {found[1].last_offset if found else -1}"
            findings.time_missing.setdefault(path, []).append(line)
        else:
            newest = max(read_batch(view, *found).timestamp_list(), default=-1)
            if newest != timestamp:
                line = f"  Index timestamp: {timestamp}, log timestamp: {newest}"
                findings.time_mismatches.setdefault(path, []).append(line)
            if previous >= timestamp:
                line = f"  Index timestamp: {timestamp}, Previously indexed timestamp: {previous}"
                findings.time_disorder.setdefault(path, []).append(line)
        if not options.verify_index_only:
            print(f"timestamp: {timestamp} offset: {offset}")
        previous = timestamp


def _batch_reaching(view: memoryview, position: int, offset: int) -> tuple[int, BatchHeader] | None:
    while position + HEADER_SIZE <= len(view):
        header = read_header(view, position)
        if header.last_offset >= offset:
            return position, header
        position += max(header.size_bytes, HEADER_SIZE)
    return None


def _dump_producers(path: str) -> None:
    try:
        producers = decode_snapshot(bytes(_read(path)))
    except CorruptSnapshotError as error:
        print(error, file=sys.stderr)
        return
    for producer_id, entry in producers.items():
        first_offset = entry.transaction_first_offset
        producer = (
            f"producerId: {producer_id} producerEpoch: {entry.epoch} coordinatorEpoch: {entry.coordinator_epoch} "
            f"currentTxnFirstOffset: {f'OptionalLong[{first_offset}]' if first_offset >= 0 else 'OptionalLong.empty'} "
        )
        if not entry.batches:
            print(f"{producer}lastTimestamp: {entry.timestamp}")
        for batch in entry.batches:  # Kafka's tool prints each batch as a separate entry
            print(
                f"{producer}lastTimestamp: {batch.timestamp} "
                f"firstSequence: {batch.first_sequence} lastSequence: {batch.last_sequence} "
                f"lastOffset: {batch.last_offset} offsetDelta: {batch.offset_delta} timestamp: {batch.timestamp}"
            )


def _dump_transaction_index(path: str) -> None:
    data = _read(path)
    whole = data[: len(data) - len(data) % _TRANSACTION_INDEX_ENTRY.size]
    for version, producer_id, first, last, stable in _TRANSACTION_INDEX_ENTRY.iter_unpack(whole):
        print(
            f"version: {version} producerId: {producer_id} firstOffset: {first} "
            f"lastOffset: {last} lastStableOffset: {stable}"
        )


if __name__ == "__main__":
    entry()
