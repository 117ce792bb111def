"""Creates the TLS contexts of https listeners, and of requests to other workers, from key stores or PEM.

As in Kafka Connect (Jetty), the certificates of the key store are trusted if there is no trust store.
"""

from __future__ import annotations

import ssl
import tempfile

from headrace.api import key_stores
from headrace.runtime.rest_config import Tls

_VERIFY = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_PEM = b"-----BEGIN"


def server_context(tls: Tls) -> ssl.SSLContext:
    """Create a server's context. Raises OSError, ssl.SSLError or ValueError for unusable files or PEM strings."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _configure(context, tls)
    context.verify_mode = _VERIFY[tls.client_auth]
    return context


def client_context(tls: Tls) -> ssl.SSLContext:
    """Create the context for requests to other workers with the same settings. Raises as `server_context` does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = tls.checks_host_name
    _configure(context, tls)
    if not _has_trusted(tls):
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return context


def _configure(context: ssl.SSLContext, tls: Tls) -> None:
    versions = sorted(_VERSIONS[protocol] for protocol in tls.protocols)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    if suites := [_openssl_name(suite) for suite in tls.cipher_suites if "_WITH_" in suite]:
        context.set_ciphers(":".join(suites))
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as in Java, each certificate of the store is trusted
    if _has_trusted(tls):
        context.load_verify_locations(cadata="\n".join(_trusted(tls)))
    if tls.certificate_path is not None:
        content = _read(tls.certificate_path)
        if _PEM in content:
            context.load_cert_chain(tls.certificate_path, password=_password(tls))
            return
        store = _open_store(tls.certificate_path, content, tls.store_password, tls.key_password)
        if store.key is None:
            raise ValueError(f"{tls.certificate_path}: the key store has no private key")
        _load(context, tls, [store.key, *store.chain])
    elif tls.key is not None and tls.certificate is not None:
        _load(context, tls, [_restore_line_breaks(tls.key), _restore_line_breaks(tls.certificate)])


def _load(context: ssl.SSLContext, tls: Tls, pem: list[str]) -> None:
    # The ssl module loads certificates only from files, so write a temporary one (mode 600).
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write("\n".join(pem) + "\n")
        file.flush()
        context.load_cert_chain(file.name, password=_password(tls))


def _has_trusted(tls: Tls) -> bool:
    return any((tls.trusted_path, tls.trusted, tls.certificate_path, tls.certificate))


def _trusted(tls: Tls) -> list[str]:
    """Return the trusted certificates as PEM strings."""
    if tls.trusted is not None:
        return [_restore_line_breaks(tls.trusted)]
    path = tls.trusted_path or tls.certificate_path
    if path is None:
        return [_restore_line_breaks(tls.certificate)]
    content = _read(path)
    if _PEM in content:
        return _certificates(content.decode("utf-8", "replace"))
    password = tls.trusted_password if tls.trusted_path else tls.store_password
    store = _open_store(path, content, password, None, with_key=False)
    return list(store.trusted)


def _certificates(pem: str) -> list[str]:
    """Return the certificates of a PEM text, which may contain a private key, too."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    return [begin + part.partition(end)[0] + end for part in pem.split(begin)[1:]]


def _open_store(
    path: str, content: bytes, password: str | None, key_password: str | None, *, with_key: bool = True
) -> key_stores.KeyStore:
    try:
        return key_stores.read(content, password, key_password, with_key=with_key)
    except key_stores.KeyStoreError as error:
        raise ValueError(f"{path}: {error}") from None


def _read(path: str) -> bytes:
    with open(path, "rb") as file:  # errors of open() name the file, errors of the ssl module do not
        return file.read()


def _password(tls: Tls) -> str:
    """Return the key password, or "" if it is not set. With None, OpenSSL would ask for a password on the terminal."""
    return tls.key_password or ""


def _restore_line_breaks(pem: str | None) -> str:
    """Restore the line breaks of a PEM string that a properties file contains on one line."""
    return (pem or "").replace("\\n", "\n")


def _openssl_name(suite: str) -> str:
    """Return OpenSSL's name of a cipher suite: ECDHE-RSA-AES128-GCM-SHA256 is TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256."""
    exchange, _, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    name = cipher if exchange == "RSA" else f"{exchange}_{cipher}"
    name = name.replace("AES_", "AES").replace("_CBC_", "_").replace("_", "-")
    return name.replace("POLY1305-SHA256", "POLY1305")
