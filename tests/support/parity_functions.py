"""Functions for the transform Python (`support.transform_parity`). Processes import this file by its path."""

from __future__ import annotations

from typing import Any


def with_lengths(values: list[dict[str, Any] | None]) -> list[dict[str, Any] | None]:
    """Add the length of the field `created` to each value. Drop nulls."""
    return [None if value is None else {**value, "length": len(value["created"])} for value in values]
