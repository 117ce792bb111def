"""The small text files of a log directory, as Kafka writes them: to bytes and back. Pure.

Offset checkpoints (recovery point, high watermark, log start, per log directory), the leader epoch checkpoint and
`partition.metadata` (per partition), `meta.properties` and the clean shutdown marker (per log directory).
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
    """A checkpoint or properties file that cannot be read; the message names the line."""


def encode_offset_checkpoint(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Return the file of (topic, partition) -> offset."""
    return _encode_checkpoint(f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items())


def decode_offset_checkpoint(data: bytes) -> dict[TopicPartition, int]:
    """Return (topic, partition) -> offset; an empty file holds none. Raises MalformedFileError."""
    offsets: dict[TopicPartition, int] = {}
    if not data:
        return offsets
    for number, line in _decode_checkpoint(data):
        topic, partition, offset = _split(line, number, 3)
        offsets[topic, _number(partition, number)] = _number(offset, number)
    return offsets


def encode_epoch_checkpoint(entries: Iterable[tuple[int, int]]) -> bytes:
    """Return the file of (leader epoch, start offset) lines."""
    return _encode_checkpoint(f"{epoch} {start_offset}" for epoch, start_offset in entries)


def decode_epoch_checkpoint(data: bytes) -> list[tuple[int, int]]:
    """Return (leader epoch, start offset) pairs; an empty file holds none. Raises MalformedFileError."""
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
        raise MalformedFileError(f"line 1: version {lines[0] if lines else ''!r} is not 0")
    count = _number(lines[1], 2)
    rows = [(number, line) for number, line in enumerate(lines[2:], start=3) if line.strip()]
    if len(rows) != count:
        raise MalformedFileError(f"line 2 announces {count} entries, the file has {len(rows)}")
    if not data.endswith(b"\n"):
        raise MalformedFileError(f"line {len(lines)} is cut off")
    return rows


def _split(line: str, number: int, count: int) -> list[str]:
    words = line.split()
    if len(words) != count:
        raise MalformedFileError(f"line {number}: {line!r} is not {count} words")
    return words


def _number(text: str, number: int) -> int:
    try:
        return int(text)
    except ValueError:
        raise MalformedFileError(f"line {number}: {text!r} is no number") from None


def encode_partition_metadata(topic_id: bytes) -> bytes:
    """Return the file that ties a directory to the topic's id."""
    return f"version: 0\ntopic_id: {encode_uuid(topic_id)}\n".encode()


def decode_partition_metadata(data: bytes) -> bytes:
    """Return the topic id. Raises MalformedFileError."""
    fields = dict(line.split(": ", 1) for line in data.decode("utf-8", "replace").splitlines() if ": " in line)
    if fields.get("version", "").strip() != "0" or "topic_id" not in fields:
        raise MalformedFileError("partition.metadata needs `version: 0` and `topic_id: <id>`")
    try:
        return decode_uuid(fields["topic_id"].strip())
    except ValueError as error:
        raise MalformedFileError(f"topic_id: {error}") from None


def encode_meta_properties(cluster_id: str, node_id: int, directory_id: str) -> bytes:
    """Return the file that says whose directory this is."""
    fields = {"version": 1, "cluster.id": cluster_id, "node.id": node_id, "directory.id": directory_id}
    return "".join(f"{key}={value}\n" for key, value in sorted(fields.items())).encode()


def decode_meta_properties(data: bytes) -> dict[str, str]:
    """Return the properties. Raises MalformedFileError when one of the three is missing, or the version is another."""
    fields: dict[str, str] = {}
    for line in data.decode("utf-8", "replace").splitlines():
        text = line.strip()
        if text and not text.startswith(("#", "!")):
            key, _, value = text.partition("=")
            fields[key.strip()] = value.strip().replace("\\=", "=")
    for key in ("version", "cluster.id", "node.id"):
        if key not in fields:
            raise MalformedFileError(f"meta.properties lacks {key}")
    if fields["version"] != "1":
        raise MalformedFileError(f"meta.properties has version={fields['version']}, and only 1 is read here")
    return fields


def encode_clean_shutdown(broker_epoch: int) -> bytes:
    """Return the marker that a directory was closed in order, with the epoch that closed it."""
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()


def decode_clean_shutdown(data: bytes) -> int:
    """Return the broker epoch in the marker, -1 when it holds none."""
    try:
        return int(json.loads(data or b"{}").get("brokerEpoch", -1))
    except (ValueError, AttributeError, TypeError):
        return -1
