"""Compares the configs of headrace with those of Apache Kafka 4.3: names, types and defaults in DescribeConfigs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace_broker.log.config import ConfigSource, ConfigType
from headrace_broker.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)
from support import apache
from support.broker import running_broker
from support.raw_client import RawClient, create_topic

pytestmark = [
    pytest.mark.wire,
    pytest.mark.jvm,
    pytest.mark.skipif(apache.unavailable_reason() is not None, reason=apache.unavailable_reason() or ""),
]

TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32
Configs = dict[str, DescribeConfigsResourceResult]


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RawClient, RawClient]]:
    directory = tmp_path_factory.mktemp("definitions")
    with (
        apache.broker(flags=apache.SHORT_RUN_FLAGS) as peer,
        running_broker(directory) as broker,
        RawClient(peer.address, timeout_s=60) as theirs,
        RawClient(broker.address) as ours,
    ):
        for client in (theirs, ours):
            create_topic(client, "t")
        yield theirs, ours


def describe(client: RawClient, kind: int, name: str) -> Configs:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    (result,) = client.call(request, 4).results
    assert result.error_code == 0
    return {config.name: config for config in result.configs}


@pytest.mark.parametrize(("kind", "name"), [(TOPIC, "t"), (CLIENT_METRICS, "s"), (GROUP, "g")])
def test_configs_of_topics_subscriptions_and_groups_have_the_names_types_and_values_of_apache_kafka(
    clients: tuple[RawClient, RawClient], kind: int, name: str
) -> None:
    theirs, ours = (
        {
            key: (ConfigType(config.config_type).name, config.value)
            for key, config in describe(client, kind, name).items()
        }
        for client in clients
    )
    assert ours == theirs


def test_configs_of_brokers_have_the_types_of_apache_kafka(clients: tuple[RawClient, RawClient]) -> None:
    theirs, ours = (describe(client, BROKER, "1") for client in clients)
    assert {name: ConfigType(ours[name].config_type).name for name in ours if name in theirs} == {
        name: ConfigType(theirs[name].config_type).name for name in ours if name in theirs
    }
    # Apache Kafka does not return leader.imbalance.per.broker.percentage, although it is a documented config.
    additional = {name for name in ours.keys() - theirs.keys() if not name.startswith("headrace.")}
    assert additional == {"leader.imbalance.per.broker.percentage"}


def test_configs_of_brokers_have_the_defaults_of_apache_kafka(clients: tuple[RawClient, RawClient]) -> None:
    theirs, ours = (_defaults(describe(client, BROKER, "1")) for client in clients)
    compared = (theirs.keys() & ours.keys()) - {"listener.security.protocol.map"}  # the order of its entries differs
    assert {name: ours[name] for name in compared} == {name: theirs[name] for name in compared}
    assert len(compared) >= 90


def _defaults(configs: Configs) -> dict[str, list[tuple[str, str | None]]]:
    """Return the defaults of each config that has defaults: its own, and those of its synonyms."""
    return {
        name: defaults
        for name, config in configs.items()
        if (defaults := [(item.name, item.value) for item in config.synonyms if item.source == ConfigSource.DEFAULT])
    }
