"""Tests of key stores. The PKCS#12 files are written by the library `cryptography`."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, pkcs12
from cryptography.x509.oid import NameOID

from headrace_broker.security import key_stores
from headrace_broker.security.key_stores import KeyStoreError
from support.jks import JKS, JKS_TRUST


def test_private_key_is_decrypted_and_its_certificate_is_read_from_a_jks_file(tmp_path: Path) -> None:
    store = key_stores.read(JKS, "changeit", "secret2")
    assert store.key is not None
    assert store.trusted == store.chain
    file = tmp_path / "both.pem"
    file.write_text(store.key + store.chain[0])
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(file)  # checks that key and certificate belong together


def test_trusted_certificate_is_read_from_a_jks_trust_store() -> None:
    trusted = key_stores.read(JKS_TRUST, "changeit", None)
    assert trusted.key is None
    assert trusted.trusted == key_stores.read(JKS, "changeit", "secret2").chain


def test_trusted_certificates_are_read_without_the_password_of_a_private_key_in_the_same_file() -> None:
    store = key_stores.read(JKS, "changeit", None, with_key=False)
    assert store.key is None
    assert store.trusted == key_stores.read(JKS, "changeit", "secret2").trusted


@pytest.mark.parametrize(
    ("content", "password", "key_password", "reason"),
    [
        (JKS, "wrong", "secret2", "corrupt, or its password is wrong"),
        (JKS, "changeit", "changeit", "the password of the private key is wrong"),
        (JKS[:-1] + b"x", "changeit", "secret2", "corrupt, or its password is wrong"),
        (JKS[:100], None, "secret2", "corrupt"),
        (b"", None, None, "not a key store, or its password is wrong"),
        (b"text", None, None, "not a key store, or its password is wrong"),
    ],
)
def test_corrupt_key_store_or_wrong_password_is_reported(
    content: bytes, password: str | None, key_password: str | None, reason: str
) -> None:
    with pytest.raises(KeyStoreError, match=reason):
        key_stores.read(content, password, key_password)


def certified_key(name: str) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    return key, builder.sign(key, hashes.SHA256())


def test_private_key_certificate_chain_and_trusted_certificates_are_read_from_a_pkcs12_file() -> None:
    key, own = certified_key("own")
    _, other = certified_key("other")
    pem = [each.public_bytes(Encoding.PEM).decode() for each in (own, other)]
    content = pkcs12.serialize_key_and_certificates(b"w", key, own, [other], BestAvailableEncryption(b"changeit"))
    store = key_stores.read(content, "changeit", None)
    assert store.key is not None
    assert store.key.startswith("-----BEGIN PRIVATE KEY-----")
    assert store.chain == (pem[0], pem[1])
    assert set(store.trusted) == set(pem)
    trust = pkcs12.serialize_key_and_certificates(None, None, None, [other], BestAvailableEncryption(b"changeit"))
    assert key_stores.read(trust, "changeit", None) == key_stores.KeyStore(None, (), (pem[1],))
    with pytest.raises(KeyStoreError, match="password is wrong"):
        key_stores.read(trust, "other", None)


def test_private_key_and_all_certificates_are_read_from_a_pem_text_with_comments() -> None:
    store = key_stores.read(JKS, "changeit", "secret2")
    text = f"# F\u0151tan\u00fas\u00edtv\u00e1ny\n{store.chain[0]}\n{store.key}\nOther:\n{store.chain[0]}".encode()
    key = (store.key or "").strip()
    certificate = store.chain[0].strip()
    assert key_stores.read(text, None, None) == key_stores.KeyStore(key, (certificate,) * 2, (certificate,) * 2)
    old = text.replace(b" CERTIFICATE-", b" X509 CERTIFICATE-")  # the older name, which OpenSSL also accepts
    assert len(key_stores.read(old, None, None).chain) == 2


@pytest.mark.parametrize("kind", ["PRIVATE KEY", "EC PRIVATE KEY", "RSA PRIVATE KEY", "ENCRYPTED PRIVATE KEY"])
def test_private_key_of_a_pem_text_may_have_any_format(kind: str) -> None:
    key = f"-----BEGIN {kind}-----\nAAAA\n-----END {kind}-----"
    text = f"-----BEGIN EC PARAMETERS-----\nBBBB\n-----END EC PARAMETERS-----\n{key}\n"
    assert key_stores.read(text.encode(), None, None) == key_stores.KeyStore(key, (), ())
