"""Tests that a node refuses the keys that protect an Apache Kafka node, and warns about other security keys."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from headrace_broker.server.config import BrokerConfig, ConfigError

NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "controller.listener.names": "CONTROLLER",
}


def errors_of(properties: Mapping[str, str]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.from_properties(NODE | properties)
    return caught.value.errors


def warnings_of(properties: Mapping[str, str]) -> tuple[str, ...]:
    return BrokerConfig.from_properties(NODE | properties).warnings


def keys(errors: list[str]) -> list[str]:
    return sorted(error.partition(": ")[0] for error in errors)


def test_all_protections_of_a_secured_node_are_reported_at_once() -> None:
    errors = errors_of(
        {
            "listeners": "SASL_SSL://:9092,CONTROLLER://:9093",
            "listener.security.protocol.map": "CONTROLLER:SASL_SSL,SASL_SSL:SASL_SSL",
            "inter.broker.listener.name": "SASL_SSL",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:admin",
            "sasl.enabled.mechanisms": "PLAIN",
            "ssl.keystore.location": "/etc/kafka/keystore.jks",
            "listener.name.controller.plain.sasl.jaas.config": "secret",
            "num.partitions": "many",
        }
    )
    assert keys(errors) == [
        "authorizer.class.name",
        "listener.name.controller.plain.sasl.jaas.config",
        "listener.security.protocol.map",
        "listener.security.protocol.map",
        "num.partitions=many",
        "sasl.enabled.mechanisms",
        "ssl.keystore.location",
        "super.users",
    ]
    assert all("would run" in error for error in errors if not error.startswith("num"))
    assert not any("secret" in error for error in errors)


@pytest.mark.parametrize(
    ("key", "value", "lacking"),
    [
        ("authorizer.class.name", "com.example.Authorizer", "authorization"),
        ("super.users", "User:admin", "authorization"),
        ("principal.builder.class", "com.example.Builder", "the principals of this class"),
        ("ssl.client.auth", "required", "client certificates"),
        ("client.quota.callback.class", "com.example.Quotas", "these quotas"),
        ("create.topic.policy.class.name", "com.example.Policy", "this policy for new topics"),
        ("alter.config.policy.class.name", "com.example.Policy", "this policy for changes of configs"),
        ("max.connections.per.ip.overrides", "192.0.2.1:0", "these limits on connections"),
        ("max.connection.creation.rate", "10", "this limit on new connections"),
        ("listener.name.plaintext.ssl.client.auth", "required", "client certificates"),
        ("listener.name.controller.principal.builder.class", "com.example.Builder", "the principals of this class"),
        ("listener.name.plaintext.max.connection.creation.rate", "10", "this limit on new connections"),
        ("listener.name.plaintext.max.connections", "10", "this limit on connections"),
    ],
)
def test_key_that_protects_a_node_with_plaintext_listeners_is_refused(key: str, value: str, lacking: str) -> None:
    assert errors_of({key: value}) == [
        f"{key}: not supported yet, headrace would run without {lacking}; remove the key only if this node does not "
        "need the protection"
    ]
    assert warnings_of({key: ""}) == ()


@pytest.mark.parametrize(
    ("properties", "listener", "protection"),
    [
        ({"listener.security.protocol.map": "PLAINTEXT:SSL,CONTROLLER:PLAINTEXT"}, "PLAINTEXT uses SSL", "encryption"),
        (
            {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT"},
            "CONTROLLER uses SASL_PLAINTEXT",
            "authentication",
        ),
        ({"listeners": "PLAINTEXT://:1,CONTROLLER://:2,SSL://:3"}, "SSL uses SSL", "encryption"),
        (
            {"advertised.listeners": "PLAINTEXT://a:1,IN://a:2", "listener.security.protocol.map":
             "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,IN:SASL_SSL", "listeners": "PLAINTEXT://:1,CONTROLLER://:2,IN://:3"},
            "IN uses SASL_SSL",
            "encryption and authentication",
        ),
        (
            {"process.roles": "broker", "listeners": "PLAINTEXT://:9092", "controller.quorum.voters": "2@a:9093",
             "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_SSL"},
            "CONTROLLER uses SASL_SSL",
            "encryption and authentication",
        ),
    ],
)  # fmt: skip
def test_used_listener_with_another_protocol_than_plaintext_is_refused(
    properties: dict[str, str], listener: str, protection: str
) -> None:
    (error,) = errors_of(properties)
    assert error.startswith(f"listener.security.protocol.map: listener {listener}, ")
    assert f"would run the listener without {protection};" in error


def test_broker_uses_only_the_first_controller_listener() -> None:
    broker = {"process.roles": "broker", "listeners": "PLAINTEXT://:9092", "controller.quorum.voters": "2@a:9093"}
    protocols = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL"
    names = {"listener.security.protocol.map": protocols, "controller.listener.names": "CONTROLLER,SECURE"}
    assert warnings_of(broker | names) == ()
    names["controller.listener.names"] = "SECURE,CONTROLLER"
    assert keys(errors_of(broker | names)) == ["listener.security.protocol.map"]


def test_secured_inter_broker_protocol_is_refused() -> None:
    errors = errors_of({"security.inter.broker.protocol": "SASL_SSL"})
    assert errors == [
        "inter.broker.listener.name=SASL_SSL: not one of the broker's listeners; use one of PLAINTEXT",
        "listener.security.protocol.map: listener SASL_SSL uses SASL_SSL, which headrace does not support yet: it "
        "would run the listener without encryption and authentication; use PLAINTEXT only in a private network",
    ]


def test_security_keys_that_no_used_listener_needs_cause_one_warning() -> None:
    ignored = {
        "ssl.keystore.location": "/etc/kafka/keystore.jks",
        "ssl.client.auth": "none",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.plaintext.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.external.ssl.client.auth": "required",
        "listener.name.external.scram-sha-256.sasl.jaas.config": "x",
        "principal.builder.class": "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
        "connections.max.reauth.ms": "0",
        "delegation.token.secret.key": "k",
        "max.connection.creation.rate": "2147483647",
        "listener.name.plaintext.max.connections": "2147483647",
        "listener.name.external.max.connections": "10",
    }
    properties = {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,EXTERNAL:SASL_SSL"}
    assert warnings_of(properties | ignored | {"ssl.key.password": "", "super.users": " "}) == (
        f"ignored, because they protect no listener of this node: {', '.join(ignored)}",
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("listener.name.client.a.principal.builder.class", "com.example.Builder"),
        ("listener.name.client.a.max.connections", "10"),
        ("listener.name.client.a.max.connection.creation.rate", "10"),
        ("listener.name.client.principal.builder.class", "com.example.Builder"),
    ],
)
def test_key_that_protects_a_listener_whose_name_contains_a_dot_is_refused(key: str, value: str) -> None:
    listeners = {
        "listeners": "CLIENT://:9091,CLIENT.A://:9092,CONTROLLER://:9093",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,CLIENT.A:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "CLIENT.A",
    }
    assert keys(errors_of(listeners | {key: value})) == [key]
    unused = key.replace(".client.", ".client.b.", 1)
    assert warnings_of(listeners | {unused: value}) == (
        f"ignored, because they protect no listener of this node: {unused}",
    )


def test_limits_on_the_connections_of_the_node_are_supported() -> None:
    assert warnings_of({"max.connections": "10", "max.connections.per.ip": "5"}) == ()


def test_misspelt_key_of_a_protection_is_suggested() -> None:
    (warning,) = warnings_of({"authoriser.class.name": "x"})
    assert warning == (
        "authoriser.class.name is not a broker config and is ignored; did you mean authorizer.class.name?"
    )
