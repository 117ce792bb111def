"""Converts values to readable strings and back, as ``org.apache.kafka.connect.data.Values`` does.

`parse_string` infers the type of a value from a string. It recognizes ``null``, booleans, numbers, dates, times, arrays
``[…]`` and maps ``{…}``. An integer has the smallest type that can represent it. A number with a fraction is a FLOAT32,
unless it is too large for this type. If all elements of an array or map fit one schema, the elements have this schema.
If only the beginning of the string is such a value, the result is the whole string. Kafka instead returns the value at
the beginning and ignores the remaining text.
"""

from __future__ import annotations

import base64
import re
from decimal import Decimal
from typing import Any, NamedTuple

from headrace.data.errors import DataError
from headrace.data.java import Float32, double_text, float32, float_text, parse_decimal, trim
from headrace.data.java_dates import SimpleDateFormat
from headrace.data.logical import (
    DATE_SCHEMA,
    MILLIS_PER_DAY,
    TEMPORAL_TYPES,
    TIME_SCHEMA,
    TIMESTAMP_SCHEMA,
    Date,
    Time,
    Timestamp,
    decimal_schema,
    from_python_date,
)
from headrace.data.schema import (
    BOOLEAN_SCHEMA,
    FLOAT32_SCHEMA,
    FLOAT64_SCHEMA,
    INT8_SCHEMA,
    INT16_SCHEMA,
    INT32_SCHEMA,
    INT64_SCHEMA,
    INT_RANGES,
    STRING_SCHEMA,
    Schema,
    Type,
)
from headrace.data.struct import Struct

_DATE = SimpleDateFormat("yyyy-MM-dd")
_TIME = SimpleDateFormat("HH:mm:ss.SSS'Z'")
_TIMESTAMP = SimpleDateFormat("yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")


class ParsedValue(NamedTuple):
    """A value and the schema that was inferred for it."""

    schema: Schema | None
    value: Any


# ---- to text ---------------------------------------------------------------------------------------------------------


def convert_to_string(value: Any, schema: Schema | None = None) -> str:
    """Return a value as a string: strings unchanged, nested strings quoted, bytes in base64. Raises DataError."""
    if isinstance(value, str):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode()
    return _embedded_text(value, schema)


def _embedded_text(value: Any, schema: Schema | None = None) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    value = from_python_date(value)
    if isinstance(value, TEMPORAL_TYPES):
        return iso_date_text(value)
    if isinstance(value, (int, Decimal)):
        return str(value)
    if isinstance(value, float):
        is_single = isinstance(value, Float32) or (schema is not None and schema.type is Type.FLOAT32)
        return float_text(value) if is_single else double_text(value)
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, (bytes, bytearray, memoryview)):
        return '"' + base64.b64encode(value).decode() + '"'
    if isinstance(value, list):
        element = None if schema is None else schema.value_schema
        return "[" + ",".join(_embedded_text(item, element) for item in value) + "]"
    if isinstance(value, dict):
        keys, items = (None, None) if schema is None else (schema.key_schema, schema.value_schema)
        entries = [f"{_embedded_text(key, keys)}:{_embedded_text(item, items)}" for key, item in value.items()]
        return "{" + ",".join(entries) + "}"
    if isinstance(value, Struct):
        fields = value.schema.fields
        pairs = [(_embedded_text(field.name), _embedded_text(value[field.name], field.schema)) for field in fields]
        return "{" + ",".join(f"{name}:{text}" for name, text in pairs) + "}"
    raise DataError(f"Failed to serialize unexpected value type {type(value).__name__}: {value}")


def iso_date_text(value: Timestamp | Date | Time) -> str:
    """Format as ISO 8601: a date, a time with ``Z``, or both.

    As in Kafka, a timestamp on 1970-01-01 is printed as a time, and any other timestamp at midnight as a date.
    """
    if isinstance(value, Date):
        return _DATE.format(value * MILLIS_PER_DAY)
    if 0 <= value < MILLIS_PER_DAY:
        return _TIME.format(value)
    return (_DATE if value % MILLIS_PER_DAY == 0 else _TIMESTAMP).format(value)


