"""The errors that a plug-in raises on purpose, and what the platform does about each.

`ConnectError` fails the task. `RetriableError` is tried again (``errors.retry.timeout``, or the next put). `DataError`
concerns one record: ``errors.tolerance`` decides. `ConfigError` is about one configuration key, `ConfigErrors` about
all of them at once. `BatchError` says which records of a batch failed, so that the others go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.data.errors import ConnectError, DataError

__all__ = ["BatchError", "ConfigError", "ConfigErrors", "ConnectError", "DataError", "RetriableError"]


class RetriableError(ConnectError):
    """The same call may succeed later: nothing was lost, nothing half done."""


class ConfigError(ConnectError):
    """One configuration key is wrong, or (key "") all together; the text is that of Kafka's ConfigException."""

    def __init__(self, key: str, value: object = None, message: str = "") -> None:
        self.key = key
        self.value = value
        self.reason = message
        text = f"Invalid value {_shown(value)} for configuration {key}" + (f": {message}" if message else "")
        super().__init__(text if key else message)


class MissingConfigError(ConfigError):
    """A key that has no default was not given."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.args = (f'Missing required configuration "{key}" which has no default value.',)


class ConfigErrors(ConnectError):
    """Every error of a configuration, not only the first."""

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        self.errors = tuple(errors)
        super().__init__("\n".join(str(error) for error in self.errors))


class BatchError(ConnectError):
    """Some records of a batch could not be handled; nothing was done for any of them.

    `errors` holds **every** failing position of the batch that was given, with its exception: without these records the
    same call succeeds.
    """

    def __init__(self, errors: Mapping[int, Exception]) -> None:
        self.errors = dict(sorted(errors.items()))
        index, first = next(iter(self.errors.items()))
        more = f" (and {len(self.errors) - 1} more records)" if len(self.errors) > 1 else ""
        super().__init__(f"record {index} of the batch: {first}{more}")


def _shown(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(str, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)
