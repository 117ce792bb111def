"""How long a task has been in each of its states, as Kafka Connect's `StateTracker`. This module does no I/O."""

from __future__ import annotations


class StateTimes:
    """The times that one task has spent in its states since it reported its first state."""

    def __init__(self) -> None:
        self._state: str | None = None
        self._since_s = 0.0
        self._times_s: dict[str, float] = {}

    def change(self, state: str, now_s: float) -> None:
        """The task is in this state from now on."""
        if self._state is not None:
            self._times_s[self._state] = self._times_s.get(self._state, 0.0) + now_s - self._since_s
        self._state, self._since_s = state, now_s

    def ratio(self, state: str, now_s: float) -> float:
        """Return the share of the time, from 0 to 1, that the task has spent in a state."""
        if self._state is None:
            return 0.0
        current_s = now_s - self._since_s
        total_s = sum(self._times_s.values()) + current_s
        in_state_s = self._times_s.get(state, 0.0) + (current_s if state == self._state else 0.0)
        return in_state_s / total_s if total_s > 0 else 0.0
