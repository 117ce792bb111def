r"""Parses JAAS files, the authentication settings of Java applications, and finds their path in the environment.

    KafkaConnect {
        org.apache.kafka.connect.rest.basic.auth.extension.PropertyFileLoginModule required
        file="/etc/kafka/connect.password";
    };

The syntax is that of the JDK's `sun.security.provider.ConfigFile`. This module does no I/O.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

CONFIGURATION_PROPERTY = "java.security.auth.login.config"
_OPTION_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "KAFKA_OPTS")
"""The environment variables with Java's options; later ones override earlier ones."""
_FLAGS = ("required", "requisite", "sufficient", "optional")
_TOKEN = re.compile(
    r"""\s+ | //[^\n]* | /\*.*?\*/
    | (?P<quoted>"(?:[^"\\\n]|\\.)*")
    | (?P<symbol>[{};=])
    | (?P<word>(?:(?!//|/\*)[^\s{};="])+)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_VARIABLE = re.compile(r"\$\{([^}]*)\}")


@dataclass(frozen=True, slots=True)
class LoginModule:
    """A login module in a section of a JAAS file."""

    class_name: str
    flag: str
    options: Mapping[str, str]


def system_properties(environment: Mapping[str, str]) -> dict[str, str]:
    """Return Java's system properties: defaults, and properties from `-Dname=value` in environment variables."""
    properties = {"user.home": environment.get("HOME", ""), "/": "/", "file.separator": "/"}
    for variable in _OPTION_VARIABLES:
        text = environment.get(variable, "")
        try:
            options = shlex.split(text)
        except ValueError:  # unbalanced quotes
            options = text.split()
        for option in options:
            if option.startswith("-D"):
                name, _, value = option[2:].partition("=")
                properties[name] = value
    return properties


def configuration_file(properties: Mapping[str, str]) -> str | None:
    """Return the path of the JAAS file that the system properties name, or None if they name no file."""
    value = properties.get(CONFIGURATION_PROPERTY, "").removeprefix("=")  # `==FILE` overrides the JDK's own settings
    if value.startswith("file:"):
        value = unquote(urlsplit(value).path)
    return posixpath.normpath(value) if value else None


def parse(text: str, properties: Mapping[str, str], path: str) -> dict[str, list[LoginModule]]:
    """Return the sections of a JAAS file. In options, `${name}` is replaced with the value in `properties`.

    Raises ValueError with the path, the line and the token that is expected there.
    """
    parser = _Parser(text, properties, path)
    sections: dict[str, list[LoginModule]] = {}
    while parser.has_more:
        name = parser.word("the name of a section")
        parser.symbol("{")
        modules = []
        while not parser.skip("}"):
            modules.append(parser.module())
        parser.symbol(";")
        sections[name] = modules
    return sections


class _Parser:
    """Reads the tokens of a JAAS file one after another."""

    def __init__(self, text: str, properties: Mapping[str, str], path: str) -> None:
        self._text = text
        self._properties = properties
        self._path = path
        self._tokens: list[tuple[str, str, int]] = []
        self._next = 0
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise self._error("expected a word, a quoted text or one of { } ; =", position)
            if match.lastgroup is not None:
                self._tokens.append((match.lastgroup, match.group(), position))
            position = match.end()

    @property
    def has_more(self) -> bool:
        return self._next < len(self._tokens)

    def word(self, expected: str) -> str:
        kind, token, position = self._peek(expected)
        if kind == "symbol":
            raise self._error(f"expected {expected}", position)
        self._next += 1
        return token if kind == "word" else self._unquote(token)

    def symbol(self, symbol: str) -> None:
        _, _, position = self._peek(symbol)
        if not self.skip(symbol):
            raise self._error(f"expected {symbol}", position)

    def skip(self, symbol: str) -> bool:
        found = self._peek(symbol)[:2] == ("symbol", symbol)
        self._next += found
        return found

    def module(self) -> LoginModule:
        class_name = self.word("the class of a login module")
        expected = f"one of {', '.join(_FLAGS)}"
        position = self._peek(expected)[2]
        flag = self.word(expected)
        if flag.lower() not in _FLAGS:
            raise self._error(f"expected {expected}", position)
        options = {}
        while not self.skip(";"):
            name = self.word("an option or ;")
            self.symbol("=")
            options[name] = self._expand(self.word("the value of an option"))
        return LoginModule(class_name, flag.lower(), options)

    def _peek(self, expected: str) -> tuple[str, str, int]:
        if not self.has_more:
            raise self._error(f"expected {expected}", len(self._text))
        return self._tokens[self._next]

    def _unquote(self, token: str) -> str:
        return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), token[1:-1], flags=re.DOTALL)

    def _expand(self, value: str) -> str:
        def replace(match: re.Match[str]) -> str:
            try:
                return self._properties[match[1]]
            except KeyError:
                raise ValueError(
                    f"{self._path}: the system property {match[1]} is not set; replace {match[0]} with its value"
                ) from None

        return _VARIABLE.sub(replace, value)

    def _error(self, problem: str, position: int) -> ValueError:
        line = self._text.count("\n", 0, position) + 1
        found = self._text[position : position + 20].split("\n")[0] or "the end of the file"
        return ValueError(f"{self._path}, line {line}: {problem}, found {found!r}")
