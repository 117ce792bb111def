"""`topic.creation.*`: the settings for new topics of a source connector (KIP-158). This module does no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.data.java_regex import JavaPattern

_PREFIX = "topic.creation."
_OWN_KEYS = frozenset({"include", "exclude", "partitions", "replication.factor"})


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. The number -1 selects the broker's default."""

    name: str
    partitions: int
    replication_factor: int
    configs: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Group:
    include: list[JavaPattern]
    exclude: list[JavaPattern]
    partitions: int
    replication_factor: int
    configs: dict[str, str]

    def matches(self, topic: str) -> bool:
        return any(p.matches(topic) for p in self.include) and not any(p.matches(topic) for p in self.exclude)


class TopicCreation:
    """The topic creation groups in order. The default group is last."""

    def __init__(self, groups: list[_Group]) -> None:
        self._groups = groups

    @classmethod
    def from_config(cls, config: Mapping[str, str], *, enabled: bool) -> TopicCreation | None:
        """Read the keys of a connector's configuration. Raises ValueError that names the invalid key.

        Return None if the connector sets no such key, or if the worker disables topic creation. In these cases, the
        broker creates topics automatically.
        """
        if not enabled or not any(key.startswith(_PREFIX) for key in config):
            return None
        names = [name.strip() for name in config.get(_PREFIX + "groups", "").split(",") if name.strip()]
        default = _read_group(config, "default", None)
        return cls([*(_read_group(config, name, default) for name in names if name != "default"), default])

    def settings_for(self, topic: str) -> NewTopic:
        """Return the settings of the first group that matches the topic."""
        group = next(group for group in self._groups if group.matches(topic))
        return NewTopic(topic, group.partitions, group.replication_factor, dict(group.configs))


def _read_group(config: Mapping[str, str], name: str, default: _Group | None) -> _Group:
    """Read the keys of a group.

    The group inherits the number of partitions and the replication factor of the default group, but not the topic
    configs.
    """
    prefix = f"{_PREFIX}{name}."
    settings = {key[len(prefix) :]: value for key, value in config.items() if key.startswith(prefix)}
    if default is None:
        include = [JavaPattern(".*")]
    else:
        include = _patterns(prefix + "include", settings.get("include"))
        if not include:
            raise ValueError(f"{prefix}include is missing: it defines the topics of topic creation group {name!r}")
    return _Group(
        include,
        _patterns(prefix + "exclude", settings.get("exclude")),
        _number(prefix + "partitions", settings.get("partitions"), default.partitions if default else None),
        _number(
            prefix + "replication.factor",
            settings.get("replication.factor"),
            default.replication_factor if default else None,
        ),
        {k: v for k, v in settings.items() if k not in _OWN_KEYS},
    )


def _number(key: str, value: str | None, default: int | None) -> int:
    if value is None:
        if default is None:
            raise ValueError(f"{key} is missing; set -1 to use the broker's default")
        return default
    try:
        number = int(value)
    except ValueError:
        raise ValueError(f"{key}={value} is not an integer") from None
    if number == 0 or number < -1:
        raise ValueError(f"{key}={value} must be at least 1, or -1 for the broker's default")
    return number


def _patterns(key: str, value: str | None) -> list[JavaPattern]:
    try:
        return [JavaPattern(text.strip()) for text in (value or "").split(",") if text.strip()]
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None
