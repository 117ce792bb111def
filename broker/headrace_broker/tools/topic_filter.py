"""Parses the tools' options that select topics and partitions. This module does no I/O.

A topic filter is a regular expression. The expression must match the whole topic name. A comma means "or". Kafka's
tools use Java's regular expressions. These tools use Python's regular expressions instead. This is possible because
topic names contain only letters, digits, dots, dashes and underscores.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from headrace_broker.protocol.topic_names import INTERNAL_TOPICS
from headrace_broker.tools.tool_error import ToolError

TopicFilter = Callable[[str], bool]
PartitionFilter = Callable[[str, int], bool]

_RULE = re.compile(r"([^:,]*)(?::(?:([0-9]*)|(?:([0-9]*)-([0-9]*))))?\Z")


def topic_filter(expression: str) -> TopicFilter:
    """Return a predicate for topic names that match the expression. Raises ToolError for an invalid expression."""
    text = re.sub(r"[\"']+\Z", "", re.sub(r"\A[\"']+", "", expression.strip().replace(",", "|").replace(" ", "")))
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise ToolError(f"{text} is an invalid regex: {error}") from None
    return lambda name: pattern.fullmatch(name) is not None


def select_topics(names: Iterable[str], expression: str | None, *, exclude_internal: bool) -> list[str]:
    """Return the sorted topic names that match the expression (None = all names).

    `exclude_internal` omits the internal topics.
    """
    matches = topic_filter(expression) if expression is not None else lambda name: True
    return sorted(name for name in names if matches(name) and not (exclude_internal and name in INTERNAL_TOPICS))


def topic_partition_filter(rules: str) -> tuple[TopicFilter, PartitionFilter]:
    """Parse `TOPIC:PARTITIONS,…`. PARTITIONS is a number, `FROM-TO` (TO excluded), `FROM-`, `-TO` or empty.

    Return a topic filter and a partition filter. Raises ToolError.
    """
    parsed = [_parse_rule(rule) for rule in rules.split(",")]
    return (
        lambda topic: any(matches(topic) for matches, _ in parsed),
        lambda topic, partition: any(matches(topic) and partition in allowed for matches, allowed in parsed),
    )


def _parse_rule(rule: str) -> tuple[TopicFilter, range]:
    found = _RULE.match(rule)
    if found is None:
        raise ToolError(f"Invalid rule specification: {rule}")
    matches = topic_filter(found[1] or ".*")
    if found[2]:
        return matches, range(int(found[2]), int(found[2]) + 1)
    return matches, range(int(found[3] or 0), int(found[4] or 2**31 - 1))


def topic_and_partitions_filter(expression: str | None, partitions: str | None) -> tuple[TopicFilter, PartitionFilter]:
    """Return a topic filter and a partition filter for the values of --topic and --partitions (None = all).

    Raises ToolError for an invalid expression or partition number.
    """
    matches = topic_filter(expression if expression is not None else ".*")
    try:
        selected = {int(number) for number in partitions.split(",")} if partitions else None
    except ValueError:
        raise ToolError(
            f"--partitions expects a comma separated list of numeric partition ids, but received: {partitions}"
        ) from None
    return matches, lambda topic, partition: matches(topic) and (selected is None or partition in selected)
