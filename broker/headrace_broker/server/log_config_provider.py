"""Resolves the effective configs of topics, for this broker and for the controller.

The controller uses the cluster-wide defaults. For this broker, the value comes from the first of these sources that
contains the config: the topic's dynamic config, this broker's dynamic config, the dynamic default of all brokers, the
properties file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace_broker.log.config import ConfigSource, DynamicConfigs, LogConfig
from headrace_broker.metadata.cluster import MIN_INSYNC_REPLICAS
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.leadership import TopicConfigs


def altered_configs(image: MetadataImage, broker_id: int | None = None) -> Sequence[DynamicConfigs]:
    """Return the dynamic configs that apply, in order of precedence.

    These are the dynamic configs of broker `broker_id`, followed by the dynamic defaults of all brokers. If `broker_id`
    is None, only the dynamic defaults are returned.
    """
    for_all: DynamicConfigs = (ConfigSource.DYNAMIC_DEFAULT_BROKER, image.broker_configs())
    return [for_all] if broker_id is None else [(ConfigSource.DYNAMIC_BROKER, image.broker_configs(broker_id)), for_all]


class LogConfigProvider:
    """Resolves topics' LogConfigs for one broker or, if `broker_id` is None, for the whole cluster.

    Topics with equal configs share one LogConfig.
    """

    def __init__(self, defaults: Mapping[str, str], broker_id: int | None = None) -> None:
        self._defaults = defaults
        self._broker_id = broker_id
        self._brokers: Sequence[DynamicConfigs] = ()
        self._known: dict[tuple[tuple[str, str], ...], LogConfig] = {}

    def get(self, image: MetadataImage, topic: str) -> LogConfig:
        """Return the topic's effective config."""
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
        """Return the configs of the properties file, overridden by the dynamic broker configs."""
        defaults = dict(self._defaults)
        for _, values in reversed(self._brokers):
            defaults.update(values)
        return defaults


def controller_topic_configs(defaults: Mapping[str, str]) -> TopicConfigs:
    """Return functions that look up a topic's min.insync.replicas and unclean.leader.election.enable.

    `defaults` contains the configs of the controller's properties file. Its min.insync.replicas is ignored: this config
    is read only from the metadata log, because partition leaders must use the same value (see `metadata.cluster`).
    """
    configs = LogConfigProvider({name: value for name, value in defaults.items() if name != MIN_INSYNC_REPLICAS})
    return TopicConfigs(
        min_insync_replicas=lambda image, topic: configs.get(image, topic).min_insync_replicas,
        unclean_election_enabled=lambda image, topic: configs.get(image, topic).unclean_leader_election_enable,
    )
