"""Creates the TLS contexts of listeners and clients from their settings. Reads key stores: PEM, JKS and PKCS#12 files.

As in Java, each certificate of a trust store is trusted, even if it is not self-signed. If no certificates to trust are
set, those of the system are trusted.
"""

from __future__ import annotations

import ssl
import tempfile

from headrace_broker.security import key_stores
from headrace_broker.security.key_stores import KeyStore
from headrace_broker.security.tls_settings import Setting, TlsConfigError, TlsSettings

_VERIFY = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """Create the context of a listener. Raises TlsConfigError that names the key at fault."""
    settings.require_key()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _configure(context, settings)
    context.verify_mode = _VERIFY[settings.client_auth]
    if context.verify_mode != ssl.CERT_NONE and not settings.has_trusted_certificates:
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    return context


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """Create the context of a client. Raises TlsConfigError that names the key at fault."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.checks_host_name
    _configure(context, settings)
    if not settings.has_trusted_certificates:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return context


def _configure(context: ssl.SSLContext, settings: TlsSettings) -> None:
    context.minimum_version = _VERSIONS[settings.protocols[0]]
    context.maximum_version = _VERSIONS[settings.protocols[-1]]
    if settings.tls12_suites:
        try:
            context.set_ciphers(":".join(_openssl_name(suite) for suite in settings.tls12_suites))
        except ssl.SSLError:
            raise TlsConfigError(settings.cipher_suites.key, "OpenSSL supports none of the suites") from None
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    _load_trusted_certificates(context, settings)
    _load_key(context, settings)


def _load_trusted_certificates(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Trust the certificates of the trust store, and also those of `ssl.truststore.certificates`."""
    location, inline = settings.truststore_location, settings.truststore_certificates
    if location.value is not None:
        store = _open(location, settings.truststore_password.value, settings.key_password, with_key=False)
        _trust(context, location, store)
    if inline.value is not None:
        _trust(context, inline, _read_inline(inline))


def _trust(context: ssl.SSLContext, source: Setting, store: KeyStore) -> None:
    if not store.trusted:
        raise _error(source, "there is no certificate to trust")
    try:
        context.load_verify_locations(cadata="\n".join(store.trusted))
    except (ssl.SSLError, ValueError) as error:
        raise _error(source, f"a certificate is invalid: {error}") from None


def _load_key(context: ssl.SSLContext, settings: TlsSettings) -> None:
    if not settings.has_key:
        return
    source = settings.keystore_location
    if source.value is not None:
        store = _open(source, settings.keystore_password.value, settings.key_password, with_key=True)
    else:
        source, chain = settings.keystore_key, _read_inline(settings.keystore_certificate_chain).chain
        store = KeyStore(_read_inline(source).key, chain, ())
    if store.key is None:
        raise _error(source, "there is no private key")
    if not store.chain:
        raise _error(source, "there is no certificate of the private key")
    # The ssl module loads keys only from files, so write a temporary one (mode 600).
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write("\n".join([store.key, *store.chain]) + "\n")
        file.flush()
        try:
            # With the password None, OpenSSL would ask for a password on the terminal.
            context.load_cert_chain(file.name, password=settings.key_password.value or "")
        except (OSError, ValueError) as error:
            raise _key_error(source, settings.key_password, store.key, error) from None


def _key_error(source: Setting, password: Setting, key: str, error: Exception) -> TlsConfigError:
    reason = getattr(error, "reason", None)
    if reason == "KEY_VALUES_MISMATCH":
        return _error(source, "the private key does not match the first certificate")
    if "ENCRYPTED" in key:
        state = "wrong" if password.value else "missing"
        return TlsConfigError(password.key, f"the password of the private key in {source.key} is {state}")
    return _error(source, f"the private key or a certificate is invalid: {reason or error}")


def _error(source: Setting, reason: str) -> TlsConfigError:
    """Return an error in a file or an inline PEM. The error text contains the path of the file, but no inline PEM."""
    is_path = source.key.endswith(".location")
    return TlsConfigError(source.key, f"{source.value}: {reason}" if is_path else reason)


def _open(location: Setting, password: str | None, key_password: Setting, *, with_key: bool) -> KeyStore:
    """Read the key store at `location`."""
    path = location.value or ""
    try:
        with open(path, "rb") as file:
            content = file.read()
        return key_stores.read(content, password, key_password.value, with_key=with_key)
    except OSError as error:
        raise TlsConfigError(location.key, f"cannot read {path}: {error.strerror}") from None
    except key_stores.KeyPasswordError as error:
        raise TlsConfigError(key_password.key, f"{path}: {error}") from None
    except key_stores.KeyStoreError as error:
        raise _error(location, str(error)) from None


def _read_inline(pem: Setting) -> KeyStore:
    return key_stores.read_pem((pem.value or "").replace("\\n", "\n"))


def _openssl_name(suite: str) -> str:
    """Return OpenSSL's name of a cipher suite: ECDHE-RSA-AES128-GCM-SHA256 is TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256."""
    exchange, _, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    name = cipher if exchange == "RSA" else f"{exchange}_{cipher}"
    name = name.replace("AES_", "AES").replace("_CBC_", "_").replace("_", "-")
    return name.replace("POLY1305-SHA256", "POLY1305")
