"""Parses Spark DDL for a table's columns, such as `id BIGINT, name STRING, tags ARRAY<STRING>`.

The parser supports the types that a Delta table can have without a reader feature. With a parser in
Python, the connector's configuration can be validated without a JVM. This module does no I/O.
"""

from __future__ import annotations

import re

from headrace_connectors.lakehouse.column_types import ColumnType, SchemaError, TableColumn, check_names

_KINDS = {
    "tinyint": "int8",
    "byte": "int8",
    "smallint": "int16",
    "short": "int16",
    "int": "int32",
    "integer": "int32",
    "bigint": "int64",
    "long": "int64",
    "float": "float32",
    "real": "float32",
    "double": "float64",
    "boolean": "boolean",
    "string": "string",
    "binary": "bytes",
    "date": "date",
    "timestamp": "timestamp",
}
_TOKEN = re.compile(
    r"\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(?P<word>\w+)|(?P<mark>[<>(),:]))"
)


def parse_ddl(text: str) -> tuple[TableColumn, ...]:
    """Return the columns that a DDL string declares. Raises SchemaError with the position of a syntax error."""
    parser = _Parser(text)
    columns = parser.columns(end=None)
    check_names((column.name for column in columns), "schema")
    return columns


class _Parser:
    """A recursive-descent parser for one DDL string."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._tokenize(text))
        self._next = 0

    def columns(self, end: str | None) -> tuple[TableColumn, ...]:
        columns = [self._column()]
        while self._accept(","):
            columns.append(self._column())
        if end is None and self._next < len(self._tokens):
            raise self._error("expected a comma between columns")
        return tuple(columns)

    def _column(self) -> TableColumn:
        name = self._name()
        self._accept(":")
        type_ = self._type()
        optional = True
        if self._accept_word("not"):
            if not self._accept_word("null"):
                raise self._error("expected NULL after NOT")
            optional = False
        if self._accept_word("comment"):
            self._next += 1
        return TableColumn(name, type_, optional)

    def _type(self) -> ColumnType:
        word = self._name().lower()
        if word in _KINDS:
            return ColumnType(_KINDS[word])
        if word in ("decimal", "dec", "numeric"):
            return self._decimal()
        if word == "array":
            self._expect("<")
            element = self._type()
            self._expect(">")
            return ColumnType("array", element=element)
        if word == "map":
            self._expect("<")
            key = self._type()
            self._expect(",")
            value = self._type()
            self._expect(">")
            return ColumnType("map", key=key, element=value)
        if word == "struct":
            self._expect("<")
            fields = self.columns(end=">")
            self._expect(">")
            return ColumnType("struct", fields=fields)
        self._next -= 1
        raise self._error(
            f"expected a type (one of {', '.join(sorted(_KINDS))}, decimal(p,s), array<>, map<>, struct<>)"
        )

    def _decimal(self) -> ColumnType:
        precision, scale = 10, 0
        if self._accept("("):
            precision = self._number()
            scale = self._number() if self._accept(",") else 0
            self._expect(")")
        if not (1 <= precision <= 38 and 0 <= scale <= precision):
            raise SchemaError(
                f"decimal({precision},{scale}): the precision must be 1 to 38, and the scale 0 to the precision"
            )
        return ColumnType("decimal", precision=precision, scale=scale)

    def _number(self) -> int:
        token = self._name()
        if not token.isdigit():
            self._next -= 1
            raise self._error("expected the precision or scale of the decimal")
        return int(token)

    def _name(self) -> str:
        if self._next >= len(self._tokens) or self._tokens[self._next][0] not in ("word", "quoted"):
            raise self._error("expected a name, a type or a number")
        kind, token, _ = self._tokens[self._next]
        self._next += 1
        return token[1:-1].replace("``", "`") if kind == "quoted" else token

    def _accept(self, mark: str) -> bool:
        found = self._next < len(self._tokens) and self._tokens[self._next][:2] == ("mark", mark)
        self._next += found
        return found

    def _accept_word(self, word: str) -> bool:
        found = self._next < len(self._tokens) and self._tokens[self._next][1].lower() == word
        self._next += found
        return found

    def _expect(self, mark: str) -> None:
        if not self._accept(mark):
            raise self._error(f"expected {mark!r}")

    def _error(self, problem: str) -> SchemaError:
        at_end = self._next >= len(self._tokens)
        position = len(self._text) if at_end else self._tokens[self._next][2]
        return SchemaError(f"{problem} at {self._text[position : position + 20]!r} (position {position})")

    @staticmethod
    def _tokenize(text: str) -> list[tuple[str, str, int]]:
        tokens, position = [], 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None or match.lastgroup is None:
                raise SchemaError(f"unexpected {text[position : position + 10].strip()!r} at position {position}")
            tokens.append((match.lastgroup, match.group(match.lastgroup), match.start(match.lastgroup)))
            position = match.end()
        return tokens
