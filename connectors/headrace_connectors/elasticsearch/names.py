"""Derives the names of indexes and data streams from topics, as Confluent's connector does. This module does no I/O."""

from __future__ import annotations

from headrace.api.errors import DataError

_MAX_LENGTH = 255
_MAX_NAMESPACE = 100
_FORBIDDEN = frozenset('\\/*?"<>| ,#:')


def index_name(topic: str) -> str:
    """Return the index name of a topic: its first 255 characters in lower case, without leading `-` and `_`.

    Raises DataError if this is not a valid index name, for example because it has more than 255 bytes.
    """
    name = topic.lower()[:_MAX_LENGTH].lstrip("-_")
    name = {".": "dot", "..": "dotdot"}.get(name, name)
    return _checked(name, topic)


def data_stream_name(type_name: str, dataset: str, namespace: str, topic: str) -> str:
    """Return the data stream name of a topic. Raises DataError if it is not a valid name."""
    suffix = namespace.replace("${topic}", topic).lower()[:_MAX_NAMESPACE]
    return _checked(f"{type_name.lower()}-{dataset.lower()}-{suffix}", topic)


def forbidden_characters(name: str) -> list[str]:
    """Return the characters of `name` that the name of an index may not contain."""
    return sorted(char for char in set(name) if char in _FORBIDDEN or ord(char) < 33)


def _checked(name: str, topic: str) -> str:
    bad = forbidden_characters(name)
    if not name or bad or name.startswith("+") or len(name.encode()) > _MAX_LENGTH:
        rule = f"contain {bad[0]!r}" if bad else f"be empty, begin with '+' or have more than {_MAX_LENGTH} bytes"
        raise DataError(
            f"Topic {topic!r}: {name!r} is not a valid name of an index or data stream, because a name must not "
            f"{rule}; rename the topic with the transform RegexRouter"
        )
    return name
