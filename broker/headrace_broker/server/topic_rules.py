"""Topics' configs as they are in force: on this broker, and for the controller, which knows the cluster's defaults.

Precedence: the topic's own, else the broker's altered ones, else those of all brokers, else the broker's file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace_broker.log.config import Altered, ConfigSource, LogConfig
from headrace_broker.metadata.cluster import MIN_INSYNC_REPLICAS
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.leadership import TopicRules


def altered_configs(image: MetadataImage, broker_id: int | None = None) -> Sequence[Altered]:
    """What was altered for the broker and for all brokers, the stronger first."""
    for_all: Altered = (ConfigSource.DYNAMIC_DEFAULT_BROKER, image.broker_configs())
    return [for_all] if broker_id is None else [(ConfigSource.DYNAMIC_BROKER, image.broker_configs(broker_id)), for_all]


class LogConfigs:
    """The configs of topics, typed; equal settings share one.  `broker_id` None: as the cluster has them."""

    def __init__(self, defaults: Mapping[str, str], broker_id: int | None = None) -> None:
        self._defaults = defaults
        self._broker_id = broker_id
        self._brokers: Sequence[Altered] = ()
        self._known: dict[tuple[tuple[str, str], ...], LogConfig] = {}

    def of(self, image: MetadataImage, topic: str) -> LogConfig:
        """The topic's config in force."""
        altered = altered_configs(image, self._broker_id)
        if altered != self._brokers:
            self._brokers = altered
            self._known.clear()
        properties = image.topic_configs(topic)
        key = tuple(sorted(properties.items()))
        config = self._known.get(key)
        if config is None:
            config = self._known[key] = LogConfig.from_properties(properties, self._with_altered())
        return config

    def _with_altered(self) -> Mapping[str, str]:
        """The file's keys with the altered ones over them: these have the strongest name of their key."""
        defaults = dict(self._defaults)
        for _, values in reversed(self._brokers):
            defaults.update(values)
        return defaults


def topic_rules(defaults: Mapping[str, str]) -> TopicRules:
    """min.insync.replicas and unclean.leader.election.enable of a topic, given the keys of the controller's file.

    The first is what the metadata log says alone, which leaders know too: see `metadata.cluster`.
    """
    configs = LogConfigs({name: value for name, value in defaults.items() if name != MIN_INSYNC_REPLICAS})
    return TopicRules(
        min_insync_replicas=lambda image, topic: configs.of(image, topic).min_insync_replicas,
        unclean_election_enabled=lambda image, topic: configs.of(image, topic).unclean_leader_election_enable,
    )
