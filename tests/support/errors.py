"""Error policies for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headrace.runtime.error_policy import ErrorPolicy


def error_policy(**changes: Any) -> ErrorPolicy:
    """Return the default error policy, with the attributes in `changes` replaced."""
    return replace(ErrorPolicy.from_config({}), **changes)
