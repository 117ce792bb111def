from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pytest

from headrace.api.converter import SchemaRun
from headrace.api.errors import ConfigErrors, DataError, RecordErrors
from headrace.converters.json_converter import JsonConverter
from headrace.data.columns import listed
from headrace.data.json_encoding import encode_schema
from headrace.data.json_values import EncodingOptions
from headrace.data.logical import (
    DATE_SCHEMA,
    OPTIONAL_TIMESTAMP_SCHEMA,
    TIME_SCHEMA,
    TIMESTAMP_SCHEMA,
    Date,
    Time,
    Timestamp,
    decimal_schema,
)
from headrace.data.schema import (
    BOOLEAN_SCHEMA,
    BYTES_SCHEMA,
    FLOAT32_SCHEMA,
    FLOAT64_SCHEMA,
    INT8_SCHEMA,
    INT32_SCHEMA,
    INT64_SCHEMA,
    OPTIONAL_INT32_SCHEMA,
    OPTIONAL_STRING_SCHEMA,
    STRING_SCHEMA,
    Schema,
    Type,
    array,
    map_of,
    struct,
)
from headrace.data.struct import Struct
from support.connect_data import is_identical
from support.transforms import make_converter

NOT_AN_ENVELOPE = (
    'JsonConverter with schemas.enable requires "schema" and "payload" fields and may not contain additional fields. '
    "If you are trying to deserialize plain JSON data, set schemas.enable=false in your converter configuration. "
    "If the connector needs a schema, for example a JDBC sink, set schema.content to the schema of the data instead."
)


def converter(**props: str) -> JsonConverter:
    return make_converter(JsonConverter, "value", **props)


def runs(configured: JsonConverter, data: list[bytes | None]) -> list[SchemaRun]:
    return [SchemaRun(run.schema, listed(run.values)) for run in configured.to_connect_batch("t", data)]


PLAIN = {"schemas_enable": "false"}
LINE = struct([("line", STRING_SCHEMA), ("source", OPTIONAL_STRING_SCHEMA)])
LINE_SCHEMA = (
    b'{"type":"struct","fields":[{"type":"string","optional":false,"field":"line"},'
    b'{"type":"string","optional":true,"field":"source"}],"optional":false}'
)


# Payloads from Kafka's JsonConverterTest, and payloads that Jackson has written.
PAYLOADS: list[tuple[Schema, Any, bytes]] = [
    (BOOLEAN_SCHEMA, True, b"true"),
    (INT8_SCHEMA, -12, b"-12"),
    (INT64_SCHEMA, 4398046511104, b"4398046511104"),
    (FLOAT32_SCHEMA, 12.34000015258789, b"12.34"),
    (FLOAT32_SCHEMA, 1.0e10, b"1.0E10"),
    (FLOAT64_SCHEMA, 12.34, b"12.34"),
    (FLOAT64_SCHEMA, 1e10, b"1.0E10"),
    (FLOAT64_SCHEMA, 1e-7, b"1.0E-7"),
    (FLOAT64_SCHEMA, -5.0, b"-5.0"),
    (FLOAT64_SCHEMA, math.inf, b'"Infinity"'),
    (BYTES_SCHEMA, b"test-string", b'"dGVzdC1zdHJpbmc="'),
    (STRING_SCHEMA, 'a"b\\c/\u00e9\u2028\x1f\x7f\n', '"a\\"b\\\\c/\u00e9\u2028\\u001F\x7f\\n"'.encode()),
    (STRING_SCHEMA, "\\u001f", b'"\\\\u001f"'),
    (STRING_SCHEMA, "\U0001f600 \u1f60", '"\\uD83D\\uDE00 \u1f60"'.encode()),
    (array(INT32_SCHEMA), [1, 2, 3], b"[1,2,3]"),
    (map_of(STRING_SCHEMA, INT32_SCHEMA), {"key1": 12, "key2": 15}, b'{"key1":12,"key2":15}'),
    (map_of(INT32_SCHEMA, INT32_SCHEMA), {1: 12, 2: 15}, b"[[1,12],[2,15]]"),
    (map_of(OPTIONAL_STRING_SCHEMA, INT32_SCHEMA), {None: 1}, b'{"null":1}'),
    (decimal_schema(2), Decimal("1.56"), b'"AJw="'),
    (DATE_SCHEMA, Date(10000), b"10000"),
    (DATE_SCHEMA, Date(-(2**31)), b"-2147483648"),
    (DATE_SCHEMA, Date(2**31 - 1), b"2147483647"),
    (TIME_SCHEMA, Time(14_400_000), b"14400000"),
    (TIMESTAMP_SCHEMA, Timestamp(1_000_000_000_000), b"1000000000000"),
    (TIMESTAMP_SCHEMA, Timestamp(-(2**63)), b"-9223372036854775808"),
    (TIMESTAMP_SCHEMA, Timestamp(2**63 - 1), b"9223372036854775807"),
]


