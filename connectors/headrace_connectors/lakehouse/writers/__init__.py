"""Table writers, which commit the rows of a micro-batch together with the micro-batch's offsets.

`base.TableWriter` is the interface, and each table format has a module. All formats store the
offsets in the table's commits, so that the rows and offsets of a table cannot diverge.
"""

from __future__ import annotations

from pathlib import Path

from headrace_connectors.lakehouse.writers.base import TableWriter

FORMATS = ("delta", "parquet")


def open_writer(format_: str, directory: Path, connector: str) -> TableWriter:
    """Return the writer for a table. The writer accesses no files until its methods are called."""
    if format_ == "delta":
        from headrace_connectors.lakehouse.writers.delta import DeltaWriter

        return DeltaWriter(directory, connector)
    from headrace_connectors.lakehouse.writers.parquet import ParquetWriter

    return ParquetWriter(directory, connector)
