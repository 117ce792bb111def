"""What a handler sees: the node's parts, and who is asking."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from headrace_broker.coordinator.service import GroupCoordinator
    from headrace_broker.log.manager import LogManager
    from headrace_broker.metadata.image import MetadataImage
    from headrace_broker.server.broker import Broker
    from headrace_broker.server.config import BrokerConfig
    from headrace_broker.server.controller import ControllerService
    from headrace_broker.server.network.connection import Connection
    from headrace_broker.server.node import Node
    from headrace_broker.server.replicas.partitions import PartitionTable


class RequestContext:
    """One request's surroundings; made per request, may be kept by a handler that waits."""

    __slots__ = ("_connection", "client_host", "client_id", "listener", "node")

    def __init__(
        self,
        node: Node,
        listener: str,
        client_id: str | None,
        client_host: str,
        connection: Connection | None = None,
    ) -> None:
        self.node = node
        self._connection = connection
        self.listener = listener
        self.client_id = client_id
        self.client_host = client_host

    @property
    def config(self) -> BrokerConfig:
        """The node's configuration."""
        return self.node.config

    @property
    def node_id(self) -> int:
        """This node's id."""
        return self.node.config.node_id

    @property
    def is_for_controllers(self) -> bool:
        """Whether the request came to a listener of the quorum."""
        return self.node.router.is_for_controllers(self.listener)

    @property
    def is_from_here(self) -> bool:
        """Whether the request is this node's own."""
        return not self.listener

    @property
    def image(self) -> MetadataImage:
        """The committed cluster image."""
        return self.node.committed.image

    @property
    def controller(self) -> ControllerService:
        """Where decisions are submitted; raises ApiError NOT_CONTROLLER on a node that is none."""
        if self.node.controller is None:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        return self.node.controller

    @property
    def broker(self) -> Broker:
        """The broker's side of the node; only its listeners lead here."""
        assert self.node.broker is not None
        return self.node.broker

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

    def watch_connection(self, on_lost: Callable[[], None]) -> None:
        """Call `on_lost` when the connection ends that this request came by."""
        if self._connection is not None:
            self._connection.on_lost = on_lost

    def now_ms(self) -> int:
        """Wall-clock time."""
        return self.node.now_ms()
