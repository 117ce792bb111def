"""JsonConverter: JSON with or without the ``{"schema":…,"payload":…}`` envelope.

The bytes are those of ``org.apache.kafka.connect.json.JsonConverter``. The envelope's schema text is made once per
schema and put before each payload; when reading, the text up to the payload is recognised, so that a schema is parsed
once and not per record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, TypeVar, cast

import msgspec

from headrace.api.config import Config, ConfigType, Importance, Width, key
from headrace.api.converter import NO_VALUE, Converter, Enclosed, HeaderConverter, Run, SchemaAndValue
from headrace.api.errors import BatchError, DataError
from headrace.converters.json_decoding import from_json, parse, unreadable
from headrace.converters.json_encoding import encode_list, encode_schema
from headrace.converters.json_lists import Decoder
from headrace.converters.json_schema import schema_from_json
from headrace.converters.json_template import encode_compact
from headrace.converters.json_values import Style
from headrace.data.columns import Compact, Values, listed
from headrace.data.schema import Schema
from headrace.data.struct import row_maker, struct_maker

_NOT_AN_ENVELOPE = (
    'JsonConverter with schemas.enable requires "schema" and "payload" fields and may not contain additional fields.'
    " If you are trying to deserialize plain JSON data, set schemas.enable=false in your converter configuration."
)


_V = TypeVar("_V")


class _Envelope(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    schema: msgspec.Raw
    payload: msgspec.Raw


_BRACE = ord("}")
_last = itemgetter(-1)
_envelope = msgspec.json.Decoder(_Envelope)


class JsonConverterConfig(Config):
    """The keys of JsonConverter."""

    converter_type: str = key(
        "converter.type",
        doc="How this converter will be used.",
        one_of=("key", "value", "header"),
        importance=Importance.LOW,
    )
    schemas_enable: bool = key(
        "schemas.enable",
        default=True,
        doc="Put the schema beside each key or value.",
        importance=Importance.HIGH,
        group="Schemas",
        width=Width.MEDIUM,
        display_name="Enable Schemas",
    )
    schemas_cache_size: int = key(
        "schemas.cache.size",
        default=1000,
        doc="How many schemas the converter remembers.",
        importance=Importance.HIGH,
        group="Schemas",
        width=Width.MEDIUM,
        display_name="Schema Cache Size",
    )
    schema_content: str | None = key(
        "schema.content",
        default=None,
        doc="A schema, as JSON, for all records that are read; they then hold the payload alone. Needs schemas.enable.",
        importance=Importance.HIGH,
        group="Schemas",
        width=Width.MEDIUM,
        display_name="Schema Content",
    )
    decimal_format: str = key(
        "decimal.format",
        default="BASE64",
        doc="How decimals are written: BASE64 or NUMERIC; both are understood when reading.",
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
        doc="Whether a null in a field with a default is written, and read, as the default.",
        type=ConfigType.BOOLEAN,
        importance=Importance.LOW,
        group="Serialization",
        width=Width.MEDIUM,
        display_name="Replace null with default",
    )


class JsonConverter(Converter, HeaderConverter):
    """Keys, values or headers as JSON."""

    config_model = JsonConverterConfig
    java_names = ("org.apache.kafka.connect.json.JsonConverter",)

    _schemas_enabled: bool
    _replace_null: bool
    _style: Style
    _fixed: Decoder | None
    _prefixes: dict[Schema | None, bytes]
    _decoders: dict[bytes, Decoder]
    _cache_size: int

    def configure(self, props: Mapping[str, str], is_key: bool = False) -> None:
        """Take the settings. Raises ConfigErrors, DataError for a schema.content that is no schema."""
        config = JsonConverterConfig.parse({**props, "converter.type": "key" if is_key else "value"})
        self._schemas_enabled = config.schemas_enable
        self._replace_null = config.replace_null_with_default
        self._style = Style(config.decimal_format.upper() == "NUMERIC", config.replace_null_with_default)
        self._prefixes = {}
        self._decoders = {}
        self._cache_size = max(1, config.schemas_cache_size)
        self._fixed = None
        if not config.schemas_enable:
            self._fixed = Decoder(None, self._replace_null)
        elif config.schema_content:
            self._fixed = self._decoder(config.schema_content.encode())

    # ---- to bytes

    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        """The JSON of one value."""
        try:
            return self.from_connect_batch(topic, schema, [row_maker(schema)(value)])[0]
        except BatchError as error:
            raise error.errors[0] from None

    def from_connect_batch(self, topic: str, schema: Schema | None, values: list[Any]) -> list[bytes | None]:
        """The JSON of each value."""
        texts: list[bytes | None] = [*encode_list(schema, values, self._style)]
        if self._schemas_enabled:
            prefix = self._prefixes.get(schema) or self._envelope_prefix(schema)
            texts = [prefix + text + b"}" for text in texts]  # type: ignore[operator]
        if schema is None and None in values:
            return [None if value is None else text for value, text in zip(values, texts, strict=True)]
        return texts

    def from_connect_compact(self, topic: str, schema: Schema | None, values: Compact) -> list[bytes | None] | Enclosed:
        """The JSON of each value, without an object for each where that can be."""
        before, after = b"", b""
        if self._schemas_enabled:
            before, after = self._prefixes.get(schema) or self._envelope_prefix(schema), b"}"
        texts = encode_compact(schema, values, self._style, before, after)
        return self.from_connect_batch(topic, schema, values.items()) if texts is None else texts

    def _envelope_prefix(self, schema: Schema | None) -> bytes:
        text = b"null" if schema is None else encode_schema(schema, self._style)
        return _remember(self._prefixes, schema, b'{"schema":' + text + b',"payload":', self._cache_size)

    # ---- from bytes

    def to_connect(self, topic: str, data: bytes | None) -> SchemaAndValue:
        """The value in the JSON."""
        if data is None:
            return NO_VALUE
        if not data and not self._schemas_enabled:
            return NO_VALUE
        try:
            if self._fixed is not None:
                decoder, payload = self._fixed, data
            else:
                decoder, payload, _ = self._open(data)
            return SchemaAndValue(decoder.schema, struct_maker(decoder.schema)(decoder.decode(payload)))
        except RecursionError as error:
            raise unreadable(error) from None

    def to_connect_batch(self, topic: str, data: Sequence[bytes | None]) -> list[Run]:
        """The values in the JSON, cut into runs of one schema."""
        try:
            return self._runs(data)
        except (BatchError, DataError, RecursionError):
            # Positions are those within a run: find them in the whole list.
            errors: dict[int, Exception] = {}
            for index, item in enumerate(data):
                try:
                    self.to_connect(topic, item)
                except DataError as error:
                    errors[index] = error
            raise BatchError(errors) from None

    def _runs(self, data: Sequence[bytes | None]) -> list[Run]:
        runs: list[Run] = []
        position, count = 0, len(data)
        while position < count:
            first = data[position]
            if not first:
                if first is not None and self._schemas_enabled:
                    raise DataError(_NOT_AN_ENVELOPE)
                _extend(runs, None, [None])
                position += 1
                continue
            decoder, payloads = self._payloads(data, position, first)
            _extend(runs, decoder.schema, decoder.decode_list(payloads))
            position += len(payloads)
        return runs

    def _payloads(self, data: Sequence[bytes | None], position: int, first: bytes) -> tuple[Decoder, Sequence[bytes]]:
        """The decoder for the record at `position`, and the payloads of it and its like-minded followers."""
        if self._fixed is not None:
            return self._fixed, _leading(data, position)
        decoder, payload, prefix = self._open(first)
        if not prefix:
            return decoder, [payload]
        length = len(prefix)
        if position == 0 and _all_begin_with(prefix, data):
            return decoder, [item[length:-1] for item in data]  # type: ignore[index]
        payloads: list[bytes] = []
        for item in islice(data, position, None):
            if not item or not item.startswith(prefix) or item[-1] != _BRACE:
                break
            payloads.append(item[length:-1])
        return decoder, payloads

    def _open(self, data: bytes) -> tuple[Decoder, bytes, bytes]:
        """The decoder and the payload of an envelope, and the prefix that its like share (empty when spelt oddly)."""
        try:
            envelope = _envelope.decode(data)
        except msgspec.ValidationError:
            parse(data)  # says so when it is not even JSON
            raise DataError(_NOT_AN_ENVELOPE) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise unreadable(error) from None
        text = bytes(envelope.schema)
        decoder = self._decoders.get(text) or self._decoder(text)
        prefix = b'{"schema":' + text + b',"payload":'
        payload = bytes(envelope.payload)
        return decoder, payload, prefix if len(data) == len(prefix) + len(payload) + 1 and data[-1] == 125 else b""

    def _decoder(self, schema_text: bytes) -> Decoder:
        def default(schema: Schema, tree: Any) -> Any:
            return struct_maker(schema)(from_json(schema, tree, self._replace_null))

        schema = schema_from_json(parse(schema_text), default)
        return _remember(self._decoders, schema_text, Decoder(schema, self._replace_null), self._cache_size)

    # ---- headers

    def from_connect_header(self, topic: str, key: str, schema: Schema | None, value: Any) -> bytes | None:
        """The JSON of a header's value."""
        return self.from_connect(topic, schema, value)

    def to_connect_header(self, topic: str, key: str, data: bytes | None) -> SchemaAndValue:
        """The value in a header's JSON."""
        return self.to_connect(topic, data)


