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


def in_field(error: DataError, step: str) -> DataError:
    """Return an error whose message ends with the path of the failed field, for example ``(field "a.b[0]")``.

    `step` is the name of a field, a key of a map, or an index of an array in brackets. If the message of `error`
    already ends with a path, that path is relative to `step`.
    """
    message, found, path = str(error).rpartition(' (field "')
    if not found or not path.endswith('")'):
        return DataError(f'{error} (field "{step}")')
    return DataError(f'{message} (field "{step}{"" if path.startswith("[") else "."}{path}')
