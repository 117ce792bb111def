"""Reads key stores for connectors whose client libraries need keys and certificates as PEM."""

from headrace_broker.security.key_stores import KeyStore, KeyStoreError, read

__all__ = ["KeyStore", "KeyStoreError", "read"]
