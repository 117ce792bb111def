"""Converts properties of Java consumers to properties of librdkafka, for the consumers in Spark's processes.

Connect provides a sink's consumer properties with their Java names. Most connection and security properties have the
same name in librdkafka. Some properties have another name or form in librdkafka, and this module converts them. This
module drops properties about consumer groups, deserializers and polling, because the Spark data source `headrace_kafka`
does not need them. For every other property that librdkafka does not support, this module returns a warning. This
module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_SAME_NAME = frozenset(
    {
        "bootstrap.servers",
        "client.id",
        "client.rack",
        "client.dns.lookup",
        "security.protocol",
        "sasl.kerberos.service.name",
        "sasl.kerberos.min.time.before.relogin",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.password",
        "ssl.keystore.password",
        "fetch.max.bytes",
        "fetch.min.bytes",
        "max.partition.fetch.bytes",
        "isolation.level",
        "metadata.max.age.ms",
        "reconnect.backoff.ms",
        "reconnect.backoff.max.ms",
        "retry.backoff.ms",
        "retry.backoff.max.ms",
        "connections.max.idle.ms",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.oauthbearer.scope",
        "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.client.secret",
        "sasl.username",
        "sasl.password",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.key.location",
        "ssl.key.pem",
        "debug",
    }
)
_RENAMED = {
    "sasl.mechanism": "sasl.mechanism",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "socket.connection.setup.timeout.ms": "socket.connection.setup.timeout.ms",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
}
_NOT_APPLICABLE = frozenset(
    {
        "group.id",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "enable.auto.commit",
        "auto.commit.interval.ms",
        "auto.offset.reset",
        "key.deserializer",
        "value.deserializer",
        "max.poll.records",
        "max.poll.interval.ms",
        "session.timeout.ms",
        "heartbeat.interval.ms",
        "partition.assignment.strategy",
        "allow.auto.create.topics",
        "exclude.internal.topics",
        "default.api.timeout.ms",
        "request.timeout.ms",
        "metric.reporters",
        "check.crcs",
    }
)
_PEM_KEYS = {
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}
_JAAS_MODULES = ("PlainLoginModule", "ScramLoginModule")


def librdkafka_config(properties: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return librdkafka's configuration, and a warning for each key that librdkafka does not support."""
    config: dict[str, str] = {}
    warnings: list[str] = []
    for key, value in properties.items():
        if key in _SAME_NAME:
            config[key] = value
        elif key in _RENAMED:
            config[_RENAMED[key]] = value
        elif key in _PEM_KEYS:
            config[_PEM_KEYS[key]] = value
        elif key == "sasl.jaas.config":
            config.update(_jaas(value, warnings))
        elif key in ("ssl.truststore.location", "ssl.keystore.location"):
            warnings.append(_store(key, value, properties, config))
        elif key not in _NOT_APPLICABLE and not key.endswith((".type", ".password")):
            warnings.append(f"Configuration {key} is ignored, because Spark's Kafka source does not support it")
    return config, [warning for warning in warnings if warning]


def _jaas(value: str, warnings: list[str]) -> dict[str, str]:
    options = dict(re.findall(r"(\w+)\s*=\s*\"([^\"]*)\"", value))
    if any(module in value for module in _JAAS_MODULES) and {"username", "password"} <= options.keys():
        return {"sasl.username": options["username"], "sasl.password": options["password"]}
    warnings.append(
        "Configuration sasl.jaas.config is ignored, because Spark's Kafka source supports only a PlainLoginModule or"
        " ScramLoginModule with username and password"
    )
    return {}


def _store(key: str, value: str, properties: Mapping[str, str], config: dict[str, str]) -> str:
    kind = properties.get(key.replace(".location", ".type"), "JKS").upper()
    if key == "ssl.truststore.location" and kind == "PEM":
        config["ssl.ca.location"] = value
        return ""
    if key == "ssl.keystore.location" and kind == "PKCS12":
        config["ssl.keystore.location"] = value
        return ""
    if key == "ssl.keystore.location" and kind == "PEM":
        config["ssl.certificate.location"] = config["ssl.key.location"] = value
        return ""
    return (
        f"Configuration {key} is ignored, because Spark's Kafka source cannot read {kind} stores; use PEM files instead"
        " (ssl.truststore.type=PEM)"
    )
