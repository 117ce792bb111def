"""Tests of the lakehouse sink with a real broker and real tables: loaded rows, columns, and fatal errors.

The tasks of the jobs run in the test's process. `test_lakehouse_spark.py` has the tests with real Spark.
"""

from __future__ import annotations

import base64
import datetime
import re
import shutil
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable, write_deltalake

from headrace.api.errors import ConnectError
from support.broker import BrokerProcess, running_broker
from support.lakehouse_load import Load
from support.lakehouse_records import DATA, envelope, field, produce, rows_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

STRING_CONVERTER = "org.apache.kafka.connect.storage.StringConverter"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


def read_topic(broker: BrokerProcess, topic: str, count: int) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "reader"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = consumer.consume(count, timeout=20)
    consumer.close()
    return messages


@pytest.fixture
def load(broker: BrokerProcess, tmp_path: Path) -> Iterator[Callable[..., Load]]:
    loads: list[Load] = []

    def start(*topics: str, regex: str | None = None, **props: str) -> Load:
        dotted = {key.replace("__", "."): value for key, value in props.items()}
        loads.append(Load(broker.address, tmp_path, topics, dotted, regex))
        return loads[-1]

    yield start
    for started in loads:
        started.stop()


def test_values_of_every_connect_type_are_loaded_into_a_column_of_the_matching_spark_type(
    load: Callable[..., Load], broker: BrokerProcess, tmp_path: Path
) -> None:
    decimal = {"name": DATA + "Decimal", "parameters": {"scale": "2"}}
    fields = [
        field("i8", "int8"),
        field("i16", "int16"),
        field("i32", "int32"),
        field("i64", "int64"),
        field("f32", "float"),
        field("f64", "double"),
        field("flag", "boolean"),
        field("Upper Case.and dots", "string"),
        field("raw", "bytes"),
        field("price", "bytes", **decimal),
        field("wide", "bytes", name=DATA + "Decimal", parameters={"scale": "3", "connect.decimal.precision": "30"}),
        field("day", "int32", name=DATA + "Date"),
        field("time", "int32", name=DATA + "Time"),
        field("at", "int64", name=DATA + "Timestamp"),
        field("tags", "array", items={"type": "string", "optional": True}),
        field("counts", "map", keys={"type": "string"}, values={"type": "int64"}),
        field("by_number", "map", keys={"type": "int32"}, values={"type": "int64", "name": DATA + "Timestamp"}),
        field(
            "inner",
            "struct",
            fields=[field("days", "array", items={"type": "int32", "optional": True, "name": DATA + "Date"})],
        ),
        field("defaulted", "int32", default=7),
    ]
    wide = (-12345678901234567890123456789).to_bytes(16, "big", signed=True)
    full = {
        "i8": -128,
        "i16": 32767,
        "i32": -(2**31),
        "i64": 2**63 - 1,
        "f32": 1.5,
        "f64": 0.1,
        "flag": True,
        "Upper Case.and dots": "žluť 🚰",
        "raw": base64.b64encode(b"\x00\xff").decode(),
        "price": base64.b64encode((-12345).to_bytes(2, "big", signed=True)).decode(),
        "wide": base64.b64encode(wide).decode(),
        "day": 19_000,
        "time": 3_600_000,
        "at": 1_700_000_000_123,
        "tags": ["a", None],
        "counts": {"x": 1},
        "by_number": [[5, 1000]],
        "inner": {"days": [0, None]},
        "defaulted": None,
    }
    empty = dict.fromkeys(full)
    produce(
        broker.address,
        "types",
        [
            envelope(fields, full),
            None,
            envelope(fields, empty, spaced=True),
            envelope(fields, None, optional=True),
            envelope(fields, full),
        ],
    )
    first_run = load("types")
    first_run.until_offsets(types=5)
    first_run.stop()
    produce(broker.address, "types", [envelope(fields, full)])
    load("types").until_offsets(types=6)  # after a restart, the records still match the columns of the existing table

    first, tombstone, nulls, null_payload, last, again = rows_of(tmp_path / "types")
    expected = {
        **full,
        "raw": b"\x00\xff",
        "price": Decimal("-123.45"),
        "wide": Decimal("-12345678901234567890123456.789"),
        "day": datetime.date(2022, 1, 8),
        "at": datetime.datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=datetime.UTC),
        "counts": [("x", 1)],
        "by_number": [(5, datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC))],
        "inner": {"days": [datetime.date(1970, 1, 1), None]},
        "defaulted": 7,
    }
    metadata = {
        "_kafka_topic": "types",
        "_kafka_partition": 0,
        "_kafka_offset": 0,
        "_kafka_timestamp": datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=datetime.UTC),
    }
    assert first == {**metadata, **expected}
    assert {**again, **metadata} == first
    assert last["Upper Case.and dots"] == "žluť 🚰"
    assert {key: value for key, value in nulls.items() if value is not None}.keys() == {*metadata, "defaulted"}
    for row in (tombstone, null_payload):
        assert {key for key, value in row.items() if value is not None} == set(metadata)
    table = DeltaTable(tmp_path / "types")
    assert table.protocol().reader_features is None
    types = {f.name: str(f.type.type) for f in table.schema().fields if hasattr(f.type, "type")}
    assert types["i8"] == "byte"
    assert types["price"] == "decimal(38,2)"
    assert types["wide"] == "decimal(30,3)"
    assert types["time"] == "integer"


