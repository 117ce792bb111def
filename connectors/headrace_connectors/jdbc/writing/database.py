"""`Database`, the base class for the database-specific code of the JDBC sink.

A `Database` object returns the DDL statements for tables, finds the columns of tables, and writes rows. Each `Run`
object contains consecutive rows of one table with the same columns. The task owns the connection and its transactions.
The `Database` object uses SQLAlchemy to find columns and to quote identifiers. The driver's cursor executes the
statements that write rows.
"""

from __future__ import annotations

import datetime as dt
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, ClassVar, NamedTuple

import sqlalchemy
from sqlalchemy.engine import Engine

from headrace.api.errors import DataError
from headrace.data.java import float_text
from headrace.data.logical import DATE_NAME as DATE
from headrace.data.logical import DECIMAL_NAME as DECIMAL
from headrace.data.logical import TIME_NAME as TIME
from headrace.data.logical import TIMESTAMP_NAME as TIMESTAMP
from headrace.data.schema import Schema, Type
from headrace_connectors.common.time_zones import time_zone
from headrace_connectors.jdbc.dialects import driver_errors
from headrace_connectors.jdbc.names import split_name
from headrace_connectors.jdbc.sink_config import JdbcSinkConfig
from headrace_connectors.jdbc.url import JdbcUrl
from headrace_connectors.jdbc.writing.debezium_times import debezium_time
from headrace_connectors.jdbc.writing.fields import Column
from headrace_connectors.jdbc.writing.runs import Run
from headrace_connectors.jdbc.writing.timestamps import timestamp_reader
from headrace_connectors.jdbc.writing.unique_indexes import UniqueIndex

Connection = Any  # the driver's DBAPI connection
Convert = Callable[[Any], Any] | None
PARAMETER = "\0"
"""Stands for a parameter in a statement. Names cannot contain this character."""
RENAMING = "set table.name.format, or rename the topic or field with a transform"
"""The end of an error about a name that is too long."""
_TEMPORAL_TYPES = (sqlalchemy.Date, sqlalchemy.DateTime, sqlalchemy.Time)
_PLAIN_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*")


class ExistingTable(NamedTuple):
    """A table of the database: its quoted name, kind and column names."""

    quoted: str
    kind: str
    """``TABLE``, ``PARTITIONED TABLE`` or ``VIEW``."""
    columns: tuple[str, ...]
    instants: frozenset[str] = frozenset()
    """The columns that store instants. The server converts their values from the session's time zone, UTC."""
    reals: frozenset[str] = frozenset()
    """The columns that store all numbers as floating-point numbers (SQLite)."""
    temporals: frozenset[str] = frozenset()
    """The columns that store dates, times or timestamps (not in SQLite, which has no such types)."""
    exact: frozenset[str] = frozenset()
    """The columns that store the digits of a number as they are sent: decimals and text (not in SQLite)."""
    texts: frozenset[str] = frozenset()
    """The columns that store text unchanged (SQLite)."""
    is_transactional: bool = True
    """Whether a rollback undoes writes to the table. In MySQL, this depends on the table's storage engine."""
    unique_indexes: tuple[UniqueIndex, ...] | None = None
    """The table's unique indexes, or None if they are unknown. They are known only in MySQL with upserts."""

    def column(self, name: str) -> str | None:
        """Return the column with exactly this name, or else the only column that matches it when case is ignored.

        Returns None if there is no such column, or if there are several.
        """
        if name in self.columns:
            return name
        similar = [column for column in self.columns if column.lower() == name.lower()]
        return similar[0] if len(similar) == 1 else None


class Target(NamedTuple):
    """The table to which the rows of a `Run` are written.

    `names` has the quoted names of the columns, in the order of `Run.columns`. `keys` has the quoted names of the
    primary key columns.
    """

    table: ExistingTable
    names: tuple[str, ...]
    keys: tuple[str, ...]
    key_columns: frozenset[str]
    """The names of the primary key columns, not quoted."""

    @property
    def others(self) -> tuple[str, ...]:
        """The columns that are not in the primary key."""
        return tuple(name for name in self.names if name not in self.keys)