# ---- from text -------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(r"""[:,{}\[\]"]|(?:\\.|[^:,{}\[\]"\\]|\\\Z)+""", re.DOTALL)
_SHORT_INTEGER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)  # fits into 64 bits
_WORDS = ("null", "true", "false")
_INTEGERS = tuple(
    (schema, *INT_RANGES[schema.type]) for schema in (INT8_SCHEMA, INT16_SCHEMA, INT32_SCHEMA, INT64_SCHEMA)
)
_INT64_MIN, _INT64_MAX = INT_RANGES[Type.INT64]
_NUMBER_ORDER = (Type.INT8, Type.INT16, Type.INT32, Type.INT64, Type.FLOAT32, Type.FLOAT64)
_NULL = ParsedValue(None, None)


def parse_string(text: str) -> ParsedValue:
    """Infer a type from the string and parse it. If no other type matches, return the string itself as STRING."""
    if not text or (text[0].isalpha() and not text.startswith(_WORDS)):
        return ParsedValue(STRING_SCHEMA, text)  # no other type starts with a letter
    if _SHORT_INTEGER.fullmatch(text):
        return _parsed_integer(int(text))
    parser = _ValueParser(text)
    try:
        parsed = parser.value(embedded=False)
    except (DataError, RecursionError, ArithmeticError):
        return ParsedValue(STRING_SCHEMA, text)
    return parsed if parser.at_end() else ParsedValue(STRING_SCHEMA, text)


class _ValueParser:
    """Parses the tokens of one string; raises DataError if the string is not a valid value."""

    def __init__(self, text: str) -> None:
        self.tokens = _TOKEN.findall(text)
        self.next = 0

    def at_end(self) -> bool:
        return not any(trim(token) for token in self.tokens[self.next :])

    def _accept(self, expected: str) -> bool:
        """If the next non-blank token equals `expected`, consume it. Return whether it was consumed."""
        position = self.next
        while position < len(self.tokens) - 1 and not trim(self.tokens[position]):
            position += 1
        if position < len(self.tokens) and trim(self.tokens[position]) == expected:
            self.next = position + 1
            return True
        return False

    def _is_next(self, expected: str) -> bool:
        position = self.next
        accepted = self._accept(expected)
        self.next = position
        return accepted

    def value(self, embedded: bool) -> ParsedValue:
        if embedded and self._accept('"'):
            return self._parse_quoted()
        for literal, parsed in (("null", _NULL), ("true", _TRUE), ("false", _FALSE)):
            if self._accept(literal):
                return parsed
        if self._accept("["):
            return self._parse_array()
        if self._accept("{"):
            return self._parse_map()
        if self.next >= len(self.tokens):
            raise DataError("Unexpected end of text")
        token = self.tokens[self.next]
        self.next += 1
        if not embedded and not trim(token):
            return ParsedValue(STRING_SCHEMA, token)
        return self._parse_number_or_date(trim(token))

    def _parse_number_or_date(self, token: str) -> ParsedValue:
        if token[:1].isdigit():
            # A time or timestamp consists of five tokens, because colons are delimiters.
            parsed = _parse_temporal(token + "".join(self.tokens[self.next : self.next + 4]))
            if parsed is not None:
                self.next += 4
                return parsed
            parsed = _parse_temporal(token)
            if parsed is not None:
                return parsed
        number = None if token.startswith(".") else parse_decimal(token)
        if number is not None:
            return _parsed_number(number)
        raise DataError("Failed to parse embedded value")

    def _parse_quoted(self) -> ParsedValue:
        content = ""
        while self.next < len(self.tokens):
            token = self.tokens[self.next]
            self.next += 1
            if token == '"':
                break
            content += token
        else:
            raise DataError("Missing closing quote")
        return _parse_temporal(content) or ParsedValue(STRING_SCHEMA, content)

    def _parse_array(self) -> ParsedValue:
        items: list[ParsedValue] = []
        while not self._accept("]"):
            items.append(self.value(embedded=True))
            if not self._accept(",") and not self._is_next("]"):
                raise DataError("Array elements missing ',' delimiter")
        element = _merge_schemas([item.schema for item in items])
        values = [_convert_to_schema(element, item) for item in items]
        return ParsedValue(Schema(Type.ARRAY, value_schema=element), values)

    def _parse_map(self) -> ParsedValue:
        keys: list[ParsedValue] = []
        values: list[ParsedValue] = []
        while not self._accept("}"):
            key = self.value(embedded=True)
            if key.value is None or isinstance(key.value, (list, dict)) or not self._accept(":"):
                raise DataError("Map entry is missing a key or ':'")
            keys.append(key)
            values.append(self.value(embedded=True))
            self._accept(",")
        key_schema = _merge_schemas([key.schema for key in keys])
        # As in Java, values without a common schema of the keys have no schema.
        value_schema = None if key_schema is None else _merge_schemas([value.schema for value in values])
        pairs = zip(keys, values, strict=True)
        items = {_convert_to_schema(key_schema, key): _convert_to_schema(value_schema, value) for key, value in pairs}
        return ParsedValue(Schema(Type.MAP, key_schema=key_schema, value_schema=value_schema), items)


