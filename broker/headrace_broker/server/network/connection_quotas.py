"""Limits the number of open connections of each listener and of each client host.

The file descriptor limit applies to all connections. `max.connections` and `max.connections.per.ip` apply only to
clients. Some connections are reserved for brokers and controllers. Without this reserve, clients could open so many
connections that brokers and controllers could not connect to each other.

If followers and clients share a listener, the broker cannot tell whether a new connection comes from a follower. When
clients have used up their quota, the broker therefore accepts some more connections *on probation*. Such a connection
becomes permanent when a follower fetches over it. If another new connection arrives, the broker closes the oldest
connection that is still on probation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from headrace_broker.server.log_throttle import LogThrottle

if TYPE_CHECKING:
    from headrace_broker.server.config import BrokerConfig
    from headrace_broker.server.network.connection import Connection

logger = logging.getLogger(__name__)

_RESERVED_FRACTION = 8
"""One connection in eight is reserved for listeners that clients do not use: controller listeners, and the listener of
inter.broker.listener.name if clients use another listener. If followers share the clients' listener, half of the
reserved connections are for followers."""


class ConnectionQuotas:
    """The open connections of a node, and the limits on their number.

    `has_other_brokers` returns whether the cluster has other brokers, which may follow this broker. `on_evict` is
    called with a connection before it is closed to make room for another connection.
    """

    def __init__(
        self,
        config: BrokerConfig,
        connections_max: int,
        *,
        has_other_brokers: Callable[[], bool],
        on_evict: Callable[[Connection], None],
    ) -> None:
        self._config = config
        self._connections_max = connections_max
        self._has_other_brokers = has_other_brokers
        self._on_evict = on_evict
        self._inter_node_listeners = {listener.name for listener in config.controller_listeners}
        if len(config.listeners) > 1:
            self._inter_node_listeners.add(config.inter_broker_listener)
        self.connections: dict[Connection, None] = {}  # insertion order, so that a simulation seed is reproducible
        self._per_host: dict[str, int] = {}
        self._on_probation: dict[Connection, None] = {}
        self._log_throttle = LogThrottle()

    def try_add(self, connection: Connection) -> bool:
        """Add a new connection. Returns False if a limit does not allow it."""
        config = self._config
        reserved = self._connections_max // _RESERVED_FRACTION
        is_inter_node = connection.listener in self._inter_node_listeners
        if is_inter_node and len(self.connections) < self._connections_max:
            return self._add(connection)
        of_host = self._per_host.get(connection.client_host, 0)
        if not is_inter_node and of_host >= config.max_connections_per_ip:
            self._log_rejected(connection, of_host, f"max.connections.per.ip={config.max_connections_per_ip}")
            return False
        clients_max = min(config.max_connections, self._connections_max - reserved)
        if not is_inter_node and len(self.connections) < clients_max:
            return self._add(connection)
        is_configured = not is_inter_node and clients_max == config.max_connections
        may_be_follower = not is_inter_node and connection.listener == config.inter_broker_listener
        on_probation_max = 1 + clients_max // (2 * _RESERVED_FRACTION)
        if may_be_follower and self._has_other_brokers() and self._add_on_probation(connection, on_probation_max):
            return True
        limit = f"max.connections={clients_max}" if is_configured else "ulimit -n"
        self._log_rejected(connection, len(self.connections), limit)
        return False

    def _add_on_probation(self, connection: Connection, limit: int) -> bool:
        """Accept a connection although the clients' quota is used up, because it may come from a follower.

        At most `limit` connections are on probation at a time. Returns False if the connection cannot be accepted.
        """
        others = len(self.connections) - len(self._on_probation)
        probation_max = min(limit, self._connections_max - self._connections_max // (2 * _RESERVED_FRACTION) - others)
        if probation_max <= 0:
            return False
        if len(self._on_probation) >= probation_max:
            oldest = next(iter(self._on_probation))
            self._on_evict(oldest)
            oldest.abort("")
        self._on_probation[connection] = None
        return self._add(connection)

    def mark_replica(self, connection: Connection) -> None:
        """Mark a connection over which a follower fetches.

        Such a connection is never closed to make room for another connection.
        """
        self._on_probation.pop(connection, None)

    def _add(self, connection: Connection) -> bool:
        self.connections[connection] = None
        self._per_host[connection.client_host] = self._per_host.get(connection.client_host, 0) + 1
        return True

    def _log_rejected(self, connection: Connection, open_count: int, limit: str) -> None:
        if self._log_throttle.should_log(monotonic()):
            logger.warning(
                "Connection from %s: rejected, because %d connections are open and %s allows no more",
                connection.peer,
                open_count,
                limit,
            )

    def remove(self, connection: Connection) -> bool:
        """Remove a closed connection. Returns False if it was rejected or already removed."""
        if connection not in self.connections:
            return False
        self.connections.pop(connection, None)
        self._on_probation.pop(connection, None)
        left = self._per_host[connection.client_host] - 1
        if left:
            self._per_host[connection.client_host] = left
        else:
            del self._per_host[connection.client_host]
        return True
