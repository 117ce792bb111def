"""Generators of the cases of classes of Kafka Connect, in the form of `support.connect_values`.

The generators prefer odd input on purpose: nested structs with defaults, nulls everywhere, numbers at the ends of
their ranges, unpaired surrogates, fields that a configuration names but that do not exist, and invalid configurations.
"""

from __future__ import annotations

import re
from typing import Any

from headrace.data.logical import DATE_NAME, DECIMAL_NAME, MILLIS_PER_DAY, TIME_NAME, TIMESTAMP_NAME
from headrace.data.schema import INT_RANGES, Type
from support import generators as generate
from support.connect_values import double_bits, float_bits
from support.generators import Generator

Form = Any
"""The form of a schema or of a value."""

NAMES = ("a", "b", "c", "ts", "x", "a.b", "é", "\U0001f600", "`q`", "a b")
MISSING = "missing"
TEXTS = (
    *("", " ", "a", "5", "-128", "128", "+5", " 7 ", "32768", "2147483648", "9223372036854775808", "0", "-0", "007"),
    *("1.5", "-0.0", "1e3", "1e400", "NaN", "Infinity", "-Infinity", "0x1p3", "1f", "2D", "\u0663", "\uff15", "1_000"),
    *("true", "TRUE", "False", "yes", "null", "2024-02-29", "2024-02-29T12:34:56.789Z", "12:34:56.789Z", "[1,2]"),
    *('{"a":1}', '["x",null]', "é", "\U0001f600", "\ud800", "x\udc00y", "\x00", '"', "\\", "\u2028", "\ufeff", "a\nb"),
    *("\x7f", "</script>", "\u0130", "\u3000 5", "\u00a0", "1,5", "'", "\t5"),
)
_INTS = {type_.value: bounds for type_, bounds in INT_RANGES.items()}
_FLOATS = (0.0, -0.0, 1.0, -1.5, 0.1, 1e7, 1e-3, 9.999e6, 1e21, 2.0**24 + 1, 2.0**31, 2.0**63, -(2.0**63), 2.0**53 + 1)
_ODD_FLOATS = (*_FLOATS, 5e-324, 1.7976931348623157e308, 2.2250738585072014e-308, float("inf"), float("nan"), 1e10)
_ODD_FLOATS32 = (*(each for each in _FLOATS), 1.401298464324817e-45, 3.4028234663852886e38, float("inf"), float("nan"))


def _text() -> Generator[str]:
    # Two unpaired surrogates that are adjacent would be one character in Java.
    return generate.sampled_from(TEXTS) | generate.text(max_size=8)


def _number(low: int, high: int) -> Generator[int]:
    return generate.sampled_from((0, 1, -1, low, high)) | generate.integers(low, high)


_DAYS_RANGE = (-(2**31), 2**31 - 1)
_MILLIS_RANGE = (-(2**63), 2**63 - 1)
_MILLIS = (
    generate.sampled_from((0, -1, 1, 999, 1_700_000_000_123, -62_135_596_800_000, 253_402_300_799_999, *_MILLIS_RANGE))
    | generate.integers(-(10**14), 10**14).map(lambda each: max(_MILLIS_RANGE[0], each))
    | generate.integers(*_MILLIS_RANGE)
)
_SCALARS: dict[str, Generator[Form]] = {
    **{type_: _number(*bounds).map(lambda number, type_=type_: [type_, number]) for type_, bounds in _INTS.items()},
    "float32": (generate.sampled_from(_ODD_FLOATS32) | generate.floats(width=32)).map(
        lambda each: ["float32", float_bits(each)]
    ),
    "float64": (generate.sampled_from(_ODD_FLOATS) | generate.floats()).map(
        lambda each: ["float64", double_bits(each)]
    ),
    "boolean": generate.booleans().map(lambda each: ["boolean", each]),
    "string": _text().map(lambda each: ["string", each]),
    "bytes": generate.binary(max_size=6).map(lambda each: ["bytes", each.hex()]),
    DATE_NAME: (_number(*_DAYS_RANGE) | generate.integers(-800_000, 3_000_000)).map(
        lambda days: ["date", days * MILLIS_PER_DAY]
    ),
    TIME_NAME: (generate.sampled_from((0, 1, MILLIS_PER_DAY - 1)) | generate.integers(0, MILLIS_PER_DAY - 1)).map(
        lambda each: ["date", each]
    ),
    TIMESTAMP_NAME: _MILLIS.map(lambda each: ["date", each]),
}
_UNSCALED = _number(-(10**4), 10**4) | generate.integers(-(10**40), 10**40)
_LOGICAL = {DATE_NAME: "int32", TIME_NAME: "int32", TIMESTAMP_NAME: "int64", DECIMAL_NAME: "bytes"}
_PRIMITIVE = generate.sampled_from((*(type_.value for type_ in Type if type_.is_primitive), *_LOGICAL))
_ANY_TYPE = generate.sampled_from(
    (*(type_.value for type_ in Type if type_.is_primitive), *_LOGICAL, "struct", "struct", "array", "map")
)
_ATTRIBUTES = generate.fixed_dictionaries(
    {},
    optional={
        "name": generate.sampled_from(("n", "com.example.N", "\U0001f600")),
        "version": generate.sampled_from((1, 0, -1, 2**31 - 1)),
        "doc": generate.sampled_from(("d", "", "é")),
        "parameters": generate.sampled_from(({"k": "v"}, {"k": "", "l": "é"})),
    },
)
_NO_ATTRIBUTES: dict[str, Any] = {}
_ONE_IN_FOUR = generate.sampled_from((False, False, False, True))
_ONE_IN_EIGHT = generate.sampled_from((False,) * 7 + (True,))
_ONE_IN_THIRTY = generate.sampled_from((False,) * 29 + (True,))
_MAP_KEY = generate.sampled_from(("string", "int32"))


