"""Describes the executors' files for Iceberg's manifests: statistics, and partition values in Iceberg's form.

Nothing is read here: the statistics and field ids are in the footer that the executor returned. In files without field
ids, readers find the columns by the table's name mapping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile as IcebergDataFile
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.transforms import VoidTransform
from pyiceberg.typedef import Record

from headrace_connectors.lakehouse.column_types import SchemaError, quoted
from headrace_connectors.lakehouse.committers.iceberg_schema import field_ids
from headrace_connectors.lakehouse.files.data_file import DataFile
from headrace_connectors.lakehouse.files.field_ids import FieldId, read_field_ids

NAME_MAPPING_KEY = "schema.name-mapping.default"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = _EPOCH.date()


def describe_files(
    metadata: TableMetadata, location: str, files: Sequence[DataFile]
) -> tuple[list[IcebergDataFile], bool]:
    """Return the entries of a manifest for files below `location`, and whether all of them have field ids.

    Raises SchemaError if a file has another column than the table, or nulls in a required column.
    """
    schema, spec = metadata.schema(), metadata.spec()
    plan = compute_statistics_plan(schema, metadata.properties)
    ids = parquet_path_to_id_mapping(schema)
    expected = field_ids(schema.fields)
    described, have_ids = [], True
    for file in files:
        footer = pq.read_metadata(pa.BufferReader(file.footer))
        _check_columns(footer, ids)
        have_ids &= _check_ids(read_field_ids(footer.schema.to_arrow_schema()), expected)
        statistics = data_file_statistics_from_parquet_metadata(footer, plan, ids)
        entry = IcebergDataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{location}/{file.path}",
            file_format=FileFormat.PARQUET,
            partition=partition_record(spec, file.partition),
            file_size_in_bytes=file.size,
            sort_order_id=None,
            spec_id=metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )
        _check_required(schema, entry)
        described.append(entry)
    return described, have_ids


def _check_columns(footer: pq.FileMetaData, ids: dict[str, int]) -> None:
    for number in range(footer.num_columns):
        path = footer.schema.column(number).path
        if path not in ids:
            raise SchemaError(f"column {path} does not exist")


def _check_ids(found: Mapping[str, FieldId], expected: Mapping[str, FieldId]) -> bool:
    for name, id_ in found.items():
        if id_ != expected[name]:
            raise SchemaError(f"column {quoted(name)} was replaced by another column of the same name")
    return bool(found)


def _check_required(schema: Schema, file: IcebergDataFile) -> None:
    for field in schema.fields:
        if not field.required or not field.field_type.is_primitive:
            continue
        nulls = file.null_value_counts.get(field.field_id) if file.null_value_counts else None
        if nulls is None and file.record_count:
            raise SchemaError(f"column {quoted(field.name)} is required, but the records do not have it")
        if nulls:
            raise SchemaError(f"column {quoted(field.name)} is required, but is null in {nulls} records")


def partition_record(spec: PartitionSpec, values: Sequence[Any]) -> Record:
    """Return partition values in the form of manifests. `values` has no entry for dropped fields (`void`)."""
    remaining = iter(values)
    record = [
        None if isinstance(field.transform, VoidTransform) else _to_manifest(next(remaining)) for field in spec.fields
    ]
    return Record(*record)


def _to_manifest(value: Any) -> Any:
    if isinstance(value, datetime):
        return (value - _EPOCH) // timedelta(microseconds=1)
    if isinstance(value, date):
        return (value - _EPOCH_DAY).days
    return value


def missing_name_mapping(metadata: TableMetadata) -> NameMapping | None:
    """Return the name mapping that the table needs so that readers find the columns of files without field ids.

    None if the table has a name mapping. Raises SchemaError if that mapping does not have all columns.
    """
    mapping, expected = metadata.name_mapping(), metadata.schema().name_mapping
    if mapping is None:
        return expected
    present, needed = mapping._field_by_name, expected._field_by_name
    for name, field in needed.items():
        if name not in present or present[name].field_id != field.field_id:
            raise SchemaError(
                f"the name mapping of the table (property {NAME_MAPPING_KEY}) does not map {name} to its column; remove"
                " the property, or add the name"
            )
    return None
