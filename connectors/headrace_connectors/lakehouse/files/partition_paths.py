"""The directories of partitions in a table. This module does no I/O.

Readers take partition values from the table's log or manifests and not from directory names. The names follow Hive's
and Iceberg's conventions, so that people and tools can read them: `region=Perth`, `ts_day=2026-11-28`.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from headrace_connectors.lakehouse.files.layout import PartitionField

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_NAME_BYTES_MAX = 200
"""File systems limit a name to 255 bytes. Longer names are cut, and end with a hash of the whole name."""
_EPOCH = dt.datetime(1970, 1, 1)


def partition_directory(fields: Sequence[PartitionField], values: Sequence[Any]) -> str:
    """Return the directory of a partition relative to the table, with a slash at the end, or "" without fields."""
    names = (_directory_name(field, value) for field, value in zip(fields, values, strict=True))
    return "".join(f"{name}/" for name in names)


def partition_text(field: PartitionField, value: Any) -> str | None:
    """Return a partition value as Iceberg shows it: 2026, 2026-11, 2026-11-28 or 2026-11-28-13 for times."""
    if value is None:
        return None
    if field.transform == "year":
        return f"{1970 + value:04d}"
    if field.transform == "month":
        return f"{1970 + value // 12:04d}-{value % 12 + 1:02d}"
    if field.transform == "hour":
        return (_EPOCH + dt.timedelta(hours=value)).isoformat()[:13].replace("T", "-")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).isoformat() if value.tzinfo else value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def _directory_name(field: PartitionField, value: Any) -> str:
    text = partition_text(field, value) or HIVE_NULL
    name = f"{quote(field.name, safe='')}={quote(text, safe='')}"
    if len(name) <= _NAME_BYTES_MAX:
        return name
    whole_characters = re.sub("%.?$", "", name[: _NAME_BYTES_MAX - 20])
    return f"{whole_characters}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
