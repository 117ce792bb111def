"""The errors that `headrace.data` raises; `headrace.api.errors` defines the other plug-in errors."""

from __future__ import annotations


class ConnectError(Exception):
    """The base class of all errors that plug-ins raise deliberately."""


class DataError(ConnectError):
    """A value does not match its schema or type, or is out of range. The message names the field and the reason."""