# ---- schemas and values ----------------------------------------------------------------------------------------------


def draw_schema(draw: Any, types: Generator[str] = _ANY_TYPE, depth: int = 2) -> Form:
    """Draw a schema. A struct contains up to five fields and `depth` further levels."""
    kind = draw(types)
    form: dict[str, Any] = dict(draw(_ATTRIBUTES)) if draw(_ONE_IN_FOUR) else {}
    form["type"] = _LOGICAL.get(kind, kind)
    if kind in _LOGICAL:
        form |= {"name": kind, "version": 1}
        if kind == DECIMAL_NAME:
            form["parameters"] = {
                **form.get("parameters", {}),
                "scale": str(draw(generate.sampled_from((0, 2, 5, -3)))),
            }
    inner = _ANY_TYPE if depth > 1 else _PRIMITIVE
    if kind == "struct":
        names = draw(generate.lists(generate.sampled_from(NAMES), max_size=5, unique_by=str))
        form["fields"] = [[name, draw_schema(draw, inner, depth - 1)] for name in names]
    elif kind == "array":
        form["values"] = draw_schema(draw, inner, depth - 1)
    elif kind == "map":
        form["keys"] = {"type": draw(_MAP_KEY)}
        form["values"] = draw_schema(draw, inner, depth - 1)
    if draw(_ONE_IN_FOUR):
        form["default"] = draw_value(draw, form)
    if draw(generate.booleans()):
        form["optional"] = True
    return form


def draw_value(draw: Any, schema: Form | None, depth: int = 2) -> Form:
    """Draw a value of a schema, or without a schema."""
    if schema is None:
        return draw_schemaless(draw, depth)
    if schema.get("optional") and draw(_ONE_IN_EIGHT):
        return None
    kind, name = schema["type"], schema.get("name")
    if name == DECIMAL_NAME:
        return ["decimal", str(draw(_UNSCALED)), int(schema["parameters"]["scale"])]
    if name in _LOGICAL:
        return draw(_SCALARS[name])
    if kind == "struct":
        return ["struct", [_field_value(draw, field) for _, field in schema["fields"]]]
    if kind == "array":
        return ["array", [draw_value(draw, schema["values"]) for _ in range(draw(generate.integers(0, 2)))]]
    if kind == "map":
        keys = draw(generate.lists(_SCALARS[schema["keys"]["type"]], max_size=2, unique_by=repr))
        return ["map", [[key, draw_value(draw, schema["values"])] for key in keys]]
    return draw(_SCALARS[kind])


def _field_value(draw: Any, schema: Form) -> Form:
    if "default" in schema and draw(_ONE_IN_FOUR):
        return None  # Java's Struct allows null in required fields that have a default
    return draw_value(draw, schema)


_SCHEMALESS = generate.sampled_from(
    ("int64", "float64", "float32", "boolean", "string", "string", "bytes", "decimal", "date", "null", "array", "map")
)


def draw_schemaless(draw: Any, depth: int = 2) -> Form:
    """Draw a value without a schema."""
    kind = draw(_SCHEMALESS)
    if kind == "map" and depth > 0:
        return draw_map(draw, depth)
    if kind == "array" and depth > 0:
        return ["array", [draw_schemaless(draw, depth - 1) for _ in range(draw(generate.integers(0, 2)))]]
    if kind == "decimal":
        return ["decimal", str(draw(_UNSCALED)), draw(generate.integers(-3, 5))]
    if kind == "date":
        return draw(_SCALARS[TIMESTAMP_NAME])
    return draw(_SCALARS[kind]) if kind in _SCALARS else None


