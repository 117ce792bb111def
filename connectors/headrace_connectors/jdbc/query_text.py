"""Finds the end of a query in its SQL text, so that clauses can be appended. This module does no I/O."""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"""
      (?P<ignored> \s+ | --[^\n]* | /\*.*?\*/ )
    | (?P<end> ; )
    | (?P<text>
        [eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*" | `[^`]*`
      | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$
      | .
      )
    """,
    re.VERBOSE | re.DOTALL,
)


def single_statement(sql: str) -> str:
    """Return a query without the semicolons, comments and white space that follow it.

    Raises ValueError if the text contains more than one statement.
    """
    end = 0
    has_ended = False
    for match in _TOKEN.finditer(sql):
        if match["end"] is not None:
            has_ended = has_ended or end > 0
        elif match["text"] is not None:
            if has_ended:
                raise ValueError("must be one statement: remove the text after the first semicolon")
            end = match.end()
    return sql[:end]
