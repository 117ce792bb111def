"""Converts bytes to strings like Kafka's deserializers, which are selected by class name. This module does no I/O."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from decimal import Decimal

Deserializer = Callable[[bytes], bytes]
"""Returns the deserialized value as a string. Raises ValueError for invalid bytes."""


def deserializer(name: str) -> Deserializer:
    """Return the deserializer with this class name, which may include the package. Raises ValueError if unsupported."""
    simple = name.rpartition(".")[2]
    found = _DESERIALIZERS.get(simple) or _DESERIALIZERS.get(f"{simple}Deserializer")
    if found is None:
        known = ", ".join(sorted(_DESERIALIZERS))
        raise ValueError(f"deserializer {name} is not supported; the supported deserializers are {known}")
    return found


def _number(layout: str, class_name: str, text: Callable[[float], str] = str) -> Deserializer:
    packed = struct.Struct(f">{layout}")

    def convert(data: bytes) -> bytes:
        if len(data) != packed.size:
            raise ValueError(f"Size of data received by {class_name} is not {packed.size}")
        return text(packed.unpack(data)[0]).encode()

    return convert


def _string(data: bytes) -> bytes:
    return bytes(data).decode("utf-8", "replace").encode()


def _boolean(data: bytes) -> bytes:
    if data not in (b"\0", b"\1"):
        raise ValueError("Unexpected byte received by BooleanDeserializer")
    return b"true" if data == b"\1" else b"false"


def _uuid(data: bytes) -> bytes:
    try:
        return str(uuid.UUID(bytes(data).decode("utf-8"))).encode()
    except ValueError as error:
        raise ValueError(f"Error parsing data into UUID: {error}") from None


def _void(data: bytes) -> bytes:
    raise ValueError("Data should be null for a VoidDeserializer.")


def java_double(value: float, shortest: str | None = None) -> str:
    """Format a number like Java's Double.toString.

    `shortest` is the number's shortest decimal representation, if it differs from Python's `repr`.
    """
    if value != value or value in (float("inf"), float("-inf")):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    if value == 0:
        return str(value)
    sign, digits, exponent = Decimal(shortest or repr(value)).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).rstrip("0") or "0"
    point = len(digits) + exponent  # the number is 0.text * 10^point
    if 1e-3 <= abs(value) < 1e7:
        whole = text[:point].ljust(point, "0") if point > 0 else "0"
        part = text[point:] if point > 0 else "0" * -point + text
        body = f"{whole}.{part or '0'}"
    else:
        body = f"{text[0]}.{text[1:] or '0'}E{point - 1}"
    return f"-{body}" if sign else body


def java_float(value: float) -> str:
    """Format a 32-bit number like Java's Float.toString."""
    if value != value or abs(value) == float("inf"):
        return java_double(value)
    shortest = next(
        text for text in (f"{value:.{count}g}" for count in range(1, 10)) if _as_float32(float(text)) == value
    )
    return java_double(value, shortest)


def _as_float32(value: float) -> float:
    try:
        narrowed: float = struct.unpack(">f", struct.pack(">f", value))[0]
    except OverflowError:
        return float("inf")
    return narrowed


_DESERIALIZERS: dict[str, Deserializer] = {
    "StringDeserializer": _string,
    "ByteArrayDeserializer": bytes,
    "BytesDeserializer": bytes,
    "ByteBufferDeserializer": bytes,
    "ShortDeserializer": _number("h", "ShortDeserializer"),
    "IntegerDeserializer": _number("i", "IntegerDeserializer"),
    "LongDeserializer": _number("q", "LongDeserializer"),
    "FloatDeserializer": _number("f", "FloatDeserializer", java_float),
    "DoubleDeserializer": _number("d", "DoubleDeserializer", java_double),
    "BooleanDeserializer": _boolean,
    "UUIDDeserializer": _uuid,
    "VoidDeserializer": _void,
}
