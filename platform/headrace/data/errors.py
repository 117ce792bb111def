"""The errors that `headrace.data` raises. The module `headrace.api.errors` defines all other errors for plug-ins."""

from __future__ import annotations


class ConnectError(Exception):
    """The base class of all errors that plug-ins raise deliberately."""


class DataError(ConnectError):
    """A value does not match its schema or type, or is out of range. The message contains the reason."""


class UnknownField(DataError, KeyError):
    """A struct has no field with the requested name."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would quote it
