"""The TLS context of the sink: trusted certificates and the client's key, from PEM files or Java's key stores."""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path

from headrace.api import key_stores
from headrace.api.config import Password
from headrace.api.errors import ConnectError
from headrace_connectors.elasticsearch.config import ElasticsearchSinkConfig

_PEM = b"-----BEGIN"
_TRUSTSTORE, _KEYSTORE = "elastic.https.ssl.truststore.location", "elastic.https.ssl.keystore.location"


class StoreError(ConnectError):
    """The sink cannot use a certificate or key file. `key` is the configuration key with the path of the file."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}")
        self.key = key


def tls_context(config: ElasticsearchSinkConfig) -> ssl.SSLContext:
    """Return the context. Raises StoreError, or ConnectError for unusable certificates and keys.

    As in Java, the content of a file determines its type: PEM, JKS or PKCS#12.
    """
    try:
        file, text = _trusted(config)
        context = ssl.create_default_context(cafile=file, cadata=text)
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as in Java, each certificate of the store is trusted
        if not config.identification:
            context.check_hostname = False
        if config.keystore:
            _load_key(context, config, config.keystore)
    except (OSError, ValueError) as error:
        raise ConnectError(f"Cannot load the certificates and keys of elastic.https.ssl.*: {error}") from error
    return context


def _trusted(config: ElasticsearchSinkConfig) -> tuple[str | None, str | None]:
    """Return the path of a PEM file and PEM text with the trusted certificates. (None, None): those of the system."""
    pem = config.truststore_certificates
    text = None if pem is None else pem.value.replace("\\n", "\n")
    if not config.truststore:
        return None, text
    content = _read(_TRUSTSTORE, config.truststore)
    if _PEM in content:
        return config.truststore, text  # a file, because text may contain only ASCII characters, even in comments
    store = _open(_TRUSTSTORE, config.truststore, content, config.truststore_password, None, with_key=False)
    if not store.trusted:
        raise StoreError(_TRUSTSTORE, f"{config.truststore} contains no trusted certificate")
    return None, "\n".join([*store.trusted, text or ""])


def _load_key(context: ssl.SSLContext, config: ElasticsearchSinkConfig, path: str) -> None:
    content = _read(_KEYSTORE, path)
    key_password = config.key_password or config.keystore_password
    if _PEM in content:
        # With None, OpenSSL would ask for a password on the terminal.
        context.load_cert_chain(path, password=_text(key_password) or "")
        return
    store = _open(_KEYSTORE, path, content, config.keystore_password, key_password)
    if store.key is None:
        raise StoreError(_KEYSTORE, f"{path} contains no private key")
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:  # the ssl module loads keys only from files
        file.write("\n".join([store.key, *store.chain]) + "\n")
        file.flush()
        context.load_cert_chain(file.name, password="")


def _open(
    key: str,
    path: str,
    content: bytes,
    password: Password | None,
    key_password: Password | None,
    *,
    with_key: bool = True,
) -> key_stores.KeyStore:
    try:
        return key_stores.read(content, _text(password), _text(key_password), with_key=with_key)
    except key_stores.KeyStoreError as error:
        raise StoreError(key, f"{path}: {error}") from error


def _read(key: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise StoreError(key, f"cannot read {path}: {error.strerror}") from error


def _text(password: Password | None) -> str | None:
    return None if password is None else password.value
