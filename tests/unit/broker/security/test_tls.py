"""Tests of TLS settings and contexts."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from headrace_broker.security.tls import client_context, server_context
from headrace_broker.security.tls_settings import TlsConfigError, TlsSettings
from support.certificates import PASSWORD, Certificates, create_certificates
from support.jks import JKS, JKS_TRUST

PREFIX = "listener.name.external."


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return create_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def jks(tmp_path: Path) -> dict[str, str]:
    """Settings with a key store and a trust store. The key store contains the only certificate of the trust store."""
    (tmp_path / "k.jks").write_bytes(JKS)
    (tmp_path / "t.jks").write_bytes(JKS_TRUST)
    return {
        "ssl.keystore.location": str(tmp_path / "k.jks"),
        "ssl.keystore.password": "changeit",
        "ssl.key.password": "secret2",
        "ssl.truststore.location": str(tmp_path / "t.jks"),
        "ssl.truststore.password": "changeit",
    }


def parse(properties: Mapping[str, str], **more: str) -> TlsSettings:
    return TlsSettings.parse({**properties, **{key.replace("_", "."): value for key, value in more.items()}})


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str = "127.0.0.1") -> str:
    """Complete a TLS handshake between the two contexts in memory, and return the cipher suite.

    Raise ssl.SSLError if the handshake fails.
    """
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
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


def failure(call: Callable[[], object]) -> tuple[str, str]:
    """Return the key and the reason of the error that the call raises."""
    with pytest.raises(TlsConfigError) as caught:
        call()
    assert str(caught.value) == f"{caught.value.key}: {caught.value.reason}"
    return caught.value.key, caught.value.reason


# -- settings


def test_keys_with_an_earlier_prefix_override_the_same_keys_with_a_later_prefix() -> None:
    properties = {
        "ssl.keystore.location": "/all.p12",
        f"{PREFIX}ssl.keystore.location": "/own.p12",
        "ssl.truststore.location": "/trust.p12",
        "ssl.endpoint.identification.algorithm": "https",
        f"{PREFIX}ssl.endpoint.identification.algorithm": "",
    }
    settings = TlsSettings.parse(properties, PREFIX, "")
    assert (settings.keystore_location.key, settings.keystore_location.value) == (
        f"{PREFIX}ssl.keystore.location",
        "/own.p12",
    )
    assert settings.truststore_location.key == "ssl.truststore.location"
    assert not settings.checks_host_name
    assert TlsSettings.parse(properties).keystore_location.value == "/all.p12"


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("ssl.client.auth", "maybe", "must be one of none, requested, required, not maybe"),
        ("ssl.keystore.type", "BKS", "must be one of JKS, PKCS12, PEM, not BKS"),
        ("ssl.truststore.type", "BKS", "must be one of JKS, PKCS12, PEM, not BKS"),
        ("ssl.enabled.protocols", "TLSv1.3,SSLv3", "SSLv3 is not supported; set TLSv1.2, TLSv1.3"),
        ("ssl.enabled.protocols", ",", "must contain a protocol; set TLSv1.2, TLSv1.3"),
    ],
)
def test_error_for_an_invalid_setting_names_the_key_with_its_prefix(key: str, value: str, reason: str) -> None:
    assert failure(lambda: TlsSettings.parse({PREFIX + key: value}, PREFIX)) == (PREFIX + key, reason)


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ("ssl.keystore.key", "ssl.keystore.certificate.chain"),
        ("ssl.keystore.certificate.chain", "ssl.keystore.key"),
    ],
)
def test_private_key_and_its_certificates_must_be_set_together(given: str, missing: str) -> None:
    assert failure(lambda: parse({given: "-----BEGIN"})) == (
        missing,
        f"is missing; it must be set together with {given}",
    )


def test_server_without_a_key_is_rejected_and_the_error_names_the_key_store() -> None:
    key, reason = failure(lambda: server_context(TlsSettings.parse({}, PREFIX)))
    assert key == f"{PREFIX}ssl.keystore.location"
    assert reason.startswith("is missing; set it to a key store")


@pytest.mark.parametrize(
    ("suites", "protocols", "expected"),
    [
        ("", "TLSv1.3,TLSv1.2", ("TLSv1.2", "TLSv1.3")),
        ("TLS_AES_128_GCM_SHA256", "TLSv1.2,TLSv1.3", ("TLSv1.3",)),
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLSv1.2,TLSv1.3", ("TLSv1.2",)),
        ("TLS_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLSv1.3", ("TLSv1.3",)),
    ],
)
def test_protocol_without_a_configured_cipher_suite_is_disabled(
    suites: str, protocols: str, expected: tuple[str, ...]
) -> None:
    assert parse({"ssl.cipher.suites": suites, "ssl.enabled.protocols": protocols}).protocols == expected


def test_cipher_suites_without_an_enabled_protocol_are_rejected() -> None:
    properties = {"ssl.cipher.suites": "TLS_AES_128_GCM_SHA256", "ssl.enabled.protocols": "TLSv1.2"}
    assert failure(lambda: parse(properties))[0] == "ssl.cipher.suites"


# -- contexts


def test_tls_handshake_with_the_same_jks_files_on_both_sides_succeeds(jks: dict[str, str]) -> None:
    settings = parse(jks, ssl_client_auth="required")
    assert handshake(server_context(settings), client_context(settings)).startswith("TLS_AES")


def test_server_rejects_client_without_certificate_if_client_authentication_is_required(jks: dict[str, str]) -> None:
    server = server_context(parse(jks, ssl_client_auth="required", ssl_enabled_protocols="TLSv1.2"))
    client = client_context(parse({key: jks[key] for key in jks if "truststore" in key}))
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        handshake(server, client)


def test_tls_connection_uses_the_configured_protocols_and_cipher_suites(jks: dict[str, str]) -> None:
    suites = "TLS_AES_128_GCM_SHA256,TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,TLS_RSA_WITH_AES_128_CBC_SHA"
    settings = parse(jks, ssl_enabled_protocols="TLSv1.2", ssl_cipher_suites=suites)
    assert handshake(server_context(settings), client_context(settings)) == "ECDHE-ECDSA-CHACHA20-POLY1305"


def test_client_checks_the_host_name_unless_the_identification_algorithm_is_empty(jks: dict[str, str]) -> None:
    server = server_context(parse(jks))
    with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
        handshake(server, client_context(parse(jks)), "127.0.0.2")
    handshake(server, client_context(parse(jks, ssl_endpoint_identification_algorithm="")), "127.0.0.2")


def test_client_trusts_the_system_certificates_only_if_no_certificates_are_set(
    jks: dict[str, str], monkeypatch: pytest.MonkeyPatch, certificates: Certificates
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    assert "authority" in str(client_context(parse({})).get_ca_certs())
    assert "authority" not in str(client_context(parse(jks)).get_ca_certs())


def test_all_certificates_of_a_pem_trust_store_and_of_the_inline_certificates_are_trusted(
    certificates: Certificates, tmp_path: Path
) -> None:
    """The file contains comments with any characters, and a private key."""
    file = tmp_path / "trust.pem"
    file.write_text("# F\u0151tan\u00fas\n" + certificates.authority.read_text() + certificates.server.read_text())
    inline = certificates.client.read_text().replace("\n", "\\n")
    settings = parse({"ssl.truststore.location": str(file), "ssl.truststore.certificates": "\u00e1 " + inline})
    names = [found["subject"][0][0][1] for found in client_context(settings).get_ca_certs()]  # type: ignore[index]
    certificate_count = client_context(settings).cert_store_stats()["x509"]
    assert (names, certificate_count) == (["authority"], 3)


def test_inline_key_and_certificates_with_escaped_line_breaks_are_used(certificates: Certificates) -> None:
    key, _, chain = certificates.server.read_text().partition("-----BEGIN CERTIFICATE-----")
    settings = parse(
        {
            "ssl.keystore.key": key.replace("\n", "\\n"),
            "ssl.keystore.certificate.chain": ("-----BEGIN CERTIFICATE-----" + chain).replace("\n", "\\n"),
            "ssl.truststore.location": str(certificates.trust_store),
            "ssl.truststore.password": PASSWORD,
        }
    )
    assert handshake(server_context(settings), client_context(settings)).startswith("TLS_AES")


def encrypted(certificates: Certificates, file: Path) -> Path:
    """Write the server's certificate, and its private key encrypted with PASSWORD, to a PEM file."""
    pem = certificates.server.read_bytes()
    protection = BestAvailableEncryption(PASSWORD.encode())
    key = load_pem_private_key(pem, None).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection)
    file.write_bytes(pem[pem.index(b"-----BEGIN CERTIFICATE") :] + key)
    return file


