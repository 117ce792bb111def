"""Tests of the JDBC sink with SQLite."""

from __future__ import annotations

import datetime as dt
import sqlite3
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from headrace.api.errors import ConfigErrors, ConnectError, DataError, RecordErrors
from headrace.data.logical import DATE_SCHEMA, TIME_SCHEMA, TIMESTAMP_SCHEMA, decimal_schema
from headrace.data.records import SinkRecord
from headrace.data.schema import (
    BOOLEAN_SCHEMA,
    BYTES_SCHEMA,
    FLOAT32_SCHEMA,
    INT8_SCHEMA,
    INT32_SCHEMA,
    INT64_SCHEMA,
    OPTIONAL_INT32_SCHEMA,
    OPTIONAL_STRING_SCHEMA,
    STRING_SCHEMA,
    map_of,
    struct,
)
from headrace.data.sink_records import SinkRecords
from headrace.testing.conformance import SinkConformance
from headrace_connectors.jdbc.sink import JdbcSinkConnector, JdbcSinkTask
from headrace_connectors.jdbc.sink_config import JdbcSinkConfig
from support.jdbc_sink import ROW, item, put, put_after_change, record, tombstone, validation_errors

ONLY_ID = struct([("id", INT32_SCHEMA)])


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def url(database: Path) -> str:
    return f"jdbc:sqlite:{database}"


