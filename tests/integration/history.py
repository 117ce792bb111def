"""What clients did and were told while a cluster was hurt, and whether all of it can be true.

Clients append events in the order of time; `violations` compares them with what the topic holds in the end.  Whatever
is not known for certain counts for nobody: a record whose fate is unknown may be there or not, but once, and in order.

    lost write      a record was acknowledged and is not there, or not where the acknowledgement said
    duplicate       a record is there twice
    reordering      of what one producer sent to a partition, a later record is before an earlier one
    stale read      what somebody read at an offset, below the high watermark then, is not what everybody reads there;
                    or a leader told of an end that the topic does not reach, or, the cluster being whole, of one before
                    what was acknowledged or read by then
    offset gap      an offset without a record, in the end or between two reads of one reader; a reader that went back
    group           a committed offset went back, or nobody in the group has read what lies before it
    error           a client was told of a failure that it should never see
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

Value = tuple[str, int]
"""(producer, number): numbers of one producer rise in the order of sending."""


class Sent(NamedTuple):
    """A producer was given a record."""

    at_s: float
    value: Value


class Acknowledged(NamedTuple):
    """A record is safe; the offset is None where the client cannot know it."""

    at_s: float
    value: Value
    partition: int
    offset: int | None


class Read(NamedTuple):
    """A reader was given a record.  Readers go on from `Positioned`."""

    at_s: float
    reader: str
    partition: int
    offset: int
    value: Value


class Positioned(NamedTuple):
    """A reader begins anew in a partition: at that offset, or, as a member of the group, where the group stands."""

    at_s: float
    reader: str
    partition: int
    offset: int | None


class EndTold(NamedTuple):
    """A leader named the end of a partition, asked at `at_s`; `is_whole` when every node was up and connected."""

    at_s: float
    partition: int
    offset: int
    is_whole: bool


class Commit(NamedTuple):
    """A member asked at `at_s` to commit an offset; nobody knows whether it was done unless `is_done`."""

    at_s: float
    done_s: float
    partition: int
    offset: int
    is_done: bool


class CommitFound(NamedTuple):
    """The group's committed offset, asked for at `at_s` when every node was up and connected."""

    at_s: float
    partition: int
    offset: int


class Failed(NamedTuple):
    """A client was told of an error that is no passing one."""

    at_s: float
    client: str
    error: str


Event = Sent | Acknowledged | Read | Positioned | EndTold | Commit | CommitFound | Failed
Logs = Mapping[int, Sequence[tuple[int, Value]]]
"""What each partition holds in the end: (offset, value) in the order of reading."""


def violations(events: Sequence[Event], logs: Logs) -> list[str]:
    """Everything that cannot be, one line each."""
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
    """What clients were told that they should never see."""
    return [f"error: {event.client}: {event.error}" for event in events if isinstance(event, Failed)]


def _log_faults(partition: int, log: Sequence[tuple[int, Value]]) -> Iterator[str]:
    expected = 0
    newest: dict[str, int] = {}
    seen: set[Value] = set()
    for offset, value in log:
        if offset != expected:
            yield f"offset gap: partition {partition} goes on at {offset}, where {expected} is due"
        expected = offset + 1
        producer, number = value
        if value in seen:
            yield f"duplicate: {value} is at {partition}@{offset} again"
        elif number < newest.get(producer, -1):
            yield f"reordering: {value} is at {partition}@{offset}, behind number {newest[producer]}"
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
                told = f"{event.partition}@{event.offset}"
                yield f"lost write: {event.value} was acknowledged at {told} and is at {at[0]}@{at[1]}"
    yield from (f"duplicate: {value} is there, and nobody sent it" for value in place.keys() - sent)


def _reads(events: Iterable[Event], logs: Logs) -> Iterator[str]:
    held = {partition: dict(log) for partition, log in logs.items()}
    for event in events:
        if isinstance(event, Read) and held[event.partition].get(event.offset) != event.value:
            there = held[event.partition].get(event.offset)
            where = f"{event.partition}@{event.offset}"
            yield f"stale read: {event.reader} read {event.value} at {where}, where {there} is in the end"


