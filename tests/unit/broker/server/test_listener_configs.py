"""Tests of the rules for roles and listeners. Apache Kafka 4.3.1 refuses the same configurations."""

from __future__ import annotations

import pytest

from headrace_broker.server.config import BrokerConfig, ConfigError

COMBINED = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": "1@localhost:9093",
}
CONTROLLER = {**COMBINED, "process.roles": "controller", "listeners": "CONTROLLER://:9093"}
BROKER = {
    **COMBINED,
    "process.roles": "broker",
    "listeners": "PLAINTEXT://:9092",
    "controller.quorum.voters": "2@localhost:9093",
}
MAP = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"


def errors_of(base: dict[str, str], **properties: str) -> list[str]:
    """Parse the properties. An underscore in the name of an argument stands for a dot in the configuration key."""
    changes = {key.replace("_", "."): value for key, value in properties.items()}
    try:
        BrokerConfig.from_properties(base | changes)
    except ConfigError as error:
        return error.errors
    return []


@pytest.mark.parametrize("base", [COMBINED, CONTROLLER, BROKER])
def test_valid_roles_and_listeners_are_accepted(base: dict[str, str]) -> None:
    assert errors_of(base) == []
    assert errors_of(base, listener_security_protocol_map=f"{MAP},SSL:SSL") == []


def test_broker_id_that_differs_from_the_node_id_is_refused() -> None:
    assert errors_of(COMBINED, broker_id="1") == []
    assert errors_of(COMBINED, broker_id="2") == ["broker.id=2: differs from node.id=1; remove broker.id"]


@pytest.mark.parametrize("base", [COMBINED, CONTROLLER, BROKER])
@pytest.mark.parametrize("names", [None, ""])
def test_node_with_roles_but_without_controller_listener_names_is_refused(
    base: dict[str, str], names: str | None
) -> None:
    base = {key: value for key, value in base.items() if key != "controller.listener.names"}
    if names is not None:
        base["controller.listener.names"] = names
    (error,) = errors_of(base)
    assert error.startswith("controller.listener.names is required with process.roles")


@pytest.mark.parametrize("roles", ["broker,controller", None])
def test_controller_whose_controller_listener_is_missing_in_listeners_is_refused(roles: str | None) -> None:
    base = {key: value for key, value in COMBINED.items() if key != "process.roles" or roles}
    add = "listeners has no listener {0}; add {0}://host:port to listeners"
    assert errors_of(base, listeners="PLAINTEXT://:9092") == [
        "controller.listener.names=CONTROLLER: " + add.format("CONTROLLER")
    ]
    assert errors_of(
        COMBINED, controller_listener_names="CONTROLLER,OTHER", listener_security_protocol_map=f"{MAP},OTHER:PLAINTEXT"
    ) == ["controller.listener.names=CONTROLLER, OTHER: " + add.format("OTHER")]


def test_single_node_without_roles_needs_no_controller_listener() -> None:
    assert errors_of({"node.id": "1", "listeners": "PLAINTEXT://:9092"}) == []


def test_broker_with_a_controller_listener_is_refused() -> None:
    assert errors_of(BROKER, listeners="PLAINTEXT://:9092,CONTROLLER://:9093") == [
        "controller.listener.names=CONTROLLER: a node that is only a broker has no controller listener; remove "
        "CONTROLLER://:9093 from listeners"
    ]


def test_controller_with_another_listener_is_refused() -> None:
    assert errors_of(CONTROLLER, listeners="CONTROLLER://:9093,PLAINTEXT://:9092") == [
        "listeners: a node that is only a controller has only listeners in controller.listener.names; remove "
        "PLAINTEXT://:9092"
    ]


def test_controller_listener_without_an_entry_in_an_explicit_protocol_map_is_refused() -> None:
    for base, key in ((COMBINED, "listeners"), (CONTROLLER, "listeners"), (BROKER, "controller.listener.names")):
        assert errors_of(base, listener_security_protocol_map="PLAINTEXT:PLAINTEXT") == [
            f"{key}: no security protocol for listener CONTROLLER: add CONTROLLER:PLAINTEXT to "
            "listener.security.protocol.map"
        ]