def query(database: Path, sql: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(database)
    try:
        with connection:
            return connection.execute(sql).fetchall()
    finally:
        connection.close()


class TestJdbcSink(SinkConformance):
    plugin = JdbcSinkConnector

    def config(self) -> dict[str, str]:
        return {
            "connection.url": f"jdbc:sqlite:{self.directory / 'conformance.db'}",
            "auto.create": "true",
            "pk.mode": "kafka",
            "insert.mode": "upsert",
            "table.name.format": "items",
        }

    is_exactly_once = True

    def values(self) -> Sequence[Any]:
        return [item(number).value for number in range(8)]

    def records(self, topic: str = "test", partitions: int = 1) -> list[SinkRecord]:
        return [found.replace(value_schema=ROW) for found in super().records(topic, partitions)]

    def stored(self) -> Sequence[Any]:
        path = self.directory / "conformance.db"
        tables = query(path, "SELECT name FROM sqlite_master WHERE type = 'table'") if path.exists() else []
        return query(path, "SELECT * FROM items") if tables else []


class TestInsertModes:
    def test_sink_creates_a_missing_table_and_inserts_rows(self, url: str, database: Path) -> None:
        run = put(url, [item(1), item(2, price=2.5)])
        assert query(database, "SELECT * FROM items") == [(1, "n1", None), (2, "n2", 2.5)]
        assert run.committed == {("items", 0): 3}

    def test_upsert_updates_rows_and_keeps_the_values_of_columns_without_a_record_field(
        self, url: str, database: Path
    ) -> None:
        query(database, "CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT, price REAL, note TEXT)")
        query(database, "INSERT INTO items VALUES (1, 'old', 1.0, 'kept')")
        put(url, [item(1, "new"), item(2), item(2, "newer", offset=3)], insert__mode="UPSERT", pk__mode="record_key")
        assert query(database, "SELECT * FROM items") == [(1, "new", None, "kept"), (2, "newer", None, None)]

    def test_upsert_keeps_other_rows_with_the_same_values_in_a_second_unique_index(
        self, url: str, database: Path
    ) -> None:
        query(database, "CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT UNIQUE, price REAL)")
        query(database, "INSERT INTO items VALUES (1, 'a', 1.0), (2, 'b', 2.0)")
        records = [item(3, "a"), item(2, "a", offset=4), item(2, "c", offset=5)]
        run = put(url, records, insert__mode="upsert", pk__mode="record_key", errors__tolerance="all")
        assert [found.offset for found, _ in run.reported] == [3, 4]
        assert "UNIQUE constraint failed: items.name" in str(run.reported[0][1])
        assert query(database, "SELECT * FROM items") == [(1, "a", 1.0), (2, "c", None)]

    def test_upsert_needs_a_unique_index_on_the_columns_of_the_primary_key(self, url: str, database: Path) -> None:
        query(database, "CREATE TABLE items (id INTEGER, name TEXT, price REAL, UNIQUE (id, name))")
        problem = r'Table "items" has no primary key or unique index on the columns of pk.fields \("id"\)'
        with pytest.raises(ConnectError, match=problem):
            put(url, [item(1)], insert__mode="upsert", pk__mode="record_key", errors__tolerance="all")
        assert query(database, "SELECT count(*) FROM items") == [(0,)]

    def test_sink_with_insert_mode_update_changes_existing_rows_and_inserts_no_rows(
        self, url: str, database: Path
    ) -> None:
        put(url, [item(1), item(2)], pk__mode="record_value", pk__fields="id")
        put(url, [item(1, "new"), item(3)], insert__mode="update", pk__mode="record_value", pk__fields="id")
        assert query(database, "SELECT id, name FROM items") == [(1, "new"), (2, "n2")]

    def test_tombstones_and_upserts_of_a_row_are_applied_in_record_order(self, url: str, database: Path) -> None:
        records = [item(1), item(2), tombstone(1, 3), item(3, offset=4), tombstone(3, 5), item(3, "again", offset=6)]
        put(url, records, insert__mode="upsert", pk__mode="record_key", delete__enabled="true")
        assert query(database, "SELECT id, name FROM items ORDER BY id") == [(2, "n2"), (3, "again")]

    def test_tombstones_are_ignored_until_a_record_with_a_value_creates_the_table(
        self, url: str, database: Path
    ) -> None:
        props = {"insert__mode": "upsert", "pk__mode": "record_key", "delete__enabled": "true"}
        put(url, [tombstone(1, 0)], **props)
        assert query(database, "SELECT name FROM sqlite_master") == []
        put(url, [tombstone(1, 1), item(2), tombstone(3, 3)], **props)
        assert query(database, "SELECT id, name FROM items") == [(2, "n2")]
        with pytest.raises(DataError, match="Table items is missing and auto-creation is disabled"):
            put(url + "2", [tombstone(1, 0)], **props, auto__create="false")

    def test_upsert_into_a_table_with_only_key_columns_keeps_the_existing_row(self, url: str, database: Path) -> None:
        put(url, [record(0, {"id": 1}, ONLY_ID), record(1, {"id": 1}, ONLY_ID)],
            insert__mode="upsert", pk__mode="record_value")  # fmt: skip
        assert query(database, "SELECT * FROM items") == [(1,)]


class TestConstraints:
    @pytest.mark.parametrize("action", ["ABORT", "FAIL", "ROLLBACK"])
    @pytest.mark.parametrize("is_trigger", [False, True])
    def test_all_accepted_records_are_written_whether_sqlite_aborts_the_statement_or_rolls_back_the_transaction(
        self, url: str, database: Path, action: str, is_trigger: bool
    ) -> None:
        constraint = "" if is_trigger else f"UNIQUE ON CONFLICT {action}"
        query(database, f"CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT {constraint}, price REAL)")
        query(database, "CREATE TABLE others (id INTEGER PRIMARY KEY)")
        if is_trigger:
            query(database, "CREATE TRIGGER same BEFORE INSERT ON items WHEN new.name = 'n1' AND new.id > 1 "
                            f"BEGIN SELECT RAISE({action}, 'UNIQUE'); END")  # fmt: skip
        records = [item(number, "n1" if number in (3, 8) else None) for number in range(10)]
        records.insert(2, record(20, {"id": 1}, ONLY_ID, topic="others"))
        run = put(url, records, errors__tolerance="all")
        assert [found.offset for found, _ in run.reported] == [3, 8]
        assert all("UNIQUE" in str(error) for _, error in run.reported)
        assert query(database, "SELECT id FROM items") == [(number,) for number in (0, 1, 2, 4, 5, 6, 7, 9)]
        assert query(database, "SELECT count(*) FROM others") == [(1,)]
        with pytest.raises(DataError, match=r"rejects record items-0@12 for table .items.: UNIQUE"):
            put(url, [item(11), item(12, "n1"), item(13)])
        assert query(database, "SELECT count(*) FROM items") == [(8,)]


class TestPrimaryKeys:
    def test_primary_key_columns_are_topic_partition_and_offset_if_the_primary_key_mode_is_kafka(
        self, url: str, database: Path
    ) -> None:
        put(url, [item(1), item(2)], pk__mode="kafka", fields__whitelist="name")
        assert query(database, "SELECT * FROM items") == [("items", 0, 1, "n1"), ("items", 0, 2, "n2")]
        names = query(database, "SELECT name FROM pragma_table_info('items') WHERE pk > 0 ORDER BY pk")
        assert names == [("__connect_topic",), ("__connect_partition",), ("__connect_offset",)]

    @pytest.mark.parametrize("mode", ["insert", "upsert"])
    def test_primary_key_columns_contain_the_original_topic_with_pk_mode_kafka_even_if_a_transform_changes_the_topic(
        self, url: str, database: Path, mode: str
    ) -> None:
        records = [record(0, {"id": number}, ONLY_ID, topic=topic) for number, topic in enumerate(["a", "b"])]
        rename = {"type": "RegexRouter", "regex": ".*", "replacement": "merged"}
        transforms = {f"transforms__r__{key}": value for key, value in rename.items()}
        put(url, records, pk__mode="kafka", insert__mode=mode, transforms="r", **transforms)
        assert query(database, "SELECT * FROM merged ORDER BY id") == [("a", 0, 0, 0), ("b", 0, 0, 1)]

    def test_primitive_record_key_is_rejected_unless_exactly_one_key_column_is_configured(
        self, url: str, database: Path
    ) -> None:
        keyed = record(1, {"id": 1}, ROW, key="k", key_schema=STRING_SCHEMA)
        put(url, [keyed], pk__mode="record_key", pk__fields="code", fields__whitelist="id")
        assert query(database, "SELECT * FROM items") == [("k", 1)]
        with pytest.raises(DataError, match="Need exactly one PK column"):
            put(url, [keyed], pk__mode="record_key")

    @pytest.mark.parametrize(
        ("props", "message"),
        [
            ({"pk__mode": "record_key", "pk__fields": "nope"}, "RECORD_KEY with configured PK fields [nope]"),
            ({"pk__mode": "record_value", "pk__fields": "nope"}, "does not contain field: nope"),
        ],
    )
    def test_record_that_lacks_a_configured_primary_key_field_is_rejected(
        self, url: str, props: dict[str, str], message: str
    ) -> None:
        with pytest.raises(DataError) as error:
            put(url, [item(1)], **props)
        assert message in str(error.value)

    def test_record_without_a_key_is_rejected_if_the_primary_key_mode_is_record_key(self, url: str) -> None:
        with pytest.raises(DataError, match="requires records with a non-null key"):
            put(url, [record(1, {"id": 1})], pk__mode="record_key")


class TestTypes:
    def test_value_of_every_connect_type_is_written_to_a_column(self, url: str, database: Path) -> None:
        schema = struct(
            [("i8", INT8_SCHEMA), ("i64", INT64_SCHEMA), ("f", FLOAT32_SCHEMA), ("b", BOOLEAN_SCHEMA),
             ("bytes", BYTES_SCHEMA), ("dec", decimal_schema(2)), ("d", DATE_SCHEMA), ("t", TIME_SCHEMA),
             ("ts", TIMESTAMP_SCHEMA), ("o", OPTIONAL_STRING_SCHEMA)],
        )  # fmt: skip
        row = {"i8": 1, "i64": 2**40, "f": 0.5, "b": True, "bytes": b"\x00\x01", "dec": Decimal("1.50"),
               "d": dt.date(1970, 1, 2), "t": dt.time(0, 0, 1), "ts": dt.datetime(1970, 1, 1, 0, 0, 2, tzinfo=dt.UTC),
               "o": None}  # fmt: skip
        put(url, [record(0, row, schema)])
        assert query(database, "SELECT * FROM items") == [
            (1, 2**40, 0.5, 1, b"\x00\x01", 1.5, 86_400_000, 1000, 2000, None)
        ]

    @pytest.mark.parametrize(
        ("kind", "value", "stored"),
        [
            ("NUMERIC", "1.50", 1.5),
            ("NUMERIC", "9007199254740993.00", 9007199254740993),
            ("NUMERIC", "1234567890123.4567", None),
            ("NUMERIC", "10000000000000000001", None),
            ("DECIMAL(30,2)", "123456789012345.67", 123456789012345.67),
            ("INTEGER", "9007199254740993", 9007199254740993),
            ("REAL", "9007199254740993", None),
            ("REAL", "0.1", 0.1),
            ("TEXT", "1234567890123456789012.50", "1234567890123456789012.50"),
            ("VARCHAR(40)", "1.50", "1.50"),
            ("", "1.50", "1.50"),
        ],
    )
    def test_decimals_are_stored_exactly_or_rejected(
        self, url: str, database: Path, kind: str, value: str, stored: Any
    ) -> None:
        query(database, f"CREATE TABLE items (dec {kind})")
        schema = struct([("dec", decimal_schema(-Decimal(value).as_tuple().exponent))])
        run = put(url, [record(0, {"dec": Decimal(value)}, schema)], errors__tolerance="all")
        assert query(database, "SELECT dec FROM items") == ([] if stored is None else [(stored,)])
        if stored is None:
            assert f"field dec: SQLite cannot store {value} exactly as a number" in str(run.reported[0][1])

    def test_record_with_nan_is_rejected_and_other_records_are_written(self, url: str, database: Path) -> None:
        prices = [0.5, float("nan"), None, float("inf")]
        records = [item(number, price=price) for number, price in enumerate(prices)]
        run = put(url, records, errors__tolerance="all")
        assert [found.offset for found, _ in run.reported] == [1]
        assert query(database, "SELECT price FROM items") == [(0.5,), (None,), (float("inf"),)]

    def test_error_for_a_field_without_a_matching_column_type_contains_the_field_name(self, url: str) -> None:
        schema = struct([("tags", map_of(STRING_SCHEMA, STRING_SCHEMA))])
        with pytest.raises(DataError, match=r"field tags:  \(MAP\) type doesn't have a mapping"):
            put(url, [record(0, {"tags": {}}, schema)])

    def test_string_values_with_a_schema_are_written_to_the_configured_column(self, url: str, database: Path) -> None:
        text = SinkRecord(topic="items", partition=0, offset=0, value="hello", value_schema=STRING_SCHEMA)
        put(url, [text], string__output__value__column__name="line")
        assert query(database, "SELECT line FROM items") == [("hello",)]

    def test_fields_named_in_timestamp_fields_list_are_written_as_timestamps(self, url: str, database: Path) -> None:
        schema = struct([("a", INT64_SCHEMA), ("b", STRING_SCHEMA), ("c", STRING_SCHEMA)])
        row = {"a": 1_000_000_000_000, "b": "2000000000", "c": "1970-01-01T00:00:03.123456789"}
        put(url, [record(0, row, schema)], timestamp__fields__list="a,b,c", timestamp__precision__mode="nanoseconds")
        assert query(database, "SELECT * FROM items") == [(1_000_000, 2000, 3123)]

    def test_null_field_is_written_as_its_schema_default_unless_replace_null_with_default_is_false(
        self, url: str, database: Path
    ) -> None:
        schema = struct([("id", INT32_SCHEMA), ("n", OPTIONAL_INT32_SCHEMA.replace(default=7))])
        put(url, [record(0, {"id": 1, "n": None}, schema)])
        put(url, [record(1, {"id": 2, "n": None}, schema)], replace__null__with__default="false")
        assert query(database, "SELECT n FROM items") == [(7,), (None,)]


class TestTables:
    def test_record_for_a_missing_table_is_rejected_without_auto_create(self, url: str) -> None:
        with pytest.raises(DataError, match="Table items is missing and auto-creation is disabled"):
            put(url, [item(1)], auto__create="false")

    @pytest.mark.parametrize(("name", "schema"), [("mx.a", "mx"), ("x.y.a", r"x\.y")])
    @pytest.mark.parametrize("auto_create", ["true", "false"])
    def test_error_for_a_name_with_dots_and_a_missing_schema_says_how_to_write_to_a_table_with_this_name(
        self, url: str, database: Path, name: str, schema: str, auto_create: str
    ) -> None:
        first = record(1, {"id": 1, "name": "x", "price": None}, topic=name)
        problem = rf"able {name} .*; the sink reads the part of the name before the last dot \({schema}\) as schema"
        with pytest.raises(DataError, match=problem):
            put(url, [first], auto__create=auto_create)
        put(url, [first], table__name__format='"${topic}"')
        assert query(database, f'SELECT name FROM "{name}"') == [("x",)]

    def test_missing_columns_are_added_to_the_table_only_with_auto_evolve(self, url: str, database: Path) -> None:
        put(url, [item(1)], fields__whitelist="id")
        with pytest.raises(DataError, match=r"missing fields \(name, price\) and auto-evolution is disabled"):
            put(url, [item(2)])
        put(url, [item(2)], auto__evolve="true")
        assert query(database, "SELECT * FROM items") == [(1, None, None), (2, "n2", None)]

    def test_auto_evolve_rejects_a_record_with_a_new_required_field_that_has_no_default(self, url: str) -> None:
        put(url, [item(1)], fields__whitelist="name")
        with pytest.raises(DataError, match="add missing fields id, as the fields are not optional"):
            put(url, [item(2)], auto__evolve="true")

    @pytest.mark.parametrize(
        ("names", "missing"), [(("id", "name", "NAME"), "NAME"), (("id", "Name", "NAME"), "Name, NAME")]
    )
    def test_record_is_rejected_if_several_fields_match_a_column_when_case_is_ignored(
        self, url: str, database: Path, names: tuple[str, ...], missing: str
    ) -> None:
        query(database, "CREATE TABLE items (id INTEGER, name TEXT)")
        schema = struct([(name, OPTIONAL_STRING_SCHEMA) for name in names])
        records = [record(0, dict.fromkeys(names, "1"), schema)]
        with pytest.raises(DataError, match=rf"missing fields \({missing}\) and auto-evolution is disabled"):
            put(url, records)
        with pytest.raises(DataError, match=f"Cannot add the columns {missing} to table items: duplicate column name"):
            put(url, records, auto__evolve="true")
        assert query(database, "SELECT * FROM items") == []

    def test_existing_table_and_columns_are_used_if_their_names_match_when_case_is_ignored(
        self, url: str, database: Path
    ) -> None:
        query(database, "CREATE TABLE ITEMS (ID INTEGER, Name TEXT, price REAL)")
        put(url, [item(1)], auto__create="false")
        assert query(database, "SELECT ID, Name FROM ITEMS") == [(1, "n1")]

    @pytest.mark.parametrize("change", ["DROP TABLE items", "ALTER TABLE items DROP COLUMN name"])
    @pytest.mark.parametrize("mode", ["insert", "upsert", "update"])
    def test_table_or_column_that_was_dropped_is_created_again(
        self, url: str, database: Path, mode: str, change: str
    ) -> None:
        props = {"insert__mode": mode, "pk__mode": "record_value", "pk__fields": "id", "auto__evolve": "true"}
        put_after_change(url, [item(1)], lambda: query(database, change), [item(2)], **props)
        rows = [] if mode == "update" else [("n2",)]
        assert query(database, "SELECT name FROM items WHERE id = 2") == rows

    def test_records_for_a_table_that_was_dropped_are_reported_if_auto_create_is_false(
        self, url: str, database: Path
    ) -> None:
        query(database, "CREATE TABLE items (id INTEGER, name TEXT, price REAL)")
        props = {"auto__create": "false", "errors__tolerance": "all"}
        run = put_after_change(url, [item(1)], lambda: query(database, "DROP TABLE items"), [item(2)], **props)
        assert [found.offset for found, _ in run.reported] == [2]
        assert "Table items is missing" in str(run.reported[0][1])

    @pytest.mark.parametrize("tolerance", ["none", "all"])
    def test_column_that_is_added_while_the_task_runs_is_written_even_without_auto_evolve(
        self, url: str, database: Path, tolerance: str
    ) -> None:
        query(database, "CREATE TABLE items (id INTEGER, name TEXT, price REAL)")
        wider = struct([("id", INT32_SCHEMA), ("note", OPTIONAL_STRING_SCHEMA)])
        added = record(2, {"id": 2, "note": "new"}, wider)
        run = put_after_change(
            url, [item(1)], lambda: query(database, "ALTER TABLE items ADD note TEXT"), [added],
            auto__evolve="false", errors__tolerance=tolerance,
        )  # fmt: skip
        assert run.reported == []
        assert query(database, "SELECT id, note FROM items") == [(1, None), (2, "new")]

    def test_write_to_a_view_is_rejected_if_table_types_does_not_contain_view(self, url: str, database: Path) -> None:
        query(database, "CREATE TABLE t (id INTEGER, name TEXT, price REAL)")
        query(database, "CREATE VIEW items AS SELECT * FROM t")
        with pytest.raises(DataError, match=r"items is a VIEW, but table\.types is TABLE"):
            put(url, [item(1)])

    @pytest.mark.parametrize("name", ['a"; DROP TABLE keep; --', "select", "naïve — 表", "a b", "x'y"])
    def test_table_and_column_names_with_special_characters_are_quoted(
        self, url: str, database: Path, name: str
    ) -> None:
        query(database, "CREATE TABLE keep (id INTEGER)")
        schema = struct([(name, INT32_SCHEMA), ("id", INT32_SCHEMA)])
        quoted = '"' + name.replace('"', '""') + '"'
        put(url, [record(0, {name: 5, "id": 1}, schema)], table__name__format=quoted,
            pk__mode="record_value", pk__fields="id", insert__mode="upsert")  # fmt: skip
        assert query(database, f"SELECT {quoted} FROM {quoted}") == [(5,)]
        assert query(database, "SELECT count(*) FROM keep") == [(0,)]

    def test_column_name_that_needs_quotes_is_rejected_if_quote_sql_identifiers_is_never(self, url: str) -> None:
        schema = struct([("a b", INT32_SCHEMA)])
        with pytest.raises(DataError, match="is not a plain SQL identifier"):
            put(url, [record(0, {"a b": 1}, schema)], quote__sql__identifiers="never")


class TestErrors:
    def test_error_for_a_schemaless_value_or_key_says_how_to_configure_a_schema(self, url: str) -> None:
        schemaless = SinkRecord(topic="items", partition=3, offset=9, value={"id": 1}, timestamp=5)
        with pytest.raises(DataError) as error:
            put(url, [schemaless])
        assert "found record at (topic='items',partition=3,offset=9,timestamp=5) with a HashMap value" in str(
            error.value
        )
        ways = (
            '{0}.converter.schemas.enable=true, each {0} must be {{"schema": ..., "payload": ...}}, or {0}.converter.'
        )
        assert ways.format("value") + "schema.content" in str(error.value)
        with pytest.raises(DataError) as error:
            put(url, [record(0, {"id": 1, "name": None, "price": None}, key=1)], pk__mode="record_key")
        assert ways.format("key") + "schema.content" in str(error.value)

    def test_tombstone_is_rejected_if_delete_enabled_is_false(self, url: str) -> None:
        with pytest.raises(
            DataError, match=r"with a null value and null value schema.* Set delete.enabled=true to delete"
        ):
            put(url, [tombstone(1, 0)], pk__mode="record_key")
        with pytest.raises(DataError, match=r"Set pk.mode=record_key and delete.enabled=true to delete the row"):
            put(url, [tombstone(1, 0)])

    def test_transaction_with_a_record_that_the_database_rejects_is_rolled_back_and_the_error_names_the_record(
        self, url: str, database: Path
    ) -> None:
        query(database, "CREATE TABLE items (id INTEGER CHECK (id <> 3), name TEXT, price REAL)")
        with pytest.raises(DataError) as error:
            put(url, [item(number) for number in range(5)])
        assert "rejects record items-0@3 for table" in str(error.value)
        assert str(error.value).endswith(
            "(column id: type INTEGER, value INT32; column name: type TEXT, value STRING; column price: type REAL, "
            "value FLOAT64)"
        )
        assert query(database, "SELECT count(*) FROM items") == [(0,)]

    @pytest.mark.parametrize("declared", ["INTEGER", "TEXT NOT NULL"])
    def test_error_for_a_rejected_value_names_the_column_its_type_and_the_type_of_the_value(
        self, url: str, database: Path, declared: str
    ) -> None:
        query(database, f"CREATE TABLE items (id INTEGER, name {declared}, price REAL) STRICT")
        value = {"id": 1, "name": "x" if declared == "INTEGER" else None, "price": 1.0}
        with pytest.raises(DataError) as error:
            put(url, [record(0, value)])
        assert str(error.value).endswith(f"(column name: type {declared.split()[0]}, value STRING)")

    def test_error_for_a_missing_value_names_the_column_that_the_record_does_not_contain(
        self, url: str, database: Path
    ) -> None:
        query(database, "CREATE TABLE items (id INTEGER, name TEXT, price REAL, note TEXT NOT NULL)")
        with pytest.raises(DataError) as error:
            put(url, [item(1)])
        assert str(error.value).endswith("(column note: type TEXT, missing from the record)")

    def test_error_for_a_value_that_the_sink_cannot_convert_names_the_column_its_type_and_the_type_of_the_value(
        self, url: str, database: Path
    ) -> None:
        query(database, "CREATE TABLE items (id INTEGER, name TEXT, price REAL)")
        with pytest.raises(DataError, match=r"NaN as NULL \(column price: type REAL, value FLOAT64\)$"):
            put(url, [item(1, price=float("nan"))])

    def test_records_that_the_database_rejects_are_reported_and_other_records_are_written_if_errors_are_tolerated(
        self, url: str, database: Path
    ) -> None:
        query(database, "CREATE TABLE items (id INTEGER CHECK (id % 4 <> 3), name TEXT, price REAL)")
        records = [item(number) for number in range(20)]
        records[5] = SinkRecord(topic="items", partition=0, offset=5, value={"schema": "less"})
        run = put(url, records, errors__tolerance="all")
        assert [found.offset for found, _ in run.reported] == [3, 5, 7, 11, 15, 19]
        assert query(database, "SELECT count(*) FROM items") == [(14,)]

    @pytest.mark.parametrize(
        "rejected",
        [item(5, "bad"), SinkRecord(topic="items", partition=0, offset=5, value={"schema": "less"})],
        ids=["by the database", "by the sink"],
    )
    def test_first_rejected_record_is_reported_if_errors_are_not_tolerated(
        self, url: str, database: Path, monkeypatch: pytest.MonkeyPatch, rejected: SinkRecord
    ) -> None:
        query(database, "CREATE TABLE items (id INTEGER, name TEXT CHECK (name <> 'bad'), price REAL)")
        raised: list[Exception] = []
        put_records = JdbcSinkTask.put

        def recording_put(task: JdbcSinkTask, records: SinkRecords) -> None:
            try:
                put_records(task, records)
            except Exception as error:
                raised.append(error)
                raise

        monkeypatch.setattr(JdbcSinkTask, "put", recording_put)
        records = [*map(item, range(5)), rejected, item(6, "bad")]
        with pytest.raises(DataError):
            put(url, records)
        (error,) = raised
        assert isinstance(error, RecordErrors)
        assert list(error.errors) == [5]
        assert query(database, "SELECT count(*) FROM items") == [(0,)]

    def test_write_to_a_read_only_file_fails_the_task_even_if_errors_are_tolerated(self, url: str) -> None:
        put(url, [item(1)])
        with pytest.raises(ConnectError, match="attempt to write a readonly database") as error:
            put(url + "?mode=ro", [item(2)], errors__tolerance="all")
        assert not isinstance(error.value, DataError)

    def test_upsert_without_a_unique_constraint_fails_the_task_even_if_errors_are_tolerated(
        self, url: str, database: Path
    ) -> None:
        query(database, "CREATE TABLE items (id INTEGER, name TEXT, price REAL)")
        with pytest.raises(ConnectError, match="ON CONFLICT clause does not match"):
            put(url, [item(1)], insert__mode="upsert", pk__mode="record_key", errors__tolerance="all")

    def test_earlier_record_of_a_row_is_written_if_the_database_rejects_a_later_record_of_the_row(
        self, url: str, database: Path
    ) -> None:
        query(database, "CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT CHECK (name <> 'bad'), price REAL)")
        records = [item(1, "good", offset=0), item(1, "bad", offset=1)]
        run = put(url, records, errors__tolerance="all", insert__mode="upsert", pk__mode="record_key")
        assert len(run.reported) == 1
        assert query(database, "SELECT name FROM items") == [("good",)]

    def test_write_to_a_locked_database_is_retried_up_to_max_retries(
        self, url: str, database: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("headrace_connectors.jdbc.writing.sqlite._BUSY_TIMEOUT_S", 0.01)
        put(url, [item(1)])
        blocker = sqlite3.connect(database, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        try:
            with pytest.raises(ConnectError, match=r"database is locked; giving up after 3 attempts \(max\.retries\)"):
                put(url, [item(2)], max__retries="2")
        finally:
            blocker.close()
        assert query(database, "SELECT count(*) FROM items") == [(1,)]

    def test_error_does_not_contain_the_database_message_if_trim_sensitive_log_is_true(
        self, url: str, database: Path
    ) -> None:
        query(database, "CREATE TABLE items (id INTEGER CHECK (id <> 1), name TEXT, price REAL)")
        with pytest.raises(DataError) as error:
            put(url, [item(1)], trim__sensitive__log="true")
        assert "CHECK" not in str(error.value)
        assert "IntegrityError" in str(error.value)

    def test_error_for_a_database_file_in_a_missing_directory_says_that_the_file_cannot_be_opened(
        self, tmp_path: Path
    ) -> None:
        with pytest.raises(ConnectError, match=r"Cannot connect to sqlite:.*unable to open database file"):
            put(f"jdbc:sqlite:{tmp_path}/missing/shop.db", [item(1)])


class TestConfiguration:
    def test_validation_reports_a_missing_directory_of_the_database_file_and_creates_no_file(
        self, url: str, database: Path, tmp_path: Path
    ) -> None:
        assert validation_errors(url) == {}
        assert not database.exists()
        query(database, "CREATE TABLE items (id INTEGER)")
        assert validation_errors(url) == {}
        (message,) = validation_errors(f"jdbc:sqlite:{tmp_path}/missing/shop.db")["connection.url"]
        assert f"directory {tmp_path}/missing does not exist" in message
        database.write_text("no database, but text " * 100)
        with pytest.raises(ConnectError, match="file is not a database"):
            put(url, [item(1)])

    @pytest.mark.parametrize(
        ("props", "keys"),
        [
            ({"insert.mode": "upsert"}, {"pk.mode"}),
            ({"delete.enabled": "true"}, {"delete.enabled"}),
            ({"pk.mode": "kafka", "pk.fields": "a,b"}, {"pk.fields"}),
            ({"insert.mode": "merge", "pk.mode": "both"}, {"insert.mode", "pk.mode"}),
            ({"jdbc.credentials.provider.class": "x.Y"}, {"jdbc.credentials.provider.class"}),
            ({"connection.url": "jdbc:oracle:thin:@x"}, {"connection.url"}),
        ],
    )
    def test_invalid_values_and_combinations_of_sink_settings_are_reported_with_their_keys(
        self, props: dict[str, str], keys: set[str]
    ) -> None:
        with pytest.raises(ConfigErrors) as error:
            JdbcSinkConfig.parse({"connection.url": "jdbc:sqlite:/x.db", **props})
        assert {found.key for found in error.value.errors} == keys
