"""What was measured on one side of a comparison: every value under its name, and their medians."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar


@dataclass(slots=True)
class Measured:
    """Values by name, one for each round."""

    measured: dict[str, list[float]] = field(default_factory=dict, kw_only=True)

    def note(self, name: str, value: float) -> None:
        self.measured.setdefault(name, []).append(value)

    def median(self, name: str) -> float:
        return statistics.median(self.measured[name])


Side = TypeVar("Side")


def in_turn(both: Sequence[Side], round_number: int) -> Sequence[Side]:
    """The sides, now one and now the other first."""
    return both if round_number % 2 == 0 else both[::-1]
