"""Tests of schema.compatibility: which records of the S3 sink share files, and with which values."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.errors import DataError, RecordErrors
from headrace.data.batch import SinkBatch
from headrace.data.schema import INT32_SCHEMA, INT64_SCHEMA, OPTIONAL_STRING_SCHEMA, STRING_SCHEMA, Schema, Type, struct
from headrace_connectors.s3.files import Encoded, PartitionFiles
from headrace_connectors.s3.schema_compatibility import EncodedValues, projector_for
from headrace_connectors.s3.sink_config import S3SinkConfig

ID = ("id", INT32_SCHEMA)
NAME = ("name", OPTIONAL_STRING_SCHEMA)
V1 = struct([ID], version=1)
V2 = struct([ID, NAME], version=2)
V2_WITHOUT_NAME = struct([ID], version=2)
UNVERSIONED = struct([ID])
V2_REQUIRED = struct([ID, ("name", STRING_SCHEMA)], version=2)
V2_RENAMED = struct([ID], version=2, name="other")
REJECTED_ID = 13
"""`encode` rejects this value after a projection."""


class RecordedFiles:
    """A fake for `Files`. It stores the offsets and the values of the appended records."""

    def __init__(self) -> None:
        self.records: list[tuple[int, Any]] = []
        self.schemas: set[Schema | None] = set()

    def append(self, records: Encoded) -> None:
        schema, values = records.sides[0]
        self.schemas.add(schema)
        self.records += zip(records.offsets, values, strict=True)

    def discard(self) -> None:
        raise NotImplementedError


def partition_files(mode: str, **props: str) -> PartitionFiles:
    base = {"s3.bucket.name": "b", "format.class": "JsonFormat", "flush.size": "100", "schema.compatibility": mode}
    config = S3SinkConfig.parse(base | {key.replace("__", "."): value for key, value in props.items()})
    return PartitionFiles(config, lambda directory, first, tombstone: RecordedFiles())


def encode(batch: SinkBatch) -> EncodedValues:
    """Return the values as they are. Reject the projected value `REJECTED_ID`."""
    values = batch.values
    errors = {index: DataError("rejected") for index, row in enumerate(values) if row[0] == REJECTED_ID}
    if errors:
        raise RecordErrors(errors)
    return batch.value_schema, values


def add(
    files: PartitionFiles, batch: SinkBatch, directories: str | list[str] = "a", timestamps: list[int] | None = None
) -> dict[int, Exception]:
    """Add a batch, and return the errors by offset."""
    projector = projector_for(files.config.schema_compatibility, batch, encode)
    sides = [(batch.value_schema, batch.values)]
    records = Encoded(batch.value_schema, batch.offsets, False, sides, projector)
    errors = files.add(records, directories, timestamps, 0)
    return {batch.offsets[index]: error for index, error in errors.items()}


def row(schema: Schema | None, offset: int) -> Any:
    return (offset, f"n{offset}")[: len(schema.fields)] if schema is not None else offset


def batch_of(schema: Schema | None, offsets: Sequence[int]) -> SinkBatch:
    rows = [row(schema, offset) for offset in offsets]
    return SinkBatch("items", rows, value_schema=schema, partition=0, offsets=offsets)


def groups(files: PartitionFiles) -> list[list[tuple[int, Any]]]:
    """Return the records (offset, value) of each file, for one directory. Each file must have only one schema."""
    found = [each.files for done in files.completed for each in done.files]
    found += [each.files for each in files.open.values()]
    for each in found:
        assert isinstance(each, RecordedFiles)
        assert len(each.schemas) == 1
    return [each.records for each in found]  # type: ignore[attr-defined]


def add_each(mode: str, *schemas: Schema | None) -> list[list[Any]]:
    """Add one record per schema to one directory. Return the values of each file."""
    files = partition_files(mode)
    for offset, schema in enumerate(schemas):
        assert add(files, batch_of(schema, [offset])) == {}
    return [[value for _, value in records] for records in groups(files)]


def test_older_values_are_projected_with_backward_and_full_and_newer_values_complete_the_files() -> None:
    for mode in ("BACKWARD", "FULL", "backward"):
        found = add_each(mode, V2, V1, V2, V1)
        assert found == [[(0, "n0"), (1, None), (2, "n2"), (3, None)]]
        assert add_each(mode, V1, V2, V1) == [[(0,)], [(1, "n1"), (2, None)]]


def test_newer_values_are_projected_with_forward_and_older_values_complete_the_files() -> None:
    assert add_each("FORWARD", V1, V2, V1) == [[(0,), (1,), (2,)]]
    assert add_each("FORWARD", V2, V1, V2) == [[(0, "n0")], [(1,), (2,)]]


def test_every_change_of_the_schema_completes_the_files_with_none() -> None:
    assert add_each("NONE", V2, V1, V2) == [[(0, "n0")], [(1,)], [(2, "n2")]]


@pytest.mark.parametrize("mode", ["BACKWARD", "FULL", "FORWARD"])
@pytest.mark.parametrize(
    ("file_schema", "record_schema"),
    [
        (V2_RENAMED, V1),
        (V1, V2_RENAMED),
        (V2_REQUIRED, V1),
        (V2, V2_REQUIRED.replace(name="other")),
        (V2, None),
        (None, V2),
    ],
)
def test_incompatible_schema_completes_the_files(
    mode: str, file_schema: Schema | None, record_schema: Schema | None
) -> None:
    assert add_each(mode, file_schema, record_schema) == [[row(file_schema, 0)], [row(record_schema, 1)]]


def test_only_forward_drops_a_field_and_only_if_the_version_of_the_record_is_newer() -> None:
    for mode in ("BACKWARD", "FULL"):
        assert add_each(mode, V2_WITHOUT_NAME, V2) == [[(0,)], [(1, "n1")]]
        assert add_each(mode, V2_WITHOUT_NAME, struct([ID, NAME], version=1)) == [[(0,)], [(1, "n1")]]
    assert add_each("FORWARD", V2_WITHOUT_NAME, V2) == [[(0,)], [(1, "n1")]]
    assert add_each("FORWARD", V2_WITHOUT_NAME, struct([ID, NAME], version=3)) == [[(0,), (1,)]]


def test_values_with_an_equal_version_are_projected_if_no_field_is_dropped() -> None:
    for mode in ("BACKWARD", "FULL", "FORWARD"):
        assert add_each(mode, V2, V2_WITHOUT_NAME) == [[(0, "n0"), (1, None)]]


def test_value_with_another_schema_without_a_version_is_rejected_and_the_files_stay_open() -> None:
    files = partition_files("BACKWARD")
    assert add(files, batch_of(V2, [0])) == {}
    errors = add(files, batch_of(UNVERSIONED, [1, 2]))
    assert [*errors] == [1, 2]
    for text in ("schema.compatibility=BACKWARD", "topic items", "SetSchemaMetadata"):
        assert text in str(errors[1])
    assert add(files, batch_of(V1, [3])) == {}
    assert groups(files) == [[(0, (0, "n0")), (3, (3, None))]]


def test_equal_schemas_need_no_version_and_a_file_schema_without_a_version_completes_the_files() -> None:
    for mode in ("BACKWARD", "FULL", "FORWARD"):
        assert add_each(mode, UNVERSIONED, struct([ID]), V1) == [[(0,), (1,)], [(2,)]]


def test_values_without_a_version_are_accepted_if_the_files_are_completed_for_another_reason() -> None:
    files = partition_files("BACKWARD", flush__size="2")
    assert add(files, batch_of(V2, [0])) == {}
    assert [*add(files, batch_of(UNVERSIONED, [1]))] == [1]
    assert add(files, batch_of(V2, [2])) == {}
    assert add(files, batch_of(UNVERSIONED, [3])) == {}
    assert [len(records) for records in groups(files)] == [2, 1]


def test_projected_value_that_cannot_be_encoded_is_rejected_and_the_other_values_are_written() -> None:
    files = partition_files("BACKWARD")
    assert add(files, batch_of(V2, [0])) == {}
    assert [*add(files, batch_of(V1, range(12, 16)))] == [REJECTED_ID]
    assert groups(files) == [[(0, (0, "n0")), (12, (12, None)), (14, (14, None)), (15, (15, None))]]


def test_incompatible_record_completes_the_files_of_all_directories() -> None:
    files = partition_files("BACKWARD")
    add(files, batch_of(V1, [0, 1]), ["a", "b"])
    add(files, batch_of(V2, [2]), "b")
    assert [len(done.files) for done in files.completed] == [2]
    assert [*files.open] == ["b"]


def test_timestamps_after_a_schema_change_are_compared_with_the_first_timestamp_of_the_new_files() -> None:
    props = {"rotate__interval__ms": "10", "partitioner__class": "HourlyPartitioner", "timezone": "UTC"}
    files = partition_files("NONE", **props)
    add(files, batch_of(V1, [0]), "a", [100])
    add(files, batch_of(V2, [1, 2]), "a", [95, 108])
    assert [[offset for offset, _ in records] for records in groups(files)] == [[0], [1], [2]]


_SCHEMAS = [
    V1, V2, V2_WITHOUT_NAME, UNVERSIONED, V2_RENAMED, None, struct([("id", INT64_SCHEMA)], version=3),
    struct([ID, ("tag", Schema(Type.STRING, default="t"))], version=2),
]  # fmt: skip


@given(st.data())
def test_files_values_and_errors_are_the_same_for_any_division_of_records_into_batches(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 20))
    records = data.draw(
        st.lists(
            st.tuples(st.sampled_from(_SCHEMAS), st.sampled_from("ab"), st.integers(0, 30)),
            min_size=count, max_size=count,
        )
    )  # fmt: skip
    mode = data.draw(st.sampled_from(["NONE", "BACKWARD", "FORWARD", "FULL"]))
    props = {"flush__size": str(data.draw(st.integers(1, 8)))}
    props["rotate__interval__ms"] = data.draw(st.sampled_from(["-1", "10"]))

    def write(cuts: set[int]) -> Any:
        files = partition_files(mode, partitioner__class="HourlyPartitioner", timezone="UTC", **props)
        rejected: list[int] = []
        for _, run in groupby(range(count), key=lambda at: (sum(cut <= at for cut in cuts), records[at][0])):
            offsets = list(run)
            batch = batch_of(records[offsets[0]][0], offsets)
            rejected += add(files, batch, [records[at][1] for at in offsets], [records[at][2] for at in offsets])
        return groups(files), [len(done.files) for done in files.completed], rejected

    found, sizes, rejected = write(data.draw(st.sets(st.integers(1, count))))
    assert (found, sizes, rejected) == write(set(range(count)))
    assert sorted([offset for written in found for offset, _ in written] + rejected) == list(range(count))
