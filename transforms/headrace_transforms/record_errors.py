"""Creates the errors of failed records: the messages contain the field path, the value's type and the expected type.

The messages start with the words of Kafka's transforms, if there are any. The runtime adds the stage and the alias.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from headrace.api.errors import DataError
from headrace.data.logical import Date, Time, Timestamp, is_logical
from headrace.data.schema import Schema
from headrace.data.values import infer_type

_LOGICAL_TYPES: tuple[tuple[type, str], ...] = (
    (Decimal, "Decimal"),
    (Timestamp, "Timestamp"),
    (Date, "Date"),
    (Time, "Time"),
)


def record_error(message: str, place: str, expected: str, found: str = "") -> DataError:
    """Return an error for a value at a place, such as ``field a.b of the value``.

    `found` is the value's type. Omit it if the message already contains the type.
    """
    details = [place, *([f"found: {found}"] if found else []), f"expected: {expected}"]
    return DataError(f"{message} ({', '.join(details)})")


def place_of(side: str, *path: str) -> str:
    """Return the place of a field, or without a path, of the whole key or value. `side` is ``key`` or ``value``."""
    return f"field {'.'.join(path)} of the {side}" if path else f"the {side}"


def message_of(error: Exception) -> str:
    """Return the message of an error. If the error is not a DataError, the message starts with its class."""
    return str(error) if isinstance(error, DataError) else f"{type(error).__name__}: {error}"


def type_name(value: Any, schema: Schema | None = None) -> str:
    """Return the name of a value's type, for example ``INT32``, ``Timestamp`` or ``null``.

    If the value has neither a schema nor one of Connect's types, the name is that of its Python class.
    """
    if value is None:
        return "null"
    if schema is not None:
        return schema_type_name(schema)
    logical = next((name for class_, name in _LOGICAL_TYPES if isinstance(value, class_)), None)
    inferred = infer_type(value)
    return logical or (inferred.name if inferred is not None else type(value).__name__)


def schema_type_name(schema: Schema) -> str:
    """Return the name of a schema's type. For a logical type, it is for example ``Timestamp``."""
    return schema.name.rpartition(".")[2] if schema.name and is_logical(schema) else schema.type.name
