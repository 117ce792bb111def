"""Base classes and helper functions for transforms of keys or values.

A transform implements only `change`, which transforms a list of values with the same schema. The base classes call
`change` with the keys or values of a batch, or of a single record. If `change` raises an exception for a batch, the
base classes call `change` for each record to find the bad records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, ClassVar, Generic, TypeVar, cast

from headrace.api.config import Importance, key
from headrace.api.errors import DataError, RecordErrors
from headrace.api.plugin import C
from headrace.api.transform import Transformation
from headrace.data.batch import Batch, from_records
from headrace.data.columns import ColumnarValues, Values, listed
from headrace.data.schema import Schema, Type
from headrace.data.struct import row_converter
from headrace_transforms.record_errors import place_of, record_error, schema_type_name, type_name

_T = TypeVar("_T")

_RECORD_ERRORS = (DataError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError)

_SEARCH_PARTS = 16
"""The number of parts into which a batch is split to find the records that cause an error. To transform a part costs
little more than to transform one record."""

TransformResult = tuple[Schema | None, Values]
"""The new schema, and one new value for each old value, in the same order."""


class ListTransformation(Transformation[C]):
    """The base class of transforms that implement only `change_batch`. A single record is transformed as a batch."""

    abstract = True
    stateless = True

    def change_batch(self, batch: Any) -> Batch | Sequence[Batch] | None:
        """Return the transformed batch or batches, or None to drop the batch. Raises DataError for a bad record."""
        raise NotImplementedError

    def apply_batch(self, batch: Any) -> Batch | Sequence[Batch] | None:
        """Return the transformed batch. Raises RecordErrors with an error for each bad record."""
        try:
            return self.change_batch(batch)
        except _RECORD_ERRORS as error:
            raise self._find_bad_records(batch, error) from error

    def _find_bad_records(self, batch: Any, error: Exception) -> RecordErrors:
        errors: dict[int, Exception] = {}
        parts = _split(range(len(batch)))
        while parts:
            part = parts.pop()
            try:
                self.change_batch(batch.take(part))
            except _RECORD_ERRORS as cause:
                if len(part) > 1:
                    parts += _split(part)
                    continue
                known = isinstance(cause, DataError)
                errors[part[0]] = cause if known else DataError(f"{type(cause).__name__}: {cause}")
        errors = dict(sorted(errors.items()))
        # If each record can be transformed alone, but the whole batch cannot, the error applies to all records.
        return RecordErrors(errors or dict.fromkeys(range(len(batch)), error))

    def apply(self, record: Any) -> Any:
        """Return the transformed record, or None if it is dropped. Raises DataError."""
        try:
            result = self.apply_batch(from_records([record])[0])
        except RecordErrors as error:
            raise error.errors[0] from None
        batches = [result] if isinstance(result, Batch) else result or []
        return next((changed for batch in batches for changed in batch.to_records()), None)


def _split(indexes: range) -> list[range]:
    """Split the indexes of records into at most `_SEARCH_PARTS` parts."""
    size = -(-len(indexes) // _SEARCH_PARTS)
    return [indexes[start : start + size] for start in range(0, len(indexes), size)]


class KeyOrValue(ListTransformation[C]):
    """A transform of either keys or values. The attribute `side` of the subclass selects keys or values."""

    abstract = True
    changes_topics = False
    side: ClassVar[str]
    """``key`` or ``value``."""

    passes_null: ClassVar[bool] = False
    """Whether null keys or values stay unchanged and keep their schema."""

    def change(self, schema: Schema | None, values: list[Any], batch: Batch) -> TransformResult:
        """Return the new schema and values. `batch` has all other attributes of the records. Raises DataError."""
        raise NotImplementedError

    def change_columnar(self, schema: Schema | None, values: ColumnarValues, batch: Batch) -> TransformResult | None:
        """Transform record values in columnar form, without converting them to a list of values.

        Returns None if `change` must transform the values instead. This method is not called for keys.
        """
        return None

    def change_batch(self, batch: Any) -> Batch | Sequence[Batch]:
        """Transform the batch's keys or values."""
        if self.side == "value" and batch.compact is not None:
            changed = self.change_columnar(batch.value_schema, batch.compact, batch)
            if changed is not None:
                return cast("Batch", batch.replace(value_schema=changed[0], values=changed[1]))
        values = self.side_values(batch)
        if self.passes_null and None in values:
            return self._change_around_nulls(batch, values)
        return self._changed(batch, values)

    def side_values(self, batch: Batch) -> list[Any]:
        """Return the batch's keys if `side` is ``key``, and its values if `side` is ``value``."""
        if self.side == "value":
            return batch.values
        return batch.keys if batch.keys is not None else [None] * len(batch)

    def _changed(self, batch: Batch, values: list[Any]) -> Batch:
        if self.side == "value":
            schema, changed = self.change(batch.value_schema, values, batch)
            return batch.replace(value_schema=schema, values=changed)
        schema, changed = self.change(batch.key_schema, values, batch)
        return batch.replace(key_schema=schema, keys=listed(changed))

    def _change_around_nulls(self, batch: Batch, values: list[Any]) -> list[Batch]:
        batches = []
        for is_null, run in groupby(range(len(values)), key=lambda index: values[index] is None):
            subset = batch.take(list(run))
            batches.append(subset if is_null else self._changed(subset, self.side_values(subset)))
        return batches


