"""The error that a command-line tool prints for its user. This module does no I/O."""

from __future__ import annotations


class ToolError(Exception):
    """An error that ends a tool. The error's text is printed for the user."""
