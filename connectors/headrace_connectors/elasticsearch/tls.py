"""The TLS context of the sink: trusted certificates and the client's key, from PEM files or Java's key stores."""

from __future__ import annotations

import ssl

from headrace.api.config import config_def
from headrace.api.errors import ConnectError
from headrace.api.tls import TlsConfigError, TlsSettings, client_context
from headrace_connectors.elasticsearch.sink_config import ElasticsearchSinkConfig


class UnusableTlsSettingError(ConnectError):
    """The sink cannot use the value of `key`, or the file that the value names."""

    def __init__(self, error: TlsConfigError) -> None:
        super().__init__(str(error))
        self.key = error.key


def tls_context(config: ElasticsearchSinkConfig) -> ssl.SSLContext:
    """Return the context. Raises UnusableTlsSettingError."""
    known = config_def(ElasticsearchSinkConfig).keys
    properties = {name: text for name, text in config.originals.items() if name in known}
    try:
        return client_context(TlsSettings.parse(properties, "elastic.https."))
    except TlsConfigError as error:
        raise UnusableTlsSettingError(error) from error
