"""What transforms of a key or a value have in common.

Such a transform says, in `change`, what becomes of a list of values of one schema; that is its only implementation. The
class here applies it to a batch's keys or values, to a single record, and finds the records at fault when it raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, ClassVar, Generic, TypeVar, cast

from headrace.api.config import Importance, key
from headrace.api.errors import BatchError, DataError
from headrace.api.transform import Transformation
from headrace.data.batch import Batch, from_records
from headrace.data.columns import Compact, Values, listed
from headrace.data.schema import Schema, Type
from headrace.data.struct import row_maker

_T = TypeVar("_T")

_FAULTS = (DataError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError)

Changed = tuple[Schema | None, Values]
"""A new schema and the new values, as many as there were."""


class ListTransformation(Transformation):
    """A transform with one implementation, `change_batch`, for batches and records alike."""

    abstract = True

    def change_batch(self, batch: Any) -> Batch | Sequence[Batch] | None:
        """What becomes of a batch. Raises DataError when a record cannot be handled."""
        raise NotImplementedError

    def apply_batch(self, batch: Any) -> Batch | Sequence[Batch] | None:
        """The changed batch. Raises BatchError naming every record that cannot be handled."""
        try:
            return self.change_batch(batch)
        except _FAULTS as error:
            raise self._located(batch, error) from error

    def _located(self, batch: Any, error: Exception) -> BatchError:
        errors: dict[int, Exception] = {}
        for index in range(len(batch)):
            try:
                self.change_batch(batch.take([index]))
            except _FAULTS as cause:
                errors[index] = cause if isinstance(cause, DataError) else DataError(f"{type(cause).__name__}: {cause}")
        # Every record alone is fine, the batch is not: a fault of the transform, which concerns all of them.
        return BatchError(errors or dict.fromkeys(range(len(batch)), error))

    def apply(self, record: Any) -> Any:
        """The changed record, None when it is dropped. Raises DataError."""
        try:
            result = self.apply_batch(from_records([record])[0])
        except BatchError as error:
            raise error.errors[0] from None
        batches = [result] if isinstance(result, Batch) else result or []
        return next((changed for batch in batches for changed in batch.to_records()), None)


class KeyOrValue(ListTransformation):
    """A transform of the keys or the values, as the subclass's `side` says."""

    abstract = True
    side: ClassVar[str]
    """``key`` or ``value``."""

    passes_null: ClassVar[bool] = False
    """Whether null keys or values pass unchanged, under their old schema."""

    def change(self, schema: Schema | None, values: list[Any], batch: Batch) -> Changed:
        """The new schema and values; `batch` is there for topic, timestamps and so on. Raises DataError."""
        raise NotImplementedError

    def change_compact(self, schema: Schema | None, values: Compact, batch: Batch) -> Changed | None:
        """The same for values in a compact form (the values, not the keys); None: they are changed as a list."""
        return None

    def change_batch(self, batch: Any) -> Batch | Sequence[Batch]:
        """Change one side of the batch."""
        if self.side == "value" and batch.compact is not None:
            changed = self.change_compact(batch.value_schema, batch.compact, batch)
            if changed is not None:
                return cast("Batch", batch.replace(value_schema=changed[0], values=changed[1]))
        values = self.operating(batch)
        if self.passes_null and None in values:
            return self._around_nulls(batch, values)
        return self._changed(batch, values)

    def operating(self, batch: Batch) -> list[Any]:
        """The values of the side."""
        if self.side == "value":
            return batch.values
        return batch.keys if batch.keys is not None else [None] * len(batch)

    def _changed(self, batch: Batch, values: list[Any]) -> Batch:
        if self.side == "value":
            schema, changed = self.change(batch.value_schema, values, batch)
            return batch.replace(value_schema=schema, values=changed)
        schema, changed = self.change(batch.key_schema, values, batch)
        return batch.replace(key_schema=schema, keys=listed(changed))

    def _around_nulls(self, batch: Batch, values: list[Any]) -> list[Batch]:
        batches = []
        for is_null, run in groupby(range(len(values)), key=lambda index: values[index] is None):
            part = batch.take(list(run))
            batches.append(part if is_null else self._changed(part, self.operating(part)))
        return batches


class SchemaCache(Generic[_T]):
    """What was made for each of the last few schemas (Kafka's transforms remember 16)."""

    __slots__ = ("_made", "_make", "_size")

    def __init__(self, make: Callable[[Schema], _T], size: int = 16) -> None:
        self._make = make
        self._size = size
        self._made: dict[Schema, _T] = {}

    def __call__(self, schema: Schema) -> _T:
        """What belongs to that schema, made when it is new."""
        found = self._made.get(schema)
        if found is None:
            found = self._make(schema)
            if len(self._made) >= self._size:
                del self._made[next(iter(self._made))]
            self._made[schema] = found
        return found


def replace_null_key() -> Any:
    """The key ``replace.null.with.default`` that many transforms have."""
    return key(
        "replace.null.with.default",
        default=True,
        doc="Whether a null in a field with a default counts as the default.",
        importance=Importance.MEDIUM,
    )


def require_struct_schema(schema: Schema, purpose: str) -> None:
    """Raises DataError when values of the schema are not structs."""
    if schema.type is not Type.STRUCT:
        raise DataError(f"Only Struct objects supported for [{purpose}], found: {schema.type.name}")


def require_maps(values: list[Any], purpose: str) -> None:
    """Raises DataError when a schemaless value is not a map."""
    if set(map(type, values)) == {dict}:
        return
    for value in values:
        if not isinstance(value, dict):
            found = "null" if value is None else type(value).__name__
            raise DataError(f"Only Map objects supported in absence of schema for [{purpose}], found: {found}")


def require_no_nulls(values: list[Any], purpose: str) -> None:
    """Raises DataError when a value is null."""
    if None in values:
        raise DataError(f"Only Struct objects supported for [{purpose}], found: null")


def copy_basics(schema: Schema, fields: Sequence[tuple[str, Schema]]) -> Schema:
    """A struct schema of other fields with the same name, version, doc, parameters; neither optional nor default."""
    return Schema(
        Type.STRUCT,
        fields=fields,
        name=schema.name,
        version=schema.version,
        doc=schema.doc,
        parameters=schema.parameters,
    )


def row_defaults(schema: Schema) -> dict[int, Any]:
    """The defaults of a struct's fields, in the form that they have in rows, by position."""
    return {
        field.index: row_maker(field.schema)(field.schema.default)
        for field in schema.fields
        if field.schema.default is not None
    }


def defaults_filler(schema: Schema, replace_null: bool) -> Callable[[list[Any]], list[Any]]:
    """The function that puts defaults in the place of null fields in rows of that schema, if that is wanted."""
    defaults = row_defaults(schema) if replace_null else {}
    if not defaults:
        return lambda rows: rows

    def filled(row: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
        if row is None or all(row[index] is not None for index in defaults):
            return row
        return tuple(defaults.get(index) if value is None else value for index, value in enumerate(row))

    return lambda rows: [filled(row) for row in rows]
