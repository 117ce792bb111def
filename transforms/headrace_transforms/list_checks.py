"""Validates configuration values that are lists, with Kafka's error messages."""

from __future__ import annotations


def require_no_empty_items(values: list[str]) -> None:
    """Raise ValueError if an item is empty."""
    if any(not value for value in values):
        raise ValueError("values must not be empty.")


def require_non_empty_items(values: list[str]) -> None:
    """Raise ValueError if the list is empty, or if an item is empty."""
    if not values:
        raise ValueError("must not be empty. Valid values include: any non-empty value")
    require_no_empty_items(values)


def require_non_empty(values: list[str]) -> None:
    """Raise ValueError if the list is empty."""
    if not values:
        raise ValueError("Empty list")


def require_rename_pairs(values: list[str]) -> None:
    """Raise ValueError unless every item has the format ``old:new``."""
    for value in values:
        parts = value.split(":")
        if len(parts) != 2 or not parts[1]:
            raise ValueError(f"Invalid rename mapping: {value}")
