"""Names of the objects that the S3 sink writes, and their order. This module does no I/O.

The name of an object is ``<topic>+<partition>+<first offset>[.keys|.headers]<extension>``. If an offset has fewer
digits than the minimum width, the sink pads the offset with zeros. A padded offset therefore begins with a zero.

A bucket lists names in lexicographic order. For padded offsets, the lexicographic order is the numeric order. A listing
can therefore continue after a given padded offset. For offsets without padding, the lexicographic order can differ from
the numeric order. The S3 source must therefore list all names without padding, and then sort these names by offset.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class SourcePartition(NamedTuple):
    """The objects of one topic partition in one folder."""

    folder: str
    """The prefix of the keys, including the last delimiter."""
    topic: str
    partition: int


class BackupName(NamedTuple):
    """The parts of the name of an object that an S3 sink has written."""

    partition: int
    offset: str
    """The digits of the first record's offset."""
    side: str
    """What the object contains: "" for values, "keys" or "headers"."""
    extension: str


class BackupNames:
    """Parses and creates object names whose parts are separated by a delimiter."""

    def __init__(self, delimiter: str, extension: str) -> None:
        """`extension` is the extension of the objects that contain record values, for example ``.json``."""
        self._delimiter = delimiter
        between = re.escape(delimiter)
        self._rest = re.compile(rf"(\d+){between}(\d+)(?:\.(keys|headers))?(\.\S+)")
        self._extension = extension

    def parse(self, name: str, topic: str) -> BackupName | None:
        """Return the parts of an object's name, or None if the sink writes no such name for this topic."""
        start = topic + self._delimiter
        if not name.startswith(start):
            return None
        found = self._rest.fullmatch(name, len(start))
        if found is None:
            return None
        side, extension = found[3] or "", found[4]
        if not side and not self._is_values_extension(extension):
            return None
        return BackupName(int(found[1]), found[2], side, extension)

    def _is_values_extension(self, extension: str) -> bool:
        if self._extension == ".parquet":  # the codec is a part of the extension: .snappy.parquet
            return extension.endswith(".parquet")
        return extension in (self._extension, self._extension + ".gz")

    def prefix(self, source_partition: SourcePartition) -> str:
        """Return the prefix that the keys of all objects of a source partition have."""
        folder, topic, partition = source_partition
        return f"{folder}{topic}{self._delimiter}{partition}{self._delimiter}"


def is_padded(offset: str) -> bool:
    """Whether the digits of an offset begin with a padding zero."""
    return offset.startswith("0") and len(offset) > 1


def after_all_objects(prefix: str) -> str:
    """Return a key that sorts after the keys of all objects of a source partition.

    The keys of these objects begin with `prefix`.
    """
    return prefix + ":"  # a colon follows the digit 9 in ASCII


def after_position(prefix: str, offset: str) -> str:
    """Return a key after which a listing contains all objects with offsets greater than `offset`.

    The objects belong to one source partition. Their keys begin with `prefix`. Most objects with smaller offsets sort
    before the returned key, so the listing skips them.
    """
    if is_padded(offset):
        return f"{prefix}{offset}/"  # a slash follows the dot of the extension in ASCII
    return f"{prefix}0:" if len(offset) > 1 else prefix
