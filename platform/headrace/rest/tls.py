"""The TLS context of https listeners, from PEM files or texts."""

from __future__ import annotations

import ssl
import tempfile

from headrace.runtime.rest_config import Tls

_VERIFY = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def server_context(tls: Tls) -> ssl.SSLContext:
    """A context for a server. Raises OSError, ssl.SSLError, UnicodeError for files and texts that cannot be used."""
    for path in filter(None, (tls.certificate_path, tls.trusted_path)):
        with open(path, "rb"):  # its errors name the file, those of the ssl module do not
            pass
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tls.trusted_path, cadata=tls.trusted)
    context.verify_mode = _VERIFY[tls.client_auth]
    if tls.certificate_path is not None:
        context.load_cert_chain(tls.certificate_path, password=_password(tls))
        return context
    # The ssl module takes files only; this one (mode 600) is there for the moment.
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(f"{_lines(tls.key)}\n{_lines(tls.certificate)}\n")
        file.flush()
        context.load_cert_chain(file.name, password=_password(tls))
    return context


def _password(tls: Tls) -> str:
    """An empty one makes an encrypted key an error instead of a question on the terminal."""
    return tls.key_password or ""


def _lines(pem: str | None) -> str:
    """A PEM text that came on one line of a properties file, as lines."""
    return (pem or "").replace("\\n", "\n")
