"""Java's rules for printing, parsing and narrowing numbers, trimming strings, and ordering the keys of a HashMap.

Users compare Connect's output byte by byte, and keys in offset files are looked up by their bytes, so these rules are
part of the format. Floating point text is the same as with JDK 19 and later: the fewest digits that parse to the same
number, but at least two. JDK 17 prints some numbers with more digits than necessary.
"""

from __future__ import annotations

import math
import re
import struct as binary
from collections.abc import Iterable
from decimal import Decimal
from functools import lru_cache

_pack_float, _unpack_float = binary.Struct(">f").pack, binary.Struct(">f").unpack
_pack_double = binary.Struct(">d").pack
_INTEGER = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(r"([+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?))[fFdD]?")
_BIG_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_HEXADECIMAL = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?")
_BLANKS = "".join(map(chr, range(33)))


def trim(text: str) -> str:
    """Java's ``String.trim``: remove ASCII blanks and control characters at both ends; keep other Unicode spaces."""
    return text.strip(_BLANKS)


def double_text(value: float) -> str:
    """Java's ``Double.toString``: ``1.0``, ``1.0E10``, ``1.0E-7``, ``NaN``, ``-Infinity``."""
    magnitude = abs(value)
    if 1e-3 <= magnitude < 1e7 or magnitude == 0.0:
        return repr(value)
    if value != value or magnitude == math.inf:
        return _non_finite_text(value)
    text = repr(value)
    if "." not in text and float(f"{value:.1e}") == value:
        text = f"{value:.1e}"  # Java prints at least two digits, as close as possible: 4.9E-324, not 5.0E-324
    return _scientific_text(text)


def float_text(value: float) -> str:
    """Java's ``Float.toString`` of the 32-bit float nearest to `value`: the fewest digits that identify it."""
    value = float32(value)
    magnitude = abs(value)
    if magnitude == 0.0:
        return repr(value)
    if value != value or magnitude == math.inf:
        return _non_finite_text(value)
    text = _shortest_float(value)
    if 1e-3 <= magnitude < 1e7:
        return repr(float(text))
    return _scientific_text(text)


def _shortest_float(value: float) -> str:
    # Start with 6 digits: every normal 32-bit float keeps 6 digits, and trailing zeros are removed later. Subnormal
    # floats keep fewer, so start with 2 digits, the fewest that Java prints.
    for digits in range(5 if abs(value) >= 1.2e-38 else 1, 9):
        text = f"{value:.{digits}e}"
        if float32(float(text)) == value:
            return text
    return f"{value:.8e}"


def _non_finite_text(value: float) -> str:
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _scientific_text(text: str) -> str:
    """Convert a decimal number string to Java's scientific notation ``d.ddE±n``."""
    sign, text = ("-", text[1:]) if text[0] == "-" else ("", text)
    mantissa, _, exponent_text = text.partition("e")
    whole, _, fraction = mantissa.partition(".")
    exponent = int(exponent_text or 0) + len(whole) - 1
    digits = whole + fraction
    leading = len(digits) - len(digits.lstrip("0"))
    digits = digits[leading:].rstrip("0")
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent - leading}"


