"""Java's regular expressions (``java.util.regex``), implemented with the `regex` package.

Connector configurations contain patterns that were written for Java: possessive quantifiers, nested character classes
and their intersections, ``\\Q…\\E``, ``\\z``, POSIX classes, named groups, replacements with ``$1`` and ``${name}``. As
in Java, ``\\d``, ``\\w``, ``\\s`` and ``\\p{Alpha}`` match ASCII characters only.
"""

from __future__ import annotations

import re
from typing import Any

import regex

_QUOTE = re.compile(r"\\Q(.*?)(?:\\E|\Z)", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:([pP])\{(?:Is|java)?(\w+)\}|(.))", re.DOTALL)
_POSIX = {
    "Lower": "a-z",
    "Upper": "A-Z",
    "ASCII": r"\x00-\x7f",
    "Alpha": "a-zA-Z",
    "Digit": "0-9",
    "Alnum": "a-zA-Z0-9",
    "Punct": r"!-/:-@\[-`{-~",
    "Graph": "!-~",
    "Print": " -~",
    "Blank": r" \t",
    "Cntrl": r"\x00-\x1f\x7f",
    "XDigit": "0-9a-fA-F",
    "Space": r" \t-\r",
}
# These constructs work both inside and outside a character class, because classes may be nested.
_SHORTHANDS = {
    "d": "[0-9]",
    "D": "[^0-9]",
    "w": "[a-zA-Z0-9_]",
    "W": "[^a-zA-Z0-9_]",
    "s": r"[ \t-\r]",
    "S": r"[^ \t-\r]",
}
_JAVA_METHODS = {"LowerCase": "Ll", "UpperCase": "Lu", "Alphabetic": "Alphabetic", "LetterOrDigit": "Alnum"}
_REFERENCE = re.compile(r"\\(.)|\$(?:\{([A-Za-z][A-Za-z0-9]*)\}|([0-9]))|(\\|\$)", re.DOTALL)


class JavaPattern:
    """A compiled Java pattern."""

    __slots__ = ("_compiled", "pattern")
    pattern: str

    def __init__(self, pattern: str) -> None:
        """Compile the pattern. Raises ValueError with the reason if the pattern is invalid."""
        self.pattern = pattern
        try:
            self._compiled: Any = regex.compile(_to_regex_syntax(pattern), regex.VERSION1)
        except regex.error as error:
            raise ValueError(f"Invalid regex: {error} in {pattern}") from None

    def matches(self, text: str) -> bool:
        """Whether the pattern matches the whole string."""
        return self._compiled.fullmatch(text) is not None

    def replace_first(self, text: str, replacement: str) -> str:
        """Replace the first match in `text`. In the replacement, groups and backslashes work as in Java.

        Raises ValueError for a replacement that Java rejects.
        """
        found = self._compiled.search(text)
        if found is None:
            return text
        return text[: found.start()] + self._expand(found, replacement) + text[found.end() :]

    def _expand(self, found: Any, replacement: str) -> str:
        result, position = "", 0
        while position < len(replacement):
            reference = _REFERENCE.search(replacement, position)
            if reference is None:
                return result + replacement[position:]
            result += replacement[position : reference.start()]
            position = reference.end()
            if reference[1] is not None:
                result += reference[1]
            elif reference[4] is not None:
                raise ValueError(f"Illegal group reference in the replacement {replacement}")
            elif reference[2] is not None:
                if reference[2] not in self._compiled.groupindex:
                    raise ValueError(f"No group with name {{{reference[2]}}}")
                result += found[reference[2]] or ""
            else:
                number, position = self._group_number(replacement, int(reference[3]), position)
                result += found[number] or ""
        return result

    def _group_number(self, replacement: str, number: int, position: int) -> tuple[int, int]:
        """Return a group number and the index after it.

        `number` is the first digit of the group number, and `position` is the index after this digit. As in Java, the
        next digit is part of the group number only if the pattern has a group with the longer number.
        """
        if number > self._compiled.groups:
            raise ValueError(f"No group {number}")
        while position < len(replacement) and "0" <= replacement[position] <= "9":
            longer = number * 10 + int(replacement[position])
            if longer > self._compiled.groups:
                break
            number, position = longer, position + 1
        return number, position

    def check_replacement(self, replacement: str) -> None:
        """Validate a replacement. Raises ValueError if it references a group that the pattern does not have."""
        groups = dict.fromkeys(self._compiled.groupindex, "")
        self._expand({**groups, **dict.fromkeys(range(self._compiled.groups + 1), "")}, replacement)


def _to_regex_syntax(pattern: str) -> str:
    pattern = _QUOTE.sub(lambda quoted: re.escape(quoted[1]), pattern)
    result, position, depth = "", 0, 0
    while position < len(pattern):
        char = pattern[position]
        if char == "\\":
            escape = _ESCAPE.match(pattern, position)
            if escape is None:
                return result + pattern[position:]
            result += _translate_escape(escape, depth > 0)
            position = escape.end()
            continue
        if char == "[":
            depth += 1
        elif char == "]" and depth:
            depth -= 1
        result += char
        position += 1
    return result


def _translate_escape(escape: re.Match[str], in_class: bool) -> str:
    if escape[1] is None:
        if escape[3] in _SHORTHANDS:
            return _SHORTHANDS[escape[3]]
        if in_class:
            return escape[0]
        return {"z": r"\Z", "Z": r"(?=\n?\Z)", "R": r"(?:\r\n|[\n-\r\x85\u2028\u2029])"}.get(escape[3], escape[0])
    name = escape[2]
    negated = escape[1] == "P"
    if name in _POSIX:
        if in_class and not negated:
            return _POSIX[name]
        return f"[{'^' if negated else ''}{_POSIX[name]}]"
    return f"\\{escape[1]}{{{_JAVA_METHODS.get(name, name)}}}"


def check_pattern(pattern: str) -> None:
    """Check that a configuration value is a valid pattern. Raises ValueError with the reason if it is not."""
    JavaPattern(pattern)