def test_json_without_schemas_is_loaded_into_declared_columns_and_plain_strings_are_loaded_into_one_column(
    load: Callable[..., Load], broker: BrokerProcess, tmp_path: Path
) -> None:
    full = b'{"id": 1, "name": "a", "day": "2026-01-02", "x": 9}'
    produce(broker.address, "plain", [full, b"null", b'{"id":2,"tags":["t"]}'])
    plain = load(
        "plain",
        value__converter__schemas__enable="false",
        lakehouse__schema="id BIGINT NOT NULL, name STRING, day DATE, tags ARRAY<STRING>",
        lakehouse__metadata__columns="false",
    )
    plain.until_offsets(plain=3)
    produce(broker.address, "lines", [b"one", None, b"tw\xff"])
    load("lines", value__converter=STRING_CONVERTER).until_offsets(lines=3)

    table = DeltaTable(tmp_path / "plain").to_pyarrow_table().to_pylist()
    assert table == [
        {"id": 1, "name": "a", "day": datetime.date(2026, 1, 2), "tags": None},
        {"id": None, "name": None, "day": None, "tags": None},
        {"id": 2, "name": None, "day": None, "tags": ["t"]},
    ]
    assert [row["value"] for row in rows_of(tmp_path / "lines")] == ["one", None, "tw�"]


def test_restart_loads_missing_records_only_into_the_table_that_lacks_them(
    load: Callable[..., Load], broker: BrokerProcess, tmp_path: Path
) -> None:
    """A crash between the commits of two tables in one micro-batch leaves one table with fewer records."""
    for topic in ("left", "right"):
        produce(broker.address, topic, [envelope([field("n", "int32")], {"n": n}) for n in range(20)])
    first = load("left", "right")
    first.until_offsets(left=20, right=20)
    first.stop()
    shutil.rmtree(tmp_path / "right")
    produce(broker.address, "left", [envelope([field("n", "int32")], {"n": n}) for n in range(20, 25)])
    load("left", "right").until(
        lambda _: (tmp_path / "right" / "_delta_log").exists() and len(rows_of(tmp_path / "left")) == 25
    )
    for topic, count in (("left", 25), ("right", 20)):
        rows = rows_of(tmp_path / topic)
        assert [row["n"] for row in rows] == [row["_kafka_offset"] for row in rows] == list(range(count))


def test_parquet_table_contains_each_record_once_after_a_restart_of_the_query(
    load: Callable[..., Load], broker: BrokerProcess, tmp_path: Path
) -> None:
    fields = [field("n", "int64")]
    produce(broker.address, "files", [envelope(fields, {"n": n}) for n in range(100)], partitions=3)
    first = load("files", lakehouse__format="parquet")
    first.until(lambda offsets: sum(offsets.values()) == 100)
    first.stop()
    produce(broker.address, "files", [envelope(fields, {"n": n}) for n in range(100, 150)], partitions=3)
    second = load("files", lakehouse__format="parquet")
    second.until(lambda offsets: sum(offsets.values()) == 150)
    rows = pq.read_table(tmp_path / "files").to_pylist()
    assert sorted(row["n"] for row in rows) == list(range(150))
    assert len({(row["_kafka_partition"], row["_kafka_offset"]) for row in rows}) == 150


