"""Formatting of dates by a pattern of SimpleDateFormat."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from headrace.data.calendar_days import FIRST_GREGORIAN_DAY, MILLIS_PER_DAY, java_date, java_days
from headrace.data.java_dates.patterns import Token

MONTHS = tuple(dt.date(2001, month, 1).strftime("%B") for month in range(1, 13))
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_EPOCH_ORDINAL = dt.date(1970, 1, 1).toordinal()
_LAST_PYTHON_DAY = dt.date.max.toordinal() - _EPOCH_ORDINAL


class _Day(NamedTuple):
    """A day in Java's calendar. The attributes `year` (of the era), `month` and `day` are those of `datetime.date`."""

    days: int
    astronomical_year: int
    month: int
    day: int

    @property
    def year(self) -> int:
        return self.astronomical_year if self.astronomical_year > 0 else 1 - self.astronomical_year

    @property
    def day_of_year(self) -> int:
        return self.days - java_days(self.astronomical_year, 1, 1) + 1

    @property
    def first_of_month(self) -> int:
        """The first day of the month, in days since 1970-01-01."""
        return java_days(self.astronomical_year, self.month, 1)


def _day(days: int) -> _Day:
    return _Day(days, *java_date(days))


def _quick_day(days: int) -> dt.date | _Day:
    """Return the day as a `date` if Python supports its year and Java's calendar is Gregorian: this is faster."""
    if FIRST_GREGORIAN_DAY <= days <= _LAST_PYTHON_DAY:
        return dt.date.fromordinal(days + _EPOCH_ORDINAL)
    return _day(days)


def _sunday_weekday(days: int) -> int:
    return (days + 4) % 7


def _week(day: _Day) -> tuple[int, int]:
    """Return the week-based year and the week number by the rules of the US locale.

    Weeks start on Sunday, and the week with 1 January is week 1.
    """
    year = day.astronomical_year
    last = java_days(year + 1, 1, 1) - 1
    if last - day.days < _sunday_weekday(last) + 1 and _sunday_weekday(last) != 6:
        return year + 1, 1
    return year, (day.day_of_year - 1 + _sunday_weekday(java_days(year, 1, 1))) // 7 + 1


_DAY_NUMBERS: Mapping[str, Callable[[_Day], int]] = {
    "y": lambda day: day.year,
    "Y": lambda day: _week(day)[0],
    "M": lambda day: day.month,
    "w": lambda day: _week(day)[1],
    "W": lambda day: (day.days - day.first_of_month + _sunday_weekday(day.first_of_month)) // 7 + 1,
    "D": lambda day: day.day_of_year,
    "d": lambda day: day.day,
    "F": lambda day: (day.days - day.first_of_month) // 7 + 1,
    "u": lambda day: (day.days + 3) % 7 + 1,
}
_DAY_ATTRIBUTES = {"y": "day.year", "M": "day.month", "d": "day.day"}
_TIME_NUMBERS = {
    "H": "ms // 3600000",
    "k": "(ms // 3600000 or 24)",
    "K": "ms // 3600000 % 12",
    "h": "(ms // 3600000 % 12 or 12)",
    "m": "ms // 60000 % 60",
    "s": "ms // 1000 % 60",
    "S": "ms % 1000",
}
"""Python expressions for the fields of the time of day, `ms` milliseconds after midnight."""
_NUMBERS = {*_DAY_NUMBERS, *_TIME_NUMBERS}


def _day_text(token: Token) -> Callable[[int], str]:
    """Return the function that formats a field of the date. Its argument is the number of days since 1970-01-01."""
    letter, count = token.letter, token.width
    if letter == "M" and count >= 3:
        names = _abbreviated(MONTHS, count)
        return lambda days: names[_quick_day(days).month - 1]
    if letter == "E":
        names = _abbreviated(DAYS, count)
        return lambda days: names[(days + 3) % 7]
    if letter == "G":
        return lambda days: "AD" if _day(days).astronomical_year > 0 else "BC"
    number = _DAY_NUMBERS[letter]
    if letter in "yY" and count == 2:
        return lambda days: _last_two_digits(number(_day(days)))
    return lambda days: _padded(number(_day(days)), count)


def _abbreviated(names: tuple[str, ...], width: int) -> tuple[str, ...]:
    return names if width > 3 else tuple(name[:3] for name in names)


def _last_two_digits(number: int) -> str:
    return f"{'-' if number < 0 else ''}{abs(number) % 100:02}"


def _padded(number: int, width: int) -> str:
    return f"{'-' if number < 0 else ''}{abs(number):0{width}}"


def compile_formatter(tokens: list[Token]) -> Callable[[int], str]:
    """Generate a function that formats milliseconds since the epoch by the pattern.

    It formats the date first. The result is a template for the time of day, for example ``2026-01-31 %02d:%02d``, which
    is cached, because many values have the same date.
    """
    source = ""
    day_arguments: list[str] = []
    arguments: list[str] = []
    scope: dict[str, Any] = {}
    for number, token in enumerate(tokens):
        letter = "M" if token.letter == "L" else token.letter
        if not letter:
            source += token.text.replace("%", "%%%%")
        elif letter in _TIME_NUMBERS:
            source += f"%%0{token.width}d"
            arguments.append(_TIME_NUMBERS[letter])
        elif letter == "a":
            source += "%%s"
            arguments.append("('AM' if ms < 43200000 else 'PM')")
        elif letter in "zZX":
            zone = "Coordinated Universal Time" if token.width > 3 else "UTC"
            source += {"z": zone, "Z": "+0000", "X": "Z"}[letter]
        elif (
            letter in _DAY_ATTRIBUTES and not (letter == "M" and token.width >= 3) and (letter, token.width) != ("y", 2)
        ):
            source += f"%0{token.width}d"
            day_arguments.append(_DAY_ATTRIBUTES[letter])
        else:
            source += "%s"
            scope[f"part{number}"] = _day_text(token._replace(letter=letter))
            day_arguments.append(f"part{number}(days)")
    fill: Callable[[int, dt.date | _Day], str] = eval(
        f"lambda days, day: {source!r} % ({''.join(f'{each}, ' for each in day_arguments)})", scope
    )

    @lru_cache(maxsize=1024)
    def template(days: int) -> str:
        return fill(days, _quick_day(days))

    times: Callable[[int], tuple[int | str, ...]] = eval(f"lambda ms: ({''.join(f'{each}, ' for each in arguments)})")
    if not arguments:
        return lambda millis: template(millis // MILLIS_PER_DAY) % ()
    return lambda millis: template(millis // MILLIS_PER_DAY) % times(millis % MILLIS_PER_DAY)
