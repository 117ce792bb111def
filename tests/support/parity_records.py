"""Draws the records of `support.transform_parity`: JSON with and without schemas, and change events of Debezium."""

from __future__ import annotations

import base64
import datetime as dt
import json
from dataclasses import dataclass
from random import Random
from typing import Any

RECORDS_PER_TOPIC = 24
START_MS = 1_767_225_600_000  # 2026-01-01
_LOGICAL = "org.apache.kafka.connect.data."


@dataclass(frozen=True)
class InputRecord:
    """A record of partition 0 of a topic. Its offset is its index."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


def _field(field: str, type_: str, optional: bool = False, **more: Any) -> dict[str, Any]:
    return {"field": field, "type": type_, "optional": optional, **more}


_INNER = [_field("x", "int32"), _field("y", "string", True)]
FIELDS = [
    _field("id", "int64"),
    _field("code", "string"),
    _field("amount", "double", True),
    _field("ratio", "float", True),
    _field("flag", "boolean", True),
    _field("name", "string", True, default="unknown"),
    _field("created", "string"),
    _field("at", "int64", name=f"{_LOGICAL}Timestamp", version=1),
    _field("day", "int32", True, name=f"{_LOGICAL}Date", version=1),
    _field("price", "bytes", name=f"{_LOGICAL}Decimal", version=1, parameters={"scale": "2"}),
    _field("millis", "int64", True),
    _field("in", "struct", True, fields=_INNER),
    _field("tags", "array", True, items={"type": "string", "optional": False}),
    _field("route", "string", True),
]
_KEY_FIELDS = [_field("k", "int32"), _field("s", "string", True), _field("t", "int64")]
_KEY_SCHEMA = {"type": "struct", "optional": False, "fields": _KEY_FIELDS}


def _row(random: Random, topic: str, number: int) -> dict[str, Any]:
    """Draw the payload of a record. Some transforms cannot convert a few of the values."""
    created = dt.datetime(2026, 1, 1) + dt.timedelta(seconds=random.randrange(10**8))
    text = f"{created:%Y-%m-%d %H:%M:%S}"
    rarely = random.random()
    return {
        "id": number,
        "code": "x1" if rarely < 0.04 else str(random.randint(-100, 100)),
        "amount": _maybe(random, random.randint(-10_000, 10_000) / 8),
        "ratio": _maybe(random, random.randint(-100, 100) / 4),
        "flag": _maybe(random, random.random() < 0.5),
        "name": _maybe(random, random.choice(("Ann", "Bob", "Zoë", ""))),
        "created": "2026-02-30 1:2:3" if rarely > 0.97 else text[:10] if rarely > 0.94 else text,
        "at": START_MS + random.randrange(10**10),
        "day": _maybe(random, random.randint(0, 30_000)),
        "price": round(random.uniform(-100, 100), 2),
        "millis": _maybe(random, random.randrange(2 * 10**12)),
        "in": _maybe(random, {"x": random.randint(-5, 5), "y": _maybe(random, "why")}),
        "tags": _maybe(random, random.choices(("a", "b"), k=random.randrange(3))),
        "route": _maybe(random, f"{topic}-{random.choice('xy')}"),
    }


def _maybe(random: Random, value: Any) -> Any:
    return None if random.random() < 0.1 else value


def draw_records(random: Random, topic: str, has_schema: bool, are_events: bool) -> tuple[InputRecord, ...]:
    """Draw the records of a topic."""
    return tuple(_record(random, topic, index, has_schema, are_events) for index in range(RECORDS_PER_TOPIC))


def _record(random: Random, topic: str, number: int, has_schema: bool, is_event: bool) -> InputRecord:
    row: Any = _row(random, topic, number)
    key: Any = {"k": number % 5, "s": _maybe(random, f"{topic}-key{number % 3}"), "t": START_MS + number}
    if has_schema:
        row["price"] = _base64_decimal(row["price"])
    else:
        row = {name: item for name, item in row.items() if name not in ("ratio", "day", "price", "tags")}
    schema: dict[str, Any] = {"type": "struct", "optional": False, "name": "test", "fields": FIELDS}
    if is_event:
        row, schema = _event(random, row, schema)
    value: Any = None if random.random() < 0.05 and number > 0 else row
    headers = tuple((name, str(number % 3).encode()) for name in ("a", "b", "skip") if random.random() < 0.3)
    headers += (("route", f"{topic}-{number % 2}".encode()),)
    texts = [
        json.dumps({"schema": _KEY_SCHEMA, "payload": key} if has_schema else key).encode(),
        None if value is None else json.dumps({"schema": schema, "payload": value} if has_schema else value).encode(),
    ]
    if random.random() < 0.04:
        texts[random.randrange(2)] = b'{"broken'
    return InputRecord(texts[0], texts[1], headers, START_MS + number * 1000)


def _base64_decimal(number: float) -> str:
    unscaled = round(number * 100)
    return base64.b64encode(unscaled.to_bytes(4, "big", signed=True)).decode()


def _event(random: Random, row: Any, schema: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return a change event of Debezium."""
    inner = {**schema, "optional": True, "name": "test.Value"}
    fields = [
        {**inner, "field": "before"},
        {**inner, "field": "after"},
        _field("op", "string"),
        _field("ts_ms", "int64"),
    ]
    event = {"before": None, "after": row, "op": "c", "ts_ms": START_MS}
    if random.random() < 0.15:
        event |= {"before": row, "after": None, "op": "d"}
    return event, {"type": "struct", "optional": False, "name": "test.Envelope", "fields": fields}