def draw_map(draw: Any, depth: int = 2) -> Form:
    """Draw a map with string keys and without a schema."""
    names = draw(generate.lists(generate.sampled_from(NAMES), max_size=5, unique_by=str))
    return ["map", [[["string", name], draw_schemaless(draw, depth - 1)] for name in names]]


# ---- records ---------------------------------------------------------------------------------------------------------

TOPICS = ("t", "topic-1", "a.b.c", "prod_db.public.orders-2024", "x-y-z", "T1")
HEADERS = ("h", "g", "a", "é")
_STRING: Form = {"type": "string", "optional": True}
_OTHER_SIDES = ((None, None), (0, ["string", "k"]), (None, ["int64", 5]), (0, None))
_TIMES = generate.just(None) | _MILLIS
_RECORD_TYPES = generate.sampled_from((*("struct",) * 6, "string", "int64", "any"))


@generate.composite
def record_cases(draw: Any, side: str, count: int) -> tuple[list[Form], list[Form]]:
    """Draw schemas and `count` records. `side` is the side with the complex data: key or value."""
    schemas: list[Form] = [_STRING]
    for _ in range(draw(generate.sampled_from((0, 1, 1, 2, 2, 3, 4)))):
        kind = draw(_RECORD_TYPES)
        schemas.append(draw_schema(draw, _ANY_TYPE if kind == "any" else generate.just(kind)))
    header_schemas = len(schemas)
    schemas.append(draw_schema(draw, _PRIMITIVE))
    records = []
    choices = generate.sampled_from((None, *range(1, header_schemas)) if header_schemas > 1 else (None,))
    for _ in range(count):
        index = draw(choices)
        if index is not None:
            value = draw_value(draw, schemas[index])
        elif draw(_ONE_IN_EIGHT):
            value = draw_schemaless(draw)
        else:
            value = draw_map(draw)
        data, other = (index, value), draw(generate.sampled_from(_OTHER_SIDES))
        key, value = (data, other) if side == "key" else (other, data)
        is_source = draw(_ONE_IN_FOUR)
        partition = (
            draw(generate.sampled_from((0, 3, 2**31 - 1, None))) if is_source else draw(generate.sampled_from((0, 3)))
        )
        headers = [
            [name, header_schemas, draw_value(draw, schemas[header_schemas])]
            for name in draw(generate.lists(generate.sampled_from(HEADERS), max_size=2))
        ]
        topic = draw(generate.sampled_from(TOPICS))
        records.append([is_source, topic, partition, *key, *value, draw(_TIMES), headers])
    return schemas, records


# ---- configurations --------------------------------------------------------------------------------------------------

_NAME = generate.sampled_from((*NAMES, MISSING))
_BOOLEAN = generate.sampled_from((*("true", "false") * 6, "TRUE", " false ", "maybe"))
_REPLACE_NULL = {"replace.null.with.default": _BOOLEAN}
_CAST_TARGETS = ("int8", "int16", "int32", "int64", "float32", "float64", "boolean", "string")
_CAST_TYPES = generate.sampled_from((*_CAST_TARGETS * 4, "string", "INT8", "bytes"))


def _csv(items: Generator[str], max_size: int = 3) -> Generator[str]:
    separators = generate.sampled_from((",", ",", ",", " , "))
    return generate.builds(lambda parts, by: by.join(parts), generate.lists(items, max_size=max_size), separators)


def _rarely(strategy: Generator[str], odd: Generator[str]) -> Generator[str]:
    return _ONE_IN_THIRTY.flatmap(lambda is_odd: odd if is_odd else strategy)


