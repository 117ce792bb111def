"""The last line of each command's help: the paths of the documents about the command."""

from __future__ import annotations


def read_on(*documents: str) -> str:
    """Return the line for the given documents, whose paths are relative to the root of headrace's repository."""
    return f"Read on: {', '.join(documents)} (in headrace's repository)."
