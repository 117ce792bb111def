"""Determines how many examples each Hypothesis test runs.

In `make prove`, a test runs all its examples. In `make test-unit`, a test runs a fifth of its examples.
"""

from __future__ import annotations

import os

_MIN = 10


def examples(count: int) -> int:
    """Return `count` if the environment variable TEST_EXAMPLES is `all`, else a fifth of `count`, but at least 10."""
    return count if os.environ.get("TEST_EXAMPLES") == "all" else min(count, max(count // 5, _MIN))
