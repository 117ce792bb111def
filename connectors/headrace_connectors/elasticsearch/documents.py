"""Encodes records as the lines of a bulk request. This module does no I/O.

For each record, a bulk request has a line with the action and a line with the document. The lines contain JSON without
line breaks, so no name, key or value can add an action. As in Confluent's connector, decimals are numbers, and times
and timestamps are milliseconds. Dates are milliseconds, too. Confluent's connector writes dates as days, and the server
misreads these days as milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from headrace.api.errors import DataError, RecordErrors
from headrace.data.batch import SinkBatch
from headrace.data.json_encoding import encode_list, encode_tree
from headrace.data.json_texts import JsonTexts
from headrace.data.json_values import EncodingOptions, to_json
from headrace.data.logical import DATE_NAME, MILLIS_PER_DAY, TEMPORAL_TYPES, Date
from headrace.data.schema import Schema, Type
from headrace.data.struct import Struct
from headrace_connectors.common.null_replacement import replaces_null_with_default
from headrace_connectors.elasticsearch.rejected_fields import type_name
from headrace_connectors.elasticsearch.sink_config import ElasticsearchSinkConfig

_encode = msgspec.json.encode
_KEY_TYPES = (Type.STRING, Type.INT8, Type.INT16, Type.INT32, Type.INT64)
_TIMESTAMP = "@timestamp"


class Encoded(NamedTuple):
    """The action and document of one record."""

    at: int
    """The record's index in its batch."""
    document_id: str | None
    """The id, if the server does not generate it."""
    lines: bytes


class Result(NamedTuple):
    """The encoded records of a batch, and the errors of its bad records by index. Skipped records are in neither."""

    encoded: list[Encoded]
    errors: dict[int, Exception]


def encode_batch(batch: SinkBatch, target: str, config: ElasticsearchSinkConfig) -> Result:
    """Encode the records of a batch for `target`, an index, data stream or alias."""
    errors: dict[int, Exception] = {}
    nulls = {at for at, value in enumerate(batch.values) if value is None} if batch.has_null_values else set()
    on_null = config.on_null_values.upper()
    if nulls and on_null == "FAIL":
        errors |= {at: DataError("The value is null (behavior.on.null.values=FAIL)") for at in nulls}
    ids = _document_ids(batch, config, errors)
    versions = _versions(batch, config, errors)
    positions = [at for at in range(len(batch)) if at not in nulls and at not in errors]
    documents = _documents(batch, positions, config, errors)
    action = _action_encoder(target, config, versions is not None)
    encoded = []
    for at in range(len(batch)):
        document = documents.get(at)
        if at in errors or (document is None and not (at in nulls and on_null == "DELETE")):
            continue
        document_id = None if ids is None else ids[at]
        if document is None and (ids is None or config.ignores_key(batch.topic)):
            continue  # no document has this id, so there is nothing to delete
        version = None if versions is None else versions[at]
        encoded.append(Encoded(at, document_id, action(document_id, version, document)))
    return Result(encoded, errors)


def document_encoder(
    schema: Schema | None, compact_maps: bool, replaces_null: bool
) -> Callable[[list[Any]], list[bytes]]:
    """Return a function that encodes values with this schema. It raises RecordErrors with all rejected values.

    If `compact_maps` is true, a map with string keys becomes an object. Any other map becomes a list of objects
    with `key` and `value`. If `replaces_null` is true, the default of a field replaces null.
    """
    options = EncodingOptions(numeric_decimals=True, replace_null_with_default=replaces_null)
    if schema is not None and schema.type not in (Type.STRUCT, Type.MAP):
        return _reject
    if schema is None or not _needs_conversion(schema):
        return lambda values: _encode_plain(schema, values, options)

    def encode(values: list[Any]) -> list[bytes]:
        texts, errors = [], dict[int, Exception]()
        for at, value in enumerate(values):
            try:
                texts.append(encode_tree(_tree(schema, value, compact_maps, options)))
            except (DataError, UnicodeEncodeError, OverflowError, RecursionError, TypeError, ValueError) as error:
                errors[at] = DataError(f"The value cannot become a document: {error}")
        if errors:
            raise RecordErrors(errors)
        return texts

    return encode


