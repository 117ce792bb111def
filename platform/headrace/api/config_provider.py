"""Config providers: they supply the values of variables in configurations, such as ``${file:/secrets:password}``."""

from __future__ import annotations

from headrace.api.plugin import C, Plugin


class ConfigProvider(Plugin[C]):
    """The base class of all config providers (KIP-297).

    `config` has the worker's keys ``config.providers.<name>.param.*``, without this prefix.
    """

    abstract = True

    def configure(self, config: C) -> None:
        """Prepare the provider. Raises ConfigError."""

    def get(self, path: str, key: str) -> str | None:
        """Return the value of a key at that path ("" if no path is given), or None. Raises ConfigError."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define get")

    def close(self) -> None:
        """Release the resources that `configure` acquired."""
