"""Formats the tables of kafka-consumer-groups with Kafka's columns and widths. This module does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace_broker.protocol.topic_names import TopicPartition, group_by_topic

MISSING = "-"


@dataclass(frozen=True, slots=True)
class OffsetRow:
    """One partition of a group: its committed offset, log end offset and consumer."""

    topic: str
    partition: int
    offset: int | None
    log_end_offset: int | None
    leader_epoch: int | None = None
    consumer_id: str = MISSING
    host: str = MISSING
    client_id: str = MISSING

    @property
    def lag(self) -> int | None:
        """The number of offsets from the committed offset to the log end offset."""
        if self.offset is None or self.log_end_offset is None:
            return None
        return self.log_end_offset - self.offset


@dataclass(frozen=True, slots=True)
class MemberRow:
    """One member of a group."""

    consumer_id: str
    group_instance_id: str
    host: str
    client_id: str
    partitions: Sequence[TopicPartition]


def _table(rows: Sequence[Sequence[object]], widths: Sequence[int]) -> Iterator[str]:
    """Yield each row as a line; cells are padded to `widths` (0 = no padding) and joined by one space."""
    for row in rows:
        yield " ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True))


def _widest(cells: Iterable[object], least: int) -> int:
    return max([least, *(len(str(cell)) for cell in cells)])


def _shown(number: int | None) -> object:
    return MISSING if number is None else number


def offsets_table(group: str, rows: Sequence[OffsetRow], *, verbose: bool) -> list[str]:
    """Return the lines for `--describe --offsets`; the first line is empty.

    If `verbose` is set, the lines contain the column LEADER-EPOCH.
    """
    header: list[object] = ["GROUP", "TOPIC", "PARTITION"]
    header += ["LEADER-EPOCH"] if verbose else []
    header += ["CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID"]
    cells: list[Sequence[object]] = [header]
    for row in rows:
        epoch = [_shown(row.leader_epoch)] if verbose else []
        numbers = [_shown(row.offset), _shown(row.log_end_offset), _shown(row.lag)]
        cells.append([group, row.topic, row.partition, *epoch, *numbers, row.consumer_id, row.host, row.client_id])
    widths = [
        _widest([group], 15),
        _widest((row.topic for row in rows), 15),
        10,
        *([15] if verbose else []),
        15,
        15,
        15,
        _widest((row.consumer_id for row in rows), 15),
        _widest((row.host for row in rows), 15),
        0,
    ]
    return ["", *_table(cells, widths)]


def assignment_text(partitions: Sequence[TopicPartition]) -> str:
    """Return partitions as `topic:0,1;other:0`."""
    texts = [f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in group_by_topic(sorted(partitions)).items()]
    return ";".join(sorted(texts)) or MISSING


def members_table(group: str, rows: Sequence[MemberRow], *, verbose: bool) -> list[str]:
    """Return the lines for `--describe --members`; `verbose` adds the columns for epochs and assignments.

    The first line is empty; the other lines end with a space as in Kafka.
    """
    has_instances = any(row.group_instance_id for row in rows)
    header: list[object] = ["GROUP", "CONSUMER-ID"]
    header += ["GROUP-INSTANCE-ID"] if has_instances else []
    header += ["HOST", "CLIENT-ID", "#PARTITIONS"]
    header += ["CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT"] if verbose else [""]
    cells: list[Sequence[object]] = [header]
    for row in rows:
        instance = [row.group_instance_id] if has_instances else []
        # Only members with the consumer protocol (KIP-848) have epochs and target assignments; classic members do not.
        rest = [MISSING, assignment_text(row.partitions), MISSING, MISSING] if verbose else [""]
        cells.append([group, row.consumer_id, *instance, row.host, row.client_id, len(row.partitions), *rest])
    widths = [
        _widest([group], 15),
        _widest((row.consumer_id for row in rows), 15),
        *([_widest((row.group_instance_id for row in rows), 17)] if has_instances else []),
        _widest((row.host for row in rows), 15),
        _widest((row.client_id for row in rows), 15),
        15,
        *([15, _widest((assignment_text(row.partitions) for row in rows), 20), 15, 20] if verbose else [0]),
    ]
    return ["", *_table(cells, widths)]


def state_table(group: str, coordinator: str, strategy: str, state: str, members: int, *, verbose: bool) -> list[str]:
    """Return the lines for `--describe --state`; the first line is empty.

    `strategy` is the assignment strategy, and `members` is the number of members. `verbose` adds the epoch columns.
    """
    widths = [_widest([group], 15), _widest([coordinator], 25), 20, 20, *([15, 25] if verbose else []), 0]
    epochs = ["GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH"] if verbose else []
    header = ["GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", *epochs, "#MEMBERS"]
    missing = [MISSING, MISSING] if verbose else []
    row = [group, coordinator, strategy or MISSING, state, *missing, members]
    return ["", *_table([header, row], widths)]


def groups_table(groups: Sequence[tuple[str, str, str]], *, with_type: bool, with_state: bool) -> list[str]:
    """Return the lines for `--list --state|--type`; `groups` are (id, type, state)."""
    shown = [True, with_type, with_state]
    rows = [("GROUP", "TYPE", "STATE"), *groups]
    widths = [_widest((group for group, _, _ in groups), 15) + 10, 20, 20]
    shown_widths = [width for width, is_shown in zip(widths, shown, strict=True) if is_shown]
    cells = [[cell for cell, is_shown in zip(row, shown, strict=True) if is_shown] for row in rows]
    return list(_table(cells, shown_widths))


def resets_table(resets: Mapping[str, Mapping[TopicPartition, int]]) -> list[str]:
    """Return the lines for the plan of `--reset-offsets`; the first line is empty."""
    topics = [topic for offsets in resets.values() for topic, _ in offsets]
    widths = [_widest(resets, 15), _widest(topics, 15), 10, 0]
    cells: list[Sequence[object]] = [["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"]] if resets else []
    for group, offsets in resets.items():
        cells += [[group, topic, partition, offset] for (topic, partition), offset in sorted(offsets.items())]
    return ["", *_table(cells, widths)]


def deleted_offsets_table(results: Mapping[TopicPartition, str | None]) -> list[str]:
    """Return the lines for `--delete-offsets`; the first line is empty. Partition -1 stands for a missing topic."""
    widths = [_widest((topic for topic, _ in results), 15), 10, 15]
    cells: list[Sequence[object]] = [["TOPIC", "PARTITION", "STATUS"]]
    for (topic, partition), error in sorted(results.items()):
        status = "Successful" if error is None else f"Error: {error}"
        cells.append([topic, MISSING if partition < 0 else partition, status])
    return ["", *_table(cells, widths)]
