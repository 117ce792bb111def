"""Tests that the batcher hands over the batches of a large `send` one by one, and reports one result for the `send`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from headrace_broker.client.batcher import Batcher
from headrace_broker.client.cluster import Cluster
from headrace_broker.client.cluster_view import ClusterView, PartitionView, TopicView
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.delivery import Delivery, acknowledge
from headrace_broker.client.errors import ClientError
from headrace_broker.client.producer_core import ReadyBatch
from headrace_broker.records.columns import RecordColumns
from headrace_broker.records.reader import read_columns

VALUES: list[bytes | None] = [b"%04d" % number + b"x" * 9_996 for number in range(300)]  # three batches of 1 MB


def batcher(on_built: Callable[[], None]) -> Batcher:
    config = ClientConfig.from_properties({"bootstrap.servers": "localhost:1"}, "producer")
    cluster = Cluster(config)
    cluster.view = ClusterView(topics={"t": TopicView("t", b"", False, (PartitionView(0, 1, 0),))})
    return Batcher(cluster, config, on_built)


async def send_acknowledging(values: list[Any]) -> tuple[list[int], list[bytes | None], list[Any]]:
    """Send values, and acknowledge each batch when it is handed over.

    Return the number of batches of each handover, the values in the batches, and the results of the `send` call.
    """
    handovers: list[int] = []
    received: list[bytes | None] = []
    results: list[Any] = []
    is_locked: list[bool] = []

    def on_built() -> None:
        batches: list[ReadyBatch] = list(sender.drain_built())
        handovers.append(len(batches))
        is_locked.append(sender._send_lock.locked())
        for batch in batches:
            acknowledge(batch.delivery_parts, 0, len(received))
            received.extend(read_columns(bytes(batch.data), verify_crc=False).values)
            sender.release(batch.reserved_bytes)

    sender = batcher(on_built)
    delivery = Delivery("t", lambda metadata, error: results.append(error or metadata))
    sender.send("t", None, RecordColumns(values=values, timestamps=1), delivery)
    await asyncio.sleep(0)
    assert sender.buffered_bytes == 0
    assert not any(is_locked[-1:])  # `seal_due` does nothing while the lock is held
    return handovers, received, results


def test_first_batches_of_a_large_send_are_handed_over_before_the_last_ones_are_built() -> None:
    handovers, received, results = asyncio.run(send_acknowledging(VALUES))
    assert handovers == [1] * len(handovers)
    assert len(handovers) > 2
    assert received == VALUES
    [metadata] = results
    assert metadata.count == len(VALUES)
    assert len(metadata.parts) == len(handovers)


def test_send_with_a_value_that_is_not_bytes_fails_as_a_whole() -> None:
    handovers, received, results = asyncio.run(send_acknowledging([*VALUES, 5]))
    assert (sum(handovers), received) == (0, [])
    [error] = results
    assert isinstance(error, ClientError)
    assert "records for t cannot be sent" in str(error)
