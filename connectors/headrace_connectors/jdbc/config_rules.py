"""Rules about the values and combinations of the JDBC source's configuration keys. This module does no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.api.errors import ConfigError
from headrace.data.java_regex import JavaPattern
from headrace_connectors.jdbc.query_text import single_statement
from headrace_connectors.jdbc.url import JdbcUrl

UNSUPPORTED_TABLE_TYPES = (
    "ALIAS",
    "GLOBAL TEMPORARY",
    "LOCAL TEMPORARY",
    "SYNONYM",
    "SYSTEM TABLE",
    "SYSTEM VIEW",
    "TEMPORARY TABLE",
    "TEMPORARY VIEW",
)
"""Types that JDBC drivers return and the source never reads. They are accepted, because Confluent's source has them."""
TABLE_TYPES = ("TABLE", "VIEW", "PARTITIONED TABLE", "MATERIALIZED VIEW", "FOREIGN TABLE")


SQL_SERVER_SNAPSHOT = "SQL_SERVER_SNAPSHOT"
"""An isolation level of SQL Server."""


def check_java_patterns(patterns: list[str]) -> None:
    """Raise ValueError if one of the patterns is not a regular expression of Java."""
    for pattern in patterns:
        JavaPattern(pattern)


def errors_of_source(values: Mapping[str, Any]) -> Iterator[ConfigError]:
    """Yield an error for each value or combination of values that the JDBC source does not allow.

    `values` contains the parsed values by key, without the keys whose values could not be parsed.
    """
    sql = values.get("query") or values.get("query.masked")
    if values.get("query") and values.get("query.masked"):
        yield ConfigError("query.masked", None, "cannot be set together with query: set only one of them")
    selections = [
        (name, value)
        for name, value in (
            ("table.whitelist", values.get("table.whitelist")),
            ("table.blacklist", values.get("table.blacklist")),
            ("table.include.list", values.get("table.include.list")),
            ("query", sql),
        )
        if value
    ]
    if len(selections) > 1:
        yield ConfigError(*selections[1], f"cannot be set together with {selections[0][0]}: set only one of them")
    yield from _exclusion_errors(values, [name for name, _ in selections])
    yield from _value_errors(values)
    mode = values.get("mode", "")
    has_mapping = bool(values.get("timestamp.columns.mapping"))
    if "timestamp" in mode and values.get("timestamp.column.name") == [] and not has_mapping:
        yield ConfigError("timestamp.column.name", None, f"must be set for mode={mode}")
    if sql and mode == "incrementing" and values.get("incrementing.column.name") == "":
        yield ConfigError("incrementing.column.name", None, "must be set for a query with mode=incrementing")
    if values.get("snapshot.horizon") and mode == "bulk":
        yield ConfigError("snapshot.horizon", "true", "has no effect with mode=bulk")
    if (values.get("initial.load.chunks") or 1) > 1 and (sql or "incrementing" not in mode):
        yield ConfigError(
            "initial.load.chunks",
            values["initial.load.chunks"],
            "works only without query and with mode=incrementing or timestamp+incrementing",
        )
    if sql and values.get("topic.prefix") == "":
        yield ConfigError("topic.prefix", None, "must be set for a query: it is the name of the topic")


def warnings_about_values(
    database: JdbcUrl,
    *,
    schema_pattern: str | None,
    table_types: Sequence[str],
    isolation_mode: str,
    numeric_mapping: str,
) -> Iterator[str]:
    """Yield a warning for each value that has no effect on the database in connection.url."""
    name = database.kind
    if schema_pattern and database.is_known and name == "sqlite":
        yield f"Configuration schema.pattern={schema_pattern} has no effect: {name} databases have no schemas"
    if numeric_mapping != "NONE" and database.is_known and database.dialect == "mysql":
        yield (
            f"Configuration numeric.mapping={numeric_mapping.lower()} has no effect: in {name} databases, each NUMERIC "
            "column is a DECIMAL column, which always becomes a Decimal"
        )
    is_postgresql = database.is_known and name == "postgresql"
    supported = TABLE_TYPES if is_postgresql else ("TABLE", "VIEW")
    ignored = [kind.strip() for kind in table_types if kind.strip().upper() not in supported]
    if ignored:
        yield (
            f"Configuration table.types={','.join(ignored)} has no effect: in {name} databases, the connector reads "
            f"only {', '.join(supported)}"
        )
    has_isolation = database.is_known and name != "sqlite" and isolation_mode != SQL_SERVER_SNAPSHOT
    if isolation_mode != "DEFAULT" and not has_isolation:
        yield (
            f"Configuration transaction.isolation.mode={isolation_mode} has no effect: the connector sets only the "
            "levels of the SQL standard, and only in PostgreSQL, MySQL and MariaDB"
        )


def _exclusion_errors(values: Mapping[str, Any], selections: Sequence[str]) -> Iterator[ConfigError]:
    """Yield errors in table.exclude.list. `selections` are the other keys that select what to read."""
    excluded = values.get("table.exclude.list")
    if not excluded or "table.include.list" in selections:
        return
    if selections:
        problem = f"cannot be set together with {selections[0]}, only with table.include.list"
    elif "table.include.list" not in values:
        return
    else:
        problem = "needs table.include.list; set table.include.list=.* to read all other tables"
    yield ConfigError("table.exclude.list", ",".join(excluded), problem)


def _value_errors(values: Mapping[str, Any]) -> Iterator[ConfigError]:
    """Yield errors in the values of single keys. The types of the values have already been validated."""
    for kind in values.get("table.types") or ():
        if kind.strip().upper() not in (*TABLE_TYPES, *UNSUPPORTED_TABLE_TYPES):
            reason = f"unknown table type {kind}; the types are {', '.join(TABLE_TYPES)}"
            yield ConfigError("table.types", ",".join(values["table.types"]), reason)
    for name in ("query", "query.masked"):
        try:
            single_statement(str(getattr(values.get(name), "value", values.get(name)) or ""))
        except ValueError as error:
            yield ConfigError(name, None, str(error))
    for name, column in (
        ("incrementing.column.mapping", "incrementing.column.name"),
        ("timestamp.columns.mapping", "timestamp.column.name"),
    ):
        if values.get(name) and values.get(column):
            yield ConfigError(name, ",".join(values[name]), f"cannot be set together with {column}")
        for item in values.get(name) or ():
            problem = _mapping_error(item, has_list=column.startswith("timestamp"))
            if problem is not None:
                yield ConfigError(name, item, problem)


def _mapping_error(item: str, *, has_list: bool) -> str | None:
    """Return a description of the error in `item`, an entry of a column mapping, or None if the entry is valid.

    The valid format is `regex:[column1|column2]` if `has_list` is true, otherwise `regex:column`.
    """
    pattern, separator, columns = item.rpartition(":")
    expected = "regex:[column1|column2]" if has_list else "regex:column"
    is_list = columns.startswith("[") and columns.endswith("]")
    if not separator or not pattern or not columns.strip("[]| ") or is_list is not has_list:
        return f"must have the format {expected}"
    try:
        JavaPattern(pattern.strip())
    except ValueError as error:
        return f"{pattern} is not a regular expression: {error}"
    return None
