"""Joda-Time patterns, as ``path.format`` contains them. This module does no I/O.

The letters are those of Java's SimpleDateFormat, with these exceptions: ``Y`` is the year, ``x`` is the week-based
year, ``w`` is the number of the week in the week-based year, and ``e`` is the number of the day in the week (Monday is
1). A moment is a datetime and a number of years to add to it, so that all years of Java are possible. The number is a
multiple of 400, after which the calendar repeats itself. The year 0 is 1 BC.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable

_TOKEN = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|([^A-Za-z']+)")
_Part = Callable[[dt.datetime, int], str]


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

    def format(self, moment: dt.datetime, years: int = 0) -> str:
        """Format the time that is `years` years after an aware datetime, in the time zone of this datetime."""
        return "".join([part(moment, years) for part in self._parts])


def _part(found: re.Match[str], pattern: str) -> _Part:
    if found[2] is None:
        text = "'" if found[0] == "''" else (found[1] or "").replace("''", "'") if found[1] is not None else found[3]
        return lambda moment, years: text
    letter, width = found[2], len(found[0])
    if letter == "G":
        return _era
    if letter in _YEARS:
        return _year(letter, width)
    if letter in _NUMBERS:
        number = _NUMBERS[letter]
        return lambda moment, years: f"{number(moment):0{width}d}"
    if letter in _TEXTS:
        text_of = _TEXTS[letter]
        return lambda moment, years: text_of(moment, width)
    raise ValueError(f"unknown letter {letter} in the pattern {pattern}; quote literal text, as in 'year'=YYYY")


def _year(letter: str, width: int) -> _Part:
    year_of = _YEARS[letter]

    def format_year(moment: dt.datetime, years: int) -> str:
        year = year_of(moment) + years
        if letter == "Y" and year <= 0:
            year = 1 - year  # the year of the era
        if width == 2:
            return f"{year % 100:02d}"
        return f"{year:0{width + (year < 0)}d}"

    return format_year


def _era(moment: dt.datetime, years: int) -> str:
    return "AD" if moment.year + years > 0 else "BC"


_YEARS: dict[str, Callable[[dt.datetime], int]] = {
    "y": lambda moment: moment.year,
    "Y": lambda moment: moment.year,
    "x": lambda moment: moment.isocalendar().year,
}
_NUMBERS: dict[str, Callable[[dt.datetime], int]] = {
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
}
