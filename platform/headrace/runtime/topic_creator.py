"""Creates the topics of a source task with the settings of `topic.creation.*` (KIP-158)."""

from __future__ import annotations

import logging

from headrace.api.errors import ConnectError
from headrace.runtime import client_configs
from headrace.runtime.task_plugins import Plugins
from headrace.runtime.topic_creation import TopicCreation
from headrace.runtime.worker_config import worker_value
from headrace_broker.client.admin import Admin, NewTopic
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.errors import BrokerError
from headrace_broker.protocol.errors import ErrorCode

log = logging.getLogger(__name__)


class TopicCreator:
    """Checks once for each topic whether the topic exists, and creates missing topics."""

    def __init__(self, creation: TopicCreation, config: ClientConfig) -> None:
        self._creation = creation
        self._config = config
        self._admin: Admin | None = None

    @classmethod
    def from_plugins(cls, plugins: Plugins) -> TopicCreator | None:
        """Return a TopicCreator, or None if the broker creates topics automatically."""
        enabled = worker_value(plugins.worker, "topic.creation.enable")
        creation = TopicCreation.from_config(plugins.connector_config, enabled=enabled)
        if creation is None:
            return None
        properties = client_configs.admin_properties(plugins.worker, plugins.connector_config, plugins.spec.name)
        return cls(creation, ClientConfig.from_properties(properties, kind="admin"))

    async def ensure(self, topic: str) -> None:
        """Create the topic if it does not exist. Raises ConnectError."""
        if self._admin is None:
            self._admin = await Admin.open(self._config)
        new = self._creation.settings_for(topic)
        try:
            if not isinstance((await self._admin.describe_topics([topic]))[topic], BrokerError):
                return
            await create_topic(self._admin, new.name, new.partitions, new.replication_factor, new.configs)
        except Exception as error:
            raise ConnectError(f"Failed to create topic {topic}: {error}") from error
        log.info("Topic %s: created with %s", topic, _sizes(new.partitions, new.replication_factor))

    async def close(self) -> None:
        """Close the admin client."""
        if self._admin is not None:
            await self._admin.close()


def _sizes(partitions: int, replication: int) -> str:
    """Return the number of partitions and the replication factor of a new topic, for log messages."""
    count = "the brokers' default number of partitions" if partitions == -1 else f"{partitions} partitions"
    factor = "the brokers' default replication factor" if replication == -1 else f"replication factor {replication}"
    return f"{count} and {factor}"


async def create_topic(admin: Admin, name: str, partitions: int, replication: int, configs: dict[str, str]) -> None:
    """Create one topic. If it already exists, do nothing. Raises ClientError."""
    results = await admin.create_topics(
        [NewTopic(name, num_partitions=partitions, replication_factor=replication, configs=configs)]
    )
    error = results[name]
    if error is not None and error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
        raise error
