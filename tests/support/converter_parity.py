"""Generates connectors with all built-in converters, and the rows that the S3 sink would write.

The converters convert keys, values and headers, among them bytes that they reject. A few transforms accept the
primitive values. One connector has no transforms at all: the sinks then receive JSON texts that are not decoded.
"""

from __future__ import annotations

import json
import struct as binary
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

from headrace_connectors.lakehouse.job.results import FAILED_RECORDS_MAX
from support.parity_records import RECORDS_PER_TOPIC, START_MS, InputRecord
from support.transform_parity import (
    ParityConnector,
    ParityTopic,
    json_converters,
    properties_of,
    with_results,
)

TOPICS = 2
_DRAWS_MAX = 60
_CONNECT = "org.apache.kafka.connect.transforms."
_CONVERTERS = "org.apache.kafka.connect.converters."
STRING = "org.apache.kafka.connect.storage.StringConverter"
JSON = "org.apache.kafka.connect.json.JsonConverter"

Encode = Callable[[Random], bytes]
_Encoders = tuple[Encode, Encode, Encode]
"""The functions that draw keys, values and headers."""


def _packed(format_: str, draw: Callable[[Random], Any]) -> Encode:
    """Return a function that encodes numbers in Kafka's form. A few results have a byte too many."""
    return lambda random: binary.pack(format_, draw(random)) + (b"\0" if random.random() < 0.05 else b"")


def _one_of(*texts: bytes) -> Encode:
    return lambda random: random.choice(texts)


def _integer(bits: int) -> Callable[[Random], int]:
    return lambda random: random.randrange(-(2 ** (bits - 1)), 2 ** (bits - 1))


BYTES, BOOLEAN, SHORT, INTEGER, LONG, FLOAT, DOUBLE = (
    f"{_CONVERTERS}{name}Converter" for name in ("ByteArray", "Boolean", "Short", "Integer", "Long", "Float", "Double")
)
PRIMITIVES: dict[str, Encode] = {
    STRING: _one_of(b"", b"text", "Zoë 😀".encode(), b"\xff\xfe", b"12", b"true", b'{"a": 1}'),
    BYTES: lambda random: random.randbytes(random.randrange(4)),
    BOOLEAN: _one_of(b"\0", b"\1", b"\1", b"\2"),
    SHORT: _packed(">h", _integer(16)),
    INTEGER: _packed(">i", _integer(32)),
    LONG: _packed(">q", _integer(64)),
    FLOAT: _packed(">f", lambda random: random.choice((0.1, -0.0, 1e10, random.random()))),
    DOUBLE: _packed(">d", lambda random: random.choice((0.1, -0.0, 1e300, random.random()))),
}
"""The converters of primitive values by class name, with a function that draws the bytes of a value."""
_COMBINATIONS = (
    *((STRING, STRING, LONG), (BYTES, BYTES, BYTES), (BOOLEAN, BOOLEAN, BOOLEAN), (SHORT, SHORT, SHORT)),
    *((INTEGER, LONG, INTEGER), (DOUBLE, FLOAT, FLOAT)),
)
"""The converters of keys, values and headers."""

_HOIST = {"type": f"{_CONNECT}HoistField$Value", "field": "v"}
_Steps = tuple[tuple[dict[str, str], ...], ...]
_STEPS: _Steps = (
    (),
    (_HOIST, {"type": f"{_CONNECT}HoistField$Key", "field": "k"}),
    (
        _HOIST,
        {"type": f"{_CONNECT}InsertField$Value", "topic.field": "topic", "offset.field": "at", "timestamp.field": "ts"},
        {"type": f"{_CONNECT}ValueToKey", "fields": "v,at"},
    ),
    (_HOIST, {"type": f"{_CONNECT}ValueToKey", "fields": "v"}, {"type": f"{_CONNECT}ExtractField$Key", "field": "v"}),
    (_HOIST, {"type": f"{_CONNECT}HeaderFrom$Value", "fields": "v", "headers": "moved", "operation": "copy"}),
    *(
        ({"type": f"{_CONNECT}Cast$Value", "spec": value}, {"type": f"{_CONNECT}Cast$Key", "spec": key})
        for value in ("string", "int8", "float64")
        for key in ("string", "boolean")
    ),
)

_JSON_VALUES: tuple[tuple[dict[str, Any], Sequence[Any]], ...] = (
    ({"type": "int64"}, (0, -1, 2**62)),
    ({"type": "string"}, ("", "Zoë", "1")),
    ({"type": "double"}, (0.1, 1e300, 3)),
    ({"type": "boolean"}, (True, False)),
    ({"type": "bytes"}, ("", "AAE=")),
    ({"type": "array", "items": {"type": "int32", "optional": True}}, ([], [1, None, 3])),
    ({"type": "map", "keys": {"type": "string"}, "values": {"type": "int64"}}, ({}, {"a": 1, "b": 2})),
    ({"type": "int64", "name": "org.apache.kafka.connect.data.Timestamp", "version": 1}, (0, 1, START_MS)),
)
"""Schemas, each with payloads."""
_OBJECTS = (
    b'{"id": 1, "name": "Ann", "in": {"x": 1}}',
    b'{"id": -5, "name": null, "in": {"x": null}, "ratio": 0.5}',
    b'{"name": "Zo\xc3\xab", "ratio": 1e3, "flag": true, "id": 9007199254740993}',
    b' { "flag" : false , "name" : "\\u00e9\\n" , "name" : "second" } ',
    *(b"{}", b"null", b'{"id": -0, "ratio": -0.0}', b'{"name": "\\ud83d\\ude00", "other": {"x": [1, {}]}}'),
    *(
        b'{"id": 1',
        b"",
        b"  ",
        b'{"id": 1} {}',
        b"{'id': 1}",
        b'{"ratio": NaN}',
        b'{"name": "\xff"}',
        b'{"name": "\n"}',
    ),
    *(b'\xef\xbb\xbf{"id": 1}', b'{"ratio": 01}', b'{"id": 1,}'),
)


