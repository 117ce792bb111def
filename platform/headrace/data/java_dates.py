"""Java's SimpleDateFormat with the English locale and in UTC: patterns such as ``yyyy-MM-dd'T'HH:mm:ss.SSSXXX``.

Formatting supports every pattern letter. Parsing is as lenient as Java's: fields may overflow (month 13 is January of
the next year), blanks before a field and text after the last field are skipped, and ``S`` always means a number of
milliseconds, however many digits it has. The week letters (Y w W F) are supported only for formatting.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from headrace.data.errors import DataError

_MONTHS = tuple(dt.date(2001, month, 1).strftime("%B") for month in range(1, 13))
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
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


def _sunday_weekday(day: dt.date) -> int:
    return (day.weekday() + 1) % 7


def _week(moment: dt.datetime) -> tuple[int, int]:
    """Return the week-based year and the week number by the rules of the US locale.

    Weeks start on Sunday, and the week with 1 January is week 1.
    """
    year = moment.year
    last = dt.date(year, 12, 31)
    if (last - moment.date()).days < _sunday_weekday(last) + 1 and _sunday_weekday(last) != 6:
        return year + 1, 1
    first = dt.date(year, 1, 1)
    return year, (moment.timetuple().tm_yday - 1 + _sunday_weekday(first)) // 7 + 1


_NUMBERS: Mapping[str, Callable[[dt.datetime], int]] = {
    "y": lambda moment: moment.year,
    "Y": lambda moment: _week(moment)[0],
    "M": lambda moment: moment.month,
    "w": lambda moment: _week(moment)[1],
    "W": lambda moment: (moment.day - 1 + _sunday_weekday(moment.date().replace(day=1))) // 7 + 1,
    "D": lambda moment: moment.timetuple().tm_yday,
    "d": lambda moment: moment.day,
    "F": lambda moment: (moment.day - 1) // 7 + 1,
    "u": lambda moment: moment.isoweekday(),
    "H": lambda moment: moment.hour,
    "k": lambda moment: moment.hour or 24,
    "K": lambda moment: moment.hour % 12,
    "h": lambda moment: moment.hour % 12 or 12,
    "m": lambda moment: moment.minute,
    "s": lambda moment: moment.second,
    "S": lambda moment: moment.microsecond // 1000,
}
_ATTRIBUTES = {"y": "year", "M": "month", "d": "day", "H": "hour", "m": "minute", "s": "second"}


def _field_formatter(token: _Token) -> Callable[[dt.datetime], str]:
    letter, count = ("M" if token.letter == "L" else token.letter), token.width
    if letter == "M" and count >= 3:
        return lambda moment: _MONTHS[moment.month - 1][: None if count > 3 else 3]
    if letter == "E":
        return lambda moment: _DAYS[moment.weekday()][: None if count > 3 else 3]
    fixed = {"G": "AD", "z": "Coordinated Universal Time" if count > 3 else "UTC", "Z": "+0000", "X": "Z"}
    if letter in fixed:
        return lambda moment: fixed[letter]
    if letter == "a":
        return lambda moment: "AM" if moment.hour < 12 else "PM"
    number = _NUMBERS[letter]
    if letter in "yY" and count == 2:
        return lambda moment: f"{number(moment) % 100:02}"
    return lambda moment: f"{number(moment):0{count}}"


def _compile_formatter(tokens: list[_Token]) -> Callable[[dt.datetime], str]:
    """Generate a function that formats a datetime by the pattern.

    Its code is, for example, ``"%04d-%02d %s" % (moment.year, moment.month, part0(moment))``.
    """
    template, arguments = "", []
    scope: dict[str, Any] = {}
    for number, token in enumerate(tokens):
        if not token.letter:
            template += token.text.replace("%", "%%")
        elif token.letter in _ATTRIBUTES and not (token.letter == "M" and token.width >= 3) and token[:2] != ("y", 2):
            template += f"%0{token.width}d"
            arguments.append(f"moment.{_ATTRIBUTES[token.letter]}")
        elif token.letter == "S":
            template += f"%0{token.width}d"
            arguments.append("moment.microsecond // 1000")
        else:
            template += "%s"
            scope[f"part{number}"] = _field_formatter(token)
            arguments.append(f"part{number}(moment)")
    values = f"({', '.join(arguments)},)" if arguments else "()"
    write: Callable[[dt.datetime], str] = eval(f"lambda moment: {template!r} % {values}", scope)
    return write


# ---- parsing ---------------------------------------------------------------------------------------------------------

_FAST = "yMdHmsS"  # the numeric fields, in the order of datetime's arguments


def _compile_fast_parser(
    tokens: list[_Token],
) -> tuple[re.Pattern[str], Callable[[tuple[int, ...]], dt.datetime]] | None:
    """Return a regular expression for common numeric patterns, and a function that converts its groups to a datetime.

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
    defaults = {"y": "1970", "M": "1", "d": "1", "H": "0", "m": "0", "s": "0", "S": "0"}
    parts = [f"g[{letters.index(each)}]" if each in letters else defaults[each] for each in defaults]
    code = f"lambda g: datetime({', '.join(parts)} * 1000, UTC)"
    return re.compile(source), eval(code, {"datetime": dt.datetime, "UTC": dt.UTC})


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
    format: Callable[[dt.datetime], str]
    """Formats a datetime, which must be in UTC."""

    def __init__(self, pattern: str, today: dt.date = dt.date(2030, 1, 1)) -> None:
        """Compile the pattern. Raises ValueError if Java rejects it."""
        self.pattern = pattern
        self._tokens = _tokenize(pattern)
        self._century_start = dt.date(today.year - 80, today.month, min(today.day, 28))
        self._fast = _compile_fast_parser(self._tokens)
        self.format = _compile_formatter(self._tokens)

    def parse(self, text: str) -> dt.datetime:
        """Parse a string to a datetime in UTC. Raises DataError."""
        if self._fast is not None:
            pattern, to_datetime = self._fast
            found = pattern.match(text)
            if found is not None:
                try:
                    return to_datetime(tuple(map(int, found.groups())))
                except ValueError:
                    pass  # a field overflows: only the lenient parser carries it over
        return _LenientParser(text, self._tokens, self._century_start, self.pattern).result()


_DIGITS = re.compile(r"-?[0-9]{1,18}", re.ASCII)
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
            if self._parse_name(("BC", "AD")) == 0:
                raise DataError(f'Date out of range (years 1 to 9999): "{self.text}"')
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
        value = int(found[0])
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

    def result(self) -> dt.datetime:
        fields = self.fields
        year, month = fields.get("y", 1970), 1 if "D" in fields and "M" not in fields else fields.get("M", 1)
        year, month = year + (month - 1) // 12, (month - 1) % 12 + 1
        day = fields["D"] if "D" in fields and "M" not in fields else fields.get("d", 1)
        try:
            midnight = dt.datetime(year, month, 1, tzinfo=dt.UTC)
            return midnight + dt.timedelta(days=day - 1, milliseconds=self._time_ms() - self.offset_ms)
        except (ValueError, OverflowError):
            raise DataError(f'Date out of range (years 1 to 9999): "{self.text}"') from None

    def _time_ms(self) -> int:
        fields = self.fields
        hour = fields.get("H", 0)
        if "k" in fields:
            hour = 0 if fields["k"] == 24 else fields["k"]
        if "h" in fields or "K" in fields:
            hour = fields.get("K", 0 if fields.get("h") == 12 else fields.get("h", 0)) + 12 * fields.get("a", 0)
        return ((hour * 60 + fields.get("m", 0)) * 60 + fields.get("s", 0)) * 1000 + fields.get("S", 0)
