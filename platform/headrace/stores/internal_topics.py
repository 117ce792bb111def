"""Creates the config, offsets and status topics of a worker group, and checks those that already exist (KIP-605)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace_broker.client.admin import Admin, NewTopic
from headrace_broker.client.errors import BrokerError
from headrace_broker.protocol.errors import ErrorCode

log = logging.getLogger(__name__)

_TOPIC = 2  # the resource type of topics in DescribeConfigs
_REMOVED = ("topic", "partitions", "replication.factor")


class InternalTopicError(Exception):
    """An internal topic cannot be created or used. The message names the key and the topic."""


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """One internal topic. Its configuration keys start with `prefix`, for example config.storage.

    `name_key` is the key that sets its name, if that is not `<prefix>.topic`.
    """

    prefix: str
    purpose: str
    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str] = field(default_factory=dict)
    name_key: str | None = None

    @property
    def key(self) -> str:
        """The configuration key that sets the topic's name."""
        return self.name_key or f"{self.prefix}.topic"


def topic_configs(properties: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return the topic configuration in a worker's `<prefix>.*` keys."""
    found = {key.removeprefix(prefix + "."): value for key, value in properties.items() if key.startswith(prefix + ".")}
    if (policy := found.pop("cleanup.policy", None)) not in (None, "compact"):
        log.warning("%s.cleanup.policy=%s is ignored: internal topics are compacted", prefix, policy)
    if prefix == "config.storage" and found.pop("partitions", None) is not None:
        log.warning("config.storage.partitions is ignored: the config topic has one partition")
    return {key: value for key, value in found.items() if key not in _REMOVED}


async def ensure(admin: Admin, topics: Sequence[InternalTopic]) -> None:
    """Create the topics that do not exist, and check all existing topics. Raises InternalTopicError, ClientError."""
    found = await admin.describe_topics([topic.name for topic in topics])
    missing = [topic for topic in topics if isinstance(found.get(topic.name), BrokerError | None)]
    await _create(admin, missing)
    existing = [topic for topic in topics if topic not in missing]
    for topic in existing:
        view = found[topic.name]
        if topic.prefix == "config.storage" and not isinstance(view, BrokerError) and len(view.partitions) > 1:
            raise InternalTopicError(
                f"Topic '{topic.name}' supplied via the '{topic.key}' property is required to have a single partition "
                f"in order to guarantee consistency of connector configurations, but found {len(view.partitions)} "
                "partitions."
            )
    await _check_cleanup_policies(admin, existing)


async def _create(admin: Admin, topics: Sequence[InternalTopic]) -> None:
    if not topics:
        return
    wanted = [
        NewTopic(topic.name, topic.partitions, topic.replication_factor, {**topic.configs, "cleanup.policy": "compact"})
        for topic in topics
    ]
    results = await admin.create_topics(wanted)
    for topic in topics:
        error = results.get(topic.name)
        if error is None:
            log.info("Created the topic %s for %s (%s)", topic.name, topic.purpose, topic.key)
        elif error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:  # otherwise another worker has created it
            raise InternalTopicError(_creation_error(topic, error))


def _creation_error(topic: InternalTopic, error: BrokerError) -> str:
    text = f"{topic.key}: cannot create the topic {topic.name}: {error}"
    if error.code is ErrorCode.INVALID_REPLICATION_FACTOR:
        text = text.rstrip(".") + (
            f". {topic.prefix}.replication.factor is {topic.replication_factor}; set it to at most the number of "
            "brokers, or to -1 for the default of the brokers"
        )
    return text


async def _check_cleanup_policies(admin: Admin, topics: Sequence[InternalTopic]) -> None:
    described = await admin.describe_configs({(_TOPIC, topic.name): ["cleanup.policy"] for topic in topics})
    for topic in topics:
        result = described.get((_TOPIC, topic.name))
        if result is None or isinstance(result, BrokerError):
            log.warning("Topic %s: its cleanup.policy could not be checked: %s", topic.name, result)
            continue
        policy = next((entry.value for entry in result if entry.name == "cleanup.policy"), None)
        if policy != "compact":
            raise InternalTopicError(
                f"Topic '{topic.name}' supplied via the '{topic.key}' property is required to have "
                f"'cleanup.policy=compact' to guarantee consistency and durability of {topic.purpose}, but found the "
                f"topic currently has 'cleanup.policy={policy}'. Continuing would likely result in eventually losing "
                f"{topic.purpose}. Change the '{topic.key}' property in the Connect worker configurations to use a "
                "topic with 'cleanup.policy=compact'."
            )