@pytest.mark.parametrize(("schema", "value", "payload"), PAYLOADS)
def test_json_converter_encodes_values_of_every_type_alone_and_as_struct_fields(
    schema: Schema, value: Any, payload: bytes
) -> None:
    assert converter(**PLAIN).from_connect("t", schema, value) == payload
    in_struct = struct([("a", schema), ("b", schema.replace(optional=True))])
    rows = [(value, None), (value, value)]
    assert converter(**PLAIN).from_connect_batch("t", in_struct, rows) == [
        b'{"a":' + payload + b',"b":null}',
        b'{"a":' + payload + b',"b":' + payload + b"}",
    ]


def test_json_converter_writes_nan_as_a_string() -> None:
    assert converter(**PLAIN).from_connect("t", FLOAT64_SCHEMA, math.nan) == b'"NaN"'
    enveloped = converter().from_connect("t", FLOAT64_SCHEMA, math.nan)
    assert math.isnan(converter().to_connect("t", enveloped).value)


def test_json_converter_encodes_a_struct_as_an_envelope_with_schema_and_payload() -> None:
    configured = converter()
    data = configured.from_connect("t", LINE, Struct(LINE, {"line": "x"}))
    assert data == b'{"schema":' + LINE_SCHEMA + b',"payload":{"line":"x","source":null}}'
    assert configured.to_connect("t", data) == (LINE, Struct(LINE, {"line": "x"}))


def test_schema_attributes_are_written_in_the_order_of_kafkas_json_converter() -> None:
    schema = Schema(Type.INT32, optional=True, default=7, name="n", version=3, doc="d", parameters={"p": "q", "r": "s"})
    data = converter().from_connect("t", schema, 1)
    assert data == (
        b'{"schema":{"type":"int32","optional":true,"name":"n","version":3,"doc":"d",'
        b'"parameters":{"p":"q","r":"s"},"default":7},"payload":1}'
    )
    assert converter().to_connect("t", data) == (schema, 1)
    nested = map_of(INT32_SCHEMA, array(decimal_schema(2)), optional=True)
    assert converter().from_connect("t", nested, None) == (
        b'{"schema":{"type":"map","keys":{"type":"int32","optional":false},"values":{"type":"array","items":'
        b'{"type":"bytes","optional":false,"name":"org.apache.kafka.connect.data.Decimal","version":1,'
        b'"parameters":{"scale":"2"}},"optional":false},"optional":true},"payload":null}'
    )


def test_null_round_trips_through_the_json_converter_unless_the_schema_is_required() -> None:
    assert converter().from_connect("t", None, None) is None
    assert converter(**PLAIN).from_connect("t", None, None) is None
    assert converter(**PLAIN).from_connect("t", OPTIONAL_STRING_SCHEMA, None) == b"null"
    assert converter().to_connect("t", None) == (None, None)
    assert converter().to_connect("t", b'{"schema":null,"payload":null}') == (None, None)
    assert converter(**PLAIN).to_connect("t", b"") == (None, None)
    with pytest.raises(DataError, match="null value for field that is required and has no default value"):
        converter().from_connect("t", STRING_SCHEMA, None)