_PATH = generate.lists(
    _NAME | generate.sampled_from(("`a.b`", "", "`", "`a", "b`", "\\`q\\`")), min_size=1, max_size=3
).map(".".join)
_SYNTAX = {"field.syntax.version": generate.sampled_from((*("V1", "V2", "V2") * 5, "v2", "V3"))}
_CSV_NAMES = _rarely(_csv(_NAME), generate.sampled_from(("", ",", "a,a", "a,,b", " a ")))
_FIELD_OR_PATH = _NAME | _PATH
_INSERTED = generate.builds(
    lambda name, suffix: name + suffix,
    _NAME | generate.just("new"),
    generate.sampled_from(("", "", "!", "?", "!?", "?!")),
)
_PRECISIONS = ("seconds", "milliseconds", "microseconds", "nanoseconds")
_PATTERNS = generate.sampled_from(
    (
        *(
            "yyyy-MM-dd",
            "yyyyMMdd",
            "yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
            "yyyy-MM-dd HH:mm:ss z",
            "EEE, d MMM yyyy",
            "yy/M/d",
        ),
        *(
            "hh:mm a",
            "KK:mm:ss a",
            "kk:mm",
            "D yyyy",
            "YYYY-'W'ww-u",
            "yyyy MM W EEE",
            "yyyy/M/F E",
            "F W",
            "G yyyy",
            "''yyyy''",
            "HHmmssSSS",
            "Z",
            "X",
        ),
        *("yyyy-MM-dd'T'HH:mm:ss zzzz", "MMMM d, yyyy", "EEEE", "SS", "y", "LLLL", "yyyy-MM-dd HH", "b"),
    )
)


def _config(required: dict[str, Any] | None = None, optional: dict[str, Any] | None = None) -> Any:
    """Generate configurations. In few of them, a required key is missing."""
    needed, extra = required or {}, optional or {}
    complete = generate.fixed_dictionaries(needed, optional=extra)
    incomplete = generate.fixed_dictionaries({}, optional={**needed, **extra})
    return _ONE_IN_THIRTY.flatmap(lambda is_odd: incomplete if is_odd else complete)


_REGEXES = generate.sampled_from(
    (
        *("(.*)-(\\d+)", ".*", "t", "\\w+", "(.)(.)?.*") * 3,
        "(?<n>[a-z]+).*",
        "(a)|(t)",
        "[",
        "\\p{Alpha}+.*",
        "(?i)T.*",
        "",
    )
)
_REPLACEMENTS = generate.sampled_from(
    ("$1", "x", "${n}-y", "$2_$1", "$0", "\\$1", "$3", "${m}", "$", "\\", "", "$10", "pre-$1", "$1$2", "${1}")
)

TRANSFORMS: dict[str, Generator[dict[str, str]]] = {
    "Cast$": _config(
        {
            "spec": _rarely(
                _csv(generate.builds(lambda name, type_: f"{name}:{type_}", _NAME, _CAST_TYPES)) | _CAST_TYPES,
                generate.sampled_from(
                    ("a:int8:x", "a: int8", "int8,int16", "a:int8,a:string", ":int8", "a:", "", "int8,b:int8")
                ),
            )
        },
        _REPLACE_NULL,
    ),
    "DropHeaders": _config(
        {"headers": _rarely(_csv(generate.sampled_from(HEADERS)), generate.sampled_from(("", ",", "h,h")))}
    ),
    "ExtractField$": _config({"field": _FIELD_OR_PATH}, {**_REPLACE_NULL, **_SYNTAX}),
    "Filter": _config(),
    "Flatten$": _config(None, {"delimiter": generate.sampled_from((".", "_", "", "\U0001f600", "a"))}),
    "HeaderFrom$": generate.integers(1, 2).flatmap(
        lambda count: _config(
            {
                "fields": _rarely(generate.lists(_NAME, min_size=count, max_size=count).map(",".join), _CSV_NAMES),
                "headers": generate.lists(generate.sampled_from(HEADERS), min_size=count, max_size=count).map(",".join),
                "operation": generate.sampled_from((*("move", "copy") * 8, "MOVE")),
            },
            _REPLACE_NULL,
        )
    ),
    "HoistField$": _config({"field": _NAME | generate.just("")}),
    "InsertField$": _config(
        {"topic.field": _INSERTED, "static.value": _text()},
        {
            "partition.field": _INSERTED,
            "offset.field": _INSERTED,
            "timestamp.field": _INSERTED,
            "static.field": _INSERTED,
            **_REPLACE_NULL,
        },
    ),
    "InsertHeader": _config({"header": generate.sampled_from(HEADERS), "value.literal": _text()}),
    "MaskField$": _config(
        {"fields": _CSV_NAMES}, {"replacement": _text() | generate.sampled_from(("42", "-1.5", "300")), **_REPLACE_NULL}
    ),
    "RegexRouter": _config({"regex": _REGEXES, "replacement": _REPLACEMENTS}),
    "ReplaceField$": _config(
        None,
        {
            "exclude": _CSV_NAMES,
            "include": _CSV_NAMES,
            "renames": _rarely(
                _csv(
                    generate.builds(lambda old, new: f"{old}:{new}", _NAME, _NAME | generate.sampled_from(("z", "y")))
                ),
                generate.sampled_from(("a", "a:", ":b", "a:b:c", "")),
            ),
            **_REPLACE_NULL,
        },
    ),
    "SetSchemaMetadata$": _config(
        None,
        {
            "schema.name": generate.sampled_from(("n", "", "com.example.M")),
            "schema.version": generate.sampled_from((*("1", "-1", " 2 ", "2147483647") * 4, "x", "99999999999", "1.0")),
            **_REPLACE_NULL,
        },
    ),
    "TimestampConverter$": _config(
        {"target.type": generate.sampled_from((*("string", "unix", "Date", "Time", "Timestamp") * 4, "date"))},
        {
            "field": _NAME | generate.just(""),
            "format": _PATTERNS,
            "unix.precision": generate.sampled_from((*_PRECISIONS * 4, "Seconds")),
            **_REPLACE_NULL,
        },
    ),
    "TimestampRouter": _config(
        None,
        {
            "topic.format": generate.sampled_from(
                ("${topic}-${timestamp}", "x", "${timestamp}", "${topic}$1", "", "${topic}\\", "${topic}${topic}")
            ),
            "timestamp.format": _PATTERNS,
        },
    ),
    "ValueToKey": _config({"fields": _CSV_NAMES}, _REPLACE_NULL),
}
"""Configurations of Kafka Connect's transforms. Names that end with $ have a variant for keys and one for values."""