class Database(ABC):
    """Writes to the database of one JDBC URL."""

    driver_error: type[Exception]
    """The base class of the driver's exceptions."""
    marker: str
    """The driver's placeholder for a parameter."""
    types: ClassVar[Mapping[Type, str]]
    """The SQL types of Connect's primitive types."""

    def __init__(self, url: JdbcUrl, config: JdbcSinkConfig) -> None:
        self.url = url
        self.config = config
        self.zone = time_zone(config.db_timezone)
        self.engine = self._engine()

    @abstractmethod
    def _engine(self) -> Engine: ...

    @abstractmethod
    def is_transient(self, error: Exception) -> bool:
        """Whether the write that failed with `error` may succeed later, on a new connection."""

    @abstractmethod
    def is_denied(self, error: Exception) -> bool:
        """Whether `error` means that the server rejected the user or the password."""

    @abstractmethod
    def is_missing_object(self, error: Exception) -> bool:
        """Whether `error` means that a table or a column does not exist."""

    @abstractmethod
    def is_missing_schema(self, error: Exception) -> bool:
        """Whether `error` means that a schema (in MySQL, a database) does not exist."""

    @abstractmethod
    def is_missing_constraint(self, error: Exception) -> bool:
        """Whether `error` means that the table has no unique constraint for an upsert with this primary key."""

    @abstractmethod
    def is_record_error(self, error: Exception) -> bool:
        """Whether the data of a row caused the error. Other rows can then be written."""

    @abstractmethod
    def is_forbidden(self, error: Exception) -> bool:
        """Whether `error` means that the user lacks a privilege, or may only read the database."""

    @abstractmethod
    def logical_type(self, name: str, schema: Schema) -> str:
        """Return the SQL type of a logical type (Decimal, Date, Time or Timestamp)."""

    @abstractmethod
    def upsert_sql(self, target: Target) -> str:
        """Return the statement that inserts a row or updates the row with the same primary key.

        If the row conflicts with a row that has another primary key, the statement must fail.
        """

    def check_upsert(self, target: Target) -> None:  # noqa: B027 - the statements of most databases check this
        """Raise ConnectError if an upsert of a row whose primary key exists could insert a second row."""

    @property
    def address(self) -> str:
        """The database's address for error messages, without user and password."""
        return self.url.address

    def connect(self) -> Connection:
        """Open a new DBAPI connection. Raises the driver's exception."""
        with driver_errors():
            pooled = self.engine.raw_connection()
        connection = pooled.driver_connection
        pooled.detach()  # otherwise SQLAlchemy closes the connection when `pooled` is garbage-collected
        return connection

    def check_connection(self) -> None:
        """Open and close a connection. Raises the driver's exception."""
        self.connect().close()

    def error_text(self, error: Exception) -> str:
        """Return the database's message, or only the error's class if trim.sensitive.log is true."""
        return type(error).__name__ if self.config.trim_sensitive_log else " ".join(str(error).split())

    def quote(self, identifier: str) -> str:
        """Return an identifier as SQL text. Raises DataError if quoting is off and the name needs quotes."""
        if self.config.quote_sql_identifiers.lower() == "never":
            if not _PLAIN_IDENTIFIER.fullmatch(identifier):
                raise DataError(f"quote.sql.identifiers=never: {identifier!r} is not a plain SQL identifier")
            return identifier
        # SQLAlchemy's function would also double percent signs, which only statements with parameters need.
        mark: str = self.engine.dialect.identifier_preparer.initial_quote
        return mark + identifier.replace(mark, 2 * mark) + mark

    def quote_table(self, table: str) -> str:
        """Return a qualified table name as SQL text."""
        return ".".join(self.quote(part) for part in split_name(table))

    # -- tables

    def find_table(self, table: str) -> ExistingTable | None:
        """Return the table with exactly this name, or else the only table that matches it when case is ignored.

        Returns None if there is no such table or schema, or if there are several. Raises the driver's exception.
        """
        try:
            return self._find_table(table)
        except self.driver_error as error:
            if self.is_missing_schema(error):
                return None
            raise

    def _find_table(self, table: str) -> ExistingTable | None:
        *schemas, name = split_name(table)
        schema = schemas[-1] if schemas else None
        with driver_errors(), self.engine.connect() as connection:
            inspector = sqlalchemy.inspect(connection)
            tables = dict.fromkeys(inspector.get_table_names(schema=schema), "TABLE")
            tables |= dict.fromkeys(inspector.get_view_names(schema=schema), "VIEW")
            if name not in tables:
                similar = [found for found in tables if found.lower() == name.lower()]
                if len(similar) != 1:
                    return None
                name = similar[0]
            kind = self._kind(connection, name, schema) or tables[name]
            quoted = ".".join(map(self.quote, (*schemas, name)))
            return self._describe(connection, ExistingTable(quoted, kind, ()), name, schema)

    def _describe(
        self, connection: sqlalchemy.Connection, table: ExistingTable, name: str, schema: str | None
    ) -> ExistingTable:
        """Read the columns of a table from the database, and return a copy of `table` with these columns.

        `schema` and `name` are the schema and the name of this table in the database.
        """
        columns = sqlalchemy.inspect(connection).get_columns(name, schema=schema)
        types = {item["name"]: item["type"] for item in columns}
        return table._replace(
            columns=tuple(types),
            temporals=frozenset(name for name, kind in types.items() if isinstance(kind, _TEMPORAL_TYPES)),
            exact=frozenset(name for name, kind in types.items() if _is_exact(kind)),
        )

    def _kind(self, connection: sqlalchemy.Connection, name: str, schema: str | None) -> str | None:
        """Return the kind of a table, such as PARTITIONED TABLE, or None to use the kind that SQLAlchemy reports."""
        return None

    def create_table(self, connection: Connection, table: str, columns: Sequence[Column]) -> str:
        """Return the statement that creates a table. Raises DataError if a name or a column's schema is unsupported."""
        for name in split_name(table):
            self.check_name(name)
        definitions = [self.column_definition(column) for column in columns]
        keys = [self.quote(column.name) for column in columns if column.is_key]
        if keys:
            definitions.append(f"PRIMARY KEY({', '.join(keys)})")
        return f"CREATE TABLE {self.quote_table(table)} ({', '.join(definitions)})"

    def add_columns(self, table: ExistingTable, columns: Sequence[Column]) -> list[str]:
        """Return the statements that add columns to a table."""
        return [f"ALTER TABLE {table.quoted} ADD COLUMN {self.column_definition(column)}" for column in columns]

    def column_definition(self, column: Column) -> str:
        """Return a column's definition in CREATE TABLE. Raises DataError if its name or schema is unsupported."""
        self.check_name(column.name)
        schema = column.schema
        definition = f"{self.quote(column.name)} {self.column_type(column)}"
        if schema.default is not None and not column.is_timestamp:
            definition += f" DEFAULT {self._default_literal(column)}"
        nullable = schema.optional and not column.is_key
        return definition + (" NULL" if nullable else " NOT NULL")

    def check_name(self, name: str) -> None:  # noqa: B027 - not all databases limit the length
        """Raise DataError if the name of a new table or column is too long for the database."""

    def _default_literal(self, column: Column) -> str:
        default = column.schema.default
        temporal = debezium_time(column.schema) if self.debezium_type(column.schema) is not None else None
        if temporal is None:
            return self.literal(column.schema, default)
        return _quoted(
            self._converted(
                column,
                _chain(temporal.read, self.temporal_converter(temporal.logical.name or "", self.zone)),
                default,
            )
        )

    def debezium_type(self, schema: Schema) -> str | None:
        """Return the SQL type for one of Debezium's types, or None to store its numbers or text unchanged."""
        return None

    def column_type(self, column: Column) -> str:
        """Return the SQL type of a column. Raises DataError if no SQL type can represent its field."""
        schema = column.schema
        if column.is_timestamp:
            return self.logical_type(TIMESTAMP, schema)
        if schema.name in (DECIMAL, DATE, TIME, TIMESTAMP):
            return self.logical_type(schema.name, schema)
        found = self.debezium_type(schema) or self.types.get(schema.type)
        if found is None:
            raise DataError(
                f"field {column.name}: {schema.name or ''} ({schema.type.name}) type doesn't have a mapping to the SQL "
                f"database column type of {self.url.kind}; remove the field with a transform or fields.whitelist"
            )
        return found

    def literal(self, schema: Schema, value: Any) -> str:
        """Return a default value as SQL text."""
        convert = self.converter(schema, self.zone)
        value = value if convert is None else convert(value)
        if isinstance(value, bool):
            return "TRUE" if value else "FALSE"
        if isinstance(value, (int, float, Decimal)):
            return str(value)
        if isinstance(value, bytes):
            return f"x'{value.hex()}'"
        return _quoted(str(value))

    # -- values

    def converter(self, schema: Schema, zone: dt.tzinfo) -> Convert:
        """Return a function that converts non-null values to the driver's types, or None if no conversion is needed.

        `zone` is the time zone of timestamps. The function raises ValueError if the database cannot store a value.
        """
        if schema.name not in (DATE, TIME, TIMESTAMP):
            return None
        return self.temporal_converter(schema.name, zone, unit_us=1000)

    @abstractmethod
    def temporal_converter(self, name: str, zone: dt.tzinfo, unit_us: int = 1) -> Callable[[int], Any]:
        """Return a function that converts dates, times or timestamps to the driver's types.

        `name` is the name of the logical type. The function's argument is a number of days since 1970-01-01 (Date), or
        the time since midnight (Time) or since the epoch (Timestamp) in units of `unit_us` microseconds. `zone` is the
        time zone of timestamps. The function raises ValueError if the database cannot store the value.
        """

    def convert(self, table: ExistingTable, column: Column, values: Sequence[Any]) -> Sequence[Any]:
        """Return the values of a column of a table, converted to the driver's types. Raises DataError."""
        convert = self._converter_of(table, column)
        if convert is None:
            return values
        try:
            return [None if value is None else convert(value) for value in values]
        except ValueError:
            return [None if value is None else self._converted(column, convert, value) for value in values]

    def _converter_of(self, table: ExistingTable, column: Column) -> Convert:
        name = table.column(column.name)
        zone = dt.UTC if name in table.instants else self.zone
        if column.schema.type is Type.FLOAT32 and name in table.exact:
            return self.shortest_float
        if column.is_timestamp:
            read = timestamp_reader(column.name, self.config.timestamp_precision_mode)
            return _chain(read, self.temporal_converter(TIMESTAMP, zone))
        temporal = debezium_time(column.schema) if name in table.temporals else None
        if temporal is not None:
            return _chain(temporal.read, self.temporal_converter(temporal.logical.name or "", zone))
        return self.converter(column.schema, zone)

    def _converted(self, column: Column, convert: Callable[[Any], Any], value: Any) -> Any:
        """Convert one value. Raises DataError with the column and the value."""
        try:
            return convert(value)
        except ValueError as error:
            kind = f" is not a valid {column.schema.name}" if column.schema.name else ""
            raise DataError(f"field {column.name}: {value!r:.40}{kind}: {error}") from None

    def shortest_float(self, value: float) -> float | str:
        """Return a FLOAT32 value for a column that stores its digits: 0.1 and not 0.10000000149011612."""
        return float(float_text(value))

    # -- writes

    def write(self, connection: Connection, target: Target, run: Run) -> None:
        """Write or delete the rows of a run. Raises the driver's exception, or DataError for an invalid value."""
        values = [
            self.convert(target.table, column, items) for column, items in zip(run.columns, run.values, strict=True)
        ]
        try:
            self._write_values(connection, target, run, values)
        except UnicodeEncodeError as error:
            character = error.object[error.start]
            raise DataError(f"the encoding {error.encoding} cannot represent the character {character!a}") from error

    def _write_values(self, connection: Connection, target: Target, run: Run, values: list[Sequence[Any]]) -> None:
        if run.is_delete:
            self.delete(connection, target, values)
            return
        mode = self.config.insert_mode.lower()
        {"insert": self.insert, "upsert": self.upsert, "update": self.update}[mode](connection, target, values)

    def insert(self, connection: Connection, target: Target, values: list[Sequence[Any]]) -> None:
        """Insert rows into the target table. `values` has one element per column."""
        self._execute(connection, self.insert_sql(target), list(zip(*values, strict=True)))

    def upsert(self, connection: Connection, target: Target, values: list[Sequence[Any]]) -> None:
        """Insert rows, or update the rows with the same primary keys."""
        self._execute(connection, self.upsert_sql(target), list(zip(*values, strict=True)))

    def update(self, connection: Connection, target: Target, values: list[Sequence[Any]]) -> None:
        """Update the rows that have the primary keys in `values`. `values` has one element per column."""
        if not target.others:
            return
        order = [*target.others, *target.keys]
        columns = [values[target.names.index(name)] for name in order]
        changes = ", ".join(f"{name}={PARAMETER}" for name in target.others)
        sql = f"UPDATE {target.table.quoted} SET {changes} WHERE {self._key_condition(target)}"
        self._execute(connection, sql, list(zip(*columns, strict=True)))

    def delete(self, connection: Connection, target: Target, values: list[Sequence[Any]]) -> None:
        """Delete the rows that have the primary keys in `values`. `values` has one element per column."""
        sql = f"DELETE FROM {target.table.quoted} WHERE {self._key_condition(target)}"
        self._execute(connection, sql, list(zip(*values, strict=True)))

    def _key_condition(self, target: Target) -> str:
        return " AND ".join(f"{name}={PARAMETER}" for name in target.keys)

    def insert_sql(self, target: Target) -> str:
        """Return the statement that inserts one row."""
        markers = ", ".join([PARAMETER] * len(target.names))
        return f"INSERT INTO {target.table.quoted} ({', '.join(target.names)}) VALUES ({markers})"

    def _execute(self, connection: Connection, sql: str, rows: list[tuple[Any, ...]]) -> None:
        """Execute a statement once for each row. Each PARAMETER in the statement stands for one value of the row."""
        if self.marker == "%s":
            sql = sql.replace("%", "%%")
        sql = sql.replace(PARAMETER, self.marker)
        cursor = connection.cursor()
        try:
            self._execute_many(cursor, sql, rows)
        finally:
            cursor.close()

    def _execute_many(self, cursor: Any, sql: str, rows: list[tuple[Any, ...]]) -> None:
        """Execute `sql`, which contains the driver's parameter markers, once for each row."""
        cursor.executemany(sql, rows)

    # -- rejected rows

    def column_types(self, connection: Connection, table: ExistingTable) -> dict[str, str]:
        """Read the SQL types of a table's columns from the database, by column name."""
        cursor = connection.cursor()
        try:
            cursor.execute(self.column_types_sql(table))
            return {name: kind for name, kind, *_ in cursor.fetchall()}
        finally:
            cursor.close()

    @abstractmethod
    def column_types_sql(self, table: ExistingTable) -> str:
        """Return a statement without parameters. Its first two columns are the name and the type of each column."""

    def column_at_fault(self, connection: Connection, target: Target, row: Run, error: Exception) -> str | None:
        """Return the column of the target table whose value caused `error`, or None if the column is unknown.

        `row` has one row, which the database has rejected.
        """
        return None

    # -- transactions

    def begin(self, connection: Connection) -> None:  # noqa: B027 - most drivers begin transactions implicitly
        """Begin a transaction."""

    def check_constraints_immediately(self, connection: Connection) -> None:  # noqa: B027 - only some databases can defer
        """Check all constraints at the end of each statement of the open transaction, not at COMMIT."""

    @contextmanager
    def savepoint(self, connection: Connection, name: str = "headrace") -> Iterator[None]:
        """Run the `with` block in a savepoint. If the block raises an exception, undo what it has written."""
        self.run_statement(connection, f"SAVEPOINT {name}")
        try:
            yield
        except Exception as error:
            is_temporary = isinstance(error, self.driver_error) and self.is_transient(error)
            if not is_temporary and not self.has_rolled_back(connection):
                self.run_statement(connection, f"ROLLBACK TO SAVEPOINT {name}")
                self.transaction_failed()
            raise
        self.run_statement(connection, f"RELEASE SAVEPOINT {name}")

    def has_rolled_back(self, connection: Connection) -> bool:
        """Whether the database has rolled back the whole transaction because of an error in a row."""
        return False

    def transaction_failed(self) -> None:  # noqa: B027 - most databases keep nothing between statements
        """Called after a transaction, or the part of it after a savepoint, was rolled back."""

    def run_statement(self, connection: Connection, sql: str) -> None:
        """Execute a statement without parameters."""
        cursor = connection.cursor()
        try:
            cursor.execute(sql)
        finally:
            cursor.close()


def _chain(first: Callable[[Any], Any], second: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: second(first(value))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def last_of_each_key(target: Target, values: list[Sequence[Any]]) -> list[Sequence[Any]]:
    """Return only the last row of each primary key, because one statement must not write a row twice."""
    keys = [values[target.names.index(name)] for name in target.keys]
    last = {key: index for index, key in enumerate(zip(*keys, strict=True))}
    if len(last) == len(values[0]):
        return values
    kept = sorted(last.values())
    return [[column[index] for index in kept] for column in values]


def _is_exact(kind: Any) -> bool:
    return isinstance(kind, (sqlalchemy.Numeric, sqlalchemy.String)) and not isinstance(kind, sqlalchemy.Float)
