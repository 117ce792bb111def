"""Reads key stores: PEM files, JKS files, and PKCS#12 files, the default format of Java since version 9.

The content of a file determines its type, whatever type is configured. PKCS#12 files need the package cryptography,
which the extra `headrace[tls]` installs. The private keys of JKS files are encrypted with the JDK's `KeyProtector`.
This module does no I/O.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import struct
from base64 import encodebytes
from dataclasses import dataclass

_JKS_MAGIC = b"\xfe\xed\xfe\xed"
_JKS_SALT = b"Mighty Aphrodite"
_PRIVATE_KEY, _TRUSTED_CERTIFICATE = 1, 2
_SHA1_SIZE = 20
_PEM_CERTIFICATE = re.compile(r"-----BEGIN ((?:X509 )?CERTIFICATE)-----.*?-----END \1-----", re.DOTALL)
_PEM_KEY = re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?-----END \1-----", re.DOTALL)


class KeyStoreError(ValueError):
    """A key store is corrupt, or its password is wrong."""


class KeyPasswordError(KeyStoreError):
    """The password of the private key in a key store is wrong."""


@dataclass(frozen=True, slots=True)
class KeyStore:
    """The content of a key store, as PEM strings."""

    key: str | None
    """The private key. In a PEM file, it may be encrypted. The keys of other files are decrypted."""
    chain: tuple[str, ...]
    """The certificates of the private key; the first one is its own."""
    trusted: tuple[str, ...]


def read(content: bytes, password: str | None, key_password: str | None, *, with_key: bool = True) -> KeyStore:
    """Parse a key store. If it has several private keys, return the first one. Raises KeyStoreError.

    With `with_key=False`, private keys in a JKS file are not decrypted, so `key_password` is not needed.
    """
    if content.startswith(_JKS_MAGIC):
        return _read_jks(content, password, key_password, with_key)
    if b"-----BEGIN " in content:
        return read_pem(content.decode("utf-8", "replace"))
    return _read_pkcs12(content, password)


def read_pem(text: str) -> KeyStore:
    """Return the first private key and all certificates of a PEM text. Ignore any other text."""
    key = _PEM_KEY.search(text)
    certificates = tuple(found[0] for found in _PEM_CERTIFICATE.finditer(text))
    return KeyStore(None if key is None else key[0], certificates, certificates)


def _read_pkcs12(content: bytes, password: str | None) -> KeyStore:
    try:
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12
    except ImportError:
        raise KeyStoreError(
            "a PKCS#12 key store cannot be read, because the Python package cryptography is not installed: "
            "pip install 'headrace[tls]', or use a PEM file"
        ) from None
    try:
        store = pkcs12.load_pkcs12(content, None if password is None else password.encode())
    except ValueError as error:
        raise KeyStoreError(f"the file is not a key store, or its password is wrong: {error}") from None
    key = None
    if store.key is not None:
        key = store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    others = tuple(each.certificate.public_bytes(Encoding.PEM).decode() for each in store.additional_certs)
    own = () if store.cert is None else (store.cert.certificate.public_bytes(Encoding.PEM).decode(),)
    return KeyStore(key, own + others if own else (), own + others)


def _read_jks(content: bytes, password: str | None, key_password: str | None, with_key: bool) -> KeyStore:
    body, digest = content[:-_SHA1_SIZE], content[-_SHA1_SIZE:]
    if password is not None and not hmac.compare_digest(_sha1(_utf16(password), _JKS_SALT, body), digest):
        raise KeyStoreError("the key store is corrupt, or its password is wrong")
    key: str | None = None
    chain: tuple[str, ...] = ()
    trusted: list[str] = []
    try:
        reader = _Reader(body)
        reader.take(4)
        version, count = reader.number(">I"), reader.number(">I")
        for _ in range(count):
            tag = reader.number(">I")
            reader.take(reader.number(">H"))  # alias
            reader.take(8)  # date
            if tag == _PRIVATE_KEY:
                protected = reader.take(reader.number(">I"))
                certificates = tuple(reader.certificate(version) for _ in range(reader.number(">I")))
                trusted += certificates[:1]
                if key is None and with_key:
                    key, chain = _pem("PRIVATE KEY", _decrypt_key(protected, key_password or "")), certificates
            elif tag == _TRUSTED_CERTIFICATE:
                trusted.append(reader.certificate(version))
            else:
                raise KeyStoreError(f"the key store has an entry of the unknown type {tag}")
    except struct.error:
        raise KeyStoreError("the key store is corrupt") from None
    return KeyStore(key, chain, tuple(trusted))


class _Reader:
    """A position in the bytes of a JKS file."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._position = 0

    def take(self, size: int) -> bytes:
        start, self._position = self._position, self._position + size
        if self._position > len(self._content):
            raise struct.error("truncated")
        return self._content[start : self._position]

    def number(self, layout: str) -> int:
        value: int = struct.unpack(layout, self.take(struct.calcsize(layout)))[0]
        return value

    def certificate(self, version: int) -> str:
        if version == 2:
            self.take(self.number(">H"))  # the certificate's type
        return _pem("CERTIFICATE", self.take(self.number(">I")))


def _decrypt_key(protected: bytes, password: str) -> bytes:
    """Return the PKCS#8 key in an EncryptedPrivateKeyInfo. Raises KeyPasswordError."""
    _, outer = _der_value(protected)
    algorithm_size, _ = _der_value(outer)
    _, octets = _der_value(outer[algorithm_size:])
    salt, encrypted, check = octets[:_SHA1_SIZE], octets[_SHA1_SIZE:-_SHA1_SIZE], octets[-_SHA1_SIZE:]
    secret, stream = _utf16(password), b""
    block = salt
    while len(stream) < len(encrypted):
        block = _sha1(secret, block)
        stream += block
    key = bytes(a ^ b for a, b in zip(encrypted, stream, strict=False))
    if not hmac.compare_digest(_sha1(secret, key), check):
        raise KeyPasswordError("the password of the private key is wrong")
    return key


def _der_value(data: bytes) -> tuple[int, bytes]:
    """Return the total size of the first DER element, and its value."""
    if len(data) < 2:
        raise struct.error("truncated")
    size, start = data[1], 2
    if size & 0x80:
        start += size & 0x7F
        size = int.from_bytes(data[2:start], "big")
    return start + size, data[start : start + size]


def _pem(label: str, der: bytes) -> str:
    return f"-----BEGIN {label}-----\n{encodebytes(der).decode()}-----END {label}-----\n"


def _sha1(*parts: bytes) -> bytes:
    return hashlib.sha1(b"".join(parts), usedforsecurity=False).digest()


def _utf16(password: str) -> bytes:
    return password.encode("utf-16-be")
