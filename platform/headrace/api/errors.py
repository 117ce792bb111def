"""The errors that plug-ins raise, and how the platform handles them.

`ConnectError` fails the task. After a `RetriableError`, the platform repeats the call. A sink then receives the same
records again, and converters and transforms are retried until ``errors.retry.timeout``. `DataError` concerns one
record: ``errors.tolerance`` determines whether it fails the task. `RecordErrors` names the failed records of a call, so
that the platform can process the other records. `ConfigError` concerns one configuration key; `ConfigErrors` reports
the errors of all keys together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.api.redaction import redact_passwords
from headrace.data.errors import ConnectError, DataError, UnknownField

__all__ = [
    "ConfigError",
    "ConfigErrors",
    "ConnectError",
    "DataError",
    "RecordErrors",
    "RetriableError",
    "UnknownField",
]


class RetriableError(ConnectError):
    """A temporary error: a retry of the same call may succeed. The failed call must not have had any effect."""


class ConfigError(ConnectError):
    """One configuration key is invalid, or (if `key` is "") the configuration as a whole.

    The message is the same as in Kafka's ConfigException, but without the passwords of a URL.
    """

    def __init__(self, key: str, value: object = None, message: str = "") -> None:
        self.key = key
        self.value = value
        self.reason = message
        text = f"Invalid value {_shown(value)} for configuration {key}" + (f": {message}" if message else "")
        super().__init__(text if key else message)

    @classmethod
    def with_text(cls, key: str, text: str) -> ConfigError:
        """Return an error of the key `key` with exactly that text."""
        error = ConfigError(key, message=text)
        error.args = (text,)
        return error


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


class RecordErrors(ConnectError):
    """Some records of a call failed. The call succeeded for all other records.

    `errors` contains the exception of **every** failed record. Its keys are the indexes of the records among those that
    were passed. If the call returns results (`apply_batch` and `test_batch`), `results` contains the results of the
    other records, in order.
    """

    def __init__(self, errors: Mapping[int, Exception], results: Any = None) -> None:
        if not errors:
            raise ValueError("RecordErrors needs at least one error")
        self.errors = dict(sorted(errors.items()))
        self.results = results
        index, first = next(iter(self.errors.items()))
        more = f" (and {len(self.errors) - 1} more records)" if len(self.errors) > 1 else ""
        super().__init__(f"record {index}: {first}{more}")


def _shown(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_shown, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else redact_passwords(str(value))
