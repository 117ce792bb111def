"""Tests of AlterConfigs and IncrementalAlterConfigs with unusual requests. The error codes are Apache Kafka's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import alter_configs, describe_configs, incremental_alter_configs
from support.broker import BrokerProcess, running_broker
from support.raw_client import RawClient, create_topic

pytestmark = pytest.mark.wire

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND = 0, 1, 2
OK, INVALID = ErrorCode.NONE, ErrorCode.INVALID_REQUEST
Result = tuple[int, str | None]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("configs")) as process:
        with RawClient(process.address) as client:
            create_topic(client, "t")
        yield process


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.address) as connection:
        yield connection


def alter(client: RawClient, *resources: tuple[int, str, list[tuple[str, int, str | None]]]) -> dict[str, Result]:
    """Send IncrementalAlterConfigs, and return the results by resource name."""
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(
        resources=[
            incremental_alter_configs.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    incremental_alter_configs.AlterableConfig(name=key, config_operation=operation, value=value)
                    for key, operation, value in changes
                ],
            )
            for kind, name, changes in resources
        ]
    )
    responses = client.call(request, 1).responses
    assert len(responses) == len(resources)
    return {item.resource_name: (item.error_code, item.error_message) for item in responses}


def replace(client: RawClient, kind: int, name: str, *configs: tuple[str, str | None]) -> Result:
    """Send AlterConfigs for one resource."""
    values = [alter_configs.AlterableConfig(name=key, value=value) for key, value in configs]
    resource = alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=values)
    (item,) = client.call(alter_configs.AlterConfigsRequest(resources=[resource]), 2).responses
    return item.error_code, item.error_message


def value_of(client: RawClient, kind: int, name: str, key: str) -> str | None:
    resource = describe_configs.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=[key]
    )
    (result,) = client.call(describe_configs.DescribeConfigsRequest(resources=[resource]), 4).results
    return next((item.value for item in result.configs), None)


def test_deletion_of_an_unknown_topic_or_broker_config_succeeds(client: RawClient) -> None:
    assert alter(client, (TOPIC, "t", [("foo", DELETE, None)]), (BROKER, "1", [("foo", DELETE, None)])) == {
        "t": (OK, None),
        "1": (OK, None),
    }


def test_configs_of_another_broker_are_rejected_and_those_of_the_receiver_are_altered(client: RawClient) -> None:
    change = [("log.retention.ms", SET, "100000")]
    assert alter(client, (BROKER, "9", change), (BROKER, "x", change), (BROKER, "1", change)) == {
        "9": (INVALID, "Unexpected broker id, expected 1, but received 9"),
        "x": (INVALID, "Broker id must be an integer, but it is: x"),
        "1": (OK, None),
    }
    assert value_of(client, BROKER, "1", "log.retention.ms") == "100000"
    assert replace(client, BROKER, "9") == (INVALID, "Unexpected broker id, expected 1, but received 9")
    assert replace(client, BROKER, "1") == (OK, None)
    assert value_of(client, BROKER, "1", "log.retention.ms") is None


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        (LOGGER, "1", "Configs of BROKER_LOGGER '1' cannot be altered yet."),
        (CLIENT_METRICS, "s", "Configs of CLIENT_METRICS 's' cannot be altered yet."),
        (GROUP, "g", "Configs of GROUP 'g' cannot be altered yet."),
        (3, "t", "Unknown resource type 3 of resource 't'."),
        (TOPIC, "", "Topics have no default configs: the topic name must not be empty."),
    ],
)
def test_error_about_a_resource_whose_configs_cannot_be_altered_names_the_resource_type(
    client: RawClient, kind: int, name: str, message: str
) -> None:
    assert alter(client, (kind, name, [("retention.ms", SET, "1")])) == {name: (INVALID, message)}
    assert replace(client, kind, name) == (INVALID, message)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("retention.ms", 9, "1"), INVALID),
        (("foo", -1, "1"), INVALID),
        (("retention.ms", SET, None), INVALID),
        (("cleanup.policy", APPEND, None), INVALID),
        (("retention.ms", SET, "x"), ErrorCode.INVALID_CONFIG),
        (("retention.ms", APPEND, "1"), ErrorCode.INVALID_CONFIG),
        (("foo", SET, "1"), ErrorCode.INVALID_CONFIG),
        (("foo", APPEND, "1"), ErrorCode.INVALID_CONFIG),
    ],
)
def test_invalid_alteration_of_a_topic_config_is_rejected(
    client: RawClient, change: tuple[str, int, str | None], code: ErrorCode
) -> None:
    ((found, message),) = alter(client, (TOPIC, "t", [change])).values()
    assert found == code
    assert message is not None
    assert message.startswith("Topic 't': ")


@pytest.mark.parametrize("change", [("node.id", "2"), ("log.retention.ms", "x"), ("log.retention.ms", None)])
def test_invalid_alteration_of_a_broker_config_is_an_invalid_request_that_names_the_config(
    client: RawClient, change: tuple[str, str | None]
) -> None:
    for code, message in (
        alter(client, (BROKER, "1", [(change[0], SET, change[1])]))["1"],
        replace(client, BROKER, "1", change),
    ):
        assert code == INVALID
        assert change[0] in (message or "")


@pytest.mark.parametrize(
    "configs", [(("retention.ms", None),), (("foo", None),), (("retention.ms", "1"), ("retention.ms", "2"))]
)
def test_replacement_of_topic_configs_with_a_null_value_or_a_duplicate_is_an_invalid_request(
    client: RawClient, configs: tuple[tuple[str, str | None], ...]
) -> None:
    assert replace(client, TOPIC, "t", *configs)[0] == INVALID
