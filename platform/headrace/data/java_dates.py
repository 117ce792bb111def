"""Java's SimpleDateFormat with the English locale and in UTC: patterns such as ``yyyy-MM-dd'T'HH:mm:ss.SSSXXX``.

Dates are numbers of milliseconds since the epoch, over the whole range of Java's ``long``. The calendar is that of
Java's ``GregorianCalendar``: Julian before 1582-10-15, and with years before Christ.

Formatting supports every pattern letter. Parsing is as lenient as Java's: fields may overflow (month 13 is January of
the next year), blanks before a field and text after the last field are skipped, and ``S`` always means a number of
milliseconds, however many digits it has. The week letters (Y w W F) are supported only for formatting.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from headrace.data.calendar_days import FIRST_GREGORIAN_DAY, MILLIS_PER_DAY, java_date, java_days
from headrace.data.errors import DataError
from headrace.data.java import wrap

_MONTHS = tuple(dt.date(2001, month, 1).strftime("%B") for month in range(1, 13))
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_EPOCH_ORDINAL = dt.date(1970, 1, 1).toordinal()
_LAST_PYTHON_DAY = dt.date.max.toordinal() - _EPOCH_ORDINAL
_LETTERS = "GyYMLwWDdFEuaHkKhmsSzZX"
_ZONE_HOURS = {"UTC": 0, "GMT": 0, "Z": 0, "EST": -5, "EDT": -4, "CST": -6, "CDT": -5, "MST": -7, "MDT": -6}
_ZONE_HOURS |= {"PST": -8, "PDT": -7, "CET": 1, "CEST": 2, "BST": 1, "EET": 2, "EEST": 3, "WET": 0, "WEST": 1, "JST": 9}


class _Token(NamedTuple):
    """A part of a pattern: a letter that is repeated `width` times, or literal text, for which `letter` is empty."""

    letter: str
    width: int
    text: str


def _tokenize(pattern: str) -> list[_Token]:
    """Split a pattern into tokens. Raises ValueError with Java's message if SimpleDateFormat rejects the pattern."""
    tokens: list[_Token] = []
    position = 0
    while position < len(pattern):
        char = pattern[position]
        if char == "'":
            text, position = _parse_quoted(pattern, position)
            tokens.append(_Token("", 0, text))
        elif char.isascii() and char.isalpha():
            if char not in _LETTERS:
                raise ValueError(f"Illegal pattern character '{char}'")
            end = position
            while end < len(pattern) and pattern[end] == char:
                end += 1
            if char == "X" and end - position > 3:
                raise ValueError(f"invalid ISO 8601 format: length={end - position}")
            tokens.append(_Token(char, end - position, ""))
            position = end
        else:
            tokens.append(_Token("", 0, char))
            position += 1
    return tokens


def _parse_quoted(pattern: str, position: int) -> tuple[str, int]:
    """Return the literal text that the quote at index `position` starts, and the index after the closing quote."""
    if pattern[position + 1 : position + 2] == "'":
        return "'", position + 2
    text = ""
    position += 1
    while position < len(pattern):
        if pattern[position] != "'":
            text += pattern[position]
            position += 1
        elif pattern[position + 1 : position + 2] == "'":
            text += "'"
            position += 2
        else:
            return text, position + 1
    raise ValueError("Unterminated quote")


# ---- formatting ------------------------------------------------------------------------------------------------------


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


def _day_text(token: _Token) -> Callable[[int], str]:
    """Return the function that formats a field of the date. Its argument is the number of days since 1970-01-01."""
    letter, count = token.letter, token.width
    if letter == "M" and count >= 3:
        names = _abbreviated(_MONTHS, count)
        return lambda days: names[_quick_day(days).month - 1]
    if letter == "E":
        names = _abbreviated(_DAYS, count)
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


def _compile_formatter(tokens: list[_Token]) -> Callable[[int], str]:
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


# ---- parsing ---------------------------------------------------------------------------------------------------------

_FAST = "yMdHmsS"


@lru_cache(maxsize=1024)
def _midnight_ms(year: int, month: int, day: int) -> int:
    """Return the milliseconds since the epoch. The month and the day may be any integers."""
    years, month_index = divmod(month - 1, 12)
    return java_days(year + years, month_index + 1, day) * MILLIS_PER_DAY