def _reject(values: list[Any]) -> list[bytes]:
    raise RecordErrors({at: _not_an_object(None, value) for at, value in enumerate(values)})


def _encode_plain(schema: Schema | None, values: list[Any], options: EncodingOptions) -> list[bytes]:
    errors: dict[int, Exception] = {
        at: _not_an_object(schema, value)
        for at, value in enumerate(values)
        if not isinstance(value, (dict, tuple, list, Struct)) or (schema is None and isinstance(value, (list, tuple)))
    }
    if errors:
        raise RecordErrors(errors)
    return encode_list(schema, values, options)


def _not_an_object(schema: Schema | None, value: Any) -> DataError:
    return DataError(
        f"The value has the type {type_name(schema, value)}, but a document must be a struct or map; use a converter "
        "that creates structs or maps (JsonConverter), or the transform HoistField"
    )


@lru_cache(maxsize=1024)
def _needs_conversion(schema: Schema) -> bool:
    """Whether the schema contains maps or dates, which the sink encodes differently from JsonConverter."""
    if schema.type is Type.MAP or schema.name == DATE_NAME:
        return True
    parts = [field.schema for field in schema.fields]
    parts += [] if schema.value_schema is None else [schema.value_schema]
    return any(map(_needs_conversion, parts))


def _tree(schema: Schema, value: Any, compact_maps: bool, options: EncodingOptions) -> Any:
    if value is None and schema.default is not None and options.replace_null_with_default:
        value = schema.default
    if value is None:
        return to_json(schema, None, options)
    if schema.name == DATE_NAME and isinstance(value, Date):
        return value * MILLIS_PER_DAY
    if schema.type is Type.STRUCT:
        row = value.row if isinstance(value, Struct) else value
        return {
            field.name: _tree(field.schema, item, compact_maps, options)
            for field, item in zip(schema.fields, row, strict=True)
        }
    if schema.type is Type.ARRAY:
        assert schema.value_schema is not None
        return [_tree(schema.value_schema, item, compact_maps, options) for item in value]
    if schema.type is Type.MAP:
        assert schema.key_schema is not None
        assert schema.value_schema is not None
        keys, values = schema.key_schema, schema.value_schema
        if compact_maps and keys.type is Type.STRING:
            return {name: _tree(values, item, compact_maps, options) for name, item in value.items()}
        return [
            {"key": _tree(keys, name, compact_maps, options), "value": _tree(values, item, compact_maps, options)}
            for name, item in value.items()
        ]
    return to_json(schema, value, options)


def _documents(
    batch: SinkBatch, positions: Sequence[int], config: ElasticsearchSinkConfig, errors: dict[int, Exception]
) -> dict[int, bytes]:
    """Return the encoded documents of the records at the indexes `positions`, by index in the batch.

    Add an error to `errors` for each record that cannot be encoded.
    """
    kept = batch.compact
    # In an update, a text with a repeated key would cause the server to reject the whole bulk request.
    if isinstance(kept, JsonTexts) and not config.is_upsert:
        found = {at: kept.texts[at] for at in positions}
        return _with_timestamps(batch, found, config) if config.is_data_stream else found
    replaces_null = replaces_null_with_default(config, "value.converter")
    encode = document_encoder(batch.value_schema, config.compact_map_entries, replaces_null)
    values = batch.values
    while positions:
        try:
            texts = encode([values[at] for at in positions])
        except RecordErrors as error:
            errors |= {positions[index]: cause for index, cause in error.errors.items()}
            positions = [at for index, at in enumerate(positions) if index not in error.errors]
            continue
        found = dict(zip(positions, texts, strict=True))
        return _with_timestamps(batch, found, config) if config.is_data_stream else found
    return {}


def _with_timestamps(batch: SinkBatch, found: dict[int, bytes], config: ElasticsearchSinkConfig) -> dict[int, bytes]:
    timestamps = batch.timestamp_list()
    result = {}
    for at, text in found.items():
        document = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        chosen = (document.get(name) for name in config.timestamp_fields)
        value = next((item for item in chosen if item is not None and bytes(item) != b"null"), None)
        document[_TIMESTAMP] = msgspec.Raw(_encode(timestamps[at])) if value is None else value
        result[at] = _encode(document)
    return result


