"""Reads the smallest id and the largest id of a table, and the current time, to split its initial load into ranges."""

from __future__ import annotations

import datetime as dt

from headrace_connectors.common.instants import microseconds
from headrace_connectors.jdbc.dialects import Dialect
from headrace_connectors.jdbc.horizon import Horizon
from headrace_connectors.jdbc.initial_load import InitialLoad
from headrace_connectors.jdbc.offset_columns import find_offset_columns
from headrace_connectors.jdbc.source_config import JdbcSourceConfig


def initial_load_of(table: str, config: JdbcSourceConfig, dialect: Dialect, created_ms: int) -> InitialLoad | None:
    """Return the initial load for a table without a stored offset, or None if the table is empty.

    `created_ms` is the current time of the worker. With `snapshot.horizon=true`, rows that running transactions have
    inserted are read after the initial load. Raises the driver's exception.
    """
    columns = dialect.table_columns(table)
    found = find_offset_columns(config, table, columns, can_hold_timestamps=dialect.can_hold_timestamps)
    assert found.incrementing is not None
    name, source = dialect.quote_column(found.incrementing.name, table), dialect.quote_table(table)
    connection = dialect.connect()
    try:
        started = dialect.now(connection) - dt.timedelta(milliseconds=config.timestamp_delay_interval_ms)
        horizon = Horizon(dialect) if config.snapshot_horizon else None
        if horizon is not None:
            started = min(started, horizon.timestamp(connection))
        if found.timestamps:
            # Rows with this timestamp may still be written. The rows after the initial load have later timestamps.
            started = dialect.to_column_time(connection, started, found.timestamps)
            started = found.round_down(started) - found.timestamp_unit
        smallest, largest = dialect.first_row(connection, f"SELECT MIN({name}), MAX({name}) FROM {source}")
        if horizon is not None and not found.timestamps:
            largest = horizon.largest_id(connection, lambda: largest)
    finally:
        connection.close()
    if smallest is None or largest is None or largest < smallest:
        return None
    started_ms = max(0, microseconds(started) // 1000)
    return InitialLoad(int(smallest), int(largest), config.initial_load_chunks, started_ms, created_ms)