def test_json_converter_replaces_null_fields_with_schema_defaults_only_if_configured() -> None:
    schema = struct([("n", OPTIONAL_INT32_SCHEMA.replace(default=7))])
    assert converter(**PLAIN).from_connect_batch("t", schema, [(None,), (1,)]) == [b'{"n":7}', b'{"n":1}']
    keep = converter(replace_null_with_default="false", **PLAIN)
    assert keep.from_connect_batch("t", schema, [(None,)]) == [b'{"n":null}']
    data = converter(replace_null_with_default="false").from_connect("t", schema, Struct(schema))
    assert data is not None
    assert converter().to_connect("t", data).value.get_without_default("n") == 7
    assert converter(replace_null_with_default="false").to_connect("t", data).value.get_without_default("n") is None


def test_json_converter_replaces_a_null_struct_with_the_default_of_its_schema() -> None:
    inner = struct([("x", INT32_SCHEMA)], optional=True)
    schema = struct([("p", inner.replace(default=Struct(inner, {"x": 1})))])
    data = converter().from_connect_batch("t", schema, [(None,), ((2,),)])
    assert [item[-15:] for item in data if item] == [b':{"p":{"x":1}}}', b':{"p":{"x":2}}}']
    assert runs(converter(), data) == [SchemaRun(schema, [((1,),), ((2,),)])]


def test_json_converter_encodes_schemaless_values_as_plain_json_and_decodes_plain_json() -> None:
    configured = converter(**PLAIN)
    value = {"s": "x", "i": 2**70, "f": 1e10, "l": [1.5, None, True], "m": {"k": b"ab"}}
    data = configured.from_connect("t", None, value)
    assert data == b'{"s":"x","i":1180591620717411303424,"f":1.0E10,"l":[1.5,null,true],"m":{"k":"YWI="}}'
    assert configured.to_connect("t", data).value == {**value, "m": {"k": "YWI="}}
    assert configured.to_connect("t", b"12") == (None, 12)
    assert configured.to_connect("t", b"12.0") == (None, 12.0)
    assert converter().from_connect("t", None, {"a": 1}) == b'{"schema":null,"payload":{"a":1}}'
    assert configured.from_connect("t", None, {1: "a"}) == b'[[1,"a"]]'


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, Decimal("1"), dt.date(2020, 1, 1), Date(1), Struct(LINE, {"line": "x"})]
)
def test_json_converter_rejects_schemaless_values_of_types_that_require_a_schema(value: Any) -> None:
    with pytest.raises(DataError):
        converter(**PLAIN).from_connect("t", None, value)


def test_json_converter_writes_decimals_as_numbers_if_configured() -> None:
    configured = converter(decimal_format="numeric", **PLAIN)
    schema = struct([("d", decimal_schema(2))])
    digits = Decimal("12345678901234567890123.40")
    assert configured.from_connect_batch("t", schema, [(digits,)]) == [b'{"d":12345678901234567890123.40}']
    reading = converter()
    for payload, value in ((b"1.50", "1.50"), (b'"AJY="', "1.50"), (b"1e3", "1E+3"), (b"7", "7")):
        envelope = converter().from_connect("t", schema, Struct(schema, {"d": Decimal("0.00")}))
        assert envelope is not None
        data = envelope.replace(b'{"d":"AA=="}', b'{"d":' + payload + b"}")
        assert str(reading.to_connect("t", data).value.get("d")) == value
        assert str(runs(reading, [data])[0].values[0][0]) == value


@pytest.mark.parametrize(
    "data", [b'{"a":1}', b"[]", b"1", b'{"schema":null}', b'{"schema":null,"payload":1,"x":2}', b'{"payload":1,"a":2}']
)
def test_json_converter_rejects_an_invalid_envelope(data: bytes) -> None:
    with pytest.raises(DataError) as caught:
        converter().to_connect("t", data)
    assert str(caught.value) == NOT_AN_ENVELOPE


