"""Selects the tables to read and divides them into groups for tasks. This module does no I/O."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.api.errors import ConnectError
from headrace_connectors.jdbc.names import java_pattern, matches, table_of, unquoted
from headrace_connectors.jdbc.source_config import JdbcSourceConfig

_TOPIC = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the database. `type` is one of `TABLE_TYPES`.

    `is_partition` is true for a partition of a partitioned table.
    """

    name: str
    type: str
    is_partition: bool = False


def names_of_types(tables: Iterable[Table], types: Iterable[str]) -> list[str]:
    """Return the sorted names of the tables whose type is in `types`.

    If partitioned tables are read, their partitions are left out, so that no row is read twice.
    """
    wanted = {kind.strip().upper() for kind in types}
    reads_parents = "PARTITIONED TABLE" in wanted
    return sorted(table.name for table in tables if table.type in wanted and not (reads_parents and table.is_partition))


def select_tables(config: JdbcSourceConfig, existing: Sequence[str], database: str = "") -> list[str]:
    """Return the existing tables that the configuration selects.

    A name in table.whitelist or table.blacklist may begin with the database's name, `database`.
    """

    def is_listed(table: str, names: Iterable[str]) -> bool:
        return any(matches(name, table, database) for name in names)

    def is_matched(table: str, patterns: Iterable[str]) -> bool:
        return any(java_pattern(pattern).matches(name) for pattern in patterns for name in (table, unquoted(table)))

    tables = [table for table in existing if not is_listed(table, config.table_blacklist)]
    if config.table_whitelist:
        tables = [table for table in tables if is_listed(table, config.table_whitelist)]
    if config.table_include_list:
        tables = [table for table in tables if is_matched(table, config.table_include_list)]
    return [table for table in tables if not is_matched(table, config.table_exclude_list)]


def check_topics_unambiguous(tables: Sequence[str]) -> None:
    """Raise ConnectError if tables in different schemas have the same name, because they would share a topic."""
    short: dict[str, str] = {}
    for table in tables:
        name = table_of(table)
        if name in short:
            raise ConnectError(
                f"tables {short[name]} and {table} would be written to the same topic; "
                "select one of them with table.whitelist or schema.pattern"
            )
        short[name] = table


def unsupported_reason(table: str, config: JdbcSourceConfig) -> str | None:
    """Return the reason why the connector cannot read `table`, or None if it can.

    A transform may rename the table's topic. If the connector has transforms, any topic name is accepted.
    """
    if "," in table:
        return "table names with commas are not supported"
    topic = config.topic_prefix + table_of(table)
    if _TOPIC.fullmatch(topic) or config.originals.get("transforms", "").strip():
        return None
    return (
        f"its topic would be {topic!r}, but a topic name has 1 to 249 ASCII letters, digits, '.', '_' and '-'. Exclude "
        "the table, read it with `query`, or rename the topic with a transform such as RegexRouter"
    )


def group_tables(tables: Sequence[str], max_tasks: int) -> list[list[str]]:
    """Split `tables` into at most `max_tasks` contiguous groups.

    The sizes of the groups differ by at most one, and larger groups come first.
    """
    count = min(len(tables), max_tasks)
    groups, start = [], 0
    for index in range(count):
        size = len(tables) // count + (index < len(tables) % count)
        groups.append(list(tables[start : start + size]))
        start += size
    return groups


def missing_table_message(name: str, existing: Sequence[str], all_tables: Iterable[Table] = ()) -> str:
    """Return the error message for a configured table that is not in `existing`.

    If the table's type is not in `table.types`, the message says so. Otherwise it contains the most
    similar existing name, or the names of existing tables.
    """
    for table in all_tables:
        if matches(name, table.name):
            return f"{name} is a {table.type}, which table.types does not contain: add {table.type} to table.types"
    short = [table_of(table) for table in existing]
    near = difflib.get_close_matches(name, [*existing, *short], n=1)
    hint = f"; did you mean {near[0]}?" if near else f"; existing tables: {some_names(existing)}"
    return f"table {name} does not exist in the database{hint}"


def some_names(tables: Sequence[str]) -> str:
    """Return the names of up to 20 tables for log lines and error messages."""
    more = f" and {len(tables) - 20} more" if len(tables) > 20 else ""
    return (", ".join(tables[:20]) or "none") + more
