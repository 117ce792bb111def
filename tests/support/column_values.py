"""Generators of columns for tests of the column-wise forms of transforms: regular, irregular and mixed values.

The value of most records is regular, so that the column-wise code is used. `columns` adds irregular values and nulls to
some of the columns.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from random import Random
from typing import Any

from headrace.data.java import Float32, float32
from headrace.data.logical import MILLIS_PER_DAY, Date, Time, Timestamp

Draw = Callable[[Random], Any]
"""Draws a value."""

COLUMN_LENGTH = 250

_EDGE_INTS = [
    number + change
    for bits in (7, 8, 15, 16, 31, 32, 53, 63)
    for number in (2**bits, -(2**bits))
    for change in (-1, 0, 1)
]
_INT64_EDGES = [number for number in _EDGE_INTS if -(2**63) <= number < 2**63]
HUGE_INTS = [2**64, -(2**64), 3 * 2**64 + 1, 10**400, -(10**400)]
NUMBER_TEXTS = (
    *("", " ", " 12 ", "12 ", "\t5", "12\n", "1_000", "+", "-", "+-1", "--1", "1-2", "12.5", "1e3", "1E+3", ".5", "5."),
    *("٣", "１２", "\U0001d7db", "\ud800", "9" * 30, "9" * 5000, "0x1F", "0x1p3", "NaN", "-Infinity", "Infinity"),
    *(
        "true",
        "TRUE",
        "tRuE",
        " true",
        "false",
        "yes",
        "1f",
        "1.5D",
        "1e400",
        "-1e400",
        "1e-400",
        "e",
        "1e",
        "-0",
        "+5",
    ),
    *("007", "-0.0", "3.4028235e38", "3.4028236e38", "1.00000017881393432617187499", "16777217", "null", "é", "1,5"),
    *map(str, _EDGE_INTS),
)
_EDGE_FLOATS = (
    *(0.0, -0.0, 0.5, -0.5, 0.999, -0.999, 1.0, -1.0, 1e-5, 1e21, 1e300, -1e300, 5e-324, 1.7976931348623157e308, 0.1),
    *(127.9, 128.0, -128.9, -129.0, 2.0**31, -(2.0**31) - 1, 2.0**53 + 2, 2.0**63, -(2.0**63), 2.0**64, 1e7, 1e-3),
    *(math.nan, math.inf, -math.inf, 3.4028234663852886e38, 3.4028235677973366e38, 16777217.0, 1.0000000596046448),
)


def _number_text(random: Random) -> str:
    kind = random.random()
    if kind < 0.6:
        return str(random.randint(-128, 127) if kind < 0.3 else random.randint(-(2**31), 2**31 - 1))
    return repr(round(random.uniform(-1e6, 1e6), 3)) if kind < 0.8 else str(random.getrandbits(8))


def _small_int_text(random: Random) -> str:
    return str(random.randint(-128, 127))


def _double(random: Random) -> float:
    return round(random.uniform(-1000, 1000), random.randint(0, 9)) if random.random() < 0.7 else random.gauss(0, 1e9)


VALUES: dict[str, tuple[Draw, Draw]] = {
    "integer texts": (_small_int_text, lambda random: random.choice(NUMBER_TEXTS)),
    "number texts": (_number_text, lambda random: random.choice(NUMBER_TEXTS)),
    "booleans": (lambda random: random.random() < 0.5, lambda random: random.random() < 0.5),
    "small integers": (lambda random: random.randint(-128, 127), lambda random: random.choice(_INT64_EDGES)),
    "integers": (lambda random: random.randint(-(10**13), 10**13), lambda random: random.choice(_INT64_EDGES)),
    "doubles": (_double, lambda random: random.choice(_EDGE_FLOATS)),
    "floats": (lambda random: float32(_double(random)), lambda random: float32(random.choice(_EDGE_FLOATS))),
    "timestamps": (
        lambda random: Timestamp(random.randint(-(10**12), 10**13)),
        lambda random: Timestamp(random.choice((0, -1, 2**63 - 1, -(2**63), -62_135_596_800_000, 253_402_300_800_000))),
    ),
    "dates": (
        lambda random: Date(random.randint(-10_000, 30_000)),
        lambda random: Date(random.choice((0, -1, 2**31 - 1, -(2**31), -719_163, 2_932_897))),
    ),
    "times": (
        lambda random: Time(random.randrange(MILLIS_PER_DAY)),
        lambda random: Time(random.choice((0, 1, MILLIS_PER_DAY - 1))),
    ),
    "decimals": (
        lambda random: Decimal(random.randint(-(10**6), 10**6)).scaleb(-2),
        lambda random: Decimal(random.choice((0, 10**30, -(2**63) * 100, 50, -50))).scaleb(-2),
    ),
    "bytes": (lambda random: random.randbytes(3), lambda random: b""),
}
"""Functions that draw a regular value and an irregular value, by the name of a kind of values."""

_SCHEMALESS_KINDS = (
    "number texts",
    "booleans",
    "integers",
    "doubles",
    "timestamps",
    "dates",
    "times",
    "decimals",
    "bytes",
)


def draw_schemaless(random: Random) -> Any:
    """Draw a value of any type that a record without a schema can contain."""
    kind = random.random()
    if kind < 0.1:
        return random.choice((None, [], {}, [1, "a"], {"a": 1}, Float32(0.5)))
    if kind < 0.15:
        return random.choice(HUGE_INTS)
    return random.choice(VALUES[random.choice(_SCHEMALESS_KINDS)])(random)


VALUES["values of any type"] = (draw_schemaless, draw_schemaless)
VALUES["float objects"] = (lambda random: Float32(float32(_double(random))), draw_schemaless)


def date_texts(pattern: str) -> tuple[Draw, Draw]:
    """Return functions that draw a text in the usual form of a pattern of SimpleDateFormat, and any other text."""

    def regular(random: Random) -> str:
        moment = dt.datetime(1990, 1, 1) + dt.timedelta(milliseconds=random.randrange(10**12))
        return _format(pattern, moment, random)

    def irregular(random: Random) -> str:
        text = regular(random)
        kind = random.randrange(12)
        if kind == 0:
            return text + random.choice((" and more", "5", "Z", " ", "\n", ".5"))
        if kind == 1:
            return random.choice((" ", "\t", "-", "+", "0")) + text
        if kind == 2:
            return text[: random.randrange(len(text) + 1)]
        if kind == 3:
            return text.replace(random.choice("0123456789"), random.choice(("", "٣", "x", "00", " ", "９")), 1)
        if kind == 4:
            return text.replace("-0", "-").replace(":0", ":").replace("/0", "/")
        at = random.randrange(len(text))
        if kind < 9:  # for example month 13, 30 February, hour 25 or year 0995
            return text[:at] + random.choice("0123456789") + text[at + 1 :]
        return text[:at] + random.choice((".", "T", "z", "-", "é", "1", "")) + text[at + random.randrange(2) :]

    return regular, irregular


def _format(pattern: str, moment: dt.datetime, random: Random) -> str:
    zones = {"X": ("Z", "+01", "-11"), "XX": ("Z", "+0130"), "XXX": ("Z", "-09:45"), "Z": ("+0000", "-0530")}
    texts = {
        **{zone: random.choice(choices) for zone, choices in zones.items()},
        "yyyy": f"{moment:%Y}",
        "yy": f"{moment:%y}",
        "MM": f"{moment:%m}",
        "M": str(moment.month),
        "MMM": f"{moment:%b}",
        "dd": f"{moment:%d}",
        "d": str(moment.day),
        "HH": f"{moment:%H}",
        "H": str(moment.hour),
        "hh": f"{moment:%I}",
        "mm": f"{moment:%M}",
        "ss": f"{moment:%S}",
        "SSS": f"{moment.microsecond // 1000:03}",
        "a": f"{moment:%p}",
        "EEE": f"{moment:%a}",
        "S": str(moment.microsecond // 1000),
    }
    text, position, quoted = "", 0, False
    while position < len(pattern):
        letter = pattern[position]
        width = 1
        if letter == "'":
            quoted = not quoted
        elif quoted or not letter.isalpha():
            text += letter
        else:
            width = len(pattern[position:]) - len(pattern[position:].lstrip(letter))
            text += texts[letter * width]
        position += width
    return text


def columns(random: Random, kind: tuple[Draw, Draw], count: int) -> Iterator[list[Any]]:
    """Generate columns with `count` values in all. Some columns contain nulls."""
    regular, irregular = kind
    length = min(COLUMN_LENGTH, count // 10)
    for number in range(count // length):
        draws = [regular] * length
        if number % 4 == 1:
            draws[random.randrange(length)] = irregular
        if number % 4 == 3:
            draws = random.choices((regular, irregular), k=length)
        column = [draw(random) for draw in draws]
        if number % 8 == 4:
            column = random.choices(column[:5], k=length)  # values that repeat
        if number % 3 == 2:
            column = [None if random.random() < 0.2 else item for item in column]
        yield [None] * length if number % 16 == 11 else column