def _compile_fast_parser(
    tokens: list[_Token],
) -> tuple[re.Pattern[str], Callable[[tuple[int, ...]], int]] | None:
    """Return a regular expression for common numeric patterns, and a function that converts its groups to milliseconds.

    Return None if the pattern needs the lenient parser.
    """
    source, letters = "", ""
    for index, token in enumerate(tokens):
        if not token.letter:
            source += re.escape(token.text)
            continue
        simple = token.letter in _FAST and token.letter not in letters and (token.letter != "M" or token.width < 3)
        if not simple or (token.letter == "y" and token.width < 3):
            return None
        letters += token.letter
        source += f"([0-9]{{{token.width}}})" if _has_fixed_width(tokens, index) else "([0-9]{1,9})"
        if index + 1 == len(tokens) or tokens[index + 1].text[:1].isdigit():
            source += "(?![0-9])"  # numbers with more digits need the lenient parser
    defaults = {"y": "1970", "M": "1", "d": "1", "H": "0", "m": "0", "s": "0", "S": "0"}
    year, month, day, *time = [f"g[{letters.index(each)}]" if each in letters else defaults[each] for each in defaults]
    factors = ("3600000", "60000", "1000", "1")
    parts = [f"{part} * {factor}" for part, factor in zip(time, factors, strict=True) if part != "0"]
    code = f"lambda g: {' + '.join([f'midnight({year}, {month}, {day})', *parts])}"
    return re.compile(source), eval(code, {"midnight": _midnight_ms})


def _has_fixed_width(tokens: list[_Token], index: int) -> bool:
    """Whether the numeric field at `index` must have exactly one digit per pattern letter.

    This is so if another numeric field directly follows it.
    """
    if index + 1 >= len(tokens):
        return False
    following = tokens[index + 1]
    return following.letter in _NUMBERS and not (following.letter in "ML" and following.width >= 3)


def pattern_warnings(patterns: Mapping[str, str]) -> dict[str, str]:
    """Return the keys whose valid patterns probably differ from what their authors mean, and the differences."""
    found = {key: _pattern_warning(pattern) for key, pattern in patterns.items()}
    return {key: text for key, text in found.items() if text is not None}


def _pattern_warning(pattern: str) -> str | None:
    tokens = _tokenize(pattern)
    letters = {token.letter for token in tokens}
    for token in tokens:
        if token.letter == "S" and token.width > 3:
            return (
                f"{'S' * token.width} is a number of milliseconds, not a fraction of a second, so 844195 shifts the "
                "time by 14 minutes; use SSS, and shorten the fraction in the text to three digits"
            )
    if "Y" in letters and "w" not in letters:
        return "Y is the year of the week, which differs from the year around 1 January; use y"
    if "D" in letters and letters & {"M", "L"}:
        return "D is the day of the year, not of the month; use d"
    return None


class SimpleDateFormat:
    """A compiled date pattern. A two-digit year means a year from 80 years before `today` to 20 years after `today`."""

    __slots__ = ("_century_start", "_fast", "_tokens", "format", "pattern")
    pattern: str
    format: Callable[[int], str]
    """Formats milliseconds since the epoch."""

    def __init__(self, pattern: str, today: dt.date = dt.date(2030, 1, 1)) -> None:
        """Compile the pattern. Raises ValueError if Java rejects it."""
        self.pattern = pattern
        self._tokens = _tokenize(pattern)
        self._century_start = dt.date(today.year - 80, today.month, min(today.day, 28))
        self._fast = _compile_fast_parser(self._tokens)
        self.format = _compile_formatter(self._tokens)

    def parse(self, text: str) -> int:
        """Parse a string to milliseconds since the epoch. Raises DataError.

        As in Java, a time that exceeds 64 bits overflows.
        """
        if self._fast is not None:
            pattern, to_millis = self._fast
            found = pattern.match(text)
            if found is not None:
                return _wrapped(to_millis(tuple(map(int, found.groups()))))
        return _wrapped(_LenientParser(text, self._tokens, self._century_start, self.pattern).result())


def _wrapped(millis: int) -> int:
    return millis if -_INT64_MAX <= millis <= _INT64_MAX else wrap(millis, 64)


_INT64_MAX = 2**63 - 1
_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1
_DIGITS = re.compile(r"(-?)([0-9]+)", re.ASCII)
_OFFSET = re.compile(r"([+-])([0-9]{1,2})(?::?([0-9]{2}))?", re.ASCII)


