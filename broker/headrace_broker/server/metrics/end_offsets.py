"""Finds the high watermarks of partitions for the metrics page.

This broker knows them for its own in-sync replicas, and asks the leaders of other partitions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace_broker.client.connection import BrokerConnection
from headrace_broker.client.errors import ClientError
from headrace_broker.client.offsets import LATEST
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace_broker.protocol.topic_names import TopicPartition, group_by_topic

if TYPE_CHECKING:
    from headrace_broker.server.broker import Broker

logger = logging.getLogger(__name__)

LEADER_TIMEOUT_S = 2.0
_PARTITIONS_AT_ONCE = 500


async def end_offsets(broker: Broker, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the high watermarks of these partitions.

    A partition is missing in the result if it does not exist, or if its leader does not respond in `LEADER_TIMEOUT_S`.
    """
    found: dict[TopicPartition, int] = {}
    led_by: dict[int, list[TopicPartition]] = {}
    for number, (topic, index) in enumerate(partitions, 1):
        leader = _leader(broker, topic, index)
        local = broker.partitions.get(topic, index)
        if leader is None and local is not None:
            found[topic, index] = local.log.high_watermark
        elif leader is not None:
            led_by.setdefault(leader, []).append((topic, index))
        if number % _PARTITIONS_AT_ONCE == 0:
            await asyncio.sleep(0)
    await asyncio.gather(*(_ask_leader(broker, leader, wanted, found) for leader, wanted in led_by.items()))
    return found


def _leader(broker: Broker, topic: str, index: int) -> int | None:
    """Return the leader to ask, or None if this broker has an in-sync replica, or if the partition has no leader."""
    image = broker.image.topics.get(topic)
    if image is None or index >= len(image.partitions):
        return None
    partition = image.partitions[index]
    return None if broker.node_id in partition.isr or partition.leader < 0 else partition.leader


async def _ask_leader(
    broker: Broker, leader: int, partitions: list[TopicPartition], found: dict[TopicPartition, int]
) -> None:
    """Add the high watermarks of the partitions that `leader` leads to `found`."""
    registered = broker.image.brokers.get(leader)
    endpoint = None if registered is None else registered.endpoint(broker.config.inter_broker_listener)
    if endpoint is None:
        return
    connection = None
    try:
        async with asyncio.timeout(LEADER_TIMEOUT_S):
            connection = await BrokerConnection.open(
                endpoint.host, endpoint.port, node_id=leader, client_id=f"broker-{broker.node_id}-metrics"
            )
            for start in range(0, len(partitions), _PARTITIONS_AT_ONCE):
                response = await connection.request(_request(partitions[start : start + _PARTITIONS_AT_ONCE]))
                for topic in response.topics:
                    for partition in topic.partitions:
                        if partition.error_code == ErrorCode.NONE:
                            found[topic.name, partition.partition_index] = partition.offset
    except (ClientError, TimeoutError) as error:
        reason = str(error) or f"no response within {LEADER_TIMEOUT_S:.0f} s"
        logger.debug("Broker %d: the metrics page lacks the lag of its partitions: %s", leader, reason)
    finally:
        if connection is not None:
            connection.close()


def _request(partitions: Iterable[TopicPartition]) -> ListOffsetsRequest:
    return ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsTopic(
                name=topic,
                partitions=[ListOffsetsPartition(partition_index=index, timestamp=LATEST) for index in indexes],
            )
            for topic, indexes in group_by_topic(partitions).items()
        ],
    )