@pytest.mark.parametrize("data", [b"{", b'"\xff"', b"nul", b'{"schema":null,"payload":1}x', b"[" * 100_000])
def test_json_converter_rejects_invalid_json(data: bytes) -> None:
    for configured in (converter(), converter(**PLAIN)):
        with pytest.raises(DataError, match="due to serialization error"):
            configured.to_connect("t", data)
        with pytest.raises(RecordErrors):
            configured.to_connect_batch("t", [data])


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{}", "must contain 'type'"),
        ('{"type":"int128"}', "Unknown schema type: int128"),
        ('{"type":"array"}', "element type"),
        ('{"type":"map","keys":{"type":"string"}}', "value type"),
        ('{"type":"struct"}', '"fields" argument is not an array'),
        ('{"type":"struct","fields":[{"type":"int8"}]}', "field name not specified"),
        ('{"type":"int8","parameters":{"a":1}}', "string values"),
        ('{"type":"int8","default":"x"}', "INT8"),
    ],
)
def test_json_converter_rejects_an_envelope_with_an_invalid_schema(schema: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        converter().to_connect("t", b'{"schema":' + schema.encode() + b',"payload":null}')


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        (INT32_SCHEMA, b'"1"'),
        (INT32_SCHEMA, b"true"),
        (INT32_SCHEMA, b"2147483648"),
        (INT32_SCHEMA, b"null"),
        (STRING_SCHEMA, b"1"),
        (BOOLEAN_SCHEMA, b"0"),
        (FLOAT64_SCHEMA, b'"x"'),
        (BYTES_SCHEMA, b'"!"'),
        (TIMESTAMP_SCHEMA, b"1.5"),
        (TIME_SCHEMA, b"86400000"),
        (decimal_schema(2), b'""'),
        (decimal_schema(2), b"[]"),
        (array(INT32_SCHEMA), b"{}"),
        (map_of(STRING_SCHEMA, INT32_SCHEMA), b"[]"),
        (map_of(INT32_SCHEMA, INT32_SCHEMA), b"[[1]]"),
    ],
)
def test_json_payload_that_does_not_match_its_schema_is_rejected(schema: Schema, payload: bytes) -> None:
    configured = converter()
    holder = struct([("before", OPTIONAL_STRING_SCHEMA), ("it", schema)])
    prefix = configured._envelope_prefix(holder)
    bad, good = prefix + b'{"it":' + payload + b"}}", prefix + b'{"it":' + _good(schema) + b"}}"
    with pytest.raises(DataError, match=r'\(field "it(\[0\])?"\)$'):
        configured.to_connect("t", bad)
    with pytest.raises(RecordErrors) as caught:
        configured.to_connect_batch("t", [good, bad, None, bad, b"{"])
    assert list(caught.value.errors) == [1, 3, 4]
    assert len(configured.to_connect_batch("t", [good, None])) == 2


def _good(schema: Schema) -> bytes:
    by_type = {Type.STRING: b'""', Type.BOOLEAN: b"true", Type.BYTES: b'"AA=="', Type.ARRAY: b"[]"}
    if schema.type is Type.MAP:
        return b"{}" if schema.key_schema is STRING_SCHEMA else b"[]"
    return by_type.get(schema.type, b"0")


def test_json_converter_parses_numbers_as_jackson_does() -> None:
    configured = converter()
    cases: list[tuple[Schema, bytes, Any]] = [
        (INT32_SCHEMA, b"3.7", 3),
        (FLOAT64_SCHEMA, b"1", 1.0),
        (FLOAT32_SCHEMA, b"0.1", 0.10000000149011612),
    ]
    for schema, payload, value in cases:
        assert configured.to_connect("t", configured._envelope_prefix(schema) + payload + b"}") == (schema, value)
        in_struct = struct([("a", schema)])
        data = configured._envelope_prefix(in_struct) + b'{"a":' + payload + b',"unknown":1}}'
        assert runs(configured, [data]) == [SchemaRun(in_struct, [(value,)])]


