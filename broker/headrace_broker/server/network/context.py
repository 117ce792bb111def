"""The request context: gives a handler access to the node and to the client that sent the request."""

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
    """The context of one request; an asynchronous handler may keep it."""

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
    def is_controller_listener(self) -> bool:
        """Whether the request arrived on a controller listener."""
        return self.node.router.is_controller_listener(self.listener)

    @property
    def peer(self) -> str:
        """The client's address and port, for log lines."""
        return self._connection.peer if self._connection is not None else self.client_host

    @property
    def client_software_name(self) -> str:
        """The client software's name in ApiVersions, or an empty string if the client has not sent it."""
        return self._connection.client_software_name if self._connection is not None else ""

    @client_software_name.setter
    def client_software_name(self, name: str) -> None:
        if self._connection is not None:
            self._connection.client_software_name = name

    @property
    def is_local(self) -> bool:
        """Whether this node itself sent the request."""
        return not self.listener

    @property
    def image(self) -> MetadataImage:
        """The committed metadata image."""
        return self.node.committed.image

    @property
    def controller(self) -> ControllerService:
        """The controller of this node. Raises ApiError NOT_CONTROLLER on a node that has no controller role."""
        if self.node.controller is None:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        return self.node.controller

    @property
    def broker(self) -> Broker:
        """The broker role of this node; set for every request on a broker listener."""
        assert self.node.broker is not None
        return self.node.broker

    @property
    def partitions(self) -> PartitionTable:
        """The partitions hosted by this broker."""
        return self.broker.partitions

    @property
    def logs(self) -> LogManager:
        """The log manager."""
        return self.broker.logs

    @property
    def groups(self) -> GroupCoordinator:
        """The group coordinator."""
        return self.broker.groups

    def watch_connection(self, on_disconnect: Callable[[], None]) -> None:
        """Call `on_disconnect` when the connection that this request arrived on is closed."""
        if self._connection is not None:
            self._connection.on_disconnect = on_disconnect

    def now_ms(self) -> int:
        """Return the wall-clock time."""
        return self.node.now_ms()