def test_inter_broker_listener_must_be_an_advertised_listener_of_the_brokers() -> None:
    words = "use one of PLAINTEXT"
    assert errors_of(COMBINED, inter_broker_listener_name="CONTROLLER") == [
        f"inter.broker.listener.name=CONTROLLER: is a controller listener; {words}"
    ]
    listeners = {"listeners": "PLAINTEXT://:1,IN://:2,CONTROLLER://:9093",
                 "listener_security_protocol_map": f"{MAP},IN:PLAINTEXT"}  # fmt: skip
    assert errors_of(COMBINED, inter_broker_listener_name="IN", **listeners) == []
    assert errors_of(
        COMBINED, inter_broker_listener_name="IN", advertised_listeners="PLAINTEXT://a:1", **listeners
    ) == [f"inter.broker.listener.name=IN: not one of the broker's listeners; {words}"]
    listeners["listeners"] = "OUT://:1,IN://:2,CONTROLLER://:9093"
    listeners["listener_security_protocol_map"] += ",OUT:PLAINTEXT"
    assert errors_of(COMBINED, **listeners) == [
        "inter.broker.listener.name=PLAINTEXT: not one of the broker's listeners; use one of OUT, IN"
    ]


def test_controller_with_a_controller_listener_as_inter_broker_listener_is_refused() -> None:
    assert errors_of(CONTROLLER, inter_broker_listener_name="PLAINTEXT") == []
    assert errors_of(CONTROLLER, inter_broker_listener_name="CONTROLLER") == [
        "inter.broker.listener.name=CONTROLLER: it is a controller listener; use the name of the brokers' listener"
    ]


def test_inter_broker_listener_name_and_protocol_together_are_refused() -> None:
    assert errors_of(COMBINED, security_inter_broker_protocol="PLAINTEXT") == []
    assert errors_of(COMBINED, security_inter_broker_protocol="PLAINTEXT", inter_broker_listener_name="PLAINTEXT") == [
        "set only one of inter.broker.listener.name and security.inter.broker.protocol"
    ]
    assert "security.inter.broker.protocol=TLS: expected one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL" in errors_of(
        COMBINED, security_inter_broker_protocol="TLS"
    )


def test_advertised_listeners_may_contain_controller_listeners() -> None:
    for base in (COMBINED, CONTROLLER, BROKER):
        assert errors_of(base, advertised_listeners="PLAINTEXT://a:9092,CONTROLLER://a:9093") == []
    assert errors_of(COMBINED, advertised_listeners="PLAINTEXT://a:9092,CONTROLLER://0.0.0.0:9093") == [
        "advertised.listeners: CONTROLLER://0.0.0.0:9093 is not an address that a client can connect to; specify a host"
    ]


def test_broker_that_advertises_only_controller_listeners_is_refused() -> None:
    assert errors_of(COMBINED, advertised_listeners="CONTROLLER://b:9093") == [
        "advertised.listeners has no listener for clients: add PLAINTEXT://host:port"
    ]


def test_advertised_listener_without_a_host_is_advertised_with_the_name_of_the_machine() -> None:
    config = BrokerConfig.from_properties(COMBINED | {"advertised.listeners": "PLAINTEXT://:19092"})
    (advertised,) = config.advertised_listeners
    assert (advertised.host != "", advertised.port) == (True, 19092)


@pytest.mark.parametrize(
    ("second", "is_valid"),
    [("[::1]:9093", True), ("127.0.0.2:9093", False), (":9093", False), ("localhost:9093", False)],
)
def test_two_listeners_share_a_port_only_with_an_ipv4_and_an_ipv6_address(second: str, is_valid: bool) -> None:
    errors = errors_of(COMBINED, listeners=f"PLAINTEXT://{second},CONTROLLER://127.0.0.1:9093")
    expected = "listeners: PLAINTEXT and CONTROLLER have the same port 9093: only an IPv4 and an IPv6 address may share"
    assert is_valid == (errors == [])
    assert is_valid or errors[0].startswith(expected)


def test_bootstrap_server_of_the_only_controller_must_be_its_own_listener() -> None:
    """A controller that named another controller would form a second cluster, because the quorum is static."""
    key = "controller.quorum.bootstrap.servers"
    base = {name: value for name, value in CONTROLLER.items() if name != "controller.quorum.voters"}
    config = BrokerConfig.from_properties({**base, key: "localhost:9093"})
    assert config.voters == {1: ("localhost", 9093)}
    assert errors_of(base, controller_quorum_bootstrap_servers="other:9094") == [
        f"{key}=other:9094: port 9094 is not the port of this node's controller listener; if the cluster has several "
        "controllers, set controller.quorum.voters instead"
    ]
    assert errors_of(base, controller_quorum_bootstrap_servers="localhost") == [f"{key}: 'localhost' is not host:port"]


def test_broker_with_bootstrap_servers_needs_no_voters() -> None:
    base = {name: value for name, value in BROKER.items() if name != "controller.quorum.voters"}
    config = BrokerConfig.from_properties({**base, "controller.quorum.bootstrap.servers": "a:1,[::1]:2"})
    assert (config.voters, config.bootstrap_servers) == ({}, (("a", 1), ("::1", 2)))
