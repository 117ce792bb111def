"""Calculates exponential backoff with jitter (KIP-144, KIP-580). The caller supplies the random number."""

from __future__ import annotations

_JITTER = 0.2


def backoff_ms(attempt: int, base_ms: float, max_ms: float, random: float) -> float:
    """Return the backoff before retry number `attempt` (0 = the first retry). `random` is a number in [0, 1)."""
    exponential = min(base_ms * (1 << min(attempt, 30)), max(base_ms, max_ms))
    return exponential * (1 - _JITTER + 2 * _JITTER * random)
