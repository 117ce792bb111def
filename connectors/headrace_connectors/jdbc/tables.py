"""Which tables a configuration selects, and how tasks share them. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from headrace.api.errors import ConnectError
from headrace_connectors.jdbc.config import JdbcSourceConfig


def chosen(config: JdbcSourceConfig, existing: Sequence[str]) -> list[str]:
    """The tables that the configuration selects."""
    tables = [table for table in existing if not any(is_named(name, table) for name in config.table_blacklist)]
    if config.table_whitelist:
        tables = [table for table in tables if any(is_named(name, table) for name in config.table_whitelist)]
    if config.table_include_list:
        tables = [table for table in tables if any(re.fullmatch(item, table) for item in config.table_include_list)]
    return [table for table in tables if not any(re.fullmatch(item, table) for item in config.table_exclude_list)]


def refuse_ambiguous(tables: Sequence[str]) -> None:
    """Raises ConnectError for tables of two schemas that have one name, which is their topic's."""
    short: dict[str, str] = {}
    for table in tables:
        name = table.rsplit(".", 1)[-1]
        if name in short:
            raise ConnectError(
                f"tables {short[name]} and {table} would share a topic: "
                "choose one in table.whitelist or by schema.pattern"
            )
        short[name] = table


def groups(tables: Sequence[str], max_tasks: int) -> list[list[str]]:
    """Contiguous groups, as even as can be; the first ones take what is left over."""
    count = min(len(tables), max_tasks)
    groups, start = [], 0
    for index in range(count):
        size = len(tables) // count + (index < len(tables) % count)
        groups.append(list(tables[start : start + size]))
        start += size
    return groups


def is_named(name: str, table: str) -> bool:
    """Whether a name from a list means that qualified table: exact, or by its last parts."""
    return table == name or table.endswith("." + name)


def missing(name: str, existing: Sequence[str]) -> str:
    """That there is no such table, with the nearest one."""
    short = [table.rsplit(".", 1)[-1] for table in existing]
    near = difflib.get_close_matches(name, [*existing, *short], n=1)
    hint = f"; did you mean {near[0]}?" if near else f"; there are: {', '.join(existing[:20]) or 'none'}"
    return f"table {name} does not exist in the database{hint}"