_TRUE = ParsedValue(BOOLEAN_SCHEMA, True)
_FALSE = ParsedValue(BOOLEAN_SCHEMA, False)


def _parse_temporal(token: str) -> ParsedValue | None:
    token = token.replace("\\:", ":")
    try:
        if len(token) == 13:
            millis = _TIME.parse(token)
            return ParsedValue(TIME_SCHEMA, Time(millis)) if 0 <= millis < MILLIS_PER_DAY else None
        if len(token) == 24:
            return ParsedValue(TIMESTAMP_SCHEMA, Timestamp(_TIMESTAMP.parse(token)))
        if len(token) == 10:
            return ParsedValue(DATE_SCHEMA, Date(_DATE.parse(token) // MILLIS_PER_DAY))
    except DataError:
        return None
    return None


def _parsed_integer(integer: int) -> ParsedValue:
    """Return an integer of at most 64 bits with the schema of the smallest type that contains it."""
    for schema, low, high in _INTEGERS:
        if low <= integer <= high:
            return ParsedValue(schema, integer)
    raise ValueError(f"{integer} does not fit into 64 bits")


def _parsed_number(number: Decimal) -> ParsedValue:
    exponent = number.as_tuple().exponent
    scale = -exponent if isinstance(exponent, int) else 0
    magnitude = abs(number)
    if number == 0 or (1 <= magnitude <= Decimal("1e19") and number == number.to_integral_value()):
        integer = int(number)
        if _INT64_MIN <= integer <= _INT64_MAX:
            return _parsed_integer(integer)
    double = float(number) if magnitude < Decimal("1e309") else float("inf")
    single = float32(double)
    if abs(single) != float("inf") and scale != 0:
        return ParsedValue(FLOAT32_SCHEMA, single)
    if abs(double) != float("inf") and scale != 0:
        return ParsedValue(FLOAT64_SCHEMA, double)
    return ParsedValue(decimal_schema(scale), number)


def _merge_schemas(schemas: list[Schema | None]) -> Schema | None:
    """Return a schema that is valid for all items with these `schemas`, or None if there is no such schema.

    An item that is null has the schema None and matches every schema.
    """
    common: Schema | None = None
    for schema in schemas:
        if schema is None:
            continue
        if common is None or common == schema:
            common = schema
        elif common.type in _NUMBER_ORDER and schema.type in _NUMBER_ORDER:
            common = max(common, schema, key=lambda one: _NUMBER_ORDER.index(one.type))
        elif common.type is not schema.type or common.type.is_primitive:
            return None
        else:
            common = schema
    return common


def _convert_to_schema(schema: Schema | None, item: ParsedValue) -> Any:
    value = item.value
    if schema is None:
        return _with_types(item.schema, value)
    if value is None:
        raise DataError("Unable to convert a null value to a schema that requires a value")
    if item.schema != schema and (
        schema.name is not None or (item.schema is not None and item.schema.name is not None)
    ):
        raise DataError("Unable to convert dates and numbers to one type")
    if isinstance(value, int) and schema.type in (Type.FLOAT32, Type.FLOAT64):
        return float(value)
    return value


def _with_types(schema: Schema | None, value: Any) -> Any:
    """Return a value, for a list or map that has no schema for it, whose FLOAT32 numbers are `Float32` objects."""
    if schema is None or value is None:
        return value
    if schema.type is Type.ARRAY:
        return [_with_types(schema.value_schema, item) for item in value]
    if schema.type is Type.MAP:
        return {
            _with_types(schema.key_schema, key): _with_types(schema.value_schema, item) for key, item in value.items()
        }
    return Float32(value) if schema.type is Type.FLOAT32 else value
