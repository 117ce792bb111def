"""The tables of a sink: which topic goes where, and how far each table is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pyarrow as pa

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.faults import table_fault
from headrace_connectors.lakehouse.ranges import Position, Range, TopicPartition
from headrace_connectors.lakehouse.writers.base import BatchIdentity, TableWriter

TOPIC_VARIABLE = "${topic}"


def table_name(name_format: str, topic: str) -> str:
    """Return the table of a topic: `lakehouse.table.name.format` with the topic's name in it."""
    return name_format.replace(TOPIC_VARIABLE, topic)


class Table:
    """One open table: its writer, and its offsets as the table itself tells them."""

    def __init__(self, name: str, writer: TableWriter, partitions: Iterable[TopicPartition]) -> None:
        self.name = name
        self.writer = writer
        self.committed = writer.committed(partitions)

    @property
    def is_ours(self) -> bool:
        """Whether this connector has loaded anything into the table."""
        return bool(self.committed.next_offsets)

    def write(self, identity: BatchIdentity, rows: pa.Table, position: Position) -> None:
        """Append rows and move the table's offsets to `position`, in one commit. Raises ConnectError."""
        try:
            self.writer.write(identity, rows, position)
        except ConnectError:
            raise
        except Exception as error:  # delta-rs and file systems raise what they like
            raise table_fault(self.writer.directory, "written", error) from error
        self.committed = position

    def lacks(self, range_: Range) -> bool:
        """Tell whether the table has not all records of a range."""
        return self.next_offset(range_) < range_.end

    def next_offset(self, range_: Range) -> int:
        """The first offset of the range's partition that the table has not."""
        return self.committed.next_offsets.get((range_.topic, range_.partition), 0)

    def position_after(self, ranges: Iterable[Range], topic_ids: Mapping[str, str]) -> Position:
        """Return the table's position once it has these ranges."""
        offsets, ids = dict(self.committed.next_offsets), dict(self.committed.topic_ids)
        for range_ in ranges:
            key = (range_.topic, range_.partition)
            offsets[key] = max(offsets.get(key, 0), range_.end)
            if range_.topic in topic_ids:
                ids[range_.topic] = topic_ids[range_.topic]
        return Position(offsets, ids)


class Tables:
    """All tables that the sink has met in this run; owned by the loader's thread."""

    def __init__(self, root: Path, name_format: str, open_writer: Callable[[Path], TableWriter]) -> None:
        self._root = root
        self._name_format = name_format
        self._open_writer = open_writer
        self._tables: dict[str, Table] = {}

    def name_of(self, topic: str) -> str:
        """Return the name of the topic's table."""
        return table_name(self._name_format, topic)

    def of(self, topic: str, partitions: Iterable[TopicPartition] = ()) -> Table:
        """Return the topic's table, opened on first use. Raises ConnectError when it cannot be read."""
        name = self.name_of(topic)
        if name not in self._tables:
            try:
                self._tables[name] = Table(name, self._open_writer(self._root / name), partitions)
            except ConnectError:
                raise
            except Exception as error:  # delta-rs and file systems raise what they like
                raise table_fault(self._root / name, "read", error) from error
        return self._tables[name]

    def position(self, partitions: Iterable[TopicPartition]) -> Position:
        """Return how far the tables of these partitions are loaded, after reading it from them anew."""
        self._tables.clear()
        offsets: dict[TopicPartition, int] = {}
        ids: dict[str, str] = {}
        known = sorted(partitions)
        for topic in sorted({topic for topic, _ in known}):
            committed = self.of(topic, [key for key in known if self.name_of(key[0]) == self.name_of(topic)]).committed
            offsets.update({key: offset for key, offset in committed.next_offsets.items() if key[0] == topic})
            if topic in committed.topic_ids:
                ids[topic] = committed.topic_ids[topic]
        return Position(offsets, ids)
