"""Parsing of dates by a pattern of SimpleDateFormat.

A pattern of numbers is compiled to a regular expression. Texts that it does not match, and all other patterns, are
parsed field by field, as leniently as Java does.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from functools import lru_cache

from headrace.data.calendar_days import MILLIS_PER_DAY, gregorian_days
from headrace.data.errors import DataError
from headrace.data.java import wrap
from headrace.data.java_dates.calendar_fields import to_local_millis
from headrace.data.java_dates.formatting import DAYS, MONTHS
from headrace.data.java_dates.list_parsing import compile_list_parser
from headrace.data.java_dates.patterns import Token
from headrace.data.java_dates.zone_names import parse_zone_name

_INT64_MAX = 2**63 - 1
_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1
_NUMBERS = frozenset("yYMLwWDdFuHkKhmsS")


def compile_parser(
    pattern: str, tokens: list[Token], century_start: dt.date
) -> tuple[Callable[[str], int], Callable[[list[str]], list[int]] | None]:
    """Return the function that converts a text to milliseconds since the epoch, and that of `compile_list_parser`.

    A two-digit year is a year of the 100 years from `century_start`.
    """
    century_start_ms = gregorian_days(century_start.year, century_start.month, century_start.day) * MILLIS_PER_DAY
    plan = [(token, _has_fixed_width(tokens, index)) for index, token in enumerate(tokens)]

    def parse_leniently(text: str) -> int:
        parser = _LenientParser(pattern, plan, century_start.year, text)
        millis = parser.millis()
        if parser.is_first_year_of_century and millis < century_start_ms:
            for letter in {"y", "Y"} & parser.fields.keys():
                parser.fields[letter] += 100
            return parser.millis()
        return millis

    fast = _compile_fast_parser(tokens)
    if fast is None:
        return parse_leniently, None
    match, to_millis = fast

    def parse(text: str) -> int:
        found = match(text)
        if found is None:
            return parse_leniently(text)
        millis = to_millis(found.groups())
        return millis if millis <= _INT64_MAX else wrap(millis, 64)

    return parse, compile_list_parser(tokens, lambda text: parse(text) if match(text) else None)


def _has_fixed_width(tokens: list[Token], index: int) -> bool:
    """Whether the numeric field at `index` has at most one digit per pattern letter.

    This is so if another numeric field directly follows it.
    """
    if index + 1 >= len(tokens):
        return False
    following = tokens[index + 1]
    return following.letter in _NUMBERS and not (following.letter in "ML" and following.width >= 3)


_HOURS, _MINUTES = "([01][0-9]|2[0-3])", "([0-5][0-9])"
_OFFSETS = {"X": f"([+-]){_HOURS}()", "XX": f"([+-]){_HOURS}{_MINUTES}", "XXX": f"([+-]){_HOURS}:{_MINUTES}"}
_OFFSETS["Z"] = _OFFSETS["XX"]


@lru_cache(maxsize=1024)
def _midnight_ms(year: str, month: str, day: str) -> int:
    """Return the milliseconds since the epoch of a Gregorian date."""
    years, month_index = divmod(int(month) - 1, 12)
    return gregorian_days(int(year) + years, month_index + 1, int(day)) * MILLIS_PER_DAY


@lru_cache(maxsize=1024)
def _offset_ms(offset: str) -> int:
    """Return the offset of a text such as Z, +01, +0130 or +01:30."""
    if offset == "Z":
        return 0
    minutes = int(offset[1:3]) * 60 + int(offset[3:].removeprefix(":") or 0)
    return minutes * (-60_000 if offset[0] == "-" else 60_000)


def _compile_fast_parser(
    tokens: list[Token],
) -> tuple[Callable[[str], re.Match[str] | None], Callable[[tuple[str, ...]], int]] | None:
    """Return a regular expression for common patterns, and a function that converts its groups to milliseconds.

    Return None if the pattern needs the lenient parser.
    """
    source, letters = "", ""
    for index, token in enumerate(tokens):
        if not token.letter:
            source += re.escape(token.text)
            continue
        letter = "Z" if token.letter == "X" else token.letter
        group = _fast_group(token, _has_fixed_width(tokens, index))
        if group is None or letter in letters:
            return None
        letters += letter
        source += f"({group})"
        if letter != "Z" and (index + 1 == len(tokens) or tokens[index + 1].text[:1].isdigit()):
            source += "(?![0-9])"  # numbers with more digits need the lenient parser
    defaults = {"y": "'1970'", "M": "'1'", "d": "'1'"}
    date = [f"g[{letters.index(each)}]" if each in letters else default for each, default in defaults.items()]
    factors = {"H": 3_600_000, "m": 60_000, "s": 1000, "S": 1}
    terms = [f" + int(g[{letters.index(each)}]) * {factor}" for each, factor in factors.items() if each in letters]
    if "Z" in letters:
        terms.append(f" - offset(g[{letters.index('Z')}])")
    code = f"lambda g: midnight({', '.join(date)}){''.join(terms)}"
    return re.compile(source).match, eval(code, {"midnight": _midnight_ms, "offset": _offset_ms})


def _fast_group(token: Token, fixed_width: bool) -> str | None:
    """Return the regular expression for a field, or None if the field needs the lenient parser."""
    letter, width = token.letter, token.width
    if letter in "XZ":
        offset = _OFFSETS["X" * width if letter == "X" else "Z"].replace("(", "(?:")
        return f"Z|{offset}" if letter == "X" else offset
    if letter == "y" and width >= 3:  # the years from 1600, which are Gregorian whatever the month and the day are
        if not fixed_width:
            return "1[6-9][0-9]{2}|[2-9][0-9]{3}|[1-9][0-9]{4,8}"
        return "1[6-9][0-9]{2}|[2-9][0-9]{3}" if width == 4 else None
    if letter in "dHmsS" or (letter == "M" and width < 3):
        return f"[0-9]{{{width}}}" if fixed_width else "[0-9]{1,9}"
    return None


_NUMBER = re.compile(r"(-?)(\d+)")
_OFFSET_PATTERNS = {form: re.compile(offset) for form, offset in _OFFSETS.items()}
_OFFSET_AFTER_GMT = re.compile(f"([+-])([01]?[0-9]|2[0-3]):{_MINUTES}")
_NAMES = {
    "M": {name[:width].lower(): number for width in (None, 3) for number, name in enumerate(MONTHS)},
    "E": {name[:width].lower(): (number + 1) % 7 + 1 for width in (None, 3) for number, name in enumerate(DAYS)},
    "a": {"am": 0, "pm": 1},
    "G": {"before christ": 0, "anno domini": 1, "bc": 0, "ad": 1},
}
"""The names of fields, the long names first."""
_NAME_PATTERNS = {letter: re.compile("|".join(names), re.IGNORECASE | re.ASCII) for letter, names in _NAMES.items()}
_SAME_FIELDS = {"L": "M", "u": "E", "k": "H", "K": "h"}


class _LenientParser:
    """Parses a string, one field of the pattern after another. Raises DataError if the string does not match."""

    def __init__(self, pattern: str, plan: list[tuple[Token, bool]], first_year: int, text: str) -> None:
        self.text = text
        self.fields: dict[str, int] = {}
        self.is_first_year_of_century = False
        self._pattern = pattern
        self._first_year = first_year
        self._offset_ms = 0
        position = 0
        for token, fixed_width in plan:
            position = self._parse(token, fixed_width, position)

    def millis(self) -> int:
        """Return the milliseconds since the epoch. They overflow as a Java ``long`` does."""
        return wrap(to_local_millis(self.fields) - self._offset_ms, 64)

    def _unparseable_error(self) -> DataError:
        return DataError(f'Unparseable date: "{self.text}" does not match the pattern {self._pattern}')

    def _parse(self, token: Token, fixed_width: bool, start: int) -> int:
        """Parse a token, and return the position after it."""
        letter = token.letter
        if not letter:
            if not self.text.startswith(token.text, start):
                raise self._unparseable_error()
            return start + len(token.text)
        first = start
        if self.text[start : start + 1] <= " ":  # a blank, or the end
            first += len(self.text[start:]) - len(self.text[start:].lstrip(" \t"))
            if first == len(self.text):
                raise self._unparseable_error()
        if letter in "EaG" or (letter in "ML" and token.width >= 3):
            return self._parse_name("M" if letter == "L" else letter, start)  # Java accepts no blanks before names
        if letter == "X":
            if self.text[first] != "Z":
                return self._parse_offset(_OFFSET_PATTERNS["X" * token.width], first)
            self._offset_ms = 0
            return first + 1
        if letter in "zZ":
            return self._parse_zone(start, first)
        return self._parse_number(token, first, start + token.width if fixed_width else len(self.text))

    def _set(self, letter: str, value: int) -> None:
        """Set a field, which becomes the last one. See `calendar_fields`."""
        self.fields.pop(letter, None)
        self.fields[letter] = value

    def _parse_name(self, letter: str, start: int) -> int:
        found = _NAME_PATTERNS[letter].match(self.text, start)
        if found is None:
            raise self._unparseable_error()
        self._set(letter, _NAMES[letter][found[0].lower()])
        return found.end()

    def _parse_number(self, token: Token, start: int, end: int) -> int:
        found = _NUMBER.match(self.text, start, end)
        if found is None or end > len(self.text):
            raise self._unparseable_error()
        value, letter = _java_int(found[1], found[2]), token.letter
        if letter in "yY":
            if token.width <= 2 and len(found[0]) == 2 and not found[1]:
                first_of_century = self._first_year % 100
                self.is_first_year_of_century = value == first_of_century
                value += self._first_year - first_of_century + (100 if value < first_of_century else 0)
        elif letter in "ML":
            value -= 1
        elif letter in "hk":
            value = 0 if value == (12 if letter == "h" else 24) else value
        elif letter == "u" and 1 <= value <= 7:
            value = value % 7 + 1
        self._set(_SAME_FIELDS.get(letter, letter), value)
        return found.end()

    def _parse_zone(self, start: int, first: int) -> int:
        if self.text[first] in "+-":
            return self._parse_offset(_OFFSET_PATTERNS["Z"], first)
        if self.text[start : start + 3].upper() == "GMT":
            if self.text[start + 3 : start + 4] in ("+", "-"):
                return self._parse_offset(_OFFSET_AFTER_GMT, start + 3)
            self._offset_ms = 0
            return start + 3
        zone = parse_zone_name(self.text, first)
        if zone is None:
            raise self._unparseable_error()
        self._offset_ms, end = zone
        return end

    def _parse_offset(self, offset: re.Pattern[str], start: int) -> int:
        found = offset.match(self.text, start)
        if found is None:
            raise self._unparseable_error()
        minutes = int(found[2]) * 60 + int(found[3] or 0)
        self._offset_ms = minutes * (-60_000 if found[1] == "-" else 60_000)
        return found.end()


def _java_int(sign: str, digits: str) -> int:
    """Return the ``int`` that Java parses: a ``long`` loses its upper bits, and a larger number is the maximum."""
    if len(digits) < 10:
        return int(sign + digits)
    digits = digits.lstrip("0")[:20] or "0"
    value = -int(digits) if sign else int(digits)
    if not -_INT64_MAX <= value <= _INT64_MAX:
        return _INT32_MIN if sign else _INT32_MAX
    return wrap(value, 32)
