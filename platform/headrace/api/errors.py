"""The errors that plug-ins raise, and how the platform handles them.

`ConnectError` fails the task. After a `RetriableError` the platform retries the operation until
``errors.retry.timeout``; a sink receives the same batch again. `DataError` concerns one record: ``errors.tolerance``
decides whether it fails the task. `ConfigError` concerns one configuration key; `ConfigErrors` reports the errors of
all keys together. `BatchError` names the failed records of a batch, so that the platform can process the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.data.errors import ConnectError, DataError

__all__ = ["BatchError", "ConfigError", "ConfigErrors", "ConnectError", "DataError", "RetriableError"]


class RetriableError(ConnectError):
    """A temporary error: a retry of the same call may succeed. The failed call must not have had any effect."""


class ConfigError(ConnectError):
    """One configuration key is invalid, or (if `key` is "") the configuration as a whole.

    The message is that of Kafka's ConfigException.
    """

    def __init__(self, key: str, value: object = None, message: str = "") -> None:
        self.key = key
        self.value = value
        self.reason = message
        text = f"Invalid value {_shown(value)} for configuration {key}" + (f": {message}" if message else "")
        super().__init__(text if key else message)


class MissingConfigError(ConfigError):
    """A required key is not set."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.args = (f'Missing required configuration "{key}" which has no default value.',)


class ConfigErrors(ConnectError):
    """All errors of a configuration."""

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        self.errors = tuple(errors)
        super().__init__("\n".join(str(error) for error in self.errors))


class BatchError(ConnectError):
    """Some records of a batch failed; the call had no effect for any record of the batch.

    `errors` maps the index in the batch of **every** failed record to its exception, so that the same call succeeds
    without these records.
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