def test_error_for_a_batch_with_invalid_values_contains_their_indexes() -> None:
    rows = [("a", "b"), (None, "b"), ("a", None), (1, "b"), ("a",), ("b", 5)]
    with pytest.raises(RecordErrors) as caught:
        converter().from_connect_batch("t", LINE, rows)
    assert list(caught.value.errors) == [1, 3, 4, 5]
    assert 'field "line"' in str(caught.value.errors[1])
    good = [row for index, row in enumerate(rows) if index not in caught.value.errors]
    assert len(converter().from_connect_batch("t", LINE, good)) == 2


def test_unpaired_surrogates_are_written_as_escapes_in_values_and_in_names_of_maps() -> None:
    configured = converter(**PLAIN)
    value = {"\ud800": ["x\udc00é", '\udc00"\n\U0001f600'], "b": 2**70, "c": None}
    expected = r'{"\uD800":["x\uDC00é","\uDC00\"\n\uD83D\uDE00"],"b":1180591620717411303424,"c":null}'
    assert configured.from_connect("t", None, value) == expected.encode()
    assert configured.from_connect_batch("t", STRING_SCHEMA, ["a", "\udc00"]) == [b'"a"', rb'"\uDC00"']


def test_version_of_a_schema_that_exceeds_32_bits_keeps_its_lowest_bits() -> None:
    data = b'{"schema":{"type":"string","version":2147483648},"payload":"a"}'
    schema = converter().to_connect("t", data).schema
    assert schema is not None
    assert schema.version == -(2**31)


def test_order_of_the_records_in_a_large_batch_is_kept() -> None:
    """The encoder splits a large batch into chunks. Each error contains the record's index in the whole batch."""
    rows: list[Any] = [(f"line {number}", None) for number in range(3500)]
    configured = converter()
    assert runs(configured, configured.from_connect_batch("t", LINE, rows)) == [SchemaRun(LINE, rows)]
    rows[1700], rows[3400] = (None, None), (1, None)
    with pytest.raises(RecordErrors) as caught:
        configured.from_connect_batch("t", LINE, rows)
    assert list(caught.value.errors) == [1700, 3400]


def test_consecutive_json_values_with_equal_schemas_are_decoded_to_one_list_of_values() -> None:
    configured = converter()
    lines = configured.from_connect_batch("t", LINE, [("a", None), ("b", "c")])
    numbers = configured.from_connect_batch("t", INT32_SCHEMA, [1])
    plain = [b'{"schema":null,"payload":5}', b'{ "payload": 6, "schema": null }']
    odd = [b'{"payload":{"line":"d"}, "schema":' + LINE_SCHEMA + b"}"]
    data = [*lines, *odd, None, *numbers, *plain, *lines[:1]]
    assert runs(configured, data) == [
        SchemaRun(LINE, [("a", None), ("b", "c"), ("d", None)]),
        SchemaRun(None, [None]),
        SchemaRun(INT32_SCHEMA, [1]),
        SchemaRun(None, [5, 6]),
        SchemaRun(LINE, [("a", None)]),
    ]
    assert runs(configured, []) == []


@pytest.mark.parametrize("space", [b"", b" "], ids=["compact", "with spaces"])
def test_json_envelopes_whose_payload_precedes_the_schema_are_decoded(space: bytes) -> None:
    envelope = b'{"payload":%d,' + space + b'"schema":{"type":"int32","optional":false}}'
    kafkas = b'{"schema":{"type":"int32","optional":false},"payload":3}'
    assert runs(converter(), [envelope % 1, envelope % 2, kafkas, envelope % 4]) == [
        SchemaRun(INT32_SCHEMA, [1, 2, 3, 4])
    ]


def test_invalid_json_envelope_that_begins_like_a_valid_envelope_is_rejected() -> None:
    configured = converter()
    good = configured.from_connect_batch("t", LINE, [("a", None)])[0]
    assert good is not None
    for bad in (good[:-1] + b"]", good[:-1] + b',"x":1}', good[:-1], good[:-2] + b',"line":1}}'):
        with pytest.raises(RecordErrors) as caught:
            configured.to_connect_batch("t", [good, bad])
        assert list(caught.value.errors) == [1]
    assert runs(configured, [good, good + b" \n"]) == [SchemaRun(LINE, [("a", None), ("a", None)])]