class _LenientParser:
    """Parses a string, one field of the pattern after another, as leniently as Java."""

    def __init__(self, text: str, tokens: list[_Token], century_start: dt.date, pattern: str) -> None:
        self.text = text
        self.pattern = pattern
        self.position = 0
        self.fields: dict[str, int] = {}
        self.offset_ms = 0
        self.century_start = century_start
        for index, token in enumerate(tokens):
            if token.letter:
                self._parse_field(token, _has_fixed_width(tokens, index))
            elif text.startswith(token.text, self.position):
                self.position += len(token.text)
            else:
                raise self._unparseable_error()

    def _unparseable_error(self) -> DataError:
        return DataError(f'Unparseable date: "{self.text}" does not match the pattern {self.pattern}')

    def _parse_field(self, token: _Token, fixed_width: bool) -> None:
        while self.text[self.position : self.position + 1] in (" ", "\t"):
            self.position += 1
        letter = "M" if token.letter == "L" else token.letter
        if letter == "M" and token.width >= 3:
            self.fields["M"] = self._parse_name(_MONTHS) + 1
        elif letter == "E":
            self._parse_name(_DAYS)
        elif letter == "a":
            self.fields["a"] = self._parse_name(("AM", "PM"))
        elif letter == "G":
            self.fields["G"] = self._parse_name(("BC", "AD"))
        elif letter in "zZX":
            self._parse_zone(letter, token.width)
        elif letter in "YwWF":
            raise DataError(
                f"The pattern letter {letter} of {self.pattern} is supported for formatting, but not for parsing"
            )
        else:
            self._parse_number(letter, token.width, fixed_width)

    def _parse_name(self, names: tuple[str, ...]) -> int:
        remaining = self.text[self.position :].lower()
        for width in (None, 3):
            for index, name in enumerate(names):
                candidate = name[:width].lower()
                if remaining.startswith(candidate):
                    self.position += len(candidate)
                    return index
        raise self._unparseable_error()

    def _parse_number(self, letter: str, count: int, fixed_width: bool) -> None:
        found = _DIGITS.match(self.text, self.position, self.position + count if fixed_width else len(self.text))
        if found is None:
            raise self._unparseable_error()
        value = _java_int(found[1], found[2])
        self.position = found.end()
        if letter == "y" and count <= 2 and len(found[0]) == 2 and found[0].isdigit():
            start = self.century_start
            value += start.year // 100 * 100
            if value < start.year or (value == start.year and (start.month, start.day) > (1, 1)):
                value += 100
        self.fields[letter] = value

    def _parse_zone(self, letter: str, count: int) -> None:
        remaining = self.text[self.position :]
        if letter == "X" and remaining.startswith("Z"):
            self.position += 1
            return
        prefix = 3 if letter != "X" and remaining[:3].upper() in ("GMT", "UTC") and remaining[3:4] in ("+", "-") else 0
        found = _OFFSET.match(remaining, prefix)
        if found is not None:
            minutes = 0 if letter == "X" and count == 1 else int(found[3] or 0)
            self.position += found.end(2) if letter == "X" and count == 1 else found.end()
            self.offset_ms = (int(found[2]) * 60 + minutes) * 60_000 * (-1 if found[1] == "-" else 1)
            return
        if remaining.lower().startswith("coordinated universal time"):
            self.position += len("coordinated universal time")
            return
        name = re.match("[A-Za-z]+", remaining)
        if letter == "X" or name is None or name[0].upper() not in _ZONE_HOURS:
            raise self._unparseable_error()
        self.position += name.end()
        self.offset_ms = _ZONE_HOURS[name[0].upper()] * 3_600_000

    def result(self) -> int:
        """Return the milliseconds since the epoch."""
        fields = self.fields
        year, month = fields.get("y", 1970), 1 if "D" in fields and "M" not in fields else fields.get("M", 1)
        if fields.get("G") == 0:
            year = 1 - year  # before Christ
        day = fields["D"] if "D" in fields and "M" not in fields else fields.get("d", 1)
        return _midnight_ms(year, month, day) + self._time_ms() - self.offset_ms

    def _time_ms(self) -> int:
        fields = self.fields
        hour = fields.get("H", 0)
        if "k" in fields:
            hour = 0 if fields["k"] == 24 else fields["k"]
        if "h" in fields or "K" in fields:
            hour = fields.get("K", 0 if fields.get("h") == 12 else fields.get("h", 0)) + 12 * fields.get("a", 0)
        return ((hour * 60 + fields.get("m", 0)) * 60 + fields.get("s", 0)) * 1000 + fields.get("S", 0)


def _java_int(sign: str, digits: str) -> int:
    """Return the ``int`` that Java parses: a ``long`` loses its upper bits, and a larger number is the maximum."""
    digits = digits.lstrip("0")[:20] or "0"
    value = -int(digits) if sign else int(digits)
    if not -_INT64_MAX <= value <= _INT64_MAX:
        return _INT32_MIN if sign else _INT32_MAX
    return wrap(value, 32)
