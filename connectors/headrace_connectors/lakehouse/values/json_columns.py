"""Converts values without schemas to columns of declared types: JSON texts, and maps that transforms have changed.

msgspec decodes JSON texts to one list per column. It accepts only values that need no conversion, or a simple one. The
record of any other text is converted with `headrace_connectors.lakehouse.values.json_values`, so both ways have the
same results. Maps have one list per column too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, methodcaller
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.data.columns import ColumnarValues, Columns, column_items
from headrace.data.json_texts import JsonTexts
from headrace.data.logical import Date, Timestamp
from headrace_connectors.lakehouse.column_types import PRECISION_MAX, ColumnType, SchemaError, TableColumn
from headrace_connectors.lakehouse.values.arrow_types import arrow_type
from headrace_connectors.lakehouse.values.column_converter import (
    ColumnConverter,
    Vectorised,
    by_class,
    days_to_dates,
    iso_dates,
    iso_timestamps,
    millis_to_timestamps,
    of_classes,
    plain,
    seconds_to_timestamps,
)
from headrace_connectors.lakehouse.values.json_values import INTEGER_RANGES, Convert, json_converter, parse_json
from headrace_connectors.lakehouse.values.mismatch import MismatchError

_Decode = Callable[[bytes], Any]
_NULL = msgspec.Raw(b"null")
_NEGATIVE_ZERO = msgspec.Raw(b"-0")


def check_declared(columns: Sequence[TableColumn]) -> None:
    """Raise SchemaError if a declared column has a type that JSON objects cannot have."""
    for column in columns:
        _check_type(column.type, column.name)


def _check_type(type_: ColumnType, path: str) -> None:
    if type_.kind == "map" and type_.key is not None and type_.key.kind != "string":
        raise SchemaError(f"{path}: the keys of a JSON object are strings, so a map cannot have {type_.key} keys")
    for child in (type_.element, *(field.type for field in type_.fields)):
        if child is not None:
            _check_type(child, path)


class JsonColumns:
    """Converts values without schemas to the declared columns of a table."""

    def __init__(self, columns: Sequence[TableColumn]) -> None:
        check_declared(columns)
        self._columns = columns
        self._type = ColumnType("struct", fields=tuple(columns))
        exact = [json_converter(column.type) for column in columns]
        self._of_maps = [
            ColumnConverter(column.name, column.type, _of_map_values(column.type), convert)
            for column, convert in zip(columns, exact, strict=True)
        ]
        self._of_texts = [_text_column(column, convert) for column, convert in zip(columns, exact, strict=True)]
        self._decode = _compile_decoder(columns)

    def convert(self, values: Sequence[Any] | ColumnarValues, bad: dict[int, str]) -> list[pa.Array]:
        """Return one Arrow array per column. The rows of values that do not fit are null, and are added to `bad`.

        A null value has null in all columns.
        """
        if isinstance(values, JsonTexts):
            return self._convert_texts(values.texts, bad)
        if isinstance(values, Columns) and values.is_maps:
            columns: Sequence[Sequence[Any]] = [self._map_column(values, column.name) for column in self._columns]
        else:
            items = values.items() if isinstance(values, ColumnarValues) else values
            columns = self._split_maps(items, bad)
        return [converter.convert(column, bad) for converter, column in zip(self._of_maps, columns, strict=True)]

    # --- maps -------------------------------------------------------------------------------------------------------

    def _map_column(self, values: Columns, name: str) -> Sequence[Any]:
        column = values.column(name)
        return [None] * len(values) if column is None else column_items(column, len(values))

    def _split_maps(self, values: Sequence[Any], bad: dict[int, str]) -> list[list[Any]]:
        maps: list[Mapping[str, Any]] = []
        for index, value in enumerate(values):
            if isinstance(value, Mapping):
                maps.append(value)
                continue
            maps.append({})
            if value is not None:
                bad[index] = str(MismatchError(self._type, value))
        return [list(map(methodcaller("get", column.name), maps)) for column in self._columns]

    # --- JSON texts -------------------------------------------------------------------------------------------------

    def _convert_texts(self, texts: Sequence[bytes], bad: dict[int, str]) -> list[pa.Array]:
        regular, rows = self._decode_texts(texts)
        if len(regular) == len(texts):
            return self._regular_columns(rows, bad)
        irregular = sorted(set(range(len(texts))).difference(regular))
        fast_bad: dict[int, str] = {}
        slow_bad: dict[int, str] = {}
        fast = self._regular_columns(rows, fast_bad)
        slow = self._irregular_columns([texts[index] for index in irregular], slow_bad)
        bad.update((regular[index], reason) for index, reason in fast_bad.items())
        bad.update((irregular[index], reason) for index, reason in slow_bad.items())
        position = {index: at for at, index in enumerate((*regular, *irregular))}
        order = pa.array([position[index] for index in range(len(texts))], pa.int64())
        return [pa.concat_arrays([*parts]).take(order) for parts in zip(fast, slow, strict=True)]

    def _decode_texts(self, texts: Sequence[bytes]) -> tuple[Sequence[int], list[Any]]:
        """Return the indexes of the texts that msgspec accepts, and the decoded records."""
        decode = self._decode
        if decode is None:
            return (), []
        try:
            return range(len(texts)), list(map(decode, texts))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
        regular: list[int] = []
        rows: list[Any] = []
        for index, text in enumerate(texts):
            try:
                rows.append(decode(text))
                regular.append(index)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                pass  # `_irregular_columns` converts this record
        return regular, rows

    def _regular_columns(self, rows: Sequence[Any], bad: dict[int, str]) -> list[pa.Array]:
        return [
            converter.convert(list(map(attrgetter(f"v{number}"), rows)), bad)
            for number, converter in enumerate(self._of_texts)
        ]

    def _irregular_columns(self, texts: Sequence[bytes], bad: dict[int, str]) -> list[pa.Array]:
        values: list[Any] = []
        for index, text in enumerate(texts):
            try:
                values.append(parse_json(text))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
                values.append(None)
                bad[index] = f"the payload is not JSON: {error}"
        columns = self._split_maps(values, bad)
        return [converter.convert(column, bad) for converter, column in zip(self._of_maps, columns, strict=True)]


def _compile_decoder(columns: Sequence[TableColumn]) -> _Decode | None:
    """Return msgspec's decoder of records, or None if a column's name contains characters that JSON escapes."""
    fields = []
    for number, column in enumerate(columns):
        type_ = _slot_type(column.type)
        default = _NULL if type_ is msgspec.Raw else None
        fields.append((f"v{number}", type_, msgspec.field(name=column.name, default=default)))
    try:
        return msgspec.json.Decoder(msgspec.defstruct("Row", fields, gc=False, kw_only=True)).decode
    except ValueError:
        return None


_SLOT_TYPES: dict[str, Any] = {
    **{kind: Annotated[int, msgspec.Meta(ge=low, le=high)] for kind, (low, high) in INTEGER_RANGES.items()},
    "float64": float,
    "boolean": bool,
    "string": str,
    "bytes": str,
    "date": str,
    "timestamp": str | int,
}


def _slot_type(type_: ColumnType) -> Any:
    """Return the type of the values that msgspec may decode. `Raw` keeps the JSON text, for the exact conversion."""
    found = _SLOT_TYPES.get(type_.kind)
    return msgspec.Raw if found is None else found | None


def _text_column(column: TableColumn, exact: Convert) -> ColumnConverter:
    """Return the converter of values that have the column's slot type."""
    type_ = column.type
    if _slot_type(type_) is msgspec.Raw:
        vectorised = None
        if type_.kind == "decimal":
            vectorised = _numbers_to_decimals(type_)
        elif type_.kind == "float32":
            vectorised = _numbers_to_floats
        return ColumnConverter(column.name, type_, vectorised, lambda raw: exact(parse_json(raw)))
    return ColumnConverter(column.name, type_, _of_slots(type_), exact)


