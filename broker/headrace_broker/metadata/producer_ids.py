"""AllocateProducerIds: the controller allocates blocks of 1000 producer ids to brokers (KIP-730).

For each block, the controller appends a record to the metadata log before a broker uses the block.
"""

from __future__ import annotations

from headrace_broker.metadata.controller_result import ControllerResult
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.metadata_records import ProducerIdsRecord

BLOCK_SIZE = 1000


def allocate_producer_ids(image: MetadataImage, broker_id: int) -> ControllerResult[range]:
    """Allocate the next block of producer ids to `broker_id`. A block is never reused, even after a crash."""
    first = image.next_producer_id
    broker = image.brokers.get(broker_id)
    record = ProducerIdsRecord(
        broker_id=broker_id,
        broker_epoch=broker.epoch if broker is not None else -1,
        next_producer_id=first + BLOCK_SIZE,
    )
    return ControllerResult(range(first, first + BLOCK_SIZE), [record])