def converter_connectors(seed: int) -> Iterator[ParityConnector]:
    """Generate the connectors."""
    random = Random(seed)
    for number, combination in enumerate(_COMBINATIONS):
        converters = dict(zip(("key.converter", "value.converter", "header.converter"), combination, strict=True))
        key, value, header = (PRIMITIVES[converter] for converter in combination)
        topics = [
            _draw_topic(random, f"s{seed}c{number}t{index}", converters, (key, value, header), _STEPS)
            for index in range(TOPICS)
        ]
        if combination == (SHORT, SHORT, SHORT):
            topics.append(_many_failures(random, f"s{seed}m", converters))
        yield ParityConnector(tuple(topics), converters, changes_topics=False)
    yield _with_schemas(random, f"s{seed}e")
    yield _without_transforms(random, f"s{seed}j")


def _many_failures(random: Random, name: str, converters: dict[str, str]) -> ParityTopic:
    """Return a topic with more failed records than a Spark task returns."""
    valid, valid_or_not = _one_of(b"\0\1"), _one_of(b"\0\1", b"\0")
    records = _records(random, (valid, valid_or_not, valid), FAILED_RECORDS_MAX * 3)
    topic = ParityTopic(name, True, records, ())
    found = with_results(topic, properties_of(converters, (topic,)))
    assert found is not None
    assert len(found.failed) > FAILED_RECORDS_MAX
    return found


def _draw_topic(
    random: Random,
    name: str,
    converters: dict[str, str],
    encoders: _Encoders,
    steps: _Steps,
    *,
    has_schema: bool = True,
) -> ParityTopic:
    """Draw records and one of the `steps`, until a table can contain most of the records."""
    for _ in range(_DRAWS_MAX):
        topic = ParityTopic(name, has_schema, _records(random, encoders), random.choice(steps))
        found = with_results(topic, properties_of(converters, (topic,)))
        if found is not None:
            return found
    raise AssertionError(f"no table can contain the records of {name}")


def _records(random: Random, encoders: _Encoders, count: int = RECORDS_PER_TOPIC) -> tuple[InputRecord, ...]:
    """Draw records. Some have a null key, value or header."""
    key, value, header = encoders
    first_null = 0 if random.random() < 0.1 else 1  # a table whose first record has a null needs a second job

    def maybe(encode: Encode, number: int = 1) -> bytes | None:
        return None if number >= first_null and random.random() < 0.1 else encode(random)

    return tuple(
        InputRecord(
            maybe(key, number),
            maybe(value, number),
            tuple((name, maybe(header)) for name in ("a", "b") if random.random() < 0.4),
            START_MS + number * 1000,
        )
        for number in range(count)
    )


def _with_schemas(random: Random, name: str) -> ParityConnector:
    """Return a connector whose keys, values and headers have JSON envelopes with schemas of many types."""
    converters = {**json_converters(True, JSON), "header.converter.schemas.enable": "true"}
    topics = [
        _draw_topic(random, f"{name}t{number}", converters, (encode, encode, encode), ((),))
        for number, encode in enumerate(map(_enveloped, _JSON_VALUES))
    ]
    return ParityConnector(tuple(topics), converters, changes_topics=False)


def _enveloped(value: tuple[dict[str, Any], Sequence[Any]]) -> Encode:
    """Return a function that encodes payloads with their schema. A few results are not valid."""
    schema, payloads = value
    invalid = (b"{", b"[]", b'{"schema": {"type": "none"}, "payload": 1}', b'{"payload": 1}')

    def encode(random: Random) -> bytes:
        drawn = random.random()
        if drawn < 0.05:
            return random.choice(invalid)
        payload = [{}] if drawn < 0.1 else random.choice((*payloads, None))
        return json.dumps({"schema": schema | {"optional": True}, "payload": payload}).encode()

    return encode


def _without_transforms(random: Random, name: str) -> ParityConnector:
    """Return a connector that has no transforms, and whose JSON has no schemas."""
    converters = json_converters(False, DOUBLE)
    encode = _one_of(*_OBJECTS)
    encoders = (encode, encode, PRIMITIVES[DOUBLE])
    topics = [
        _draw_topic(random, f"{name}t{number}", converters, encoders, ((),), has_schema=False)
        for number in range(TOPICS)
    ]
    return ParityConnector(tuple(topics), converters, changes_topics=False)
