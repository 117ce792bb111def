"""The REST server's part of the worker configuration: listeners, response headers, TLS. No I/O.

The keys are the same as in Kafka Connect's `RestServerConfig`: `listeners`; `admin.listeners` (KIP-495: if unset, all
listeners serve the admin endpoints; if empty, no listener does); `response.http.headers.config` (KIP-577); and `ssl.*`.
If any key with the prefix `listeners.https.` or `admin.listeners.https.` is set, those keys replace all unprefixed
`ssl.*` keys. Keys and certificates are in PEM format (KIP-651).
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

_CLIENT_AUTH = ("none", "requested", "required")
_DATE_MS_MAX = 1000 * 365 * 24 * 3600 * 1000  # the year of an HTTP date has four digits
_FRAMING_HEADERS = frozenset(("content-length", "transfer-encoding"))
_LISTENER_PREFIXES = {False: "listeners.https.", True: "admin.listeners.https."}


@dataclass(frozen=True, slots=True)
class Listener:
    """An address on which the server listens; an empty host means all addresses."""

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


class HeaderAction(Enum):
    """The action of a rule: set or add a header, with a literal value or with a date relative to now (ms)."""

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
            raise ValueError(f"Invalid header config {text!r}: the value of a date must be milliseconds from now")
        if action.endswith("Date") and abs(int(value)) > _DATE_MS_MAX:
            raise ValueError(f"Invalid header config {text!r}: the date is more than a thousand years from now")
        if name.lower() in _FRAMING_HEADERS:
            raise ValueError(f"Invalid header config {text!r}: {name} is set by the server and cannot be configured")
        return cls(HeaderAction(action), name, value)


def header_rules(text: str) -> tuple[HeaderRule, ...]:
    """Parse `response.http.headers.config`; rules that contain a comma are quoted. Raises ValueError."""
    try:
        items = next(csv.reader([text], skipinitialspace=True), [])
    except csv.Error as error:
        raise ValueError(f"Invalid header config {text!r}: {error}") from None
    return tuple(HeaderRule.parse(item) for item in items if item.strip())


@dataclass(frozen=True, slots=True)
class Tls:
    """The PEM files or PEM strings of the https listeners."""

    certificate_path: str | None
    certificate: str | None
    key: str | None
    key_password: str | None
    trusted_path: str | None
    trusted: str | None
    client_auth: str

    @classmethod
    def of(cls, properties: Mapping[str, str], *, admin: bool) -> Tls:
        """Return the `ssl.*` settings of the listeners or admin listeners. Raises ValueError that names the key."""
        prefix = _LISTENER_PREFIXES[admin]
        if not any(name.startswith(prefix) for name in properties):
            prefix = ""

        def given(name: str) -> str | None:
            return properties.get(prefix + name, "").strip() or None

        for store in ("ssl.keystore", "ssl.truststore"):
            kind = given(f"{store}.type") or "JKS"
            if kind.upper() != "PEM" and (given(f"{store}.location") or store == "ssl.keystore"):
                raise ValueError(f"{prefix}{store}.type={kind}: https listeners support only PEM; set PEM (KIP-651)")
        path, certificate, key = (
            given(f"ssl.keystore.{part}") for part in ("location", "certificate.chain", "key")
        )  # fmt: skip
        if path is None and (certificate is None or key is None):
            raise ValueError(
                f"{prefix}ssl.keystore.location is missing: set it to a PEM file with the certificate and its key (or "
                f"set {prefix}ssl.keystore.certificate.chain and {prefix}ssl.keystore.key)"
            )
        client_auth = given("ssl.client.auth") or "none"
        if client_auth not in _CLIENT_AUTH:
            raise ValueError(f"{prefix}ssl.client.auth={client_auth}: must be one of {', '.join(_CLIENT_AUTH)}")
        trusted_path, trusted = given("ssl.truststore.location"), given("ssl.truststore.certificates")
        if client_auth != "none" and trusted_path is None and trusted is None:
            raise ValueError(f"{prefix}ssl.client.auth={client_auth} requires {prefix}ssl.truststore.location")
        password = given("ssl.key.password") or given("ssl.keystore.password")
        return cls(path, certificate, key, password, trusted_path, trusted, client_auth)
