"""Java's SimpleDateFormat with the English locale and in UTC: patterns such as ``yyyy-MM-dd'T'HH:mm:ss.SSSXXX``.

Dates are numbers of milliseconds since the epoch, over the whole range of Java's ``long``. The calendar is that of
Java's ``GregorianCalendar``: Julian before 1582-10-15, and with years before Christ. Weeks are those of the United
States: they start on Sunday, and the week with 1 January is week 1.

Parsing is as lenient as Java's: fields may overflow (month 13 is January of the next year), blanks before a number and
text after the last field are skipped, and ``S`` always means a number of milliseconds, however many digits it has.
This package does no I/O.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

from headrace.data.java_dates.formatting import compile_formatter
from headrace.data.java_dates.parsing import compile_parser
from headrace.data.java_dates.patterns import pattern_warnings, tokenize

__all__ = ["SimpleDateFormat", "pattern_warnings"]


class SimpleDateFormat:
    """A compiled date pattern. A two-digit year means a year from 80 years before `today` to 20 years after `today`."""

    __slots__ = ("format", "parse", "parse_usual_list", "pattern")
    pattern: str
    format: Callable[[int], str]
    """Formats milliseconds since the epoch."""
    parse: Callable[[str], int]
    """Parses a string to milliseconds since the epoch. Raises DataError.

    As in Java, a time that exceeds 64 bits overflows.
    """
    parse_usual_list: Callable[[list[str]], list[int]] | None
    """Parses a list of strings faster than `parse`, with the same results. Raises an exception if a string does not
    have the usual form, in which every field has as many digits as the pattern has letters. None if the pattern is not
    supported."""

    def __init__(self, pattern: str, today: dt.date = dt.date(2030, 1, 1)) -> None:
        """Compile the pattern. Raises ValueError if Java rejects it."""
        self.pattern = pattern
        tokens = tokenize(pattern)
        self.format = compile_formatter(tokens)
        century_start = dt.date(today.year - 80, today.month, min(today.day, 28))
        self.parse, self.parse_usual_list = compile_parser(pattern, tokens, century_start)
