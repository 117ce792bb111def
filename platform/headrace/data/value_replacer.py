"""Replaces values in text, for example resolved secrets with the variables that they come from."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from urllib.parse import quote, quote_plus

_STARTS_WORD = r"(?:(?<=\b.)|(?<=%[0-9A-Fa-f]{2}.)|(?<=\\[a-z].)|(?<=\\x[0-9a-f]{2}.)|(?<=\\u[0-9a-f]{4}.))"
"""Matches after a character that is the first one of a word.

An escape sequence, for example `\\n` in a string of `repr` or `%3D` in a URL, is not part of the word after it.
"""


class ValueReplacer:
    """Replaces each value with its replacement, in one pass: a replacement is not searched for further values.

    If two values begin at the same position, the longer one is replaced. A value that begins or ends with a letter,
    digit or underscore is not replaced inside a longer word, so that `postgres` does not match in `jdbc:postgresql`.
    Values are also found if they are escaped as in `repr`, JSON or a URL.
    """

    def __init__(self, replacements: Mapping[str, str]) -> None:
        """`replacements` maps each text to search for, which must not be empty, to its replacement."""
        self._replacements = {
            form: replacement for value, replacement in replacements.items() for form in _escaped_forms(value)
        }
        self._replacements |= replacements  # a value has precedence over the escaped form of another value
        forms = sorted(self._replacements, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(_whole_words, forms)) or r"(?!)")

    def replace(self, text: str) -> str:
        """Replace all values that the text contains, and return the new text."""
        return self._pattern.sub(lambda found: self._replacements[found[0]], text)


def _whole_words(value: str) -> str:
    """Return a regular expression that matches the value, but no part of a longer word.

    The expression begins with the value's first character and not with an assertion, so that `re` searches faster.
    """
    start = _STARTS_WORD if _is_word(value[0]) else ""
    end = r"\b" if _is_word(value[-1]) else ""
    return re.escape(value[0]) + start + re.escape(value[1:]) + end


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _escaped_forms(value: str) -> set[str]:
    """Return `value` and the forms in which error texts may contain it."""
    if value.isalnum() and value.isascii():
        return {value}
    encoded = value.encode("utf-8", "surrogatepass")
    return {
        *(value, repr(value)[1:-1], json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]),
        *(quote(encoded, safe=""), quote(encoded), quote_plus(encoded)),
    }