@pytest.mark.parametrize("key", ["ssl.key.password", "ssl.keystore.password"])
def test_encrypted_private_key_of_a_pem_file_is_decrypted(certificates: Certificates, tmp_path: Path, key: str) -> None:
    location = str(encrypted(certificates, tmp_path / "k.pem"))
    server_context(parse({"ssl.keystore.location": location, key: PASSWORD}))


@pytest.mark.parametrize(("password", "state"), [("", "missing"), ("wrong", "wrong")])
def test_error_for_an_undecryptable_private_key_names_the_key_password(
    certificates: Certificates, tmp_path: Path, password: str, state: str
) -> None:
    location = str(encrypted(certificates, tmp_path / "k.pem"))
    settings = parse({"ssl.keystore.location": location, "ssl.key.password": password})
    expected = f"the password of the private key in ssl.keystore.location is {state}"
    assert failure(lambda: server_context(settings)) == ("ssl.key.password", expected)


def test_error_for_a_wrong_key_password_of_a_jks_file_names_the_key_password(jks: dict[str, str]) -> None:
    key, reason = failure(lambda: server_context(parse(jks, ssl_key_password="wrong")))
    assert (key, reason.endswith("the password of the private key is wrong")) == ("ssl.key.password", True)


@pytest.mark.parametrize("store", ["keystore", "truststore"])
def test_error_for_a_wrong_password_of_a_store_names_the_store(jks: dict[str, str], store: str) -> None:
    key, reason = failure(lambda: server_context(parse(jks | {f"ssl.{store}.password": "wrong"})))
    assert key == f"ssl.{store}.location"
    assert reason == f"{jks[key]}: the key store is corrupt, or its password is wrong"


