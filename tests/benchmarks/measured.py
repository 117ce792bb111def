"""Stores the measurements of one system in a comparison, and computes their medians."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar


@dataclass(slots=True)
class Measurements:
    """The measured values of one system: for each name, one value per round, or one per batch of all rounds."""

    measured: dict[str, list[float]] = field(default_factory=dict, kw_only=True)

    def note(self, name: str, value: float) -> None:
        self.measured.setdefault(name, []).append(value)

    def note_all(self, name: str, values: Iterable[float]) -> None:
        self.measured.setdefault(name, []).extend(values)

    def median(self, name: str) -> float:
        return statistics.median(self.measured[name])


System = TypeVar("System")


def alternate(systems: Sequence[System], round_number: int) -> Sequence[System]:
    """Return the systems in the given order in one round, and in reverse order in the next round."""
    return systems if round_number % 2 == 0 else systems[::-1]
