"""Parsing of lists of dates in the usual form, in which every field has as many digits as the pattern has letters.

A text such as ``2026-01-31 10:20:30`` is split into the parts ``2026-01-31 10:`` and ``20:30``, which occur in many
texts. Each part is parsed only once, and the milliseconds of the parts are added. This gives the results of the parser
for single texts, because no field of a part depends on a field of another part.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial, reduce
from itertools import groupby
from operator import add, itemgetter

from headrace.data.errors import DataError
from headrace.data.java_dates.patterns import Token

_REMEMBERED_MAX = 50_000  # the texts of a part whose milliseconds are remembered
_DATE_LETTERS = frozenset("yMd")
_GROUPS = {letter: group for group, letters in enumerate(("yMdH", "ms", "SXZ")) for letter in letters}
_FIELDS = {
    ("y", 4): ("(?:1[6-9]|[2-9][0-9])[0-9]{2}", "1970"),
    ("M", 2): ("[0-9]{2}", "01"),
    ("d", 2): ("[0-9]{2}", "01"),
    ("H", 2): ("[0-9]{2}", "00"),
    ("m", 2): ("[0-9]{2}", "00"),
    ("s", 2): ("[0-9]{2}", "00"),
    ("S", 3): ("[0-9]{3}", "000"),
    ("X", 1): ("(?:Z|[+-][0-9]{2})", "Z"),
    ("X", 2): ("(?:Z|[+-][0-9]{4})", "Z"),
    ("X", 3): ("(?:Z|[+-][0-9]{2}:[0-9]{2})", "Z"),
    ("Z", 1): ("[+-][0-9]{4}", "+0000"),
}
"""The regular expression of a field's usual form, and its text at 1970-01-01T00:00:00.000Z, by letter and width."""


class _Part(dict[str, int]):
    """The milliseconds that a part of a date adds, by its text. A text is parsed when it is first looked up.

    The texts before and after the part are those of 1970-01-01T00:00:00.000Z.
    """

    def __init__(self, tokens: list[Token], before: str, after: str, parse: Callable[[str], int | None]) -> None:
        super().__init__()
        self._has_usual_form = re.compile("".join(map(_expression, tokens))).fullmatch
        self._before = before
        self._after = after
        self._parse = parse

    def __missing__(self, text: str) -> int:
        millis = self._parse(self._before + text + self._after) if self._has_usual_form(text) else None
        if millis is None:
            raise DataError(f"Part {text!r} of a date does not have the usual form")
        if len(self) >= _REMEMBERED_MAX:
            self.clear()
        self[text] = millis
        return millis


def compile_list_parser(
    tokens: list[Token], parse: Callable[[str], int | None]
) -> Callable[[list[str]], list[int]] | None:
    """Return a function that parses a list of texts. It raises an exception if a text does not have the usual form.

    `parse` parses one text with a regular expression, and returns None if it does not match. Returns None if the
    pattern has a field without a usual form, or if the fields of the date are not in the same part.
    """
    parts = _split(tokens)
    if parts is None:
        return None
    zeros = ["".join(map(_zero, part)) for part in parts]
    columns: list[tuple[Callable[[str], str], Callable[[str], int]]] = []
    start = 0
    for index, part in enumerate(parts):
        stop = start + len(zeros[index])
        millis = _Part(part, "".join(zeros[:index]), "".join(zeros[index + 1 :]), parse)
        columns.append((itemgetter(slice(start, stop if index + 1 < len(parts) else None)), millis.__getitem__))
        start = stop

    def parse_list(texts: list[str]) -> list[int]:
        return list(reduce(partial(map, add), [map(millis, map(cut, texts)) for cut, millis in columns]))

    return parse_list


def _split(tokens: list[Token]) -> list[list[Token]] | None:
    """Split the tokens into parts. Literal text belongs to the part of the field before it."""
    groups: list[int] = []
    for token in tokens:
        if not token.letter:
            groups.append(groups[-1] if groups else -1)
        elif (token.letter, token.width) in _FIELDS:
            groups.append(_GROUPS[token.letter])
        else:
            return None
    if any(token.letter in ("X", "Z") for token in tokens[:-1]):
        return None  # its width varies, so the parts after it would not have fixed positions
    parts = [[token for _, token in part] for _, part in groupby(zip(groups, tokens, strict=True), key=itemgetter(0))]
    date_parts = [part for part in parts if not _DATE_LETTERS.isdisjoint(token.letter for token in part)]
    return parts if len(date_parts) <= 1 else None


def _expression(token: Token) -> str:
    return _FIELDS[token.letter, token.width][0] if token.letter else re.escape(token.text)


def _zero(token: Token) -> str:
    return _FIELDS[token.letter, token.width][1] if token.letter else token.text
