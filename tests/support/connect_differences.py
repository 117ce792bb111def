"""The differences between headrace and classes of Kafka Connect that docs/connect.md lists, as narrow conditions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from headrace.data.java import wrap
from headrace.data.logical import MILLIS_PER_DAY, PYTHON_TYPES
from headrace.data.schema import INT_RANGES, Type
from support.connect_oracle import CONFIG, CONNECT, Request, is_error
from support.connect_values import double_bits, float_bits

_BLANK_BETWEEN_DELIMITERS = re.compile(r'"[^"]*(?<=[\[\]{},:"])[\x00-\x20]+[\[\]{},:"]')
ERROR = {"error": ""}
"""An error in the conditions below: they do not distinguish kinds of errors."""
_ZONE_NAME = re.compile(r"\b(EST|CEST|JST|Nepal Time)\b", re.IGNORECASE)
_FURTHER_TOKEN = re.compile(r'[:,{}\[\]"\\]')
_INTEGERS = ("int8", "int16", "int32", "int64")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_LEADING_ZERO = re.compile(r"(?<![\w.+-])-?0[0-9]")


def agree(request: Request, case: Any, java: Any, headrace: Any) -> bool:
    """Whether two results are the same, or docs/connect.md lists their difference. `case` is None for a configuration.

    Java may raise any exception, such as ClassCastException, where headrace raises an error of Connect.
    """
    if is_error(headrace) and headrace["error"] not in (CONFIG, CONNECT):
        return False
    if is_error(java) and is_error(headrace):
        return java == headrace or java["error"] not in (CONFIG, CONNECT)
    if java == headrace:
        return True
    return is_known_difference(
        request, case, ERROR if is_error(java) else java, ERROR if is_error(headrace) else headrace
    )


def is_known_difference(request: Request, case: Any, java: Any, headrace: Any) -> bool:
    """Whether docs/connect.md lists the difference between the two results."""
    name = request.java_class.rpartition(".")[2]
    if name in ("RegexRouter", "TimestampRouter") and case is None and headrace == ERROR:
        return _only_fails_later(request, java)
    if case is None:
        return False
    if java == ERROR and _has_struct_default(request, case, name):
        return True
    keeps_null = request.config.get("replace.null.with.default", "").strip().lower() == "false"
    if (
        request.kind == "transform"
        and java == ERROR
        and keeps_null
        and _has_null_in_required_field(request, case, name)
    ):
        return True
    if name.startswith("SetSchemaMetadata$") and java == ERROR:
        return headrace != ERROR and headrace[3 if name.endswith("$Key") else 4][0]["type"] != "struct"
    if name.startswith("TimestampConverter$"):
        if headrace == ERROR and java != ERROR:
            value = case[4 if name.endswith("$Key") else 6]
            is_nan = _contains(value, lambda tag, content: tag == "string" and "NaN" in content)
            return is_nan or _contains_late_date(java)
        return ERROR not in (java, headrace) and _parses_zone_names(request)
    if name.startswith("Cast$"):
        if "string" in request.config.get("spec", "").lower() and ERROR not in (java, headrace):
            value = case[4 if name.endswith("$Key") else 6]
            if _contains(value, lambda tag, content: tag == "date" and content < MILLIS_PER_DAY):
                return True  # Java writes only the time of day
        return _casts_logical_value(request, case, name, java, headrace)
    if name.startswith("ReplaceField$"):
        return _replaces_field(request, case, name, java, headrace)
    if name == "InsertHeader":
        *java_others, java_headers = java
        *others, headers = headrace
        text = request.config["value.literal"].encode("utf-8", "surrogatepass").hex()
        is_same_otherwise = java_others == others and java_headers[:-1] == headers[:-1]
        return is_same_otherwise and _is_known_header(request, ["to", text], java_headers[-1][1:], headers[-1][1:])
    if name.startswith("MaskField$"):
        return bool(_without_scales_of_zeros(java) == _without_scales_of_zeros(headrace))
    if name in ("IntegerConverter", "ShortConverter"):
        return case[:2] == ["from", None] and case[2][0] == "int64" and java == ERROR
    if case[0] == "from" and _differs_only_in_order(request, case, java, headrace):
        return True
    if name == "StringConverter":
        return case[0] == "from" and _contains(case[2], lambda tag, content: tag == "bytes")
    if name == "SimpleHeaderConverter":
        return _is_known_header(request, case, java, headrace)
    if name == "JsonConverter" and case[0] == "to":
        if headrace == ERROR:
            return _is_read_wrongly(request, bytes.fromhex(case[1]))
        return bool(_as_java_numbers(java) == _as_java_numbers(headrace))
    return False


def _as_java_numbers(result: Any) -> Any:
    """Replace each -0.0 with 0.0, and each integer with its lowest 64 bits, as Java does."""
    if result in (["float64", double_bits(-0.0)], ["float32", float_bits(-0.0)]):
        return [result[0], 0]
    if isinstance(result, dict):
        return {name: _as_java_numbers(item) for name, item in result.items()}
    if not isinstance(result, list):
        return result
    return [result[0], wrap(result[1], 64)] if result[:1] == ["int64"] else list(map(_as_java_numbers, result))


def _only_fails_later(request: Request, java: list[Any]) -> bool:
    """headrace rejects the configuration. Kafka Connect fails for all records that the invalid part applies to."""
    topics = [case[1] for case in request.cases]
    return all(is_error(result) or result[1] == topic for result, topic in zip(java, topics, strict=True))


def _has_struct_default(request: Request, case: Any, name: str) -> bool:
    """Java's Struct accepts only a schema that is the same object as the schema of the default."""
    if request.kind == "transform":
        index = case[3 if name.endswith("$Key") else 5]
    else:
        index = case[1] if case[0] == "from" else None
    return index is not None and _contains_struct_default(request.schemas[index])


