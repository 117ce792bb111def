"""Values as readable text and back: what ``org.apache.kafka.connect.data.Values`` does for headers and literals.

`parse_string` guesses: ``null``, ``true``, the smallest integer type, FLOAT32 where it is finite, dates and times,
``[…]`` and ``{…}`` with a merged element schema. A text that only begins like one of these is a string, whole: unlike
Kafka, nothing that follows is dropped.
"""

from __future__ import annotations

import base64
import datetime as dt
import re
from decimal import Decimal
from typing import Any, NamedTuple

from headrace.data.errors import DataError
from headrace.data.java import double_text, float32, float_text
from headrace.data.java_dates import SimpleDateFormat
from headrace.data.logical import DATE_SCHEMA, TIME_SCHEMA, TIMESTAMP_SCHEMA, decimal_schema, timestamp_to_millis
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
_DAY_MS = 86_400_000


class Parsed(NamedTuple):
    """A value and the schema that was guessed for it."""

    schema: Schema | None
    value: Any


# ---- to text ---------------------------------------------------------------------------------------------------------


def convert_to_string(value: Any, schema: Schema | None = None) -> str:
    """The text of a value: a string as it is, strings within others quoted, bytes in base64. Raises DataError."""
    if isinstance(value, str):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode()
    return _embedded(value, schema)


