"""Tests of Go and Node.js clients with headrace's broker. The tests download the clients' libraries."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support import go_and_node
from support.broker import BrokerProcess, running_broker

pytestmark = [pytest.mark.wire, pytest.mark.slow, pytest.mark.timeout(1200)]


def needs(*programs: str) -> pytest.MarkDecorator:
    missing = go_and_node.missing_program(*programs)
    return pytest.mark.skipif(missing is not None, reason=f"{missing} is not on the path")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("clients")) as process:
        yield process


@needs("go")
@pytest.mark.parametrize("client", ["sarama", "franz-go"])
def test_transactional_producer_of_a_go_client_fails_with_an_error_about_transactions(
    broker: BrokerProcess, client: str
) -> None:
    error = go_and_node.run_go_client(client, broker.address)
    assert "The producer attempted a transactional operation in an invalid state" in error


@needs("node", "npm")
def test_transactional_producer_of_kafkajs_fails_with_an_error_about_transactions(broker: BrokerProcess) -> None:
    error = go_and_node.run_node_client("transaction.js", broker.address)
    assert error == "The producer attempted a transactional operation in an invalid state\n"