@pytest.mark.parametrize("number", [b"1e999999999", b"-1e999999999", b"1e99999999999999999999", b"9" * 5000])
def test_number_with_a_huge_exponent_is_rejected_without_computing_its_digits(number: bytes) -> None:
    for schema in (INT32_SCHEMA, INT64_SCHEMA, TIMESTAMP_SCHEMA):
        holder = struct([("it", schema)])
        for data in (
            converter()._envelope_prefix(schema) + number + b"}",
            converter()._envelope_prefix(holder) + b'{"it":' + number + b"}}",
        ):
            with pytest.raises(DataError):
                converter().to_connect("t", data)
            with pytest.raises(RecordErrors):
                converter().to_connect_batch("t", [data])


def test_too_deeply_nested_json_schema_is_rejected() -> None:
    data = b'{"schema":' + b'{"type":"array","items":' * 400 + b'{"type":"int8"}' + b"}" * 400 + b',"payload":[]}'
    with pytest.raises(DataError):
        converter().to_connect("t", data)
    with pytest.raises(RecordErrors):
        converter().to_connect_batch("t", [data])


def test_json_converter_decodes_every_payload_with_the_schema_that_is_configured_in_schema_content() -> None:
    configured = converter(schema_content=LINE_SCHEMA.decode())
    assert runs(configured, [b'{"line":"x"}', None]) == [SchemaRun(LINE, [("x", None)]), SchemaRun(None, [None])]


def test_schema_cache_of_the_json_converter_does_not_exceed_its_maximum_size() -> None:
    configured = converter(schemas_cache_size="2")
    for number in range(5):
        data = configured.from_connect("t", INT32_SCHEMA.replace(name=f"n{number}"), number)
        assert configured.to_connect("t", data).value == number
    assert len(configured._decoders) == len(configured._prefixes) == 2


@pytest.mark.parametrize("default", [Timestamp(-(2**63)), Timestamp(2**63 - 1), dt.datetime(1970, 1, 1, 0, 0, 1)])
def test_timestamp_default_is_written_as_an_integer_and_read_as_a_timestamp(default: Any) -> None:
    schema = struct([("t", OPTIONAL_TIMESTAMP_SCHEMA.replace(default=default))])
    millis = default if isinstance(default, int) else Timestamp(1000)
    [data] = converter().from_connect_batch("t", schema, [(None,)])
    assert f'"default":{millis},"field":"t"}}],"optional":false}},"payload":{{"t":{millis}}}}}'.encode() in (
        data or b""
    )
    [run] = runs(converter(), [data])
    assert run.schema == schema
    assert is_identical(run.values[0][0], millis)


def test_optional_fields_with_logical_types_round_trip_through_json() -> None:
    schema = struct([("t", OPTIONAL_TIMESTAMP_SCHEMA), ("n", INT64_SCHEMA)])
    rows = [(None, 1), (Timestamp(1000), 2)]
    data = converter().from_connect_batch("t", schema, rows)
    assert runs(converter(), data) == [SchemaRun(schema, rows)]


def test_invalid_json_converter_configuration_is_rejected() -> None:
    with pytest.raises(ConfigErrors) as caught:
        converter(schemas_enable="maybe", decimal_format="HEX")
    assert len(caught.value.errors) == 2


def test_json_converter_encodes_and_decodes_header_values() -> None:
    configured = converter(**PLAIN)
    assert configured.from_connect_header("t", "h", INT32_SCHEMA, 5) == b"5"
    assert configured.to_connect_header("t", "h", b"5") == (None, 5)


