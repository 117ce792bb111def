"""Reads and checks the JSON files that list partitions for a tool, `{"version": 1, "partitions": [...]}`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from headrace_broker.protocol.topic_names import TopicPartition
from headrace_broker.tools.tool_error import ToolError

_VERSION = 1


def read_json(path: str) -> dict[str, Any]:
    """Return the JSON object in the file. Raises ToolError if the JSON is invalid or the object's version is not 1."""
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
    except OSError as error:
        raise ToolError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise ToolError(f"{path} is not a valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise ToolError(f"{path}: expected a JSON object, found a {type(data).__name__}")
    if data.get("version", _VERSION) != _VERSION:
        raise ToolError(f"Not supported version field value {data['version']}")
    return data


def entries(data: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in the list `data[name]`. Raises ToolError if an entry is not a JSON object."""
    if name not in data:
        raise ToolError(f"Missing {name} field")
    if not isinstance(data[name], list):
        raise ToolError(f"{name}: expected a list")
    for number, entry in enumerate(data[name], 1):
        if not isinstance(entry, dict):
            raise ToolError(f"{name}, entry {number}: expected a JSON object")
        yield entry


def value(entry: dict[str, Any], name: str, kind: type) -> Any:
    """Return the field `name` of an entry. Raises ToolError if the field is missing or is not of type `kind`."""
    found = entry.get(name)
    if not isinstance(found, kind) or isinstance(found, bool):
        raise ToolError(f'"{name}" is missing or not of the right type in {json.dumps(entry)}')
    return found


def topic_partition(entry: dict[str, Any]) -> TopicPartition:
    """Return the topic and partition of an entry. Raises ToolError if a field is missing."""
    return value(entry, "topic", str), value(entry, "partition", int)


def names(partitions: Iterator[TopicPartition] | list[TopicPartition]) -> list[str]:
    """Format each partition as `topic-partition`."""
    return [f"{topic}-{partition}" for topic, partition in partitions]
