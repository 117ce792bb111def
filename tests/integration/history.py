"""Records what clients do and receive during cluster failures, and finds contradictions in this history of events.

Clients append events in chronological order. `violations` compares the events with the final contents of the topic. If
a produce request received no response, its record may be in the topic or missing. Neither is a violation. A record in
the topic must be there only once and in the producer's order.

    lost write      an acknowledged record is not in the topic, or not at the acknowledged offset
    duplicate       a record is in the topic twice
    reordering      in a partition, a record is before a record that the same producer sent earlier
    stale read      a consumer read a record at an offset, but the final topic has another record or no record at this
                    offset; or a leader reported an end offset above the final end offset; or, in a healthy cluster, a
                    leader reported an end offset at or below an offset that was acknowledged or read earlier
    offset gap      the final topic has an offset without a record, or a consumer skipped or repeated an offset
    group           a committed offset decreased, or a record below the committed offset was read by no group member
    error           a client received an error that it should never receive
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

Value = tuple[str, int]
"""(producer, number): a producer's numbers increase in the order of sending."""


class Sent(NamedTuple):
    """A record was passed to a producer."""

    at_s: float
    value: Value


class Acknowledged(NamedTuple):
    """A record was acknowledged; `offset` is None if the producer did not report the record's offset."""

    at_s: float
    value: Value
    partition: int
    offset: int | None


class Read(NamedTuple):
    """A consumer received a record. The consumer's start position is in `Positioned`."""

    at_s: float
    consumer: str
    partition: int
    offset: int
    value: Value


class Positioned(NamedTuple):
    """A consumer starts to read a partition at `offset`.

    If `offset` is None, the consumer is a group member and starts at the committed offset.
    """

    at_s: float
    consumer: str
    partition: int
    offset: int | None


class EndReported(NamedTuple):
    """A leader reported a partition's end offset, which a client requested at `at_s`.

    `is_healthy` is True if all nodes were running and connected at that time.
    """

    at_s: float
    partition: int
    offset: int
    is_healthy: bool


class Commit(NamedTuple):
    """A group member sent a request at `at_s` to commit an offset. If `is_done` is False, the outcome is unknown."""

    at_s: float
    done_s: float
    partition: int
    offset: int
    is_done: bool


class CommitFound(NamedTuple):
    """A client requested the committed offset at `at_s` and received `offset`.

    At that time, all nodes were running and connected.
    """

    at_s: float
    partition: int
    offset: int


class Failed(NamedTuple):
    """A client received an error that is not retriable."""

    at_s: float
    client: str
    error: str


Event = Sent | Acknowledged | Read | Positioned | EndReported | Commit | CommitFound | Failed
Logs = Mapping[int, Sequence[tuple[int, Value]]]
"""The final contents of each partition: (offset, value) in the order of reading."""


def violations(events: Sequence[Event], logs: Logs) -> list[str]:
    """Return one line for each contradiction between the events and the final logs."""
    found = errors(events)
    for partition, log in logs.items():
        found += _log_faults(partition, log)
    found += _writes(events, logs)
    found += _reads(events, logs)
    found += _positions(events)
    found += _ends(events, logs)
    found += _commits(events)
    found += _unread(events)
    return found


def errors(events: Iterable[Event]) -> list[str]:
    """Return all received errors that a client should never receive."""
    return [f"error: {event.client}: {event.error}" for event in events if isinstance(event, Failed)]


def _log_faults(partition: int, log: Sequence[tuple[int, Value]]) -> Iterator[str]:
    expected = 0
    newest: dict[str, int] = {}
    seen: set[Value] = set()
    for offset, value in log:
        if offset != expected:
            yield f"offset gap: partition {partition} continues at {offset}, expected {expected}"
        expected = offset + 1
        producer, number = value
        if value in seen:
            yield f"duplicate: {value} is at {partition}@{offset} again"
        elif number < newest.get(producer, -1):
            yield f"reordering: {value} is at {partition}@{offset}, after number {newest[producer]}"
        seen.add(value)
        newest[producer] = max(number, newest.get(producer, -1))


def _writes(events: Iterable[Event], logs: Logs) -> Iterator[str]:
    place: dict[Value, tuple[int, int]] = {}
    for partition, log in logs.items():
        for offset, value in log:
            if value in place and place[value][0] != partition:
                yield f"duplicate: {value} is at {partition}@{offset}, and at {place[value][0]}@{place[value][1]}"
            place.setdefault(value, (partition, offset))
    sent = set()
    for event in events:
        if isinstance(event, Sent):
            sent.add(event.value)
        elif isinstance(event, Acknowledged):
            at = place.get(event.value)
            if at is None:
                yield f"lost write: {event.value} was acknowledged, at {event.partition}@{event.offset}"
            elif at[0] != event.partition or event.offset not in (None, at[1]):
                acknowledged = f"{event.partition}@{event.offset}"
                yield f"lost write: {event.value} was acknowledged at {acknowledged} and is at {at[0]}@{at[1]}"
    yield from (f"duplicate: {value} is there, but no producer sent it" for value in place.keys() - sent)