def _has_null_in_required_field(request: Request, case: Any, name: str) -> bool:
    """Java's Struct allows such a null if the field has a default, but does not accept it in `put`."""
    index, value = case[3:5] if name.endswith("$Key") else case[5:7]
    if index is None or value is None or value[0] != "struct":
        return False
    fields = [field for _, field in request.schemas[index]["fields"]]
    return any(item is None and "optional" not in field for field, item in zip(fields, value[1], strict=True))


def _casts_logical_value(request: Request, case: Any, name: str, java: Any, headrace: Any) -> bool:
    """Java keeps the name of a logical type if it casts the whole value to another type."""
    side, index = (3, case[3]) if name.endswith("$Key") else (4, case[5])
    if index is None or request.schemas[index].get("name") not in PYTHON_TYPES or headrace == ERROR:
        return False
    if java == ERROR:
        return "default" in request.schemas[index]  # the casted default is invalid for the name
    without_name = {key: item for key, item in java[side][0].items() if key not in ("name", "version", "parameters")}
    return bool(without_name == headrace[side][0] and java[side][1] == headrace[side][1])


def _contains_struct_default(schema: Any) -> bool:
    if schema["type"] == "struct" and "default" in schema:
        return True
    inner = [*(field for _, field in schema.get("fields", ())), schema.get("keys"), schema.get("values")]
    return any(_contains_struct_default(each) for each in inner if each is not None)


def _without_scales_of_zeros(result: Any) -> Any:
    """Replace the scale of each masked Decimal: Java returns zero with the scale 0 instead of the schema's scale."""
    if isinstance(result, list):
        return (
            ["decimal", "0", 0]
            if result[:2] == ["decimal", "0"]
            else [_without_scales_of_zeros(each) for each in result]
        )
    return result


def _parses_zone_names(request: Request) -> bool:
    """Whether the texts contain names of time zones.

    Java uses the offsets that a zone had at the date, and formats later dates in the zone of the last text.
    """
    pattern = request.config.get("format", "")
    return bool({"z", "Z"} & set(pattern)) and _ZONE_NAME.search(json.dumps(request.cases)) is not None


def _replaces_field(request: Request, case: Any, name: str, java: Any, headrace: Any) -> bool:
    """The order of a HashMap determines whether a renamed field of a map replaces another field, or the reverse."""
    index = case[3 if name.endswith("$Key") else 5]
    if index is not None:
        return headrace != ERROR and _reads_other_field(request, request.schemas[index])
    if java == ERROR or headrace == ERROR:
        return False
    side = 3 if name.endswith("$Key") else 4
    new_names = set(_renames(request).values())
    others = [[pair for pair in result[side][1][1] if pair[0][1] not in new_names] for result in (java, headrace)]
    names = [[pair[0] for pair in result[side][1][1]] for result in (java, headrace)]
    return bool(others[0] == others[1] and names[0] == names[1])


def _renames(request: Request) -> dict[str, str]:
    pairs = (mapping.partition(":") for mapping in request.config.get("renames", "").split(","))
    return {old.strip(): new.strip() for old, _, new in pairs}


def _reads_other_field(request: Request, schema: Any) -> bool:
    """Whether a field of the new struct has a name to which `renames` maps another field: Java reads that field."""
    exclude, include = (
        {name.strip() for name in request.config.get(key, "").split(",") if name} for key in ("exclude", "include")
    )
    names = [name for name, _ in schema.get("fields", ()) if name not in exclude and (not include or name in include)]
    renames = _renames(request)
    return any(new == renames.get(name, name) and old != name for name in names for old, new in renames.items())


def _differs_only_in_order(request: Request, case: Any, java: Any, headrace: Any) -> bool:
    """Whether the value or a default contains a map with several keys: Java writes them in the order of its HashMap."""
    if not isinstance(java, str) or not isinstance(headrace, str):
        return False
    has_several_keys = _case_contains(request, case, lambda tag, content: tag == "map" and len(content) > 1)
    return has_several_keys and sorted(bytes.fromhex(java)) == sorted(bytes.fromhex(headrace))


