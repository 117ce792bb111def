"""The name of a topic's table: `lakehouse.table.name.format` with the topic's name. This module does no I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass

TOPIC_VARIABLE = "${topic}"
"""The part of `lakehouse.table.name.format` that is replaced with the topic's name."""

DEFAULT_CATALOG = "iceberg"
DEFAULT_NAMESPACE = "default"
"""The default name of an Iceberg catalog, and the default namespace of its tables."""

_TABLE_NAME = re.compile(r"[A-Za-z0-9._=-]+(/[A-Za-z0-9._=-]+)*")
RESERVED = ("_checkpoints", "_headrace", "_spark")
"""Directories next to the tables that are no tables."""


@dataclass(frozen=True, slots=True)
class TableNames:
    """Maps topics to tables. Picklable."""

    name_format: str = TOPIC_VARIABLE

    def name_of(self, topic: str) -> str:
        """Return the name of the topic's table. Raises ValueError if a transform gave the record an invalid topic."""
        name = self.name_format.replace(TOPIC_VARIABLE, topic)
        problem = name_problem(name)
        if problem is not None:
            raise ValueError(f"the topic {topic!r} gives the table name {name!r}, which {problem}")
        return name


def name_problem(name: str) -> str | None:
    """Return what is wrong with a table's name, or None."""
    parts = name.split("/")
    if not _TABLE_NAME.fullmatch(name) or any(part in (".", "..") for part in parts) or parts[0] in RESERVED:
        return "must be a relative path of letters, digits and . _ = -"
    return None
