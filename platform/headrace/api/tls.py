"""Creates TLS contexts from a connector's `ssl.*` keys: PEM, JKS and PKCS#12 files, as in Kafka's clients.

    context = client_context(TlsSettings.parse(config.originals, "elastic.https."))

This module does I/O: `client_context` is the only function of `headrace.api` that reads files. Both calls raise
`TlsConfigError`, which names the key at fault.
"""

from headrace_broker.security.tls import client_context
from headrace_broker.security.tls_settings import TlsConfigError, TlsSettings

__all__ = ["TlsConfigError", "TlsSettings", "client_context"]
