"""The error that data itself can raise; the rest of the family is in `headrace.api.errors`."""

from __future__ import annotations


class ConnectError(Exception):
    """The root of everything a plug-in raises on purpose."""


class DataError(ConnectError):
    """A value that does not fit: its schema, its type or its range. Says which field and why."""
