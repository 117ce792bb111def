"""ExtractNewRecordState: replace Debezium's change events with the row after the change.

This transform behaves like io.debezium.transforms.ExtractNewRecordState of Debezium 3. A change event is a struct
with a schema name that ends with ``.Envelope``. Its fields are ``before``, ``after``, ``source``, ``op``, ``ts_ms``
and ``transaction``. Records that are neither change events nor tombstones stay unchanged.

An event with neither ``before`` nor ``after`` is dropped. Debezium sends such an event if a table is truncated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any, ClassVar, NamedTuple

from headrace.api.config import Config, Importance, key
from headrace.data.batch import Batch
from headrace.data.headers import Headers
from headrace.data.schema import OPTIONAL_STRING_SCHEMA, STRING_SCHEMA, Schema, Type
from headrace.data.struct import from_rows
from headrace_transforms.debezium_fields import parse_references
from headrace_transforms.key_or_value import ListTransformation, SchemaCache, copy_basics
from headrace_transforms.listed_fields import ListedFieldDropper
from headrace_transforms.record_errors import place_of, record_error, schema_type_name

_ENVELOPE_SUFFIX = ".Envelope"
_DELETED_FIELD = "__deleted"
_DELETE_CODE = "d"


class ExtractNewRecordStateConfig(Config):
    """Configuration of ExtractNewRecordState."""

    removed_keys: ClassVar[Mapping[str, str]] = {  # as in Debezium 1.3
        "add.source.fields": "add.fields",
        "operation.header": "add.headers",
    }

    tombstone_mode: str | None = key(
        "delete.tombstone.handling.mode",
        default=None,
        one_of=("drop", "tombstone", "rewrite", "rewrite-with-tombstone", "delete-to-tombstone"),
        case_insensitive=True,
        doc="What happens to a delete event and to the tombstone that follows it. drop: both are dropped. tombstone "
        "(if no mode is set): the event's value becomes null, the tombstone is dropped. rewrite: the event becomes the "
        "row before the change with the field __deleted, the tombstone is dropped. rewrite-with-tombstone: the same, "
        "and the tombstone is kept. delete-to-tombstone: the event becomes a tombstone without a schema, the tombstone "
        "that follows is dropped.",
        importance=Importance.MEDIUM,
    )
    drop_tombstones: bool | None = key(
        "drop.tombstones",
        default=None,
        doc="Deprecated, use delete.tombstone.handling.mode: whether tombstones are dropped. True if only "
        "delete.handling.mode is set.",
        importance=Importance.LOW,
    )
    delete_mode: str | None = key(
        "delete.handling.mode",
        default=None,
        one_of=("drop", "rewrite", "none"),
        case_insensitive=True,
        doc="Deprecated, use delete.tombstone.handling.mode: whether delete events are dropped, rewritten or become "
        "null. drop if only drop.tombstones is set.",
        importance=Importance.LOW,
    )
    add_fields: list[str] = key(
        "add.fields",
        default=[],
        doc="Fields of the event that are added to the row, for example op,table,source.ts_ms:changed_at. A name "
        "without a parent is searched in source; op, ts_ms, ts_us and ts_ns are fields of the event itself. The text "
        "after a colon is the new name.",
        importance=Importance.LOW,
    )
    add_fields_prefix: str = key(
        "add.fields.prefix", default="__", doc="Prefix of the added fields' names.", importance=Importance.LOW
    )
    add_headers: list[str] = key(
        "add.headers",
        default=[],
        doc="Fields of the event that are added as headers, in the format of add.fields.",
        importance=Importance.LOW,
    )
    add_headers_prefix: str = key(
        "add.headers.prefix", default="__", doc="Prefix of the added headers' keys.", importance=Importance.LOW
    )
    route_by_field: str = key(
        "route.by.field",
        default="",
        doc="A field of the row that contains the new name of the topic. If it is null, the topic stays.",
        importance=Importance.LOW,
    )
    drop_fields_header: str = key(
        "drop.fields.header.name",
        default="",
        doc="Key of a header that contains a list of the fields to remove from the row.",
        importance=Importance.LOW,
    )
    drop_fields_from_key: bool = key(
        "drop.fields.from.key",
        default=False,
        doc="Whether these fields are removed from the record's key too.",
        importance=Importance.LOW,
    )
    drop_only_optional: bool = key(
        "drop.fields.keep.schema.compatible",
        default=True,
        doc="Whether only optional fields are removed, so that the new schema is compatible with the old one.",
        importance=Importance.LOW,
    )
    replace_null_with_default: bool = key(
        "replace.null.with.default",
        default=True,
        doc="Whether to replace null with the default in fields that have a default.",
        importance=Importance.LOW,
    )


class _Deletes(NamedTuple):
    """The handling of delete events and tombstones."""

    keep_tombstones: bool
    event: str
    """``drop``, ``null``, ``tombstone`` or ``rewrite``."""


_MODES = {
    "drop": _Deletes(False, "drop"),
    "tombstone": _Deletes(False, "null"),
    "rewrite": _Deletes(False, "rewrite"),
    "rewrite-with-tombstone": _Deletes(True, "rewrite"),
    "delete-to-tombstone": _Deletes(False, "tombstone"),
}


def _deletes(config: ExtractNewRecordStateConfig) -> _Deletes:
    if config.tombstone_mode or (config.drop_tombstones is None and config.delete_mode is None):
        return _MODES[(config.tombstone_mode or "tombstone").lower()]
    event = (config.delete_mode or "drop").lower()
    return _Deletes(config.drop_tombstones is False, "null" if event == "none" else event)


class _Envelope(NamedTuple):
    """Cached data about one event schema: the indexes of its fields, and functions that build rows and headers."""

    before: int | None
    after: int
    row_schema: Schema
    headers: list[tuple[str, Schema, Callable[[Any], Any]]]
    build: Callable[[Any, Any, bool], tuple[Any, ...]]
    """Returns the new row. Its arguments are the event, the row before or after the change, and whether the row was
    deleted."""
    schema: Schema
    topic: Callable[[Any], str | None] | None


class _Changed(NamedTuple):
    """The attributes of one record after the transform. `keep` is false if the record is dropped."""

    keep: bool
    topic: str
    schema: Schema | None
    value: Any


class ExtractNewRecordState(ListTransformation[ExtractNewRecordStateConfig]):
    """Replaces change events with the row after the change, and handles delete events as configured."""

    java_names = ("io.debezium.transforms.ExtractNewRecordState",)

    def configure(self, config: ExtractNewRecordStateConfig) -> None:
        """Parse the field references. Raises ConfigError."""
        self._config = config
        self.changes_topics = bool(config.route_by_field)  # type: ignore[misc]
        self._deletes = _deletes(config)
        self._added = parse_references("add.fields", config.add_fields, config.add_fields_prefix)
        self._headers = parse_references("add.headers", config.add_headers, config.add_headers_prefix)
        self._envelopes = SchemaCache(self._envelope)
        self._dropper = (
            ListedFieldDropper(config.drop_fields_header, config.drop_fields_from_key, config.drop_only_optional)
            if config.drop_fields_header
            else None
        )

    def change_batch(self, batch: Any) -> list[Batch]:
        """Return the changed records as batches. Each batch has one topic and one schema. Raises DataError."""
        schema = batch.value_schema
        is_event = schema is not None and schema.type is Type.STRUCT and (schema.name or "").endswith(_ENVELOPE_SUFFIX)
        if not is_event and None not in batch.values:
            return [batch]
        envelope = self._envelopes(schema) if is_event else None
        changed = [self._change(envelope, value, batch) for value in batch.values]
        if self._headers:
            batch = batch.replace(headers=self._with_headers(envelope, batch))
        parts = _split(batch, changed)
        return parts if self._dropper is None else [part for whole in parts for part in self._dropper.drop(whole)]

    def _change(self, envelope: _Envelope | None, event: Any, batch: Batch) -> _Changed:
        if event is None:
            return _Changed(self._deletes.keep_tombstones, batch.topic, batch.value_schema, None)
        if envelope is None:
            return _Changed(True, batch.topic, batch.value_schema, event)
        row = event[envelope.after]
        old = None if envelope.before is None else event[envelope.before]
        topic = batch.topic
        if envelope.topic is not None and (row is not None or old is not None):
            topic = envelope.topic(old if row is None else row) or topic
        if row is not None:
            return _Changed(True, topic, envelope.schema, envelope.build(event, row, False))
        if old is None or self._deletes.event == "drop":
            return _Changed(False, topic, None, None)
        if self._deletes.event == "rewrite":
            return _Changed(True, topic, envelope.schema, envelope.build(event, old, True))
        return _Changed(True, topic, envelope.row_schema if self._deletes.event == "null" else None, None)

    def _envelope(self, schema: Schema) -> _Envelope:
        after = schema.field("after")
        if after is None or after.schema.type is not Type.STRUCT:
            found = "a struct without this field" if after is None else schema_type_name(after.schema)
            message = f"The change event {schema.name} has no struct field 'after'"
            raise record_error(message, place_of("value", "after"), "STRUCT", found)
        before = schema.field("before")
        references = [(reference, reference.find(schema)) for reference in self._added]
        added = [(reference.new_name, *found) for reference, found in references if found]
        rewrites = self._deletes.event == "rewrite"
        row_schema = after.schema
        fields = [(field.name, field.schema) for field in row_schema.fields]
        fields += [(_DELETED_FIELD, OPTIONAL_STRING_SCHEMA)] if rewrites else []
        fields += [(name, added_schema) for name, added_schema, _ in added]
        changes = rewrites or bool(added)
        getters = [get for _, _, get in added]
        fill = _defaults(row_schema) if self._config.replace_null_with_default and rewrites else {}

        def build(event: Any, row: Any, deleted: bool) -> tuple[Any, ...]:
            if fill and any(row[index] is None for index in fill):
                row = tuple(fill.get(index) if value is None else value for index, value in enumerate(row))
            flag = (("true" if deleted else "false"),) if rewrites else ()
            return (*row, *flag, *[get(event) for get in getters]) if changes else row

        found_headers = [(reference.new_name, reference.find(schema)) for reference in self._headers]
        return _Envelope(
            before=None if before is None else before.index,
            after=after.index,
            row_schema=row_schema,
            headers=[(name, *found) for name, found in found_headers if found],
            build=build,
            schema=copy_basics(row_schema, fields) if changes else row_schema,
            topic=self._topic_getter(row_schema),
        )

    def _topic_getter(self, row_schema: Schema) -> Callable[[Any], str | None] | None:
        name = self._config.route_by_field
        if not name:
            return None
        field = row_schema.field(name)
        if field is None:
            message = f"route.by.field: the row's schema {row_schema!r} has no field {name}"
            raise record_error(message, place_of("value", "after", name), "STRING", "a struct without this field")
        if field.schema.type is not Type.STRING:
            message, found = f"route.by.field: field {name} must be a string", schema_type_name(field.schema)
            raise record_error(message, place_of("value", "after", name), "STRING", found)
        index = field.index
        return lambda row: row[index]

    def _with_headers(self, envelope: _Envelope | None, batch: Batch) -> list[Headers]:
        old = batch.headers if batch.headers is not None else [Headers()] * len(batch)
        return [self._add_headers(envelope, event, headers) for event, headers in zip(batch.values, old, strict=True)]

    def _add_headers(self, envelope: _Envelope | None, event: Any, headers: Headers) -> Headers:
        changed = Headers(headers)
        if event is None:
            for reference in self._headers:
                if reference.field == "op":
                    changed.add(reference.new_name, _DELETE_CODE, STRING_SCHEMA)
        elif envelope is not None:
            for name, schema, get in envelope.headers:
                changed.add(name, from_rows(schema, [get(event)])[0], schema)
        return changed


def _defaults(schema: Schema) -> dict[int, Any]:
    return {field.index: field.schema.default for field in schema.fields if field.schema.default is not None}


def _split(batch: Batch, changed: list[_Changed]) -> list[Batch]:
    """Return the kept records. Each batch contains consecutive records with the same topic and schema."""
    kept = [index for index, record in enumerate(changed) if record.keep]
    runs = groupby(kept, key=lambda index: (changed[index].topic, id(changed[index].schema)))
    batches = []
    for _, run in runs:
        indexes = list(run)
        first = changed[indexes[0]]
        values = [changed[index].value for index in indexes]
        batches.append(batch.take(indexes).replace(topic=first.topic, value_schema=first.schema, values=values))
    return batches
