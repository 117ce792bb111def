"""JsonConverter: JSON with or without the ``{"schema":…,"payload":…}`` envelope.

The bytes are identical to those of ``org.apache.kafka.connect.json.JsonConverter``. When records are written, the
schema part of the envelope is encoded once per schema and prepended to each payload. When records are read, all records
with the same bytes before the payload share a decoder, so the schema is parsed once and not for every record.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, TypeVar, cast

import msgspec

from headrace.api.config import Config, ConfigType, Importance, Width, key
from headrace.api.converter import NO_VALUE, Converter, FramedValues, HeaderConverter, SchemaAndValue, SchemaRun
from headrace.api.errors import DataError, RecordErrors
from headrace.converters.json_decoding import from_json, invalid_json_error, parse, to_utf8
from headrace.converters.json_lists import PayloadDecoder
from headrace.converters.json_template import encode_compact
from headrace.data.columns import CheckedRows, ColumnarValues, Values, listed
from headrace.data.deep_recursion import JSON_DEPTH_MAX, deep_recursion, json_depth
from headrace.data.json_encoding import encode_list, encode_schema
from headrace.data.json_schema import schema_from_json
from headrace.data.json_texts import JsonTexts, json_texts, on_one_line
from headrace.data.json_values import EncodingOptions
from headrace.data.schema import Schema
from headrace.data.struct import row_converter, struct_converter

_NOT_AN_ENVELOPE = (
    'JsonConverter with schemas.enable requires "schema" and "payload" fields and may not contain additional fields.'
    " If you are trying to deserialize plain JSON data, set schemas.enable=false in your converter configuration."
    " If the connector needs a schema, for example a JDBC sink, set schema.content to the schema of the data instead."
)


_V = TypeVar("_V")


class _JsonEnvelope(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    schema: msgspec.Raw
    payload: msgspec.Raw


_WHITESPACE = b" \t\n\r"
_CLOSING_BRACE = ord("}")
_last_byte = itemgetter(-1)
_envelope_decoder = msgspec.json.Decoder(_JsonEnvelope)


class JsonConverterConfig(Config):
    """The configuration of JsonConverter."""

    converter_type: str = key(
        "converter.type",
        doc="How this converter will be used.",
        one_of=("key", "value", "header"),
        importance=Importance.LOW,
    )
    schemas_enable: bool = key(
        "schemas.enable",
        default=True,
        doc="Include the schema with each key or value.",
        importance=Importance.HIGH,
        group="Schemas",
        width=Width.MEDIUM,
        display_name="Enable Schemas",
    )
    schemas_cache_size: int = key(
        "schemas.cache.size",
        default=1000,
        doc="The maximum number of schemas that the converter caches.",
        importance=Importance.HIGH,
        group="Schemas",
        width=Width.MEDIUM,
        display_name="Schema Cache Size",
    )
    schema_content: str | None = key(
        "schema.content",
        default=None,
        doc="The JSON schema of all records to read, which then contain only the payload. Requires schemas.enable.",
        importance=Importance.HIGH,
        group="Schemas",
        width=Width.MEDIUM,
        display_name="Schema Content",
    )
    decimal_format: str = key(
        "decimal.format",
        default="BASE64",
        doc="How decimals are written: BASE64 or NUMERIC. Both formats are accepted when reading.",
        one_of=("BASE64", "NUMERIC"),
        case_insensitive=True,
        importance=Importance.LOW,
        group="Serialization",
        width=Width.MEDIUM,
        display_name="Decimal Format",
    )
    replace_null_with_default: bool = key(
        "replace.null.with.default",
        default=True,
        doc="Whether a null in a field that has a default is replaced by the default, in both directions.",
        type=ConfigType.BOOLEAN,
        importance=Importance.LOW,
        group="Serialization",
        width=Width.MEDIUM,
        display_name="Replace null with default",
    )


class JsonConverter(Converter[JsonConverterConfig], HeaderConverter[JsonConverterConfig]):
    """Converts keys, values or headers to and from JSON."""

    java_names = ("org.apache.kafka.connect.json.JsonConverter",)

    _schemas_enabled: bool
    _replace_null: bool
    _options: EncodingOptions
    _fixed_decoder: PayloadDecoder | None
    _prefixes: dict[Schema | None, bytes]
    _decoders: dict[bytes, PayloadDecoder]
    _cache_size: int

    def configure(self, config: JsonConverterConfig) -> None:
        """Apply the configuration. Raises DataError if schema.content is not a valid schema."""
        self._schemas_enabled = config.schemas_enable
        self._replace_null = config.replace_null_with_default
        self._options = EncodingOptions(config.decimal_format.upper() == "NUMERIC", config.replace_null_with_default)
        self._prefixes = {}
        self._decoders = {}
        self._cache_size = max(1, config.schemas_cache_size)
        self._fixed_decoder = None
        if not config.schemas_enable:
            self._fixed_decoder = PayloadDecoder(None, self._replace_null)
        elif config.schema_content:
            self._fixed_decoder = self._create_decoder(config.schema_content.encode())

    # ---- to bytes

    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        """Return the JSON of one value."""
        try:
            return self.from_connect_batch(topic, schema, [row_converter(schema)(value)])[0]
        except RecordErrors as error:
            raise error.errors[0] from None

    def from_connect_batch(self, topic: str, schema: Schema | None, values: list[Any]) -> list[bytes | None]:
        """Return the JSON of each value."""
        texts: list[bytes | None] = [*encode_list(schema, values, self._options)]
        if self._schemas_enabled:
            prefix = self._envelope_prefix(schema)
            texts = [prefix + text + b"}" for text in texts]  # type: ignore[operator]
        if schema is None and None in values:
            return [None if value is None else text for value, text in zip(values, texts, strict=True)]
        return texts

    def from_connect_framed(
        self, topic: str, schema: Schema | None, values: list[Any]
    ) -> list[bytes | None] | FramedValues:
        """Return the JSON of each value. The schema is returned only once, as the common prefix of all values."""
        if not self._schemas_enabled or (schema is None and None in values):
            return self.from_connect_batch(topic, schema, values)
        texts = encode_list(schema, values, self._options)
        return FramedValues(self._envelope_prefix(schema), texts, b"}")

    def from_connect_columnar(
        self, topic: str, schema: Schema | None, values: ColumnarValues
    ) -> list[bytes | None] | FramedValues:
        """Return the JSON of each value, if possible without creating an object per value."""
        before, after = b"", b""
        if self._schemas_enabled:
            before, after = self._envelope_prefix(schema), b"}"
        if isinstance(values, CheckedRows):
            return FramedValues(before, encode_list(schema, values.items(), self._options, is_checked=True), after)
        texts = encode_compact(schema, values, self._options, before, after)
        return self.from_connect_batch(topic, schema, values.items()) if texts is None else texts

    def _envelope_prefix(self, schema: Schema | None) -> bytes:
        """Return the bytes that precede the payload in the envelope of values with this schema."""
        found = self._prefixes.get(schema)
        if found is not None:
            return found
        text = b"null" if schema is None else encode_schema(schema, self._options)
        return _put_bounded(self._prefixes, schema, b'{"schema":' + text + b',"payload":', self._cache_size)

    # ---- from bytes

    def to_connect(self, topic: str, data: bytes | None) -> SchemaAndValue:
        """Parse one value from JSON."""
        if data is None:
            return NO_VALUE
        data = to_utf8(data)
        if not self._schemas_enabled and not data.strip(_WHITESPACE):
            return NO_VALUE
        try:
            return self._decode(data)
        except RecursionError as error:
            if self._schemas_enabled:
                raise invalid_json_error(error) from None
        depth = json_depth(data)
        if depth > JSON_DEPTH_MAX:
            raise invalid_json_error(DataError(f"it has {depth} nested levels, more than {JSON_DEPTH_MAX}"))
        with deep_recursion():
            return self._decode(data)

    def _decode(self, data: bytes) -> SchemaAndValue:
        if self._fixed_decoder is not None:
            decoder, payload = self._fixed_decoder, data
        else:
            decoder, payload, _ = self._parse_envelope(data)
        return SchemaAndValue(decoder.schema, struct_converter(decoder.schema)(decoder.decode(payload)))

    def to_connect_batch(self, topic: str, data: Sequence[bytes | None]) -> list[SchemaRun]:
        """Parse each value from JSON; consecutive values with the same schema form a run."""
        try:
            return self._decode_runs(data)
        except (RecordErrors, DataError, RecursionError):
            # Convert value by value: the error's indexes are relative to a run, and only `to_connect` accepts JSON in
            # UTF-16, with a byte order mark, or with many nested levels.
            try:
                return super().to_connect_batch(topic, data)
            except RecursionError:
                with deep_recursion():
                    return super().to_connect_batch(topic, data)

    def to_connect_texts(self, topic: str, data: Sequence[bytes | None]) -> list[SchemaRun]:
        """Parse as `to_connect_batch` does, but keep valid schemaless objects as text (`JsonTexts`)."""
        if self._schemas_enabled:
            return self.to_connect_batch(topic, data)
        texts = json_texts(cast("Sequence[bytes]", data)) if all(data) else None
        return self._split_texts(topic, data) if texts is None else [SchemaRun(None, texts)]

    def _split_texts(self, topic: str, data: Sequence[bytes | None]) -> list[SchemaRun]:
        """Keep each valid schemaless object as text on one line, and parse all other values.

        Whether a value stays text does not depend on the other values in `data`.
        """
        data = [item and on_one_line(item) for item in data]
        runs: list[SchemaRun] = []
        errors: dict[int, Exception] = {}
        position = 0
        for is_text, group in groupby(_are_texts(data)):
            start, position = position, position + len(list(group))
            part = data[start:position]
            if is_text:
                runs.append(SchemaRun(None, JsonTexts(cast("Sequence[bytes]", part))))
                continue
            try:
                runs += self.to_connect_batch(topic, part)
            except RecordErrors as error:
                errors |= {start + index: cause for index, cause in error.errors.items()}
        if errors:
            raise RecordErrors(errors)
        return runs

    def _decode_runs(self, data: Sequence[bytes | None]) -> list[SchemaRun]:
        runs: list[SchemaRun] = []
        position, count = 0, len(data)
        while position < count:
            first = data[position]
            if not first:
                if first is not None and self._schemas_enabled:
                    raise DataError(_NOT_AN_ENVELOPE)
                _append_run(runs, None, [None])
                position += 1
                continue
            decoder, payloads = self._payload_run(data, position, first)
            _append_run(runs, decoder.schema, decoder.decode_list(payloads))
            position += len(payloads)
        return runs

    def _payload_run(
        self, data: Sequence[bytes | None], position: int, first: bytes
    ) -> tuple[PayloadDecoder, Sequence[bytes]]:
        """Return the decoder and the payloads of consecutive records with the same schema.

        The run starts with the record at index `position`, which is also passed as `first`.
        """
        if self._fixed_decoder is not None:
            return self._fixed_decoder, _until_null_or_empty(data, position)
        decoder, payload, prefix = self._parse_envelope(first)
        if not prefix:
            return decoder, [payload]
        length = len(prefix)
        if position == 0 and _all_have_prefix(prefix, data):
            return decoder, [item[length:-1] for item in data]  # type: ignore[index]
        payloads: list[bytes] = []
        for item in islice(data, position, None):
            if not item or not item.startswith(prefix) or item[-1] != _CLOSING_BRACE:
                break
            payloads.append(item[length:-1])
        return decoder, payloads

    def _parse_envelope(self, data: bytes) -> tuple[PayloadDecoder, bytes, bytes]:
        """Return the decoder of an envelope's payload, the payload, and the bytes before the payload.

        If the format of the envelope differs from Kafka's, for example in whitespace or in the order of the fields,
        return empty bytes instead of the bytes before the payload. The caller then parses the envelope of each record
        separately.
        """
        try:
            envelope = _envelope_decoder.decode(data)
        except msgspec.ValidationError:
            parse(data)  # raises a more specific error if the data is not JSON
            raise DataError(_NOT_AN_ENVELOPE) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise invalid_json_error(error) from None
        text = bytes(envelope.schema)
        decoder = self._decoders.get(text) or self._create_decoder(text)
        prefix = b'{"schema":' + text + b',"payload":'
        payload = bytes(envelope.payload)
        is_kafkas_format = data.startswith(prefix) and len(data) == len(prefix) + len(payload) + 1
        return decoder, payload, prefix if is_kafkas_format and data[-1] == _CLOSING_BRACE else b""

    def _create_decoder(self, schema_text: bytes) -> PayloadDecoder:
        def default(schema: Schema, tree: Any) -> Any:
            return struct_converter(schema)(from_json(schema, tree, self._replace_null))

        schema = schema_from_json(parse(schema_text), default)
        return _put_bounded(self._decoders, schema_text, PayloadDecoder(schema, self._replace_null), self._cache_size)

    # ---- headers

    def from_connect_header(self, topic: str, key: str, schema: Schema | None, value: Any) -> bytes | None:
        """Return the JSON of a header's value."""
        return self.from_connect(topic, schema, value)

    def to_connect_header(self, topic: str, key: str, data: bytes | None) -> SchemaAndValue:
        """Parse a header's value from JSON."""
        return self.to_connect(topic, data)


