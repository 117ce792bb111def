"""The effects that `SourceTaskCore` and `SinkTaskCore` share. This module does no I/O."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReportState:
    """Report to the worker that the task is running or paused."""

    is_paused: bool


@dataclass(frozen=True, slots=True)
class Fail:
    """Fail the task."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for an event, at most until that time in ms. If it is None, wait without a limit."""

    until_ms: int | None