CORRUPT = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    ("store", "content", "reason"),
    [
        ("keystore", CORRUPT, "there is no private key"),
        ("keystore", KEY, "there is no certificate of the private key"),
        ("keystore", KEY + CORRUPT, "the private key or a certificate is invalid"),
        ("truststore", KEY, "there is no certificate to trust"),
        ("truststore", CORRUPT, "a certificate is invalid"),
        ("truststore", "text", "the file is not a key store, or its password is wrong"),
    ],
)
def test_error_for_an_unusable_file_names_the_key_and_the_file(
    tmp_path: Path, store: str, content: str, reason: str
) -> None:
    file = tmp_path / "store"
    file.write_text(content)
    settings = parse({f"ssl.{store}.location": str(file)})
    key, found = failure(lambda: client_context(settings))
    assert key == f"ssl.{store}.location"
    assert found.startswith(f"{file}: {reason}")


@pytest.mark.parametrize("store", ["keystore", "truststore"])
def test_error_for_a_missing_file_names_the_key_and_the_file(store: str) -> None:
    settings = parse({f"ssl.{store}.location": "/none.pem"})
    expected = f"ssl.{store}.location", "cannot read /none.pem: No such file or directory"
    assert failure(lambda: client_context(settings)) == expected


def test_error_for_a_private_key_of_another_certificate_contains_no_key(certificates: Certificates) -> None:
    key = certificates.client.read_text().partition("-----BEGIN CERTIFICATE-----")[0]
    chain = certificates.server.read_text()
    settings = parse({"ssl.keystore.key": key, "ssl.keystore.certificate.chain": chain})
    expected = "the private key does not match the first certificate"
    assert failure(lambda: server_context(settings)) == ("ssl.keystore.key", expected)