def _of_slots(type_: ColumnType) -> Vectorised | None:
    if type_.kind == "date":
        return iso_dates
    if type_.kind == "timestamp":
        return by_class({str: iso_timestamps, int: seconds_to_timestamps})
    return None if type_.kind == "bytes" else plain(arrow_type(type_))


def _numbers_to_decimals(type_: ColumnType) -> Vectorised:
    """Return the function for the JSON texts of numbers that need no rounding."""
    target = arrow_type(type_)

    def convert(values: Sequence[Any]) -> pa.Array:
        texts = _texts(values)
        # Arrow 26 does not detect that a number overflows 128 bits when it is scaled.
        if pc.max(pc.binary_length(texts)).as_py() + type_.scale > PRECISION_MAX or _has_exponents(texts):
            raise ValueError("some numbers may be too large")
        return texts.cast(target)

    return convert


def _has_exponents(texts: pa.Array) -> bool:
    data = memoryview(texts.buffers()[2] or b"").tobytes()
    return b"e" in data or b"E" in data


def _numbers_to_floats(values: Sequence[Any]) -> pa.Array:
    """Convert the JSON texts of numbers. Rounding a decoded double would round twice."""
    if _NEGATIVE_ZERO in values:
        raise ValueError("the integer -0 is a positive zero")
    return _texts(values).cast(pa.float32())


def _texts(values: Sequence[Any]) -> pa.Array:
    """Return JSON texts as strings, and null for the text `null`."""
    texts = pa.array(list(map(bytes, values)), pa.binary())
    return pc.if_else(pc.equal(texts, b"null"), None, texts).cast(pa.string())


def _of_map_values(type_: ColumnType) -> Vectorised | None:
    """Return the function for the values of maps, whose classes are not known."""
    kind, target = type_.kind, arrow_type(type_)
    if kind in INTEGER_RANGES:
        return of_classes(plain(target), int)
    if kind in ("float32", "float64"):
        return of_classes(plain(target), int, float)
    if kind == "boolean":
        return of_classes(plain(target), bool)
    if kind == "string":
        return of_classes(plain(target), str)
    if kind == "timestamp":
        return by_class({str: iso_timestamps, int: seconds_to_timestamps, Timestamp: millis_to_timestamps})
    if kind == "date":
        return by_class({str: iso_dates, Date: days_to_dates})
    return None
