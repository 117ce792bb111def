"""Reads a table in which a row is committed after another row that has a later timestamp and a larger id."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from headrace_connectors.jdbc.horizon import MARGIN
from support.jdbc import Offsets, read_all, rows

Execute = Callable[[str], Any]
TIMEOUT_S = 40.0


def ids_read(props: Mapping[str, str], early: Execute, late: Execute) -> list[int]:
    """Insert a row in each of two sessions, and return the ids that the source reads.

    `early` and `late` execute a statement in the session that commits early or late. The session `late` inserts its row
    first, so this row has id 1 and the earlier timestamp. The session `late` commits after the source has read the
    table once. Then the source reads the table again.
    """
    offsets = Offsets()
    has_horizon = "snapshot.horizon" in props
    late("BEGIN")
    late("INSERT INTO t (note) VALUES ('late')")  # id 1, the earlier timestamp
    early("INSERT INTO t (note) VALUES ('early')")
    if has_horizon:
        time.sleep(MARGIN.total_seconds() + 0.2)  # after this time, only the transaction keeps the row from being read
    found = rows(read_all(props, offsets))
    late("COMMIT")
    found += rows(read_all(props, offsets))
    deadline_s = time.monotonic() + TIMEOUT_S
    while has_horizon and len(found) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.1)
        found += rows(read_all(props, offsets))
    return [row[0] for row in found]
