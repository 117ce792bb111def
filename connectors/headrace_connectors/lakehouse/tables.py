"""Maps a sink's topics to tables, opens the tables, and reads the offsets that each table contains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pyarrow as pa

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.error_messages import table_error
from headrace_connectors.lakehouse.ranges import KafkaSourceOffset, Range, TopicPartition
from headrace_connectors.lakehouse.sink_config import TOPIC_VARIABLE
from headrace_connectors.lakehouse.writers.base import BatchIdentity, TableWriter


def table_name(name_format: str, topic: str) -> str:
    """Return the name of a topic's table: `lakehouse.table.name.format` with the topic's name."""
    return name_format.replace(TOPIC_VARIABLE, topic)


class Table:
    """An open table. `committed` has the offsets that are stored in the table itself."""

    def __init__(self, name: str, writer: TableWriter, partitions: Iterable[TopicPartition]) -> None:
        self.name = name
        self.writer = writer
        self.committed = writer.committed(partitions)

    @property
    def is_ours(self) -> bool:
        """Whether this connector has committed offsets to the table."""
        return bool(self.committed.next_offsets)

    def write(self, identity: BatchIdentity, rows: pa.Table, offsets: KafkaSourceOffset) -> None:
        """Append rows and store `offsets` as the table's offsets, in one commit.

        Raises ConnectError if the table cannot be written.
        """
        try:
            self.writer.write(identity, rows, offsets)
        except ConnectError:
            raise
        except Exception as error:  # delta-rs and file systems raise exceptions without a common base class
            raise table_error(self.writer.directory, "written", error) from error
        self.committed = offsets

    def is_missing(self, range_: Range) -> bool:
        """Whether at least one record of the range is missing from the table."""
        return self.next_offset(range_) < range_.end

    def next_offset(self, range_: Range) -> int:
        """Return the next offset to load from the range's partition."""
        return self.committed.next_offsets.get((range_.topic, range_.partition), 0)

    def offset_after(self, ranges: Iterable[Range], topic_ids: Mapping[str, str]) -> KafkaSourceOffset:
        """Return the table's offsets after loading `ranges`. `topic_ids` has the ids of the ranges' topics."""
        offsets, ids = dict(self.committed.next_offsets), dict(self.committed.topic_ids)
        for range_ in ranges:
            key = (range_.topic, range_.partition)
            offsets[key] = max(offsets.get(key, 0), range_.end)
            if range_.topic in topic_ids:
                ids[range_.topic] = topic_ids[range_.topic]
        return KafkaSourceOffset(offsets, ids)


class Tables:
    """The tables that the sink has opened in this run of the query. This class is not thread-safe."""

    def __init__(self, root: Path, name_format: str, open_writer: Callable[[Path], TableWriter]) -> None:
        self._root = root
        self._name_format = name_format
        self._open_writer = open_writer
        self._tables: dict[str, Table] = {}

    def name_of(self, topic: str) -> str:
        """Return the name of the topic's table."""
        return table_name(self._name_format, topic)

    def open(self, topic: str, partitions: Iterable[TopicPartition] = ()) -> Table:
        """Return the topic's table. The first call opens it, and reads its offsets, including those of `partitions`.

        Raises ConnectError if the table cannot be read.
        """
        name = self.name_of(topic)
        if name not in self._tables:
            try:
                self._tables[name] = Table(name, self._open_writer(self._root / name), partitions)
            except ConnectError:
                raise
            except Exception as error:  # delta-rs and file systems raise exceptions without a common base class
                raise table_error(self._root / name, "read", error) from error
        return self._tables[name]

    def load_offsets(self, partitions: Iterable[TopicPartition]) -> KafkaSourceOffset:
        """Close all tables, open the tables of `partitions`, and return the offsets that the tables contain."""
        self._tables.clear()
        offsets: dict[TopicPartition, int] = {}
        ids: dict[str, str] = {}
        known = sorted(partitions)
        for topic in sorted({topic for topic, _ in known}):
            committed = self.open(
                topic, [key for key in known if self.name_of(key[0]) == self.name_of(topic)]
            ).committed
            offsets.update({key: offset for key, offset in committed.next_offsets.items() if key[0] == topic})
            if topic in committed.topic_ids:
                ids[topic] = committed.topic_ids[topic]
        return KafkaSourceOffset(offsets, ids)
