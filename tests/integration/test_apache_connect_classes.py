"""Tests that converters, transforms and the header parser return the same results as Kafka Connect's classes.

Known differences are excluded:

- maps with several keys (Java writes them in HashMap order)
- NaN and infinities
- numbers out of range, and strings in numeric fields (Java reads 0)
- masked Decimals (Java loses their scale)
- dates that do not fit into INT32 (Java drops the upper bits)
- timestamps before 1970 that are cast to strings (Java writes only the time of day)
- floating point numbers that Java 17 prints with more digits than Java 19
"""

from __future__ import annotations

import json
import shutil
import subprocess
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from headrace.converters.json_converter import JsonConverter
from headrace.data.logical import DATE_SCHEMA, TIME_SCHEMA, TIMESTAMP_SCHEMA, decimal_schema
from headrace.data.schema import (
    INT32_SCHEMA,
    INT64_SCHEMA,
    OPTIONAL_BOOLEAN_SCHEMA,
    OPTIONAL_BYTES_SCHEMA,
    OPTIONAL_FLOAT64_SCHEMA,
    OPTIONAL_STRING_SCHEMA,
    STRING_SCHEMA,
    Schema,
    Type,
    struct,
)
from headrace.data.struct import Struct
from headrace.data.text import java_string
from headrace.data.value_text import convert_to_string, parse_string
from support import apache
from support.connect_data import primitives, schemas, struct_of, values
from support.transforms import make_converter, make_plugin, records, sink_batch

pytestmark = [
    pytest.mark.jvm,
    pytest.mark.integration,
    pytest.mark.skipif(apache.unavailable_reason() is not None, reason=apache.unavailable_reason() or ""),
    pytest.mark.skipif(shutil.which("javac") is None, reason="javac is not on the path: a JDK 17 is needed"),
]

ORACLE = Path(__file__).parents[1] / "support" / "ConnectOracle.java"


def run_oracle(requests: list[tuple[str, ...]]) -> list[str]:
    """Run ConnectOracle.java, which calls Kafka Connect's classes. Return the response to each request."""
    lines = "".join("\t".join(request) + "\n" for request in requests)
    command = ["java", *apache.SHORT_RUN_FLAGS, "-cp", apache.classpath(), str(ORACLE)]
    done = subprocess.run(command, input=lines.encode(), capture_output=True, timeout=120)
    responses = done.stdout.decode().split("\n")[:-1]
    assert len(responses) == len(requests), done.stderr.decode()[-2000:]
    return responses


def converter(**props: str) -> JsonConverter:
    return make_converter(JsonConverter, "value", **props)


ON, OFF, NUMERIC = converter(), converter(schemas_enable="false"), converter(decimal_format="NUMERIC")


def text(data: bytes | None) -> str:
    return "-" if data is None else data.decode()


# ---- JsonConverter ---------------------------------------------------------------------------------------------------


def _comparable(schema: Schema | None, value: Any) -> bool:
    """Return whether headrace and Kafka Connect must write the same bytes for this value."""
    if schema is None or value is None:
        return True
    if schema.type in (Type.FLOAT32, Type.FLOAT64):
        return bool(abs(value) < 1e7 and value * 8 == int(value * 8) and str(value) != "-0.0")
    if schema.type is Type.ARRAY:
        return all(_comparable(schema.value_schema, item) for item in value)
    if schema.type is Type.MAP:
        return len(value) < 2 and all(_comparable(schema.value_schema, item) for item in value.values())
    if schema.type is Type.STRUCT:
        return all(_comparable(field.schema, value.get(field.name)) for field in schema.fields)
    return True


def _same_text(schema: Schema | None) -> bool:
    """Return whether headrace's text for a value of this schema must equal the result of Java's toString.

    The texts differ for bytes, because Java's text does not contain the bytes.
    """
    if schema is None:
        return True
    if schema.type is Type.BYTES:
        return schema.name == decimal_schema(0).name
    inner = [schema.key_schema, schema.value_schema, *(field.schema for field in schema.fields)]
    return all(_same_text(each) for each in inner)


