"""The modes of schema.compatibility: which records the sink projects to the schema of an open file.

The modes are those of Confluent's sink. In contrast to Confluent's sink, a field is dropped only in the mode FORWARD,
and only if the version of the record's schema is newer than that of the file's schema.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.api.errors import DataError, RecordErrors
from headrace.data.batch import SinkBatch
from headrace.data.schema import Schema
from headrace.data.schema_projection import Projection, find_projection

EncodedValues = tuple[Schema | None, Sequence[Any]]
"""Encoded values, and the schema that all values of their file must have, or None."""


@dataclass(frozen=True, slots=True)
class ValueProjector:
    """Projects the values of a batch to the schema of an open file, and encodes the projected values."""

    mode: str
    """BACKWARD, FORWARD or FULL."""
    batch: SinkBatch
    schema: Schema
    """The schema of the batch's values."""
    encode: Callable[[SinkBatch], EncodedValues]
    """Encodes the values of a batch. Raises RecordErrors."""

    def is_compatible(self, schema: Schema) -> bool:
        """Whether the values can be projected to `schema`.

        Also returns True if the schema of the values has no version. `project` then rejects the values.
        """
        return self.schema.version is None or self._projection(schema) is not None

    def project(self, schema: Schema, start: int, end: int) -> EncodedValues:
        """Project the values from index `start` up to, but not including, `end` to a compatible schema.

        Raises RecordErrors, with indexes that are relative to `start`, for values whose schema has no version, and for
        values that cannot be encoded after the projection.
        """
        if self.schema.version is None:
            raise RecordErrors(dict.fromkeys(range(end - start), self._missing_version()))
        projection = self._projection(schema)
        assert projection is not None
        values = [projection.apply(value) for value in self.batch.values[start:end]]
        return self.encode(self.batch.take(range(start, end)).replace(value_schema=schema, values=values))

    def _projection(self, schema: Schema) -> Projection | None:
        return projection_of(self.mode, self.schema, schema)

    def _missing_version(self) -> DataError:
        return DataError(
            f"schema.compatibility={self.mode} needs a version in the value schema of the record, because this schema "
            f"differs from the schema of the open file of topic {self.batch.original_topic}. Set schema.version with "
            "the transform SetSchemaMetadata, or set schema.compatibility=NONE"
        )


def projector_for(mode: str, batch: SinkBatch, encode: Callable[[SinkBatch], EncodedValues]) -> ValueProjector | None:
    """Return the projector of a batch, or None if the values of the batch are never projected.

    `mode` is NONE, BACKWARD, FORWARD or FULL, in upper or lower case.
    """
    if mode.upper() == "NONE" or batch.value_schema is None:
        return None
    return ValueProjector(mode.upper(), batch, batch.value_schema, encode)


def projection_of(mode: str, record_schema: Schema, file_schema: Schema) -> Projection | None:
    """Return the projection of a record's value to the schema of an open file, or None if the file must be completed.

    `record_schema` has a version. `mode` is BACKWARD, FORWARD or FULL.
    """
    version, file_version = record_schema.version, file_schema.version
    if version is None or file_version is None:
        return None
    if version < file_version if mode == "FORWARD" else version > file_version:
        return None
    projection = find_projection(record_schema, file_schema)
    drops_newer_fields = mode == "FORWARD" and version > file_version
    return None if projection is None or (projection.drops_fields and not drops_newer_fields) else projection
