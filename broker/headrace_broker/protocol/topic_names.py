"""Validates topic names, names the internal topics, and groups partitions by topic."""

from __future__ import annotations

import re
from collections.abc import Iterable

GROUP_METADATA_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
CLUSTER_METADATA_TOPIC = "__cluster_metadata"
INTERNAL_TOPICS = frozenset((GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, "__share_group_state"))

TopicPartition = tuple[str, int]
"""A topic name and a partition index."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+\Z")
_LENGTH_MAX = 249


def topic_name_error(name: str) -> str | None:
    """Return Kafka's error message for an invalid topic name, or None for a valid name."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in (".", ".."):
        return f"Topic name is invalid: '{name}' is not allowed"
    if len(name) > _LENGTH_MAX:
        return f"Topic name is invalid: the length of '{name}' is longer than the max allowed length {_LENGTH_MAX}"
    if not _LEGAL.match(name):
        return (
            f"Topic name is invalid: '{name}' contains one or more characters other than "
            "ASCII alphanumerics, '.', '_' and '-'"
        )
    return None


def names_by_metric_name(names: Iterable[str]) -> dict[str, str]:
    """Return {name with '.' replaced by '_': name} for the names that contain '.' or '_'.

    Metric names do not distinguish '.' and '_', so topics whose names differ only in these characters
    are rejected.
    """
    return {name.replace(".", "_"): name for name in names if "." in name or "_" in name}


def group_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the partition indexes of each topic, in the order of `partitions`."""
    grouped: dict[str, list[int]] = {}
    for topic, partition in partitions:
        grouped.setdefault(topic, []).append(partition)
    return grouped
