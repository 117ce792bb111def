"""Removes fields that a header lists by name (``drop.fields.header.name`` of ExtractNewRecordState)."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from headrace.data.batch import Batch
from headrace.data.headers import Headers
from headrace.data.schema import Schema, Type
from headrace_transforms.key_or_value import SchemaCache, copy_basics


class ListedFieldDropper:
    """Removes from a record's value all fields that a header lists.

    If `from_key` is true, also removes them from the key.

    If `only_optional` is true, only optional fields are removed, so that the new schema is compatible with the old
    schema.
    """

    def __init__(self, header_key: str, from_key: bool, only_optional: bool) -> None:
        self._header_key = header_key
        self._from_key = from_key
        self._reducers = SchemaCache(lambda schema: _Reducer(schema, only_optional))

    def drop(self, batch: Batch) -> list[Batch]:
        """Remove from each record the fields that the record's header lists.

        Each returned batch contains consecutive records with the same list.
        """
        if batch.headers is None:
            return [batch]
        lists = [self._listed(headers) for headers in batch.headers]
        runs = groupby(range(len(lists)), key=lists.__getitem__)
        return [self._reduce(batch.take(list(indexes)), names) for names, indexes in runs]

    def _listed(self, headers: Headers) -> tuple[str, ...]:
        header = headers.last(self._header_key)
        return tuple(map(str, header.value)) if header is not None and isinstance(header.value, list) else ()

    def _reduce(self, batch: Batch, names: tuple[str, ...]) -> Batch:
        if not names:
            return batch
        schema, keys = batch.value_schema, batch.keys
        if schema is not None and schema.type is Type.STRUCT:
            reduced, values = self._reducers(schema).reduce(names, batch.values)
            batch = batch.replace(value_schema=reduced, values=values)
        schema = batch.key_schema
        if self._from_key and keys is not None and schema is not None and schema.type is Type.STRUCT:
            reduced, keys = self._reducers(schema).reduce(names, keys)
            batch = batch.replace(key_schema=reduced, keys=keys)
        return batch


class _Reducer:
    """Removes fields from rows of one schema."""

    def __init__(self, schema: Schema, only_optional: bool) -> None:
        self._schema = schema
        self._only_optional = only_optional
        self._reduced: dict[tuple[str, ...], tuple[Schema, list[int]]] = {}

    def reduce(self, names: tuple[str, ...], rows: list[Any]) -> tuple[Schema, list[Any]]:
        """Return the schema and the rows without the fields with these names."""
        if names not in self._reduced:
            self._reduced[names] = self._plan(names)
        schema, indexes = self._reduced[names]
        return schema, [None if row is None else tuple([row[index] for index in indexes]) for row in rows]

    def _plan(self, names: tuple[str, ...]) -> tuple[Schema, list[int]]:
        kept = [field for field in self._schema.fields if not self._drops(field.name, field.schema.optional, names)]
        schema = copy_basics(self._schema, [(field.name, field.schema) for field in kept])
        return schema.replace(optional=self._schema.optional), [field.index for field in kept]

    def _drops(self, name: str, optional: bool, names: tuple[str, ...]) -> bool:
        return name in names and (optional or not self._only_optional)