def _all_have_prefix(prefix: bytes, data: Sequence[Any]) -> bool:
    """Whether all items start with the prefix and end with a brace.

    If the smallest and the largest item start with the prefix, all items do, so only these two items are compared with
    the prefix.
    """
    try:
        smallest, largest = min(data), max(data)
    except TypeError:  # some items are null
        return False
    return smallest.startswith(prefix) and largest.startswith(prefix) and set(map(_last_byte, data)) == {_CLOSING_BRACE}


def _are_texts(data: Sequence[bytes | None]) -> list[bool]:
    """Return for each item whether `json_texts` accepts it."""
    found: list[bool] = []
    for has_bytes, group in groupby(data, bool):
        part = cast("list[bytes]", list(group))
        if not has_bytes:
            found += [False] * len(part)
        elif json_texts(part) is not None:
            found += [True] * len(part)
        else:
            found += [json_texts([item]) is not None for item in part]
    return found


def _until_null_or_empty(data: Sequence[bytes | None], position: int) -> Sequence[bytes]:
    """Return the items from index `position` up to the next item that is null or empty."""
    if position == 0 and all(data):
        return cast("Sequence[bytes]", data)
    items: list[bytes] = []
    for item in islice(data, position, None):
        if not item:
            break
        items.append(item)
    return items


def _append_run(runs: list[SchemaRun], schema: Schema | None, values: Values) -> None:
    last = runs[-1] if runs else None
    if last is None or not (last.schema is schema or last.schema == schema):
        runs.append(SchemaRun(schema, values))
    elif isinstance(last.values, list):
        last.values.extend(listed(values))
    else:
        runs[-1] = SchemaRun(schema, [*listed(last.values), *listed(values)])


def _put_bounded(cache: dict[Any, _V], key: Any, value: _V, size: int) -> _V:
    """Add an entry to a cache, and return its value. If the cache has `size` entries, remove the oldest entry first."""
    if len(cache) >= size:
        del cache[next(iter(cache))]
    cache[key] = value
    return value
