"""What the controller needs to know of topics' configs, with the cluster's defaults."""

from __future__ import annotations

from collections.abc import Mapping

from headrace_broker.log.config import LogConfig
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.leadership import TopicRules


def topic_rules(defaults: Mapping[str, str]) -> TopicRules:
    """min.insync.replicas and unclean.leader.election.enable of a topic, given the broker file's keys."""
    known: dict[tuple[tuple[str, str], ...], LogConfig] = {}

    def config_of(image: MetadataImage, topic: str) -> LogConfig:
        properties = image.topic_configs(topic)
        key = tuple(sorted(properties.items()))
        config = known.get(key)
        if config is None:
            config = known[key] = LogConfig.from_properties(properties, defaults)
        return config

    return TopicRules(
        min_insync_replicas=lambda image, topic: config_of(image, topic).min_insync_replicas,
        unclean_election_enabled=lambda image, topic: config_of(image, topic).unclean_leader_election_enable,
    )
