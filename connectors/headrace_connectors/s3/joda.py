"""Joda-Time patterns, as ``path.format`` contains them. This module does no I/O.

The letters are those of Java's SimpleDateFormat, with these exceptions: ``Y`` is the year, ``x`` is the week-based
year, ``w`` is the number of the week in the week-based year, and ``e`` is the number of the day in the week (Monday is
1).
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable

_TOKEN = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|([^A-Za-z']+)")
_Part = Callable[[dt.datetime], str]


class JodaFormat:
    """A compiled Joda-Time pattern."""

    def __init__(self, pattern: str) -> None:
        """Compile the pattern. Raises ValueError for an unknown letter or an unclosed quote."""
        parts: list[_Part] = []
        position = 0
        while position < len(pattern):
            found = _TOKEN.match(pattern, position)
            if found is None:
                raise ValueError(f"unclosed quote at position {position} of the pattern {pattern}")
            position = found.end()
            parts.append(_part(found, pattern))
        self._parts = parts

    def format(self, moment: dt.datetime) -> str:
        """Format an aware datetime in its own time zone."""
        return "".join([part(moment) for part in self._parts])


def _part(found: re.Match[str], pattern: str) -> _Part:
    if found[2] is None:
        text = "'" if found[0] == "''" else (found[1] or "").replace("''", "'") if found[1] is not None else found[3]
        return lambda moment: text
    letter, width = found[2], len(found[0])
    if letter in _NUMBERS:
        number = _NUMBERS[letter]
        if letter in "yYx" and width == 2:
            return lambda moment: f"{number(moment) % 100:02d}"
        return lambda moment: f"{number(moment):0{width}d}"
    if letter in _TEXTS:
        text_of = _TEXTS[letter]
        return lambda moment: text_of(moment, width)
    raise ValueError(f"unknown letter {letter} in the pattern {pattern}; quote literal text, as in 'year'=YYYY")


_NUMBERS: dict[str, Callable[[dt.datetime], int]] = {
    "y": lambda moment: moment.year,
    "Y": lambda moment: moment.year,
    "x": lambda moment: moment.isocalendar().year,
    "w": lambda moment: moment.isocalendar().week,
    "e": lambda moment: moment.isoweekday(),
    "D": lambda moment: moment.timetuple().tm_yday,
    "d": lambda moment: moment.day,
    "H": lambda moment: moment.hour,
    "k": lambda moment: moment.hour or 24,
    "K": lambda moment: moment.hour % 12,
    "h": lambda moment: moment.hour % 12 or 12,
    "m": lambda moment: moment.minute,
    "s": lambda moment: moment.second,
}
_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
           "November", "December")  # fmt: skip
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def _month(moment: dt.datetime, width: int) -> str:
    if width <= 2:
        return f"{moment.month:0{width}d}"
    name = _MONTHS[moment.month - 1]
    return name if width > 3 else name[:3]


def _day(moment: dt.datetime, width: int) -> str:
    name = _DAYS[moment.weekday()]
    return name if width > 3 else name[:3]


def _fraction(moment: dt.datetime, width: int) -> str:
    return f"{moment.microsecond:06d}".ljust(width, "0")[:width]


def _offset(moment: dt.datetime, width: int) -> str:
    text = moment.strftime("%z")
    return text if width == 1 else f"{text[:3]}:{text[3:]}" if width == 2 else str(moment.tzinfo)


_TEXTS: dict[str, Callable[[dt.datetime, int], str]] = {
    "M": _month,
    "E": _day,
    "a": lambda moment, width: "AM" if moment.hour < 12 else "PM",
    "S": _fraction,
    "Z": _offset,
    "z": lambda moment, width: str(moment.tzname()),
    "G": lambda moment, width: "AD",
}