def _positions(events: Iterable[Event]) -> Iterator[str]:
    """Each reader goes on where it was, from wherever it began."""
    expected: dict[tuple[str, int], int | None] = {}
    for event in events:
        if isinstance(event, Positioned):
            expected[event.reader, event.partition] = event.offset
        elif isinstance(event, Read):
            due = expected.get((event.reader, event.partition))
            if due is not None and event.offset != due:
                yield f"offset gap: {event.reader} read {event.partition}@{event.offset}, where {due} was due"
            expected[event.reader, event.partition] = event.offset + 1


def _ends(events: Iterable[Event], logs: Logs) -> Iterator[str]:
    """Events stand in the order of their times, a question at the time when it was asked."""
    known: dict[int, int] = defaultdict(int)
    for event in sorted(events, key=lambda event: event.at_s):
        if isinstance(event, Acknowledged | Read) and event.offset is not None:
            known[event.partition] = max(known[event.partition], event.offset + 1)
        elif isinstance(event, EndTold):
            end = logs[event.partition][-1][0] + 1 if logs[event.partition] else 0
            if event.offset > end:
                yield f"stale read: partition {event.partition} was told to end at {event.offset}, and ends at {end}"
            if event.is_whole and event.offset < known[event.partition]:
                yield (
                    f"stale read: partition {event.partition} was told to end at {event.offset}, when "
                    f"{known[event.partition]} was known"
                )


def _commits(events: Iterable[Event]) -> Iterator[str]:
    """What the group is told of its offset, or begins to read at, is never before what it has committed by then."""
    commits: dict[int, list[Commit]] = defaultdict(list)
    found: dict[int, list[tuple[float, int, str]]] = defaultdict(list)
    begins: dict[tuple[str, int], float] = {}
    for event in events:
        if isinstance(event, Commit):
            commits[event.partition].append(event)
        elif isinstance(event, CommitFound):
            found[event.partition].append((event.at_s, event.offset, "the committed offset is"))
        elif isinstance(event, Positioned) and event.offset is None:
            begins[event.reader, event.partition] = event.at_s
        elif isinstance(event, Read) and (event.reader, event.partition) in begins:
            asked_s = begins.pop((event.reader, event.partition))
            found[event.partition].append((asked_s, event.offset, f"{event.reader} begins at"))
    for partition, items in found.items():
        unknown = {commit.offset for commit in commits[partition] if not commit.is_done}
        done = sorted((commit.done_s, commit.offset) for commit in commits[partition] if commit.is_done)
        newest, taken = -1, 0
        for at_s, offset, what in sorted(items):
            while taken < len(done) and done[taken][0] < at_s:
                newest, taken = max(newest, done[taken][1]), taken + 1
            if offset < newest and offset not in unknown:  # a commit whose answer got lost may be done later
                yield f"group: of partition {partition} {what} {offset}, after {newest} was committed"


def _unread(events: Iterable[Event]) -> Iterator[str]:
    """What the group has committed, somebody in it has read."""
    members = {event.reader for event in events if isinstance(event, Positioned) and event.offset is None}
    read: dict[int, set[int]] = defaultdict(set)
    committed: dict[int, int] = defaultdict(int)
    for event in events:
        if isinstance(event, Read) and event.reader in members:
            read[event.partition].add(event.offset)
        elif isinstance(event, Commit) and event.is_done:
            committed[event.partition] = max(committed[event.partition], event.offset)
    for partition, offset in committed.items():
        unread = sorted(set(range(offset)) - read[partition])
        if unread:
            yield f"group: {len(unread)} records of partition {partition} were passed over, first {unread[0]}"


def longest_pause_s(events: Sequence[Event], partition: int | None = None) -> float:
    """The longest time without an acknowledgement, of one partition or of any, from the first event to the last."""
    moments = [
        event.at_s for event in events if isinstance(event, Acknowledged) and partition in (None, event.partition)
    ]
    moments += [event.at_s for event in (*events[:1], *events[-1:])]
    return max((later - earlier for earlier, later in pairwise(sorted(moments))), default=0.0)
