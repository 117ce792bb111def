"""Tests of schema.compatibility of the S3 sink with a real S3-compatible server (moto)."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow.parquet as pq
import pytest

from headrace.data.records import SinkRecord
from headrace.data.schema import INT32_SCHEMA, INT64_SCHEMA, STRING_SCHEMA, Schema, Type, array, struct
from headrace.data.struct import Struct
from headrace.testing import Restart, run_sink
from headrace_connectors.s3.sink import S3SinkConnector
from support import s3

pytestmark = pytest.mark.integration

TAG_V1 = struct([("text", STRING_SCHEMA)])
TAG_V2 = struct([("text", STRING_SCHEMA), ("weight", Schema(Type.INT32, default=1))])
V1 = struct([("id", INT32_SCHEMA), ("tags", array(TAG_V1))], version=1)
V2 = struct([("note", Schema(Type.STRING, optional=True)), ("id", INT64_SCHEMA), ("tags", array(TAG_V2))], version=2)
UNVERSIONED = V1.replace(version=None)


@pytest.fixture(scope="module")
def server() -> Iterator[s3.S3Server]:
    with s3.running() as running:
        yield running


@pytest.fixture
def bucket(server: s3.S3Server) -> s3.S3Server:
    server.clear()
    return server


def record(offset: int, schema: Schema) -> SinkRecord:
    tags = schema.fields[-1].schema
    assert tags.value_schema is not None
    tag = {"text": f"t{offset}"} | ({"weight": offset} if tags.value_schema is TAG_V2 else {})
    value = {"id": offset, "tags": [Struct(tags.value_schema, tag)]} | ({"note": "n"} if schema is V2 else {})
    return SinkRecord(
        topic="items", partition=0, offset=offset, value=Struct(schema, value), value_schema=schema, key=f"k{offset}",
        key_schema=STRING_SCHEMA, original_topic="items", original_partition=0, original_offset=offset,
    )  # fmt: skip


def put(server: s3.S3Server, records: Sequence[SinkRecord], *faults: Any, poll: int = 500, **props: str) -> Any:
    settings = server.props() | {"format.class": "JsonFormat", "flush.size": str(len(records))}
    settings |= {key.replace("__", "."): value for key, value in props.items()}
    return run_sink(S3SinkConnector, settings, records, faults=faults, max_poll_records=poll)


def stored(server: s3.S3Server) -> dict[int, list[Any]]:
    """Return the values of each object by its first offset."""
    found: dict[int, list[Any]] = {}
    for key, data in server.objects().items():
        first = int(key.rpartition("+")[2].split(".")[0])
        if key.endswith(".parquet"):
            found[first] = pq.read_table(io.BytesIO(data)).to_pylist()
        elif not key.endswith(".keys.json"):
            found[first] = [json.loads(line) for line in data.splitlines()]
    return found


def in_v2(offset: int, schema: Schema) -> dict[str, Any]:
    weight, note = (offset, "n") if schema is V2 else (1, None)
    return {"note": note, "id": offset, "tags": [{"text": f"t{offset}", "weight": weight}]}


def in_v1(offset: int) -> dict[str, Any]:
    return {"id": offset, "tags": [{"text": f"t{offset}"}]}


@pytest.mark.parametrize("format_class", ["JsonFormat", "ParquetFormat"])
def test_records_with_alternating_schemas_share_an_object_with_backward(bucket: s3.S3Server, format_class: str) -> None:
    schemas = [V2 if offset % 2 == 0 else V1 for offset in range(10)]
    records = [record(offset, schema) for offset, schema in enumerate(schemas)]
    put(bucket, records, format__class=format_class, schema__compatibility="BACKWARD", store__kafka__keys="true")
    assert stored(bucket) == {0: [in_v2(offset, schema) for offset, schema in enumerate(schemas)]}
    (keys,) = [data for key, data in bucket.objects().items() if key.endswith(".keys.json")]
    assert keys.splitlines() == [b'"k%d"' % offset for offset in range(10)]


@pytest.mark.parametrize("format_class", ["JsonFormat", "ParquetFormat"])
def test_newer_records_lose_their_new_fields_with_forward(bucket: s3.S3Server, format_class: str) -> None:
    newer = V1.replace(version=2, fields=[*V1.fields[:1], ("note", STRING_SCHEMA), *V1.fields[1:]])
    records = [record(0, V1), record(1, V1), record(3, V1)]
    value = Struct(newer, {"id": 2, "note": "new", "tags": [Struct(TAG_V1, {"text": "t2"})]})
    records.insert(2, record(2, V1).replace(value=value, value_schema=newer))
    put(bucket, records, format__class=format_class, schema__compatibility="FORWARD")
    assert stored(bucket) == {0: [in_v1(offset) for offset in range(4)]}


@pytest.mark.parametrize("format_class", ["JsonFormat", "ParquetFormat"])
@pytest.mark.parametrize("mode", ["BACKWARD", "FORWARD", "FULL"])
def test_objects_are_identical_after_a_restart_and_for_any_size_of_the_put_batches(
    bucket: s3.S3Server, format_class: str, mode: str
) -> None:
    schemas = [V1, V1, V2, V1, V1, V2, V2, V1, V2, V2, V2, V1]
    records = [record(offset, schema) for offset, schema in enumerate(schemas)]
    props = {"format__class": format_class, "schema__compatibility": mode, "flush__size": "4"}
    found = []
    for faults, poll in (((), 500), ((), 1), ((Restart(2), Restart(4)), 2)):
        bucket.clear()
        put(bucket, records, *faults, poll=poll, **props)
        found.append(bucket.objects())
    assert found[0] == found[1] == found[2]
    assert len(found[0]) > 1
    values = [value for _, values in sorted(stored(bucket).items()) for value in values]
    assert [value["id"] for value in values] == list(range(len(values)))


def test_record_without_a_schema_version_is_reported_if_its_schema_differs(bucket: s3.S3Server) -> None:
    records = [record(0, V2), record(1, UNVERSIONED), record(2, V1), record(3, V2)]
    props = {"schema__compatibility": "FULL", "errors__tolerance": "all", "flush__size": "3"}
    run = put(bucket, records, **props)
    ((reported, error),) = run.reported
    assert reported.offset == 1
    assert "schema.compatibility=FULL needs a version" in str(error)
    assert stored(bucket) == {0: [in_v2(0, V2), in_v2(2, V1), in_v2(3, V2)]}
    assert run.committed == {("items", 0): 4}


def test_rejected_record_is_reported_correctly_if_its_batch_also_contains_a_tombstone(bucket: s3.S3Server) -> None:
    tombstone = record(1, UNVERSIONED).replace(value=None)
    records = [record(0, V2), tombstone, record(2, UNVERSIONED), record(3, V1)]
    run = put(
        bucket, records, schema__compatibility="FULL", errors__tolerance="all", flush__size="3",
        behavior__on__null__values="write", store__kafka__keys="true",
    )  # fmt: skip
    assert [reported.offset for reported, _ in run.reported] == [2]
    assert stored(bucket) == {0: [in_v2(0, V2), in_v2(3, V1)]}
    assert [key for key in bucket.objects() if "tombstone" in key] == [
        "topics/items/tombstone/items+0+0000000001.keys.json"
    ]


def test_file_is_completed_when_the_schema_of_its_record_keys_changes_even_if_values_can_be_projected(
    bucket: s3.S3Server,
) -> None:
    keys = [struct([("a", INT32_SCHEMA)], version=2), struct([("a", INT32_SCHEMA)], version=1)]
    records = [
        record(at, schema).replace(key=Struct(key, {"a": at}), key_schema=key)
        for at, (schema, key) in enumerate([(V2, keys[0]), (V1, keys[1]), (V1, keys[1])])
    ]
    put(
        bucket, records, schema__compatibility="BACKWARD",
        store__kafka__keys="true", keys__format__class="ParquetFormat",
    )  # fmt: skip
    tables = {key: pq.read_table(io.BytesIO(data)) for key, data in bucket.objects().items() if ".keys." in key}
    assert [table.to_pylist() for table in tables.values()] == [[{"a": 0}]]
