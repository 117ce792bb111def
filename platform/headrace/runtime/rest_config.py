"""The REST server's part of the worker configuration: listeners, response headers, TLS. This module does no I/O.

The keys are the same as in Kafka Connect's `RestServerConfig`: `listeners`, `admin.listeners` (KIP-495),
`response.http.headers.config` (KIP-577) and `ssl.*`. If `admin.listeners` is not set, all listeners serve the admin
endpoints. If it is empty, no listener serves them. If any key with the prefix `listeners.https.` or
`admin.listeners.https.` is set, those keys replace all unprefixed `ssl.*` keys. Keys and certificates are in key stores
of Java or in PEM format.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from headrace_broker.security.tls_settings import TlsSettings

_DATE_MS_MAX = 1000 * 365 * 24 * 3600 * 1000  # the year of an HTTP date has four digits
_FRAMING_HEADERS = frozenset(("content-length", "transfer-encoding"))
_BASIC_AUTH_CLASS = "org.apache.kafka.connect.rest.basic.auth.extension.BasicAuthSecurityRestExtension"
_LISTENER_PREFIXES = {False: "listeners.https.", True: "admin.listeners.https."}


@dataclass(frozen=True, slots=True)
class Listener:
    """An address on which the server listens. An empty host means all addresses."""

    text: str
    scheme: str
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Listener:
        """Parse `http://host:port` or `https://host:port`. Raises ValueError."""
        scheme, separator, address = text.strip().partition("://")
        host, colon, port = address.rpartition(":")
        if not separator or scheme.lower() not in ("http", "https") or not colon or not port.isdigit():
            raise ValueError(f"{text!r} is not a listener; use http://HOST:PORT, or http://:PORT for all addresses")
        return cls(text.strip(), scheme.lower(), host.strip("[]"), int(port))


def advertised_listener(listeners: Sequence[str], choice: str | None) -> tuple[str, Listener]:
    """Return the scheme and the listener that other workers use.

    The scheme is `choice` (the value of `rest.advertised.listener`). If `choice` is None, the scheme is http if there
    is an http listener. The result contains the first listener with this scheme. If no listener has the scheme, for
    example because a proxy terminates TLS, the result contains the first listener.
    """
    parsed = [Listener.parse(text) for text in listeners]
    schemes = [listener.scheme for listener in parsed]
    scheme = (choice or "").lower() or ("http" if "http" in schemes else "https")
    return scheme, parsed[schemes.index(scheme) if scheme in schemes else 0]


def is_basic_auth_enabled(extensions: Sequence[str]) -> bool:
    """Whether `rest.extension.classes` enables basic authentication. Raises ValueError for any other extension."""
    for name in extensions:
        if name not in (_BASIC_AUTH_CLASS, _BASIC_AUTH_CLASS.rpartition(".")[2]):
            raise ValueError(
                f"{name} is unknown: the only REST extension is {_BASIC_AUTH_CLASS}. Other extensions are Java "
                "classes, which a worker in Python cannot load. They are not ignored, because without an "
                "authentication extension the REST API would be open. Remove the class, and protect the REST API "
                "in another way"
            )
    return bool(extensions)


@dataclass(frozen=True, slots=True)
class OriginPatterns:
    """The origins in `access.control.allow.origin`. None permits every origin."""

    patterns: tuple[re.Pattern[str], ...] | None

    @classmethod
    def parse(cls, text: str) -> OriginPatterns:
        """Parse a list of regular expressions. Raises ValueError."""
        items = split_list(text)
        if "*" in items:
            return cls(None)
        try:
            return cls(tuple(re.compile(item) for item in items))
        except re.error as error:
            raise ValueError(
                f"{text!r}: {error}; set * for every origin, or regular expressions such as "
                r"https://.*\.example\.org (in a properties file, write each backslash twice)"
            ) from None

    def match(self, origins: str) -> bool:
        """Whether an Origin header contains a permitted origin. `origins` is its value: origins separated by spaces."""
        patterns = self.patterns
        return patterns is None or any(each.fullmatch(origin) for origin in origins.split() for each in patterns)


def split_list(text: str) -> list[str]:
    """Return the items of a comma-separated list, without spaces around them."""
    return [item.strip() for item in text.split(",") if item.strip()]


class HeaderAction(Enum):
    """The action of a rule: set or add a header, whose value is literal text or a date (in ms from now)."""

    SET = "set"
    ADD = "add"
    SET_DATE = "setDate"
    ADD_DATE = "addDate"


@dataclass(frozen=True, slots=True)
class HeaderRule:
    """A rule that sets or adds one header in every response."""

    action: HeaderAction
    name: str
    value: str

    @classmethod
    def parse(cls, text: str) -> HeaderRule:
        """Parse `ACTION NAME: VALUE`. Raises ValueError."""
        action, _, header = text.strip().partition(" ")
        name, colon, value = (part.strip() for part in header.partition(":"))
        if action not in {each.value for each in HeaderAction}:
            raise ValueError(f"Invalid header config action: {action!r}. Expected one of set, add, setDate, addDate")
        if not colon or not name or any(letter.isspace() for letter in name) or not (name + value).isascii():
            raise ValueError(f"Invalid header config {text!r}. Expected '[action] [header name]:[header value]'")
        if any(ord(letter) < 32 or ord(letter) == 127 for letter in value):
            raise ValueError(f"Invalid header config {text!r}: control characters are not allowed")
        if action.endswith("Date") and not value.removeprefix("-").isdigit():
            raise ValueError(f"Invalid header config {text!r}: the date must be a number of milliseconds from now")
        if action.endswith("Date") and abs(int(value)) > _DATE_MS_MAX:
            raise ValueError(f"Invalid header config {text!r}: the date is more than a thousand years from now")
        if name.lower() in _FRAMING_HEADERS:
            raise ValueError(f"Invalid header config {text!r}: {name} is set by the server and cannot be configured")
        return cls(HeaderAction(action), name, value)


def header_rules(text: str) -> tuple[HeaderRule, ...]:
    """Parse `response.http.headers.config`. A rule that contains a comma must be quoted. Raises ValueError."""
    try:
        items = next(csv.reader([text], skipinitialspace=True), [])
    except csv.Error as error:
        raise ValueError(f"Invalid header config {text!r}: {error}") from None
    return tuple(HeaderRule.parse(item) for item in items if item.strip())


def tls_settings(properties: Mapping[str, str], *, admin: bool, is_client: bool = False) -> TlsSettings:
    """Return the `ssl.*` settings of the listeners or admin listeners, or of requests to other workers (`is_client`).

    As in Kafka Connect (Jetty), the certificates of the key store are trusted if there is no trust store. Raises
    TlsConfigError. A client needs no key.
    """
    prefix = _LISTENER_PREFIXES[admin]
    settings = TlsSettings.parse(properties, prefix if any(name.startswith(prefix) for name in properties) else "")
    if not is_client:
        settings.require_key()
    if settings.has_trusted_certificates:
        return settings
    if settings.keystore_location.value is None:
        return replace(settings, truststore_certificates=settings.keystore_certificate_chain)
    return replace(
        settings, truststore_location=settings.keystore_location, truststore_password=settings.keystore_password
    )
