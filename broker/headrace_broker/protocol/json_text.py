"""Converts messages to JSON, in the format that Kafka's tools print.

The keys are the schema's field names, in camel case. An int64 is a JSON number. Bytes are base64, and a UUID is
URL-safe base64. A tagged field is present only when its value is not the default.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from headrace_broker.protocol.notation import Message, MessageField
from headrace_broker.protocol.uuid_text import encode_uuid

_NAMES = {"kraft_version": "kRaftVersion", "kraft_version_feature": "kRaftVersionFeature"}


def to_json(message: Message, version: int) -> dict[str, Any]:
    """Return the message's fields that exist in `version`, with values that `json` can serialize."""
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
    """Return a field's name in camel case, as in Kafka's schemas."""
    first, *rest = name.split("_")
    return _NAMES.get(name) or first + "".join(word.capitalize() for word in rest)


def _is_default(field: MessageField, value: object) -> bool:
    if field.kind == "struct" and isinstance(value, Message):
        return bool(value == type(value)())
    return bool(value == field.default)


def _to_json(field: MessageField, value: Any, version: int) -> Any:
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
