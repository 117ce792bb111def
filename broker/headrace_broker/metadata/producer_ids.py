"""Producer ids: the controller hands out blocks of 1000, each recorded before it is used (KIP-730)."""

from __future__ import annotations

from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.outcome import Outcome
from headrace_broker.protocol.metadata_records import ProducerIdsRecord

BLOCK_SIZE = 1000


def allocate_producer_ids(image: MetadataImage, broker_id: int) -> Outcome[range]:
    """The next block for `broker_id`; no id is ever given twice, a crash only leaves some unused."""
    first = image.next_producer_id
    broker = image.brokers.get(broker_id)
    record = ProducerIdsRecord(
        broker_id=broker_id,
        broker_epoch=broker.epoch if broker is not None else -1,
        next_producer_id=first + BLOCK_SIZE,
    )
    return Outcome(range(first, first + BLOCK_SIZE), [record])
