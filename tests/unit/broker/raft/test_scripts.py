"""Runs the Raft scripts in `scripts/` and compares their traces with the expected traces.

`support.raft_script` documents the file format.

To accept changed traces, run `RAFT_SCRIPTS_REWRITE=1 pytest tests/unit/broker/raft/test_scripts.py` and review the
diff.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.raft_script import run_script

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_trace_of_each_raft_script_equals_its_expected_trace(path: Path) -> None:
    expected, actual = run_script(path)
    if os.environ.get("RAFT_SCRIPTS_REWRITE") == "1":
        path.write_text(actual)
        return
    assert actual == expected


def test_raft_script_directory_is_not_empty() -> None:
    assert SCRIPTS