def _contains_late_date(result: Any) -> bool:
    """Whether the result contains a date whose days do not fit into INT32. Kafka's converters drop the upper bits."""
    if not isinstance(result, list):
        return False
    if len(result) == 2 and result[0] == "date" and not -(2**31) <= result[1] // MILLIS_PER_DAY < 2**31:
        return True
    return any(map(_contains_late_date, result))


def _case_contains(request: Request, case: Any, condition: Callable[[str, Any], bool]) -> bool:
    """Whether the value to write, or a default in its schema, meets the condition."""
    _, index, value = case
    return _contains(value, condition) or (index is not None and _default_contains(request.schemas[index], condition))


def _default_contains(schema: Any, condition: Callable[[str, Any], bool]) -> bool:
    inner = [*(field for _, field in schema.get("fields", ())), schema.get("keys"), schema.get("values")]
    return _contains(schema.get("default"), condition) or any(
        _default_contains(each, condition) for each in inner if each is not None
    )


def _contains(value: Any, condition: Callable[[str, Any], bool]) -> bool:
    """Whether the value, or a value in it, meets the condition."""
    if value is None:
        return False
    tag, content = value[0], value[1]
    if condition(tag, content):
        return True
    if tag == "map":
        return any(_contains(item, condition) for pair in content for item in pair)
    return tag in ("array", "struct") and any(_contains(item, condition) for item in content)


def _is_known_header(request: Request, case: Any, java: Any, headrace: Any) -> bool:
    if case[0] == "from":
        # Java writes a date before 1970-01-02 as a time of day.
        return _case_contains(request, case, lambda tag, content: tag == "date" and content < MILLIS_PER_DAY)
    try:
        text = bytes.fromhex(case[1]).decode()
    except UnicodeDecodeError:
        return bool(headrace == [{"type": "bytes"}, ["bytes", case[1]]])
    if headrace != ERROR and java != ERROR and headrace[0] == java[0] and _BLANK_BETWEEN_DELIMITERS.search(text):
        return True  # Java removes the blanks, even in quoted text
    if headrace != [{"type": "string"}, ["string", text]]:
        return False
    if java == ERROR:
        return False
    # Java ignores what follows the value. Python has no maps whose keys are lists or maps.
    has_container_keys = _contains(
        java[1], lambda tag, content: tag == "map" and any(key and key[0] in ("array", "map") for key, _ in content)
    )
    return has_container_keys or _is_prefix(java[1], text)


def _is_prefix(value: Any, text: str) -> bool:
    """Whether the text starts with the value and continues with other text, as ``1}.[`` does."""
    if value is None:
        return text.strip().startswith("null")
    if value[0] == "string":
        return text != value[1]
    return value[0] in ("array", "map") or bool(_FURTHER_TOKEN.search(text))


def _is_read_wrongly(request: Request, data: bytes) -> bool:
    """Java returns 0, "" or an empty list for JSON of the wrong type, and ignores what follows the JSON."""
    try:
        text = data.decode(json.detect_encoding(data)).removeprefix("\ufeff")
    except UnicodeDecodeError:
        return True
    if _SURROGATE_ESCAPE.search(text) or _LEADING_ZERO.search(_JSON_STRING.sub('""', text)):
        return True
    try:
        tree, end = json.JSONDecoder().raw_decode(text.lstrip(" \t\r\n"))
    except (ValueError, RecursionError):
        return False
    if text.lstrip(" \t\r\n")[end:].strip(" \t\r\n"):
        return True
    is_envelope = request.config.get("schemas.enable", "true").strip().lower() == "true" and isinstance(tree, dict)
    if not is_envelope:
        return False
    return _has_mismatched_default(tree.get("schema")) or _is_mismatched(tree.get("schema"), tree.get("payload"))


def _has_mismatched_default(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    fields = schema.get("fields")
    inner = [
        schema.get("items"),
        schema.get("keys"),
        schema.get("values"),
        *(fields if isinstance(fields, list) else ()),
    ]
    return _is_mismatched(schema, schema.get("default")) or any(map(_has_mismatched_default, inner))


def _is_mismatched(schema: Any, payload: Any) -> bool:
    """Whether the JSON does not have the type of its schema, or contains a number that does not fit the type."""
    if not isinstance(schema, dict) or payload is None:
        return False
    type_ = schema.get("type")
    if type_ in _INTEGERS:
        low, high = INT_RANGES[Type(type_)]
        return type(payload) is not int or not low <= payload <= high
    if type_ in ("float", "double"):
        return isinstance(payload, bool) or not isinstance(payload, (int, float))
    if type_ == "boolean":
        return not isinstance(payload, bool)
    if type_ in ("string", "bytes"):
        return not isinstance(payload, str)
    if type_ == "array":
        return not isinstance(payload, list) or any(_is_mismatched(schema.get("items"), item) for item in payload)
    if not isinstance(payload, dict):
        return False
    if type_ == "map":
        return any(_is_mismatched(schema.get("values"), item) for item in payload.values())
    fields = [field for field in schema.get("fields", ()) if isinstance(field, dict)] if type_ == "struct" else []
    return any(_is_mismatched(field, payload.get(field.get("field"))) for field in fields)