def _document_ids(
    batch: SinkBatch, config: ElasticsearchSinkConfig, errors: dict[int, Exception]
) -> list[str | None] | None:
    """Return the document ids, or None if the server generates them.

    Add an error to `errors` for each record whose key cannot be a document id.
    """
    if config.autogenerated_ids:
        return None
    if config.ignores_key(batch.topic):
        # Use the topic before transforms, because two topics that a transform merges must not share ids.
        prefix = f"{batch.original_topic}+{batch.original_partition}+"
        return [f"{prefix}{offset}" for offset in batch.original_offsets]
    keys = batch.keys if batch.keys is not None else [None] * len(batch)
    ids: list[str | None] = []
    for at, key in enumerate(keys):
        is_id = isinstance(key, (str, int)) and not isinstance(key, (bool, *TEMPORAL_TYPES))
        if batch.key_schema is not None and batch.key_schema.type not in _KEY_TYPES:
            is_id = False
        text = str(key) if is_id else ""
        if is_id and 0 < len(text.encode("utf-8", "surrogatepass")) <= 512:
            ids.append(text)
            continue
        ids.append(None)
        errors.setdefault(at, _not_an_id(batch.key_schema, key, is_scalar=is_id))
    return ids


def _not_an_id(schema: Schema | None, key: Any, *, is_scalar: bool) -> DataError:
    """Return the error for a record key that cannot be a document's id."""
    if is_scalar:
        problem = f"has {len(str(key).encode('utf-8', 'surrogatepass'))} bytes instead of 1 to 512; use a shorter key"
    elif key is None:
        problem = "is null; use a key of the type string or integer"
    else:
        problem = f"has the type {type_name(schema, key)}; use a key of the type string or integer"
        if isinstance(key, (Struct, tuple, dict)):
            problem += " (the transform ExtractField$Key replaces a struct by one of its fields)"
    return DataError(f"The key is the document's id, but {problem}, or set key.ignore=true")


def _versions(batch: SinkBatch, config: ElasticsearchSinkConfig, errors: dict[int, Exception]) -> Sequence[int] | None:
    """Return the external versions of the documents, or None if the documents have no versions.

    Add an error to `errors` for each record whose version header (external.version.header) is missing or invalid.
    """
    if config.autogenerated_ids or config.is_data_stream or config.is_upsert or config.ignores_key(batch.topic):
        return None
    if not config.version_header:
        return batch.original_offsets
    versions = []
    headers = batch.headers if batch.headers is not None else [None] * len(batch)
    for at, each in enumerate(headers):
        header = None if each is None else each.last(config.version_header)
        try:
            versions.append(int(header.value))  # type: ignore[union-attr]
        except (AttributeError, TypeError, ValueError):
            versions.append(0)
            errors.setdefault(at, DataError(
                f"The header {config.version_header} (external.version.header) must contain an integer, "
                f"found: {None if header is None else header.value!r}"
            ))  # fmt: skip
    return versions


def _action_encoder(
    target: str, config: ElasticsearchSinkConfig, has_version: bool
) -> Callable[[str | None, int | None, bytes | None], bytes]:
    """Return a function that creates the lines of an operation from the document's id, version and content.

    If the content is None, the operation deletes the document.
    """
    name = "create" if config.is_data_stream else "update" if config.is_upsert else "index"
    index = b'":{"_index":' + _encode(target)
    write, delete = b'{"' + name.encode() + index, b'{"delete' + index
    end = b"}}\n"
    if config.is_upsert:
        end = b',"retry_on_conflict":%d}}\n' % min(config.max_in_flight, 5)

    def lines(document_id: str | None, version: int | None, document: bytes | None) -> bytes:
        start = delete if document is None else write
        if document_id is not None:
            start += b',"_id":' + _encode(document_id)
        if has_version:
            start += b',"version":%d,"version_type":"external"' % (version or 0)
        if document is None:
            return start + b"}}\n"
        if config.is_upsert:
            return start + end + b'{"doc":' + document + b',"doc_as_upsert":true}\n'
        return start + end + document + b"\n"

    return lines
