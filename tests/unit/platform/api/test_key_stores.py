"""Tests of key stores.

The JKS files were written by keytool of JDK 17, and the PKCS#12 files by the library `cryptography`.
"""

from __future__ import annotations

import base64
import datetime
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, pkcs12
from cryptography.x509.oid import NameOID

from headrace.api import key_stores
from headrace.api.key_stores import KeyStoreError
from headrace.runtime.rest_config import Tls
from headrace.runtime.tls import client_context, server_context

# keytool -genkeypair -storetype JKS -storepass changeit -keypass secret2 -keyalg EC -dname CN=headrace
JKS = base64.b64decode("""
/u3+7QAAAAIAAAABAAAAAQABdwAAAaIJaS/aAAAAfzB9MA4GCisGAQQBKgIRAQEFAARrfsOPwzPshFbuA7fXUFUjDPMzmymNrYp49zDcTxWbOx
g1+LkqLZVo+s3N/xi+XMiqPfODrlpaBfUkHW22Lk1/x1WK37XXEqzbFQi6hRL8Jsfak0QXyUfgrHorXYHSiFGUAA+g32WhGJTtam4AAAABAAVY
LjUwOQAAAVUwggFRMIH3oAMCAQICCQCnrky+SZ2l2zAKBggqhkjOPQQDAjATMREwDwYDVQQDEwhoZWFkcmFjZTAgFw0yNjExMjMxNzE2NThaGA
8yMTI2MTAzMDE3MTY1OFowEzERMA8GA1UEAxMIaGVhZHJhY2UwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAARmZ+iQ5e8STJex5qAdkcrt5+2y
jpyV0b9/KX4JHdncBZgP4qsWTGL6iBJnAWj9B/GWWCOc3CbxUR8fGZiTBGMFozIwMDAdBgNVHQ4EFgQUI8VoNI3W3xmy724AGJe4tjFGvBIwDw
YDVR0RBAgwBocEfwAAATAKBggqhkjOPQQDAgNJADBGAiEA/5NCM+ePMU0KVvTJcX8mdxqN6Ar3D0DCOuw4T+N2J10CIQDu4MsIN8oGLqhODuZ4
5yaxge+5DmBSSAub7R2rGxt/yRxcy4ktTffpF3hGP1fzz/WeJYdt
""")
# keytool -importcert -storetype JKS -storepass changeit: the certificate of that key
JKS_TRUST = base64.b64decode("""
/u3+7QAAAAIAAAABAAAAAgACY2EAAAGiCWkxewAFWC41MDkAAAFVMIIBUTCB96ADAgECAgkAp65MvkmdpdswCgYIKoZIzj0EAwIwEzERMA8GA1
UEAxMIaGVhZHJhY2UwIBcNMjYxMTIzMTcxNjU4WhgPMjEyNjEwMzAxNzE2NThaMBMxETAPBgNVBAMTCGhlYWRyYWNlMFkwEwYHKoZIzj0CAQYI
KoZIzj0DAQcDQgAEZmfokOXvEkyXseagHZHK7eftso6cldG/fyl+CR3Z3AWYD+KrFkxi+ogSZwFo/QfxllgjnNwm8VEfHxmYkwRjBaMyMDAwHQ
YDVR0OBBYEFCPFaDSN1t8Zsu9uABiXuLYxRrwSMA8GA1UdEQQIMAaHBH8AAAEwCgYIKoZIzj0EAwIDSQAwRgIhAP+TQjPnjzFNClb0yXF/Jnca
jegK9w9AwjrsOE/jdiddAiEA7uDLCDfKBi6oTg7meOcmsYHvuQ5gUkgLm+0dqxsbf8l27UmLCFaEUBpx4kBqRVF58avN/w==
""")


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


def settings(tmp_path: Path, **more: str) -> dict[str, str]:
    (tmp_path / "k.jks").write_bytes(JKS)
    (tmp_path / "t.jks").write_bytes(JKS_TRUST)
    given = {
        "ssl.keystore.location": str(tmp_path / "k.jks"),
        "ssl.keystore.password": "changeit",
        "ssl.key.password": "secret2",
        **{key.replace("_", "."): value for key, value in more.items()},
    }
    return {f"listeners.https.{key}": value for key, value in given.items()}


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> str:
    """Complete a TLS handshake between the two contexts in memory, and return the cipher suite.

    Raise ssl.SSLError if the handshake fails.
    """
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    cipher = sides[0].cipher()
    assert cipher is not None
    return cipher[0]


def test_tls_handshake_between_workers_with_the_same_jks_file_succeeds(tmp_path: Path) -> None:
    given = settings(tmp_path, ssl_client_auth="required")
    context = client_context(Tls.of(given, admin=False, is_client=True))
    assert handshake(server_context(Tls.of(given, admin=False)), context).startswith("TLS_AES")


def test_server_rejects_client_without_certificate_if_client_authentication_is_required(tmp_path: Path) -> None:
    given = settings(tmp_path, ssl_client_auth="required", ssl_enabled_protocols="TLSv1.2")
    trust = {
        "ssl.truststore.location": str(tmp_path / "t.jks"),
        "ssl.truststore.password": "changeit",
    }
    client = client_context(Tls.of(trust, admin=False, is_client=True))
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        handshake(server_context(Tls.of(given, admin=False)), client)


def test_tls_connection_uses_the_configured_protocols_and_cipher_suites(tmp_path: Path) -> None:
    suites = "TLS_AES_128_GCM_SHA256,TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,TLS_RSA_WITH_AES_128_CBC_SHA"
    given = settings(tmp_path, ssl_enabled_protocols="TLSv1.2", ssl_cipher_suites=suites)
    tls = Tls.of(given, admin=False)
    assert handshake(server_context(tls), client_context(tls)) == "ECDHE-ECDSA-CHACHA20-POLY1305"
