"""References to fields of Debezium's change events, in the format of ``add.fields`` and ``add.headers``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from headrace.api.errors import ConfigError
from headrace.data.schema import Schema, Type

_EVENT_FIELDS = ("op", "ts_ms", "ts_us", "ts_ns")
_TRANSACTION_FIELDS = ("id", "total_order", "data_collection_order")


class FieldReference(NamedTuple):
    """A reference to a field of a change event, or to a field of the event's struct ``source`` or ``transaction``."""

    parent: str | None
    field: str
    new_name: str

    def find(self, event: Schema) -> tuple[Schema, Callable[[Any], Any]] | None:
        """Return the field's schema as an optional schema, and a function that returns the field's value in an event.

        If the parent struct does not contain the field, the event itself is searched. Returns None if no field is
        found.
        """
        parent = event.field(self.parent) if self.parent else None
        if parent is not None and parent.schema.type is Type.STRUCT:
            field = parent.schema.field(self.field)
            if field is not None:
                outer, inner = parent.index, field.index
                return field.schema.replace(
                    optional=True
                ), lambda row: None if row[outer] is None else row[outer][inner]
        field = event.field(self.field)
        if field is None:
            return None
        index = field.index
        return field.schema.replace(optional=True), lambda row: row[index]


def parse_references(config_key: str, texts: list[str], prefix: str) -> list[FieldReference]:
    """Parse references of the form ``[parent.]field[:new_name]``. Raises ConfigError for the key `config_key`.

    `prefix` is added before the new name of each field.
    """
    return [_parse(config_key, text.strip(), prefix) for text in texts]


def _parse(config_key: str, text: str, prefix: str) -> FieldReference:
    path, *names = text.split(":")
    steps = path.split(".")
    if len(names) > 1 or len(steps) > 2 or not all(steps) or not all(names):
        raise ConfigError(config_key, text, "expected field, parent.field, field:new_name or parent.field:new_name")
    parent = steps[0] if len(steps) == 2 else _parent_of(steps[0])
    name = names[0] if names else "_".join(steps)
    return FieldReference(parent, steps[-1], prefix + name)


def _parent_of(field: str) -> str | None:
    if field in _EVENT_FIELDS:
        return None
    return "transaction" if field in _TRANSACTION_FIELDS else "source"
