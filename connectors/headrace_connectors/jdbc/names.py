"""Formats and parses qualified table names such as public.orders or public."odd.name".

A part of a name is quoted if it contains a dot or a quote. A quote inside a quoted part is doubled.
This module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from headrace.data.java_regex import JavaPattern

_PLAIN = re.compile(r"[^\W\d][\w$]*")
_PART = re.compile(r'"((?:[^"]|"")*)"|([^."]+)')


def qualified_name(parts: Iterable[str | None]) -> str:
    """Join the parts that are not None to a qualified name."""
    return ".".join(_quoted(part) if "." in part or '"' in part else part for part in parts if part is not None)


def split_name(name: str) -> tuple[str, ...]:
    """Return the parts of a qualified name. A name with unbalanced quotes is returned as one part."""
    parts: list[str] = []
    position = 0
    while (match := _PART.match(name, position)) is not None:
        parts.append(match[2] if match[1] is None else match[1].replace('""', '"'))
        position = match.end()
        if position == len(name):
            return tuple(parts)
        if name[position] != ".":
            break
        position += 1
    return (name,)


def table_of(name: str) -> str:
    """Return a table's unqualified name, the last part of its qualified name."""
    return split_name(name)[-1]


def unquoted(name: str) -> str:
    """Return a qualified name without quotes, as Confluent's connector writes it into source partitions."""
    return ".".join(split_name(name))


def is_plain(identifier: str) -> bool:
    """Whether an identifier may be written into SQL without quotes.

    It contains only letters, digits, underscores and dollar signs, and does not start with a digit or a dollar sign.
    """
    return _PLAIN.fullmatch(identifier) is not None


def matches(wanted: str, name: str, database: str = "") -> bool:
    """Whether the configured name `wanted` denotes the table `name`.

    `wanted` may be the qualified name or only its last parts, with or without quotes. The name of
    the database may precede the qualified name.
    """
    parts, wanted_parts = split_name(name), split_name(wanted)
    if database and len(wanted_parts) == len(parts) + 1 and wanted_parts[0] == database:
        wanted_parts = wanted_parts[1:]
    last_parts = (parts[start:] for start in range(len(parts)))
    return any(last == wanted_parts or ".".join(last) == wanted for last in last_parts)


def like_to_regex(sql_like: str) -> re.Pattern[str]:
    """Convert an SQL LIKE pattern to a regular expression."""
    text = "".join(".*" if char == "%" else "." if char == "_" else re.escape(char) for char in sql_like)
    return re.compile(text, re.DOTALL)


@cache
def java_pattern(pattern: str) -> JavaPattern:
    """Return a compiled regular expression of Java. Raises ValueError if it is invalid."""
    return JavaPattern(pattern)


def _quoted(part: str) -> str:
    return '"' + part.replace('"', '""') + '"'