def _embedded(value: Any, schema: Schema | None = None) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return float_text(value) if schema is not None and schema.type is Type.FLOAT32 else double_text(value)
    if isinstance(value, (int, Decimal)):
        return str(value)
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, (bytes, bytearray, memoryview)):
        return '"' + base64.b64encode(value).decode() + '"'
    if isinstance(value, list):
        element = None if schema is None else schema.value_schema
        return "[" + ",".join(_embedded(item, element) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{_embedded(key)}:{_embedded(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Struct):
        pairs = [(field.name, _embedded(value.get(field.name), field.schema)) for field in value.schema.fields]
        return "{" + ",".join(f"{_embedded(name)}:{text}" for name, text in pairs) + "}"
    if isinstance(value, (dt.date, dt.time)):
        return date_text(value)
    raise DataError(f"Failed to serialize unexpected value type {type(value).__name__}: {value}")


def date_text(value: dt.date | dt.time) -> str:
    """ISO 8601: a date, a time with ``Z``, or both; a timestamp of the first day is a time, one at midnight a date."""
    if isinstance(value, dt.time):
        return _TIME.format(dt.datetime.combine(dt.date(1970, 1, 1), value))
    if not isinstance(value, dt.datetime):
        return _DATE.format(dt.datetime(value.year, value.month, value.day))
    millis = timestamp_to_millis(value)
    moment = value if value.tzinfo is None else value.astimezone(dt.UTC)
    if 0 <= millis < _DAY_MS:
        return _TIME.format(moment)
    return (_DATE if millis % _DAY_MS == 0 else _TIMESTAMP).format(moment)


# ---- from text -------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(r"""[:,{}\[\]"]|(?:\\.|[^:,{}\[\]"\\]|\\\Z)+""", re.DOTALL)
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_INTEGERS = (INT8_SCHEMA, INT16_SCHEMA, INT32_SCHEMA, INT64_SCHEMA)
_NUMBER_ORDER = (Type.INT8, Type.INT16, Type.INT32, Type.INT64, Type.FLOAT32, Type.FLOAT64)
_NULL = Parsed(None, None)


def parse_string(text: str) -> Parsed:
    """The value that a text looks like, the text itself as STRING when it looks like nothing else."""
    if not text:
        return Parsed(STRING_SCHEMA, text)
    parser = _Parser(text)
    try:
        parsed = parser.value(embedded=False)
    except (DataError, RecursionError, ArithmeticError):
        return Parsed(STRING_SCHEMA, text)
    return parsed if parser.at_end() else Parsed(STRING_SCHEMA, text)


class _Parser:
    """A walk over the tokens of one text; raises DataError where it does not look like a value."""

    def __init__(self, text: str) -> None:
        self.tokens = _TOKEN.findall(text)
        self.next = 0

    def at_end(self) -> bool:
        return not any(token.strip() for token in self.tokens[self.next :])

    def _accept(self, expected: str) -> bool:
        """Step over the next token that is not blank, if it is that one."""
        position = self.next
        while position < len(self.tokens) - 1 and not self.tokens[position].strip():
            position += 1
        if position < len(self.tokens) and self.tokens[position].strip() == expected:
            self.next = position + 1
            return True
        return False

    def _is_next(self, expected: str) -> bool:
        position = self.next
        accepted = self._accept(expected)
        self.next = position
        return accepted

    def value(self, embedded: bool) -> Parsed:
        if embedded and self._accept('"'):
            return self._quoted()
        for literal, parsed in (("null", _NULL), ("true", _TRUE), ("false", _FALSE)):
            if self._accept(literal):
                return parsed
        if self._accept("["):
            return self._array()
        if self._accept("{"):
            return self._map()
        if self.next >= len(self.tokens):
            raise DataError("Unexpected end of text")
        token = self.tokens[self.next]
        self.next += 1
        if not embedded and not token.strip():
            return Parsed(STRING_SCHEMA, token)
        return self._number_or_date(token.strip())

    def _number_or_date(self, token: str) -> Parsed:
        if token[:1].isdigit():
            # A time or timestamp is five tokens, since its colons are delimiters.
            parsed = _temporal(token + "".join(self.tokens[self.next : self.next + 4]).rstrip())
            if parsed is not None:
                self.next += 4
                return parsed
            parsed = _temporal(token)
            if parsed is not None:
                return parsed
        if token[:1] not in ("", ".") and _NUMBER.fullmatch(token):
            return _number(Decimal(token))
        raise DataError("Failed to parse embedded value")

    def _quoted(self) -> Parsed:
        content = ""
        while self.next < len(self.tokens):
            token = self.tokens[self.next]
            self.next += 1
            if token == '"':
                break
            content += token
        else:
            raise DataError("Missing closing quote")
        return _temporal(content) or Parsed(STRING_SCHEMA, content)

    def _array(self) -> Parsed:
        items: list[Parsed] = []
        while not self._accept("]"):
            items.append(self.value(embedded=True))
            if not self._accept(",") and not self._is_next("]"):
                raise DataError("Array elements missing ',' delimiter")
        element = _merged([item.schema for item in items])
        values = [_aligned(element, item.value) for item in items]
        return Parsed(Schema(Type.ARRAY, value_schema=element), values)

    def _map(self) -> Parsed:
        keys: list[Parsed] = []
        values: list[Parsed] = []
        while not self._accept("}"):
            key = self.value(embedded=True)
            if key.value is None or isinstance(key.value, (list, dict)) or not self._accept(":"):
                raise DataError("Map entry is missing a key or ':'")
            keys.append(key)
            values.append(self.value(embedded=True))
            self._accept(",")
        key_schema = _merged([key.schema for key in keys])
        value_schema = _merged([value.schema for value in values])
        pairs = zip(keys, values, strict=True)
        items = {_aligned(key_schema, key.value): _aligned(value_schema, value.value) for key, value in pairs}
        return Parsed(Schema(Type.MAP, key_schema=key_schema, value_schema=value_schema), items)


_TRUE = Parsed(BOOLEAN_SCHEMA, True)
_FALSE = Parsed(BOOLEAN_SCHEMA, False)


def _temporal(token: str) -> Parsed | None:
    token = token.replace("\\:", ":")
    try:
        if len(token) == 13:
            moment = _TIME.parse(token)
            return (
                Parsed(TIME_SCHEMA, moment.time()) if moment.year == 1970 and moment.timetuple().tm_yday == 1 else None
            )
        if len(token) == 24:
            return Parsed(TIMESTAMP_SCHEMA, _TIMESTAMP.parse(token))
        if len(token) == 10:
            return Parsed(DATE_SCHEMA, _DATE.parse(token).date())
    except DataError:
        return None
    return None


def _number(number: Decimal) -> Parsed:
    exponent = number.as_tuple().exponent
    scale = -exponent if isinstance(exponent, int) else 0
    magnitude = abs(number)
    if number == 0 or (1 <= magnitude <= Decimal("1e19") and number == number.to_integral_value()):
        integer = int(number)
        for schema in _INTEGERS:
            low, high = INT_RANGES[schema.type]
            if low <= integer <= high:
                return Parsed(schema, integer)
    double = float(number) if magnitude < Decimal("1e309") else float("inf")
    single = float32(double)
    if abs(single) != float("inf") and scale != 0:
        return Parsed(FLOAT32_SCHEMA, single)
    if abs(double) != float("inf") and scale != 0:
        return Parsed(FLOAT64_SCHEMA, double)
    return Parsed(decimal_schema(scale), number)


def _merged(schemas: list[Schema | None]) -> Schema | None:
    """The one schema that all can take, None when there is none; nulls fit anything."""
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


def _aligned(schema: Schema | None, value: Any) -> Any:
    if schema is not None and value is None:
        raise DataError("Unable to convert a null value to a schema that requires a value")
    if schema is not None and isinstance(value, int) and schema.type in (Type.FLOAT32, Type.FLOAT64):
        return float(value)
    return value