def test_new_topic_that_matches_topics_regex_is_loaded_long_before_the_default_of_metadata_max_age_ms(
    load: Callable[..., Load], broker: BrokerProcess, tmp_path: Path
) -> None:
    running = load(regex="late[.].*")
    time.sleep(0.2)  # the run has started, and has found no topic
    produce(broker.address, "late.one", [envelope([field("n", "int32")], {"n": 1})])
    started = time.monotonic()
    running.until_offsets(**{"late.one": 1})
    assert time.monotonic() - started < 60
    assert [row["n"] for row in rows_of(tmp_path / "late.one")] == [1]


def test_records_before_a_schema_change_are_loaded_and_dlq_records_can_be_loaded_into_another_table(
    load: Callable[..., Load], broker: BrokerProcess, tmp_path: Path
) -> None:
    old = [envelope([field("n", "int32"), field("trimmed", "string")], {"n": n, "trimmed": None}) for n in range(7)]
    new = envelope([field("n", "string"), field("extra", "int32")], {"n": "x", "extra": 1})
    # The new record has offset 2 in partition 0.
    produce(broker.address, "drift", [*old[:4], new, *old[4:]], partitions=2)
    for _ in range(2):  # a restarted task fails with the same error and loads no record
        stopped = load("drift")
        with pytest.raises(ConnectError) as error:
            stopped.until_offsets(drift=4)
        assert re.match(
            r"topic drift, partition 0, offset 2: the record's columns do not match table .*/drift: column n:"
            r" int -> string, column trimmed removed \(string\), column extra added \(int\); the records before each"
            r" partition's first bad record are loaded\.",
            str(error.value),
        )
        stopped.stop()
        assert stopped.context.offsets == {("drift", 0): 2, ("drift", 1): 4}
        rows = rows_of(tmp_path / "drift")
        assert sorted(zip([r["_kafka_partition"] for r in rows], [r["n"] for r in rows], strict=True)) == [
            *((0, n) for n in (0, 2)),
            *((1, n) for n in (1, 3, 4, 6)),
        ]
        assert DeltaTable(tmp_path / "drift").version() == 0

    # As the error recommends, send bad records to a dead letter queue, and load its topic into another table.
    dlq = {
        "errors__deadletterqueue__topic__name": "drift.new",
        "errors__deadletterqueue__topic__replication__factor": "1",
        "errors__deadletterqueue__context__headers__enable": "true",
    }
    tolerant = load("drift", errors__tolerance="all", **dlq)
    tolerant.until_offsets(drift=4)
    tolerant.stop()
    assert sorted(row["n"] for row in rows_of(tmp_path / "drift")) == list(range(7))
    (dlq_record,) = read_topic(broker, "drift.new", 1)
    error_class = dict(dlq_record.headers())["__connect.errors.exception.class.name"]
    assert error_class == b"org.apache.kafka.connect.errors.DataException"
    load("drift.new").until_offsets(**{"drift.new": 1})
    assert [(row["n"], row["extra"]) for row in rows_of(tmp_path / "drift.new")] == [("x", 1)]


def test_task_fails_despite_errors_tolerance_all_if_another_tool_created_its_table_with_other_columns(
    load: Callable[..., Load], broker: BrokerProcess, tmp_path: Path
) -> None:
    produce(broker.address, "foreign", [envelope([field("n", "int32")], {"n": 1})])
    write_deltalake(tmp_path / "foreign", pa.table({"n": ["x"]}))
    with pytest.raises(ConnectError, match=r"foreign has no column _kafka_topic: .*lakehouse.metadata.columns=false"):
        load("foreign", errors__tolerance="all").until_offsets(foreign=1)
    with pytest.raises(ConnectError, match=r"column n: string -> int; table foreign was not created by"):
        load("foreign", errors__tolerance="all", lakehouse__metadata__columns="false").until_offsets(foreign=1)
    assert DeltaTable(tmp_path / "foreign").version() == 0