def float32(value: float) -> float:
    """Round to the nearest 32-bit float, as Java's ``(float)`` cast does. Out-of-range values become infinity."""
    try:
        rounded: float = _unpack_float(_pack_float(value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return rounded


class Float32(float):
    """A FLOAT32 value without a schema. As in Java, its text is the shortest that identifies the 32-bit float."""

    __slots__ = ()

    def __repr__(self) -> str:
        return float_text(self)


def parse_integer(text: str) -> int | None:
    """Java's ``Integer.parseInt`` without its limits: the digits may be of any script. Return None for other text."""
    return int(text) if _INTEGER.fullmatch(text) and (text.isascii() or max(text) < "\U00010000") else None


def parse_double(text: str) -> float | None:
    """Java's ``Double.parseDouble``. Return None for text that it rejects."""
    trimmed = trim(text)
    decimal = _DECIMAL.fullmatch(trimmed)
    if decimal is not None:
        return float(decimal[1])
    hexadecimal = _HEXADECIMAL.fullmatch(trimmed)
    if hexadecimal is None:
        return None
    try:
        return float.fromhex(hexadecimal[1])
    except OverflowError:
        return -math.inf if trimmed[0] == "-" else math.inf


def parse_float(text: str) -> float | None:
    """Java's ``Float.parseFloat``. Return None for text that it rejects."""
    value = parse_double(text)
    decimal = _DECIMAL.fullmatch(trim(text))
    if value is None or decimal is None or value - value != 0:
        return None if value is None else float32(value)
    # Rounding twice, to 64 and then to 32 bits, can differ from rounding once. It does not if an inexact 64-bit number
    # is odd, because an odd number is never in the middle of two 32-bit numbers.
    exact = Decimal(decimal[1])
    if exact != value and not _pack_double(value)[-1] & 1:
        value = math.nextafter(value, math.inf if exact > value else -math.inf)
    return float32(value)


def parse_decimal(text: str) -> Decimal | None:
    """Java's ``new BigDecimal(text)``, which has no negative zero. Return None for text that it rejects."""
    if not _BIG_DECIMAL.fullmatch(text):
        return None
    number = Decimal(text)
    return number if number else number.copy_abs()


def low_bits(number: Decimal) -> int:
    """Java's ``BigDecimal.longValue``: the lowest 64 bits of the integral part as a signed number."""
    exponent = number.as_tuple().exponent
    if not isinstance(exponent, int) or number.adjusted() < 0 or exponent >= 64:
        return 0  # 10**64 is a multiple of 2**64
    return wrap(int(number), 64)


def wrap(number: int, bits: int) -> int:
    """Return the lowest `bits` bits of the number as a signed number, as Java's narrowing casts of integers do."""
    half = 1 << (bits - 1)
    return ((number + half) & ((1 << bits) - 1)) - half


def float_to_integer(value: float, bits: int) -> int:
    """Convert a floating point number to an integer of `bits` bits, as Java's cast does.

    The number is truncated towards zero and clamped to the range. NaN becomes 0. For 16 and 8 bits, Java first casts to
    ``int`` and then keeps the lowest bits.
    """
    if value != value:
        return 0
    width = max(bits, 32)
    limit = 1 << (width - 1)
    # Clamp as a float first: int() of an infinity raises, and above 2**62 every float is a whole number.
    number = int(max(-float(limit), min(float(limit), value)))
    return wrap(min(number, limit - 1), bits)


def string_hash(text: str) -> int:
    """Java's ``String.hashCode`` of the UTF-16 code units, as a signed 32-bit number."""
    value = 0
    if text.isascii():
        for code in text.encode("ascii"):
            value = (value * 31 + code) & 0xFFFFFFFF
    else:
        encoded = text.encode("utf-16-be", "surrogatepass")
        for position in range(0, len(encoded), 2):
            value = (value * 31 + (encoded[position] << 8 | encoded[position + 1])) & 0xFFFFFFFF
    return wrap(value, 32)


def hash_map_order(keys: Iterable[str]) -> tuple[str, ...]:
    """Return the iteration order of a ``java.util.HashMap`` to which these string keys were added in this order."""
    return _hash_map_order(tuple(keys))


def hash_map_copy_order(keys: Iterable[str], added: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the iteration order of the copy ``new HashMap<>(map)`` after the keys `added` were put into the copy.

    `keys` are the keys of the original map, in the iteration order of the original map. Java gives the hash table of
    the copy the smallest size that is sufficient for `keys`, and doubles the size when the table is more than 3/4 full.
    A HashMap that is not created as a copy has at least 16 buckets (see `hash_map_order`).
    """
    copied = tuple(keys)
    buckets = 1
    while buckets < int(len(copied) / 0.75 + 1):
        buckets *= 2
    return _bucket_order((*copied, *added), buckets)


def hash_set_copy_order(items: Iterable[str]) -> tuple[str, ...]:
    """Return the iteration order of ``new HashSet<>(items)``, which has at least 16 buckets."""
    copied = tuple(items)
    return hash_map_copy_order(copied) if len(copied) > 8 else hash_map_order(copied)


@lru_cache(maxsize=4096)
def _hash_map_order(keys: tuple[str, ...]) -> tuple[str, ...]:
    return _bucket_order(keys, 16)


def _bucket_order(keys: tuple[str, ...], buckets: int) -> tuple[str, ...]:
    while len(keys) > buckets * 3 // 4:
        buckets *= 2

    def bucket(key: str) -> int:
        spread = string_hash(key) & 0xFFFFFFFF
        return (spread ^ (spread >> 16)) & (buckets - 1)

    return tuple(sorted(keys, key=bucket))
