"""Encodes and decodes the small text files of a log directory, in Kafka's formats.

A log directory has the offset checkpoints (recovery point, high watermark, log start offset, cleaner offset),
`meta.properties` and the clean shutdown marker. Each partition's directory has a leader epoch checkpoint and
`partition.metadata`. This module does no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from headrace_broker.protocol.topic_names import TopicPartition
from headrace_broker.protocol.uuid_text import decode_uuid, encode_uuid

RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"
HIGH_WATERMARK_FILE = "replication-offset-checkpoint"
LOG_START_FILE = "log-start-offset-checkpoint"
CLEANER_FILE = "cleaner-offset-checkpoint"
LEADER_EPOCH_FILE = "leader-epoch-checkpoint"
PARTITION_METADATA_FILE = "partition.metadata"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
META_PROPERTIES_FILE = "meta.properties"
LOCK_FILE = ".lock"


class MalformedFileError(Exception):
    """A checkpoint or properties file has an invalid format. The message names the line."""


def encode_offset_checkpoint(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Return the content of an offset checkpoint file."""
    return _encode_checkpoint(f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items())


def decode_offset_checkpoint(data: bytes) -> dict[TopicPartition, int]:
    """Return the offset of each (topic, partition). Raises MalformedFileError.

    For an empty file, the result is empty.
    """
    offsets: dict[TopicPartition, int] = {}
    if not data:
        return offsets
    for number, line in _decode_checkpoint(data):
        topic, partition, offset = _split(line, number, 3)
        offsets[topic, _number(partition, number)] = _number(offset, number)
    return offsets


def encode_epoch_checkpoint(entries: Iterable[tuple[int, int]]) -> bytes:
    """Return the content of a leader epoch checkpoint file, from (leader epoch, start offset) pairs."""
    return _encode_checkpoint(f"{epoch} {start_offset}" for epoch, start_offset in entries)


def decode_epoch_checkpoint(data: bytes) -> list[tuple[int, int]]:
    """Return the (leader epoch, start offset) pairs. Raises MalformedFileError.

    For an empty file, the result is empty.
    """
    entries: list[tuple[int, int]] = []
    if not data:
        return entries
    for number, line in _decode_checkpoint(data):
        epoch, start_offset = _split(line, number, 2)
        entries.append((_number(epoch, number), _number(start_offset, number)))
    return entries


def _encode_checkpoint(lines: Iterable[str]) -> bytes:
    rows = list(lines)
    return "".join(f"{line}\n" for line in ["0", str(len(rows)), *rows]).encode()


def _decode_checkpoint(data: bytes) -> list[tuple[int, str]]:
    lines = data.decode("utf-8", "replace").splitlines()
    if len(lines) < 2 or lines[0].strip() != "0":
        raise MalformedFileError(f"line 1: expected version 0, found {lines[0] if lines else ''!r}")
    count = _number(lines[1], 2)
    rows = [(number, line) for number, line in enumerate(lines[2:], start=3) if line.strip()]
    if len(rows) != count:
        raise MalformedFileError(f"line 2 declares {count} entries, but the file contains {len(rows)}")
    if not data.endswith(b"\n"):
        raise MalformedFileError(f"line {len(lines)} is incomplete: it does not end with a line feed")
    return rows


def _split(line: str, number: int, count: int) -> list[str]:
    words = line.split()
    if len(words) != count:
        raise MalformedFileError(f"line {number}: {line!r} does not have {count} fields")
    return words


def _number(text: str, number: int) -> int:
    try:
        return int(text)
    except ValueError:
        raise MalformedFileError(f"line {number}: {text!r} is not a number") from None


def encode_partition_metadata(topic_id: bytes) -> bytes:
    """Return the content of a partition's `partition.metadata` file, which stores the topic id."""
    return f"version: 0\ntopic_id: {encode_uuid(topic_id)}\n".encode()


def decode_partition_metadata(data: bytes) -> bytes:
    """Return the topic id in a `partition.metadata` file. Raises MalformedFileError."""
    fields = dict(line.split(": ", 1) for line in data.decode("utf-8", "replace").splitlines() if ": " in line)
    if fields.get("version", "").strip() != "0" or "topic_id" not in fields:
        raise MalformedFileError("partition.metadata must contain `version: 0` and `topic_id: <id>`")
    try:
        return decode_uuid(fields["topic_id"].strip())
    except ValueError as error:
        raise MalformedFileError(f"topic_id: {error}") from None


def encode_meta_properties(cluster_id: str, node_id: int, directory_id: str) -> bytes:
    """Return the content of `meta.properties`: the ids of the cluster, the node and the log directory."""
    fields = {"version": 1, "cluster.id": cluster_id, "node.id": node_id, "directory.id": directory_id}
    return "".join(f"{key}={value}\n" for key, value in sorted(fields.items())).encode()


def decode_meta_properties(data: bytes) -> dict[str, str]:
    """Return the properties in a `meta.properties` file.

    Raises MalformedFileError if a required property is missing or the version is not 1.
    """
    fields: dict[str, str] = {}
    for line in data.decode("utf-8", "replace").splitlines():
        text = line.strip()
        if text and not text.startswith(("#", "!")):
            key, _, value = text.partition("=")
            fields[key.strip()] = value.strip().replace("\\=", "=")
    for key in ("version", "cluster.id", "node.id"):
        if key not in fields:
            raise MalformedFileError(f"meta.properties has no {key}")
    if fields["version"] != "1":
        raise MalformedFileError(f"meta.properties has version={fields['version']}, only version=1 is supported")
    return fields


def encode_clean_shutdown(broker_epoch: int) -> bytes:
    """Return the content of the clean shutdown marker, which stores the epoch of the broker that shut down."""
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()


def decode_clean_shutdown(data: bytes) -> int:
    """Return the broker epoch in the clean shutdown marker, or -1 if the marker has no broker epoch."""
    try:
        return int(json.loads(data or b"{}").get("brokerEpoch", -1))
    except (ValueError, AttributeError, TypeError):
        return -1
