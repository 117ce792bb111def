"""Tests of the source partitions and offsets that a user may store for a JDBC source."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from headrace.api.errors import ConnectError
from headrace_connectors.jdbc.source import JdbcSourceConnector
from headrace_connectors.jdbc.source_config import JdbcSourceConfig
from support.jdbc import Offsets, read_all

TABLE = {"protocol": "1", "table": "public.orders"}
CONFIG = {"connection.url": "jdbc:postgresql://db/shop", "mode": "incrementing", "topic.prefix": "t"}


def alter_offsets(partition: dict[str, Any], offset: dict[str, Any] | None, mode: str = "incrementing") -> bool:
    columns = {"timestamp.column.name": "ts"} if "timestamp" in mode else {}
    config = JdbcSourceConfig.parse({**CONFIG, **columns, "mode": mode})
    return JdbcSourceConnector().alter_offsets(config, {tuple(sorted(partition.items())): offset})


@pytest.mark.parametrize(
    ("partition", "offset"),
    [
        (TABLE, {"incrementing": 7}),
        (TABLE, {"timestamp": 1_700_000_000_123, "timestamp_nanos": 123_456_000, "incrementing": -1}),
        (TABLE, {"incrementing": 7, "initial_load": "1:1000:4:1700000000000"}),
        (TABLE | {"range": "-5..1000"}, {"incrementing": 7}),
        (TABLE, {"incrementing": 2**63 - 1}),
        (TABLE, {"incrementing": -(2**63)}),
        (TABLE, {}),  # an offset in bulk mode
        ({"table": "orders"}, {"incrementing": 7}),
        ({"query": "query"}, {"incrementing": 7}),
        (TABLE, None),
        ({"filename": "x"}, None),
    ],
)
def test_valid_source_offsets_and_resets_are_accepted(partition: dict[str, Any], offset: dict[str, Any] | None) -> None:
    assert alter_offsets(partition, offset) is True


@pytest.mark.parametrize(
    ("mode", "partition", "offset"),
    [
        ("timestamp", TABLE, {"timestamp": 0}),
        ("timestamp", TABLE, {"timestamp": 0, "incrementing": 7}),  # a source offset of another mode
        ("timestamp+incrementing", TABLE, {"timestamp": 0, "timestamp_nanos": 5, "incrementing": 7}),
        ("timestamp+incrementing", TABLE, {"timestamp": 0}),
        ("timestamp+incrementing", TABLE | {"range": "1..1000"}, {"incrementing": 7}),
        ("bulk", TABLE, {}),
        ("bulk", TABLE, None),
    ],
)
def test_source_offsets_with_the_fields_of_the_mode_are_accepted(
    mode: str, partition: dict[str, Any], offset: dict[str, Any] | None
) -> None:
    assert alter_offsets(partition, offset, mode) is True


@pytest.mark.parametrize(
    ("mode", "partition", "offset", "problem"),
    [
        ("incrementing", TABLE, {"timestamp": 5}, "incrementing is missing; with mode=incrementing, the offset has no"),
        ("incrementing", TABLE, {"initial_load": "1:1000:4:1700000000000"}, "incrementing is missing"),
        ("timestamp", TABLE, {"incrementing": 5}, "timestamp is missing; with mode=timestamp"),
        ("timestamp+incrementing", TABLE, {"incrementing": 5}, r"timestamp is missing; with mode=timestamp\+incr"),
        ("timestamp+incrementing", TABLE | {"range": "1..9"}, {"timestamp": 5}, "incrementing is missing"),
        ("bulk", TABLE, {"incrementing": 5}, "incrementing has no effect, because mode=bulk"),
    ],
)
def test_source_offsets_without_effect_in_the_mode_are_rejected(
    mode: str, partition: dict[str, Any], offset: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConnectError, match=f"is invalid: {problem}"):
        alter_offsets(partition, offset, mode)


@pytest.mark.parametrize(
    "partition",
    [
        {"filename": "x"},
        {"protocol": "2", "table": "public.orders"},
        {"protocol": 1, "table": "public.orders"},
        {"protocol": "1"},
        {"table": ""},
        {"table": 5},
        {"query": "SELECT 1"},
        {"table": "orders", "topic": "x"},
        TABLE | {"range": "1-1000"},
        {},
    ],
)
def test_invalid_source_partitions_are_rejected(partition: dict[str, Any]) -> None:
    with pytest.raises(ConnectError, match=r'source partition .* is invalid: it must be \{"protocol": "1", "table"'):
        alter_offsets(partition, {"incrementing": 7})


@pytest.mark.parametrize(
    ("offset", "problem"),
    [
        ({"position": 5}, "unknown key 'position'; the keys are incrementing, timestamp"),
        ({"timestamp": "yesterday"}, "timestamp must be an integer, the milliseconds since .*, but is 'yesterday'"),
        ({"incrementing": "7"}, "incrementing must be an integer, but is '7'"),
        ({"incrementing": True}, "incrementing must be an integer, but is True"),
        ({"incrementing": None}, "incrementing must be an integer, but is None"),
        ({"incrementing": 2**63}, r"incrementing must be from -2\^63 to 2\^63-1, but is 9223372036854775808"),
        ({"incrementing": -(2**63) - 1}, r"incrementing must be from -2\^63 to 2\^63-1, but is -9223372036854775809"),
        ({"timestamp": 2**63}, r"timestamp must be from -2\^63 to 2\^63-1, but is 9223372036854775808"),
        ({"timestamp": 0, "timestamp_nanos": 10**9}, "timestamp_nanos must be from 0 to 999999999"),
        ({"timestamp_nanos": 5}, "timestamp_nanos is .*, so timestamp must be set too"),
        ({"incrementing": 7, "initial_load": "1:1000"}, "initial_load must be the text .*, but is '1:1000'"),
        ({"incrementing": 7, "initial_load": "1:1000:0:0"}, "initial_load must be the text"),
        ({"incrementing": 7, "initial_load": f"1:{2**63}:1:0"}, "initial_load must be the text"),
        ({"incrementing": 7, "initial_load": 5}, "initial_load must be the text"),
    ],
)
def test_error_for_an_invalid_source_offset_names_the_offset_key(offset: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConnectError, match=f"of source partition .*orders.* is invalid: {problem}"):
        alter_offsets(TABLE, offset)


def test_task_with_an_invalid_stored_offset_fails_with_the_name_of_the_table(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    offsets = Offsets()
    offsets.commit({"protocol": "1", "table": "orders"}, {"incrementing": "yesterday"})
    props = {**CONFIG, "connection.url": f"jdbc:sqlite:{tmp_path / 'shop.db'}"}
    with pytest.raises(ConnectError, match=r"stored offset .*yesterday.* of table orders is invalid"):
        read_all(props, offsets)
