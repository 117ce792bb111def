"""The number of examples of Hypothesis tests: a third of them in `make test-unit`, all of them in `make prove`."""

from __future__ import annotations

import os

_MIN = 10


def examples(count: int) -> int:
    """Return `count` if the environment variable TEST_EXAMPLES is `all`, else a third of it."""
    return count if os.environ.get("TEST_EXAMPLES") == "all" else min(count, max(count // 3, _MIN))
