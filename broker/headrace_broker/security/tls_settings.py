"""The `ssl.*` settings of a TLS listener or client, with Kafka's keys and defaults. This module does no I/O.

All keys may have a prefix, for example `listeners.https.`. The content of a key store determines its type, whatever
`ssl.keystore.type` is. Inline PEM may contain escaped line breaks (`\\n`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_CLIENT_AUTH = ("none", "requested", "required")
_STORE_TYPES = ("JKS", "PKCS12", "PEM")
_PROTOCOLS = ("TLSv1.2", "TLSv1.3")
_TLS13_SUITES = frozenset(
    f"TLS_{name}"
    for name in (
        *("AES_128_GCM_SHA256", "AES_256_GCM_SHA384", "CHACHA20_POLY1305_SHA256"),
        *("AES_128_CCM_SHA256", "AES_128_CCM_8_SHA256"),
    )
)


class TlsConfigError(ValueError):
    """The value of `key`, or a file that the value names, is missing or invalid. `key` includes the prefix."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Setting:
    """A configuration key with its prefix, and its value. The value is None if the key is not set, or empty."""

    key: str
    value: str | None


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The parsed settings. Files are not read yet."""

    keystore_location: Setting
    keystore_password: Setting
    keystore_key: Setting
    keystore_certificate_chain: Setting
    key_password: Setting
    """The value is the password of the key store if `ssl.key.password` is not set."""
    truststore_location: Setting
    truststore_password: Setting
    truststore_certificates: Setting
    client_auth: str
    """What a server requires of its clients: none, requested or required."""
    protocols: tuple[str, ...]
    """The enabled protocols for which `ssl.cipher.suites` has a suite, in ascending order."""
    cipher_suites: Setting
    tls12_suites: tuple[str, ...]
    """The suites of `ssl.cipher.suites` for TLSv1.2. Python's ssl module cannot restrict those of TLSv1.3."""
    checks_host_name: bool

    @classmethod
    def parse(cls, properties: Mapping[str, str], *prefixes: str) -> TlsSettings:
        """Return the settings whose keys begin with a prefix; by default, those without a prefix.

        A key with an earlier prefix overrides the same key with a later prefix: the keys of a broker's listener have
        the prefixes `listener.name.internal.` and "". Raises TlsConfigError.
        """
        prefixes = prefixes or ("",)

        def find(name: str, default: str | None = None) -> Setting:
            key = next((prefix + name for prefix in prefixes if prefix + name in properties), prefixes[0] + name)
            return Setting(key, properties[key].strip() or None if key in properties else default)

        for name in ("ssl.keystore.type", "ssl.truststore.type"):
            _one_of(find(name), _STORE_TYPES, _STORE_TYPES[0])
        keystore_password, key_password = find("ssl.keystore.password"), find("ssl.key.password")
        suites = find("ssl.cipher.suites")
        settings = cls(
            keystore_location=find("ssl.keystore.location"),
            keystore_password=keystore_password,
            keystore_key=find("ssl.keystore.key"),
            keystore_certificate_chain=find("ssl.keystore.certificate.chain"),
            key_password=Setting(key_password.key, key_password.value or keystore_password.value),
            truststore_location=find("ssl.truststore.location"),
            truststore_password=find("ssl.truststore.password"),
            truststore_certificates=find("ssl.truststore.certificates"),
            client_auth=_one_of(find("ssl.client.auth"), _CLIENT_AUTH, _CLIENT_AUTH[0]).lower(),
            protocols=_protocols(find("ssl.enabled.protocols"), suites),
            cipher_suites=suites,
            tls12_suites=tuple(name for name in _split(suites.value) if name not in _TLS13_SUITES),
            checks_host_name=find("ssl.endpoint.identification.algorithm", "https").value is not None,
        )
        settings._check_inline_key()
        return settings

    @property
    def has_key(self) -> bool:
        """Whether a key store, or a private key and its certificates, are set."""
        return self.keystore_location.value is not None or self.keystore_key.value is not None

    @property
    def has_trusted_certificates(self) -> bool:
        """Whether a trust store or trusted certificates are set."""
        return self.truststore_location.value is not None or self.truststore_certificates.value is not None

    def require_key(self) -> None:
        """Check that a server has a key. Raises TlsConfigError."""
        if not self.has_key:
            location, chain, key = self.keystore_location, self.keystore_certificate_chain, self.keystore_key
            raise TlsConfigError(
                location.key,
                "is missing; set it to a key store, or to a PEM file with the certificate and its key "
                f"(or set {chain.key} and {key.key})",
            )

    def _check_inline_key(self) -> None:
        key, chain = self.keystore_key, self.keystore_certificate_chain
        for given, missing in ((key, chain), (chain, key)):
            if self.keystore_location.value is None and given.value is not None and missing.value is None:
                raise TlsConfigError(missing.key, f"is missing; it must be set together with {given.key}")


def _protocols(enabled: Setting, suites: Setting) -> tuple[str, ...]:
    names = _split(enabled.value) if enabled.value is not None else list(_PROTOCOLS)
    for name in names:
        if name not in _PROTOCOLS:
            raise TlsConfigError(enabled.key, f"{name} is not supported; set {', '.join(_PROTOCOLS)}")
    if not names:
        raise TlsConfigError(enabled.key, f"must contain a protocol; set {', '.join(_PROTOCOLS)}")
    if suites.value is None:
        return tuple(sorted(names))
    usable = {"TLSv1.3" if name in _TLS13_SUITES else "TLSv1.2" for name in _split(suites.value)}
    if usable.isdisjoint(names):
        raise TlsConfigError(suites.key, f"contains no suite for a protocol of {enabled.key} ({', '.join(names)})")
    return tuple(sorted(usable.intersection(names)))


def _one_of(setting: Setting, permitted: tuple[str, ...], default: str) -> str:
    value = setting.value or default
    if value.lower() not in [each.lower() for each in permitted]:
        raise TlsConfigError(setting.key, f"must be one of {', '.join(permitted)}, not {value}")
    return value


def _split(text: str | None) -> list[str]:
    return [item.strip() for item in (text or "").split(",") if item.strip()]
