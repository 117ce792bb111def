"""What a worker's file says about its REST server: listeners, response headers, TLS. Pure.

The same keys as Apache's `RestServerConfig`: `listeners`, `admin.listeners` (KIP-495: none given = the admin endpoints
are on all listeners, empty = nowhere), `response.http.headers.config` (KIP-577), and `ssl.*`, of which the form
`listeners.https.ssl.*` or `admin.listeners.https.ssl.*` goes first, wholly, where one of its keys is given. Key and
certificates are PEM (KIP-651).
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

_CLIENT_AUTH = ("none", "requested", "required")
_DATE_MS_MAX = 1000 * 365 * 24 * 3600 * 1000  # the form of a date in HTTP has four digits for the year
_FRAMING_HEADERS = frozenset(("content-length", "transfer-encoding"))
_LISTENER_PREFIXES = {False: "listeners.https.", True: "admin.listeners.https."}


@dataclass(frozen=True, slots=True)
class Listener:
    """An address to serve; an empty host = all addresses."""

    text: str
    scheme: str
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Listener:
        """`http://host:port` or `https://host:port`. Raises ValueError."""
        scheme, separator, address = text.strip().partition("://")
        host, colon, port = address.rpartition(":")
        if not separator or scheme.lower() not in ("http", "https") or not colon or not port.isdigit():
            raise ValueError(f"{text!r} is no listener; write http://HOST:PORT, without HOST for all addresses")
        return cls(text.strip(), scheme.lower(), host.strip("[]"), int(port))


class HeaderAction(Enum):
    """What a rule does: replace the header or add one more, with the value as it is or as a time from now (ms)."""

    SET = "set"
    ADD = "add"
    SET_DATE = "setDate"
    ADD_DATE = "addDate"


@dataclass(frozen=True, slots=True)
class HeaderRule:
    """One header of every answer."""

    action: HeaderAction
    name: str
    value: str

    @classmethod
    def parse(cls, text: str) -> HeaderRule:
        """`ACTION NAME: VALUE`. Raises ValueError."""
        action, _, header = text.strip().partition(" ")
        name, colon, value = (part.strip() for part in header.partition(":"))
        if action not in {each.value for each in HeaderAction}:
            raise ValueError(f"Invalid header config action: {action!r}. Expected one of set, add, setDate, addDate")
        if not colon or not name or any(letter.isspace() for letter in name) or not (name + value).isascii():
            raise ValueError(f"Invalid header config {text!r}. Expected '[action] [header name]:[header value]'")
        if any(ord(letter) < 32 or ord(letter) == 127 for letter in value):
            raise ValueError(f"Invalid header config {text!r}: control characters are not allowed")
        if action.endswith("Date") and not value.removeprefix("-").isdigit():
            raise ValueError(f"Invalid header config {text!r}: the value of a date is a time from now in milliseconds")
        if action.endswith("Date") and abs(int(value)) > _DATE_MS_MAX:
            raise ValueError(f"Invalid header config {text!r}: the date is more than a thousand years from now")
        if name.lower() in _FRAMING_HEADERS:
            raise ValueError(f"Invalid header config {text!r}: {name} tells where an answer ends, and cannot be chosen")
        return cls(HeaderAction(action), name, value)


def header_rules(text: str) -> tuple[HeaderRule, ...]:
    """The rules of `response.http.headers.config`; one whose value holds a comma is quoted. Raises ValueError."""
    try:
        items = next(csv.reader([text], skipinitialspace=True), [])
    except csv.Error as error:
        raise ValueError(f"Invalid header config {text!r}: {error}") from None
    return tuple(HeaderRule.parse(item) for item in items if item.strip())


@dataclass(frozen=True, slots=True)
class Tls:
    """The PEM material of https listeners, each a path or the text itself."""

    certificate_path: str | None
    certificate: str | None
    key: str | None
    key_password: str | None
    trusted_path: str | None
    trusted: str | None
    client_auth: str

    @classmethod
    def of(cls, properties: Mapping[str, str], *, admin: bool) -> Tls:
        """The `ssl.*` keys of the listeners, or of the admin listeners. Raises ValueError, which names the key."""
        prefix = _LISTENER_PREFIXES[admin]
        if not any(name.startswith(prefix) for name in properties):
            prefix = ""

        def given(name: str) -> str | None:
            return properties.get(prefix + name, "").strip() or None

        for store in ("ssl.keystore", "ssl.truststore"):
            kind = given(f"{store}.type") or "JKS"
            if kind.upper() != "PEM" and (given(f"{store}.location") or store == "ssl.keystore"):
                raise ValueError(f"{prefix}{store}.type={kind}: https listeners take PEM only; set it to PEM (KIP-651)")
        path, certificate, key = (
            given(f"ssl.keystore.{part}") for part in ("location", "certificate.chain", "key")
        )  # fmt: skip
        if path is None and (certificate is None or key is None):
            raise ValueError(
                f"{prefix}ssl.keystore.location is missing: a PEM file with the certificate and its key (or "
                f"{prefix}ssl.keystore.certificate.chain and {prefix}ssl.keystore.key)"
            )
        client_auth = given("ssl.client.auth") or "none"
        if client_auth not in _CLIENT_AUTH:
            raise ValueError(f"{prefix}ssl.client.auth={client_auth}: must be one of {', '.join(_CLIENT_AUTH)}")
        trusted_path, trusted = given("ssl.truststore.location"), given("ssl.truststore.certificates")
        if client_auth != "none" and trusted_path is None and trusted is None:
            raise ValueError(f"{prefix}ssl.client.auth={client_auth} needs {prefix}ssl.truststore.location")
        password = given("ssl.key.password") or given("ssl.keystore.password")
        return cls(path, certificate, key, password, trusted_path, trusted, client_auth)
