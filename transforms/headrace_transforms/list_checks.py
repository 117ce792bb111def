"""Checks that several transforms make on list-valued keys, with Kafka's texts."""

from __future__ import annotations


def distinct(values: list[str]) -> None:
    """Raises ValueError for empty or repeated items."""
    if any(not value for value in values):
        raise ValueError("values must not be empty.")
    if len(set(values)) != len(values):
        raise ValueError("values must not be duplicated.")


def distinct_and_some(values: list[str]) -> None:
    """Raises ValueError for no items, and for empty or repeated ones."""
    if not values:
        raise ValueError("must not be empty. Valid values include: any non-empty value")
    distinct(values)


def some(values: list[str]) -> None:
    """Raises ValueError for no items."""
    if not values:
        raise ValueError("Empty list")


def pairs(values: list[str]) -> None:
    """Raises ValueError unless every item is ``old:new``."""
    for value in values:
        parts = value.split(":")
        if len(parts) != 2 or not parts[1]:
            raise ValueError(f"Invalid rename mapping: {value}")