PREDICATES: dict[str, Generator[dict[str, str]]] = {
    "HasHeaderKey": _config({"name": generate.sampled_from((*HEADERS, "", " "))}),
    "RecordIsTombstone": _config(),
    "TopicNameMatches": _config({"pattern": _REGEXES}),
}


# ---- texts of dates --------------------------------------------------------------------------------------------------

_YEARS = ("0001", "-0005", "1582", "9999", "12026", "292278994", "99", "5")
_DATE_PARTS: dict[str, tuple[str, ...]] = {
    "y": ("2024", "2023", "1970", "2000", "1600", *_YEARS),
    "Y": ("2024", "2020"),
    "M": ("1", "02", "12", "13", "0"),
    "L": ("1", "12"),
    "d": ("1", "29", "30", "31", "32", "0", "007"),
    "D": ("1", "60", "366", "400"),
    "w": ("1", "10", "53", "0"),
    "W": ("1", "5", "-1"),
    "F": ("1", "4", "-1"),
    "u": ("1", "7", "0", "15"),
    "E": ("Mon", "Thursday", "sun", "Foo"),
    "G": ("AD", "BC", "ad"),
    "a": ("AM", "pm", "noon"),
    "H": ("0", "13", "23", "24"),
    "k": ("1", "24", "0"),
    "K": ("0", "11"),
    "h": ("1", "12", "13"),
    "m": ("00", "59", "60"),
    "s": ("0", "59", "61"),
    "S": ("1", "12", "123", "123456"),
    "z": ("UTC", "GMT", "Z", "+0100", "GMT+01:00", "EST", "cest", "Nepal Time", "gmt-8", "Mars"),
    "Z": ("+0000", "-0830", "+01:00", "UTC", "Z", "-083", "JST"),
    "X": ("Z", "+01", "-0830", "+01:00", "EST", "+2400"),
}
_MONTH_NAMES = ("Jan", "February", "sep", "DECEMBER", "Foo")
_TOKENS = re.compile(r"'([^']*)'|([A-Za-z])\2*|[^A-Za-z']+")


@generate.composite
def date_text_examples(draw: Any, count: int) -> tuple[dict[str, str], tuple[list[Form], list[Form]]]:
    """Draw a configuration of TimestampConverter with a format, and `count` texts that resemble the format."""
    pattern = draw(_PATTERNS)
    config = {
        "format": pattern,
        "target.type": draw(generate.sampled_from(("unix", "Timestamp", "Date", "Time", "string"))),
    }
    schemas: list[Form] = [_STRING]
    records = []
    for _ in range(count):
        parts = []
        for token in _TOKENS.finditer(pattern):
            letter = token[2]
            if letter is None:
                parts.append(token[1] if token[1] is not None else token[0])
            else:
                is_name = letter in "ML" and len(token[0]) > 2
                parts.append(draw(generate.sampled_from(_MONTH_NAMES if is_name else _DATE_PARTS.get(letter, ("1",)))))
        text = "".join(parts)
        if draw(_ONE_IN_EIGHT):
            text = draw(generate.sampled_from((text + " x", " " + text, text[:-1], text.replace("-", "/"), text + "5")))
        schema = draw(generate.sampled_from((0, None)))
        records.append([False, "t", 0, None, None, schema, ["string", text], 0, []])
    return config, (schemas, records)


