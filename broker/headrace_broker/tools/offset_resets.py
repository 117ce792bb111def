"""Parses times, durations and CSV plans for `kafka-consumer-groups --reset-offsets`. This module does no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from headrace_broker.protocol.topic_names import TopicPartition
from headrace_broker.tools.tool_error import ToolError

OffsetPlan = dict[TopicPartition, int]

_DURATION = re.compile(
    r"([-+]?)P(?:([-+]?\d+)D)?(T(?:([-+]?\d+)H)?(?:([-+]?\d+)M)?(?:([-+]?\d+)(?:[.,](\d{0,9}))?S)?)?\Z", re.IGNORECASE
)


def parse_datetime_ms(text: str) -> int:
    """Parse `YYYY-MM-DDThh:mm:ss.sss` into a timestamp. The default time zone is UTC. Raises ToolError."""
    try:
        if "T" not in text:
            raise ValueError("It does not contain a 'T' according to ISO8601 format")
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise ToolError(f"Error parsing timestamp '{text}'. {error}") from None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return round(when.timestamp() * 1000)


def parse_duration_ms(text: str) -> int:
    """Parse the duration `PnDTnHnMnS`, as Java's Duration does. Raises ToolError."""
    found = _DURATION.match(text)
    if found is None or found[3] == "T" or not any(found[group] for group in (2, 4, 5, 6)):
        raise ToolError(f"Text '{text}' cannot be parsed to a Duration; expected PnDTnHnMnS, for example PT1H30M")
    days, hours, minutes, seconds = (int(found[group] or 0) for group in (2, 4, 5, 6))
    fraction_ms = int((found[7] or "").ljust(3, "0")[:3]) * (-1 if (found[6] or "").startswith("-") else 1)
    length_ms = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + fraction_ms
    return -length_ms if found[1] == "-" else length_ms


def parse_topics(arguments: Iterable[str]) -> tuple[list[TopicPartition], list[str]]:
    """Parse `topic:0,1` arguments into partitions, and `topic` arguments into whole topics. Raises ToolError."""
    partitions: list[TopicPartition] = []
    topics: list[str] = []
    for argument in arguments:
        topic, colon, numbers = argument.partition(":")
        if not colon:
            topics.append(topic)
            continue
        if not numbers or ":" in numbers:
            raise ToolError(f"Invalid topic arg '{argument}', expected topic name and partitions")
        for number in numbers.split(","):
            if not number.isdigit():
                raise ToolError(f"Invalid partition '{number}' specified in topic arg '{argument}'")
            partitions.append((topic, int(number)))
    return partitions, topics


def shift_offsets(
    partitions: Iterable[TopicPartition], committed: Mapping[TopicPartition, int], shift: int
) -> OffsetPlan:
    """Return the committed offsets plus `shift`. Raises ToolError for a partition without a committed offset."""
    plan = {}
    for topic, partition in partitions:
        if (topic, partition) not in committed:
            raise ToolError(
                f"Cannot shift offset for partition {topic}-{partition} since there is no current committed offset"
            )
        plan[topic, partition] = committed[topic, partition] + shift
    return plan


def clamp_offsets(
    requested: Mapping[TopicPartition, int],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> tuple[OffsetPlan, list[str]]:
    """Limit each offset in `requested` to the range of the log, from its start to its end.

    Return the plan, and a warning for each offset that was changed.
    """
    plan: OffsetPlan = {}
    warnings = []
    for (topic, partition), offset in requested.items():
        start, end = starts[topic, partition], ends[topic, partition]
        plan[topic, partition] = min(max(offset, start), end)
        if not start <= offset <= end:
            side, limit = ("higher than latest", end) if offset > end else ("lower than earliest", start)
            warnings.append(
                f"New offset ({offset}) is {side} offset for topic partition {topic}-{partition}. "
                f"Value will be set to {limit}."
            )
    return plan, warnings


def to_csv(resets: Mapping[str, OffsetPlan], *, with_group: bool) -> str:
    """Format the plans in `resets`, {group: plan}, as CSV lines `[group,]topic,partition,offset`."""
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for group, plan in resets.items():
        for (topic, partition), offset in sorted(plan.items()):
            writer.writerow([*([group] if with_group else []), topic, partition, offset])
    return text.getvalue()


def from_csv(text: str, groups: list[str]) -> dict[str, OffsetPlan]:
    """Parse CSV lines; a line without a group applies to the only group in `groups`. Raises ToolError."""
    import csv

    plans: dict[str, OffsetPlan] = {}
    for number, row in enumerate(csv.reader(text.splitlines()), 1):
        if not row:
            continue
        cells = [*groups, *row] if len(row) == 3 and len(groups) == 1 else row
        if len(cells) != 4 or not cells[2].strip().isdigit() or not cells[3].strip().isdigit():
            raise ToolError(
                f"line {number} of the reset plan must have the form [group,]topic,partition,offset, but is "
                f"{','.join(row)}"
            )
        group, topic, partition, offset = (cell.strip() for cell in cells)
        plans.setdefault(group, {})[topic, int(partition)] = int(offset)
    return plans
