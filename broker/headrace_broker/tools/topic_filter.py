"""Which topics and partitions a tool's filters let through. Pure.

A topic filter is a Java regular expression that must match the whole name; a comma in it means "or". Topic names hold
letters, digits, dots, dashes and underscores only, so that Python's own expressions serve for Java's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from headrace_broker.protocol.topic_names import INTERNAL_TOPICS
from headrace_broker.tools.command_line import ToolError

TopicFilter = Callable[[str], bool]
PartitionFilter = Callable[[str, int], bool]

_RULE = re.compile(r"([^:,]*)(?::(?:([0-9]*)|(?:([0-9]*)-([0-9]*))))?\Z")


def topic_filter(expression: str) -> TopicFilter:
    """Return whether a name matches, as a function. Raises ToolError for what is no regular expression."""
    text = re.sub(r"[\"']+\Z", "", re.sub(r"\A[\"']+", "", expression.strip().replace(",", "|").replace(" ", "")))
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise ToolError(f"{text} is an invalid regex: {error}") from None
    return lambda name: pattern.fullmatch(name) is not None


def select_topics(names: Iterable[str], expression: str | None, *, exclude_internal: bool) -> list[str]:
    """Return the names that the expression (None = all) lets through, sorted."""
    matches = topic_filter(expression) if expression is not None else lambda name: True
    return sorted(name for name in names if matches(name) and not (exclude_internal and name in INTERNAL_TOPICS))


def topic_partition_filter(rules: str) -> tuple[TopicFilter, PartitionFilter]:
    """Parse `TOPIC:PARTITIONS,…` with a number, `FROM-TO` (TO excluded), `FROM-`, `-TO` or nothing for PARTITIONS.

    Returns a filter of topics and one of partitions. Raises ToolError.
    """
    parsed = [_rule(rule) for rule in rules.split(",")]
    return (
        lambda topic: any(matches(topic) for matches, _ in parsed),
        lambda topic, partition: any(matches(topic) and partition in allowed for matches, allowed in parsed),
    )


def _rule(rule: str) -> tuple[TopicFilter, range]:
    found = _RULE.match(rule)
    if found is None:
        raise ToolError(f"Invalid rule specification: {rule}")
    matches = topic_filter(found[1] or ".*")
    if found[2]:
        return matches, range(int(found[2]), int(found[2]) + 1)
    return matches, range(int(found[3] or 0), int(found[4] or 2**31 - 1))


def topic_and_partitions_filter(expression: str | None, partitions: str | None) -> tuple[TopicFilter, PartitionFilter]:
    """Return the same for a topic expression and a list of partition numbers (None = all). Raises ToolError."""
    matches = topic_filter(expression if expression is not None else ".*")
    try:
        wanted = {int(number) for number in partitions.split(",")} if partitions else None
    except ValueError:
        raise ToolError(
            f"--partitions expects a comma separated list of numeric partition ids, but received: {partitions}"
        ) from None
    return matches, lambda topic, partition: matches(topic) and (wanted is None or partition in wanted)