# ---- converters ------------------------------------------------------------------------------------------------------

_TYPES = {"converter.type": generate.sampled_from(("key", "value"))}
CONVERTERS: dict[str, Any] = {
    "json.JsonConverter": _config(
        _TYPES,
        {
            "schemas.enable": _BOOLEAN,
            "schemas.cache.size": generate.sampled_from(("1", "0", "1000", "x")),
            "decimal.format": generate.sampled_from(("BASE64", "NUMERIC", "numeric", "BASE64", "NUMERIC", "text")),
            **_REPLACE_NULL,
        },
    ),
    "storage.StringConverter": _config(
        _TYPES,
        {
            "converter.encoding": generate.sampled_from(
                ("UTF-8", "UTF8", "ISO-8859-1", "US-ASCII", "UTF-16", "UTF-16BE", "UTF-16LE", "windows-1252", "nope")
            )
        },
    ),
    **{
        f"converters.{name}Converter": generate.fixed_dictionaries(_TYPES)
        for name in ("Double", "Float", "Long", "Integer", "Short", "Boolean", "ByteArray")
    },
}
"""Configurations of Kafka Connect's converters, by their names without ``org.apache.kafka.connect``."""

SIMPLE_HEADER_CONVERTER = "storage.SimpleHeaderConverter"


@generate.composite
def write_cases(draw: Any, count: int) -> tuple[list[Form], list[Form]]:
    """Draw schemas, and `count` cases that convert Connect data to bytes."""
    schemas = [draw_schema(draw) for _ in range(draw(generate.integers(1, 4)))]
    indexes = generate.sampled_from((None, *range(len(schemas)), *range(len(schemas))))
    cases = []
    for _ in range(count):
        index = draw(indexes)
        value = None if draw(_ONE_IN_THIRTY) else draw_value(draw, None if index is None else schemas[index])
        if index is not None and value is None and not schemas[index].get("optional"):
            index = None
        cases.append(["from", index, value])
    return schemas, cases


def read_cases(data: Generator[bytes], count: int) -> Generator[tuple[list[Form], list[Form]]]:
    """Generate `count` cases that convert bytes to Connect data."""
    items = generate.just(None) | data if data is not _JSON_TEXTS else data
    return generate.lists(items, min_size=count, max_size=count).map(
        lambda drawn: ([], [["to", None if item is None else item.hex()] for item in drawn])
    )


def _number_bytes() -> Generator[bytes]:
    return generate.sampled_from((b"\0", b"\1", b"\2", b"")) | generate.binary(max_size=9)


_TEXT_BYTES = (
    _text().map(lambda text: text.encode("utf-8", "surrogatepass"))
    | generate.binary(max_size=8)
    | generate.sampled_from(
        (b"\xef\xbb\xbfa", b"\xff\xfea\0", b"\xed\xa0\x80", b"\xf0\x9f\x98", b"\xc0\x80", b"\xf4\x90\x80\x80")
    )
)
_HEADER_SCALARS = generate.sampled_from(
    (
        *TEXTS,
        *(
            "1",
            "12",
            "-3.25",
            "a b",
            '"q"',
            '"a\\"b"',
            "1.0",
            "1e-50",
            "3.5e38",
            "9223372036854775807",
            "0x10",
            ".5",
            "5.",
        ),
        *(
            "14:34:54.346Z",
            "2019-08-23T14:34:54.346+0000",
            "2019-08-23T14:34:54.346+01:00",
            "2019-02-30",
            "12345-01-01",
        ),
        *("-", "--5", "- 5", "1 2", "1_0", "1L", "true ", "nullx", "NULL", "1E3", "+1.5", "00", "-00.10", "\\", '\\"'),
    )
)


def _header_list(items: Generator[str]) -> Generator[str]:
    parts = generate.lists(items, max_size=3)
    by = generate.sampled_from((",", ", ", " , ", ",,", ";"))
    return generate.builds(lambda parts, by: "[" + by.join(parts) + "]", parts, by)


def _header_map(items: Generator[str]) -> Generator[str]:
    pairs = generate.builds(
        lambda key, by, value: key + by + value, items, generate.sampled_from((":", ": ", " : ", "=", "")), items
    )
    return generate.lists(pairs, max_size=3).map(lambda parts: "{" + ",".join(parts) + "}")


