"""Tests of RequestRouter: connection quotas, idle connections, clients that do not read, and handler modules."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from headrace_broker.protocol.apis import API
from headrace_broker.protocol.framing import encode_request
from headrace_broker.protocol.messages.broker_registration import BrokerRegistrationRequest
from headrace_broker.server.network.connection import Connection, ConnectionLimits
from headrace_broker.server.network.listener_types import BROKER, CONTROLLER
from headrace_broker.server.network.request_memory import RequestMemoryPool
from headrace_broker.server.network.routing import RequestRouter, Routes, load_routes


class Transport:
    closed = False
    unwritten_bytes = 0

    def __init__(self, host: str) -> None:
        self.host = host

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return self.host, 1

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def get_write_buffer_size(self) -> int:
        return self.unwritten_bytes


def router(**limits: int) -> RequestRouter:
    config = SimpleNamespace(
        max_connections=100,
        max_connections_per_ip=100,
        connections_max_idle_ms=30_000,
        listeners=(),
        inter_broker_listener="PLAINTEXT",
        brokers=1,
        controller_listeners=(SimpleNamespace(name="CONTROLLER"),),
    )
    for name, value in limits.items():
        setattr(config, name, value)
    brokers = range(config.brokers)
    node: Any = SimpleNamespace(config=config, image=SimpleNamespace(brokers=brokers))
    busy_poll: Any = SimpleNamespace(record_read=lambda size_bytes: None)
    no_routes: dict[str, Routes] = {BROKER: {}, CONTROLLER: {}}
    return RequestRouter(
        node, no_routes, connections_max=100, busy_poll=busy_poll, request_memory=RequestMemoryPool(1_000_000)
    )


def connect(to: RequestRouter, host: str = "127.0.0.1", listener: str = "PLAINTEXT") -> tuple[Connection, Transport]:
    transport: Any = Transport(host)
    connection = Connection(to, listener, ConnectionLimits())
    connection.connection_made(transport)
    return connection, transport


def test_clients_cannot_use_connections_that_are_reserved_for_controllers() -> None:
    """A client that opens very many connections must not prevent the election of a new controller."""
    flooded = router(max_connections=1000, max_connections_per_ip=1000)
    accepted = 0
    while not connect(flooded)[1].closed:
        accepted += 1
    assert accepted == 88
    assert not any(connect(flooded, listener="CONTROLLER")[1].closed for _ in range(12))
    assert connect(flooded, listener="CONTROLLER")[1].closed
    limited = router(max_connections=0)
    assert connect(limited)[1].closed
    assert not connect(limited, listener="CONTROLLER")[1].closed


def test_clients_cannot_use_connections_that_are_reserved_for_followers_on_a_shared_listener() -> None:
    """When clients have reached their limit, the broker accepts a few additional connections for followers.

    The broker does not know yet whether a follower or a client has opened an additional connection. If all additional
    connections are in use, the broker closes one of them for each new connection. The broker closes the oldest
    additional connection on which no follower has fetched.
    """
    flooded = router(max_connections=1000, max_connections_per_ip=1000, brokers=3)
    clients = [connect(flooded) for _ in range(88)]
    replica, replica_transport = connect(flooded)
    flooded.connection_quotas.mark_replica(replica)
    late = [connect(flooded)[1] for _ in range(100)]
    assert not replica_transport.closed
    assert not any(transport.closed for _, transport in clients)
    kept = [transport.closed for transport in late].count(False)
    assert kept == 5
    assert not late[-1].closed
    assert not any(connect(flooded, listener="CONTROLLER")[1].closed for _ in range(6))
    limited = router(max_connections=3, max_connections_per_ip=1000, brokers=3)
    first, second = [connect(limited)[1] for _ in range(5)][3:]
    assert (first.closed, second.closed) == (True, False)


def test_connections_are_limited_in_total_and_per_ip() -> None:
    both = router(max_connections=3, max_connections_per_ip=2)
    assert not connect(both)[1].closed
    second, _ = connect(both)
    assert connect(both)[1].closed
    assert not connect(both, "10.0.0.1")[1].closed
    assert connect(both, "10.0.0.2")[1].closed
    second.connection_lost(None)
    assert not connect(both)[1].closed


def test_idle_connections_are_closed_and_active_connections_stay_open() -> None:
    swept = router(connections_max_idle_ms=30_000)
    _, idle = connect(swept)
    busy, busy_transport = connect(swept)
    for _ in range(5):
        busy.active = True
        swept.sweep(10_000)
    assert idle.closed
    assert not busy_transport.closed


def test_idle_connections_are_never_closed_if_connections_max_idle_ms_is_minus_one() -> None:
    swept = router(connections_max_idle_ms=-1)
    _, idle = connect(swept)
    for _ in range(5):
        swept.sweep(1_000_000_000)
    assert not idle.closed


def test_supported_versions_of_each_request_handler_are_within_the_version_range_of_its_api() -> None:
    routes = load_routes()
    assert {0, 1, 2, 3, 10, 18, 19, 20, 21, 22, 23, 32, 37, 44, 46, 60}.issubset(routes[BROKER])
    assert {1, 18, 52, 53, 54, 56, 59, 62, 63, 67}.issubset(routes[CONTROLLER])
    assert not {52, 53, 54, 56, 59, 62, 63, 67} & routes[BROKER].keys()
    for key, route in [*routes[BROKER].items(), *routes[CONTROLLER].items()]:
        api = API[key]
        assert api.min_version <= route.versions[0] <= route.versions[1] <= api.max_version, api
        assert route.advertised[0] <= route.versions[0], api
        assert route.advertised[1] == route.versions[1], api
        assert (route.handle is None) != (route.handle_frame is None), api


def test_each_request_to_a_controller_is_either_split_into_parts_or_limited_in_size() -> None:
    """A request of a hundred megabytes must not delay heartbeats and fetches so long that the leader resigns."""
    for route in load_routes()[CONTROLLER].values():
        assert route.request_splits or route.frame_bytes_max < 1 << 20, route.api.name
    client = Connection(long_requests := router(), "CONTROLLER", ConnectionLimits())
    transport: Any = Transport("127.0.0.1")
    client.connection_made(transport)
    long_requests.controller_routes.update(load_routes()[CONTROLLER])
    request = BrokerRegistrationRequest(log_dirs=[bytes(16)] * 5000)
    frame = b"".join(encode_request(1, "c", request, 4))
    view, sent = client.get_buffer(-1), 0
    while sent < len(frame) and not transport.closed:
        part = frame[sent : sent + len(view)]
        view[: len(part)] = part
        client.buffer_updated(len(part))
        view, sent = client.get_buffer(-1), sent + len(part)
    assert transport.closed


def test_clients_that_do_not_read_are_disconnected_when_unsent_responses_exceed_limit() -> None:
    swept = router()
    small, small_transport = connect(swept)
    small_transport.unwritten_bytes = 1_000_000
    small.pause_writing()
    for _ in range(2):
        small.active = False
        swept.sweep(1)
    assert not small_transport.closed
    assert swept.response_bytes_max() == 16 * 1024 * 1024
    large, large_transport = connect(swept)
    large_transport.unwritten_bytes = 200_000_000
    large.pause_writing()
    small.active = True  # this client still sends requests
    assert swept.response_bytes_max() == 64 * 1024
    swept.sweep(1)
    assert not large_transport.closed
    small.active = True
    swept.sweep(1)
    assert large_transport.closed
    assert not small_transport.closed
    large.connection_lost(None)
    assert swept.unsent_bytes == 1_000_000