INNER = struct([("i", INT32_SCHEMA)])
OUTER = struct([("s", INNER), ("l", array(INNER)), ("m", map_of(STRING_SCHEMA, INT32_SCHEMA))])
PAIRS = struct([("p", map_of(INT32_SCHEMA, INNER))])


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        (OUTER, (("x",), [], {}), 'Invalid type for INT32: str (field "s.i")'),
        (OUTER, ((1,), [(1,), (2**40,)], {}), 'Value 1099511627776 is out of range for type INT32 (field "l[1].i")'),
        (OUTER, ((1,), [(1,), None], {}), 'has no default value, schema type: STRUCT (field "l[1]")'),
        (OUTER, ((1,), [], {"a": 1, "k": "x"}), 'Invalid type for INT32: str (field "m.k")'),
        (PAIRS, ({1: (1,), 2: ("x",)},), 'Invalid type for INT32: str (field "p.2.i")'),
        (None, {"a": [0, {"b": {1}}]}, 'set does not have a corresponding schema type. (field "a[1].b")'),
        (None, [1, [{1}]], 'set does not have a corresponding schema type. (field "[1][0]")'),
    ],
)
def test_error_of_encoding_a_json_value_names_the_path_of_the_field(
    schema: Schema | None, value: Any, message: str
) -> None:
    with pytest.raises(RecordErrors) as caught:
        converter(**PLAIN).from_connect_batch("t", schema, [value])
    assert str(caught.value.errors[0]).endswith(message)


@pytest.mark.parametrize(
    ("schema", "payload", "message"),
    [
        (OUTER, '{"s":{"i":"x"},"l":[],"m":{}}', "Invalid value for type INT32: 'x' (field \"s.i\")"),
        (
            OUTER,
            '{"s":{"i":1},"l":[{"i":1},{}],"m":{}}',
            'Invalid null value for required INT32 field (field "l[1].i")',
        ),
        (OUTER, '{"s":{"i":1},"l":[],"m":{"k":"x"}}', "Invalid value for type INT32: 'x' (field \"m.k\")"),
        (PAIRS, '{"p":[[1,{"i":1}],[2,{"i":"x"}]]}', "Invalid value for type INT32: 'x' (field \"p[1].i\")"),
        (PAIRS, '{"p":[[1]]}', 'Found invalid map entry, expected length 2 but found :1 (field "p[0]")'),
    ],
)
def test_error_of_decoding_a_json_value_names_the_path_of_the_field(schema: Schema, payload: str, message: str) -> None:
    envelope = b'{"schema":%s,"payload":%s}' % (encode_schema(schema, EncodingOptions()), payload.encode())
    with pytest.raises(DataError) as caught:
        converter().to_connect("t", envelope)
    assert str(caught.value).endswith(message)


@pytest.mark.parametrize(
    "encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"]
)
def test_json_with_a_byte_order_mark_or_in_utf_16_or_utf_32_is_decoded(encoding: str) -> None:
    text = '{"schema":{"type":"string"},"payload":"é"}'
    assert converter().to_connect("t", text.encode(encoding)) == (STRING_SCHEMA, "é")
    data = [text.encode(), text.encode(encoding), text.encode()]
    assert converter().to_connect_batch("t", data) == [SchemaRun(STRING_SCHEMA, ["é"] * 3)]
    schemaless = converter(schemas_enable="false")
    assert schemaless.to_connect("t", "[1]".encode(encoding)) == (None, [1])
    with pytest.raises(DataError):
        schemaless.to_connect("t", "[1]".encode(encoding)[:-1])


def test_blank_json_without_a_schema_is_null() -> None:
    schemaless = converter(schemas_enable="false")
    assert schemaless.to_connect("t", b" \n") == (None, None)
    assert schemaless.to_connect_batch("t", [b"1", b" "]) == [SchemaRun(None, [1, None])]


@pytest.mark.parametrize(("start", "end"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_json_with_a_thousand_nested_levels_round_trips(start: bytes, end: bytes) -> None:
    schemaless = converter(schemas_enable="false")
    data = start * 1000 + b'"[{"' + end * 1000
    (run,) = schemaless.to_connect_batch("t", [data, b"1"])
    assert schemaless.from_connect_batch("t", None, [run.values[0]]) == [data]
    with pytest.raises(RecordErrors) as caught:
        schemaless.to_connect_batch("t", [b"1", start + data + end])
    assert list(caught.value.errors) == [1]
