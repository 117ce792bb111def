"""Creates key stores for https listeners of workers, with certificates that are valid for 127.0.0.1."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

PASSWORD = "changeit"
_FILES = ("key.p12", "trust.p12", "authority.pem", "client.pem", "server.pem", "client.p12")


@dataclass(frozen=True, slots=True)
class Certificates:
    """The files of a certificate authority, a server and a client. The authority has signed both certificates."""

    key_store: Path
    """PKCS#12, with the server's key and certificate."""
    trust_store: Path
    """PKCS#12, with the authority's certificate."""
    authority: Path
    """PEM, with the authority's certificate."""
    client: Path
    """PEM, with the client's key and certificate."""
    server: Path
    """PEM, with the server's key and certificate."""
    client_store: Path
    """PKCS#12, with the client's key and certificate."""

    def settings(self, prefix: str = "listeners.https.") -> dict[str, str]:
        """Return the worker's `ssl.*` settings, with `prefix` in front of each configuration key."""
        return {
            f"{prefix}ssl.keystore.type": "PKCS12",
            f"{prefix}ssl.keystore.location": str(self.key_store),
            f"{prefix}ssl.keystore.password": PASSWORD,
            f"{prefix}ssl.truststore.type": "PKCS12",
            f"{prefix}ssl.truststore.location": str(self.trust_store),
            f"{prefix}ssl.truststore.password": PASSWORD,
        }

    def client_context(self, *, identify: bool) -> ssl.SSLContext:
        """Return the TLS context of a client that trusts the authority.

        If `identify` is True, the client sends its certificate.
        """
        context = ssl.create_default_context(cafile=self.authority)
        if identify:
            context.load_cert_chain(self.client)
        return context


def create_certificates(directory: Path) -> Certificates:
    """Create an authority, a server certificate and a client certificate, and write their files to `directory`."""
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _certificate("authority", authority_key, "authority", authority_key)
    server_key, client_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    server = _certificate("server", server_key, "authority", authority_key)
    client = _certificate("client", client_key, "authority", authority_key)
    encryption = BestAvailableEncryption(PASSWORD.encode())
    found = Certificates(*(directory / name for name in _FILES))
    found.key_store.write_bytes(
        pkcs12.serialize_key_and_certificates(b"worker", server_key, server, [authority], encryption)
    )
    found.trust_store.write_bytes(pkcs12.serialize_key_and_certificates(None, None, None, [authority], encryption))
    found.client_store.write_bytes(
        pkcs12.serialize_key_and_certificates(b"client", client_key, client, [authority], encryption)
    )
    found.authority.write_bytes(authority.public_bytes(Encoding.PEM))
    for file, key, certificate in ((found.client, client_key, client), (found.server, server_key, server)):
        key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        file.write_bytes(key_pem + certificate.public_bytes(Encoding.PEM))
    return found


def write_jks_files(certificates: Certificates, directory: Path) -> tuple[Path, Path]:
    """Write the authority's certificate, and the client's key and certificate, to two JKS files with keytool."""
    trust_store, key_store = directory / "trust.jks", directory / "client.jks"
    trusted = ["-importcert", "-file", str(certificates.authority), "-keystore", str(trust_store)]
    _keytool(*trusted, "-storetype", "JKS", "-storepass", PASSWORD)
    source = ["-srckeystore", str(certificates.client_store), "-srcstoretype", "PKCS12", "-srcstorepass", PASSWORD]
    target = ["-destkeystore", str(key_store), "-deststoretype", "JKS", "-deststorepass", PASSWORD]
    _keytool("-importkeystore", *source, *target)
    return trust_store, key_store


def _keytool(*arguments: str) -> None:
    subprocess.run(["keytool", "-noprompt", *arguments], check=True, capture_output=True)


def _certificate(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: str, issuer_key: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    is_authority = key is issuer_key
    names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    return builder.sign(issuer_key, hashes.SHA256())
