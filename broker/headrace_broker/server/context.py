"""What a handler sees: the broker's parts, and who is asking."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace_broker.coordinator.service import GroupCoordinator
    from headrace_broker.log.manager import LogManager
    from headrace_broker.metadata.image import MetadataImage
    from headrace_broker.server.broker import Broker
    from headrace_broker.server.config import BrokerConfig
    from headrace_broker.server.metadata_service import MetadataService
    from headrace_broker.server.partitions import PartitionTable


class RequestContext:
    """One request's surroundings; made per request, may be kept by a handler that waits."""

    __slots__ = ("broker", "client_host", "client_id", "listener")

    def __init__(self, broker: Broker, listener: str, client_id: str | None, client_host: str) -> None:
        self.broker = broker
        self.listener = listener
        self.client_id = client_id
        self.client_host = client_host

    @property
    def config(self) -> BrokerConfig:
        """The node's configuration."""
        return self.broker.config

    @property
    def node_id(self) -> int:
        """This broker's id."""
        return self.broker.config.node_id

    @property
    def image(self) -> MetadataImage:
        """The committed cluster image."""
        return self.broker.metadata.image

    @property
    def metadata(self) -> MetadataService:
        """Where decisions of the controller are submitted."""
        return self.broker.metadata

    @property
    def partitions(self) -> PartitionTable:
        """The partitions this broker holds."""
        return self.broker.partitions

    @property
    def logs(self) -> LogManager:
        """The logs on disk."""
        return self.broker.logs

    @property
    def groups(self) -> GroupCoordinator:
        """The group coordinator."""
        return self.broker.groups

    def now_ms(self) -> int:
        """Wall-clock time."""
        return self.broker.now_ms()
