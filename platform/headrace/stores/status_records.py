"""The records of the status topic: keys and JSON values, as Kafka Connect writes them. This module does no I/O."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TypeAlias

from headrace.stores.connect_json import encode
from headrace.stores.status_store import State, Status

_CONNECTOR, _TASK, _TOPIC, _SEPARATOR = "status-connector-", "status-task-", "status-topic-", ":connector-"


@dataclass(frozen=True, slots=True)
class StatusKey:
    """The key of the status of a connector (task None) or task."""

    connector: str
    task: int | None


@dataclass(frozen=True, slots=True)
class TopicKey:
    """The key of a topic that a connector uses (KIP-558)."""

    topic: str
    connector: str


Key: TypeAlias = StatusKey | TopicKey


def encode_key(key: Key) -> bytes:
    """Encode a key."""
    match key:
        case TopicKey(topic, connector):
            return f"{_TOPIC}{topic}{_SEPARATOR}{connector}".encode()
        case StatusKey(connector, None):
            return f"{_CONNECTOR}{connector}".encode()
        case StatusKey(connector, task):
            return f"{_TASK}{connector}-{task}".encode()


def decode_key(key: bytes) -> Key:
    """Decode a key. Raises ValueError if the bytes are not a key of the status topic."""
    text = key.decode()
    if text.startswith(_CONNECTOR):
        connector = text.removeprefix(_CONNECTOR)
        if connector:
            return StatusKey(connector, None)
    elif text.startswith(_TASK):
        connector, _, number = text.removeprefix(_TASK).rpartition("-")
        if connector:
            return StatusKey(connector, int(number))
    elif text.startswith(_TOPIC):
        topic, _, connector = text.removeprefix(_TOPIC).partition(_SEPARATOR)
        if topic and connector:
            return TopicKey(topic, connector)
    raise ValueError(f"{text!r} is not a key of the status topic")


def encode_status(status: Status) -> bytes:
    """Encode a status."""
    return encode({
        "state": status.state.value,
        "trace": status.trace,
        "worker_id": status.worker_id,
        "generation": status.generation,
        "version": status.version,
    })  # fmt: skip


def decode_status(value: bytes) -> Status:
    """Decode a status. Raises ValueError, KeyError, TypeError if it is not valid."""
    found = json.loads(value)
    return Status(
        State(found["state"]), str(found["worker_id"]), int(found["generation"]), found.get("trace"),
        found.get("version"),
    )  # fmt: skip


def encode_topic(key: TopicKey, task: int, now_ms: int) -> bytes:
    """Encode that a task uses a topic."""
    used = {"name": key.topic, "connector": key.connector, "task": task, "discoverTimestamp": now_ms}
    return encode({"topic": used})