def test_each_record_is_loaded_with_the_defaults_of_its_own_schema(
    load: Callable[..., Load], broker: BrokerProcess, tmp_path: Path
) -> None:
    plain, day = field("n", "int32"), field("d", "int32", name=DATA + "Date")
    values = [
        envelope([plain, day], {"n": None, "d": 0}),
        envelope([field("n", "int32", default=7), day], {"n": None, "d": 1}),
        envelope([day, field("n", "int32", default=8)], {"d": None, "n": None}),
        envelope([plain, day], {"n": 1, "d": 2}),
        envelope([plain, day], {"n": "bad", "d": 2}),
    ]
    produce(broker.address, "defaults", values)
    load("defaults", errors__tolerance="all").until_offsets(defaults=5)
    days = [datetime.date(1970, 1, 1), datetime.date(1970, 1, 2), None, datetime.date(1970, 1, 3)]
    rows = rows_of(tmp_path / "defaults")
    assert [(row["n"], row["d"]) for row in rows] == list(zip([None, 7, 8, 1], days, strict=True))


def test_bad_record_fails_the_task_or_is_skipped_according_to_errors_tolerance(
    load: Callable[..., Load], broker: BrokerProcess, tmp_path: Path
) -> None:
    fields = [field("n", "int32"), {"type": "string", "optional": False, "field": "s"}]
    good = envelope(fields, {"n": 1, "s": "a"})
    bad = [b"no json", envelope(fields, {"n": "x", "s": "a"}), envelope(fields, {"n": 1, "s": None}), b'{"a": 1}']
    produce(broker.address, "bad", [good, *bad, good])
    with pytest.raises(
        ConnectError, match=r"topic bad, partition 0, offset 1: .* JSON is malformed: .* \(and 3 more bad records in"
    ):
        load("bad").until_offsets(bad=6)
    assert [row["_kafka_offset"] for row in rows_of(tmp_path / "bad")] == [0]
    tolerant = {
        "errors__tolerance": "all",
        "errors__deadletterqueue__topic__name": "bad.dlq",
        "errors__deadletterqueue__topic__replication__factor": "1",
        "errors__deadletterqueue__context__headers__enable": "true",
    }
    load("bad", **tolerant).until_offsets(bad=6)
    assert [row["_kafka_offset"] for row in rows_of(tmp_path / "bad")] == [0, 5]
    dlq_records = read_topic(broker, "bad.dlq", len(bad))
    assert [record.value() for record in dlq_records] == bad
    reasons = [dict(record.headers())["__connect.errors.exception.message"].decode() for record in dlq_records]
    assert reasons[1:3] == [
        "Invalid value for type INT32: 'x' (field \"n\")",
        'Invalid null value for required STRING field (field "s")',
    ]


def test_task_fails_by_default_if_retention_deletes_records_before_the_task_has_loaded_them(
    load: Callable[..., Load], broker: BrokerProcess, tmp_path: Path
) -> None:
    fields = [field("n", "int32")]
    produce(broker.address, "trimmed", [envelope(fields, {"n": n}) for n in range(4)])
    first = load("trimmed")
    first.until_offsets(trimmed=4)
    first.stop()
    produce(broker.address, "trimmed", [envelope(fields, {"n": n}) for n in range(4, 8)])
    admin = AdminClient({"bootstrap.servers": broker.address})
    for future in admin.delete_records([TopicPartition("trimmed", 0, 6)]).values():
        future.result(30)
    with pytest.raises(Exception, match=r"topic trimmed, partition 0: retention deleted offsets 4 to 5"):
        load("trimmed").until_offsets(trimmed=8)
    load("trimmed", lakehouse__fail__on__data__loss="false").until_offsets(trimmed=8)
    assert [row["n"] for row in rows_of(tmp_path / "trimmed")] == [0, 1, 2, 3, 6, 7]


def test_task_fails_despite_errors_tolerance_all_if_the_columns_of_a_topic_without_schemas_are_not_declared(
    load: Callable[..., Load], broker: BrokerProcess
) -> None:
    produce(broker.address, "undeclared", [b'{"a":1}'])
    props = {"value__converter__schemas__enable": "false", "lakehouse__table__other__schema": "a INT"}
    with pytest.raises(ConnectError, match=r"set lakehouse.schema or lakehouse.table.undeclared.schema to Spark DDL"):
        load("undeclared", errors__tolerance="all", **props).until_offsets(undeclared=1)
