"""Table writers: how the rows of a batch and the offsets they came from become one commit of a table.

One contract (`base.TableWriter`), one module per format. Each keeps the offsets in the table's own commits, so that
the table, and nothing beside it, says how far it is loaded.
"""

from __future__ import annotations

from pathlib import Path

from headrace_connectors.lakehouse.writers.base import TableWriter

FORMATS = ("delta", "parquet")


def open_writer(format_: str, directory: Path, connector: str) -> TableWriter:
    """Return the writer of a table; it touches nothing until it is used."""
    if format_ == "delta":
        from headrace_connectors.lakehouse.writers.delta import DeltaWriter

        return DeltaWriter(directory, connector)
    from headrace_connectors.lakehouse.writers.parquet import ParquetWriter

    return ParquetWriter(directory, connector)
