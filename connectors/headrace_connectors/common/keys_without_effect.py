"""Base class of configurations that accept some keys of Confluent's connectors, ignore them, and warn about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from headrace.api.config import Config


class ConfigWithIgnoredKeys(Config):
    """The base class of configurations that accept some keys only for compatibility. These keys have no effect."""

    without_effect: ClassVar[Mapping[str, str]] = {}
    """For each key, or for each prefix that ends with a dot, the reason why it has no effect."""

    def warnings_about_keys(self) -> list[str]:
        """Return one warning for each key that is set and has no effect."""
        found = []
        for name in sorted(self.originals):
            matching = (reason for key, reason in self.without_effect.items() if _is_or_begins_with(name, key))
            reason = next(matching, None)
            if reason is not None:
                found.append(f"Configuration {name} has no effect: {reason}")
        return found


def _is_or_begins_with(name: str, key: str) -> bool:
    return name.startswith(key) if key.endswith(".") else name == key
