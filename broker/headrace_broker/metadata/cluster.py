"""What a new log begins with, and the feature levels.

`metadata.version` is Kafka 4.3's (30), so that every record type written here is known to Kafka's tools; the other
features stay at 0 until what they promise is there.

`min.insync.replicas` becomes the cluster's, as in Kafka with eligible leader replicas (KIP-966): leaders acknowledge by
it and the controller holds to be eligible by it.  Were it what each node's file says, a controller with a larger one
would have replicas lead that lack what a leader with a smaller one has acknowledged.
"""

from __future__ import annotations

from headrace_broker.metadata.image import BROKER_RESOURCE, MetadataImage
from headrace_broker.protocol.metadata_records import ConfigRecord, FeatureLevelRecord, MetadataRecord

METADATA_VERSION_FEATURE = "metadata.version"
METADATA_VERSION = 30
METADATA_VERSION_MIN = 7
MIN_INSYNC_REPLICAS = "min.insync.replicas"


def bootstrap_records(image: MetadataImage, min_insync_replicas: int = 1) -> list[MetadataRecord]:
    """What an active controller, whose file says so much of min.insync.replicas, adds before all else."""
    records: list[MetadataRecord] = []
    if not image.features:
        records.append(FeatureLevelRecord(name=METADATA_VERSION_FEATURE, feature_level=METADATA_VERSION))
    if min_insync_replicas > 1 and MIN_INSYNC_REPLICAS not in image.broker_configs():
        value = str(min_insync_replicas)
        records.append(
            ConfigRecord(resource_type=BROKER_RESOURCE, resource_name="", name=MIN_INSYNC_REPLICAS, value=value)
        )
    return records
