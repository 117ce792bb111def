"""Commits batches of numbered rows to a table until the process is killed, for tests.

    python committing_process.py <format> <directory of the tables> <rows per batch>

The offset of the table is the next number. Prints `staged` before and `committed` after each commit.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from headrace_connectors.lakehouse.committers.base import Commit
from support.lakehouse_committers import delta_local, identity, offsets, open_new, parquet_local, rows

if __name__ == "__main__":
    format_, directory, size = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    combination = delta_local(directory) if format_ == "delta" else parquet_local(directory)
    committer = open_new(combination)
    next_offset = committer.load([("t", 0)]).next_offsets.get(("t", 0), 0)
    generation = time.time_ns()
    for batch in range(1_000_000):
        numbers = range(next_offset, next_offset + size)
        files = [combination.write(committer, rows(n), f"{generation}-{batch}-{n}.parquet") for n in numbers]
        print("staged", flush=True)
        next_offset += size
        committer.commit(Commit(identity(batch, generation=generation), offsets(t=next_offset), files))
        print("committed", next_offset, flush=True)