def _reads(events: Iterable[Event], logs: Logs) -> Iterator[str]:
    held = {partition: dict(log) for partition, log in logs.items()}
    for event in events:
        if isinstance(event, Read) and held[event.partition].get(event.offset) != event.value:
            final = held[event.partition].get(event.offset)
            place = f"{event.partition}@{event.offset}"
            yield f"stale read: {event.consumer} read {event.value} at {place}, where {final} is at the end"


def _positions(events: Iterable[Event]) -> Iterator[str]:
    """Check that each consumer reads consecutive offsets from its start position."""
    expected: dict[tuple[str, int], int | None] = {}
    for event in events:
        if isinstance(event, Positioned):
            expected[event.consumer, event.partition] = event.offset
        elif isinstance(event, Read):
            next_offset = expected.get((event.consumer, event.partition))
            if next_offset is not None and event.offset != next_offset:
                yield f"offset gap: {event.consumer} read {event.partition}@{event.offset}, expected {next_offset}"
            expected[event.consumer, event.partition] = event.offset + 1


def _ends(events: Iterable[Event], logs: Logs) -> Iterator[str]:
    """Check the end offsets that leaders reported.

    A reported end offset must not be above the final end offset. In a healthy cluster, a reported end offset must be
    above each offset that was acknowledged or read before the client requested the end offset.
    """
    known: dict[int, int] = defaultdict(int)
    for event in sorted(events, key=lambda event: event.at_s):
        if isinstance(event, Acknowledged | Read) and event.offset is not None:
            known[event.partition] = max(known[event.partition], event.offset + 1)
        elif isinstance(event, EndReported):
            end = logs[event.partition][-1][0] + 1 if logs[event.partition] else 0
            if event.offset > end:
                yield f"stale read: partition {event.partition} was reported to end at {event.offset}, it ends at {end}"
            if event.is_healthy and event.offset < known[event.partition]:
                yield (
                    f"stale read: partition {event.partition} was reported to end at {event.offset}, after "
                    f"{known[event.partition]} was known"
                )


def _commits(events: Iterable[Event]) -> Iterator[str]:
    """Check that committed offsets do not decrease.

    The committed offsets that clients received, and the start positions of group members, must not be below an offset
    that was committed before.
    """
    commits: dict[int, list[Commit]] = defaultdict(list)
    found: dict[int, list[tuple[float, int, str]]] = defaultdict(list)
    begins: dict[tuple[str, int], float] = {}
    for event in events:
        if isinstance(event, Commit):
            commits[event.partition].append(event)
        elif isinstance(event, CommitFound):
            found[event.partition].append((event.at_s, event.offset, "the committed offset is"))
        elif isinstance(event, Positioned) and event.offset is None:
            begins[event.consumer, event.partition] = event.at_s
        elif isinstance(event, Read) and (event.consumer, event.partition) in begins:
            began_s = begins.pop((event.consumer, event.partition))
            found[event.partition].append((began_s, event.offset, f"{event.consumer} begins at"))
    for partition, items in found.items():
        unknown = {commit.offset for commit in commits[partition] if not commit.is_done}
        done = sorted((commit.done_s, commit.offset) for commit in commits[partition] if commit.is_done)
        newest, count = -1, 0
        for at_s, offset, what in sorted(items):
            while count < len(done) and done[count][0] < at_s:
                newest, count = max(newest, done[count][1]), count + 1
            if offset < newest and offset not in unknown:  # a commit without a response may take effect later
                yield f"group: of partition {partition} {what} {offset}, after {newest} was committed"


def _unread(events: Iterable[Event]) -> Iterator[str]:
    """Check that each record below the committed offset was read by a member of the group."""
    members = {event.consumer for event in events if isinstance(event, Positioned) and event.offset is None}
    read: dict[int, set[int]] = defaultdict(set)
    committed: dict[int, int] = defaultdict(int)
    for event in events:
        if isinstance(event, Read) and event.consumer in members:
            read[event.partition].add(event.offset)
        elif isinstance(event, Commit) and event.is_done:
            committed[event.partition] = max(committed[event.partition], event.offset)
    for partition, offset in committed.items():
        unread = sorted(set(range(offset)) - read[partition])
        if unread:
            yield f"group: {len(unread)} records of partition {partition} were skipped, first {unread[0]}"


def longest_pause_s(events: Sequence[Event], partition: int | None = None) -> float:
    """Return the longest time without an acknowledgement in `partition`.

    If `partition` is None, the acknowledgements in all partitions are considered.
    """
    moments = [
        event.at_s for event in events if isinstance(event, Acknowledged) and partition in (None, event.partition)
    ]
    moments += [event.at_s for event in (*events[:1], *events[-1:])]
    return max((later - earlier for earlier, later in pairwise(sorted(moments))), default=0.0)
