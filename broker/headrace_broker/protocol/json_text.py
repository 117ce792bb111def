"""Messages as JSON, by the rules that Kafka's own tools print them with.

Field names are the schema's in camel case, int64 is a number, bytes are base64, a UUID is its URL-safe text, and a
tagged field stands there only when it is not its default.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from headrace_broker.protocol.notation import Field, Message
from headrace_broker.protocol.uuid_text import encode_uuid

_NAMES = {"kraft_version": "kRaftVersion", "kraft_version_feature": "kRaftVersionFeature"}


def to_json(message: Message, version: int) -> dict[str, Any]:
    """Return the message's fields that travel in `version`, as values for `json`."""
    fields: dict[str, Any] = {}
    for field in message.__fields__:
        value = getattr(message, field.name)
        if not field.is_present(version) or (field.is_tagged(version) and _is_default(field, value)):
            continue
        fields[camel_case(field.name)] = _to_json(field, value, version)
    return fields


def json_text(value: Any) -> str:
    """Return `value` as JSON without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def camel_case(name: str) -> str:
    """Return a field's name as Kafka's schemas spell it."""
    first, *rest = name.split("_")
    return _NAMES.get(name) or first + "".join(word.capitalize() for word in rest)


def _is_default(field: Field, value: object) -> bool:
    if field.kind == "struct" and isinstance(value, Message):
        return bool(value == type(value)())
    return bool(value == field.default)


def _to_json(field: Field, value: Any, version: int) -> Any:
    if value is None:
        return None
    if field.kind == "struct":
        return to_json(value, version)
    if field.kind == "array":
        assert field.element is not None
        return [_to_json(field.element, item, version) for item in value]
    if field.kind == "uuid":
        return encode_uuid(value)
    if field.kind in ("bytes", "records"):
        return base64.b64encode(value).decode()
    return value