HEADER_TEXTS = generate.recursive(
    _HEADER_SCALARS | _HEADER_SCALARS.map(lambda text: f'"{text}"'),
    lambda inner: _header_list(inner) | _header_map(inner),
) | generate.text(generate.sampled_from('[]{}",: \\1a.-tnulre'), max_size=10)
"""Texts that ``Values.parseString`` parses, for example as lists and maps, and texts that are similar to such texts."""


# ---- JSON texts ------------------------------------------------------------------------------------------------------

_JSON_SCALARS = generate.sampled_from(
    (
        *("null", "true", "false", "0", "-0", "1", "-1", "1.0", "1e5", "1E+2", "-0.0", "1e400", "1e-400", "0.1", "300"),
        *(
            "2147483648",
            "9223372036854775808",
            "123456789012345678901234567890",
            "0.10",
            "1.10e2",
            "123456.789012345678901",
        ),
        *("NaN", "Infinity", "-Infinity", "01", "+1", ".5", "1.", "- 1", "tru", "nul", "'a'", "", "0x1"),
        *(
            '""',
            '"a"',
            '"AQ=="',
            '"AQ"',
            '"A Q=="',
            '"-_8="',
            '"\\u0041"',
            '"\\ud83d\\ude00"',
            '"\\ud800"',
            '"\\udc00x"',
            '"\\x"',
        ),
        *(
            '"\\n\\t\\"\\\\\\/\\b\\f\\r"',
            '"a\nb"',
            '"a\tb"',
            '"\0"',
            '"\x7f"',
            '"\ufeff"',
            '"\U0001f600"',
            '"é"',
            '"5"',
            '"1.5"',
            '"true"',
        ),
    )
)
_JSON_SCALARS_VALID = generate.sampled_from(
    (
        "null",
        "true",
        "1",
        "-1",
        "1.0",
        "1.5e3",
        "300",
        "0.10",
        '""',
        '"a"',
        '"AQ=="',
        '"5"',
        "[]",
        "{}",
        "[1]",
        '{"a":1}',
    )
)
_SPACE = generate.sampled_from(("", "", "", " ", "\n", "\t\r", "\ufeff", "\x0b", "/**/"))


def _json_array(items: Generator[str]) -> Generator[str]:
    return generate.lists(items, max_size=3).map(lambda parts: "[" + ",".join(parts) + "]")


def _json_object(items: Generator[str]) -> Generator[str]:
    names = generate.sampled_from(('"a"', '"b"', '"\\u0061"', '"schema"', '"payload"', '""', '"é"'))
    pairs = generate.builds(lambda name, item: f"{name}:{item}", names, items)
    return generate.lists(pairs, max_size=3).map(lambda parts: "{" + ",".join(parts) + "}")


_JSON_VALUES = generate.recursive(_JSON_SCALARS, lambda inner: _json_array(inner) | _json_object(inner))
_DEEP = generate.builds(
    lambda depth, open_, close: open_ * depth + "1" + close * depth,
    generate.sampled_from((10, 100, 499, 500, 501, 998, 999, 1000, 50_000)),
    generate.just("["),
    generate.just("]"),
) | generate.sampled_from((10, 499, 998, 999, 1000, 50_000)).map(lambda depth: '{"a":' * depth + "1" + "}" * depth)
_SCHEMA_TYPES = ("int8", "int16", "int32", "int64", "float", "double", "boolean", "string", "bytes")
_LOGICAL_NAMES = (DATE_NAME, TIME_NAME, TIMESTAMP_NAME, DECIMAL_NAME)


def _json_member(name: str, items: tuple[str, ...]) -> Generator[str]:
    return generate.sampled_from(items).map(lambda item: f',"{name}":{item}')


_OPTIONAL_MEMBERS = generate.lists(
    _json_member("optional", ("true", "true", "true", "false", "1", "null", '"x"'))
    | _json_member("default", ("null", "1", '"a"', "true", "1.5", "[]", '"AQ=="', '{"a":1}', "[1]"))
    | _json_member("name", ('"n"', "null", "5", '""'))
    | _json_member("version", ("1", '"1"', "null", "1.5", "2147483648", "true"))
    | _json_member("doc", ('"d"', "null", "5"))
    | _json_member("parameters", ('{"k":"v"}', "{}", "null", '{"k":1}', "[]", '"x"')),
    max_size=3,
).map("".join)
_SCALAR_SCHEMAS = generate.builds(
    lambda type_, members: f'{{"type":"{type_}"{members}}}',
    generate.sampled_from((*_SCHEMA_TYPES * 3, "float32", "float64", "INT8", "date", "")),
    generate.just("") | _OPTIONAL_MEMBERS,
)
_LOGICAL_SCHEMAS = generate.builds(
    lambda type_, name, scale, optional: f'{{"type":"{type_}","name":"{name}","version":1{scale}{optional}}}',
    generate.sampled_from(("int32", "int64", "bytes", "bytes")),
    generate.sampled_from(_LOGICAL_NAMES),
    generate.sampled_from(
        (',"parameters":{"scale":"2"}', ',"parameters":{"scale":"2"}', "", ',"parameters":{"scale":"x"}')
    ),
    generate.sampled_from(("", ',"optional":true')),
)


