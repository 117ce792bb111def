"""Patterns of SimpleDateFormat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_LETTERS = "GyYMLwWDdFEuaHkKhmsSzZX"


class Token(NamedTuple):
    """A part of a pattern: a letter that is repeated `width` times, or literal text, for which `letter` is empty."""

    letter: str
    width: int
    text: str


def tokenize(pattern: str) -> list[Token]:
    """Split a pattern into tokens. Raises ValueError with Java's message if SimpleDateFormat rejects the pattern."""
    tokens: list[Token] = []
    position = 0
    while position < len(pattern):
        char = pattern[position]
        if char == "'":
            text, position = _parse_quoted(pattern, position)
            tokens.append(Token("", 0, text))
        elif char.isascii() and char.isalpha():
            if char not in _LETTERS:
                raise ValueError(f"Illegal pattern character '{char}'")
            end = position
            while end < len(pattern) and pattern[end] == char:
                end += 1
            if char == "X" and end - position > 3:
                raise ValueError(f"invalid ISO 8601 format: length={end - position}")
            tokens.append(Token(char, end - position, ""))
            position = end
        else:
            tokens.append(Token("", 0, char))
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


def pattern_warnings(patterns: Mapping[str, str]) -> dict[str, str]:
    """Return the keys whose valid patterns probably differ from what their authors mean, and the differences."""
    found = {key: _pattern_warning(pattern) for key, pattern in patterns.items()}
    return {key: text for key, text in found.items() if text is not None}


def _pattern_warning(pattern: str) -> str | None:
    tokens = tokenize(pattern)
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
