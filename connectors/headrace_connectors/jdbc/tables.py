"""Selects the tables to read and assigns them to tasks. No I/O."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from headrace.api.errors import ConnectError
from headrace_connectors.jdbc.config import JdbcSourceConfig


def select_tables(config: JdbcSourceConfig, existing: Sequence[str]) -> list[str]:
    """Return the existing tables that the configuration selects."""
    tables = [
        table for table in existing if not any(name_matches_table(name, table) for name in config.table_blacklist)
    ]
    if config.table_whitelist:
        tables = [table for table in tables if any(name_matches_table(name, table) for name in config.table_whitelist)]
    if config.table_include_list:
        tables = [table for table in tables if any(re.fullmatch(item, table) for item in config.table_include_list)]
    return [table for table in tables if not any(re.fullmatch(item, table) for item in config.table_exclude_list)]


def check_topics_unambiguous(tables: Sequence[str]) -> None:
    """Raise ConnectError if tables in different schemas have the same name, because their topic would be the same."""
    short: dict[str, str] = {}
    for table in tables:
        name = table.rsplit(".", 1)[-1]
        if name in short:
            raise ConnectError(
                f"tables {short[name]} and {table} would be written to the same topic; "
                "select one of them with table.whitelist or schema.pattern"
            )
        short[name] = table


def group_tables(tables: Sequence[str], max_tasks: int) -> list[list[str]]:
    """Split tables into at most `max_tasks` contiguous groups. Their sizes differ by one at most, larger ones first."""
    count = min(len(tables), max_tasks)
    groups, start = [], 0
    for index in range(count):
        size = len(tables) // count + (index < len(tables) % count)
        groups.append(list(tables[start : start + size]))
        start += size
    return groups


def name_matches_table(name: str, table: str) -> bool:
    """Whether a configured name is the table's qualified name, or the last parts of it (`orders`, `shop.orders`)."""
    return table == name or table.endswith("." + name)


def missing_table_message(name: str, existing: Sequence[str]) -> str:
    """Return the error message for a table that does not exist, with the nearest existing name."""
    short = [table.rsplit(".", 1)[-1] for table in existing]
    near = difflib.get_close_matches(name, [*existing, *short], n=1)
    hint = f"; did you mean {near[0]}?" if near else f"; existing tables: {', '.join(existing[:20]) or 'none'}"
    return f"table {name} does not exist in the database{hint}"
