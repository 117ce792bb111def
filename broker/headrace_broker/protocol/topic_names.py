"""Topics and partitions by name: the rules for names, the cluster's own topics, partitions by their topics. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

GROUP_METADATA_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
CLUSTER_METADATA_TOPIC = "__cluster_metadata"
INTERNAL_TOPICS = frozenset((GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, "__share_group_state"))

TopicPartition = tuple[str, int]
"""A partition by name: (topic, index)."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+\Z")
_LENGTH_MAX = 249


def topic_name_fault(name: str) -> str | None:
    """Why `name` cannot be a topic's name, in Kafka's words, or None."""
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


def unified_names(names: Iterable[str]) -> dict[str, str]:
    """{name with '_' for '.': name} of those that have either: names that differ only so could not be told apart in
    metrics, hence are refused."""
    return {name.replace(".", "_"): name for name in names if "." in name or "_" in name}


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return {topic: partitions}, in the order they come."""
    grouped: dict[str, list[int]] = {}
    for topic, partition in partitions:
        grouped.setdefault(topic, []).append(partition)
    return grouped
