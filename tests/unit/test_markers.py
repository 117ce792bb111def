"""Tests of the markers that select tests in the Makefile."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_only_test_files_contain_the_markers_by_which_the_makefile_finds_test_files() -> None:
    """The Makefile does not run a test whose file receives its marker from another file."""
    marker = re.compile(r"mark\.(jvm|slow|timed)\b")
    others = [path for path in TESTS.rglob("*.py") if not path.name.startswith("test_")]
    assert [path for path in others if marker.search(path.read_text(encoding="utf-8"))] == []
