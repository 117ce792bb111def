"""Generates random messages for tests of the codecs. The fields contain edge values and ordinary values."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from headrace_broker.protocol.notation import Message, MessageField, StructField, default_of

INTEGER_RANGES = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
TEXTS = ("", "a", "topic-1", "naïve", "日本語", "🌊", "x" * 126, "x" * 127, "y" * 128, "z" * 300)
LENGTHS = (0, 0, 1, 1, 2, 3)
LONG_LENGTHS = (31, 32, 33, 34, 35, 64, 65, 126, 127, 128, 200)

Choose = Callable[[MessageField, Random], Any]
"""Returns a value for a field, or None to leave the choice to `random_message`."""


def random_message(message: type[Message], version: int, rng: Random, choose: Choose | None = None) -> Any:
    """Return a message of this type.

    The fields that `version` contains have random values, which `choose` may determine. All other fields have their
    default values.
    """
    values = {}
    for field in message.__fields__:
        if field.is_present(version):
            values[field.name] = _random_value(field, version, rng, choose)
    return message(**values)


def _random_value(field: MessageField, version: int, rng: Random, choose: Choose | None) -> Any:
    if field.is_nullable(version) and rng.random() < 0.2:
        return None
    if field.kind == "array":
        assert field.element is not None
        is_long = rng.random() < 0.1 and not isinstance(field.element, StructField)
        count = rng.choice(LONG_LENGTHS if is_long else LENGTHS)
        return [_random_value(field.element, version, rng, choose) for _ in range(count)]
    if rng.random() < 0.15 and field.default is not None:
        return default_of(field.default) if isinstance(field.default, type) else field.default
    if isinstance(field, StructField):
        return random_message(field.message, version, rng, choose)
    chosen = choose(field, rng) if choose is not None else None
    return chosen if chosen is not None else _random_scalar(field.kind, rng)


def _random_scalar(kind: str, rng: Random) -> Any:
    if kind in INTEGER_RANGES:
        low, high = INTEGER_RANGES[kind]
        return rng.choice((low, high, 0, 1, rng.randint(low, high), rng.randint(max(low, -1), 120)))
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "float64":
        return rng.choice((0.0, -1.5, 1e300, rng.random()))
    if kind == "uuid":
        return rng.randbytes(16)
    if kind == "string":
        return rng.choice(TEXTS)
    return rng.randbytes(rng.choice((0, 1, 61, 126, 127, 128, 1023, 1024, 5000)))