def _all_begin_with(prefix: bytes, data: Sequence[Any]) -> bool:
    """Whether all begin with the prefix and end with a brace: what the smallest and the largest share, all do."""
    try:
        smallest, largest = min(data), max(data)
    except TypeError:  # there are nulls
        return False
    return smallest.startswith(prefix) and largest.startswith(prefix) and set(map(_last, data)) == {_BRACE}


def _leading(data: Sequence[bytes | None], position: int) -> Sequence[bytes]:
    """The items from `position` on, before the next one that is null or empty."""
    if position == 0 and all(data):
        return cast("Sequence[bytes]", data)
    items: list[bytes] = []
    for item in islice(data, position, None):
        if not item:
            break
        items.append(item)
    return items


def _extend(runs: list[Run], schema: Schema | None, values: Values) -> None:
    last = runs[-1] if runs else None
    if last is None or not (last.schema is schema or last.schema == schema):
        runs.append(Run(schema, values))
    elif isinstance(last.values, list):
        last.values.extend(listed(values))
    else:
        runs[-1] = Run(schema, [*listed(last.values), *listed(values)])


def _remember(cache: dict[Any, _V], key: Any, value: _V, size: int) -> _V:
    """Put into a cache that forgets its oldest entry when full."""
    if len(cache) >= size:
        del cache[next(iter(cache))]
    cache[key] = value
    return value