class SchemaCache(Generic[_T]):
    """Caches one object per schema, for at most 16 schemas. Kafka's transforms have the same limit."""

    __slots__ = ("_entries", "_make", "_size")

    def __init__(self, make: Callable[[Schema], _T], size: int = 16) -> None:
        self._make = make
        self._size = size
        self._entries: dict[Schema, _T] = {}

    def __call__(self, schema: Schema) -> _T:
        """Return the object for a schema. If it is not cached, create it and add it to the cache."""
        found = self._entries.get(schema)
        if found is None:
            found = self._make(schema)
            if len(self._entries) >= self._size:
                del self._entries[next(iter(self._entries))]
            self._entries[schema] = found
        return found


def replace_null_key() -> Any:
    """Return the definition of the configuration key ``replace.null.with.default``."""
    return key(
        "replace.null.with.default",
        default=True,
        doc="Whether to replace null with the default in fields that have a default.",
        importance=Importance.MEDIUM,
    )


def require_struct_schema(schema: Schema, purpose: str, side: str) -> None:
    """Raise DataError, with `purpose` in the message, if the schema is not a struct schema."""
    if schema.type is not Type.STRUCT:
        message = f"Only Struct objects supported for [{purpose}], found: {schema_type_name(schema)}"
        raise record_error(message, place_of(side), "STRUCT")


def require_maps(values: list[Any], purpose: str, side: str) -> None:
    """Raise DataError, with `purpose` in the message, if a schemaless value is not a map."""
    if set(map(type, values)) == {dict}:
        return
    for value in values:
        if not isinstance(value, dict):
            message = f"Only Map objects supported in absence of schema for [{purpose}], found: {type_name(value)}"
            raise record_error(message, place_of(side), "MAP")


def require_no_nulls(values: list[Any], purpose: str, side: str) -> None:
    """Raise DataError, with `purpose` in the message, if a value is null."""
    if None in values:
        raise record_error(f"Only Struct objects supported for [{purpose}], found: null", place_of(side), "STRUCT")


def copy_basics(schema: Schema, fields: Sequence[tuple[str, Schema]]) -> Schema:
    """Return a struct schema with these fields and the name, version, doc and parameters of `schema`.

    The new schema is required and has no default. Raises DataError if two fields have the same name.
    """
    try:
        return Schema(
            Type.STRUCT,
            fields=fields,
            name=schema.name,
            version=schema.version,
            doc=schema.doc,
            parameters=schema.parameters,
        )
    except DataError as error:
        types: dict[str, list[str]] = {}
        for name, field_schema in fields:
            types.setdefault(name, []).append(schema_type_name(field_schema))
        name, found = next((name, found) for name, found in types.items() if len(found) > 1)
        place = f"field {name} of the new struct"
        raise record_error(str(error), place, "one field with this name", " and ".join(found)) from None


def row_defaults(schema: Schema) -> dict[int, Any]:
    """Return the defaults of a struct's fields by field index, in the same form as values in rows."""
    return {
        field.index: row_converter(field.schema)(field.schema.default)
        for field in schema.fields
        if field.schema.default is not None
    }


def defaults_filler(schema: Schema, replace_null: bool) -> Callable[[list[Any]], list[Any]]:
    """Return a function that replaces null fields in rows with defaults.

    Without `replace_null`, the function returns the rows unchanged.
    """
    defaults = row_defaults(schema) if replace_null else {}
    if not defaults:
        return lambda rows: rows

    def filled(row: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
        if row is None or all(row[index] is not None for index in defaults):
            return row
        return tuple(defaults.get(index) if value is None else value for index, value in enumerate(row))

    return lambda rows: [filled(row) for row in rows]
