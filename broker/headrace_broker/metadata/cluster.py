"""The bootstrap records of a new metadata log, and the feature levels.

`metadata.version` is the level of Kafka 4.3 (30), so Kafka's tools support every record type that controllers write.
The other features stay at level 0 until they are implemented.

`min.insync.replicas` is a cluster-wide dynamic config, as in Kafka with eligible leader replicas (KIP-966). Leaders use
it to decide when to acknowledge records, and the controller uses it to compute the eligible leader replicas. All nodes
must use the same value: if the controller used a larger value than a leader, the controller could elect a replica that
lacks some of the records that the leader has acknowledged.
"""

from __future__ import annotations

from headrace_broker.metadata.image import BROKER_RESOURCE, MetadataImage
from headrace_broker.protocol.metadata_records import ConfigRecord, FeatureLevelRecord, MetadataRecord

METADATA_VERSION_FEATURE = "metadata.version"
METADATA_VERSION = 30
METADATA_VERSION_MIN = 7
MIN_INSYNC_REPLICAS = "min.insync.replicas"


def bootstrap_records(image: MetadataImage, min_insync_replicas: int = 1) -> list[MetadataRecord]:
    """Return the records that a new active controller appends first.

    They set the feature levels and the cluster-wide configs that `image` lacks. `min_insync_replicas` is the value in
    the controller's properties file.
    """
    records: list[MetadataRecord] = []
    if not image.features:
        records.append(FeatureLevelRecord(name=METADATA_VERSION_FEATURE, feature_level=METADATA_VERSION))
    if min_insync_replicas > 1 and MIN_INSYNC_REPLICAS not in image.broker_configs():
        value = str(min_insync_replicas)
        records.append(
            ConfigRecord(resource_type=BROKER_RESOURCE, resource_name="", name=MIN_INSYNC_REPLICAS, value=value)
        )
    return records
