"""Config providers: they supply the values of variables in configurations, such as ``${file:/secrets:password}``."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.api.plugin import C, Plugin


@dataclass(frozen=True, slots=True)
class ConfigData:
    """A value with a time to live, after which the platform restarts the connectors and tasks that use the value.

    They are not restarted if the connector's configuration has ``config.action.reload=none``.
    """

    value: str
    ttl_ms: int
    """Time to live in ms; the platform waits at least one second."""


class ConfigProvider(Plugin[C]):
    """The base class of all config providers (KIP-297).

    `config` has the worker's keys ``config.providers.<name>.param.*``, without this prefix.
    """

    abstract = True

    def configure(self, config: C) -> None:
        """Prepare the provider. Raises ConfigError."""

    def get(self, path: str, key: str) -> str | ConfigData | None:
        """Return the value of a key at that path ("" if no path is given), or None. Raises ConfigError.

        A value that expires is returned as `ConfigData`, with its time to live.
        """
        raise NotImplementedError(f"{type(self).__qualname__} does not define get")

    def close(self) -> None:
        """Release the resources that `configure` acquired."""