def _containers(inner: Generator[str]) -> Generator[str]:
    fields = generate.lists(
        generate.builds(
            lambda schema, name: f'{schema[:-1]},"field":{name}}}' if schema.endswith("}") else schema,
            inner,
            generate.sampled_from((*('"a"', '"b"', '"c"') * 5, '""', "null", "5")),
        ),
        max_size=3,
    )
    structs = generate.builds(
        lambda parts, members: f'{{"type":"struct","fields":[{",".join(parts)}]{members}}}',
        fields,
        generate.just("") | _OPTIONAL_MEMBERS,
    )
    arrays = generate.builds(
        lambda item, members: f'{{"type":"array","items":{item}{members}}}',
        inner,
        generate.just("") | _OPTIONAL_MEMBERS,
    )
    maps = generate.builds(
        lambda key, item: f'{{"type":"map","keys":{key},"values":{item}}}',
        generate.just('{"type":"string"}') | inner,
        inner,
    )
    broken = generate.sampled_from(
        ('{"type":"struct"}', '{"type":"array"}', '{"type":"map"}', "{}", '{"type":5}', '"int8"', "null")
    )
    return structs | structs | arrays | maps | _ONE_IN_EIGHT.flatmap(lambda is_odd: broken if is_odd else structs)


_JSON_SCHEMAS = generate.recursive(_SCALAR_SCHEMAS | _LOGICAL_SCHEMAS, _containers)
_PAYLOADS = generate.recursive(
    _JSON_SCALARS_VALID,
    lambda inner: (
        _json_array(inner)
        | generate.lists(
            generate.builds(lambda name, item: f'"{name}":{item}', generate.sampled_from("abcd"), inner), max_size=3
        ).map(lambda parts: "{" + ",".join(parts) + "}")
    ),
)
_ENVELOPES = generate.builds(
    lambda schema, payload, odd: (
        (odd or '{"schema":%s,"payload":%s}').replace("%s", schema, 1).replace("%s", payload, 1)
    ),
    _JSON_SCHEMAS,
    _PAYLOADS | _JSON_SCALARS,
    generate.sampled_from(
        (
            *("",) * 20,
            '{"payload":%s,"schema":%s}',
            '{"schema":%s}',
            '{"payload":%s}',
            '{"schema":%s,"payload":%s,"x":1}',
            '{ "schema" : %s , "payload" : %s }\n',
            '{"schema":null,"payload":%s}',
            '{"schema":%s,"schema":%s,"payload":1}',
        )
    ),
)
_JSON_STRINGS = generate.builds(
    lambda before, text, after: before + text + after,
    _SPACE,
    _JSON_VALUES,
    generate.sampled_from(("", "", "", " ", "x", "1", "]", "\n{}")),
)
_JSON_DOCUMENTS = _JSON_STRINGS | _ENVELOPES | _ENVELOPES
_ENCODINGS = generate.sampled_from((*("utf-8",) * 12, "utf-8-sig", "utf-16", "utf-16-be", "utf-32-le", "latin-1"))


def _encode(text: str, encoding: str) -> bytes:
    return text.encode(encoding, "replace")


_JSON_TEXTS = generate.builds(
    _encode, _ONE_IN_THIRTY.flatmap(lambda is_deep: _DEEP if is_deep else _JSON_DOCUMENTS), _ENCODINGS
) | generate.sampled_from(
    (b"", b" ", b'"\xff"', b'"\xc0\x80"', b'"\xed\xa0\x80"', b'{"a":1', b"\0", b"\xef\xbb", b'"\xf4\x90\x80\x80"')
)
READ_DATA: dict[str, Generator[bytes]] = {
    "json.JsonConverter": _JSON_TEXTS,
    "storage.StringConverter": _TEXT_BYTES,
    SIMPLE_HEADER_CONVERTER: HEADER_TEXTS.map(lambda text: text.encode("utf-8", "replace"))
    | generate.binary(max_size=6),
    **{name: _number_bytes() for name in CONVERTERS if name.startswith("converters.")},
}
"""The bytes that converters read."""
