"""Automatic restarts of failed connectors and tasks, with a back-off: the `errors.restart.*` keys.

If a signal killed the process, for example the OOM killer's SIGKILL, the instance is restarted by default: a supervisor
would restart Kafka Connect's JVM, too. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.api.errors import ConfigError
from headrace.plugins.connector_config import framework_value

KILLS_PER_HOUR_MAX = 5


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a failed connector or task is restarted."""

    attempts_max: int
    backoff_initial_ms: int
    backoff_max_ms: int
    is_per_hour: bool = False
    """Whether `attempts_max` is a limit for one hour. Only for killed processes."""

    @classmethod
    def from_config(cls, config: Mapping[str, str], *, was_killed: bool = False) -> RestartPolicy:
        """Read the keys of a connector's configuration. A value that contains a variable is treated as not set.

        `was_killed` is true if a signal ended the instance's process. By default, such an instance is restarted.
        """

        def value(key: str) -> int:
            try:
                return int(framework_value(config, key))
            except ConfigError:
                return int(framework_value({}, key))

        by_default = was_killed and "errors.restart.max.attempts" not in config
        return cls(
            KILLS_PER_HOUR_MAX if by_default else value("errors.restart.max.attempts"),
            value("errors.restart.backoff.initial.ms"),
            value("errors.restart.backoff.max.ms"),
            is_per_hour=by_default,
        )

    def delay_ms(self, attempt: int) -> int | None:
        """Return the delay before restart number `attempt` (the first is 1), or None if there is no such restart.

        If the maximum number of attempts is -1, it is unlimited. The delay doubles with each attempt, up to a maximum.
        """
        if self.attempts_max >= 0 and attempt > self.attempts_max:
            return None
        return min(self.backoff_initial_ms << min(attempt - 1, 40), self.backoff_max_ms)

    @property
    def is_enabled(self) -> bool:
        """Whether failed instances are restarted automatically."""
        return self.attempts_max != 0

    def describe(self, attempt: int, delay_ms: int | None) -> str:
        """Describe for the log what happens after a failure. `delay_ms` is the result of the method `delay_ms`."""
        if self.is_per_hour:
            if delay_ms is None:
                return (
                    f"its process was killed more than {self.attempts_max} times in one hour, restart it manually (set "
                    "errors.restart.max.attempts to change the number of automatic restarts)"
                )
            return (
                f"automatic restart {attempt} of at most {self.attempts_max} in one hour follows in {delay_ms} ms, "
                "because its process was killed"
            )
        if delay_ms is None:
            return (
                f"all automatic restarts have failed (errors.restart.max.attempts={self.attempts_max}), restart it "
                "manually"
            )
        limit = "" if self.attempts_max < 0 else f" of {self.attempts_max}"
        return f"automatic restart {attempt}{limit} follows in {delay_ms} ms (errors.restart.max.attempts)"
