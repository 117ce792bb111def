"""Creates the TLS contexts of https listeners, and of requests to other workers, from PEM files or PEM strings."""

from __future__ import annotations

import ssl
import tempfile

from headrace.runtime.rest_config import Tls

_VERIFY = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def server_context(tls: Tls) -> ssl.SSLContext:
    """Create a server's context. Raises OSError, ssl.SSLError, UnicodeError for unusable files and strings."""
    for path in filter(None, (tls.certificate_path, tls.trusted_path)):
        with open(path, "rb"):  # errors of open() name the file, errors of the ssl module do not
            pass
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tls.trusted_path, cadata=tls.trusted)
    context.verify_mode = _VERIFY[tls.client_auth]
    _load_certificate(context, tls)
    return context


def client_context(tls: Tls, *, checks_host_name: bool) -> ssl.SSLContext:
    """Create the context of requests to workers with the same settings. Raises OSError, ssl.SSLError, UnicodeError."""
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=tls.trusted_path, cadata=tls.trusted)
    context.check_hostname = checks_host_name
    _load_certificate(context, tls)
    return context


def _load_certificate(context: ssl.SSLContext, tls: Tls) -> None:
    if tls.certificate_path is not None:
        context.load_cert_chain(tls.certificate_path, password=_password(tls))
        return
    # The ssl module loads certificates only from files, so write a temporary one (mode 600).
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(f"{_restore_line_breaks(tls.key)}\n{_restore_line_breaks(tls.certificate)}\n")
        file.flush()
        context.load_cert_chain(file.name, password=_password(tls))


def _password(tls: Tls) -> str:
    """Return the key password; "" if none is set, because None would prompt for a password on the terminal."""
    return tls.key_password or ""


def _restore_line_breaks(pem: str | None) -> str:
    """Restore the line breaks of a PEM string that a properties file contains on one line."""
    return (pem or "").replace("\\n", "\n")
