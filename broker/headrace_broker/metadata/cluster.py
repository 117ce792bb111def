"""What a new log begins with, and the feature levels.

`metadata.version` is Kafka 4.3's (30), so that every record type written here is known to Kafka's tools; the other
features stay at 0 until what they promise is there.
"""

from __future__ import annotations

from headrace_broker.protocol.metadata_records import FeatureLevelRecord, MetadataRecord

METADATA_VERSION_FEATURE = "metadata.version"
METADATA_VERSION = 30
METADATA_VERSION_MIN = 7


def bootstrap_records() -> list[MetadataRecord]:
    """What the metadata log of a new cluster begins with."""
    return [FeatureLevelRecord(name=METADATA_VERSION_FEATURE, feature_level=METADATA_VERSION)]
