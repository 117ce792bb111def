"""The pytest plug-in: the fixtures `kafka_broker` and `connect_worker`.

pytest loads this module in every run, so it imports the broker only when a test uses a fixture.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headrace.testing.broker import KafkaBroker
    from headrace.testing.worker import ConnectWorker


@pytest.fixture
def kafka_broker_config() -> dict[str, str]:
    """The configuration of the fixture `kafka_broker`. To change it, override the fixture `kafka_broker_config`."""
    return {}


@pytest.fixture
def kafka_broker(kafka_broker_config: dict[str, str]) -> Iterator[KafkaBroker]:
    """A Kafka broker in this process, on a free port and with a temporary directory."""
    from headrace.testing.broker import KafkaBroker

    with KafkaBroker(kafka_broker_config) as broker:
        yield broker


@pytest.fixture
def connect_worker_config() -> dict[str, str]:
    """The configuration of the fixture `connect_worker`. To change it, override the fixture `connect_worker_config`."""
    return {}


@pytest.fixture
def connect_worker(kafka_broker: KafkaBroker, connect_worker_config: dict[str, str]) -> Iterator[ConnectWorker]:
    """A standalone Connect worker that uses `kafka_broker`."""
    from headrace.testing.worker import ConnectWorker

    with ConnectWorker(kafka_broker.bootstrap_servers, connect_worker_config) as worker:
        yield worker
        sys.stderr.write(worker.log)  # pytest shows it if the test failed