def _envelopes(count: int) -> list[tuple[Schema, Any, str]]:
    made: list[tuple[Schema, Any, str]] = []

    @seed(1)
    @settings(
        deadline=None,
        max_examples=count,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def generate(data: st.DataObject) -> None:
        schema = data.draw(schemas() | struct_of(primitives(), 8))
        value = data.draw(values(schema))
        if value is None or not _comparable(schema, value):
            return
        envelope = text(ON.from_connect("t", schema, value))
        if not any(mark in envelope for mark in ("\t", "\\t", "\\n", "\\r")) and len(envelope.splitlines()) == 1:
            made.append((schema, value, envelope))

    generate()
    return made


def test_json_converter_writes_the_same_json_as_kafka_connect() -> None:
    cases = _envelopes(600)
    assert len(cases) > 200
    for (schema, value, envelope), response in zip(
        cases, run_oracle([("json", case[2]) for case in cases]), strict=True
    ):
        *written, shown = response.split("\t")
        assert written == [text(each.from_connect("t", schema, value)) for each in (ON, OFF, NUMERIC)], envelope
        if _same_text(schema):
            assert shown == java_string(value, schema), envelope


# ---- Values ----------------------------------------------------------------------------------------------------------

TEXTS = [
    "{\"a\":1,\"b\":2.5}", "{a:1}", "[null]", "[null,1]", "{\"a\":null}", "[]", "{}", "1.0", "1e3", "0.1", "-0", "+5",
    "9223372036854775808", "1e-50", "2019-08-23", "2019-08-23T14:34:54.346Z", "14:34:54.346Z", "[2019-08-23]",
    "[\"2019-08-23\"]", "true", "[true,false]", "[true,1]", "truex", "null", "\"abc\"", "a:b", "[1,]", "[,1]",
    "{\"a\"}",
    "{1:2}", "[[1],[2.5]]", "[[1],[\"a\"]]", "  ", "[ 1 , 2 ]", "128", "32768", "2147483648", "1.5", "3.5e38", "[1 2]",
    "{\"k\":[1,2]}", "1 and 2", "12345678901", "0x10", "1_000", ".5", "5.", "-", "- 5", "--5", "[1,2.5]", "[1, \"a\"]",
]  # fmt: skip


def _name(schema: Schema | None) -> str:
    if schema is None:
        return "null"
    name = schema.name or schema.type.name
    if schema.type is Type.ARRAY:
        return f"{name}<{_name(schema.value_schema)}>"
    if schema.type is Type.MAP:
        return f"{name}<{_name(schema.key_schema)},{_name(schema.value_schema)}>"
    return name


def test_header_strings_are_parsed_to_the_same_schemas_and_values_as_in_kafka_connect() -> None:
    for guess, response in zip(TEXTS, run_oracle([("text", each) for each in TEXTS]), strict=True):
        schema, value = parse_string(guess)
        shown = "null" if value is None else convert_to_string(value, schema)
        assert response == f"{_name(schema)}\t{shown}", guess


# ---- transforms ------------------------------------------------------------------------------------------------------

INNER = struct([("x", INT32_SCHEMA), ("y", OPTIONAL_STRING_SCHEMA)], optional=True)
ROW = struct(
    [
        ("a", INT32_SCHEMA),
        ("b", OPTIONAL_STRING_SCHEMA),
        ("c", OPTIONAL_FLOAT64_SCHEMA.replace(default=1.5)),
        ("ts", INT64_SCHEMA.replace(optional=True)),
        ("in", INNER),
        ("bytes", OPTIONAL_BYTES_SCHEMA),
        ("bool", OPTIONAL_BOOLEAN_SCHEMA),
        ("t", TIMESTAMP_SCHEMA.replace(optional=True)),
        ("d", decimal_schema(2).replace(optional=True)),
        ("dt", DATE_SCHEMA.replace(optional=True)),
        ("tm", TIME_SCHEMA.replace(optional=True)),
    ],
    name="row",
    version=2,
    doc="d",
    parameters={"k": "v"},
)
FULL = Struct(
    ROW,
    {
        "a": -5,
        "b": "12",
        "c": 3e9,
        "ts": 1_700_000_000_123,
        "in": Struct(INNER, {"x": 1, "y": "z"}),
        "bytes": b"\x00\xff",
        "bool": True,
        "t": 1_700_000_000_123,
        "d": Decimal("12.50"),
        "dt": 18_321,
        "tm": 3_723_004,
    },
)
LATE = Struct(
    ROW, {"a": 1, "b": "12026-01-05 00:00:00.0", "ts": 18 * 10**16, "t": 253_402_318_799_000, "dt": 2_932_897}
)
EARLY = Struct(ROW, {"a": 1, "b": "-2026-01-05 00:00:00.0", "ts": -62_135_600_008_000, "t": -(10**17)})
VALUES = [
    Struct(ROW, {"a": 300}),
    FULL,
    Struct(ROW, {"a": 7, "b": "x", "c": -0.4, "d": Decimal("-0.01")}),
    LATE,
    EARLY,
]
PLAIN: list[Any] = [{"a": "7"}, {"a": 300}, {"a": {"b": {"c": 1}}}, {}, None, 5]

TRANSFORMS = [
    ("HoistField$Value", "field=x"),
    ("InsertField$Value", "topic.field=t1!;partition.field=p;offset.field=o?;timestamp.field=w"),
    ("InsertField$Value", "static.field=s;static.value=v;replace.null.with.default=false"),
    ("ReplaceField$Value", "exclude=a,in;renames=b:z"),
    ("ReplaceField$Value", "include=b,c"),
    ("ReplaceField$Value", "renames=a:nope"),
    ("ExtractField$Value", "field=b"),
    ("ExtractField$Value", "field=in"),
    ("ExtractField$Value", "field=in.y;field.syntax.version=V2"),
    ("ExtractField$Value", "field=c"),
    ("ExtractField$Value", "field=c;replace.null.with.default=false"),
    ("ExtractField$Value", "field=nope"),
    ("ValueToKey", "fields=a"),
    ("ValueToKey", "fields=b,a,c"),
    ("ValueToKey", "fields=nope"),
    ("RegexRouter", "regex=(.*)-(\\d);replacement=$2_$1"),
    ("RegexRouter", "regex=nope;replacement=x"),
    ("SetSchemaMetadata$Value", "schema.name=n;schema.version=9"),
    ("MaskField$Value", "fields=a,b,c,t"),
    ("MaskField$Value", "fields=a,b;replacement=42"),
    ("MaskField$Value", "fields=c;replacement=4.5"),
    ("Flatten$Value", "delimiter=_"),
    ("Filter", ""),
    ("TimestampRouter", ""),
    ("TimestampRouter", "topic.format=${timestamp}.${topic};timestamp.format=yyyy-MM-dd'T'HH"),
    *(
        ("Cast$Value", f"spec={field}:{target}")
        for field in ("a", "b", "c", "bool", "bytes", "t", "d", "dt", "tm", "in", "ts")
        for target in ("int8", "int16", "int32", "int64", "float32", "float64", "boolean", "string")
        if (field, target) not in {("t", "float32"), ("ts", "float32")}  # Java 17 prints one digit too many
    ),
    *(
        ("TimestampConverter$Value", f"field={field};target.type={target};format=yyyy-MM-dd HH:mm:ss.SSS")
        for field in ("ts", "t", "dt", "tm", "b", "a", "nope")
        for target in ("string", "unix", "Date", "Time", "Timestamp")
    ),
    *(
        ("TimestampConverter$Value", f"field=ts;target.type=unix;unix.precision={precision}")
        for precision in ("seconds", "microseconds", "nanoseconds")
    ),
]  # fmt: skip


def _headrace_result(name: str, props: str, how: JsonConverter, data: str) -> str:
    pairs = [pair.partition("=") for pair in props.split(";") if pair]
    try:
        transform = make_plugin(name, **{key.replace(".", "__"): value for key, _, value in pairs})
        schema, value = how.to_connect("t", data.encode())
        batch = sink_batch([value], schema, topic="topic-1", partition=2, offsets=[7], timestamps=1_700_000_000_123)
        transformed = records(transform.apply_batch(batch))
        if not transformed:
            return "dropped"
        (record,) = transformed
        written = how.from_connect("t", record.value_schema, record.value)
        return "\t".join([record.topic, text(written), text(how.from_connect("t", record.key_schema, record.key))])
    except Exception:  # noqa: BLE001 - only the fact that an error occurs is compared
        return "error"


def _sorted(response: str) -> list[Any]:
    """Split a response of ConnectOracle.java at its tabs, and parse the parts that are JSON objects.

    A comparison of parsed objects ignores the order of keys. The order may differ, because Java stores a schemaless map
    as a HashMap.
    """
    return [json.loads(column) if column[:1] == "{" else column for column in response.split("\t")]


def test_transforms_return_the_same_records_as_kafka_connect() -> None:
    requests = []
    for name, props in TRANSFORMS:
        comparable = [value for value in VALUES if value is not EARLY or props != "spec=t:string"]
        requests += [("smt", name, props, "on", text(ON.from_connect("t", ROW, value))) for value in comparable]
        requests += [("smt", name, props, "off", json.dumps(value)) for value in PLAIN]
    for request, response in zip(requests, run_oracle(requests), strict=True):
        _, name, props, how, data = request
        result = _headrace_result(name, props, ON if how == "on" else OFF, data)
        if how == "on":
            assert result == response, request
        else:
            assert _sorted(result) == _sorted(response), request


@pytest.mark.parametrize("schema", [STRING_SCHEMA, INT64_SCHEMA])
def test_cast_and_timestamp_converter_return_the_same_records_as_kafka_connect_for_primitive_values(
    schema: Schema,
) -> None:
    value: Any = "2023" if schema is STRING_SCHEMA else 1_700_000_000_000
    data = text(ON.from_connect("t", schema, value))
    transforms = [("Cast$Value", f"spec={target}") for target in ("int32", "int64", "float64", "boolean", "string")]
    transforms += [
        ("TimestampConverter$Value", f"target.type={target};format=yyyy")
        for target in ("string", "unix", "Date", "Time", "Timestamp")
    ]
    responses = run_oracle([("smt", name, props, "on", data) for name, props in transforms])
    assert responses == [_headrace_result(name, props, ON, data) for name, props in transforms]
