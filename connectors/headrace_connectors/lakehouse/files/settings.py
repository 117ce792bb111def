"""Limits of the files that executors write. This module does no I/O, and does not import pyarrow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """Limits of a task's writers, and Parquet's options. Sizes are in bytes."""

    file_size_bytes: int = 512 << 20
    memory_bytes: int = 256 << 20
    open_files_max: int = 64
    compression: str = "zstd"
    compression_level: int | None = 1
